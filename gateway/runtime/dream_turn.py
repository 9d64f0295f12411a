"""A dream as a turn of the inner conversation: written down with what it cost, and told of in numbers alone."""

from collections.abc import Awaitable, Callable

from agent.brief import PromptInput, TurnOutcome, TurnProgress
from agent.models.base import Model, ModelRequest
from agent.turn import Toolset
from gateway.context.dream import Dreamer, DreamResult
from gateway.context.prompt_context import PromptContextBuilder
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ConversationId, EventId, RequestUsage, TaskFinished
from gateway.core.facts import Seq, TurnId, TurnRecord
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.runtime.lane import TurnHandle, TurnInterrupted
from gateway.runtime.turn import TurnResult
from gateway.store import NewEntry, Store, UnreadEntries

_NO_UNREAD = UnreadEntries(messages=(), omitted=0, upto=Seq(0))


class DreamTurnRunner:
    """One agent's."""

    def __init__(
        self,
        *,
        agent: str,
        store: Store,
        clock: Clock,
        model: Model,
        dreaming: Dreamer,
        briefing: PromptContextBuilder,
        hands: Callable[[ToolContext], Toolset],
        memory_chars: int,
        afford: Callable[[ModelRequest], bool],
        answered: Callable[[str, RequestUsage], None],
        finished: Callable[[TaskFinished], Awaitable[None]],
        forget: Callable[[ConversationId], None],
    ) -> None:
        """`memory_chars`: MEMORY.md is kept below this. `finished` makes the end of a dream known."""
        self._agent = agent
        self._store = store
        self._clock = clock
        self._model = model
        self._dreamer = dreaming
        self._prompt_context = briefing
        self._tools_for = hands
        self._memory_chars = memory_chars
        self._can_afford = afford
        self._on_answered = answered
        self._on_finished = finished
        self._forget_view = forget

    async def run(self, place: Address, lane: TurnHandle) -> TurnResult:
        """Dream. Interrupted, nothing is changed, or all is: see `Dreamer.dream`."""
        turn = TurnId(new_id(self._clock.now()))
        setting = await self._prompt_context.build(place, _NO_UNREAD, ())
        brief = PromptInput(
            persona=setting.persona,
            binding=setting.binding,
            card=setting.card,
            history=(),
            input_text="",
            conversation=place.conversation,
        )
        sight = Visibility(scope=PUBLIC)
        tools = self._tools_for(ToolContext(turn=turn, agent=self._agent, at=place, visibility=sight, autonomous=True))
        progress = TurnProgress()
        dream = self._dreamer.dream(
            brief,
            self._model,
            tools,
            agent=self._agent,
            memory_chars=self._memory_chars,
            afford=self._can_afford,
            progress=progress,
        )
        try:
            came = await lane.run(dream)
        except TurnInterrupted:
            return await self._record_interrupted(turn, place, progress.current)
        await self._record(turn, place, came)
        for account in came.accounts:
            self._on_answered(self._agent, account)
        return TurnResult(
            has_failed=came.outcome == "failed",
            has_yielded=True,
            autonomous=True,
            cost_usd=sum(account.cost_usd or 0.0 for account in came.accounts),
        )

    async def _record_interrupted(self, turn: TurnId, place: Address, done: TurnOutcome) -> TurnResult:
        """What was asked until then is paid for. It owes no turn, so it does not stand there as one that does."""
        if done.requests:
            spent = DreamResult(
                outcome="failed",
                reason="interrupted",
                accounts=done.accounts,
                requests=done.requests,
                usage=done.usage,
                model=done.model,
            )
            await self._record(turn, place, spent)
            for account in done.accounts:
                self._on_answered(self._agent, account)
        cost_usd = sum(account.cost_usd or 0.0 for account in done.accounts)
        return TurnResult(was_interrupted=True, autonomous=True, cost_usd=cost_usd)

    async def _record(self, turn: TurnId, place: Address, came: DreamResult) -> None:
        if not came.requests and came.outcome != "failed":  # there was nothing to dream of
            return
        now, failed = self._clock.now(), came.outcome == "failed"
        ended = TurnRecord(
            turn=turn,
            covers=(),
            omitted=0,
            heard="",
            upto=Seq(0),
            outcome="failed" if failed else "silent",
            text="",
            reason=came.reason,
            model=came.model,
            usage=came.usage,
            requests=came.requests,
            autonomous=True,
            accounts=came.accounts,
            agent=self._agent,
            cause="dream",
        )
        await self._store.append([NewEntry(fact=ended, at=now, conversation=place.conversation, key=f"turn:{turn}")])
        self._forget_view(place.conversation)
        changed = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in came.diff.splitlines() if line)
        text = came.reason if failed else f"MEMORY.md has changed in {changed} lines"
        await self._on_finished(
            TaskFinished(id=EventId(turn), what="dream", ok=not failed, text=text, sent=now, agent=self._agent)
        )
