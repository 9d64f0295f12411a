"""Checks of platforms, MCP servers and certificates.

Each channel is checked by the probe of its platform. Each MCP server is started once and ended, unless the gateway
runs: two instances could disturb each other. A server that cannot be reached is reported by its own probe, where there
is one.
"""

import asyncio
import contextlib
import importlib.util
import shutil
import sqlite3
import ssl
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agent.models.config import LocalConfig, ScriptedConfig
from channels.aio import cancel_and_wait
from channels.base import Denied
from channels.irc.config import TlsConfig
from channels.irc.tls import create_ssl_context
from gateway.cli.doctor.base import DoctorCheck, DoctorContext
from gateway.cli.doctor.store import open_reader
from gateway.cli.probes.base import DEFAULT_PORTS, Finding, bad, ok, probe_url, uses_proxy, warning
from gateway.config.models import ChannelConfig, Settings
from gateway.config.tools import McpServerConfig
from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, RoomId
from gateway.store import StoreError

_NICK_SUFFIX: Final = "-dr"
"""Suffix of our nick while the gateway may be using the nick itself."""
_NICK_CHARS: Final = 6
"""Characters of the nick that are kept, so that nick and suffix fit every server (9 characters, RFC 1459, 1.2)."""


def channel_checks(context: DoctorContext) -> list[tuple[str, DoctorCheck]]:
    """Return one check for each channel with a platform."""
    found: list[tuple[str, DoctorCheck]] = []
    for name, channel in context.settings.channels.items():
        if channel.platform != "console":
            found.append((name, partial(_check_channel, name, channel)))
    return found


async def _find_unseen_rooms(name: str, rooms: Sequence[str], store: Path) -> tuple[str, ...]:
    """Return the rooms without entries in the log.

    A room that the gateway was in exists, even if it is hidden from those outside.
    """
    places = {room: Address(channel=ChannelName(name), room=RoomId(room)).conversation for room in rooms}
    try:
        async with await open_reader(store, alive=False) as reader:
            known = {room for room, at in places.items() if await reader.entry_rows(conversation=at, limit=1)}
    except (StoreError, sqlite3.Error, OSError):  # the store's own check reports the reason
        known = set()
    return tuple(room for room in rooms if room not in known)


async def _check_channel(name: str, config: ChannelConfig, context: DoctorContext) -> Sequence[Finding]:
    alive = context.gateway_state.is_alive
    match config.platform:
        case "irc":
            from gateway.cli.probes.irc import probe_irc  # noqa: PLC0415 - heavy: only where IRC is used

            new = () if alive else await _find_unseen_rooms(name, config.rooms, context.settings.store.path)
            nick = f"{config.nick[:_NICK_CHARS]}{_NICK_SUFFIX}" if alive else config.nick
            config = config.model_copy(update={"nick": nick, "rooms": new})
            return (await probe_irc(config, where=name)).findings
        case "telegram":
            from gateway.cli.probes.telegram import probe_telegram  # noqa: PLC0415 - heavy: only where it is used

            return (await probe_telegram(config, where=name, listen=not alive)).findings
        case "discord":
            from gateway.cli.probes.discord import probe_discord  # noqa: PLC0415 - heavy: only where it is used

            return (await probe_discord(config, where=name)).findings
        case "console":
            return []


MCP_START_TIMEOUT_S: Final = 8.0


def mcp_checks(context: DoctorContext) -> list[tuple[str, DoctorCheck]]:
    """Return one check for each MCP server."""
    return [
        (f"MCP server {name}", partial(_check_mcp_server, name, one))
        for name, one in context.settings.tools.mcp.items()
    ]


