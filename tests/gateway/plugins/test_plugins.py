"""Plugins on a running gateway: what their hooks give to the path, and what their faults cost."""

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import pluggy
import pytest
from playwright.sync_api import expect
from prometheus_client import CollectorRegistry, Gauge

from agent.models.scripted import Script, ScriptRule
from channels.irc.channel import IrcChannel
from channels.irc.config import IrcConfig
from gateway.access.policy import Routed
from gateway.cli.main import main
from gateway.config.check_registry import CheckEnvironment
from gateway.config.loader import ConfigError, read_config
from gateway.context.observer import Progress
from gateway.core.clock import ManualClock
from gateway.core.control_socket import find_gateway_state
from gateway.core.events import Address, Message, Post, PostKey, RoomId
from gateway.core.facts import (
    Fact,
    Judgement,
    PluginFact,
    PostQueued,
    ToolRefused,
    TurnRecord,
    dump_fact,
)
from gateway.core.fields import ConfigSection
from gateway.core.labels import TRUSTED_LABEL
from gateway.core.permissions import OWN
from gateway.core.route import route
from gateway.core.tool import Tool, ToolContext, build_tool, tool
from gateway.hooks import SKILLS_SHOWN_S
from gateway.plugin import Ask, Part, PlatformFactory, Plugin, Refuse, hook
from gateway.plugins import UnusablePlugin, find_platforms, find_plugins, use_plugins
from gateway.plugins.doctor.examine import examine
from gateway.store import LogEntry, StoreOutage
from gateway.store import Store as LogStore
from gateway.store.effects import Decision, queue_post
from gateway.stream.notices import Notice
from reverie.testing.gateway import CONSOLE, UNHURRIED, Gateway, settings
from reverie.testing.simulated_time import BEGIN
from tests.kits.commands import parts_of
from tests.kits.dashboard import House, chromium, tab
from tests.kits.ops import operated
from tests.kits.plugins import plugins_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled(PluginFact):
    sides: int
    kind: Literal["dice.rolled"] = "dice.rolled"


class DiceSettings(ConfigSection):
    sides: int = 6
    """Of a die."""


class Dice(Plugin):
    name = "dice"
    Settings = DiceSettings
    facts = (Rolled,)
    watches = (Rolled,)
    newest: ClassVar["Dice"]

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        type(self).newest = self
        self.seen = list[Fact]()
        self.news = list[Progress]()

    @tool("Roll a die.", effect=OWN)
    async def roll(self, _context: ToolContext, *, sides: int = 0) -> str:
        return f"rolled one of {sides or self.settings.sides}"

    @hook
    async def parts(self) -> Iterable[Part]:
        now = Part(block="now", text="The dice are hot.", label=TRUSTED_LABEL)
        return [now, Part(block="recall", text="A six was rolled.", label=TRUSTED_LABEL)]

    @hook
    def on_progress(self, news: Progress) -> None:
        self.news.append(news)

    @hook
    async def before_post(self, post: Post) -> Post:
        return replace(post, text=f"{post.text} (luckily)")

    @hook
    async def after_turn(self) -> Iterable[Fact]:
        return [Rolled(sides=self.settings.sides)]

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        self.seen += [one.fact for one in entries]


async def test_hooks_add_to_the_prompt_the_tools_and_the_record_of_a_turn(tmp_path: Path) -> None:
    with use_plugins(Dice):
        given = settings(tmp_path, dice={"sides": 20})
        async with Gateway(given, Script()) as gateway:
            assert (await gateway.ask("hello")).endswith(" (luckily)")
            [rolled] = await gateway.facts("dice.rolled")
        [request] = gateway.scripted.requests
    texts = str(request)
    assert "- roll(" in texts
    assert "The dice are hot." in texts
    assert "A six was rolled." in texts
    assert rolled == Rolled(sides=20)
    assert Dice.newest.seen == [rolled]
    assert [one for one in Dice.newest.news if isinstance(one, str)] == ["started", "ended"]


