"""Telegram channel: connects, receives, sends.

`TelegramExtras` does the optional work: typing, previews and downloads.
"""

import asyncio
import contextlib
import logging
import random as _random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Literal

from telegram.constants import ChatAction, ChatMemberStatus
from telegram.error import BadRequest, Forbidden, TelegramError

from channels.aio import cancel_and_wait
from channels.base import (
    Audience,
    BeforeSend,
    Capabilities,
    CommandSpec,
    Denied,
    Emit,
    Part,
    RateLimited,
    Rejected,
    RoomMembers,
    SendError,
    Unreachable,
    no_before_send,
)
from channels.telegram.actions import CommandMenus, TelegramActions
from channels.telegram.api import TelegramApi
from channels.telegram.config import TelegramConfig
from channels.telegram.ids import TelegramCursor, format_message_id, parse_message_number
from channels.telegram.outgoing import (
    MAX_FILE_BYTES,
    NO_LINK_PREVIEW,
    TelegramOutgoing,
    parse_topic_id,
    to_entities,
)
from channels.telegram.people import ANY_CHAT, TelegramRanks, TelegramUpdateContext
from channels.telegram.rate_limit import PREVIEW_RETRY_S, TelegramRateLimiter
from channels.telegram.render import MAX_CAPTION_UNITS, parse_body, render
from channels.telegram.updates import PollBackoff, TelegramPoller, build_link_change
from channels.telegram.wire import UpdateReader
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    Attachment,
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
    "Telegram shows **bold**, *italic*, ~~strike~~, ||spoiler||, `code`, fenced code, > quotes and [links](url); "
    "headings become bold, tables are shown as they are written."
)


