"""Requests of one turn: the first, those after tool results, and the same ones made smaller.

`TurnRequest` is the request, which grows at its end. `ContextWindow` estimates the room that is
left in the model's window, `ResultTruncator` decides how much of each tool result the model
receives and archives the rest.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from agent.models.adapt import strip_tools
from agent.models.base import (
    FailureCause,
    Model,
    ModelMessage,
    ModelRequest,
    StreamEnd,
    ToolResult,
)
from agent.prompt import (
    CALL_TOKENS,
    FENCE_TOKENS,
    PromptInput,
    build_called,
    build_request,
    estimate_step_tokens,
    fence_result,
    join_surrogates,
    render_partial_result,
    render_steps,
)
from agent.prompts import load_prompt
from agent.tokens.counter import (
    BYTES_PER_TOKEN,
    count_heuristically,
    estimate_tokens,
    measure_prompt,
)
from agent.tools import (
    ENDING_TOOLS,
    load_arguments,
    offer_tools,
    unwrap_call,
)
from agent.view import find_safe_cut
from gateway.core.events import EvidenceRef, RequestUsage, ToolCallRecord, TurnStep, Usage
from gateway.core.frozen import frozen
from gateway.core.tool_spec import Image, ToolCall, ToolSpec

NO_USAGE = Usage()
UNSEEN_IMAGES = "(Your model takes no pictures: you do not see it. Do not guess what it shows.)"


@frozen
class TurnOutcome:
    """Result of a turn."""

    outcome: Literal["replied", "silent", "yielded", "failed", "interrupted"]
    text: str = ""
    """Text to post. Empty unless `replied`."""
    reason: str = ""
    """Reason for a failure, for half an answer, or for not asking the model; otherwise empty. Holds
    no secrets."""
    cause: FailureCause = "broken"
    """Cause of a failure, from which messages to people are made. `cut` with `replied`: `text` is
    not the whole answer.
    """
    retry_after_s: float | None = None
    """Seconds after which the provider wants to be asked again. None: it did not say."""
    yielded: bool = False
    """True: the agent wants to rest. It may have replied too."""
    wants_more: bool = False
    """True: after its only round of tools it called more instead of answering, so its task is open:
    the next turn goes on with it."""
    is_over_budget: bool = False
    """True: the next request would have cost more than is left."""
    model: str = ""
    instead_of: str = ""
    """See `StreamEnd.instead_of`, of its last answer from a fallback."""
    usage: Usage = NO_USAGE
    requests: int = 0
    accounts: tuple[RequestUsage, ...] = ()
    """Accounts of the requests for which cache accounting is done."""
    steps: tuple[TurnStep, ...] = ()
    """Answers with tool calls, each with the results and arrivals that the model received after
    it."""
    prompt_tokens: int = 0
    """Billed tokens of the last prompt. 0: not reported."""
    prompt_estimate: int = 0
    """Tokens of the same prompt as `agent.turn_context.ContextWindow` estimated them."""


@dataclass(slots=True)
class TurnProgress:
    """Progress of a turn so far. If the turn is interrupted, this is what gets recorded."""

    current: TurnOutcome = TurnOutcome(outcome="interrupted")  # noqa: RUF009 - it is frozen

    def record_answer(self, end: StreamEnd, model: Model, estimate: int) -> None:
        """Record that a request was answered. `estimate`: its tokens as estimated before."""
        if end.lost_accounts:
            self.record_lost(end.lost_accounts)
        done, usage = self.current, end.usage
        self.current = replace(
            done,
            usage=done.usage + usage,
            prompt_tokens=usage.prompt_tokens,
            prompt_estimate=estimate,
            requests=done.requests + 1,
            model=end.model or model.name,
            instead_of=end.instead_of or done.instead_of,
            accounts=done.accounts if end.account is None else (*done.accounts, end.account),
        )

    def record_lost(self, accounts: tuple[RequestUsage, ...]) -> None:
        """Record requests that broke off: they are billed as well."""
        usage = sum((account.usage for account in accounts), start=NO_USAGE)
        self.add(replace(self.current, usage=usage, requests=len(accounts), accounts=accounts))

    def add(self, other: TurnOutcome) -> None:
        """Add the costs of requests that were made for this turn."""
        self.current = replace(
            self.current,
            usage=self.current.usage + other.usage,
            requests=self.current.requests + other.requests,
            accounts=(*self.current.accounts, *other.accounts),
        )

    def finish(self, ending: TurnOutcome) -> TurnOutcome:
        return replace(
            self.current,
            outcome=ending.outcome,
            text=ending.text,
            reason=ending.reason,
            cause=ending.cause,
            retry_after_s=ending.retry_after_s,
            yielded=ending.yielded,
        )


RESULT_FRAME_TOKENS: Final = 100
"""Tokens of a shortened result without its excerpt, or nearly. A shorter result is always whole."""
MIN_ANSWER_TOKENS: Final = 256
"""Least tokens to ask for. If there is no room for them, the provider's error is better than an
answer that is cut off."""
_MIN_BILL_SHARE: Final = 0.5
"""Least bill, as a share of the estimate, that counts. A lower one is not for the whole prompt;
some servers report 0."""
_REFUSED_SHARE: Final = 0.7
"""Assumed share of the allowed length. A refused prompt is too long by an unknown amount: about one
round."""


def share_budget(
    texts: Sequence[str],
    left_tokens: int,
    most_tokens: int,
    room_tokens: int,
    *,
    is_excerpt: Sequence[bool],
) -> tuple[list[int | None], int]:
    """Return the share of each result of one answer, in their order, as the number of its first
    characters (None: all), and the rest of `left_tokens`.

    `left_tokens`: budget of the turn for text of results. `most_tokens`: limit of one result.
    `room_tokens`: free room in the window. `is_excerpt`: for each result, whether the model asked
    for this part of it. Another result that does not fit whole gets at most half of what is free,
    so that something is left for later ones. All shares together never exceed `left_tokens` and a
    frame for each.
    """
    shares = list[int | None]()
    for index, text in enumerate(texts):
        room_tokens -= CALL_TOKENS
        spent = estimate_tokens(text)
        for_others = (RESULT_FRAME_TOKENS + CALL_TOKENS) * (len(texts) - index - 1)
        free = max(0, min(left_tokens, most_tokens, room_tokens - for_others))
        chars = None
        if spent > max(free, RESULT_FRAME_TOKENS):
            chars = count_fitting_chars(
                text, max(free, RESULT_FRAME_TOKENS) if is_excerpt[index] else free // 2
            )
            spent = estimate_tokens(text[:chars]) if chars else 0
            room_tokens -= RESULT_FRAME_TOKENS
        shares.append(chars)
        left_tokens, room_tokens = max(0, left_tokens - spent), room_tokens - spent
    return shares, left_tokens


def count_fitting_chars(text: str, tokens: int) -> int:
    """Return how many of the first characters of a text have at most so many tokens."""
    most = int((tokens - 4) * BYTES_PER_TOKEN)
    if most <= 0:
        return 0
    return len(text[:most].encode()[:most].decode(errors="ignore"))


WINDOW_SHARE = 0.60
"""Share of the model's window that may be used at all: beyond it answers get worse."""
MIN_USABLE_TOKENS = 8_000
"""Tokens of a small window that may be used in any case: persona and tools alone would fill 60 % of
8k."""
ANSWER_SHARE = 0.25
"""Largest share of the window that is kept for an answer, whatever the model's own limit is."""
SLACK_SHARE = 1 / 16
"""Share of the window that is never used: estimates are off by as much before the first bill
corrects them."""
RESERVED_SHARE = 0.25
"""Share of the usable window that stays free for output and tool results."""


