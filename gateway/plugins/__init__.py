"""Finds plugins, and puts them in order.

Built-in plugins come first, in the order of `BUILT_IN`; those of other distributions follow by
name. The order is part of the meaning: hooks are called in it (`gateway.hooks`), and
`reverie plugins` prints it.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, partial, reduce
from importlib.metadata import entry_points
from operator import or_
from pkgutil import resolve_name
from typing import Annotated, Any, Final, NamedTuple, get_args
from urllib.parse import urlsplit

import pluggy
from pydantic import BeforeValidator, Field, create_model

from agent.models.settings import ProviderSettings
from channels.base import ChannelConfig
from gateway.commands.definition import declared_commands
from gateway.config.models import ChannelKey, LlmConfig, Name, Settings
from gateway.core.facts import fact_kind, register_facts
from gateway.core.tool import build_tools, permits_of
from gateway.hooks import PluginProblem
from gateway.plugin import API_VERSION, PROJECT, Hooks, PlatformFactory, Plugin
from gateway.store.projections import register_tables
from gateway.store.schema import table_names

GROUP: Final = "reverie.plugins"
"""Group of entry points. The name of an entry is the plugin's, its value `module:Class`."""
BUILT_IN: Final = (
    "gateway.plugins.memory:Memory",
    "gateway.plugins.reminders:Reminders",
    "gateway.plugins.recap:Recap",
    "gateway.plugins.recall:Recall",
    "gateway.plugins.media:Media",
    "gateway.plugins.evidence:EvidenceReader",
    "gateway.plugins.rest:Rest",
    "gateway.plugins.read_room:RoomReader",
    "gateway.plugins.messaging:Messaging",
    "gateway.plugins.messaging:MessageActions",
    "gateway.plugins.telling:OwnerTelling",
    "gateway.plugins.mcp:Mcp",
    "gateway.plugins.approvals:Approvals",
    "gateway.plugins.skills:Skills",
    "gateway.plugins.previews:Previews",
    "gateway.plugins.files:Files",
    "gateway.plugins.shell:Shell",
    "gateway.plugins.web:Web",
    "gateway.plugins.rewind:Rewind",
    "gateway.plugins.trace:Trace",
    "gateway.plugins.retention:Retention",
    "gateway.plugins.pairing:Pairing",
    "gateway.plugins.owners:Owners",
    "gateway.plugins.menus:RoleMenus",
    "gateway.plugins.budgets:Budgets",
    "gateway.plugins.usage:UsageReports",
    "gateway.plugins.platforms:Irc",
    "gateway.plugins.platforms:Telegram",
    "gateway.plugins.platforms:Discord",
    "gateway.plugins.providers:Anthropic",
    "gateway.plugins.providers:Vertex",
    "gateway.plugins.providers:OpenAI",
    "gateway.plugins.providers:Gemini",
    "gateway.plugins.providers:MiniMax",
    "gateway.plugins.providers:LlamaCpp",
    "gateway.plugins.providers:Local",
    "gateway.plugins.providers:Scripted",
    "gateway.plugins.http:Http",
    "gateway.plugins.health:Health",
    "gateway.plugins.metrics:Metrics",
    "gateway.plugins.dashboard:Dashboard",
    "gateway.plugins.console:Console",
    "gateway.plugins.setup:Setup",
    "gateway.plugins.backup:Backup",
    "gateway.plugins.doctor:Doctor",
)
"""Reverie's own plugins, `module:Class`, in their order."""
# `reverie-gateway` is this distribution.
_NAME: Final = re.compile(r"(?!gateway\Z)[a-z][a-z0-9_]{0,31}")


class FoundPlugins(NamedTuple):
    """The plugins of this environment."""

    classes: tuple[type[Plugin], ...]
    """Those that can be loaded, in their order."""
    used: tuple[type[Plugin], ...]
    """Those of them that are on, and fit the others that are."""
    problems: tuple[PluginProblem, ...]
    """Why others cannot be used."""
    origins: Mapping[str, str]
    """Distribution and version of each plugin, by its name. Empty: it is Reverie's own."""


