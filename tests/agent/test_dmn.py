"""Transitions of the network: every mode against every signal, and finer rules (before, signal,
after, effects)."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from agent import dmn, signals
from agent.signals import (
    BudgetSpent,
    Directive,
    DmnMode,
    DmnOrder,
    DmnPolicy,
    DmnState,
    Dream,
    Effect,
    Interrupt,
    LeftOff,
    ModelChanged,
    Noticed,
    Outage,
    PendingTurn,
    Persist,
    Presence,
    PutOffQuestion,
    RetryDue,
    SetRetryTimer,
    SetTimer,
    Signal,
    StartTurn,
    Steer,
    Stopping,
    Tick,
    TurnEnded,
)
from gateway.core.events import ConversationId

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=2)
A, B, C, D = (ConversationId(f"x/{name}") for name in "abcd")
INNER = ConversationId("agent/x")
POLICY = DmnPolicy(
    inner=INNER,
    lanes=3,
    max_autonomous_turns=3,
    daily_turns=5,
    forage_per_day=0,
)

Step = Callable[[DmnState, Signal, DmnPolicy], tuple[DmnState, tuple[Effect, ...]]]


def thread(number: int) -> ConversationId:
    return ConversationId(f"x/t/{number}")


def owed(conversation: ConversationId, *, direct: bool = False) -> PendingTurn:
    return PendingTurn(conversation=conversation, direct=direct)


def waits(
    conversation: ConversationId,
    wait_s: float = 5.0,
    *,
    failed: datetime | None = NOW,
    direct: bool = False,
    model: str = "",
) -> PutOffQuestion:
    return PutOffQuestion(
        conversation=conversation, direct=direct, model=model, wait_s=wait_s, failed=failed
    )


def in_mode(mode: DmnMode) -> DmnState:
    return DmnState(mode=mode, day="2026-03-01")


def order(order: DmnOrder) -> Directive:
    return Directive(at=NOW, order=order)


IDLE: dict[str, Signal] = {
    "urgent": Noticed(at=NOW, conversation=A, urgency=3),
    "owner": Noticed(at=NOW, conversation=A, urgency=3, trusted=True),
    "normal": Noticed(at=NOW, conversation=A, urgency=2),
    "low": Noticed(at=NOW, conversation=A, urgency=1),
    "tick": Tick(at=NOW),
    "wake": order("wake"),
    "pause": order("pause"),
    "rest": order("rest"),
    "store": order("store"),
    "quiet": order("quiet"),
    "off": order("off"),
    "asleep": Presence(at=NOW, level="sleeping"),
    "left": LeftOff(at=NOW, conversation=A),
    "retry": RetryDue(at=NOW, conversation=A),
    "other": ModelChanged(at=NOW),
    "spent": BudgetSpent(at=NOW),
    "stop": Stopping(at=NOW),
}
"""Nothing runs."""
BUSY: dict[str, Signal] = {
    "answered": TurnEnded(at=NOW, conversation=INNER),
    "unasked": TurnEnded(at=NOW, conversation=INNER, autonomous=True),
    "tools": TurnEnded(at=NOW, conversation=INNER, used_tools=True),
    "open": TurnEnded(at=NOW, conversation=INNER, open_work=True),
    "yield": TurnEnded(at=NOW, conversation=INNER, used_tools=True, open_work=True, yielded=True),
    "cut": TurnEnded(at=NOW, conversation=INNER, used_tools=True, interrupted=True),
    "failed": TurnEnded(failed=True, at=NOW, conversation=INNER),
    "again": TurnEnded(at=NOW, conversation=INNER, left=3),
    "tick": Tick(at=NOW),
}
"""A turn of the inner conversation runs."""

# E engaged, W working, F foraging, R resting, S stored, D dreaming, P paused, O off: what follows.
# `>`: a turn begins. `x`: the inner turn is interrupted.
WHEN_IDLE = """
     urgent owner normal low tick wake pause rest store quiet off asleep left retry other spent stop
E      E>    E>     E     E   F    E     P    R     S     E    O    E      E     E     E    E    E
W      E>    E>     W     W   F    W     P    R     S     W    O    W      W     W     W    W    W
F      E>    E>     F     F   R    F     P    R     S     F    O    F      F     F     F    F    F
R      E>    E>     R     R   R    F     P    R     S     R    O    R      R     R     R    R    R
S      E>    E>     S     S   S    F     P    R     S     S    O    S      S     S     S    S    S
P      P>    E>     P     P   P    F     P    P     P     P    O    P      P     P     P    P    P
O      O>    O>     O     O   O    F     P    O     O     O    O    O      O     O     O    O    O
"""
WHEN_PENDING = """
     tick
E     E>
W     W>
F     F>
R     R>
S     S
P     P
O     O
"""
WHEN_BUSY = """
     answered unasked tools open yield cut failed again tick
E        E       F      W     W    R    E    F     E>    E
W        W       F      W     W    R    W    F     E>    W
F        F       R      W     W    R    F    R     E>    F
R        R       R      W     W    R    R    R     E>    R
S        S       S      S     S    S    S    S     S>    S
D        R       R      R     R    R    R    R     E>    Rx
P        P       P      P     P    P    P    P     P>    P
O        O       O      O     O    O    O    O     O>    O
"""
WHEN_DREAMING = """
     urgent normal low wake pause rest store quiet off asleep left retry other spent stop
D     E>x     D     D   D    Px    Rx   Sx    D    Ox   D      D     D     D    D    D
"""

WHEN_PUT_OFF = """
     retry other left tick
