"""The methods of the fake Bot API: what a bot may ask, and what becomes of it.

After core.telegram.org/bots/api#updating-messages, #setmessagereaction and #deletemessage; the
words of the refusals are those of tdlib/td and tdlib/telegram-bot-api, as bots report them. Flood
limits are those of core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this: about 1
message a second in one chat, 20 a minute in one group, 30 a second overall. Telegram keeps the
exact rules to itself; these are windows that slide, with `chat_burst` messages at once allowed in
one chat.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from reverie.testing.servers.bot_api_http import Json, Upload
from reverie.testing.servers.bot_api_world import (
    MAX_CAPTION,
    MAX_TEXT,
    ApiError,
    Chat,
    Shown,
    Updates,
    World,
    checked,
    complete,
    keyboard,
    units,
)


@dataclass(slots=True, kw_only=True)
class Flood:
    """Limits in force. `hits` counts the refusals by chat."""

    chat_burst: int = 1
    chat_s: float = 1.0
    group_per_min: int = 20
    overall_per_s: int = 30
    hits: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _chats: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _groups: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _all: deque[float] = field(default_factory=deque)

    def spend(self, chat: Chat) -> None:
        """Count one message, or raise `ApiError` 429."""
        now = time.monotonic()
        windows = [
            (self._chats[chat.id], self.chat_burst, self.chat_s),
            (self._all, self.overall_per_s, 1.0),
        ]
        if not chat.private:
            windows.append((self._groups[chat.id], self.group_per_min, 60.0))
        wait_s = 0.0
        for sent, most, window_s in windows:
            while sent and sent[0] <= now - window_s:
                sent.popleft()
            if len(sent) >= most:
                wait_s = max(wait_s, sent[0] + window_s - now)
        if wait_s > 0:
            self.hits[chat.id] += 1
            whole_s = max(1, math.ceil(wait_s))
            raise ApiError(429, f"Too Many Requests: retry after {whole_s}", retry_after=whole_s)
        for sent, _, _ in windows:
            sent.append(now)


_REACTIONS = (
    "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤‍🔥 "
    "🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨‍💻 👀 🎃 🙈 😇 😨 "
    "🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷‍♂ 🤷 🤷‍♀ 😡 "
)
REACTIONS = frozenset(_REACTIONS.split())
"""core.telegram.org/bots/api#reactiontypeemoji. None has a variation selector; with one, it is the
same to Telegram."""
MAX_UPLOAD_BYTES = 50_000_000
_DELETABLE_S = 48 * 3600
MAX_ANSWER = 200
"""core.telegram.org/bots/api#answercallbackquery."""
_UNMODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are "
    "exactly the same as a current content and reply markup of the message"
)

Asked = Json