@cache
def find_plugins(off: tuple[str, ...] = ()) -> FoundPlugins:
    """Return the plugins of this environment; their facts and tables are known from now on.

    `off` (`plugins.off`): names of those that are not used, nor those that require them; the names
    that they declare are free for others. What cannot be used is told as a problem, so that one
    plugin never keeps the gateway from starting. The answer is the same for the whole life of the
    process, but for `use_plugins`.
    """
    found = _load_plugins()
    left, used, problems = set(off), list[type[Plugin]](), list(found.problems)
    for number, one in enumerate(found.classes):
        if one.name in left or not left.isdisjoint(one.requires):
            left.add(one.name)
            continue
        try:
            if number >= len(BUILT_IN):  # those before fit each other
                _check_conflicts(one, used)
        except Exception as error:  # noqa: BLE001 - code of anybody's declares names here
            problems.append(_problem(one.name, error, found.origins.get(one.name, "")))
            left.add(one.name)
        else:
            used.append(one)
    return found._replace(used=tuple(used), problems=tuple(problems))


def _problem(name: str, error: BaseException, origin: str) -> PluginProblem:
    text = f"it is not used: {type(error).__name__}: {error}"
    return PluginProblem(plugin=name, text=text, origin=origin)


@cache
def _load_plugins() -> FoundPlugins:
    """Import all plugins, whether they are used or not: the log may hold facts of each."""
    classes = [*map(resolve_name, BUILT_IN), *_used]
    problems, origins = list[PluginProblem](), dict[str, str]()
    used = {one.name for one in _used}
    installed = [one for one in entry_points(group=GROUP) if one.name not in used]
    for entry in sorted(installed, key=lambda one: one.name):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
        try:
            plugin = resolve_name(entry.value)
            check_plugin(plugin, classes)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - code of anybody's is imported here
            problems.append(_problem(entry.name, error, origin))
        else:
            classes.append(plugin)
            origins[plugin.name] = origin
    register_facts(fact for one in classes for fact in one.facts)
    register_tables(table for one in classes for table in one.tables)
    return FoundPlugins(tuple(classes), (), tuple(problems), origins)


_used = list[type[Plugin]]()


@contextlib.contextmanager
def use_plugins(*plugins: type[Plugin], off: tuple[str, ...] = ()) -> Iterator[None]:
    """Have this process find these plugins, too, behind the built-in ones: for tests, and for
    programs that embed Reverie. Each replaces an installed one of its name. `off`: those that the
    configuration turns off. Raises what `check_plugin` raises, also for a conflict with others.
    """
    before = len(_used)
    try:
        for one in plugins:
            found = find_plugins(off)
            installed = found.origins.keys() & {one.name}
            check_plugin(one, [other for other in found.classes if other.name not in installed])
            _check_conflicts(one, [other for other in found.used if other.name not in installed])
            _used.append(one)
            _forget()
        yield
    finally:
        del _used[before:]
        _forget()


def _forget() -> None:
    """Have the plugins be found again."""
    _load_plugins.cache_clear()
    find_plugins.cache_clear()
    settings_model.cache_clear()
    find_plugins()


class UnusablePlugin(Exception):
    """The plugin does not fit this version of Reverie, or the other plugins. The text says why."""


def check_plugin(plugin: object, before: Sequence[type[Plugin]]) -> None:
    """Raise UnusablePlugin if it cannot be loaded behind these, `pluggy.PluginValidationError` for
    a hook that does not exist or has other arguments.
    """
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise UnusablePlugin(f"{plugin!r} is no subclass of reverie.Plugin")
    if plugin.api != API_VERSION:
        raise UnusablePlugin(
            f"it is written for version {plugin.api} of the interface, and this is {API_VERSION}"
        )
    names = {one.name for one in before} | Settings.model_fields.keys()
    if not _NAME.fullmatch(plugin.name) or plugin.name in names:
        raise UnusablePlugin(f"its name is {plugin.name!r}, which is no name or is taken")
    if missing := sorted(set(plugin.requires) - names):
        raise UnusablePlugin(f"it requires {', '.join(missing)}, which is not there")
    named = [(fact_kind(one), ".") for one in plugin.facts]
    named += [(one.name, "_") for one in plugin.tables]
    foreign = [one for one, gap in named if not f"{one}{gap}".startswith(f"{plugin.name}{gap}")]
    if foreign:
        raise UnusablePlugin(f"{', '.join(foreign)} must begin with {plugin.name}")
    if own := sorted(table_names().intersection(one.name for one in plugin.tables)):
        raise UnusablePlugin(f"the store has a table {', '.join(own)} of its own")
    if plugin.Settings is not None and any(
        one.is_required() for one in plugin.Settings.model_fields.values()
    ):
        raise UnusablePlugin("each of its settings needs a default value")
    _check_kinds(plugin)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    manager.register(plugin, plugin.name)
    manager.check_pending()


