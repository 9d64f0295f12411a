"""Actions other than sending: reactions, edits, deletion, topics, members, and the command menus.

All of them are repeatable, so an interrupted one is at worst uncertain. None of them takes a message's place: where
Telegram demands a pause, they are refused at once instead of waiting.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal, TypeVar

from telegram import (
    BotCommand,
    BotCommandScope,
    BotCommandScopeAllGroupChats,
    BotCommandScopeAllPrivateChats,
    BotCommandScopeChat,
    BotCommandScopeDefault,
    ReactionTypeCustomEmoji,
    ReactionTypeEmoji,
)
from telegram.constants import ReactionEmoji
from telegram.error import BadRequest, ChatMigrated, RetryAfter, TelegramError

from channels.base import CommandSpec, RateLimited, Rejected, RoomMembers, SendError, Unreachable
from channels.split import utf16_length
from channels.telegram.api import TelegramApi
from channels.telegram.ids import parse_message_number
from channels.telegram.outgoing import NO_LINK_PREVIEW, TelegramOutgoing, parse_topic_id, to_entities
from channels.telegram.people import full_name, parse_user
from channels.telegram.rate_limit import HandOver
from channels.telegram.render import MAX_CAPTION_UNITS, TelegramText, render
from channels.text import single_line
from gateway.core.events import Address, ChannelName, MessageId, Sender, SenderId
from gateway.core.ratelimit import LruDict

logger = logging.getLogger("reverie.telegram")
_DESCRIPTION_CHARS, _TOPIC_CHARS = 255, 128
"""core.telegram.org/bots/api#setchatdescription, #editforumtopic."""
_MAX_REACTIONS = 1000
_NO_SELECTOR = str.maketrans("", "", "\ufe0f")
"""Removes the emoji presentation selector: Telegram writes most emoji without it, keyboards with it."""
_KNOWN_REACTIONS = {emoji.value.translate(_NO_SELECTOR): emoji.value for emoji in ReactionEmoji}
_EXAMPLE_REACTIONS = "👍 👎 ❤ 🔥 👏 😁 🤔 🎉 🙏 👀 💯 🤝"
_NOT_IN_CHAT = ("chat not found", "bot is not a member", "bot was kicked")
"""Texts of Telegram's errors that mean that we are not in the chat."""
_ADMINISTRATORS_NOTE = "Telegram tells bots only of administrators."

ResultT = TypeVar("ResultT")


