"""What all agents of a gateway have in common."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field

from gateway.acting import ConversationLocks
from gateway.bindings import Bindings
from gateway.cards import ChannelCards
from gateway.clock import Clock
from gateway.events import ChannelName, ConversationId, RequestUsage
from gateway.life import BackgroundServices
from gateway.limits.limits import UsageLimiter
from gateway.live import LiveSettings
from gateway.media import MediaStore
from gateway.ops.llm_stats import CompactionOutcome
from gateway.ops.onlookers import TurnTracker
from gateway.preview import TurnPreviews
from gateway.redaction import Redact, Redactor
from gateway.standing import AccessPolicy
from gateway.store import OutboxPost, Store
from gateway.tooling import ToolRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServices:
    """Wired once."""

    live: LiveSettings
    store: Store
    clock: Clock
    bindings: Bindings
    access_policy: AccessPolicy
    channel_cards: ChannelCards
    media: MediaStore
    previews: TurnPreviews
    room_locks: ConversationLocks
    channels: Collection[ChannelName]
    background_services: BackgroundServices
    tool_registry: ToolRegistry
    post: Callable[[OutboxPost], None]
    """Called with every reply, after it is durable."""
    turn_tracker: TurnTracker
    on_answered: Callable[[str, RequestUsage], None]
    """Called with the agent and each model request that was answered."""
    on_compacted: Callable[[str, CompactionOutcome, float | None], None]
    """Called with the agent and what became of each summary that was to be made: `LlmStats.compacted`."""
    has_waiting: Callable[[ConversationId], bool]
    """Whether something there is noticed soon."""
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    """Starts a task whose failure stops the gateway."""
    limits: UsageLimiter | None = None
    """What people may cause. None: there are no budgets."""
    redact: Redact = field(default_factory=Redactor)
    """Given all that a model reads and says."""
