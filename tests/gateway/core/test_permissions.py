"""Permissions of tool calls: the whole table, and laws over it."""

import itertools
from dataclasses import replace
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity import ROLE_ORDER
from gateway.core.labels import Integrity, Label, rank_integrity
from gateway.core.permissions import (
    ALLOW_ADMINS,
    ALLOW_ANYBODY,
    ALLOW_MEMBERS,
    ApprovalMode,
    PermissionRequest,
    ToolPermit,
    ToolRole,
    ToolRule,
    ToolScope,
    apply_rules,
    decide_permission,
    explain_sink,
)
from gateway.core.scopes import EVERYBODY, Visibility

WORTH: Final = {"refused": 0, "approval": 1, "clean_view": 1, "allowed": 2}
roles = st.sampled_from([*ROLE_ORDER, "nonsense"])
permits = st.builds(
    ToolPermit,
    role=st.sampled_from(get_args(ToolRole)),
    scope=st.sampled_from(get_args(ToolScope)),
    approval=st.sampled_from(get_args(ApprovalMode)),
)
situations = st.builds(
    PermissionRequest,
    roles=st.lists(roles, max_size=4),
    unasked_role=st.sampled_from(get_args(ToolRole)),
    is_private=st.booleans(),
    label=st.builds(Label, st.sampled_from(get_args(Integrity))),
)


def now(
    *asking: str, private: bool = False, integrity: Integrity = "owner", unasked: ToolRole = "member"
) -> PermissionRequest:
    return PermissionRequest(roles=asking, unasked_role=unasked, is_private=private, label=Label(integrity))


def worth(permit: ToolPermit, situation: PermissionRequest) -> int:
    return WORTH[decide_permission("bash", permit, situation).outcome]


def rank(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else -1


@pytest.mark.parametrize(
    ("permit", "asking", "what"),
    [
        (ALLOW_ANYBODY, ("guest",), "allowed"),
        (ALLOW_ANYBODY, ("blocked",), "refused"),
        (ALLOW_ANYBODY, ("nonsense",), "refused"),
        (ALLOW_MEMBERS, ("guest",), "refused"),
        (ALLOW_MEMBERS, ("member",), "allowed"),
        (ALLOW_MEMBERS, ("owner", "guest"), "approval"),
        (ALLOW_ADMINS, ("member", "guest"), "refused"),
        (ALLOW_ADMINS, ("admin",), "allowed"),
        (ALLOW_ADMINS, ("admin", "owner"), "allowed"),
        (ALLOW_ADMINS, ("admin", "guest"), "approval"),
        (ALLOW_ADMINS, ("guest", "admin"), "approval"),
        (ALLOW_ADMINS, ("admin", "nonsense"), "approval"),
        (ToolPermit(role="owner"), ("admin",), "refused"),
        (ToolPermit(role="owner"), ("admin", "owner"), "approval"),
    ],
)
def test_it_has_the_rights_of_the_weakest_who_asks(permit: ToolPermit, asking: tuple[str, ...], what: str) -> None:
    assert decide_permission("bash", permit, now(*asking)).outcome == what


@pytest.mark.parametrize("unasked", get_args(ToolRole))
@pytest.mark.parametrize("role", get_args(ToolRole))
def test_by_itself_it_has_the_operators_role(unasked: ToolRole, role: ToolRole) -> None:
    verdict = decide_permission("bash", ToolPermit(role=role), now(unasked=unasked))
    assert verdict.outcome == ("allowed" if rank(unasked) >= rank(role) else "refused")
    assert verdict.role == unasked
    assert ("nobody asked" in verdict.rule) == (verdict.outcome == "refused")


@pytest.mark.parametrize("integrity", get_args(Integrity))
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("approval", get_args(ApprovalMode))
@pytest.mark.parametrize("scope", get_args(ToolScope))
@pytest.mark.parametrize("needed", get_args(ToolRole))
@pytest.mark.parametrize("role", ROLE_ORDER)
def test_the_whole_table(
    *, role: str, needed: ToolRole, scope: ToolScope, approval: ApprovalMode, private: bool, integrity: Integrity
) -> None:
    verdict = decide_permission(
        "t", ToolPermit(role=needed, scope=scope, approval=approval), now(role, private=private, integrity=integrity)
    )
    least = rank_integrity(needed)
    if rank(role) < rank(needed) or scope == ("room" if private else "private"):
        expected = "refused"
    elif approval == "always" or (approval == "untrusted" and rank_integrity(integrity) < least):
        expected = "approval"
    else:
        expected = "allowed"
    assert verdict.outcome == expected
    assert verdict.role == role


LOW: Final = Label("guest")


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, "clean_view"),
        ({"fixed": Label("admin")}, "clean_view"),
        ({"label": Label()}, "allowed"),
        ({"fixed": None}, "approval"),
        ({"fixed": LOW}, "approval"),
        ({"fixed": Label("outside")}, "approval"),
        ({"roles": ["owner", "guest"]}, "approval"),
        ({"roles": ["guest"]}, "refused"),
        ({"roles": [], "unasked_role": "owner"}, "approval"),
        ({"is_recovered": True}, "approval"),
        ({"risk": "it leaves the room"}, "approval"),
        ({"risk": "it leaves the room", "clean": "admin"}, "clean_view"),
        ({"risk": "it leaves the room", "clean": "admin", "fixed": Label("member")}, "approval"),
        ({"risk": "it leaves the room", "clean": "admin", "fixed": None}, "approval"),
        ({"risk": "it leaves the room", "clean": "admin", "label": Label()}, "clean_view"),
    ],
)
def test_a_call_that_only_other_pieces_hold_up_is_made_on_a_clean_view(changed: dict[str, Any], outcome: str) -> None:
    there = replace(now("owner", integrity="guest"), fixed=Label())
    assert decide_permission("bash", ALLOW_ADMINS, replace(there, **changed)).outcome == outcome


