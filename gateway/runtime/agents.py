"""All agents: whose a conversation is, and where what is ready for attention, and changes in the
log, go.

`plan_stop` is `/stop`: what is unread in a place counts as consumed, and the turn there ends.
`find_pending_arrivals` finds what an earlier process left undone, at the start and when a lease
comes here (`take_over`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from agent.dmn import load_state
from agent.models.base import ModelError
from channels.aio import cancel_and_wait
from gateway.cluster.cluster import AGENT_PREFIX, HELD_ELSEWHERE, LeaseName, agent_lease, lease_of
from gateway.config.models import Settings
from gateway.context.conversation import ConversationLocks
from gateway.context.history import find_open_step
from gateway.context.requesters import BLOCKED_REASON, are_blocked
from gateway.core.control_messages import DmnStatus
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    MessageDeleted,
    MessageEdited,
    Post,
    PostKey,
    TaskFinished,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    URGENT,
    DmnDirective,
    DmnStateSaved,
    RoleAssigned,
    RoomAssigned,
    TurnRecord,
    inner_conversation,
    is_inner,
)
from gateway.core.i18n import N_, _
from gateway.runtime.agent import Agent, build_dmn_policy
from gateway.runtime.dmn_admin import (
    MODE_TEXTS,
    PRESENCE_ORDER,
    load_dmn_states,
    read_directive,
    read_presence_order,
    snapshot_dmn,
)
from gateway.store import AppendResult, LogEntry, StoreError, StoreReader
from gateway.store.effects import CommandEffect, EffectFact, done, queue_post, refuse
from gateway.stream.attention import is_talk_alone
from gateway.stream.handle import GatewayHandle
from gateway.stream.inbox import ConversationInbox, ReadyConversation
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import find_agent
from gateway.tools.dispatch import ToolRegistry

logger = logging.getLogger("reverie.agents")


class Agents:
    """All agents of a gateway."""

    def __init__(
        self,
        gateway: GatewayHandle,
        agents: Sequence[Agent],
        *,
        inbox: ConversationInbox,
        presence: PresenceTracker,
        locks: ConversationLocks,
        registry: ToolRegistry,
    ) -> None:
        """`agents`: at least one, in the order of the configuration."""
        self._gateway = gateway
        self._store, self._clock = gateway.store, gateway.clock
        self.agents = agents
        self.by_id = {one.id: one for one in agents}
        self.room_locks, self.registry = locks, registry
        self._inbox, self._presence = inbox, presence
        self._compacting, self._stopped = set[asyncio.Task[str]](), False
        store, live = gateway.store, gateway.live
        store.subscribe(self._on_saved_elsewhere, DmnStateSaved, own=False)
        store.subscribe(self._on_directed, DmnDirective)
        store.subscribe(self._on_taken_elsewhere, TurnRecord, own=False)
        store.subscribe(self._on_alarms, Alarm, TaskFinished)
        store.subscribe(self._on_changed, MessageEdited, MessageDeleted)
        store.subscribe(lambda _: self._end_blocked_turns(), RoleAssigned)
        store.subscribe(self._on_room_assigned, RoomAssigned)
        live.on_change(self.prepare)
        live.on_change(lambda _: self._end_blocked_turns)
        inbox.subscribe(self.notice)

    def prepare(self, new: Settings) -> Callable[[], None]:
        """Apply new settings, a `gateway.config.reload.ChangeListener`: from the next DMN step."""
        dmn_policies = {agent: build_dmn_policy(new, agent) for agent in self.by_id}

        def apply() -> None:
            for agent_id, agent in self.by_id.items():
                agent.set_policy(dmn_policies[agent_id])

        return apply

    def agent_for(self, conversation: ConversationId) -> Agent:
        """Return the agent of a conversation."""
        place = Address.parse(conversation)
        return self.by_id[find_agent(self._gateway.places.bindings, place, self.by_id)]

    def holds(self, conversation: ConversationId) -> bool:
        """Return whether this process takes the turns of a conversation."""
        return self._gateway.channels.cluster.takes_turns_of(conversation)

    async def on_lease_ending(self, lease: LeaseName, grace_s: float) -> None:
        """End all work under the lease. Turns end within `grace_s` or are parked."""
        await self._inbox.close_windows(lambda place: lease_of(place) == lease)
        await asyncio.gather(
            *(one.leave(lambda place: lease_of(place) == lease, grace_s) for one in self.agents)
        )

    def compact(self, conversation: ConversationId) -> asyncio.Task[str]:
        """Begin to fold the view of a place that this process holds, once no turn runs there. The
        task returns the result in words; a stop cancels it.
        """
        task = self._gateway.tasks.create_task(self._compact(conversation))
        self._compacting.add(task)
        task.add_done_callback(self._compacting.discard)
        if self._stopped:  # commands still arrive while the gateway stops
            task.cancel()
        return task

    async def _compact(self, conversation: ConversationId) -> str:
        try:
            return await self.agent_for(conversation).compact(conversation)
        except StoreError:
            raise  # without its log the gateway cannot go on
        except Exception:  # a bug: who asked gets an answer, and everything else goes on
            logger.exception("folding %s broke", conversation)
            return _("That did not work. My operator can find the reason in the log.")

    @property
    def mode_label(self) -> str:
        """Modes of the agents, for people."""
        modes = {agent.id: _(MODE_TEXTS[agent.state.mode]) for agent in self.agents}
        if len(modes) == 1:
            return next(iter(modes.values()))
        return ", ".join(f"{agent}: {mode}" for agent, mode in modes.items())

    def describe_tools(self, at: Address, *, brief: bool) -> str:
        """Return the tools of the agent that answers there, for people. `brief`: names alone."""
        context = self.agent_for(at.conversation).context_for(at.conversation)
        return self.registry.render_tools(context.tools, brief=brief)

    @property
    def model_labels(self) -> str:
        """Models of the agents, for people."""
        return ", ".join(dict.fromkeys(agent.model.label for agent in self.agents))

    def start(self) -> None:
        """Arm the timer of every agent. A start fires nothing by itself."""
        for agent in self.agents:
            agent.start()

    def _on_room_assigned(self, entries: Sequence[LogEntry]) -> None:
        """Ask at once what waits for a model in a room that may have another one now."""
        rooms = {one.fact.room for one in entries if isinstance(one.fact, RoomAssigned)}
        for agent in self.agents:
            for one in agent.state.put_off:
                if replace(Address.parse(one.conversation), thread=None) in rooms:
                    agent.ask_again(one.conversation)

    async def stop(self, grace_s: float) -> None:
        """Stop all agents and their turns at once, see `Agent.stop`."""
        self._stopped = True
        await cancel_and_wait(*self._compacting)
        await asyncio.gather(*(agent.stop(grace_s) for agent in self.agents))

    def notice(self, arrival: ReadyConversation) -> None:
        """Announce entries that are ready for attention.

        Urgent ones start a turn in their place, others a turn of the inner conversation, unless the
        place is private. The process that holds the channel, or the agent, takes it.
        """
        place = arrival.conversation
        if arrival.direct is not None:
            self._gateway.places.direct.put(place, arrival.direct)
        agent = self.agent_for(place)
        if (
            arrival.urgency >= URGENT
            or arrival.handle_in_place
            or arrival.direct
            or is_inner(place)
            or not (agent.context_for(place).model.model.takes_tools or arrival.awaits_quiet)
        ):
            self._notice(agent, arrival, place)
            if arrival.promised and self.holds(place):
                agent.remind(place, promised=True)
        else:
            self._gateway.tasks.create_task(self._route(agent, arrival))

    async def _route(self, agent: Agent, arrival: ReadyConversation) -> None:
        place = arrival.conversation
        model = agent.context_for(place).model.model
        in_place = not model.takes_tools  # nothing can be done about it from elsewhere
        if arrival.awaits_quiet:
            if in_place and arrival.urgency < NORMAL:
                return  # without tools it cannot stay silent
            if not await self._store.unread_urgency(place):
                return  # it was read meanwhile by a turn that somebody asked for
        in_place = in_place or await self._gateway.places.is_private(place)
        target = place if in_place else inner_conversation(agent.id)
        self._notice(agent, arrival, target)
        if arrival.awaits_quiet and arrival.urgency >= NORMAL and self.holds(target):
            agent.remind(target)

    def _notice(self, agent: Agent, arrival: ReadyConversation, target: ConversationId) -> None:
        arrivals = self._gateway.places.bindings.find(Address.parse(arrival.conversation)).arrivals
        agent.notice(
            target,
            arrival.urgency,
            event_type=arrival.type,
            arrivals=arrivals,
            trusted=arrival.trusted,
            authors=arrival.authors,
            elsewhere=not self.holds(target),
        )

    def _on_alarms(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.conversation is not None and self.holds(entry.conversation):
                self.agent_for(entry.conversation).remind(
                    entry.conversation, promised=_is_promised(entry)
                )

    def _on_saved_elsewhere(self, entries: Sequence[LogEntry]) -> None:
        """Know when the agents last dreamt, for the case that they are led here."""
        for entry in entries:
            agent = (
                self.by_id.get(entry.fact.agent) if isinstance(entry.fact, DmnStateSaved) else None
            )
            if agent is not None and isinstance(entry.fact, DmnStateSaved):
                with contextlib.suppress(ValueError):  # of another version
                    agent.state = replace(agent.state, dreamt=load_state(entry.fact.state).dreamt)

    def _on_directed(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(order := entry.fact, DmnDirective):
                if order.what.startswith(PRESENCE_ORDER):
                    self._presence.set_level(read_presence_order(order))
                    for one in self.agents:
                        one.look_at_presence()
                elif (agent := self.by_id.get(order.agent)) is not None:
                    agent.send(read_directive(order, entry.at))

    def _on_taken_elsewhere(self, entries: Sequence[LogEntry]) -> None:
        """Count what other processes do of their own, and how often they make requests, for what
        moves here.
        """
        for entry in entries:
            record, place = entry.fact, entry.conversation
            if not isinstance(record, TurnRecord) or not record.requests or place is None:
                continue
            if (agent := self.by_id.get(record.agent)) is not None:
                for cache in agent.context_for(place).model.caches:
                    for _ in range(record.requests):
                        cache.observe_elsewhere(
                            agent.id, place, entry.at.timestamp(), record.own_tokens
                        )
                if record.autonomous and entry.at.date() == self._clock.now().date():
                    turns = agent.state.turns_today + 1
                    agent.state = replace(agent.state, turns_today=turns)

    def _on_changed(self, entries: Sequence[LogEntry]) -> None:
        """Let turns take up the new texts of messages that they have read, and that some of these
        were deleted.
        """
        for entry in entries:
            change, place = entry.fact, entry.conversation
            handle = self.agent_for(place).running.get(place) if place is not None else None
            if handle is None:
                continue
            if isinstance(change, MessageDeleted):
                handle.forget(change.message)
            elif (
                isinstance(change, MessageEdited)
                and self._gateway.places.bindings.find(change.at).arrivals != "queue"
            ):
                handle.revise(change.message, change.sender.id, change.text)

    def _end_blocked_turns(self) -> None:
        for agent in self.agents:
            for place, handle in list(agent.running.items()):
                if are_blocked(self._gateway.people, Address.parse(place), handle.requesters):
                    logger.info("%s: its turn is ended: %s", place, BLOCKED_REASON)
                    handle.drop(BLOCKED_REASON)

    def dmn_status(self) -> list[DmnStatus]:
        """State of each agent's DMN in this process."""
        now = self._clock.now()
        return [snapshot_dmn(agent, now) for agent in self.agents]

    async def warm_up(self) -> None:
        """Start the models of the agents, and warm them up."""
        for model in {id(one): one for one in (agent.model for agent in self.agents)}.values():
            try:
                await model.start()
            except (
                ModelError
            ) as error:  # each turn will report it too; the channels connect meanwhile
                logger.error("the model %s is not usable: %s", model.label, error.reason)  # noqa: TRY400 - no bug
        for agent in self.agents:
            await agent.warm_up()


