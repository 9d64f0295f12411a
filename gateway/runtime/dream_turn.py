"""Dream turns: a dream run as a turn of the inner conversation. Its record holds its costs and no text."""

from collections.abc import Awaitable, Callable

from agent.brief import PromptInput, TurnOutcome, TurnProgress
from agent.models.base import Model, ModelRequest
from agent.turn import Toolset
from gateway.context.dream import Dreamer, DreamResult
from gateway.context.prompt_context import PromptContextBuilder
from gateway.context.turn_facts import NO_UNREAD
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ConversationId, EventId, RequestUsage, TaskFinished
from gateway.core.facts import Seq, TurnId, TurnRecord
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.runtime.lane import TurnHandle, TurnInterrupted
from gateway.runtime.turn import TurnResult
from gateway.store import NewEntry, Store


class DreamTurnRunner:
    """Runs the dreams of one agent."""

    def __init__(
        self,
        *,
        agent: str,
        store: Store,
        clock: Clock,
        model: Model,
        dreamer: Dreamer,
        prompt_context: PromptContextBuilder,
        tools_for: Callable[[ToolContext], Toolset],
        memory_chars: int,
        afford: Callable[[ModelRequest], bool],
        on_answered: Callable[[str, RequestUsage], None],
        on_finished: Callable[[TaskFinished], Awaitable[None]],
        forget_view: Callable[[ConversationId], None],
    ) -> None:
        """`memory_chars`: limit of MEMORY.md. `on_finished` announces the end of a dream."""
        self._agent = agent
        self._store = store
        self._clock = clock
        self._model = model
        self._dreamer = dreamer
        self._prompt_context = prompt_context
        self._tools_for = tools_for
        self._memory_chars = memory_chars
        self._can_afford = afford
        self._on_answered = on_answered
        self._on_finished = on_finished
        self._forget_view = forget_view

    async def run(self, place: Address, handle: TurnHandle) -> TurnResult:
        """Run a dream. Interrupted, it has changed nothing or everything: see `Dreamer.dream`."""
        turn = TurnId(new_id(self._clock.now()))
        prompt_context = await self._prompt_context.build(place, NO_UNREAD, ())
        prompt_input = PromptInput(
            persona=prompt_context.persona,
            binding=prompt_context.binding,
            card=prompt_context.card,
            history=(),
            input_text="",
            conversation=place.conversation,
        )
        visibility = Visibility(scope=PUBLIC)
        tools = self._tools_for(
            ToolContext(turn=turn, agent=self._agent, at=place, visibility=visibility, autonomous=True)
        )
        progress = TurnProgress()
        dream = self._dreamer.dream(
            prompt_input,
            self._model,
            tools,
            agent=self._agent,
            memory_chars=self._memory_chars,
            afford=self._can_afford,
            progress=progress,
        )
        try:
            result = await handle.run(dream)
        except TurnInterrupted:
            return await self._record_interrupted(turn, place, progress.current)
        await self._record(turn, place, result)
        for account in result.accounts:
            self._on_answered(self._agent, account)
        return TurnResult(
            has_failed=result.outcome == "failed",
            has_yielded=True,
            autonomous=True,
            cost_usd=sum(account.cost_usd or 0.0 for account in result.accounts),
        )

    async def _record_interrupted(self, turn: TurnId, place: Address, done: TurnOutcome) -> TurnResult:
        """Record the costs of an interrupted dream.

        It owes no turn, so it is not recorded as interrupted.
        """
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

    async def _record(self, turn: TurnId, place: Address, result: DreamResult) -> None:
        if not result.requests and result.outcome != "failed":  # there was nothing to dream of
            return
        now, failed = self._clock.now(), result.outcome == "failed"
        ended = TurnRecord(
            turn=turn,
            covers=(),
            omitted=0,
            heard="",
            upto=Seq(0),
            outcome="failed" if failed else "silent",
            text="",
            reason=result.reason,
            model=result.model,
            usage=result.usage,
            requests=result.requests,
            autonomous=True,
            accounts=result.accounts,
            agent=self._agent,
            cause="dream",
        )
        await self._store.append([NewEntry(fact=ended, at=now, conversation=place.conversation, key=f"turn:{turn}")])
        self._forget_view(place.conversation)
        changed = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in result.diff.splitlines() if line)
        text = result.reason if failed else f"MEMORY.md has changed in {changed} lines"
        await self._on_finished(
            TaskFinished(id=EventId(turn), what="dream", ok=not failed, text=text, sent=now, agent=self._agent)
        )