class Confidant(Plugin):
    """Tells an owner alone something, and how often it was asked for skills."""

    name = "confidant"
    parts_for = "owner"
    asked = 0

    @hook
    async def parts(self) -> Iterable[Part]:
        return [Part(block="now", text="The dice are loaded.", label=TRUSTED_LABEL)]

    @hook
    async def skills(self) -> str:
        self.asked += 1
        return f"Asked {self.asked} times."


async def test_parts_for_an_owner_are_in_no_other_prompt(tmp_path: Path) -> None:
    access = {"dm": "open", "roles": {"owner": ["console:olga"]}}
    with use_plugins(Confidant):
        async with Gateway(settings(tmp_path, access=access), Script()) as gateway:
            await gateway.ask("hello")
            await gateway.ask("hello", sender="olga")
        told = ["The dice are loaded." in str(one) for one in gateway.scripted.requests]
    assert told == [False, True]


async def test_plugins_are_asked_for_skills_again_after_some_seconds() -> None:
    clock, tools = ManualClock(), frozenset({"roll"})
    plugins = plugins_of(Confidant, gateway=parts_of(clock=clock))
    assert await plugins.skills("ana", tools) == "Asked 1 times."
    assert await plugins.skills("ana", tools) == "Asked 1 times."
    assert await plugins.skills("ben", tools) == "Asked 2 times."
    clock.advance(SKILLS_SHOWN_S)
    assert await plugins.skills("ana", tools) == "Asked 3 times."


class Door(Plugin):
    """Judges and gates as its settings say."""

    name = "door"

    class Settings(ConfigSection):
        answer: Literal["ask", "refuse", "fail", "none"] = "none"

    judged_kinds = ("direct",)

    @hook
    async def judge(self, routed: Routed, so_far: Decision) -> Decision | None:
        if isinstance(routed.event, Message) and routed.event.text == "go away":
            judgement = replace(so_far.judgement, fate="noted", rule="door")
            return replace(so_far, judgement=judgement)
        return None

    @hook
    async def before_call(self) -> Ask | Refuse | None:
        match self.settings.answer:
            case "ask":
                return Ask("the door is shut")
            case "refuse":
                return Refuse("the door is locked")
            case "fail":
                raise RuntimeError("no door")
            case _:
                return None


ROLLS = Script(rules=(ScriptRule(match="throw", calls=(("roll", "{}"),)),))


@pytest.mark.parametrize(
    ("answer", "off", "kind"),
    [
        ("ask", "", "approval_asked"),
        ("ask", "approvals", "tool_refused"),
        ("refuse", "", "tool_refused"),
        ("fail", "", "tool_refused"),
        ("none", "", ""),
    ],
)
async def test_before_call_has_a_call_carried_out_refused_or_approved(
    tmp_path: Path, answer: str, off: str, kind: str
) -> None:
    with use_plugins(Dice, Door):
        access = {"dm": "open", "roles": {"owner": ["console:olga"]}}
        given = settings(
            tmp_path,
            door={"answer": answer},
            access=access | {"rates": UNHURRIED},
            plugins={"off": [off] if off else []},
        )
        async with Gateway(given, ROLLS) as gateway:
            await gateway.say("throw it", sender="olga")
            await gateway.asked(1 if kind == "approval_asked" else 2)
            if kind == "approval_asked":
                await gateway.until(lambda: gateway.entries("approval_asked"))
            facts = await gateway.facts("approval_asked", "tool_refused")
        results = "rolled one of 6" in str(gateway.scripted.requests[-1])
    assert [one.kind for one in facts] == [kind] * bool(kind)
    assert results == (answer == "none")


async def test_judge_changes_the_fate_of_an_event(tmp_path: Path) -> None:
    with use_plugins(Door):
        async with Gateway(settings(tmp_path), Script()) as gateway:
            await gateway.say("go away")
            await gateway.ask("hello")
            judged = [one for one in await gateway.facts("judged") if isinstance(one, Judgement)]
    assert [(one.fate, one.rule) for one in judged if one.rule == "door"] == [("noted", "door")]
    assert len(gateway.scripted.requests) == 1


