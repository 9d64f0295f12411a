"""What every client of a model API must hold, on a fake of the API.

An author writes a `ProviderKit`, or a `ModelApiKit` for a fake that is a `ModelApi`, and a class of
tests:

    from reverie.testing.providers import ModelApiKit, ProviderConformance

    class MineKit(ModelApiKit):
        def settings(self, timeout_s: float = 10.0) -> ProviderSettings:
            return MineSettings(kind="mine", base_url=self.api.url, timeout=timeout_s, ...)

    class TestMine(ProviderConformance):
        kit = MineKit
"""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import pytest

from reverie.providers import (
    Model,
    ModelBusy,
    ModelConfig,
    ModelError,
    ModelMessage,
    ModelRequest,
    ModelUnusable,
    PromptTooLong,
    ProviderSettings,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    SystemBlock,
    SystemClock,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from reverie.testing.servers.model_api import Answer, ModelApi

TOOL: Final = ToolSpec(
    name="look_up",
    description="Look up a word.",
    schema='{"properties":{"word":{"type":"string"}},"required":["word"],"type":"object"}',
)
TEXT: Final = "naïve — 😀 and more than one piece of it"
CHECK_S: Final = 60.0
"""Longest time of one check, in seconds."""
SILENCE_S: Final = 0.2
CUTS: Final = 6
"""How many events come before a cut at most: the answer has more of them."""


class ProviderKit(ABC):
    """A fake of one API that plays what it is told, and clients that ask it."""

    lacks: ClassVar[Mapping[str, str]] = {}
    """Checks that do not apply, by name, and why."""
    patience_s: float = 10.0
    """How long `hung_up` waits."""
    model: ClassVar[str] = "m-1"
    """The provider's name of the model."""

    @abstractmethod
    def connection(self) -> contextlib.AbstractAsyncContextManager[object]:
        """The fake, for as long as it is entered."""

    @abstractmethod
    def settings(self, timeout_s: float = 10.0) -> ProviderSettings:
        """The provider's settings for the fake. `timeout_s`: after so long a silence a client gives
        up.
        """

    def make(self, timeout_s: float = 10.0, **written: Any) -> Model:
        """A new client of the fake. `written`: further keys of its section in `llm.models`."""
        provider = self.settings(timeout_s)
        config = ModelConfig(provider="p", name=self.model, **written)
        options = provider.options("main", config)
        return provider.make(options, config=config, clock=SystemClock())

    @abstractmethod
    def answer(
        self,
        text: str = "",
        *,
        calls: Sequence[ToolCall] = (),
        tokens: tuple[int, int] | None = None,
        stop: Literal["end", "length"] = "end",
        cut_after: int | None = None,
        silent_after: int | None = None,
        split_bytes: int | None = None,
    ) -> None:
        """Let the next request be answered by this, in several events.

        `tokens`: of the prompt and of the answer; None: any. `stop` length: the output limit was
        reached. `cut_after`: the connection ends after so many events. `silent_after`: nothing more
        comes then, and the connection stays. `split_bytes`: sent in pieces of so many bytes.
        """

    @abstractmethod
    def refuse(self, status: int, message: str, *, retry_after_s: float | None = None) -> None:
        """Let all requests from now on be answered by this HTTP status, as the API words it.
        `SECRET` in the message stands for the credential that comes with the request.
        """

    @abstractmethod
    def secret(self) -> str:
        """The credential that came with the newest request."""

    @abstractmethod
    def sent(self) -> str:
        """The body of the newest request, as text."""

    @abstractmethod
    async def hung_up(self) -> None:
        """Return once the client has left the newest request. Raises AssertionError if it took the
        whole answer, TimeoutError if it is still there after `patience_s`.
        """


class ModelApiKit(ProviderKit):
    """A kit on `ModelApi`, or on a fake that is made of it. Its words are those of chat completions
    unless a subclass says otherwise.
    """

    server: ClassVar[type[ModelApi]] = ModelApi
    length_stop: ClassVar[str] = "length"
    """How the API says that the output limit was reached."""
    api: ModelApi

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        async with self.server() as self.api:
            yield

    def usage(self, prompt: int, output: int) -> dict[str, Any]:
        """Return these tokens in the API's words."""
        return {"prompt_tokens": prompt, "completion_tokens": output}

    def answer(
        self,
        text: str = "",
        *,
        calls: Sequence[ToolCall] = (),
        tokens: tuple[int, int] | None = None,
        stop: Literal["end", "length"] = "end",
        cut_after: int | None = None,
        silent_after: int | None = None,
        split_bytes: int | None = None,
    ) -> None:
        self.api.then(
            Answer(
                text=text,
                calls=tuple((one.id, one.name, one.arguments) for one in calls),
                usage=None if tokens is None else self.usage(*tokens),
                stop=self.length_stop if stop == "length" else None,
                cut_after=cut_after,
                silent_after=silent_after,
                split_bytes=split_bytes,
            )
        )

    def refuse(self, status: int, message: str, *, retry_after_s: float | None = None) -> None:
        headers = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}

        def refused(_: dict[str, Any]) -> Answer:
            told = {"error": {"message": message.replace("SECRET", self.secret())}}
            return Answer(status=status, headers=headers, body=json.dumps(told).encode())

        self.api.default = refused

    def secret(self) -> str:
        headers = self.api.seen[-1].headers
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer

    def sent(self) -> str:
        return json.dumps(self.api.seen[-1].body)

    async def hung_up(self) -> None:
        seen = self.api.seen[-1]
        async with asyncio.timeout(self.patience_s):
            await seen.finished.wait()
        assert seen.hung_up


