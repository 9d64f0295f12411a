"""What a turn asks the model next: what it was told first, the turn's own steps behind it, and hints.

What a turn tells the model of what its tools brought, and where the rest of it is kept.

How much of what tools bring in is told word for word, and how much room for it the window still has. Pure.

Calls that a turn makes again, word for word: they are answered from the first result. Pure.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from agent.brief import PromptInput, TurnProgress
from agent.journal import to_single_line
from agent.models.base import Model, ModelMessage, ModelRequest, StreamEnd, ToolResult, strip_tools
from agent.prompt import build_request
from agent.prompts import load_prompt
from agent.steps import (
    CALL_TOKENS,
    FENCE_TOKENS,
    build_called,
    estimate_step_tokens,
    fence_result,
    join_surrogates,
    render_partial_result,
    render_steps,
)
from agent.tokens.counter import PromptSize, count_heuristically, measure_prompt
from agent.tools.specs import ENDING_TOOLS
from agent.tools.surface import render_catalogue, specs_on_wire, unwrap_call
from agent.view import BYTES_PER_TOKEN, SLACK_SHARE, answer_tokens, estimate_tokens
from agent.view_forms import find_safe_cut
from gateway.core.events import EvidenceRef, ToolCallRecord, TurnStep
from gateway.core.tool_spec import Image, ToolCall, ToolSpec

RESULT_FRAME_TOKENS: Final = 100
"""Of a result that is told in part, without an excerpt, or nearly: what is no longer is told whole, always."""
MIN_ANSWER_TOKENS: Final = 256
"""Tokens that are asked for in any case: the provider says that there is no room better than a cut sentence does."""
_MIN_BILL_SHARE: Final = 0.5
"""Of a bill against the estimate: one that says less is not of the whole prompt, or of none (some servers tell 0)."""
_REFUSED_SHARE: Final = 0.7
"""What is refused was too long by some unknown amount: about as much as one more round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultShare:
    """What is told of one result."""

    chars: int | None
    """So many of its first characters. None: all of it."""
    is_oversized: bool = False
    """It is more than one result may ever be."""


