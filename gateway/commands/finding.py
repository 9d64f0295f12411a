"""Which room somebody means. Pure."""

from collections.abc import Collection, Sequence

from gateway.events import Address, ChannelName, RoomId
from gateway.tools.consent import PLACE_CHARS, code


class NoRoom(Exception):
    """Nothing is called so; in words, for people."""


def find(written: str, here: ChannelName, channels: Collection[ChannelName], known: Sequence[Address]) -> Address:
    """The place that is written as `channel/room`, as `channel/room/thread`, or as a room of `here`. Raises `NoRoom`.

    A room that is `known` is meant in any case of its letters, if that leaves one.
    """
    wanted = written.strip().strip("`")
    try:
        at = _read(wanted, here, channels)
    except ValueError:
        raise NoRoom(f"{code(written, PLACE_CHARS)} is no room: write it as `rooms` lists them.") from None
    if at.channel not in channels:
        raise NoRoom(f"I have no channel {code(at.channel)}.")
    if at in known:
        return at
    alike = [one for one in known if _folded(one) == _folded(at)]
    return alike[0] if len(alike) == 1 else at


def _read(wanted: str, here: ChannelName, channels: Collection[ChannelName]) -> Address:
    channel = wanted.partition("/")[0]
    if channel in channels:
        return Address.parse(wanted)
    if wanted.count("/") in (1, 2) and not wanted.startswith(("#", "&", "+", "!")):
        return Address.parse(wanted)  # of a channel that there is not, which is told
    return Address(channel=here, room=RoomId(wanted))


def _folded(at: Address) -> str:
    return at.conversation.casefold()
