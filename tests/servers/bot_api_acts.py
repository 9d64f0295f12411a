"""What a bot may do to messages and chats of the fake Bot API besides speaking: the rules, and Telegram's words.

After core.telegram.org/bots/api#updating-messages, #setmessagereaction and #deletemessage; the words of the refusals
are those of tdlib/td and tdlib/telegram-bot-api, as bots report them.
"""

import time

from tests.servers.bot_api_flood import Flood
from tests.servers.bot_api_http import Json, Upload
from tests.servers.bot_api_text import MAX_CAPTION, MAX_TEXT, ApiError, checked, units
from tests.servers.bot_api_updates import Updates
from tests.servers.bot_api_world import Chat, Shown, World, complete

_REACTIONS = (
    "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤‍🔥 "
    "🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨‍💻 👀 🎃 🙈 😇 😨 "
    "🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷‍♂ 🤷 🤷‍♀ 😡 "
)
REACTIONS = frozenset(_REACTIONS.split())
"""core.telegram.org/bots/api#reactiontypeemoji. None has a variation selector; with one, it is the same to Telegram."""
MAX_UPLOAD_BYTES = 50_000_000
_DELETABLE_S = 48 * 3600
_UNMODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are exactly "
    "the same as a current content and reply markup of the message"
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
        told = {"file_id": file_id, "file_unique_id": file_id, "file_name": file.name, "mime_type": file.kind}
        content: Json = {"document": told}
        if asked.get("caption"):
            content["caption"] = checked(asked["caption"], asked.get("caption_entities"), MAX_CAPTION)
            content["caption_entities"] = asked.get("caption_entities") or []
        return self._say(chat, thread, asked, content)

    async def edit_message_text(self, asked: Asked) -> Json:
        return self._edit(asked, "text", "entities", MAX_TEXT)

    async def edit_message_caption(self, asked: Asked) -> Json:
        return self._edit(asked, "caption", "caption_entities", MAX_CAPTION)

    async def edit_message_reply_markup(self, asked: Asked) -> Json:
        _, shown = self._own(asked, "message to edit", "message can't be edited")
        if shown.buttons == asked.get("reply_markup"):
            raise ApiError(400, _UNMODIFIED)
        shown.buttons = asked.get("reply_markup")
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
            emoji = one.get("emoji", "").replace("\ufe0f", "") if one.get("type") == "emoji" else None
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
            raise ApiError(400, "Bad Request: TOPIC_TITLE_INVALID" if wanted else "Bad Request: TOPIC_TITLE_EMPTY")
        if wanted == chat.topics[thread]:
            raise ApiError(400, "Bad Request: TOPIC_NOT_MODIFIED")
        chat.topics[thread] = wanted
        return True

    async def get_chat_administrators(self, asked: Asked) -> list[Json]:
        chat = self.world.chat(asked.get("chat_id"))
        if chat.private:
            raise ApiError(400, "Bad Request: there are no administrators in the private chat")
        ours = [self.world.bot] if chat.admin else []
        return [complete({"status": "administrator", "user": person.body}) for person in (*chat.administrators, *ours)]

    async def get_chat_member(self, asked: Asked) -> Json:
        """Only of the bot itself."""
        chat = self.world.chat(asked.get("chat_id"))
        if str(asked.get("user_id")) != str(self.world.bot.id):
            raise ApiError(400, "Bad Request: member not found")
        if chat.left:
            raise ApiError(403, "Forbidden: bot is not a member of the supergroup chat")
        member: Json = complete({"status": "administrator" if chat.admin else "member", "user": self.world.bot.body})
        return member

    async def get_chat_member_count(self, asked: Asked) -> int:
        return self.world.chat(asked.get("chat_id")).members

    def _edit(self, asked: Asked, text: str, marks: str, limit: int) -> Json:
        chat, shown = self._own(asked, "message to edit", "message can't be edited")
        if text == "text" and "text" not in shown.body:
            raise ApiError(400, "Bad Request: there is no text in the message to edit")
        if text == "caption" and "text" in shown.body:
            raise ApiError(400, "Bad Request: there is no caption in the message to edit")
        new, entities = checked(asked.get(text), asked.get(marks), limit), asked.get(marks) or []
        if (new, entities) == (shown.text, shown.body.get(marks, [])):
            raise ApiError(400, _UNMODIFIED)
        self._spend(chat)
        shown.text, shown.edits = new, shown.edits + 1
        shown.body |= {text: new, marks: entities, "edit_date": shown.body["date"]}
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
        reply = asked.get("reply_parameters") or {}
        replied = chat.shown.get(reply.get("message_id", 0))
        if reply and replied is None and not reply.get("allow_sending_without_reply"):
            raise ApiError(400, "Bad Request: message to be replied not found")
        self._spend(chat)
        body = self.world.body(chat, self.world.bot, content, thread, reply_to_message=replied and replied.body)
        shown = self.world.show(chat, body)
        shown.parse_mode, shown.buttons = asked.get("parse_mode"), asked.get("reply_markup")
        return body

    def _spend(self, chat: Chat) -> None:
        if self.flood is not None:
            self.flood.spend(chat)
