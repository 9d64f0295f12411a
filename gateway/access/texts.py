"""Texts about people, codes and rooms; forms of one-time codes; groups of linked accounts. Pure.

Names and ids are untrusted, and shown as code. Codes are generated in `gateway.access.pairing`.
"""

import hashlib
import hmac
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from channels.base import Capabilities
from gateway.core.events import ChannelName, ConversationId, PostButton, Sender
from gateway.core.facts import CodeEnded, CodeIssued, IdentityLinked
from gateway.core.format import format_time
from gateway.core.i18n import N_, _
from gateway.core.identity import BRIDGE_PREFIX, MASK_PREFIX, normalize_person_key
from gateway.core.text_safety import PLACE_CHARS, escape_invisible, inline_code
from gateway.store.format import hide_second_half

CODE_ALPHABET: Final = "ACDEFGHJKMNPRTUWXY3479"
"""Letters and digits that are not mistaken for each other in common typefaces, in either case: no
0/O/Q, 1/I/L, 2/Z, 5/S, 6/G, 8/B, U/V. 22 to the 8th is 5e10, and a person has 30 tries in an hour.
"""
CODE_CHARS: Final = 8
CODE_LIFETIME: Final = timedelta(hours=1)
DEFINITION_CODE_CHARS: Final = 8
MAX_PENDING_CODES: Final = 500
"""Most pending codes of a channel, for people and rooms together: so many that no raid makes one
give way before it was used. One more replaces the oldest of the person who has the most, so nobody
is kept out.
"""
_MAX_WRITTEN_CHARS: Final = 100
"""Longest text that is read as a code."""


def format_code(code: str) -> str:
    """Return the code in the form that people are shown."""
    return f"{code[: CODE_CHARS // 2]}-{code[CODE_CHARS // 2 :]}"


def is_formatted_code(text: str) -> bool:
    """Return whether the text looks exactly like a code as people are shown it."""
    code = text.replace("-", "", 1)
    return len(code) == CODE_CHARS and format_code(code) == text and set(code) <= set(CODE_ALPHABET)


def normalize_code(written: str) -> str:
    """Return a written code without case, white space, dashes and marks around it."""
    wide = unicodedata.normalize("NFKC", written[:_MAX_WRITTEN_CHARS]).upper()
    return "".join(char for char in wide if char.isalnum())


def hash_code(salt: str, code: str) -> str:
    """Return the digest of a code, which the log keeps beside the salt."""
    return hashlib.sha256(f"{salt}{code}".encode("utf-8", "replace")).hexdigest()


def find_by_code(requests: Iterable[CodeIssued], written: str) -> CodeIssued | None:
    """Return the request of this code. Takes as long for a wrong code as for a right one."""
    code, found = normalize_code(written), None
    for one in requests:
        if hmac.compare_digest(hash_code(one.salt, code), one.digest):
            found = one
    return found


def find_request(requests: Sequence[CodeIssued], written: str) -> CodeIssued | None:
    """Return the request that an admin means: by its code, by its name, or by its person or room.

    People are written as `channel:id`, rooms as `channel/room`, both as they are listed. Names that
    people gave themselves, and titles of rooms, never count.
    """
    if (found := find_by_code(requests, written)) is not None:
        return found
    word = written.strip("` \t\n")
    for one in requests:
        if word.lower() == one.request:
            return one
    for one in requests:
        meant = (
            normalize_person_key(word) == one.person
            if one.room is None
            else word == one.room.conversation
        )
        if meant:
            return one
    return None


MAX_LINKED_ACCOUNTS: Final = 8
"""Most accounts of one person."""


def is_verifiable(person: str) -> bool:
    """Return whether a platform can verify this id: masks, and names behind a bridge, are only
    shown.
    """
    return not person.partition(":")[2].startswith((MASK_PREFIX, BRIDGE_PREFIX))


def group_linked_accounts(links: Iterable[IdentityLinked]) -> Mapping[str, frozenset[str]]:
    """Return the other accounts of each person. Links count in this order, without one that makes a
    group too large.
    """
    whole: dict[str, frozenset[str]] = {}
    for link in links:
        if not (is_verifiable(link.one) and is_verifiable(link.other)):
            continue
        both = whole.get(link.one, frozenset({link.one})) | whole.get(
            link.other, frozenset({link.other})
        )
        if len(both) <= MAX_LINKED_ACCOUNTS:
            whole.update(dict.fromkeys(both, both))
    return {one: others - {one} for one, others in whole.items() if len(others) > 1}


def sort_pair(one: str, other: str) -> tuple[str, str]:
    """Return two accounts in the order in which a link names them."""
    return (one, other) if one < other else (other, one)


ID_CHARS: Final = 160
"""Room for an IRC mask: nick, user and a host of 63 characters. A person's id is shown whole or not
at all."""
NAME_CHARS: Final = 64

UNKNOWN_CODE_TEXT: Final = N_(
    "I do not know this code. A code is valid for one hour, and only once."
)
TRY_LATER_TEXT: Final = N_("Too many wrong codes. Try again in ten minutes.")
BEING_DECIDED_TEXT: Final = N_(
    "Somebody else is deciding about that right now. Try again in a moment."
)