WRITTEN = {
    "channels": {"console": {"platform": "console"}},
    "agents": [{"id": "reverie", "bindings": [{"private": False}]}],
    "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
    "attention": {"coalesce": 0},
    "store": {"path": "reverie.db"},
    "ops": {"port": 0},
}


class Crier(Plugin):
    """Says one thing twice, by itself."""

    name = "crier"

    async def run(self) -> None:
        post = Post(
            key=PostKey("cry"), to=Address(channel=CONSOLE, room=RoomId("lobby")), text="oyez"
        )
        for _ in range(2):
            await self.context.append(queue_post(post), queue_post(post))


async def test_a_plugin_posts_by_itself_once_for_each_key(tmp_path: Path) -> None:
    with use_plugins(Crier):
        gateway = Gateway(settings(tmp_path), Script())
        for turns in (1, 2):
            async with gateway:
                await gateway.until(lambda: "oyez" in gateway.sent())
                await gateway.say("hello")
                await gateway.took(turns)
        posts = [one for one in await gateway.facts("post") if isinstance(one, PostQueued)]
    assert [one.post.text for one in posts].count("oyez") == 1
    assert gateway.sent().count("oyez") == 1


def test_a_fact_that_no_plugin_declares_is_not_written() -> None:
    with pytest.raises(ValueError, match="Rolled"):
        dump_fact(Rolled(sides=6))


class Broken(Plugin):
    name = "broken"
    watches = (TurnRecord,)
    error: ClassVar[type[BaseException]] = RuntimeError

    async def start(self) -> None:
        raise self.error("start")

    async def run(self) -> None:
        raise self.error("run")

    async def stop(self) -> None:
        raise self.error("stop")

    @hook
    async def judge(self) -> Decision | None:
        raise self.error("judge")

    @hook
    def on_facts(self) -> None:
        raise self.error("on_facts")

    @hook
    async def parts(self) -> Iterable[Part]:
        raise self.error("parts")

    @hook
    def on_progress(self) -> None:
        raise self.error("on_progress")

    @hook
    async def before_post(self) -> Post | None:
        raise self.error("before_post")

    @hook
    async def after_turn(self) -> Iterable[Fact]:
        raise self.error("after_turn")

    @hook
    async def notify(self) -> None:
        raise self.error("notify")


class Abandoned(Broken):
    """Waits everywhere for work of its own that was cancelled."""

    error = asyncio.CancelledError


class Pager(Plugin):
    name = "pager"
    paged: ClassVar[list[str]] = []

    @hook
    async def notify(self, notice: Notice) -> None:
        self.paged.append(notice.text(None))


@pytest.mark.parametrize("plugin", [Broken, Abandoned])
async def test_a_plugin_that_fails_everywhere_costs_nobody_an_answer_and_is_told(
    tmp_path: Path, plugin: type[Plugin]
) -> None:
    given = {"access": {"dm": "open", "roles": {"owner": ["console:olga"]}, "rates": UNHURRIED}}
    (tmp_path / "reverie.yaml").write_text(json.dumps(WRITTEN | given))
    Pager.paged.clear()
    with use_plugins(plugin, Pager):
        async with Gateway(read_config(tmp_path, {}).settings, Script()) as gateway:
            await gateway.say("hello", sender="olga")
            await gateway.say("hello")
            await gateway.until(lambda: sum("You said" in one for one in gateway.sent()) >= 2)
            await gateway.until(lambda: any("plugin broken" in one for one in gateway.sent()))
            state = await find_gateway_state(gateway.path)
            report = await examine(CheckEnvironment(directory=tmp_path, env={}, offline=True))
    assert any("plugin broken" in one for one in Pager.paged)
    assert state.snapshot is not None
    [problem] = [one for one in state.snapshot.problems if one.what == "plugin:broken"]
    assert problem.partial
    assert [one.where for one in report.findings if one.code == "plugin.failed"] == ["broken"]


