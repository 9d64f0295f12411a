"""What we do in rooms besides speaking: reactions, taking back, topics, and looking who is there."""

from collections.abc import Mapping
from typing import Final

from channels.base import Rejected, RoomMembers
from channels.irc.compose import reply_tags
from channels.irc.identity import is_direct_chat
from channels.irc.parts import DirectDelivery
from channels.irc.senders import build_sender_id
from channels.irc.session import IrcSession
from channels.irc.wire import add_tags, format_line
from channels.text import single_line
from gateway.events import MessageId, RoomId, Sender

_MAX_ID_BYTES: Final = 500
_MAX_REACTION_BYTES: Final = 64
_NO_IDS: Final = "this server does not name messages, so there is no pointing at one"
_NOT_IN_ROOM: Final = ("(403)", "(442)")
"""How a reason ends where there is no such room, or we are not in it."""
_ACCOUNTS_NOTE: Final = "Who is logged in to services is known only as far as the server has told us."


async def send_reaction(
    session: IrcSession, target: str, chat: RoomId, message: MessageId, reaction: str, *, add: bool
) -> None:
    """Put it there or take it off: https://ircv3.net/specs/client-tags/react. Raises SendError."""
    name, said = "draft/react" if add else "draft/unreact", single_line(reaction, len(reaction))
    if (
        "message-tags" not in session.registration.caps
        or not session.isupport.relays_tag(name)
        or session.typing_state.is_unsupported
    ):
        raise Rejected("this server has no reactions")
    if not said or len(said.encode()) > _MAX_REACTION_BYTES:
        raise Rejected("a reaction is an emoji")
    about = reply_tags(message, session.registration.caps, session.isupport)
    if not about or len(message.encode("utf-8", "replace")) > _MAX_ID_BYTES:
        raise Rejected(_NO_IDS)
    await _send_command(session, "TAGMSG", target, about | {f"+{name}": said}, chat=chat)


async def redact_message(session: IrcSession, target: str, chat: RoomId, message: MessageId) -> None:
    """Take one of ours back: https://ircv3.net/specs/extensions/message-redaction. Raises SendError.

    Operators may take back what others said, so only what we know to be ours is asked for.
    """
    if "draft/message-redaction" not in session.registration.caps:
        raise Rejected("nothing can be taken back on this server")
    if message not in session.state.own_message_ids:
        raise Rejected("that is not known to be a message of ours: only what was said since the start is")
    try:
        await _send_command(session, "REDACT", target, {}, message, chat=chat)
    except Rejected as refused:
        if "UNKNOWN_MSGID" not in refused.reason:
            raise


async def send_topic(session: IrcSession, room: str, topic: str) -> None:
    """Set it. Raises SendError: servers cut what is too long, so that is refused here."""
    new, most = single_line(topic, len(topic)), session.max_body_bytes(room)
    if not session.isupport.is_room(room):
        raise Rejected("only rooms have topics")
    if session.isupport.topic_bytes:
        most = min(most, session.isupport.topic_bytes)
    if (size := len(new.encode())) > most:
        raise Rejected(f"a topic may have {most} bytes there, and this one has {size}")
    await _send_command(session, "TOPIC", room, {}, trailing=new)


def is_in_room(session: IrcSession, room: str) -> bool:
    """Whether we are there."""
    return session.isupport.fold(room) in session.membership.entered_rooms


async def part_room(session: IrcSession, room: str) -> None:
    """Leave, and stay out. Raises SendError: `Rejected` with the server's reason."""
    if not session.isupport.is_room(room):
        raise Rejected(f"{room!r} is not a room")
    session.membership.begin_leave(room, session.isupport)
    try:
        await _send_command(session, "PART", room, {})
    except Rejected as refused:
        if not refused.reason.endswith(_NOT_IN_ROOM):
            raise
    finally:
        session.membership.end_leave(room, session.isupport)


async def _send_command(
    session: IrcSession,
    command: str,
    target: str,
    tags: Mapping[str, str],
    *middles: str,
    trailing: str | None = None,
    chat: RoomId | None = None,
) -> None:
    """Say one line; return once the server has certainly taken it. Raises SendError."""
    if "," in target or target.startswith("$"):
        raise Rejected(f"{target} is not one room or person")
    try:
        raw = add_tags(format_line(command, target, *middles, trailing=trailing), tags)
    except ValueError as error:
        raise Rejected(f"that cannot be said to {target!r}") from error
    direct = None
    if chat is not None and is_direct_chat(chat):
        direct = DirectDelivery(
            chat,
            lambda _nick, text: (text,),
            lambda nick, _text, _first: add_tags(format_line(command, nick, *middles, trailing=trailing), tags),
        )
    await session.outgoing.send([raw], session.isupport.fold(target), alone=command, direct=direct)


def list_room_members(session: IrcSession, target: str, chat: str, most: int) -> RoomMembers:
    """Who is there, as the server keeps us told. `chat` names a direct one. Raises Rejected."""
    isupport, everybody = session.isupport, session.users
    if not isupport.is_room(target):
        account = chat.partition("!account:")[2] or everybody.account(target, isupport)
        return RoomMembers(members=(_member_sender(chat, target, account),), total=2)
    here = everybody.nicks_in(target, isupport)
    if here is None:
        raise Rejected(f"we are not in {target}")
    me = isupport.fold(session.nick)
    others = [(everybody.mask(nick), nick) for nick in sorted(here) if nick != me][: max(0, most)]
    found = tuple(
        _member_sender(mask, mask.partition("!")[0], everybody.account(nick, isupport)) for mask, nick in others
    )
    note = "" if all(one.account for one in found) else _ACCOUNTS_NOTE
    return RoomMembers(members=found, total=len(here), note=note)


def _member_sender(mask: str, nick: str, account: str | None) -> Sender:
    return Sender(id=build_sender_id(mask, account), name=nick, account=account, verified=bool(account))
