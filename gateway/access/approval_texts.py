"""Approval of tool calls: texts for admins and models, and rules on who may decide. Pure.

A call is written by a model that has read untrusted text, so everything in it is shown as code that
it cannot leave: on one line, with every invisible, direction-changing or terminating character in
JSON's escaped form.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.events import Address, PostButton, SenderId
from gateway.core.facts import ApprovalRequested, ApprovalVerdict
from gateway.core.i18n import N_, _
from gateway.core.identity import Role
from gateway.core.text_safety import shorten
from gateway.core.tool import Requester

APPROVAL_ID_ALPHABET: Final = "23456789bcfghjkmnpqrstvwxyz"
"""Letters of approval ids: none that is mistaken for another, no vowels, so that no id is a word,
and never `pwd`, because text after it is taken for a secret.
"""
APPROVAL_ID_CHARS: Final = 4
"""Enough ids for years of requests; an id in use is drawn again."""
MAX_SHOWN_BYTES: Final = 3_000
"""Longest arguments that can be approved, in bytes: about one post of Telegram, two of Discord, ten
lines of IRC.

Longer ones cannot be approved: nobody reads them.
"""
LINE_CHARS: Final = 300
"""Characters of arguments in one line: fits a line of IRC where most characters take one byte."""
TOOL_CHARS: Final = 200
"""Long enough to show a tool's name whole."""
NAME_CHARS: Final = 40
PLACE_CHARS: Final = 120
MAX_REQUESTER_NAMES: Final = 5
"""Requesters shown by name; the others are counted."""

