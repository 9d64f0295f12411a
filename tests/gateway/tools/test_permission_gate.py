"""The gate before every call: by right, by an admin's word, or not at all."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config.tools import ToolsConfig
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.events import Address, RoomId, Usage
from gateway.core.facts import Seq, ToolRefused, TurnId, TurnRecord
from gateway.core.permissions import ALLOW_ADMINS, ALLOW_MEMBERS, ToolPermit
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Requester, Tool, ToolContext, ToolOutput, TurnTrust, build_tool
from gateway.core.tool_spec import ToolCall
from gateway.store import NewEntry, Store
from gateway.tools.approvals import ApprovalRequest, Approvals
from gateway.tools.dispatch import ALREADY_BEGUN, PermissionGate, has_side_effects
from tests.kits.approvals import GUS, HERE, LOBBY, MIA, ROOT, story
from tests.kits.store import opened
from tests.kits.tools import dispatcher, live_tools

AT = LOBBY.conversation
WHO = identity.AccessPolicy(
    dm_policy="open",
    roles={f"{HERE}:root": "admin", f"{HERE}:mia": "member"},
    open_rooms={HERE: frozenset({RoomId("lobby")})},
)


class Asked(Approvals):
    """Somebody who is asked, and always says this."""

    def __init__(self, says: str = "") -> None:
        self.says = says
        self.wanted: list[ApprovalRequest] = []

    async def request_approval(self, request: ApprovalRequest) -> str:
        self.wanted.append(request)
        return self.says


def where(*askers: Requester, scope: str = PUBLIC, foreign: str = "") -> ToolContext:
    return ToolContext(
        turn=TurnId("t"),
        agent="reverie",
        at=LOBBY,
        visibility=Visibility(scope=scope, is_private=scope != PUBLIC),
        autonomous=not askers,
        requesters=askers,
        trust=TurnTrust(foreign=foreign),
    )


async def does(_: ToolContext) -> ToolOutput:
    return ToolOutput(text="done", is_foreign=True)


def hand(permit: ToolPermit, name: str = "bash") -> Tool:
    return build_tool(does, "Runs it.", permit, name=name)


def gate(store: Store, asked: Asked, **tools: Any) -> PermissionGate:
    return PermissionGate(live_tools(ToolsConfig.model_validate(tools, strict=False)), store, ManualClock(), asked, WHO)


CALL = ToolCall(id="c", name="bash", arguments="{}")


@story
async def test_what_is_refused_by_right_is_written_down_and_nobody_is_asked(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        asked = Asked()
        said = await gate(store, asked).authorize(hand(ALLOW_ADMINS), CALL, where(GUS, MIA))
        assert said == (
            "Refused: bash is for the role admin and above; nobody who asks here has more than the role member. "
            "Nothing was done."
        )
        (entry,) = await store.entries(kinds=["tool_refused"])
        assert isinstance(entry.fact, ToolRefused)
        assert (entry.fact.tool, entry.fact.role, entry.conversation) == ("bash", "member", AT)
        assert asked.wanted == []


@story
async def test_what_is_allowed_leaves_no_trace(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        asked = Asked("no")
        assert await gate(store, asked).authorize(hand(ALLOW_ADMINS), CALL, where(ROOT)) == ""
        assert (asked.wanted, await store.entries()) == ([], [])


@pytest.mark.parametrize("says", ["", "Not done, because somebody said so."])
def test_a_guests_words_with_an_admins_are_asked_about(tmp_path: Path, says: str) -> None:
    @story
    async def asking() -> None:
        async with await opened(tmp_path / "s.db") as store:
            asked = Asked(says)
            assert await gate(store, asked).authorize(hand(ALLOW_ADMINS), CALL, where(ROOT, GUS)) == says
            (wanted,) = asked.wanted
            assert (wanted.agent, wanted.tool, wanted.arguments, wanted.at) == ("reverie", "bash", "{}", LOBBY)
            assert (wanted.requesters, wanted.role, wanted.required_role) == ((ROOT, GUS), "guest", "admin")
            assert (
                wanted.rule == "bash is for the role admin and above, and somebody with the role guest asks here, too"
            )

    asking()


@story
async def test_text_from_outside_makes_the_next_call_one_that_is_asked_about(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        asked = Asked("Not done, because somebody said so.")
        fetch, run = hand(ALLOW_MEMBERS, "web_fetch"), hand(ToolPermit(role="admin", approval="untrusted"))
        held = dispatcher([fetch, run], gate(store, asked)).for_turn(where(ROOT))
        assert not (await held.call(CALL)).is_error
        await held.call(replace(CALL, name="web_fetch"))
        held.context.trust.foreign = "web_fetch"
        refused = await held.call(CALL)
        assert (refused.is_error, refused.text) == (True, "Not done, because somebody said so.")
        assert "web_fetch has brought text from outside" in asked.wanted[-1].rule


@story
async def test_the_operators_rules_come_before_a_tools_own_permit(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        asked = Asked()
        rules = [{"tool": "ba*", "role": "guest", "scope": "private"}]
        ruled = gate(store, asked, rules=rules)
        private = Address(channel=HERE, room=RoomId("gus")).conversation
        assert await ruled.authorize(hand(ALLOW_ADMINS), CALL, where(GUS, scope=private)) == ""
        assert "private places only" in await ruled.authorize(hand(ALLOW_ADMINS), CALL, where(GUS))
        assert "for the role admin" in await ruled.authorize(hand(ALLOW_ADMINS, "write_file"), CALL, where(GUS))


@story
async def test_by_itself_the_agent_has_the_role_that_the_operator_gives_it(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        asked = Asked()
        assert "nobody asked, and by yourself you have the role member" in await gate(store, asked).authorize(
            hand(ALLOW_ADMINS), CALL, where()
        )
        assert await gate(store, asked).authorize(hand(ALLOW_MEMBERS), CALL, where()) == ""
        assert await gate(store, asked, unasked_role="admin").authorize(hand(ALLOW_ADMINS), CALL, where()) == ""


@story
async def test_who_gave_no_proof_is_no_admin(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        asked = Asked()
        fake = replace(ROOT, verified=False)
        assert "Refused" in await gate(store, asked).authorize(hand(ALLOW_ADMINS), CALL, where(fake))
        assert await gate(store, asked).authorize(hand(ALLOW_MEMBERS), CALL, where(fake)) == ""


@pytest.mark.parametrize(
    ("reminded", "role"), [(("admin",), ""), (("guest", "admin"), "guest"), (("member",), "member")]
)
@story
async def test_a_reminder_lends_nobody_what_the_agent_may_do_by_itself(
    tmp_path: Path, reminded: tuple[str, ...], role: str
) -> None:
    async with await opened(tmp_path / "s.db") as store:
        asked = Asked("no")
        door = gate(store, asked, unasked_role="admin")
        said = await door.authorize(hand(ALLOW_ADMINS), CALL, replace(where(), reminder_roles=reminded))
        by_itself = "bash is for the role admin and above; nobody asked, and by yourself you have the role"
        assert said == (f"Refused: {by_itself} {role}. Nothing was done." if role else "")
        assert asked.wanted == []
        said = await door.authorize(hand(ALLOW_ADMINS), CALL, replace(where(ROOT), reminder_roles=reminded))
        assert said == ("no" if role else "")  # beside what an admin asks for it is as if overheard


def acting(name: str = "bash", **said: Any) -> Tool:
    return build_tool(does, "Runs it.", ALLOW_ADMINS, name=name, task=True, **said)


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
    return NewEntry(fact=fact, at=ManualClock().now(), conversation=AT)


@story
async def test_what_was_begun_before_a_crash_is_not_done_again_unawares(tmp_path: Path) -> None:
    before, again = where(ROOT), replace(where(ROOT), turn=TurnId("u"))
    async with await opened(tmp_path / "s.db") as store:
        assert await gate(store, Asked()).authorize(acting(), CALL, before) == ""
        assert len(await store.entries(kinds=["tool_begun"])) == 1
    async with await opened(tmp_path / "s.db") as store:  # the process was killed, and the turn is taken again
        there = gate(store, Asked())
        assert await there.authorize(acting("write_file"), replace(CALL, name="write_file"), again) == ""
        assert await there.authorize(acting(), replace(CALL, arguments='{"x": 1}'), again) == ""
        assert await there.authorize(acting(), CALL, again) == ALREADY_BEGUN
        assert await there.authorize(acting(), CALL, again) == "", "it was told, and wants it all the same"


@story
async def test_what_ended_may_be_done_again(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        there = gate(store, Asked())
        assert await there.authorize(acting(), CALL, where(ROOT)) == ""
        await store.append([ended("t")])
        assert await there.authorize(acting(), CALL, replace(where(ROOT), turn=TurnId("u"))) == ""


def test_only_what_changes_something_is_written_down_before() -> None:
    assert has_side_effects(acting())
    assert not has_side_effects(acting(parallel=True))
    assert not has_side_effects(hand(ALLOW_ADMINS))
    assert not has_side_effects(build_tool(does, "It.", ALLOW_MEMBERS, task=True))
