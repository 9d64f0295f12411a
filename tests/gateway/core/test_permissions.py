"""Permissions of tool calls: the table, the operator's rules, and laws over both."""

import itertools
from dataclasses import replace
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity import ROLE_ORDER
from gateway.core.labels import Integrity, Label
from gateway.core.permissions import (
    ALLOW_ADMINS,
    ALLOW_MEMBERS,
    OUT,
    OWN,
    TABLE,
    ApprovalMode,
    Effect,
    EffectKind,
    PermissionRequest,
    Readers,
    ToolPermit,
    ToolRole,
    ToolRule,
    ToolScope,
    apply_rules,
    decide_permission,
    find_readers,
)
from gateway.core.scopes import EVERYBODY, Visibility

WORTH: Final = {"refused": 0, "approval": 1, "allowed": 2}
ROOM: Final = Visibility(scope="irc/#staff")
DIRECT: Final = Visibility(scope="irc/olga", is_private=True, sees_everything=True)
MEMBERS_DIRECT: Final = Visibility(scope="irc/mia", is_private=True)
PLACES: Final = (ROOM, DIRECT, MEMBERS_DIRECT, EVERYBODY)
roles = st.sampled_from([*ROLE_ORDER, "nonsense"])
permits = st.builds(
    ToolPermit,
    role=st.sampled_from(get_args(ToolRole)),
    scope=st.sampled_from(get_args(ToolScope)),
    approval=st.sampled_from(get_args(ApprovalMode)),
)
readers = st.sampled_from([(), ("irc/#staff",), ("irc/olga",), ("irc/#staff", "irc/mia")])
effects = st.builds(
    Effect,
    st.sampled_from(get_args(EffectKind)),
    st.just("an action"),
    st.sampled_from(PLACES),
    st.booleans(),
)
situations = st.builds(
    PermissionRequest,
    roles=st.lists(roles, max_size=4),
    unasked_role=st.sampled_from(get_args(ToolRole)),
    here=st.sampled_from(PLACES),
    label=st.builds(Label, st.sampled_from(get_args(Integrity)), readers),
    effect=effects,
)


def now(
    *asking: str,
    here: Visibility = ROOM,
    integrity: Integrity = "owner",
    readers: tuple[str, ...] = (),
    effect: Effect = OWN,
) -> PermissionRequest:
    label = Label(integrity, readers, source="m12")
    return PermissionRequest(
        roles=asking, unasked_role="member", here=here, label=label, effect=effect
    )


def worth(permit: ToolPermit, situation: PermissionRequest) -> int:
    return WORTH[decide_permission("bash", permit, situation).outcome]


