"""Looks at the servers' names and certificates. What cannot be reached its own probe says, where there is one."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from agent.models.config import LocalConfig, ScriptedConfig
from channels.base import Denied
from channels.irc.config import Tls
from channels.irc.tls import context
from gateway.doctor.base import Subject
from gateway.doctor.rules.network import of_certificate
from gateway.probes.base import Finding
from gateway.probes.net import probe_url, proxied
from gateway.settings import Settings

ANSWER_S: Final = 8.0
_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}


@dataclass(frozen=True, slots=True)
class Server:
    """One that the gateway speaks to."""

    url: str
    where: str
    probed: bool
    """Another check says what is so if it cannot be reached."""


def servers(settings: Settings) -> list[Server]:
    """All that have a URL, each host and port once; those that nothing else looks at first."""
    found: list[Server] = []
    for name, server in settings.tools.mcp.items():
        if server.url:
            found.append(Server(server.url, f"tools.mcp.{name}", probed=True))
    if settings.tools.web.search.provider != "none" and settings.tools.web.search.base_url:
        found.append(Server(settings.tools.web.search.base_url, "tools.web.search.base_url", probed=False))
    for name, channel in settings.channels.items():
        if channel.platform == "discord":
            found.append(Server(channel.gateway_url, f"channels.{name}.gateway_url", probed=False))
            found.append(Server(channel.api_url, f"channels.{name}", probed=True))
        elif channel.platform == "telegram":
            found.append(Server(channel.base_url, f"channels.{name}", probed=True))
    for name, provider in settings.llm.providers.items():
        if not isinstance(provider, LocalConfig | ScriptedConfig):
            found.append(Server(provider.base_url, f"llm.providers.{name}", probed=True))
    return found


async def check_servers(subject: Subject) -> Sequence[Finding]:
    """Certificates of all, and whether those can be reached that nothing else looks at."""
    asked = [_looked(one) for one in servers(subject.settings)]
    for name, channel in subject.settings.channels.items():
        if channel.platform == "irc":
            asked.append(_irc(name, channel.host, channel.port, channel.tls))
    return [finding for found in await asyncio.gather(*asked) for finding in found]


async def _looked(server: Server) -> list[Finding]:
    parts = urlsplit(server.url)
    try:
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return []  # the configuration's own check says so
    if parts.scheme in ("https", "wss") and not proxied(parts.scheme, host):
        left_s = await _left(host, port, ssl.create_default_context())
        if left_s is not None:
            return [of_certificate(f"{host}:{port}", left_s, where=server.where)]
    if server.probed or proxied(parts.scheme, host):
        return []
    return await probe_url(server.url, where=server.where)


async def _irc(name: str, host: str, port: int, said: bool | Tls) -> list[Finding]:
    try:
        tls = context(said)
    except Denied:  # its probe says so
        return []
    if tls is None or tls.verify_mode is ssl.CERT_NONE:
        return []
    left_s = await _left(host, port, tls)
    return [] if left_s is None else [of_certificate(f"{host}:{port}", left_s, where=f"channels.{name}")]


async def _left(host: str, port: int, context: ssl.SSLContext) -> float | None:
    """For how long its certificate is good, in seconds. None: it is not, or there is no server."""
    try:
        async with asyncio.timeout(ANSWER_S):
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
