"""Turns of an agent on other processes than the one that runs its DMN, and what processes ask each other about them.

The process that holds the lease of an agent leads it: it decides which turns begin, holds the locks of the agent's
conversations, and delegates each turn to the worker that `choose_worker` names. The call `turn` lasts as long as the
turn. It may be repeated, also by a process that has taken the lease over meanwhile: it joins the turn that runs.

- `choose_worker` is pure.
- `DelegatedTurn` is the handle of a delegated turn.
- `Delegation` sends and serves the calls of one process.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import TypeAdapter

from agent.models.base import ModelError
from agent.signals import Directive, DmnState, StartTurn, dump_state, load_state
from agent.turn_context import TurnOutcome
from gateway.cluster.cluster import CallFailed, Cluster, agent_lease, ask_each_worker, ask_workers
from gateway.core.clock import new_id
from gateway.core.events import ConversationId
from gateway.core.i18n import N_, _, current_language, use_language
from gateway.core.ratelimit import LruDict
from gateway.runtime.dmn_admin import DmnSource, SavedDmn
from gateway.runtime.loop import TurnHandle, TurnResult
from gateway.stream.inbox import ReadyConversation
from gateway.tools.dispatch import render_tool_list

if TYPE_CHECKING:
    from gateway.runtime.agents import Agent, Agents

logger = logging.getLogger("reverie.delegation")

TURN_TIMEOUT_S: Final = 3_600.0
"""Deadline of one call `turn`; a longer turn is joined by the next one."""
ASK_TIMEOUT_S: Final = 2.5
"""Deadline of a question that somebody waits for; less than `gateway.commands.dispatcher.ANSWER_TIMEOUT_S`."""
ORDER_TIMEOUT_S: Final = 30.0
"""Deadline of what must be carried out, and nobody waits for."""
RETRY_S: Final = 0.5
HELD_S: Final = 10.0
"""Time after which a lock or a hold of another process ends by itself: longer than a command takes."""
MAX_RESULTS: Final = 500
"""Results of turns that are kept for a caller that asks again."""

SILENT_TEXT: Final = N_("it does not answer just now")

TurnOrder = Literal["steer", "interrupt", "stop", "drop", "hold", "release"]

Value = TypeVar("Value")


@cache
def _codec(kind: type[Value]) -> TypeAdapter[Value]:
    """Return what makes JSON values of such a dataclass, and reads them. Built at first use: it takes milliseconds."""
    return TypeAdapter(kind)


def choose_worker(conversation: ConversationId, workers: Collection[int]) -> int | None:
    """Return the worker for the turns of a conversation, by rendezvous hashing. None: there are no workers.

    When one comes or goes, only the conversations that it has or had move.
    """

    def weight(number: int) -> tuple[bytes, int]:
        return blake2b(f"{number}\n{conversation}".encode(), digest_size=8).digest(), number

    return max(workers, key=weight, default=None)


class DelegatedTurn(TurnHandle):
    """Handle of a turn that another process runs: orders are passed on to it."""

    is_elsewhere = True

    def __init__(self, delegation: "Delegation", agent: str, conversation: ConversationId, name: str = "") -> None:
        """`name`: of a turn that runs already. Empty: a new one."""
        super().__init__()
        self.joins = bool(name)
        self.name = name or new_id(delegation.agents.clock.now())
        self.conversation = conversation
        self.agent = agent
        self.worker: int | None = None
        """Number of the process that runs it. None: it is not known to run."""
        self.is_done = False
        self._delegation = delegation

    def steer(self) -> None:
        self._pass_on("steer")

    def interrupt(self) -> None:
        self._pass_on("interrupt")

    def stop(self, why: str) -> None:
        self.stop_reason = why
        self._pass_on("stop", why)

    def drop(self, why: str) -> None:
        self.drop_reason = self.drop_reason or why
        self._pass_on("drop", why)

    def release(self) -> None:
        if not self.stop_reason:  # which releases it, too
            self._pass_on("release")

    async def ask_to_hold(self) -> bool:
        return await self._delegation.send_order(self, "hold", timeout_s=ASK_TIMEOUT_S)

    def _pass_on(self, order: TurnOrder, why: str = "") -> None:
        work = self._delegation.send_order(self, order, why, timeout_s=ORDER_TIMEOUT_S)
        self._delegation.agents.tasks.create_task(work)


@dataclass(slots=True, kw_only=True)
class _RunningTurn:
    """A turn that this process runs for whoever leads its agent."""

    name: str
    agent: str
    start: StartTurn
    handle: TurnHandle
    task: asyncio.Task[dict[str, Any] | None]
    """Its result. None: the log was given up before its end was written (`gateway.store.StoreTasks`)."""
    reserved_usd: float = 0.0


class DelegatedLoop:
    """The loop of an agent, for a turn that runs here for whoever leads it (`gateway.runtime.turn_input.TurnLoop`)."""

    def __init__(self, delegation: "Delegation", agent: "Agent", given: dict[str, Any]) -> None:
        self.id = agent.id
        self._outage: TurnOutcome | None = _codec(TurnOutcome).validate_python(given["away"]) if given["away"] else None
        self.may_put_off: bool = given["may_put_off"]
        self._is_put_off: bool = given["is_put_off"]
        self._is_faulty: bool = given["is_faulty"]
        self._delegation = delegation

    def is_put_off(self, conversation: ConversationId) -> bool:  # noqa: ARG002 - as the loop
        """Return whether the question there waits for a model."""
        return self._is_put_off

    def is_faulty(self, conversation: ConversationId) -> bool:  # noqa: ARG002 - as the loop
        """See `AgentLoop.is_faulty`."""
        return self._is_faulty

    def find_outage(self, conversation: ConversationId, *, is_awaited: bool) -> TurnOutcome | None:  # noqa: ARG002 - as the loop
        """See `AgentLoop.find_outage`."""
        return self._outage

    def may_take_arriving(self, conversation: ConversationId) -> bool:  # noqa: ARG002 - as the loop
        """Return False: the process that leads the agent announces what comes."""
        return False

    async def reserve_cost(self, conversation: ConversationId, cost_usd: float) -> bool:
        """Reserve the cost of a request in the day's budget of autonomous turns. False: not covered, or not known."""
        arguments = {"agent": self.id, "conversation": conversation, "cost_usd": cost_usd}
        try:
            is_covered = await self._delegation.ask_leader(self.id, "agent.reserve", arguments)
        except CallFailed as error:
            logger.warning("%s: the budget of %s is not known: %s", conversation, self.id, error.reason)
            return False
        running = self._delegation.running.get(conversation)
        if is_covered and running is not None:
            running.reserved_usd += cost_usd
        return bool(is_covered)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHold:
    """What keeps a place as it is while a stop is being decided: a turn that cannot end, or a lock."""

    is_stopping: bool = False
    """Its turn is stopped already; nothing is held."""
    is_running: bool = False
    """A turn runs there, and is held."""
    owes: bool = False
    """An answer is owed there."""
    end: Callable[[str], None] = field(default=lambda _: None)
    """Stop the turn for this reason, in words; or go on, if it is empty."""


