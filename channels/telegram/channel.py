"""Telegram channel: connects, receives, sends, and acts in chats; and the menus of commands.

All actions are repeatable, so an interrupted one is at worst uncertain. Only edits take a message's
turn: where Telegram demands a pause, the others are refused at once instead of waiting.
"""

import asyncio
import contextlib
import logging
import random as _random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

from telegram import (
    BotCommand,
    BotCommandScope,
    BotCommandScopeAllGroupChats,
    BotCommandScopeAllPrivateChats,
    BotCommandScopeChat,
    BotCommandScopeDefault,
    File,
    ReactionTypeCustomEmoji,
    ReactionTypeEmoji,
)
from telegram.constants import ChatAction, ChatMemberStatus, ReactionEmoji
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Forbidden,
    InvalidToken,
    RetryAfter,
    TelegramError,
)

from channels.aio import AnswerCache, ResultT, cancel_and_wait, with_timeout
from channels.base import (
    MEMBERSHIP_TIMEOUT_S,
    Announce,
    Audience,
    BeforeSend,
    Capabilities,
    CommandSpec,
    Denied,
    Emit,
    Membership,
    PostPart,
    RateLimited,
    Rejected,
    RoomMembers,
    SendError,
    Unreachable,
    is_provisional,
    no_announcement,
    no_before_send,
)
from channels.split import utf16_length
from channels.telegram.api import TelegramApi, TelegramBot
from channels.telegram.config import TelegramConfig
from channels.telegram.ids import TAP_PREFIX, TelegramCursor
from channels.telegram.outgoing import (
    MAX_FILE_BYTES,
    MAX_TAP_ANSWER_CHARS,
    NO_LINK_PREVIEW,
    TelegramOutgoing,
    number_in,
    parse_topic_id,
    to_entities,
)
from channels.telegram.people import (
    ANY_CHAT,
    TelegramUpdateContext,
    full_name,
    is_present,
    parse_user,
    shows_history,
)
from channels.telegram.rate_limit import PREVIEW_RETRY_S, HandOver, TelegramRateLimiter
from channels.telegram.render import MAX_CAPTION_UNITS, TelegramText, parse_body, render
from channels.telegram.updates import TelegramReceiver, poll_updates
from channels.telegram.wire import UpdateReader
from channels.text import single_line
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
    SenderId,
)
from gateway.core.i18n import _, languages, use_language
from gateway.core.ratelimit import LruDict

logger = logging.getLogger("reverie.telegram")
_CLOSE_TIMEOUT_S = 0.5
ROOM_CHECK_INTERVAL_S = 600.0
"""Seconds between two checks of the configured chats."""
_FORMATTING = (
    "Telegram shows **bold**, *italic*, ~~strike~~, ||spoiler||, `code`, fenced code, > quotes and "
    "[links](url); headings become bold, tables become code blocks."
)


_DESCRIPTION_CHARS, _TOPIC_CHARS = 255, 128
"""core.telegram.org/bots/api#setchatdescription, #editforumtopic."""
_MEMBERS_MAX_AGE_S = 120.0
"""Seconds for which an answer about a member counts, unless an update tells of a change. Telegram
sends such updates to administrators (#chatmemberupdated), and to every bot a message when somebody
joins, leaves or is removed."""
_NO_SELECTOR = str.maketrans("", "", "\ufe0f")
"""Removes the emoji presentation selector: Telegram writes most emoji without it, keyboards with
it."""
_KNOWN_REACTIONS = {emoji.value.translate(_NO_SELECTOR): emoji.value for emoji in ReactionEmoji}
_EXAMPLE_REACTIONS = "👍 👎 ❤ 🔥 👏 😁 🤔 🎉 🙏 👀 💯 🤝"
_NOT_IN_CHAT = ("chat not found", "bot is not a member", "bot was kicked")
"""Texts of Telegram's errors that mean that we are not in the chat."""

_DRAFT_TIMEOUT_S = 1.5
"""A slower draft is abandoned, for it leaves nothing behind, and the final answer may be waiting
for it."""
_MAX_CONCURRENT = 8
"""Calls for typing and previews; the other connections are for messages."""


_MENU_TIMEOUT_S = 5.0
"""Receiving starts only after the menus are set."""
_MAX_COMMANDS, _MAX_SUMMARY_CHARS = 100, 256
"""https://core.telegram.org/bots/api#setmycommands and #botcommand."""
_ROLE_ORDER: Final = ("blocked", "guest", "member", "admin", "owner")

Role = Literal["owner", "admin", "member", "guest"]
Menu = tuple[BotCommand, ...]


