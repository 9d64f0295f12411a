"""Permission of a tool call: who may have which tool called, where, and when an admin has to approve it. Pure.

A call is made by a model that read text from many authors. So `decide_permission` looks at who asks, and at the label
of the whole request: no text decides a call for which its author's standing is too low. `explain_sink` looks at who
may read the request: nothing is sent where others would read it, unless whoever it belongs to asked for that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from gateway.core.fields import ConfigSection
from gateway.core.identity import ROLE_ORDER
from gateway.core.labels import TRUSTED_LABEL, Integrity, Label, rank_integrity
from gateway.core.scopes import Visibility

ApprovalMode = Literal["never", "untrusted", "always"]
"""When an admin has to approve a call: never; once the request holds text of people whose ideas must not decide it
(`standing`), and that text cannot be left out; each time."""


ToolRole = Literal["guest", "member", "admin", "owner"]
ToolScope = Literal["any", "private", "room"]
"""anywhere; in direct chats and private rooms; in rooms that are not private."""


class ToolRule(ConfigSection):
    """Requirements of the tools that match. The first rule that matches decides; values left out are the default."""

    tool: str
    """A glob on the tool's name, e.g. `bash` or `mcp_files_*`."""
    role: ToolRole | None = None
    """The lowest role that may ask for it."""
    scope: ToolScope | None = None
    """Where it may be called: in a direct chat, in a room, or in any place."""
    approval: ApprovalMode | None = None
    """When an admin must approve: never; when the agent sees text from outside or of people below `role`; always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPermit:
    """Requirements of a tool: role, place and approval."""

    role: ToolRole = "guest"
    scope: ToolScope = "any"
    approval: ApprovalMode = "never"


ALLOW_ANYBODY: Final = ToolPermit()
ALLOW_MEMBERS: Final = ToolPermit(role="member")
ALLOW_ADMINS: Final = ToolPermit(role="admin", approval="untrusted")


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """Facts about a call that its permission depends on."""

    roles: Sequence[str]
    """Roles of all people who asked, as `proven_role` gives them. Empty: nobody asked."""
    unasked_role: str
    """Role that counts if nobody asked."""
    is_private: bool
    """True in a private place."""
    label: Label = TRUSTED_LABEL
    """Label of everything in the request."""
    fixed: Label | None = None
    """Label of what the request would hold in any case, if the turn were taken again without the pieces that hold up
    the call. None: it cannot be taken again."""
    is_recovered: bool = False
    """True if the call was found in the text of an answer, so that its author may be anybody."""
    risk: str = ""
    """Reason why this call needs an approval whatever the rules of its tool, for people: the data it sends out, and
    where. Empty: none."""
    clean: Integrity | None = None
    """Lowest standing of a clean view in which the call would have no risk. None: none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionDecision:
    """Decision about a call."""

    outcome: Literal["allowed", "refused", "approval", "clean_view"]
    """clean_view: the turn is taken again without the pieces of its request that are below the tool's standing
    (`gateway.context.clean_view`)."""
    role: str
    """The role whose rights counted."""
    rule: str
    """The rule that decided, for people and for the model."""
    standing: Integrity = "owner"
    """Standing of the clean view, if there is to be one."""


def proven_role(role: str, *, verified: bool) -> str:
    """Return the role that counts: without proof of identity, an owner or admin counts as a member."""
    return "member" if role in ("owner", "admin") and not verified else role


def lowest_role(roles: Iterable[str]) -> str:
    """Return the role with the fewest rights. Raises ValueError for none."""
    return min(roles, key=_rank)


def apply_rules(name: str, permit: ToolPermit, rules: Iterable[ToolRule]) -> ToolPermit:
    """Return the requirements of a tool under the operator's rules; the first that matches its name decides."""
    for rule in rules:
        if fnmatchcase(name, rule.tool):
            return replace(
                permit,
                role=rule.role or permit.role,
                scope=rule.scope or permit.scope,
                approval=rule.approval or permit.approval,
            )
    return permit