E     E>    E>    E    F
W     E>    E>    W    F
F     E>    E>    F    R
R     E>    E>    R    R
S     E>    E>    S    S
P     P>    P>    P    P
O     O>    O>    O    O
"""
"""A question waits for a model."""

Cell = tuple[str, DmnState, Signal, DmnMode, bool, bool]


def cells() -> list[Cell]:
    """Each cell: its name, before, signal, the mode after, whether a turn begins, whether the inner
    one is cut."""
    letters = {mode.value[0].upper(): mode for mode in DmnMode}
    grids: list[tuple[str, dict[str, Signal], dict[str, tuple[object, ...]]]] = [
        (WHEN_IDLE, IDLE, {}),
        (WHEN_PENDING, IDLE, {"pending": (A,)}),
        (WHEN_BUSY, BUSY, {"running": (INNER,)}),
        (WHEN_DREAMING, IDLE, {"running": (INNER,)}),
        (WHEN_PUT_OFF, IDLE, {"put_off": (waits(A),)}),
    ]
    found: list[Cell] = []
    for grid, sent, more in grids:
        head, *rows = grid.strip().splitlines()
        for row in rows:
            letter, *outcomes = row.split()
            before = replace(in_mode(letters[letter]), **more)  # type: ignore[arg-type] # fields by name
            for name, outcome in zip(head.split(), outcomes, strict=True):
                title = f"{before.mode} {'/'.join(more)} {name}".replace("  ", " ")
                mode = letters[outcome[0]]
                found.append((title, before, sent[name], mode, ">" in outcome, "x" in outcome))
    return found


def start(
    conversation: ConversationId, *, autonomous: bool = False, continuing: bool = False
) -> StartTurn:
    return StartTurn(conversation=conversation, autonomous=autonomous, continuing=continuing)


def timer(delay_s: float, *, sooner: bool = False) -> SetTimer:
    return SetTimer(delay_s=delay_s, sooner=sooner)


E, W, F, R, S, DREAMING, P, OFF = (
    in_mode(mode) for mode in DmnMode
)  # in the order of their definition
SAVE, TICK, CUT = Persist(), Tick(at=NOW), Interrupt(conversation=INNER)
URGENT_A, NORMAL_A = IDLE["urgent"], IDLE["normal"]
DIRECT_D = Noticed(at=NOW, conversation=D, urgency=3, direct=True)


def ended(conversation: ConversationId, **more: object) -> TurnEnded:
    return TurnEnded(at=NOW, conversation=conversation, **more)  # type: ignore[arg-type] # fields by name


def unanswered(conversation: ConversationId, **more: object) -> TurnEnded:
    """End of a turn for which a person waits, and which no model answered."""
    given: dict[str, object] = {"no_model": "overloaded", "reason": "529", "awaited": True, **more}
    return TurnEnded(failed=True, at=NOW, conversation=conversation, **given)  # type: ignore[arg-type] # fields by name


def retry(conversation: ConversationId, delay_s: float) -> SetRetryTimer:
    return SetRetryTimer(conversation=conversation, delay_s=delay_s)


def down(
    until_s: float, since_s: float = 0.0, reason: str = "529", model: str = ""
) -> dict[str, Outage]:
    """An outage of a model, in seconds from now."""
    since, until = (NOW + timedelta(seconds=one_s) for one_s in (since_s, until_s))
    return {model: Outage(since=since, until=until, cause="overloaded", reason=reason)}


EARLIER = NOW - timedelta(minutes=1)
Row = tuple[str, DmnState, Signal, DmnState, tuple[Effect, ...]]

ROWS: list[Row] = [
    # somebody speaks
    (
        (
            "a person speaks: engaged, a turn at once, and the row of turns that nobody asked for is "
            "over"
        ),
        replace(R, autonomous=3),
        URGENT_A,
        replace(E, running=(A,)),
        (start(A), timer(5), SAVE),
    ),
    (
        "a direct chat is known as one while its turn runs",
        E,
        DIRECT_D,
        replace(E, running=(D,), chats=(D,)),
        (start(D),),
    ),
    (
        "where something was pending, continuing and low: one turn for all of it",
        replace(E, pending=(A, B), continuing=(A,), low=(A,)),
        URGENT_A,
        replace(E, running=(A,), pending=(B,)),
        (start(A),),
    ),
    (
        "to a turn that runs: it is told",
        replace(E, running=(A,)),
        URGENT_A,
        replace(E, running=(A,)),
        (Steer(conversation=A),),
    ),
    (
        "to a turn that runs, queue: its end tells what is left",
        replace(E, running=(A,)),
        Noticed(at=NOW, conversation=A, urgency=3, arrivals="queue"),
        replace(E, running=(A,)),
        (),
    ),
    (
        "to a turn that runs, interrupt: it is ended",
        replace(E, running=(A,)),
        Noticed(at=NOW, conversation=A, urgency=3, arrivals="interrupt"),
        replace(E, running=(A,)),
        (Interrupt(conversation=A),),
    ),
    (
        "something normal never disturbs a turn that runs",
        replace(E, running=(A,)),
        NORMAL_A,
        replace(E, running=(A,)),
        (),
    ),
    (
        "a second line where a turn is owed changes nothing",
        replace(E, running=(B, C), waiting=(owed(A),)),
        URGENT_A,
        replace(E, running=(B, C), waiting=(owed(A),)),
        (),
    ),
    # lanes
    (
        "rooms have all lanes but one: the next room waits",
        replace(E, running=(B, C)),
        URGENT_A,
        replace(E, running=(B, C), waiting=(owed(A),)),
        (),
    ),
    (
        "and a direct chat has the last",
        replace(E, running=(B, C), waiting=(owed(A),)),
        DIRECT_D,
        replace(E, running=(B, C, D), chats=(D,), waiting=(owed(A),)),
        (start(D),),
    ),
    (
        "direct chats that run shut out no room while a lane is free",
        replace(E, running=(C, D), chats=(C, D)),
        URGENT_A,
        replace(E, running=(C, D, A), chats=(C, D)),
        (start(A),),
    ),
    (
        "every lane is taken: a direct chat waits, too",
        replace(E, running=(A, B, C), chats=(C,)),
        DIRECT_D,
        replace(E, running=(A, B, C), chats=(C,), waiting=(owed(D, direct=True),)),
        (),
    ),
    (
        "a lane falls free: the first who waits has it",
        replace(W, running=(B, C), waiting=(owed(A), owed(D))),
        ended(B),
        replace(W, running=(C, A), waiting=(owed(D),)),
        (start(A),),
    ),
    (
        "of a room with many threads and one without turns, the latter has it",
        replace(W, running=(thread(1), thread(2)), waiting=(owed(thread(3)), owed(A))),
        ended(thread(1)),
        replace(W, running=(thread(2), A), waiting=(owed(thread(3)),)),
        (start(A),),
    ),
    # the inner turn gives way
    (
        (
            "a person speaks while the inner turn runs: it is ended, once, and the answer does not "
            "wait for that"
        ),
        replace(W, running=(INNER,)),
        URGENT_A,
        replace(E, running=(INNER, A), spared=True),
        (CUT, start(A), timer(5)),
    ),
    (
        "the second time it is let alone",
        replace(E, running=(INNER,), spared=True),
        URGENT_A,
        replace(E, running=(INNER, A), spared=True),
        (start(A),),
    ),
    (
        "unless a person would have to wait for it",
        replace(E, running=(INNER, B), spared=True),
        URGENT_A,
        replace(E, running=(INNER, B), spared=True, waiting=(owed(A),)),
        (CUT,),
    ),
    (
        "an interrupted inner turn is still spared the next time",
        replace(E, running=(INNER,), spared=True),
        ended(INNER, interrupted=True, left=2),
        replace(E, spared=True, pending=(INNER,)),
        (timer(5),),
    ),
    (
        "one that came to its end is not",
        replace(F, running=(INNER,), spared=True),
        ended(INNER, autonomous=True),
        replace(R, acted=NOW),
        (timer(290), SAVE),
    ),
    # what waits for a tick
    ("something normal waits for the tick", R, NORMAL_A, replace(R, pending=(A,)), ()),
    (
        "the tick takes up what is pending, in its order, and leaves the last lane free",
        replace(R, pending=(A, B, C)),
        TICK,
        replace(R, running=(A, B), pending=(C,), autonomous=2, acted=NOW, turns_today=2),
        (start(A, autonomous=True), start(B, autonomous=True), timer(290), SAVE),
    ),
    (
        "a tick while people wait starts nothing of its own",
        replace(E, running=(A, B), waiting=(owed(C),), pending=(D,)),
        TICK,
        replace(E, running=(A, B), waiting=(owed(C),), pending=(D,)),
        (timer(5),),
    ),
    (
        "what left work open goes on at the next tick",
        replace(E, running=(A,)),
        ended(A, used_tools=True, open_work=True),
        replace(W, continuing=(A,)),
        (timer(3),),
    ),
    (
        "though nothing is unread there",
        replace(W, continuing=(A,)),
        TICK,
        replace(W, running=(A,), autonomous=1, acted=NOW, turns_today=1),
        (start(A, autonomous=True, continuing=True), timer(3), SAVE),
    ),
    (
        "unless it yielded",
        replace(W, running=(A,)),
        ended(A, open_work=True, yielded=True),
        R,
        (timer(290),),
    ),
    (
        "what has come meanwhile takes its place",
        replace(W, running=(A,)),
        ended(A, open_work=True, left=3),
        replace(E, running=(A,)),
        (start(A), timer(5)),
    ),
    (
        "or stands beside it until the tick",
        replace(W, running=(A,)),
        ended(A, open_work=True, left=2),
        replace(W, continuing=(A,), pending=(A,)),
        (),
    ),
    (
        "what used tools and left nothing open: Working, and no turn",
        replace(E, running=(A,)),
        ended(A, used_tools=True),
        W,
        (timer(3),),
    ),
    ("which winds down at its tick", W, TICK, F, (timer(30),)),
    (
        "a turn that nobody asked for goes on by the same rule",
        replace(F, running=(A,)),
        ended(A, used_tools=True, autonomous=True),
        replace(W, acted=NOW),
        (timer(3), SAVE),
    ),
    (
        "Engaged lasts its time, from the end of the answer",
        replace(E, running=(A,)),
        ended(A),
        E,
        (timer(5),),
    ),
    ("and then it winds down", E, TICK, F, (timer(30),)),
    (
        "low waits for a turn that happens anyway",
        replace(F, low=(A,)),
        TICK,
        replace(R, low=(A,)),
        (timer(290),),
    ),
    # budgets
    (
        "so many in a row, and no more",
        replace(R, pending=(A,), autonomous=3),
        TICK,
        replace(R, pending=(A,), autonomous=3),
        (timer(290),),
    ),
    (
        "of two that are pending one may",
        replace(R, pending=(A, B), autonomous=2),
        TICK,
        replace(R, running=(A,), pending=(B,), autonomous=3, acted=NOW, turns_today=1),
        (start(A, autonomous=True), timer(290), SAVE),
    ),
    (
        "two turns are due, and the day has room for one of them",
        replace(R, pending=(A, B), turns_today=4),
        TICK,
        replace(R, running=(A,), pending=(B,), autonomous=1, acted=NOW, turns_today=5),
        (start(A, autonomous=True), timer(290), SAVE),
    ),
    (
        "so many a day",
        replace(R, pending=(A,), turns_today=5),
        TICK,
        replace(R, pending=(A,), turns_today=5),
        (timer(290),),
    ),
    (
        "none once a request was refused",
        replace(R, pending=(A,), spent_up=True),
        TICK,
        replace(R, pending=(A,), spent_up=True),
        (timer(290),),
    ),
    (
        "a new day has its own budgets",
        DmnState(pending=(A,), day="2026-02-28", turns_today=5, spent_up=True),
        TICK,
        replace(R, running=(A,), autonomous=1, acted=NOW, turns_today=1),
        (start(A, autonomous=True), timer(290), SAVE),
    ),
    (
        "what runs over midnight counts on the new day, but for answers in direct chats",
        DmnState(running=(A, D), chats=(D,), pending=(B,), day="2026-02-28", turns_today=4),
        TICK,
        replace(R, running=(A, D), chats=(D,), pending=(B,), turns_today=1),
        (timer(290), SAVE),
    ),
    (
        "a person is answered whatever was spent",
        replace(E, turns_today=5, spent_up=True),
        URGENT_A,
        replace(E, turns_today=5, spent_up=True, running=(A,)),
        (start(A),),
    ),
    # errors
    (
        "after errors the tick comes later and later",
        replace(F, running=(A,), errors=2),
        TurnEnded(failed=True, at=NOW, conversation=A, left=2),
        replace(R, errors=3, pending=(A,)),
        (timer(2400), SAVE),
    ),
    (
        "but once an hour, before the cache dies",
        replace(R, running=(A,), errors=9),
        TurnEnded(failed=True, at=NOW, conversation=A),
        replace(R, errors=10),
        (timer(3590), SAVE),
    ),
    ("an answer ends that", replace(E, running=(A,), errors=3), ended(A), E, (timer(5), SAVE)),
    # no model answers
    (
        "a question that no model answered is asked again in a moment",
        replace(E, running=(A,)),
        unanswered(A),
        replace(F, errors=1, put_off=(waits(A),)),
        (retry(A, 5), timer(60), SAVE),
    ),
    (
        "and then after twice the time",
        replace(F, running=(A,), errors=1, put_off=(waits(A, 5, failed=EARLIER), waits(B))),
        unanswered(A),
        replace(R, errors=2, put_off=(waits(B), waits(A, 10))),
        (retry(A, 10), timer(1200), SAVE),
    ),
    (
        "but at least once a minute",
        replace(R, running=(A,), errors=5, put_off=(waits(A, 40),)),
        unanswered(A),
        replace(R, errors=6, put_off=(waits(A, 60),)),
        (retry(A, 60), timer(3590), SAVE),
    ),
    (
        "unless its provider wants to be left alone for longer: nobody is asked meanwhile",
        replace(E, running=(A,)),
        unanswered(A, retry_after_s=120.0),
        replace(F, errors=1, put_off=(waits(A),), outages=down(120)),
        (retry(A, 120), timer(60), SAVE),
    ),
    (
        "which counts for five minutes at most",
        replace(E, running=(A,)),
        unanswered(A, retry_after_s=3600.0),
        replace(F, errors=1, put_off=(waits(A),), outages=down(3600)),
        (retry(A, 300), timer(60), SAVE),
    ),
    (
        "a question that comes meanwhile waits until then, and no model has failed at it",
        replace(E, running=(A,), outages=down(90, -30)),
        unanswered(A, asked=False, reason="unasked"),
        replace(F, errors=1, put_off=(waits(A, failed=None),), outages=down(90, -30)),
        (retry(A, 90), timer(60), SAVE),
    ),
    (
        "a turn that was under way fails meanwhile: the longer time holds",
        replace(E, running=(A,), outages=down(90, -30)),
        unanswered(A, retry_after_s=20.0, reason="503"),
        replace(F, errors=1, put_off=(waits(A),), outages=down(90, reason="503")),
        (retry(A, 90), timer(60), SAVE),
    ),
    (
        "nobody waits for the answer: it is not asked again",
        replace(F, running=(A,)),
        unanswered(A, awaited=False, retry_after_s=60.0, continues=True, autonomous=True),
        replace(R, errors=1, acted=NOW, continuing=(A,), outages=down(60)),
        (timer(600), SAVE),
    ),
    (
        "it is answered: a model is back, and the others are asked at once",
        replace(E, running=(A, C), put_off=(waits(A), waits(B), waits(C))),
        ended(A, answered=EARLIER),
        replace(E, running=(C, B), put_off=(waits(B), waits(C)), answers={"": EARLIER}),
        (start(B), timer(5)),
    ),
    (
        "another is answered: a model may fail at these questions alone, so they wait",
        replace(E, running=(A,), put_off=(waits(B),), answers={"": NOW}),
        ended(A, answered=EARLIER),
        replace(E, put_off=(waits(B),), answers={"": NOW}),
        (timer(5),),
    ),
    (
        "another model answers: what waits for this one waits on",
        replace(E, running=(A,), put_off=(waits(A, model="second"), waits(B)), outages=down(90)),
        ended(A, answered=EARLIER, model="second"),
        replace(E, put_off=(waits(B),), answers={"second": EARLIER}, outages=down(90)),
        (timer(5),),
    ),
    (
        "another model is away for longer: each has its own time",
        replace(E, running=(A,), outages=down(900)),
        unanswered(A, model="second", retry_after_s=120.0),
        replace(
            F,
            errors=1,
            put_off=(waits(A, model="second"),),
            outages=down(900) | down(120, model="second"),
        ),
        (retry(A, 120), timer(60), SAVE),
    ),
    (
        "what asked for an answer is gone: a model may still be away",
        replace(E, running=(A,), put_off=(waits(A), waits(B))),
        ended(A),
        replace(E, put_off=(waits(B),)),
        (timer(5),),
    ),
    (
        "it has waited too long, or is at fault: it waits no longer",
        replace(F, running=(A,), errors=1, put_off=(waits(A), waits(B))),
        TurnEnded(failed=True, at=NOW, conversation=A),
        replace(R, errors=2, put_off=(waits(B),)),
        (timer(1200), SAVE),
    ),
    (
        "its time comes while its turn runs already: the end of that decides",
        replace(E, running=(A,), put_off=(waits(A),)),
        RetryDue(at=NOW, conversation=A),
        replace(E, running=(A,), put_off=(waits(A),)),
        (),
    ),
    (
        "a question of a direct chat waits as one",
        replace(E, running=(D,), chats=(D,)),
        unanswered(D, direct=True),
        replace(F, errors=1, put_off=(waits(D, direct=True),)),
        (retry(D, 5), timer(60), SAVE),
    ),
    (
        "and is asked again in the lane that is kept for these",
        replace(E, running=(B, C), put_off=(waits(D, direct=True),)),
        RetryDue(at=NOW, conversation=D),
        replace(E, running=(B, C, D), chats=(D,), put_off=(waits(D, direct=True),)),
        (start(D),),
    ),
    (
        "another model: all are asked at once, and it has failed at none of them",
        replace(E, put_off=(waits(A), waits(B)), outages=down(90)),
        ModelChanged(at=NOW),
        replace(E, running=(A, B), put_off=(waits(A, failed=None), waits(B, failed=None))),
        (start(A), start(B)),
    ),
    (
        "what is left off is not asked again",
        replace(E, put_off=(waits(A), waits(B))),
        LeftOff(at=NOW, conversation=A),
        replace(E, put_off=(waits(B),)),
        (),
    ),
    (
        "stopping: the next process asks it",
        replace(E, running=(A,), stopping=True),
        unanswered(A),
        replace(F, errors=1, stopping=True),
        (SAVE,),
    ),
    # the timer
    (
        "a person's word does not put off what is pending",
        replace(F, pending=(B,)),
        URGENT_A,
        replace(E, running=(A,), pending=(B,)),
        (start(A), timer(5, sooner=True)),
    ),
    (
        "nor does the end of the answer",
        replace(E, running=(A,), pending=(B,)),
        ended(A),
        replace(E, pending=(B,)),
        (timer(5, sooner=True),),
    ),
    (
        "quiet: woken when it is over",
        R,
        Directive(at=NOW, order="quiet", until=LATER),
        replace(R, quiet_until=LATER),
        (timer(120), SAVE),
    ),
    # overlays and directives
    (
        "quiet: nothing pending is taken up",
        replace(F, pending=(A,), quiet_until=LATER),
        TICK,
        replace(R, pending=(A,), quiet_until=LATER),
        (timer(120),),
    ),
    (
        "quiet: a person is answered, and it stays quiet",
        replace(R, quiet_until=LATER),
        URGENT_A,
        replace(E, running=(A,), quiet_until=LATER),
        (start(A), timer(5)),
    ),
    (
        "quiet ends by itself",
        replace(R, pending=(A,), quiet_until=NOW),
        TICK,
        replace(R, running=(A,), autonomous=1, acted=NOW, turns_today=1),
        (start(A, autonomous=True), timer(290), SAVE),
    ),
    (
        "the people sleep: nothing pending is taken up",
        replace(R, pending=(A,), presence="sleeping"),
        TICK,
        replace(R, pending=(A,), presence="sleeping"),
        (timer(290),),
    ),
    (
        "the people sleep: who speaks is answered",
        replace(E, presence="sleeping"),
        URGENT_A,
        replace(E, presence="sleeping", running=(A,)),
        (start(A),),
    ),
    (
        "what is left off is owed to nobody there, and to others as before",
        replace(
            E, running=(C, D), waiting=(owed(A), owed(B)), continuing=(A,), pending=(A, B), low=(A,)
        ),
        LeftOff(at=NOW, conversation=A),
        replace(E, running=(C, D), waiting=(owed(B),), pending=(B,)),
        (),
    ),
    (
        "what is left off while its turn runs: that ends by itself",
        replace(E, running=(A,)),
        LeftOff(at=NOW, conversation=A),
        replace(E, running=(A,)),
        (),
    ),
    (
        "how near the people are is kept",
        R,
        Presence(at=NOW, level="away"),
        replace(R, presence="away"),
        (SAVE,),
    ),
    (
        "stored until a time, or a kind of event",
        replace(W, continuing=(A,)),
        Directive(at=NOW, order="store", until=LATER, on=("x.link",)),
        replace(S, stored_until=LATER, wake_on=("x.link",)),
        (timer(120), SAVE),
    ),
    (
        "that time has come",
        replace(S, stored_until=NOW, wake_on=("x.link",), pending=(A,)),
        TICK,
        replace(R, running=(A,), autonomous=1, acted=NOW, turns_today=1, woken=True),
        (start(A, autonomous=True), timer(290), SAVE),
    ),
    (
        "that kind of event has come, low as it is: it is pending",
        replace(S, stored_until=LATER, wake_on=("x.link",)),
        Noticed(at=NOW, conversation=INNER, urgency=1, type="x.link.down"),
        replace(F, pending=(INNER,), woken=True),
        (timer(30), SAVE),
    ),
    (
        "another kind only waits",
        replace(S, stored_until=LATER, wake_on=("x.link",)),
        Noticed(at=NOW, conversation=INNER, urgency=2, type="x.linked"),
        replace(S, stored_until=LATER, wake_on=("x.link",), pending=(INNER,)),
        (),
    ),
    (
        "a person's word ends the rest",
        replace(S, stored_until=LATER, wake_on=("x.link",)),
        URGENT_A,
        replace(E, running=(A,)),
        (start(A), timer(5), SAVE),
    ),
    (
        "rest: no longer stored, and nothing goes on",
        replace(S, stored_until=LATER, wake_on=("x.link",), continuing=(A,)),
        order("rest"),
        R,
        (timer(290), SAVE),
    ),
    (
        "wake: everything that held is lifted, and the counts of rows and errors",
        replace(
            S,
            stored_until=LATER,
            quiet_until=LATER,
            autonomous=3,
            errors=4,
            turns_today=5,
            spent_up=True,
        ),
        order("wake"),
        replace(F, turns_today=5, spent_up=True),
        (timer(30), SAVE),
    ),
    (
        "pause: the inner turn is ended, an answer is not, and nothing goes on",
        replace(W, running=(INNER, A), continuing=(B,), pending=(C,)),
        order("pause"),
        replace(P, running=(INNER, A), pending=(C,)),
        (CUT, timer(290), SAVE),
    ),
    (
        "paused: an older word that is left is answered, and lifts nothing",
        replace(P, running=(A,)),
        ended(A, used_tools=True, left=3),
        replace(P, running=(A,)),
        (start(A),),
    ),
    ("off: a person is answered", OFF, URGENT_A, replace(OFF, running=(A,)), (start(A),)),
    # dreams
    (
        "at rest, with enough written down: a dream",
        replace(R, spared=True),
        Tick(at=NOW, material_tokens=500),
        replace(DREAMING, running=(INNER,), dreamt=NOW, autonomous=1, acted=NOW, turns_today=1),
        (Dream(), timer(600), SAVE),
    ),
    ("with a little less: none", R, Tick(at=NOW, material_tokens=499), R, (timer(290),)),
    ("not from foraging", F, Tick(at=NOW, material_tokens=500), R, (timer(290),)),
    (
        "not so soon again",
        replace(R, dreamt=NOW - timedelta(hours=17, minutes=59)),
        Tick(at=NOW, material_tokens=500),
        replace(R, dreamt=NOW - timedelta(hours=17, minutes=59)),
        (timer(290),),
    ),
    (
        "what is pending goes first",
        replace(R, pending=(A,)),
        Tick(at=NOW, material_tokens=500),
        replace(R, running=(A,), autonomous=1, acted=NOW, turns_today=1),
        (start(A, autonomous=True), timer(290), SAVE),
    ),
    (
        "not while a turn runs",
        replace(R, running=(A,)),
        Tick(at=NOW, material_tokens=500),
        replace(R, running=(A,)),
        (timer(290),),
    ),
    (
        "not when the day's turns are used up",
        replace(R, turns_today=5),
        Tick(at=NOW, material_tokens=500),
        replace(R, turns_today=5),
        (timer(290),),
    ),
    (
        "not after an error",
        replace(R, errors=1),
        Tick(at=NOW, material_tokens=500),
        replace(R, errors=1),
        (timer(600),),
    ),
    (
        "it takes too long: it is ended",
        replace(DREAMING, running=(INNER,)),
        TICK,
        replace(R, running=(INNER,)),
        (CUT, timer(290)),
    ),
    (
        "a tick that comes early leaves it the rest of its time",
        replace(DREAMING, running=(INNER,), dreamt=NOW - timedelta(minutes=4)),
        TICK,
        replace(DREAMING, running=(INNER,), dreamt=NOW - timedelta(minutes=4)),
        (timer(360),),
    ),
    (
        "one that no model answered may be dreamt again in an hour",
        replace(DREAMING, running=(INNER,), dreamt=NOW - timedelta(minutes=4)),
        TurnEnded(failed=True, at=NOW, conversation=INNER, no_model="overloaded"),
        replace(R, errors=1, dreamt=NOW - timedelta(hours=17)),
        (timer(600), SAVE),
    ),
    (
        (
            "unless something is pending elsewhere, such as a reminder: that does not wait, and the "
            "dream gives way"
        ),
        replace(DREAMING, running=(INNER,), pending=(A,), dreamt=NOW),
        TICK,
        replace(R, running=(INNER, A), dreamt=NOW, autonomous=1, acted=NOW, turns_today=1),
        (CUT, start(A, autonomous=True), timer(290), SAVE),
    ),
    (
        "a person speaks: the dream gives way",
        replace(DREAMING, running=(INNER,)),
        URGENT_A,
        replace(E, running=(INNER, A), spared=True),
        (CUT, start(A), timer(5)),
    ),
    # the end
    (
        "stopping: who waits is served by the next process",
        replace(E, running=(A, B), waiting=(owed(C),), pending=(D,), continuing=(D,), low=(D,)),
        Stopping(at=NOW),
        replace(E, running=(A, B), stopping=True),
        (),
    ),
    (
        "stopping: nothing new starts",
        replace(R, stopping=True),
        URGENT_A,
        replace(R, stopping=True),
        (),
    ),
    (
        "stopping: what ends leaves nothing behind, and arms no timer",
        replace(E, running=(A,), stopping=True),
        ended(A, used_tools=True, left=3),
        replace(E, stopping=True),
        (),
    ),
    ("a turn that is not under way cannot end", R, ended(A, used_tools=True, left=3), R, ()),
]


# Transitions of the network, as `dmn_transitions` lists them, and the functions around `step`.

CELLS = cells()


@pytest.mark.parametrize(
    ("before", "signal", "mode", "starts", "cuts"),
    [c[1:] for c in CELLS],
    ids=[c[0] for c in CELLS],
)
def test_mode(before: DmnState, signal: Signal, mode: DmnMode, starts: bool, cuts: bool) -> None:
    after, effects = dmn.step(before, signal, POLICY)
    assert (after.mode, StartTurn in map(type, effects), CUT in effects) == (mode, starts, cuts)


@pytest.mark.parametrize(
    ("before", "signal", "after", "effects"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_transition(
    before: DmnState, signal: Signal, after: DmnState, effects: tuple[Effect, ...]
) -> None:
    assert dmn.step(before, signal, POLICY) == (after, effects)


def test_every_mode_stands_against_every_signal() -> None:
    seen = {(before.mode, type(signal)) for _, before, signal, *_ in CELLS}
    assert seen == {(mode, kind) for mode in DmnMode for kind in signals.Signal.__args__}


def test_a_foraging_agent_takes_up_low_notices_so_many_times_a_day() -> None:
    keen, low = (
        replace(POLICY, forage_per_day=2, daily_turns=9, max_autonomous_turns=9),
        IDLE["low"],
    )
    state = dmn.step(R, low, keen)[0]
    assert dmn.step(state, TICK, keen)[0].low == (A,), "at rest it waits"
    for foraged in range(3):
        state = replace(F, foraged_today=state.foraged_today, day=state.day)
        state, effects = dmn.step(dmn.step(state, low, keen)[0], TICK, keen)
        assert (start(A, autonomous=True) in effects) == (foraged < 2)
        assert state.foraged_today == min(foraged + 1, 2)
    owed = replace(state, mode=DmnMode.FORAGING, pending=(B,), running=())
    after, effects = dmn.step(owed, TICK, keen)
    assert start(B, autonomous=True) in effects, "what is owed is no look"
    assert (after.low, after.foraged_today) == ((A,), 2)
    morning = dmn.step(
        replace(state, mode=DmnMode.FORAGING), Tick(at=NOW + timedelta(days=1)), keen
    )
    assert (start(A, autonomous=True) in morning[1], morning[0].foraged_today) == (True, 1)
    assert dmn.load_state(dmn.dump_state(state)).foraged_today == 2


def test_an_agent_at_rest_looks_once_at_what_is_low_for_an_hour() -> None:
    keen, low, hour = replace(POLICY, forage_per_day=1), IDLE["low"], timedelta(hours=1)
    state = dmn.step(dmn.step(R, low, keen)[0], Noticed(at=LATER, conversation=B, urgency=1), keen)[
        0
    ]
    assert (state.low, state.low_since) == ((A, B), NOW), "since the first of them"
    early = dmn.step(state, Tick(at=NOW + hour - timedelta(seconds=1)), keen)
    assert (early[0], start(A, autonomous=True) in early[1]) == (state, False)
    due = Tick(at=NOW + hour)
    after, effects = dmn.step(state, due, keen)
    assert start(A, autonomous=True) in effects
    assert start(B, autonomous=True) not in effects, "one a day"
    assert (after.low, after.foraged_today) == ((B,), 1)
    nothing = dmn.step(replace(after, low=(), low_since=None, running=()), due, keen)
    assert not any(isinstance(effect, StartTurn) for effect in nothing[1])
    for mode in (DmnMode.PAUSED, DmnMode.OFF, DmnMode.STORED):
        assert dmn.step(replace(state, mode=mode), due, keen)[0].low == (A, B), mode
    asleep = replace(state, presence="sleeping")
    assert dmn.step(asleep, due, keen)[0].low == (A, B), "not while people sleep"
    assert dmn.load_state(dmn.dump_state(state)).low_since is None, "noticed again"


def test_what_people_asked_for_at_this_time_is_held_by_no_sleep_and_no_number_of_turns() -> None:
    asleep = replace(R, presence="sleeping", pending=(A, B))
    after, effects = dmn.step(asleep, Tick(at=NOW, promised=(B, C)), POLICY)
    assert [one for one in effects if isinstance(one, StartTurn)] == [start(B, autonomous=True)]
    assert after.pending == (A,)
    spent = replace(R, pending=(A, B), autonomous=3, acted=NOW, turns_today=5, spent_up=True)
    after, effects = dmn.step(spent, Tick(at=NOW, promised=(B,)), POLICY)
    assert [one for one in effects if isinstance(one, StartTurn)] == [start(B, autonomous=True)]
    assert (after.autonomous, after.turns_today) == (3, 5), "it is not the agent's own"
    quiet = dmn.step(replace(asleep, quiet_until=LATER), Tick(at=NOW, promised=(B,)), POLICY)
    assert quiet[0].pending == (A,), "nor by quiet: it was asked for"
    off = dmn.step(replace(asleep, mode=DmnMode.OFF), Tick(at=NOW, promised=(B,)), POLICY)
    assert off[0].pending == (A, B)


def test_after_a_rest_turns_are_no_more_in_a_row() -> None:
    many = replace(R, pending=(A,), autonomous=3, acted=NOW)
    rested = Tick(at=NOW + timedelta(seconds=POLICY.resting_s / 2))
    assert dmn.step(many, TICK, POLICY)[0].pending == (A,)
    after = dmn.step(many, rested, POLICY)[0]
    assert (after.running, after.autonomous) == ((A,), 1)


def test_a_turn_that_takes_longer_than_a_rest_is_none() -> None:
    late = NOW + timedelta(seconds=POLICY.resting_s)
    slow = replace(R, running=(A,), pending=(B,), autonomous=3, acted=NOW)
    assert dmn.count_in_a_row(slow, POLICY, late) == 3
    ended = TurnEnded(at=late, conversation=A, open_work=True, autonomous=True)
    after = dmn.step(slow, ended, POLICY)[0]
    assert dmn.step(after, Tick(at=late), POLICY)[0].running == ()


def test_with_one_lane_a_room_may_have_it() -> None:
    narrow = replace(POLICY, lanes=1)
    after, effects = dmn.step(R, IDLE["urgent"], narrow)
    assert start(A) in effects
    after, effects = dmn.step(
        after, Noticed(at=NOW, conversation=B, urgency=3, direct=True), narrow
    )
    assert after.waiting == (owed(B, direct=True),)


HELD = [
    ("the gateway is stopping", replace(R, stopping=True)),
    ("it is off", in_mode(DmnMode.OFF)),
    ("it is paused", in_mode(DmnMode.PAUSED)),
    ("it rests until it is woken", in_mode(DmnMode.STORED)),
    ("it rests until 2026-03-01 12:02 UTC", replace(in_mode(DmnMode.STORED), stored_until=LATER)),
    (
        "it rests until it is woken or x.link, y comes",
        replace(in_mode(DmnMode.STORED), wake_on=("x.link", "y")),
    ),
    ("it is quiet until 2026-03-01 12:02 UTC", replace(R, quiet_until=LATER)),
    ("it is quiet until it is woken", replace(R, quiet_until=dmn.FOREVER)),
    ("the people are asleep", replace(R, presence="sleeping")),
    ("3 turns in a row (max_autonomous_turns)", replace(R, autonomous=3)),
    ("5 turns today (daily_turns)", replace(R, turns_today=5)),
    ("its money for today is spent (daily_cost_usd)", replace(R, spent_up=True)),
    ("every lane is taken", replace(R, running=(A, B))),
    ("every lane is taken", replace(R, running=(A,), waiting=(owed(C),))),
]


@pytest.mark.parametrize(("reason", "state"), HELD)
def test_it_says_why_nothing_starts(reason: str, state: DmnState) -> None:
    assert dmn.blocking_reasons(state, POLICY, NOW) == (reason,)
    assert dmn.blocking_reasons(R, POLICY, NOW) == ()


@pytest.mark.parametrize(
    ("calm_s", "errors", "waits_s"),
    [
        (5, 0, 5),
        (289, 0, 289),
        (291, 0, 290),  # a cached prompt lives 300 s
        (300, 0, 290),
        (330, 0, 290),
        (331, 0, 331),  # much later: it does not matter any more
        (300, 1, 600),
        (300, 20, 3590),  # an hour, but for the caches that live as long
        (7200, 3, 7200),  # never sooner than without errors
        (1, 3, 8),
    ],
)
def test_the_interval(calm_s: float, errors: int, waits_s: float) -> None:
    assert (
        dmn.interval_s(replace(R, errors=errors), DmnPolicy(inner=INNER, resting_s=calm_s), NOW)
        == waits_s
    )


@pytest.mark.parametrize(
    ("failed", "answered", "faulty"),
    [
        (NOW, LATER, True),
        (NOW, NOW, True),
        (LATER, NOW, False),  # that turn had begun before a model failed at this one
        (NOW, None, False),
        (None, LATER, False),
    ],
)
def test_a_question_is_at_fault_if_others_were_answered_since(
    failed: datetime | None, answered: datetime | None, *, faulty: bool
) -> None:
    answers = {"": answered} if answered is not None else {}
    state = replace(R, put_off=(waits(A, failed=failed),), answers=answers)
    assert (dmn.is_faulty(state, A), dmn.is_faulty(state, B)) == (faulty, False)
    elsewhere = replace(state, put_off=(waits(A, failed=failed, model="second"),))
    assert not dmn.is_faulty(elsewhere, A)


@pytest.mark.parametrize(("at_s", "is_away"), [(-31, False), (-30, True), (89, True), (90, False)])
def test_no_model_is_asked_in_an_outage(at_s: float, *, is_away: bool) -> None:
    """A clock that is set back does not make it longer."""
    state, at = replace(R, outages=down(90, -30)), NOW + timedelta(seconds=at_s)
    assert (dmn.find_outage(state, "", at) is not None) == is_away
    assert dmn.find_outage(state, "second", at) is None


def test_what_outlives_the_process() -> None:
    until = NOW + timedelta(hours=1)
    lasting = DmnState(
        mode=DmnMode.STORED,
        autonomous=2,
        day="2026-03-01",
        turns_today=4,
        spent_up=True,
        errors=1,
        presence="away",
        quiet_until=until,
        stored_until=until,
        wake_on=("x",),
        dreamt=NOW,
    )
    moment = replace(
        lasting,
        running=(A,),
        chats=(A,),
        waiting=(owed(B),),
        pending=(C,),
        continuing=(C,),
        low=(C,),
        put_off=(waits(A),),
        answers={"": NOW},
        outages=down(60),
    )
    assert dmn.load_state(dmn.dump_state(replace(moment, spared=True, stopping=True))) == lasting
    assert (
        dmn.load_state(dmn.dump_state(replace(in_mode(DmnMode.DREAMING), dreamt=NOW))) == R
    )  # to be dreamt again


def test_state_that_was_not_saved_by_us_is_refused() -> None:
    assert dmn.load_state('{"spent_today_usd": 0.5}') == DmnState(), "of an older version"
    with pytest.raises(ValueError):
        dmn.load_state('{"mode": "asleep"}')
