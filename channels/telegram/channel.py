"""Telegram channel: connects, receives, sends. `TelegramActions` does the optional work."""

import asyncio
import contextlib
import logging
import random as _random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from typing import Literal

from telegram.constants import ChatMemberStatus
from telegram.error import BadRequest, ChatMigrated, Forbidden, TelegramError

from channels.aio import cancel_and_wait
from channels.base import (
    Audience,
    BeforeSend,
    Capabilities,
    CommandSpec,
    Denied,
    Emit,
    PostPart,
    Rejected,
    is_provisional,
    no_before_send,
)
from channels.telegram.actions import CommandMenus, TelegramActions
from channels.telegram.api import TelegramApi
from channels.telegram.config import TelegramConfig
from channels.telegram.ids import TAP_PREFIX, TelegramCursor
from channels.telegram.outgoing import (
    MAX_FILE_BYTES,
    MAX_TAP_ANSWER_CHARS,
    TelegramOutgoing,
)
from channels.telegram.people import ANY_CHAT, TelegramUpdateContext
from channels.telegram.rate_limit import TelegramRateLimiter
from channels.telegram.render import MAX_CAPTION_UNITS, TelegramText, parse_body, render
from channels.telegram.updates import TelegramReceiver, poll_updates
from channels.telegram.wire import UpdateReader
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    ChannelName,
    MessageId,
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
)

logger = logging.getLogger("reverie.telegram")
_CLOSE_TIMEOUT_S = 0.5
ROOM_CHECK_INTERVAL_S = 600.0
"""Seconds between two checks of the configured chats."""
_FORMATTING = (
    "Telegram shows **bold**, *italic*, ~~strike~~, ||spoiler||, `code`, fenced code, > quotes and "
    "[links](url); headings become bold, tables become code blocks."
)


