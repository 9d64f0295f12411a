"""One HTTP service that streams its answers: the plumbing that all remote models share."""

import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit, urlunsplit

from agent.models.base import ModelBusy, ModelError, ModelUnusable
from agent.models.failures import error_from_response, sanitize_reason
from agent.models.sse import SseEvent, SseEventTooLarge, SseParser

if TYPE_CHECKING:
    import httpx


CONNECT_TIMEOUT_S = 10.0
"""A connection that takes longer is not going to come (the OpenAI and Anthropic SDKs wait 5 s)."""
DEFAULT_TIMEOUT_S = 120.0
"""For the first byte and between bytes: a long prompt on a slow machine is silent for a minute."""
_ERROR_BODY_BYTES = 16 * 1024
_JSON_BYTES = 1024 * 1024
"""Of an answer that does not stream: a number, or a list of models."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_LOOPBACK = frozenset({"localhost", "::1"})


class ModelHttpClient:
    """Posts JSON to one URL and reads server-sent events, or JSON. One connection pool, made at the first use.

    httpx is imported then, not with this module: it costs 200 ms that a start without remote models
    need not pay. Environment proxies are not used for loopback hosts.
    """

    def __init__(
        self,
        *,
        url: str,
        headers: Mapping[str, str],
        secret: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        reuse: bool = True,
    ) -> None:
        """`secret` is blacked out of every error. `reuse` False: a new connection for every request.

        Raises ValueError for headers that cannot be sent.
        """
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ValueError("an api key holds characters that cannot be sent in a header; copy it again")
        self._url = url
        self._headers = {**headers, "content-type": "application/json", "accept": "text/event-stream"}
        self._secret = secret
        self._timeout_s = timeout_s
        self._max_keepalive = 8 if reuse else 0
        self._client: httpx.AsyncClient | None = None
        self._closed = False
        self.host = format_host(url)
        """For people: host and port."""

    def open(self) -> "httpx.AsyncClient":
        """Return the connection pool. Raises Unusable after `aclose`."""
        if self._closed:
            raise ModelUnusable(f"the client of {self.host} is closed")
        if self._client is None:
            import httpx  # noqa: PLC0415 - imported when first needed: see the class

            # The certificates of authorities cost a megabyte and 15 ms, and are of use over TLS alone.
            secure = self._url.lower().startswith("https")
            self._client = httpx.AsyncClient(
                verify=True if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                timeout=httpx.Timeout(self._timeout_s, connect=min(CONNECT_TIMEOUT_S, self._timeout_s)),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=self._max_keepalive),
                trust_env=not is_loopback(self._url),
            )
        return self._client

    async def stream_events(self, body: object, more: Mapping[str, str] = NO_HEADERS) -> AsyncGenerator[SseEvent]:
        """Post `body`, with `more` headers, and yield what comes.

        Raises a ModelError; a stream that just stops, just stops here too. Closing the generator or
        cancelling its consumer closes the connection.
        """
        client = self.open()
        import httpx  # noqa: PLC0415 - imported when first needed: see the class

        parser, headers = SseParser(), {**self._headers, **more}
        try:
            async with client.stream("POST", self._url, content=_encode_json(body), headers=headers) as response:
                await self._check_response(response, "text/event-stream")
                async for data in response.aiter_bytes():
                    for event in parser.feed(data):
                        yield event
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError, SseEventTooLarge) as error:
            raise self._to_model_error(error) from None  # the cause may hold request headers

    async def post(self, body: object, more: Mapping[str, str] = NO_HEADERS) -> bytes:
        """Post `body`, with `more` headers, and return the answer, which calls itself JSON. Raises a ModelError."""
        return await self._request("POST", _encode_json(body), more)

    async def get(self) -> bytes:
        """Return what is there, which calls itself JSON. Raises a ModelError."""
        return await self._request("GET", None, NO_HEADERS)

    async def _request(self, method: str, content: bytes | None, more: Mapping[str, str]) -> bytes:
        client = self.open()
        import httpx  # noqa: PLC0415 - imported when first needed: see the class

        headers = {**self._headers, **more, "accept": "application/json"}
        try:
            async with client.stream(method, self._url, content=content, headers=headers) as response:
                await self._check_response(response, "application/json")
                answer = await _read_limited(response, _JSON_BYTES)
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as error:
            raise self._to_model_error(error) from None  # the cause may hold request headers
        if len(answer) > _JSON_BYTES:
            raise ModelBusy(f"{self.host} sent more than an answer may hold")
        return answer

    async def aclose(self) -> None:
        """Close all connections; streams under way end with an error. Safe to call twice."""
        self._closed = True
        if self._client is not None:
            await self._client.aclose()

    async def _check_response(self, response: "httpx.Response", wanted: str) -> None:
        kind = response.headers.get("content-type", wanted).partition(";")[0].strip()
        if response.status_code == 200 and kind == wanted:  # noqa: PLR2004 - HTTP's own number
            return
        body = await _read_limited(response, _ERROR_BODY_BYTES)
        if response.status_code == 200:  # noqa: PLR2004 - HTTP's own number
            raise ModelUnusable(
                f"{self.host} answered {sanitize_reason(kind, self._secret)}, not {wanted}: check base_url"
            )
        now = datetime.now(UTC)
        raise error_from_response(
            response.status_code, response.headers, body, where=self.host, secret=self._secret, now=now
        )

    def _to_model_error(self, error: Exception) -> ModelError:
        import httpx  # noqa: PLC0415 - imported when first needed: see the class

        if self._closed:
            return ModelUnusable(f"the client of {self.host} is closed")
        if isinstance(error, httpx.ConnectTimeout):
            return ModelBusy(f"{self.host} does not answer the connection")
        if isinstance(error, httpx.TimeoutException):
            return ModelBusy(f"{self.host} was silent for {self._timeout_s:g} s")
        if isinstance(error, httpx.ConnectError | httpx.ProxyError):
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                return ModelUnusable(f"the certificate of {self.host} is not valid")
            return ModelBusy(f"cannot connect to {self.host}")
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            return ModelUnusable(f"the request to {self.host} cannot be sent: check base_url and api_key")
        if isinstance(error, SseEventTooLarge):
            return ModelBusy(f"{self.host} sent more than one event may hold")
        return ModelBusy(f"{self.host} cut the connection")


def join_endpoint(base_url: str, path: str) -> str:
    """Join a user's base URL and an API path such as `/chat/completions`, with `/v1` between if it is missing.

    A base URL that already names a version anywhere (`/v1`, `/v1beta/openai`) is left as it is; one that
    already ends in `path` too. Raises ValueError if it is not an http(s) URL.
    """
    parts = _split_url(base_url)
    base = parts.path.rstrip("/").removesuffix(path)
    if not any(s[:1] == "v" and s[1:2].isdecimal() for s in base.split("/")):
        base += "/v1"
    return urlunsplit(parts._replace(path=base + path, fragment=""))


def strip_version(base_url: str) -> str:
    """Return a user's base URL without the version that it may end in. Raises ValueError as `join_endpoint`."""
    parts = _split_url(base_url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"), query="", fragment=""))


def format_host(url: str) -> str:
    """Host and port of `url`, for people: no user, no path."""
    parts = _split_url(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{host}:{parts.port}" if parts.port else host


def is_loopback(url: str) -> bool:
    """Whether `url` stays on this machine."""
    host = _split_url(url).hostname or ""
    return host in _LOOPBACK or host.startswith("127.")


async def _read_limited(response: "httpx.Response", most_bytes: int) -> bytes:
    """Read on until there is more than `most_bytes`, or all of it."""
    body = bytearray()
    async for data in response.aiter_bytes():
        body += data
        if len(body) > most_bytes:
            break
    return bytes(body)


def _encode_json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _split_url(url: str) -> SplitResult:
    """Raises ValueError that says how to write it."""
    try:
        parts = urlsplit(url.strip())
        if parts.scheme in {"http", "https"} and parts.hostname and (parts.port or 1) > 0:
            return parts
    except ValueError:
        pass  # a bad port or bracket: told below, in words for people
    raise ValueError("not a server's address; write it like https://host:port/v1")
