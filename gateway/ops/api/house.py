"""What the API looks at, and what it hands on. Wired once."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.clock import Clock
from gateway.events import Address, ChannelName, ConversationId
from gateway.ops.onlookers import Onlookers
from gateway.ops.stats import Stats
from gateway.orders import Answer, MindSeen, Order
from gateway.records import Seq
from gateway.redaction import Redact
from gateway.store import Store
from gateway.titles import Titles

if TYPE_CHECKING:
    from agent.cache.ask import Ask

Ordered = Callable[[Order], Awaitable[Answer]]
Prompted = Callable[[ConversationId], "Ask | None"]
"""The last request of a conversation. None: there was none since the start, or it is not kept any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A running gateway, as whoever looks on sees it."""

    store: Store
    clock: Clock
    stats: Stats
    version: str
    turn_tracker: Onlookers
    redact: Redact
    list_minds: Callable[[], Sequence[MindSeen]]
    list_platforms: Callable[[], Mapping[ChannelName, str]]
    """What each channel is called."""
    describe_model: Callable[[], str]
    find_agent: Callable[[Address], str]
    """Whose conversation it is. Empty: nobody's."""
    find_last_request: Prompted
    titles: Titles
    carry_out_order: Ordered
    say_as_operator: Callable[[str], Awaitable[Seq]]
    """Says something as the operator; where it then stands in the log. Waits until that is durable."""
