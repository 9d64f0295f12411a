"""What a conversation's turns were shown of the past, made again, with what the planner said of it. Pure.

Whether the model took tools is not in the log, and what is shown depends on it: both are made, until one of them proves
to be the right one.
"""

from dataclasses import replace

from agent import folding
from agent.projection import Form
from gateway.past import PastTurn, View
from gateway.records import Folded, Rewound, Seq, TurnEnded, Weighed
from gateway.replay import Report
from gateway.store import Stored

IMAGES = "more images than one request takes"
"""What else a fold may be for, which the planner does not know: what was new is not all in the log."""


class Reseen:
    """One conversation."""

    def __init__(self) -> None:
        self._views = {False: View(), True: View()}
        """By whether the model takes no tools."""

    def apply_entry(self, entry: Stored, report: Report | None) -> None:
        """The next entry of that conversation that changes its view. `report`: None, if it is not to be compared."""
        match entry.fact:
            case TurnEnded():
                if report is not None:
                    self._compare_view(entry, entry.fact, report)
                for simple, view in self._views.items():
                    self._views[simple] = view.with_turn(
                        PastTurn.from_record(entry.seq, entry.fact, entry.at, simple=simple)
                    )
            case Folded():
                if report is not None and entry.fact.weighed is not None:
                    self._compare_fold(entry, entry.fact, entry.fact.weighed, report)
                for simple, view in self._views.items():
                    left = [turn for turn in view.turns if turn.seq >= entry.fact.start]
                    self._views[simple] = View.build(_whole(left), entry.fact, entry.seq)
            case Rewound():
                for simple, view in self._views.items():
                    left = [turn for turn in view.turns if not entry.fact.first <= turn.seq <= entry.fact.last]
                    self._views[simple] = View.build(_whole(left), view.fold, view.folded_at)
            case _:
                pass

    def _compare_view(self, entry: Stored, ended: TurnEnded, report: Report) -> None:
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
            said = [_unlike(decision, ended.weighed) for decision in found.values()]
            self._record_verdict(entry, said, report)

    def _compare_fold(self, entry: Stored, folded: Folded, weighed: Weighed, report: Report) -> None:
        said = []
        for simple, view in self._views.items():
            decision = self._plan_again(simple, weighed)
            unlike = _unlike(decision, weighed)
            if not unlike and IMAGES not in weighed.verdict and decision is not None:
                start = view.seq_at(decision.start) if decision.start else view.fold.start if view.fold else Seq(0)
                if (decision.kinds, start) != (folded.kinds, folded.start):
                    was, now = (
                        f"{', '.join(kinds)} from {at} on"
                        for kinds, at in ((folded.kinds, folded.start), (decision.kinds, start))
                    )
                    unlike = f"it was folded by {was}, and is by {now}"
            said.append(unlike)
        self._record_verdict(entry, said, report)

    def _record_verdict(self, entry: Stored, said: list[str], report: Report) -> None:
        if "" in said:
            report.add_match("planner")
        elif OLD in said:
            report.add_skipped("planner", OLD)
        else:
            report.add_differences("planner", entry.seq, entry.conversation, said[0])

    def _plan_again(self, simple: bool, weighed: Weighed) -> folding.Decision | None:
        view = self._views[simple]
        try:
            return folding.decide(view.sizes(written=weighed.written), folding.load(weighed.situation))
        except (ValueError, TypeError):
            return None

    def _keep_matching(self, right: set[bool]) -> None:
        if len(right) < len(self._views):
            self._views = {simple: view for simple, view in self._views.items() if simple in right}


OLD = "another version weighed it"


def _unlike(decision: folding.Decision | None, weighed: Weighed) -> str:
    if decision is None:
        return OLD
    verdict = weighed.verdict.removesuffix(IMAGES).strip("; ")
    return "" if decision.verdict == verdict else f"the verdict was {weighed.verdict!r}, and is {decision.verdict!r}"


def _whole(turns: list[PastTurn]) -> list[PastTurn]:
    """As the log has them, whatever form they were told in."""
    return [turn if turn.form is Form.WHOLE else replace(turn, exchange=turn.raw, form=Form.WHOLE) for turn in turns]
