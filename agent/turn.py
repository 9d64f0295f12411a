"""One turn: ask the model, let it use tools, ask again, until it says something or chooses not to."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from agent.answer import Answer, ask
from agent.asked import FITS, Asked, Fits, Shorten, cannot, request_of
from agent.brief import Brief
from agent.carrying import Carrying
from agent.models.base import (
    Image,
    Malformed,
    Model,
    ModelError,
    Request,
    ToolCall,
    TooLong,
    ToolResult,
    ToolSpec,
)
from agent.outcome import Outcome, Progress
from agent.prompt import SHARED
from agent.prompts import prompt
from agent.repeats import NOT_AGAIN, Repeats, asked_for, shown
from agent.steps import called, named_apart, whole
from agent.telling import Keeping, Telling
from agent.tools.rest import STAY_SILENT, YIELD_TO_USER
from agent.tools.rest import TOOLS as ENDINGS
from agent.tools.surface import meant, wrapped
from gateway.events import Called, Step

ENDING = frozenset({STAY_SILENT.name, YIELD_TO_USER.name})
MAX_UNREADABLE = 2
"""Answers in one turn whose calls cannot be read; then it fails."""
NUDGE = "(You answered with nothing. Write the text to be posted, or call stay_silent.)"
ENOUGH = "(No more tool calls will be carried out in this turn. Answer now from what is above.)"
NO_MORE = "Not carried out: there were too many tool calls in this turn."
ENDLESS = "the model calls tools where it is to answer"
UNANSWERED = (
    "(Somebody has spoken to you and has no answer yet, so the turn goes on. Write the text to be posted, or call "
    "stay_silent.)"
)
BROKE = "dmn.daily_cost_usd"


class Tools(Protocol):
    """What the agent may use in this turn, beyond ending it."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The same list in every turn: permission is decided at the call, never by hiding."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Carry out one call. Never raises for what the model did wrong: that is an error result."""


News = Callable[[int], Awaitable[str]]
"""What has arrived meanwhile, in at most so many tokens; empty: nothing that fits."""


async def no_news(_: int) -> str:
    """Nothing arrives."""
    return ""


async def _at_once(_: Request) -> None:
    """Nothing is waited for."""


async def _may(request: Request, wait: Callable[[Request], Awaitable[None]], afford: Callable[[Request], bool]) -> bool:
    await wait(request)
    return afford(request)


async def take_turn(
    brief: Brief,
    model: Model,
    tools: Tools,
    *,
    key: str,
    max_tool_rounds: int = 8,
    glimpse: Callable[[str], None] | None = None,
    thought: Callable[[str], None] = lambda _: None,
    news: News = no_news,
    wait: Callable[[Request], Awaitable[None]] = _at_once,
    afford: Callable[[Request], bool] = lambda _: True,
    progress: Progress | None = None,
    evidence: Keeping | None = None,
    shorten: Shorten = cannot,
    fits: Fits = FITS,
    spoken_to: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Carry one turn through and say how it ended.

    `glimpse` is told the text so far of each growing answer: what it was told may be taken back, and only what is
    `presentable` of it may be shown; `thought` each piece of thinking. `news` is asked after each round of tools for
    what has arrived meanwhile; it is told behind their results. `wait` is awaited before each request, then `afford` is
    asked: without its leave the turn ends, silently. `progress` is kept up to date, also with tools that were cut off.
    `evidence` says how much of what tools bring in may be told word for word, and keeps what is not told whole.
    `shorten` is asked when the conversation has become too long in the middle of the turn: then it goes on behind that
    brief, with less of its older results. `fits`: what is known of its requests' sizes. Pictures from tools are left
    out once they are refused. `spoken_to`: whether `news` has told what somebody said to the agent: that is to be
    answered before it rests.

    Raises what `evidence.keep` and `shorten` do, and for the very first request only: `TooLong` if it does not fit the
    window (fold, then call again), `Malformed` if it holds images (leave them out, then call again). Every other model
    failure is an outcome.
    Cancelling closes the provider's connection, ends the tools under way and leaves nothing behind.
    """
    progress = progress or Progress()
    asked = Asked(brief, model, tools.specs, key=key, progress=progress, truncator=Telling(evidence), fits=fits)
    turn = _Turn(asked, tools, max_tool_rounds, spoken_to)
    known = (*ENDINGS, *tools.specs, *asked.request.tools) if model.takes_tools else ()
    while await _may(asked.request, wait, afford):
        try:
            answer = await ask(model, asked.request, glimpse, progress, known, thought=thought)
        except ModelError as error:
            mendable = isinstance(error, TooLong) or (isinstance(error, Malformed) and _shows(asked.request))
            if mendable and progress.current.requests == 0:
                raise
            progress.record_lost(error.accounts)
            if await _mended(asked, error, shorten):
                continue
            return progress.finish(Outcome(outcome="failed", reason=error.reason, cause=error.cause))
        ended = await turn.handle_answer(answer, news)
        if ended is not None:
            return progress.finish(ended)
    return replace(progress.current, outcome="silent", reason=BROKE, is_over_budget=True)


