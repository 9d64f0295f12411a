"""What every plugin must hold, on a whole gateway.

An author writes a class of tests, with lines that have the plugin do something:

    from reverie.testing.plugins import PluginConformance

    class TestDice(PluginConformance):
        plugin = Dice
        lines = ("!roll 20", "roll a die")
"""

import asyncio
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar


from agent.models.scripted import Script
from gateway.config.models import Settings
from gateway.hooks import find_hooks
from gateway.plugins import UnusablePlugin, use_plugins
from reverie import Label, Part, Plugin, PluginContext, PluginFact
from reverie.testing.gateway import Gateway, settings
from reverie.testing.stopwatch import Stopwatch

ResultT = TypeVar("ResultT")
BLOCK_S: Final = 0.25
"""Longest time that a hook keeps the event loop from anything else."""
_calling: ContextVar[tuple[str, object]] = ContextVar("_calling", default=("", None))
"""The hook that is called, and the task that calls it: tasks that it starts may append."""


class PluginConformance:
    """Tests of a plugin. A subclass names it, and pytest collects it.

    A gateway with the plugin lives twice on one store, and hears `lines` each time, in a room and in
    private. All is well if it answers, no hook fails, appends by itself or keeps the event loop
    busy, each part of a prompt has a label and words, and each fact can be read back and told in
    one line.
    """

    plugin: ClassVar[type[Plugin]]
    requires: ClassVar[Sequence[type[Plugin]]] = ()
    """The plugins that it requires, in their order, but for installed ones."""
    settings: ClassVar[Mapping[str, object]] = {}
    """Its section of the configuration."""
    lines: ClassVar[Sequence[str]] = ("hello",)
    """What somebody says."""
    script: ClassVar[Script] = Script()
    """What the model answers, e.g. calls of the plugin's tools."""

    def test_it_fits_the_interface_and_its_settings_have_defaults(self) -> None:
        with use_plugins(*self.requires, self.plugin):
            if self.plugin.Settings is not None:
                self.plugin.Settings()

    def test_a_gateway_lives_well_with_it(self, tmp_path: Path) -> None:
        found = find_faults(
            self.plugin,
            tmp_path,
            requires=self.requires,
            section=self.settings,
            lines=self.lines,
            script=self.script,
        )
        assert asyncio.run(found) == []

    def test_a_gateway_lives_without_it(self, tmp_path: Path) -> None:
        async def told() -> None:
            off = {"off": [self.plugin.name]}
            async with Gateway(settings(tmp_path, plugins=off), Script()) as gateway:
                assert await gateway.ask("hello")

        with use_plugins(*self.requires, self.plugin):
            asyncio.run(told())


async def find_faults(
    plugin: type[Plugin],
    directory: Path,
    *,
    requires: Sequence[type[Plugin]] = (),
    section: Mapping[str, object] | None = None,
    lines: Iterable[str] = ("hello",),
    script: Script | None = None,
) -> list[str]:
    """Return what is wrong with a plugin, as `PluginConformance` says. `directory`: for files."""
    faults: list[str] = []
    try:
        with use_plugins(*requires, watched(plugin, faults)):
            named: dict[str, Any] = {plugin.name: dict(section)} if section else {}
            made = settings(directory, **named)
            for _ in range(2):
                await _live(made, lines, script or Script(), faults)
    except UnusablePlugin as error:
        faults.append(str(error))
    return faults


async def _live(made: Settings, lines: Iterable[str], script: Script, faults: list[str]) -> None:
    async with Gateway(made, script) as gateway:
        for line in lines:
            await gateway.say(line, room="lobby")
            await gateway.ask(line)
    faults += [
        f"{fact.kind} is told in several lines"
        for fact in await gateway.facts()
        if isinstance(fact, PluginFact) and len(fact.describe().splitlines()) > 1
    ]


def watched(plugin: type[Plugin], faults: list[str]) -> type[Plugin]:
    """Return the plugin with its hooks watched: what they do wrong is added to `faults`."""

    def build(self: Plugin, context: PluginContext) -> None:
        store = _WatchedStore(context.gateway.store, faults)
        gateway = replace(context.gateway, store=store)  # type: ignore[arg-type] # it does what a store does
        plugin.__init__(self, replace(context, gateway=gateway))

    hooks = {
        hook.name: _watch(getattr(plugin, hook.name), hook.name, faults)
        for hooks in find_hooks([plugin]).values()
        for hook in hooks
    }
    hooks |= {
        name: _watch(getattr(plugin, name), name, faults)
        for name in ("start", "run", "stop", "on_lease")
        if getattr(plugin, name) is not getattr(Plugin, name)
    }
    return type(plugin.__name__, (plugin,), {**hooks, "__init__": build})


class _WatchedStore:
    """Passes everything on, and says which hook appends."""

    def __init__(self, real: Any, faults: list[str]) -> None:
        self._real, self._faults = real, faults

    def __getattr__(self, name: str) -> Any:
        hook, task = _calling.get()
        if name == "append" and hook in _RETURNING and task is asyncio.current_task():
            self._faults.append(f"{hook} appends by itself; it must return what is to be logged")
        return getattr(self._real, name)


_RETURNING: Final = ("judge", "parts", "before_call", "after_turn")
"""Hooks whose facts the path appends."""


def _watch(method: Callable[..., Any], name: str, faults: list[str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **values: Any) -> Any:
        before = _calling.set((name, asyncio.current_task()))
        try:
            with Stopwatch() as watch:
                found = method(*args, **values)
        except Exception as error:
            faults.append(f"{name} raises {error!r}")
            raise
        finally:
            _calling.reset(before)
        _judge_time(watch, name, faults)
        return found

    @functools.wraps(method)
    async def call_and_wait(*args: Any, **values: Any) -> Any:
        before = _calling.set((name, asyncio.current_task()))
        try:
            found = await _stepped(method(*args, **values), name, faults)
        except Exception as error:
            faults.append(f"{name} raises {error!r}")
            raise
        finally:
            _calling.reset(before)
        if name == "parts":
            found = list(found)
            faults.extend(filter(None, map(_judge_part, found)))
        return found

    return call_and_wait if inspect.iscoroutinefunction(method) else call


@types.coroutine
def _stepped(
    work: Awaitable[ResultT], name: str, faults: list[str]
) -> Generator[Any, Any, ResultT]:
    """Return the result of a coroutine, and judge how long each of its steps takes."""
    steps = work.__await__()
    resume: Callable[[], Any] = functools.partial(next, steps)
    while True:
        watch = Stopwatch()
        try:
            with watch:
                wanted = resume()
        except StopIteration as done:
            result: ResultT = done.value
            return result
        finally:
            _judge_time(watch, name, faults)
        try:
            yield wanted
            resume = functools.partial(next, steps)
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            resume = functools.partial(steps.throw, error)


def _judge_time(watch: Stopwatch, name: str, faults: list[str]) -> None:
    if watch.seconds > BLOCK_S:
        faults.append(f"{name} keeps the event loop busy for {watch.seconds:.1f} s")


def _judge_part(part: Any) -> str:
    """Return what is wrong with a part of a prompt. Empty: nothing."""
    if type(part) is not Part:
        return f"parts returns {type(part).__name__} in place of Part"
    if type(part.label) is not Label:
        return "parts returns a part without a label"
    return "" if part.text.strip() else "parts returns a part without words"
