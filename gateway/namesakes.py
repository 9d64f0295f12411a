"""Who of those that speak may be taken for somebody else, by their names."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.events import ConversationId, Message, MessageId, Sender
from gateway.limits.recent import LruDict
from gateway.records import MESSAGE_KINDS, Seq
from gateway.safety.names import NameWarning, check_name
from gateway.standing import ADMIN_ROLES, AccessPolicy, role_of
from gateway.store import StoreReader

COMPARED_MESSAGES: Final = 50
"""Messages before these, whose senders' names are compared."""
MAX_CACHED_ROOMS: Final = 500
"""Whose newest names are kept: reading them costs more than comparing them."""


class _RecentSenders(NamedTuple):
    before: Seq
    """These spoke in front of this position."""
    senders: tuple[Sender, ...]
    """Of the newest messages there, oldest first."""


class ImpersonationCheck:
    """Of all rooms."""

    def __init__(self, store: StoreReader, policy: AccessPolicy) -> None:
        self._store = store
        self._policy = policy
        self._cache = LruDict[ConversationId, _RecentSenders](MAX_CACHED_ROOMS)

    async def __call__(self, said: Sequence[tuple[Seq, Message]]) -> dict[MessageId, NameWarning]:
        """What is to be known of these names in rooms, by the message. Oldest first, all of one place.

        Of owners and admins nothing: the role stands beside the name already.
        """
        said = [(seq, message) for seq, message in said if message.kind != "direct"]
        if not said:
            return {}
        before = await self._load_senders(said[0][1].at.conversation, said[0][0])
        others = tuple(dict.fromkeys([*before, *(message.sender for _, message in said)]))
        found = dict[MessageId, NameWarning]()
        for _, message in said:
            known = role_of(self._policy, message.at, message.sender) in ADMIN_ROLES
            if not known and (doubted := check_name(message.sender, others)):
                found[message.id] = doubted
        return found

    async def _load_senders(self, place: ConversationId, before: Seq) -> tuple[Sender, ...]:
        """Who said the newest messages there in front of this one. The log grows at its end: only that is read anew."""
        kept = self._cache.get(place)
        known = kept if kept is not None and kept.before <= before else _RecentSenders(Seq(0), ())
        more = await self._store.newest_entries(
            COMPARED_MESSAGES, after=max(0, known.before - 1), before=before, kinds=MESSAGE_KINDS, conversation=place
        )
        spoke = [one.fact.sender for one in more if isinstance(one.fact, Message)]
        senders = (*known.senders, *spoke)[-COMPARED_MESSAGES:]
        self._cache.put(place, _RecentSenders(before, senders))
        return senders