def build_menu(
    specs: Sequence[CommandSpec], role: Role, *, direct: bool, language: str = ""
) -> Menu:
    """Return the commands that a role may use there, in a language; empty: English. Pure."""
    able = (
        spec
        for spec in specs
        if (direct or not spec.direct_only)
        and (
            _ROLE_ORDER.index(role) >= _ROLE_ORDER.index(spec.role)
            or (spec.own and direct and spec.role != "blocked")
        )
    )
    with use_language(language):
        return tuple(
            BotCommand(spec.name, _(spec.summary)[:_MAX_SUMMARY_CHARS] or spec.name)
            for spec in able
        )[:_MAX_COMMANDS]


class CommandMenus:
    """Command menus, shown by Telegram behind `/`, in the narrowest scope that fits.

    https://core.telegram.org/bots/api#botcommandscope: a private chat has its own menu, else that
    of all private chats; a group has that of all groups. A menu grants nothing: commands check
    permissions themselves.
    """

    def __init__(self, name: ChannelName, specs: Sequence[CommandSpec]) -> None:
        self._name, self._specs = name, tuple(specs)
        self._api: TelegramApi | None = None
        self._shown: dict[int, Role | None] = {}
        """Chat -> the role whose menu is certainly set there; None, or missing: none."""
        self._wanted: dict[int, Role] = {}
        self._lock = asyncio.Lock()

    async def start(self, api: TelegramApi) -> None:
        """Set the menus of all chats, now that Telegram is reachable. Failures are logged only."""
        self._api = api
        if not self._specs:
            return
        scopes: Iterable[tuple[BotCommandScope, bool]] = (
            (BotCommandScopeDefault(), False),
            (BotCommandScopeAllGroupChats(), False),
            (BotCommandScopeAllPrivateChats(), True),
        )
        try:
            async with asyncio.timeout(_MENU_TIMEOUT_S):
                for scope, direct in scopes:
                    await self._set(api, scope, "guest", direct=direct)
        except (TelegramError, TimeoutError) as error:
            logger.warning(
                "%s: the command menu is not set: %s",
                self._name,
                api.redact(error) or "no answer in time",
            )

    def stop(self) -> None:
        self._api = None

    async def set_command_menus(
        self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]
    ) -> None:
        """Set the menus of these people. One that cannot be set now is set with the next
        connection.
        """
        guest_menu = build_menu(self._specs, "guest", direct=True)
        wanted = dict[int, Role]()
        for sender, role in sorted(to, key=lambda entry: -_ROLE_ORDER.index(entry[1])):
            menu = build_menu(self._specs, role, direct=True)
            if sender.id.isascii() and sender.id.isdigit() and menu != guest_menu:
                wanted.setdefault(int(sender.id), role)
        self._wanted = dict(list(wanted.items())[:100])
        await self.sync()

    async def sync(self) -> None:
        """Set the menus of private chats that differ. Raises only cancellation."""
        async with self._lock:
            api, wanted = self._api, self._wanted
            if api is None:
                return
            chats = dict.fromkeys([*self._shown, *wanted])
            for chat in [one for one in chats if self._shown.get(one) != wanted.get(one)]:
                role = wanted.get(chat)
                try:
                    await self._set(api, BotCommandScopeChat(chat), role, direct=True)
                    self._shown[chat] = role
                except RetryAfter as error:
                    logger.warning(
                        "%s: the menus of some chats are not set: %s", self._name, api.redact(error)
                    )
                    return
                except (
                    TelegramError
                ) as error:  # e.g. the person has never written to us: there is no such chat
                    logger.info(
                        "%s: the menu of a chat is not set: %s", self._name, api.redact(error)
                    )

    async def _set(
        self, api: TelegramApi, scope: BotCommandScope, role: Role | None, *, direct: bool
    ) -> None:
        """Set the menu of a role, in each language. None: take it away."""
        for language in ("", *sorted(languages())):  # first that of everybody else
            if role is None:
                call = api.bot.delete_my_commands(scope, language or None)
            else:
                menu = build_menu(self._specs, role, direct=direct, language=language)
                call = api.bot.set_my_commands(menu, scope, language or None)
            await api.await_call(call)


