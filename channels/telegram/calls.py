"""The Bot API over python-telegram-bot: its HTTP with a few corrections, and its errors as ours.

The token stands in every address. It must not reach a log, an exception that leaves the adapter, or a link's reason.
"""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
from telegram import Bot
from telegram.error import BadRequest, ChatMigrated, Forbidden, InvalidToken, NetworkError, TelegramError
from telegram.request import HTTPXRequest

from channels.base import Denied, RateLimited, Rejected, SendError, Uncertain, Unreachable
from channels.telegram.config import TelegramConfig
from channels.telegram.fields import string, whole
from channels.telegram.people import View

_CONNECT_S, _POOL_S = 10.0, 5.0
_POOL = 16
_FLOOD_S = 5.0
"""To wait when Telegram does not say how long."""
_OK, _FIRST_ERROR, _LAST_REFUSAL = 200, 400, 499
_TOKEN_CODES, _FLOOD_CODE = (401, 404), 429
_OWN_CODES = (400, 401, 403, 404, 409, _FLOOD_CODE)
"""Refusals that have a meaning of their own."""
_NO_UPDATES = b'{"ok":true,"result":[]}'


class Flooded(TelegramError):
    """429. In place of the library's RetryAfter, whose seconds cannot be read without a warning."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"Telegram asks us to wait {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class _Request(HTTPXRequest):
    """The library's HTTP, stricter about what counts as an answer of the Bot API.

    A proxy's error page for 404 must not look like a refused token, nor a 413 like something that may have worked.
    """

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:  # noqa: ANN401 - the library's own
        code, payload = await super().do_request(*args, **kwargs)
        try:
            answer = self.parse_json_payload(payload)
        except TelegramError:
            answer = {}
        if code < _FIRST_ERROR:
            return code, _bare(answer) or payload
        if code == _FLOOD_CODE:
            raise Flooded(_retry_after_s(answer))
        if code in _TOKEN_CODES and answer.get("ok") is not False:
            raise NetworkError(f"HTTP {code}, and not from a Bot API server")
        if code <= _LAST_REFUSAL and code not in _OWN_CODES:
            raise BadRequest(str(answer.get("description") or f"HTTP {code}"))
        return code, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """As the library's, without logging what came."""
        try:
            value = json.loads(payload.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise TelegramError("Invalid server response")
        return value


class _UpdatesRequest(_Request):
    """Keeps updates as they came. The library would read all or none: one that is malformed would stop the rest."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - the library's own
        super().__init__(**settings)
        self.updates: list[object] = []

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:  # noqa: ANN401 - the library's own
        code, payload = await super().do_request(*args, **kwargs)
        if code != _OK:
            return code, payload
        result = self.parse_json_payload(payload).get("result")
        if not isinstance(result, list):
            raise TelegramError("Invalid server response")
        self.updates = result
        return code, _NO_UPDATES


def _bare(answer: dict[str, Any]) -> bytes:
    """Of a message only its id, which is all that we need of our own; empty if the answer is none.

    The library would read it whole, and one odd field of another's server would make a sent message uncertain.
    """
    result = answer.get("result")
    number = result.get("message_id") if isinstance(result, dict) and answer.get("ok") is True else None
    if not isinstance(number, int) or isinstance(number, bool):
        return b""
    told = {"message_id": number, "date": 1, "chat": {"id": 1, "type": "private"}}
    return json.dumps({"ok": True, "result": told}).encode()


def _retry_after_s(answer: dict[str, Any]) -> float:
    parameters = answer.get("parameters")
    value = parameters.get("retry_after") if isinstance(parameters, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else _FLOOD_S


class Api:
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
        settings: dict[str, Any] = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": config.request_timeout,
            "write_timeout": config.request_timeout,
            "pool_timeout": _POOL_S,
            "httpx_kwargs": {"verify": self._tls},
        }
        self._polls = _UpdatesRequest(connection_pool_size=1, **settings)
        self.files = f"{base}/file/bot{self._token}/"
        """What a file's address begins with."""
        with self.discreet():  # the library logs its addresses as it is made
            self.bot = Bot(
                self._token,
                base_url=f"{base}/bot",
                base_file_url=f"{base}/file/bot",
                request=_Request(connection_pool_size=_POOL, **settings),
                get_updates_request=self._polls,
            )

    async def close(self) -> None:
        """Let go of all connections."""
        await asyncio.gather(self.bot.request.shutdown(), self._polls.shutdown())

    async def me(self, view: View) -> View:
        """`view` with who we are. Raises TelegramError."""
        try:
            # Not by `get_me`: the library insists on fields that are nothing to us, and that some servers leave out.
            answer = await self.bot.request.post(f"{self.bot.base_url}/getMe")
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise TelegramError(f"the answer to getMe cannot be read: {type(error).__name__}") from None
        me = answer if isinstance(answer, dict) else {}
        if (number := whole(me, "id")) is None:
            raise TelegramError("the answer to getMe cannot be read: no id")
        reads_all = me.get("can_read_all_group_messages") is not False
        return replace(view, me=number, username=string(me, "username"), reads_all=reads_all)

    async def updates(self, offset: int | None, allowed: tuple[str, ...], *, wait: bool) -> list[object]:
        """The next updates, as they came; with `wait`, once there are any or the poll's time is over.

        Raises TelegramError, or TimeoutError if the server keeps the connection and says nothing whole.
        """
        poll_s = self._poll_s if wait else 0
        async with asyncio.timeout(poll_s + 1.5 * self._timeout_s + _CONNECT_S):
            await self.bot.get_updates(offset=offset, timeout=poll_s, allowed_updates=allowed)
        updates, self._polls.updates = self._polls.updates, []
        return updates

    @contextlib.asynccontextmanager
    async def file(self, url: str) -> AsyncIterator[httpx.Response]:
        """A file's bytes as they come. Raises httpx.HTTPError."""
        client = httpx.AsyncClient(verify=self._tls, timeout=httpx.Timeout(self._timeout_s, connect=_CONNECT_S))
        async with client, client.stream("GET", url) as response:
            yield response

    def clean(self, text: object) -> str:
        """`text` without the token."""
        return str(text).replace(self._token, "<token>")

    def verdict(self, error: Exception) -> SendError:
        """What an error of a call means for what was to be sent."""
        said = self.clean(error)
        match error:
            case Flooded():
                return RateLimited(said, retry_after_s=error.retry_after_s)
            case InvalidToken():
                return Denied(REFUSED)
            case Forbidden() | BadRequest() | ChatMigrated():
                return Rejected(said)
            case NetworkError() if isinstance(error.__cause__, _NOT_SENT):
                return Unreachable(f"cannot reach the Bot API: {type(error.__cause__).__name__}")
            case _:
                return Uncertain(f"no answer from the Bot API: {said or type(error).__name__}")

    @contextlib.contextmanager
    def discreet(self) -> Iterator[None]:
        """Keep the libraries from logging secrets, whoever has configured the logging."""
        loggers, discretion = [logging.getLogger(name) for name in _TALKATIVE], _Discretion(self._secrets)
        for logger in loggers:
            logger.addFilter(discretion)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(discretion)


REFUSED = "the token was refused: get one from @BotFather"
_TALKATIVE = ("httpx", "telegram.Bot")
"""The first logs every address; the second, when debugging, every parameter."""
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class _Discretion(logging.Filter):
    """Drops the line for each request; what else names a secret, names it no more."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        said = kept = record.getMessage()
        for secret in self._secrets:
            kept = kept.replace(secret, "<secret>")
        if kept == said:
            return True
        record.msg, record.args = kept, None
        return record.name != "httpx" or record.levelno > logging.INFO