APPROVER_ROLES: Final[tuple[Role, ...]] = ("admin", "owner")
_MARKUP: Final = re.compile(r"[^\w ,;:'.-]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that could be markup in a sentence with names: all but letters, and underscores within
names."""
_INVISIBLE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_BLANK_CHARS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that display nothing
(https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point)."""
_VARIATION_SELECTORS: Final = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
"""Variation selectors, which are invisible too: text can be hidden in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approver:
    """Person who decides about an approval, and where they wrote."""

    at: Address
    sender: SenderId
    role: Role
    """Role from the access check: admins and owners are verified by the platform."""
    is_direct: bool
    global_role: Role
    """As `gateway.core.identity.Identity.global_role`."""

    @property
    def name(self) -> str:
        """Id for people and for the log."""
        return f"{self.at.channel}:{self.sender}"


def escape_invisible(text: str) -> str:
    """Return the text with nothing hidden in it, and nothing that ends the code or line around
    it.
    """
    if text.isascii() and text.isprintable() and "`" not in text:
        return text
    return "".join(
        char if _is_visible(char) else json.dumps(char)[1:-1] if char != "`" else "\\u0060"
        for char in text
    )


def _is_visible(char: str) -> bool:
    if char == " ":
        return True
    hidden = (
        unicodedata.category(char) in _INVISIBLE_CATEGORIES or char in _BLANK_CHARS or char == "`"
    )
    return not hidden and not any(
        first <= ord(char) <= last for first, last in _VARIATION_SELECTORS
    )


def normalize_arguments(written: str) -> str:
    """Return a model's arguments as they are executed: on one line, each key once."""
    try:
        return json.dumps(json.loads(written or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):  # its tool accepts text that is no JSON, or refuses it
        return written.strip()


def format_arguments(written: str) -> str:
    """Return a model's arguments in full, as people are shown them."""
    return escape_invisible(normalize_arguments(written) or "{}")


def explain_too_long(shown: str) -> str:
    """Return why arguments of this length cannot be approved, for the model. Empty: they can be
    shown in full.
    """
    size = len(shown.encode())
    if size <= MAX_SHOWN_BYTES:
        return ""
    return (
        f"its arguments take {size} bytes, and an admin can approve only what they are shown "
        f"whole, at most {MAX_SHOWN_BYTES} bytes"
    )


def _split_into_code_lines(shown: str) -> str:
    """Return the text as code, in lines that no platform cuts.

    No line begins or ends with a space, which might be lost.
    """
    lines = []
    while len(shown) > LINE_CHARS:
        places = range(LINE_CHARS, LINE_CHARS // 2, -1)
        at = next((one for one in places if " " not in shown[one - 1 : one + 1]), LINE_CHARS)
        lines.append(shown[:at])
        shown = shown[at:]
    return "\n".join(f"`{line}`" for line in [*lines, shown])


def inline_code(text: str, max_chars: int = NAME_CHARS) -> str:
    """Return untrusted text as code."""
    escaped = escape_invisible(text.strip())
    return f"`{shorten(escaped, max_chars)}`" if escaped else "`?`"


def render_approval_request(
    asked: ApprovalRequested,
    *,
    askers: Sequence[Requester],
    cause: str,
    place: str,
    prefix: str,
    span: str,
    has_buttons: bool,
    named: Callable[[str], str] = str,
) -> str:
    """Return the request that is posted for admins, in Markdown: the whole call.

    Three lines: who asks for what; what would be done; whose words it rests on, and until when it
    waits.

    `cause`: the least trusted text behind it, from `gateway.context.sources`; empty: none is named.
    `place`: the conversation of the turn; empty: the same room. `span`: the time until it expires.
    `has_buttons`: `approval_buttons` are shown below. `named` inserts titles of places into a text.
    """
    agent, tool = inline_code(asked.agent), inline_code(asked.tool, TOOL_CHARS)
    may = (
        _("May {agent} use {tool} in {room}?").format(
            agent=agent, tool=tool, room=named(inline_code(place, PLACE_CHARS))
        )
        if place
        else _("May {agent} use {tool}?").format(agent=agent, tool=tool)
    )
    why = _("Why: {why}.").format(why=_MARKUP.sub("?", asked.rule))
    if cause:
        why += " " + _("The least trusted text behind this: {cause}.").format(cause=cause)
    if not has_buttons:
        why += " " + _("`{approve}` or `{deny}`.").format(
            approve=f"{prefix}approve {asked.approval}", deny=f"{prefix}deny {asked.approval}"
        )
    until = _("If nobody answers by {time} UTC (in {span}), I do not do it.").format(
        time=f"{asked.until:%H:%M:%S}", span=span
    )
    call = _split_into_code_lines(asked.arguments)
    return f"{may} {describe_requesters(askers)}.\n\n{call}\n\n{why} {until}"


def approval_buttons(approval: str) -> tuple[PostButton, ...]:
    """Return the buttons under a request."""
    return (
        PostButton(label=_("Yes"), command=f"approve {approval}"),
        PostButton(label=_("No"), command=f"deny {approval}"),
    )


def describe_requesters(askers: Sequence[Requester]) -> str:
    """Return the people who asked for a call, as text."""
    if not askers:
        return _("Nobody asked for it")
    names = [
        f"{inline_code(asker.name or asker.id)} ({asker.role})"
        for asker in askers[:MAX_REQUESTER_NAMES]
    ]
    people = ", ".join(names)
    if len(askers) > MAX_REQUESTER_NAMES:
        return _("Asked by {people} and {count} more").format(
            people=people, count=len(askers) - MAX_REQUESTER_NAMES
        )
    return _("Asked by {people}").format(people=people)


def can_decide(approver: Approver, asked_in: Address, room: Address | None) -> bool:
    """Return whether this admin may decide about a request in that conversation. `room`: the room
    for approvals.

    They may in the same room, including its threads, and in the room for approvals; an owner
    everywhere also in a direct chat with an agent.
    """
    if approver.role not in APPROVER_ROLES:
        return False
    here = (approver.at.channel, approver.at.room)
    if any(place is not None and here == (place.channel, place.room) for place in (asked_in, room)):
        return True
    return approver.global_role == "owner" and approver.is_direct


def roles_that_may_approve(needs: str) -> tuple[Role, ...]:
    """Return the roles that may approve what needs this role: admins, unless it needs more."""
    return APPROVER_ROLES[-1:] if needs == "owner" else APPROVER_ROLES


_OVER_TEXTS: Final[dict[ApprovalVerdict, tuple[str, str]]] = {
    "denied": (N_("Too late: `{id}` was denied."), N_("Too late: {person} denied `{id}`.")),
    "expired": (
        N_("Too late: nobody answered `{id}` in time."),
        N_("Too late: nobody answered `{id}` in time."),
    ),
    "dropped": (
        N_("Too late: nobody needs `{id}` any more."),
        N_("Too late: nobody needs `{id}` any more."),
    ),
}
"""By outcome: without a name, and with the name of the admin."""
_APPROVED_TEXTS: Final = (
    N_("Too late: `{id}` was approved."),
    N_("Too late: {person} approved `{id}`."),
)


def render_already_decided(name: str, verdict: ApprovalVerdict, by: str) -> str:
    """Return the answer to somebody who decides about a request that has ended."""
    text = _(_OVER_TEXTS.get(verdict, _APPROVED_TEXTS)[bool(by)])
    return text.format(id=name, person=inline_code(by, PLACE_CHARS))


def render_outcome(verdict: ApprovalVerdict, by: str) -> str:
    """Return the line under a request that has ended: what became of it."""
    outcome = {
        "once": _("Approved"),
        "denied": _("Denied"),
        "expired": _("Expired: nobody answered in time, so I did not do it"),
        "dropped": _("Ended: nobody needs it any more"),
    }
    if not by:
        return f"**{outcome[verdict]}**."
    return _("**{outcome}** by {person}.").format(
        outcome=outcome[verdict], person=inline_code(by, PLACE_CHARS)
    )


def explain_not_approved(verdict: ApprovalVerdict, tool: str, span: str) -> str:
    """Return the result for the model that waited, in one sentence. Empty: the call is approved."""
    if verdict == "once":
        return ""
    if verdict == "denied":
        why = f"an admin was asked and denied this call of {tool}"
    elif verdict == "expired":
        why = f"no admin approved this call of {tool} within {span}"
    else:
        why = f"nobody waits for this call of {tool} any more"
    return f"Not done, because {why}: do not try it again, but say what it would have been for."


def render_decision(tool: str, *, approved: bool) -> str:
    """Return the answer to the person who has just decided."""
    text = (
        _("Approved: I run this call of {tool}.") if approved else _("Denied: I do not run {tool}.")
    )
    return text.format(tool=inline_code(tool))
