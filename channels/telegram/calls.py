"""The Bot API over python-telegram-bot: its HTTP with a few corrections, and its errors as ours.

The token stands in every address. It must not reach a log, an exception that leaves the adapter, or a link's reason.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from telegram import Bot
from telegram.error import BadRequest, ChatMigrated, Forbidden, InvalidToken, NetworkError, TelegramError

from channels.base import Denied, RateLimited, Rejected, SendError, Uncertain, Unreachable
from channels.payload import get_int, get_str
from channels.telegram.config import TelegramConfig
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.transport import (
    CLOSED_MESSAGES,
    NOT_SENT_CAUSES,
    FloodWait,
    TelegramRequest,
    TelegramUpdatesRequest,
    WrongServerError,
)

_CONNECT_S, _POOL_S = 10.0, 5.0
_POOL_SIZE = 16
_BUTTONS_TIMEOUT_S = 2.0
UNKNOWN_BUTTON_TEXT = "I do not know this button."
"""Shown for a moment to who pressed one: none is ours."""

ResultT = TypeVar("ResultT")


class TelegramApi:
    """One bot's connections. Close it."""

    def __init__(self, config: TelegramConfig) -> None:
        base = config.base_url.rstrip("/")
        self._token = config.token.get_secret_value()
        hook = config.webhook
        self._secrets = (self._token, hook.secret.get_secret_value()) if hook else (self._token,)
        self._timeout_s, self._poll_s = config.request_timeout, int(config.poll_timeout)
        # One context for all: each costs megabytes.
        bare = not base.lower().startswith("https")
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if bare else httpx.create_ssl_context()
        self._trust_env = not _is_loopback(base)
        """Whether proxies named by the environment are meant: not on the way to a server on this machine."""
        settings: dict[str, Any] = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": config.request_timeout,
            "write_timeout": config.request_timeout,
            "pool_timeout": _POOL_S,
            "httpx_kwargs": {"verify": self._tls, "trust_env": self._trust_env},
        }
        self._updates_request = TelegramUpdatesRequest(connection_pool_size=1, **settings)
        self.file_base_url = f"{base}/file/bot{self._token}/"
        """What a file's address begins with."""
        with self.redact_logs():  # the library logs its addresses as it is made
            self.bot = Bot(
                self._token,
                base_url=f"{base}/bot",
                base_file_url=f"{base}/file/bot",
                request=TelegramRequest(connection_pool_size=_POOL_SIZE, **settings),
                get_updates_request=self._updates_request,
            )

    async def close(self) -> None:
        """Let go of all connections."""
        await asyncio.gather(self.bot.request.shutdown(), self._updates_request.shutdown())

    @staticmethod
    async def await_call(call: Awaitable[ResultT]) -> ResultT:
        """What the library makes of an answer. Raises TelegramError, also where the library trips over it."""
        try:
            return await call
        except TelegramError:
            raise
        except Exception as error:  # noqa: BLE001 - no answer, however odd, may end more than the call
            raise TelegramError(f"the answer cannot be read: {type(error).__name__}") from None

    async def get_me(self) -> object:
        """What getMe tells. Raises TelegramError: InvalidToken if Telegram does not know our token."""
        # Not by `get_me`: the library insists on fields that are nothing to us, and that some servers leave out.
        return await self.await_call(self.bot.request.post(f"{self.bot.base_url}/getMe"))

    async def identify(self, view: TelegramUpdateContext) -> TelegramUpdateContext:
        """`view` with who we are. Raises TelegramError."""
        answer = await self.get_me()
        me = answer if isinstance(answer, dict) else {}
        if (number := get_int(me, "id")) is None:
            raise TelegramError("the answer to getMe cannot be read: no id")
        reads_all = me.get("can_read_all_group_messages") is not False
        return replace(view, own_id=number, username=get_str(me, "username"), can_read_all=reads_all)

    async def get_updates(self, offset: int | None, allowed: tuple[str, ...], *, wait: bool) -> list[object]:
        """The next updates, as they came; with `wait`, once there are any or the poll's time is over.

        Raises TelegramError, or TimeoutError if the server keeps the connection and says nothing whole.
        """
        poll_s = self._poll_s if wait else 0
        async with asyncio.timeout(poll_s + 1.5 * self._timeout_s + _CONNECT_S):
            await self.await_call(self.bot.get_updates(offset=offset, timeout=poll_s, allowed_updates=allowed))
        updates, self._updates_request.updates = self._updates_request.updates, []
        return updates

    async def answer_buttons(self, presses: Sequence[str]) -> None:
        """Let buttons rest that were pressed: none is ours. Returns soon; nothing depends on it."""

        async def one(press: str) -> None:
            # Cancelled before it begins, it must not have made a coroutine that nobody awaits.
            await self.await_call(self.bot.answer_callback_query(press, text=UNKNOWN_BUTTON_TEXT))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BUTTONS_TIMEOUT_S):
                await asyncio.gather(*map(one, presses), return_exceptions=True)

    @contextlib.asynccontextmanager
    async def stream_file(self, url: str) -> AsyncIterator[httpx.Response]:
        """A file's bytes as they come. Raises httpx.HTTPError."""
        timeout = httpx.Timeout(self._timeout_s, connect=_CONNECT_S)
        client = httpx.AsyncClient(verify=self._tls, timeout=timeout, trust_env=self._trust_env)
        plain = {"Accept-Encoding": "identity"}  # the limit counts bytes as they come, and they are the file's
        async with client, client.stream("GET", url, headers=plain) as response:
            yield response

    def redact(self, text: object) -> str:
        """`text` without our secrets."""
        said = str(text)
        for secret in self._secrets:
            said = said.replace(secret, "<secret>")
        return said

    def to_send_error(self, error: Exception) -> SendError:
        """What an error of a call means for what was to be sent; whatever tells nothing leaves it uncertain."""
        said = self.redact(error)
        match error:
            case SendError():
                return error
            case FloodWait():
                return RateLimited(said, retry_after_s=error.retry_after_s)
            case InvalidToken():
                return Denied(UNAUTHORIZED_TEXT)
            case Forbidden() | BadRequest() | ChatMigrated():
                return Rejected(said)
            case WrongServerError():
                return Unreachable(said)
            case NetworkError() if isinstance(error.__cause__, NOT_SENT_CAUSES):
                return Unreachable(f"cannot reach the Bot API: {type(error.__cause__).__name__}")
            case NetworkError() if (
                isinstance(error.__cause__, RuntimeError) and str(error.__cause__) in CLOSED_MESSAGES
            ):
                return Unreachable("the gateway is just letting go of the Bot API")
            case TelegramError():
                return Uncertain(f"no answer from the Bot API: {said or type(error).__name__}")
            case _:
                return Uncertain(f"the answer of the Bot API cannot be read: {type(error).__name__}")

    @contextlib.contextmanager
    def redact_logs(self) -> Iterator[None]:
        """Keep the libraries from logging secrets, whoever has configured the logging."""
        loggers, discretion = [logging.getLogger(name) for name in _LIBRARY_LOGGERS], _TelegramSecretFilter(self.redact)
        for logger in loggers:
            logger.addFilter(discretion)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(discretion)


UNAUTHORIZED_TEXT = "the token was refused: get one from @BotFather"
_LIBRARY_LOGGERS = ("httpx", "telegram.Bot")
"""The first logs every address; the second, when debugging, every parameter."""


class _TelegramSecretFilter(logging.Filter):
    """Drops the line for each request; what else names a secret, names it no more."""

    def __init__(self, clean: Callable[[object], str]) -> None:
        super().__init__()
        self._redact = clean

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        kept = self._redact(said)
        if kept == said:
            return True
        record.msg, record.args = kept, None
        return record.name != "httpx" or record.levelno > logging.INFO


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