STOP_LOCK_S: Final = 2.0
"""Time to acquire the lock: a free one is acquired at once; a turn that just ended holds it until
its record is written."""
STOPPED: Final = N_("Stopped. I do not answer what was written here until now.")
ALREADY_STOPPING: Final = N_("I am already stopping.")
NOTHING_RUNNING: Final = N_("I am not doing anything here.")


async def plan_stop(
    agents: Agents, at: Address, by: str, said: PostKey | None = None
) -> CommandEffect:
    """Plan a stop. `by`: who requests it, for people. `said`: key of a post that tells the place,
    where nobody there has seen the request. None: none.

    Everything unread in the place becomes durable as consumed in the transaction that holds the
    command, so it is not answered later, even if the process dies before the turn has ended. Until
    the effect is settled no turn begins there, and none ends: it has either answered before the
    command, or posts nothing more.
    """
    place, why = at.conversation, f"{by} had it left off"
    agent = agents.agent_for(place)
    if not agents.holds(place):
        return refuse(_(HELD_ELSEWHERE))
    handle = agent.running.get(place)
    if handle is not None and handle.stop_reason:
        return done(_(ALREADY_STOPPING))
    is_held = handle is not None and handle.hold()
    if handle is not None and is_held:
        release = handle.release
    else:  # else another caller keeps it, who takes no turn there
        release = await agents.room_locks.acquire(place, STOP_LOCK_S) or (lambda: None)
    try:
        owes = is_held or await agent.owes_answer(place)
        record = await agent.build_stop_record(place, why) if owes else None
    except BaseException:
        release()
        raise
    if record is None:
        release()
        return refuse(_(NOTHING_RUNNING))

    def settle(written: AppendResult | None) -> None:
        if written is not None and written.is_new:
            logger.info("%s: left off, by %s", place, by)
            if place in agent.running:
                agent.running[place].stop(why)
            agent.leave_off(place)
        release()

    facts = [EffectFact(record, key=f"turn:{record.turn}")]
    if said and record.covers:
        facts.append(queue_post(Post(key=said, to=at, text=_(STOPPED))))
    return CommandEffect(answer=_(STOPPED), facts=tuple(facts), settle=settle)


