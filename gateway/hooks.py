"""Calls the hooks of the plugins of one gateway, for the path of a message.

A hook that fails is told with its plugin's name, and the path goes on. What hooks exist, and what
they give and return: `gateway.plugin.Hooks`.
"""

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, TypeVar

import pluggy
from prometheus_client import CollectorRegistry, Counter

from channels.aio import is_cancellation
from gateway.access.policy import Routed
from gateway.context.observer import Progress, ProgressListener, RunningTurn
from gateway.core.events import ConversationId, Post
from gateway.core.facts import Fact, TurnRecord, dump_fact
from gateway.core.frozen import frozen
from gateway.core.labels import Label
from gateway.core.permissions import PermissionDecision
from gateway.core.tool import DEFAULT_TIMEOUT_S, Tool, ToolContext, tools_of
from gateway.core.tool_spec import ToolCall
from gateway.plugin import (
    PROJECT,
    Ask,
    Hooks,
    Part,
    Plan,
    Plugin,
    PluginContext,
    PluginT,
    Refuse,
    TurnView,
)
from gateway.store import LogEntry, StoreClosed, StoreError
from gateway.store.effects import Decision
from gateway.store.types import StatementRefused
from gateway.stream.notices import Notice

logger = logging.getLogger("reverie.plugins")

HOOK_NAMES: Final = tuple(name for name in vars(Hooks) if not name.startswith("_"))
PROBLEM_PREFIX: Final = "plugin:"
"""In front of the name of a plugin that has failed, in `/ready` and the notices to owners."""
Judge = Callable[[Routed, Decision], Awaitable[Decision | None]]
"""Returns another decision than the one so far, or None for no change. Raises StoreError."""
ResultT = TypeVar("ResultT")
SKILLS_SHOWN_S: Final = 5.0
"""Seconds after which plugins are asked for their skills again."""
HOOK_LIMIT_S: Final = 10.0
"""Longest time that an asynchronous hook takes, but `approve`; then it is cancelled, and counts as
failed."""


@frozen
class PluginProblem:
    """A plugin that is not loaded, or a hook that has failed."""

    plugin: str
    text: str
    hook: str = ""
    """The hook that has failed. Empty: the plugin is not loaded."""
    origin: str = ""
    """Its distribution and version. Empty: it is Reverie's own, or fails at run time."""

    def __str__(self) -> str:
        origin = f" ({self.origin})" if self.origin else ""
        return f"plugin {self.plugin}{origin}: {self.text}"


class Judging(NamedTuple):
    """Which events are judged, and by whom."""

    kinds: Collection[str]
    """As in the log."""
    fates: Collection[str]
    """Fates so far at which they are judged. An event begins as noted or refused."""
    judge: Judge


class Hook(NamedTuple):
    """One hook of one plugin."""

    plugin: Any
    """A `Plugin`, or its class."""
    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    """Those of the hook's arguments that the function takes."""

    def __call__(self, **values: object) -> Any:  # noqa: ANN401 - as the hook returns
        return self.function(**{one: values[one] for one in self.arguments})


