"""What the operator lets people have. Pure."""

from dataclasses import dataclass
from typing import NamedTuple


class Rate(NamedTuple):
    """How often."""

    burst: int
    """At once. 0 with a pace: one."""
    per_minute: float
    """Then. 0, with a burst of 0: as often as anybody likes."""

    @property
    def is_limited(self) -> bool:
        """Whether it is a limit at all."""
        return self.burst > 0 or self.per_minute > 0

    def __str__(self) -> str:
        return f"{max(1, self.burst)} at once, then {self.per_minute:g} a minute"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Of what is said to an agent, and of what answers cost."""

    sender: Rate
    room: Rate
    agent: Rate
    sender_usd: float | None = None
    """A UTC day, of what people cause who are no admins. None: no limit, as in the next."""
    room_usd: float | None = None
    agent_usd: float | None = None
