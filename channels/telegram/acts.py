"""What we do to messages and places besides sending: reactions, edits, topics, and looking who is there.

All of it may be repeated, so a cut leaves nothing worse than not knowing. None of it takes a message's place: where
Telegram asks for quiet, it is refused at once instead of waiting.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from telegram import ReactionTypeCustomEmoji, ReactionTypeEmoji
from telegram.constants import ReactionEmoji
from telegram.error import BadRequest, ChatMigrated

from channels.base import RateLimited, Rejected, RoomMembers, SendError, Unreachable
from channels.payload import Json, get_int, get_object, get_objects
from channels.telegram.calls import TelegramApi
from channels.telegram.ids import parse_message_number
from channels.telegram.outgoing import NO_LINK_PREVIEW, TelegramOutgoing, parse_topic_id, to_entities
from channels.telegram.people import parse_user
from channels.telegram.render import MAX_CAPTION_UNITS, TelegramText, render, utf16_length
from channels.text import single_line
from gateway.clock import Clock
from gateway.events import Address, MessageId

_DESCRIPTION_CHARS, _TOPIC_CHARS = 255, 128
"""core.telegram.org/bots/api#setchatdescription, #editforumtopic."""
_MAX_REACTIONS = 1000
_NO_SELECTOR = str.maketrans("", "", "\ufe0f")
"""Telegram writes most emoji without the selector that asks for a picture, and people's keyboards with it."""
_KNOWN_REACTIONS = {emoji.value.translate(_NO_SELECTOR): emoji.value for emoji in ReactionEmoji}
_EXAMPLE_REACTIONS = "👍 👎 ❤ 🔥 👏 😁 🤔 🎉 🙏 👀 💯 🤝"
_NOT_IN_CHAT = ("chat not found", "bot is not a member", "bot was kicked")
"""How Telegram says that we are not there."""
_ADMINISTRATORS_NOTE = "Telegram tells bots only of administrators."

ResultT = TypeVar("ResultT")


