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
from channels.irc.config import TlsConfig
from channels.irc.tls import create_ssl_context
from gateway.doctor.base import DoctorContext
from gateway.doctor.rules.network import judge_certificate
from gateway.probes.base import Finding
from gateway.probes.net import probe_url, uses_proxy
from gateway.settings import Settings

CONNECT_TIMEOUT_S: Final = 8.0
_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """One that the gateway speaks to."""

    url: str
    where: str
    probed: bool
    """Another check says what is so if it cannot be reached."""


def list_servers(settings: Settings) -> list[ServerEndpoint]:
    """All that have a URL, each host and port once; those that nothing else looks at first."""
    found: list[ServerEndpoint] = []
    for name, server in settings.tools.mcp.items():
        if server.url:
            found.append(ServerEndpoint(server.url, f"tools.mcp.{name}", probed=True))
    if settings.tools.web.search.provider != "none" and settings.tools.web.search.base_url:
        found.append(ServerEndpoint(settings.tools.web.search.base_url, "tools.web.search.base_url", probed=False))
    for name, channel in settings.channels.items():
        if channel.platform == "discord":
            found.append(ServerEndpoint(channel.gateway_url, f"channels.{name}.gateway_url", probed=False))
            found.append(ServerEndpoint(channel.api_url, f"channels.{name}", probed=True))
        elif channel.platform == "telegram":
            found.append(ServerEndpoint(channel.base_url, f"channels.{name}", probed=True))
    for name, provider in settings.llm.providers.items():
        if not isinstance(provider, LocalConfig | ScriptedConfig):
            found.append(ServerEndpoint(provider.base_url, f"llm.providers.{name}", probed=True))
    return found


async def check_servers(subject: DoctorContext) -> Sequence[Finding]:
    """Certificates of all, and whether those can be reached that nothing else looks at."""
    asked = [_check_server(one) for one in list_servers(subject.settings)]
    for name, channel in subject.settings.channels.items():
        if channel.platform == "irc":
            asked.append(_check_irc_certificate(name, channel.host, channel.port, channel.tls))
    return [finding for found in await asyncio.gather(*asked) for finding in found]


async def _check_server(server: ServerEndpoint) -> list[Finding]:
    parts = urlsplit(server.url)
    try:
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return []  # the configuration's own check says so
    if parts.scheme in ("https", "wss") and not uses_proxy(parts.scheme, host):
        left_s = await _read_certificate_lifetime(host, port, ssl.create_default_context())
        if left_s is not None:
            return [judge_certificate(f"{host}:{port}", left_s, where=server.where)]
    if server.probed or uses_proxy(parts.scheme, host):
        return []
    return await probe_url(server.url, where=server.where)


async def _check_irc_certificate(name: str, host: str, port: int, said: bool | TlsConfig) -> list[Finding]:
    try:
        tls = create_ssl_context(said)
    except Denied:  # its probe says so
        return []
    if tls is None or tls.verify_mode is ssl.CERT_NONE:
        return []
    left_s = await _read_certificate_lifetime(host, port, tls)
    return [] if left_s is None else [judge_certificate(f"{host}:{port}", left_s, where=f"channels.{name}")]


async def _read_certificate_lifetime(host: str, port: int, context: ssl.SSLContext) -> float | None:
    """For how long its certificate is good, in seconds. None: it is not, or there is no server."""
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
