"""What an admin is shown who is to approve a call, and what their answer means. Pure.

The call is written by a model that read what anybody wrote, so everything in it stands in code that it cannot leave: on
one line, with each character that nobody would see, or that turns or ends something, in JSON's escaped form.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.core.events import Address, ChannelName, SenderId
from gateway.core.facts import ApprovalRequested, ApprovalVerdict
from gateway.core.identity import ROLE_ORDER, Role
from gateway.core.tool import Requester

APPROVAL_ID_ALPHABET: Final = "23456789bcfghjkmnpqrstvwxyz"
"""Of ids: nothing that is taken for something else, no vowels, so that none is a word, and no `pwd`, for what stands
behind that is taken for a secret."""
APPROVAL_ID_CHARS: Final = 4
"""As many ids as are asked for in years; one that is taken is drawn again."""
MAX_SHOWN_BYTES: Final = 3_000
"""Of arguments that are shown whole: about a post of Telegram, two of Discord, ten lines of IRC. More cannot be
approved: nobody reads it."""
LINE_CHARS: Final = 300
"""Of arguments, in one line: fits a line of IRC where most characters take one byte."""
TOOL_CHARS: Final = 200
"""A tool's name is shown whole."""
NAME_CHARS: Final = 40
PLACE_CHARS: Final = 120
MAX_REQUESTER_NAMES: Final = 5
"""Of those who asked; the others are counted."""

APPROVER_ROLES: Final[tuple[Role, ...]] = ("admin", "owner")
ApprovalDuration = Literal["once", "session", "always"]
APPROVAL_DURATIONS: Final[tuple[ApprovalDuration, ...]] = ("once", "session", "always")

_MARKUP: Final = re.compile(r"[^\w ,;:'.-]|(?<![^\W_])_|_(?![^\W_])")
"""What could be markup in a sentence of ours that holds names: all but letters, and underscores within names."""
_INVISIBLE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_BLANK_CHARS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that show nothing (https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point)."""
_VARIATION_SELECTORS: Final = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
"""Variation selectors, the same: text can be hidden in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approver:
    """Who says a word, and where."""

    at: Address
    sender: SenderId
    role: Role
    """What access says of them: an admin or owner is one that the platform vouches for."""
    is_direct: bool
    global_role: Role
    """As `gateway.core.identity.Identity.everywhere`."""

    @property
    def name(self) -> str:
        """For people, and for the log."""
        return f"{self.at.channel}:{self.sender}"


def escape_invisible(text: str) -> str:
    """The text so that nothing in it is hidden, and nothing ends the code or the line that it stands in."""
    if text.isascii() and text.isprintable() and "`" not in text:
        return text
    return "".join(char if _is_visible(char) else json.dumps(char)[1:-1] if char != "`" else "\\u0060" for char in text)


def _is_visible(char: str) -> bool:
    if char == " ":
        return True
    hidden = unicodedata.category(char) in _INVISIBLE_CATEGORIES or char in _BLANK_CHARS or char == "`"
    return not hidden and not any(first <= ord(char) <= last for first, last in _VARIATION_SELECTORS)


