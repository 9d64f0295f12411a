"""What the fake model APIs remember of requests."""

import asyncio
from dataclasses import dataclass, field

from tests.servers.messages_cache import Ticket
from tests.servers.model_api_events import Json


@dataclass(kw_only=True)
class Seen:
    """One request."""

    at_s: float
    path: str
    headers: dict[str, str]
    body: Json
    hung_up: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the answer is out or the client is gone."""
    message: Json | None = None
    """The whole message that was answered, before faults. Messages API only."""
    ticket: Ticket | None = None
    """What the cache made of it."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A request that was refused because it broke the API's rules."""

    status: int
    complaint: str
    path: str
    body: Json
