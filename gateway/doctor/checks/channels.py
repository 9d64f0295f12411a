"""Asks each platform about each channel, as its probe does."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gateway.doctor.base import DoctorCheck, DoctorContext
from gateway.doctor.checks.store import open_reader
from gateway.events import Address, ChannelName, RoomId
from gateway.probes.base import Finding
from gateway.settings import ChannelConfig
from gateway.store import StoreError

_NICK_SUFFIX: Final = "-dr"
"""Behind our nick, while the gateway may have that."""
_NICK_CHARS: Final = 6
"""So much of the nick leaves room for that within what every server takes (9, RFC 1459, 1.2)."""


def channel_checks(subject: DoctorContext) -> list[tuple[str, DoctorCheck]]:
    """One for each channel that is somewhere else."""
    found: list[tuple[str, DoctorCheck]] = []
    for name, channel in subject.settings.channels.items():
        if channel.platform != "console":
            found.append((name, partial(_check_channel, name, channel)))
    return found


async def _find_unseen_rooms(name: str, rooms: Sequence[str], store: Path) -> tuple[str, ...]:
    """Rooms that the log has nothing of. Where it was before there is one, though it may hide from who is not in it."""
    places = {room: Address(channel=ChannelName(name), room=RoomId(room)).conversation for room in rooms}
    try:
        async with await open_reader(store, alive=False) as reader:
            known = {room for room, at in places.items() if await reader.entry_rows(conversation=at, limit=1)}
    except (StoreError, sqlite3.Error, OSError):  # the store's own check says why
        known = set()
    return tuple(room for room in rooms if room not in known)


async def _check_channel(name: str, config: ChannelConfig, subject: DoctorContext) -> Sequence[Finding]:
    alive = subject.gateway_state.is_alive
    match config.platform:
        case "irc":
            from gateway.probes.irc import probe_irc  # noqa: PLC0415 - heavy: only where IRC is used

            new = () if alive else await _find_unseen_rooms(name, config.rooms, subject.settings.store.path)
            nick = f"{config.nick[:_NICK_CHARS]}{_NICK_SUFFIX}" if alive else config.nick
            config = config.model_copy(update={"nick": nick, "rooms": new})
            return (await probe_irc(config, where=name)).findings
        case "telegram":
            from gateway.probes.telegram import probe_telegram  # noqa: PLC0415 - heavy: only where it is used

            return (await probe_telegram(config, where=name, listen=not alive)).findings
        case "discord":
            from gateway.probes.discord import probe_discord  # noqa: PLC0415 - the same

            return (await probe_discord(config, where=name)).findings
        case "console":
            return []
