"""Bot API client over python-telegram-bot, with corrections of its HTTP, our errors, and the polling back-off.

The token is part of every address. It must not reach a log, an exception that leaves the adapter, or a connection's
reason.

Failed requests are classified here (core.telegram.org/bots/api#making-requests): the library fails on an error whose
`parameters` are odd, reads an `ok: false` with HTTP 200 as a success, and takes a proxy's 404 for a refused token.
"""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx
from telegram import Bot
from telegram.error import BadRequest, ChatMigrated, Conflict, Forbidden, InvalidToken, NetworkError, TelegramError
from telegram.request import HTTPXRequest

from channels.aio import Backoff
from channels.base import Denied, Emit, RateLimited, Rejected, SendError, Uncertain, Unreachable
from channels.telegram.config import TelegramConfig
from channels.telegram.people import TelegramUpdateContext
from channels.text import Json, get_int, get_object, get_str
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId

logger = logging.getLogger("reverie.telegram")
_DEFAULT_FLOOD_S, _MAX_FLOOD_S = 5.0, 86_400.0
"""Seconds to wait when Telegram gives no time, and the longest wait that is honoured: a message a day late is
pointless."""
_OK, _FIRST_FAILURE, _CLIENT_ERROR, _SERVER_ERROR = 200, 300, 400, 500
_NO_UPDATES = b'{"ok":true,"result":[]}'

NOT_SENT_CAUSES = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""Causes of a `NetworkError` that prove that the request was never sent."""
CLOSED_MESSAGES = ("This HTTPXRequest is not initialized!", "Cannot send a request, as the client has been closed.")
"""Messages of a RuntimeError that prove the same: of the library's and of httpx's checks before a request."""


class FloodWait(TelegramError):
    """Answer 429. Replaces the library's RetryAfter, whose seconds cannot be read without a warning."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"Telegram asks us to wait {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class TelegramServerError(NetworkError):
    """Answer 5xx: the request may have been executed."""

    def __init__(self, message: str, *, is_proxy_page: bool) -> None:
        super().__init__(message)
        self.is_proxy_page = is_proxy_page
        """The answer came from a proxy in front of the Bot API server."""


class WrongServerError(NetworkError):
    """Answer 401 or 404, but not from a Bot API server: no such server has received the request."""


