"""What all agents of a gateway have in common."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass

from gateway import access
from gateway.acting import Rooms
from gateway.bindings import Bindings
from gateway.cards import Cards
from gateway.clock import Clock
from gateway.events import Account, ChannelName, ConversationId
from gateway.life import Life
from gateway.media import Media
from gateway.ops.llm_stats import Compacted
from gateway.preview import Signs
from gateway.settings import Settings
from gateway.store import OutboxPost, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Wired once."""

    settings: Settings
    store: Store
    clock: Clock
    bindings: Bindings
    who: access.Policy
    cards: Cards
    media: Media
    signs: Signs
    doors: Rooms
    channels: Collection[ChannelName]
    life: Life
    post: Callable[[OutboxPost], None]
    """Called with every reply, after it is durable."""
    answered: Callable[[str, Account], None]
    """Called with the agent and each model request that was answered."""
    compacted: Callable[[str, Compacted, float | None], None]
    """Called with the agent and what became of each summary that was to be made: `LlmStats.compacted`."""
    waits: Callable[[ConversationId], bool]
    """Whether something there is noticed soon."""
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    """Starts a task whose failure stops the gateway."""
