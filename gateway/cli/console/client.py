"""A running gateway's API, asked: plain HTTP to this machine, or HTTPS.

ApiError
├── Away     wait: nobody answers there, or the answer broke off
├── Denied   tell: it answers, and wants another token
└── Refused  tell: it was asked, and said no

What the gateway's API says, as far as the console shows it. Parsed once, here; what is not known is left aside.

Reads an older or newer gateway too: a field that is missing is empty, one that is new is not looked at.

Staying attached: the stream of events, begun again with a growing wait whenever it ends, from where it ended.
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
    """Some texts are null where there is nothing to say; arguments and results may be any JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


ApiText = Annotated[str, BeforeValidator(_as_text)]


class ConsoleApiModel(BaseModel):
    """An event, or an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: datetime | None = None
    title: ApiText = ""
    """What people call the conversation that it is about. Empty: there is none."""


class ConsoleNotification(ConsoleApiModel):
    """Something came in: `notification`."""

    seq: int = 0
    type: ApiText = ""
    kind: ApiText = ""
    conversation: ApiText = ""
    who: ApiText = ""
    text: ApiText = ""
    fate: ApiText = ""


class ConsoleFate(ConsoleApiModel):
    """What became of it: `fate`."""

    seq: int = 0
    conversation: ApiText = ""
    fate: ApiText = ""
    rule: ApiText = ""


class ConsoleTurnEvent(ConsoleApiModel):
    """One began or ended: `turn`."""

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
    """What it is writing: `text` and `thinking`."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    autonomous: bool = False
    delta: ApiText = ""
    begins: bool = False
    """What was written before in this turn is over, or is replaced by this."""


class ConsoleThinkingDelta(ConsoleTextDelta):
    """`thinking`."""


class ConsoleToolEvent(ConsoleApiModel):
    """A call began or ended: `tool`."""

    turn: ApiText = ""
    agent: ApiText = ""
    conversation: ApiText = ""
    call: ApiText = ""
    name: ApiText = ""
    state: ApiText = ""
    arguments: ApiText = ""
    """As JSON, if it was not cut."""
    result: ApiText = ""
    error: bool = False


class ConsolePost(ConsoleApiModel):
    """The gateway says something: `post`."""

    seq: int = 0
    conversation: ApiText = ""
    text: ApiText = ""


class ConsoleDelivery(ConsoleApiModel):
    """What came of that: `delivery`."""

    seq: int = 0
    conversation: ApiText = ""
    outcome: ApiText = ""
    reason: ApiText = ""


class ConsoleDmnState(ConsoleApiModel):
    """An agent's Default Mode Network: `dmn`."""

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
    """A channel: `channel`."""

    channel: ApiText = ""
    platform: ApiText = ""
    state: ApiText = ""
    reason: ApiText = ""


class ConsoleReload(ConsoleApiModel):
    """The configuration was read again: `reloaded`."""

    taken: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    problems: tuple[ApiText, ...] = ()


class ConsoleLogRecord(ConsoleApiModel):
    """A warning, or worse: `log`."""

    level: ApiText = ""
    logger: ApiText = ""
    message: ApiText = ""


class ConsoleEventsLost(ConsoleApiModel):
    """We were too slow: `lost`."""

    count: int = 0


class ConsoleUsageToday(ConsoleApiModel):
    """What was used since midnight, UTC."""

    requests: int = 0
    input_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    read_share: float | None = None


class ConsoleRunningTurn(ConsoleApiModel):
    """A turn that runs."""

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
    """One of `GET /api/conversations`."""

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
    """What became of an order."""

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
"""By the name of the event."""


def parse_event(name: str, data: str) -> ConsoleApiModel | None:
    """An event of the stream; None: it is of no kind that is shown, or not as it should be."""
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
"""A stream says something each 15 s (a comment, if nothing else)."""
_NO, _UNAUTHORIZED, _FORBIDDEN, _BROKEN = 400, 401, 403, 500


class ConsoleApiError(Exception):
    """It was not answered. The message is one sentence for a person."""


class ApiUnavailable(ConsoleApiError):
    """Nobody answers there just now."""


class ApiUnauthorized(ConsoleApiError):
    """Whoever answers there does not take the token."""


class ApiRejected(ConsoleApiError):
    """It was not done."""