def ask_for(*said: ModelMessage, tools: Sequence[ToolSpec] = ()) -> ModelRequest:
    """Return a request with these messages. None: somebody says hi."""
    return ModelRequest(
        blocks=(SystemBlock(name="identity", text="You are Reverie."),),
        conversation=said or (user(TextPart(text="hi")),),
        tools=tuple(tools),
        max_output_tokens=100,
        shared_key="reverie",
    )


def user(*parts: TextPart | ToolResult) -> ModelMessage:
    return ModelMessage(role="user", parts=parts)


async def ask(model: Model, request: ModelRequest | None = None) -> list[StreamChunk]:
    return [chunk async for chunk in model.stream(request or ask_for())]


async def ended(model: Model, request: ModelRequest | None = None) -> StreamEnd:
    """Ask, and return the end of the answer, which is the last chunk and the only one."""
    chunks = await ask(model, request)
    assert [type(chunk) for chunk in chunks].count(StreamEnd) == 1
    assert isinstance(chunks[-1], StreamEnd)
    return chunks[-1]


def text(chunks: Sequence[StreamChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextPart))


Check = Callable[[ProviderKit, Model], Awaitable[None]]


async def text_arrives_in_order(kit: ProviderKit, model: Model) -> None:
    for split_bytes in (None, 1):
        kit.answer(TEXT, split_bytes=split_bytes)
        assert text(await ask(model)) == TEXT
    kit.answer(TEXT)
    end = await ended(model)
    assert end.stop_reason == "end"
    assert end.model


async def all_that_is_asked_is_sent(kit: ProviderKit, model: Model) -> None:
    kit.answer("hi")
    hello = ModelMessage(role="assistant", parts=(TextPart(text="hello there"),))
    said = user(TextPart(text="good morning")), hello, user(TextPart(text="what now?"))
    await ask(model, ask_for(*said, tools=(TOOL,)))
    for one in ("You are Reverie.", "good morning", "hello there", "what now?", "Look up a word."):
        assert one in kit.sent()


async def a_tool_call_arrives_whole_and_its_result_goes_back(
    kit: ProviderKit, model: Model
) -> None:
    written = {"word": "naïve, and longer than a piece"}
    asked = ToolCall(id="call1", name="look_up", arguments=json.dumps(written, ensure_ascii=False))
    kit.answer("Let me see.", calls=(asked,))
    chunks = await ask(model, ask_for(tools=(TOOL,)))
    (call,) = (chunk for chunk in chunks if isinstance(chunk, ToolCall))
    assert (call.name, json.loads(call.arguments)) == ("look_up", written)
    assert text(chunks) == "Let me see."
    end = chunks[-1]
    assert isinstance(end, StreamEnd)
    assert end.stop_reason == "tools"
    kit.answer("It means simple.")
    again = ModelMessage(
        role="assistant", parts=(TextPart(text="Let me see."), call), thinking=end.thinking
    )
    result = ToolResult(id=call.id, text="credulous, simple")
    follow = ask_for(user(TextPart(text="hi")), again, user(result), tools=(TOOL,))
    assert text(await ask(model, follow)) == "It means simple."
    assert "credulous, simple" in kit.sent()