def test_a_call_that_is_approved_each_time_is_made_on_no_clean_view() -> None:
    there = replace(now("owner", integrity="guest"), fixed=Label())
    assert decide_permission("bash", ToolPermit(role="admin", approval="always"), there).outcome == "approval"
    anybody = ToolPermit(role="guest", approval="untrusted")
    assert decide_permission("t", anybody, replace(there, label=Label("outside"), fixed=LOW)).outcome == "clean_view"
    assert decide_permission("t", anybody, there).outcome == "allowed"


@given(permits, situations, st.builds(Label, st.sampled_from(get_args(Integrity))))
def test_a_clean_view_allows_only_what_its_own_label_allows(
    permit: ToolPermit, there: PermissionRequest, fixed: Label
) -> None:
    plain, cleanable = (decide_permission("t", permit, replace(there, fixed=one)).outcome for one in (None, fixed))
    if cleanable == "clean_view":
        assert plain == "approval"
        assert decide_permission("t", permit, replace(there, label=fixed)).outcome == "allowed"
    else:
        assert cleanable == plain


@given(permits, situations, roles)
def test_whoever_asks_as_well_never_gives_more_than_the_weakest_has(
    permit: ToolPermit, there: PermissionRequest, role: str
) -> None:
    joined = replace(there, roles=[*there.roles, role])
    verdict = decide_permission("bash", permit, joined)
    if verdict.outcome == "allowed":
        assert all(rank(one) >= rank(permit.role) for one in joined.roles)
        assert worth(permit, there) == WORTH["allowed"] or not there.roles
    if verdict.outcome == "approval":
        assert any(rank(one) >= rank(permit.role) for one in joined.roles), "somebody has the right to it"


@given(permits, situations, st.data())
def test_a_stronger_asker_never_gets_less_and_a_weaker_one_never_more(
    permit: ToolPermit, there: PermissionRequest, data: st.DataObject
) -> None:
    stronger = [
        data.draw(st.sampled_from([one for one in ROLE_ORDER if rank(one) >= rank(role)])) for role in there.roles
    ]
    assert worth(permit, replace(there, roles=stronger)) >= worth(permit, there)


@given(permits, situations)
def test_less_trusted_text_a_higher_role_and_approval_never_give_more(
    permit: ToolPermit, there: PermissionRequest
) -> None:
    for lesser, better in itertools.pairwise(get_args(Integrity)):
        assert worth(permit, replace(there, label=Label(lesser))) <= worth(permit, replace(there, label=Label(better)))
    for lower, higher in itertools.pairwise(get_args(ToolRole)):
        assert worth(replace(permit, role=higher), there) <= worth(replace(permit, role=lower), there)
    for less, more in itertools.pairwise(get_args(ApprovalMode)):
        assert worth(replace(permit, approval=more), there) <= worth(replace(permit, approval=less), there)
    assert worth(permit, there) <= worth(replace(permit, scope="any"), there)