class TelegramChannel:
    """One bot account; a `channels.base.Channel` with all optional abilities except paging and joining."""

    typing_interval_s = 4.5
    """Telegram shows the indicator for five seconds (core.telegram.org/bots/api#sendchataction)."""
    preview_interval_s = 1.5

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
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._menus = CommandMenus(name, commands)
        self._rate_limiter = TelegramRateLimiter(config.flood, clock)
        self._reader = UpdateReader(
            TelegramUpdateContext(
                channel=name,
                own_id=0,
                username="",
                rooms=frozenset(config.rooms),
                commands=frozenset(command.name for command in commands),
                cursor=TelegramCursor.parse(cursor).for_bot(config.token.get_secret_value().partition(":")[0]),
            ),
            counting=config.webhook is None,
            ranks=TelegramRanks(ranks),
        )
        self._connected_parts: tuple[TelegramOutgoing, TelegramExtras, TelegramActions] | None = None
        """Set while messages can be sent."""
        self._refusals: dict[RoomId, str] = {}
        """Room -> reason why Telegram does not show us a configured chat; empty: it does."""

    @property
    def name(self) -> ChannelName:
        return self._name

    def place_names(self, at: Address) -> PlaceNames | None:
        return self._reader.place_names(at)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(platform="Telegram", formatting=_FORMATTING, replies=True, max_file_bytes=MAX_FILE_BYTES)

    def audience(self, at: Address) -> Audience | None:
        return self._reader.audience(at)

    def join_refusal(self, room: RoomId) -> str:
        return self._refusals.get(room, "") if self._connected_parts else ""

    def split(self, post: Post) -> tuple[str, ...]:
        return tuple(text.to_json() for text in render(post.text, first=MAX_CAPTION_UNITS if post.file else None))

    async def send(self, part: Part, before_send: BeforeSend = no_before_send) -> Receipt:
        if not parse_body(part.body).text.strip():
            raise ValueError("a part needs text")
        if part.file is not None and len(part.file.data) > MAX_FILE_BYTES:
            raise Rejected(f"Telegram takes files of at most {MAX_FILE_BYTES} bytes")
        outgoing, extras, _ = self._require_connected()
        receipt = await outgoing.send(part, before_send)
        extras.end_preview(part.to)
        return receipt

    async def typing(self, at: Address, *, active: bool) -> None:
        if active and self._config.typing and self._connected_parts:
            await self._connected_parts[1].typing(at)

    async def preview(self, at: Address, text: str, preview_id: MessageId | None) -> MessageId | None:
        return await self._require_connected()[1].preview(at, text, preview_id)

    async def delete_preview(self, at: Address, preview_id: MessageId) -> None:
        await self._require_connected()[1].delete_preview(at, preview_id)

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        if at.channel != self._name:
            raise Rejected(f"{at.channel} is another account")
        return await self._require_connected()[1].download(attachment, limit_bytes)

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        await self._actions.react(at, message, reaction, add=add)

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        await self._actions.edit(at, message, text)

    async def delete(self, at: Address, message: MessageId) -> None:
        await self._actions.delete(at, message)

    async def set_topic(self, at: Address, topic: str) -> None:
        await self._actions.set_topic(at, topic)

    async def leave(self, at: Address) -> None:
        await self._actions.leave(at)

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        return await self._actions.list_members(at, most)

    async def set_command_menus(self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]) -> None:
        await self._menus.set_command_menus(to)

    @property
    def _actions(self) -> TelegramActions:
        return self._require_connected()[2]

    def _require_connected(self) -> "tuple[TelegramOutgoing, TelegramExtras, TelegramActions]":
        if self._connected_parts is None:
            raise Unreachable(f"{self._name} is not connected")
        return self._connected_parts

    async def run(self, emit: Emit) -> None:
        self._reader.reset()
        self._reader.numbers.reset(self._clock.now())

        try:
            api = TelegramApi(self._config, self._rate_limiter)
        except (RuntimeError, ValueError, OSError) as error:  # invalid proxies or certificates of the environment
            reason = f"the HTTP client cannot be set up: {error}"
            await emit([build_link_change(self._name, self._clock.now(), up=False, reason=reason)])
            raise Denied(reason) from None
        backoff = PollBackoff(self._name, api, self._clock, self._random, emit)
        menu_task: asyncio.Task[None] | None = None
        room_task: asyncio.Task[None] | None = None
        try:
            with api.redact_logs():
                await self._identify(api, backoff)
                await self._menus.start(api)
                menu_task = asyncio.create_task(self._menus.sync())
                room_task = asyncio.create_task(self._watch_rooms(api))
                await self._receive(api, emit, backoff)
        finally:
            self._connected_parts = None
            self._menus.stop()
            await cancel_and_wait(*(task for task in (menu_task, room_task) if task is not None))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(api.close(), _CLOSE_TIMEOUT_S)

    async def _identify(self, api: TelegramApi, backoff: PollBackoff) -> None:
        """Request our own id until it succeeds, then allow sending. Raises Denied."""
        while True:
            try:
                me = await api.await_call(api.bot.get_me())
            except TelegramError as error:
                await backoff.handle_error(error)
                continue
            reads_all = me.can_read_all_group_messages is not False
            self._reader.context = replace(
                self._reader.context, own_id=me.id, username=me.username or "", can_read_all=reads_all
            )
            outgoing = TelegramOutgoing(api, self._clock, self._reader)
            extras = TelegramExtras(api, outgoing, self._config.preview)
            self._connected_parts = (outgoing, extras, TelegramActions(api, outgoing, me.id))
            backoff.set_welcome(f"connected to {self._config.base_url} as @{me.username or ''}")
            if not reads_all:
                logger.info(
                    "%s: privacy mode is on, so groups show only commands, mentions and replies; "
                    "@BotFather /setprivacy turns it off",
                    self._name,
                )
            await backoff.record_success()
            return

    async def _watch_rooms(self, api: TelegramApi) -> None:
        """Check periodically whether we are in the configured chats, for that can change without an update.

        Never raises.
        """
        while True:
            for room in (room for room in self._config.rooms if room != ANY_CHAT):
                try:
                    member = await api.await_call(
                        api.bot.get_chat_member(self._reader.chat_id(room), self._reader.context.own_id)
                    )
                except (BadRequest, Forbidden) as error:
                    self._refusals[RoomId(room)] = f"{api.redact(error)}: add the bot to this chat"
                except TelegramError:
                    continue  # its state is unknown now
                else:
                    gone = member.status in (ChatMemberStatus.LEFT, ChatMemberStatus.BANNED)
                    self._refusals[RoomId(room)] = f"the bot is {member.status}: add it to this chat" if gone else ""
            await self._clock.sleep(ROOM_CHECK_INTERVAL_S)

    async def _receive(self, api: TelegramApi, emit: Emit, backoff: PollBackoff) -> None:
        if self._config.webhook is None:
            await TelegramPoller(api=api, reader=self._reader, emit=emit, clock=self._clock, backoff=backoff).run()
            return
        # Here and not above: a web server costs 10 MB, and few bots use one.
        from channels.telegram.webhook import TelegramWebhookServer  # noqa: PLC0415

        await TelegramWebhookServer(
            self._config.webhook,
            api=api,
            reader=self._reader,
            emit=emit,
            clock=self._clock,
            backoff=backoff,
        ).run()


_OK, _SERVER = 200, 500
_DOWNLOAD_TIMEOUT_S = 300.0
_DRAFT_TIMEOUT_S = 1.5
"""A slower draft is abandoned, for it leaves nothing behind, and the final answer may be waiting for it."""
_MAX_CONCURRENT = 8
"""Calls for typing and previews; the other connections are for messages."""
_MAX_DRAFTS = 1000