def share_budget(
    texts: Sequence[str], left_tokens: int, most_tokens: int, room_tokens: int, *, asked: Sequence[bool]
) -> tuple[tuple[ResultShare, ...], int]:
    """What is told of the results of one answer, in their order, and what is left then of `left_tokens`.

    `left_tokens`: of what the turn may tell word for word. `most_tokens`: of one result. `room_tokens`: of the window.
    `asked`: what is a part already. Of the others what does not fit whole takes half of what there is at most, so that
    something is left for what comes later. All of it is never more than `left_tokens`, and a frame for each.
    """
    shares = []
    for place, text in enumerate(texts):
        room_tokens -= CALL_TOKENS
        size = estimate_tokens(text)
        free = max(
            0,
            min(left_tokens, most_tokens, room_tokens - (RESULT_FRAME_TOKENS + CALL_TOKENS) * (len(texts) - place - 1)),
        )
        if size <= max(free, RESULT_FRAME_TOKENS):
            spent = size
            shares.append(ResultShare(chars=None))
        else:
            chars = count_fitting_chars(text, max(free, RESULT_FRAME_TOKENS) if asked[place] else free // 2)
            spent = estimate_tokens(text[:chars]) if chars else 0
            room_tokens -= RESULT_FRAME_TOKENS
            shares.append(ResultShare(chars=chars, is_oversized=size > most_tokens))
        left_tokens, room_tokens = max(0, left_tokens - spent), room_tokens - spent
    return tuple(shares), left_tokens


def count_fitting_chars(text: str, tokens: int) -> int:
    """How many of the first characters of a text have at most so many tokens."""
    most = int((tokens - 4) * BYTES_PER_TOKEN)
    if most <= 0:
        return 0
    return len(text[:most].encode()[:most].decode(errors="ignore"))


class ContextWindow:
    """The room in a model's window while a turn goes on: estimated, and corrected by each bill."""

    def __init__(
        self, context_tokens: int, max_output_tokens: int, *, scale: float = 1.0, refused: bool = False
    ) -> None:
        """`scale`: so many real tokens are taken for one estimated one. `refused`: it was too long the last time."""
        self._answer_tokens = answer_tokens(context_tokens, max_output_tokens)
        self._usable_tokens = context_tokens - int(context_tokens * SLACK_SHARE)
        self._prompt_limit = self._usable_tokens - self._answer_tokens
        self._max_output = self._answer_tokens if refused else max_output_tokens
        self._size: tuple[ModelRequest, PromptSize] | None = None
        self._factor = 1.0 / scale
        """A real token is so many estimated ones."""

    def measure(self, request: ModelRequest) -> int:
        """This is what the model is asked now: its tokens, as estimated."""
        self._size = request, measure_prompt(request, _RoughCounter(), before=self._size)
        return self._size[1].total

    def output_tokens(self) -> int:
        """What may be asked for as an answer to that request: a prompt and its answer share the window."""
        left = self._usable_tokens - int(self._estimate() / self._factor)
        return max(min(self._max_output, left), min(self._max_output, MIN_ANSWER_TOKENS))

    def record_bill(self, prompt_tokens: int) -> None:
        """What the provider says of the same request. 0: nothing."""
        estimate = self._estimate()
        if estimate and prompt_tokens >= _MIN_BILL_SHARE * estimate:
            self._factor = estimate / prompt_tokens

    def record_refusal(self) -> None:
        """The provider says that the same request is too long, whatever was thought of it."""
        self._max_output = self._answer_tokens
        self._factor = min(self._factor, _REFUSED_SHARE * self._estimate() / max(1, self._prompt_limit))

    def remaining_tokens(self) -> int:
        """Tokens, as estimated, that can still be told behind that request. Negative: it has too many."""
        return int(self._prompt_limit * self._factor) - self._estimate()

    def _estimate(self) -> int:
        return self._size[1].total if self._size is not None else 0


class _RoughCounter:
    """As `agent.view` measures, so that both say the same of the same."""

    is_exact = False

    def count(self, text: str) -> int:
        return count_heuristically(text)


_NO_LIMIT: Final = 2**62


class ResultArchive(Protocol):
    """Where a turn keeps what it does not tell."""

    @property
    def budget_tokens(self) -> int:
        """What it may tell word for word, all results together."""

    @property
    def max_result_tokens(self) -> int:
        """The same of one result."""

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef:
        """Make it durable, whole. Raises what ends the turn; cancelled, it is kept or not."""

    def record_cut(self) -> None:
        """A result is not told whole because it is larger than `most_tokens`."""


@dataclass(frozen=True, slots=True)
class _ShownResult:
    """A result that was told."""

    call: ToolCall
    result: ToolResult
    """Its text: as much as was told."""
    source: EvidenceRef | None
    """Where it is whole. None: `result` is, or it is nowhere."""
    total_chars: int
    """Of the whole."""


class ResultTruncator:
    """Of one turn."""

    def __init__(self, keeping: ResultArchive | None) -> None:
        """`keeping`: None, for who has no place: all is told as far as the window has room, and the rest is lost."""
        self._archive = keeping
        self._left_tokens = keeping.budget_tokens if keeping is not None else _NO_LIMIT
        self._max_result_tokens = keeping.max_result_tokens if keeping is not None else _NO_LIMIT
        self._shown: dict[str, _ShownResult] = {}
        """By the call's id."""

    async def render_results(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], room: int
    ) -> dict[str, ToolCallRecord]:
        """What the model is told of each, by the call's id. What it is not told whole is durable then.

        `room`: tokens that the window has for all of them. Raises what `ResultArchive.keep` does.
        """
        results, shares, left = self._share_budget(results, room)
        told = {}
        for call, result, part in zip(calls, results, shares, strict=True):
            if part.is_oversized and self._archive is not None and result.excerpt is None:
                self._archive.record_cut()
            source = await self._archive_result(call, result) if part.chars is not None else None
            told[call.id] = self._render_result(_ShownResult(call, result, source, len(result.text)), part.chars)
        self._left_tokens = left
        return told

    def render_interrupted(
        self, calls: Sequence[ToolCall], results: Sequence[ToolResult], room: int
    ) -> dict[str, ToolCallRecord]:
        """The same for a turn that is ended from outside, where nothing can be waited for any more."""
        results, shares, _ = self._share_budget(results, room)
        kept = {name: brought.source for name, brought in self._shown.items()}
        return {
            call.id: self._render_result(_ShownResult(call, result, kept.get(call.id), len(result.text)), part.chars)
            for call, result, part in zip(calls, results, shares, strict=True)
        }

    async def shrink_steps(self, steps: Sequence[TurnStep], tokens: int) -> tuple[TurnStep, ...]:
        """The same steps with at most about so many tokens of each result, and a frame. Raises what `tell` does."""
        return tuple(
            [
                replace(step, calls=tuple([await self._shrink_result(one, tokens) for one in step.calls]))
                for step in steps
            ]
        )

    def _share_budget(
        self, results: Iterable[ToolResult], room: int
    ) -> tuple[list[ToolResult], Sequence[ResultShare], int]:
        clean = [
            replace(result, text=join_surrogates(result.text), origin=join_surrogates(result.origin))
            for result in results
        ]
        texts, asked = [result.text for result in clean], [result.excerpt is not None for result in clean]
        room -= FENCE_TOKENS * sum(result.is_untrusted for result in clean)
        shares, left = share_budget(texts, self._left_tokens, self._max_result_tokens, room, asked=asked)
        return clean, shares, left

    async def _archive_result(self, call: ToolCall, result: ToolResult) -> EvidenceRef | None:
        if self._archive is None or result.excerpt is not None:
            return None
        return await self._archive.keep(call, result)

    async def _shrink_result(self, told: ToolCallRecord, tokens: int) -> ToolCallRecord:
        if estimate_tokens(told.result) <= max(tokens, RESULT_FRAME_TOKENS):
            return told
        brought = self._shown[told.id]
        source = brought.source or await self._archive_result(brought.call, brought.result)
        chars = min(count_fitting_chars(brought.result.text, tokens), len(brought.result.text))
        return self._render_result(replace(brought, source=source), chars)

    def _render_result(self, brought: _ShownResult, chars: int | None) -> ToolCallRecord:
        result, source = brought.result, brought.source
        if result.excerpt is not None:
            source = result.excerpt.source
            chars = None if chars is None else max(chars, result.text.find("\n") + 1)
        chars = None if chars is None else find_safe_cut(result.text, chars)
        first = result.text[:chars]
        name, plain = unwrap_call(brought.call).name, result.is_untrusted
        if result.excerpt is not None:
            text, plain = _fence_behind_head(first, brought.call.id, result, name), False
            if chars is not None:
                then = chars + result.excerpt.offset
                text += f"\n[cut here, for want of room in this turn: what follows begins at offset {then}]"
        elif chars is None:
            text = first
        elif source is not None:
            text, plain = render_partial_result(source, name, first, call=brought.call.id if plain else ""), False
        else:
            text = f"{first} [... {brought.total_chars - chars} more characters]"
        self._shown[brought.call.id] = replace(brought, result=replace(result, text=first))
        return build_called(brought.call, replace(result, text=text), source, untrusted=plain)


