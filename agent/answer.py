"""One answer of the model, heard to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.models.base import (
    Model,
    ModelRequest,
    PartialText,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ToolCall,
    ToolSpec,
)
from agent.outcome import TurnProgress
from agent.steps import join_surrogates
from gateway.events import RequestUsage


@dataclass(slots=True)
class ModelAnswer:
    """What the model said."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()
    """What it wrote instead of calls and cannot be read: a sentence each, for the model."""
    end: StreamEnd | None = None
    """None: it has not ended."""

    def recover_calls(self, request: ModelRequest, known: tuple[ToolSpec, ...]) -> None:
        """Take the text for calls of known tools, if it is nothing else and the model was not told any of them."""
        from agent.models.leaks import is_call_in_request, recover_tool_calls  # noqa: PLC0415 - seldom needed, and large
        from agent.models.leaks_written import BadLeakedCall  # noqa: PLC0415 - the same

        found = recover_tool_calls(self.text, known)
        calls = tuple(
            [
                _clean_call(ToolCall(id=f"leak_{number}", name=one.name, arguments=one.arguments, is_recovered=True))
                for number, one in enumerate(found, start=1)
                if not isinstance(one, BadLeakedCall)
            ]
        )
        if found and not any(is_call_in_request(call, request) for call in calls):
            self.text, self.calls = "", calls
            self.problems = tuple([one.message for one in found if isinstance(one, BadLeakedCall)])


async def ask_model(  # noqa: C901 - one case per kind of chunk
    model: Model,
    request: ModelRequest,
    glimpse: Callable[[str], None] | None,
    progress: TurnProgress,
    known: tuple[ToolSpec, ...] = (),
    *,
    thought: Callable[[str], None] = lambda _: None,
) -> ModelAnswer:
    """Ask, and call `glimpse` with the text so far, `thought` with each piece of what is thought.

    Cut off, it tells `progress` what is billed all the same.
    `known`: tools whose calls are found in the text of a model that is known to write them there (`StreamEnd.leaks`).
    Raises a ModelError.
    """
    answer, billed, show = ModelAnswer(), _no_accounts, glimpse
    stream = model.stream(request)
    try:
        async for chunk in stream:
            match chunk:
                case StreamStart(billed_accounts=told):
                    billed = told or billed
                case PartialText(text=text):
                    if glimpse is not None:
                        glimpse(text)
                    show = None  # the model says itself how the answer grows, and then says it whole
                case ThinkingDelta(text=text):
                    thought(text)
                case TextPart(text=text):
                    answer.text += text
                    if show is not None:
                        show(answer.text)
                case ToolCall():
                    answer.calls = (*answer.calls, _clean_call(chunk))
                case StreamEnd():
                    answer.end = chunk
    except asyncio.CancelledError:
        progress.record_lost(billed())
        raise
    finally:
        await stream.aclose()
    if answer.end is not None and answer.end.may_leak_calls and known and not answer.calls:
        answer.recover_calls(request, known)
    return answer


def _no_accounts() -> tuple[RequestUsage, ...]:
    return ()


def _clean_call(call: ToolCall) -> ToolCall:
    """As it can be written down."""
    return replace(
        call, id=join_surrogates(call.id), name=join_surrogates(call.name), arguments=join_surrogates(call.arguments)
    )
