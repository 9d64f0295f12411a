"""Role changes by commands: who may give which role to whom, whom a name means, and how far a block
reaches."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import pytest

from gateway.access.roster import explain_role_refusal
from gateway.commands.people import widen_mask
from gateway.core.events import Address, RoomId, ThreadId
from gateway.core.facts import RoleAssigned
from gateway.core.identity import ROLE_ORDER, PlatformRoleRule, Role, RoleGrant, RosterState
from tests.kits.access import (
    ADMIN,
    DC,
    EVE,
    IRC,
    LOBBY,
    MASK,
    MEMBER,
    OWNER,
    POLICY,
    TG,
    Town,
    somebody,
    town,
)
from tests.kits.policies import PlayedPolicy

GROUP = Address(channel=TG, room=RoomId("-100"))
GROUPS = replace(POLICY, open_rooms={TG: frozenset({GROUP.room}), IRC: frozenset({LOBBY.room})})
HERE_ONLY = replace(
    GROUPS, grants={f"{TG}:50": [RoleGrant("admin", GROUP.conversation, "access.grants[0]")]}
)
RAY = somebody("50", "ray")
WANTS: Final[tuple[Role | Literal[""], ...]] = ("owner", "admin", "member", "guest", "blocked", "")
WHOM: Final = {
    "the configuration's owner": "x:owner",
    "an owner that was given": "x:made",
    "an admin": "x:admin",
    "an admin of one room": "x:roomer",
    "an admin who is blocked": "x:out",
    "linked with an admin": "x:link",
    "linked with one that was given": "x:link2",
    "a member": "x:member",
    "a stranger": "x:nobody",
    "a mask": "x:mask:a!b@c",
    "a blocked one": "x:mal",
    "themselves": "x:by",
    "themselves elsewhere": "x:by2",
}
TABLE = PlayedPolicy(
    dm_policy="pairing",
    roles={"x:owner": "owner", "x:admin": "admin", "x:member": "member", "x:mal": "blocked"},
    open_rooms={},
    grants={
        "x:roomer": [RoleGrant("admin", "x/room", "r")],
        "x:out": [RoleGrant("admin", "x/room", "r")],
    },
    roster=lambda: RosterState(
        grants={
            "x:by": [RoleGrant("owner", "", "r")],
            "x:made": [RoleGrant("owner", "", "r")],
            "x:made2": [RoleGrant("admin", "x/room", "r")],
            "x:out": [RoleGrant("blocked", "", "r")],
        },
        links={
            "x:link": frozenset({"x:admin"}),
            "x:admin": frozenset({"x:link"}),
            "x:link2": frozenset({"x:made2"}),
            "x:by2": frozenset({"x:by"}),
            "x:by": frozenset({"x:by2"}),
        },
    ),
)
MAY: Final = {
    ("owner", whom, wants)
    for whom, wants in itertools.product(WHOM, WANTS)
    if whom not in ("the configuration's owner", "themselves", "themselves elsewhere")
    and not (whom == "a mask" and wants in ("owner", "admin"))
} | {
    ("admin", whom, wants)
    for whom, wants in itertools.product(
        ("a member", "a stranger", "a mask", "a blocked one"), WANTS
    )
    if wants not in ("owner", "admin")
}


def test_who_may_make_whom_what() -> None:
    cases = list(itertools.product(ROLE_ORDER, WHOM, WANTS))
    for by, whom, wants in cases:
        why = explain_role_refusal(TABLE, by="x:by", role=by, whom=WHOM[whom], wants=wants)
        assert (why == "") == ((by, whom, wants) in MAY), (by, whom, wants, why)
    assert len(cases) == 390


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path, GROUPS) as made:
        yield made


async def test_a_role_is_given_everywhere_and_taken_back(it: Town) -> None:
    answer = await it.ask(TG, OWNER, "role set", who="telegram.main:666", role="admin")
    assert answer.answer == "`telegram.main:666` is admin everywhere from now on."
    assert it.role(TG, EVE) == it.role(TG, EVE, GROUP) == "admin"
    again = await it.ask(TG, OWNER, "role set", who="666", role="member", at=GROUP)
    assert (
        again.answer
        == "`telegram.main:666` is member everywhere from now on, and was admin until now."
    )
    assert (
        "- `telegram.main:666`: member, `made member by telegram.main:1`"
        in (await it.ask(TG, OWNER, "role list")).answer
    )
    assert (await it.ask(TG, OWNER, "role clear", who="666")).answer == (
        "`telegram.main:666` is no longer member everywhere. Roles of the configuration stay."
    )
    assert it.role(TG, EVE) == "guest"
    none = await it.ask(TG, OWNER, "role clear", who="666")
    assert (none.ok, none.answer[:51]) == (
        False,
        "`telegram.main:666` has no role everywhere that was",
    )


async def test_a_role_in_one_room_holds_there(it: Town) -> None:
    event = replace(GROUP, thread=ThreadId("3"))
    answer = await it.ask(TG, OWNER, "role set", who="666", role="admin", where="here", at=event)
    assert answer.answer == "`telegram.main:666` is admin in `telegram.main/-100` from now on."
    assert (it.role(TG, EVE), it.role(TG, EVE, GROUP)) == ("guest", "admin")
    told = await it.ask(TG, OWNER, "role clear", who="666")
    assert told.answer.endswith("They have roles here: `telegram.main/-100`.")
    alone = await it.ask(TG, OWNER, "role set", who="666", role="admin", where="here")
    assert (alone.ok, alone.answer) == (False, "Write that in the room that you mean.")


async def test_an_admin_of_one_room_blocks_there_only(tmp_path: Path) -> None:
    async with town(tmp_path, HERE_ONLY) as it:
        await it.hear(it.message(TG, EVE, GROUP))
        wide = await it.ask(TG, RAY, "block", who="Eve", where="everywhere", at=GROUP)
        assert (wide.ok, wide.answer) == (
            False,
            "You are admin only here. Write `here` at the end.",
        )
        answer = await it.ask(TG, RAY, "block", who="Eve", at=GROUP)
        assert answer.answer == (
            "Blocked: `telegram.main:666` (`Eve`), in `telegram.main/-100`. I ignore them from "
            "now on."
        )
        assert (it.role(TG, EVE), it.role(TG, EVE, GROUP)) == ("guest", "blocked")
        for whom in ("1", "2", "50"):
            assert not (await it.ask(TG, RAY, "block", who=whom, at=GROUP)).ok
        assert (await it.ask(TG, RAY, "unblock", who="Eve", at=GROUP)).ok
        assert it.role(TG, EVE, GROUP) == "guest"
        assert (await it.ask(TG, ADMIN, "block", who="Eve", where="everywhere", at=GROUP)).ok
        refused = await it.ask(TG, RAY, "unblock", who="Eve", where="everywhere", at=GROUP)
        assert not refused.ok
        assert (await it.ask(TG, RAY, "unblock", who="Eve", at=GROUP)).ok is False
        assert it.role(TG, EVE, GROUP) == "blocked"


async def test_who_is_unblocked_without_a_word_where_is_heard_there_and_everywhere(
    it: Town,
) -> None:
    for where in ("here", "everywhere"):
        assert (await it.ask(TG, OWNER, "block", who="666", where=where, at=GROUP)).ok
    answer = await it.ask(TG, OWNER, "unblock", who="666", at=GROUP)
    assert answer.answer.startswith(
        "Not blocked any more: `telegram.main:666` everywhere, `telegram.main:666` in "
        "`telegram.main/-100`."
    )
    assert it.role(TG, EVE, GROUP) == "guest"
    configured = await it.ask(TG, OWNER, "unblock", who="9")
    assert configured.answer == (
        "`access.roles.blocked` in the configuration blocks `telegram.main:9`. Only the "
        "operator can change that."
    )


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path) as made:
        yield made


async def test_a_mask_is_blocked_by_its_host(bare: Town) -> None:
    await bare.hear(bare.message(IRC, MASK, LOBBY))
    owner = somebody("account:olga")
    assert (await bare.ask(TG, OWNER, "role set", who="irc.libera:account:olga", role="admin")).ok
    answer = await bare.ask(IRC, owner, "block", who="eve", at=LOBBY)
    assert answer.answer == (
        "Blocked: `irc.libera:mask:*!*@evil.example` (`eve`), everywhere. I ignore them from now "
        "on. The server does not confirm who that was, so this blocks everybody from that host."
    )
    for sly in ("mask:EVE2!x@evil.example", "mask:a!b@EVIL.example"):
        assert bare.role(IRC, somebody(sly, verified=False), LOBBY) == "blocked"
    assert bare.role(IRC, somebody("mask:eve!e@evil.example.org", verified=False), LOBBY) == "guest"
    again = await bare.ask(IRC, owner, "block", who="eve", at=LOBBY)
    assert (again.ok, again.answer[-30:]) == (False, "is already blocked everywhere.")
    assert (await bare.ask(IRC, owner, "unblock", who="eve", at=LOBBY)).ok
    assert bare.role(IRC, MASK, LOBBY) == "guest"


@pytest.mark.parametrize(
    ("person", "blocked"),
    [
        ("x:1001", "x:1001"),
        ("x:account:eve", "x:account:eve"),
        ("x:mask:n!u@h", "x:mask:*!*@h"),
        ("x:mask:n!u@h*t", "x:mask:*!*@h?t"),
        ("x:mask:n!u@x@h", "x:mask:*!*@h"),
        ("x:mask:*!*@*", "x:mask:*!*@*"),
        ("x:mask:server", "x:mask:server"),
        ("x:mask:n!u@", "x:mask:n!u@"),
    ],
)
def test_what_is_blocked_of_somebody(person: str, blocked: str) -> None:
    assert widen_mask(person) == blocked


async def test_masks_get_no_administration_and_no_role_unless_the_operator_wants_that(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as it:
        whom = f"{IRC}:{MASK.id}"
        for role in ("owner", "admin", "member"):
            assert not (await it.ask(TG, OWNER, "role set", who=whom, role=role)).ok
    async with town(tmp_path / "masks", replace(POLICY, allow_masks=True)) as it:
        assert not (await it.ask(TG, OWNER, "role set", who=whom, role="admin")).ok
        assert not (await it.ask(TG, OWNER, "role set", who=f"{IRC}:mask:*!*@*", role="member")).ok
        assert (await it.ask(TG, OWNER, "role set", who=whom, role="member")).ok
        assert it.role(IRC, MASK) == "member"


async def test_a_name_means_who_was_heard_under_it_and_nobody_if_two_were(it: Town) -> None:
    await it.hear(it.message(TG, EVE, GROUP))
    for written in ("Eve", "@eve", " `EVE` ", "Ｅve"):
        assert (await it.ask(TG, OWNER, "role set", who=written, role="member", at=GROUP)).ok
    strong = await it.ask(TG, OWNER, "role set", who="Eve", role="admin", at=GROUP)
    assert (
        strong.answer
        == "Anybody can take any name. If you mean `telegram.main:666` (`Eve`), write that id."
    )
    away = await it.ask(TG, OWNER, "role set", who="Eve", role="member")
    assert (away.ok, away.answer[:35]) == (False, "Nobody with the name `Eve` has writ")
    twin = somebody("667", "eve")
    await it.hear(it.message(TG, twin, GROUP))
    two = await it.ask(TG, OWNER, "role set", who="Eve", role="member", at=GROUP)
    assert not two.ok
    assert two.answer.splitlines()[1:] == [
        "- `telegram.main:666` (`Eve`)",
        "- `telegram.main:667` (`eve`)",
    ]
    assert {
        one.person for one in await it.facts("role_given") if isinstance(one, RoleAssigned)
    } == {"telegram.main:666"}


async def test_a_name_that_looks_like_an_id_gets_nothing_that_is_meant_for_it(it: Town) -> None:
    await it.hear(it.message(TG, replace(EVE, name="1001"), GROUP))
    answer = await it.ask(TG, OWNER, "role set", who="1001", role="admin", at=GROUP)
    assert answer.answer.startswith("Several people have the name `1001`.")
    assert it.role(TG, EVE) == "guest"
    meant = await it.ask(TG, OWNER, "role set", who="telegram.main:1001", role="admin", at=GROUP)
    assert meant.ok
    assert it.role(TG, somebody("1001")) == "admin"


@pytest.mark.parametrize("shown", ["<@!77>", "@user-77"])
async def test_a_mention_means_whom_it_shows(bare: Town, shown: str) -> None:
    assert (await bare.ask(DC, ADMIN, "block", who=shown)).answer.startswith(
        "Blocked: `discord.main:77`"
    )


async def test_names_of_strangers_end_nothing(it: Town) -> None:
    sly = replace(EVE, name="x`\n- `telegram.main:1` @everyone\u202e")
    await it.hear(it.message(TG, sly, GROUP))
    await it.hear(it.message(TG, sly))
    for text in (
        (await it.ask(TG, OWNER, "pair list")).answer,
        (await it.ask(TG, OWNER, "block", who="666", at=GROUP)).answer,
        (await it.ask(TG, OWNER, "role list")).answer,
    ):
        assert "\u202e" not in text
        assert "\n- `telegram.main:1` @" not in text
        (line,) = [line for line in text.splitlines() if "666" in line]
        assert line.count("`") % 2 == 0


async def test_everybody_who_has_a_role_is_listed_the_strongest_first(tmp_path: Path) -> None:
    async with town(tmp_path, HERE_ONLY) as it:
        await it.paired(TG, EVE)
        lines = (await it.ask(TG, ADMIN, "role list")).answer.splitlines()
        assert lines[0] == "- `telegram.main:1`: owner, by the configuration"
        assert "- `telegram.main:50`: admin in `telegram.main/-100`, by the configuration" in lines
        assert "- `telegram.main:666` (`Eve`): member, `paired by telegram.main:1`" in lines
        assert lines[-1] == "- `telegram.main:9`: blocked, by the configuration"


async def test_what_an_admin_was_by_the_log_is_what_counts_at_once(bare: Town) -> None:
    assert (await bare.ask(TG, OWNER, "role set", who="666", role="admin")).ok
    assert (await bare.ask(TG, EVE, "role set", who="667", role="member")).ok
    assert not (await bare.ask(TG, EVE, "role set", who="666", role="owner")).ok
    assert not (await bare.ask(TG, EVE, "block", who="1")).ok
    assert not (await bare.ask(TG, ADMIN, "role clear", who="666")).ok
    assert (await bare.ask(TG, OWNER, "role clear", who="666")).ok
    assert bare.role(TG, EVE) == "guest"
    assert bare.role(TG, MEMBER) == "member"


async def test_who_administers_by_the_platform_is_blocked_by_owners_alone(tmp_path: Path) -> None:
    """As far as it is known: roles of a platform are known only of people who wrote there."""
    mapped = [
        PlatformRoleRule(TG, "-100", "administrator", "admin", "1"),
        PlatformRoleRule(TG, "-100", "creator", "owner", "2"),
    ]
    creator, admin = somebody("70", ranks=("creator",)), somebody("71", ranks=("administrator",))
    async with town(tmp_path, replace(GROUPS, platform_roles=mapped)) as it:
        for one in (creator, admin):
            await it.write(it.message(TG, one, GROUP), None)
        for by, whom in ((admin, "70"), (ADMIN, "70"), (ADMIN, "71"), (creator, "1")):
            assert not (await it.ask(TG, by, "block", at=GROUP, who=whom, where="here")).ok
        assert (await it.ask(TG, creator, "block", at=GROUP, who="71")).ok
        assert it.role(TG, admin, GROUP) == "blocked"


async def test_an_owner_of_one_room_does_nothing_to_who_owns_all(tmp_path: Path) -> None:
    roomer = replace(GROUPS, grants={f"{TG}:50": [RoleGrant("owner", GROUP.conversation, "g")]})
    async with town(tmp_path, roomer) as it:
        assert (await it.ask(TG, OWNER, "role set", who="telegram.main:88", role="owner")).ok
        answer = await it.ask(TG, RAY, "block", at=GROUP, who="telegram.main:88")
        assert (answer.ok, answer.answer[:24]) == (False, "They are an owner everyw")
        assert (await it.ask(TG, OWNER, "block", who="telegram.main:88")).ok, "an owner of all may"
        assert (await it.ask(TG, RAY, "block", at=GROUP, who="telegram.main:2")).ok


async def test_what_is_no_id_there_gets_nothing(bare: Town) -> None:
    """A nick after a channel's name would be reported as admin, or blocked, and be neither."""
    for who in (
        "irc.libera:bob",
        "irc.libera:Account:bob",
        "telegram.main:@bob",
        "discord.main:bob",
    ):
        for line in ("role set", "block"):
            answer = await bare.ask(TG, OWNER, line, who=who, role="member")
            assert (answer.ok, answer.answer.partition("`")[0]) == (False, ""), answer.answer
            assert (
                "is not the id of a person. Write it as `whoami` shows it to them, for example "
                in answer.answer
            )
    for who in (
        "irc.libera:account:Bob",
        "telegram.main:-1001",
        "discord.main:7",
        "irc.libera:relay:x:bob",
    ):
        assert (await bare.ask(TG, OWNER, "block", who=who)).ok