def standing(permit: ToolPermit) -> Integrity:
    """Return the lowest integrity of a request that may decide the call of a tool without an approval.

    It is the tool's role, unless the rule says that nobody is ever asked.
    """
    return "outside" if permit.approval == "never" else permit.role


def decide_permission(name: str, permit: ToolPermit, now: PermissionRequest) -> PermissionDecision:
    """Decide whether a tool may be called."""
    ranks = sorted(_rank(role) for role in now.roles) or [_rank(now.unasked_role)]
    weakest, strongest, needed = ranks[0], ranks[-1], _rank(permit.role)
    role = ROLE_ORDER[max(weakest, 0)]
    if permit.scope == "private" and not now.is_private:
        return PermissionDecision(outcome="refused", role=role, rule=f"{name} may be used in private places only")
    if permit.scope == "room" and now.is_private:
        return PermissionDecision(
            outcome="refused", role=role, rule=f"{name} may be used in rooms that are not private only"
        )
    if strongest < needed:
        whose = "nobody who asks here has more than" if now.roles else "nobody asked, and by yourself you have"
        best = ROLE_ORDER[max(strongest, 0)]
        rule = f"{name} is for the role {permit.role} and above; {whose} the role {best}"
        return PermissionDecision(outcome="refused", role=best, rule=rule)
    if weakest < needed:
        rule = f"{name} is for the role {permit.role} and above, and somebody with the role {role} asks here, too"
        return PermissionDecision(outcome="approval", role=role, rule=rule)
    if now.is_recovered and needed >= _rank("admin"):
        rule = f"this call of {name} was written as text, so it may be somebody else's idea"
        return PermissionDecision(outcome="approval", role=role, rule=rule)
    if permit.approval == "always":
        rule = now.risk or f"each call of {name} has to be approved"
        return PermissionDecision(outcome="approval", role=role, rule=rule)
    if now.risk or not _reaches(now.label, standing(permit)):
        clean = now.clean if now.risk else standing(permit)
        rule = now.risk or _explain_label(name, permit, now.label)
        if clean is not None and now.roles and now.fixed is not None and _reaches(now.fixed, clean):
            return PermissionDecision(outcome="clean_view", role=role, rule=rule, standing=clean)
        return PermissionDecision(outcome="approval", role=role, rule=rule)
    return PermissionDecision(outcome="allowed", role=role, rule=f"{permit.role} and above")


def explain_sink(label: Label, here: Visibility, audience: Visibility, sink: str) -> str:
    """Return why an admin has to approve that text of a request is sent to a sink, for people. Empty: it may be sent.

    It may be sent to those who may read all of the request anyway. Beyond that it takes the word of those to whom it
    belongs (robust declassification: Zdancewic and Myers, 2001): of owners and admins alone; or, where no owner's
    private talk is in view, of people who have a role here. What those have sent they could have sent by themselves.
    In the inner conversation this is nobody's word: it weighs closed rooms together, and who spoke in one of them may
    not read the others.

    `label`: of the request. `here`: what its place may see. `audience`: what those may see who receive it. `sink`: the
    action and its receiver, for people.
    """
    may_speak_for_it = label.is_trusted or (label.integrity != "outside" and not here.sees_everything)
    if (may_speak_for_it and here.can_read(label.readers)) or audience.can_read(label.readers):
        return ""
    return f"{describe_cause(label)}, and {sink} could carry what only some may read to others"


def describe_cause(label: Label) -> str:
    """Return in words whose idea a call may be, because of the least trusted text in its request."""
    words = "text from outside is" if label.integrity == "outside" else f"words of a {label.integrity} are"
    return f"{words} in view{f', in {label.source}' if label.source else ''}, whose idea it may be"


def _reaches(label: Label, integrity: Integrity) -> bool:
    return rank_integrity(label.integrity) >= rank_integrity(integrity)


def _explain_label(name: str, permit: ToolPermit, label: Label) -> str:
    cause = describe_cause(label)
    if label.integrity == "outside":
        return f"{cause}, so {name} has to be approved"
    return f"{name} is for the role {permit.role} and above, and {cause}"


def _rank(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else -1
