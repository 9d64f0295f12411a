"""What waits to be read or emitted."""

from dataclasses import dataclass
from typing import TypeAlias

from channels import inbox
from gateway.events import Notification


@dataclass(frozen=True, slots=True)
class RawGatewayEvent:
    """One event of the gateway, as it came."""

    shard: int
    event: str
    data: object


DiscordInbox: TypeAlias = inbox.BackpressureBuffer[RawGatewayEvent | Notification]
