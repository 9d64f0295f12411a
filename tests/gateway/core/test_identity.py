"""Roles of people: by the operator, by administrators, by links and by platform ranks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import Address, ChannelName, RoomId, Sender, SenderId
from gateway.core.identity import (
    ADMIN_ROLES,
    ROLE_ORDER,
    AccessPolicy,
    PlatformRoleRule,
    Role,
    RoleGrant,
    RosterState,
    has_administrator,
    has_role_holder,
    identify,
    normalize_person_key,
    person_key,
)
from tests.kits.policies import PlayedPolicy

IRC, DISCORD = ChannelName("irc.x"), ChannelName("discord.y")
LOBBY = Address(channel=IRC, room=RoomId("#lobby"))
OTHER = Address(channel=IRC, room=RoomId("#other"))
GUILDED = Address(channel=DISCORD, room=RoomId("7"))
ANN = Sender(id=SenderId("account:ann"), name="ann", verified=True)
EVE = Sender(id=SenderId("mask:Eve[x]!e@evil.example"), name="ann")


def policy(
    roles: Mapping[str, Role] | None = None, known: RosterState | None = None, **more: Any
) -> AccessPolicy:
    return PlayedPolicy(
        dm_policy="open",
        roles=roles or {},
        open_rooms={},
        roster=lambda: known or RosterState(),
        **more,
    )


def granted(role: Role, scope: str = "", to: str = "irc.x:account:ann") -> RosterState:
    return RosterState(grants={to: [RoleGrant(role, scope, "given")]})


@pytest.mark.parametrize(
    ("scope", "at", "role"),
    [
        ("", LOBBY, "admin"),
        ("irc.x/#lobby", LOBBY, "admin"),
        ("irc.x/#lobby", OTHER, "guest"),
        ("irc.z/#lobby", LOBBY, "guest"),
        ("agent:one", LOBBY, "admin"),
        ("agent:two", LOBBY, "guest"),
        ("agent:", LOBBY, "guest"),
        ("no address", LOBBY, "guest"),
    ],
)
def test_a_role_holds_in_its_scope(scope: str, at: Address, role: Role) -> None:
    for known, operator in (
        (granted("admin", scope), {}),
        (RosterState(), granted("admin", scope).grants),
    ):
        who = identify(policy(known=known, grants=operator, agents=lambda _: "one"), at, ANN)
        assert who.role == role
        assert who.global_role == ("admin" if not scope else "guest")


def test_a_space_holds_for_its_rooms_and_a_room_for_its_threads() -> None:
    ann = replace(ANN, id=SenderId("5"))
    known = granted("admin", "discord.y/900", "discord.y:5")
    inside = policy(known=known, spaces=lambda at: RoomId("900") if at.room == "7" else None)
    assert identify(inside, GUILDED, ann).role == "admin"
    assert identify(inside, replace(GUILDED, room=RoomId("8")), ann).role == "guest"


@pytest.mark.parametrize(
    ("mapped", "at", "ranks", "role"),
    [
        (PlatformRoleRule("irc.*", "*", "op", "admin", "rule"), LOBBY, ("op", "voice"), "admin"),
        (PlatformRoleRule("irc.*", "*", "op", "admin", "rule"), LOBBY, ("voice",), "guest"),
        (PlatformRoleRule("irc.*", "#lobby", "op", "admin", "rule"), OTHER, ("op",), "guest"),
        (PlatformRoleRule("discord.*", "*", "op", "admin", "rule"), LOBBY, ("op",), "guest"),
        (PlatformRoleRule("irc.*", "*", "op", "blocked", "rule"), LOBBY, ("op",), "blocked"),
    ],
)
def test_what_a_platform_says_counts_where_the_operator_wants_it(
    mapped: PlatformRoleRule, at: Address, ranks: tuple[str, ...], role: Role
) -> None:
    who = identify(policy(platform_roles=[mapped]), at, replace(ANN, ranks=ranks))
    assert (who.role, who.global_role) == (role, "blocked" if role == "blocked" else "guest")
    assert (
        identify(policy(), at, replace(ANN, ranks=ranks)).role == "guest"
    )  # nothing follows by itself


@given(st.sampled_from(ROLE_ORDER), st.sampled_from(ROLE_ORDER), st.booleans())
def test_the_strongest_counts_but_being_blocked_before_all_and_nothing_administers_unvouched(
    one: Role, other: Role, verified: bool
) -> None:
    both = policy({"irc.x:account:ann": one}, granted(other, "irc.x/#lobby"))
    role = identify(both, LOBBY, replace(ANN, verified=verified)).role
    if "blocked" in (one, other):
        assert role == "blocked"
    elif verified:
        assert role == max(one, other, key=ROLE_ORDER.index)
    else:
        assert role not in ADMIN_ROLES


def test_links_carry_roles_only_to_whom_the_platform_vouches_for() -> None:
    pair = RosterState(
        grants={"telegram.z:1": [RoleGrant("admin", "", "given")]},
        links={"irc.x:account:ann": {"telegram.z:1"}, "telegram.z:1": {"irc.x:account:ann"}},
    )
    assert identify(policy(known=pair), LOBBY, ANN) == ("admin", "given, as telegram.z:1", "admin")
    assert identify(policy(known=pair), LOBBY, replace(ANN, verified=False)).role == "guest"
    barred = replace(pair, grants={"telegram.z:1": [RoleGrant("blocked", "", "given")]})
    assert identify(policy(known=barred), LOBBY, ANN).role == "blocked"


@pytest.mark.parametrize(
    ("mask", "fits"),
    [
        ("irc.x:mask:*!*@evil.example", True),
        ("irc.x:mask:EVE[X]!*@*", True),
        ("irc.x:mask:eve?x?!e@evil.example", True),
        ("irc.x:mask:evex!*@*", False),  # the brackets of a nick are no glob
        ("irc.x:mask:*!*@evil", False),
        ("irc.z:mask:*!*@*", False),
    ],
)
def test_masks_are_patterns_in_any_case(mask: str, fits: bool) -> None:
    key = normalize_person_key(mask)
    assert identify(policy({key: "blocked"}), LOBBY, EVE).role == ("blocked" if fits else "guest")
    assert identify(policy({key: "owner"}), LOBBY, EVE).role == ("member" if fits else "guest")
    assert identify(policy(known=granted("blocked", to=key)), LOBBY, EVE).role == (
        "blocked" if fits else "guest"
    )


def test_a_pattern_is_for_masks_alone() -> None:
    star = policy({"irc.x:account:*": "owner", "irc.x:mask:*": "owner"})
    assert identify(star, LOBBY, ANN).role == "guest"


def test_one_account_in_any_case_is_one_person() -> None:
    assert (
        person_key(IRC, "account:Ann")
        == person_key(IRC, "account:ANN")
        == normalize_person_key("irc.x:account:aNn")
        == "irc.x:account:ann"
    )
    assert person_key(IRC, "Ab") != person_key(IRC, "ab")  # elsewhere ids are what they are


def test_whether_anybody_may_do_something_there() -> None:
    linked = RosterState(
        grants={"telegram.z:1": [RoleGrant("admin", "", "")]},
        links={"telegram.z:1": {"irc.x:account:ann"}},
    )
    for some in (
        policy({"irc.x:account:ann": "admin"}),
        policy(known=granted("admin", "irc.x/#lobby")),
        policy(platform_roles=[PlatformRoleRule("irc.*", "*", "op", "admin", "")]),
        policy(known=linked),
    ):
        assert has_role_holder(some, IRC, ADMIN_ROLES)
        assert not has_role_holder(some, DISCORD, ADMIN_ROLES)
    assert not has_role_holder(policy({"irc.x:account:ann": "member"}), IRC, ADMIN_ROLES)
    assert has_administrator(policy(known=granted("owner")))
    assert not has_administrator(policy({"irc.x:account:ann": "member"}))


def test_a_mask_of_many_stars_takes_no_time() -> None:
    """An admin of one room may block a mask, and every sender without an account is matched against
    it."""
    many = f"irc.x:mask:{'*a' * 20}*b!*@*"
    eve = Sender(id=SenderId(f"mask:{'a' * 60}!e@{'a' * 60}"), name="eve")
    assert identify(policy(known=granted("blocked", to=many)), LOBBY, eve).role == "guest"
    assert (
        identify(policy(known=granted("blocked", to=many.replace("b", ""))), LOBBY, eve).role
        == "blocked"
    )


@pytest.mark.parametrize(
    ("role", "bot"), [("owner", "guest"), ("admin", "guest"), ("member", "member")]
)
def test_a_bot_administers_by_nothing_that_a_platform_says(role: Role, bot: str) -> None:
    """A moderation bot repeats text that anybody in the room may have written."""
    mapped = policy(platform_roles=[PlatformRoleRule("irc.*", "#lobby", "op", role, "m")])
    op = replace(ANN, ranks=("op",))
    assert identify(mapped, LOBBY, op).role == role
    assert identify(mapped, LOBBY, replace(op, is_bot=True)).role == bot


def test_who_is_not_vouched_for_is_a_member_where_they_would_administer() -> None:
    op = replace(EVE, ranks=("op",))
    mapped = policy(platform_roles=[PlatformRoleRule("irc.*", "#lobby", "op", "admin", "m")])
    assert identify(mapped, LOBBY, op)[::2] == ("member", "guest")
    assert identify(policy({"irc.x:account:ann": "owner"}), OTHER, replace(ANN, verified=False))[
        ::2
    ] == (
        "member",
        "member",
    )


@pytest.mark.parametrize("other", ["ban\u212a", "\uff22ank", "BAN\u212a"])
def test_an_account_whose_letters_only_become_the_owners_is_somebody_else(other: str) -> None:
    """A Kelvin sign is a small k in lower case; servers fold A to Z alone, or refuse such a
    name."""
    owner = policy({"irc.x:account:bank": "owner"})
    assert identify(owner, LOBBY, replace(ANN, id=SenderId("account:BANK"))).role == "owner"
    assert identify(owner, LOBBY, replace(ANN, id=SenderId(f"account:{other}"))).role == "guest"
