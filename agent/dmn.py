"""The Default Mode Network: decides at any time what the agent does next. Pure.

Rules:
  1. `step` is total and pure: any signal in any state gives a next state and effects. The time
     comes with the signal; the shell (`gateway.runtime.loop`) carries out the effects and sends the
     next signal.
  2. One turn at a time in a conversation, at most `DmnPolicy.lanes` at once. The next one is in the
     room with the fewest turns under way, so that no room with many threads keeps others waiting;
     among these, first come first served.
  3. A tick with nothing pending starts nothing. Only a message from a person, a notification that
     attention rates as normal, or work that the agent itself has begun ever costs a model call.
  4. The timer is always armed, except after `Stopping`.
  5. A tick starts nothing in a conversation where a person has just spoken to the agent: their
     message begins the turn, which then counts as theirs.

Theory of operation. A person speaks to the agent: the mode becomes Engaged, and a turn starts at
once or as soon as a lane is free. A turn that used tools leads to Working, but only one that left
work open continues, at the next tick. Another turn that answered a person leaves the mode as it is;
one that nobody asked for winds down one step, and a turn that yielded leads to Resting. Ticks take
up pending conversations; with nothing pending they wind down too, so that an agent left alone
reaches Resting within two ticks and stays there, or dreams once there are enough notes. At rest it
looks at low notifications once, an hour after the first of them came. Stored,
Paused and Off start nothing by themselves, but a message from a person is answered in all of them.
Any person's message ends Stored, an owner's or admin's ends Paused, and no message ends Off. Quiet
applies on top of every mode. Autonomous turns are limited: by number in a row, by number and cost
per day; after errors the intervals between them double.
"""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from agent.signals import (
    LOW,
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
    Noticed,
    PendingTurn,
    Persist,
    Presence,
    SetTimer,
    Signal,
    StartTurn,
    Steer,
    Stopping,
    Tick,
    TurnEnded,
    TurnFailed,
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


def blocking_reasons(state: DmnState, policy: DmnPolicy, at: datetime) -> tuple[str, ...]:
    """Return the reasons, in words, why no autonomous turn may start now. Empty: one may."""
    state = _reset_daily(state, at)
    is_quiet = state.quiet_until is not None and state.quiet_until > at
    is_over_budget = state.spent_up or 0 < policy.daily_cost_usd <= state.spent_today_usd
    reasons = (
        (state.stopping, "the gateway is stopping"),
        (state.mode is DmnMode.OFF, "it is off"),
        (state.mode is DmnMode.PAUSED, "it is paused"),
        (
            state.mode is DmnMode.STORED and not _is_woken(state, at),
            f"it rests until {_format_until(state)}",
        ),
        (is_quiet, f"it is quiet until {_format_date(state.quiet_until)}"),
        (state.presence == "sleeping", "the people are asleep"),
        (
            state.autonomous >= policy.max_autonomous_turns,
            f"{state.autonomous} turns in a row (max_autonomous_turns)",
        ),
        (state.turns_today >= policy.daily_turns, f"{state.turns_today} turns today (daily_turns)"),
        (
            is_over_budget,
            (
                f"${state.spent_today_usd:.4f} spent today of ${policy.daily_cost_usd:.2f} "
                "(daily_cost_usd)"
            ),
        ),
        (_free_lanes(state, policy) <= 0, "every lane is taken"),
    )
    return tuple(reason for holds, reason in reasons if holds)


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


def step(state: DmnState, signal: Signal, policy: DmnPolicy) -> StepResult:
    """Decide. Never raises; a signal that makes no sense in a state changes nothing."""
    after, signal_effects = _apply_signal(state, signal, policy)
    after, started = _dispatch_waiting(after, policy)
    effects = [*signal_effects, *started]
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
    if after.persistent != state.persistent:
        effects.append(Persist())
    return after, tuple(effects)


def _apply_signal(state: DmnState, signal: Signal, policy: DmnPolicy) -> StepResult:
    if state.stopping and not isinstance(signal, TurnEnded | TurnFailed):
        return state, ()
    match signal:
        case Noticed():
            return _on_noticed(state, signal, policy)
        case TurnEnded() | TurnFailed():
            return _on_turn_ended(_reset_daily(state, signal.at), signal, policy), ()
        case Tick():
            return _on_tick(_reset_daily(state, signal.at), signal, policy)
        case Presence():
            return replace(state, presence=signal.level), ()
        case Directive():
            return _on_directive(state, signal, policy)
        case LeftOff():
            return _on_left_off(state, signal.conversation), ()
        case BudgetSpent():
            return replace(_reset_daily(state, signal.at), spent_up=True), ()
        case Stopping():
            return replace(state, stopping=True, waiting=(), pending=(), continuing=(), low=()), ()


def _on_noticed(state: DmnState, signal: Noticed, policy: DmnPolicy) -> StepResult:
    after, effects = _take_notice(state, signal, policy)
    if not signal.elsewhere:
        return after, effects
    # It changes the mode here, too, but no turn is due here.
    return replace(
        after, waiting=state.waiting, pending=state.pending, low=state.low, spared=state.spared
    ), ()


def _take_notice(state: DmnState, signal: Noticed, policy: DmnPolicy) -> StepResult:
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
        or any(_is_subtype(signal.type, kind) for kind in state.wake_on)
    ):
        state = replace(state, mode=DmnMode.FORAGING, stored_until=None, wake_on=(), woken=True)
        # The agent asked for this type, however low its urgency is.
        return _queue_turn(state, conversation, max(signal.urgency, NORMAL)), ()
    return _queue_turn(state, conversation, signal.urgency), ()


