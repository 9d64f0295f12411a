"""What the tools of all agents stand on."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from channels.base import Channel
from gateway import access
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.events import ChannelName
from gateway.life import Life
from gateway.live import Live
from gateway.media import Media
from gateway.outfiles import OutFiles
from gateway.redaction import Redact, Redactor
from gateway.store import OutboxPost, Store
from gateway.tools.dispatch import Used


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Wired once."""

    live: Live
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    life: Life
    access_policy: access.Policy
    bindings: Bindings
    media: Media
    outfiles: OutFiles
    post: Callable[[OutboxPost], None]
    command_prefixes: Mapping[ChannelName, str]
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    directory: Path | None = None
    """Of the configuration files. None: there are none."""
    redact: Redact = field(default_factory=Redactor)
    """Given all that tools bring."""
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    """Has owners told something: as `Owners.tell`."""
    on_tool_use: Used = lambda _turn, _tool: None
    """Told of each call, when it begins and when it has ended."""