class TelegramExtras:
    """Typing, previews and downloads of one account; they obey the rate limits and never delay a message."""

    def __init__(self, api: TelegramApi, outgoing: TelegramOutgoing, preview: Literal["off", "private", "all"]) -> None:
        self._api, self._outgoing, self._preview = api, outgoing, preview
        self._drafts: dict[Address, int] = {}
        """Place -> id of its current draft. Each answer has another one."""
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def typing(self, at: Address) -> None:
        """Show the typing indicator. Best effort."""
        if self._slots.locked():
            return
        with contextlib.suppress(Exception):  # best effort, whatever breaks
            async with self._slots:
                await self._api.bot.send_chat_action(
                    self._outgoing.chat_id(at),
                    ChatAction.TYPING,
                    message_thread_id=parse_topic_id(at),
                    rate_limit_args="action",
                )

    def end_preview(self, at: Address) -> None:
        """Use another draft for the next preview: a message was sent there, which ended the answer."""
        if len(self._drafts) > _MAX_DRAFTS:
            self._drafts.clear()
        self._drafts[at] = self._drafts.get(at, 1) + 1

    async def preview(self, at: Address, text: str, preview_id: MessageId | None) -> MessageId | None:
        """Show a preview; `Rejected` where the configuration has none."""
        chat = self._outgoing.chat_id(at)
        private = chat > 0
        if self._preview == "off" or (self._preview == "private" and not private):
            raise Rejected("previews are not wanted here")
        if not text.strip():
            return preview_id
        if self._slots.locked():
            raise RateLimited("no room for a preview", retry_after_s=PREVIEW_RETRY_S)
        try:
            async with self._slots:
                return await (
                    self._send_draft(at, chat, text) if private else self._send_or_edit(at, chat, text, preview_id)
                )
        except Exception as error:  # noqa: BLE001 - translated to a SendError
            if isinstance(error, BadRequest) and "not modified" in str(error):
                return preview_id
            verdict = self._api.to_send_error(error)
            if isinstance(verdict, Denied):  # 404: an older server without drafts
                raise Rejected("this Bot API server shows no drafts") from None
            raise verdict from None

    async def _send_draft(self, at: Address, chat: int, text: str) -> None:
        last, draft = render(text)[-1], self._drafts.setdefault(at, 1)
        async with asyncio.timeout(_DRAFT_TIMEOUT_S):
            await self._api.bot.send_message_draft(
                chat,
                draft,
                last.text,
                entities=to_entities(last.spans),
                message_thread_id=parse_topic_id(at),
                rate_limit_args="preview",
            )

    async def _send_or_edit(self, at: Address, chat: int, text: str, preview_id: MessageId | None) -> MessageId:
        last, bot = render(text)[-1], self._api.bot
        marks = to_entities(last.spans)
        if preview_id is not None:
            number = _preview_number(at, chat, preview_id)
            await bot.edit_message_text(
                last.text,
                chat,
                number,
                entities=marks,
                link_preview_options=NO_LINK_PREVIEW,
                rate_limit_args="preview",
            )
            return preview_id
        self._outgoing.numbers.mark_unknown(chat)  # until the id of this message is known
        sent = await bot.send_message(
            chat,
            last.text,
            entities=marks,
            disable_notification=True,
            message_thread_id=parse_topic_id(at),
            link_preview_options=NO_LINK_PREVIEW,
            rate_limit_args="preview",
        )
        self._outgoing.numbers.record_sent(chat, sent.message_id)
        return format_message_id(sent.message_id, str(chat), at.room)

    async def delete_preview(self, at: Address, preview_id: MessageId) -> None:
        chat = self._outgoing.chat_id(at)
        try:
            await self._api.bot.delete_message(chat, _preview_number(at, chat, preview_id))
        except Exception as error:  # noqa: BLE001 - translated to a SendError
            if not (isinstance(error, BadRequest) and "not found" in str(error)):
                raise self._api.to_send_error(error) from None

    async def download(self, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file. Nothing was sent, so every other failure than a refusal or a rate limit is `Unreachable`."""
        _check_size(attachment.size_bytes, limit_bytes)
        try:
            async with asyncio.timeout(_DOWNLOAD_TIMEOUT_S):
                file = await self._api.bot.get_file(attachment.id)
                _check_size(file.file_size, limit_bytes)
                return await self._fetch(file.file_path, limit_bytes)
        except SendError:
            raise
        except Exception as error:  # noqa: BLE001 - of the network, of the API, or an unreadable answer
            verdict = self._api.to_send_error(error)
            sure = isinstance(verdict, (Rejected, RateLimited))
            raise verdict if sure else Unreachable(verdict.reason) from None

    async def _fetch(self, url: str | None, limit_bytes: int) -> bytes:
        # A server in local mode answers with a path of its own machine, which we must not open.
        if not url or not url.startswith(self._api.file_base_url):
            raise Rejected("the Bot API server keeps its files to itself")
        async with self._api.stream_file(url) as response:
            if response.status_code != _OK:
                reason = f"the file cannot be had: HTTP {response.status_code}"
                raise Unreachable(reason) if response.status_code >= _SERVER else Rejected(reason)
            data = bytearray()
            async for chunk in response.aiter_raw():
                data += chunk
                _check_size(len(data), limit_bytes)
            return bytes(data)


def _preview_number(at: Address, chat: int, preview_id: MessageId) -> int:
    number = parse_message_number(preview_id, str(chat), at.room)
    if number is None:
        raise Rejected("it stands where the group was before it moved")
    return number


def _check_size(size_bytes: int | None, limit_bytes: int) -> None:
    if size_bytes is not None and size_bytes > limit_bytes:
        raise Rejected(f"larger than {limit_bytes} bytes")