def _check_conflicts(plugin: type[Plugin], before: Sequence[type[Plugin]]) -> None:
    """Raise UnusablePlugin, or `UnusableCommand`, if one of these declares a name that it declares,
    too.
    """
    kinds: list[tuple[str, Collection[str], Collection[str]]] = [
        ("tool", {one.spec.name for one in build_tools(plugin)}, permits_of(*before)),
        ("platform", plugin.platforms, {name for one in before for name in one.platforms}),
        ("provider", plugin.providers, {name for one in before for name in one.providers}),
    ]
    if plugin.subcommands or any(declared_commands(plugin)):
        from gateway.commands.table import build_table  # noqa: PLC0415 - it needs all of the gateway

        names = {*build_table((*before, plugin)).operator}
        names.update(name for one in before for name in one.subcommands)
        kinds.append(("command", plugin.subcommands, names))
    for what, declared, others in kinds:
        if taken := sorted(set(declared) & set(others)):
            raise UnusablePlugin(f"there is a {what} {', '.join(taken)} already")


def _check_kinds(plugin: type[Plugin]) -> None:
    platforms = {name: one.settings for name, one in plugin.platforms.items()}
    for what, key, base, declared in (
        ("platform", "platform", ChannelConfig, platforms),
        ("provider", "kind", ProviderSettings, plugin.providers),
    ):
        for name, settings in declared.items():
            field = settings.model_fields[key] if issubclass(settings, base) else None
            if field is None or name not in get_args(field.annotation):
                raise UnusablePlugin(
                    f"the settings of its {what} must be a {base.__name__}"
                    f" with `{key}: Literal[{name!r}]`"
                )


def find_platforms(off: tuple[str, ...] = ()) -> Mapping[str, PlatformFactory]:
    """Return the platforms of this environment by name, in the order of their plugins. Of two
    with one name it is that of the plugin that is used.
    """
    found = find_plugins(off)
    return {
        name: made for one in (*found.classes, *found.used) for name, made in one.platforms.items()
    }


def find_providers(off: tuple[str, ...] = ()) -> Mapping[str, type[ProviderSettings]]:
    """Return the providers of models of this environment by kind, in the order of their plugins.
    Of two with one name it is that of the plugin that is used.
    """
    found = find_plugins(off)
    return {
        kind: one for each in (*found.classes, *found.used) for kind, one in each.providers.items()
    }


def _add_kind(value: object, providers: Mapping[str, type[ProviderSettings]]) -> object:
    """Add the kind that the address of a provider suggests, if none is given."""
    if (
        not isinstance(value, dict)
        or "kind" in value
        or not isinstance(url := value.get("base_url"), str)
    ):
        return value
    try:
        parts = urlsplit(url.strip())
        kinds = [kind for kind, one in providers.items() if one.is_at(parts)]
    except ValueError:
        kinds = []  # validation by the chosen section reports the bad address
    return {**value, "kind": kinds[0] if kinds else "openai"}


@cache
def settings_model(off: tuple[str, ...] = ()) -> type[Settings]:
    """Return the model of the configuration, with what plugins bring: platforms, providers, and
    sections. That of a plugin which cannot be loaded may hold anything. `off`: see `find_plugins`.
    """
    channel: Any = reduce(or_, (one.settings for one in find_platforms(off).values()))
    found, kinds = find_plugins(off), find_providers(off)
    unused = {one.plugin for one in found.problems} - Settings.model_fields.keys()
    sections: dict[str, Any] = {name: (Any, None) for name in unused if _NAME.fullmatch(name)} | {
        one.name: (one.Settings, one.Settings())
        for one in found.classes
        if one.Settings is not None
    }
    sections["channels"] = (
        dict[ChannelKey, Annotated[channel, Field(discriminator="platform")]],
        Field(default={}),
    )
    provider: Any = reduce(or_, kinds.values())
    guess = BeforeValidator(partial(_add_kind, providers=kinds))
    providers: Any = dict[Name, Annotated[provider, Field(discriminator="kind"), guess]]
    sections["llm"] = create_model(
        "LlmConfig",
        __base__=LlmConfig,
        __doc__=LlmConfig.__doc__,
        __module__=__name__,
        providers=providers,
    )
    return create_model("Settings", __base__=Settings, __module__=__name__, **sections)
