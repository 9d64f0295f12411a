"""HTTP client of a running gateway's API, its models, and the event stream with reconnects.

Plain HTTP is accepted for this machine only, else HTTPS. The models accept older and newer gateways: a missing field is
empty, an unknown one is ignored.

Errors:
- `ConsoleApiError`: no usable answer.
- `ApiUnavailable`: wait; nothing answers there, or the answer broke off.
- `ApiUnauthorized`: tell the person; the token is not accepted.
- `ApiRejected`: tell the person; the request was refused.
"""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from agent.models.http import SseEventTooLarge, SseParser
from channels.aio import Backoff
from gateway.ops.http import is_loopback

if TYPE_CHECKING:
    import httpx


def _as_text(value: object) -> object:
    """Accept null as an empty text, and any JSON as text: arguments and results may be anything."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


ApiText = Annotated[str, BeforeValidator(_as_text)]


class ConsoleApiModel(BaseModel):
    """Base of events and answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: datetime | None = None
    title: ApiText = ""
    """Display title of the conversation. Empty: none."""


class ConsoleNotification(ConsoleApiModel):
    """`notification`: a new notification."""

    seq: int = 0
    type: ApiText = ""
    kind: ApiText = ""
    conversation: ApiText = ""
    who: ApiText = ""
    text: ApiText = ""
    fate: ApiText = ""


class ConsoleFate(ConsoleApiModel):
    """`fate`: the outcome of a notification."""

    seq: int = 0
    conversation: ApiText = ""
    fate: ApiText = ""
    rule: ApiText = ""


class ConsoleTurnEvent(ConsoleApiModel):
    """`turn`: start or end of a turn."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    state: ApiText = ""
    autonomous: bool = False
    cause: ApiText = ""
    outcome: ApiText = ""
    model: ApiText = ""
    input_tokens: int | None = None
    read_tokens: int | None = None
    written_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class ConsoleTextDelta(ConsoleApiModel):
    """`text`: an answer has grown."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    autonomous: bool = False
    delta: ApiText = ""
    begins: bool = False
    """True if earlier text of the turn is finished, or replaced by this."""


class ConsoleThinkingDelta(ConsoleTextDelta):
    """`thinking`: thinking has grown."""


class ConsoleToolEvent(ConsoleApiModel):
    """`tool`: start or end of a tool call."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    call: ApiText = ""
    name: ApiText = ""
    state: ApiText = ""
    arguments: ApiText = ""
    """JSON, unless it was cut."""
    result: ApiText = ""
    error: bool = False


class ConsolePost(ConsoleApiModel):
    """`post`: the gateway posts a message."""

    seq: int = 0
    conversation: ApiText = ""
    text: ApiText = ""


class ConsoleDelivery(ConsoleApiModel):
    """`delivery`: result of a post."""

    seq: int = 0
    conversation: ApiText = ""
    outcome: ApiText = ""
    reason: ApiText = ""


class ConsoleDmnState(ConsoleApiModel):
    """`dmn`: state of an agent's Default Mode Network."""

    agent: ApiText = ""
    mode: ApiText = ""
    next_tick_s: float | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    in_a_row: int = 0
    turns_today: int = 0
    daily_turns: int = 0
    quiet: bool = False


class ConsoleChannelState(ConsoleApiModel):
    """`channel`: state of a channel."""

    channel: ApiText = ""
    platform: ApiText = ""
    state: ApiText = ""
    reason: ApiText = ""


class ConsoleReload(ConsoleApiModel):
    """`reloaded`: the configuration was reloaded."""

    taken: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    problems: tuple[ApiText, ...] = ()


class ConsoleLogRecord(ConsoleApiModel):
    """`log`: a logged warning or error."""

    level: ApiText = ""
    logger: ApiText = ""
    message: ApiText = ""


class ConsoleEventsLost(ConsoleApiModel):
    """`lost`: number of events that were dropped because we read too slowly."""

    count: int = 0


class ConsoleUsageToday(ConsoleApiModel):
    """Usage since midnight UTC."""

    requests: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    read_share: float | None = None


