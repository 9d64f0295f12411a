"""Carries out what the DMN decides: starts turns, keeps the timer, writes the state down."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Protocol

from agent import dmn
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.records import AMBIENT, DmnSaved
from gateway.store import Entry, Store, StoreError
from gateway.turns import Report

logger = logging.getLogger("reverie.loop")

SAVE_AFTER_S = 1.0
"""Writing the state can wait this long, so that nobody waits for it."""


class Taker(Protocol):
    """Takes turns: `gateway.turns.Turns`."""

    async def take(self, conversation: ConversationId, *, autonomous: bool) -> Report:
        """Deal with all that is unread there. Any exception but `StoreError` is a bug in that turn."""

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        """Deal with all that is unread there by saying once that there is no answer."""

    async def left(self, conversation: ConversationId) -> int:
        """Highest urgency still unread there."""


class Loop:
    """The outer loop of one agent. Signals go in, turns come out."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        turns: Taker,
        policy: dmn.Policy,
        state: dmn.State,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`spawn` starts a task whose failure stops the gateway."""
        self._store = store
        self._clock = clock
        self._turns = turns
        self._policy = policy
        self._state = state
        self._spawn = spawn
        self._timer: asyncio.Task[None] | None = None
        self._tick_at_s = 0.0
        """Monotonic; when the timer comes."""
        self._saving: asyncio.Task[None] | None = None
        """Under way until it has taken the state to write."""
        self._lanes: dict[ConversationId, asyncio.Task[None]] = {}
        self._late: dict[ConversationId, int] = {}
        """Highest urgency noticed where a turn is ending, since what is left there was asked for."""

    @property
    def state(self) -> dmn.State:
        """As it is now."""
        return self._state

    def start(self) -> None:
        """Arm the timer. What is due from before is noticed by the caller: a start fires nothing by itself."""
        self._set_timer(dmn.interval_s(self._state, self._policy))

    def notice(self, conversation: ConversationId, urgency: int) -> None:
        """Something there is ripe for the agent's attention."""
        if conversation in self._late:
            self._late[conversation] = max(urgency, self._late[conversation])
        self.send(dmn.Noticed(at=self._clock.now(), conversation=conversation, urgency=urgency))

    def send(self, signal: dmn.Signal) -> None:
        """Let the DMN decide, and do what it says. Returns at once."""
        before = self._state.mode
        self._state, effects = dmn.step(self._state, signal, self._policy)
        if self._state.mode is not before:
            logger.debug("%s: %s -> %s", type(signal).__name__, before, self._state.mode)
        for effect in effects:
            match effect:
                case dmn.StartTurn(conversation=conversation, autonomous=autonomous):
                    self._lanes[conversation] = self._spawn(self._lane(conversation, autonomous=autonomous))
                case dmn.SetTimer(delay_s=delay_s, sooner=sooner):
                    self._set_timer(delay_s, sooner=sooner)
                case dmn.Persist():
                    # What is counted must hold over a crash; the mode may be a second old.
                    counted = any(isinstance(other, dmn.StartTurn) and other.autonomous for other in effects)
                    self._save(0.0 if counted else SAVE_AFTER_S)

    async def stop(self, grace_s: float) -> None:
        """Start nothing more; let turns end for up to `grace_s` seconds of real time, then park them.

        A parked turn has left no trace: its messages are unread, and the next start takes them up.
        """
        self.send(dmn.Stopping(at=self._clock.now()))
        if self._timer is not None:
            self._timer.cancel()
        lanes = list(self._lanes.values())
        if lanes:
            await asyncio.wait(lanes, timeout=grace_s)
        parked = [lane for lane in lanes if not lane.done()]
        for lane in parked:
            lane.cancel()
        await asyncio.gather(*parked, return_exceptions=True)
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
            await self._persist(0.0)
        if parked:
            logger.info("parked %d turns; they are taken up at the next start", len(parked))

    async def _lane(self, conversation: ConversationId, *, autonomous: bool) -> None:
        try:
            report = await self._turns.take(conversation, autonomous=autonomous)
        except StoreError:
            raise  # without its log the gateway cannot go on
        except Exception as error:  # a bug: ended here, or the same messages would end the process at every start
            logger.exception("a turn in %s broke", conversation)
            report = await self._turns.give_up(
                conversation, f"internal error: {type(error).__name__}", autonomous=autonomous
            )
        left = await self._left(conversation)
        del self._lanes[conversation]
        now = self._clock.now()
        if report.failed:
            self.send(dmn.TurnFailed(at=now, conversation=conversation, left=left))
        else:
            self.send(
                dmn.TurnEnded(
                    at=now,
                    conversation=conversation,
                    used_tools=report.used_tools,
                    yielded=report.yielded,
                    left=left,
                )
            )

    async def _left(self, conversation: ConversationId) -> int:
        """What is unread there, up to this moment: the DMN takes no notice of a conversation while its turn runs.

        What became durable after the store was looked at is not in its answer, but it was noticed meanwhile.
        """
        self._late[conversation] = AMBIENT
        try:
            return max(await self._turns.left(conversation), self._late[conversation])
        finally:
            del self._late[conversation]

    def _set_timer(self, delay_s: float, *, sooner: bool = False) -> None:
        at_s = self._clock.monotonic() + delay_s
        if self._timer is not None:
            if sooner and self._tick_at_s <= at_s:
                return
            self._timer.cancel()
        self._tick_at_s = at_s
        self._timer = self._spawn(self._tick(delay_s))

    async def _tick(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        self._timer = None  # or the next SetTimer would cancel the task that it is called from
        self.send(dmn.Tick(at=self._clock.now()))

    def _save(self, delay_s: float) -> None:
        if self._saving is not None:
            if delay_s:
                return
            self._saving.cancel()
        self._saving = self._spawn(self._persist(delay_s))

    async def _persist(self, delay_s: float) -> None:
        """Write down the state as it is then: the changes of one exchange are one entry."""
        if delay_s:
            await self._clock.sleep(delay_s)
        self._saving = None
        await self._store.append([Entry(fact=DmnSaved(state=dmn.save(self._state)), at=self._clock.now())])