class Plugins:
    """The plugins of one gateway, and their hooks in tables that never change."""

    def __init__(self, *plugins: Plugin) -> None:
        """Take these, in their order. See `build`."""
        self.all: Final = plugins
        self.hooks: Final = find_hooks(plugins)
        """Who hangs on each hook, in order."""
        self.problems = dict[str, PluginProblem]()
        """What went wrong so far: the newest of each plugin, by its name."""
        self.metrics = CollectorRegistry()
        self._failures = Counter(
            "reverie_plugin_failures",
            "Hooks of plugins that have failed.",
            ["plugin", "hook"],
            registry=self.metrics,
        )
        self._skills = dict[tuple[Hook, str, frozenset[str]], tuple[float, str]]()
        """What `skills` returned for these, and until when (monotonic) that is shown."""
        self.on_problem: Callable[[PluginProblem], None] = lambda _: None

    @classmethod
    def build(cls, classes: Sequence[type[Plugin]], context: PluginContext) -> "Plugins":
        """Build the plugins of a gateway, in their order; one that cannot be built is left out, see
        `problems`. Subscribes them to the log.
        """
        built, told = dict[str, Plugin](), cls()
        context = replace(context, plugins=built)
        for one in classes:
            if set(one.requires) <= built.keys():
                with told.guard(one.name, "__init__"):
                    built[one.name] = one(context)
        plugins = cls(*built.values())
        plugins.problems = told.problems
        for hook in plugins.hooks["on_facts"]:
            context.gateway.store.subscribe(partial(plugins.take_facts, hook), *hook.plugin.watches)
        return plugins

    def get(self, kind: type[PluginT]) -> PluginT | None:
        """Return the plugin of a class. None: it is off, or could not be built."""
        return next((one for one in self.all if isinstance(one, kind)), None)

    def judgings(self) -> tuple[Judging, ...]:
        """Return the judges among the plugins, for the intake."""
        return tuple(
            Judging(hook.plugin.judged_kinds, hook.plugin.judged_fates, partial(self._judge, hook))
            for hook in self.hooks["judge"]
        )

    async def parts(self, turn: TurnView) -> list[Part]:
        """Return what the prompt of a turn holds besides. Raises StoreError."""
        return [
            part
            for hook in self.hooks["parts"]
            if hook.plugin.parts_for != "owner" or turn.context.visibility.sees_everything
            for part in await self._items(hook, _check_part, turn=turn)
        ]

    async def plans(self, agent: str, place: ConversationId) -> list[Plan]:
        """Return what an agent means to do in a conversation. Raises StoreError."""
        return [
            plan
            for hook in self.hooks["plans"]
            for plan in await self._items(
                hook, partial(_checked, kind=Plan), agent=agent, place=place
            )
        ]

    async def skills(self, agent: str, tools: frozenset[str]) -> str:
        """Return the block of skills of an agent's prompts. Raises StoreError."""
        found = list[str]()
        for hook in self.hooks["skills"]:
            now_s, asked = hook.plugin.context.gateway.clock.monotonic(), (hook, agent, tools)
            until_s, text = self._skills.get(asked, (now_s, ""))
            if now_s >= until_s:
                async with self._limited(hook):
                    text = _checked(await hook(agent=agent, tools=tools), str).strip()
                    self._skills[asked] = now_s + SKILLS_SHOWN_S, text
            found.append(text)
        return "\n\n".join(filter(None, found))

    async def before_call(
        self, turn: ToolContext, call: ToolCall, tool: Tool
    ) -> Ask | Refuse | None:
        """Return the strictest answer to a call; a hook that fails refuses it. Raises
        StoreError.
        """
        strictest: Ask | Refuse | None = None
        for hook in self.hooks["before_call"]:
            answer: Ask | Refuse | None = Refuse(f"the plugin {hook.plugin.name} has failed")
            async with self._limited(hook):
                answer = _checked(await hook(turn=turn, call=call, tool=tool), Ask | Refuse | None)
            if isinstance(answer, Refuse):
                return answer
            strictest = strictest or answer
        return strictest

    async def approve(
        self, turn: ToolContext, call: ToolCall, decision: PermissionDecision
    ) -> str | None:
        """Return the first answer about a call that needs an approval. None: no plugin could be
        asked. Raises StoreError.
        """
        for hook in self.hooks["approve"]:
            with self.guard(hook.plugin.name, hook.name):
                answer: str | None = await hook(turn=turn, call=call, decision=decision)
                if answer is not None:
                    return answer
        return None

    def tools(self, plugin: Plugin) -> list[Tool]:
        """Return the tools of a plugin; what fails beside their handlers is told."""
        guarded, name = list[Tool](), plugin.name
        for one in tools_of(plugin):
            no_note: str | None = ""
            note = partial(self._value, name, f"note of {one.spec.name}", one.note, no_note)
            limit = f"time limit of {one.spec.name}"
            timeout_s = partial(self._value, name, limit, one.timeout_s, DEFAULT_TIMEOUT_S)
            guarded.append(replace(one, note=note, timeout_s=timeout_s))
        return guarded

    def dynamic_tools(self) -> dict[str, list[Tool]] | None:
        """Return the tools that come and go, by family. None: no plugin ever has such tools."""
        found = dict[str, list[Tool]]()
        for one in self.all:
            tools = self._value(one.name, "dynamic_tools", one.dynamic_tools, None)
            if tools is not None:
                found.setdefault(one.family or one.name, []).extend(tools)
        return found or None

    async def wait_for_tools(self) -> None:
        """Wait until the plugins' dynamic tools are complete. Raises StoreError."""
        for one in self.all:
            with self.guard(one.name, "wait_for_tools"):
                async with asyncio.timeout(HOOK_LIMIT_S):
                    await one.wait_for_tools()

    def states(self) -> list[str]:
        """Return what plugins say of what their tools need, in a line each."""
        found = list[str]()
        for one in self.all:
            with self.guard(one.name, "states"):
                found += one.states()
        return found

    def _value(
        self, plugin: str, what: str, read: Callable[[], ResultT], otherwise: ResultT
    ) -> ResultT:
        """Return what a plugin answers at once; `otherwise` if it fails."""
        found = [otherwise]
        with self.guard(plugin, what):
            found.append(read())
        return found[-1]

    def _hooks_at(self, name: str, channel: object) -> list[Hook]:
        """Return who hangs on a hook for the places of a channel, see `Plugin.abilities`."""
        return [
            one
            for one in self.hooks[name]
            if not one.plugin.abilities or isinstance(channel, one.plugin.abilities)
        ]

    def progress_listeners(self, channel: object) -> list[ProgressListener]:
        """Return who is told what happens in the turns of a channel's places."""
        return [partial(self._tell, hook) for hook in self._hooks_at("on_progress", channel)]

    def _tell(self, hook: Hook, turn: RunningTurn, news: Progress) -> None:
        with self.guard(hook.plugin.name, hook.name):
            hook(turn=turn, news=news)

    async def before_post(self, channel: object, turn: RunningTurn, post: Post) -> Post:
        """Return the post of a running turn as plugins have it. `channel`: None where it is gone,
        also since the turn began. Raises StoreError.
        """
        named = "before_post"
        for hook in self.hooks[named] if channel is None else self._hooks_at(named, channel):
            async with self._limited(hook):
                post = _checked(await hook(turn=turn, post=post), Post | None) or post
        return post

    async def after_turn(self, turn: TurnRecord) -> list[Fact]:
        """Return facts to append with the record of a turn. Raises StoreError."""
        return [
            fact
            for hook in self.hooks["after_turn"]
            for fact in await self._items(
                hook, lambda one: dump_fact(_checked(one, Fact)), turn=turn
            )
        ]

    async def _items(
        self, hook: Hook, check: Callable[[Any], object], **values: object
    ) -> list[Any]:
        """Return the items of a hook's answer; none if it fails, or `check` raises for one."""
        found = list[Any]()
        async with self._limited(hook):
            items = [*await hook(**values)]
            for one in items:
                check(one)
            found += items
        return found

    async def notify(self, notice: Notice) -> None:
        """Let owners know of something. Raises StoreError."""
        for hook in self.hooks["notify"]:
            with self.guard(hook.plugin.name, hook.name):
                await hook(notice=notice)

    async def start(self) -> None:
        """Start them, in their order. Raises StoreError."""
        for one in self.all:
            late = asyncio.get_running_loop().call_later(
                HOOK_LIMIT_S, logger.warning, "the gateway waits for the start of %s", one.name
            )
            with self.guard(one.name, "start"):
                await one.start()
            late.cancel()

    async def on_lease(self, lease: str) -> None:
        """See `Plugin.on_lease`."""
        for one in self.all:
            with self.guard(one.name, "on_lease"):
                await one.on_lease(lease)

    def works(self, name: Literal["run", "upkeep"]) -> list[Coroutine[Any, Any, None]]:
        """Return what the plugins do until it is cancelled, by this method of theirs."""
        return [
            self._run(one, name, getattr(one, name))
            for one in self.all
            if getattr(type(one), name) is not getattr(Plugin, name)
        ]

    async def stop(self) -> None:
        """Stop them all, the last first. Raises StoreError."""
        closed = list[StoreClosed]()
        for one in reversed(self.all):
            try:
                with self.guard(one.name, "stop"):
                    async with asyncio.timeout(HOOK_LIMIT_S):
                        await one.stop()
            except StoreClosed as error:
                closed.append(error)
        if closed:
            raise closed[0]

    async def _run(self, plugin: Plugin, name: str, work: Callable[[], Awaitable[None]]) -> None:
        with self.guard(plugin.name, name):
            await work()

    async def _judge(self, hook: Hook, routed: Routed, so_far: Decision) -> Decision | None:
        decided: list[Decision | None] = [None]
        async with self._limited(hook):
            answer: Decision | None = await hook(routed=routed, so_far=so_far)
            decided.append(_checked(answer, Decision | None))
        return decided[-1]

    def take_facts(self, hook: Hook, entries: Sequence[LogEntry]) -> None:
        """Call an `on_facts`."""
        with self.guard(hook.plugin.name, hook.name):
            hook(entries=entries)

    @contextlib.asynccontextmanager
    async def _limited(self, hook: Hook) -> AsyncIterator[None]:
        with self.guard(hook.plugin.name, hook.name):
            try:
                async with asyncio.timeout(HOOK_LIMIT_S):
                    yield
            except TimeoutError:
                if hook.plugin.context.gateway.store.outage is None:
                    raise
                logger.warning("left out %s: the log is away", hook.name)  # not the plugin's fault

    @contextlib.contextmanager
    def guard(self, plugin: str, hook: str) -> Iterator[None]:
        """Log and count an exception, and go on. A cancellation goes through, and StoreError unless
        the database does not understand what the plugin asks.
        """
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error) or (
                isinstance(error, StoreError) and not isinstance(error.__cause__, StatementRefused)
            ):
                raise
            logger.exception("plugin %s has failed in %s", plugin, hook)
            self.record_failure(plugin, hook, error)

    def record_failure(self, plugin: str, hook: str, error: BaseException) -> None:
        """Count a failure that was logged, and tell it."""
        self._failures.labels(plugin, hook).inc()
        self.problems[plugin] = PluginProblem(
            plugin=plugin,
            text=f"{hook} has failed: {type(error).__name__}; the log of the gateway says more",
            hook=hook,
        )
        self.on_problem(self.problems[plugin])