def _is_subtype(dotted: str, prefix: str) -> bool:
    return bool(prefix) and (dotted == prefix or dotted.startswith(f"{prefix}."))


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


def _on_left_off(state: DmnState, conversation: ConversationId) -> DmnState:
    """Drop what is owed to this conversation.

    The sender of the signal also ends a turn that runs there, and its end reports what is left.
    """
    waiting = tuple(turn for turn in state.waiting if turn.conversation != conversation)
    return _clear_pending(replace(state, waiting=waiting), conversation)


def _on_turn_ended(state: DmnState, signal: TurnEnded | TurnFailed, policy: DmnPolicy) -> DmnState:
    conversation = signal.conversation
    if conversation not in state.running:
        return state
    spent_usd = state.spent_today_usd + (max(0.0, signal.cost_usd) if signal.autonomous else 0.0)
    running, chats = (
        tuple(other for other in places if other != conversation)
        for places in (state.running, state.chats)
    )
    state = replace(state, running=running, chats=chats, spent_today_usd=spent_usd, woken=False)
    if signal.addressed:  # it was counted as autonomous when it began
        state = replace(state, autonomous=0, turns_today=max(0, state.turns_today - 1))
    passive, goes_on = state.mode in PASSIVE_MODES, False
    if isinstance(signal, TurnFailed):
        goes_on = signal.continues and not passive
        if signal.no_model and conversation == policy.inner and state.mode is DmnMode.DREAMING:
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
    return state


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
        return lower, ends
    if candidates:
        due = tuple(
            conversation for conversation in candidates if conversation not in signal.arriving
        )
        state, starts = _start_turns(state, due, policy)
        return state, (*ends, *starts)
    if _may_dream(state, signal, policy):
        state = replace(
            _clear_pending(state, policy.inner),
            mode=DmnMode.DREAMING,
            dreamt=signal.at,
            spared=False,
        )
        state = _count_turn(state, policy.inner)
        return state, (Dream(),)
    return lower, ends


def _start_turns(state: DmnState, due: tuple[ConversationId, ...], policy: DmnPolicy) -> StepResult:
    most = min(
        _free_lanes(state, policy),
        policy.max_autonomous_turns - state.autonomous,
        policy.daily_turns - state.turns_today,
    )
    starts = []
    for conversation in due[:most]:
        goes_on = conversation in state.continuing and conversation not in state.pending
        is_owed = goes_on or conversation in state.pending
        state = replace(state, foraged_today=state.foraged_today + (not is_owed))
        state = _count_turn(_clear_pending(state, conversation), conversation)
        starts.append(StartTurn(conversation=conversation, autonomous=True, continuing=goes_on))
    return state, tuple(starts)


def _count_turn(state: DmnState, conversation: ConversationId) -> DmnState:
    running = (*state.running, conversation)
    return replace(
        state, running=running, autonomous=state.autonomous + 1, turns_today=state.turns_today + 1
    )


def _may_dream(state: DmnState, signal: Tick, policy: DmnPolicy) -> bool:
    if (
        not policy.dream_every_s
        or state.mode is not DmnMode.RESTING
        or state.running
        or state.waiting
        or state.errors
    ):
        return False
    is_rested = (
        state.dreamt is None or (signal.at - state.dreamt).total_seconds() >= policy.dream_every_s
    )
    return is_rested and signal.material_tokens >= policy.dream_tokens


def _dream_left_s(state: DmnState, policy: DmnPolicy, at: datetime) -> float:
    """Return the seconds that the dream may still take."""
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
        case _:
            pass
    return state, ends


def _expire(state: DmnState, at: datetime) -> DmnState:
    """End what was to last until now."""
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
    state = replace(state, day=today, turns_today=over, foraged_today=0)
    return replace(state, spent_today_usd=0.0, spent_up=False)


def _dispatch_waiting(state: DmnState, policy: DmnPolicy) -> StepResult:
    """Start waiting turns in the free lanes: where the fewest run in the room, then in their
    order.
    """
    starts = []
    while startable := [
        turn for turn in state.waiting if _has_free_lane(state, policy, direct=turn.direct)
    ]:
        running = Counter(map(room_of, state.running))
        turn = min(startable, key=lambda one: running[room_of(one.conversation)])
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
