"""HTTP client that all remote models share, with its errors and its parser of server-sent events.

Errors are classified by status and body; sources: platform.claude.com/docs/en/api/errors;
platform.openai.com/docs/guides/error-codes; llama.cpp tools/server/README.md
(`exceed_context_size_error`); RFC 9110 section 10.2.3 (Retry-After). Patterns for compatible
servers carry their names.

Server-sent events obey the WHATWG HTML standard, section 9.2.6
(https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation). The
package `httpx-sse` (0.4) would not do: it holds lines of any length, and importing it imports
httpx.
"""

import asyncio
import base64
import json
import logging
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from pydantic import BaseModel, InstanceOf, SecretStr

from agent.models.base import (
    AnswerSpoiled,
    AnswerUnreadable,
    ModelBusy,
    ModelError,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    StreamEnd,
)
from agent.prompt import join_surrogates
from gateway.core.frozen import frozen
from gateway.core.proxy import find_proxy, through
from gateway.core.text_safety import one_line

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

_EventT = TypeVar("_EventT", bound=BaseModel)
_REASON_CHARS = 240
"""Characters of a reason: enough for a provider's sentence, short enough for one log line."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,80}", re.ASCII)

_BUSY_STATUSES = frozenset({408, 409, 425, 429, 499})  # 499: Google's CANCELLED
_UNUSABLE_STATUSES = frozenset({401, 402, 403, 404, 405, 410})
_OVERFLOW = re.compile(
    r"(?:prompt|input|request)\b.{0,40}\bis too long|context[ "
    r"_](?:length|window|size|limit)|maximum context"
    r"|exceed_context|request_too_large|too many (?:input )?tokens|reduce the length"
    # vLLM, xAI, SGLang's router, Z.ai
    r"|maximum (?:model|prompt|allowed input) length|exceeds max length"
    r"|exceeds the maximum number of tokens|token count.{0,40}exceeds the limit"  # Gemini, GitHub
    # Moonshot, DashScope, MiniMax
    r"|exceeded model token limit|range of input length|more than max tokens allowed"
    r"|max_new_tokens`? must be|string_above_max_length",  # TGI, OpenAI
    re.IGNORECASE,
)
"""Matches an error that says that the prompt does not fit."""
_TOO_LARGE = re.compile(r"request too large|tokens must be reduced", re.IGNORECASE)
"""Matches OpenAI's 429 for a request over the tokens of a whole minute: waiting does not help."""
_FULL_SHARE = 0.99
"""Share of the window that counts as full: estimates near the end are that inaccurate."""
_SCARCE_SHARE = 1 / 8
"""Share of the requested output: an answer that stops before it, with no content, had no room. A
server's own output limit is larger."""
_NO_CREDIT = re.compile(
    r"enforced_spend_limit_reached|insufficient_quota|billing_hard_limit_reached|billing_not_active"
    r"|credit balance is too low"
    r"|PerDay",  # Google, of a quota
    re.IGNORECASE,
)
_NOT_SET_UP = re.compile(r"model_not_found|requires --jinja", re.IGNORECASE)
"""Matches an unknown model, and llama.cpp that was started without its templates."""
_SPOILED = re.compile(r"tool_use_failed", re.IGNORECASE)
"""Matches Groq's 400 for a call that its model wrote badly: the next one is another one
(console.groq.com/docs/tool-use)."""
_FLAGGED = re.compile(r"input was flagged", re.IGNORECASE)
"""Matches OpenRouter's 403 for a prompt that it moderates (openrouter.ai/docs, errors)."""
_PAYMENT_REQUIRED = 402
_BY_PROMPT = re.compile(
    r"\bmessages?(?:\.\d|\[\d|: (?!field required))|\bcontents\[\d"
    r"|\bimage|media_type|base64|content[ "
    r"_](?:policy|filter|management)"
    r"|invalid_prompt|responsible_?ai|roles? must alternate|tool_use_?id|tool_use "
    r"ids|tool_call_id|`tool_result`"
    r"|input was flagged|role 'tool'|user message|last message|`thinking`|safety",
    re.IGNORECASE,
)
"""Matches an error about the content of a request: a message, an image, or its subject. All other
errors (fields, values, tools, the model's name) are about the form of the request."""
_CAUSED_BY_FORM = re.compile(
    r"cache_control|Extra inputs are not permitted|unsupported_parameter|unknown_parameter",
    re.IGNORECASE,
)
_SECRET_CHARS = 8
_STATUS_BY_TYPE: dict[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "exceed_context_size_error": 400,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Status that an `error` event would have had as a response (platform.claude.com, errors)."""


class _ErrorBody(NamedTuple):
    message: str
    codes: tuple[str, ...] = ()
    request_id: str = ""
    param: str = ""
    """The field of the request that is refused, if the body names it separately."""
    retry_after_s: float | None = None
    """The server's own hint, if the body has one."""


def error_from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, where: str, secret: str
) -> ModelError:
    """Return the error for a response that is not 200. `headers` has lower-case names.

    The reason quotes the provider's own message, shortened and with `secret` masked. It includes
    the provider's request id, which its support asks for.
    """
    parsed = _parse_error_body(body)
    if not parsed.request_id:
        parsed = parsed._replace(
            request_id=headers.get("request-id") or headers.get("x-request-id") or ""
        )
    if "API_KEY_INVALID" in parsed.codes:
        status = 401  # Google answers 400 to a wrong key
    if (hint_s := _retry_after_s(headers)) is not None:
        parsed = parsed._replace(retry_after_s=hint_s)
    return _build_error(status, parsed, where=where, secret=secret)


