"""Permission of a tool call: who may have which tool called, where, and when an admin has to
approve it. Pure.

A call is made by a model that read text from many authors, and may obey any of it. So what decides
is what the call can do outside of the place where it was asked: its `Effect`. What stays in that
place is free for whoever may use the tool, whatever is in view. What is told elsewhere looks at who
may read the request. What leaves the system, or changes what is trusted, rests on the lowest author
in view. All of it stands in `TABLE`; the first row that fits decides.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, Literal, NamedTuple

from gateway.core.fields import ConfigSection
from gateway.core.frozen import frozen
from gateway.core.identity import ROLE_ORDER
from gateway.core.labels import TRUSTED_LABEL, Label, rank_integrity
from gateway.core.scopes import EVERYBODY, Visibility

ApprovalMode = Literal["never", "untrusted", "always"]
"""When an admin has to approve a call: as `TABLE` says with no author in view too low for it; as it
says; each time."""

ToolRole = Literal["guest", "member", "admin", "owner"]
ToolScope = Literal["any", "private", "room"]
"""anywhere; in direct chats and private rooms; in rooms that are not private."""


class ToolRule(ConfigSection):
    """Requirements of the tools that match. The first rule that matches decides; values left out
    are the default.
    """

    tool: str
    """A glob on the tool's name, e.g. `bash` or `mcp_files_*`."""
    role: ToolRole | None = None
    """The lowest role that may ask for it."""
    scope: ToolScope | None = None
    """Where it may be called: in a direct chat, in a room, or in any place."""
    approval: ApprovalMode | None = None
    """When an admin must approve: `untrusted`, by what the call does and whose text the agent sees;
    `never` because of whose text that is; always."""


@frozen
class ToolPermit:
    """Requirements of a tool: role, place and approval."""

    role: ToolRole = "guest"
    scope: ToolScope = "any"
    approval: ApprovalMode = "untrusted"


ALLOW_ANYBODY: Final = ToolPermit()
"""A tool that guests may use."""
ALLOW_MEMBERS: Final = ToolPermit(role="member")
"""A tool that members and those above them may use."""
ALLOW_ADMINS: Final = ToolPermit(role="admin")
"""A tool that admins and owners may use."""


EffectKind = Literal["own", "tell", "out"]
"""own: nothing that could not be undone in the place where it was asked. tell: it posts into
another place. out: it leaves the system, or changes what is trusted."""
Askers = Literal["all", "some", "none"]
"""How many of those who ask have the role of the tool."""
Readers = Literal["all", "named", "authors", "others"]
"""Who may read what is in view: all who receive what the call sends; or else the asker has named
the place that receives it, which is closed or gets their own words; or else all who wrote it may,
and nobody from outside is among them; or others receive it, too."""


class Effect(NamedTuple):
    """What a call can do outside of the place where it was asked."""

    kind: EffectKind
    what: str = ""
    """Action and receiver, for people. Empty: the tool's name says it."""
    audience: Visibility = EVERYBODY
    """What those may see who receive it."""
    is_named: bool = False
    """True if the receiver is a place that stands in the newest message of somebody who asks, or
    that it answers (`gateway.plugins.messaging`), and it is closed or gets no other words than
    those."""


OWN: Final = Effect("own")
"""Nothing that could not be undone in the place where it was asked."""
OUT: Final = Effect("out")
"""It leaves the system, or changes what is trusted."""


class Row(NamedTuple):
    """A row of the table. Empty: anything."""

    effect: EffectKind | Literal[""]
    asks: Askers | Literal[""]
    author: Literal["high", "low", ""]
    """Whether the lowest author in view has the tool's role."""
    readers: Readers | Literal[""]
    outcome: Literal["allowed", "refused", "approval"]
    why: str


TABLE: Final = (
    Row("", "none", "", "", "refused", "the tool is not for those who ask"),
    Row("", "some", "", "", "approval", "somebody asks for whom the tool is not"),
    Row("own", "all", "", "", "allowed", "it stays in the place, and can be undone"),
    Row("tell", "all", "", "all", "allowed", "all who read there may read all that is in view"),
    Row(
        "tell",
        "all",
        "",
        "named",
        "allowed",
        "somebody who asks names that place: it is closed, or gets their words alone",
    ),
    Row(
        "tell",
        "all",
        "",
        "authors",
        "allowed",
        "those whose words it could carry could tell them themselves",
    ),
    Row(
        "tell", "all", "", "others", "approval", "it could carry what only some may read to others"
    ),
    Row(
        "out",
        "all",
        "low",
        "",
        "approval",
        "it may be the idea of somebody whom the tool is not for",
    ),
    Row(
        "out",
        "all",
        "high",
        "others",
        "approval",
        "it could carry what only some may read to others",
    ),
    Row("out", "all", "high", "", "allowed", "all whose words are in view may have it done"),
)
"""Who decides about a call. A rule of the operator comes first where it refuses the place;
`approval: never` makes each author `high`; `approval: always` makes `allowed` an approval."""


