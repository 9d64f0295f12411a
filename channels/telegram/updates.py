"""Long polling: requests updates without losing one, and the administrators of groups that they need.

An update is confirmed by requesting the next (core.telegram.org/bots/api#getupdates), so that happens only when its
events are durable, together with the offset.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from telegram.error import Conflict, TelegramError

from channels.base import Emit
from channels.telegram.api import PollBackoff, TelegramApi
from channels.telegram.people import TelegramRanks
from channels.telegram.wire import ALBUM_WAIT_S, UpdateReader, valid_updates
from channels.text import Json, get_int, get_objects
from gateway.core.clock import Clock

logger = logging.getLogger("reverie.telegram")
_RANKS_TIMEOUT_S: Final = 5.0
"""Messages wait for the answer."""


async def fetch_ranks(api: TelegramApi, ranks: TelegramRanks, updates: Sequence[Json], now: datetime) -> None:
    """Update `ranks` for reading `updates`; unanswered chats are recorded as unknown. Raises nothing."""
    if not (chats := ranks.chats_to_ask(updates, now)):
        return
    answers: dict[str, list[Json]] = {}

    async def fetch(chat: str) -> None:
        # Not by the library's method, which requires every field.
        members = await api.await_call(api.bot.request.post(f"{api.bot.base_url}/getChatAdministrators?chat_id={chat}"))
        if isinstance(members, list):
            answers[chat] = get_objects({"result": members}, "result")

    try:
        async with asyncio.timeout(_RANKS_TIMEOUT_S):
            results = await asyncio.gather(*map(fetch, chats), return_exceptions=True)
    except TimeoutError:
        results = [TelegramError("no answer in time")]
    for failed in (result for result in results if isinstance(result, Exception)):
        logger.warning("who runs a group cannot be told, so nobody there has a rank for now: %s", api.redact(failed))
    for chat in chats:
        ranks.record_answer(chat, answers.get(chat), now)


_IDLE_POLL_S = 1.0
"""Shortest time between two polls without new updates: some servers never let a poll wait, or forget confirmations."""
_CONFLICT_REASON = "another process polls with this token, or a webhook is set"


class TelegramPoller:
    """Polling loop of one account."""

    def __init__(
        self, *, api: TelegramApi, reader: UpdateReader, emit: Emit, clock: Clock, backoff: PollBackoff
    ) -> None:
        self._api, self._reader, self._emit, self._clock, self._backoff = api, reader, emit, clock, backoff
        self._looked_for_webhook = False

    async def run(self) -> None:
        """Poll. Ends only by cancellation, by `Denied`, or by an error of `emit`."""
        has_held = False
        while True:
            offset, asked_s = self._reader.durable_cursor.request_offset(self._clock.now()), self._clock.monotonic()
            wait = not (has_held or self._backoff.is_failing)
            try:
                updates = await self._api.get_updates(offset, self._reader.allowed_updates, wait=wait)
            except (TelegramError, TimeoutError) as error:
                if isinstance(error, Conflict) and await self._remove_webhook():
                    continue
                await self._backoff.handle_error(error, _CONFLICT_REASON if isinstance(error, Conflict) else "")
                continue
            readable = valid_updates(updates)
            if updates and not readable:
                await self._backoff.handle_error(TelegramError("updates without an id"))
                continue
            await self._backoff.record_success()
            new = any((get_int(update, "update_id") or 0) >= (offset or 0) for update in readable)
            has_held = await self._process(readable)
            if has_held:
                await self._clock.sleep(ALBUM_WAIT_S)
            elif wait and not new and self._clock.monotonic() - asked_s < _IDLE_POLL_S:
                await self._clock.sleep(_IDLE_POLL_S)

    async def _process(self, updates: list[Json]) -> bool:
        """Emit complete updates; return True if the rest must be requested again."""
        await fetch_ranks(self._api, self._reader.ranks, updates, self._clock.now())
        batch = self._reader.read_batch(updates, self._clock.now())
        if batch.notifications or batch.cursor != self._reader.durable_cursor:
            await self._emit(batch.notifications, cursor=batch.cursor.to_json())
            self._reader.durable_cursor = batch.cursor
        await self._api.answer_buttons(batch.button_presses)
        return batch.count < len(updates)

    async def _remove_webhook(self) -> bool:
        """Return whether the conflict was with a webhook, which is now removed. Checked once."""
        if self._looked_for_webhook:
            return False
        self._looked_for_webhook = True
        try:
            info = await self._api.await_call(self._api.bot.get_webhook_info())
            if not info.url:
                return False
            await self._api.await_call(self._api.bot.delete_webhook(drop_pending_updates=False))
        except TelegramError as error:
            logger.warning("%s: cannot see to the webhook: %s", self._reader.context.channel, self._api.redact(error))
            return False
        logger.warning(
            "%s: a webhook was set for this bot; it is removed, because we poll", self._reader.context.channel
        )
        return True
