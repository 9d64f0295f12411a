"""Recall of past messages, notes and lines of MEMORY.md: asked for by the tool `recall`, and
unasked before a turn.

Ambient recall stands in front of every answer, so it looks up little, in the index, and goes
without what takes too long. `run_prefetch` runs the operator's program that may add texts.
`terms.py` says which words are worth a search.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

from pydantic import Field

from agent.tokens.counter import estimate_tokens
from channels.aio import with_timeout
from gateway.context.conversation import is_addressed
from gateway.core.events import Message, MessageEdited
from gateway.core.facts import AMBIENT, Fact, Judgement, Seq, TurnRecord
from gateway.core.fields import ConfigSection
from gateway.core.frozen import frozen
from gateway.core.labels import MEMORY_LABEL, OUTSIDE_LABEL, TRUSTED_LABEL, Label, join
from gateway.core.permissions import OWN
from gateway.core.process import ProgramNotStarted, run_program, select_environment
from gateway.core.redaction import Redactor
from gateway.core.scopes import OWNER_SCOPE
from gateway.core.text_safety import to_single_line
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.plugin import Part, Plugin, PluginContext, TurnView, hook
from gateway.plugins.memory import Memory
from gateway.plugins.memory.journal_file import JournalEntry
from gateway.plugins.memory.search import (
    HitBuilder,
    SearchHit,
    fold_words,
    match_all_terms,
    quote_text,
    split_words,
    to_handwritten_hit,
)
from gateway.plugins.recall.terms import (
    TermWeights,
    apply_age,
    build_term_phrases,
    contains_all_words,
    extract_terms,
    find_terms_in,
    is_small_talk,
    score_candidates,
    weigh_terms,
)
from gateway.store import EntryLocation, LogEntry

logger = logging.getLogger("reverie.recall")

MAX_QUERY_CHARS: Final = 200
MAX_HITS: Final = 10
MAX_WORDS: Final = 12
NOTHING_FOUND: Final = (
    "Nothing was found that may be shown here. All words must occur: try fewer, or other words."
)
FOUND_HEADER: Final = "Found, the newest first:"
SEARCHED_KINDS: Final = ("direct", "mention", "reply", "room", "edited", "turn_ended", "noted")
"""Kinds of log entries in the search index."""
_SEARCH_PAGE: Final = 200
"""Entries whose rooms are asked about together."""
_SEARCH_PAGES: Final = 10
"""Pages that are searched: entries that may not be shown here must not hide others."""
_MAX_UNREAD: Final = 50

PREFETCH_S: Final = 2.0
"""Time after which the turn goes on without what the prefetch command says."""

RECALL_HEADER: Final = "[RECALLED]"
"""What it means is said once, in the protocol (`agent.prompt.PROTOCOL`)."""
RECALL_HEADER_TOKENS: Final = estimate_tokens(RECALL_HEADER)
QUOTE_SIZES: Final = (160, 80, 40)
"""Lengths of a quotation in characters, tried in order: several quotations are to fit, and shorter
ones say nothing."""

DEADLINE_S: Final = 0.1
_MAX_USES: Final = 100
"""Newest uses of a term that are considered."""
_PAGE: Final = 20
_PAGES: Final = 5
"""Pages of candidates that are considered."""
_DEEP_FACTOR: Final = 10
"""Factor of a second, deeper search, where a term is frequent and nothing was found."""
_MAX_READS: Final = 12
"""Entries that are read: outdated ones must not take unlimited time."""
_READS_AT_ONCE: Final = 3
_PREFETCH_SIZES: Final = (2_000, 1_000, 500, 250, 120, 60)
"""Lengths in characters of one text of the prefetch command, tried in order: long, because the
command made a choice."""
_QUESTION: Final = re.compile(r"[?\uff1f\u061f][^\w]{0,9}\Z")
"""End of a question: the ASCII mark, the wide one of East Asian scripts, or the Arabic one."""
_MIN_TOLD_CHARS: Final = 3
"""Shorter words tell nothing."""


class PrefetchSettings(ConfigSection):
    """A command that adds information before each turn."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    """The program and its arguments, without a shell. Empty: none."""


class RecallSettings(ConfigSection):
    """Recall of earlier messages and notes before each turn."""

    ambient_tokens: int = Field(default=150, ge=0, le=2_000)
    """Size of earlier messages and notes related to the newest messages. 0: none."""
    prefetch: PrefetchSettings = PrefetchSettings.model_construct()


class Recall(Plugin):
    """Finds earlier messages and notes for turns."""

    name = "recall"
    summary = "finds earlier messages and notes, before a turn and by the tool recall"
    Settings = RecallSettings
    requires = ("memory",)
    family = "itself"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._clock, self._places = gateway.store, gateway.clock, gateway.places
        self._memory = context.get(Memory)
        self._hits = HitBuilder(gateway.store, gateway.places, gateway.redactor)
        self._notes = set[int]()
        self._notes_upto = 0
        self._has_failed = False
        gateway.live.follow(self._use)

    def _use(self, _: object) -> None:
        own: RecallSettings = self.settings
        self._tokens, self._prefetch = own.ambient_tokens, own.prefetch.command

    @hook
    async def parts(self, turn: TurnView) -> Iterable[Part]:
        """Return what relates to the new messages, names its items so that none is repeated
        (`TurnRecord.recalled`), and takes at most `recall.ambient_tokens` of `estimate_tokens`.

        Names: `s` and the position in the log, and by hash `j:` for journal entries of people, `m:`
        for lines of MEMORY.md, `p:` for texts of the prefetch command. Every item has passed
        `ToolContext.visibility`. Raises only cancellation: whatever fails or takes too long is left
        out.
        """
        lines = [one.line.text for one in turn.lines if not one.line.event][-10:]
        if turn.is_plain or not lines or self._tokens <= RECALL_HEADER_TOKENS:
            return []
        name = turn.context.agent.lower()
        if not self._prefetch and all(is_small_talk(one, name) for one in lines):
            return []
        told_names = {name for one in turn.past for name in one.record.recalled}
        builder = RecallBuilder(self._tokens, self.context.gateway.redactor, lines)
        looking = self._search(turn, lines, told_names, builder)
        try:
            await with_timeout(self._clock, DEADLINE_S, looking)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody is to wait for an answer because of it
            level = logging.DEBUG if self._has_failed else logging.INFO
            logger.log(level, "not all is recalled: %r", error)
            self._has_failed = True
        asked = self._prefetch and any(one.line.is_addressed for one in turn.lines)
        for text in await run_prefetch(self._prefetch, turn.context, lines) if asked else ():
            name, line = recall_name("p", text), partial(quote_text, text, ())
            if name not in told_names and not builder.add(name, text, line, sizes=_PREFETCH_SIZES):
                break
        part = builder.build()
        return [part] if part.text else []

    @tool(
        "Search earlier messages and your notes.",
        effect=OWN,
        parallel=True,
        offer="described",
    )
    async def recall(
        self,
        context: ToolContext,
        *,
        query: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_QUERY_CHARS,
                description="A few words that all occur in it.",
            ),
        ],
    ) -> ToolOutput:
        """Return what was found; every item has passed `context.visibility`. Raises StoreError."""
        terms = [
            term
            for term in to_single_line(query, len(query)).split()
            if any(map(str.isalnum, term))
        ][:MAX_WORDS]
        words = [word for term in terms for word in split_words(term)]
        lines, labels = list[str](), list[Label]()
        if words:
            from_log = await self._find_in_log(context, match_all_terms(terms))
            from_journal = await self._find_in_journal(context, words)
            hits = sorted(
                (*from_log, *from_journal), key=lambda hit: (hit.at, hit.seq), reverse=True
            )
            from_memory = await self._find_in_memory(context, words)
            lines = [f"[MEMORY.md] {quote_text(line, words)}" for line in from_memory]
            lines += [f"{hit.handle} {hit.render(words)}".lstrip() for hit in hits]
            labels = [hit.label for hit in hits] + ([MEMORY_LABEL] if from_memory else [])
        text = "\n".join((FOUND_HEADER, *lines[:MAX_HITS])) if lines else NOTHING_FOUND
        return ToolOutput(text=text, kind="messages", is_untrusted=True, label=join(labels))

    async def _find_in_memory(self, context: ToolContext, words: Sequence[str]) -> list[str]:
        """Return matching lines of MEMORY.md, which is made from all places: only where everything
        may be shown.
        """
        try:
            text = await self._memory.file.read(context.agent)
        except OSError:  # reported to the operator elsewhere
            return []
        return [
            line
            for line in context.visibility.only_visible(text.splitlines(), lambda _: OWNER_SCOPE)
            if contains_all_words(line, words)
        ]

    async def _find_in_journal(self, context: ToolContext, words: Sequence[str]) -> list[SearchHit]:
        try:
            entries = await self._memory.notes.read_handwritten(context.agent)
        except OSError:
            return []
        found = [
            to_handwritten_hit(one)
            for one in entries
            if contains_all_words(f"{one.title}\n{one.text}", words)
        ]
        return context.visibility.only_visible(found, lambda hit: hit.scope)

    async def _find_in_log(self, context: ToolContext, match: str) -> list[SearchHit]:
        unread = await self._store.unread_entries(context.at.conversation, most=_MAX_UNREAD)
        unread_seqs = {
            one.seq for one in unread.messages
        }  # the messages being answered are not results
        found, before, here = list[SearchHit](), None, context.visibility
        for _ in range(_SEARCH_PAGES):
            page = await self._store.newest_entries(
                _SEARCH_PAGE, before=before, kinds=SEARCHED_KINDS, match=match
            )
            scoped = [(one, await self._hits.scope_of(one)) for one in reversed(page)]
            here = await self._places.with_memberships(here, [scope for _, scope in scoped])
            for one, scope in scoped:
                if one.seq in unread_seqs or not here.can_see(scope, one.seq):
                    continue
                hit = await self._hits.build(one, context)
                found += [hit] if hit is not None and here.can_see(hit.scope, hit.seq) else []
                if len(found) == MAX_HITS:
                    return found
            if len(page) < _SEARCH_PAGE:
                break
            before = page[0].seq
        return found

    async def _search(
        self,
        turn: TurnView,
        lines: Sequence[str],
        told_names: Collection[str],
        builder: "RecallBuilder",
    ) -> None:
        """Add what is found to the result. If this is cut off, the items added before are valid."""
        agent = turn.context.agent
        wanted = [term for term in extract_terms(lines) if term != agent.lower()]
        if not wanted:
            return
        uses, last = await self._find_uses(wanted, _MAX_USES)
        weights = weigh_terms(uses, last, _MAX_USES)
        oldest = turn.past[0] if turn.past else None
        view_start = min((oldest.seq, *oldest.record.covers)) if oldest is not None else None
        query = _RecallQuery(
            turn=turn,
            told_names=told_names,
            weights=weights,
            asked="\n".join([*lines, agent]),
            view_start=view_start,
        )
        weighed = score_candidates(uses, weights, self._notes)
        from_log = await self._search_log(query, weighed, _PAGE)
        more = any(len(uses[term]) == _MAX_USES for term in weights.terms)
        if (
            more and weighed and not from_log
        ):  # hidden or visible-anyway hits must not hide older ones
            uses, _ = await self._find_uses(list(weights.terms), _DEEP_FACTOR * _MAX_USES)
            from_log = await self._search_log(
                query, score_candidates(uses, weights, self._notes), _DEEP_FACTOR * _PAGE
            )
        pool = sorted(
            [*from_log, *await self._search_files(query)], key=lambda one: one.score, reverse=True
        )[:_MAX_READS]
        for first in range(0, len(pool), _READS_AT_ONCE):
            batch = pool[first : first + _READS_AT_ONCE]
            read = await asyncio.gather(*(self._load_source(one.source, query) for one in batch))
            if not all(
                _add_to_result(one.name, source, builder, query.words)
                for one, source in zip(batch, read, strict=True)
            ):
                return

    async def _find_uses(
        self, wanted: Sequence[str], newest: int
    ) -> tuple[dict[str, Sequence[int]], Seq]:
        found = await self._store.find_word_uses(
            wanted, newest=newest, notes_after=self._notes_upto
        )
        self._notes.update(found.note_positions)
        self._notes_upto = max((self._notes_upto, *found.note_positions))
        return dict(zip(wanted, found.positions, strict=True)), found.last

    async def _load_source(
        self, source: EntryLocation | SearchHit | str, query: "_RecallQuery"
    ) -> SearchHit | str | None:
        """Load an item; in place of a question, the agent's answer to it. None: it is not visible,
        outdated, or a question without an answer of the agent.
        """
        if not isinstance(source, EntryLocation):
            return source
        entry = await self._store.entry(source.seq)
        if entry is not None and _is_question(entry.fact, query.asked):
            entry = await self._find_answer(entry)
        if entry is None or entry.conversation is None:
            return None
        hit = await self._hits.build(entry, query.turn.context)
        found = [hit] if hit is not None else []
        return next(
            iter(query.turn.context.visibility.only_visible(found, lambda hit: hit.scope)), None
        )

    async def _find_answer(self, question: LogEntry) -> LogEntry | None:
        if not is_addressed(question.fact):
            return None
        caused = await self._store.caused_by(question.seq)
        judged = next((one for one in caused if isinstance(one.fact, Judgement)), None)
        turn = await self._store.handled_by(judged) if judged is not None else None
        return turn if turn is not None and isinstance(turn.fact, TurnRecord) else None

    async def _search_log(
        self, query: "_RecallQuery", weighed: Mapping[int, float], size: int
    ) -> "list[_RecallCandidate]":
        new = {one.seq for one in query.turn.lines}
        best = sorted(weighed.keys() - new, key=lambda seq: (weighed[seq], seq), reverse=True)
        del best[size * _PAGES :]
        now, found = self._clock.now(), list[_RecallCandidate]()
        for first in range(0, len(best), size):
            page = [
                one
                for one in await self._store.locate_entries(best[first : first + size])
                if _is_recallable(one, query)
            ]
            scoped = [(one, await self._hits.scope_of(one)) for one in page if one.conversation]
            for one, _ in query.turn.context.visibility.only_visible(scoped, lambda pair: pair[1]):
                found.append(
                    _RecallCandidate(
                        score=apply_age(weighed[one.seq], now - one.at),
                        name=f"s{one.seq}",
                        source=one,
                    )
                )
            if len(found) >= _MAX_READS:
                break
        return found

    async def _search_files(self, query: "_RecallQuery") -> "list[_RecallCandidate]":
        visibility, agent, weights = (
            query.turn.context.visibility,
            query.turn.context.agent,
            query.weights,
        )
        looked_for, now, found = (
            build_term_phrases(weights),
            self._clock.now(),
            list[_RecallCandidate](),
        )
        entries, memory = list[JournalEntry](), ""
        with contextlib.suppress(OSError):  # reported to the operator elsewhere
            entries = await self._memory.notes.read_handwritten(agent)
        with contextlib.suppress(OSError):
            memory = await self._memory.file.read(agent) if visibility.can_see(OWNER_SCOPE) else ""
        hits = [to_handwritten_hit(entry) for entry in entries]
        for hit in visibility.only_visible(hits, lambda hit: hit.scope):
            weight = weights.score(find_terms_in(hit.text, looked_for), noted=True)
            if (
                weight
                and (name := recall_name("j", f"{hit.at} {hit.text}")) not in query.told_names
            ):
                found.append(
                    _RecallCandidate(score=apply_age(weight, now - hit.at), name=name, source=hit)
                )
        lines = [line.strip() for line in memory.splitlines()]
        for line in visibility.only_visible(lines, lambda _: OWNER_SCOPE):
            weight = weights.score(find_terms_in(line, looked_for), noted=True)
            if (
                weight
                and line not in query.turn.memory
                and (name := recall_name("m", line)) not in query.told_names
            ):
                found.append(_RecallCandidate(score=weight, name=name, source=line))
        return found


class RecallBuilder:
    """Builder of the recalled text, within a limit of tokens."""

    def __init__(self, tokens: int, redactor: Redactor, lines: Iterable[str] = ()) -> None:
        """`redactor` is applied to each line. `lines`: texts that the prompt has anyway, so that
        none is told twice.
        """
        self._redactor = redactor
        self._tokens = tokens
        self._lines = [RECALL_HEADER]
        self._names: list[str] = []
        self._texts = {fold_words(line) for line in lines}
        self._label = TRUSTED_LABEL

    def add(
        self,
        name: str,
        text: str,
        line: Callable[[int], str],
        *,
        sizes: Iterable[int] = QUOTE_SIZES,
        label: Label = OUTSIDE_LABEL,
    ) -> bool:
        """Add an item, shortened if necessary, unless the same text is there already. False: there
        is no room left.

        `line`: return the line that quotes at most so many characters; `sizes`: the numbers of
        characters to try, the first that fits is taken.
        """
        key = fold_words(text)
        if not key or key in self._texts:
            return True
        for max_chars in sizes:
            lines = [*self._lines, self._redactor(line(max_chars))]
            if estimate_tokens("\n".join(lines)) <= self._tokens:
                self._lines = lines
                self._names.append(name)
                self._texts.add(key)
                self._label |= label
                return True
        return False

    def build(self) -> Part:
        """Return the text: words of people, one line each below a header. Empty: there are
        none.
        """
        text = "\n".join(self._lines) if self._names else ""
        return Part(block="recall", text=text, label=self._label, names=tuple(self._names))


def recall_name(kind: str, text: str) -> str:
    """Return a name for `Part.names`."""
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@frozen
class _RecallQuery:
    turn: TurnView
    told_names: Collection[str]
    weights: TermWeights
    asked: str
    """The new messages."""
    view_start: Seq | None
    """Entries of this conversation from here on are in view. None: none is."""

    @property
    def words(self) -> list[str]:
        """Words around which a quotation is centred."""
        return [word for term in self.weights.terms for word in split_words(term)]


@frozen
class _RecallCandidate:
    score: float
    name: str
    source: EntryLocation | SearchHit | str
    """Position in the log, an entry of the journal, or a line of MEMORY.md."""


def _add_to_result(
    name: str,
    source: SearchHit | str | None,
    builder: RecallBuilder,
    words: Sequence[str],
) -> bool:
    """Add an item to the result. False: there is no room left."""
    if isinstance(source, str):
        return builder.add(
            name,
            source,
            lambda max_chars: f"[MEMORY.md] {quote_text(source, words, max_chars)}",
            label=MEMORY_LABEL,
        )
    return source is None or builder.add(
        name, source.text, lambda max_chars: source.render(words, max_chars), label=source.label
    )


def _is_question(fact: Fact, asked: str) -> bool:
    """Return whether a message asks, or says to the agent only what is `asked` now."""
    if not isinstance(fact, Message | MessageEdited):
        return False
    words = {word for word in split_words(fact.text) if len(word) >= _MIN_TOLD_CHARS}
    repeats = is_addressed(fact) and words.issubset(split_words(asked))
    return repeats or bool(_QUESTION.search(fact.text))


def _is_recallable(entry: EntryLocation, query: _RecallQuery) -> bool:
    """Return whether an entry may be recalled.

    Not if it is in view, recalled before, unread, left behind, deleted, or another agent's note.
    """
    here = entry.conversation == query.turn.context.at.conversation
    in_view = here and query.view_start is not None and entry.seq >= query.view_start
    news = entry.unread is not None and (here or entry.unread > AMBIENT)
    is_other_agents = entry.is_note and entry.agent != query.turn.context.agent
    left = entry.is_removed or (here and entry.is_left_behind and not entry.is_note)
    return not (in_view or news or left or is_other_agents or f"s{entry.seq}" in query.told_names)


async def run_prefetch(
    command: Sequence[str], context: ToolContext, lines: Sequence[str]
) -> list[str]:
    """Return the texts of the prefetch command, untrusted: the lines of its output. Empty: it
    fails, or takes too long.

    `command`: the program and its arguments. It runs without a shell and without secrets in its
    environment, and reads one line of JSON: `{"conversation": ..., "scope": ..., "lines": [...]}`.
    Raises cancellation only. However this ends, all that it started in its group has ended.
    """
    place, scope = context.at.conversation, context.visibility.scope
    asked = json.dumps({"conversation": place, "scope": scope, "lines": [*lines]})
    env = select_environment("PATH", "LANG", "HOME")  # no secrets of the gateway
    try:
        ran = await run_program(
            command, env=env, time_s=PREFETCH_S, max_bytes=64 * 1024, said=f"{asked}\n".encode()
        )
    except ProgramNotStarted as reason:
        logger.debug("nothing is prefetched: %s", reason)
        return []
    if ran.end_reason != "exit" or ran.status:
        logger.debug("nothing is prefetched: %s, status %s", ran.end_reason, ran.status)
        return []
    texts = (to_single_line(one, 4_000) for one in ran.output.decode(errors="replace").splitlines())
    return list(filter(None, texts))[:20]