@given(permits, situations)
def test_each_verdict_says_which_rule_decided_and_whose_rights_counted(
    permit: ToolPermit, there: PermissionRequest
) -> None:
    verdict = decide_permission("bash", permit, there)
    assert verdict.rule
    assert "\n" not in verdict.rule
    assert verdict.role in ROLE_ORDER
    if verdict.outcome != "allowed":
        assert "bash" in verdict.rule


def test_what_is_refused_names_the_role_that_was_not_enough() -> None:
    verdict = decide_permission("bash", ALLOW_ADMINS, now("guest", "member"))
    assert verdict.rule == "bash is for the role admin and above; nobody who asks here has more than the role member"
    assert verdict.role == "member"


RULES = (
    ToolRule(tool="mcp_files_*", role="member"),
    ToolRule(tool="mcp_*", scope="private", approval="always"),
    ToolRule(tool="*", role="owner"),
)


@pytest.mark.parametrize(
    ("name", "permit"),
    [
        ("mcp_files_read", ToolPermit(role="member", approval="untrusted")),
        ("mcp_git_push", ToolPermit(role="admin", scope="private", approval="always")),
        ("bash", ToolPermit(role="owner", approval="untrusted")),
    ],
)
def test_the_first_rule_that_matches_decides_and_what_it_leaves_out_stays(name: str, permit: ToolPermit) -> None:
    own = ToolPermit(role="admin", approval="untrusted")
    assert apply_rules(name, own, RULES) == permit
    assert apply_rules(name, own, ()) == own
    assert apply_rules("Mcp_files_read", own, RULES[:2]) == own, "names are told apart by case"


ROOM: Final = Visibility(scope="irc/#staff")
DIRECT: Final = Visibility(scope="irc/olga", is_private=True, sees_everything=True)
MEMBERS_DIRECT: Final = Visibility(scope="irc/mia", is_private=True)


@pytest.mark.parametrize(
    ("integrity", "readers", "here", "audience", "allowed"),
    [
        ("owner", ("irc/olga",), DIRECT, EVERYBODY, True),
        ("admin", ("irc/olga",), DIRECT, EVERYBODY, True),
        ("member", ("irc/olga",), DIRECT, EVERYBODY, False),
        ("outside", ("irc/olga",), DIRECT, EVERYBODY, False),
        ("outside", ("irc/olga",), DIRECT, ROOM, False),
        ("outside", ("irc/olga",), DIRECT, DIRECT, True),
        ("outside", (), DIRECT, EVERYBODY, True),
        ("guest", (), ROOM, EVERYBODY, True),
        ("member", ("irc/mia",), MEMBERS_DIRECT, EVERYBODY, True),
        ("guest", ("irc/#staff",), ROOM, EVERYBODY, True),
        ("guest", ("irc/#staff", "irc/mia"), ROOM, EVERYBODY, False),
        ("owner", ("irc/#staff",), EVERYBODY, EVERYBODY, False),
        ("outside", ("irc/#staff",), ROOM, EVERYBODY, False),
        ("outside", ("irc/#staff",), ROOM, ROOM, True),
        ("outside", ("irc/#staff", "irc/mia"), ROOM, ROOM, False),
        ("guest", ("irc/#staff",), EVERYBODY, ROOM, True),
        ("guest", ("irc/#staff",), EVERYBODY, EVERYBODY, False),
    ],
)
def test_what_only_some_may_read_goes_to_others_at_the_word_of_those_whose_it_is(
    integrity: Integrity, readers: tuple[str, ...], here: Visibility, audience: Visibility, *, allowed: bool
) -> None:
    label = Label(integrity, readers, source="m12")
    why = explain_sink(label, here, audience, "an address at evil.example")
    assert (why == "") == allowed
    if why:
        assert "in m12" in why
        assert "an address at evil.example" in why


@given(
    st.builds(Label, st.sampled_from(get_args(Integrity)), st.sampled_from([(), ("a",), ("a", "b")])),
    st.sampled_from(get_args(Integrity)),
    st.sampled_from([Visibility(scope="a"), Visibility(scope="b"), DIRECT, EVERYBODY]),
    st.sampled_from([Visibility(scope="a"), Visibility(scope="b"), EVERYBODY]),
)
def test_less_trust_and_fewer_readers_never_let_more_out(
    label: Label, lower: Integrity, here: Visibility, audience: Visibility
) -> None:
    if explain_sink(label, here, audience, "x"):
        assert explain_sink(label | Label(lower, ("c",)), here, audience, "x")
