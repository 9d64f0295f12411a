"""The Default Mode Network: decides at any time what the agent does next. Pure.

Rules:
  1. `step` is total and pure: any signal in any state gives a next state and effects. The time
     comes with the signal; the shell (`gateway.runtime.agent`) carries out the effects and sends
     the next signal.
  2. One turn at a time in a conversation, at most `DmnPolicy.lanes` at once. The next one is in the
     room with the fewest turns under way, so that no room with many threads keeps others waiting;
     among these, first come first served.
  3. A tick with nothing pending starts nothing. Only a message from a person, a notification that
     attention rates as normal, or work that the agent itself has begun ever costs a model call.
  4. The timer is always armed, except after `Stopping`.
  5. A tick starts nothing in a conversation where a person has just spoken to the agent: their
     message begins the turn, which then counts as theirs. While people sleep it starts only what
     they asked for at this time.
  6. A question that no model answered waits, and is asked again: after a time that doubles, once
     its provider may be asked again, when another question that waited is answered, and when the
     model changes. If others were answered since a model failed at it, the question is at fault.

Theory of operation. A person speaks to the agent: the mode becomes Engaged, and a turn starts at
once or as soon as a lane is free. A turn that used tools leads to Working, but only one that left
work open continues, at the next tick. Another turn that answered a person leaves the mode as it is;
one that nobody asked for winds down one step, and a turn that yielded leads to Resting. Ticks take
up pending conversations; with nothing pending they wind down too, so that an agent left alone
reaches Resting within two ticks and stays there, or dreams once there are enough notes. At rest it
looks at low notifications once, an hour after the first of them came. Stored,
Paused and Off start nothing by themselves, but a message from a person is answered in all of them.
Any person's message ends Stored, an owner's or admin's ends Paused, and no message ends Off. Quiet
applies on top of every mode. Autonomous turns are limited: by number in a row and per day, and
by the money of the day, of which the shell tells when it is spent; after errors the intervals
between them double.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

from pydantic import TypeAdapter

from agent.signals import (
    LOW,
    MAX_TOLD_WAIT_S,
    NORMAL,
    PASSIVE_MODES,
    URGENT,
    BudgetSpent,
    Directive,
    DmnMode,
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
from gateway.core.events import ConversationId, room_of

MAX_BACKOFF_S = 3600.0
"""Errors double the interval up to an hour. A longer one would look dead, a shorter one keeps
costing money."""
CACHE_MARGIN_S = 10.0
"""A cached prompt is read again at the latest this long before it expires."""
DREAM_RETRY_S = 3600.0
"""A dream for which no model answered is dreamt again this long after it at the earliest, once one
has answered."""
FIRST_AWAY_S, MAX_AWAY_S = 5.0, 60.0
"""Time after which a question that no model answered is asked again: doubling, at most this."""
LOW_WAIT = timedelta(hours=1)
"""An agent at rest looks at low notifications once, this long after the first of them came."""
FOREVER = datetime.max.replace(tzinfo=UTC)

WIND_DOWN = {
    DmnMode.ENGAGED: DmnMode.FORAGING,
    DmnMode.WORKING: DmnMode.FORAGING,
    DmnMode.FORAGING: DmnMode.RESTING,
    DmnMode.DREAMING: DmnMode.RESTING,
}
"""Next mode if nothing happens. Modes that are not listed stay."""

StepResult = tuple[DmnState, tuple[Effect, ...]]


def interval_s(state: DmnState, policy: DmnPolicy, at: datetime) -> float:
    """Return the seconds until the next tick."""
    mode_interval_s = {
        DmnMode.ENGAGED: policy.engaged_s,
        DmnMode.WORKING: policy.working_s,
        DmnMode.FORAGING: policy.foraging_s,
        DmnMode.DREAMING: policy.dreaming_s,
    }.get(state.mode, policy.resting_s)
    wait_s = max(
        mode_interval_s, min(mode_interval_s * 2.0 ** min(state.errors, 12), MAX_BACKOFF_S)
    )
    for (
        lifetime_s
    ) in policy.lifetimes_s:  # a tick at the end of a lifetime would come too late for that cache
        if lifetime_s - CACHE_MARGIN_S < wait_s <= lifetime_s * 1.1 and lifetime_s > CACHE_MARGIN_S:
            wait_s = lifetime_s - CACHE_MARGIN_S
    for until in (state.quiet_until, state.stored_until):
        if until is not None and until > at:
            wait_s = min(wait_s, (until - at).total_seconds())
    if state.mode is DmnMode.DREAMING and (left_s := _dream_left_s(state, policy, at)) > 0:
        wait_s = min(wait_s, left_s)
    return wait_s


def blocking_reasons(
    state: DmnState, policy: DmnPolicy, at: datetime, *, promised: bool = False
) -> tuple[str, ...]:
    """Return the reasons, in words, why no autonomous turn may start now. Empty: one may.

    `promised`: one for which people asked at this time.
    """
    state = _reset_daily(state, at)
    is_quiet = state.quiet_until is not None and state.quiet_until > at
    reasons = (
        (state.stopping, "the gateway is stopping"),
        (state.mode is DmnMode.OFF, "it is off"),
        (state.mode is DmnMode.PAUSED, "it is paused"),
        (
            state.mode is DmnMode.STORED and not _is_woken(state, at),
            f"it rests until {_format_until(state)}",
        ),
        (_free_lanes(state, policy) <= 0, "every lane is taken"),
    )
    limits = (
        (is_quiet, f"it is quiet until {_format_date(state.quiet_until)}"),
        (state.presence == "sleeping", "the people are asleep"),
        (
            (row := count_in_a_row(state, policy, at)) >= policy.max_autonomous_turns,
            f"{row} turns in a row (max_autonomous_turns)",
        ),
        (state.turns_today >= policy.daily_turns, f"{state.turns_today} turns today (daily_turns)"),
        (state.spent_up, "its money for today is spent (daily_cost_usd)"),
    )
    held = reasons if promised else (*reasons, *limits)
    return tuple(reason for holds, reason in held if holds)


def count_in_a_row(state: DmnState, policy: DmnPolicy, at: datetime) -> int:
    """Return the number of autonomous turns in a row. Half of the time of rest in which none runs
    ends the row.
    """
    rested_s = (at - state.acted).total_seconds() if state.acted is not None else 0.0
    return state.autonomous if state.running or rested_s < policy.resting_s / 2 else 0


def due_conversations(
    state: DmnState, policy: DmnPolicy, at: datetime
) -> tuple[ConversationId, ...]:
    """Return where an autonomous turn would start at the next tick if there were no
    `blocking_reasons`, in order.
    """
    waited = state.low_since is not None and at - state.low_since >= LOW_WAIT
    looks = state.mode is DmnMode.FORAGING or (
        waited and state.mode in {DmnMode.RESTING, DmnMode.STORED}
    )
    left = max(0, policy.forage_per_day - state.foraged_today) if looks else 0
    found = dict.fromkeys((*state.pending, *state.continuing, *state.low[:left]))
    return tuple(conversation for conversation in found if conversation not in state.running)


def find_outage(state: DmnState, model: str, at: datetime) -> Outage | None:
    """Return the outage for which this model is not asked now. None: it may be asked."""
    found = state.outages.get(model)
    return found if found is not None and found.since <= at < found.asks_from else None


def find_put_off(state: DmnState, conversation: ConversationId) -> PutOffQuestion | None:
    """Return the question there that waits for a model. None: none does."""
    return next((one for one in state.put_off if one.conversation == conversation), None)


def is_faulty(state: DmnState, conversation: ConversationId) -> bool:
    """Return whether the model has answered others since it failed at the question there: then the
    question is at fault, and does not wait any longer.
    """
    one = find_put_off(state, conversation)
    answered = state.answers.get(one.model) if one is not None else None
    if one is None or one.failed is None or answered is None:
        return False
    return one.failed <= answered


def step(state: DmnState, signal: Signal, policy: DmnPolicy) -> StepResult:
    """Decide. Never raises; a signal that makes no sense in a state changes nothing."""
    after, signal_effects = _apply_signal(state, signal, policy)
    effects = [*signal_effects]
    if after.waiting:
        after, started = _dispatch_waiting(after, policy)
        effects += started
    if after.low != state.low:
        still = state.low_since if set(state.low).intersection(after.low) else signal.at
        after = replace(after, low_since=still if after.low else None)
    timed = (
        isinstance(signal, Tick | Directive)
        or (isinstance(signal, TurnEnded) and after.mode is DmnMode.ENGAGED)  # lasts its time
        or after.mode != state.mode
        or after.errors != state.errors
    )
    if timed and not after.stopping:
        # People who keep talking change the mode all the time: that must not delay what waits for a
        # tick.
        waits = all(due_conversations(one, policy, signal.at) for one in (state, after))
        sooner = waits and not isinstance(signal, Tick | Directive) and after.errors <= state.errors
        effects.append(SetTimer(delay_s=interval_s(after, policy, signal.at), sooner=sooner))
    if persistent(after) != persistent(state):
        effects.append(Persist())
    return after, tuple(effects)


def _apply_signal(  # noqa: C901 - one case per signal
    state: DmnState, signal: Signal, policy: DmnPolicy
) -> StepResult:
    if state.stopping and not isinstance(signal, TurnEnded):
        return state, ()
    match signal:
        case Noticed(elsewhere=True):
            after, _ = _on_noticed(state, signal, policy)  # the mode may change, no turn is due
            return replace(
                after,
                waiting=state.waiting,
                pending=state.pending,
                low=state.low,
                spared=state.spared,
            ), ()
        case Noticed():
            return _on_noticed(state, signal, policy)
        case TurnEnded():
            return _on_turn_ended(_reset_daily(state, signal.at), signal, policy)
        case Tick():
            return _on_tick(_reset_daily(state, signal.at), signal, policy)
        case Directive():
            return _on_directive(state, signal, policy)
        case RetryDue():
            question = find_put_off(state, signal.conversation)
            return _ask_again(state, (question,) if question else (), signal.at, policy)
        case ModelChanged():
            asked = tuple(replace(one, failed=None) for one in state.put_off)
            return _ask_again(replace(state, outages={}, put_off=asked), asked, signal.at, policy)
        case Presence():
            return replace(state, presence=signal.level), ()
        case LeftOff():
            # Whoever sends it also ends a turn that runs there, whose end reports what is left.
            waiting = tuple(one for one in state.waiting if one.conversation != signal.conversation)
            state = _clear_pending(replace(state, waiting=waiting), signal.conversation)
            return _drop_put_off(state, signal.conversation), ()
        case BudgetSpent():
            return replace(_reset_daily(state, signal.at), spent_up=True), ()
        case Stopping():
            return replace(state, stopping=True, waiting=(), pending=(), continuing=(), low=()), ()


def _on_noticed(state: DmnState, signal: Noticed, policy: DmnPolicy) -> StepResult:
    conversation = signal.conversation
    if signal.urgency >= URGENT:
        stays = state.mode is DmnMode.OFF or (state.mode is DmnMode.PAUSED and not signal.trusted)
        mode = state.mode if stays else DmnMode.ENGAGED
        state = replace(state, mode=mode, autonomous=0, stored_until=None, wake_on=())
        if conversation in state.running:
            on_arrival: dict[str, tuple[Effect, ...]] = {
                "steer": (Steer(conversation=conversation),),
                "interrupt": (Interrupt(conversation=conversation),),
            }
            return state, on_arrival.get(signal.arrivals, ())
        at_once = _has_free_lane(state, policy, direct=signal.direct)
        state = _queue_turn(state, conversation, URGENT, direct=signal.direct)
        if policy.inner in state.running and not (state.spared and at_once):
            return replace(state, spared=True), (Interrupt(conversation=policy.inner),)
        return state, ()
    if state.mode is DmnMode.STORED and (  # what it has promised comes before its rest
        "alarm" in signal.type.split(".")
        or any(f"{signal.type}.".startswith(f"{kind}.") for kind in state.wake_on if kind)
    ):
        state = replace(state, mode=DmnMode.FORAGING, stored_until=None, wake_on=(), woken=True)
        # The agent asked for this type, however low its urgency is.
        return _queue_turn(state, conversation, max(signal.urgency, NORMAL)), ()
    return _queue_turn(state, conversation, signal.urgency), ()


def _queue_turn(
    state: DmnState, conversation: ConversationId, urgency: int, *, direct: bool = False
) -> DmnState:
    """Record that a turn is due here.

    Nothing is recorded while a turn runs there: its end reports what is left.
    """
    is_waiting = any(turn.conversation == conversation for turn in state.waiting)
    if conversation in state.running or is_waiting or state.stopping:
        return state
    if urgency >= URGENT:
        state = _clear_pending(state, conversation)
        return replace(
            state, waiting=(*state.waiting, PendingTurn(conversation=conversation, direct=direct))
        )
    if urgency == NORMAL and conversation not in state.pending:
        return replace(state, pending=(*state.pending, conversation))
    if urgency == LOW and conversation not in state.low:
        return replace(state, low=(*state.low, conversation))
    return state


def _clear_pending(state: DmnState, conversation: ConversationId) -> DmnState:
    """Remove this conversation from all lists: a turn begins there that receives everything."""
    pending, continuing, low = (
        tuple(other for other in places if other != conversation)
        for places in (state.pending, state.continuing, state.low)
    )
    return replace(state, pending=pending, continuing=continuing, low=low)


def _on_turn_ended(state: DmnState, signal: TurnEnded, policy: DmnPolicy) -> StepResult:
    conversation = signal.conversation
    if conversation not in state.running:
        return state, ()
    running, chats = (
        tuple(other for other in places if other != conversation)
        for places in (state.running, state.chats)
    )
    state = replace(state, running=running, chats=chats, woken=False)
    if signal.autonomous:
        state = replace(state, acted=signal.at)
    passive, goes_on = state.mode in PASSIVE_MODES, False
    if signal.failed:
        goes_on = signal.continues and not passive
        if (
            signal.no_model is not None
            and conversation == policy.inner
            and state.mode is DmnMode.DREAMING
        ):
            rested_s = max(0.0, policy.dream_every_s - DREAM_RETRY_S)
            state = replace(state, dreamt=signal.at - timedelta(seconds=rested_s))
        state = replace(state, mode=WIND_DOWN.get(state.mode, state.mode), errors=state.errors + 1)
    elif signal.interrupted:
        state = replace(
            state, mode=DmnMode.RESTING if state.mode is DmnMode.DREAMING else state.mode
        )
    else:
        mode = _mode_after(state.mode, signal)
        goes_on = signal.open_work and mode is DmnMode.WORKING
        state = replace(
            state, mode=mode, errors=0, spared=state.spared and conversation != policy.inner
        )
    if signal.left >= URGENT and not passive:
        state = replace(state, mode=DmnMode.ENGAGED)
    state = _queue_turn(state, conversation, signal.left, direct=signal.direct)
    if (
        goes_on
        and signal.left < URGENT
        and not state.stopping
        and conversation not in state.continuing
    ):
        state = replace(state, continuing=(*state.continuing, conversation))
    if signal.failed:
        return _put_off(state, signal)
    if signal.answered is not None:
        newest = max(signal.answered, state.answers.get(signal.model, signal.answered))
        state = replace(state, answers={**state.answers, signal.model: newest})
    return _settle_put_off(state, signal, policy) if state.put_off else (state, ())


def _put_off(state: DmnState, signal: TurnEnded) -> StepResult:
    """Keep the question of a turn that no model answered, if somebody waits for an answer."""
    at, before = signal.at, find_put_off(state, signal.conversation)
    state = _drop_put_off(state, signal.conversation)
    if signal.no_model is None:
        return state, ()
    failed = at if signal.asked else before.failed if before is not None else None
    known = find_outage(state, signal.model, at)
    until = known.until if known is not None else at
    asks_from = known.asks_from if known is not None else at
    if signal.asked:
        until = max(until, at + timedelta(seconds=min(signal.retry_after_s, MAX_TOLD_WAIT_S)))
        newest = Outage(since=at, until=until, cause=signal.no_model, reason=signal.reason)
        asks_from = newest.asks_from
        others = {key: one for key, one in state.outages.items() if key != signal.model}
        state = replace(state, outages=others | ({signal.model: newest} if until > at else {}))
    if not signal.awaited or state.stopping:
        return state, ()
    one = PutOffQuestion(
        conversation=signal.conversation,
        direct=signal.direct,
        model=signal.model,
        wait_s=FIRST_AWAY_S if before is None else min(MAX_AWAY_S, 2 * before.wait_s),
        failed=failed,
    )
    delay_s = max(one.wait_s, (asks_from - at).total_seconds())
    timer = SetRetryTimer(conversation=one.conversation, delay_s=delay_s)
    return replace(state, put_off=(*state.put_off, one)), (timer,)


def _settle_put_off(state: DmnState, signal: TurnEnded, policy: DmnPolicy) -> StepResult:
    """Let the questions that wait for a model be asked if it has answered one of them: it is
    back.
    """
    if find_put_off(state, signal.conversation) is None:
        return state, ()
    state = _drop_put_off(state, signal.conversation)
    is_back = signal.answered is not None
    others = tuple(one for one in state.put_off if is_back and one.model == signal.model)
    return _ask_again(state, others, signal.at, policy)


def _drop_put_off(state: DmnState, conversation: ConversationId) -> DmnState:
    others = tuple(one for one in state.put_off if one.conversation != conversation)
    return replace(state, put_off=others)


def _ask_again(
    state: DmnState, questions: Sequence[PutOffQuestion], at: datetime, policy: DmnPolicy
) -> StepResult:
    """Let turns be due for these questions, unless one runs there: its end decides."""
    effects: tuple[Effect, ...] = ()
    for one in questions:
        if one.conversation not in state.running:
            noticed = Noticed(
                at=at, conversation=one.conversation, urgency=URGENT, direct=one.direct
            )
            state, more = _on_noticed(state, noticed, policy)
            effects += more
    return state, effects


def _mode_after(mode: DmnMode, signal: TurnEnded) -> DmnMode:
    if mode in PASSIVE_MODES:
        return mode
    if signal.yielded or mode is DmnMode.DREAMING:
        return DmnMode.RESTING
    if signal.used_tools or signal.open_work:
        return DmnMode.WORKING
    return WIND_DOWN.get(mode, mode) if signal.autonomous else mode


def _on_tick(state: DmnState, signal: Tick, policy: DmnPolicy) -> StepResult:
    candidates = due_conversations(state, policy, signal.at)
    state = _expire(state, signal.at)
    ends: tuple[Effect, ...] = ()
    if state.mode is DmnMode.DREAMING:
        if _dream_left_s(state, policy, signal.at) > 0 and not candidates:
            return state, ()
        ends = (Interrupt(conversation=policy.inner),) if policy.inner in state.running else ()
        state = replace(state, mode=DmnMode.RESTING)
    lower = state if state.running else replace(state, mode=WIND_DOWN.get(state.mode, state.mode))
    if blocking_reasons(state, policy, signal.at):
        candidates = tuple([one for one in candidates if one in signal.promised])
        if not candidates or blocking_reasons(state, policy, signal.at, promised=True):
            return lower, ends
    if candidates:
        due = tuple(
            conversation for conversation in candidates if conversation not in signal.arriving
        )
        state, starts = _start_turns(state, due, policy, signal)
        return state, (*ends, *starts)
    if _may_dream(state, signal, policy):
        state = _count_turn(_clear_pending(state, policy.inner), policy, signal.at)
        state = replace(state, running=(*state.running, policy.inner))
        dreaming = replace(state, mode=DmnMode.DREAMING, dreamt=signal.at, spared=False)
        return dreaming, (Dream(),)
    return lower, ends


def _start_turns(
    state: DmnState, due: tuple[ConversationId, ...], policy: DmnPolicy, signal: Tick
) -> StepResult:
    starts = []
    for conversation in due[: _free_lanes(state, policy)]:
        if conversation not in signal.promised:
            row = count_in_a_row(state, policy, signal.at)
            if row >= policy.max_autonomous_turns or state.turns_today >= policy.daily_turns:
                continue
            state = _count_turn(state, policy, signal.at)
        goes_on = conversation in state.continuing and conversation not in state.pending
        is_owed = goes_on or conversation in state.pending
        state = replace(state, foraged_today=state.foraged_today + (not is_owed))
        state = _clear_pending(state, conversation)
        state = replace(state, running=(*state.running, conversation))
        starts.append(StartTurn(conversation=conversation, autonomous=True, continuing=goes_on))
    return state, tuple(starts)


def _count_turn(state: DmnState, policy: DmnPolicy, at: datetime) -> DmnState:
    row = count_in_a_row(state, policy, at)
    return replace(state, autonomous=row + 1, acted=at, turns_today=state.turns_today + 1)


def _may_dream(state: DmnState, signal: Tick, policy: DmnPolicy) -> bool:
    is_busy = state.running or state.waiting or state.errors
    is_due = (
        state.dreamt is None or (signal.at - state.dreamt).total_seconds() >= policy.dream_every_s
    )
    return (
        policy.dream_every_s > 0
        and state.mode is DmnMode.RESTING
        and not is_busy
        and is_due
        and signal.material_tokens >= policy.dream_tokens
    )


def _dream_left_s(state: DmnState, policy: DmnPolicy, at: datetime) -> float:
    return (
        policy.dreaming_s - (at - state.dreamt).total_seconds() if state.dreamt is not None else 0.0
    )


def _free_lanes(state: DmnState, policy: DmnPolicy) -> int:
    """Return the number of lanes left for autonomous turns, which never take the last one."""
    return max(1, policy.lanes - 1) - len(state.running) - len(state.waiting)


def _has_free_lane(state: DmnState, policy: DmnPolicy, *, direct: bool) -> bool:
    """Return whether a lane is free. One lane is for direct chats alone, so that no room keeps them
    waiting.

    The count is of lanes that rooms occupy, not of free lanes: otherwise a busy direct chat would
    block every room.
    """
    others = len(state.running) - len(state.chats)
    return len(state.running) < policy.lanes and (direct or others < max(1, policy.lanes - 1))


def _on_directive(state: DmnState, signal: Directive, policy: DmnPolicy) -> StepResult:
    ends: tuple[Effect, ...] = ()
    match signal.order:
        case "wake":
            mode = (
                DmnMode.FORAGING if state.mode in {*PASSIVE_MODES, DmnMode.RESTING} else state.mode
            )
            state = replace(state, mode=mode, autonomous=0, errors=0)
            state = replace(state, quiet_until=None, stored_until=None, wake_on=())
        case "quiet":
            state = replace(state, quiet_until=signal.until or FOREVER)
        case "pause" | "off":
            mode = DmnMode.OFF if signal.order == "off" else DmnMode.PAUSED
            state = replace(state, mode=mode, continuing=(), stored_until=None, wake_on=())
            ends = (Interrupt(conversation=policy.inner),) if policy.inner in state.running else ()
        case "rest" | "store" if state.mode not in {DmnMode.OFF, DmnMode.PAUSED}:
            stored = signal.order == "store"
            until, kinds = (signal.until, signal.on) if stored else (None, ())
            ends = (Interrupt(conversation=policy.inner),) if state.mode is DmnMode.DREAMING else ()
            mode = DmnMode.STORED if stored else DmnMode.RESTING
            state = replace(state, mode=mode, continuing=(), stored_until=until, wake_on=kinds)
    return state, ends


def _expire(state: DmnState, at: datetime) -> DmnState:
    if state.quiet_until is not None and state.quiet_until <= at:
        state = replace(state, quiet_until=None)
    if state.mode is DmnMode.STORED and _is_woken(state, at):
        state = replace(state, mode=DmnMode.RESTING, stored_until=None, wake_on=(), woken=True)
    return state


def _is_woken(state: DmnState, at: datetime) -> bool:
    return state.stored_until is not None and state.stored_until <= at


def _reset_daily(state: DmnState, at: datetime) -> DmnState:
    today = at.astimezone(UTC).date().isoformat()
    if today == state.day:
        return state
    # A turn that runs over midnight counts for the new day; any turn in a room may be autonomous.
    over = len(state.running) - len(state.chats) if state.day else 0
    return replace(state, day=today, turns_today=over, foraged_today=0, spent_up=False)


def _dispatch_waiting(state: DmnState, policy: DmnPolicy) -> StepResult:
    """Start waiting turns in the free lanes: where the fewest run in the room, then in their
    order.
    """
    starts = []
    while startable := [
        turn for turn in state.waiting if _has_free_lane(state, policy, direct=turn.direct)
    ]:
        running = Counter(map(room_of, state.running))
        under_way = [running[room_of(one.conversation)] for one in startable]
        turn = startable[under_way.index(min(under_way))]
        conversation = turn.conversation
        waiting = tuple(other for other in state.waiting if other != turn)
        chats = (*state.chats, conversation) if turn.direct else state.chats
        state = replace(state, waiting=waiting, running=(*state.running, conversation), chats=chats)
        starts.append(StartTurn(conversation=conversation, autonomous=False))
    return state, tuple(starts)


def _format_until(state: DmnState) -> str:
    kinds = f" or {', '.join(state.wake_on)} comes" if state.wake_on else ""
    return (_format_date(state.stored_until) if state.stored_until else "it is woken") + kinds


def _format_date(at: datetime | None) -> str:
    return "it is woken" if at is None or at == FOREVER else f"{at:%Y-%m-%d %H:%M} UTC"


def persistent(state: DmnState) -> DmnState:
    """Return the part of a state that survives the process.

    After a restart the agent rests, unless it is stored, paused or off: so a mode that only
    winds down is never saved. Owed turns and questions that wait for a model are left out:
    unread messages are noticed again. A dream that a restart interrupts is dreamt again; after
    a complete one there is nothing left to dream of.
    """
    mode = state.mode if state.mode in PASSIVE_MODES else DmnMode.RESTING
    dreamt = None if state.mode is DmnMode.DREAMING else state.dreamt
    return replace(
        state,
        mode=mode,
        dreamt=dreamt,
        running=(),
        chats=(),
        waiting=(),
        pending=(),
        continuing=(),
        low=(),
        low_since=None,
        put_off=(),
        answers={},
        outages={},
        spared=False,
        woken=False,
        stopping=False,
    )


@cache
def _state_adapter() -> TypeAdapter[DmnState]:
    return TypeAdapter(DmnState)


def dump_state(state: DmnState) -> str:
    """Serialize the part of a state that survives the process as JSON."""
    return _state_adapter().dump_json(persistent(state)).decode()


def load_state(saved: str) -> DmnState:
    """Reverse `dump_state`. Raises ValueError for text that `dump_state` did not make."""
    return _state_adapter().validate_json(saved)
