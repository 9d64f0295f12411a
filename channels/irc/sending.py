"""One part of a post to the server, in the best form that it takes; and that one is being written."""

from channels.base import Going, Part, Rejected, unrecorded
from channels.irc.compose import pieces, reply_tags, singly, together
from channels.irc.identity import is_direct
from channels.irc.parts import Direct
from channels.irc.senders import target_of
from channels.irc.session import Session
from channels.irc.wire import line, tagged
from gateway.events import Address, Receipt
from gateway.safety.mentions import without_nicks


async def deliver(session: Session, target: str, part: Part, going: Going) -> Receipt:
    """Return once the server has certainly taken it. Raises SendError: `Away` if it is for somebody not there."""
    command = "NOTICE" if part.style == "notice" else "PRIVMSG"
    if "," in target or target.startswith("$"):
        raise Rejected(f"{target} is not one room or person")
    limit, limits, folded = session.max_body_bytes(target), session.multiline, session.isupport.fold(target)
    tags, reference = (
        reply_tags(part.reply_to, session.registration.caps, session.isupport),
        session.new_batch_reference(),
    )
    try:
        single = singly(command, target, part.body, limit, tags)
        whole = None
        if limits is not None:
            whole = together(command, target, part.body, limit, limits=limits, reference=reference, tags=tags)
    except ValueError as error:
        raise Rejected(f"{target!r} is not a room or nick") from error
    session.typing_state.mark_stopped(folded)  # who sees a message knows that we are not writing any more
    if is_direct(part.to.room):
        direct = Direct(
            part.to.room,
            lambda nick, text: pieces(text, session.max_body_bytes(nick)),
            lambda nick, text, first: tagged(line(command, nick, trailing=text), tags if first else {}),
        )
        return await session.outgoing.send(pieces(part.body, limit), folded, going, direct=direct)
    if whole is not None:
        try:
            return await session.outgoing.send(whole.lines, folded, going, whole=whole.multiline_text)
        except Rejected as rejected:
            if "MULTILINE" not in rejected.reason:
                raise
            # Surely not taken, and that it goes is written down already: say it line by line.
            going = unrecorded
    return await session.outgoing.send(single.lines, folded, going)


def calling_few(session: Session, target: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The same lines, with the nicks of people who are there parted if there are many of them.

    They may be longer than what fits one message.
    """
    here = session.users.nicks_in(target, session.isupport)
    return tuple(without_nicks("\n".join(lines), here, session.isupport.fold).split("\n")) if here else lines


def show_typing(session: Session, at: Address, now_s: float, *, active: bool) -> None:
    """Show that we are writing, or have stopped, if that is news and the pace leaves room for it."""
    room = at.room
    target, state = session.resolve_target(room) if is_direct(room) else (target_of(room, at.thread), "known")
    folded = session.isupport.fold(target)
    if state == "other" or "message-tags" not in session.registration.caps or not session.isupport.relays_tag("typing"):
        return
    try:
        raw = tagged(line("TAGMSG", target), {"+typing": "active" if active else "done"})
    except ValueError:  # not a target
        return
    if session.typing_state.should_send(folded, now_s, active=active) and session.outgoing.write_if_idle(raw):
        session.typing_state.mark_sent(folded, now_s, active=active)