def error_from_stream(body: str, *, where: str, secret: str) -> ModelError:
    """Return the error for an `error` event in a stream that began with 200: by its type, else
    `ModelBusy`.
    """
    parsed = _parse_error_body(body.encode("utf-8", "replace"))
    numbers = [int(c) for c in parsed.codes if c.isdecimal() and len(c) == 3]  # noqa: PLR2004 - an HTTP status has 3 digits
    status = next(
        (_STATUS_BY_TYPE[c] for c in parsed.codes if c in _STATUS_BY_TYPE),
        numbers[0] if numbers else 500,
    )
    return _build_error(status, parsed, where=where, secret=secret)


def is_window_full(end: StreamEnd, *, has_content: bool, requested: int, window: int) -> bool:
    """Return True if an answer was cut because the window was full, not because it reached the
    requested length.

    `has_content`: the answer is not empty. `requested`: output tokens; 0: none. `window`: tokens,
    as configured.
    """
    usage = end.usage
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    if end.stop_reason != "length" or not prompt or usage.output_tokens >= requested:
        # an answer with all requested tokens ended there, even if the window is full by now
        return False
    return prompt + usage.output_tokens >= window * _FULL_SHARE or (
        not has_content and usage.output_tokens < requested * _SCARCE_SHARE
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks us to wait; None if it gives none, or as a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
            return float(value) * scale
    return None


def _build_error(status: int, body: _ErrorBody, *, where: str, secret: str) -> ModelError:
    error = _classify_error(status, body, where=where, secret=secret)
    error.status = status
    searched = " ".join((body.message, *body.codes, body.param))
    hidden = (
        len(secret) >= _SECRET_CHARS
    )  # a shorter secret is not one, and would match in any word
    error.provider_message = (searched.replace(secret, "***") if hidden else searched)[:4_000]
    if isinstance(error, ModelUnusable):
        error.no_credit = status == _PAYMENT_REQUIRED or _NO_CREDIT.search(searched) is not None
    if isinstance(error, RequestRefused):
        error.caused_by_prompt = (
            _BY_PROMPT.search(searched) is not None and _CAUSED_BY_FORM.search(searched) is None
        )
    return error


def _classify_error(status: int, body: _ErrorBody, *, where: str, secret: str) -> ModelError:
    message = body.message
    reason = sanitize_reason(
        f"{where} answered {status}: {message}" if message else f"{where} answered {status}", secret
    )
    if _REQUEST_ID.fullmatch(body.request_id) and not (secret and secret in body.request_id):
        reason = f"{reason} ({body.request_id})"
    searched = " ".join((message, *body.codes))
    if _NO_CREDIT.search(searched) or _NOT_SET_UP.search(searched):
        return ModelUnusable(reason)
    if status == 413 or (status in {400, 422, 500} and _OVERFLOW.search(searched)):  # noqa: PLR2004 - HTTP's own number
        return PromptTooLong(reason)
    if status == 429 and _TOO_LARGE.search(message):  # noqa: PLR2004 - HTTP's own number
        return PromptTooLong(reason)
    if _SPOILED.search(searched):
        return AnswerSpoiled(reason)
    if status in _BUSY_STATUSES or status >= 500:  # noqa: PLR2004 - HTTP's own number
        return ModelBusy(reason, retry_after_s=body.retry_after_s)
    if (status in _UNUSABLE_STATUSES and not _FLAGGED.search(message)) or status < 400:  # noqa: PLR2004 - HTTP's own number; a redirect is a wrong base_url
        return ModelUnusable(reason)
    return RequestRefused(reason)


def sanitize_reason(text: str, secret: str) -> str:
    """Return the text as one line, limited, without `secret`, encodable as UTF-8 (JSON may hold
    lone surrogates).
    """
    text = text.encode("utf-8", "replace").decode()
    if secret:
        text = text.replace(secret, "***")
    return one_line(text, _REASON_CHARS)


def _parse_error_body(body: bytes) -> _ErrorBody:
    """Parse an error body in any of the shapes that servers use."""
    text = body.decode("utf-8", "replace")
    try:
        top: object = json.loads(text)
    except (ValueError, RecursionError):
        return _ErrorBody("" if "<html" in text.lower() else text)
    if isinstance(top, list) and top:
        top = top[0]  # Google, where a stream was asked for
    error: object = top.get("error", top) if isinstance(top, dict) else top
    if not isinstance(error, dict):
        more = top.get("error_description") if isinstance(top, dict) else None
        return _ErrorBody(f"{error}: {more}" if more else str(error))  # RFC 6749, section 5.2
    request_id = top.get("request_id") if isinstance(top, dict) else None
    details = error.get("details")
    inner = details.get("error_code") if isinstance(details, dict) else None
    named, retry_after_s = _read_google_details(details)
    codes = tuple(
        str(c)
        for c in (error.get("type"), error.get("code"), error.get("status"), inner, *named)
        if c is not None
    )
    message = error.get("message") or error.get("detail") or ""
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str):
        message = f"{message}: {raw}"  # OpenRouter: what the provider behind it has said
    param = error.get("param")
    return _ErrorBody(
        message if isinstance(message, str) else json.dumps(message),
        codes,
        request_id if isinstance(request_id, str) else "",
        param if isinstance(param, str) else "",
        retry_after_s,
    )


