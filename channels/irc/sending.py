"""One part of a post to the server, in the best form that it takes; and that one is being written."""

from channels.base import Going, Part, Rejected, unrecorded
from channels.irc.compose import reply_tags, singly, together
from channels.irc.session import Session
from channels.irc.wire import line, tagged
from gateway.events import Receipt


async def deliver(session: Session, target: str, part: Part, going: Going) -> Receipt:
    """Return once the server has certainly taken it. Raises SendError."""
    command = "NOTICE" if part.style == "notice" else "PRIVMSG"
    if "," in target or target.startswith("$"):
        raise Rejected(f"{target} is not one room or person")
    limit, limits, folded = session.body_bytes(target), session.multiline, session.isupport.fold(target)
    tags, reference = reply_tags(part.reply_to, session.login.caps, session.isupport), session.reference()
    try:
        single = singly(command, target, part.body, limit, tags)
        whole = None
        if limits is not None:
            whole = together(command, target, part.body, limit, limits=limits, reference=reference, tags=tags)
    except ValueError as error:
        raise Rejected(f"{target!r} is not a room or nick") from error
    session.writing.said(folded)  # who sees a message knows that we are not writing any more
    if whole is not None:
        try:
            return await session.outgoing.send(whole.lines, folded, going, whole=whole.whole)
        except Rejected as rejected:
            if "MULTILINE" not in rejected.reason:
                raise
            # Surely not taken, and that it goes is written down already: say it line by line.
            going = unrecorded
    return await session.outgoing.send(single.lines, folded, going)


def show_typing(session: Session, target: str, now_s: float, *, active: bool) -> None:
    """Show that we are writing, or have stopped, if that is news and the pace leaves room for it."""
    folded = session.isupport.fold(target)
    if "message-tags" not in session.login.caps or not session.isupport.relays("typing"):
        return
    raw = tagged(line("TAGMSG", target), {"+typing": "active" if active else "done"})
    if session.writing.due(folded, now_s, active=active) and session.outgoing.aside(raw):
        session.writing.told(folded, now_s, active=active)
