"""What may be told where: one mind, many doors. Pure.

What the agent was told, wrote down or remembers carries the scope that it came from, which names those who can read
there: `public` (everybody), all of one space (a Discord server: `space:` and its conversation), or one conversation. A
turn sees what everybody may read, what all who can read its own place can read too, and, alone with a verified owner,
everything. Every text that is made of more than one conversation goes through `Visibility.of`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.core.events import Address, ChannelName, ConversationId, RoomId

T = TypeVar("T")

PUBLIC: Final = "public"
"""Everybody may read it: the platform or the operator says so."""
_SPACE: Final = "space:"
"""No channel has a colon in its name, so no conversation begins like that."""
TRUSTED_ROLES: Final = ("owner", "admin")
"""Roles whose words may become what the agent knows everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What one turn may see."""

    scope: str
    """What is said in its place now has this scope, and so has what it writes down."""
    other_scopes: frozenset[str] = frozenset()
    """Other scopes that all who can read there can read, too."""
    is_private: bool = False
    """It is a direct chat, or a room that the operator calls private."""
    sees_everything: bool = False
    """It is alone with a verified owner."""

    def can_see(self, scope: str) -> bool:
        """Whether something of that scope may be told here."""
        return self.sees_everything or scope in (PUBLIC, self.scope) or scope in self.other_scopes

    def only_visible(self, found: Iterable[T], scope: Callable[[T], str]) -> list[T]:
        """Those that may be told here, in their order."""
        return [one for one in found if self.can_see(scope(one))]


def space_scope(channel: ChannelName, space: RoomId) -> str:
    """The scope of what everybody in that space can read."""
    return _SPACE + Address(channel=channel, room=space).conversation


def is_shared_scope(scope: str) -> bool:
    """Whether it is more than one conversation's."""
    return scope == PUBLIC or scope.startswith(_SPACE)


def is_trusted(role: str, *, foreign: bool) -> bool:
    """Whether a note may be known outside of where it was written down, and to dreams.

    `role` and `foreign`: as `gateway.core.facts.NoteWritten` has them.
    """
    return role in TRUSTED_ROLES and not foreign


def scope_of_new_note(conversation: ConversationId, scope: str, *, trusted: bool) -> str:
    """The scope of a note. `scope`: of the place where it is written down."""
    return scope if trusted or not is_shared_scope(scope) else conversation
