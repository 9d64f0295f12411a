"""Receiving: updates into the gateway, and long polling, without losing one.

An update is confirmed by requesting the next (core.telegram.org/bots/api#getupdates), so that
happens only when its events are durable, together with the offset.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, NoReturn

from telegram import Update
from telegram.error import Conflict, InvalidToken, NetworkError, RetryAfter, TelegramError

from channels.aio import AnswerCache, Backoff, ResultT
from channels.base import Denied, Emit
from channels.telegram.api import NOT_SENT_CAUSES, UNAUTHORIZED_TEXT, TelegramApi, TelegramBot
from channels.telegram.ids import TAP_PREFIX
from channels.telegram.people import ANY_CHAT, GROUP_TYPES, RANKS, changed_members, seconds
from channels.telegram.wire import ALBUM_WAIT_S, UpdateReader, parse_migration
from gateway.core.clock import Clock, new_id
from gateway.core.events import ConnectionChanged, EventId

logger = logging.getLogger("reverie.telegram")
_RANKS_TIMEOUT_S: Final = 5.0
"""Messages wait for the answer."""
_RANKS_MAX_AGE_S: Final = 120.0
"""Seconds for which an answer counts, unless an update tells of a change in the group."""
_LONG_FLOOD_S = 60.0
_CONFIRM_DELAYS_S = (0.0, 10.0, 20.0, 40.0, 80.0)
"""Delays before repeated checks of a refused token: a proxy, or a server that restarts, also
answers 401 or 404."""
_IDLE_POLL_S = 1.0
"""Shortest time between two polls without new updates: some servers never let a poll wait, or
forget confirmations."""
_MAX_UPDATES: Final = 100
"""Updates in one answer (core.telegram.org/bots/api#getupdates); so many may be followed by
more."""


class TelegramReceiver:
    """The receiving side of one connection: emits what updates tell, and whether there is a
    connection.

    Reports each change once, waits longer after each failure, and stops if the token is surely
    refused.
    """

    def __init__(  # noqa: PLR0917 - one object each
        self,
        api: TelegramApi,
        reader: UpdateReader,
        emit: Emit,
        clock: Clock,
        random: Callable[[], float],
        members: AnswerCache[tuple[int, int], bool],
        ranked_rooms: AbstractSet[str] = frozenset(),
    ) -> None:
        """`members`: chat and user to whether they are there; those whose membership changes are
        forgotten. `ranked_rooms`: chats whose administrators matter; `*`: all.
        """
        self.api, self.reader, self.clock, self._emit, self._random = (
            api,
            reader,
            clock,
            emit,
            random,
        )
        self._members, self._ranked_rooms = members, ranked_rooms
        self._ranks = AnswerCache[str, Mapping[str, str]](clock, _RANKS_MAX_AGE_S)
        self._backoff = Backoff(10.0)
        self._up: tuple[bool, bool] | None = None
        """Last reported state: up, and able to send although down. None: none was reported."""
        self.welcome = ""
        """Reason to report for an established connection; empty: we are not known to Telegram
        yet."""
        self.has_caught_up = asyncio.Event()
        """Set while all that was said has been taken in."""

    async def take(self, updates: Sequence[Update]) -> int:
        """Emit what the updates tell. Return how many are durable; the others must be passed again
        a little later.
        """
        for update in updates:
            for chat, user in changed_members(update):
                self._members.forget((chat, user))
                self._ranks.forget(str(chat))
        ranks = await self._fetch_ranks(updates)
        batch = self.reader.read_batch(updates, self.clock.now(), ranks)
        cursor = self.reader.context.cursor
        if batch.notifications or cursor != self.reader.durable_cursor:
            await self._emit(batch.notifications, cursor=cursor.to_json())
            self.reader.durable_cursor = cursor
        taps = [one.callback_query.id for one in updates[: batch.count] if one.callback_query]
        known = {event.id for event in batch.notifications}
        await self.api.answer_taps([tap for tap in taps if f"{TAP_PREFIX}{tap}" not in known])
        return batch.count

    async def _fetch_ranks(self, updates: Sequence[Update]) -> Mapping[str, Mapping[str, str]]:
        """Return who runs the groups of these updates, where that matters."""
        for move in filter(None, map(parse_migration, updates)):
            self.reader.record_move(*move)
        cursor, rooms = self.reader.context.cursor, frozenset(self._ranked_rooms)
        chats = filter(None, (update.effective_chat for update in updates))
        groups = {str(chat.id) for chat in chats if chat.type in GROUP_TYPES}
        asked = [one for one in groups if {ANY_CHAT, cursor.known_room(one, rooms)} & rooms]
        answers = await asyncio.gather(
            *(self._ranks.get(group, partial(self._ask_ranks, group)) for group in asked)
        )
        return {group: ranks or {} for group, ranks in zip(asked, answers, strict=True)}

    async def _ask_ranks(self, group: str) -> Mapping[str, str]:
        """Return the rank of each administrator; nobody's if Telegram does not tell."""
        try:
            async with asyncio.timeout(_RANKS_TIMEOUT_S):
                members = await self.api.await_call(
                    self.api.bot.get_chat_administrators(int(group))
                )
        except (TelegramError, TimeoutError) as error:
            reason = self.api.redact(error) or "no answer in time"
            logger.warning(
                "who runs a group cannot be told, so nobody there has a rank for now: %s", reason
            )
            return {}
        return {str(one.user.id): str(one.status) for one in members if one.status in RANKS}

    async def record_success(self) -> None:
        self._backoff.reset()
        await self._report_link(True, self.welcome)

    async def _report_link(self, up: bool, reason: str, *, says: bool = False) -> None:
        """Emit a state, see `ConnectionChanged`; a repeated state is ignored."""
        if self._up != (up, says):
            self._up, now = (up, says), self.clock.now()
            name = self.reader.context.channel
            link = ConnectionChanged(
                id=EventId(new_id(now)), channel=name, up=up, reason=reason, sent=now, says=says
            )
            await self._emit([link])

    async def deny(self, reason: str) -> NoReturn:
        """Report the connection as down and raise Denied: only the operator can help."""
        await self._report_link(False, reason)
        raise Denied(reason) from None

    async def retry(self, call: Callable[[TelegramBot], Awaitable[ResultT]]) -> ResultT:
        """Return the result of a call once it succeeds. Raises Denied."""
        while True:
            try:
                return await self.api.await_call(call(self.api.bot))
            except TelegramError as error:
                await self.handle_error(error)

    async def handle_error(self, error: Exception, reason: str = "") -> None:
        """Wait as `error` demands; `reason` replaces its text. Raises Denied for a token that is
        surely refused.

        Sending goes on meanwhile, unless Telegram cannot be reached at all.
        """
        if isinstance(error, InvalidToken):
            await self._confirm_refusal(error)
        if isinstance(error, RetryAfter):
            wait_s = seconds(error.retry_after)
            if wait_s > _LONG_FLOOD_S:
                reason = f"Telegram asks us to wait {wait_s:g} s"
                await self._report_link(False, reason, says=bool(self.welcome))
            logger.warning("polling waits %.0f s, as Telegram asks", wait_s)
            await self.clock.sleep(wait_s)
            return
        text = reason or self.api.redact(error) or "no answer in time"
        is_unreachable = isinstance(error, NetworkError) and isinstance(
            error.__cause__, NOT_SENT_CAUSES
        )
        text += self.api.through if is_unreachable else ""
        await self._report_link(False, text, says=bool(self.welcome) and not is_unreachable)
        delay_s = self._backoff.next_delay_s(0.0, self._random())
        logger.warning("no updates from Telegram: %s; asking again in %.1f s", text, delay_s)
        await self.clock.sleep(delay_s)

    async def _confirm_refusal(self, error: InvalidToken) -> None:
        """Return once Telegram accepts the token. Raises Denied once it has refused it often
        enough.
        """
        refusals = 1
        text = f"Telegram may refuse the token ({self.api.redact(error)}): get one from @BotFather"
        while refusals <= len(_CONFIRM_DELAYS_S):
            await self.clock.sleep(_CONFIRM_DELAYS_S[refusals - 1])
            try:
                await self.api.await_call(self.api.bot.get_me())
            except InvalidToken:
                refusals += 1
                logger.warning("%s; asking again to be sure", text)
                await self._report_link(False, text, says=bool(self.welcome))
            except (TelegramError, TimeoutError):  # proves nothing about the token
                await self.clock.sleep(self._backoff.next_delay_s(0.0, self._random()))
            else:
                return
        await self.deny(UNAUTHORIZED_TEXT)


async def poll_updates(receiver: TelegramReceiver) -> None:
    """Poll. Ends only by cancellation, by `Denied`, or by an error of `emit`."""
    reader, clock = receiver.reader, receiver.clock
    looked_for_webhook = False
    while True:
        offset, asked_s = reader.durable_cursor.request_offset(clock.now()), clock.monotonic()
        wait = receiver.has_caught_up.is_set()
        try:
            updates = await receiver.api.get_updates(offset, wait=wait)
        except Conflict as error:
            receiver.has_caught_up.clear()
            if looked_for_webhook or not await _remove_webhook(receiver.api):
                await receiver.handle_error(
                    error, "another process polls with this token, or a webhook is set"
                )
            looked_for_webhook = True
            continue
        except (TelegramError, TimeoutError) as error:
            receiver.has_caught_up.clear()
            await receiver.handle_error(error)
            continue
        await receiver.record_success()
        new = any(update.update_id >= (offset or 0) for update in updates)
        has_held = await receiver.take(updates) < len(updates)
        if has_held or len(updates) >= _MAX_UPDATES:
            receiver.has_caught_up.clear()
        else:
            receiver.has_caught_up.set()
        if has_held:
            await clock.sleep(ALBUM_WAIT_S)
        elif wait and not new and clock.monotonic() - asked_s < _IDLE_POLL_S:
            await clock.sleep(_IDLE_POLL_S)


async def _remove_webhook(api: TelegramApi) -> bool:
    """Return whether a webhook was in the way, which is now removed."""
    try:
        if not (await api.await_call(api.bot.get_webhook_info())).url:
            return False
        await api.await_call(api.bot.delete_webhook(drop_pending_updates=False))
    except TelegramError as error:
        logger.warning("cannot see to the bot's webhook: %s", api.redact(error))
        return False
    logger.warning("a webhook was set for this bot; it is removed, because we poll")
    return True