class ApiEventStream:
    """Events as they come, from one connection."""

    def __init__(self, response: "httpx.Response") -> None:
        self._response = response

    async def batches(self) -> AsyncGenerator[tuple[str, list[ConsoleApiModel]]]:
        """What came at once: the last position of the log in it (empty: none), and events. Raises Away at its end."""
        import httpx  # noqa: PLC0415 - as below

        parser = SseParser()
        try:
            async for data in self._response.aiter_bytes():
                found = parser.feed(data)
                seen = [event for one in found if (event := parse_event(one.name, one.data)) is not None]
                yield next((one.id for one in reversed(found) if one.id), ""), seen
        except (httpx.HTTPError, SseEventTooLarge) as error:
            raise ApiUnavailable(f"the connection broke: {_describe_http_error(error)}") from error
        raise ApiUnavailable("the gateway closed the connection")


class GatewayApiClient:
    """One gateway."""

    def __init__(self, url: str, token: str) -> None:
        """Raises ValueError for an address or a token that cannot be used."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is no address: write http://127.0.0.1:9090")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError(f"http://{parts.hostname} is not this machine, and all on the way would read the token")
        if not (token.isascii() and token.isprintable() and token.strip()):
            raise ValueError("the token is empty, or holds what no header can")
        self.address = parts.netloc.rpartition("@")[2]
        """For people: host and port."""
        self._url = f"{parts.scheme}://{self.address}"
        self._headers = {"authorization": f"Bearer {token}"}
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Let go of all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def get_status(self) -> ConsoleStatus:
        """Where everything stands."""
        return await self._get("/api/status", ConsoleStatus)

    async def get_history(self, conversation: str, limit: int = 100) -> ConsoleHistory:
        """The newest messages of a conversation, the oldest first."""
        return await self._get("/api/conversation", ConsoleHistory, {"id": conversation, "limit": str(limit)})

    async def list_conversations(self, limit: int = 50) -> ConsoleConversationList:
        """Conversations, those with the newest words first."""
        return await self._get("/api/conversations", ConsoleConversationList, {"limit": str(limit)})

    async def say(self, said: str) -> None:
        """Said by the operator; returns when it is durable."""
        await self._request("POST", "/api/say", body={"text": said})

    async def send_order(self, kind: str, conversation: str, by: str) -> ConsoleOrderResult:
        """`stop` or `kill` what runs in a conversation."""
        body = {"kind": kind, "conversation": conversation, "by": by}
        return _parse_answer(ConsoleOrderResult, await self._request("POST", "/api/orders", body=body))

    @asynccontextmanager
    async def open_stream(self, last: str) -> AsyncGenerator[ApiEventStream]:
        """All events from now on; `last`: from behind that position of the log on."""
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
            import httpx  # noqa: PLC0415 - it takes 200 ms, which `reverie --help` need not

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
    """Raise what the status says, with the sentence that came with it."""
    status = response.status_code
    if status < _NO:
        return
    try:
        said = json.loads(response.content)
    except ValueError:
        said = response.text
    if isinstance(said, dict):
        said = said.get("detail") or ""
    sentence = f"{str(said).strip()[:500] or response.reason_phrase} ({status})"
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
"""Between two attempts: somebody sits in front of it."""


class ApiListener(Protocol):
    """Who is told. Each call returns at once."""

    def handle_connected(self, status: ConsoleStatus, past: ConsoleHistory | None) -> None:
        """A connection stands. `past`: of the conversation that is followed, at the first time only."""

    def handle_events(self, events: Sequence[ConsoleApiModel]) -> None:
        """These happened."""

    def handle_disconnected(self, error: ConsoleApiError, seconds: float) -> None:
        """It stands no longer, or could not be made; the next attempt comes after so many seconds."""


async def listen_with_reconnect(
    api: GatewayApiClient, hearer: ApiListener, conversation: str, *, chance: Callable[[], float] = random.random
) -> None:
    """Tell `hearer` what happens there, until cancelled."""
    backoff, last, known = Backoff(MAX_RECONNECT_S), "", False
    while True:
        try:
            async with api.open_stream(last) as stream:
                status = await api.get_status()
                past = None if known else await api.get_history(conversation)
                hearer.handle_connected(status, past)
                known = True
                backoff.reset()
                async for position, events in stream.batches():
                    last = position or last
                    hearer.handle_events(events)
        except ConsoleApiError as error:
            wait_s = backoff.next_delay_s(0, chance())
            hearer.handle_disconnected(error, wait_s)
            await asyncio.sleep(wait_s)
