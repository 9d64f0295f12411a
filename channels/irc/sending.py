"""One part of a post to the server, in the best form that it takes; and that one is being written."""

from channels.base import BeforeSend, Part, Rejected, no_before_send
from channels.irc.compose import compose_messages, compose_multiline, reply_tags, split_body
from channels.irc.identity import is_direct_chat
from channels.irc.parts import DirectDelivery
from channels.irc.senders import message_target
from channels.irc.session import IrcSession
from channels.irc.wire import add_tags, format_line
from gateway.events import Address, Receipt
from gateway.safety.mentions import break_nicks


async def send_part(session: IrcSession, target: str, part: Part, going: BeforeSend) -> Receipt:
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
        single = compose_messages(command, target, part.body, limit, tags)
        whole = None
        if limits is not None:
            whole = compose_multiline(command, target, part.body, limit, limits=limits, reference=reference, tags=tags)
    except ValueError as error:
        raise Rejected(f"{target!r} is not a room or nick") from error
    session.typing_state.mark_stopped(folded)  # who sees a message knows that we are not writing any more
    if is_direct_chat(part.to.room):
        direct = DirectDelivery(
            part.to.room,
            lambda nick, text: split_body(text, session.max_body_bytes(nick)),
            lambda nick, text, first: add_tags(format_line(command, nick, trailing=text), tags if first else {}),
        )
        return await session.outgoing.send(split_body(part.body, limit), folded, going, direct=direct)
    if whole is not None:
        try:
            return await session.outgoing.send(whole.lines, folded, going, whole=whole.multiline_text)
        except Rejected as rejected:
            if "MULTILINE" not in rejected.reason:
                raise
            # Surely not taken, and that it goes is written down already: say it line by line.
            going = no_before_send
    return await session.outgoing.send(single.lines, folded, going)


def break_mass_mentions(session: IrcSession, target: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The same lines, with the nicks of people who are there parted if there are many of them.

    They may be longer than what fits one message.
    """
    here = session.users.nicks_in(target, session.isupport)
    return tuple(break_nicks("\n".join(lines), here, session.isupport.fold).split("\n")) if here else lines


def send_typing(session: IrcSession, at: Address, now_s: float, *, active: bool) -> None:
    """Show that we are writing, or have stopped, if that is news and the pace leaves room for it."""
    room = at.room
    target, state = session.resolve_target(room) if is_direct_chat(room) else (message_target(room, at.thread), "known")
    folded = session.isupport.fold(target)
    if state == "other" or "message-tags" not in session.registration.caps or not session.isupport.relays_tag("typing"):
        return
    try:
        raw = add_tags(format_line("TAGMSG", target), {"+typing": "active" if active else "done"})
    except ValueError:  # not a target
        return
    if session.typing_state.should_send(folded, now_s, active=active) and session.outgoing.write_if_idle(raw):
        session.typing_state.mark_sent(folded, now_s, active=active)
