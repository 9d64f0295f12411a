"""What of each conversation later turns see: read from the log, and kept for those that were active last.

Nothing here is a second record: all of it is in the log, and what is not here is read from there.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent.brief import Exchange
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.labels import Label, label_of
from gateway.media import Media
from gateway.past import PastTurn, View
from gateway.records import Folded, Seq, TurnEnded
from gateway.store import Entry, Store, Stored

KEPT_CONVERSATIONS = 32
"""Each holds a view at most, so some hundred kilobytes where a large window is full."""


class Past:
    """Views by conversation; the one that was kept longest ago leaves first."""

    def __init__(self) -> None:
        self._views: dict[ConversationId, View] = {}

    def take(self, conversation: ConversationId) -> View | None:
        """Hand the view over. It is not here again before `keep`: a turn that is cut off leaves nothing stale."""
        return self._views.pop(conversation, None)

    def keep(self, conversation: ConversationId, view: View) -> None:
        """The view as the log has it now: call once the newest turn's record is durable."""
        self._views.pop(conversation, None)
        self._views[conversation] = view
        if len(self._views) > KEPT_CONVERSATIONS:
            del self._views[next(iter(self._views))]


class Views:
    """The views of one agent's conversations."""

    def __init__(self, store: Store, clock: Clock, media: Media, *, simple: bool = False) -> None:
        """`simple`: for a model that takes no tools."""
        self._store = store
        self._clock = clock
        self._media = media
        self._simple = simple
        self._past = Past()

    async def take(self, conversation: ConversationId) -> View:
        """What is in view. It is read from the log again unless `keep` is called before the next `take`."""
        kept = self._past.take(conversation)
        return kept if kept is not None else await self.read(conversation)

    async def read(self, conversation: ConversationId) -> View:
        """The same, from the log. Reads what is in view, and nothing before that."""
        turns = await self._store.turns(conversation)
        found = await self._store.view(conversation)
        past = [
            PastTurn.of(turn.seq, turn.fact, turn.at, simple=self._simple, label=await self._label(turn))
            for turn in turns
        ]
        if found is None or not isinstance(found.fact, Folded):
            return View.of(past, None, Seq(0))
        return View.of(past, found.fact, found.seq)

    async def _label(self, turn: Stored) -> Label | None:
        return await label_of(self._store, turn.fact) if isinstance(turn.fact, TurnEnded) else None

    def keep(self, conversation: ConversationId, view: View, seq: Seq, ended: TurnEnded) -> None:
        """One more turn is durable, at `seq`."""
        newest = PastTurn.of(seq, ended, self._clock.now(), simple=self._simple)
        self._past.keep(conversation, view.grown(newest))

    def forget(self, conversation: ConversationId) -> None:
        """What is kept is not what the log has."""
        self._past.take(conversation)

    async def fold(self, conversation: ConversationId, view: View, folded: Folded) -> View:
        """Change the view, durably. Cut off, it is the old one or the new one."""
        entry = Entry(fact=folded, at=self._clock.now(), conversation=conversation)
        (stored,) = await self._store.append([entry])
        return View.of([turn for turn in view.turns if turn.seq >= folded.start], folded, stored.seq)

    async def history(self, view: View, *, seeing: bool) -> tuple[Exchange, ...]:
        """The view as a prompt repeats it, with its images if these can be seen and are still there."""
        exchanges = [turn.exchange for turn in view.turns]
        if seeing:
            for place, turn in enumerate(view.turns):
                if turn.media:
                    exchanges[place] = replace(turn.exchange, images=await self._media.load(turn.media))
                if turn.shown:
                    found = await self._media.pictures(turn.shown)
                    exchanges[place] = replace(exchanges[place], pictures=tuple(found.items()))
        return (*_headed(view.head), *exchanges)


def _headed(head: str) -> Sequence[Exchange]:
    return (Exchange(heard=head, reply=""),) if head else ()
