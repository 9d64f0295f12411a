"""Bot API client over python-telegram-bot, with corrections of its HTTP, and our errors.

The token is part of every address. It must not reach a log, an exception that leaves the adapter,
or a connection's reason.

Failed requests are classified here (core.telegram.org/bots/api#making-requests): the library fails
on an error whose `parameters` are odd, reads an `ok: false` with HTTP 200 as a success, and takes a
proxy's 404 for a refused token.
"""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Awaitable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import httpx
from telegram import Update
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
)
from telegram.ext import ExtBot
from telegram.request import HTTPXRequest

from channels.base import (
    Denied,
    MayNotPost,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
)
from channels.telegram.config import TelegramConfig
from channels.telegram.people import seconds
from channels.telegram.rate_limit import RateLimitArgs, TelegramRateLimiter
from channels.telegram.wire import ALLOWED_UPDATES, parse_updates
from channels.text import Json, get_int, get_object, get_str
from gateway.core.proxy import find_proxy, through

_DEFAULT_FLOOD_S, _MAX_FLOOD_S = 5.0, 86_400.0
"""Seconds to wait when Telegram gives no time, and the longest wait that is honoured: a message a
day late is pointless."""
_OK, _FIRST_FAILURE, _SERVER_ERROR = 200, 300, 500

NOT_SENT_CAUSES = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""Causes of a `NetworkError` that prove that the request was never sent."""
CLOSED_MESSAGES = (
    "This HTTPXRequest is not initialized!",
    "Cannot send a request, as the client has been closed.",
)
"""Messages of a RuntimeError that prove the same: of the library's and of httpx's checks before a
request."""


class WrongServerError(NetworkError):
    """Answer 401 or 404, but not from a Bot API server: no such server has received the request."""


class TelegramRequest(HTTPXRequest):
    """Connection pool of the library, with errors for the answers that it takes for something
    else.
    """

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:  # noqa: ANN401 - the library's own
        """Do the library's request. Raises `to_telegram_error` for every answer that is no
        success.
        """
        code, payload = await super().do_request(*args, **kwargs)
        if code >= _FIRST_FAILURE:
            raise to_telegram_error(code, parse_object(payload) or {})
        return code, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """Parse a successful answer like the library, without logging it. Raises TelegramError if
        it is none.
        """
        answer = parse_object(payload)
        if answer is not None and answer.get("ok") is False:
            raise to_telegram_error(_OK, answer)
        if answer is None or "result" not in answer:
            raise TelegramError("Invalid server response")
        return answer


class TelegramUpdatesRequest(TelegramRequest):
    """Connection for updates, which parses them itself: for one malformed update the library
    refuses all.
    """

    updates: tuple[Update, ...] = ()
    """Those of the latest answer."""

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:  # noqa: ANN401 - the library's own
        """Do the request and keep its updates; the library is handed none. Raises TelegramError for
        an odd answer.
        """
        code, payload = await super().do_request(*args, **kwargs)
        found = self.parse_json_payload(payload)["result"]
        if not isinstance(found, list):
            raise TelegramError("Invalid server response")
        self.updates = parse_updates(found)
        if found and not self.updates:
            raise TelegramError("updates without an id")
        return code, b'{"ok":true,"result":[]}'


def parse_object(payload: bytes) -> dict[str, Any] | None:
    """Return the JSON object; None: it is none."""
    try:
        value = json.loads(payload.decode("utf-8", "replace"), object_hook=_complete_user)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _complete_user(found: dict[str, Any]) -> dict[str, Any]:
    """Say that a user is no bot, where a server leaves it out: the library requires it."""
    is_user = "id" in found and "first_name" in found and "type" not in found
    return {"is_bot": False} | found if is_user else found


def to_telegram_error(code: int, answer: Json) -> TelegramError:
    """Return the error for a failed answer; `answer` is empty if it was not the Bot API's."""
    if code < _FIRST_FAILURE:
        code = get_int(answer, "error_code") or code
    description, parameters = (
        get_str(answer, "description") or f"HTTP {code}",
        get_object(answer, "parameters"),
    )
    if (chat := get_int(parameters, "migrate_to_chat_id")) is not None:
        return ChatMigrated(chat)
    if code < _FIRST_FAILURE:
        return TelegramError(
            "a failure without a code"
        )  # it does not say what became of the request
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
            return RetryAfter(timedelta(seconds=_retry_after_s(parameters)))
        case _:
            # After a 5xx, of the server or of a proxy in front of it, the request may have been
            # executed.
            return BadRequest(description) if code < _SERVER_ERROR else NetworkError(description)


def _retry_after_s(parameters: Json) -> float:
    value = parameters.get("retry_after")
    if isinstance(value, int | float) and value > 0:
        return float(min(value, _MAX_FLOOD_S))
    return _DEFAULT_FLOOD_S


_MAY_SEND, _ADD = "it needs the right to send messages there", "add the bot to this chat"
_NO_POSTING: Final = {
    "not enough rights to send text messages": _MAY_SEND,
    "have no rights to send a message": _MAY_SEND,
    "chat_write_forbidden": _MAY_SEND,
    "chat_send_plain_forbidden": _MAY_SEND,
    "chat_restricted": "Telegram has restricted this chat",
    "topic_closed": "reopen the topic",
    "bot was kicked": _ADD,
    "bot is not a member": _ADD,
    "group chat was deleted": "it is gone",
    "bot was blocked by the user": "that person can unblock it",
}
"""What a refusal says of a chat in which nothing can be posted (tdlib/telegram-bot-api,
telegram-bot-api/Client.cpp and td/telegram/MessagesManager.cpp), and what people can do about
it."""
_CONNECT_S, _POOL_S = 10.0, 5.0