class Acts:
    """Calls by name; a mixin of `Methods`."""

    world: World
    updates: Updates
    flood: Flood | None

    async def send_document(self, asked: Asked) -> Json:
        chat, thread = self._place(asked)
        file = asked.get("document")
        if not isinstance(file, Upload):
            raise ApiError(400, "Bad Request: there is no document in the request")
        if len(file.content) > MAX_UPLOAD_BYTES:
            raise ApiError(413, "Request Entity Too Large")
        if not file.content:
            raise ApiError(400, "Bad Request: file must be non-empty")
        file_id = f"sent{len(self.world.files)}"
        self.world.files[file_id] = (f"documents/{file_id}", file.content)
        told = {
            "file_id": file_id,
            "file_unique_id": file_id,
            "file_name": file.name,
            "mime_type": file.kind,
        }
        content: Json = {"document": told}
        if asked.get("caption"):
            content["caption"] = checked(
                asked["caption"], asked.get("caption_entities"), MAX_CAPTION
            )
            content["caption_entities"] = asked.get("caption_entities") or []
        return self._say(chat, thread, asked, content)

    async def edit_message_text(self, asked: Asked) -> Json:
        return self._edit(asked, "text", "entities", MAX_TEXT)

    async def edit_message_caption(self, asked: Asked) -> Json:
        return self._edit(asked, "caption", "caption_entities", MAX_CAPTION)

    async def edit_message_reply_markup(self, asked: Asked) -> Json:
        _, shown = self._own(asked, "message to edit", "message can't be edited")
        wanted = keyboard(asked.get("reply_markup"))
        if shown.buttons == wanted:
            raise ApiError(400, _UNMODIFIED)
        shown.buttons = wanted
        return shown.body

    async def delete_message(self, asked: Asked) -> bool:
        """Also what others wrote, where the bot is an administrator."""
        chat = self.world.chat(asked.get("chat_id"))
        shown = self.world.message(chat, asked.get("message_id"), "message to delete")
        if not shown.by_bot and not chat.admin:
            raise ApiError(400, "Bad Request: message can't be deleted")
        if shown.body["date"] < time.time() - _DELETABLE_S:
            raise ApiError(400, "Bad Request: message can't be deleted for everyone")
        del chat.shown[shown.id]
        return True

    async def set_message_reaction(self, asked: Asked) -> bool:
        chat = self.world.chat(asked.get("chat_id"))
        shown = self.world.message(chat, asked.get("message_id"), "message to react")
        wanted = asked.get("reaction") or []
        if len(wanted) > 1:
            raise ApiError(400, "Bad Request: REACTIONS_TOO_MANY")
        taken = REACTIONS if chat.reactions is None else chat.reactions
        for one in wanted:
            emoji = (
                one.get("emoji", "").replace("\ufe0f", "") if one.get("type") == "emoji" else None
            )
            if emoji is None or emoji not in taken:  # custom ones must stand on the message already
                raise ApiError(400, "Bad Request: REACTION_INVALID")
        shown.reaction = wanted
        return True

    async def leave_chat(self, asked: Asked) -> bool:
        """Telegram tells the bot of it, too (#chatmemberupdated)."""
        chat = self.world.chat(asked.get("chat_id"))
        if chat.private:
            raise ApiError(400, "Bad Request: chat member status can't be changed in private chats")
        chat.left = True
        body: Json = {"chat": chat.body, "from": self.world.bot.body, "date": int(time.time())}
        sides = {
            name: {"user": self.world.bot.body, "status": status}
            for name, status in (("old_chat_member", "member"), ("new_chat_member", "left"))
        }
        self.updates.put("my_chat_member", body | sides)
        return True

    async def set_chat_description(self, asked: Asked) -> bool:
        chat = self.world.chat(asked.get("chat_id"))
        if chat.private:
            raise ApiError(400, "Bad Request: can't change private chat description")
        if not chat.admin:
            raise ApiError(400, "Bad Request: not enough rights to set chat description")
        wanted = asked.get("description", "")[:255]  # Telegram cuts what is longer
        if wanted == chat.description:
            raise ApiError(400, "Bad Request: chat description is not modified")
        chat.description = wanted
        return True

    async def edit_forum_topic(self, asked: Asked) -> bool:
        chat, thread = self._place(asked)
        if not chat.forum or thread is None:
            raise ApiError(400, "Bad Request: the chat is not a forum")
        if not chat.admin:
            raise ApiError(400, "Bad Request: not enough rights to manage topics")
        wanted = asked.get("name", "")
        if not wanted or units(wanted) > 128:
            raise ApiError(
                400,
                "Bad Request: TOPIC_TITLE_INVALID" if wanted else "Bad Request: TOPIC_TITLE_EMPTY",
            )
        if wanted == chat.topics[thread]:
            raise ApiError(400, "Bad Request: TOPIC_NOT_MODIFIED")
        chat.topics[thread] = wanted
        return True

    async def get_chat_administrators(self, asked: Asked) -> list[Json]:
        chat = self.world.chat(asked.get("chat_id"))
        if chat.private:
            raise ApiError(400, "Bad Request: there are no administrators in the private chat")
        ours = [self.world.bot] if chat.admin else []
        return [
            complete({"status": "administrator", "user": person.body})
            for person in (*chat.administrators, *ours)
        ]

    async def get_chat_member(self, asked: Asked) -> Json:
        """Of others only where the bot is an administrator
        (core.telegram.org/bots/api#getchatmember).
        """
        chat, user = self.world.chat(asked.get("chat_id")), int(str(asked.get("user_id")))
        if chat.left:
            raise ApiError(403, "Forbidden: bot is not a member of the supergroup chat")
        if user == self.world.bot.id:
            status = "administrator" if chat.admin else "member"
            ours: Json = {
                "status": "restricted" if chat.muted else status,
                "user": self.world.bot.body,
            }
            ours |= {"can_send_messages": False} if chat.muted else {}
            member: Json = complete(ours)
            return member
        if chat.private or user not in self.world.people:
            raise ApiError(400, "Bad Request: member not found")
        if not chat.admin:
            raise ApiError(400, "Bad Request: CHAT_ADMIN_REQUIRED")
        return self.world.member(chat, self.world.people[user])

    async def get_chat_member_count(self, asked: Asked) -> int:
        return self.world.chat(asked.get("chat_id")).members

    def _edit(self, asked: Asked, text: str, marks: str, limit: int) -> Json:
        chat, shown = self._own(asked, "message to edit", "message can't be edited")
        if text == "text" and "text" not in shown.body:
            raise ApiError(400, "Bad Request: there is no text in the message to edit")
        if text == "caption" and "text" in shown.body:
            raise ApiError(400, "Bad Request: there is no caption in the message to edit")
        new, entities = checked(asked.get(text), asked.get(marks), limit), asked.get(marks) or []
        wanted = keyboard(asked.get("reply_markup"))
        if (new, entities, wanted) == (shown.text, shown.body.get(marks, []), shown.buttons):
            raise ApiError(400, _UNMODIFIED)
        self._spend(chat)
        shown.text, shown.edits = new, shown.edits + 1
        shown.body |= {text: new, marks: entities, "edit_date": shown.body["date"]}
        shown.buttons = wanted
        return shown.body

    def _place(self, asked: Asked) -> tuple[Chat, int | None]:
        chat = self.world.chat(asked.get("chat_id"))
        return chat, self.world.thread(chat, asked.get("message_thread_id"))

    def _own(self, asked: Asked, what: str, not_ours: str) -> tuple[Chat, Shown]:
        chat = self.world.chat(asked.get("chat_id"))
        shown = self.world.message(chat, asked.get("message_id"), what)
        if not shown.by_bot:
            raise ApiError(400, f"Bad Request: {not_ours}")
        return chat, shown

    def _say(self, chat: Chat, thread: int | None, asked: Asked, content: Json) -> Json:
        if chat.muted or (chat.members_muted and not chat.admin):
            raise ApiError(400, "Bad Request: not enough rights to send text messages to the chat")
        reply = asked.get("reply_parameters") or {}
        replied = chat.shown.get(reply.get("message_id", 0))
        if thread is None and replied is not None and chat.forum:
            thread = replied.thread  # https://github.com/tdlib/telegram-bot-api/issues/447
        if thread in chat.closed_topics:
            raise ApiError(400, "Bad Request: TOPIC_CLOSED")
        if reply and replied is None and not reply.get("allow_sending_without_reply"):
            raise ApiError(400, "Bad Request: message to be replied not found")
        buttons = keyboard(asked.get("reply_markup"))
        self._spend(chat)
        body = self.world.body(
            chat, self.world.bot, content, thread, reply_to_message=replied and replied.body
        )
        shown = self.world.show(chat, body)
        shown.parse_mode, shown.buttons = asked.get("parse_mode"), buttons
        return body

    def _spend(self, chat: Chat) -> None:
        if self.flood is not None:
            self.flood.spend(chat)


