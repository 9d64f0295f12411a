"""What a turn asks the model next: what it was told first, the turn's own steps behind it, and hints."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.allowance import ContextWindow
from agent.brief import PromptInput
from agent.models.adapted import strip_tools
from agent.models.base import Image, Model, ModelMessage, ModelRequest, StreamEnd, ToolCall, ToolResult, ToolSpec
from agent.outcome import TurnProgress
from agent.prompt import build_request
from agent.prompts import load_prompt
from agent.steps import CALL_TOKENS, estimate_step_tokens, render_steps
from agent.telling import ResultTruncator
from agent.tools.rest import ENDING_TOOLS
from agent.tools.surface import render_catalogue, specs_on_wire
from agent.view import estimate_tokens
from gateway.events import TurnStep

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