class Speechless(Plugin):
    """Fails once a turn ends, and fails to tell anybody."""

    name = "speechless"

    @hook
    async def after_turn(self) -> Iterable[Fact]:
        raise RuntimeError("after_turn")

    @hook
    async def notify(self) -> None:
        raise RuntimeError("notify")


async def test_failure_to_tell_owners_is_ready_to_see_and_not_told_to_them(tmp_path: Path) -> None:
    (tmp_path / "reverie.yaml").write_text(json.dumps(WRITTEN | {"access": {"dm": "open"}}))
    Pager.paged.clear()
    with use_plugins(Speechless, Pager):
        async with Gateway(read_config(tmp_path, {}).settings, Script()) as gateway:
            await gateway.say("hello")
            await gateway.until(lambda: bool(Pager.paged))
            state = await find_gateway_state(gateway.path)
    assert state.snapshot is not None
    [problem] = [one for one in state.snapshot.problems if one.what == "plugin:speechless"]
    assert "notify" in problem.reason
    [told] = [one for one in Pager.paged if "speechless" in one]
    assert "after_turn" in told


class Lucky(Plugin):
    """Stands in for an installed plugin of its name."""

    name = "lucky"


def test_a_plugin_of_another_distribution_is_found_and_a_broken_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lucky.py").write_text(
        "from gateway.plugin import Plugin\nclass Lucky(Plugin):\n    name = 'lucky'\n"
    )
    information = tmp_path / "reverie_lucky-1.5.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: reverie-lucky\nVersion: 1.5\n")
    (information / "entry_points.txt").write_text(
        "[reverie.plugins]\nlucky = lucky:Lucky\nunlucky = unlucky:Unlucky\n"
    )
    (tmp_path / "unlucky.py").write_text("import sys\nsys.exit('too old')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with use_plugins(Dice):  # looks for all again, before and after
        assert main(["plugins", "--off", "unlucky"]) == 1
        settings(tmp_path, unlucky={"word": "kept"}, plugins={"off": ["unlucky"]})
        with pytest.raises(ConfigError, match="too old"):
            settings(tmp_path, plugins={"need": ["unlucky"]})
    told = capsys.readouterr()
    with use_plugins(Lucky):
        assert Lucky in find_plugins().classes
        assert "lucky" not in find_plugins().origins
    assert re.search(r"^  lucky .*reverie-lucky 1\.5", told.out, re.MULTILINE)
    assert "unlucky" in told.err
    assert "too old" in told.err
    assert "reverie-lucky 1.5" in told.err


class AsksWrongly(Plugin):
    name = "asks_wrongly"

    @hook
    async def parts(self) -> Iterable[Part]:
        await self.context.gateway.store.rows("SELECT nonsense FROM nowhere")
        return []


class SaysNothing(Plugin):
    name = "says_nothing"

    @hook
    async def parts(self) -> Iterable[Part]:
        good = Part(block="now", text="This is not used either.", label=TRUSTED_LABEL)
        return [good, Part(block="now", text=" ", label=TRUSTED_LABEL)]


class NeverEnds(Plugin):
    name = "never_ends"

    async def stop(self) -> None:
        await asyncio.Event().wait()

    @hook
    async def parts(self) -> Iterable[Part]:
        await asyncio.Event().wait()
        return []


@pytest.mark.parametrize("plugin", [AsksWrongly, SaysNothing, NeverEnds])
async def test_parts_that_cannot_be_used_are_left_out_and_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    plugin: type[Plugin],
) -> None:
    monkeypatch.setattr("gateway.hooks.HOOK_LIMIT_S", 0.5)
    with use_plugins(plugin, Dice):
        async with Gateway(settings(tmp_path), Script()) as gateway:
            assert await gateway.ask("hello")
    texts = str(gateway.scripted.requests[0])
    assert "The dice are hot." in texts
    assert "not used either" not in texts
    assert f"plugin {plugin.name} has failed in parts" in caplog.messages


