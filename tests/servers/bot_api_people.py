"""What people do in the chats of the fake Bot API. Each act is one update, as Telegram would write it."""

import itertools
import time
from typing import Any

from tests.servers.bot_api_http import Json
from tests.servers.bot_api_text import units
from tests.servers.bot_api_updates import Updates
from tests.servers.bot_api_world import GENERAL, Chat, Person, World

Place = Chat | Person | int
"""A person: the private chat with them, which they begin."""
_MEDIA: dict[str, Json] = {
    "photo": {"width": 90, "height": 90},
    "voice": {"duration": 3, "mime_type": "audio/ogg"},
    "audio": {"duration": 3},
    "video": {"width": 90, "height": 90, "duration": 3},
    "sticker": {"width": 90, "height": 90, "type": "regular", "is_animated": False, "is_video": False},
    "document": {},
}


class People:
    """Acts. Those that say something return the message's id; it is delivered unless privacy mode hides it."""

    def __init__(self) -> None:
        self.world, self.updates = World(), Updates()
        self._groups, self._files = itertools.count(1), itertools.count(1)

    def person(self, name: str, username: str | None = None, language: str | None = None, **more: bool) -> Person:
        """Somebody new; ids count from 1001."""
        return self.world.person(name, username, language, **more)

    def group(
        self, title: str = "lounge", *, chat_id: int | None = None, basic: bool = False, forum: bool = False
    ) -> Chat:
        """A supergroup that the bot is in; `basic`: one that may migrate; `forum`: with topics."""
        number = next(self._groups)
        return self.world.group(
            title, chat_id=chat_id or (-4000 - number if basic else -1001234567000 - number), basic=basic, forum=forum
        )

    def topic(self, chat: Chat, title: str) -> int:
        """A new topic of a forum, or of a private chat; its `message_thread_id`."""
        thread = next(number for number in chat.ids if number != GENERAL)
        chat.topics[thread] = title
        return thread

    def private_says(self, person: Person, text: str, **more: Any) -> int:
        """They write to the bot; the first time they begin the chat."""
        return self._say(self.world.private(person), person, {"text": text}, **more)

    def group_says(self, chat: Place, person: Person, text: str, **more: Any) -> int:
        """They write in a group. `more`: `entities`, `thread`, `reply_to` (a message id), or any other field."""
        return self._say(self._chat(chat), person, {"text": text}, **more)

    def mentions(self, chat: Place, person: Person, text: str, **more: Any) -> int:
        """They write `@reverie_bot TEXT`, with the entity that a client makes of it."""
        at = f"@{self.world.bot.username}"
        entity = {"type": "mention", "offset": 0, "length": units(at)}
        return self._say(self._chat(chat), person, {"text": f"{at} {text}", "entities": [entity]}, **more)

    def commands(self, chat: Place, person: Person, text: str, **more: Any) -> int:
        """They write a command, e.g. `/why 3`, with its entity."""
        entity = {"type": "bot_command", "offset": 0, "length": units(text.split(maxsplit=1)[0])}
        return self._say(self._chat(chat), person, {"text": text, "entities": [entity]}, **more)

    def sends(self, chat: Place, person: Person, form: str, content: bytes = b"x", **more: Any) -> int:
        """They send a `photo`, `voice`, `document`, `video`, `audio` or `sticker`; it can be downloaded.

        Fields of the media go into `media`, those of the message beside it (`caption`, `caption_entities`).
        """
        file_id = f"file{next(self._files)}"
        self.world.files[file_id] = (f"{form}s/{file_id}.bin", content)
        media: Json = {"file_id": file_id, "file_unique_id": f"u{file_id}", "file_size": len(content)}
        media |= _MEDIA[form] | more.pop("media", {})
        small = media | {"file_id": f"{file_id}s", "width": 9, "height": 9, "file_size": 1}
        return self._say(self._chat(chat), person, {form: [small, media] if form == "photo" else media}, **more)

    def album(self, chat: Place, person: Person, count: int, caption: str | None = None, **more: Any) -> list[int]:
        """They send `count` photos as one group; the caption stands on the first."""
        group = str(time.monotonic_ns())
        texts: list[Json] = [{"caption": caption} if caption and not number else {} for number in range(count)]
        return [self.sends(chat, person, "photo", media_group_id=group, **text, **more) for text in texts]

    def located(self, chat: Place, person: Person, latitude: float, longitude: float, **more: Any) -> int:
        """They send where they are."""
        content = {"location": {"latitude": latitude, "longitude": longitude}}
        return self._say(self._chat(chat), person, content, **more)

    def edits(self, chat: Place, message_id: int, text: str, **more: Any) -> None:
        """A person's message now reads differently."""
        shown = self._chat(chat).shown[message_id]
        field = "text" if "text" in shown.body else "caption"
        shown.body = shown.body | {field: text, "edit_date": int(time.time())} | more
        shown.text, shown.edits = text, shown.edits + 1
        self.updates.put("edited_message", shown.body)

    def reacts(self, chat: Place, person: Person, message_id: int, old: list[str], new: list[str]) -> None:
        """They change their reactions to a message, from these emoji to those."""
        there = self._chat(chat)
        emoji = [[{"type": "emoji", "emoji": one} for one in side] for side in (old, new)]
        body: Json = {"chat": there.body, "message_id": message_id, "user": person.body, "date": int(time.time())}
        self.updates.put("message_reaction", body | {"old_reaction": emoji[0], "new_reaction": emoji[1]})

    def presses(self, chat: Place, person: Person, message_id: int, data: str) -> str:
        """They press a button of ours; the id of the callback query."""
        there, query = self._chat(chat), str(time.monotonic_ns())
        self.world.callbacks[query] = None
        body: Json = {"id": query, "from": person.body, "chat_instance": str(there.id), "data": data}
        self.updates.put("callback_query", body | {"message": there.shown[message_id].body})
        return query

    def joins(self, chat: Place, person: Person) -> int:
        """They enter a group."""
        return self._say(self._chat(chat), person, {"new_chat_members": [person.body]})

    def leaves(self, chat: Place, person: Person) -> int:
        """They leave a group."""
        return self._say(self._chat(chat), person, {"left_chat_member": person.body})

    def blocks(self, person: Person, *, again: bool = True) -> None:
        """They block the bot, or (`again=False`) let it back in."""
        chat = self.world.private(person)
        chat.closed = again
        old, new = ("member", "kicked") if again else ("kicked", "member")
        body: Json = {"chat": chat.body, "from": person.body, "date": int(time.time())}
        sides = {
            name: {"user": self.world.bot.body, "status": status} | ({"until_date": 0} if status == "kicked" else {})
            for name, status in (("old_chat_member", old), ("new_chat_member", new))
        }
        self.updates.put("my_chat_member", body | sides)

    def adds(self, chat: Chat, person: Person) -> None:
        """They take the bot into a group."""
        chat.left = False
        body: Json = {"chat": chat.body, "from": person.body, "date": int(time.time())}
        old, new = ({"user": self.world.bot.body, "status": status} for status in ("left", "member"))
        self.updates.put("my_chat_member", body | {"old_chat_member": old, "new_chat_member": new})

    def migrates(self, chat: Chat, person: Person, *, told: bool = True) -> Chat:
        """A basic group becomes a supergroup with another id; `told`: the two service messages are delivered."""
        new = self.group(chat.title)
        chat.migrated_to = new.id
        old_body = self.world.body(chat, person, {"migrate_to_chat_id": new.id})
        new_body = self.world.body(new, person, {"migrate_from_chat_id": chat.id})
        if told:
            self.updates.put("message", old_body)
            self.updates.put("message", new_body)
        return new

    def _chat(self, chat: Place) -> Chat:
        if isinstance(chat, Person):
            return self.world.private(chat)
        return chat if isinstance(chat, Chat) else self.world.chats[chat]

    def _say(self, chat: Chat, person: Person, content: Json, **more: Any) -> int:
        thread, reply_to = more.pop("thread", None), more.pop("reply_to", None)
        replied = chat.shown[reply_to].body if reply_to is not None else None
        body = self.world.body(chat, person, content | more, thread, reply_to_message=replied)
        self.world.show(chat, body)
        if chat.private or self.world.sees_all or self._for_bot(body):
            self.updates.put("message", body)
        number: int = body["message_id"]
        return number

    def _for_bot(self, body: Json) -> bool:
        """What privacy mode lets through: core.telegram.org/bots/features#privacy-mode."""
        kinds = {entity["type"] for entity in body.get("entities", [])}
        service = {"new_chat_members", "left_chat_member"} & body.keys()
        replied = body.get("reply_to_message", {}).get("from", {}).get("id") == self.world.bot.id
        mention = "mention" in kinds and f"@{self.world.bot.username}" in body.get("text", "")
        return bool(service) or replied or mention or "bot_command" in kinds
