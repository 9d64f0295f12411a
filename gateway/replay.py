"""A stretch of the log, decided again: what is compared, and what is told of it. Pure.

Four sorts of things are compared. `replay_dmn`: what a Default Mode Network was told gives the same states and effects.
`planner`: what a fold was decided by gives the same verdict. `view`: what stands in front of a turn, with folds and
rewinds, gives the history that it was shown, byte for byte. `heard`: the messages that it was told of read the same.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from agent import stretch
from agent.signals import DmnPolicy
from gateway.events import ConversationId
from gateway.records import DmnStateSaved, Seq

ReplayCheck = Literal["dmn", "planner", "view", "heard"]
REPLAY_CHECKS: Final[tuple[ReplayCheck, ...]] = get_args(ReplayCheck)
MAX_DIFFERENCES: Final = 1_000
"""That are kept, and told; more are counted."""
NO_SEQ: Final = Seq(0)
EXCERPT_CHARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """Something that does not come out as it was written down."""

    seq: Seq
    """The entry that says otherwise."""
    check: ReplayCheck
    conversation: ConversationId | None
    what: str
    """In words, for people. Untrusted text may be in it."""


@dataclass(slots=True)
class ReplayTally:
    """Of one sort."""

    compared: int = 0
    agree: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """What could not be compared, by the reason."""


@dataclass(slots=True)
class ReplayReport:
    """What came of it, so far."""

    first: Seq = NO_SEQ
    last: Seq = NO_SEQ
    """The stretch; both 0: nothing of it was seen yet."""
    since: datetime | None = None
    until: datetime | None = None
    signals: int = 0
    quiet_signals: int = 0
    """Signals of the networks that were decided again, and that were only counted."""
    tallies: dict[ReplayCheck, ReplayTally] = field(
        default_factory=lambda: {sort: ReplayTally() for sort in REPLAY_CHECKS}
    )
    differences: list[ReplayDifference] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    policies: dict[str, DmnPolicy] = field(default_factory=dict)
    """By which each agent decided last, as far as the log tells."""

    @property
    def is_identical(self) -> bool:
        """Nothing differs."""
        return all(tally.agree == tally.compared for tally in self.tallies.values())

    def add_match(self, sort: ReplayCheck) -> None:
        """One more came out as it was."""
        self.tallies[sort].compared += 1
        self.tallies[sort].agree += 1

    def add_skipped(self, sort: ReplayCheck, reason: str) -> None:
        """One cannot be compared."""
        self.tallies[sort].skipped[reason] += 1

    def add_differences(self, sort: ReplayCheck, seq: Seq, conversation: ConversationId | None, *what: str) -> None:
        """One did not come out as it was, in these ways."""
        self.tallies[sort].compared += 1
        room = MAX_DIFFERENCES - len(self.differences)
        made = (
            ReplayDifference(seq=seq, check=sort, conversation=conversation, what=one) for one in what[: max(0, room)]
        )
        self.differences += made

    def add_entry(self, seq: Seq, at: datetime) -> None:
        """This entry is part of the stretch."""
        self.first, self.since = self.first or seq, self.since or at
        self.last, self.until = seq, at


def replay_dmn(report: ReplayReport, seq: Seq, saved: DmnStateSaved) -> None:
    """Decide again what an agent's network was told up to this save."""
    if not saved.signals:
        report.add_skipped("dmn", "nothing is written down of what it was told")
        return
    found = stretch.replay_trace(saved.signals, saved.state)
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
    """Say of which agents the configuration has another policy than the log."""
    report.remarks += [
        f"{agent}: the configuration says another policy for the DMN than the log, which was decided again by its own"
        for agent, policy in sorted(report.policies.items())
        if agent in now and now[agent] != policy
    ]


def describe_text_difference(was: str, now: str) -> str:
    """Where two texts part, in words."""
    place = next((i for i, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), None)
    place = min(len(was), len(now)) if place is None else place
    begin = max(0, place - EXCERPT_CHARS // 3)
    before, after = (f"{text[begin : begin + EXCERPT_CHARS]!r}" for text in (was, now))
    return f"from character {place} on it was {before}, and is {after} ({len(was)} and {len(now)} characters)"


def format_replay_report(report: ReplayReport) -> list[str]:
    """For people. Untrusted text may be in it: not safe on a terminal as it is."""
    if not report.last or report.since is None or report.until is None:
        return ["nothing of the log is in this stretch that could be decided again"]
    told = [f"entries {report.first} to {report.last}, {_format_time(report.since)} to {_format_time(report.until)}"]
    for sort, tally in report.tallies.items():
        more = f" ({report.signals} signals; {report.quiet_signals} changed nothing)" if sort == "dmn" else ""
        told.append(f"{_CHECK_LABELS[sort]}: {tally.compared} compared{more}, {tally.agree} agree")
        told += [f"  not compared: {count}, {reason}" for reason, count in tally.skipped.most_common()]
    told += report.remarks
    told += [f"{one.seq:>8}  {one.check:<7}  {one.conversation or '-'}  {one.what}" for one in report.differences]
    differ = sum(tally.compared - tally.agree for tally in report.tallies.values())
    told.append(f"{differ} differ" if differ else "nothing differs")
    return told


def replay_report_as_json(report: ReplayReport) -> dict[str, object]:
    """For programs."""
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


_CHECK_LABELS: Final[dict[ReplayCheck, str]] = {
    "dmn": "what the networks decided",
    "planner": "whether to fold",
    "view": "what turns were shown of the past",
    "heard": "what turns were told as new",
}


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