@pytest.mark.parametrize("is_away", [True, False])
async def test_what_waits_for_a_log_that_is_away_is_no_failure_of_the_plugin(
    monkeypatch: pytest.MonkeyPatch, store: LogStore, is_away: bool
) -> None:
    monkeypatch.setattr("gateway.hooks.HOOK_LIMIT_S", 0.01)
    store.outage = StoreOutage(BEGIN, "the disk is full") if is_away else None
    plugins = plugins_of(NeverEnds, gateway=parts_of(store=store))
    assert await plugins.parts(cast("Any", None)) == []
    assert ("never_ends" in plugins.problems) != is_away


class Asks(Plugin):
    name = "asks"

    @hook
    async def before_call(self) -> Ask | Refuse | None:
        return Ask("somebody should look")


@pytest.mark.parametrize("plugins", [(Asks, Door), (Door, Asks)])
async def test_strictest_answer_about_a_call_counts(
    tmp_path: Path, plugins: tuple[type[Plugin], ...]
) -> None:
    with use_plugins(Dice, *plugins):
        async with Gateway(settings(tmp_path, door={"answer": "refuse"}), ROLLS) as gateway:
            await gateway.ask("throw it")
            facts = await gateway.facts("approval_asked", "tool_refused")
    [refused] = facts
    assert isinstance(refused, ToolRefused)
    assert refused.rule == "the door is locked"


class Mistyped(Plugin):
    """Returns the wrong types."""

    name = "mistyped"
    answer: ClassVar[Any] = "text"

    @hook
    async def judge(self) -> Decision | None:
        return self.answer  # type: ignore[no-any-return]  # it is the fault, as below

    @hook
    async def skills(self) -> str:
        return 7  # type: ignore[return-value]

    @hook
    async def before_call(self) -> Ask | Refuse | None:
        return self.answer  # type: ignore[no-any-return]

    @hook
    async def before_post(self) -> Post | None:
        return self.answer  # type: ignore[no-any-return]

    @hook
    async def after_turn(self) -> Iterable[Fact]:
        return self.answer  # type: ignore[no-any-return]


async def test_an_answer_of_the_wrong_type_counts_as_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with use_plugins(Dice, Mistyped):
        async with Gateway(settings(tmp_path), ROLLS) as gateway:
            assert "the plugin mistyped has failed" in await gateway.ask("throw it")
    for name in ("judge", "skills", "before_call", "before_post", "after_turn"):
        assert f"plugin mistyped has failed in {name}" in caplog.messages


class BrokenTools(Plugin):
    """Fails beside its tools, and in them."""

    name = "broken_tools"

    def fail(self) -> Any:
        raise RuntimeError("no")

    def states(self) -> Sequence[str]:
        return [str(self.fail())]

    def dynamic_tools(self) -> Sequence[Tool]:
        return [self.fail()]

    async def wait_for_tools(self) -> None:
        self.fail()

    @tool("Look.", effect=OWN, note=fail, timeout_s=fail)
    async def look(self, _context: ToolContext) -> str:
        return "looked"

    @tool("Ask the log something that it does not understand.", effect=OWN)
    async def query(self, _context: ToolContext) -> str:
        return str(await self.context.gateway.store.rows("SELECT nonsense FROM nowhere"))

    @tool("Wait for work that was cancelled.", effect=OWN)
    async def wait(self, _context: ToolContext) -> str:
        raise asyncio.CancelledError

    @tool("Return what is no text.", effect=OWN)
    async def number(self, _context: ToolContext) -> str:
        return 7  # type: ignore[return-value]  # it is the fault