class TelegramActions:
    """Actions of one account."""

    def __init__(self, api: TelegramApi, outgoing: TelegramOutgoing, own_id: int) -> None:
        self._api, self._outgoing, self._own_id = api, outgoing, own_id
        self._reactions = LruDict[tuple[int, int], str](_MAX_REACTIONS)
        """Our recent reactions by message: a bot has one on each, and a new one replaces it."""

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        text = single_line(reaction, len(reaction))
        emoji = _KNOWN_REACTIONS.get(text.translate(_NO_SELECTOR), text)
        kind = ReactionTypeCustomEmoji if emoji.isascii() and emoji.isdigit() else ReactionTypeEmoji
        if not emoji:
            raise Rejected("a reaction is an emoji")

        async def put(chat: int) -> None:
            number = _message_number_in(at, chat, message)
            if not add and self._reactions.get((chat, number), emoji) != emoji:
                return
            reactions = [kind(emoji)] if add else []
            await self._api.bot.set_message_reaction(chat, number, reactions, rate_limit_args="action")
            self._reactions.put((chat, number), emoji if add else "")

        try:
            await self._run(at, put)
        except Rejected as error:
            if "reaction_invalid" in error.reason.casefold():
                raise Rejected(
                    f"Telegram does not take {emoji[:16]} here; it knows few, such as {_EXAMPLE_REACTIONS}"
                ) from None
            if add or not _is_gone(error):
                raise

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        (new, *more) = render(text) if text.strip() else [TelegramText(text="")]
        if not text.strip() or more:
            raise Rejected("the text is too long for one message" if more else "a message needs text")

        edit = HandOver()  # Telegram counts edits with the messages of a chat

        async def change(chat: int) -> None:
            number, bot, marks = _message_number_in(at, chat, message), self._api.bot, to_entities(new.spans)
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
                if _is_unchanged(error):
                    return
                if "no text in the message" not in str(error):
                    raise
                if utf16_length(new.text) > MAX_CAPTION_UNITS:
                    raise Rejected(f"the text under a file has at most {MAX_CAPTION_UNITS} characters") from None
                await self._change_caption(chat, number, new, edit)

        async with self._outgoing.lock(at):
            await self._run(at, change)

    async def _change_caption(self, chat: int, number: int, new: TelegramText, edit: HandOver) -> None:
        try:
            await self._api.bot.edit_message_caption(
                chat, number, caption=new.text, caption_entities=to_entities(new.spans), rate_limit_args=edit
            )
        except BadRequest as error:
            if not _is_unchanged(error):
                raise

    async def delete(self, at: Address, message: MessageId) -> None:
        async def delete_own(chat: int) -> None:
            number, bot = _message_number_in(at, chat, message), self._api.bot
            # An administrator may delete other people's messages, but edit only its own: so an edit without a change
            # proves that the message is ours.
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
                raise Rejected("that is not a message of ours, or no longer ours to take back") from None
            if "can't be deleted" in rejection.reason:
                raise Rejected("Telegram lets nobody take it back any more: it is older than 48 hours") from None
            if not _is_gone(rejection):
                raise

    async def leave(self, at: Address) -> None:
        if at.thread is not None:
            raise Rejected("a topic cannot be left by itself, only the whole group")

        async def leave_chat(chat: int) -> None:
            if chat > 0:
                raise Rejected("a private chat cannot be left; block whoever is in it instead")
            await self._api.bot.leave_chat(chat, rate_limit_args="action")

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

        async def change(chat: int) -> None:
            if chat > 0 and topic_id is None:
                raise Rejected("a private chat has no topic")
            bot = self._api.bot
            try:
                if topic_id is None:
                    await bot.set_chat_description(chat, new, rate_limit_args="action")
                else:
                    await bot.edit_forum_topic(chat, topic_id, name=new, rate_limit_args="action")
            except BadRequest as error:
                if not _is_unchanged(error):
                    raise

        await self._run(at, change)

    async def list_members(self, at: Address, limit: int) -> RoomMembers:
        async def fetch(chat: int) -> RoomMembers:
            bot = self._api.bot
            if chat > 0:
                with_us = await bot.get_chat(chat, rate_limit_args="action")
                return RoomMembers(
                    members=(Sender(id=SenderId(str(chat)), name=full_name(with_us), verified=True),), total=2
                )
            managers = await bot.get_chat_administrators(chat, rate_limit_args="action")
            found = [parse_user(member.user) for member in managers if member.user.id != self._own_id]
            total = int(await bot.get_chat_member_count(chat, rate_limit_args="action"))
            return RoomMembers(members=tuple(found[: max(0, limit)]), total=total, note=_ADMINISTRATORS_NOTE)

        try:
            return await self._run(at, fetch)
        except (Rejected, RateLimited):
            raise
        except SendError as error:
            raise Unreachable(error.reason) from None  # nothing was to be changed, so nothing is uncertain

    async def _run(self, at: Address, act: Callable[[int], Awaitable[ResultT]]) -> ResultT:
        """Return the result of `act`, called with the chat's id. Raises `SendError`."""
        try:
            return await self._retry_if_moved(at, act)
        except Exception as error:  # noqa: BLE001 - translated to a SendError
            raise self._api.to_send_error(error) from None

    async def _retry_if_moved(self, at: Address, act: Callable[[int], Awaitable[ResultT]]) -> ResultT:
        """Call `act`, and once more with the new id if the group has moved."""
        chat = self._outgoing.chat_id(at)
        try:
            return await act(chat)
        except ChatMigrated as error:
            self._outgoing.record_move(chat, error)
            return await act(self._outgoing.chat_id(at))


def _message_number_in(at: Address, chat: int, message: MessageId) -> int:
    number = parse_message_number(message, str(chat), at.room)
    if number is None:
        raise Rejected("there is no such message in this chat")
    return number


def _is_unchanged(error: BadRequest) -> bool:
    return "not modified" in str(error).casefold().replace("_", " ")


def _is_gone(refused: Rejected) -> bool:
    return refused.reason.casefold().endswith(
        ("message to react not found", "to delete not found", "to edit not found")
    )


_MENU_TIMEOUT_S = 5.0
"""Receiving starts only after the menus are set."""
_MAX_COMMANDS, _MAX_SUMMARY_CHARS = 100, 256
"""https://core.telegram.org/bots/api#setmycommands and #botcommand."""
_MAX_CHATS: Final = 100
"""People with a menu of their own."""
_ROLE_ORDER: Final = ("blocked", "guest", "member", "admin", "owner")

