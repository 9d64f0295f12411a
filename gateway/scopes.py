"""What may be told where: one mind, many doors. Pure.

What the agent was told, wrote down or remembers carries the scope that it came from: `public`, or one private place.
A turn sees what is public, what is of its own place, and, alone with a verified owner, everything. Every text that is
made of more than one conversation goes through `Sight.of`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.events import ConversationId

T = TypeVar("T")

PUBLIC: Final = "public"
"""Of rooms, and of the agent by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one turn may see."""

    scope: str
    """Where it is: `PUBLIC`, or its own private conversation. What it writes down has this scope."""
    everything: bool = False
    """It is alone with a verified owner."""

    def sees(self, scope: str) -> bool:
        """Whether something of that scope may be told here."""
        return self.everything or scope in (PUBLIC, self.scope)

    def of(self, found: Iterable[T], scope: Callable[[T], str]) -> list[T]:
        """Those that may be told here, in their order."""
        return [one for one in found if self.sees(scope(one))]


def scope_of(conversation: ConversationId, *, private: bool) -> str:
    """The scope of what is said there. `private`: nobody else listens, or the operator says so."""
    return conversation if private else PUBLIC
