"""Who of those that speak may be taken for somebody else, by their names."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway import access
from gateway.events import ConversationId, Message, MessageId, Sender
from gateway.limits.recent import Recent
from gateway.records import MESSAGES, Seq
from gateway.safety.names import Doubt, doubt
from gateway.standing import ADMINS
from gateway.store import Reader

NEWEST_NAMES: Final = 50
"""Messages before these, whose senders' names are compared."""
ROOMS: Final = 500
"""Whose newest names are kept: reading them costs more than comparing them."""


class _Kept(NamedTuple):
    before: Seq
    """These spoke in front of this position."""
    senders: tuple[Sender, ...]
    """Of the newest messages there, oldest first."""


class Namesakes:
    """Of all rooms."""

    def __init__(self, store: Reader, policy: access.Policy) -> None:
        self._store = store
        self._policy = policy
        self._cache = Recent[ConversationId, _Kept](ROOMS)

    async def __call__(self, said: Sequence[tuple[Seq, Message]]) -> dict[MessageId, Doubt]:
        """What is to be known of these names in rooms, by the message. Oldest first, all of one place.

        Of owners and admins nothing: the role stands beside the name already.
        """
        said = [(seq, message) for seq, message in said if message.kind != "direct"]
        if not said:
            return {}
        before = await self._load_senders(said[0][1].at.conversation, said[0][0])
        others = tuple(dict.fromkeys([*before, *(message.sender for _, message in said)]))
        found = dict[MessageId, Doubt]()
        for _, message in said:
            known = access.role_of(self._policy, message.at, message.sender) in ADMINS
            if not known and (doubted := doubt(message.sender, others)):
                found[message.id] = doubted
        return found

    async def _load_senders(self, place: ConversationId, before: Seq) -> tuple[Sender, ...]:
        """Who said the newest messages there in front of this one. The log grows at its end: only that is read anew."""
        kept = self._cache.get(place)
        known = kept if kept is not None and kept.before <= before else _Kept(Seq(0), ())
        more = await self._store.newest_entries(
            NEWEST_NAMES, after=max(0, known.before - 1), before=before, kinds=MESSAGES, conversation=place
        )
        spoke = [one.fact.sender for one in more if isinstance(one.fact, Message)]
        senders = (*known.senders, *spoke)[-NEWEST_NAMES:]
        self._cache.put(place, _Kept(before, senders))
        return senders
