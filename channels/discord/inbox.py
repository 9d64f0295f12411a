"""What waits to be read or emitted."""

from dataclasses import dataclass
from typing import TypeAlias

from channels import inbox
from gateway.events import Notification


@dataclass(frozen=True, slots=True)
class Raw:
    """One event of the gateway, as it came."""

    shard: int
    event: str
    data: object


Inbox: TypeAlias = inbox.Inbox[Raw | Notification]