class TelegramRequest(HTTPXRequest):
    """Connection pool of the library, with strict checks of answers."""

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:  # noqa: ANN401 - the library's own
        """Do the library's request, but raise `TelegramError` for every failure."""
        code, payload = await super().do_request(*args, **kwargs)
        try:
            answer = self.parse_json_payload(payload)
        except TelegramError:
            if code < _FIRST_FAILURE:
                raise
            answer = {}
        if code >= _FIRST_FAILURE or answer.get("ok") is False:
            raise to_telegram_error(code, answer)
        if "result" not in answer:
            raise TelegramError("Invalid server response")
        return _OK, _minimal_message(answer) or payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """Parse like the library, without logging the payload."""
        try:
            value = json.loads(payload.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise TelegramError("Invalid server response")
        return value


class TelegramUpdatesRequest(TelegramRequest):
    """Connection that keeps updates as raw JSON.

    The library parses all or none: one malformed update would stop the rest.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - the library's own
        super().__init__(**settings)
        self.updates: list[object] = []

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:  # noqa: ANN401 - the library's own
        code, payload = await super().do_request(*args, **kwargs)
        result = self.parse_json_payload(payload)["result"]
        if not isinstance(result, list):
            raise TelegramError("Invalid server response")
        self.updates = result
        return code, _NO_UPDATES


def to_telegram_error(code: int, answer: Json) -> TelegramError:
    """Return the error for a failed answer; `answer` is empty if it was not the Bot API's."""
    if code < _FIRST_FAILURE:
        code = get_int(answer, "error_code") or _CLIENT_ERROR
    description, parameters = get_str(answer, "description") or f"HTTP {code}", get_object(answer, "parameters")
    if (chat := get_int(parameters, "migrate_to_chat_id")) is not None:
        return ChatMigrated(chat)
    match code:
        case 401 | 404 if answer.get("ok") is not False:
            return WrongServerError(f"HTTP {code}, and not from a Bot API server")
        case 401 | 404:
            return InvalidToken(description)
        case 403:
            return Forbidden(description)
        case 409:
            return Conflict(description)
        case 429:
            return FloodWait(_retry_after_s(parameters))
        case _:
            return (
                BadRequest(description)
                if code < _SERVER_ERROR
                else TelegramServerError(description, is_proxy_page=answer.get("ok") is not False)
            )


def _retry_after_s(parameters: Json) -> float:
    value = parameters.get("retry_after")
    if isinstance(value, int | float) and value > 0:
        return float(min(value, _MAX_FLOOD_S))
    return _DEFAULT_FLOOD_S


def _minimal_message(answer: Json) -> bytes:
    """Reduce an answer that is a message to its id, all that we need; empty for other answers.

    The library would parse the whole message, and one odd field of another server would make a sent message uncertain.
    """
    number = get_int(get_object(answer, "result"), "message_id")
    if number is None:
        return b""
    message = {"message_id": number, "date": 1, "chat": {"id": 1, "type": "private"}}
    return json.dumps({"ok": True, "result": message}).encode()


_CONNECT_S, _POOL_S = 10.0, 5.0
_POOL_SIZE = 16
_BUTTONS_TIMEOUT_S = 2.0
UNKNOWN_BUTTON_TEXT = "I do not know this button."
"""Shown briefly to a person who pressed a button: none is ours."""

ResultT = TypeVar("ResultT")


class TelegramApi:
    """Connections of one bot. Call `close` at the end."""

    def __init__(self, config: TelegramConfig) -> None:
        base = config.base_url.rstrip("/")
        self._token = config.token.get_secret_value()
        hook = config.webhook
        self._secrets = (self._token, hook.secret.get_secret_value()) if hook else (self._token,)
        self._timeout_s, self._poll_s = config.request_timeout, int(config.poll_timeout)
        # One shared context: each costs megabytes.
        bare = not base.lower().startswith("https")
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if bare else httpx.create_ssl_context()
        self._trust_env = not _is_loopback(base)
        """Proxies of the environment are used, except for a server on this machine."""
        settings: dict[str, Any] = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": config.request_timeout,
            "write_timeout": config.request_timeout,
            "pool_timeout": _POOL_S,
            "httpx_kwargs": {"verify": self._tls, "trust_env": self._trust_env},
        }
        self._updates_request = TelegramUpdatesRequest(connection_pool_size=1, **settings)
        self.file_base_url = f"{base}/file/bot{self._token}/"
        """Prefix of all file addresses."""
        with self.redact_logs():  # the library logs its addresses as it is made
            self.bot = Bot(
                self._token,
                base_url=f"{base}/bot",
                base_file_url=f"{base}/file/bot",
                request=TelegramRequest(connection_pool_size=_POOL_SIZE, **settings),
                get_updates_request=self._updates_request,
            )

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(self.bot.request.shutdown(), self._updates_request.shutdown())

    @staticmethod
    async def await_call(call: Awaitable[ResultT]) -> ResultT:
        """Return the library's result. Raises TelegramError, also if the library fails on the answer."""
        try:
            return await call
        except TelegramError:
            raise
        except Exception as error:  # noqa: BLE001 - an unexpected answer must fail this call only
            raise TelegramError(f"the answer cannot be read: {type(error).__name__}") from None

    async def get_me(self) -> object:
        """Return the answer to getMe. Raises TelegramError: InvalidToken if Telegram does not accept the token."""
        # Not by the library's `get_me`: it requires fields that we do not need and some servers leave out.
        return await self.await_call(self.bot.request.post(f"{self.bot.base_url}/getMe"))

    async def identify(self, context: TelegramUpdateContext) -> TelegramUpdateContext:
        """Return the context with our own id and name. Raises TelegramError."""
        answer = await self.get_me()
        me = answer if isinstance(answer, dict) else {}
        if (number := get_int(me, "id")) is None:
            raise TelegramError("the answer to getMe cannot be read: no id")
        reads_all = me.get("can_read_all_group_messages") is not False
        return replace(context, own_id=number, username=get_str(me, "username"), can_read_all=reads_all)

    async def get_updates(self, offset: int | None, allowed: tuple[str, ...], *, wait: bool) -> list[object]:
        """Return the next updates as raw JSON; with `wait`, once there are any or the poll time is over.

        Raises TelegramError, or TimeoutError if the server keeps the connection open without a complete answer.
        """
        poll_s = self._poll_s if wait else 0
        async with asyncio.timeout(poll_s + 1.5 * self._timeout_s + _CONNECT_S):
            await self.await_call(self.bot.get_updates(offset=offset, timeout=poll_s, allowed_updates=allowed))
        updates, self._updates_request.updates = self._updates_request.updates, []
        return updates

    async def answer_buttons(self, presses: Sequence[str]) -> None:
        """Answer button presses, so that clients stop waiting: no button is ours.

        Returns soon; failures are ignored.
        """

        async def answer(press: str) -> None:
            # Created inside, so that a cancellation before the start leaves no coroutine without an await.
            await self.await_call(self.bot.answer_callback_query(press, text=UNKNOWN_BUTTON_TEXT))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BUTTONS_TIMEOUT_S):
                await asyncio.gather(*map(answer, presses), return_exceptions=True)

    @contextlib.asynccontextmanager
    async def stream_file(self, url: str) -> AsyncIterator[httpx.Response]:
        """Stream a file's bytes. Raises httpx.HTTPError."""
        timeout = httpx.Timeout(self._timeout_s, connect=_CONNECT_S)
        client = httpx.AsyncClient(verify=self._tls, timeout=timeout, trust_env=self._trust_env)
        plain = {"Accept-Encoding": "identity"}  # the size limit counts received bytes: they must be the file's
        async with client, client.stream("GET", url, headers=plain) as response:
            yield response

    def redact(self, text: object) -> str:
        """Return `text` without our secrets."""
        redacted = str(text)
        for secret in self._secrets:
            redacted = redacted.replace(secret, "<secret>")
        return redacted

    def to_send_error(self, error: Exception) -> SendError:
        """Return what an error means for the message; an error that proves nothing gives `Uncertain`."""
        reason = self.redact(error)
        match error:
            case SendError():
                return error
            case FloodWait():
                return RateLimited(reason, retry_after_s=error.retry_after_s)
            case InvalidToken():
                return Denied(UNAUTHORIZED_TEXT)
            case Forbidden() | BadRequest() | ChatMigrated():
                return Rejected(reason)
            case WrongServerError():
                return Unreachable(reason)
            case NetworkError() if isinstance(error.__cause__, NOT_SENT_CAUSES):
                return Unreachable(f"cannot reach the Bot API: {type(error.__cause__).__name__}")
            case NetworkError() if (
                isinstance(error.__cause__, RuntimeError) and str(error.__cause__) in CLOSED_MESSAGES
            ):
                return Unreachable("the gateway is just letting go of the Bot API")
            case TelegramError():
                return Uncertain(f"no answer from the Bot API: {reason or type(error).__name__}")
            case _:
                return Uncertain(f"the answer of the Bot API cannot be read: {type(error).__name__}")

    @contextlib.contextmanager
    def redact_logs(self) -> Iterator[None]:
        """Keep the libraries from logging secrets, whatever the logging configuration."""
        loggers, secret_filter = (
            [logging.getLogger(name) for name in _LIBRARY_LOGGERS],
            _TelegramSecretFilter(self.redact),
        )
        for logger in loggers:
            logger.addFilter(secret_filter)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(secret_filter)