class ConsoleRunningTurn(ConsoleApiModel):
    """A running turn."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    since: datetime | None = None
    tool: ApiText = ""


class ConsoleStatus(ConsoleApiModel):
    """`GET /api/status`."""

    version: ApiText = ""
    now: datetime | None = None
    ready: bool = False
    model: ApiText = ""
    agents: tuple[ConsoleDmnState, ...] = ()
    today: ConsoleUsageToday = ConsoleUsageToday()
    activity: tuple[ConsoleRunningTurn, ...] = ()


class ConsoleMessage(ConsoleApiModel):
    """A message of a conversation."""

    seq: int = 0
    who: ApiText = ""
    ours: bool = False
    text: ApiText = ""
    kind: ApiText = ""
    fate: ApiText = ""


class ConsoleHistory(ConsoleApiModel):
    """`GET /api/conversation`."""

    conversation: ApiText = ""
    agent: ApiText = ""
    messages: tuple[ConsoleMessage, ...] = ()


class ConsoleConversation(ConsoleApiModel):
    """An item of `GET /api/conversations`."""

    conversation: ApiText = ""
    agent: ApiText = ""
    last_at: datetime | None = None
    last_text: ApiText = ""
    last_who: ApiText = ""
    unread: int = 0
    running: bool = False


class ConsoleConversationList(ConsoleApiModel):
    """`GET /api/conversations`."""

    conversations: tuple[ConsoleConversation, ...] = ()


class ConsoleOrderResult(ConsoleApiModel):
    """Result of an order."""

    ok: bool = False
    lines: tuple[ApiText, ...] = ()


EVENT_MODELS: Final[dict[str, type[ConsoleApiModel]]] = {
    "notification": ConsoleNotification,
    "fate": ConsoleFate,
    "turn": ConsoleTurnEvent,
    "text": ConsoleTextDelta,
    "thinking": ConsoleThinkingDelta,
    "tool": ConsoleToolEvent,
    "post": ConsolePost,
    "delivery": ConsoleDelivery,
    "dmn": ConsoleDmnState,
    "channel": ConsoleChannelState,
    "reloaded": ConsoleReload,
    "log": ConsoleLogRecord,
    "lost": ConsoleEventsLost,
}
"""Models by event name."""


def parse_event(name: str, data: str) -> ConsoleApiModel | None:
    """Parse an event of the stream; None: its kind is unknown, or it is malformed."""
    kind = EVENT_MODELS.get(name)
    if kind is None:
        return None
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        return None


ApiModelT = TypeVar("ApiModelT", bound=ConsoleApiModel)
REQUEST_TIMEOUT_S = 10.0
STREAM_TIMEOUT_S = 40.0
"""Seconds: a stream sends something every 15 s, at least a comment."""
_NO, _UNAUTHORIZED, _FORBIDDEN, _BROKEN = 400, 401, 403, 500


class ConsoleApiError(Exception):
    """No usable answer. The message is one sentence for people."""


class ApiUnavailable(ConsoleApiError):
    """Nothing answers there at the moment."""


class ApiUnauthorized(ConsoleApiError):
    """The token is not accepted."""


class ApiRejected(ConsoleApiError):
    """The request was refused."""


class ApiEventStream:
    """Events of one connection."""

    def __init__(self, response: "httpx.Response") -> None:
        self._response = response

    async def batches(self) -> AsyncGenerator[tuple[str, list[ConsoleApiModel]]]:
        """Yield what arrived together: the last position of the log in it (empty: none), and events.

        Raises ApiUnavailable at the end of the connection.
        """
        import httpx  # noqa: PLC0415 - as below

        parser = SseParser()
        try:
            async for data in self._response.aiter_bytes():
                found = parser.feed(data)
                events = [event for one in found if (event := parse_event(one.name, one.data)) is not None]
                yield next((one.id for one in reversed(found) if one.id), ""), events
        except (httpx.HTTPError, SseEventTooLarge) as error:
            raise ApiUnavailable(f"the connection broke: {_describe_http_error(error)}") from error
        raise ApiUnavailable("the gateway closed the connection")


class GatewayApiClient:
    """Client of one gateway."""

    def __init__(self, url: str, token: str) -> None:
        """Raises ValueError for an unusable address or token."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is no address: write http://127.0.0.1:9090")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError(f"http://{parts.hostname} is not this machine, and all on the way would read the token")
        if not (token.isascii() and token.isprintable() and token.strip()):
            raise ValueError("the token is empty, or holds what no header can")
        self.address = parts.netloc.rpartition("@")[2]
        """Host and port, for people."""
        self._url = f"{parts.scheme}://{self.address}"
        self._headers = {"authorization": f"Bearer {token}"}
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def get_status(self) -> ConsoleStatus:
        """Return the state of the gateway."""
        return await self._get("/api/status", ConsoleStatus)

    async def get_history(self, conversation: str, limit: int = 100) -> ConsoleHistory:
        """Return the newest messages of a conversation, oldest first."""
        return await self._get("/api/conversation", ConsoleHistory, {"id": conversation, "limit": str(limit)})

    async def list_conversations(self, limit: int = 50) -> ConsoleConversationList:
        """Return conversations, the most recently active first."""
        return await self._get("/api/conversations", ConsoleConversationList, {"limit": str(limit)})

    async def say(self, text: str) -> None:
        """Post a text as the operator; return when it is durable."""
        await self._request("POST", "/api/say", body={"text": text})

    async def send_order(self, kind: str, conversation: str, by: str) -> ConsoleOrderResult:
        """Send an order, `stop` or `kill`, for a conversation."""
        body = {"kind": kind, "conversation": conversation, "by": by}
        return _parse_answer(ConsoleOrderResult, await self._request("POST", "/api/orders", body=body))

    @asynccontextmanager
    async def open_stream(self, last: str) -> AsyncGenerator[ApiEventStream]:
        """Open the event stream. `last`: continue behind this position of the log; empty: from now on."""
        import httpx  # noqa: PLC0415 - as below

        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        limits = httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_TIMEOUT_S)
        try:
            async with self._http_client().stream("GET", "/api/events", headers=headers, timeout=limits) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    _raise_for_status(response)
                yield ApiEventStream(response)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error

    def _http_client(self) -> "httpx.AsyncClient":
        if self._client is None:
            import httpx  # noqa: PLC0415 - takes 200 ms, which `reverie --help` does not need

            self._client = httpx.AsyncClient(
                base_url=self._url,
                headers=self._headers,
                timeout=REQUEST_TIMEOUT_S,
                trust_env=False,
                follow_redirects=False,
            )
        return self._client

    async def _get(self, path: str, shape: type[ApiModelT], query: Mapping[str, str] | None = None) -> ApiModelT:
        return _parse_answer(shape, await self._request("GET", path, query=query))

    async def _request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, str] | None = None
    ) -> bytes:
        import httpx  # noqa: PLC0415 - as above

        try:
            response = await self._http_client().request(method, path, params=query, json=body)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error
        _raise_for_status(response)
        return response.content