def _checked(answer: ResultT, kind: type[ResultT] | UnionType) -> ResultT:
    """Return the answer of a hook. Raises TypeError if it is of another type."""
    if not isinstance(answer, kind):
        raise TypeError(f"it returns {type(answer).__name__}")
    return answer


def _check_part(part: object) -> None:
    """Raise TypeError or ValueError for what is no part of a prompt: nothing of it is used."""
    if not isinstance(part, Part) or not isinstance(part.label, Label):
        raise TypeError(f"parts returns {type(part).__name__}, or one without a label")
    if not part.text.strip():
        raise ValueError("parts returns a part without words")


class _HookManager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """As pluggy's, which takes 40 ms of a start to look at all other attributes."""
        return super().parse_hookimpl_opts(plugin, name) if name in HOOK_NAMES else None


def find_hooks(
    plugins: Sequence[Plugin] | Sequence[type[Plugin]],
) -> Mapping[str, tuple[Hook, ...]]:
    """Return who hangs on each hook, in the order of the plugins."""
    manager = _HookManager(PROJECT)
    manager.add_hookspecs(Hooks)
    named: Any
    for named in reversed(plugins):  # pluggy puts the last one first
        manager.register(named, named.name)
    return {
        name: tuple(
            Hook(impl.plugin, name, impl.function, tuple(impl.argnames))
            for impl in reversed(getattr(manager.hook, name).get_hookimpls())
        )
        for name in HOOK_NAMES
    }