async def test_tools_of_a_plugin_that_fail_cost_their_own_calls_alone(tmp_path: Path) -> None:
    calls = (("look", "{}"), ("query", "{}"), ("number", "{}"))
    with use_plugins(BrokenTools):
        script = Script(rules=(ScriptRule(match="throw", calls=calls),))
        access = {"dm": "open", "roles": {"owner": ["console:olga"]}, "rates": UNHURRIED}
        async with Gateway(settings(tmp_path, access=access), script) as gateway:
            assert "look" in await gateway.ask("!tools", sender="olga")
            await gateway.say("throw it")
            await gateway.until(lambda: any("looked" in one for one in gateway.sent()))
            answer = next(one for one in gateway.sent() if "looked" in one)
    assert "looked" in answer
    assert answer.count("internal error") == 2


async def test_a_tool_whose_own_work_was_cancelled_leaves_nobody_without_an_answer(
    tmp_path: Path,
) -> None:
    with use_plugins(BrokenTools):
        script = Script(rules=(ScriptRule(match="throw", calls=(("wait", "{}"),)),))
        async with Gateway(settings(tmp_path), script) as gateway:
            assert await gateway.ask("throw it")
            assert "again" in await gateway.ask("again")


class Grows(Plugin):
    """Has a tool once somebody waits for it."""

    name = "grows"
    found: tuple[Tool, ...] = ()

    def dynamic_tools(self) -> Sequence[Tool] | None:
        return self.found

    async def wait_for_tools(self) -> None:
        self.found = (build_tool(self._look, "Look.", name="look_around", effect=OWN),)

    async def _look(self, _context: ToolContext) -> str:
        return "all is quiet"


async def test_dynamic_tools_are_waited_for_described_listed_and_called(tmp_path: Path) -> None:
    script = Script(rules=(ScriptRule(match="go", calls=(("look_around", "{}"),)),))
    access = {"dm": "open", "roles": {"owner": ["console:olga"]}, "rates": UNHURRIED}
    with use_plugins(Grows):
        async with Gateway(settings(tmp_path, access=access), script) as gateway:
            assert "all is quiet" in await gateway.ask("go", sender="olga")
            assert "- `look_around`: Look" in await gateway.ask("!tools", sender="olga")
    assert "- look_around(): Look" in str(gateway.scripted.requests[0].blocks)


class Misspelt(Plugin):
    name = "misspelt"

    @hook
    async def partz(self) -> None: ...


class WrongArgument(Plugin):
    name = "wrong_argument"

    @hook
    async def parts(self, request: object) -> Iterable[Part]:  # noqa: ARG002 - it is the fault
        return []


class Newer(Plugin):
    name = "newer"
    api = 99


class Orphan(Plugin):
    name = "orphan"
    requires = ("parent",)


class Foreign(Plugin):
    name = "foreign"
    facts = (Rolled,)


class Store(Plugin):
    name = "store"


class Shadow(Plugin):
    name = "shadow"

    @tool("Do as bash does.", effect=OWN)
    async def bash(self, _context: ToolContext, *, command: str) -> str:
        return command


class Demanding(Plugin):
    name = "demanding"

    class Settings(ConfigSection):
        key: str


class TakesChatCommand(Plugin):
    name = "greedy"
    subcommands: ClassVar = {"status": ("Take it", "there.is:nothing")}


class TakesShellCommand(Plugin):
    name = "greedy"
    subcommands: ClassVar = {"backup": ("Take it", "there.is:nothing")}


@pytest.mark.parametrize(
    "plugin",
    [
        Shadow,
        Demanding,
        Misspelt,
        WrongArgument,
        Newer,
        Orphan,
        Foreign,
        Store,
        TakesChatCommand,
        TakesShellCommand,
    ],
)
def test_a_plugin_that_does_not_fit_is_not_used(plugin: type[Plugin]) -> None:
    with pytest.raises((UnusablePlugin, pluggy.PluginValidationError)), use_plugins(plugin):
        pass
    assert plugin not in find_plugins().classes
    with pytest.raises((UnusablePlugin, pluggy.PluginValidationError)), use_plugins(Dice, plugin):
        pass
    assert Dice not in find_plugins().classes


class Needy(Plugin):
    name = "needy"
    requires = ("dice",)


