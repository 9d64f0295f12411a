"""What of each conversation later turns see: read from the log, and kept for those that were active last.

Nothing here is a second record: all of it is in the log, and what is not here is read from there.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent.brief import PromptTurn
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.labels import TrustLabel, label_of_turn
from gateway.media import MediaStore
from gateway.past import HistoryTurn, HistoryView
from gateway.records import Seq, TurnRecord, ViewFolded
from gateway.store import LogEntry, NewEntry, Store

MAX_CACHED_VIEWS = 32
"""Each holds a view at most, so some hundred kilobytes where a large window is full."""


class HistoryCache:
    """Views by conversation; the one that was kept longest ago leaves first."""

    def __init__(self) -> None:
        self._views: dict[ConversationId, HistoryView] = {}

    def pop(self, conversation: ConversationId) -> HistoryView | None:
        """Hand the view over. It is not here again before `keep`: a turn that is cut off leaves nothing stale."""
        return self._views.pop(conversation, None)

    def put(self, conversation: ConversationId, view: HistoryView) -> None:
        """The view as the log has it now: call once the newest turn's record is durable."""
        self._views.pop(conversation, None)
        self._views[conversation] = view
        if len(self._views) > MAX_CACHED_VIEWS:
            del self._views[next(iter(self._views))]


class HistoryStore:
    """The views of one agent's conversations."""

    def __init__(self, store: Store, clock: Clock, media: MediaStore, *, simple: bool = False) -> None:
        """`simple`: for a model that takes no tools."""
        self._store = store
        self._clock = clock
        self._media = media
        self._simple = simple
        self._cache = HistoryCache()

    async def take(self, conversation: ConversationId) -> HistoryView:
        """What is in view. It is read from the log again unless `keep` is called before the next `take`."""
        kept = self._cache.pop(conversation)
        return kept if kept is not None else await self.read(conversation)

    async def read(self, conversation: ConversationId) -> HistoryView:
        """The same, from the log. Reads what is in view, and nothing before that."""
        turns = await self._store.turns_in_view(conversation)
        found = await self._store.newest_fold(conversation)
        past = [
            HistoryTurn.from_record(turn.seq, turn.fact, turn.at, simple=self._simple, label=await self._label_of(turn))
            for turn in turns
        ]
        if found is None or not isinstance(found.fact, ViewFolded):
            return HistoryView.build(past, None, Seq(0))
        return HistoryView.build(past, found.fact, found.seq)

    async def _label_of(self, turn: LogEntry) -> TrustLabel | None:
        return await label_of_turn(self._store, turn.fact) if isinstance(turn.fact, TurnRecord) else None

    def add_turn(self, conversation: ConversationId, view: HistoryView, seq: Seq, ended: TurnRecord) -> None:
        """One more turn is durable, at `seq`."""
        newest = HistoryTurn.from_record(seq, ended, self._clock.now(), simple=self._simple)
        self._cache.put(conversation, view.with_turn(newest))

    def forget(self, conversation: ConversationId) -> None:
        """What is kept is not what the log has."""
        self._cache.pop(conversation)

    async def apply_fold(self, conversation: ConversationId, view: HistoryView, folded: ViewFolded) -> HistoryView:
        """Change the view, durably. Cut off, it is the old one or the new one."""
        entry = NewEntry(fact=folded, at=self._clock.now(), conversation=conversation)
        (stored,) = await self._store.append([entry])
        return HistoryView.build([turn for turn in view.turns if turn.seq >= folded.start], folded, stored.seq)

    async def load_exchanges(self, view: HistoryView, *, seeing: bool) -> tuple[PromptTurn, ...]:
        """The view as a prompt repeats it, with its images if these can be seen and are still there."""
        exchanges = [turn.exchange for turn in view.turns]
        if seeing:
            for place, turn in enumerate(view.turns):
                if turn.media:
                    exchanges[place] = replace(turn.exchange, images=await self._media.load_images(turn.media))
                if turn.tool_images:
                    found = await self._media.load_images_by_hash(turn.tool_images)
                    exchanges[place] = replace(exchanges[place], tool_images=tuple(found.items()))
        return (*_head_exchanges(view.head), *exchanges)


def _head_exchanges(head: str) -> Sequence[PromptTurn]:
    return (PromptTurn(input_text=head, reply=""),) if head else ()
