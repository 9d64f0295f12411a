"""What to do while Telegram cannot be asked: say so once, wait longer each time, and stop if we are refused."""

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from telegram.error import InvalidToken

from channels.base import Denied
from channels.telegram.calls import REFUSED, Api, Flooded
from gateway.clock import Clock

_LOG = logging.getLogger("reverie.telegram")
_FIRST_S, _MOST_S = 1.0, 60.0


class Trouble:
    """The link's state, and the back-off."""

    def __init__(
        self, api: Api, clock: Clock, random: Callable[[], float], link: Callable[[bool, str], Awaitable[None]]
    ) -> None:
        """`link(up, reason)` tells of changes only."""
        self._api, self._clock, self._random, self._link = api, clock, random, link
        self._failures = 0
        self._welcome = ""

    def greeted(self, welcome: str) -> None:
        """From now on, this is what an established link is said to be."""
        self._welcome = welcome

    @property
    def lasting(self) -> bool:
        """The last request failed: the next one should not wait long, for nobody knows whether it will be answered."""
        return self._failures > 0

    async def over(self) -> None:
        """An answer came."""
        self._failures = 0
        await self._link(True, self._welcome)

    async def hopeless(self, reason: str) -> NoReturn:
        """Only the operator can help. Raises Denied."""
        await self._link(False, reason)
        raise Denied(reason) from None

    async def met(self, error: Exception, reason: str = "") -> None:
        """Wait as `error` demands; `reason` is a better word for it. Raises Denied for a refused token."""
        if isinstance(error, InvalidToken):
            await self.hopeless(REFUSED)
        if isinstance(error, Flooded):
            _LOG.warning("polling waits %.0f s, as Telegram asks", error.retry_after_s)
            await self._clock.sleep(error.retry_after_s)
            return
        said = reason or self._api.clean(error) or "no answer in time"
        await self._link(False, said)
        most_s = min(_MOST_S, _FIRST_S * 2.0 ** min(self._failures, 20))
        self._failures += 1
        delay_s = max(_FIRST_S, most_s * (0.5 + self._random() / 2))
        _LOG.warning("no updates from Telegram: %s; asking again in %.1f s", said, delay_s)
        await self._clock.sleep(delay_s)
