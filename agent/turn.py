"""One turn: ask the model, carry out its tool calls, ask again, until it replies or chooses not to.

`take_turn` is the loop. `ask_model` reads one answer to its end, `presentable_text` returns the
part of an unfinished answer that may be shown. `agent.turn_context` builds the requests.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.models.base import (
    Model,
    ModelBusy,
    ModelError,
    ModelRequest,
    PartialText,
    PromptTooLong,
    RequestRefused,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ToolResult,
)
from agent.prompt import (
    SHARED_BLOCKS,
    PromptInput,
    build_called,
    join_surrogates,
    make_call_ids_unique,
)
from agent.tools import (
    CALL_CAPABILITY,
    CAPABILITY_USAGE,
    CONTINUE_TASK,
    ENDING_TOOL_NAMES,
    ENDING_TOOLS,
    STAY_SILENT,
    YIELD_TO_USER,
    unwrap_call,
    wrap_calls,
)
from agent.turn_context import (
    TurnHost,
    TurnOutcome,
    TurnProgress,
    TurnRequest,
    build_first_request,
    call_key,
)
from gateway.core.events import RequestUsage, ToolCallRecord, TurnStep
from gateway.core.text_safety import replace_half_escapes, strip_invisible
from gateway.core.tool_spec import ToolCall, ToolSpec

MAX_CALLS = 64
"""Limit of the calls of one answer, also of those recovered from its text. A model that asks for
more is out of control, or under the control of others."""
MAX_UNREADABLE = 2
"""Answers with unreadable calls after which the turn fails."""
TOO_MANY_IN_ANSWER = f"This was not carried out: an answer may have at most {MAX_CALLS} calls."
CUT_OFF = "Interrupted before it ended. It may have had an effect all the same."
EMPTY_ANSWER_HINT = "(You answered with nothing. Write the text to be posted, or call stay_silent.)"
CALL_AS_TEXT = (
    "(You wrote a tool call as text, so it was neither carried out nor posted. Call the tool "
    "itself. If you want to "
    "show such text to somebody, put words beside it.)"
)
ANSWER_NOW_HINT = (
    "(No more tool calls are carried out in this turn. Answer now from the results above.)"
)
TOO_MANY_IN_TURN = "Not carried out: there were too many tool calls in this turn."
ENDLESS_CALLS_REASON = "the model calls tools where it is to answer"
UNANSWERED_HINT = (
    "(Somebody has spoken to you and has no answer yet, so the turn goes on. Write the text to "
    "post, or call stay_silent.)"
)
MAX_FAILED_CALLS = 2
"""Times that the same call is carried out although it failed before."""
MAX_SAME_CALLS = 2
"""Times that a turn may make the same call."""
REPEATED_CALL = (
    "Not carried out: you have made the same call twice in this turn, and its result stands above. "
    "Answer from it, or do something else."
)
MAX_CUT_ANSWERS = 3
"""Answers of one turn that may be cut in a tool call: each costs as much as an answer may."""
OVER_BUDGET_REASON = "dmn.daily_cost_usd"
CUT_CALL = (
    "Not carried out: your answer reached its limit of {limit} tokens (max_output_tokens) in the "
    "middle of this call. Do it in smaller pieces, one call after the other."
)
CUT_LEAKED_CALL = (
    "(Your answer reached its limit of {limit} tokens (max_output_tokens) in the middle of a tool "
    "call, which was not carried out. Do it in smaller pieces, one call after the other.)"
)
CUT_THINKING_HINT = (
    "(You thought until the limit of {limit} tokens (max_output_tokens) was reached, and wrote no "
    "answer. Think only briefly this time.)"
)


@dataclass(slots=True)
class ModelAnswer:
    """Answer of the model to one request."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()
    """Text in place of calls that cannot be parsed: one sentence each, for the model."""
    end: StreamEnd = field(init=False)
    """End of the stream, which is set once that is read."""

    def recover_calls(
        self, request: ModelRequest, known: tuple[ToolSpec, ...], *, may_leak: bool
    ) -> None:
        """Parse the text as calls of known tools. Refuse them if the model is not known to leak
        them (`may_leak`), or if they stand in a code fence.

        Nothing changes if the text holds anything else, or if the calls already stand in the
        request.
        """
        fence = _FENCE.fullmatch(self.text)
        text = fence[1] if fence is not None else self.text
        if presentable_text(text):
            return
        from agent.models.leaks import (  # noqa: PLC0415 - seldom needed, and large
            describe_unread_call,
            is_call_in_request,
            recover_tool_calls,
        )

        may_leak = may_leak and fence is None
        found = [_clean_call(call) for call in recover_tool_calls(text, known)]
        whole = [replace(call, arguments=json.dumps(text)) for call in found[:1]]
        calls = tuple([call for call in found if call.arguments])
        if found and not any(is_call_in_request(call, request) for call in (*calls, *whole)):
            self.text, self.calls = "", calls if may_leak else ()
            problems = tuple([describe_unread_call(one.name) for one in found if not one.arguments])
            self.problems = problems if may_leak else (CALL_AS_TEXT,)