SCANNED_ENTRIES: Final = 50
"""Unread entries of a place that are searched for a reminder, and turns that are searched for the
last ones."""


async def take_over(
    gateway: GatewayHandle, agents: Agents, inbox: ConversationInbox, lease: LeaseName
) -> None:
    """Take up what the process has left that held the lease before."""
    await gateway.store.follow()
    agent = agents.by_id.get(lease.removeprefix(AGENT_PREFIX))
    if agent is not None and lease == agent_lease(agent.id):
        states = await load_dmn_states(gateway.store, [agent.id], gateway.clock.now())
        agent.take_over(states[agent.id])
    for arrival in await find_pending_arrivals(gateway, agents, lease):
        inbox.add(arrival)


async def find_pending_arrivals(
    gateway: GatewayHandle, agents: Agents, lease: LeaseName = ""
) -> list[ReadyConversation]:
    """Return what an earlier process left undone, as new arrivals. `lease`: of whoever does it;
    empty: all.
    """
    store = gateway.store
    found, due = [], dict(await store.due_conversations(LOW))
    unfinished = await _find_unfinished(store)
    due |= {place: max(urgency, due.get(place, 0)) for place, urgency in unfinished.items()}
    for place, urgency in due.items():
        holders = {
            lease_of(place),
            *([agent_lease(agents.agent_for(place).id)] if urgency < URGENT else []),
        }
        if lease and lease not in holders:
            continue
        in_place, is_talk, is_promised = place in unfinished, False, False
        if not in_place and urgency < URGENT and not is_inner(place):
            unread = await store.unread_entries(place, most=SCANNED_ENTRIES)
            in_place = any(isinstance(one.fact, Alarm | TaskFinished) for one in unread.messages)
            is_promised = any(map(_is_promised, unread.messages))
            is_talk = is_talk_alone(await store.due_reasons(place))
        direct = None if is_inner(place) else await gateway.places.is_direct(place)
        found.append(
            ReadyConversation(
                conversation=place,
                urgency=urgency,
                direct=direct,
                handle_in_place=in_place,
                promised=is_promised,
                awaits_quiet=is_talk,
            )
        )
    return found


def _is_promised(entry: LogEntry) -> bool:
    """Return whether somebody asked for it at this time, or waits for it."""
    if isinstance(entry.fact, TaskFinished):
        return entry.fact.promised
    return isinstance(entry.fact, Alarm) and bool(entry.fact.by) and not entry.fact.source


async def _find_unfinished(store: StoreReader) -> dict[ConversationId, int]:
    """Return the places whose last turn was interrupted, or left work open, and how urgent that
    is.

    The input of an interrupted one is owed an answer, even if nothing newer is there.
    """
    ended: dict[ConversationId, int] = {}
    for one in await store.newest_entries(SCANNED_ENTRIES, kinds=["turn_ended"]):
        if not isinstance(one.fact, TurnRecord) or one.fact.cause == "compact":
            continue
        is_interrupted = one.fact.outcome == "interrupted"
        is_put_off = is_interrupted and not one.fact.upto  # it has left what it was to read
        if one.conversation is not None and not is_put_off:
            is_owed = is_interrupted and not is_inner(one.conversation)
            is_open = bool(find_open_step(one.fact))
            ended[one.conversation] = URGENT if is_owed else NORMAL if is_open else AMBIENT
    return {place: urgency for place, urgency in ended.items() if urgency > AMBIENT}