def answer_tokens(context_tokens: int, output_tokens: int) -> int:
    """Return the tokens kept for an answer: `output_tokens`, but at most a share of a small
    window.
    """
    return min(output_tokens, int(context_tokens * ANSWER_SHARE))


def usable_tokens(context_tokens: int, output_tokens: int) -> int:
    """Return the limit of whole prompts, so that enough of the window stays free for an answer."""
    share = max(int(context_tokens * WINDOW_SHARE), MIN_USABLE_TOKENS)
    answer = answer_tokens(context_tokens, output_tokens)
    return max(256, min(share, context_tokens - answer - int(context_tokens * SLACK_SHARE)))


def budget_tokens(context_tokens: int, fixed_tokens: int) -> int:
    """Return the tokens for the conversation, without blocks and reserve: at least a few lines'
    worth.
    """
    return max(256, int(context_tokens * WINDOW_SHARE * (1 - RESERVED_SHARE)) - fixed_tokens)


class ContextWindow:
    """Free room in a model's window during a turn: estimated, and corrected by each bill."""

    def __init__(
        self,
        context_tokens: int,
        max_output_tokens: int,
        *,
        scale: float = 1.0,
        refused: bool = False,
    ) -> None:
        """Start with estimates.

        `scale`: real tokens per estimated token. `refused`: the turn was too long the last time.
        """
        self._answer_tokens = answer_tokens(context_tokens, max_output_tokens)
        self._usable_tokens = context_tokens - int(context_tokens * SLACK_SHARE)
        self._prompt_limit = self._usable_tokens - self._answer_tokens
        self._max_output = self._answer_tokens if refused else max_output_tokens
        self.estimated_tokens = 0
        """Estimated tokens of the present request: whoever changes it, says so here."""
        self._factor = 1.0 / scale
        """Estimated tokens per real token."""

    def output_tokens(self) -> int:
        """Return the limit for the answer to that request: a prompt and its answer share the
        window.
        """
        left = self._usable_tokens - int(self.estimated_tokens / self._factor)
        return max(min(self._max_output, left), min(self._max_output, MIN_ANSWER_TOKENS))

    def record_bill(self, prompt_tokens: int) -> None:
        """Record the billed tokens of the same request. 0: not reported."""
        if self.estimated_tokens and prompt_tokens >= _MIN_BILL_SHARE * self.estimated_tokens:
            self._factor = self.estimated_tokens / prompt_tokens

    def record_refusal(self) -> None:
        """Record that the provider refused the same request as too long, whatever the estimate
        was.
        """
        self._max_output = self._answer_tokens
        self._factor = min(
            self._factor, _REFUSED_SHARE * self.estimated_tokens / max(1, self._prompt_limit)
        )

    def remaining_tokens(self) -> int:
        """Return the estimated tokens that can still be added to that request. Negative: too
        many.
        """
        return int(self._prompt_limit * self._factor) - self.estimated_tokens


