"""Which room somebody means. Pure."""

from collections.abc import Collection, Sequence

from gateway.events import Address, ChannelName, RoomId
from gateway.titles import PlaceTitles
from gateway.tools.consent import PLACE_CHARS, inline_code


class RoomNotFound(Exception):
    """Nothing is called so; in words, for people."""


def resolve_room(
    written: str,
    here: ChannelName,
    channels: Collection[ChannelName],
    known: Sequence[Address],
    titles: PlaceTitles | None = None,
) -> Address:
    """The place that is written as `channel/room`, as `channel/room/thread`, or as a room of `here`.

    Raises `RoomNotFound`.

    A room that is `known` is meant in any case of its letters, or by its title, if that leaves one.
    """
    wanted = written.strip().strip("`")
    called = [] if titles is None else [at for at in titles.find_places(wanted, known) if at in known]
    if len(called) > 1:
        told = ", ".join(inline_code(at.conversation, PLACE_CHARS) for at in called)
        raise RoomNotFound(f"Several rooms are called {inline_code(written, PLACE_CHARS)}: {told}. Write which.")
    if called:
        return called[0]
    try:
        at = _parse_room(wanted, here, channels)
    except ValueError:
        raise RoomNotFound(f"{inline_code(written, PLACE_CHARS)} is no room: write it as `rooms` lists them.") from None
    if at.channel not in channels:
        raise RoomNotFound(f"I have no channel {inline_code(at.channel)}.")
    if at in known:
        return at
    alike = [one for one in known if _fold_address(one) == _fold_address(at)]
    return alike[0] if len(alike) == 1 else at


def _parse_room(wanted: str, here: ChannelName, channels: Collection[ChannelName]) -> Address:
    channel = wanted.partition("/")[0]
    if channel in channels:
        return Address.parse(wanted)
    if wanted.count("/") in (1, 2) and not wanted.startswith(("#", "&", "+", "!")):
        return Address.parse(wanted)  # of a channel that there is not, which is told
    return Address(channel=here, room=RoomId(wanted))


def _fold_address(at: Address) -> str:
    return at.conversation.casefold()
