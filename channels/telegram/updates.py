"""Long polling: requests updates without losing one, and the administrators of groups that they need.

An update is confirmed by requesting the next (core.telegram.org/bots/api#getupdates), so that happens only when its
events are durable, together with the offset.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NoReturn

from telegram import ChatMember, Update
from telegram.error import Conflict, InvalidToken, NetworkError, RetryAfter, TelegramError

from channels.aio import Backoff
from channels.base import Denied, Emit
from channels.telegram.api import NOT_SENT_CAUSES, UNAUTHORIZED_TEXT, TelegramApi
from channels.telegram.people import TelegramRanks, seconds
from channels.telegram.wire import ALBUM_WAIT_S, UpdateReader
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId

logger = logging.getLogger("reverie.telegram")
_RANKS_TIMEOUT_S: Final = 5.0
"""Messages wait for the answer."""


async def fetch_ranks(api: TelegramApi, ranks: TelegramRanks, updates: Sequence[Update], now: datetime) -> None:
    """Update `ranks` for reading `updates`; unanswered chats are recorded as unknown. Raises nothing."""
    if not (chats := ranks.chats_to_ask(updates, now)):
        return
    answers: dict[str, Sequence[ChatMember]] = {}

    async def fetch(chat: str) -> None:
        answers[chat] = await api.await_call(api.bot.get_chat_administrators(int(chat)))

    try:
        async with asyncio.timeout(_RANKS_TIMEOUT_S):
            results = await asyncio.gather(*map(fetch, chats), return_exceptions=True)
    except TimeoutError:
        results = [TelegramError("no answer in time")]
    for failed in (result for result in results if isinstance(result, Exception)):
        logger.warning("who runs a group cannot be told, so nobody there has a rank for now: %s", api.redact(failed))
    for chat in chats:
        ranks.record_answer(chat, answers.get(chat), now)


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
        if isinstance(error, RetryAfter):
            wait_s = seconds(error.retry_after)
            if wait_s > _LONG_FLOOD_S:
                reason = f"Telegram asks us to wait {wait_s:g} s"
                await self._report_link(False, reason, says=bool(self._welcome))
            logger.warning("polling waits %.0f s, as Telegram asks", wait_s)
            await self._clock.sleep(wait_s)
            return
        text = reason or self._api.redact(error) or "no answer in time"
        is_unreachable = isinstance(error, NetworkError) and isinstance(error.__cause__, NOT_SENT_CAUSES)
        await self._report_link(False, text, says=bool(self._welcome) and not is_unreachable)
        delay_s = self._backoff.next_delay_s(0.0, self._random())
        logger.warning("no updates from Telegram: %s; asking again in %.1f s", text, delay_s)
        await self._clock.sleep(delay_s)

    async def _confirm_refusal(self, error: InvalidToken) -> None:
        """Return once Telegram accepts the token. Raises Denied once it has refused it often enough."""
        refusals, reason = 1, self._api.redact(error)
        while refusals <= len(_CONFIRM_DELAYS_S):
            await self._clock.sleep(_CONFIRM_DELAYS_S[refusals - 1])
            try:
                await self._api.await_call(self._api.bot.get_me())
            except InvalidToken:
                refusals += 1
                logger.warning("Telegram may refuse our token (%s); asking again to be sure", reason)
                await self._report_link(False, f"Telegram may refuse our token ({reason})", says=bool(self._welcome))
            except (TelegramError, TimeoutError):  # proves nothing about the token
                await self._clock.sleep(self._backoff.next_delay_s(0.0, self._random()))
            else:
                return
        await self.deny(UNAUTHORIZED_TEXT)


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
            await self._backoff.record_success()
            new = any(update.update_id >= (offset or 0) for update in updates)
            has_held = await self._process(updates)
            if has_held:
                await self._clock.sleep(ALBUM_WAIT_S)
            elif wait and not new and self._clock.monotonic() - asked_s < _IDLE_POLL_S:
                await self._clock.sleep(_IDLE_POLL_S)

    async def _process(self, updates: Sequence[Update]) -> bool:
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