def rank(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else -1


def test_the_table_is_short_and_has_a_row_for_everything() -> None:
    assert len(TABLE) <= 40
    every = itertools.product(
        get_args(EffectKind), ("all", "some", "none"), ("high", "low"), get_args(Readers)
    )
    for facts in every:
        assert [
            row
            for row in TABLE
            if all(want in ("", is_) for want, is_ in zip(row, facts, strict=False))
        ], facts


TOLD: Final = Effect("tell", "an action in #hall", EVERYBODY)


@pytest.mark.parametrize(
    ("permit", "situation", "outcome"),
    [
        (ALLOW_MEMBERS, now("guest"), "refused"),
        (ALLOW_MEMBERS, now("owner", "guest"), "approval"),
        (ALLOW_ADMINS, now("member", "guest"), "refused"),
        (ALLOW_ADMINS, now("admin", "nonsense"), "approval"),
        (ALLOW_ADMINS, now("admin", "owner"), "allowed"),
        (ALLOW_ADMINS, now("admin", integrity="outside"), "allowed"),
        (ALLOW_ADMINS, now("admin", integrity="outside", effect=OUT), "approval"),
        (ALLOW_ADMINS, now("admin", integrity="member", effect=OUT), "approval"),
        (ALLOW_ADMINS, now("admin", integrity="admin", effect=OUT), "allowed"),
        (ALLOW_MEMBERS, now("admin", integrity="member", effect=OUT), "allowed"),
        (ToolPermit(), now("guest", integrity="guest", effect=OUT), "allowed"),
        (ToolPermit(), now("guest", integrity="outside", effect=OUT), "approval"),
        (ALLOW_MEMBERS, now("member", integrity="outside", effect=TOLD), "allowed"),
        (
            ALLOW_MEMBERS,
            now("owner", integrity="outside", readers=("irc/olga",), here=DIRECT, effect=TOLD),
            "approval",
        ),
        (
            ALLOW_MEMBERS,
            now("owner", integrity="admin", readers=("irc/olga",), here=DIRECT, effect=TOLD),
            "allowed",
        ),
        (
            ALLOW_MEMBERS,
            now(
                "guest",
                "member",
                integrity="outside",
                readers=("irc/#staff",),
                effect=Effect("tell", "", DIRECT),
            ),
            "approval",
        ),
        (
            ALLOW_MEMBERS,
            now(
                "member",
                integrity="outside",
                readers=("irc/#staff",),
                effect=Effect("tell", "", DIRECT),
            ),
            "allowed",
        ),
        (
            ALLOW_MEMBERS,
            now(
                "owner",
                integrity="outside",
                readers=("irc/olga",),
                here=DIRECT,
                effect=Effect("tell", "", ROOM, is_named=True),
            ),
            "allowed",
        ),
        (ToolPermit(role="admin", approval="always"), now("admin"), "approval"),
        (
            ToolPermit(role="admin", approval="never"),
            now("admin", integrity="outside", effect=OUT),
            "allowed",
        ),
        (
            ToolPermit(role="admin", approval="never"),
            now("owner", integrity="outside", readers=("irc/olga",), here=DIRECT, effect=OUT),
            "approval",
        ),
        (ToolPermit(role="admin", approval="never"), now("admin", "guest"), "approval"),
        (ToolPermit(scope="private"), now("owner"), "refused"),
        (ToolPermit(scope="room"), now("owner", here=DIRECT), "refused"),
        (ToolPermit(scope="room"), now("owner"), "allowed"),
    ],
)
def test_what_is_decided(permit: ToolPermit, situation: PermissionRequest, outcome: str) -> None:
    assert decide_permission("t", permit, situation).outcome == outcome


@given(permits, situations)
def test_what_stays_in_the_place_is_free_for_whoever_may_whatever_is_in_view(
    permit: ToolPermit, there: PermissionRequest
) -> None:
    there = replace(there, effect=OWN)
    assert {worth(permit, replace(there, label=Label(one))) for one in get_args(Integrity)} == {
        worth(permit, there)
    }


@pytest.mark.parametrize("unasked", get_args(ToolRole))
@pytest.mark.parametrize("role", get_args(ToolRole))
def test_by_itself_it_has_the_operators_role(unasked: ToolRole, role: ToolRole) -> None:
    verdict = decide_permission("bash", ToolPermit(role=role), replace(now(), unasked_role=unasked))
    assert verdict.outcome == ("allowed" if rank(unasked) >= rank(role) else "refused")
    assert verdict.role == unasked
    assert ("nobody asked" in verdict.rule) == (verdict.outcome == "refused")


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
        assert any(rank(one) >= rank(permit.role) for one in joined.roles), (
            "somebody has the right to it"
        )


@given(permits, situations, st.data())
def test_a_stronger_asker_never_gets_less_and_a_weaker_one_never_more(
    permit: ToolPermit, there: PermissionRequest, data: st.DataObject
) -> None:
    stronger = [
        data.draw(st.sampled_from([one for one in ROLE_ORDER if rank(one) >= rank(role)]))
        for role in there.roles
    ]
    assert worth(permit, replace(there, roles=stronger)) >= worth(permit, there)


@given(permits, situations)
def test_less_trusted_text_fewer_readers_a_higher_role_and_approval_never_give_more(
    permit: ToolPermit, there: PermissionRequest
) -> None:
    closer = replace(there, label=there.label | Label(readers=("irc/elsewhere",)))
    assert worth(permit, closer) <= worth(permit, there)
    for lesser, better in itertools.pairwise(get_args(Integrity)):
        less, more = (
            replace(there, label=replace(there.label, integrity=one)) for one in (lesser, better)
        )
        assert worth(permit, less) <= worth(permit, more)
    for lower, higher in itertools.pairwise(get_args(ToolRole)):
        assert worth(replace(permit, role=higher), there) <= worth(
            replace(permit, role=lower), there
        )
    for less_often, more_often in itertools.pairwise(get_args(ApprovalMode)):
        assert worth(replace(permit, approval=more_often), there) <= worth(
            replace(permit, approval=less_often), there
        )
    assert worth(permit, there) <= worth(replace(permit, scope="any"), there)


@given(permits, situations)
def test_each_verdict_says_which_rule_decided_and_whose_rights_counted(
    permit: ToolPermit, there: PermissionRequest
) -> None:
    verdict = decide_permission("bash", permit, there)
    assert verdict.rule
    assert "\n" not in verdict.rule
    assert verdict.role in ROLE_ORDER


@pytest.mark.parametrize(
    ("permit", "situation", "rule"),
    [
        (
            ALLOW_ADMINS,
            now("guest", "member"),
            (
                "bash is for the role admin and above; nobody who asks here has more than the role "
                "member"
            ),
        ),
        (
            ALLOW_ADMINS,
            now("admin", integrity="guest", effect=OUT),
            (
                "bash is for the role admin and above, and words of a guest are in view, in m12, "
                "whose idea it may be"
            ),
        ),
        (
            ToolPermit(),
            now("guest", integrity="outside", effect=OUT),
            (
                "text from outside is in view, in m12, whose idea it may be, so bash has to be "
                "approved"
            ),
        ),
        (
            ALLOW_MEMBERS,
            now("owner", integrity="outside", readers=("irc/olga",), here=DIRECT, effect=TOLD),
            (
                "text from outside is in view, in m12, whose idea it may be, "
                "and an action in #hall could carry what only some may read to others"
            ),
        ),
        (ToolPermit(approval="always"), now("guest"), "each call of bash has to be approved"),
    ],
)
def test_the_rule_says_why(permit: ToolPermit, situation: PermissionRequest, rule: str) -> None:
    assert decide_permission("bash", permit, situation).rule == rule


RULES = (
    ToolRule(tool="mcp_files_*", role="member"),
    ToolRule(tool="mcp_*", scope="private", approval="always"),
    ToolRule(tool="*", role="owner"),
)


@pytest.mark.parametrize(
    ("name", "permit"),
    [
        ("mcp_files_read", ToolPermit(role="member")),
        ("mcp_git_push", ToolPermit(role="admin", scope="private", approval="always")),
        ("bash", ToolPermit(role="owner")),
    ],
)
def test_the_first_rule_that_matches_decides_and_what_it_leaves_out_stays(
    name: str, permit: ToolPermit
) -> None:
    assert apply_rules(name, ALLOW_ADMINS, RULES) == permit
    assert apply_rules(name, ALLOW_ADMINS, ()) == ALLOW_ADMINS
    assert apply_rules("Mcp_files_read", ALLOW_ADMINS, RULES[:2]) == ALLOW_ADMINS, (
        "names are told apart by case"
    )


@pytest.mark.parametrize(
    ("integrity", "readers", "here", "audience", "found"),
    [
        ("owner", ("irc/olga",), DIRECT, EVERYBODY, "authors"),
        ("member", ("irc/olga",), DIRECT, EVERYBODY, "others"),
        ("outside", ("irc/olga",), DIRECT, ROOM, "others"),
        ("outside", ("irc/olga",), ROOM, DIRECT, "all"),
        ("outside", (), DIRECT, EVERYBODY, "all"),
        ("member", ("irc/mia",), MEMBERS_DIRECT, EVERYBODY, "authors"),
        ("guest", ("irc/#staff",), ROOM, EVERYBODY, "authors"),
        ("guest", ("irc/#staff", "irc/mia"), ROOM, EVERYBODY, "others"),
        ("owner", ("irc/#staff",), EVERYBODY, EVERYBODY, "others"),
        ("outside", ("irc/#staff",), ROOM, EVERYBODY, "others"),
        ("outside", ("irc/#staff",), ROOM, ROOM, "all"),
        ("guest", ("irc/#staff",), EVERYBODY, ROOM, "all"),
    ],
)
def test_who_may_read_what_is_sent(
    integrity: Integrity,
    readers: tuple[str, ...],
    here: Visibility,
    audience: Visibility,
    found: Readers,
) -> None:
    effect = Effect("tell", audience=audience)
    assert (
        find_readers(now(integrity=integrity, readers=readers, here=here, effect=effect)) == found
    )