class Delegation:
    """Calls about turns and agents, of one process."""

    def __init__(self, agents: "Agents", cluster: Cluster) -> None:
        self.agents, self.cluster = agents, cluster
        self.running: dict[ConversationId, _RunningTurn] = {}
        """Turns that this process runs for whoever leads their agents."""
        self._results = LruDict[str, dict[str, Any]](MAX_RESULTS)
        self._leaders: dict[str, int] = {}
        """The newest leader of each agent that has asked which turns run here: no other delegates turns to here."""
        self._held: dict[int, tuple[str, Callable[[str], None]]] = {}
        """What other processes hold here: agent, and what ends it."""
        self._last_token = 0
        self._is_stopping = False
        handlers: dict[str, Callable[[int, Any], Awaitable[Any]]] = {
            "turn": self._serve_turn,
            "turn.list": self._serve_list,
            "turn.order": self._serve_order,
            "turn.compact": self._serve_compact,
            "agent.reserve": self._serve_reserve,
            "agent.lock": self._serve_lock,
            "agent.hold": self._serve_hold,
            "agent.end": self._serve_end,
            "agent.compact": self._serve_leader_compact,
            "agent.direct": self._serve_direct,
            "agent.notice": self._serve_notice,
            "agent.status": self._serve_status,
            "agent.start_model": self._serve_start_model,
            "tools.list": self._serve_tools,
            "tools.running": self._serve_running_calls,
            "tools.kill": self._serve_kill,
        }
        if cluster.is_shared:
            for method, handler in handlers.items():
                cluster.serve(method, handler)

    # Asking others.

    async def ask_leader(self, agent: str, method: str, arguments: object, *, timeout_s: float = ASK_TIMEOUT_S) -> Any:  # noqa: ANN401 - JSON
        """Let the process that leads an agent carry out a call. Raises CallFailed."""
        holder = self.cluster.holder(agent_lease(agent))
        if holder is None:
            raise CallFailed(f"no process leads {agent}", is_refused=True)
        return await self.cluster.call(holder.number, method, arguments, timeout_s=timeout_s)

    async def ask_workers(self, method: str, arguments: object) -> list[Any]:
        """Return the answers of all processes that may run turns. Raises CallFailed if one gives none."""
        return await ask_workers(self.cluster, method, arguments, timeout_s=ASK_TIMEOUT_S)

    async def describe_tools(self, agent: "Agent", conversation: ConversationId) -> str:
        """Return the tools of an agent for people, as the worker of that conversation has them.

        The state of what they depend on is that of all workers: it names those where it is not the same everywhere.
        """
        given = {"agent": agent.id, "language": current_language()}
        found = await ask_each_worker(self.cluster, "tools.list", given, timeout_s=ASK_TIMEOUT_S)
        listed, names = dict[int, str](), dict[str, list[str]]()
        for member, answer in found:
            if isinstance(answer, CallFailed):
                logger.warning("the tools of process %d are not known: %s", member.number, answer.reason)
                answer = {"states": [_(SILENT_TEXT)]}  # noqa: PLW2901 - in place of its own
            else:
                listed[member.number] = answer["tools"]
            for state in answer["states"]:
                names.setdefault(state, []).append(member.name)
        worker = choose_worker(conversation, listed)
        tools = self.agents.registry.render_tools(agent.tools) if worker is None else listed[worker]
        states = [one if len(at) == len(found) else f"{', '.join(at)}: {one}" for one, at in names.items()]
        return "\n".join([tools, *([render_tool_list({}, states=states)] if states else [])])

    def tell_leader(self, agent: str, method: str, arguments: object) -> None:
        """Have the process that leads an agent carry out a call, as soon as there is one. Returns at once."""
        self.agents.tasks.create_task(self._tell_leader(agent, method, arguments))

    async def _tell_leader(self, agent: str, method: str, arguments: object) -> None:
        clock = self.agents.clock
        until_s = clock.monotonic() + ORDER_TIMEOUT_S
        while True:
            try:
                await self.ask_leader(agent, method, arguments, timeout_s=ORDER_TIMEOUT_S)
            except CallFailed as error:
                if not error.is_refused or clock.monotonic() >= until_s:
                    logger.warning("%s was not told: %s: %s", agent, method, error.reason)
                    return
                await clock.sleep(RETRY_S)
            else:
                return

    # Of the process that leads.

    async def run(self, agent: "Agent", start: StartTurn, handle: DelegatedTurn) -> TurnResult:
        """Have a turn taken by a worker, and return its result. Cancelled, the turn goes on."""
        place, refusing = start.conversation, set[int]()
        while True:
            workers = [one.number for one in self.cluster.members if one.takes_turns]
            if handle.worker is None:
                handle.worker = choose_worker(place, {*workers} - refusing)
            if handle.worker is None:
                refusing.clear()
                await self.agents.clock.sleep(RETRY_S)
                continue
            try:
                arguments = self._describe_turn(agent, start, handle)
                answer = await self.cluster.call(handle.worker, "turn", arguments, timeout_s=TURN_TIMEOUT_S)
                if "result" in answer:
                    handle.is_done = True
                    await self.agents.store.catch_up(answer["upto"])
                    result: TurnResult = _codec(TurnResult).validate_python(answer["result"])
                    return result
                reason, is_refused = answer["refused"], True
            except CallFailed as error:
                reason, is_refused = error.reason, error.is_refused
            is_member = any(one.number == handle.worker for one in self.cluster.members)
            logger.info("%s: its turn at process %d: %s", place, handle.worker, reason)
            if not is_member:  # nothing of it can come any more; what came is read before anybody goes on there
                await self.agents.store.catch_up(await self.agents.store.last_position())
                await self.agents.registry.recover_approvals(agent.id)  # nobody waits for them any more
            if handle.joins or not is_member:
                if not is_member or is_refused:  # it has ended with its process, or there is nothing to join
                    handle.is_done = True
                    return TurnResult(was_interrupted=True, autonomous=start.autonomous, model="unasked")
            elif is_refused:
                refusing.add(handle.worker)
                handle.worker = None
                continue
            await self.agents.clock.sleep(RETRY_S)  # it may run there: ask again until it has ended, or its process has

    def _describe_turn(self, agent: "Agent", start: StartTurn, handle: DelegatedTurn) -> dict[str, Any]:
        place = start.conversation
        away = agent.find_outage(place, is_awaited=not start.autonomous)
        return {
            "name": handle.name,
            "joins": handle.joins,
            "agent": agent.id,
            "conversation": place,
            "autonomous": start.autonomous,
            "continuing": start.continuing,
            "direct": agent.is_direct(place),
            "upto": self.agents.store.last,
            "state": dump_state(agent.state),
            "away": None if away is None else _codec(TurnOutcome).dump_python(_without_work(away), mode="json"),
            "may_put_off": agent.may_put_off,
            "is_put_off": agent.is_put_off(place),
            "is_faulty": agent.is_faulty(place),
        }

    async def send_order(self, handle: DelegatedTurn, order: TurnOrder, why: str = "", *, timeout_s: float) -> bool:
        """Pass an order on to a delegated turn. False: it has ended, or its process does not answer."""
        clock = self.agents.clock
        until_s = clock.monotonic() + timeout_s
        while not handle.is_done and clock.monotonic() < until_s:
            if handle.worker is not None:
                arguments = {
                    "name": handle.name,
                    "conversation": handle.conversation,
                    "order": order,
                    "why": why,
                    "upto": self.agents.store.last,
                }
                with contextlib.suppress(CallFailed):
                    found = await self.cluster.call(handle.worker, "turn.order", arguments, timeout_s=ASK_TIMEOUT_S)
                    if found is not None:
                        return bool(found)
            await clock.sleep(RETRY_S / 5)  # it is about to begin
        return False

    async def find_turns(self, agent: str) -> list[tuple[StartTurn, DelegatedTurn, float]]:
        """Return the turns of an agent that run anywhere, each with what it has reserved.

        Returns once each process has answered or is gone: until then one may run anywhere.
        """
        found, asked = list[tuple[StartTurn, DelegatedTurn, float]](), set[int]()
        while left := [one.number for one in self.cluster.members if one.may_run_turns and one.number not in asked]:
            for number in left:
                try:
                    turns = await self.cluster.call(number, "turn.list", {"agent": agent}, timeout_s=ASK_TIMEOUT_S)
                except CallFailed as error:
                    logger.info("process %d does not say which turns of %s it runs: %s", number, agent, error.reason)
                    continue
                asked.add(number)
                for one in turns:
                    place = ConversationId(one["conversation"])
                    handle = DelegatedTurn(self, agent, place, one["name"])
                    handle.worker = number
                    start = StartTurn(conversation=place, autonomous=one["autonomous"], continuing=one["continuing"])
                    found.append((start, handle, one["reserved_usd"]))
            if not asked.issuperset(left):
                await self.agents.clock.sleep(RETRY_S)
        return found

    async def compact(self, conversation: ConversationId) -> str:
        """Have the worker of a conversation fold its view, while the lock is held here. Raises CallFailed."""
        worker = choose_worker(conversation, [one.number for one in self.cluster.members if one.takes_turns])
        arguments = {"conversation": conversation, "upto": self.agents.store.last}
        if worker is None:
            raise CallFailed("there is no worker", is_refused=True)
        return str(await self.cluster.call(worker, "turn.compact", arguments, timeout_s=TURN_TIMEOUT_S))

    async def end_holds(self, agent: str) -> None:
        """Return once no other process holds anything of an agent here, or soon: each does so for a moment only."""
        until_s = self.agents.clock.monotonic() + ASK_TIMEOUT_S
        while any(one == agent for one, _ in self._held.values()) and self.agents.clock.monotonic() < until_s:
            await self.agents.clock.sleep(RETRY_S / 5)

    def _keep(self, agent: str, end: Callable[[str], None]) -> int:
        """Keep something held for another process, for `HELD_S` at most. Return its token."""
        self._last_token += 1
        token = self._last_token

        async def end_late() -> None:
            await self.agents.clock.sleep(HELD_S)
            self._end(token, "")

        timer = self.agents.tasks.create_task(end_late())

        def end_once(why: str) -> None:
            if timer is not asyncio.current_task():
                timer.cancel()
            end(why)

        self._held[token] = agent, end_once
        return token

    def _end(self, token: int, why: str) -> None:
        _, end = self._held.pop(token, ("", None))
        if end is not None:
            end(why)

    def _led(self, agent: str) -> "Agent":
        found = self.agents.by_id.get(agent)
        if found is None or not found.leads:
            raise CallFailed(f"this process does not lead {agent}", is_refused=True)
        return found

    async def _serve_reserve(self, _caller: int, given: Any) -> bool:  # noqa: ANN401 - JSON
        return self._led(given["agent"]).reserve(given["conversation"], given["cost_usd"])

    async def _serve_lock(self, _caller: int, given: Any) -> int | None:  # noqa: ANN401 - JSON
        place = ConversationId(given["conversation"])
        agent = self._led(self.agents.agent_for(place).id)
        release = await self.agents.room_locks.acquire(place, given["wait_s"])
        return None if release is None else self._keep(agent.id, lambda _: release())

    async def _serve_hold(self, _caller: int, given: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        place = ConversationId(given["conversation"])
        agent = self._led(self.agents.agent_for(place).id)
        hold = await self.agents.hold_turn(agent, place)
        token = self._keep(agent.id, hold.end) if not hold.is_stopping else None
        return {"stopping": hold.is_stopping, "running": hold.is_running, "owes": hold.owes, "token": token}

    async def _serve_end(self, _caller: int, given: Any) -> None:  # noqa: ANN401 - JSON
        await self.agents.store.catch_up(given["upto"])
        self._end(given["token"], given["why"])

    async def _serve_leader_compact(self, _caller: int, given: Any) -> str:  # noqa: ANN401 - JSON
        return await self._led(given["agent"]).compact(ConversationId(given["conversation"]))

    async def _serve_direct(self, _caller: int, given: Any) -> None:  # noqa: ANN401 - JSON
        self._led(given["agent"]).send(_codec(Directive).validate_python(given["directive"]))

    async def _serve_notice(self, _caller: int, given: Any) -> None:  # noqa: ANN401 - JSON
        await self.agents.store.catch_up(given["upto"])
        self._led(given["agent"])
        self.agents.notice(_codec(ReadyConversation).validate_python(given["arrival"]))

    async def _serve_start_model(self, _caller: int, given: Any) -> str:  # noqa: ANN401 - JSON
        """Start a model for an agent. Return why it cannot be used; empty: it can."""
        pool, agent = self.agents.models.pool, self._led(given["agent"])
        with pool.holding(pool.get(agent.id, given["model"])) as agent_model:
            try:
                await agent_model.primary.start()
            except ModelError as error:
                return error.reason
        return ""

    async def _serve_status(self, _caller: int, given: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        agent = self._led(given["agent"])
        return {"state": _codec(DmnState).dump_python(agent.state, mode="json"), "next_tick_s": agent.next_tick_s}

    # Of a process that does not lead.

    async def acquire_lock(self, conversation: ConversationId, wait_s: float) -> Callable[[], None] | None:
        """Acquire the lock of a conversation at the process that leads its agent. None: it is held. Raises CallFailed.

        Returns what releases it.
        """
        agent = self.agents.agent_for(conversation).id
        token = await self.ask_leader(agent, "agent.lock", {"conversation": conversation, "wait_s": wait_s})
        return None if token is None else lambda: self._end_elsewhere(agent, token, "")

    async def hold_turn(self, conversation: ConversationId) -> TurnHold:
        """See `Agents.hold_turn`, at the process that leads the agent. Raises CallFailed."""
        agent = self.agents.agent_for(conversation).id
        found = await self.ask_leader(agent, "agent.hold", {"conversation": conversation}, timeout_s=2 * ASK_TIMEOUT_S)
        token = found["token"]
        return TurnHold(
            is_stopping=found["stopping"],
            is_running=found["running"],
            owes=found["owes"],
            end=lambda why: self._end_elsewhere(agent, token, why),
        )

    def _end_elsewhere(self, agent: str, token: int | None, why: str) -> None:
        if token is not None:
            self.tell_leader(agent, "agent.end", {"token": token, "why": why, "upto": self.agents.store.last})

    def pass_directive(self, agent: str, directive: Directive) -> None:
        """Pass an order on to the process that leads the agent. Returns at once."""
        order = _codec(Directive).dump_python(directive, mode="json")
        self.tell_leader(agent, "agent.direct", {"agent": agent, "directive": order})

    def pass_arrival(self, agent: str, arrival: ReadyConversation) -> None:
        """Announce what is ready for attention to the process that leads the agent. Returns at once."""
        found = _codec(ReadyConversation).dump_python(arrival, mode="json")
        self.tell_leader(agent, "agent.notice", {"agent": agent, "arrival": found, "upto": self.agents.store.last})

    async def fetch_dmn(self, agent: "Agent") -> DmnSource:
        """Return the DMN of an agent, as the process that leads it has it. Raises CallFailed."""
        if agent.leads:
            return agent
        found = await self.ask_leader(agent.id, "agent.status", {"agent": agent.id})
        state = _codec(DmnState).validate_python(found["state"])
        return SavedDmn(id=agent.id, state=state, policy=agent.policy, next_tick_s=found["next_tick_s"])

    # Of a process that runs turns.

    async def stop(self, grace_s: float) -> None:
        """Begin no turn any more; let those that run end for up to `grace_s` seconds of real time, then park them."""
        self._is_stopping = True
        if tasks := [one.task for one in self.running.values()]:
            _, parked = await asyncio.wait(tasks, timeout=grace_s)
            for one in parked:
                one.cancel()
            await asyncio.gather(*parked, return_exceptions=True)

    async def _serve_turn(self, caller: int, given: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Take a turn, or join the one that runs there. Returns its result, or why it was surely not taken."""
        name, place = given["name"], ConversationId(given["conversation"])
        if (known := self._results.get(name)) is not None:
            return known
        if (running := self.running.get(place)) is None:
            if given["joins"]:
                return {"refused": "it has ended"}
            if self._is_stopping:
                return {"refused": "this process stops"}
            if self._leaders.get(given["agent"], caller) != caller:
                return {"refused": f"process {caller} does not lead {given['agent']} any more"}
            agent = self.agents.by_id[given["agent"]]
            start = StartTurn(conversation=place, autonomous=given["autonomous"], continuing=given["continuing"])
            handle = TurnHandle()
            task = self.agents.tasks.create_task(self._take_turn(agent, start, handle, given))
            running = _RunningTurn(name=name, agent=agent.id, start=start, handle=handle, task=task)
            self.running[place] = running
            task.add_done_callback(lambda _: self.running.pop(place, None))
        try:
            answer = await asyncio.shield(running.task)
        except asyncio.CancelledError:
            if not running.task.cancelled():
                raise  # nobody waits for it any more
            parked = TurnResult(was_interrupted=True, autonomous=running.start.autonomous, model="unasked")
            return self._build_answer(parked)
        if answer is None:
            raise CallFailed("this process ends, and its log cannot be written")
        return answer

    async def _take_turn(
        self, agent: "Agent", start: StartTurn, handle: TurnHandle, given: dict[str, Any]
    ) -> dict[str, Any]:
        await self.agents.store.catch_up(given["upto"])
        if not agent.leads:
            agent.state = load_state(given["state"])
        if given["direct"]:
            self.agents.places.record_direct(start.conversation, direct=True)
        result = await agent.run_turn(start, handle, DelegatedLoop(self, agent, given))
        if self.agents.limits is not None and not agent.leads:
            self.agents.limits.release(start.conversation)
        answer = self._build_answer(result)
        self._results.put(given["name"], answer)
        return answer

    def _build_answer(self, result: TurnResult) -> dict[str, Any]:
        put_off = None if result.put_off is None else _without_work(result.put_off)
        return {
            "result": _codec(TurnResult).dump_python(replace(result, put_off=put_off), mode="json"),
            "upto": self.agents.store.last,
        }

    async def _serve_list(self, caller: int, given: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
        self._leaders[given["agent"]] = caller
        return [
            {
                "name": one.name,
                "conversation": place,
                "autonomous": one.start.autonomous,
                "continuing": one.start.continuing,
                "reserved_usd": one.reserved_usd,
            }
            for place, one in self.running.items()
            if one.agent == given["agent"]
        ]

    async def _serve_order(self, _caller: int, given: Any) -> bool | None:  # noqa: ANN401 - JSON
        """Carry out an order to a turn that runs here. None: it is not here."""
        running = self.running.get(ConversationId(given["conversation"]))
        if running is None or running.name != given["name"]:
            return False if self._results.get(given["name"]) is not None else None
        handle, order, why = running.handle, given["order"], given["why"]
        match order:
            case "steer":
                await self.agents.store.catch_up(given["upto"])
                handle.steer()
            case "interrupt":
                handle.interrupt()
            case "stop":
                handle.stop(why)
                handle.release()
            case "drop":
                handle.drop(why)
            case "release":
                handle.release()
            case _:
                return self._hold(handle)
        return True

    def _hold(self, handle: TurnHandle) -> bool:
        async def release_late() -> None:
            await self.agents.clock.sleep(HELD_S)
            handle.release()

        if is_held := handle.hold():
            self.agents.tasks.create_task(release_late())
        return is_held

    async def _serve_compact(self, _caller: int, given: Any) -> str:  # noqa: ANN401 - JSON
        await self.agents.store.catch_up(given["upto"])
        place = ConversationId(given["conversation"])
        return await self.agents.agent_for(place).fold_view(place)

    async def _serve_tools(self, _caller: int, given: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        agent, registry = self.agents.by_id[given["agent"]], self.agents.registry
        with use_language(given["language"]):
            return {"tools": registry.render_tools(agent.tools), "states": registry.describe_states()}

    async def _serve_running_calls(self, _caller: int, given: Any) -> Sequence[str]:  # noqa: ANN401 - JSON
        with use_language(given["language"]):
            return self.agents.registry.running.describe(ConversationId(given["conversation"]))

    async def _serve_kill(self, _caller: int, given: Any) -> Sequence[str]:  # noqa: ANN401 - JSON
        return self.agents.registry.running.kill(ConversationId(given["conversation"]))


def _without_work(outcome: TurnOutcome) -> TurnOutcome:
    """Return how a turn failed, without what it did."""
    return TurnOutcome(
        outcome=outcome.outcome, reason=outcome.reason, cause=outcome.cause, retry_after_s=outcome.retry_after_s
    )