NO_LIMIT: Final = 2**62


class TurnHost:
    """Where a turn is taken: it has the tools, is told of the turn's progress, and is asked for
    what the turn needs meanwhile.

    This one has no tools, ignores the progress, can afford everything, and has neither an archive
    nor arrivals nor a shorter history.
    """

    specs: tuple[ToolSpec, ...] = ()
    """Tools of the turn, apart from those that end it. The same list in every turn: permission is
    checked at the call, no tool is ever hidden."""
    budget_tokens = NO_LIMIT
    """Tokens of all results together that the model may receive."""
    max_result_tokens = NO_LIMIT
    is_addressed = False
    """True: `fetch_arrivals` has returned a message to the agent, which must be answered before the
    agent rests."""

    def __init__(self, progress: TurnProgress | None = None) -> None:
        """`progress` is kept up to date, also with tools that were interrupted."""
        self.progress = progress or TurnProgress()

    async def call(self, call: ToolCall) -> ToolResult:
        """Carry out one call. A mistake of the model is an error result and never raises."""
        return ToolResult(id=call.id, text=f"There is no tool named {call.name!r}.", is_error=True)

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef | None:  # noqa: ARG002 - for hosts with an archive
        """Store a result that is shown shortened, durably. None: the rest of it is lost.

        Raises to end the turn. If cancelled, it is stored or not.
        """
        return None

    def record_cut(self) -> None:
        """Count a result that is shortened because it is longer than `max_result_tokens`."""

    def answer_grew(self, text: str) -> None:
        """Receive the text so far of a growing answer, which may be withdrawn: see
        `agent.turn.presentable_text`.
        """

    def thinking_grew(self, text: str) -> None:
        """Receive the next piece of the model's thinking."""

    async def can_afford(self, request: ModelRequest) -> bool:  # noqa: ARG002 - for hosts with a budget
        """Return whether the request may be made, once that is known. False ends the turn
        silently.
        """
        return True

    async def fetch_arrivals(self, room: int) -> str:  # noqa: ARG002 - for hosts of conversations
        """Return the messages that arrived meanwhile, in at most `room` tokens. Empty: none, or
        none that fits.
        """
        return ""

    async def shorten(self, times: int) -> PromptInput | None:  # noqa: ARG002 - for hosts of conversations
        """Build the input of the turn anew with less history, for the first or the second time.
        None: not possible.
        """
        return None


