"""What becomes of a turn. Pure."""

from dataclasses import dataclass, field, replace
from typing import Literal

from agent.models.base import FailureCause, Model, StreamEnd
from agent.tokens.meter import count_prompt_tokens
from gateway.events import RequestUsage, TurnStep, Usage

NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """How a turn ended."""

    outcome: Literal["replied", "silent", "yielded", "failed", "interrupted"]
    text: str = ""
    """To be posted; empty unless replied."""
    reason: str = ""
    """Why it failed, or why the model was not asked; empty otherwise. Holds no secrets."""
    cause: FailureCause = "broken"
    """Of a failure, for people."""
    yielded: bool = False
    """The agent wants to rest; it may have replied too."""
    used_tools: bool = False
    """It worked on a task (`ToolSpec.task`): a call that was refused, failed or was made before is no work."""
    is_over_budget: bool = False
    """What it would have asked for next could not be afforded."""
    model: str = ""
    usage: Usage = NO_USAGE
    requests: int = 0
    accounts: tuple[RequestUsage, ...] = ()
    """Of the requests whose cache was kept account of."""
    steps: tuple[TurnStep, ...] = ()
    """Each answer with tool calls, and what the model was told then."""
    prompt_tokens: int = 0
    """Of the last request, as billed. 0: it was not told."""
    prompt_estimate: int = 0
    """Of the same, as `agent.allowance.ContextWindow` thought."""


@dataclass(slots=True)
class TurnProgress:
    """What a turn has come to so far. Where it is cut off, this is what there is to write down."""

    current: TurnOutcome = field(default_factory=lambda: TurnOutcome(outcome="interrupted"))

    def record_answer(self, end: StreamEnd, model: Model, estimate: int) -> None:
        """One more request has been answered, which was thought to have so many tokens."""
        self.record_lost(end.lost_accounts)
        done, usage = self.current, end.usage
        self.current = replace(
            done,
            usage=done.usage + usage,
            prompt_tokens=count_prompt_tokens(usage),
            prompt_estimate=estimate,
            requests=done.requests + 1,
            model=end.model or model.name,
            accounts=done.accounts if end.account is None else (*done.accounts, end.account),
        )

    def record_lost(self, accounts: tuple[RequestUsage, ...]) -> None:
        """Requests that broke off were billed as well."""
        done = self.current
        self.current = replace(
            done,
            usage=sum((account.usage for account in accounts), start=done.usage),
            requests=done.requests + len(accounts),
            accounts=(*done.accounts, *accounts),
        )

    def record_step(self, step: TurnStep, *, worked: bool) -> None:
        """Tools were used, or cut off."""
        self.current = replace(
            self.current, steps=(*self.current.steps, step), used_tools=self.current.used_tools or worked
        )

    def add_arrivals(self, heard: str) -> TurnStep:
        """This arrived meanwhile, and is told behind the results of the last step. Returns that step."""
        *before, step = self.current.steps
        step = replace(step, heard=heard)
        self.current = replace(self.current, steps=(*before, step))
        return step

    def replace_steps(self, steps: tuple[TurnStep, ...]) -> None:
        """The last steps are told like this instead."""
        self.current = replace(
            self.current, steps=(*self.current.steps[: len(self.current.steps) - len(steps)], *steps)
        )

    def finish(self, ending: TurnOutcome) -> TurnOutcome:
        """The whole outcome of a turn that ended like this."""
        return replace(
            self.current,
            outcome=ending.outcome,
            text=ending.text,
            reason=ending.reason,
            cause=ending.cause,
            yielded=ending.yielded,
        )
