"""Checks of the channels of our own platforms. The probes are in `channels/<platform>/check.py`."""

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.config.check_registry import CheckContext, channels_of, check
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.findings import Finding
from gateway.core.net_probe import probe_direct
from gateway.store import Store, StoreError, StoreLocation, store_location

_NICK_SUFFIX: Final = "-dr"
"""Suffix of our nick while the gateway may be using the nick itself."""
_NICK_CHARS: Final = 6
"""Characters of the nick that are kept, so that nick and suffix fit every server (9 characters, RFC
1459, 1.2)."""


@check("channel", each=channels_of("irc"), online=True)
async def check_irc(context: CheckContext, name: str) -> Sequence[Finding]:
    """Check an account on IRC by a session of its own."""
    from channels.irc.check import probe_irc  # noqa: PLC0415 - heavy: only where IRC is used

    config = cast("IrcConfig", context.settings.channels[name])
    if context.gateway_state.is_alive:  # which tells of its rooms by itself
        nick = f"{config.nick[:_NICK_CHARS]}{_NICK_SUFFIX}"
        return await probe_irc(config.model_copy(update={"nick": nick, "rooms": ()}), where=name)
    known = await _find_known_rooms(name, config.rooms, store_location(context.settings.store))
    return await probe_irc(config, where=name, known=known)


@check("channel", each=channels_of("telegram"), online=True)
async def check_telegram(context: CheckContext, name: str) -> Sequence[Finding]:
    """Check a bot on Telegram, without receiving its updates."""
    from channels.telegram.check import probe_telegram  # noqa: PLC0415 - heavy: only where it is used

    config = cast("TelegramConfig", context.settings.channels[name])
    return (await probe_telegram(config, where=name)).findings


@check("channel", each=channels_of("discord"), online=True)
async def check_discord(context: CheckContext, name: str) -> Sequence[Finding]:
    """Check a bot on Discord, without a session."""
    from channels.discord.check import probe_discord  # noqa: PLC0415 - heavy: only where it is used

    config = cast("DiscordConfig", context.settings.channels[name])
    probed, reached = await asyncio.gather(
        probe_discord(config, where=name),
        probe_direct(config.gateway_url, where=f"channels.{name}.gateway_url", proxy=config.proxy),
    )
    return [*probed.findings, *reached]


async def _find_known_rooms(name: str, rooms: Sequence[str], path: StoreLocation) -> set[str]:
    """Return the rooms with entries in the log: the gateway was in them."""
    places = {
        room: Address(channel=ChannelName(name), room=RoomId(room)).conversation for room in rooms
    }
    try:
        async with await Store.open_readonly(path, "visitor") as reader:
            return {
                room
                for room, at in places.items()
                if await reader.entry_rows(conversation=at, limit=1)
            }
    except (StoreError, OSError):  # the store's own check reports the reason
        return set()
