"""Replay of a part of the log: decisions are made again from what the log records, and compared.

Checks: `dmn`: the recorded signals of a Default Mode Network give the same states and effects. `planner`: the recorded
inputs of a fold give the same verdict. `view`: the history before a turn, with folds and rewinds, has the same digest.
`heard`: the messages of a turn render to the same text.

Reads beside a running gateway, or from an export (`open_log`).
"""

import contextlib
import json
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, get_args

from agent.compaction import CompactionPlan, load_params, plan_compaction
from agent.dmn_trace import replay_trace
from agent.prompt import NOTHING_NEW, render_prompt_lines
from agent.signals import DmnPolicy
from agent.view import TurnForm
from gateway.context.conversation import ConversationReader
from gateway.context.history import HistoryTurn, HistoryView
from gateway.core.events import ConversationId, Message
from gateway.core.facts import ConversationRewound, DmnStateSaved, FoldDecision, Seq, TurnRecord, ViewFolded, is_inner
from gateway.core.identity import ANY_ROOM, AccessPolicy, Role
from gateway.core.redaction import Redactor
from gateway.store import LogEntry, Store, StoreError, StoreLocation, StoreReader, UnreadEntries
from gateway.store.schema import create_store_file, migrate_schema, sqlite_uri
from gateway.stream.media import DescribedAttachment

ReplayCheck = Literal["dmn", "planner", "view", "heard"]
REPLAY_CHECKS: Final[tuple[ReplayCheck, ...]] = get_args(ReplayCheck)
_CHECK_LABELS: Final[dict[ReplayCheck, str]] = {
    "dmn": "what the networks decided",
    "planner": "whether to fold",
    "view": "what turns were shown of the past",
    "heard": "what turns were told as new",
}
MAX_DIFFERENCES: Final = 1_000
"""Differences that are kept and printed; more are only counted."""
NO_SEQ: Final = Seq(0)
EXCERPT_CHARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """A decision that differs from the recorded one."""

    seq: Seq
    """Position of the recorded entry."""
    check: ReplayCheck
    conversation: ConversationId | None
    what: str
    """Description for people. May contain untrusted text."""


