"""What the API looks at, and what it hands on. Wired once."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.clock import Clock
from gateway.events import Address, ChannelName, ConversationId
from gateway.ops.onlookers import TurnTracker
from gateway.ops.stats import GatewayStats
from gateway.orders import ControlRequest, ControlResponse, DmnStatus
from gateway.records import Seq
from gateway.redaction import Redact
from gateway.store import Store
from gateway.titles import PlaceTitles

if TYPE_CHECKING:
    from agent.cache.ask import PlannedRequest


OrderHandler = Callable[[ControlRequest], Awaitable[ControlResponse]]
LastRequestLookup = Callable[[ConversationId], "PlannedRequest | None"]
"""The last request of a conversation. None: there was none since the start, or it is not kept any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """A running gateway, as whoever looks on sees it."""

    store: Store
    clock: Clock
    stats: GatewayStats
    version: str
    turn_tracker: TurnTracker
    redact: Redact
    list_minds: Callable[[], Sequence[DmnStatus]]
    list_platforms: Callable[[], Mapping[ChannelName, str]]
    """What each channel is called."""
    describe_model: Callable[[], str]
    find_agent: Callable[[Address], str]
    """Whose conversation it is. Empty: nobody's."""
    find_last_request: LastRequestLookup
    titles: PlaceTitles
    carry_out_order: OrderHandler
    say_as_operator: Callable[[str], Awaitable[Seq]]
    """Says something as the operator; where it then stands in the log. Waits until that is durable."""
