"""What is called to mind before a turn: what was said or written down before, and has to do with the newest messages.

It is on the way of each message, so it looks up little, in the index, and goes without what takes too long.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from channels.tasks import with_timeout
from gateway.clock import Clock
from gateway.hands import ToolContext
from gateway.hits import (
    OWNER_SCOPE,
    HitBuilder,
    ReadHandwritten,
    SearchHit,
    SearchPlaces,
    quote_text,
    scope_of_hit,
    split_words,
    to_handwritten_hit,
)
from gateway.kept import AgentFileCache
from gateway.prefetch import PrefetchCommand
from gateway.recalled import RECALL_HEADER_TOKENS, RecallBuilder, RecallResult, recall_name
from gateway.records import AMBIENT, Seq, TurnRecord
from gateway.redaction import Redact, Redactor
from gateway.relevance import (
    TermWeights,
    apply_age,
    build_term_phrases,
    extract_terms,
    find_terms_in,
    score_candidates,
    weigh_terms,
)
from gateway.store import EntryLocation, StoreReader

logger = logging.getLogger("reverie.recalling")

DEADLINE_S: Final = 0.1
ELSEWHERE_AFTER: Final = timedelta(hours=1)
"""What was said in other places comes to mind after that: it is no memory before, and may be under way there still."""
_MAX_USES: Final = 100
"""Uses of a term that are looked at."""
_PAGE: Final = 20
_PAGES: Final = 5
"""So many pages of found texts are looked at."""
_DEEP_FACTOR: Final = 10
"""So many times as much is looked at where there is much, and nothing of it is told."""
_MAX_READS: Final = 12
"""So many are read: what turns out not to hold any more must not take for ever."""
_READS_AT_ONCE: Final = 3
_PREFETCH_SIZES: Final = (2_000, 1_000, 500, 250, 120, 60)
"""Characters of what the prefetch command said in one piece, as there is room: it was asked to choose."""
_MAX_VIEW_STARTS: Final = 1_000
"""Beginnings of views that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecallQuery:
    """What is looked for, and where it is told."""

    context: ToolContext
    told_names: Collection[str]
    memory_in_prompt: str
    weights: TermWeights
    view_start: Seq | None
    """What this conversation said from here on is in view. None: nothing is."""

    @property
    def words(self) -> list[str]:
        """By which a quotation is chosen."""
        return [word for term in self.weights.terms for word in split_words(term)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecallCandidate:
    """Something that has to do with it."""

    score: float
    name: str
    source: EntryLocation | SearchHit | str
    """Where it stands in the log; an entry of the journal; a line of MEMORY.md."""


class AmbientRecall:
    """Looks things up unasked."""

    def __init__(  # noqa: PLR0917 - as many places to look
        self,
        reader: StoreReader,
        places: SearchPlaces,
        memory: Callable[[str], Awaitable[str]],
        by_hand: ReadHandwritten,
        clock: Clock,
        prefetch: PrefetchCommand | None = None,
        redact: Redact | None = None,
    ) -> None:
        """`memory` and `to_handwritten_hit`.

        As of `gateway.recall.RecallSearch`. `prefetch`: the operator's command; None: none.
        """
        self._reader = reader
        self._hit_builder = HitBuilder(reader, places, redact)
        self._file_cache = AgentFileCache(memory, by_hand)
        self._clock = clock
        self.prefetch = prefetch
        """May be another one from some moment on."""
        self._redact = redact or Redactor()
        self._notes = set[int]()
        self._notes_upto = 0
        self._view_starts: dict[Seq, Seq] = {}
        self._has_failed = False

    async def __call__(
        self,
        where: ToolContext,
        lines: Sequence[str],
        *,
        seen: Collection[str],
        since: Seq | None,
        tokens: int,
        asked: bool,
        shown: str = "",
    ) -> RecallResult:
        """What comes to mind of these new messages, oldest first, in at most `tokens` of `estimate_tokens`.

        Every piece has gone through `where.sight`. `seen`: names of what is not told again. `since`: where the first
        turn in view ended; what this conversation said from there on is in view. None: nothing is. `asked`: somebody
        has spoken to the agent, so the prefetch command is run. `shown`: what of MEMORY.md is in the prompt anyway.
        Raises nothing but cancellation: what fails, or takes too long, is left out.
        """
        if not lines or tokens <= RECALL_HEADER_TOKENS:
            return RecallResult()
        told = RecallBuilder(tokens, self._redact)
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(self._run_prefetch(where, lines)) if asked else None
            looking = self._search(where, lines, told, seen=seen, since=since, shown=shown)
            try:
                await with_timeout(self._clock, DEADLINE_S, looking)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody is to wait for an answer because of it
                logger.log(logging.DEBUG if self._has_failed else logging.INFO, "not all is recalled: %r", error)
                self._has_failed = True
        for piece in fetching.result() if fetching is not None else ():
            name, line = recall_name("p", piece), partial(quote_text, piece, ())
            if name not in seen and not told.add(name, piece, line, sizes=_PREFETCH_SIZES, foreign=True):
                break
        return told.build()

    async def _run_prefetch(self, where: ToolContext, lines: Sequence[str]) -> list[str]:
        if (prefetch := self.prefetch) is None:
            return []
        return await prefetch(conversation=where.at.conversation, scope=where.visibility.scope, lines=lines)

    async def _search(
        self,
        where: ToolContext,
        lines: Sequence[str],
        told: RecallBuilder,
        *,
        seen: Collection[str],
        since: Seq | None,
        shown: str,
    ) -> None:
        """Tell what is found. Whenever it is cut off, what was told before is good."""
        wanted = [term for term in extract_terms(lines) if term != where.agent.lower()]
        if not wanted:
            return
        uses, last = await self._find_uses(wanted, _MAX_USES)
        weights = weigh_terms(uses, last, _MAX_USES)
        begun = await self._find_view_start(since) if since is not None else None
        asked = _RecallQuery(context=where, told_names=seen, memory_in_prompt=shown, weights=weights, view_start=begun)
        weighed = score_candidates(uses, weights, self._notes)
        said = await self._search_log(asked, weighed, _PAGE)
        more = any(len(seqs) == _MAX_USES for seqs in uses.values())
        if more and weighed and not said:  # what may not be told, or is in view, must not hide what is behind it
            uses, _ = await self._find_uses(list(weights.terms), _DEEP_FACTOR * _MAX_USES)
            said = await self._search_log(asked, score_candidates(uses, weights, self._notes), _DEEP_FACTOR * _PAGE)
        pool = sorted([*said, *await self._search_files(asked)], key=lambda one: one.score, reverse=True)[:_MAX_READS]
        for first in range(0, len(pool), _READS_AT_ONCE):
            some = pool[first : first + _READS_AT_ONCE]
            read = await asyncio.gather(*(self._load_source(one.source, where) for one in some))
            if not all(_add_to_result(one.name, what, told, asked.words) for one, what in zip(some, read, strict=True)):
                return

    async def _find_uses(self, wanted: Sequence[str], newest: int) -> tuple[dict[str, Sequence[int]], Seq]:
        """Where the newest uses of each stand, and where the log ends."""
        found = await self._reader.find_word_uses(wanted, newest=newest, notes_after=self._notes_upto)
        self._notes.update(found.note_positions)
        self._notes_upto = max((self._notes_upto, *found.note_positions))
        return dict(zip(wanted, found.positions, strict=True)), found.last

    async def _load_source(self, placed: EntryLocation | SearchHit | str, where: ToolContext) -> SearchHit | str | None:
        """None: it may not be told, or does not hold any more."""
        if not isinstance(placed, EntryLocation):
            return placed
        entry = await self._reader.entry(placed.seq)
        if entry is None or entry.conversation is None:
            return None
        hit = await self._hit_builder.build(entry, where)
        return next(iter(where.visibility.only_visible([hit] if hit is not None else [], scope_of_hit)), None)

    async def _find_view_start(self, since: Seq) -> Seq:
        """Where what the turn that ended there was told begins."""
        if since not in self._view_starts:
            ended = await self._reader.entry(since)
            covers = ended.fact.covers if ended is not None and isinstance(ended.fact, TurnRecord) else ()
            if len(self._view_starts) >= _MAX_VIEW_STARTS:
                self._view_starts.clear()
            self._view_starts[since] = min((since, *covers))
        return self._view_starts[since]

    async def _search_log(self, asked: _RecallQuery, weighed: Mapping[int, float], size: int) -> list[_RecallCandidate]:
        """Of the log, as many as can be read. `size`: of a page."""
        best = sorted(weighed, key=lambda seq: (weighed[seq], seq), reverse=True)[: size * _PAGES]
        now, found = self._clock.now(), list[_RecallCandidate]()
        for first in range(0, len(best), size):
            page = [
                one
                for one in await self._reader.locate_entries(best[first : first + size])
                if _is_recallable(one, asked, now)
            ]
            of = [(one, await self._hit_builder.scope_of(one)) for one in page if one.conversation]
            for one, _ in asked.context.visibility.only_visible(of, lambda pair: pair[1]):
                found.append(
                    _RecallCandidate(score=apply_age(weighed[one.seq], now - one.at), name=f"s{one.seq}", source=one)
                )
            if len(found) >= _MAX_READS:
                break
        return found

    async def _search_files(self, asked: _RecallQuery) -> list[_RecallCandidate]:
        """Of the journal what people wrote, and of MEMORY.md, which is made of all places."""
        sight, agent, weights = asked.context.visibility, asked.context.agent, asked.weights
        looked_for, now, found = build_term_phrases(weights), self._clock.now(), list[_RecallCandidate]()
        entries = [(to_handwritten_hit(entry), text) for entry, text in await self._file_cache.journal_entries(agent)]
        for hit, text in sight.only_visible(entries, lambda pair: pair[0].scope):
            weight = weights.score(find_terms_in(text, looked_for), noted=True)
            if weight and (name := recall_name("j", f"{hit.at} {hit.text}")) not in asked.told_names:
                found.append(_RecallCandidate(score=apply_age(weight, now - hit.at), name=name, source=hit))
        facts = await self._file_cache.memory_lines(agent) if sight.can_see(OWNER_SCOPE) else []
        for line, text in sight.only_visible(facts, lambda _: OWNER_SCOPE):
            weight = weights.score(find_terms_in(text, looked_for), noted=True)
            if (
                weight
                and line not in asked.memory_in_prompt
                and (name := recall_name("m", line)) not in asked.told_names
            ):
                found.append(_RecallCandidate(score=weight, name=name, source=line))
        return found


def _add_to_result(name: str, what: SearchHit | str | None, told: RecallBuilder, words: Sequence[str]) -> bool:
    """False: there is no room any more."""
    if isinstance(what, str):
        return told.add(name, what, lambda most: f"[MEMORY.md] {quote_text(what, words, most)}")
    return what is None or told.add(name, what.text, lambda most: what.render(words, most), foreign=what.is_foreign)


def _is_recallable(one: EntryLocation, asked: _RecallQuery, now: datetime) -> bool:
    """Whether it is not in view, told before, news itself, just said elsewhere, left, taken back, or another's."""
    here = one.conversation == asked.context.at.conversation
    in_view = here and asked.view_start is not None and one.seq >= asked.view_start
    news = one.unread is not None and (here or one.unread > AMBIENT)
    just_said = not here and not one.is_note and now - one.at < ELSEWHERE_AFTER
    theirs = one.is_note and one.agent != asked.context.agent
    left = one.is_removed or (here and one.is_left_behind and not one.is_note)
    return not (in_view or news or just_said or left or theirs or f"s{one.seq}" in asked.told_names)
