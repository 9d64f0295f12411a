"""One answer of the model, heard to its end."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.models.base import Began, End, Model, Partial, Reasoned, Request, Text, ToolCall, ToolSpec
from agent.outcome import Progress
from agent.steps import whole
from gateway.events import Account

if TYPE_CHECKING:
    from agent.models.leaks import BadCall


@dataclass(slots=True)
class Answer:
    """What the model said."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()
    """What it wrote instead of calls and cannot be read: a sentence each, for the model."""
    end: End | None = None
    """None: it has not ended."""

    def hear(self, news: "Sequence[Text | ToolCall | BadCall]") -> None:
        """This was found in what it said."""
        for one in news:
            match one:
                case Text(text=text):
                    self.text += text
                case ToolCall():
                    self.calls = (*self.calls, _clean(one))
                case bad:
                    self.problems = (*self.problems, bad.said)


async def ask(  # noqa: C901 - one case per kind of chunk
    model: Model,
    request: Request,
    glimpse: Callable[[str], None] | None,
    progress: Progress,
    known: tuple[ToolSpec, ...] = (),
    *,
    thought: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Ask, and call `glimpse` with the text so far, `thought` with each piece of what is thought.

    Cut off, it tells `progress` what is billed all the same.
    `known`: tools whose calls are found where they leak into the text. Raises a ModelError.
    """
    from agent.models.leaks import Leaks  # noqa: PLC0415 - a megabyte that nobody needs before somebody speaks

    answer, billed, show = Answer(), _nothing, glimpse
    leaks = Leaks(known)
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
                case Reasoned(text=text):
                    thought(text)
                case Text(text=text):
                    answer.hear(leaks.feed(text))
                    if show is not None:
                        show(answer.text)
                case ToolCall():
                    answer.calls = (*answer.calls, _clean(chunk))
                case End():
                    answer.hear(leaks.end())
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
