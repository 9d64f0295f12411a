"""What to do while Telegram cannot be asked: say so once, wait longer each time, and stop if we are surely refused."""

import logging
from collections.abc import Callable
from typing import NoReturn, Protocol

from telegram.error import InvalidToken, NetworkError, TelegramError

from channels.backoff import Backoff
from channels.base import Denied
from channels.telegram.calls import UNAUTHORIZED_TEXT, TelegramApi
from channels.telegram.transport import NOT_SENT_CAUSES, FloodWait
from gateway.clock import Clock

logger = logging.getLogger("reverie.telegram")
_MAX_DELAY_S = 10.0
_LONG_FLOOD_S = 60.0
_CONFIRM_DELAYS_S = (0.0, 10.0, 20.0, 40.0, 80.0)
"""Before each further question whether our token is known: a proxy, or a server that restarts, also says 401 or 404."""


class TelegramLinkListener(Protocol):
    """Tells of changes only."""

    async def __call__(self, up: bool, reason: str, /, *, says: bool = False) -> None:
        """As `events.Link`."""


class PollBackoff:
    """The link's state, and the back-off."""

    def __init__(self, api: TelegramApi, clock: Clock, random: Callable[[], float], link: TelegramLinkListener) -> None:
        self._api, self._clock, self._random, self._report_link = api, clock, random, link
        self._backoff = Backoff(_MAX_DELAY_S)
        self._welcome = ""

    def set_welcome(self, welcome: str) -> None:
        """From now on, this is what an established link is said to be."""
        self._welcome = welcome

    @property
    def is_failing(self) -> bool:
        """The last request failed: the next one should not wait long, for nobody knows whether it will be answered."""
        return self._backoff.is_failing

    async def record_success(self) -> None:
        """An answer came."""
        self._backoff.reset()
        await self._report_link(True, self._welcome)

    async def deny(self, reason: str) -> NoReturn:
        """Only the operator can help. Raises Denied."""
        await self._report_link(False, reason)
        raise Denied(reason) from None

    async def handle_error(self, error: Exception, reason: str = "") -> None:
        """Wait as `error` demands; `reason` is a better word for it. Raises Denied for a token that is surely refused.

        What is to be said does not wait for that, unless Telegram cannot be reached at all.
        """
        if isinstance(error, InvalidToken):
            await self._confirm_refusal(error)
        if isinstance(error, FloodWait):
            if error.retry_after_s > _LONG_FLOOD_S:
                await self._report_link(False, str(error), says=self._has_welcome)
            logger.warning("polling waits %.0f s, as Telegram asks", error.retry_after_s)
            await self._clock.sleep(error.retry_after_s)
            return
        said = reason or self._api.redact(error) or "no answer in time"
        away = isinstance(error, NetworkError) and isinstance(error.__cause__, NOT_SENT_CAUSES)
        await self._report_link(False, said, says=self._has_welcome and not away)
        delay_s = self._backoff.next_delay_s(0.0, self._random())
        logger.warning("no updates from Telegram: %s; asking again in %.1f s", said, delay_s)
        await self._clock.sleep(delay_s)

    @property
    def _has_welcome(self) -> bool:
        return bool(self._welcome)

    async def _confirm_refusal(self, error: InvalidToken) -> None:
        """Return once Telegram says that it knows us. Raises Denied once it has said often enough that it does not."""
        refusals, said = 1, self._api.redact(error)
        while refusals <= len(_CONFIRM_DELAYS_S):
            await self._clock.sleep(_CONFIRM_DELAYS_S[refusals - 1])
            try:
                await self._api.get_me()
            except InvalidToken:
                refusals += 1
                logger.warning("Telegram may refuse our token (%s); asking again to be sure", said)
                await self._report_link(False, f"Telegram may refuse our token ({said})", says=self._has_welcome)
            except (TelegramError, TimeoutError):  # that says nothing of the token
                await self._clock.sleep(self._backoff.next_delay_s(0.0, self._random()))
            else:
                return
        await self.deny(UNAUTHORIZED_TEXT)