async def usage_is_reported(kit: ProviderKit, model: Model) -> None:
    kit.answer("hi", tokens=(90, 7))
    usage = (await ended(model)).usage
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    assert (prompt, usage.output_tokens) == (90, 7)


async def an_answer_that_the_limit_cut_is_told(kit: ProviderKit, model: Model) -> None:
    kit.answer("It is", tokens=(500, 100), stop="length")
    assert (await ended(model)).stop_reason == "length"


async def calls_that_the_limit_cut_arrive(kit: ProviderKit, model: Model) -> None:
    first = ToolCall(id="call1", name="look_up", arguments='{"word": "naïve"}')
    cut = ToolCall(id="call2", name="look_up", arguments='{"word": "cred')
    kit.answer("Let me see.", calls=(first, cut), stop="length")
    chunks = await ask(model, ask_for(tools=(TOOL,)))
    calls = [chunk for chunk in chunks if isinstance(chunk, ToolCall)]
    assert [call.name for call in calls] == ["look_up", "look_up"]
    assert json.loads(calls[0].arguments) == {"word": "naïve"}
    assert isinstance(chunks[-1], StreamEnd)
    assert chunks[-1].stop_reason == "length"


async def begin(kit: ProviderKit, model: Model) -> "asyncio.Task[None]":
    """Ask, and return the reader once it has a chunk of an answer that does not go on."""
    kit.answer("a longer answer in several pieces", silent_after=5)
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in model.stream(ask_for()):
            begun.set()

    reader = asyncio.create_task(read())
    await begun.wait()
    return reader


async def cancelling_closes_the_connection(kit: ProviderKit, model: Model) -> None:
    reader = await begin(kit, model)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await kit.hung_up()


async def closing_the_stream_closes_the_connection(kit: ProviderKit, model: Model) -> None:
    kit.answer("a longer answer in several pieces", silent_after=5)
    stream = model.stream(ask_for())
    await anext(stream)
    await stream.aclose()
    await kit.hung_up()


async def closing_the_model_ends_its_streams(kit: ProviderKit, model: Model) -> None:
    reader = await begin(kit, model)
    await model.aclose()
    with pytest.raises(ModelUnusable):
        await reader
    await kit.hung_up()
    with pytest.raises(ModelUnusable):
        await ask(model)


async def an_answer_that_is_cut_off_is_busy(kit: ProviderKit, model: Model) -> None:
    for events in range(CUTS):
        kit.answer("a longer answer in several pieces, one after the other", cut_after=events)
        with pytest.raises(ModelBusy):
            await ask(model)


async def silence_is_busy_and_hangs_up(kit: ProviderKit, model: Model) -> None:
    del model  # that one is more patient
    for events in (0, 4):
        kit.answer("a longer answer in several pieces", silent_after=events)
        async with contextlib.aclosing(kit.make(SILENCE_S)) as impatient:
            with pytest.raises(ModelBusy):
                await ask(impatient)
        await kit.hung_up()


STATUSES: Final[Sequence[tuple[int, str, type[ModelError]]]] = (
    (301, "moved", ModelUnusable),
    (400, "roles must alternate", RequestRefused),
    (400, "prompt is too long: 208310 tokens > 200000 maximum", PromptTooLong),
    (401, "Incorrect API key provided: SECRET", ModelUnusable),
    (402, "pay", ModelUnusable),
    (403, "no", ModelUnusable),
    (404, "no such model", ModelUnusable),
    (408, "", ModelBusy),
    (409, "", ModelBusy),
    (413, "Request exceeds the maximum size", PromptTooLong),
    (422, "bad field", RequestRefused),
    (425, "", ModelBusy),
    (429, "slow down, SECRET", ModelBusy),
    (500, "oops: SECRET", ModelBusy),
    (503, "Loading model", ModelBusy),
    (529, "Overloaded", ModelBusy),
)
"""Each with the error that says what to do."""