async def take_turn(
    brief: PromptInput,
    model: Model,
    host: TurnHost,
    *,
    key: str,
    max_tool_rounds: int = 8,
    scale: float = 1.0,
    was_refused: bool = False,
) -> TurnOutcome:
    """Carry out one turn and return its outcome.

    `host` carries out the tool calls, and keeps the results that are shortened to its limits. It is
    asked before each request whether it can be afforded; after each round of tools for messages
    that arrived meanwhile, which follow the results; and for less history when the conversation has
    become too long in the middle of the turn, which then goes on with less of its older results,
    too. `scale`: real tokens per estimated token, as experience has it. `was_refused`: the same
    turn was found too long before. Images from tools are left out once the provider refuses them.

    Raises what `host` raises, and for the very first request only: `PromptTooLong` if it does not
    fit the window (fold, then call again), `RequestRefused` if it holds images (leave them out,
    then call again). Every other model failure is an outcome. Cancelling closes the provider's
    connection, ends the tools under way and leaves nothing behind.
    """
    progress = host.progress
    turn_request = TurnRequest(brief, model, host, key=key, scale=scale, was_refused=was_refused)
    turn = _TurnLoop(turn_request, host, max_tool_rounds)
    known = (*ENDING_TOOLS, *host.specs, *turn_request.request.tools) if model.takes_tools else ()
    while await host.can_afford(turn_request.request):
        try:
            answer = await ask_model(model, turn_request.request, progress, known, host)
        except ModelError as error:
            is_recoverable = isinstance(error, PromptTooLong) or (
                isinstance(error, RequestRefused) and turn_request.request.has_images
            )
            if is_recoverable and progress.current.requests == 0:
                raise
            progress.record_lost(error.accounts)
            if isinstance(error, PromptTooLong):
                is_smaller = await turn_request.shorten()
            else:  # an image may look intact and be damaged
                is_smaller = isinstance(error, RequestRefused) and turn_request.hide_images()
            if is_smaller:
                continue
            wait_s = error.retry_after_s if isinstance(error, ModelBusy) else None
            return progress.finish(
                TurnOutcome(
                    outcome="failed", reason=error.reason, cause=error.cause, retry_after_s=wait_s
                )
            )
        outcome = await turn.handle_answer(answer)
        if outcome is not None:
            return progress.finish(outcome)
    return replace(
        progress.current, outcome="silent", reason=OVER_BUDGET_REASON, is_over_budget=True
    )


