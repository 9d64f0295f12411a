"""The Telegram channel: connects, receives, sends."""

import asyncio
import contextlib
import logging
import random as _random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from telegram.error import BadRequest, Forbidden, TelegramError

from channels.base import (
    Audience,
    BeforeSend,
    Capabilities,
    CommandSpec,
    Denied,
    Emit,
    Part,
    Rejected,
    RoomMembers,
    Unreachable,
    no_before_send,
)
from channels.payload import get_str
from channels.tasks import cancel_and_wait
from channels.telegram.acts import TelegramActions
from channels.telegram.calls import TelegramApi
from channels.telegram.config import TelegramConfig
from channels.telegram.cursor import TelegramCursor
from channels.telegram.extras import TelegramExtras
from channels.telegram.inbound import UpdateReader
from channels.telegram.menus import CommandMenus
from channels.telegram.outgoing import MAX_FILE_BYTES, TelegramOutgoing
from channels.telegram.pace import TelegramPacer
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.polling import TelegramPoller
from channels.telegram.ranks import ANY_CHAT, TelegramRanks
from channels.telegram.render import MAX_CAPTION_UNITS, parse_body, render
from channels.telegram.trouble import PollBackoff
from gateway.clock import Clock
from gateway.events import (
    Address,
    Attachment,
    ChannelName,
    ConnectionChanged,
    EventId,
    MessageId,
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
)
from gateway.ids import new_id

logger = logging.getLogger("reverie.telegram")
_CLOSE_TIMEOUT_S = 0.5
ROOM_CHECK_INTERVAL_S = 600.0
"""Between two looks at the configured chats."""
_FORMATTING = (
    "Telegram shows **bold**, *italic*, ~~strike~~, ||spoiler||, `code`, fenced code, > quotes and [links](url); "
    "headings become bold, tables are shown as they are written."
)


class TelegramChannel:
    """One bot account; a `channels.base.Channel` that can do all but page and join."""

    typing_interval_s = 4.5
    """Telegram shows it for five seconds (core.telegram.org/bots/api#sendchataction)."""
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
        """`ranks`: chats where it matters who runs them; `*`: all."""
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._menus = CommandMenus(name, commands)
        self._pacer = TelegramPacer(config.flood)
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
        """Set while something can be sent."""
        self._refusals: dict[RoomId, str] = {}
        """Why Telegram does not show us a configured chat."""
        self._up: tuple[bool, bool] | None = None
        """Whether it hears, or at least can say something."""

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

    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        if not parse_body(part.body).text.strip():
            raise ValueError("a part needs text")
        if part.file is not None and len(part.file.data) > MAX_FILE_BYTES:
            raise Rejected(f"Telegram takes files of at most {MAX_FILE_BYTES} bytes")
        outgoing, extras, _ = self._require_connected()
        receipt = await outgoing.send(part, going)
        extras.end_preview(part.to)
        return receipt

    async def typing(self, at: Address, *, active: bool) -> None:
        if active and self._config.typing and self._connected_parts:
            await self._connected_parts[1].typing(at)

    async def preview(self, at: Address, text: str, shown: MessageId | None) -> MessageId | None:
        return await self._require_connected()[1].preview(at, text, shown)

    async def delete_preview(self, at: Address, shown: MessageId) -> None:
        await self._require_connected()[1].delete_preview(at, shown)

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

    def _require_connected(self) -> tuple[TelegramOutgoing, TelegramExtras, TelegramActions]:
        if self._connected_parts is None:
            raise Unreachable(f"{self._name} is not connected")
        return self._connected_parts

    async def run(self, emit: Emit) -> None:
        self._up = None
        self._reader.reset()
        self._reader.numbers.reset(self._clock.now())

        async def link(up: bool, reason: str, *, says: bool = False) -> None:
            if self._up != (up, says):
                self._up = (up, says)
                now = self._clock.now()
                link = ConnectionChanged(
                    id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now, says=says
                )
                await emit([link])

        try:
            api = TelegramApi(self._config)
        except (RuntimeError, ValueError, OSError) as error:  # of the environment: proxies, certificates
            await link(False, f"the HTTP client cannot be set up: {error}")
            raise Denied(f"the HTTP client cannot be set up: {error}") from None
        trouble = PollBackoff(api, self._clock, self._random, link)
        settling: asyncio.Task[None] | None = None
        looking: asyncio.Task[None] | None = None
        try:
            with api.redact_logs():
                await self._identify(api, trouble)
                await self._menus.start(api)
                settling = asyncio.create_task(self._menus.sync())
                looking = asyncio.create_task(self._watch_rooms(api))
                await self._receive(api, emit, trouble)
        finally:
            self._connected_parts = None
            self._menus.stop()
            await cancel_and_wait(*(task for task in (settling, looking) if task is not None))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(api.close(), _CLOSE_TIMEOUT_S)

    async def _identify(self, api: TelegramApi, trouble: PollBackoff) -> None:
        """Learn who we are, however long it takes. Raises Denied."""
        while True:
            try:
                view = await api.identify(self._reader.context)
            except TelegramError as error:
                await trouble.handle_error(error)
                continue
            self._reader.context = view
            outgoing = TelegramOutgoing(
                api,
                self._clock,
                self._pacer,
                self._reader.chat_id,
                self._reader.record_move,
                numbers=self._reader.numbers,
            )
            extras = TelegramExtras(api, self._clock, outgoing, self._config.preview)
            self._connected_parts = (outgoing, extras, TelegramActions(api, self._clock, outgoing, view.own_id))
            trouble.set_welcome(f"connected to {self._config.base_url} as @{view.username}")
            if not view.can_read_all:
                logger.info(
                    "%s: privacy mode is on, so groups show only commands, mentions and replies; "
                    "@BotFather /setprivacy turns it off",
                    self._name,
                )
            await trouble.record_success()
            return

    async def _watch_rooms(self, api: TelegramApi) -> None:
        """Now and then: ask for the configured chats, as what we are in may change behind our back. Never raises."""
        while True:
            for room in (room for room in self._config.rooms if room != ANY_CHAT):
                chat = self._reader.chat_id(room)
                url = f"{api.bot.base_url}/getChatMember?chat_id={chat}&user_id={self._reader.context.own_id}"
                try:  # not by the library's method, which insists on every field
                    told = await api.await_call(api.bot.request.post(url))
                except (BadRequest, Forbidden) as error:
                    self._refusals[RoomId(room)] = f"{api.redact(error)}: add the bot to this chat"
                except TelegramError:
                    continue  # nothing is known of it now
                else:
                    status = get_str(told, "status") if isinstance(told, dict) else ""
                    gone = status in ("left", "kicked")
                    self._refusals[RoomId(room)] = f"the bot is {status}: add it to this chat" if gone else ""
            await self._clock.sleep(ROOM_CHECK_INTERVAL_S)

    async def _receive(self, api: TelegramApi, emit: Emit, trouble: PollBackoff) -> None:
        if self._config.webhook is None:
            await TelegramPoller(api=api, inbound=self._reader, emit=emit, clock=self._clock, trouble=trouble).run()
            return
        # Here and not above: a web server costs 10 MB, and few want one.
        from channels.telegram.webhook import TelegramWebhookServer  # noqa: PLC0415

        await TelegramWebhookServer(
            self._config.webhook,
            api=api,
            inbound=self._reader,
            emit=emit,
            clock=self._clock,
            trouble=trouble,
        ).run()