UNAUTHORIZED_TEXT = "the token was refused: get one from @BotFather"
_LIBRARY_LOGGERS = ("httpx", "telegram.Bot")
"""The first logs every address; the second, at debug level, every parameter."""


class _TelegramSecretFilter(logging.Filter):
    """Log filter that drops the line of each request and redacts secrets in all others."""

    def __init__(self, redact: Callable[[object], str]) -> None:
        super().__init__()
        self._redact = redact

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        redacted = self._redact(message)
        if redacted == message:
            return True
        record.msg, record.args = redacted, None
        return record.name != "httpx" or record.levelno > logging.INFO


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


_MAX_DELAY_S = 10.0
_LONG_FLOOD_S = 60.0
_CONFIRM_DELAYS_S = (0.0, 10.0, 20.0, 40.0, 80.0)
"""Delays before repeated checks of a refused token: a proxy, or a server that restarts, also answers 401 or 404."""


def build_link_change(
    channel: ChannelName, now: datetime, *, up: bool, reason: str, says: bool = False
) -> ConnectionChanged:
    """Build the event of a connection that came up or went down."""
    return ConnectionChanged(id=EventId(new_id(now)), channel=channel, up=up, reason=reason, sent=now, says=says)


class PollBackoff:
    """Connection state and back-off of the polling or the webhook.

    Reports each change once, waits longer after each failure, and stops if the token is surely refused.
    """

    def __init__(
        self, channel: ChannelName, api: TelegramApi, clock: Clock, random: Callable[[], float], emit: Emit
    ) -> None:
        self._channel, self._api, self._clock, self._random, self._emit = channel, api, clock, random, emit
        self._backoff = Backoff(_MAX_DELAY_S)
        self._up: tuple[bool, bool] | None = None
        """Last reported state: up, and able to send although down. None: none was reported."""
        self._welcome = ""

    def set_welcome(self, welcome: str) -> None:
        """Set the reason to report for an established connection."""
        self._welcome = welcome

    @property
    def is_failing(self) -> bool:
        """True if the last request failed: the next one should not use a long poll, for it may not be answered."""
        return self._backoff.is_failing

    async def record_success(self) -> None:
        """Reset the back-off and report the connection as up."""
        self._backoff.reset()
        await self._report_link(True, self._welcome)

    async def _report_link(self, up: bool, reason: str, *, says: bool = False) -> None:
        """Emit a state, see `ConnectionChanged`; a repeated state is ignored."""
        if self._up != (up, says):
            self._up = (up, says)
            await self._emit([build_link_change(self._channel, self._clock.now(), up=up, reason=reason, says=says)])

    async def deny(self, reason: str) -> NoReturn:
        """Report the connection as down and raise Denied: only the operator can help."""
        await self._report_link(False, reason)
        raise Denied(reason) from None

    async def handle_error(self, error: Exception, reason: str = "") -> None:
        """Wait as `error` demands; `reason` replaces its text. Raises Denied for a token that is surely refused.

        Sending goes on meanwhile, unless Telegram cannot be reached at all.
        """
        if isinstance(error, InvalidToken):
            await self._confirm_refusal(error)
        if isinstance(error, FloodWait):
            if error.retry_after_s > _LONG_FLOOD_S:
                await self._report_link(False, str(error), says=self._has_welcome)
            logger.warning("polling waits %.0f s, as Telegram asks", error.retry_after_s)
            await self._clock.sleep(error.retry_after_s)
            return
        text = reason or self._api.redact(error) or "no answer in time"
        is_unreachable = isinstance(error, NetworkError) and isinstance(error.__cause__, NOT_SENT_CAUSES)
        await self._report_link(False, text, says=self._has_welcome and not is_unreachable)
        delay_s = self._backoff.next_delay_s(0.0, self._random())
        logger.warning("no updates from Telegram: %s; asking again in %.1f s", text, delay_s)
        await self._clock.sleep(delay_s)

    @property
    def _has_welcome(self) -> bool:
        return bool(self._welcome)

    async def _confirm_refusal(self, error: InvalidToken) -> None:
        """Return once Telegram accepts the token. Raises Denied once it has refused it often enough."""
        refusals, reason = 1, self._api.redact(error)
        while refusals <= len(_CONFIRM_DELAYS_S):
            await self._clock.sleep(_CONFIRM_DELAYS_S[refusals - 1])
            try:
                await self._api.get_me()
            except InvalidToken:
                refusals += 1
                logger.warning("Telegram may refuse our token (%s); asking again to be sure", reason)
                await self._report_link(False, f"Telegram may refuse our token ({reason})", says=self._has_welcome)
            except (TelegramError, TimeoutError):  # proves nothing about the token
                await self._clock.sleep(self._backoff.next_delay_s(0.0, self._random()))
            else:
                return
        await self.deny(UNAUTHORIZED_TEXT)