class _TurnLoop:
    def __init__(self, request: TurnRequest, host: TurnHost, max_rounds: int) -> None:
        self._request, self._progress = request, request.progress
        self._host, self._max_rounds = host, max_rounds
        self._rounds = self._unreadable = self._cut_count = 0
        self._nudged = self._must_answer = False
        self._limit_tokens = 0
        """Output limit of the last answer that was cut."""
        self._specs = {spec.name: spec for spec in (*ENDING_TOOLS, *host.specs)}
        self._results: dict[str, tuple[ToolResult, int]] = {}
        """Newest result of each call, and the number of times that it was carried out, by key."""
        self._call_counts = Counter[str]()

    async def handle_answer(self, answer: ModelAnswer) -> TurnOutcome | None:
        """Act on an answer. Return how the turn ended, or None if it goes on."""
        is_cut = answer.end.stop_reason == "length"
        self._cut_count += is_cut
        self._limit_tokens = self._request.request.max_output_tokens
        self._request.record_answer(answer.end)
        if answer.calls:
            answer.calls = make_call_ids_unique(
                wrap_calls(answer.calls, self._request.request.tools),
                self._request.request.conversation,
            )
        elif problems := self._find_problems(answer):
            return self._reject_unreadable(answer, problems)
        elif is_cut:
            return self._end_cut(answer.text)
        outcome = _find_outcome(answer)
        if outcome is None and answer.calls and self._must_answer:
            return self._accept_text(answer)
        unanswered = (
            outcome is not None and outcome.outcome == "yielded" and self._host.is_addressed
        )
        if answer.calls and (outcome is None or outcome.outcome != "failed"):
            await self._call_tools(answer)
            if outcome is None:
                await self._continue_turn()
                return None
        if outcome is not None and not unanswered:
            return outcome
        if self._nudged:
            return TurnOutcome(
                outcome="failed", reason="the model answered with nothing, twice", cause="nothing"
            )
        self._nudged = True
        self._request.add_hint(UNANSWERED_HINT if unanswered else EMPTY_ANSWER_HINT)
        if unanswered:
            await self._request.continue_with("")
        return None

    def _end_cut(self, text: str) -> TurnOutcome | None:
        """Return the outcome of a turn whose answer is not whole. Where thinking has left no text,
        the model is asked again, once.
        """
        reason = f"max_output_tokens ({self._limit_tokens}) cut the answer off"
        if text := join_surrogates(text).strip():
            return TurnOutcome(outcome="replied", text=text, reason=reason, cause="cut")
        if not self._request.is_plain and self._request.think_less():
            self._request.add_hint(CUT_THINKING_HINT.format(limit=self._limit_tokens))
            return None
        return TurnOutcome(
            outcome="failed", reason=f"{reason}: all of it was thinking", cause="cut"
        )

    def _accept_text(self, answer: ModelAnswer) -> TurnOutcome | None:
        """Take the text of an answer as the reply although it calls tools that are not allowed any
        more.
        """
        if self._max_rounds == 1:
            self._progress.current = replace(self._progress.current, wants_more=True)
        if text := join_surrogates(answer.text).strip():
            return TurnOutcome(outcome="replied", text=text)
        if self._request.drop_tools():
            return None
        return TurnOutcome(outcome="failed", reason=ENDLESS_CALLS_REASON, cause="tools")

    def _find_problems(self, answer: ModelAnswer) -> str:
        """Return what is wrong with tool calls in the text, for the model. Empty: nothing."""
        may_leak = answer.end.may_leak_calls and _LEAKED_CALL.search(answer.text) is not None
        if answer.end.stop_reason == "length" and (answer.problems or may_leak):
            return CUT_LEAKED_CALL.format(limit=self._limit_tokens)
        return "\n".join(answer.problems)

    def _reject_unreadable(self, answer: ModelAnswer, problems: str) -> TurnOutcome | None:
        """Ask again after unreadable tool calls; their text is not posted."""
        self._unreadable += 1
        if self._unreadable <= MAX_UNREADABLE:
            self._request.add_hint(problems)
            return None
        if answer.end.stop_reason == "length":
            reason = f"max_output_tokens ({self._limit_tokens}) cut tool calls off"
            return TurnOutcome(outcome="failed", reason=reason, cause="cut")
        reason = "the model wrote tool calls that cannot be read"
        return TurnOutcome(outcome="failed", reason=reason, cause="nothing")

    async def _continue_turn(self) -> None:
        """Put the last step, and the messages that arrived meanwhile, into the next request."""
        self._must_answer = self._must_answer or self._rounds >= self._max_rounds
        if self._must_answer:
            self._request.directive = ANSWER_NOW_HINT
        arrivals = join_surrogates(
            await self._host.fetch_arrivals(self._request.remaining_tokens())
        )
        self._request.must_answer_first |= self._host.is_addressed
        await self._request.continue_with(arrivals)

    async def _call_tools(self, answer: ModelAnswer) -> None:
        """Carry out the calls of an answer. The step is recorded even if that is interrupted."""
        is_over_limit, self._rounds = self._rounds >= self._max_rounds, self._rounds + 1
        calls = [call for call in answer.calls if unwrap_call(call).name not in ENDING_TOOL_NAMES]
        results = dict[str, ToolResult]()
        if answer.end.stop_reason == "length":  # the limit was reached in the last one
            cut, reason = answer.calls[-1].id, CUT_CALL.format(limit=self._limit_tokens)
            results[cut] = ToolResult(id=cut, text=reason, is_error=True)
        outcome, text = _find_outcome(answer), join_surrogates(answer.text)
        posted = outcome is not None and outcome.outcome in ("replied", "yielded")
        room = self._request.result_tokens(text, answer.calls)
        records = dict[str, ToolCallRecord]()
        try:
            for group in self._parallel_groups(calls):
                work = [self._run_call(call, results, refuses=is_over_limit) for call in group]
                await _gather([asyncio.ensure_future(one) for one in work])
            found = _collect_results(calls, results)
            repeats = bool(calls) and all(one.text == REPEATED_CALL for one in found)
            self._must_answer = repeats or self._cut_count > MAX_CUT_ANSWERS
            shown = self._request.show_images(found)
            records = await self._request.truncator.render_results(calls, shown, room)
        except BaseException:
            found = _collect_results(calls, results)
            records = self._request.truncator.render_interrupted(calls, found, room)
            raise
        finally:
            recorded = list[ToolCallRecord]()
            for call in answer.calls:
                spec = self._specs.get(unwrap_call(call).name)
                record = records.get(call.id) or build_called(call, None)  # else it ended the turn
                ephemeral = spec is not None and spec.is_ephemeral
                recorded.append(replace(record, ephemeral=ephemeral))
            step = TurnStep(
                text="" if posted or not text.strip() else text,
                calls=tuple(recorded),
                thinking=answer.end.thinking,
            )
            done = self._progress.current
            self._progress.current = replace(done, steps=(*done.steps, step))

    def _parallel_groups(self, calls: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
        """Yield groups of neighbouring calls that are safe side by side. The same call twice is
        not.
        """
        group: list[ToolCall] = []
        for call in calls[:MAX_CALLS]:
            specs = [self._specs.get(unwrap_call(one).name) for one in (call, *group[-1:])]
            are_safe = all(spec is not None and spec.is_parallel for spec in specs)
            if group and not (are_safe and call_key(call) not in map(call_key, group)):
                yield group
                group = []
            group.append(call)
        if group:
            yield group

    async def _run_call(
        self, call: ToolCall, results: dict[str, ToolResult], *, refuses: bool
    ) -> None:
        if call.id in results:
            return
        result = self._find_result(call)
        if result is None:
            inner = unwrap_call(call)
            if inner.name == CALL_CAPABILITY.name:
                result = ToolResult(id=call.id, text=CAPABILITY_USAGE, is_error=True)
            elif refuses:
                result = ToolResult(id=call.id, text=TOO_MANY_IN_TURN, is_error=True)
            else:
                result = await self._host.call(inner)
            self._record_result(call, result)
        results[call.id] = result

    def _find_result(self, call: ToolCall) -> ToolResult | None:
        """Return the result of the same call if it would bring the same again, or an error if it
        was made too often. None: carry it out.
        """
        key = call_key(call)
        self._call_counts[key] += 1
        if self._call_counts[key] > MAX_SAME_CALLS:
            return ToolResult(id=call.id, text=REPEATED_CALL, is_error=True)
        result, count = self._results.get(key, (None, 0))
        if result is None or (result.is_error and count < MAX_FAILED_CALLS):
            return None
        return replace(result, id=call.id)

    def _record_result(self, call: ToolCall, result: ToolResult) -> None:
        """Earlier results become invalid if this call may have changed something."""
        spec, key = self._specs.get(unwrap_call(call).name), call_key(call)
        _, count = self._results.get(key, (None, 0))
        if spec is None or spec.is_polling or not spec.is_parallel:
            self._results.clear()
        if spec is None or not spec.is_polling:
            self._results[key] = (result, count + 1)


def _find_outcome(answer: ModelAnswer) -> TurnOutcome | None:
    """Return the outcome of a turn that this answer ends, once its calls are carried out. None: it
    goes on.
    """
    text = join_surrogates(answer.text).strip()
    names = {unwrap_call(call).name for call in answer.calls}
    yields = YIELD_TO_USER.name in names
    if STAY_SILENT.name in names:
        return TurnOutcome(outcome="silent", yielded=yields)
    if yields:
        return TurnOutcome(outcome="replied" if text else "yielded", text=text, yielded=True)
    if answer.end.stop_reason == "refused":  # the text before a refusal is not an answer
        return TurnOutcome(outcome="failed", reason="the model declined to answer", cause="refused")
    if text and names <= {CONTINUE_TASK}:
        return TurnOutcome(outcome="replied", text=text)
    return None


async def ask_model(  # noqa: C901 - one case per kind of chunk
    model: Model,
    request: ModelRequest,
    progress: TurnProgress,
    known: tuple[ToolSpec, ...] = (),
    host: TurnHost | None = None,
) -> ModelAnswer:
    """Send a request and read the answer to its end. Raises a ModelError.

    `host` is told how the answer grows. If cancelled, `progress` gets
    the requests that are billed all the same. `known`: tools whose calls are looked for in the
    text, and carried out if the model is known to write them there (`StreamEnd.may_leak_calls`).
    """
    answer, reports_whole_text = ModelAnswer(), False
    billed: Callable[[], tuple[RequestUsage, ...]] = tuple
    stream = model.stream(request)
    try:
        async for chunk in stream:
            match chunk:
                case StreamStart(billed_accounts=accounts):
                    billed = accounts or billed
                case PartialText(text=text):
                    reports_whole_text = True  # the text itself follows at the end
                    if host is not None:
                        host.answer_grew(text)
                case ThinkingDelta(text=text) if host is not None:
                    host.thinking_grew(text)
                case TextPart(text=text):
                    answer.text += text
                    if host is not None and not reports_whole_text:
                        host.answer_grew(answer.text)
                case ToolCall():
                    answer.calls = (*answer.calls, _clean_call(chunk))
                case StreamEnd():
                    answer.end = chunk
    except asyncio.CancelledError:
        progress.record_lost(billed())
        raise
    finally:
        await stream.aclose()
    # A text of which a reader would see nothing is none.
    answer.text = answer.text if strip_invisible(answer.text).strip() else ""
    if known and answer.text and not answer.calls:
        answer.recover_calls(request, known, may_leak=answer.end.may_leak_calls)
    return answer


def _clean_call(call: ToolCall) -> ToolCall:
    """Return the call with surrogate halves joined or replaced, so that it can be logged as
    UTF-8.
    """
    arguments = replace_half_escapes(join_surrogates(call.arguments))
    return replace(
        call, id=join_surrogates(call.id), name=join_surrogates(call.name), arguments=arguments
    )


def _collect_results(
    calls: Sequence[ToolCall], results: Mapping[str, ToolResult]
) -> list[ToolResult]:
    """Return one result for each call, in their order, also for those that have none yet."""
    return [
        results.get(call.id)
        or ToolResult(
            id=call.id, text=CUT_OFF if number < MAX_CALLS else TOO_MANY_IN_ANSWER, is_error=True
        )
        for number, call in enumerate(calls)
    ]


async def _gather(tasks: Sequence[asyncio.Task[None]]) -> None:
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


_LEAKED_CALL = re.compile(
    r"""<[|/]?([a-z]+:)?(tool|function|invoke|parameter|think|arg_)
    |<[|\N{FULLWIDTH VERTICAL LINE}]  # a special token
    |\[TOOL_CALLS\]|\[/?INST\]  # Mistral's
    |^[ \t]*\[\w*\(  # Llama 4's
    |```tool
    |\A\s*(```\w*\s*)?(\{|\[\s*\{)  # an answer that begins as JSON
    |\A\s*to=  # gpt-oss', whose first tokens are missing
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
"""Beginnings of tool calls that leak into a model's text. The pattern rather cuts too much than too
little: text that was meant as text is in the final answer again."""
_UNFINISHED_CALL = re.compile(
    r"(<[|/]?[a-z_:]{0,16}|\[/?\w{0,64}|`{1,3}[a-z]{0,8}\s*|\A\s*to?)\Z", re.IGNORECASE
)
"""End of a text that may become such a beginning with the next piece."""


_FENCE = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)


def presentable_text(text: str) -> str:
    """Return the beginning of `text` that is surely prose: no tool call, partial or whole, no half
    character.
    """
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    call = _LEAKED_CALL.search(whole)
    return (whole[: call.start()] if call else _UNFINISHED_CALL.sub("", whole)).strip()


def build_prefix_request(
    brief: PromptInput, model: Model, specs: tuple[ToolSpec, ...], *, key: str
) -> ModelRequest:
    """Build a request for the prefix that all requests of this agent's turns share, without an
    answer.

    It makes a provider read the prefix into its cache.
    """
    whole = build_first_request(brief, model, specs, key)
    blocks = tuple(block for block in whole.blocks if block.name in SHARED_BLOCKS)
    return replace(whole, blocks=blocks, conversation=(), max_output_tokens=0)
