"""Calls of tools: the permission gate, dispatch, tools that come and go, and their
specifications."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.models.base import ToolResult
from agent.tokens.counter import estimate_tokens
from gateway.config.tools import ToolsConfig
from gateway.core import identity
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import Address, ChannelName, RoomId, Usage
from gateway.core.facts import Seq, ToolRefused, TurnId, TurnRecord
from gateway.core.labels import TRUSTED_LABEL, Integrity, Label, RequestLabel
from gateway.core.permissions import (
    ALLOW_ADMINS,
    ALLOW_ANYBODY,
    ALLOW_MEMBERS,
    OWN,
    PermissionDecision,
    ToolPermit,
)
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import (
    Requester,
    Tool,
    ToolContext,
    ToolOutput,
    build_tool,
    tools_of,
)
from gateway.core.tool_spec import ToolCall, ToolCallRefused, ToolSpec
from gateway.hooks import Plugins
from gateway.plugin import Plugin, hook
from gateway.plugins.files import Files
from gateway.store import NewEntry, Store, StoreClosed
from gateway.stream.routing import Bindings
from gateway.tools.dispatch import (
    ALREADY_BEGUN,
    MAX_RESULT_CHARS,
    MAX_WINDOW_SHARE,
    PermissionGate,
    ToolDispatcher,
    has_side_effects,
)
from reverie.testing.channels import story
from tests.gateway.plugins.files.files_kit import file_tools
from tests.kits.approvals import GUS, HERE, LOBBY, MIA, ROOT
from tests.kits.handle import handle_of
from tests.kits.model_gateway import BEGIN, Home, at_home, settings
from tests.kits.places import privacy
from tests.kits.store import opened
from tests.kits.tools import dispatcher, live_tools, running_calls, specs_of

AT = Address(channel=ChannelName("irc.test"), room=RoomId("#a"))
OTHER = Address(channel=ChannelName("irc.test"), room=RoomId("#b"))
WHERE = ToolContext(
    turn=TurnId("T"), agent="ana", at=AT, visibility=Visibility(scope=PUBLIC), autonomous=False
)


def hand(
    name: str, does: Any = None, permit: ToolPermit = ALLOW_ANYBODY, *, time_s: float = 0.0
) -> Tool:
    async def echo(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        return word

    made = build_tool(does or echo, "Say it.", permit, name=name, effect=OWN)
    return replace(made, timeout_s=lambda: time_s) if time_s else made


def call(
    hands: ToolDispatcher, name: str, arguments: str = '{"word": "hi"}', where: ToolContext = WHERE
) -> ToolResult:
    return asyncio.run(hands.call(ToolCall(id="c", name=name, arguments=arguments), where))


def test_a_call_is_carried_out_and_counted() -> None:
    running = running_calls()
    hands = dispatcher([hand("echo")], running=running)
    assert call(hands, "echo") == ToolResult(id="c", text="hi")
    assert "It takes: " in call(hands, "echo", '{"word": []}').text
    assert call(hands, "other").text == "There is no tool named 'other'."
    counted = next(
        one for one in running.stats.metrics.collect() if one.name == "reverie_tool_calls"
    )
    assert [(one.labels["tool"], one.labels["outcome"]) for one in counted.samples] == [
        ("echo", "ok"),
        ("echo", "refused"),
        ("other", "unknown"),
    ]


def test_without_arguments_a_tool_that_is_only_named_describes_itself() -> None:
    where = replace(WHERE, request=RequestLabel())
    hands = dispatcher([hand("echo")], dynamic=lambda: [hand("mcp_a")])
    told = call(hands, "echo", "{}", where)
    assert (told.text, told.is_untrusted) == (
        f"Say it.\nIt takes: {hand('echo').spec.schema}",
        False,
    )
    assert where.request.label == Label()
    assert call(hands, "mcp_a", "{}", where).is_untrusted
    assert where.request.label == Label("outside", source="mcp_a")


@pytest.mark.parametrize(
    "schema",
    [
        '{"properties":{},"required":[],"type":"object"}',
        '{"properties":{"only":{"required":["a"],"type":"object"}},"type":"object"}',
        '{"properties":{"required":{"type":"boolean"}},"type":"object"}',
    ],
)
def test_a_tool_that_needs_no_argument_is_called_without_any(schema: str) -> None:
    async def count(_: ToolContext, *, arguments: str) -> str:  # noqa: ARG001 - as all hands
        return "3"

    bare = hand("mcp_a", count)
    bare = replace(bare, spec=replace(bare.spec, schema=schema), arguments=None)
    assert call(dispatcher([], dynamic=lambda: [bare]), "mcp_a", "{}").text == "3"


def test_a_tool_that_cannot_work_as_configured_is_not_offered() -> None:
    hands = dispatcher(
        [hand("echo"), replace(hand("look"), note=lambda: None)], dynamic=lambda: [hand("mcp_a")]
    )
    assert names(hands) == ["echo", "mcp_a"]
    assert hands.changed_names == ([], [])
    assert call(hands, "look").text == "hi"


def test_an_unknown_argument_is_ignored_and_told() -> None:
    hands = dispatcher([hand("echo")])
    result = call(hands, "echo", '{"word": "hi", "loud\\nly": true, "to": null}')
    assert (result.text, result.is_error) == (
        "hi\n(It takes no such argument, so this was ignored: loud ly, to)",
        False,
    )
    assert len(call(hands, "echo", json.dumps({"word": "hi", "x" * 9_999: 1})).text) < 300


def test_what_takes_too_long_is_ended() -> None:
    ended = []

    async def slow(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(word)
        return ""

    result = call(dispatcher([hand("slow", slow, time_s=0.01)]), "slow")
    assert result.is_error
    assert "longer than 0.01 s" in result.text
    assert ended == ["hi"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret"),
        KeyError("secret"),
        TimeoutError("secret"),
        asyncio.CancelledError("secret"),
    ],
)
def test_a_bug_in_a_tool_is_an_error_result_without_its_words(error: BaseException) -> None:
    async def broken(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        raise error

    result = call(dispatcher([hand("broken", broken)]), "broken")
    assert result.is_error
    assert "secret" not in result.text


def test_without_its_log_the_gateway_does_not_go_on() -> None:
    async def broken(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        raise StoreClosed

    with pytest.raises(StoreClosed):
        call(dispatcher([hand("broken", broken)]), "broken")


def test_where_nobody_can_be_asked_only_rights_count() -> None:
    result = call(dispatcher([hand("secret", permit=ALLOW_ADMINS)]), "secret")
    assert (result.is_error, result.text.startswith("Refused: secret is for the role admin")) == (
        True,
        True,
    )


def test_text_from_outside_is_remembered_for_the_turn() -> None:
    async def page(where: ToolContext, *, word: str) -> ToolOutput:  # noqa: ARG001 - as all hands
        return ToolOutput(text=word, is_untrusted=True, label=Label("outside"))

    where = ToolContext(
        turn=TurnId("T"), agent="ana", at=AT, visibility=Visibility(scope=PUBLIC), autonomous=False
    )
    hands = dispatcher([hand("page", page), hand("echo")])
    assert call(hands, "echo", where=where).is_untrusted is False
    assert where.request.label == Label()
    assert call(hands, "page", where=where).is_untrusted is True
    assert where.request.label == Label("outside", source="page")


def test_a_result_is_bounded() -> None:
    async def much(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        return "x" * (MAX_RESULT_CHARS + 7)

    told = call(dispatcher([hand("much", much)]), "much").text
    assert told[MAX_RESULT_CHARS:] == "\n[7 more characters are lost: ask for less at once]"


def test_what_is_off_is_neither_told_nor_carried_out() -> None:
    hands = dispatcher(
        [hand("web_fetch"), hand("echo")], dynamic=lambda: [hand("web_later")], off=["web_*"]
    )
    assert [one.name for one in hands.specs] == ["echo"]
    assert call(hands, "web_fetch").text == "There is no tool named 'web_fetch'."
    assert call(hands, "web_later").text == "There is no tool named 'web_later'."


def test_the_list_is_pinned_and_what_comes_late_can_be_called_all_the_same() -> None:
    servers = [hand("mcp_a"), hand("mcp_b")]
    hands = dispatcher([hand("echo")], dynamic=lambda: servers)
    before = hands.specs
    servers[1] = hand("mcp_c")
    assert hands.specs is before
    assert hands.changed_names == (["mcp_c"], ["mcp_b"])
    told = call(hands, "mcp_c", "{}")
    assert told.is_untrusted
    assert told.text == f"Say it.\nIt takes: {hand('mcp_c').spec.schema}"
    assert call(hands, "mcp_c").text == "hi"
    assert call(hands, "mcp_b").text == "There is no tool named 'mcp_b'."
    hands.pin_specs()
    assert [one.name for one in hands.specs] == ["echo", "mcp_a", "mcp_c"]
    assert hands.changed_names == ([], [])


def test_what_is_under_way_is_told_where_it_is() -> None:
    seen: list[list[str]] = []

    async def look(where: ToolContext, *, word: str) -> str:
        seen.extend([running.describe(where.at.conversation), running.describe(OTHER.conversation)])
        return word

    running = running_calls()
    hands = dispatcher([hand("look", look)], running=running)
    call(hands, "look")
    assert seen == [["look, for 0 s"], []]
    assert running.describe(AT.conversation) == []


SIZE = 10
"""Tokens of one of these, about."""


def names(hands: ToolDispatcher) -> list[str]:
    return [spec.name for spec in hands.specs]


def test_what_does_not_fit_is_not_told_but_can_be_called(caplog: pytest.LogCaptureFixture) -> None:
    many = [hand(f"mcp_s_{number:02}") for number in range(40)]
    hands = dispatcher([hand("echo")], dynamic=lambda: many, max_dynamic_tokens=10 * SIZE)
    assert names(hands)[0] == "echo"
    assert names(hands)[1:] == [f"mcp_s_{number:02}" for number in range(len(hands.specs) - 1)]
    assert 2 < len(hands.specs) < 20
    assert hands.changed_names == ([], [])
    (warned,) = caplog.records
    assert "mcp_s_39" in warned.getMessage()
    call = ToolCall(id="c", name="mcp_s_39", arguments='{"word": "hi"}')
    assert asyncio.run(hands.call(call, WHERE)).text == "hi"


def test_what_fits_is_told_whole(caplog: pytest.LogCaptureFixture) -> None:
    hands = dispatcher([], dynamic=lambda: [hand("mcp_b"), hand("mcp_a")], max_dynamic_tokens=1_000)
    assert names(hands) == ["mcp_a", "mcp_b"]
    assert not caplog.records


GATE_AT = LOBBY.conversation
WHO = identity.AccessPolicy(
    dm_policy="open",
    roles={f"{HERE}:root": "admin", f"{HERE}:mia": "member"},
    open_rooms={HERE: frozenset({RoomId("lobby")})},
)


class Asked(Plugin):
    """Somebody who is asked, and always says this."""

    name = "asked"

    def __init__(self, says: str = "") -> None:
        self.says = says
        self.wanted: list[tuple[ToolCall, ToolContext, PermissionDecision]] = []

    @hook
    async def approve(self, turn: ToolContext, call: ToolCall, decision: PermissionDecision) -> str:
        self.wanted.append((call, turn, decision))
        return self.says


def where(*askers: Requester, scope: str = PUBLIC, label: Label = TRUSTED_LABEL) -> ToolContext:
    return ToolContext(
        turn=TurnId("t"),
        agent="reverie",
        at=LOBBY,
        visibility=Visibility(scope=scope, is_private=scope != PUBLIC),
        autonomous=not askers,
        requesters=askers,
        request=RequestLabel(label),
    )


async def does(_: ToolContext) -> ToolOutput:
    return ToolOutput(text="done")


def gated_hand(permit: ToolPermit, name: str = "bash") -> Tool:
    return build_tool(does, "Runs it.", permit, name=name, parallel=True)


def gate(store: Store, *asked: Asked, **tools: Any) -> PermissionGate:
    live, places = (
        live_tools(ToolsConfig.model_validate(tools, strict=False)),
        privacy(store, Bindings(())),
    )
    return PermissionGate(
        handle_of(store, ManualClock(), live=live, people=WHO, places=places), Plugins(*asked)
    )


CALL = ToolCall(id="c", name="bash", arguments="{}")


async def test_what_is_refused_by_right_is_written_down_and_nobody_is_asked(store: Store) -> None:
    asked = Asked()
    said = await gate(store, asked).authorize(gated_hand(ALLOW_ADMINS), CALL, where(GUS, MIA))
    assert said == (
        "Refused: bash is for the role admin and above; nobody who asks here has more than the "
        "role member. Nothing was done."
    )
    (entry,) = await store.entries(kinds=["tool_refused"])
    assert isinstance(entry.fact, ToolRefused)
    assert (entry.fact.tool, entry.fact.role, entry.conversation) == ("bash", "member", GATE_AT)
    assert asked.wanted == []


ADMINS, MEMBERS = gated_hand(ALLOW_ADMINS), gated_hand(ALLOW_MEMBERS)
ALONE = Address(channel=HERE, room=RoomId("gus")).conversation
RULED = {"rules": [{"tool": "ba*", "role": "guest", "scope": "private"}]}


@pytest.mark.parametrize(
    ("tool", "turn", "tools", "why"),
    [
        (ADMINS, where(ROOT), {}, ""),
        (ADMINS, where(replace(ROOT, verified=False)), {}, "Refused"),
        (ADMINS, where(GUS, scope=ALONE), RULED, ""),
        (ADMINS, where(GUS), RULED, "in private places only"),
        (gated_hand(ALLOW_ADMINS, "write_file"), where(GUS), RULED, "for the role admin"),
        (ADMINS, where(), {}, "nobody asked, and by yourself you have the role member"),
        (MEMBERS, where(), {}, ""),
        (ADMINS, where(), {"unasked_role": "admin"}, ""),
    ],
)
async def test_who_asks_and_the_operators_rules_decide(
    tool: Tool, turn: ToolContext, tools: dict[str, Any], why: str, store: Store
) -> None:

    asked = Asked("no")
    said = await gate(store, asked, **tools).authorize(tool, CALL, turn)
    assert (why in said, bool(said)) == (True, bool(why))
    assert len(await store.entries()) == bool(why)
    assert asked.wanted == []


@pytest.mark.parametrize("says", ["", "Not done, because somebody said so."])
async def test_a_guests_words_with_an_admins_are_asked_about(says: str, store: Store) -> None:
    asked = Asked(says)
    assert (
        await gate(store, asked).authorize(gated_hand(ALLOW_ADMINS), CALL, where(ROOT, GUS)) == says
    )
    ((called, turn, decision),) = asked.wanted
    rule = "bash is for the role admin and above, and somebody with the role guest asks here, too"
    assert (called, turn, decision.needs) == (CALL, where(ROOT, GUS), "admin")
    assert (decision.role, decision.rule, decision.label.integrity) == ("guest", rule, "guest")


async def test_without_a_plugin_that_asks_a_call_is_refused_and_written_down(store: Store) -> None:
    class Silent(Asked):
        name = "silent"

        @hook
        async def approve(self) -> None:  # type: ignore[override] # it asks nobody
            """Leave it to others."""

    class Broken(Asked):
        name = "broken"

        @hook
        async def approve(self) -> str:  # type: ignore[override] # it needs nothing to fail
            raise ValueError

    for asked in ((), (Silent(), Broken())):
        said = await gate(store, *asked).authorize(ADMINS, CALL, where(ROOT, GUS))
        assert "no plugin that asks for approvals" in said
    refused = [one.fact for one in await store.entries(kinds=["tool_refused"])]
    assert [one.tool for one in refused if isinstance(one, ToolRefused)] == ["bash", "bash"]


async def test_text_from_outside_makes_the_next_call_one_that_is_asked_about(store: Store) -> None:
    asked = Asked("Not done, because somebody said so.")
    fetch, run = (
        gated_hand(ALLOW_MEMBERS, "web_fetch"),
        gated_hand(ToolPermit(role="admin", approval="untrusted")),
    )
    hands, root = dispatcher([fetch, run], gate(store, asked)), where(ROOT)
    assert not (await hands.call(CALL, root)).is_error
    await hands.call(replace(CALL, name="web_fetch"), root)
    root.request.label |= Label("outside", source="web_fetch")
    refused = await hands.call(CALL, root)
    assert (refused.is_error, refused.text) == (True, "Not done, because somebody said so.")
    assert "text from outside is in view, in web_fetch" in asked.wanted[-1][2].rule


@pytest.mark.parametrize(
    ("reminded", "role"), [("admin", ""), ("guest", "guest"), ("member", "member")]
)
async def test_a_reminder_lends_nobody_what_the_agent_may_do_by_itself(
    reminded: Integrity, role: str, store: Store
) -> None:
    asked = Asked("no")
    door = gate(store, asked, unasked_role="admin")
    said = await door.authorize(
        gated_hand(ALLOW_ADMINS),
        CALL,
        replace(where(label=Label(reminded)), unasked_role=reminded),
    )
    by_itself = (
        "bash is for the role admin and above; nobody asked, and by yourself you have the role"
    )
    assert said == (f"Refused: {by_itself} {role}. Nothing was done." if role else "")
    assert asked.wanted == []
    said = await door.authorize(gated_hand(ALLOW_ADMINS), CALL, where(ROOT, label=Label(reminded)))
    assert said == ("no" if role else "")  # beside what an admin asks for it is as if overheard


def acting(name: str = "bash", **said: Any) -> Tool:
    return build_tool(does, "Runs it.", ALLOW_ADMINS, name=name, **said)


def ended(turn: str) -> NewEntry:
    fact = TurnRecord(
        turn=TurnId(turn),
        covers=(),
        omitted=0,
        heard="",
        upto=Seq(0),
        outcome="silent",
        text="",
        reason="",
        model="",
        usage=Usage(),
        requests=0,
        autonomous=False,
    )
    key = f"turn:{turn}"
    return NewEntry(fact=fact, at=ManualClock().now(), conversation=GATE_AT, key=key)


@story
async def test_what_was_begun_before_a_crash_is_not_done_again_unawares(tmp_path: Path) -> None:
    before, again = where(ROOT), replace(where(ROOT), turn=TurnId("u"))
    async with await opened(tmp_path / "s.db") as store:
        assert await gate(store, Asked()).authorize(acting(), CALL, before) == ""
        assert len(await store.entries(kinds=["tool_begun"])) == 1
    async with await opened(
        tmp_path / "s.db"
    ) as store:  # the process was killed, and the turn is taken again
        there = gate(store, Asked())
        assert (
            await there.authorize(acting("write_file"), replace(CALL, name="write_file"), again)
            == ""
        )
        assert await there.authorize(acting(), replace(CALL, arguments='{"x": 1}'), again) == ""
        assert await there.authorize(acting(), CALL, again) == ALREADY_BEGUN
        assert await there.authorize(acting(), CALL, again) == "", (
            "it was told, and wants it all the same"
        )


@pytest.mark.parametrize("is_late", [False, True], ids=["in its turn", "approved after it"])
async def test_what_ended_may_be_done_again(store: Store, is_late: bool) -> None:
    there = gate(store, Asked())
    for late in (False, True):
        if late == is_late:
            assert await there.authorize(acting(), CALL, where(ROOT)) == ""
        if not late:
            await store.append([ended("t")])
    assert await there.authorize(acting(), CALL, replace(where(ROOT), turn=TurnId("u"))) == ""


def test_only_what_changes_something_is_written_down_before() -> None:
    assert has_side_effects(acting())
    assert not has_side_effects(acting(parallel=True))
    assert not has_side_effects(build_tool(does, "It.", ALLOW_MEMBERS))


FAMILIES = {
    "itself": "remind",
    "rooms": "read_room",
    "files": "read_file",
    "shell": "bash",
    "web": "web_fetch",
}
"""One tool of each, in their order."""


def told(folder: Path, window: int) -> tuple[dict[str, bool], int]:
    """Of which families the agent has tools, and how many tokens they take."""

    async def story() -> tuple[dict[str, bool], int]:
        made = settings(folder, window=window, output=min(4_096, window // 8))
        home = Home(made, ManualClock(BEGIN), None, lambda _: "")
        home._give = lambda _: None  # type: ignore[method-assign, assignment]  # nothing but what is the gateway's own
        async with at_home(home):
            tools = home.minds.by_id["ana"].context.tools
            there = {family: tool in names(tools) for family, tool in FAMILIES.items()}
            return there, tools.specs_tokens

    return asyncio.run(story())


@pytest.mark.parametrize("window", [100_000, 200_000])
def test_a_large_window_has_room_for_all(
    tmp_path: Path, window: int, caplog: pytest.LogCaptureFixture
) -> None:
    families, tokens = told(tmp_path, window)
    assert all(families.values())
    assert tokens <= window * MAX_WINDOW_SHARE
    assert "has no tools for" not in caplog.text


@pytest.mark.parametrize("window", [1_000, 4_000, 8_000, 12_000, 16_000])
def test_a_small_one_has_the_first_that_fit(
    tmp_path: Path, window: int, caplog: pytest.LogCaptureFixture
) -> None:
    families, tokens = told(tmp_path, window)
    kept = [family for family, there in families.items() if there]
    assert kept[0] == "itself"
    assert kept == list(FAMILIES)[: len(kept)], (
        "a later family is no stand-in for one that has no room"
    )
    assert len(kept) == 1 or tokens <= window * MAX_WINDOW_SHARE
    left = [family for family in FAMILIES if family not in kept]
    assert ("has no tools for " + ", ".join(left) in caplog.text) == bool(left)


FILE_TOOLS = specs_of(Files)


@pytest.fixture
def by_name(tmp_path: Path) -> dict[str, Tool]:
    async def build() -> dict[str, Tool]:
        async with await Store.open(tmp_path / "store.db", SystemClock()) as store:
            return {tool.spec.name: tool for tool in tools_of(file_tools(tmp_path, store))}

    return asyncio.run(build())


def parse(tool: Tool, written: str) -> dict[str, Any]:
    return tool.parse(ToolCall(id="1", name=tool.spec.name, arguments=written))


def test_they_are_short() -> None:
    told = "".join(f"{spec.name}{spec.description}{spec.schema}" for spec in FILE_TOOLS)
    assert estimate_tokens(told) < 900
    assert all(len(spec.description) < 200 for spec in FILE_TOOLS)


@pytest.mark.parametrize("spec", FILE_TOOLS, ids=lambda spec: spec.name)
def test_what_only_looks_may_run_beside_others(spec: ToolSpec) -> None:
    assert spec.is_parallel == (spec.name not in {"write_file", "edit_file", "copy_file"})
    schema = json.loads(spec.schema)
    assert set(schema["required"]) <= set(schema["properties"])


def test_what_is_left_out_is_what_most_want(by_name: dict[str, Tool]) -> None:
    assert parse(by_name["read_file"], '{"path":"a"}') == {"path": "a", "offset": 1, "limit": 2_000}
    assert parse(by_name["edit_file"], '{"path":"a","old":"b","new":"","all":null}') == {
        "path": "a",
        "old": "b",
        "new": "",
        "all": False,
    }
    assert parse(by_name["grep"], '{"pattern":"a"}') == {
        "pattern": "a",
        "path": "",
        "glob": "",
        "ignore_case": False,
        "context": 0,
    }


@pytest.mark.parametrize(
    "written",
    [
        '{"path":"a","offset":0}',
        '{"path":"a","limit":0}',
        '{"path":"a","limit":10001}',
        '{"path":[]}',
        '{"offset":1}',
    ],
)
def test_what_cannot_be_meant_is_refused(written: str, by_name: dict[str, Tool]) -> None:
    with pytest.raises(ToolCallRefused):
        parse(by_name["read_file"], written)


@pytest.mark.parametrize("name", ["glob", "grep"])
def test_patterns_have_an_end(name: str, by_name: dict[str, Tool]) -> None:
    with pytest.raises(ToolCallRefused, match="pattern"):
        parse(by_name[name], json.dumps({"pattern": "a" * 501}))