def _read_google_details(details: object) -> tuple[list[object], float | None]:
    """Return the reasons and quotas that the details of Google's errors name, and the seconds to
    wait (ErrorInfo, QuotaFailure and RetryInfo of google.rpc; google.aip.dev/193).
    """
    codes: list[object] = []
    retry_after_s = None
    for one in details if isinstance(details, list) else ():
        if not isinstance(one, dict):
            continue
        codes.append(one.get("reason"))
        quotas = one.get("violations")
        codes += [
            quota.get("quotaId")
            for quota in (quotas if isinstance(quotas, list) else ())
            if isinstance(quota, dict)
        ]
        delay = re.fullmatch(r"(\d{1,9}(\.\d{1,9})?)s", str(one.get("retryDelay")), re.ASCII)
        retry_after_s = float(delay[1]) if delay else retry_after_s
    return codes, retry_after_s


_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Bytes of one event: far above any answer (128k output tokens are under 1 MB), far below our
memory."""


@frozen
class SseEvent:
    """One event with data. Comments and events without data are skipped."""

    name: str
    """The `event:` field; empty if there was none."""
    data: str
    """The `data:` lines joined with LF. Bytes that are not UTF-8 become U+FFFD."""


class SseEventTooLarge(Exception):
    """An event is larger than `MAX_EVENT_BYTES`: the server is not a provider of models."""


class SseParser:
    """Incremental parser of server-sent events. An event that is unfinished at the end of the
    stream was cut off.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._size_bytes = 0
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events completed by `data`. Raises SseEventTooLarge."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        self._size_bytes += len(data)
        *ended, rest = _LINE_END.split(data)
        events = []
        for piece in ended:
            self._line.append(piece)
            event = self._process_line(b"".join(self._line))
            self._line.clear()
            if event is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
        if events:
            self._size_bytes = len(rest)
        if self._size_bytes > MAX_EVENT_BYTES:
            raise SseEventTooLarge
        return events

    def _process_line(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            event = SseEvent(name=self._name, data="\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return event
        field, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if field == b"data":
            self._data.append(text)
        elif field == b"event":
            self._name = text
        elif not field and not self._data:
            self._size_bytes = (
                0  # a comment: keep-alives during a slow prompt must not add up to the limit
            )
        return None


StreamText = InstanceOf[str]
"""Text of an event. It may hold half of a character, which pydantic's own check of a string
refuses."""


def parse_event(kind: type[_EventT], data: str) -> _EventT | None:
    """Parse the data of an event. None: it is not of this kind, and the rest of the stream may
    be.
    """
    try:
        return kind.model_validate(
            json.loads(data)
        )  # pydantic's own parser refuses half of a character
    except (ValueError, RecursionError):
        return None


def report_unread(count: int, *, where: str, has_content: bool) -> None:
    """Log that events of a whole answer were left out. Raises AnswerUnreadable if it has no other
    content.
    """
    logger.warning("%s sent %d events that cannot be read: left out of the answer", where, count)
    if not has_content:
        raise AnswerUnreadable(f"{where} sent an answer in a form that cannot be read")


class HalfJoiner:
    """Joins halves of a character that come in separate pieces. One that stays alone becomes
    U+FFFD.
    """

    def __init__(self) -> None:
        self._half = ""

    def join(self, text: str, *, final: bool = False) -> str:
        """Return the text so far without the first half at its end, unless it is `final`."""
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" and not final else ""
        return join_surrogates(text.removesuffix(self._half))


CONNECT_TIMEOUT_S = 10.0
"""Seconds: a connection that takes longer will not be made (the OpenAI and Anthropic SDKs wait 5
s)."""
GEMINI_VERSION = "v1beta"
"""Of Google's API, as its own SDKs use it: `v1` refuses system instructions as unknown
(fishjar/kiss-translator#256, vercel/ai#2256), and has no previews."""
DEFAULT_TIMEOUT_S = 120.0
"""Seconds for the first byte and between bytes: a long prompt on a slow machine is silent for a
minute."""
EVENTS_AT_ONCE = 16
"""Events of an answer that are read before other work runs, if they are there already."""
_BYTES_PER_TOKEN = 1_000
"""Bytes of events for each token of an answer: three times those of an event for each token."""
_ANSWER_BYTES = 256 * 1024
"""Bytes of an answer apart from its tokens."""
_KEPT_S = 90.0
"""Seconds for which a connection is kept for the next request, in place of httpx's 5: a new one
takes three round trips. Shorter than what firewalls allow; one that a server ends earlier is made
anew."""
_JSON_BYTES = 1024 * 1024
"""Bytes of an answer that is not streamed: a number, or a list of models."""


class ModelHttpClient:
    """Posts JSON to one URL and reads server-sent events or JSON. One connection pool, opened at
    the first use.

    httpx is imported then, not with this module: the import takes 200 ms, which a start without
    remote models saves. Of httpx the transport alone: its client, with redirects, cookies and ways
    to authenticate, takes as long again for each request.
    """

    def __init__(
        self,
        *,
        url: str,
        headers: Mapping[str, str],
        secret: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        reuse: bool = True,
        proxy: SecretStr | None = None,
    ) -> None:
        """`secret` is masked in every error. `reuse` False: a new connection for every request.

        `proxy`: as in `gateway.core.proxy`.

        Raises ValueError for headers that cannot be sent.
        """
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ValueError(
                "an api key (or ANTHROPIC_CACHE_BETA) holds characters that cannot be sent in a "
                "header; copy it again"
            )
        self._url = url
        self._headers = {
            "user-agent": "reverie",
            "accept-encoding": "gzip, deflate",
            "content-type": "application/json",
            **headers,
        }
        if (parts := urlsplit(url)).username is not None:
            login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
            self._headers["authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._secret = secret
        self._timeout_s = timeout_s
        self._max_keepalive = 8 if reuse else 0
        self._proxy_setting = proxy
        self._through = ""
        self._timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
        self._timeouts["connect"] = min(CONNECT_TIMEOUT_S, timeout_s)
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._target: httpx.URL | None = None
        self._closed = False
        self.date = ""
        """Time of the newest response, as the server has it (RFC 9110, 6.6.1). Empty: not known."""
        self.host = format_host(url)
        """Host and port, for people."""

    def open(self) -> "httpx.AsyncHTTPTransport":
        """Return the connection pool. Raises ModelUnusable after `aclose`, or if the environment's
        proxy is no URL.
        """
        if self._closed:
            raise ModelUnusable(f"the client of {self.host} is closed")
        if self._transport is None:
            import httpx  # noqa: PLC0415 - imported when first needed: see the class

            # CA certificates take a megabyte and 15 ms, and are needed for TLS only.
            secure = self._url.lower().startswith("https")
            try:
                proxy = find_proxy(self._proxy_setting, self._url)
            except ValueError as error:
                raise ModelUnusable(f"{self.host} cannot be asked: {error}") from None
            self._through = through(proxy)
            self._transport = httpx.AsyncHTTPTransport(
                verify=httpx.create_ssl_context()
                if secure
                else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=self._max_keepalive,
                    keepalive_expiry=_KEPT_S,
                ),
                proxy=proxy or None,
                # of the environment, `find_proxy` reads the proxies, and the context the
                # certificates
                trust_env=False,
            )
        return self._transport

    async def stream_events(
        self,
        body: Mapping[str, object],
        *,
        max_tokens: int = 0,
        ending: Sequence[SseEvent] = (),
    ) -> AsyncGenerator[SseEvent]:
        """Post `body` and yield the events of the response.

        `ending`: yielded in place of the rest of an answer that is far larger than `max_tokens` can
        be; 0: none is. Other work runs after every `EVENTS_AT_ONCE`, however fast they come.

        Raises a ModelError. A stream that stops without an error ends here without an error, too.
        Closing the generator or cancelling its consumer closes the connection.
        """
        parser, size_bytes, count = SseParser(), 0, 0
        async with self._send("POST", encode_body(body), "text/event-stream") as response:
            async for data in response.aiter_bytes():
                size_bytes += len(data)
                if max_tokens and size_bytes > _ANSWER_BYTES + _BYTES_PER_TOKEN * max_tokens:
                    logger.warning(
                        "%s writes on behind the limit of %d tokens: broken off",
                        self.host,
                        max_tokens,
                    )
                    for event in ending:
                        yield event
                    return
                for event in parser.feed(data):
                    yield event
                    count += 1
                    if count % EVENTS_AT_ONCE == 0:
                        await asyncio.sleep(0)

    async def fetch(self, body: Mapping[str, object] | bytes | None = None) -> bytes:
        """Post `body`, or get what is at the URL, and return the JSON. Raises a ModelError.

        Bytes are posted as they are, of the content type that the client's headers give.
        """
        method, content = "GET" if body is None else "POST", body
        if isinstance(content, Mapping):
            content = encode_body(content)
        async with self._send(method, content, "application/json") as response:
            answer = await _read_limited(response, _JSON_BYTES)
        if len(answer) > _JSON_BYTES:
            raise ModelBusy(f"{self.host} sent more than an answer may hold")
        return answer

    @asynccontextmanager
    async def _send(
        self, method: str, content: bytes | None, media_type: str, *, action: str = ""
    ) -> AsyncIterator["httpx.Response"]:
        """Send a request, and yield its response, which is of this type. Raises a ModelError, also
        for what breaks while the response is read.

        `action`: appended to the URL.
        """
        transport = self.open()
        import httpx  # noqa: PLC0415 - imported when first needed: see the class

        self._target = self._target or httpx.URL(self._url)
        request = httpx.Request(
            method,
            httpx.URL(self._url + action) if action else self._target,
            headers=self._headers | {"accept": media_type},
            content=content,
            extensions={"timeout": self._timeouts},
        )
        try:
            async with aclosing(await transport.handle_async_request(request)) as response:
                self.date = response.headers.get("date", "")
                kind = response.headers.get("content-type", media_type).partition(";")[0].strip()
                # Cloudflare and aiohttp give a stream the other two if nobody has said its type.
                is_stream = media_type == "text/event-stream" and kind.lower() in {
                    "text/plain",
                    "application/octet-stream",
                }
                if response.status_code == 200 and (kind == media_type or is_stream):  # noqa: PLR2004 - HTTP's own number
                    yield response
                    return
                body = await _read_limited(response, 16 * 1024)
        except (
            httpx.TransportError,
            httpx.DecodingError,
            httpx.StreamError,
            SseEventTooLarge,
        ) as error:
            raise self._to_model_error(error) from None  # the cause may hold request headers
        told = self.read_error(response.status_code, response.headers, body)
        raise told or ModelUnusable(
            f"{self.host} answered {sanitize_reason(kind, self._secret)}, not {media_type}: "
            "check base_url"
        )

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError | None:
        """Return the error in a response of another status than 200, or of another type than was
        asked for, as OpenRouter has it (openrouter.ai/docs, errors). None: there is none in it.
        """
        if status == 200:  # noqa: PLR2004 - HTTP's own number
            is_error = re.match(
                rb'\s*\{\s*(?:"type"\s*:\s*"error"\s*,\s*)?"error"\s*:\s*[{"]', body
            )
            return self.read_stream_error(body.decode("utf-8", "replace")) if is_error else None
        return error_from_response(status, headers, body, where=self.host, secret=self._secret)

    def read_stream_error(self, data: str) -> ModelError:
        """Return the error in the event of a stream: `error_from_stream`."""
        return error_from_stream(data, where=self.host, secret=self._secret)

    async def aclose(self) -> None:
        """Close all connections; streams under way end with an error. Safe to call twice."""
        self._closed = True
        if self._transport is not None:
            await self._transport.aclose()

    def _to_model_error(self, error: Exception) -> ModelError:
        import httpx  # noqa: PLC0415 - imported when first needed: see the class

        if self._closed:
            return ModelUnusable(f"the client of {self.host} is closed")
        if isinstance(error, httpx.ConnectTimeout):
            return ModelBusy(f"{self.host} does not answer the connection{self._through}")
        if isinstance(error, httpx.TimeoutException):
            return ModelBusy(f"{self.host} was silent for {self._timeout_s:g} s")
        if isinstance(error, httpx.ConnectError | httpx.ProxyError):
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                return ModelUnusable(f"the certificate of {self.host} is not valid")
            return ModelBusy(f"cannot connect to {self.host}{self._through}")
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            return ModelUnusable(
                f"the request to {self.host} cannot be sent: check base_url and api_key"
            )
        if isinstance(error, SseEventTooLarge):
            return ModelBusy(f"{self.host} sent more than one event may hold")
        return ModelBusy(f"{self.host} cut the connection")


class RemoteModel:
    """What all clients of remote models share: the facts of `agent.models.base.Model`, and the HTTP
    client that all requests go through.
    """

    family = ""
    takes_tools = True

    def __init__(
        self,
        api: ModelHttpClient,
        *,
        name: str,
        model: str,
        context_tokens: int,
        max_output_tokens: int,
        takes_images: bool,
        may_leak_calls: bool,
        **_: object,
    ) -> None:
        """`model`: the provider's name of it. `may_leak_calls`: as in `StreamEnd`. Others are left
        out, so that it takes all of `agent.models.settings.ModelOptions`.
        """
        self._api, self._model, self._may_leak_calls = api, model, may_leak_calls
        self.name = name
        self.label = f"{model} at {api.host}"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.takes_images = takes_images

    async def start(self) -> None:
        self._api.open()

    async def aclose(self) -> None:
        await self._api.aclose()


def join_endpoint(base_url: str, path: str, version: str = "v1") -> str:
    """Join a user's base URL and an API path such as `/chat/completions`, with the version between
    if there is none.

    A base URL that ends in `path` is left as it is. Otherwise the path of a request for an answer
    is taken off, and one that has a version anywhere (`/v1`, `/v1beta/openai`) gets no other.
    Raises ValueError if it is not an http(s) URL.
    """
    parts = _split_url(base_url)
    base = parts.path.rstrip("/")
    if not base.endswith(path):
        base = base.removesuffix("/chat/completions").removesuffix("/messages")
        if not any(s[:1] == "v" and s[1:2].isdecimal() for s in base.split("/")):
            base += f"/{version}"
        base += path
    return urlunsplit(parts._replace(path=base, fragment=""))


def anthropic_headers(api_key: str) -> dict[str, str]:
    """Return the headers of a request to Anthropic's API. `api_key` empty: none is sent.

    `anthropic-beta` is what the environment variable ANTHROPIC_CACHE_BETA says, for servers that
    cache only with it; the API itself needs none. Unset or empty: it is not sent.
    """
    beta = os.environ.get("ANTHROPIC_CACHE_BETA", "").strip()
    return (
        {"anthropic-version": "2023-06-01"}
        | ({"x-api-key": api_key} if api_key else {})
        | ({"anthropic-beta": beta} if beta else {})
    )


def gemini_headers(api_key: str) -> dict[str, str]:
    """Return the headers of a request to Google's Gemini API. `api_key` empty: none is sent."""
    return {"x-goog-api-key": api_key} if api_key else {}


def strip_version(base_url: str) -> str:
    """Return a user's base URL without the version at its end. Raises ValueError as
    `join_endpoint`.
    """
    parts = _split_url(base_url)
    return urlunsplit(
        parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"), query="", fragment="")
    )


def format_host(url: str) -> str:
    """Return the host and port of `url` for people, without user and path."""
    parts = _split_url(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{host}:{parts.port}" if parts.port else host


async def _read_limited(response: "httpx.Response", most_bytes: int) -> bytes:
    body = bytearray()
    async for data in response.aiter_bytes():
        body += data
        if len(body) > most_bytes:
            break
    return bytes(body)


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode_json(value: object) -> bytes:
    """Return the value as JSON. Half of a character becomes a question mark."""
    return _JSON.encode(value).encode("utf-8", "replace")


def encode_body(body: Mapping[str, object]) -> bytes:
    """Return the body of a request. Values that are bytes are JSON already."""
    fields = [
        f'"{name}":'.encode() + (value if isinstance(value, bytes) else encode_json(value))
        for name, value in body.items()
    ]
    return b"{" + b",".join(fields) + b"}"


def _split_url(url: str) -> SplitResult:
    """Split the URL. Raises ValueError with the remedy if it is not an http(s) URL."""
    try:
        parts = urlsplit(url.strip())
        if parts.scheme in {"http", "https"} and parts.hostname and (parts.port or 1) > 0:
            return parts
    except ValueError:
        pass  # a bad port or bracket: reported below, in words for people
    raise ValueError("not a server's address; write it like https://host:port/v1")
