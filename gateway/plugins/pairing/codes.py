"""One-time codes: how they are made, found and ended, and the texts about them.

All but `issue_code` (the system's random source) is pure: times are arguments.
"""

import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Literal

from channels.base import Capabilities
from gateway.access.roster import RequestKind, format_grant
from gateway.access.texts import (
    CODE_ALPHABET,
    CODE_CHARS,
    NAME_CHARS,
    format_code,
    format_person,
    format_room,
    is_verifiable,
)
from gateway.commands.context import CommandCall
from gateway.core.events import Address, ChannelName, Post, PostButton, PostKey
from gateway.core.facts import CodeEnded, CodeIssued, RoleAssigned, RoomAccessChanged
from gateway.core.i18n import N_, _, current_language, use_language
from gateway.core.identity import AccessPolicy, normalize_person_key
from gateway.core.text_safety import PLACE_CHARS, inline_code
from gateway.store.effects import CommandEffect, EffectFact, done, queue_post, refuse
from gateway.store.format import hide_second_half

CODE_LIFETIME: Final = timedelta(hours=1)
MAX_PENDING_CODES: Final = 500
"""Most pending codes of a channel, for people and rooms together: so many that no raid makes one
give way before it was used. One more replaces the oldest of the person who has the most, so nobody
is kept out.
"""
REQUEST_LETTERS: Final = "".join(char for char in CODE_ALPHABET.lower() if char not in "dk")
"""Letters of a request's name. Without `d` and `k`: text after `pwd` or `key` is taken for a
secret."""
ATTEMPT_WINDOW_S: Final = 600.0
MAX_ATTEMPTS: Final = 5
"""Wrong codes of one person within that time after which no other of theirs is checked. They count
for each person alone, so nobody keeps others from trying."""
MAX_LISTED_REQUESTS: Final = 30
UNKNOWN_CODE_TEXT: Final = N_(
    "I do not know this code. A code is valid for one hour, and only once."
)
TRY_LATER_TEXT: Final = N_("Too many wrong codes. Try again in ten minutes.")
BEING_DECIDED_TEXT: Final = N_(
    "Somebody else is deciding about that right now. Try again in a moment."
)


def issue_code(
    what: RequestKind,
    taken: Container[str],
    now: datetime,
    *,
    person: str,
    name: str,
    at: Address,
    room: Address | None = None,
    about: str = "",
    other: str = "",
) -> tuple[str, CodeIssued]:
    """Return a new code as its person is shown it, once, and the fact that it was issued, which
    keeps only its digest. `taken`: names of requests that are in use; the others: see `CodeIssued`.
    """
    code, salt, request = _word(CODE_ALPHABET, CODE_CHARS), secrets.token_hex(16), ""
    while not request or request in taken:
        request = _word(REQUEST_LETTERS, 5)
    issued = CodeIssued(
        request=request,
        what=what,
        person=person,
        name=name,
        at=at,
        room=room,
        about=about,
        other=other,
        salt=salt,
        digest=hash_code(salt, code),
        until=now + CODE_LIFETIME,
        language=current_language(),
    )
    return format_code(code), issued


def _word(letters: str, chars: int) -> str:
    return "".join(secrets.choice(letters) for __ in range(chars))


def reserve_request(held: set[str], request: CodeIssued, effect: CommandEffect) -> CommandEffect:
    """Return the effect, until which is settled nobody else may decide about the request; or the
    answer that somebody does so at present. `held`: names of such requests.
    """
    if request.request in held:
        return refuse(_(BEING_DECIDED_TEXT))
    held.add(request.request)
    return replace(effect, settle=lambda _result: held.discard(request.request))


def normalize_code(written: str) -> str:
    """Return a written code without case, white space, dashes and marks around it."""
    wide = unicodedata.normalize("NFKC", written[:100]).upper()
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
    subjects = {one.person if one.room is None else one.room.conversation: one for one in requests}
    named = {one.request: one for one in requests}.get(word.lower())
    return named or subjects.get(word) or subjects.get(normalize_person_key(word))


def build_code_over(
    request: CodeIssued,
    state: Literal["used", "revoked", "expired"],
    call: CommandCall | None = None,
) -> EffectFact:
    """Return the fact that a code has ended. Appended once for each code. `call`: ended it."""
    by, name = ("", "") if call is None else (call.person, call.command.sender.name)
    return EffectFact(
        CodeEnded(request=request.request, state=state, by=by, name=name),
        request.at.conversation,
        code_over_key(request),
    )


def build_code_expirations(requests: Iterable[CodeIssued]) -> tuple[EffectFact, ...]:
    """Return the facts that these codes have expired, so that nobody needs to check them again."""
    return tuple(build_code_over(one, "expired") for one in requests)


def approve_pairing(
    request: CodeIssued, call: CommandCall, *, existing: RoleAssigned | None
) -> CommandEffect:
    """Accept the person who was shown this code as a member. `existing`: the role that they got
    meanwhile; it stays.
    """
    who = format_person(request.person, request.name)
    if existing is not None and existing.role != "guest":
        words = _("{person} is already {role}.").format(person=who, role=existing.role)
        used = done(words, build_code_over(request, "used", call))
        return replace(used, ok=existing.role != "blocked")
    assigned = RoleAssigned(
        person=request.person, role="member", name=request.name, by=call.person, why="pairing"
    )
    with use_language(request.language):
        notice_text = _("You are approved. From now on I answer you here.")
    facts = (
        EffectFact(assigned, request.at.conversation, f"paired:{request.salt}"),
        build_code_over(request, "used", call),
        build_requester_notice(request, notice_text),
    )
    return done(_("Approved: {person}.").format(person=who), *facts)


