"""One answer of the model, heard to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.models.base import Began, End, Model, Partial, Request, Text, ToolCall
from agent.outcome import Progress
from agent.steps import whole
from gateway.events import Account


@dataclass(slots=True)
class Answer:
    """What the model said."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    end: End | None = None
    """None: it has not ended."""


async def ask(model: Model, request: Request, glimpse: Callable[[str], None] | None, progress: Progress) -> Answer:
    """Ask, and call `glimpse` with the text so far. Cut off, it tells `progress` what is billed all the same.

    Raises a ModelError.
    """
    answer, billed, show = Answer(), _nothing, glimpse
    stream = model.stream(request)
    try:
        async for chunk in stream:
            match chunk:
                case Began(billed=told):
                    billed = told or billed
                case Partial(text=text):
                    if glimpse is not None:
                        glimpse(text)
                    show = None  # the model says itself how the answer grows, and then says it whole
                case Text(text=text):
                    answer.text += text
                    if show is not None:
                        show(answer.text)
                case ToolCall():
                    answer.calls = (*answer.calls, _clean(chunk))
                case End():
                    answer.end = chunk
    except asyncio.CancelledError:
        progress.lost(billed())
        raise
    finally:
        await stream.aclose()
    return answer


def _nothing() -> tuple[Account, ...]:
    return ()


def _clean(call: ToolCall) -> ToolCall:
    """As it can be written down."""
    return replace(call, id=whole(call.id), name=whole(call.name), arguments=whole(call.arguments))
