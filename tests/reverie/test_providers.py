"""The checks of providers find clients that break one rule each."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from agent.models.base import (
    Model,
    ModelBusy,
    ModelError,
    ModelRequest,
    ModelUnusable,
    StreamChunk,
    StreamEnd,
    TextPart,
    ToolResult,
)
from gateway.core.events import Usage
from gateway.core.tool_spec import ToolCall
from gateway.plugins.providers import OpenAIConfig
from reverie.testing.providers import CHECKS, ModelApiKit, run_check
from tests.kits.models import KEY


class OpenAiKit(ModelApiKit):
    def settings(self, timeout_s: float = 10.0) -> OpenAIConfig:
        return OpenAIConfig(
            kind="openai", base_url=self.api.url, api_key=SecretStr(KEY), timeout=timeout_s
        )


class Twin:
    def __init__(self, real: Model) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def change(self, chunk: StreamChunk) -> StreamChunk | None:
        return chunk

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        async for chunk in self.real.stream(request):
            if (changed := self.change(chunk)) is not None:
                yield changed


class LosesAPiece(Twin):
    def change(self, chunk: StreamChunk) -> StreamChunk | None:
        return None if isinstance(chunk, TextPart) and "more" in chunk.text else chunk


class CutsCalls(Twin):
    def change(self, chunk: StreamChunk) -> StreamChunk | None:
        return (
            replace(chunk, arguments=json.dumps({"word": "naïve"}))
            if isinstance(chunk, ToolCall)
            else chunk
        )


class CountsNothing(Twin):
    def change(self, chunk: StreamChunk) -> StreamChunk | None:
        return replace(chunk, usage=Usage()) if isinstance(chunk, StreamEnd) else chunk


class AlwaysEnds(Twin):
    def change(self, chunk: StreamChunk) -> StreamChunk | None:
        return replace(chunk, stop_reason="end") if isinstance(chunk, StreamEnd) else chunk


class DropsCallsAtTheLimit(Twin):
    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        chunks = [chunk async for chunk in self.real.stream(request)]
        is_cut = isinstance(chunks[-1], StreamEnd) and chunks[-1].stop_reason == "length"
        for chunk in chunks:
            if not (is_cut and isinstance(chunk, ToolCall)):
                yield chunk


class LeavesOutWhatIsAsked(Twin):
    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        async for chunk in self.real.stream(replace(request, blocks=())):
            yield chunk


class LeavesOutResults(Twin):
    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        said = tuple(
            replace(
                one,
                parts=tuple(
                    replace(part, text="done") if isinstance(part, ToolResult) else part
                    for part in one.parts
                ),
            )
            for one in request.conversation
        )
        async for chunk in self.real.stream(replace(request, conversation=said)):
            yield chunk


class TakesACutForTheEnd(Twin):
    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        try:
            async for chunk in self.real.stream(request):
                yield chunk
        except ModelBusy:
            yield StreamEnd(stop_reason="end", usage=Usage(), model="m")


class ReadsInATaskOfItsOwn(Twin):
    """Nobody who leaves ends it."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        chunks = asyncio.Queue[StreamChunk]()

        async def read() -> None:
            with contextlib.suppress(ModelError):
                async for chunk in self.real.stream(request):
                    chunks.put_nowait(chunk)

        self.reader = asyncio.create_task(read())
        while True:
            yield await chunks.get()


class Wraps(Twin):
    def wrap(self, error: ModelError) -> ModelError:
        raise NotImplementedError

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        try:
            async for chunk in self.real.stream(request):
                yield chunk
        except ModelError as error:
            raise self.wrap(error) from None


class CallsAllBusy(Wraps):
    def wrap(self, error: ModelError) -> ModelError:
        return ModelBusy(error.reason)


class CallsAllUnusable(Wraps):
    def wrap(self, error: ModelError) -> ModelError:
        return ModelUnusable(error.reason)


class TellsTheKey(Wraps):
    def wrap(self, error: ModelError) -> ModelError:
        told = type(error)(f"{error.reason} with {KEY}")
        told.status = error.status
        return told


class HasTheKeyInItsLabel(Twin):
    label = f"m at {KEY}"


class HasAnotherWindow(Twin):
    context_tokens = 4_096


@pytest.mark.parametrize(
    ("twin", "check"),
    [
        (LosesAPiece, "text_arrives_in_order"),
        (LeavesOutWhatIsAsked, "all_that_is_asked_is_sent"),
        (CutsCalls, "a_tool_call_arrives_whole_and_its_result_goes_back"),
        (LeavesOutResults, "a_tool_call_arrives_whole_and_its_result_goes_back"),
        (CountsNothing, "usage_is_reported"),
        (AlwaysEnds, "an_answer_that_the_limit_cut_is_told"),
        (DropsCallsAtTheLimit, "calls_that_the_limit_cut_arrive"),
        (ReadsInATaskOfItsOwn, "cancelling_closes_the_connection"),
        (ReadsInATaskOfItsOwn, "closing_the_stream_closes_the_connection"),
        (TakesACutForTheEnd, "an_answer_that_is_cut_off_is_busy"),
        (CallsAllUnusable, "an_answer_that_is_cut_off_is_busy"),
        (CallsAllBusy, "closing_the_model_ends_its_streams"),
        (CallsAllBusy, "a_status_says_what_to_do_and_no_secret"),
        (TellsTheKey, "a_status_says_what_to_do_and_no_secret"),
        (CallsAllBusy, "a_hint_when_to_ask_again_is_passed_on"),
        (HasTheKeyInItsLabel, "what_it_says_of_itself_holds_no_secret"),
        (HasAnotherWindow, "it_is_as_its_provider_and_the_configuration_say"),
    ],
)
async def test_a_client_that_breaks_a_rule_is_found_out(twin: type[Twin], check: str) -> None:
    kit = OpenAiKit()
    await run_check(kit, CHECKS[check])
    kit.patience_s = 0.2
    with pytest.raises((AssertionError, ModelError, TimeoutError, pytest.fail.Exception)):
        await run_check(kit, CHECKS[check], twin)