def normalize_arguments(written: str) -> str:
    """What a model wrote as JSON, as it is taken: on one line, each key once."""
    try:
        return json.dumps(json.loads(written or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):  # its tool takes what is no JSON, or refuses it
        return written.strip()


def format_arguments(written: str) -> str:
    """What a model wrote as arguments, whole, as people are shown it."""
    return escape_invisible(normalize_arguments(written) or "{}")


def explain_too_long(shown: str) -> str:
    """Why nobody can approve arguments that are shown like this, for the model. Empty: they can be shown whole."""
    size = len(shown.encode())
    if size <= MAX_SHOWN_BYTES:
        return ""
    return (
        f"its arguments take {size} bytes, and an admin can approve only what they are shown whole, at most "
        f"{MAX_SHOWN_BYTES} bytes"
    )


def _split_into_code_lines(shown: str) -> str:
    """The text as code, in lines that no platform cuts. No line begins or ends with a space, for that might be lost."""
    lines = []
    while len(shown) > LINE_CHARS:
        places = range(LINE_CHARS, LINE_CHARS // 2, -1)
        at = next((one for one in places if " " not in shown[one - 1 : one + 1]), LINE_CHARS)
        lines.append(shown[:at])
        shown = shown[at:]
    return "\n".join(f"`{line}`" for line in [*lines, shown])


def inline_code(text: str, most: int = NAME_CHARS) -> str:
    """Somebody else's word, as code."""
    seen = escape_invisible(text.strip())
    return f"`{seen if len(seen) <= most else f'{seen[: most - 1]}…'}`" if seen else "`?`"


def render_approval_request(
    asked: ApprovalRequested,
    *,
    askers: Sequence[Requester],
    rule: str,
    covers: str,
    place: str,
    prefix: str,
    span: str,
    named: Callable[[str], str] = str,
) -> str:
    """What is posted where it is asked for, in Markdown: all of what is to be run.

    `covers`: what a word that holds for longer covers, as `describe_coverage` says it. `place`: where the turn is;
    empty: in the same room. `named` puts titles of places into a text.
    """
    where = f" in {named(inline_code(place, PLACE_CHARS))}" if place else ""
    why = _MARKUP.sub("?", rule)
    approve, deny = f"{prefix}approve {asked.approval}", f"{prefix}deny {asked.approval}"
    return (
        f"May {inline_code(asked.agent)} use {inline_code(asked.tool, TOOL_CHARS)}{where}? "
        f"{describe_requesters(askers)}; {why}.\n\n"
        f"{_split_into_code_lines(asked.arguments)}\n\n"
        f"- `{approve}`: this call. `{approve} session`: from now on also {covers}, until the conversation begins "
        f"afresh or I am restarted. `{approve} always`: the same for good.\n"
        f"- `{deny}`: no. So is silence for {span}."
    )


def describe_coverage(least: Role | str, needs: str, *, foreign: bool) -> str:
    """What a word that holds for longer covers: in words, for whoever gives it. As `gateway.tools.grants.covers`."""
    clean = max(least, needs, key=_rank)
    words = (
        f"each call of it there, whatever its arguments, that rests on words of {clean}s{_format_above(clean)} alone"
    )
    if foreign or _rank(least) < _rank(needs):
        beside = f"words of {least}s{_format_above(least)}{' and text from outside' if foreign else ''}"
        words += f", and this same call beside {beside}"
    return words


def _format_above(role: str) -> str:
    return "" if role == "owner" else " and above"


def _rank(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else -1  # what is no role is below all


def describe_requesters(askers: Sequence[Requester]) -> str:
    """Who asked for a call."""
    if not askers:
        return "Nobody asked for it"
    names = [f"{inline_code(asker.name or asker.id)} ({asker.role})" for asker in askers[:MAX_REQUESTER_NAMES]]
    more = f" and {len(askers) - MAX_REQUESTER_NAMES} more" if len(askers) > MAX_REQUESTER_NAMES else ""
    return f"Asked by {', '.join(names)}{more}"


def can_decide(approver: Approver, asked_in: Address, room: Address | None) -> bool:
    """Whether it is for this admin to decide what is asked for there. `room`: where approvals are asked for.

    In the same room, threads and all; in the room for approvals; an owner of everything also alone with an agent.
    """
    if approver.role not in APPROVER_ROLES:
        return False
    here = (approver.at.channel, approver.at.room)
    if any(place is not None and here == (place.channel, place.room) for place in (asked_in, room)):
        return True
    return approver.global_role == "owner" and approver.is_direct


def roles_that_may_approve(needs: str) -> tuple[Role, ...]:
    """Who may approve what takes this role: an admin, unless it takes more."""
    return APPROVER_ROLES[-1:] if needs == "owner" else APPROVER_ROLES


def is_weak_requester(approver: Approver, channel: ChannelName, askers: Sequence[Requester], needs: str) -> bool:
    """Whether somebody is one of those whose word was not enough. `channel`: where they asked."""
    return approver.at.channel == channel and any(
        asker.id == approver.sender and asker.role not in roles_that_may_approve(needs) for asker in askers
    )


_OVER_TEXTS: Final[dict[ApprovalVerdict, str]] = {
    "denied": "was denied",
    "expired": "is over: nobody said anything in time",
    "dropped": "is over: nobody waits for it any more",
}


def render_already_decided(name: str, verdict: ApprovalVerdict, by: str) -> str:
    """To whoever decides what has ended."""
    said = _OVER_TEXTS.get(verdict, "was approved")
    return f"Too late: `{name}` {said}{f' by {inline_code(by, PLACE_CHARS)}' if by else ''}."


def explain_not_approved(verdict: ApprovalVerdict, tool: str, span: str) -> str:
    """The same for the model that waited, in one sentence. Empty: it may go on."""
    if verdict in APPROVAL_DURATIONS:
        return ""
    if verdict == "denied":
        why = f"an admin was asked and denied this call of {tool}"
    elif verdict == "expired":
        why = f"no admin approved this call of {tool} within {span}"
    else:
        why = f"nobody waits for this call of {tool} any more"
    return f"Not done, because {why}: do not try it again, but say what it would have been for."


def render_decision(verdict: ApprovalVerdict, tool: str, place: str, prefix: str, covers: str = "") -> str:
    """To whoever has just decided.

    `place`: where it holds, if that is not here. `covers`: as for `render_approval_request`.
    """
    where = f"in {inline_code(place, PLACE_CHARS)}" if place else "here"
    if verdict == "denied":
        return f"Denied: {inline_code(tool)} is not carried out."
    if verdict in ("session", "always"):
        until = "until the conversation begins afresh or I am restarted" if verdict == "session" else "for good"
        return (
            f"Approved, and so is for {inline_code(tool)} {where} {covers}, {until}. "
            f"`{prefix}revoke {escape_invisible(tool)}` takes that back."
        )
    return f"Approved: this call of {inline_code(tool)} is carried out."
