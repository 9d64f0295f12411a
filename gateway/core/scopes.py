"""Visibility of remembered texts: what may be shown in which place. Pure.

Each message, note and memory carries the scope of its origin, which names the people who can read
there: `public` (everybody), all of one space (a Discord server: `space:` and its conversation), or
one conversation. A turn sees what everybody may read, what all readers of its own place can read
too, and, in private with a verified owner, everything. Every text made of more than one
conversation is filtered by `Visibility.only_visible`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Final, NamedTuple, TypeVar

from gateway.core.events import Address, ChannelName, ConversationId, RoomId, SenderId
from gateway.core.frozen import frozen

T = TypeVar("T")

PUBLIC: Final = "public"
"""Scope of a place that everybody can read, as the platform or the operator declares."""
OWNER_SCOPE: Final = "owner:"
"""Scope of what nobody but a verified owner in private is shown: a text of many places, or of an
unknown one."""
_SPACE: Final = "space:"
"""Prefix of space scopes. No channel name has a colon, so no conversation begins like that."""
TRUSTED_ROLES: Final = ("owner", "admin")
"""Roles whose words may become the agent's general knowledge."""


class PlatformUser(NamedTuple):
    """Somebody with an id that their platform vouches for."""

    channel: ChannelName
    id: SenderId


@frozen
class Visibility:
    """Scopes that one turn may see."""

    scope: str
    """Scope of new messages in the turn's place, and of the notes it writes."""
    other_scopes: frozenset[str] = frozenset()
    """Other scopes that all readers of the place can read, too."""
    is_private: bool = False
    """True in a direct chat, and in a room that the operator declares private."""
    sees_everything: bool = False
    """True in private with a verified owner."""
    alone_with: PlatformUser | None = None
    """Who is alone with the agent here and may be shown what they are a member of. None: nobody."""
    asked: frozenset[str] = frozenset()
    """Scopes about which the platform of `alone_with` was asked
    (`PrivacyCache.with_memberships`)."""
    since: Mapping[str, int] = field(default_factory=dict)
    """Scope -> log position of the first entry that may be shown of it, where members cannot read
    older ones."""

    def can_see(self, scope: str, seq: int | None = None) -> bool:
        """Return whether a text of that scope may be shown here. `seq`: its log position; None: it
        has none.
        """
        if self.sees_everything or scope in (PUBLIC, self.scope):
            return True
        return scope in self.other_scopes and (seq is None or seq >= self.since.get(scope, 0))

    def can_read(self, readers: Iterable[str]) -> bool:
        """Return whether a text with these readers (`Label.readers`) may be shown here."""
        return all(self.can_see(scope) for scope in readers)

    def only_visible(self, items: Iterable[T], scope: Callable[[T], str]) -> list[T]:
        """Return the items that may be shown here, in their order."""
        return [item for item in items if self.can_see(scope(item))]


EVERYBODY: Final = Visibility(scope=PUBLIC)
"""Everybody: those who see a public place, or what is sent to a server that is not the
operator's."""


def space_scope(channel: ChannelName, space: RoomId) -> str:
    """Return the scope of texts that everybody in that space can read."""
    return _SPACE + Address(channel=channel, room=space).conversation


def parse_space_scope(scope: str) -> Address | None:
    """Return the channel of a space's scope, with the space as its room. None: it is no such
    scope.
    """
    name = scope.removeprefix(_SPACE)
    return None if name == scope or name.startswith("/") else Address.parse(ConversationId(name))


def group_scope(name: str) -> str:
    """Return the scope of texts of the rooms that the operator put into that group. No channel is
    called like that.
    """
    return f"{_SPACE}/{name}"


def is_shared_scope(scope: str) -> bool:
    """Return whether the scope covers more than one conversation."""
    return scope == PUBLIC or scope.startswith(_SPACE)


def scope_of_new_note(conversation: ConversationId, scope: str, *, shared: bool) -> str:
    """Return the scope of a new note. `scope`: of the place where it is written.

    `shared`: it may be shown wherever that scope is; otherwise a note keeps to its conversation.
    """
    return scope if shared or not is_shared_scope(scope) else conversation
