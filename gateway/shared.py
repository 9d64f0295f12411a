"""What all agents of a gateway have in common."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field

from gateway import access
from gateway.acting import Rooms
from gateway.bindings import Bindings
from gateway.cards import Cards
from gateway.clock import Clock
from gateway.events import Account, ChannelName, ConversationId
from gateway.life import Life
from gateway.limits.limits import Limits
from gateway.live import Live
from gateway.media import Media
from gateway.ops.llm_stats import Compacted
from gateway.ops.onlookers import Onlookers
from gateway.preview import Signs
from gateway.redaction import Redact, Redactor
from gateway.store import OutboxPost, Store
from gateway.tooling import Tooling


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Wired once."""

    live: Live
    store: Store
    clock: Clock
    bindings: Bindings
    access_policy: access.Policy
    channel_cards: Cards
    media: Media
    previews: Signs
    room_locks: Rooms
    channels: Collection[ChannelName]
    background_services: Life
    tool_registry: Tooling
    post: Callable[[OutboxPost], None]
    """Called with every reply, after it is durable."""
    turn_tracker: Onlookers
    on_answered: Callable[[str, Account], None]
    """Called with the agent and each model request that was answered."""
    on_compacted: Callable[[str, Compacted, float | None], None]
    """Called with the agent and what became of each summary that was to be made: `LlmStats.compacted`."""
    has_waiting: Callable[[ConversationId], bool]
    """Whether something there is noticed soon."""
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    """Starts a task whose failure stops the gateway."""
    limits: Limits | None = None
    """What people may cause. None: there are no budgets."""
    redact: Redact = field(default_factory=Redactor)
    """Given all that a model reads and says."""