async def a_status_says_what_to_do_and_no_secret(kit: ProviderKit, model: Model) -> None:
    for status, message, error in STATUSES:
        kit.refuse(status, message)
        with pytest.raises(ModelError) as caught:
            await ask(model)
        assert type(caught.value) is error, (status, message, caught.value)
        assert str(status) in caught.value.reason
        assert kit.secret() not in f"{caught.value} {caught.value.reason}"


async def a_hint_when_to_ask_again_is_passed_on(kit: ProviderKit, model: Model) -> None:
    kit.refuse(429, "slow down", retry_after_s=7)
    with pytest.raises(ModelBusy) as caught:
        await ask(model)
    assert caught.value.retry_after_s == 7


async def what_it_says_of_itself_holds_no_secret(kit: ProviderKit, model: Model) -> None:
    await model.start()
    await model.start()
    kit.answer("hi")
    await ask(model)
    assert model.name.strip()
    assert model.label.strip()
    assert model.context_tokens > model.max_output_tokens > 0
    assert kit.secret() not in f"{model!r} {model.name} {model.label}"


async def it_is_as_its_provider_and_the_configuration_say(kit: ProviderKit, model: Model) -> None:
    provider = kit.settings()
    said = provider.options("main", ModelConfig(provider="p", name=kit.model))
    assert model.name == "main"
    assert (
        model.context_tokens == said["context_tokens"] == provider.traits(kit.model).context_tokens
    )
    assert model.max_output_tokens == said["max_output_tokens"]
    assert model.takes_images is said["takes_images"]
    assert model.family == provider.family
    written = {"context_tokens": 7_000, "max_output_tokens": 70, "sees": True, "leaks": True}
    async with contextlib.aclosing(kit.make(**written)) as other:
        assert (other.context_tokens, other.max_output_tokens) == (7_000, 70)
        assert other.takes_images
        kit.answer("hi")
        assert (await ended(other)).may_leak_calls


CHECKS: Final[Mapping[str, Check]] = {
    check.__name__: check
    for check in (
        text_arrives_in_order,
        all_that_is_asked_is_sent,
        a_tool_call_arrives_whole_and_its_result_goes_back,
        usage_is_reported,
        an_answer_that_the_limit_cut_is_told,
        calls_that_the_limit_cut_arrive,
        cancelling_closes_the_connection,
        closing_the_stream_closes_the_connection,
        closing_the_model_ends_its_streams,
        an_answer_that_is_cut_off_is_busy,
        silence_is_busy_and_hangs_up,
        a_status_says_what_to_do_and_no_secret,
        a_hint_when_to_ask_again_is_passed_on,
        what_it_says_of_itself_holds_no_secret,
        it_is_as_its_provider_and_the_configuration_say,
    )
}
"""The checks by name, for `ProviderKit.lacks`."""


async def run_check(
    kit: ProviderKit, check: Check, disguise: Callable[[Model], Model] = lambda model: model
) -> None:
    """Run one check with a fresh fake and client. `disguise`: what stands before the client."""
    async with (
        asyncio.timeout(CHECK_S),
        kit.connection(),
        contextlib.aclosing(disguise(kit.make())) as model,
    ):
        await check(kit, model)


class ProviderConformance:
    """Tests of a client. A subclass names its kit, and pytest collects it."""

    kit: ClassVar[type[ProviderKit]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each check."""
        if metafunc.cls is not None and "check" in metafunc.fixturenames:
            lacks = metafunc.cls.kit.lacks
            checks = [check for name, check in CHECKS.items() if name not in lacks]
            metafunc.parametrize("check", checks, ids=lambda check: check.__name__)

    def test_conforms(self, check: Check) -> None:
        asyncio.run(run_check(self.kit(), check))

    def test_what_the_kit_lacks_is_a_check_and_has_a_reason(self) -> None:
        assert set(self.kit.lacks) <= set(CHECKS)
        assert all(reason.strip() for reason in self.kit.lacks.values())

    def test_a_server_that_is_not_there_is_busy(self) -> None:
        async def told() -> None:
            kit = self.kit()
            async with kit.connection():
                model = kit.make()
            async with contextlib.aclosing(model):
                with pytest.raises(ModelBusy):
                    await ask(model)

        asyncio.run(told())