def approve_room(request: CodeIssued, room: Address, call: CommandCall) -> CommandEffect:
    """Open the room that this code was shown for, and post that where the code was shown.

    The admin's command and its answer may be visible to nobody else.
    """
    inside = (request.at.channel, request.at.room) == (room.channel, room.room)
    shown = format_room(room.conversation, request.about)
    with use_language(request.language):
        notice_text = (
            _("I may talk in this room now.")
            if inside
            else _("I may talk in {room} now.").format(room=shown)
        )
    facts: Sequence[EffectFact] = (
        EffectFact(
            RoomAccessChanged(room=room, open=True, by=call.person, about=request.about),
            room.conversation,
            f"opened:{request.salt}",
        ),
        build_code_over(request, "used", call),
        build_requester_notice(request, notice_text),
    )
    text = _("Approved: {room}. {person} had asked for it.").format(
        room=shown, person=format_person(request.person, request.name)
    )
    return done(text, *facts)


def revoke_pairing(person: str, assigned: RoleAssigned | None, by: str) -> CommandEffect:
    """Take the role that somebody got by pairing back."""
    if assigned is None or assigned.role == "blocked":
        text = _(
            "Nobody has approved {person} by a command. `role list` shows everybody with a role, "
            "and why."
        )
        return refuse(text.format(person=format_person(person)))
    taken = RoleAssigned(person=person, role="", name=assigned.name, by=by, why="pairing")
    text = _("I took back the approval of {person}. Their role was {role}.")
    return done(text.format(person=format_person(person, assigned.name), role=assigned.role), taken)


def code_over_key(request: CodeIssued) -> str:
    """Return the key of the fact that this code has ended. Names of codes are used again; their
    salts are not.
    """
    return f"code_over:{request.salt}"


def build_requester_notice(request: CodeIssued, text: str) -> EffectFact:
    """Return the post with the result for the person who was shown a code: one per code, with its
    `CodeEnded`.
    """
    key = PostKey(hashlib.sha256(f"letter:{code_over_key(request)}".encode()).hexdigest()[:26])
    return queue_post(Post(key=key, to=request.at, text=text, style="notice"))


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
    until = f"{request.until:%H:%M} UTC"  # within the hour
    if request.room is None:
        return _("`{id}`: {person}, until {until}").format(
            id=request.request, person=who, until=until
        )
    return _("`{id}`: {person} for {room}, until {until}").format(
        id=request.request,
        person=who,
        room=format_room(request.room.conversation, request.about),
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


def render_request_outcome(ended: CodeEnded, _to: Address | None) -> str:
    """Return the line under a notice about a request that has ended."""
    outcome = {"used": _("Approved"), "revoked": _("Refused"), "expired": _("Expired")}[ended.state]
    if not ended.by:
        return f"**{outcome}**."
    return _("**{outcome}** by {person}.").format(
        outcome=outcome, person=inline_code(ended.name or ended.by, PLACE_CHARS)
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
    choice = _("To approve it: {approve}\nTo refuse it: `{refuse}`")
    return (
        f"{asks}\n{choice.format(approve=approve, refuse=f'{prefix}pair revoke {request.request}')}"
    )


def format_requests(
    requests: Sequence[CodeIssued], kind: Literal["pair", "room"], prefix: str
) -> list[str]:
    """Return the newest pending requests of this kind as lines, without the codes."""
    if not requests:
        return [
            _("Nobody waits for approval.") if kind == "pair" else _("No room waits for approval.")
        ]
    listed = requests[-MAX_LISTED_REQUESTS:]
    lines = [f"- {format_request(one)}: {format_approve_command(one, prefix)}" for one in listed]
    if len(requests) > len(listed):
        more = _("- and {count} earlier ones, whose codes are still valid")
        lines.append(more.format(count=len(requests) - len(listed)))
    return [
        _("People who wait for approval:")
        if kind == "pair"
        else _("Rooms that wait for approval:"),
        *lines,
    ]


def format_paired_people(roles: Iterable[RoleAssigned]) -> list[str]:
    """Return the people who were let in at run time, as lines."""
    lines = [format_grant(one) for one in roles if one.why in ("pairing", "seed")]
    return [_("Approved by command:"), *lines] if lines else [_("Nobody is approved by command.")]


def format_open_rooms(rooms: Sequence[RoomAccessChanged], policy: AccessPolicy) -> list[str]:
    """Return the open rooms, as lines."""
    approved = _("- {room}, approved by {person}")
    lines = [
        approved.format(
            room=format_room(one.room.conversation, one.about), person=inline_code(one.by)
        )
        for one in rooms
    ]
    configured = [
        _("- {room}, by the configuration").format(room=format_room(f"{channel}/{room}"))
        for channel, listed in policy.open_rooms.items()
        for room in sorted(listed)
    ]
    return (
        [_("Approved rooms:"), *configured, *lines]
        if configured or lines
        else [_("No room is approved.")]
    )