@frozen
class PermissionRequest:
    """Facts about a call that its permission depends on."""

    roles: Sequence[str]
    """Roles of all people who asked, as `proven_role` gives them. Empty: nobody asked."""
    unasked_role: str
    here: Visibility
    label: Label = TRUSTED_LABEL
    effect: Effect = OWN


@frozen
class PermissionDecision:
    """Decision about a call."""

    outcome: Literal["allowed", "refused", "approval"]
    role: str
    """The role whose rights counted."""
    rule: str
    needs: str
    """Lowest role that needs no approval for the tool."""
    label: Label


def apply_rules(name: str, permit: ToolPermit, rules: Iterable[ToolRule]) -> ToolPermit:
    """Return the requirements of a tool under the operator's rules; the first that matches its name
    decides.
    """
    for rule in rules:
        if fnmatchcase(name, rule.tool):
            return replace(
                permit,
                role=rule.role or permit.role,
                scope=rule.scope or permit.scope,
                approval=rule.approval or permit.approval,
            )
    return permit


def decide_permission(name: str, permit: ToolPermit, now: PermissionRequest) -> PermissionDecision:
    """Decide whether a tool may be called: what the operator's rule says of the place, then the
    first row that fits.
    """
    ranks = sorted(rank_integrity(role) for role in now.roles) or [rank_integrity(now.unasked_role)]
    weakest, strongest, needed = ranks[0], ranks[-1], rank_integrity(permit.role)
    role = ROLE_ORDER[strongest if strongest < needed else weakest]
    decision = partial(PermissionDecision, role=role, needs=permit.role, label=now.label)
    if permit.scope not in ("any", "private" if now.here.is_private else "room"):
        places = "private places" if permit.scope == "private" else "rooms that are not private"
        return decision(outcome="refused", rule=f"{name} may be used in {places} only")
    is_high = permit.approval == "never" or rank_integrity(now.label.integrity) >= rank_integrity(
        permit.role
    )
    asks: Askers = "none" if strongest < needed else "some" if weakest < needed else "all"
    readers = find_readers(now)
    facts = (now.effect.kind, asks, "high" if is_high else "low", readers)
    row = next(
        row
        for row in TABLE
        if all(want in ("", is_) for want, is_ in zip(row, facts, strict=False))
    )
    only = f"{name} is for the role {permit.role} and above"
    if asks == "none":
        whose = (
            "nobody who asks here has more than"
            if now.roles
            else "nobody asked, and by yourself you have"
        )
        return decision(outcome=row.outcome, rule=f"{only}; {whose} the role {role}")
    if asks == "some":
        rule = f"{only}, and somebody with the role {role} asks here, too"
    elif row.outcome == "allowed":
        rule = f"{permit.role} and above"
    elif readers == "others" and now.effect.what:
        rule = (
            f"{describe_cause(now.label)}, and {now.effect.what} could carry what only some may "
            "read to others"
        )
    elif permit.role == "guest":
        rule = f"{describe_cause(now.label)}, so {name} has to be approved"
    else:
        rule = f"{only}, and {describe_cause(now.label)}"
    if row.outcome == "allowed" and permit.approval == "always":
        return decision(outcome="approval", rule=f"each call of {name} has to be approved")
    return decision(outcome=row.outcome, rule=rule)


def find_readers(now: PermissionRequest) -> Readers:
    """Return who may read what is in view, of those who receive it (`Row.readers`).

    What those have sent who wrote it they could have sent by themselves (robust declassification:
    Zdancewic and Myers, 2001). Of an owner's private talk that is true of owners and admins alone.
    In the inner conversation nobody may read all that it weighs together.
    """
    label, here = now.label, now.here
    if now.effect.audience.can_read(label.readers):
        return "all"
    if now.effect.is_named:
        return "named"
    may_tell = label.is_trusted or (label.integrity != "outside" and not here.sees_everything)
    return "authors" if may_tell and here.can_read(label.readers) else "others"


def describe_cause(label: Label) -> str:
    """Return in words whose idea a call may be, because of the least trusted text in its
    request.
    """
    words = (
        "text from outside is"
        if label.integrity == "outside"
        else f"words of a {label.integrity} are"
    )
    return f"{words} in view{f', in {label.source}' if label.source else ''}, whose idea it may be"
