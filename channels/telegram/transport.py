"""The library's HTTP, stricter about what counts as an answer of the Bot API.

What is no success is judged here (core.telegram.org/bots/api#making-requests): the library trips over an error whose
`parameters` are odd, reads an `ok: false` with HTTP 200 as a success, and takes a proxy's 404 for a refused token.
"""

import json
from typing import Any

import httpx
from telegram.error import BadRequest, ChatMigrated, Conflict, Forbidden, InvalidToken, NetworkError, TelegramError
from telegram.request import HTTPXRequest

from channels.payload import Json, get_int, get_object, get_str

_DEFAULT_FLOOD_S, _MAX_FLOOD_S = 5.0, 86_400.0
"""To wait when Telegram does not say how long; and at most, whatever it says: a day later there is nothing to send."""
_OK, _FIRST_FAILURE, _CLIENT_ERROR, _SERVER_ERROR = 200, 300, 400, 500
_NO_UPDATES = b'{"ok":true,"result":[]}'

NOT_SENT_CAUSES = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""Causes of a `NetworkError` that say that the request never left."""
CLOSED_MESSAGES = ("This HTTPXRequest is not initialized!", "Cannot send a request, as the client has been closed.")
"""The same, as words of a RuntimeError: of the library's and of httpx's, which look before they begin."""


class FloodWait(TelegramError):
    """429. In place of the library's RetryAfter, whose seconds cannot be read without a warning."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"Telegram asks us to wait {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class TelegramServerError(NetworkError):
    """5xx: the request was answered, and may have been carried out."""

    def __init__(self, said: str, *, is_proxy_page: bool) -> None:
        super().__init__(said)
        self.is_proxy_page = is_proxy_page
        """It was not answered by a Bot API server but by what stands in front of it."""


class WrongServerError(NetworkError):
    """401 or 404, and not from a Bot API server: none has seen the request."""


class TelegramRequest(HTTPXRequest):
    """One pool of connections."""

    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:  # noqa: ANN401 - the library's own
        """As the library's, but raises `TelegramError` for whatever is not a success."""
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
        """As the library's, without logging what came."""
        try:
            value = json.loads(payload.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise TelegramError("Invalid server response")
        return value


class TelegramUpdatesRequest(TelegramRequest):
    """Keeps updates as they came. The library would read all or none: one that is malformed would stop the rest."""

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
    """What an answer means that is no success; `answer` is empty if it was not the Bot API's."""
    if code < _FIRST_FAILURE:
        code = get_int(answer, "error_code") or _CLIENT_ERROR
    said, parameters = get_str(answer, "description") or f"HTTP {code}", get_object(answer, "parameters")
    if (chat := get_int(parameters, "migrate_to_chat_id")) is not None:
        return ChatMigrated(chat)
    match code:
        case 401 | 404 if answer.get("ok") is not False:
            return WrongServerError(f"HTTP {code}, and not from a Bot API server")
        case 401 | 404:
            return InvalidToken(said)
        case 403:
            return Forbidden(said)
        case 409:
            return Conflict(said)
        case 429:
            return FloodWait(_retry_after_s(parameters))
        case _:
            return (
                BadRequest(said)
                if code < _SERVER_ERROR
                else TelegramServerError(said, is_proxy_page=answer.get("ok") is not False)
            )


def _retry_after_s(parameters: Json) -> float:
    value = parameters.get("retry_after")
    if isinstance(value, int | float) and value > 0:
        return float(min(value, _MAX_FLOOD_S))
    return _DEFAULT_FLOOD_S


def _minimal_message(answer: Json) -> bytes:
    """Of a message only its id, which is all that we need of our own; empty if the answer is none.

    The library would read it whole, and one odd field of another's server would make a sent message uncertain.
    """
    number = get_int(get_object(answer, "result"), "message_id")
    if number is None:
        return b""
    told = {"message_id": number, "date": 1, "chat": {"id": 1, "type": "private"}}
    return json.dumps({"ok": True, "result": told}).encode()