class TelegramActions:
    """Of one account."""

    def __init__(self, api: TelegramApi, clock: Clock, outgoing: TelegramOutgoing, me: int) -> None:
        self._api, self._clock, self._outgoing, self._own_id = api, clock, outgoing, me
        self._reactions: OrderedDict[tuple[int, int], str] = OrderedDict()
        """What we put on messages lately: a bot has one reaction on each, and another takes its place."""

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        """As `CanReact`."""
        asked = single_line(reaction, len(reaction))
        emoji = _KNOWN_REACTIONS.get(asked.translate(_NO_SELECTOR), asked)
        kind = ReactionTypeCustomEmoji if emoji.isascii() and emoji.isdigit() else ReactionTypeEmoji
        if not emoji:
            raise Rejected("a reaction is an emoji")

        async def put(chat: int) -> None:
            number = _message_number_in(at, chat, message)
            if not add and self._reactions.get((chat, number), emoji) != emoji:
                return
            await self._api.bot.set_message_reaction(chat, number, [kind(emoji)] if add else [])
            self._reactions[chat, number] = emoji if add else ""
            while len(self._reactions) > _MAX_REACTIONS:
                self._reactions.popitem(last=False)

        try:
            await self._run(at, put)
        except Rejected as refused:
            if "reaction_invalid" in refused.reason.casefold():
                raise Rejected(
                    f"Telegram does not take {emoji[:16]} here; it knows few, such as {_EXAMPLE_REACTIONS}"
                ) from None
            if add or not _is_gone(refused):
                raise

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        """As `CanEdit`."""
        (new, *more) = render(text) if text.strip() else [TelegramText(text="")]
        if not text.strip() or more:
            raise Rejected("the text is too long for one message" if more else "a message needs text")

        async def write() -> None:
            try:
                await self._retry_if_moved(at, change)
            except BadRequest as error:
                if not _is_unchanged(error):
                    raise

        async def change(chat: int) -> None:
            number, bot, marks = _message_number_in(at, chat, message), self._api.bot, to_entities(new.spans)
            try:
                await bot.edit_message_text(
                    new.text, chat, number, entities=marks, link_preview_options=NO_LINK_PREVIEW
                )
            except BadRequest as error:
                if "no text in the message" not in str(error):
                    raise
                if utf16_length(new.text) > MAX_CAPTION_UNITS:
                    raise Rejected(f"the text under a file has at most {MAX_CAPTION_UNITS} characters") from None
                await bot.edit_message_caption(chat, number, caption=new.text, caption_entities=marks)

        await self._outgoing.run_paced(at, write)  # Telegram counts edits with the messages of a chat

    async def delete(self, at: Address, message: MessageId) -> None:
        """As `CanDelete`."""

        async def take(chat: int) -> None:
            number, bot = _message_number_in(at, chat, message), self._api.bot
            # An administrator may delete what others wrote; only our own can be edited, if only to what it is.
            try:
                await bot.edit_message_reply_markup(chat, number)
            except BadRequest as error:
                if not _is_unchanged(error):
                    raise
            await bot.delete_message(chat, number)

        try:
            await self._run(at, take)
        except Rejected as refused:
            if "can't be edited" in refused.reason:
                raise Rejected("that is not a message of ours, or no longer ours to take back") from None
            if "can't be deleted" in refused.reason:
                raise Rejected("Telegram lets nobody take it back any more: it is older than 48 hours") from None
            if not _is_gone(refused):
                raise

    async def leave(self, at: Address) -> None:
        """As `CanLeave`."""
        if at.thread is not None:
            raise Rejected("a topic cannot be left by itself, only the whole group")

        async def go(chat: int) -> None:
            if chat > 0:
                raise Rejected("a private chat cannot be left; block whoever is in it instead")
            await self._api.bot.leave_chat(chat)

        try:
            await self._run(at, go)
        except Rejected as refused:
            if not any(said in refused.reason.casefold() for said in _NOT_IN_CHAT):
                raise

    async def set_topic(self, at: Address, topic: str) -> None:
        """As `CanSetTopic`: the name of a forum's topic, the description of a group."""
        new, topic_id = single_line(topic, len(topic)), parse_topic_id(at)
        most = _DESCRIPTION_CHARS if topic_id is None else _TOPIC_CHARS
        if utf16_length(new) > most:
            raise Rejected(f"it may have {most} characters there, and has {utf16_length(new)}")
        if topic_id is not None and not new:
            raise Rejected("a topic needs a name")

        async def change(chat: int) -> None:
            if chat > 0 and topic_id is None:
                raise Rejected("a private chat has no topic")
            bot = self._api.bot
            try:
                if topic_id is None:
                    await bot.set_chat_description(chat, new)
                else:
                    await bot.edit_forum_topic(chat, topic_id, name=new)
            except BadRequest as error:
                if not _is_unchanged(error):
                    raise

        await self._run(at, change)

    async def list_members(self, at: Address, most: int) -> RoomMembers:
        """As `CanList`."""

        async def ask(chat: int) -> RoomMembers:
            if chat > 0:
                with_us = parse_user(get_object(await self._call_method("getChat", chat), "told"))
                return RoomMembers(members=(with_us,) if with_us else (), total=2)
            members = [
                get_object(one, "user")
                for one in get_objects(await self._call_method("getChatAdministrators", chat), "told")
            ]
            found = [who for one in members if (who := parse_user(one)) and who.id != str(self._own_id)]
            total = get_int(await self._call_method("getChatMemberCount", chat), "told")
            return RoomMembers(members=tuple(found[: max(0, most)]), total=total, note=_ADMINISTRATORS_NOTE)

        try:
            return await self._run(at, ask)
        except (Rejected, RateLimited):
            raise
        except SendError as error:
            raise Unreachable(error.reason) from None  # nothing was to be changed, so nothing is uncertain

    async def _call_method(self, method: str, chat: int) -> Json:
        """The answer, as `told`."""
        # Not by the library's methods, which insist on every field.
        bot = self._api.bot
        return {"told": await self._api.await_call(bot.request.post(f"{bot.base_url}/{method}?chat_id={chat}"))}

    async def _run(self, at: Address, act: Callable[[int], Awaitable[ResultT]]) -> ResultT:
        """What `act` gives, told where the chat is. Raises `SendError`."""
        chat, now_s = self._outgoing.chat_id(at), self._clock.monotonic()
        if wait_s := self._outgoing.pacer.quiet_s(chat, now_s):
            raise RateLimited("Telegram asks for quiet in this chat", retry_after_s=wait_s)
        try:
            return await self._retry_if_moved(at, act)
        except Exception as error:  # noqa: BLE001 - said as what it means
            verdict = self._api.to_send_error(error)
            if isinstance(verdict, RateLimited):
                self._outgoing.pacer.hold_optional(chat, self._clock.monotonic() + verdict.retry_after_s)
            raise verdict from None

    async def _retry_if_moved(self, at: Address, act: Callable[[int], Awaitable[ResultT]]) -> ResultT:
        """The same, once more where a group has moved to."""
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