@dataclass(slots=True)
class ReplayTally:
    """Counters of one check."""

    compared: int = 0
    agree: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of items that could not be compared, by reason."""


@dataclass(slots=True)
class ReplayReport:
    """Result of a replay so far."""

    first: Seq = NO_SEQ
    last: Seq = NO_SEQ
    """Range of positions; both 0: nothing was read."""
    since: datetime | None = None
    until: datetime | None = None
    signals: int = 0
    quiet_signals: int = 0
    """Signals that were decided again, and signals that were only counted."""
    tallies: dict[ReplayCheck, ReplayTally] = field(
        default_factory=lambda: {sort: ReplayTally() for sort in REPLAY_CHECKS}
    )
    differences: list[ReplayDifference] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    policies: dict[str, DmnPolicy] = field(default_factory=dict)
    """Last DMN policy of each agent, as far as the log records it."""

    @property
    def is_identical(self) -> bool:
        """True if nothing differs."""
        return all(tally.agree == tally.compared for tally in self.tallies.values())

    def add_match(self, sort: ReplayCheck) -> None:
        """Count an item that is equal."""
        self.tallies[sort].compared += 1
        self.tallies[sort].agree += 1

    def add_skipped(self, sort: ReplayCheck, reason: str) -> None:
        """Count an item that cannot be compared."""
        self.tallies[sort].skipped[reason] += 1

    def add_differences(self, sort: ReplayCheck, seq: Seq, conversation: ConversationId | None, *what: str) -> None:
        """Count an item that differs, with its differences."""
        self.tallies[sort].compared += 1
        room = MAX_DIFFERENCES - len(self.differences)
        kept = (
            ReplayDifference(seq=seq, check=sort, conversation=conversation, what=one) for one in what[: max(0, room)]
        )
        self.differences += kept

    def add_entry(self, seq: Seq, at: datetime) -> None:
        """Extend the range by this entry."""
        self.first, self.since = self.first or seq, self.since or at
        self.last, self.until = seq, at


def replay_dmn(report: ReplayReport, seq: Seq, saved: DmnStateSaved) -> None:
    """Replay the signals of a DMN up to this saved state."""
    if not saved.signals:
        report.add_skipped("dmn", "nothing is written down of what it was told")
        return
    found = replay_trace(saved.signals, saved.state)
    report.quiet_signals += found.quiet_count
    if found.policy is not None:
        report.policies[saved.agent] = found.policy
    if found.skip_reason:
        report.add_skipped("dmn", found.skip_reason)
        return
    report.signals += found.signal_count
    if found.differences:
        report.add_differences("dmn", seq, None, *(f"{saved.agent}: {one}" for one in found.differences))
    else:
        report.add_match("dmn")


def add_policy_remarks(report: ReplayReport, now: Mapping[str, DmnPolicy]) -> None:
    """Add a remark for each agent whose configured policy differs from the recorded one."""
    report.remarks += [
        f"{agent}: the configuration says another policy for the DMN than the log, which was decided again by its own"
        for agent, policy in sorted(report.policies.items())
        if agent in now and now[agent] != policy
    ]


def describe_text_difference(was: str, now: str) -> str:
    """Describe where two texts begin to differ."""
    index = next((i for i, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), None)
    index = min(len(was), len(now)) if index is None else index
    begin = max(0, index - EXCERPT_CHARS // 3)
    before, after = (f"{text[begin : begin + EXCERPT_CHARS]!r}" for text in (was, now))
    return f"from character {index} on it was {before}, and is {after} ({len(was)} and {len(now)} characters)"


def format_replay_report(report: ReplayReport) -> list[str]:
    """Render for people. May contain untrusted text, so it is not safe for a terminal as it is."""
    if not report.last or report.since is None or report.until is None:
        return ["nothing of the log is in this stretch that could be decided again"]
    lines = [f"entries {report.first} to {report.last}, {_format_time(report.since)} to {_format_time(report.until)}"]
    for sort, tally in report.tallies.items():
        more = f" ({report.signals} signals; {report.quiet_signals} changed nothing)" if sort == "dmn" else ""
        lines.append(f"{_CHECK_LABELS[sort]}: {tally.compared} compared{more}, {tally.agree} agree")
        lines += [f"  not compared: {count}, {reason}" for reason, count in tally.skipped.most_common()]
    lines += report.remarks
    lines += [f"{one.seq:>8}  {one.check:<7}  {one.conversation or '-'}  {one.what}" for one in report.differences]
    differ = sum(tally.compared - tally.agree for tally in report.tallies.values())
    lines.append(f"{differ} differ" if differ else "nothing differs")
    return lines


def replay_report_as_json(report: ReplayReport) -> dict[str, object]:
    """Return the report for JSON."""
    return {
        "first": report.first,
        "last": report.last,
        "since": report.since.isoformat() if report.since else None,
        "until": report.until.isoformat() if report.until else None,
        "signals": report.signals,
        "quiet": report.quiet_signals,
        "sorts": {
            sort: {"compared": tally.compared, "agree": tally.agree, "skipped": dict(tally.skipped)}
            for sort, tally in report.tallies.items()
        },
        "remarks": report.remarks,
        "differences": [
            {"seq": one.seq, "sort": one.check, "conversation": one.conversation, "what": one.what}
            for one in report.differences
        ],
    }


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


_OMITTED_LINE: Final = re.compile(r"\A\(\d+ earlier lines are not shown\)\n?")


async def _compare_input(reader: StoreReader, entry: LogEntry, turn: TurnRecord, report: ReplayReport) -> None:
    """Render the messages of a turn again and compare. Roles are those of the recorded judgements."""
    assert entry.conversation is not None
    if reason := _skip_reason(entry.conversation, turn):
        return report.add_skipped("heard", reason)
    covered = [one for cover in turn.covers if (one := await reader.entry(cover)) is not None]
    if len(covered) < len(turn.covers):
        return report.add_skipped("heard", "not all that it covers is there")
    if any(isinstance(one.fact, Message) and one.fact.attachments for one in covered):
        return report.add_skipped("heard", "something came with attachments, which are kept for a while only")
    rendered = ""
    # an edit made while the turn ran may have been rendered or not
    for before in dict.fromkeys((entry.seq, Seq(turn.upto + 1))):
        known = _ReaderBefore(reader, before)
        for plain in (False, True):
            rendered = await _render_input(known, covered, turn, plain=plain)
            if rendered == turn.heard:
                return report.add_match("heard")
            if _OMITTED_LINE.sub("", rendered) == _OMITTED_LINE.sub("", turn.heard):
                reason = "only the number of lines that it left out differs, in which deleted ones count"
                return report.add_skipped("heard", reason)
    difference = describe_text_difference(turn.heard, rendered)
    return report.add_differences("heard", entry.seq, entry.conversation, difference)


def _skip_reason(conversation: ConversationId, turn: TurnRecord) -> str:
    if is_inner(conversation):
        return "a digest of many places"
    if turn.within is not None:
        return "told in a digest, and answered out of the inner conversation"
    if not turn.covers or turn.heard in ("", NOTHING_NEW):
        return "nothing new was told"
    if any(step.heard for step in turn.steps):
        return "more arrived in its middle"
    return ""


async def _render_input(known: "_ReaderBefore", covered: Sequence[LogEntry], turn: TurnRecord, *, plain: bool) -> str:
    roles = dict[str, Role]()
    for one in covered:
        judged = await known.find_judgement(one.seq)
        if isinstance(one.fact, Message) and judged is not None:
            roles[f"{one.fact.at.channel}:{one.fact.sender.id}"] = _KNOWN_ROLES.get(judged.role, "guest")
    channels = {one.fact.at.channel for one in covered if isinstance(one.fact, Message)}
    policy = AccessPolicy(
        dm_policy="open", roles=roles, open_rooms={channel: frozenset({ANY_ROOM}) for channel in channels}
    )
    hearing = ConversationReader(known, policy, _NoMedia(), Redactor())
    unread = UnreadEntries(messages=tuple(covered), omitted=turn.omitted, upto=turn.upto, has_changes=True)
    lines = await hearing.render(await hearing.read_current(unread), sees=False)
    return render_prompt_lines([one.line for one in lines], omitted=turn.omitted, plain=plain)


class _ReaderBefore(StoreReader):
    """The log as it was before a position, for the queries that a turn makes."""

    def __init__(self, reader: StoreReader, before: Seq) -> None:
        super().__init__(reader.path, reader._reading)  # noqa: SLF001 - the same queries over the same connection
        self._before = before

    async def message_changes(self, conversation: ConversationId, *, after: int, newest: int) -> list[LogEntry]:
        kinds = ("edited", "deleted")
        return await self.newest_entries(
            newest, after=after, before=self._before, kinds=kinds, conversation=conversation
        )

    async def entry_by_key(self, key: str) -> LogEntry | None:
        found = await super().entry_by_key(key)
        if found is None or found.seq >= self._before:
            return None
        if isinstance(found.fact, Message):  # a refused message is not quoted
            judged = await self.find_judgement(found.seq)
            return None if judged is not None and judged.fate == "refused" else found
        return found


class _NoMedia:
    """Attachments of nothing: turns with attachments are not compared."""

    async def describe_attachments(
        self, messages: Sequence[tuple[Seq, Message]], *, sees: bool
    ) -> dict[Seq, tuple[DescribedAttachment, ...]]:
        raise AssertionError(f"{len(messages)} messages, {sees}")


_KNOWN_ROLES: Final[dict[str, Role]] = {role: role for role in ("owner", "admin", "member", "guest", "blocked")}


IMAGES_REASON = "more images than one request takes"
"""Another reason for a fold, unknown to the planner: new input is not completely in the log."""


class ViewReplay:
    """Replay of one conversation's history views.

    The log does not record whether the model took tools, and the view depends on it: both variants are kept until one
    of them matches.
    """

    def __init__(self) -> None:
        self._views = {False: HistoryView(), True: HistoryView()}
        """Views by whether they are without tools."""

    def apply_entry(self, entry: LogEntry, report: ReplayReport | None) -> None:
        """Apply the next entry that changes the view. `report`: None: the entry is not compared."""
        match entry.fact:
            case TurnRecord():
                if report is not None:
                    self._compare_view(entry, entry.fact, report)
                for simple, view in self._views.items():
                    newest = HistoryTurn.from_record(entry.seq, entry.fact, entry.at, simple=simple)
                    self._views[simple] = replace(view, turns=(*view.turns, newest))
            case ViewFolded():
                if report is not None and entry.fact.weighed is not None:
                    self._compare_fold(entry, entry.fact, entry.fact.weighed, report)
                for simple, view in self._views.items():
                    left = [turn for turn in view.turns if turn.seq >= entry.fact.start]
                    self._views[simple] = HistoryView.build(_restore_whole(left), entry.fact, entry.seq)
            case ConversationRewound():
                for simple, view in self._views.items():
                    left = [turn for turn in view.turns if not entry.fact.first <= turn.seq <= entry.fact.last]
                    self._views[simple] = HistoryView.build(_restore_whole(left), view.fold, view.folded_at)
            case _:
                pass

    def _compare_view(self, entry: LogEntry, turn: TurnRecord, report: ReplayReport) -> None:
        if turn.view:
            right = {simple: view for simple, view in self._views.items() if view.digest == turn.view}
            if right:
                report.add_match("view")
                self._views = right
            else:
                view = next(iter(self._views.values()))
                now = f"it is {view.digest} of {len(view.turns)} turns"
                report.add_differences("view", entry.seq, entry.conversation, f"the view was {turn.view}, and {now}")
        elif turn.requests:
            report.add_skipped("view", "a dream, or of a version that did not tell what it was shown")
        if turn.weighed is not None:
            found = {simple: self._plan_again(simple, turn.weighed) for simple in self._views}
            verdicts = [_verdict_difference(decision, turn.weighed) for decision in found.values()]
            self._record_verdict(entry, verdicts, report)

    def _compare_fold(self, entry: LogEntry, folded: ViewFolded, weighed: FoldDecision, report: ReplayReport) -> None:
        verdicts = []
        for simple, view in self._views.items():
            decision = self._plan_again(simple, weighed)
            difference = _verdict_difference(decision, weighed)
            if not difference and IMAGES_REASON not in weighed.verdict and decision is not None:
                start = view.seq_at(decision.start) if decision.start else view.fold.start if view.fold else Seq(0)
                if (decision.kinds, start) != (folded.kinds, folded.start):
                    was, now = (
                        f"{', '.join(kinds)} from {at} on"
                        for kinds, at in ((folded.kinds, folded.start), (decision.kinds, start))
                    )
                    difference = f"it was folded by {was}, and is by {now}"
            verdicts.append(difference)
        self._record_verdict(entry, verdicts, report)

    def _record_verdict(self, entry: LogEntry, verdicts: list[str], report: ReplayReport) -> None:
        if "" in verdicts:
            report.add_match("planner")
        elif OTHER_VERSION in verdicts:
            report.add_skipped("planner", OTHER_VERSION)
        else:
            report.add_differences("planner", entry.seq, entry.conversation, verdicts[0])

    def _plan_again(self, simple: bool, weighed: FoldDecision) -> CompactionPlan | None:
        view = self._views[simple]
        try:
            return plan_compaction(view.sizes(written=weighed.written), load_params(weighed.situation))
        except (ValueError, TypeError):
            return None


OTHER_VERSION = "another version weighed it"


def _verdict_difference(decision: CompactionPlan | None, weighed: FoldDecision) -> str:
    if decision is None:
        return OTHER_VERSION
    verdict = weighed.verdict.removesuffix(IMAGES_REASON).strip("; ")
    return "" if decision.verdict == verdict else f"the verdict was {weighed.verdict!r}, and is {decision.verdict!r}"


def _restore_whole(turns: list[HistoryTurn]) -> list[HistoryTurn]:
    """Return the turns in their full form, whatever form they had in the view."""
    return [
        turn if turn.form is TurnForm.WHOLE else replace(turn, exchange=turn.raw, form=TurnForm.WHOLE) for turn in turns
    ]


ReplayProgress = Callable[[int, int], None]
"""Called now and then with the position reached and the last one."""

_REPLAYED_KINDS: Final = ("dmn", "folded", "rewound", "turn_ended")
_REPLAY_PAGE: Final = 500
"""Most entries in memory at once, apart from the views."""
_LOG_COLUMNS: Final = ("seq", "at", "kind", "conversation", "key", "cause", "body")


class InvalidLog(StoreError):
    """The file is not an export of a log."""


async def replay_log(
    reader: StoreReader, *, since: datetime | None, progress: ReplayProgress = lambda _done, _last: None
) -> ReplayReport:
    """Replay all entries since `since` (None: from the beginning) and compare.

    The history in view at the beginning is read as well. Entries appended meanwhile may or may not be included.
    """
    report, views = ReplayReport(), dict[ConversationId, ViewReplay]()
    last = await reader.last_position()
    after = await _find_position(reader, since, last) if since is not None else 0
    begin = Seq(after + 1)
    while page := await reader.entries(after=after, before=last + 1, kinds=_REPLAYED_KINDS, limit=_REPLAY_PAGE):
        for entry in page:
            await _replay_entry(reader, entry, begin, views, report)
        after = page[-1].seq
        progress(after, last)
    return report


async def _replay_entry(
    reader: StoreReader, entry: LogEntry, begin: Seq, views: dict[ConversationId, ViewReplay], report: ReplayReport
) -> None:
    report.add_entry(entry.seq, entry.at)
    fact, conversation = entry.fact, entry.conversation
    if isinstance(fact, DmnStateSaved):
        replay_dmn(report, entry.seq, fact)
        return
    if conversation is None:
        return
    if conversation not in views:
        views[conversation] = await _load_view(reader, conversation, begin)
    views[conversation].apply_entry(entry, report)
    if isinstance(fact, TurnRecord):
        await _compare_input(reader, entry, fact, report)


async def _load_view(reader: StoreReader, conversation: ConversationId, begin: Seq) -> ViewReplay:
    """Load the view of a conversation as it was when the range began."""
    view, start = ViewReplay(), 0
    for fold in await reader.newest_entries(1, before=begin, kinds=["folded"], conversation=conversation):
        start = fold.fact.start if isinstance(fold.fact, ViewFolded) else 0
    after, kinds = start - 1, ["turn_ended", "folded", "rewound"]
    while page := await reader.entries(
        after=after, before=begin, kinds=kinds, conversation=conversation, limit=_REPLAY_PAGE
    ):
        for entry in page:
            view.apply_entry(entry, None)
        after = page[-1].seq
    for fold in await reader.newest_entries(1, before=begin, kinds=["folded"], conversation=conversation):
        view.apply_entry(fold, None)
    return view


async def _find_position(reader: StoreReader, since: datetime, last: int) -> int:
    """Return the position behind which entries are not older than `since`.

    Times grow with positions unless the clock was set back.
    """
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        found = await reader.entries(after=middle, limit=1)
        if found and found[0].at < since:
            low = found[0].seq
        else:
            high = middle
    return low


@contextlib.asynccontextmanager
async def open_log(path: StoreLocation) -> AsyncIterator[StoreReader]:
    """Open a store, or import an export into a temporary one. Raises StoreError."""
    if not isinstance(path, Path):
        async with await Store.open_readonly(path) as reader:
            yield reader
        return
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InvalidLog(f"cannot read {path}: {error.strerror}") from error
    if head.startswith(b"SQLite format 3\0") or not head:
        async with await Store.open_readonly(path) as reader:
            yield reader
        return
    with tempfile.TemporaryDirectory(prefix="reverie-replay-") as folder:
        imported = Path(folder, "export.db")
        create_store_file(imported)
        migrate_schema(imported)
        with contextlib.closing(sqlite3.connect(sqlite_uri(imported, "rw"), uri=True)) as connection, connection:
            try:
                connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", _read_export(path))
            except (sqlite3.Error, OverflowError) as error:
                raise InvalidLog(f"{path} is no log: {error}") from error
        async with await Store.open_readonly(imported) as reader:
            yield reader


def _read_export(path: Path) -> Iterator[tuple[object, ...]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                *head, body = (row[name] for name in _LOG_COLUMNS)
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidLog(f"line {number} of {path} is no entry of a log: {type(error).__name__}") from error
            yield (*head, json.dumps(body, ensure_ascii=False))
