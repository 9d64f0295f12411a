"""What the tools of all agents stand on."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from channels.base import Channel
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.events import ChannelName
from gateway.life import BackgroundServices
from gateway.live import LiveSettings
from gateway.media import MediaStore
from gateway.outfiles import OutgoingFiles
from gateway.redaction import Redact, Redactor
from gateway.standing import AccessPolicy
from gateway.store import OutboxPost, Store
from gateway.tools.dispatch import ToolUseListener


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServices:
    """Wired once."""

    live: LiveSettings
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    life: BackgroundServices
    access_policy: AccessPolicy
    bindings: Bindings
    media: MediaStore
    outfiles: OutgoingFiles
    post: Callable[[OutboxPost], None]
    command_prefixes: Mapping[ChannelName, str]
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    directory: Path | None = None
    """Of the configuration files. None: there are none."""
    redact: Redact = field(default_factory=Redactor)
    """Given all that tools bring."""
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    """Has owners told something: as `Owners.tell`."""
    on_tool_use: ToolUseListener = lambda _turn, _tool: None
    """Told of each call, when it begins and when it has ended."""
