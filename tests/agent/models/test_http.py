"""What all remote models share, besides the checks of `reverie.testing.providers`: errors by their
words, event streams, full windows."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models import http
from agent.models.base import (
    AnswerSpoiled,
    Model,
    ModelBusy,
    ModelError,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
)
from agent.models.http import (
    EVENTS_AT_ONCE,
    ModelHttpClient,
    SseEvent,
    SseEventTooLarge,
    SseParser,
    error_from_response,
    error_from_stream,
    is_window_full,
    join_endpoint,
    strip_version,
)
from agent.models.openai import OpenAIModel
from gateway.core.events import Usage
from reverie.testing.servers.ircd import LOCALHOST, server_context
from reverie.testing.servers.model_api import Answer
from tests.kits.models import KEY, against, ask, end, make, request, text

KINDS = pytest.mark.parametrize("kind", ["openai", "anthropic"])


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, None),
        ({"retry-after": "-3"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    error = error_from_response(429, headers, b"", where="x", secret="")
    assert isinstance(error, ModelBusy)
    assert error.retry_after_s == seconds


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"type":"rate_limit_error","details":{"error_code":"enforced_spend_limit_reached"}}}',
        b'{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}',
    ],
)
def test_a_spend_limit_is_not_waited_for(body: bytes) -> None:
    assert isinstance(error_from_response(429, {}, body, where="x", secret=""), ModelUnusable)


def test_a_prompt_that_a_router_moderates_is_refused_and_no_key_is_wrong() -> None:
    body = (
        b'{"error": {"code": 403, "message": "... requires moderation and your input was flagged"}}'
    )
    error = error_from_response(403, {}, body, where="x", secret="")
    assert isinstance(error, RequestRefused)
    assert error.caused_by_prompt


def test_a_server_that_was_started_in_the_wrong_way_is_not_waited_for() -> None:
    body = b'{"error": {"code": 500, "message": "tools param requires --jinja flag"}}'
    assert isinstance(error_from_response(500, {}, body, where="x", secret=""), ModelUnusable)


def test_a_call_that_came_out_wrong_is_spoiled_and_no_service_busy() -> None:
    body = '{"error": {"message": "Failed to call a function.", "code": "tool_use_failed"}}'
    whole = error_from_response(400, {}, body.encode(), where="x", secret="")
    for error in (whole, error_from_stream(body, where="x", secret="")):
        assert isinstance(error, AnswerSpoiled)


@KINDS
async def test_an_answer_that_is_garbled_is_busy(kind: str) -> None:
    async with against(lambda url: make(kind, url)) as (api, model):
        api.then(Answer(text="a longer answer in several pieces", done=False, garbled_after=3))
        with pytest.raises(ModelBusy):
            await ask(model)


@KINDS
async def test_what_is_no_event_stream_is_a_wrong_address(kind: str) -> None:
    async with against(lambda url: make(kind, url)) as (api, model):
        api.then(Answer(text="hi", headers={"content-type": "text/html"}))
        with pytest.raises(ModelUnusable, match="base_url"):
            await ask(model)
        api.then(Answer(text="hi", headers={"content-type": "text/plain; charset=UTF-8"}))
        assert text(await ask(model)) == "hi"


@pytest.mark.parametrize(("code", "error"), [(429, ModelBusy), (402, ModelUnusable)])
async def test_an_error_that_comes_with_200_is_the_one_that_it_says(
    code: int, error: type[ModelError]
) -> None:
    async with against(openai) as (api, model):
        body = json.dumps({"error": {"message": "No.", "code": code}}).encode()
        api.then(Answer(headers={"content-type": "application/json"}, body=body))
        with pytest.raises(error) as raised:
            await ask(model)
        assert raised.value.status == code


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("http://h:1", "http://h:1/v1/x"),
        ("http://h:1/", "http://h:1/v1/x"),
        ("http://h:1/v1", "http://h:1/v1/x"),
        ("http://h:1/v1/", "http://h:1/v1/x"),
        ("http://h:1/v1/x", "http://h:1/v1/x"),
        ("https://h/api", "https://h/api/v1/x"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai/x"),
        ("https://h/v1?key=1", "https://h/v1/x?key=1"),
        ("https://h/deployments/d/x?api-version=1", "https://h/deployments/d/x?api-version=1"),
        ("https://h/v1/chat/completions", "https://h/v1/x"),
        ("https://h/messages/", "https://h/v1/x"),
    ],
)
def test_base_urls(base: str, expected: str) -> None:
    assert join_endpoint(base, "/x") == expected


@pytest.mark.parametrize(
    "base", ["", "h:1", "ftp://h", "http://", "http://h:99999", "http://[::1", "/v1"]
)
def test_wrong_base_urls_are_told(base: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        join_endpoint(base, "/x")


def test_a_key_that_no_header_takes_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="copy it again") as caught:
        OpenAIModel(name="m", model="m", base_url="http://h", api_key="sk-\n1")
    assert "sk-" not in str(caught.value)


@contextlib.asynccontextmanager
async def answering(
    status: str, *, packed: bool = False, tls: bool = False
) -> AsyncIterator[ModelHttpClient]:
    """A client of a server that answers `{}` once it has read the head of a request, and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        content = gzip.compress(b"{}") if packed else b"{}"
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\n"
        head += "content-encoding: gzip\r\n" if packed else ""
        writer.write(f"{head}\r\n".encode() + content)
        await writer.drain()
        writer.close()

    context = server_context() if tls else None
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"{'https' if tls else 'http'}://localhost:{port}/v1"
        async with contextlib.aclosing(ModelHttpClient(url=url, headers={})) as api:
            yield api