ResultT = TypeVar("ResultT")


TelegramBot = ExtBot[RateLimitArgs]


class TelegramApi:
    """Connections of one bot. Call `close` at the end."""

    def __init__(
        self, config: TelegramConfig, rate_limiter: TelegramRateLimiter | None = None
    ) -> None:
        """Raises ValueError if the environment names a proxy that is no URL."""
        base = config.base_url.rstrip("/")
        self._token = config.token.get_secret_value()
        hook = config.webhook
        self._secrets = (self._token, hook.secret.get_secret_value()) if hook else (self._token,)
        self._timeout_s, self._poll_s = config.request_timeout, int(config.poll_timeout)
        # One shared context: each costs megabytes.
        bare = not base.lower().startswith("https")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if bare else httpx.create_ssl_context()
        proxy = find_proxy(config.proxy, base)
        self.through = through(proxy)
        """Name of the proxy, for reasons."""
        settings: dict[str, Any] = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": config.request_timeout,
            "write_timeout": config.request_timeout,
            "pool_timeout": _POOL_S,
            "proxy": proxy or None,
            "httpx_kwargs": {"verify": tls, "trust_env": False},
        }
        self._updates_request = TelegramUpdatesRequest(connection_pool_size=1, **settings)
        self.file_base_url = f"{base}/file/bot{self._token}/"
        with self.redact_logs():  # the library logs its addresses as it is made
            self.bot = TelegramBot(
                self._token,
                base_url=f"{base}/bot",
                base_file_url=f"{base}/file/bot",
                request=TelegramRequest(connection_pool_size=16, **settings),
                get_updates_request=self._updates_request,
                rate_limiter=rate_limiter,
            )

    async def close(self) -> None:
        await asyncio.gather(self.bot.request.shutdown(), self._updates_request.shutdown())

    @staticmethod
    async def await_call(call: Awaitable[ResultT]) -> ResultT:
        """Return the library's result. Raises TelegramError, also if the library fails on the
        answer.
        """
        try:
            return await call
        except TelegramError:
            raise
        except Exception as error:  # noqa: BLE001 - an unexpected answer must fail this call only
            raise TelegramError(f"the answer cannot be read: {type(error).__name__}") from None

    async def get_updates(self, offset: int | None, *, wait: bool) -> tuple[Update, ...]:
        """Return the next updates; with `wait`, once there are any or the poll time is over.

        Raises TelegramError, or TimeoutError if the server keeps the connection open without a
        complete answer.
        """
        poll_s = self._poll_s if wait else 0
        async with asyncio.timeout(poll_s + 1.5 * self._timeout_s + _CONNECT_S):
            await self.await_call(
                self.bot.get_updates(offset=offset, timeout=poll_s, allowed_updates=ALLOWED_UPDATES)
            )
        return self._updates_request.updates

    async def answer_taps(self, unknown: Sequence[str]) -> None:
        """Answer taps that are no events, so that clients stop waiting. Returns soon; failures are
        ignored.
        """

        async def answer(tap: str) -> None:
            # Created inside, so that a cancellation before the start leaves no coroutine without an
            # await.
            await self.await_call(
                self.bot.answer_callback_query(tap, text="I do not know this button.")
            )

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.gather(*map(answer, unknown), return_exceptions=True)

    def redact(self, text: object) -> str:
        redacted = str(text)
        for secret in self._secrets:
            redacted = redacted.replace(secret, "<secret>")
        return redacted

    def to_send_error(self, error: Exception) -> SendError:
        """Return what an error means for the message; an error that proves nothing gives
        `Uncertain`.
        """
        reason = self.redact(error)
        match error:
            case SendError():
                return error
            case RetryAfter():
                return RateLimited(reason, retry_after_s=seconds(error.retry_after))
            case InvalidToken():
                return Denied(UNAUTHORIZED_TEXT)
            case Forbidden() | BadRequest() | ChatMigrated():
                remedies = (
                    remedy for words, remedy in _NO_POSTING.items() if words in reason.casefold()
                )
                remedy = next(remedies, None)
                return Rejected(reason) if remedy is None else MayNotPost(f"{reason}: {remedy}")
            case WrongServerError():
                return Unreachable(reason)
            case NetworkError() if isinstance(error.__cause__, NOT_SENT_CAUSES):
                return Unreachable(
                    f"cannot reach the Bot API{self.through}: {type(error.__cause__).__name__}"
                )
            case NetworkError() if (
                isinstance(error.__cause__, RuntimeError)
                and str(error.__cause__) in CLOSED_MESSAGES
            ):
                return Unreachable("the gateway is just letting go of the Bot API")
            case TelegramError():
                return Uncertain(f"no answer from the Bot API: {reason or type(error).__name__}")
            case _:
                return Uncertain(
                    f"the answer of the Bot API cannot be read: {type(error).__name__}"
                )

    @contextlib.contextmanager
    def redact_logs(self) -> Iterator[None]:
        """Keep the libraries from logging secrets, whatever the logging configuration."""

        def redact(record: logging.LogRecord) -> bool:
            """Drop the line of each request, and redact secrets in all others."""
            message = record.getMessage()
            redacted = self.redact(message)
            if redacted == message:
                return True
            record.msg, record.args = redacted, None
            return record.name != "httpx" or record.levelno > logging.INFO

        loggers = [logging.getLogger(name) for name in _LIBRARY_LOGGERS]
        for logger in loggers:
            logger.addFilter(redact)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(redact)


UNAUTHORIZED_TEXT = "the token was refused: get one from @BotFather"
_LIBRARY_LOGGERS = ("httpx", "telegram.Bot", "telegram.ext.ExtBot")
"""The first logs every address; the second, at debug level, every parameter."""
