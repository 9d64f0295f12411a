"""Pairing codes: generation, limits on wrong codes, approval and revocation, and the notices that
follow.

All but `generate_code` (the system's random source) is pure: times are arguments.
"""

import hashlib
import secrets
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gateway.access.texts import CODE_ALPHABET, CODE_CHARS, format_person, format_room, hash_code
from gateway.core.events import Address, Post, PostKey
from gateway.core.facts import CodeEnded, CodeIssued, PostQueued, RoleAssigned, RoomAccessChanged
from gateway.core.i18n import _, use_language
from gateway.store.effects import CommandEffect, EffectFact, done, refuse

REQUEST_CHARS: Final = 5
REQUEST_LETTERS: Final = "".join(char for char in CODE_ALPHABET.lower() if char not in "dk")
"""Letters of a request's name. Without `d` and `k`: text after `pwd` or `key` is taken for a
secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCode:
    """A new code, and what the log keeps of it."""

    code: str = field(repr=False)
    """Shown once, in one post; it is stored nowhere else."""
    request: str
    """Public name of the request, for people who may not see the code."""
    salt: str = field(repr=False)
    digest: str = field(repr=False)


def generate_code(taken: Container[str]) -> GeneratedCode:
    """Return a new code. `taken`: request names that are in use."""
    code, salt, request = (
        _word(CODE_ALPHABET, CODE_CHARS),
        secrets.token_hex(16),
        _word(REQUEST_LETTERS, REQUEST_CHARS),
    )
    while request in taken:
        request = _word(REQUEST_LETTERS, REQUEST_CHARS)
    return GeneratedCode(code=code, request=request, salt=salt, digest=hash_code(salt, code))


def _word(letters: str, chars: int) -> str:
    return "".join(secrets.choice(letters) for __ in range(chars))


ATTEMPT_WINDOW_S: Final = 600.0
MAX_ATTEMPTS: Final = 5
"""Wrong codes of one person within that time after which no other of theirs is checked. They count
for each person alone, so nobody keeps others from trying."""


def build_code_over(
    request: CodeIssued, state: Literal["used", "revoked", "expired"], by: str
) -> EffectFact:
    """Return the fact that a code has ended. Appended once for each code."""
    return EffectFact(
        CodeEnded(request=request.request, state=state, by=by),
        request.at.conversation,
        code_over_key(request),
    )


def build_code_expirations(requests: Iterable[CodeIssued]) -> tuple[EffectFact, ...]:
    """Return the facts that these codes have expired, so that nobody needs to check them again."""
    return tuple(build_code_over(one, "expired", "") for one in requests)


def approve_pairing(
    request: CodeIssued, by: str, *, existing: RoleAssigned | None
) -> CommandEffect:
    """Accept the person who was shown this code as a member. `existing`: the role that they got
    meanwhile; it stays.
    """
    who = format_person(request.person, request.name)
    if existing is not None and existing.role != "guest":
        words = _("{person} is already {role}.").format(person=who, role=existing.role)
        used = done(words, build_code_over(request, "used", by), request=request.request)
        return replace(used, ok=existing.role != "blocked")
    assigned = RoleAssigned(
        person=request.person, role="member", name=request.name, by=by, why="pairing"
    )
    with use_language(request.language):
        notice_text = _("You are approved. From now on I answer you here.")
    facts = (
        EffectFact(assigned, request.at.conversation, f"paired:{request.salt}"),
        build_code_over(request, "used", by),
        build_requester_notice(request, notice_text),
    )
    return done(_("Approved: {person}.").format(person=who), *facts, request=request.request)


def revoke_code(request: CodeIssued, by: str) -> CommandEffect:
    """Revoke a code that was not used yet."""
    words = _("Refused: the code of {person} is not valid any more.").format(
        person=format_person(request.person, request.name)
    )
    return done(words, build_code_over(request, "revoked", by), request=request.request)


def approve_room(request: CodeIssued, room: Address, by: str) -> CommandEffect:
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
            RoomAccessChanged(room=room, open=True, by=by, about=request.about),
            room.conversation,
            f"opened:{request.salt}",
        ),
        build_code_over(request, "used", by),
        build_requester_notice(request, notice_text),
    )
    text = _("Approved: {room}. {person} had asked for it.").format(
        room=shown, person=format_person(request.person, request.name)
    )
    return done(text, *facts, request=request.request)


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
    key, to = _notice_key(code_over_key(request)), request.at
    return EffectFact(
        PostQueued(post=Post(key=key, to=to, text=text, style="notice")),
        to.conversation,
        f"post:{key}",
    )


def _notice_key(ended: str) -> PostKey:
    return PostKey(hashlib.sha256(f"letter:{ended}".encode()).hexdigest()[:26])
