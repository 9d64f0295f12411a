"""Checks of channels: each platform's own probe, in `channels/<platform>/check.py`."""

import asyncio
from collections.abc import Sequence
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.config.models import Settings
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.findings import Finding
from gateway.core.net_probe import probe_direct
from gateway.store import Store, StoreError, StoreLocation, store_location
from gateway.stream.supervisor import import_adapter

_NICK_SUFFIX: Final = "-dr"
"""Suffix of our nick while the gateway may be using the nick itself."""
_NICK_CHARS: Final = 6
"""Characters of the nick that are kept, so that nick and suffix fit every server (9 characters, RFC
1459, 1.2)."""


def _list_channels(settings: Settings) -> Sequence[str]:
    return list(settings.channels)


@check("libraries of", each=_list_channels, timed=False, online=True)
def check_library(context: CheckContext, name: str) -> Sequence[Finding]:
    """Import the adapter: that takes up to a second, which does not count for the check of its
    channel.
    """
    import_adapter(context.settings.channels[name])
    return []


@check("channel", each=_list_channels, online=True)
async def check_channel(context: CheckContext, name: str) -> Sequence[Finding]:
    """Check one channel without its own session."""
    config, alive = context.settings.channels[name], context.gateway_state.is_alive
    match config.platform:
        case "irc":
            from channels.irc.check import probe_irc  # noqa: PLC0415 - heavy: only where IRC is used

            new = (
                ()
                if alive
                else await _find_unseen_rooms(
                    name, config.rooms, store_location(context.settings.store)
                )
            )
            nick = f"{config.nick[:_NICK_CHARS]}{_NICK_SUFFIX}" if alive else config.nick
            return await probe_irc(
                config.model_copy(update={"nick": nick, "rooms": new}), where=name
            )
        case "telegram":
            from channels.telegram.check import probe_telegram  # noqa: PLC0415 - heavy: only where it is used

            return (await probe_telegram(config, where=name)).findings
        case "discord":
            from channels.discord.check import probe_discord  # noqa: PLC0415 - heavy: only where it is used

            probed, reached = await asyncio.gather(
                probe_discord(config, where=name),
                probe_direct(
                    config.gateway_url, where=f"channels.{name}.gateway_url", proxy=config.proxy
                ),
            )
            return [*probed.findings, *reached]
        case "console":
            return []


async def _find_unseen_rooms(
    name: str, rooms: Sequence[str], path: StoreLocation
) -> tuple[str, ...]:
    """Return the rooms without entries in the log.

    A room that the gateway was in exists, even if it is hidden from those outside.
    """
    places = {
        room: Address(channel=ChannelName(name), room=RoomId(room)).conversation for room in rooms
    }
    try:
        async with await Store.open_readonly(path, "visitor") as reader:
            known = {
                room
                for room, at in places.items()
                if await reader.entry_rows(conversation=at, limit=1)
            }
    except (StoreError, OSError):  # the store's own check reports the reason
        known = set()
    return tuple(room for room in rooms if room not in known)