Role = Literal["owner", "admin", "member", "guest"]
Menu = tuple[BotCommand, ...]


def build_menu(specs: Sequence[CommandSpec], role: Role, *, direct: bool) -> Menu:
    """Return the commands that a role may use there. Pure."""
    able = (
        spec
        for spec in specs
        if (direct or not spec.direct_only)
        and (
            _ROLE_ORDER.index(role) >= _ROLE_ORDER.index(spec.role) or (spec.own and direct and spec.role != "blocked")
        )
    )
    return tuple(BotCommand(spec.name, spec.summary[:_MAX_SUMMARY_CHARS] or spec.name) for spec in able)[:_MAX_COMMANDS]


class CommandMenus:
    """Command menus, shown by Telegram behind `/`, in the narrowest scope that fits.

    https://core.telegram.org/bots/api#botcommandscope: a private chat has its own menu, else that of all private chats;
    a group has that of all groups. A menu grants nothing: commands check permissions themselves.
    """

    def __init__(self, name: ChannelName, specs: Sequence[CommandSpec]) -> None:
        self._name, self._specs = name, tuple(specs)
        self._api: TelegramApi | None = None
        self._shown: dict[int, Menu] = {}
        """Chat -> its own menu as certainly set; missing: none."""
        self._wanted: dict[int, Menu] = {}
        self._lock = asyncio.Lock()

    async def start(self, api: TelegramApi) -> None:
        """Set the menus of all chats, now that Telegram is reachable. Failures are logged only."""
        self._api = api
        if not self._specs:
            return
        groups, alone = (build_menu(self._specs, "guest", direct=direct) for direct in (False, True))
        scopes: Iterable[tuple[BotCommandScope, Menu]] = (
            (BotCommandScopeDefault(), groups),
            (BotCommandScopeAllGroupChats(), groups),
            (BotCommandScopeAllPrivateChats(), alone),
        )
        try:
            async with asyncio.timeout(_MENU_TIMEOUT_S):
                for scope, wanted in scopes:
                    await _set_menu(api, scope, wanted)
        except (TelegramError, TimeoutError) as error:
            logger.warning("%s: the command menu is not set: %s", self._name, api.redact(error) or "no answer in time")

    def stop(self) -> None:
        """Stop setting menus: the connection ends."""
        self._api = None

    async def set_command_menus(self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]) -> None:
        """Set the menus of these people. One that cannot be set now is set with the next connection."""
        guest_menu = build_menu(self._specs, "guest", direct=True)
        wanted = dict[int, Menu]()
        for sender, role in sorted(to, key=lambda entry: -_ROLE_ORDER.index(entry[1])):
            menu = build_menu(self._specs, role, direct=True)
            if sender.id.isascii() and sender.id.isdigit() and menu != guest_menu:
                wanted.setdefault(int(sender.id), menu)
        self._wanted = dict(list(wanted.items())[:_MAX_CHATS])
        await self.sync()

    async def sync(self) -> None:
        """Set the menus of private chats that differ. Raises only cancellation."""
        async with self._lock:
            api, wanted = self._api, self._wanted
            if api is None:
                return
            outdated = dict[int, Menu]((chat, ()) for chat in self._shown if chat not in wanted)
            for chat, menu in (outdated | wanted).items():
                try:
                    await self._sync_chat(api, chat, menu)
                except RetryAfter as error:
                    logger.warning("%s: the menus of some chats are not set: %s", self._name, api.redact(error))
                    return
                except TelegramError as error:  # e.g. the person has never written to us: there is no such chat
                    logger.info("%s: the menu of a chat is not set: %s", self._name, api.redact(error))

    async def _sync_chat(self, api: TelegramApi, chat: int, wanted: Menu) -> None:
        if self._shown.get(chat) == wanted:
            return
        scope = BotCommandScopeChat(chat)
        if wanted:
            await _set_menu(api, scope, wanted)
            self._shown[chat] = wanted
        else:
            await api.await_call(api.bot.delete_my_commands(scope))
            self._shown.pop(chat, None)


async def _set_menu(api: TelegramApi, scope: BotCommandScope, wanted: Menu) -> None:
    """Set the menu if it differs. Raises TelegramError."""
    if tuple(await api.await_call(api.bot.get_my_commands(scope))) != wanted:
        await api.await_call(api.bot.set_my_commands(wanted, scope))