class _Turn:
    """One turn under way."""

    def __init__(self, asked: Asked, tools: Tools, max_rounds: int, spoken_to: Callable[[], bool]) -> None:
        self._request = asked
        self._progress = asked.progress
        self._tools = tools
        self._max_rounds = max_rounds
        self._spoken_to = spoken_to
        self._rounds = 0
        self._nudged = False
        self._unreadable = 0
        self._must_answer = False
        """It was told to answer."""
        self._specs = {spec.name: spec for spec in (*ENDINGS, *tools.specs)}
        self._duplicates = Repeats(self._specs.values())
        self._call_list: list[str] = []

    async def handle_answer(self, answer: Answer, news: News) -> Outcome | None:
        """Do what an answer says. Returns how the turn ended, None: it goes on."""
        assert answer.end is not None
        self._request.record_answer(answer.end)
        answer.calls = named_apart(
            wrapped(answer.calls, self._request.request.tools), self._request.request.conversation
        )
        if answer.problems and not answer.calls:
            return self._reject_unreadable(answer)
        ended = _ended(answer)
        if ended is None and answer.calls and self._must_answer:
            return self._accept_text(answer)
        unanswered = ended is not None and ended.outcome == "yielded" and self._spoken_to()
        if answer.calls and (ended is None or ended.outcome != "failed"):
            await self._call_tools(answer)
            if not unanswered:
                return ended or await self._continue_turn(news)
        if ended is not None and not unanswered:
            return ended
        if self._nudged:
            return Outcome(outcome="failed", reason="the model answered with nothing, twice", cause="nothing")
        self._nudged = True
        self._request.add_hint(UNANSWERED if unanswered else NUDGE)
        if unanswered:
            await self._request.continue_with("")
        return None

    def _accept_text(self, answer: Answer) -> Outcome | None:
        """It still calls tools where it was to answer: its words are the answer."""
        if text := whole(answer.text).strip():
            return Outcome(outcome="replied", text=text)
        if self._request.drop_tools():
            return None
        return Outcome(outcome="failed", reason=ENDLESS, cause="tools")

    def _reject_unreadable(self, answer: Answer) -> Outcome | None:
        """What was to be a call cannot be read: it is asked for again, and not posted as words."""
        self._unreadable += 1
        if self._unreadable > MAX_UNREADABLE:
            return Outcome(outcome="failed", reason="the model wrote tool calls that cannot be read", cause="nothing")
        self._request.add_hint("\n".join(answer.problems))
        return None

    async def _continue_turn(self, news: News) -> Outcome | None:
        """Put the last step, and what arrived meanwhile, into the next request."""
        self._must_answer = self._must_answer or self._rounds >= self._max_rounds
        if self._must_answer:
            self._request.forbid_tools()
        self._request.set_reminder(
            ENOUGH if self._must_answer else prompt("synthesise"),
            asked_for(self._call_list, self._duplicates.repeated_count),
        )
        heard = whole(await news(self._request.remaining_tokens()))
        if self._spoken_to():
            self._request.require_answer()
        await self._request.continue_with(heard)
        return None

    async def _call_tools(self, answer: Answer) -> None:
        """Carry out the calls of an answer. The step is written down also if that is cut off."""
        enough, self._rounds = self._rounds >= self._max_rounds, self._rounds + 1
        calls = [call for call in answer.calls if meant(call).name not in ENDING]
        self._call_list += [shown(meant(call)) for call in calls]
        carrying = Carrying(calls, self._specs.values(), _no_more if enough else self._tools.call, self._duplicates)
        names = {meant(call).name for call in answer.calls}
        text, posted = whole(answer.text), names & ENDING == {YIELD_TO_USER.name}
        room = self._request.result_tokens(text, answer.calls)
        told = dict[str, Called]()
        try:
            await carrying.run()
            self._must_answer = bool(calls) and all(one.text == NOT_AGAIN for one in carrying.results())
            self._request.show_images(carrying.results())
            told = await self._request.truncator.render_results(calls, carrying.results(), room)
        except BaseException:
            told = self._request.truncator.render_interrupted(calls, carrying.results(), room)
            raise
        finally:
            step = Step(
                text="" if posted or not text.strip() else text,
                calls=tuple([self._record_call(call, told.get(call.id)) for call in answer.calls]),
            )
            worked = any(self._is_task(meant(call).name) for call in calls if call.id not in carrying.ineffective_ids)
            self._progress.record_step(step, worked=worked)

    def _is_task(self, name: str) -> bool:
        return name in self._specs and self._specs[name].is_task

    def _record_call(self, call: ToolCall, told: Called | None) -> Called:
        """None: it ended the turn."""
        spec = self._specs.get(meant(call).name)
        return replace(told or called(call, None), ephemeral=spec is not None and spec.is_ephemeral)


async def _no_more(call: ToolCall) -> ToolResult:
    return ToolResult(id=call.id, text=NO_MORE, is_error=True)


def beginning(brief: Brief, model: Model, specs: tuple[ToolSpec, ...], *, key: str) -> Request:
    """What all requests for this agent's turns begin with, as a request to read it in and answer nothing."""
    whole = request_of(brief, model, specs, key)
    blocks = tuple(block for block in whole.blocks if block.name in SHARED)
    return replace(whole, blocks=blocks, conversation=(), max_output_tokens=0)


async def _mended(asked: Asked, error: ModelError, shorten: Shorten) -> bool:
    """Whether the same is worth asking again, with less."""
    if isinstance(error, TooLong):
        return await asked.shorten(shorten)
    return isinstance(error, Malformed) and asked.hide_images()  # a picture may look whole and not be


def _shows(request: Request) -> bool:
    return any(isinstance(part, Image) for said in request.conversation for part in said.parts)


def _ended(answer: Answer) -> Outcome | None:
    """What this answer makes of the turn, once its calls are carried out; None if it goes on."""
    text = whole(answer.text).strip()
    names = {meant(call).name for call in answer.calls}
    yields = YIELD_TO_USER.name in names
    if STAY_SILENT.name in names:
        return Outcome(outcome="silent", yielded=yields)
    if yields:
        return Outcome(outcome="replied" if text else "yielded", text=text, yielded=True)
    if answer.end is not None and answer.end.stop_reason == "refused":  # what it had begun to say is not its answer
        return Outcome(outcome="failed", reason="the model declined to answer", cause="refused")
    if not names and text:
        return Outcome(outcome="replied", text=text)
    return None
