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

    def take(self, entry: Stored, report: Report | None) -> None:
        """The next entry of that conversation that changes its view. `report`: None, if it is not to be compared."""
        match entry.fact:
            case TurnEnded():
                if report is not None:
                    self._shown(entry, entry.fact, report)
                for simple, view in self._views.items():
                    self._views[simple] = view.grown(PastTurn.of(entry.seq, entry.fact, entry.at, simple=simple))
            case Folded():
                if report is not None and entry.fact.weighed is not None:
                    self._folded(entry, entry.fact, entry.fact.weighed, report)
                for simple, view in self._views.items():
                    left = [turn for turn in view.turns if turn.seq >= entry.fact.start]
                    self._views[simple] = View.of(_whole(left), entry.fact, entry.seq)
            case Rewound():
                for simple, view in self._views.items():
                    left = [turn for turn in view.turns if not entry.fact.first <= turn.seq <= entry.fact.last]
                    self._views[simple] = View.of(_whole(left), view.fold, view.folded_at)
            case _:
                pass

    def _shown(self, entry: Stored, ended: TurnEnded, report: Report) -> None:
        if ended.view:
            right = {simple: view for simple, view in self._views.items() if view.digest == ended.view}
            if right:
                report.same("view")
                self._settle(set(right))
            else:
                view = next(iter(self._views.values()))
                now = f"it is {view.digest} of {len(view.turns)} turns"
                report.differs("view", entry.seq, entry.conversation, f"the view was {ended.view}, and {now}")
        elif ended.requests:
            report.skip("view", "a dream, or of a version that did not tell what it was shown")
        if ended.weighed is not None:
            found = {simple: self._decided(simple, ended.weighed) for simple in self._views}
            said = [_unlike(decision, ended.weighed) for decision in found.values()]
            self._judge(entry, said, report)

    def _folded(self, entry: Stored, folded: Folded, weighed: Weighed, report: Report) -> None:
        said = []
        for simple, view in self._views.items():
            decision = self._decided(simple, weighed)
            unlike = _unlike(decision, weighed)
            if not unlike and IMAGES not in weighed.verdict and decision is not None:
                start = view.place(decision.start) if decision.start else view.fold.start if view.fold else Seq(0)
                if (decision.kinds, start) != (folded.kinds, folded.start):
                    was, now = (
                        f"{', '.join(kinds)} from {at} on"
                        for kinds, at in ((folded.kinds, folded.start), (decision.kinds, start))
                    )
                    unlike = f"it was folded by {was}, and is by {now}"
            said.append(unlike)
        self._judge(entry, said, report)

    def _judge(self, entry: Stored, said: list[str], report: Report) -> None:
        if "" in said:
            report.same("planner")
        elif OLD in said:
            report.skip("planner", OLD)
        else:
            report.differs("planner", entry.seq, entry.conversation, said[0])

    def _decided(self, simple: bool, weighed: Weighed) -> folding.Decision | None:
        view = self._views[simple]
        try:
            return folding.decide(view.sizes(written=weighed.written), folding.load(weighed.situation))
        except (ValueError, TypeError):
            return None

    def _settle(self, right: set[bool]) -> None:
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