def test_plugins_that_are_off_are_left_out_with_those_that_require_them() -> None:
    with use_plugins(Dice, Door, Needy):
        left = find_plugins(("dice",)).used
    assert Door in left
    assert not {Dice, Needy}.intersection(left)


class OwnIrc(Plugin):
    name = "own_irc"
    platforms: ClassVar = {"irc": PlatformFactory(settings=IrcConfig, make=IrcChannel)}

    @tool("Roll other dice.", effect=OWN)
    async def roll(self, _context: ToolContext) -> str:
        return "4"


async def test_the_names_of_a_plugin_that_is_off_are_free_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("dice", "irc")
    with pytest.raises(UnusablePlugin, match="tool roll"), use_plugins(Dice, OwnIrc, off=("irc",)):
        pass
    with pytest.raises(UnusablePlugin, match="platform"), use_plugins(Dice, OwnIrc, off=("dice",)):
        pass
    with use_plugins(Dice, OwnIrc, off=both):
        assert find_platforms(both)["irc"] is OwnIrc.platforms["irc"]
        assert main(["plugins"]) == 1
        assert "plugin own_irc: it is not used" in capsys.readouterr().err
        assert main(["plugins", "--off", "dice", "--off", "irc"]) == 0
        given = settings(tmp_path, plugins={"off": [*both], "need": ["own_irc"]})
        async with Gateway(given, Script()) as gateway:
            await gateway.ask("hello")
            assert "- roll(): Roll other dice" in str(gateway.scripted.requests)
        with pytest.raises(ConfigError, match=r"plugins\.need"):
            settings(tmp_path, plugins={"need": ["own_irc"]})


def test_settings_of_plugins_are_validated_as_all_others(tmp_path: Path) -> None:
    with use_plugins(Dice):
        with pytest.raises(ConfigError) as caught:
            settings(tmp_path, dice={"sides": "many"}, plugins={"off": ["door"]})
        assert {one.key for one in caught.value.problems} == {"dice.sides"}
        with pytest.raises(ConfigError) as caught:
            settings(tmp_path, plugins={"off": ["door"], "need": ["dice", "bell"]})
    assert {one.key for one in caught.value.problems} == {"plugins.off", "plugins.need"}
    with pytest.raises(ConfigError):
        settings(tmp_path, dice={"sides": 6})


def test_rules_may_name_the_tools_of_plugins(tmp_path: Path) -> None:
    with use_plugins(Dice):
        settings(tmp_path, tools={"off": ["roll"]})
    with pytest.raises(ConfigError):
        settings(tmp_path, tools={"off": ["roll"]})


