"""What of each conversation later turns see: read from the log, kept while it is used, folded when it is too long."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from agent.brief import Exchange
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.media import Media
from gateway.past import Past, PastTurn
from gateway.records import Folded, Seq, TurnEnded
from gateway.store import Entry, Store

logger = logging.getLogger("reverie.views")


class Views:
    """The views of one agent's conversations."""

    def __init__(self, store: Store, clock: Clock, media: Media, *, simple: bool = False) -> None:
        """`simple`: for a model that takes no tools."""
        self._store = store
        self._clock = clock
        self._media = media
        self._simple = simple
        self._past = Past()

    async def take(self, conversation: ConversationId) -> tuple[PastTurn, ...]:
        """The turns in view. It is read from the log again unless `keep` is called before the next `take`."""
        kept = self._past.take(conversation)
        if kept is not None:
            return kept
        turns = await self._store.turns(conversation)
        return tuple(PastTurn.of(turn.seq, turn.fact, turn.at, simple=self._simple) for turn in turns)

    def keep(self, conversation: ConversationId, past: Sequence[PastTurn], seq: Seq, ended: TurnEnded) -> None:
        """One more turn is durable, at `seq`."""
        newest = PastTurn.of(seq, ended, self._clock.now(), simple=self._simple)
        self._past.keep(conversation, [*past, newest])

    def forget(self, conversation: ConversationId) -> None:
        """What is kept is not what the log has."""
        self._past.take(conversation)

    async def fold(
        self, conversation: ConversationId, past: tuple[PastTurn, ...], start: int, reason: str
    ) -> tuple[PastTurn, ...]:
        """Let the first `start` turns leave the view, durably. 0: none."""
        if start > 0:
            kept_from = past[start].seq if start < len(past) else Seq(past[-1].seq + 1)
            logger.info(
                "%s: folded, %d of %d turns stay in view: %s", conversation, len(past) - start, len(past), reason
            )
            folded = Folded(start=kept_from, reason=reason)
            await self._store.append([Entry(fact=folded, at=self._clock.now(), conversation=conversation)])
        return past[start:]

    async def history(self, past: Sequence[PastTurn], *, seeing: bool) -> tuple[Exchange, ...]:
        """The turns as a prompt repeats them, with their images if these can be seen and are still there."""
        exchanges = [turn.exchange for turn in past]
        if seeing:
            for place, turn in enumerate(past):
                if turn.media:
                    exchanges[place] = replace(turn.exchange, images=await self._media.load(turn.media))
        return tuple(exchanges)