_ACTIONS = (
    "typing upload_photo record_video upload_video record_voice upload_voice upload_document "
    "choose_sticker find_location record_video_note upload_video_note"
)
ACTIONS = frozenset(_ACTIONS.split())
_GIFTS = "unlimited_gifts limited_gifts unique_gifts premium_subscription gifts_from_channels"
MAX_DOWNLOAD_BYTES = 20_000_000


class Methods(Acts):
    """Calls by name."""

    def __init__(self, world: World, updates: Updates) -> None:
        self.world, self.updates = world, updates
        self.flood: Flood | None = None
        self.commands: dict[str, list[Json]] = {}
        """Scope and language as one string -> what `setMyCommands` said."""
        self._table: dict[str, Callable[[Asked], Awaitable[Any]]] = {
            name.replace("_", ""): getattr(self, name)
            for name in dir(self)
            if not name.startswith("_")
            and name not in ("call", "world", "updates", "flood", "commands")
        }

    async def call(self, method: str, asked: Asked, uploads: dict[str, Upload]) -> Any:
        """The result. Raises `ApiError`. Names are taken in any case, as Telegram does."""
        found = self._table.get(method.lower())
        if found is None:
            raise ApiError(404, "Not Found")
        return await found(asked | uploads)

    async def get_me(self, _: Asked) -> Json:
        bot = self.world.bot.body
        more = {"can_join_groups": True, "can_read_all_group_messages": self.world.sees_all}
        return (
            bot
            | more
            | {"supports_inline_queries": False, "has_topics_enabled": self.world.has_topics}
        )

    async def get_updates(self, asked: Asked) -> list[Any]:
        offset, limit, timeout_s = (
            asked.get("offset", 0),
            asked.get("limit", 100),
            asked.get("timeout", 0),
        )
        whole = all(type(number) is int for number in (offset, limit, timeout_s))
        if not whole or not _list_or_none(asked.get("allowed_updates")):
            raise ApiError(400, "Bad Request: strict: wrong type of a parameter of getUpdates")
        return await self.updates.get(offset, limit, timeout_s, asked.get("allowed_updates"))

    async def set_webhook(self, asked: Asked) -> bool:
        url = asked.get("url", "")
        if not url.startswith(("https://", "http://127.0.0.1:")):
            raise ApiError(
                400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook"
            )
        self.updates.set_hook(asked, drop_pending=asked.get("drop_pending_updates") is True)
        return True

    async def delete_webhook(self, asked: Asked) -> bool:
        self.updates.set_hook(None, drop_pending=asked.get("drop_pending_updates") is True)
        return True

    async def get_webhook_info(self, _: Asked) -> Json:
        hook = self.updates.hook or {}
        told = {"url": hook.get("url", ""), "has_custom_certificate": False}
        allowed = {"allowed_updates": sorted(self.updates.allowed)} if self.updates.allowed else {}
        return told | allowed | {"pending_update_count": len(self.updates.pending)}

    async def set_my_commands(self, asked: Asked) -> bool:
        for row in asked["commands"]:
            name, told = row["command"], row["description"]
            if not (
                1 <= len(name) <= 32
                and name.isascii()
                and name == name.lower()
                and name.isidentifier()
            ):
                raise ApiError(400, "Bad Request: BOT_COMMAND_INVALID")
            if not 1 <= len(told) <= 256:
                raise ApiError(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        if len(asked["commands"]) > 100:
            raise ApiError(400, "Bad Request: too many commands specified")
        self.commands[self._scope(asked)] = asked["commands"]
        return True

    async def delete_my_commands(self, asked: Asked) -> bool:
        self.commands.pop(self._scope(asked), None)
        return True

    def _scope(self, asked: Asked) -> str:
        scope = asked.get("scope") or {"type": "default"}
        if scope["type"] == "chat" and int(scope["chat_id"]) not in self.world.chats:
            raise ApiError(400, "Bad Request: chat not found")
        rest = (str(scope[key]) for key in sorted(scope) if key != "type")
        return "/".join((scope["type"], *rest, asked.get("language_code", "")))

    async def send_chat_action(self, asked: Asked) -> bool:
        chat, _ = self._place(asked)
        if asked.get("action") not in ACTIONS:
            raise ApiError(400, "Bad Request: wrong parameter action in request")
        chat.actions.append(asked["action"])
        return True

    async def send_message(self, asked: Asked) -> Json:
        chat, thread = self._place(asked)
        text = checked(asked.get("text"), asked.get("entities"))
        entities = asked.get("entities") or None
        return self._say(
            chat, thread, asked, {"text": text} | ({"entities": entities} if entities else {})
        )

    async def send_message_draft(self, asked: Asked) -> bool:
        chat, _ = self._place(asked)
        if not chat.private:
            raise ApiError(400, "Bad Request: TEXTDRAFT_PEER_INVALID")
        if type(asked.get("draft_id")) is not int or asked["draft_id"] == 0:
            raise ApiError(400, "Bad Request: TEXTDRAFT_ID_INVALID")
        if asked.get("text"):
            checked(asked["text"], asked.get("entities"))
        chat.drafts.append((asked["draft_id"], asked.get("text", "")))
        return True

    async def answer_callback_query(self, asked: Asked) -> bool:
        query = asked.get("callback_query_id", "")
        if self.world.callbacks.get(query, {}) is not None:
            raise ApiError(
                400,
                "Bad Request: query is too old and response timeout expired or query ID is invalid",
            )
        if units(asked.get("text", "")) > MAX_ANSWER:
            raise ApiError(400, "Bad Request: MESSAGE_TOO_LONG")
        if type(asked.get("show_alert", False)) is not bool:
            raise ApiError(400, "Bad Request: strict: show_alert is true or false")
        self.world.callbacks[query] = asked
        return True

    async def get_file(self, asked: Asked) -> Json:
        found = self.world.files.get(asked.get("file_id", ""))
        if found is None:
            raise ApiError(400, "Bad Request: invalid file_id")
        path, content = found
        if len(content) > MAX_DOWNLOAD_BYTES:
            raise ApiError(400, "Bad Request: file is too big")
        return {
            "file_id": asked["file_id"],
            "file_unique_id": path,
            "file_size": len(content),
            "file_path": path,
        }

    async def get_chat(self, asked: Asked) -> Json:
        chat = self.world.chat(asked.get("chat_id"))
        visible = {"has_visible_history": True} if chat.admin and chat.history_visible else {}
        return (
            chat.body
            | visible
            | {"permissions": {"can_send_messages": not chat.members_muted}}
            | {
                "accent_color_id": 0,
                "max_reaction_count": 11,
                "accepted_gift_types": dict.fromkeys(_GIFTS.split(), True),
            }
        )


def _list_or_none(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )
