"""What a conversation's turns were shown of the past, made again, with what the planner said of it. Pure.

Whether the model took tools is not in the log, and what is shown depends on it: both are made, until one of them proves
to be the right one.
"""

from dataclasses import replace

from agent import folding
from agent.projection import TurnForm
from gateway.past import HistoryTurn, HistoryView
from gateway.records import ConversationRewound, FoldDecision, Seq, TurnRecord, ViewFolded
from gateway.replay import ReplayReport
from gateway.store import LogEntry

IMAGES_REASON = "more images than one request takes"
"""What else a fold may be for, which the planner does not know: what was new is not all in the log."""


class ViewReplay:
    """One conversation."""

    def __init__(self) -> None:
        self._views = {False: HistoryView(), True: HistoryView()}
        """By whether the model takes no tools."""

    def apply_entry(self, entry: LogEntry, report: ReplayReport | None) -> None:
        """The next entry of that conversation that changes its view. `report`: None, if it is not to be compared."""
        match entry.fact:
            case TurnRecord():
                if report is not None:
                    self._compare_view(entry, entry.fact, report)
                for simple, view in self._views.items():
                    self._views[simple] = view.with_turn(
                        HistoryTurn.from_record(entry.seq, entry.fact, entry.at, simple=simple)
                    )
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

    def _compare_view(self, entry: LogEntry, ended: TurnRecord, report: ReplayReport) -> None:
        if ended.view:
            right = {simple: view for simple, view in self._views.items() if view.digest == ended.view}
            if right:
                report.add_match("view")
                self._keep_matching(set(right))
            else:
                view = next(iter(self._views.values()))
                now = f"it is {view.digest} of {len(view.turns)} turns"
                report.add_differences("view", entry.seq, entry.conversation, f"the view was {ended.view}, and {now}")
        elif ended.requests:
            report.add_skipped("view", "a dream, or of a version that did not tell what it was shown")
        if ended.weighed is not None:
            found = {simple: self._plan_again(simple, ended.weighed) for simple in self._views}
            said = [_verdict_difference(decision, ended.weighed) for decision in found.values()]
            self._record_verdict(entry, said, report)

    def _compare_fold(self, entry: LogEntry, folded: ViewFolded, weighed: FoldDecision, report: ReplayReport) -> None:
        said = []
        for simple, view in self._views.items():
            decision = self._plan_again(simple, weighed)
            unlike = _verdict_difference(decision, weighed)
            if not unlike and IMAGES_REASON not in weighed.verdict and decision is not None:
                start = view.seq_at(decision.start) if decision.start else view.fold.start if view.fold else Seq(0)
                if (decision.kinds, start) != (folded.kinds, folded.start):
                    was, now = (
                        f"{', '.join(kinds)} from {at} on"
                        for kinds, at in ((folded.kinds, folded.start), (decision.kinds, start))
                    )
                    unlike = f"it was folded by {was}, and is by {now}"
            said.append(unlike)
        self._record_verdict(entry, said, report)

    def _record_verdict(self, entry: LogEntry, said: list[str], report: ReplayReport) -> None:
        if "" in said:
            report.add_match("planner")
        elif OTHER_VERSION in said:
            report.add_skipped("planner", OTHER_VERSION)
        else:
            report.add_differences("planner", entry.seq, entry.conversation, said[0])

    def _plan_again(self, simple: bool, weighed: FoldDecision) -> folding.CompactionPlan | None:
        view = self._views[simple]
        try:
            return folding.plan_compaction(view.sizes(written=weighed.written), folding.load_params(weighed.situation))
        except (ValueError, TypeError):
            return None

    def _keep_matching(self, right: set[bool]) -> None:
        if len(right) < len(self._views):
            self._views = {simple: view for simple, view in self._views.items() if simple in right}


OTHER_VERSION = "another version weighed it"


def _verdict_difference(decision: folding.CompactionPlan | None, weighed: FoldDecision) -> str:
    if decision is None:
        return OTHER_VERSION
    verdict = weighed.verdict.removesuffix(IMAGES_REASON).strip("; ")
    return "" if decision.verdict == verdict else f"the verdict was {weighed.verdict!r}, and is {decision.verdict!r}"


def _restore_whole(turns: list[HistoryTurn]) -> list[HistoryTurn]:
    """As the log has them, whatever form they were told in."""
    return [
        turn if turn.form is TurnForm.WHOLE else replace(turn, exchange=turn.raw, form=TurnForm.WHOLE) for turn in turns
    ]
