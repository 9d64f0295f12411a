"""Dream turns: a dream run as a turn of the inner conversation. Its record holds its costs and no
text.
"""

from agent.models.base import ModelRequest
from agent.prompt import PromptInput
from agent.turn_context import TurnOutcome
from gateway.access.limits import Payers
from gateway.context.dream import MEMORY_CHARS, Dreamer, DreamHost, DreamResult
from gateway.context.journal import JournalStore
from gateway.core.clock import new_id
from gateway.core.events import Address, EventId, TaskFinished
from gateway.core.facts import Seq, TurnId, TurnRecord
from gateway.core.labels import TRUSTED_LABEL
from gateway.runtime.turn_handle import TurnHandle, TurnInterrupted, TurnResult
from gateway.runtime.turn_input import NO_UNREAD, AgentContext
from gateway.runtime.turn_record import PUT_OFF_TEXTS
from gateway.store import NewEntry
from gateway.store.spending import budgeted_usd
from gateway.stream.internal import InternalIntake


class _PaidDream(DreamHost):
    """A dream that the day's budget of autonomous turns pays."""

    def __init__(self, context: AgentContext, turn: TurnId, place: Address) -> None:
        super().__init__(context.tools.specs)
        self._context = context
        self._turn = turn
        self._payers = Payers(place, context.agent.id, autonomous=True)

    async def can_afford(self, request: ModelRequest) -> bool:
        ceiling_usd = self._context.model.ceiling_usd(request)
        spent_usd = budgeted_usd(self.progress.current.accounts)
        hit = await self._context.limits.reserve(self._turn, self._payers, ceiling_usd, spent_usd)
        return hit is None


class DreamRunner:
    """Runs the dreams of all agents, each as a turn of its agent's inner conversation."""

    def __init__(self, dreamer: Dreamer, journal: JournalStore, internal: InternalIntake) -> None:
        self._dreamer = dreamer
        self._journal = journal
        self._internal = internal

    def material_tokens(self, agent: str) -> int:
        """Return the approximate size of the notes since the last dream."""
        return self._journal.material_tokens(agent)

    async def run(self, context: AgentContext, place: Address, handle: TurnHandle) -> TurnResult:
        """Run a dream. Interrupted, it has changed nothing or everything: see `Dreamer.dream`."""
        turn = TurnId(new_id(context.gateway.clock.now()))
        try:
            return await self._run(context, turn, place, handle)
        finally:  # its record has counted what it cost
            context.limits.settle(turn)

    async def _run(
        self, context: AgentContext, turn: TurnId, place: Address, handle: TurnHandle
    ) -> TurnResult:
        prompt_context = await context.prompts.build(place, NO_UNREAD, (), context.specs_tokens)
        prompt_input = PromptInput(
            persona=prompt_context.persona,
            binding=prompt_context.binding,
            card=prompt_context.card,
            history=(),
            input_text="",
            conversation=place.conversation,
        )
        host = _PaidDream(context, turn, place)
        try:
            with handle.interruptible():
                result = await self._dreamer.dream(
                    prompt_input,
                    context.model.model,
                    host,
                    agent=context.agent.id,
                    memory_chars=MEMORY_CHARS,
                )
        except TurnInterrupted:
            return await self._record_interrupted(context, turn, place, host.progress.current)
        await self._record(context, turn, place, result)
        has_failed, no_model = result.outcome == "failed", None
        if has_failed and result.cause in PUT_OFF_TEXTS:
            no_model = TurnOutcome(outcome="failed", reason=result.reason, cause=result.cause)
        return TurnResult(
            has_failed=has_failed,
            has_yielded=True,
            autonomous=True,
            put_off=no_model,
            model="answered" if no_model is None else "failed",
        )

    async def _record_interrupted(
        self,
        context: AgentContext,
        turn: TurnId,
        place: Address,
        done: TurnOutcome,
    ) -> TurnResult:
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
            await self._record(context, turn, place, spent)
        return TurnResult(was_interrupted=True, autonomous=True)

    async def _record(
        self, context: AgentContext, turn: TurnId, place: Address, result: DreamResult
    ) -> None:
        if not result.requests and result.outcome != "failed":  # there was nothing to dream of
            return
        now, failed, agent = (
            context.gateway.clock.now(),
            result.outcome == "failed",
            context.agent.id,
        )
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
            agent=agent,
            cause="dream",
            label=TRUSTED_LABEL,  # it holds no text
        )
        await context.gateway.store.append(
            [NewEntry(fact=ended, at=now, conversation=place.conversation, key=f"turn:{turn}")]
        )
        text = result.reason if failed else f"MEMORY.md has changed in {result.changed} lines"
        await self._internal.submit(
            TaskFinished(
                id=EventId(turn), what="dream", ok=not failed, text=text, sent=now, agent=agent
            )
        )