@frozen(kw_only=False)
class _ShownResult:
    call: ToolCall
    result: ToolResult
    """Result with as much of its text as the model received."""
    source: EvidenceRef | None
    """Place of the whole. None: `result` is the whole, or the whole is lost."""
    total_chars: int


class ResultTruncator:
    """Shortens the results of one turn to the budget and the window."""

    def __init__(self, host: TurnHost) -> None:
        self._host = host
        self._left_tokens = host.budget_tokens
        self._shown: dict[str, _ShownResult] = {}

    async def render_results(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], room: int
    ) -> dict[str, ToolCallRecord]:
        """Return the records of the calls with what the model receives, by call id.

        Results that are shortened have been stored durably then. `room`: tokens that the window has
        for all of them. Raises what `TurnHost.keep` raises.
        """
        results, shares, left_tokens = self._share_budget(results, room)
        records = {}
        for call, result, chars in zip(calls, results, shares, strict=True):
            source = None
            if chars is not None and result.excerpt is None:
                if estimate_tokens(result.text) > self._host.max_result_tokens:
                    self._host.record_cut()
                source = await self._host.keep(call, result)
            records[call.id] = self._render_result(
                _ShownResult(call, result, source, len(result.text)), chars
            )
        self._left_tokens = left_tokens
        return records

    def render_interrupted(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], room: int
    ) -> dict[str, ToolCallRecord]:
        """Return the same records for a turn that is cancelled, without waiting for the archive."""
        results, shares, _ = self._share_budget(results, room)
        kept = {name: shown.source for name, shown in self._shown.items()}
        return {
            call.id: self._render_result(
                _ShownResult(call, result, kept.get(call.id), len(result.text)), chars
            )
            for call, result, chars in zip(calls, results, shares, strict=True)
        }

    async def shrink_steps(self, steps: Sequence[TurnStep], tokens: int) -> tuple[TurnStep, ...]:
        """Return the steps with at most about so many tokens of each result, and a frame.

        Raises what `TurnHost.keep` raises.
        """
        return tuple(
            [
                replace(
                    step,
                    calls=tuple(
                        [await self._shrink_result(record, tokens) for record in step.calls]
                    ),
                )
                for step in steps
            ]
        )

    def _share_budget(
        self, results: Iterable[ToolResult], room: int
    ) -> tuple[list[ToolResult], list[int | None], int]:
        clean = [
            replace(
                result, text=join_surrogates(result.text), origin=join_surrogates(result.origin)
            )
            for result in results
        ]
        shares, left = share_budget(
            [result.text for result in clean],
            self._left_tokens,
            self._host.max_result_tokens,
            room - FENCE_TOKENS * sum(result.is_untrusted for result in clean),
            is_excerpt=[result.excerpt is not None for result in clean],
        )
        return clean, shares, left

    async def _shrink_result(self, record: ToolCallRecord, tokens: int) -> ToolCallRecord:
        if estimate_tokens(record.result) <= max(tokens, RESULT_FRAME_TOKENS):
            return record
        shown = self._shown[record.id]
        source = shown.source
        if source is None and shown.result.excerpt is None:
            source = await self._host.keep(shown.call, shown.result)
        chars = min(count_fitting_chars(shown.result.text, tokens), len(shown.result.text))
        return self._render_result(replace(shown, source=source), chars)

    def _render_result(self, shown: _ShownResult, chars: int | None) -> ToolCallRecord:
        result, source = shown.result, shown.source
        if result.excerpt is not None:
            source = result.excerpt.source
            chars = None if chars is None else max(chars, result.text.find("\n") + 1)
        chars = None if chars is None else find_safe_cut(result.text, chars)
        first = result.text[:chars]
        name, plain = unwrap_call(shown.call).name, result.is_untrusted
        if result.excerpt is not None:
            text, plain = first, False
            head, line_end, body = first.partition("\n")
            if result.is_untrusted and body:  # the first line is our own text
                text = head + line_end + fence_result(body, name, result.origin, shown.call.id)
            if chars is not None:
                then = chars + result.excerpt.offset
                text += (
                    "\n[cut here, for want of room in this turn: what follows begins at "
                    f"offset {then}]"
                )
        elif chars is None:
            text = first
        elif source is not None:
            call_id, arguments = shown.call.id if plain else "", shown.call.arguments
            text, plain = (
                render_partial_result(source, name, first, call=call_id, arguments=arguments),
                False,
            )
        else:
            text = f"{first} [... {shown.total_chars - chars} more characters]"
        self._shown[shown.call.id] = replace(shown, result=replace(result, text=first))
        return build_called(shown.call, replace(result, text=text), source, untrusted=plain)


