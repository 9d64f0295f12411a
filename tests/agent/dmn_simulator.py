"""A shell in miniature.

Carries out what the network asks for, as `gateway.runtime.agent` does, and holds it to its laws.

Turns take time and end some time; what is said is remembered until a turn has heard it; the timer
is one.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from agent import dmn, signals
from agent.signals import (
    NORMAL,
    URGENT,
    BudgetSpent,
    Directive,
    DmnMode,
    DmnOrder,
    DmnPolicy,
    DmnState,
    Dream,
    Effect,
    Interrupt,
    ModelChanged,
    Noticed,
    PendingTurn,
    Presence,
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
from gateway.core.events import ConversationId, PresenceLevel, room_of

START = datetime(2026, 3, 1, 20, tzinfo=UTC)
"""Four hours before a new day."""
LONGEST_TURN_S = 900.0
NEVER = datetime.max.replace(tzinfo=UTC)
INNER = ConversationId("agent/x")
ROOMS = tuple(ConversationId(f"x/#{n}") for n in range(3))
CHATS = tuple(ConversationId(f"x/@{n}") for n in range(2))
PLACES = (*ROOMS, *CHATS, INNER)


class Core(Protocol):
    """`agent.dmn`, or a mutant of it."""

    step: Callable[[DmnState, Signal, DmnPolicy], tuple[DmnState, tuple[Effect, ...]]]
    blocking_reasons: Callable[[DmnState, DmnPolicy, datetime], tuple[str, ...]]
    due_conversations: Callable[[DmnState, DmnPolicy, datetime], tuple[ConversationId, ...]]
    interval_s: Callable[[DmnState, DmnPolicy, datetime], float]


@dataclass
class Turn:
    autonomous: bool
    began: datetime
    cut: bool = False
    """It was interrupted, and ends as soon as time passes."""
    told: bool = False
    """It was steered: hears what has come if it uses tools after that, else leaves it unread."""


@dataclass
class Counts:
    """Turns that the shell itself has counted, to compare with the limits."""

    in_a_row: int = 0
    acted: datetime | None = None
    """Time at which the last of them began or ended."""
    by_day: dict[str, int] = field(default_factory=dict)
    refused_on: set[str] = field(default_factory=set)


class Shell:
    """Every method is something that may happen; every law is checked after every signal."""

    def __init__(self, core: Core, policy: DmnPolicy) -> None:
        self.core, self.policy = core, policy
        self.now = START
        self.state = DmnState()
        self.turns: dict[ConversationId, Turn] = {}
        self.unread: dict[ConversationId, int] = {}
        self.open: set[ConversationId] = set()
        """Conversations whose last turn left work open."""
        self.put_off: dict[ConversationId, datetime] = {}
        """Questions that no model answered, and when each is asked again."""
        self.queue: list[PendingTurn] = []
        """Conversations with an owed answer and no turn, oldest first. Kept apart from the
        state."""
        self.counts = Counts()
        self.quiet_until: datetime | None = None
        self.stopped = False
        self.material = 0
        self.tick_at = START + timedelta(seconds=core.interval_s(self.state, policy, START))
        self.armed = True
        self.wanted_since: datetime | None = None

    # what may happen

    def say(
        self,
        place: ConversationId,
        urgency: int,
        arrivals: signals.ArrivalPolicy = "steer",
        *,
        trusted: bool = False,
    ) -> None:
        """Something is ripe there."""
        before = self.state.mode
        self.unread[place] = max(urgency, self.unread.get(place, 0))
        direct, urgent = place in CHATS, urgency >= URGENT and not self.stopped
        if urgent:
            self.counts.in_a_row = 0
            if place not in self.turns and all(owed.conversation != place for owed in self.queue):
                self.queue.append(PendingTurn(conversation=place, direct=direct))
        must_wait = not self._fits(direct=direct)
        running = place in self.turns
        effects = self.send(
            Noticed(
                at=self.now,
                conversation=place,
                urgency=urgency,
                type="x.y",
                direct=direct,
                arrivals=arrivals,
                trusted=trusted,
            )
        )
        lifted = before in {DmnMode.PAUSED, DmnMode.OFF} and self.state.mode is not before
        assert not lifted or (trusted and before is DmnMode.PAUSED), (
            "only who may lifts a pause, and nobody what is off"
        )
        if urgent and running:
            told = {"steer": Steer(conversation=place), "interrupt": Interrupt(conversation=place)}
            assert arrivals == "queue" or told[arrivals] in effects, (
                "a running turn is told as configured"
            )
        elif urgent:
            started = any(
                isinstance(effect, StartTurn) and effect.conversation == place for effect in effects
            )
            assert started or any(owed.conversation == place for owed in self.state.waiting), (
                "urgent is answered"
            )
            if must_wait and INNER in self.turns:
                assert Interrupt(conversation=INNER) in effects, "nobody waits for the inner turn"

    def end(
        self,
        which: int,
        *,
        tools: bool,
        yielded: bool,
        failed: bool,
        open_work: bool = False,
        no_model: bool = False,
        retry_s: float = 0.0,
    ) -> None:
        """End one of the running turns. `no_model`: why one failed that was not asked for by
        itself."""
        if not self.turns:
            return
        place = list(self.turns)[which % len(self.turns)]
        turn = self.turns.pop(place)
        self.open.discard(place)
        self.counts.acted = self.now if turn.autonomous else self.counts.acted
        if open_work and not (failed or yielded or turn.cut):
            self.open.add(place)
        if turn.told and tools:
            self.unread[place] = 0
        left, direct = self.unread.get(place, 0), place in CHATS
        waits = failed and no_model and not (turn.autonomous or turn.cut or self.stopped)
        left = 0 if waits else left  # all that is unread waits for a model
        asked_before = self.put_off.pop(place, None)
        is_back = asked_before is not None and not (failed or turn.cut or self.stopped)
        if left >= URGENT and not self.stopped:
            self.queue.append(PendingTurn(conversation=place, direct=direct))
        if is_back:
            self._owe(self.put_off)
        if failed and not turn.cut:
            self.wanted_since = None  # after errors it waits longer
            if waits:
                self.unread[place], self.put_off[place] = 0, NEVER
            effects = self.send(
                TurnEnded(
                    failed=True,
                    at=self.now,
                    conversation=place,
                    autonomous=turn.autonomous,
                    left=left,
                    direct=direct,
                    no_model="overloaded" if waits else None,
                    awaited=waits,
                    retry_after_s=retry_s,
                )
            )
            retries = [one for one in effects if isinstance(one, SetRetryTimer)]
            assert [one.conversation for one in retries] == [place] * waits, "it is asked again"
            if waits:
                self.put_off[place] = self.now + timedelta(seconds=retries[0].delay_s)
            return
        self.send(
            TurnEnded(
                at=self.now,
                conversation=place,
                used_tools=tools,
                open_work=open_work,
                yielded=yielded and not turn.cut,
                interrupted=turn.cut,
                autonomous=turn.autonomous,
                left=left,
                direct=direct,
                answered=None if turn.cut else turn.began,
            )
        )

    def _owe(self, places: Iterable[ConversationId]) -> None:
        """Turns are owed there from now on, unless one runs or is owed already."""
        owed = {one.conversation for one in self.queue} | set(self.turns)
        for place in places:
            if place not in owed:
                self.queue.append(PendingTurn(conversation=place, direct=place in CHATS))
        self.counts.in_a_row = 0 if places else self.counts.in_a_row

    def retry(self) -> None:
        """The time of the questions has come that are asked again next."""
        for place in [one for one, at in self.put_off.items() if at <= self.now]:
            self.put_off[place] = NEVER  # its end decides
            if not self.stopped:
                self._owe([place])
            self.send(RetryDue(at=self.now, conversation=place))

    def change_model(self) -> None:
        """Another model is asked from now on."""
        if not self.stopped:
            self._owe(self.put_off)
        self.send(ModelChanged(at=self.now))

    def wait(self, seconds: float) -> None:
        """Time passes: interrupted and long turns end, and the timer comes as often as it is
        due."""
        until = self.now + timedelta(seconds=seconds)
        while True:
            ends = [self._ends(turn) for turn in self.turns.values()]
            timers = (*self.put_off.values(), self.tick_at if self.armed else until)
            due = [at for at in (*ends, *timers) if at <= until]
            if not due or min(due) >= until:
                break
            self.now = max(self.now, min(due))
            if ends and min(ends) <= self.now:
                self.end(ends.index(min(ends)), tools=False, yielded=False, failed=False)
            elif any(at <= self.now for at in self.put_off.values()):
                self.retry()
            else:
                self.tick()
        self.now = until

    def tick(self) -> None:
        self.armed = False
        before, at = self.state, self.now
        held = self.core.blocking_reasons(before, self.policy, at)
        wanted = self.core.due_conversations(before, self.policy, at)
        effects = self.send(Tick(at=at, material_tokens=self.material))
        starts = [
            effect for effect in effects if isinstance(effect, StartTurn) and effect.autonomous
        ]
        dreams = [effect for effect in effects if isinstance(effect, Dream)]
        assert not (starts and dreams)
        assert not starts or wanted, "a tick with nothing wanted starts nothing"
        assert not dreams or (self.material >= self.policy.dream_tokens and not wanted), (
            "a dream needs material"
        )
        assert not (held and (starts or dreams)), f"held, and yet begun: {held}"
        assert held or not wanted or starts, "wanted, not held, and not begun"
        assert all(start.conversation in wanted for start in starts)
        assert all(start.conversation in self.open for start in starts if start.continuing), (
            "only open work goes on"
        )
        if dreams:
            self.material = 0

    def level(self, level: PresenceLevel) -> None:
        """The people come nearer, or go."""
        self.send(Presence(at=self.now, level=level))

    def order(self, order: DmnOrder, seconds: float | None) -> None:
        until = None if seconds is None else self.now + timedelta(seconds=seconds)
        if order == "quiet":
            self.quiet_until = until or datetime.max.replace(tzinfo=UTC)
        if order == "wake":
            self.quiet_until, self.counts.in_a_row = None, 0
        self.wanted_since = None  # the timer is set anew
        self.send(Directive(at=self.now, order=order, until=until, on=("x",)))

    def refuse(self) -> None:
        self.counts.refused_on.add(self.now.date().isoformat())
        self.send(BudgetSpent(at=self.now))

    def write_down(self, tokens: int) -> None:
        self.material += tokens

    def restart(self) -> None:
        """The process is killed, and begins again: nothing by itself, and then with what is
        unread."""
        kept = self.state
        self.state = dmn.load_state(dmn.dump_state(kept))
        assert self.state == dmn.persistent(kept)
        assert not any(
            (self.state.running, self.state.waiting, self.state.pending, self.state.continuing)
        )
        for place in self.turns:
            self.unread[place] = URGENT if not self.turns[place].autonomous else NORMAL
        self.unread |= dict.fromkeys(self.put_off, URGENT)
        self.put_off = {}
        self.turns, self.queue, self.stopped, self.wanted_since = {}, [], False, None
        (material, unread), (self.material, self.unread) = (self.material, self.unread), (0, {})
        self.level(self.state.presence)
        self.tick()
        assert not self.turns, "a restart starts nothing by itself"
        self.material = material
        for place, urgency in unread.items():
            if urgency:
                self.say(place, urgency)

    def stop(self) -> None:
        self.stopped, self.queue = True, []
        self.send(Stopping(at=self.now))

    def drain(self) -> None:
        """Nobody says anything more, and turns end, one after the other: then everybody has been
        answered."""
        self.change_model()
        for _ in range(4 * len(PLACES)):
            self.end(0, tools=False, yielded=False, failed=False)
        assert not self.queue
        assert not self.turns
        assert self.stopped or not self.put_off
        if self.stopped:
            return
        assert not any(urgency >= URGENT for urgency in self.unread.values()), (
            "everybody is answered"
        )
        self.tick()  # what comes of it has to end, too
        while self.turns:
            self.end(0, tools=False, yielded=False, failed=False)
        if not self.core.due_conversations(self.state, self.policy, self.now):
            calm = {DmnMode.RESTING, DmnMode.STORED, DmnMode.PAUSED, DmnMode.OFF}
            for _ in range(2):
                self.tick()
            assert self.state.mode in {*calm, DmnMode.DREAMING}, (
                "left alone it rests within two ticks"
            )

    # what must hold

    def send(self, signal: Signal) -> tuple[Effect, ...]:
        """Let the network decide, hold it to its laws, and do what it asks for."""
        before = self.state
        self.state, effects = self.core.step(before, signal, self.policy)
        self._check_lasting(before, effects)
        self._carry_out(signal, before, effects)
        self._check_state()
        self._check_timer(signal)
        return effects

    def _carry_out(self, signal: Signal, before: DmnState, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case StartTurn(conversation=place, autonomous=autonomous):
                    assert not self.stopped, "nothing begins once it stops"
                    self._begin(place, autonomous=autonomous, signal=signal, before=before)
                case Dream():
                    self._begin(INNER, autonomous=True, signal=signal, before=before)
                case Steer(conversation=place):
                    self.turns[place].told = True
                case Interrupt(conversation=place):
                    self.turns[place].cut = True
                case SetTimer(delay_s=delay_s, sooner=sooner):
                    assert 0 < delay_s <= 3600, "sooner or later"
                    at = self.now + timedelta(seconds=delay_s)
                    if not (sooner and self.armed and self.tick_at <= at):
                        self.tick_at, self.armed = at, True
                case _:
                    pass

    def _begin(
        self, place: ConversationId, *, autonomous: bool, signal: Signal, before: DmnState
    ) -> None:
        assert place not in self.turns, "one turn at a time in a conversation"
        if autonomous:
            self._check_autonomous(signal, before)
        else:
            self._check_order(place)
        self.turns[place] = Turn(autonomous=autonomous, began=self.now)
        self.unread[place] = 0

    def _check_order(self, place: ConversationId) -> None:
        """First come, first served among rooms with as few turns; a chat may pass rooms that have
        all their lanes."""
        at = next(i for i, owed in enumerate(self.queue) if owed.conversation == place)
        running = Counter(map(room_of, self.turns))
        for number, other in enumerate(self.queue):
            fewer = running[room_of(other.conversation)] - running[room_of(place)]
            goes_first = fewer < 0 or (fewer == 0 and number < at)
            assert not (goes_first and self._fits(direct=other.direct)), (
                "nobody is passed over while there is a lane"
            )
        assert self._fits(direct=self.queue[at].direct), "rooms leave one lane to direct chats"
        del self.queue[at]

    def _fits(self, *, direct: bool) -> bool:
        others = sum(turn.autonomous or place not in CHATS for place, turn in self.turns.items())
        return len(self.turns) < self.policy.lanes and (
            direct or others < max(1, self.policy.lanes - 1)
        )

    def _check_autonomous(self, signal: Signal, before: DmnState) -> None:
        assert isinstance(signal, Tick), "only a tick begins what nobody asked for"
        assert before.mode not in {DmnMode.OFF, DmnMode.PAUSED}
        assert before.mode is not DmnMode.STORED or (
            before.stored_until is not None and before.stored_until <= self.now
        )
        assert self.quiet_until is None or self.quiet_until <= self.now, "quiet"
        assert before.presence != "sleeping"
        assert not self.queue, "people go first"
        counts, day = self.counts, self.now.date().isoformat()
        pause = timedelta(seconds=self.policy.resting_s / 2)
        rested = self.now - counts.acted if counts.acted and not before.running else timedelta(0)
        counts.in_a_row, counts.acted = 1 if rested >= pause else counts.in_a_row + 1, self.now
        counts.by_day[day] = counts.by_day.get(day, 0) + 1
        assert self.state.foraged_today <= self.policy.forage_per_day, "so many looks a day"
        assert counts.in_a_row <= self.policy.max_autonomous_turns, "so many in a row"
        assert counts.by_day[day] <= self.policy.daily_turns, "so many a day"
        assert day not in counts.refused_on, "none once a request was refused"

    def _check_state(self) -> None:
        state = self.state
        assert tuple(self.turns) == state.running
        assert len(state.running) <= self.policy.lanes
        assert [owed.conversation for owed in state.waiting] == [
            owed.conversation for owed in self.queue
        ]
        assert {one.conversation for one in state.put_off} == set(self.put_off)
        places = (state.pending, state.continuing, state.low)
        assert all(len(set(each)) == len(each) for each in places)
        assert not set(state.running) & {place for each in places for place in each}
        assert not {owed.conversation for owed in state.waiting} & {
            place for each in places for place in each
        }
        for owed in state.waiting:
            assert not self._fits(direct=owed.direct), "nobody waits beside a free lane"
        assert (state.low_since is not None) == bool(state.low), "since when is known"
        assert state.mode is not DmnMode.DREAMING or INNER in state.running
        assert state.mode is DmnMode.STORED or (state.stored_until is None and not state.wake_on)
        assert (
            state.mode not in {DmnMode.STORED, DmnMode.PAUSED, DmnMode.OFF} or not state.continuing
        )
        if not self.stopped:
            for place, urgency in self.unread.items():
                if (
                    urgency >= NORMAL
                    and place not in state.running
                    and place not in (o.conversation for o in self.queue)
                ):
                    assert place in state.pending, "what is unread is known"

    def _check_timer(self, signal: Signal) -> None:
        assert self.armed or self.stopped, "never idle and unarmed"
        wanted = bool(self.core.due_conversations(self.state, self.policy, self.now))
        if not wanted or isinstance(signal, Tick) or self.state.errors:
            self.wanted_since = self.now if wanted and not self.state.errors else None
        elif self.wanted_since is None and not self.state.errors:
            self.wanted_since = self.now
        if self.wanted_since is not None and not self.stopped:
            longest = timedelta(seconds=max(self.policy.resting_s, self.policy.dreaming_s))
            assert self.tick_at <= self.wanted_since + longest, (
                "talk does not put off what waits for a tick"
            )

    def _check_lasting(self, before: DmnState, effects: tuple[Effect, ...]) -> None:
        changed = dmn.dump_state(before) != dmn.dump_state(self.state)
        assert changed == any(isinstance(effect, signals.Persist) for effect in effects)

    def _ends(self, turn: Turn) -> datetime:
        return self.now if turn.cut else turn.began + timedelta(seconds=LONGEST_TURN_S)