def _raise_for_status(response: "httpx.Response") -> None:
    """Raise the error for the status, with the message of the response."""
    status = response.status_code
    if status < _NO:
        return
    try:
        detail = json.loads(response.content)
    except ValueError:
        detail = response.text
    if isinstance(detail, dict):
        detail = detail.get("detail") or ""
    sentence = f"{str(detail).strip()[:500] or response.reason_phrase} ({status})"
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        raise ApiUnauthorized(sentence)
    raise (ApiUnavailable if status >= _BROKEN else ApiRejected)(sentence)


def _parse_answer(shape: type[ApiModelT], data: bytes) -> ApiModelT:
    try:
        return shape.model_validate_json(data)
    except ValidationError as error:
        raise ApiRejected("the gateway's answer is not one: it is of another version, or no gateway") from error


def _describe_http_error(error: Exception) -> str:
    name = type(error).__name__
    words = {"ConnectError": "nobody answers there", "ReadTimeout": "nothing came for too long"}
    return words.get(name) or str(error) or name


MAX_RECONNECT_S: Final = 10.0
"""Longest wait between two attempts; short, because a person watches."""


class ApiListener(Protocol):
    """Receiver of what happens. Its methods must not block."""

    def handle_connected(self, status: ConsoleStatus, past: ConsoleHistory | None) -> None:
        """Handle a new connection. `past`: messages of the followed conversation, at the first connection only."""

    def handle_events(self, events: Sequence[ConsoleApiModel]) -> None:
        """Handle events."""

    def handle_disconnected(self, error: ConsoleApiError, seconds: float) -> None:
        """Handle the loss of the connection, or a failed attempt; `seconds`: until the next attempt."""


async def listen_with_reconnect(
    api: GatewayApiClient, listener: ApiListener, conversation: str, *, chance: Callable[[], float] = random.random
) -> None:
    """Pass on everything that happens to `hearer`, until cancelled.

    Reconnects with growing waits and continues behind the last position.
    """
    backoff, last, known = Backoff(MAX_RECONNECT_S), "", False
    while True:
        try:
            async with api.open_stream(last) as stream:
                status = await api.get_status()
                past = None if known else await api.get_history(conversation)
                listener.handle_connected(status, past)
                known = True
                backoff.reset()
                async for position, events in stream.batches():
                    last = position or last
                    listener.handle_events(events)
        except ConsoleApiError as error:
            wait_s = backoff.next_delay_s(0, chance())
            listener.handle_disconnected(error, wait_s)
            await asyncio.sleep(wait_s)