MAX_RETRIES: Final = 2
"""Times that a turn goes on with less after the provider found it too long because of its tools."""
SHRUNK_RESULT_TOKENS: Final = 200
"""Tokens of each of the newest results at the second retry, or at the first if there is clearly no
room for more."""

DIRECTIVE_TOKENS: Final = 60
"""Tokens of a directive that may follow tool results."""


class TurnRequest:
    """Request of one turn. It grows at its end, and is built anew only if it becomes too long."""

    def __init__(
        self,
        brief: PromptInput,
        model: Model,
        host: TurnHost,
        *,
        key: str,
        scale: float,
        was_refused: bool,
    ) -> None:
        """Build the first request.

        The host's `progress` collects the steps; it may already hold those of an earlier turn in
        front of them.
        """
        self.progress = host.progress
        self.truncator = ResultTruncator(host)
        self._host, self._model, self._key = host, model, key
        self.is_plain = model.family == "local"
        """True: the model is too small to follow hints."""
        self._window = ContextWindow(
            model.context_tokens,
            model.max_output_tokens,
            scale=scale,
            refused=was_refused,
        )
        self._hints: tuple[str, ...] = ()
        self.must_answer_first = False
        """A person waits for an answer, which the next requests say."""
        self.directive = ""
        """Allows no tool calls from the next request on, and says so. Empty: they are allowed."""
        self._without_tools = self._thinks_less = False
        self._tool_images: dict[str, Image] = {}
        self._shortened = 0
        self._earlier_steps = len(host.progress.current.steps)
        self._rebuild(brief)

    def record_answer(self, end: StreamEnd) -> None:
        self.progress.record_answer(end, self._model, self._window.estimated_tokens)
        self._window.record_bill(self.progress.current.prompt_tokens)

    def result_tokens(self, text: str, calls: Sequence[ToolCall]) -> int:
        """Return the tokens that the window has for the results of this answer."""
        answer_tokens_used = estimate_tokens(text) + sum(
            CALL_TOKENS + estimate_tokens(call.name + call.arguments) for call in calls
        )
        overhead = 0 if self.directive else DIRECTIVE_TOKENS
        return self._window.remaining_tokens() - answer_tokens_used - overhead

    def remaining_tokens(self) -> int:
        """Return the tokens for text behind the results of the last step, which are not in the
        request yet.
        """
        return self._window.remaining_tokens() - estimate_step_tokens(
            self.progress.current.steps[-1:]
        )

    def add_hint(self, hint: str) -> None:
        """Add a hint for the model behind everything that is worth caching. It lasts for this turn
        only.
        """
        self._hints = (*self._hints, hint)
        self._set_conversation(self.request.conversation)

    def think_less(self) -> bool:
        """Ask for as little thinking as possible from the next request on. False: done before."""
        before, self._thinks_less = self._thinks_less, True
        self._set_conversation(self.request.conversation)
        return not before

    def drop_tools(self) -> bool:
        """Repeat the request without tools, because the model calls them in any case. False: done
        before.
        """
        before, self._without_tools = self._without_tools, True
        self._set_conversation(self.request.conversation)
        return not before

    def show_images(self, results: Sequence[ToolResult]) -> Sequence[ToolResult]:
        """Show images that tools returned, from the next request on. Return the results, which say
        so if the model takes none.
        """
        if not self._model.takes_images:
            return [
                replace(one, text=f"{one.text}\n{UNSEEN_IMAGES}") if one.images else one
                for one in results
            ]
        self._tool_images |= {
            reference.sha256: image for result in results for reference, image in result.images
        }
        return results

    def hide_images(self) -> bool:
        """Repeat the request without images from tools, and record none, so that later turns do not
        send them either. False: there were none.
        """
        if not self._tool_images:
            return False
        self._tool_images, done = {}, self.progress.current
        self.progress.current = replace(
            done,
            steps=tuple(
                replace(step, calls=tuple([replace(one, images=()) for one in step.calls]))
                for step in done.steps
            ),
        )
        self._hints = (*self._hints, load_prompt("images_refused"))
        self._render_again()
        return True

    async def continue_with(self, arrivals: str) -> None:
        """Continue with the last step, and these new messages behind its results.

        Older results shrink if there is no room.

        Raises what `TurnHost.keep` raises.
        """
        *before, step = self.progress.current.steps
        step = replace(step, heard=arrivals)
        self.progress.current = replace(self.progress.current, steps=(*before, step))
        self._set_conversation(
            (*self.request.conversation, *render_steps((step,), self._tool_images))
        )
        if self._window.remaining_tokens() < 0 and len(self._steps) > 1:
            await self._shrink_results(len(self._steps) - 1, 0)
            self._render_again()

    async def shorten(self) -> bool:
        """Make the request shorter after the provider found it too long. False: not possible.

        Raises what `TurnHost.shorten` and `TurnHost.keep` raise.
        """
        self._shortened += 1
        self._window.record_refusal()
        if self._shortened > MAX_RETRIES:
            return False
        brief = await self._host.shorten(self._shortened)
        if brief is None:
            return False
        await self._shrink_results(len(self._steps) - 1, 0)
        self._rebuild(brief)
        if self._shortened == MAX_RETRIES or self._window.remaining_tokens() < 0:
            await self._shrink_results(len(self._steps), SHRUNK_RESULT_TOKENS)
            self._rebuild(brief)
        return True

    @property
    def _steps(self) -> tuple[TurnStep, ...]:
        return self.progress.current.steps[self._earlier_steps :]

    def _rebuild(self, brief: PromptInput) -> None:
        self._first_request = self.request = build_first_request(
            brief, self._model, self._host.specs, self._key
        )
        self._render_again()

    def _render_again(self) -> None:
        self._set_conversation(
            (*self._first_request.conversation, *render_steps(self._steps, self._tool_images))
        )

    def _set_conversation(self, conversation: tuple[ModelMessage, ...]) -> None:
        now = self._first_request.now
        if self.must_answer_first:
            for prompt_name in ("working", "own"):
                now = now.replace(load_prompt(prompt_name), "").strip()
            now = f"{load_prompt('answer_first')}\n{now}".strip()
        request = replace(
            self._first_request,
            conversation=conversation,
            now="\n".join([text for text in (now, *self._hints, self.directive) if text]),
            answer_only=bool(self.directive),
            thinks_less=self._thinks_less,
        )
        request = strip_tools(request) if self._without_tools else request
        size = measure_prompt(request)
        self._window.estimated_tokens = size.total
        self.request = replace(request, max_output_tokens=self._window.output_tokens())
        self.request.sizes[count_heuristically] = size

    async def _shrink_results(self, first: int, tokens: int) -> None:
        if first > 0:
            steps = self._steps
            shorter = await self.truncator.shrink_steps(steps[:first], tokens)
            done = self.progress.current
            self.progress.current = replace(
                done, steps=(*done.steps[: -len(steps)], *shorter, *steps[first:])
            )


def build_first_request(
    brief: PromptInput, model: Model, specs: tuple[ToolSpec, ...], key: str
) -> ModelRequest:
    """Build the first request of a turn."""
    tools, catalogue = offer_tools((*ENDING_TOOLS, *specs)) if model.takes_tools else ((), "")
    return build_request(
        replace(brief, skills="\n\n".join(filter(None, [brief.skills, catalogue]))),
        tools=tools,
        max_output_tokens=model.max_output_tokens,
        key=key,
        plain=model.family == "local",
    )


def call_key(call: ToolCall) -> str:
    """Return a key that is equal for calls with the same effect."""
    inner = unwrap_call(call)
    return f"{inner.name} {json.dumps(load_arguments(inner.arguments), sort_keys=True)}"