def _fence_behind_head(text: str, call: str, result: ToolResult, tool: str) -> str:
    """A part of something, whose first line is our own words."""
    head, line_end, body = text.partition("\n")
    return head + line_end + fence_result(body, tool, result.origin, call) if result.is_untrusted and body else text


MAX_RETRIES: Final = 2
"""Times that a turn goes on with less after the provider says that its tools have made it too long."""
SHRUNK_RESULT_TOKENS: Final = 200
"""Of each of the newest results, the second time, or at once if it is plain that there is no room for more."""

DIRECTIVE_TOKENS: Final = 60
"""Of what is said how to go about it, once tools are used."""
CALL_LIST_TOKENS: Final = 40
"""Of one call in the list of what was asked for."""

ShortenHistory = Callable[[int], Awaitable[PromptInput | None]]
"""Makes the brief of a turn anew with less history, for the first time or the second. None: that cannot be done."""


async def cannot_shorten(_: int) -> PromptInput | None:
    """Nothing can be left out."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeHints:
    """What is known of how large requests turn out to be."""

    scale: float = 1.0
    """So many real tokens are one estimated one."""
    was_refused: bool = False
    """The same turn was found too long before."""


NO_SIZE_HINTS: Final = SizeHints()
"""Nothing is known."""


class TurnRequest:
    """The request of one turn, which grows at its end, unless it becomes too long."""

    def __init__(
        self,
        brief: PromptInput,
        model: Model,
        specs: tuple[ToolSpec, ...],
        *,
        key: str,
        progress: TurnProgress,
        truncator: ResultTruncator,
        fits: SizeHints,
    ) -> None:
        """`progress`: where the steps are, and perhaps those of an earlier turn in front of them."""
        self.progress = progress
        self.truncator = truncator
        self._model = model
        self._specs = specs
        self._key = key
        self._window = ContextWindow(
            model.context_tokens, model.max_output_tokens, scale=fits.scale, refused=fits.was_refused
        )
        self._hints: tuple[str, ...] = ()
        self._must_answer_first = False
        self._only_answers = self._without_tools = False
        self._directive = self._call_list = ""
        self._tool_images: dict[str, Image] = {}
        self._shortened = 0
        self._earlier_steps = len(progress.current.steps)
        self._rebuild(brief)

    def record_answer(self, end: StreamEnd) -> None:
        """The request was answered."""
        self.progress.record_answer(end, self._model, self._window.measure(self.request))
        self._window.record_bill(self.progress.current.prompt_tokens)

    def result_tokens(self, text: str, calls: Sequence[ToolCall]) -> int:
        """Tokens that the window has for the results of such an answer."""
        said = estimate_tokens(text) + sum(CALL_TOKENS + estimate_tokens(call.name + call.arguments) for call in calls)
        around = CALL_LIST_TOKENS * len(calls) + (0 if self._directive else DIRECTIVE_TOKENS)
        return self._window.remaining_tokens() - said - around

    def remaining_tokens(self) -> int:
        """The same for what is told behind the results of the last step, which are not in the request yet."""
        return self._window.remaining_tokens() - estimate_step_tokens(self.progress.current.steps[-1:])

    def add_hint(self, hint: str) -> None:
        """Say something to the model behind all that is worth caching. It leaves with this turn."""
        self._hints = (*self._hints, hint)
        self._set_conversation(self.request.conversation)

    def require_answer(self) -> None:
        """Say from the next request on that somebody waits for an answer, and not that nobody does."""
        self._must_answer_first = True

    def forbid_tools(self) -> None:
        """Let no tool be called from the next request on."""
        self._only_answers = True

    def drop_tools(self) -> bool:
        """Ask the same again without tools, because they are called all the same. False: that was done before."""
        before, self._without_tools = self._without_tools, True
        self._set_conversation(self.request.conversation)
        return not before

    def set_reminder(self, directive: str, asked_for: str) -> None:
        """Say with the next request how to go about it, and what was asked for in this turn: the model's own words."""
        self._directive = directive
        self._call_list = asked_for

    def show_images(self, results: Sequence[ToolResult]) -> None:
        """Show what tools brought to be seen, from the next request on."""
        if self._model.takes_images:
            self._tool_images |= {shown.sha256: image for one in results for shown, image in one.images}

    def hide_images(self) -> bool:
        """Ask the same again without what tools brought to be seen. False: they brought nothing."""
        if not self._tool_images:
            return False
        self._tool_images = {}
        self._set_conversation((*self._told.conversation, *render_steps(self._steps, self._tool_images)))
        return True

    async def continue_with(self, heard: str) -> None:
        """Ask with the last step, behind whose results this is told. Where there is no room for it older ones go.

        Raises what `Keeping.keep` does.
        """
        step = self.progress.add_arrivals(heard)
        self._set_conversation((*self.request.conversation, *render_steps((step,), self._tool_images)))
        self._window.measure(self.request)
        if self._window.remaining_tokens() < 0 and len(self._steps) > 1:
            await self._shrink_results(len(self._steps) - 1, 0)
            self._set_conversation((*self._told.conversation, *render_steps(self._steps, self._tool_images)))

    async def shorten(self, shorten: ShortenHistory) -> bool:
        """Ask the same again with less, after the provider said that it is too long. False: that cannot be done.

        Raises what `shorten` and `Keeping.keep` do.
        """
        self._shortened += 1
        self._window.measure(self.request)
        self._window.record_refusal()
        brief = await shorten(self._shortened) if self._shortened <= MAX_RETRIES else None
        if brief is None:
            return False
        await self._shrink_results(len(self._steps) - 1, 0)
        self._rebuild(brief)
        self._window.measure(self.request)
        if self._shortened == MAX_RETRIES or self._window.remaining_tokens() < 0:
            await self._shrink_results(len(self._steps), SHRUNK_RESULT_TOKENS)
            self._rebuild(brief)
        return True

    @property
    def _steps(self) -> tuple[TurnStep, ...]:
        """The turn's own."""
        return self.progress.current.steps[self._earlier_steps :]

    def _rebuild(self, brief: PromptInput) -> None:
        self._told = self.request = build_first_request(brief, self._model, self._specs, self._key)
        self._set_conversation((*self._told.conversation, *render_steps(self._steps, self._tool_images)))

    def _set_conversation(self, conversation: tuple[ModelMessage, ...]) -> None:
        now = self._told.now
        if self._must_answer_first:
            for by_itself in ("working", "own"):
                now = now.replace(load_prompt(by_itself), "").strip()
            now = f"{load_prompt('answer_first')}\n{now}".strip()
        now = "\n".join([said for said in (now, *self._hints, self._directive) if said])
        aside = "\n".join([said for said in (self._told.aside, self._call_list) if said])
        only = self._only_answers
        request = replace(self._told, conversation=conversation, aside=aside, now=now, answer_only=only)
        request = strip_tools(request) if self._without_tools else request
        self._estimate = self._window.measure(request)
        self.request = replace(request, max_output_tokens=self._window.output_tokens())

    async def _shrink_results(self, first: int, tokens: int) -> None:
        """Tell less of the results of the first steps."""
        if first > 0:
            steps = self._steps
            self.progress.replace_steps((*await self.truncator.shrink_steps(steps[:first], tokens), *steps[first:]))


