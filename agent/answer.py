"""One answer of the model, heard to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.models.base import Began, End, Model, Partial, Reasoned, Request, Text, ToolCall, ToolSpec
from agent.outcome import Progress
from agent.steps import whole
from gateway.events import Account


@dataclass(slots=True)
class Answer:
    """What the model said."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()
    """What it wrote instead of calls and cannot be read: a sentence each, for the model."""
    end: End | None = None
    """None: it has not ended."""

    def recover_calls(self, request: Request, known: tuple[ToolSpec, ...]) -> None:
        """Take the text for calls of known tools, if it is nothing else and the model was not told any of them."""
        from agent.models.leaks import BadCall, recover, stands_in  # noqa: PLC0415 - seldom needed, and large

        found = recover(self.text, known)
        calls = tuple(
            [
                _clean(ToolCall(id=f"leak_{number}", name=one.name, arguments=one.arguments, is_recovered=True))
                for number, one in enumerate(found, start=1)
                if not isinstance(one, BadCall)
            ]
        )
        if found and not any(stands_in(call, request) for call in calls):
            self.text, self.calls = "", calls
            self.problems = tuple([one.message for one in found if isinstance(one, BadCall)])


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
    `known`: tools whose calls are found in the text of a model that is known to write them there (`End.leaks`).
    Raises a ModelError.
    """
    answer, billed, show = Answer(), _nothing, glimpse
    stream = model.stream(request)
    try:
        async for chunk in stream:
            match chunk:
                case Began(billed_accounts=told):
                    billed = told or billed
                case Partial(text=text):
                    if glimpse is not None:
                        glimpse(text)
                    show = None  # the model says itself how the answer grows, and then says it whole
                case Reasoned(text=text):
                    thought(text)
                case Text(text=text):
                    answer.text += text
                    if show is not None:
                        show(answer.text)
                case ToolCall():
                    answer.calls = (*answer.calls, _clean(chunk))
                case End():
                    answer.end = chunk
    except asyncio.CancelledError:
        progress.record_lost(billed())
        raise
    finally:
        await stream.aclose()
    if answer.end is not None and answer.end.may_leak_calls and known and not answer.calls:
        answer.recover_calls(request, known)
    return answer


def _nothing() -> tuple[Account, ...]:
    return ()


def _clean(call: ToolCall) -> ToolCall:
    """As it can be written down."""
    return replace(call, id=whole(call.id), name=whole(call.name), arguments=whole(call.arguments))
