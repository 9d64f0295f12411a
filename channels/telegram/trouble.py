"""What to do while Telegram cannot be asked: say so once, wait longer each time, and stop if we are refused."""

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from telegram.error import InvalidToken

from channels.backoff import Backoff
from channels.base import Denied
from channels.telegram.calls import REFUSED, Api
from channels.telegram.transport import Flooded
from gateway.clock import Clock

_LOG = logging.getLogger("reverie.telegram")
_MOST_S = 60.0


class Trouble:
    """The link's state, and the back-off."""

    def __init__(
        self, api: Api, clock: Clock, random: Callable[[], float], link: Callable[[bool, str], Awaitable[None]]
    ) -> None:
        """`link(up, reason)` tells of changes only."""
        self._api, self._clock, self._random, self._link = api, clock, random, link
        self._backoff = Backoff(_MOST_S)
        self._welcome = ""

    def greeted(self, welcome: str) -> None:
        """From now on, this is what an established link is said to be."""
        self._welcome = welcome

    @property
    def lasting(self) -> bool:
        """The last request failed: the next one should not wait long, for nobody knows whether it will be answered."""
        return self._backoff.lasting

    async def over(self) -> None:
        """An answer came."""
        self._backoff.over()
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
            if error.retry_after_s > _MOST_S:
                await self._link(False, str(error))
            _LOG.warning("polling waits %.0f s, as Telegram asks", error.retry_after_s)
            await self._clock.sleep(error.retry_after_s)
            return
        said = reason or self._api.clean(error) or "no answer in time"
        await self._link(False, said)
        delay_s = self._backoff.next_s(0.0, self._random())
        _LOG.warning("no updates from Telegram: %s; asking again in %.1f s", said, delay_s)
        await self._clock.sleep(delay_s)
