"""Asking Telegram for updates, again and again, and never losing one.

An update is confirmed by asking for the next (core.telegram.org/bots/api#getupdates), so that is done only when
what it said is durable, with the offset beside it.
"""

import logging

from telegram.error import Conflict, TelegramError

from channels.base import Emit
from channels.payload import Json, whole
from channels.telegram.calls import Api
from channels.telegram.inbound import ALBUM_S, Inbound, valid
from channels.telegram.knowing import know
from channels.telegram.trouble import Trouble
from gateway.clock import Clock

_LOG = logging.getLogger("reverie.telegram")
_PAUSE_S = 1.0
"""Between two polls that bring nothing new and take less: some servers never let a poll wait, or forget what was
confirmed."""
_CONFLICT = "another process polls with this token, or a webhook is set"


class Polling:
    """The loop. `run` it."""

    def __init__(self, *, api: Api, inbound: Inbound, emit: Emit, clock: Clock, trouble: Trouble) -> None:
        self._api, self._inbound, self._emit, self._clock, self._trouble = api, inbound, emit, clock, trouble
        self._looked_for_webhook = False

    async def run(self) -> None:
        """Ends only by cancellation, by `Denied`, or by what `emit` raises."""
        holding = False
        while True:
            offset, asked_s = self._inbound.durable.ask_from(self._clock.now()), self._clock.monotonic()
            wait = not (holding or self._trouble.lasting)
            try:
                updates = await self._api.updates(offset, self._inbound.allowed, wait=wait)
            except (TelegramError, TimeoutError) as error:
                if isinstance(error, Conflict) and await self._webhook_removed():
                    continue
                await self._trouble.met(error, _CONFLICT if isinstance(error, Conflict) else "")
                continue
            readable = valid(updates)
            if updates and not readable:
                await self._trouble.met(TelegramError("updates without an id"))
                continue
            await self._trouble.over()
            new = any((whole(one, "update_id") or 0) >= (offset or 0) for one in readable)
            holding = await self._take(readable)
            if holding:
                await self._clock.sleep(ALBUM_S)
            elif wait and not new and self._clock.monotonic() - asked_s < _PAUSE_S:
                await self._clock.sleep(_PAUSE_S)

    async def _take(self, updates: list[Json]) -> bool:
        """Hand over what is whole; True: the rest must be asked for again."""
        await know(self._api, self._inbound.ranks, updates, self._clock.now())
        taken = self._inbound.take(updates, self._clock.now())
        if taken.batch or taken.cursor != self._inbound.durable:
            await self._emit(taken.batch, cursor=taken.cursor.dump())
            self._inbound.durable = taken.cursor
        await self._api.rest(taken.buttons)
        return taken.count < len(updates)

    async def _webhook_removed(self) -> bool:
        """Whether the conflict was with a webhook, which is now gone. Looked for once."""
        if self._looked_for_webhook:
            return False
        self._looked_for_webhook = True
        try:
            info = await self._api.read(self._api.bot.get_webhook_info())
            if not info.url:
                return False
            await self._api.read(self._api.bot.delete_webhook(drop_pending_updates=False))
        except TelegramError as error:
            _LOG.warning("%s: cannot see to the webhook: %s", self._inbound.view.channel, self._api.clean(error))
            return False
        _LOG.warning("%s: a webhook was set for this bot; it is removed, because we poll", self._inbound.view.channel)
        return True