def test_the_list_says_who_hangs_on_each_hook_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    with use_plugins(Dice, Broken, Door):
        assert main(["plugins", "--off", "broken"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert main(["plugins"]) == 0
        all_hooks = capsys.readouterr().out.splitlines()
        assert main(["plugins", "--off", "bell"]) == 2
    assert any(line.split()[:2] == ["broken", "off:"] for line in shown)
    [judges] = [line.split()[1:] for line in all_hooks if line.startswith("  judge ")]
    assert judges[-3:] == ["broken,", "door,", "pairing"], "strangers are greeted last"
    [judges] = [line.split()[1:] for line in shown if line.startswith("  judge ")]
    assert judges[-2:] == ["door,", "pairing"]
    assert "broken," not in judges


class Scores(Plugin):
    """Answers over HTTP, in the dashboard, at the shell, and to Prometheus."""

    name = "scores"
    subcommands: ClassVar = {
        "scores": ("Show points", "tests.gateway.plugins.scores_commands:add_arguments")
    }

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.metrics = CollectorRegistry()
        Gauge("reverie_scores_best", "The best score.", registry=self.metrics).set(17)

    @route("GET", "best", panel="Best scores")
    async def best(self, *, most: int = 10) -> list[dict[str, object]]:
        return [{"player": "<b>ann</b>", "points": 17}, {"player": "bob", "points": 3}][:most]

    @route("POST", "reset")
    async def reset(self, *, player: str) -> dict[str, str]:
        if player == "nobody":
            raise LookupError(player)
        return {"reset": player}


async def test_routes_are_answered_to_clients_with_the_token(tmp_path: Path) -> None:
    with use_plugins(Scores):
        async with operated(tmp_path) as gateway:
            path = "/api/plugins/scores"
            assert len(await gateway.get(f"{path}/best")) == 2
            assert len(await gateway.get(f"{path}/best", most=1)) == 1
            assert (await gateway.client.get(f"{path}/best?most=many")).status_code == 400
            assert (await gateway.client.get(f"{path}/best?least=1")).status_code == 400
            assert await gateway.post(f"{path}/reset", {"player": "ann"}) == {"reset": "ann"}
            failed = await gateway.client.post(f"{path}/reset", json={"player": "nobody"})
            assert failed.status_code == 500
            listed = (await gateway.get("/api/plugins"))["items"]
            without = {"Authorization": "Bearer not-the-right-token"}
            refused = await gateway.client.get(f"{path}/best", headers=without)
            assert refused.status_code == 401
            metrics = (await gateway.client.get("/metrics")).text
    [scores] = [one for one in listed if one["name"] == "scores"]
    assert scores["panels"] == {"Best scores": f"{path}/best"}
    assert "reset" in scores["problem"]
    assert "reverie_scores_best 17.0" in metrics
    assert 'reverie_plugin_failures_total{hook="/api/plugins/scores/reset"' in metrics


class Wrong(Plugin):
    name = "wrong"
    subcommands: ClassVar = {
        "wrong": ("Fail", "tests.gateway.plugins.there_is_no_such_module:add_arguments")
    }


def test_subcommands_are_commands_of_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with use_plugins(Scores, Wrong):
        assert main(["scores", "ann"]) == 0
        assert "ann has 17 points" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["wrong"])
        assert "plugin wrong" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["--help"])
        assert re.search(r"scores +Show points", capsys.readouterr().out)


@pytest.mark.system
def test_a_panel_of_a_plugin_shows_its_rows_in_the_dashboard(tmp_path: Path) -> None:
    with use_plugins(Scores):
        made = House(tmp_path)
        try:
            made.begin()
            with chromium() as browser, tab(browser) as it:
                page = it.open(made.address, "plugins")
                panel = page.locator("section.panel", has_text="Best scores")
                expect(panel.locator("tbody tr")).to_have_count(2)
                expect(panel.locator("tbody tr").first).to_contain_text("<b>ann</b>")
        finally:
            made.close()


async def test_without_a_plugin_nothing_names_what_it_brings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    off = {"off": ["media", "pairing", "owners", "mcp"]}
    access = {"dm": "open", "roles": {"admin": ["console:ann"]}}
    tools = {"mcp": {"box": {"command": ["there-is-no-such-program"]}}}
    given = WRITTEN | {"plugins": off, "access": access, "tools": tools}
    (tmp_path / "reverie.yaml").write_text(json.dumps(given))
    with use_plugins(Broken):
        async with Gateway(read_config(tmp_path, {}).settings, Script()) as gateway:
            file = gateway.console.add_attachment(b"a line", "file", name="a.log")
            await gateway.ask("look", sender="ann", attachments=(file,))
            assert "a.log" in gateway.screen.parts[0].body
            assert "fetch_evidence" not in gateway.screen.parts[0].body
            await gateway.ask("!join #closed", sender="ann")
            assert "is not approved" in gateway.screen.parts[1].body
            assert "!room approve" not in gateway.screen.parts[1].body
            report = await examine(CheckEnvironment(directory=tmp_path, env={}, offline=True))
    found = {one.where: one for one in report.findings}
    assert found["tools.mcp"].code == "plugin.off"
    assert "pair seed" not in found["access.roles.owner"].fix
    assert any("for owners: " in one and "broken" in one for one in caplog.messages)