def format_person(person: str, name: str = "") -> str:
    """Return a person by id, with the name that they use."""
    shown = inline_code(person, ID_CHARS)
    return (
        f"{shown} ({inline_code(name, NAME_CHARS)})"
        if name.strip() and not person.endswith(f":{name}")
        else shown
    )


def format_room(conversation: ConversationId | str, about: str = "") -> str:
    """Return a room by id, with its own title."""
    shown = inline_code(conversation, ID_CHARS)
    has_title = about.strip() and not conversation.endswith(
        f"/{about}"
    )  # on some platforms the id is the name
    return f"{inline_code(about, NAME_CHARS)} ({shown})" if has_title else shown


def describe_verification(person: str, platforms: Mapping[ChannelName, Capabilities]) -> str:
    """Return whether a platform confirms that id, and which, as a sentence."""
    able = platforms.get(ChannelName(person.partition(":")[0]))
    platform = able.platform if able is not None else _("The platform")
    if is_verifiable(person):
        return _("{platform} confirms this id.").format(platform=platform)
    return _(
        "This is a mask, which {platform} does not confirm: tomorrow somebody else may have it."
    ).format(platform=platform)


def render_unknown_request(written: str, prefix: str, what: str) -> str:
    """Return the answer to an admin who wrote no known code or request id. `what`: the command that
    lists them.
    """
    return _(
        "I do not know the code or id {code}. `{command}` shows who waits. A code is valid for one "
        "hour, and only once."
    ).format(
        code=inline_code(hide_second_half(written), NAME_CHARS), command=f"{prefix}{what} list"
    )


def render_identity(channel: ChannelName, sender: Sender) -> str:
    """Return who somebody is, as the configuration takes it."""
    known = (
        _("You are `{id}`, which the platform confirms.")
        if sender.verified
        else _("You are `{id}`, which the platform does not confirm.")
    )
    return known.format(id=escape_invisible(f"{channel}:{sender.id}"))


def render_login_needed(channel: str, command: str) -> str:
    """Return the text for a stranger whom the platform does not identify. `command`: as
    `Capabilities.login_command`.
    """
    text = _(
        "I'm a bot, and I answer only people with an account on {channel}, because anybody can "
        "take any name. Log in "
        "to your account, then write to me again."
    ).format(channel=inline_code(channel))
    if not command:
        return text
    login = _("On most networks you log in with `{command}`, followed by your password.")
    return f"{text} {login.format(command=command)}"


def format_request(request: CodeIssued) -> str:
    """Return a pending code as text, without the code."""
    who = format_person(request.person, request.name)
    since, until = format_time(request.until - CODE_LIFETIME), format_time(request.until)
    if request.room is None:
        return _("`{id}`: {person}, since {since}, until {until}").format(
            id=request.request, person=who, since=since, until=until
        )
    return _("`{id}`: {person} for {room}, since {since}, until {until}").format(
        id=request.request,
        person=who,
        room=format_room(request.room.conversation, request.about),
        since=since,
        until=until,
    )


def format_approve_command(request: CodeIssued, prefix: str) -> str:
    """Return the command that approves a request, as code, by the request's name."""
    return f"`{prefix}{'pair' if request.room is None else 'room'} approve {request.request}`"


def request_buttons(request: CodeIssued) -> tuple[PostButton, ...]:
    """Return the buttons under the notice about a pending request."""
    label, command = (
        (_("Approve"), "pair") if request.room is None else (_("Approve the room"), "room")
    )
    return (
        PostButton(label=label, command=f"{command} approve {request.request}"),
        PostButton(label=_("Refuse"), command=f"pair revoke {request.request}"),
    )


def definition_code(server: str, tool: str, definition: str) -> str:
    """Return what an admin types to approve exactly this definition of a tool of an MCP server."""
    return hashlib.sha256(f"{server}\n{tool}\n{definition}".encode()).hexdigest()[
        :DEFINITION_CODE_CHARS
    ]


def render_request_outcome(ended: CodeEnded) -> str:
    """Return the line under a notice about a request that has ended."""
    outcome = {"used": _("Approved"), "revoked": _("Refused"), "expired": _("Expired")}[ended.state]
    if not ended.by:
        return f"**{outcome}**."
    return _("**{outcome}** by {person}.").format(
        outcome=outcome, person=inline_code(ended.by, PLACE_CHARS)
    )


def render_request_for_owners(request: CodeIssued, prefix: str, *, has_buttons: bool) -> str:
    """Return the notice for owners about a pending request."""
    asks = (
        _("Somebody asks to talk to me in private: {request}.")
        if request.room is None
        else _("Somebody asks me to talk in a room: {request}.")
    ).format(request=format_request(request))
    approve = format_approve_command(request, prefix)
    if has_buttons:
        return f"{asks} {_('You can also write {approve}.').format(approve=approve)}"
    choice = _("To approve it, write {approve}. To refuse it, write `{refuse}`.")
    return (
        f"{asks} {choice.format(approve=approve, refuse=f'{prefix}pair revoke {request.request}')}"
    )
