"""What people and the direct chats with them are called. Pure.

The services' account is somebody's id where there is one, else the whole mask: a nick is anybody's.
"""

from typing import Final

from channels.irc.isupport import Isupport
from channels.irc.people import IrcUsers
from channels.irc.wire import IrcLine
from gateway.events import RoomId, Sender, SenderId

_BOT_TAGS: Final = frozenset({"bot", "draft/bot", "inspircd.org/bot"})
"""https://ircv3.net/specs/extensions/bot-mode, and as it was called before: InspIRCd below 3.13 has only the last."""
_RELAY_TAGS: Final = frozenset({"draft/relaymsg", "relaymsg"})
"""Tags of what a bridge says in the name of somebody elsewhere: https://ircv3.net/specs/extensions/relaymsg."""


def parse_sender(
    line: IrcLine, room: str | None, people: IrcUsers | None, isupport: Isupport, *, account_tag: bool
) -> Sender:
    """Who did what a line tells.

    `room`: where, if that is a room. `people`: who is who at that time; None: that is not known.
    `account_tag`: the server agreed to tag messages with their account, so no tag means no account.
    """
    if tag := next((tag for tag in _RELAY_TAGS if tag in line.tags), None):
        # The server vouches for the bridge at most, and nobody for the nick.
        said = SenderId(f"relay:{line.tags[tag]}:{line.source.nick}")
        return Sender(id=said, name=line.source.nick, is_bot=not _BOT_TAGS.isdisjoint(line.tags))
    known = people.account(line.source.nick, isupport) if people else None
    tagged = line.tags.get("account")
    account = (None if tagged in {"*", "0"} else tagged) if account_tag else known
    return Sender(
        id=build_sender_id(line.source.mask, account),
        name=line.source.nick,
        account=account or None,
        is_bot=not _BOT_TAGS.isdisjoint(line.tags),
        verified=bool(account),
        ranks=people.ranks_of(room, line.source.nick, isupport) if room and people else (),
    )


def build_sender_id(mask: str, account: str | None) -> SenderId:
    """Who is behind a nick."""
    return SenderId(f"account:{account}" if account else f"mask:{mask}")


def direct_chat(sender: Sender, mask: str | None = None) -> RoomId:
    """The direct chat with somebody who has this nick as their name; `mask` is needed only where their id is another.

    With who is behind the nick in it, a stranger who takes the nick later is another conversation.
    """
    mask = sender.id.removeprefix("mask:") if mask is None else mask
    return RoomId(f"{sender.name}!account:{sender.account}" if sender.account else mask)


def message_target(room: str, thread: str | None = None) -> str:
    """A direct chat is named `nick!user@host` (or `nick!account:name`); IRC wants the nick. A room's name is itself.

    `thread`: the signs of rank in front of a room's name, where only people of such a rank are meant.
    """
    return f"{thread}{room}" if thread else room.partition("!")[0] or room