class TelegramChannel:
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
        self.name, self._config, self._clock = name, config, clock
        self._members = AnswerCache[tuple[int, int], bool](clock, _MEMBERS_MAX_AGE_S)
        """Chat and user -> whether the user is there. Who comes or goes is forgotten."""
        self._histories = AnswerCache[int, bool](clock, _MEMBERS_MAX_AGE_S)
        """Chat -> whether new members can read what was said before."""
        self._outgoing: TelegramOutgoing | None = None
        """Set while messages can be sent."""
        self._reactions = LruDict[tuple[int, int], str](1000)
        """Our recent reactions by message: a bot has one on each, and a new one replaces it."""
        self._drafts = LruDict[Address, int](1000)
        """Place -> id of its current draft. Each answer has another one."""
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
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

    @property
    def _connected(self) -> TelegramOutgoing:
        if self._outgoing is None:
            raise Unreachable(f"{self.name} is not connected")
        return self._outgoing

    async def typing(self, at: Address, *, active: bool) -> None:
        if not active or not self._config.typing or self._slots.locked():
            return
        with contextlib.suppress(Exception):  # best effort, whatever breaks
            async with self._slots:
                outgoing = self._connected
                await outgoing.api.bot.send_chat_action(
                    outgoing.chat_id(at),
                    ChatAction.TYPING,
                    message_thread_id=parse_topic_id(at),
                    rate_limit_args="typing",
                )

    async def preview(
        self,
        at: Address,
        body: str,
        preview_id: MessageId | None,
        *,
        is_full: bool = False,
        reply_to: MessageId | None = None,
        announce: Announce = no_announcement,
    ) -> MessageId | None:
        """Show a preview; `Rejected` where the configuration has none.

        In private a draft shows the message that grows: once that is full it is sent, and the next
        draft begins.
        """
        outgoing = self._connected
        chat = outgoing.chat_id(at)
        if self._config.preview == "off" or (self._config.preview == "private" and chat < 0):
            raise Rejected("previews are not wanted here")
        is_draft = chat > 0 and not is_full and preview_id is None
        # Where a message is on its way, that of a preview could be taken for it.
        if self._slots.locked() or (not is_draft and outgoing.lock(at).locked()):
            raise RateLimited("no room for a preview", retry_after_s=PREVIEW_RETRY_S)
        text = parse_body(body)
        try:
            async with self._slots:
                if is_draft:
                    async with asyncio.timeout(_DRAFT_TIMEOUT_S):
                        await outgoing.api.bot.send_message_draft(
                            chat,
                            self._drafts.get(at, 1),
                            text.text,
                            message_thread_id=parse_topic_id(at),
                            entities=to_entities(text.spans),
                            rate_limit_args="preview",
                        )
                    return None
                if preview_id is None:
                    begun = await outgoing.begin_preview(at, text, reply_to, announce)
                    self._end_preview(at)
                    return begun
                await outgoing.api.bot.edit_message_text(
                    text.text,
                    chat,
                    number_in(at, chat, preview_id),
                    entities=to_entities(text.spans),
                    link_preview_options=NO_LINK_PREVIEW,
                    rate_limit_args="preview",
                )
                return preview_id
        except Exception as error:  # noqa: BLE001 - translated to a SendError
            if isinstance(error, BadRequest) and _is_unchanged(error):
                return preview_id
            verdict = outgoing.api.to_send_error(error)
            if isinstance(verdict, Denied):  # 404: an older server without drafts
                raise Rejected("this Bot API server shows no drafts") from None
            raise verdict from None

    def _end_preview(self, at: Address) -> None:
        """Use another draft for the next preview: a message was sent there, which ended the
        answer.
        """
        self._drafts.put(at, self._drafts.get(at, 1) + 1)

    async def delete_preview(self, at: Address, preview_id: MessageId) -> None:
        outgoing = self._connected
        try:
            if is_provisional(preview_id):
                async with outgoing.lock(at):
                    found = await outgoing.find_preview(at, preview_id)
                    if found is None:
                        return
                preview_id = found
            chat = outgoing.chat_id(at)
            await outgoing.api.bot.delete_message(chat, number_in(at, chat, preview_id))
        except Exception as error:  # noqa: BLE001 - translated to a SendError
            if not (isinstance(error, BadRequest) and "not found" in str(error)):
                raise outgoing.api.to_send_error(error) from None

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        """Download a file. Nothing was sent, so every other failure than a refusal or a rate limit
        is `Unreachable`.
        """
        del at  # the attachment's id is the file's
        api = self._connected.api
        _check_size(attachment.size_bytes, limit_bytes)
        try:
            async with asyncio.timeout(300.0):
                file = await api.bot.get_file(attachment.id)
                return await _fetch_file(api, file, limit_bytes)
        except Exception as error:  # noqa: BLE001 - of the network, of the API, or an unreadable answer
            verdict = api.to_send_error(error)
            sure = isinstance(verdict, (Rejected, RateLimited, Unreachable))
            raise verdict if sure else Unreachable(verdict.reason) from None

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        text = single_line(reaction, len(reaction))
        emoji = _KNOWN_REACTIONS.get(text.translate(_NO_SELECTOR), text)
        kind = ReactionTypeCustomEmoji if emoji.isascii() and emoji.isdigit() else ReactionTypeEmoji
        if not emoji:
            raise Rejected("a reaction is an emoji")

        async def put(bot: TelegramBot, chat: int) -> None:
            number = number_in(at, chat, message)
            if not add and self._reactions.get((chat, number), emoji) != emoji:
                return
            await bot.set_message_reaction(
                chat, number, [kind(emoji)] if add else [], rate_limit_args="action"
            )
            self._reactions.put((chat, number), emoji if add else "")

        try:
            await self._run(at, put)
        except Rejected as error:
            if "reaction_invalid" in error.reason.casefold():
                reason = (
                    f"Telegram does not take {emoji[:16]} here; it knows few, such as "
                    f"{_EXAMPLE_REACTIONS}"
                )
                raise Rejected(reason) from None
            if add or not _is_gone(error):
                raise

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        (new, *more) = render(text) if text.strip() else [TelegramText(text="")]
        if not text.strip() or more:
            raise Rejected(
                "the text is too long for one message" if more else "a message needs text"
            )
        marks, edit = (
            to_entities(new.spans),
            HandOver(),
        )  # Telegram counts edits with the messages of a chat

        async def change(bot: TelegramBot, chat: int) -> None:
            number = number_in(at, chat, message)
            try:
                await bot.edit_message_text(
                    new.text,
                    chat,
                    number,
                    entities=marks,
                    link_preview_options=NO_LINK_PREVIEW,
                    rate_limit_args=edit,
                )
            except BadRequest as error:
                if "no text in the message" not in str(error):
                    raise
                if utf16_length(new.text) > MAX_CAPTION_UNITS:
                    raise Rejected(
                        f"the text under a file has at most {MAX_CAPTION_UNITS} characters"
                    ) from None
                await bot.edit_message_caption(
                    chat, number, caption=new.text, caption_entities=marks, rate_limit_args=edit
                )

        async with self._connected.lock(at):
            await self._change(at, change)

    async def delete(self, at: Address, message: MessageId) -> None:
        async def delete_own(bot: TelegramBot, chat: int) -> None:
            number = number_in(at, chat, message)
            # An administrator may delete other people's messages, but edit only its own: so an edit
            # without a change proves that the message is ours.
            try:
                await bot.edit_message_reply_markup(chat, number, rate_limit_args="action")
            except BadRequest as error:
                if not _is_unchanged(error):
                    raise
            await bot.delete_message(chat, number, rate_limit_args="action")

        try:
            await self._run(at, delete_own)
        except Rejected as rejection:
            if "can't be edited" in rejection.reason:
                raise Rejected(
                    "that is not a message of ours, or no longer ours to take back"
                ) from None
            if "can't be deleted" in rejection.reason:
                raise Rejected(
                    "Telegram lets nobody take it back any more: it is older than 48 hours"
                ) from None
            if not _is_gone(rejection):
                raise

    async def leave(self, at: Address) -> None:
        if at.thread is not None:
            raise Rejected("a topic cannot be left by itself, only the whole group")

        async def leave_chat(bot: TelegramBot, chat: int) -> None:
            if chat > 0:
                raise Rejected("a private chat cannot be left; block whoever is in it instead")
            await bot.leave_chat(chat, rate_limit_args="action")

        try:
            await self._run(at, leave_chat)
        except Rejected as refused:
            if not any(text in refused.reason.casefold() for text in _NOT_IN_CHAT):
                raise

    async def set_topic(self, at: Address, topic: str) -> None:
        """Change the name of a forum's topic, or the description of a group."""
        new, topic_id = single_line(topic, len(topic)), parse_topic_id(at)
        max_chars = _DESCRIPTION_CHARS if topic_id is None else _TOPIC_CHARS
        if utf16_length(new) > max_chars:
            raise Rejected(f"it may have {max_chars} characters there, and has {utf16_length(new)}")
        if topic_id is not None and not new:
            raise Rejected("a topic needs a name")

        async def change(bot: TelegramBot, chat: int) -> None:
            if topic_id is not None:
                await bot.edit_forum_topic(chat, topic_id, name=new, rate_limit_args="action")
            elif chat > 0:
                raise Rejected("a private chat has no topic")
            else:
                await bot.set_chat_description(chat, new, rate_limit_args="action")

        await self._change(at, change)

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        own_id = self._connected.reader.context.own_id

        async def fetch(bot: TelegramBot, chat: int) -> RoomMembers:
            if chat > 0:
                name = full_name(await bot.get_chat(chat, rate_limit_args="action"))
                return RoomMembers(
                    members=(Sender(id=SenderId(str(chat)), name=name, verified=True),), total=2
                )
            managers = await bot.get_chat_administrators(chat, rate_limit_args="action")
            found = tuple(
                parse_user(member.user) for member in managers if member.user.id != own_id
            )
            total = int(await bot.get_chat_member_count(chat, rate_limit_args="action"))
            return RoomMembers(
                members=found[: max(0, most)],
                total=total,
                note="Telegram tells bots only of administrators.",
            )

        try:
            return await self._run(at, fetch)
        except (Rejected, RateLimited):
            raise
        except SendError as error:
            raise Unreachable(
                error.reason
            ) from None  # nothing was to be changed, so nothing is uncertain

    async def membership(self, at: Address, person: SenderId) -> Membership | None:
        """Ask Telegram, at most every `_MEMBERS_MAX_AGE_S` for one person in one chat.

        https://core.telegram.org/bots/api#getchatmember "is only guaranteed to work for other users
        if the bot is an administrator in the chat". Where Telegram does not tell, nobody is a
        member.
        """
        outgoing = self._outgoing
        if (
            outgoing is None
            or at.channel != self.name
            or not (person.isascii() and person.isdigit())
        ):
            return None
        try:
            chat = outgoing.chat_id(at)
        except SendError:
            return None
        bot, user = outgoing.api.bot, int(person)

        async def is_member() -> bool:
            member = await bot.get_chat_member(chat, user, rate_limit_args="action")
            return member.user.id == user and is_present(member)

        async def is_history_visible() -> bool:
            return shows_history(await bot.get_chat(chat, rate_limit_args="action"))

        if chat > 0 or not await self._members.get((chat, user), lambda: self._ask(is_member)):
            return None
        return (
            "reads_all"
            if await self._histories.get(chat, lambda: self._ask(is_history_visible))
            else "reads_new"
        )

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT | None:
        """Return the answer. None: there is none in time, or it cannot be read."""
        try:
            return await with_timeout(self._clock, MEMBERSHIP_TIMEOUT_S / 2, question())
        except Exception as error:  # noqa: BLE001 - of the network, of the API, or an unreadable answer
            reason = self._outgoing.api.redact(error) if self._outgoing else ""
            logger.info(
                "%s: who is in a chat is not told: %s", self.name, reason or type(error).__name__
            )
            return None

    async def _change(
        self, at: Address, act: Callable[[TelegramBot, int], Awaitable[None]]
    ) -> None:
        """Do `act`; no error if there is nothing to change. Raises `SendError`."""

        async def change(bot: TelegramBot, chat: int) -> None:
            try:
                await act(bot, chat)
            except BadRequest as error:
                if not _is_unchanged(error):
                    raise

        await self._run(at, change)

    async def _run(
        self, at: Address, act: Callable[[TelegramBot, int], Awaitable[ResultT]]
    ) -> ResultT:
        """Return the result of `act`, done again with the new chat if the group has moved. Raises
        `SendError`.
        """
        outgoing = self._connected
        try:
            chat = outgoing.chat_id(at)
            try:
                return await act(outgoing.api.bot, chat)
            except ChatMigrated as error:
                outgoing.record_move(chat, error)
                return await act(outgoing.api.bot, outgoing.chat_id(at))
        except Exception as error:  # noqa: BLE001 - translated to a SendError
            raise outgoing.api.to_send_error(error) from None


async def _fetch_file(api: TelegramApi, file: File, limit_bytes: int) -> bytes:
    _check_size(file.file_size, limit_bytes)
    # A server in local mode answers with a path of its own machine, which the library would open.
    if not (file.file_path or "").startswith(api.file_base_url):
        raise Rejected("the Bot API server keeps its files to itself")
    try:
        data = bytes(await file.download_as_bytearray())
    except InvalidToken:
        raise Rejected("the file is gone") from None
    _check_size(len(data), limit_bytes)
    return data


def _check_size(size_bytes: int | None, limit_bytes: int) -> None:
    if size_bytes is not None and size_bytes > limit_bytes:
        raise Rejected(f"larger than {limit_bytes} bytes")


def _is_unchanged(error: BadRequest) -> bool:
    return "not modified" in str(error).casefold().replace("_", " ")


def _is_gone(refused: Rejected) -> bool:
    return refused.reason.casefold().endswith(
        ("message to react not found", "to delete not found", "to edit not found")
    )
