"""What both remote dialects share, over real sockets: faults, time-outs, closing, secrets."""

import asyncio
import socket
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from agent.models.base import (
    Model,
    ModelBusy,
    ModelError,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    StreamStart,
    TextPart,
)
from agent.models.http import error_from_response, format_host, is_loopback, join_endpoint, retry_after_s, strip_version
from agent.models.openai import OpenAIModel
from tests.kits.models import KEY, against, ask, end, make, request, text
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer

KINDS = pytest.mark.parametrize("kind", ["openai", "anthropic"])
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (401, "Incorrect API key provided: " + KEY, ModelUnusable),
        (402, "pay", ModelUnusable),
        (403, "no", ModelUnusable),
        (404, "no such model", ModelUnusable),
        (301, "moved", ModelUnusable),
        (408, "", ModelBusy),
        (409, "", ModelBusy),
        (425, "", ModelBusy),
        (429, "slow down", ModelBusy),
        (500, "oops", ModelBusy),
        (503, "Loading model", ModelBusy),
        (529, "Overloaded", ModelBusy),
        (413, "Request exceeds the maximum size", PromptTooLong),
        (400, "prompt is too long: 208310 tokens > 200000 maximum", PromptTooLong),
        (400, "This model's maximum context length is 8192 tokens.", PromptTooLong),
        (400, "the request exceeds the available context size, try increasing it", PromptTooLong),
        (400, "Your credit balance is too low to access the Anthropic API.", ModelUnusable),
        (400, "roles must alternate", RequestRefused),
        (422, "bad field", RequestRefused),
    ],
)
@KINDS
def test_a_status_says_what_to_do(kind: str, status: int, message: str, expected: type[ModelError]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(status=status, body=b'{"error": {"message": "%s"}}' % message.encode()))
        with pytest.raises(expected) as caught:
            await ask(model)
        assert KEY not in str(caught.value)
        assert str(status) in caught.value.reason
        assert api.url.removeprefix("http://") in caught.value.reason

    against(lambda url: make(kind, url), story)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "Sat, 21 Nov 99999999999 12:00:30 GMT"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 +99999999999999"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds
    error = error_from_response(429, headers, b"", where="x", secret="", now=NOW)
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
    assert isinstance(error_from_response(429, {}, body, where="x", secret="", now=NOW), ModelUnusable)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"nul", b"\xff", b"[" * 99999, b'"no"', b'{"error": "no"}', b'{"error":1}', b'{"error":"\\ud800"}'],
)
def test_any_error_body_is_readable(body: bytes) -> None:
    reason = error_from_response(500, {}, body, where="x", secret="", now=NOW).reason
    assert len(reason) <= 240
    assert "\n" not in reason
    reason.encode()  # it goes into the log


@pytest.mark.parametrize("fault", [{"cut_after": n} for n in range(9)] + [{"garbled_after": 3}])
@KINDS
def test_cut_anywhere_is_busy(kind: str, fault: dict[str, int]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="a longer answer in several pieces, as they come", done=False, **fault))  # type: ignore[arg-type]  # one int field
        with pytest.raises(ModelBusy):
            await ask(model)

    against(lambda url: make(kind, url), story)


@pytest.mark.parametrize("events", [0, 4])
@KINDS
def test_silence_is_busy_after_the_time_out_and_hangs_up(kind: str, events: int) -> None:
    async def story(api: ModelApi, _: Model) -> None:
        api.then(Answer(text="a longer answer in several pieces", silent_after=events))
        with pytest.raises(ModelBusy, match=r"silent for 0\.2 s"):
            await ask(make(kind, api.url, timeout_s=0.2))
        await api.seen[0].finished.wait()
        assert api.seen[0].hung_up

    against(lambda url: make(kind, url), story)


@KINDS
def test_split_at_every_byte_gives_the_same_text(kind: str) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="naïve — 😀 ok", split_bytes=1))
        assert text(await ask(model)) == "naïve — 😀 ok"

    against(lambda url: make(kind, url), story)


@pytest.mark.parametrize("how", ["cancel", "close", "aclose"])
@KINDS
def test_leaving_a_stream_closes_the_connection_at_once(kind: str, how: str) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="a longer answer in several pieces", silent_after=5))
        client = model
        begun = asyncio.Event()

        async def consume() -> None:
            async for chunk in client.stream(request()):
                assert isinstance(chunk, StreamStart | TextPart)
                begun.set()

        if how == "close":
            stream = client.stream(request())
            await anext(stream)
            await stream.aclose()
        else:
            task = asyncio.create_task(consume())
            await begun.wait()
            if how == "cancel":
                task.cancel()
            else:
                await client.aclose()
            with pytest.raises(asyncio.CancelledError if how == "cancel" else ModelUnusable):
                await task
        seen = api.seen[0]
        await seen.finished.wait()
        assert seen.hung_up
        await client.aclose()
        with pytest.raises(ModelUnusable, match="closed"):
            await ask(client)

    against(lambda url: make(kind, url), story)


@KINDS
def test_a_connection_is_used_again(kind: str) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        client = model
        for _ in range(3):
            assert end(await ask(client)).stop_reason == "end"
        assert api.connections == 1
        await client.aclose()

    against(lambda url: make(kind, url), story)


@KINDS
def test_no_server_and_no_event_stream(kind: str) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi", headers={"content-type": "text/html"}))
        with pytest.raises(ModelUnusable, match="base_url"):
            await ask(model)
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        with pytest.raises(ModelBusy, match="cannot connect"):
            await ask(make(kind, f"http://127.0.0.1:{port}"))

    against(lambda url: make(kind, url), story)


@KINDS
def test_proxies_of_the_environment_are_not_asked_for_loopback(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def story(_: ModelApi, model: Model) -> None:
        assert text(await ask(model)) == "You said: hi"

    against(lambda url: make(kind, url), story)


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
    ],
)
def test_base_urls(base: str, expected: str) -> None:
    assert join_endpoint(base, "/x") == expected


@pytest.mark.parametrize("base", ["", "h:1", "ftp://h", "http://", "http://h:99999", "http://[::1", "/v1"])
def test_wrong_base_urls_are_told(base: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        join_endpoint(base, "/x")


def test_names_for_people_hold_no_password() -> None:
    assert format_host("https://user:secret@h:8/v1") == "h:8"
    assert format_host("http://[::1]:8/") == "[::1]:8"
    assert is_loopback("http://127.0.0.2:8")
    assert not is_loopback("http://128.0.0.1")


def test_a_key_that_no_header_takes_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="copy it again") as caught:
        OpenAIModel(name="m", model="m", base_url="http://h", api_key="sk-\n1")
    assert "sk-" not in str(caught.value)


def test_importing_the_models_does_not_import_httpx() -> None:
    code = "import sys, agent.models.config; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


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