def build_first_request(brief: PromptInput, model: Model, specs: tuple[ToolSpec, ...], key: str) -> ModelRequest:
    """The first request of a turn."""
    specs = tuple(sorted((*ENDING_TOOLS, *specs), key=lambda one: one.name)) if model.takes_tools else ()
    if specs and brief.tool_surface == "capability":
        brief = replace(brief, skills="\n\n".join(filter(None, [brief.skills, render_catalogue(specs)])))
    plain = model.family == "local"
    tools = specs_on_wire(specs, brief.tool_surface, late=brief.has_late_tools) if specs else ()
    return build_request(brief, tools=tools, max_output_tokens=model.max_output_tokens, key=key, plain=plain)


MAX_CALL_CHARS: Final = 120
MAX_NAME_CHARS: Final = 64
MAX_LISTED_CALLS: Final = 12
"""Calls that are listed, the newest."""
MAX_FAILED_CALLS: Final = 2
"""Times that the same call is carried out though it failed before."""
MAX_SAME_CALLS: Final = 2
"""Times that a turn may make the same call."""
REPEATED_CALL: Final = (
    "Not carried out: you have made this very call twice in this turn, and what it brought stands above. Answer from "
    "that, or do something else."
)


class DuplicateCalls:
    """Of one turn."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._results: dict[str, tuple[ToolResult, int]] = {}
        """By what was called: the newest result, and how often it was brought."""
        self._call_counts: dict[str, int] = {}
        """How often each call was made."""
        self.repeated_count = 0
        """Calls that were answered like this."""

    def find_result(self, call: ToolCall) -> ToolResult | None:
        """What the same call brought before, if it would bring the same again, or was made too often.

        None: carry it out.
        """
        name = call_key(call)
        self._call_counts[name] = self._call_counts.get(name, 0) + 1
        if self._call_counts[name] > MAX_SAME_CALLS:
            return ToolResult(id=call.id, text=REPEATED_CALL, is_error=True)
        found = self._results.get(name)
        if found is None or (found[0].is_error and found[1] < MAX_FAILED_CALLS):
            return None
        self.repeated_count += 1
        return replace(found[0], id=call.id)

    def record_result(self, call: ToolCall, result: ToolResult) -> None:
        """It was carried out. Of what may have changed, by it or meanwhile, earlier results say nothing."""
        spec, name = self._specs.get(unwrap_call(call).name), call_key(call)
        times = self._results[name][1] if name in self._results else 0
        if spec is None or spec.is_polling or not spec.is_parallel:
            self._results.clear()
        if spec is None or not spec.is_polling:
            self._results[name] = (result, times + 1)


def call_key(call: ToolCall) -> str:
    """The same for calls that ask for the same."""
    inner = unwrap_call(call)
    try:
        arguments = json.dumps(json.loads(inner.arguments.strip() or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = inner.arguments
    return f"{inner.name} {arguments}"


def format_call(call: ToolCall) -> str:
    """A call on one line, for the list of what was asked for."""
    said = "" if call.arguments.strip() in ("", "{}") else call.arguments
    return to_single_line(f"{call.name[:MAX_NAME_CHARS]} {said[: 2 * MAX_CALL_CHARS]}", MAX_CALL_CHARS)


def format_call_list(calls: Sequence[str], repeated: int) -> str:
    """What a turn has asked for so far, in the model's own words, which may be somebody else's."""
    listed = list(dict.fromkeys(calls))
    left = [f"- and {len(listed) - MAX_LISTED_CALLS} more"] if len(listed) > MAX_LISTED_CALLS else []
    again = [f"({repeated} calls were the same again: they were answered from the first result.)"] if repeated else []
    return "\n".join(
        ["Asked for in this turn so far:", *(f"- {one}" for one in listed[-MAX_LISTED_CALLS:]), *left, *again]
    )