async def test_only_a_server_with_a_trusted_certificate_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering("200 OK", tls=True) as api:
        with pytest.raises(ModelUnusable, match="certificate"):
            await api.fetch()
    monkeypatch.setenv("SSL_CERT_FILE", str(LOCALHOST))
    async with answering("200 OK", tls=True) as api:
        assert await api.fetch() == b"{}"


async def test_a_packed_answer_is_unpacked() -> None:
    async with answering("200 OK", packed=True) as api:
        assert await api.fetch() == b"{}"


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("http://127.0.0.1:9931", "http://127.0.0.1:9931"),
        ("http://127.0.0.1:9931/v1/", "http://127.0.0.1:9931"),
        ("https://gpu.lan/llama/v1?x=1#y", "https://gpu.lan/llama"),
    ],
)
def test_the_root_of_a_server(base_url: str, expected: str) -> None:
    assert strip_version(base_url) == expected


STREAM = (
    '\ufeff: welcome\r\n\r\nevent: message_start\r\ndata: {"a":\r\ndata: "ö€😀"}\r\n\r\n'
    "data:no space\n\n: ping\nid: 7\nretry: 10\nevent: nothing\n\ndata\rdata: \u2028 x\r\rdata: "
    "cut off"
).encode()
EVENTS = [
    SseEvent(name="message_start", data='{"a":\n"ö€😀"}'),
    SseEvent(name="", data="no space"),
    SseEvent(name="", data="\n\u2028 x"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_cutting_gives_the_same_events(cuts: list[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


@given(st.binary())
def test_garbage_never_raises(garbage: bytes) -> None:
    SseParser().feed(garbage)


def test_one_event_is_bounded_but_keep_alives_are_not() -> None:
    parser = SseParser()
    for _ in range(3):
        parser.feed(b": " + b"x" * (http.MAX_EVENT_BYTES // 2) + b"\n\n")
    parser.feed(b"data: " + b"x" * (http.MAX_EVENT_BYTES // 2) + b"\n")
    with pytest.raises(SseEventTooLarge):
        parser.feed(b"data: " + b"x" * (http.MAX_EVENT_BYTES // 2) + b"\n")


OVERFLOWS = (
    (400, "prompt is too long: 208310 tokens > 200000 maximum"),  # Anthropic
    (400, "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"),
    (400, "Input is too long for requested model."),  # Bedrock
    (
        400,
        (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in "
            "9000 tokens."
        ),
    ),
    (
        400,
        (
            "Your input exceeds the context window of this model. Please adjust your input and try "
            "again."
        ),
    ),
    (400, "Input tokens exceed the configured limit of 272000 tokens. (context_length_exceeded)"),
    (400, "Invalid 'messages[1].content': string too long. (string_above_max_length)"),
    (
        429,
        (
            "Request too large for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000, "
            "Requested 37000."
        ),
    ),
    (
        413,
        (
            "Request too large for model `x`: Limit 6000, Requested 9000, please reduce your message "
            "size"
        ),
    ),  # Groq
    (400, "Please reduce the length of the messages or completion."),
    (400, "the request exceeds the available context size, try increasing it"),  # llama.cpp
    (500, "Context size has been exceeded."),
    (
        400,
        "The decoder prompt (length 140000) is longer than the maximum model length of 131072.",
    ),  # vLLM
    (400, "Input prompt (6000 tokens) is too long and exceeds limit of 4096"),
    (
        400,
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    ),  # SGLang
    (400, "prompt too long; exceeded max context length by 12 tokens"),  # Ollama
    (
        400,
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    ),  # Gemini
    (
        400,
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    ),  # xAI
    (
        400,
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    ),  # Mistral
    (400, "Your request exceeded model token limit: 131072 (requested: 180000)"),  # Moonshot
    (
        400,
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    ),  # DashScope
    (400, "invalid params, context window exceeds limit"),  # MiniMax
    (400, "Prompt exceeds max length"),  # Z.ai
    (400, "prompt token count of 137000 exceeds the limit of 128000"),  # GitHub
    (
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    ),  # TGI
    (
        400,
        (
            "Trying to keep the first 9000 tokens when context the overflows. The context length is "
            "4096"
        ),
    ),  # LM Studio
    (400, "too many tokens: size limit exceeded by 5000 tokens"),  # Cohere
)
OTHERS = (
    (
        400,
        (
            "max_tokens: 200000 > 128000, which is the maximum allowed number of output tokens for "
            "claude-opus-5-5"
        ),
    ),
    (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."),
    (400, "tools.0.custom.name: String should have at most 128 characters"),
    (400, "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum"),
    (400, "Too many images: 101 > 100"),
)


def named(status: int, message: str) -> Exception:
    body = json.dumps({"error": {"message": message}}).encode()
    return error_from_response(status, {}, body, where="here", secret=KEY)


@pytest.mark.parametrize(("status", "message"), OVERFLOWS)
def test_every_provider_s_words_for_it(status: int, message: str) -> None:
    error = named(status, message)
    assert isinstance(error, PromptTooLong)
    assert "here" in error.reason


@pytest.mark.parametrize(("status", "message"), OTHERS)
def test_other_limits_are_not_taken_for_it(status: int, message: str) -> None:
    assert isinstance(named(status, message), RequestRefused)


@pytest.mark.parametrize(
    "told",
    [
        {
            "error": {
                "type": "exceed_context_size_error",
                "code": 400,
                "message": "no room",
                "n_ctx": 4096,
            }
        },
        {
            "error": {
                "type": "invalid_request_error",
                "code": "context_length_exceeded",
                "message": "no room",
            }
        },
        {
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 9 tokens > 8 maximum",
            }
        },
        {"error": {"type": "request_too_large", "message": "no room"}},
    ],
)
def test_codes_say_it_too_also_in_the_middle_of_a_stream(told: object) -> None:
    assert isinstance(error_from_stream(json.dumps(told), where="here", secret=KEY), PromptTooLong)


def ended(stop: str = "length", prompt: int = 500, output: int = 100) -> StreamEnd:
    usage = Usage(
        input_tokens=prompt // 2, cache_read_tokens=prompt - prompt // 2, output_tokens=output
    )
    return StreamEnd(stop_reason=stop, usage=usage, model="m")  # type: ignore[arg-type]  # parametrized


@pytest.mark.parametrize(
    ("one", "spoke", "full"),
    [
        (ended(), True, False),
        (ended(), False, False),  # it thought until it had what it may have
        (ended(output=50), False, False),  # or what the server lets it
        (ended(output=3), False, True),
        (ended(output=3), True, False),
        (ended(prompt=950, output=45), True, True),
        (ended(prompt=900), True, False),  # there was room for just that
        (ended(prompt=950), True, False),  # the window is larger than it is said to be
        (ended(prompt=900, output=99), True, True),
        (ended(prompt=990, output=0), False, True),
        (ended(prompt=990, output=5, stop="end"), True, False),
        (ended(prompt=0, output=0), False, False),  # nobody told how much it was
    ],
)
def test_an_answer_that_was_cut_by_the_window(one: StreamEnd, spoke: bool, full: bool) -> None:
    assert is_window_full(one, has_content=spoke, requested=100, window=1_000) is full
    assert not is_window_full(one, has_content=spoke, requested=0, window=1_000)


def openai(url: str) -> OpenAIModel:
    return OpenAIModel(name="main", model="m-1", base_url=url, context_tokens=1_000)


def spent(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output}


async def hear(model: Model, take: Callable[[StreamChunk], None]) -> None:
    async for chunk in model.stream(request()):
        take(chunk)


@pytest.mark.parametrize(
    "cut",
    [
        Answer(stop="length", usage=spent(500, 0)),
        Answer(text="It is", stop="length", usage=spent(990, 4)),
        Answer(text="It is", stop="model_context_window_exceeded", usage=spent(500, 4)),
        Answer(text="It is", stop="model_length", usage=spent(500, 4)),
        Answer(thinking="Let me see", stop="length", usage=spent(600, 9)),
    ],
)
async def test_a_server_that_just_stops_when_its_window_is_full(cut: Answer) -> None:
    async with against(openai) as (api, model):
        api.then(cut)
        seen: list[StreamChunk] = []
        with pytest.raises(PromptTooLong, match="filled its window"):
            await hear(model, seen.append)
        assert isinstance(seen[-1], StreamStart)
        assert seen[-1].usage is not None
        assert seen[-1].usage.input_tokens == (cut.usage or {})["prompt_tokens"]


@KINDS
async def test_an_answer_without_end_is_cut_and_lets_others_work_meanwhile(kind: str) -> None:
    asked, turns = request(), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with against(lambda url: make(kind, url)) as (api, model):
        api.then(Answer(text="on and on it goes", endless_after=4 if kind == "openai" else 6))
        working = asyncio.create_task(others())
        chunks = await ask(model, asked)
        working.cancel()
        assert end(chunks).stop_reason == "length"
        await api.seen[0].finished.wait()  # the connection is closed
        assert len(text(chunks)) < 256 * 1024 + 1_000 * asked.max_output_tokens
        assert turns * EVENTS_AT_ONCE > 1_000
        # OpenAI's: what is shown meanwhile must not cost the square of the length
        assert len(chunks) > 1_000 if kind == "anthropic" else 10 < len(chunks) < 1_000