async def _check_mcp_server(name: str, config: McpServerConfig, context: DoctorContext) -> Sequence[Finding]:
    where = f"tools.mcp.{name}"
    if importlib.util.find_spec("mcp") is None:
        what = "the package mcp is not installed, so none of its tools are there"
        return [bad("mcp.library", what, "pip install 'reverie-gateway[mcp]'", where)]
    if config.command and shutil.which(config.command[0], path=context.environment.env.get("PATH")) is None:
        fix = "install it, or write its whole path (the gateway's PATH may be shorter than yours)"
        return [bad("mcp.program", f"there is no program {config.command[0]}", fix, where)]
    if context.gateway_state.is_alive:
        return [ok("mcp.server", "it was not tried: the gateway runs, and has it", where)]
    if context.offline and config.url:
        return [ok("mcp.server", "it was not tried: it is somewhere else", where)]
    from gateway.tools.mcp.client import START_TIMEOUT_S, McpServerClient  # noqa: PLC0415 - takes half a second

    server = McpServerClient(name, config, (name,), SystemClock(), chance=lambda: 1.0)
    running = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(MCP_START_TIMEOUT_S):
            await server.settled.wait()
    except TimeoutError:
        what = (
            f"it had not come up after {MCP_START_TIMEOUT_S:.0f} s; the gateway waits for {START_TIMEOUT_S:.0f} s, "
            "and tries again"
        )
        fix = "run its command by hand and see how long it takes: it may be fetched first (npx, uvx), so install it"
        return [warning("mcp.slow", what, fix, where)]
    finally:
        await cancel_and_wait(running)
    if server.state != "up":
        fix = "run its command by hand and see what it says, and look at its env, url and headers"
        return [bad("mcp.server", f"it does not come up: {server.reason or 'it ended'}", fix, where)]
    if not len(server.tools):
        fix = f"look at {where}.tools, which names those that are"
        return [warning("mcp.tools", "it comes up, and offers no tool that is taken", fix, where)]
    return [ok("mcp.server", f"it comes up, with {len(server.tools)} tools", where)]


EXPIRES_SOON_S: Final = 7 * 86_400.0
"""Seconds: certificates that are renewed automatically are renewed long before (Let's Encrypt: 30 days)."""


def judge_certificate(server: str, left_s: float, *, where: str) -> Finding:
    """Judge the remaining lifetime of a certificate. `left_s`: seconds until it expires."""
    days = left_s / 86_400
    if left_s < EXPIRES_SOON_S:
        return warning(
            "net.tls.soon",
            f"the certificate of {server} is good for {days:.1f} more days",
            "whoever runs the server should renew it now, and see why that did not happen by itself",
            where,
        )
    summary = f"{server} speaks TLS, and its certificate is good for {days:.0f} days"
    return ok("net.tls.ok", summary, where)


CONNECT_TIMEOUT_S: Final = 8.0


def list_servers(settings: Settings) -> Iterator[tuple[str, str, bool]]:
    """Yield URL and key of all servers, and whether another check reports when they cannot be reached."""
    for name, server in settings.tools.mcp.items():
        if server.url:
            yield server.url, f"tools.mcp.{name}", True
    if settings.tools.web.search.provider != "none" and settings.tools.web.search.base_url:
        yield settings.tools.web.search.base_url, "tools.web.search.base_url", False
    for name, channel in settings.channels.items():
        if channel.platform == "discord":
            yield channel.gateway_url, f"channels.{name}.gateway_url", False
            yield channel.api_url, f"channels.{name}", True
        elif channel.platform == "telegram":
            yield channel.base_url, f"channels.{name}", True
    for name, provider in settings.llm.providers.items():
        if not isinstance(provider, LocalConfig | ScriptedConfig):
            yield provider.base_url, f"llm.providers.{name}", True


async def check_servers(context: DoctorContext) -> Sequence[Finding]:
    """Check all certificates, and the reachability of servers without a check of their own."""
    checks = [_check_server(*one) for one in list_servers(context.settings)]
    for name, channel in context.settings.channels.items():
        if channel.platform == "irc":
            checks.append(_check_irc_certificate(name, channel.host, channel.port, channel.tls))
    return [finding for found in await asyncio.gather(*checks) for finding in found]


async def _check_server(url: str, where: str, probed: bool) -> list[Finding]:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return []  # the configuration's own check reports it
    if parts.scheme in ("https", "wss") and not uses_proxy(parts.scheme, host):
        left_s = await _read_certificate_lifetime(host, port, ssl.create_default_context())
        if left_s is not None:
            return [judge_certificate(f"{host}:{port}", left_s, where=where)]
    if probed or uses_proxy(parts.scheme, host):
        return []
    return await probe_url(url, where=where)


async def _check_irc_certificate(name: str, host: str, port: int, tls_config: bool | TlsConfig) -> list[Finding]:
    try:
        tls = create_ssl_context(tls_config)
    except Denied:  # its probe reports it
        return []
    if tls is None or tls.verify_mode is ssl.CERT_NONE:
        return []
    left_s = await _read_certificate_lifetime(host, port, tls)
    return [] if left_s is None else [judge_certificate(f"{host}:{port}", left_s, where=f"channels.{name}")]


async def _read_certificate_lifetime(host: str, port: int, context: ssl.SSLContext) -> float | None:
    """Return the seconds until the server's certificate expires. None: it is not valid, or no server answers."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, UnicodeError, ValueError):
        return None
    try:
        certificate = writer.get_extra_info("peercert") or {}
        until = certificate.get("notAfter")
        return None if until is None else ssl.cert_time_to_seconds(str(until)) - time.time()
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 0.5)