class TelegramChannel(TelegramActions):
    """One bot account; a `channels.base.Channel` with all optional abilities except paging and
    joining.
    """

    typing_interval_s = 4.5
    """Telegram shows the indicator for five seconds (core.telegram.org/bots/api#sendchataction)."""
    preview_interval_s = 1.5
    capabilities = Capabilities(
        platform="Telegram",
        formatting=_FORMATTING,
        replies=True,
        max_file_bytes=MAX_FILE_BYTES,
        buttons=True,
        native_commands=True,
        sender_ids=TelegramConfig.sender_ids,
        sender_id_example=TelegramConfig.sender_id_example,
        room_title="a Telegram chat",
    )

    def __init__(
        self,
        name: ChannelName,
        config: TelegramConfig,
        clock: Clock,
        *,
        cursor: str | None = None,
        commands: Sequence[CommandSpec] = (),
        ranks: AbstractSet[str] = frozenset(),
        random: Callable[[], float] = _random.random,
    ) -> None:
        """Build it; `ranks`: chats whose administrators matter; `*`: all."""
        super().__init__(name, config, clock)
        self._random = random
        self._menus = CommandMenus(name, commands)
        self._rate_limiter = TelegramRateLimiter(config.flood, clock)
        saved, bot = TelegramCursor.parse(cursor), config.token.get_secret_value().partition(":")[0]
        self._is_same_bot = saved.bot in ("", bot)
        """Whether the ids in the log are those that this account sees."""
        self._reader = UpdateReader(
            TelegramUpdateContext(
                channel=name,
                own_id=0,
                username="",
                rooms=frozenset(config.rooms),
                commands=frozenset(
                    name for command in commands for name in (command.name, *command.aliases)
                ),
                cursor=saved.for_bot(bot),
            ),
            counting=config.webhook is None,
        )
        self._ranked_rooms = ranks
        self._refusals: dict[RoomId, str] = {}
        """Room -> reason why Telegram does not show us a configured chat; empty: it does."""

    def place_names(self, at: Address) -> PlaceNames | None:
        return self._reader.place_names(at)

    def audience(self, at: Address) -> Audience | None:
        return self._reader.audience(at)

    def join_refusal(self, room: RoomId) -> str:
        return self._refusals.get(room, "") if self._outgoing else ""

    async def wait_for_rights(self, at: Address) -> None:
        await self._reader.rights.wait(self._reader.chat_id(at.room))

    async def open_direct(self, person: Sender) -> RoomId:
        return RoomId(
            person.id
        )  # core.telegram.org/bots/api#user: a private chat has the id of its person

    def split(self, post: Post) -> tuple[str, ...]:
        if post.reply_to is not None and post.reply_to.startswith(TAP_PREFIX):
            first, *more = render(post.text, MAX_TAP_ANSWER_CHARS - 1)
            return (TelegramText(text=first.text + ("…" if more else "")).to_json(),)
        return tuple(
            text.to_json()
            for text in render(post.text, first=MAX_CAPTION_UNITS if post.file else None)
        )

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        if not parse_body(part.body).text.strip():
            raise ValueError("a part needs text")
        if part.file is not None and len(part.file.data) > MAX_FILE_BYTES:
            raise Rejected(f"Telegram takes files of at most {MAX_FILE_BYTES} bytes")
        receipt = await self._connected.send(part, before_send)
        if receipt.ids and part.replaces is None:
            self._end_preview(part.to)
        return receipt

    def position(self, at: Address) -> str:
        return self._connected.position(at)

    def learn(self, at: Address, message: MessageId | None, sent: datetime, *, own: bool) -> None:
        known = None if message is None or is_provisional(message) else message
        chat, _, number = (known or self._reader.chat_id(at.room) + ":").rpartition(":")
        try:
            there = int(chat or at.room)
        except ValueError:  # a button press, or an id of another platform
            return
        numbers = self._reader.numbers
        if not self._is_same_bot:
            return
        if known is None:
            numbers.mark_unknown(there, sent.timestamp())
        elif number.isdecimal() and own:
            numbers.record_sent(there, int(number))
        elif number.isdecimal():
            numbers.record_received(there, int(number), sent.timestamp())
            self._reader.newest_said.put(at, known)

    async def set_command_menus(
        self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]
    ) -> None:
        await self._menus.set_command_menus(to)

    async def run(self, emit: Emit) -> None:
        self._reader.reset()
        self._members.clear()  # nobody was told of changes
        try:
            api = TelegramApi(self._config, self._rate_limiter)
        except (
            RuntimeError,
            ValueError,
            OSError,
        ) as error:  # invalid proxies or certificates of the environment
            raise Denied(f"the HTTP client cannot be set up: {error}") from None
        receiver = TelegramReceiver(
            api,
            self._reader,
            emit,
            self._clock,
            self._random,
            self._members,
            self._ranked_rooms,
        )
        tasks: list[asyncio.Task[None]] = []
        try:
            with api.redact_logs():
                await self._identify(receiver)
                await self._menus.start(api)
                tasks += [
                    asyncio.create_task(self._menus.sync()),
                    asyncio.create_task(self._watch_rooms(api)),
                ]
                await self._receive(receiver)
        finally:
            if self._outgoing is not None:
                self._outgoing.closed.set()
            self._outgoing = None
            self._menus.stop()
            await cancel_and_wait(*tasks)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(api.close(), _CLOSE_TIMEOUT_S)

    async def _identify(self, receiver: TelegramReceiver) -> None:
        """Request our own id until it succeeds, then allow sending. Raises Denied."""
        me = await receiver.retry(lambda bot: bot.get_me())
        name = me.username or ""
        self._reader.context = replace(self._reader.context, own_id=me.id, username=name)
        self._outgoing = TelegramOutgoing(
            receiver.api,
            self._clock,
            self._reader,
            has_caught_up=receiver.has_caught_up,
        )
        receiver.welcome = f"connected to {self._config.base_url} as @{name}"
        if me.can_read_all_group_messages is False:
            logger.info(
                "%s: privacy mode is on, so groups show only commands, mentions and replies; "
                "@BotFather /setprivacy turns it off",
                self.name,
            )
        await receiver.record_success()

    async def _watch_rooms(self, api: TelegramApi) -> None:
        """Check periodically whether we are in the configured chats, for that can change without an
        update.

        Never raises.
        """
        while True:
            for room in (room for room in self._config.rooms if room != ANY_CHAT):
                chat = self._reader.chat_id(room)
                try:
                    member = await api.await_call(
                        api.bot.get_chat_member(chat, self._reader.context.own_id)
                    )
                except ChatMigrated as moved:
                    self._reader.record_move(room, str(moved.new_chat_id))
                except (BadRequest, Forbidden) as error:
                    self._refusals[RoomId(room)] = f"{api.redact(error)}: add the bot to this chat"
                except TelegramError:
                    continue  # its state is unknown now
                else:
                    gone = member.status in (ChatMemberStatus.LEFT, ChatMemberStatus.BANNED)
                    self._refusals[RoomId(room)] = (
                        f"the bot is {member.status}: add it to this chat" if gone else ""
                    )
            await self._clock.sleep(ROOM_CHECK_INTERVAL_S)

    async def _receive(self, receiver: TelegramReceiver) -> None:
        if self._config.webhook is None:
            await poll_updates(receiver)
            return
        receiver.has_caught_up.set()  # Telegram calls as soon as something is said
        # Here and not above: a web server costs 10 MB, and few bots use one.
        from channels.telegram.webhook import TelegramWebhookServer  # noqa: PLC0415

        await TelegramWebhookServer(self._config.webhook, receiver).run()
