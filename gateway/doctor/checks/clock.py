"""Looks at this machine's clock, by those of the servers that are asked anyway, and by what the kernel says of it."""

import asyncio
import ctypes
import sys
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from agent.models.config import LocalConfig, ScriptedConfig
from gateway.doctor.base import DoctorContext
from gateway.doctor.rules.clock import KernelClock, judge_clock
from gateway.probes.base import Finding
from gateway.settings import Settings

ANSWER_TIMEOUT_S: Final = 5.0
MAX_CLOCK_SERVERS: Final = 6
"""Servers that are asked."""
_TIMEX_BYTES: Final = 256
"""`struct timex` has 208 on 64 bits (adjtimex(2))."""
_SYSTEMD: Final = "run/systemd/system"
"""There where systemd runs the machine (sd_booted(3))."""
_TIME_ERROR: Final = 5
"""TIME_ERROR: the clock is not synchronized."""


async def check_clock(subject: DoctorContext) -> Sequence[Finding]:
    """How far it is off."""
    ahead: dict[str, float] = {}
    if not subject.offline:
        asked = [_measure_skew(origin) for origin in list_origins(subject.settings)[:MAX_CLOCK_SERVERS]]
        ahead = dict(filter(None, await asyncio.gather(*asked)))
    return judge_clock(ahead, _read_kernel_clock(), keeps=(subject.environment.root / _SYSTEMD).is_dir())


def list_origins(settings: Settings) -> list[str]:
    """Scheme, host and port of every HTTP server that the configuration names, each once."""
    urls = [
        one.base_url for one in settings.llm.providers.values() if not isinstance(one, LocalConfig | ScriptedConfig)
    ]
    for channel in settings.channels.values():
        if channel.platform == "telegram":
            urls.append(channel.base_url)
        elif channel.platform == "discord":
            urls.append(channel.api_url)
    found = dict[str, None]()
    for url in urls:
        parts = urlsplit(url)
        if parts.hostname:
            found[f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"] = None
    return list(found)


async def _measure_skew(origin: str) -> tuple[str, float] | None:
    """Its host, and how far our clock is ahead of its. None: it does not say."""
    import httpx  # noqa: PLC0415 - only here

    try:
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as client:
            before = time.time()
            answer = await client.head(origin)
            ours = (before + time.time()) / 2
        theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, KeyError, ValueError, TypeError, OverflowError, RuntimeError):
        return None
    return urlsplit(origin).hostname or "", ours - theirs


def _read_kernel_clock() -> KernelClock:
    """What the system believes of its clock (adjtimex(2) with no modes only reads)."""
    if sys.platform != "linux":
        return "unknown"
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return "unknown"
    return "unknown" if state < 0 else "unsynchronized" if state == _TIME_ERROR else "synchronized"
