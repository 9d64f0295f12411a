"""Chats, people and messages behind the fake Bot API, as Telegram's servers would know them."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.servers.bot_api_http import Json
from tests.servers.bot_api_text import ApiError

BOT_ID = 7_000_000_001
BOT_USERNAME = "reverie_bot"
GENERAL = 1
"""The topic of a forum that every message without `message_thread_id` belongs to."""


_RIGHTS = (
    "can_be_edited is_anonymous can_manage_chat can_delete_messages can_manage_video_chats can_restrict_members "
    "can_promote_members can_change_info can_invite_users can_post_stories can_edit_stories can_delete_stories "
    "is_member can_pin_messages can_send_messages can_send_polls can_send_other_messages can_add_web_page_previews "
    "can_manage_topics can_send_audios can_send_documents can_send_photos can_send_videos can_send_video_notes "
    "can_send_voice_notes can_edit_tag can_react_to_messages"
)
_ALWAYS: dict[str, Json] = {
    "photo": {"file_unique_id": "u", "width": 9, "height": 9},
    "video": {"file_unique_id": "u", "width": 9, "height": 9, "duration": 3},
    "animation": {"file_unique_id": "u", "width": 9, "height": 9, "duration": 3},
    "video_note": {"file_unique_id": "u", "length": 9, "duration": 3},
    "voice": {"file_unique_id": "u", "duration": 3},
    "audio": {"file_unique_id": "u", "duration": 3},
    "document": {"file_unique_id": "u"},
    "sticker": {
        "file_unique_id": "u",
        "width": 9,
        "height": 9,
        "type": "regular",
        "is_animated": False,
        "is_video": False,
    },
    "from": {"is_bot": False, "first_name": "somebody"},
    "via_bot": {"is_bot": True, "first_name": "bot"},
    "sender_user": {"is_bot": False},
    "new_chat_member": {"status": "member"},
    "old_chat_member": {"status": "member", "user": {"id": 1, "is_bot": False, "first_name": "somebody"}},
    "quote": {"position": 0},
    "poll": {
        "id": "1",
        "total_voter_count": 0,
        "is_closed": False,
        "is_anonymous": True,
        "type": "regular",
        "allows_multiple_answers": False,
        "allows_revoting": False,
        "members_only": False,
    },
    "options": {"voter_count": 0, "persistent_id": "1"},
    "game": {"description": "d", "photo": []},
    "story": {"chat": {"id": -9, "type": "channel", "title": "stories"}},
    "forward_origin": {"date": 1, "message_id": 1},
    "origin": {"date": 1},
    "forum_topic_created": {"icon_color": 1},
    "callback_query": {"chat_instance": "1"},
}
"""Field -> what the Bot API always says in it, and `telegram.Update` insists on."""


def complete(body: Any) -> Any:
    """The same with what the Bot API always sends and a test does not care about."""
    if isinstance(body, list):
        return [complete(item) for item in body]
    if not isinstance(body, dict):
        return body
    whole = {
        name: complete([_ALWAYS.get(name, {}) | item if isinstance(item, dict) else item for item in value])
        if isinstance(value, list)
        else complete(_ALWAYS.get(name, {}) | value if isinstance(value, dict) else value)
        for name, value in body.items()
    }
    match body.get("status"):
        case "administrator" | "restricted":
            return dict.fromkeys(_RIGHTS.split(), True) | {"until_date": 0} | whole
        case "creator":
            return {"is_anonymous": False} | whole
        case "kicked":
            return {"until_date": 0} | whole
    return whole


@dataclass(slots=True)
class Person:
    """Somebody with a Telegram account."""

    id: int
    name: str
    username: str | None = None
    language: str | None = None
    is_bot: bool = False

    @property
    def body(self) -> Json:
        told: Json = {"id": self.id, "is_bot": self.is_bot, "first_name": self.name}
        told |= {"username": self.username} if self.username else {}
        return told | ({"language_code": self.language} if self.language else {})


@dataclass(slots=True)
class Shown:
    """One message as people see it now."""

    id: int
    text: str
    by_bot: bool
    body: Json
    """As in an update; of the bot's own messages, what `sendMessage` answered."""
    thread: int | None = None
    edits: int = 0
    parse_mode: str | None = None
    reaction: list[Json] = field(default_factory=list)
    """The bot's."""
    buttons: Json | None = None


@dataclass(slots=True)
class Chat:
    """A private chat, group, supergroup or forum."""

    id: int
    type: Literal["private", "group", "supergroup", "channel"]
    title: str
    username: str | None = None
    forum: bool = False
    topics: dict[int, str] = field(default_factory=dict)
    admin: bool = True
    """The bot is an administrator."""
    administrators: list[Person] = field(default_factory=list)
    """The others."""
    members: int = 2
    """How many there are, with the bot."""
    description: str = ""
    reactions: frozenset[str] | None = None
    """Those that are allowed there; None: all that there are."""
    closed: bool = False
    """The bot was blocked there, or kicked."""
    left: bool = False
    """The bot has gone by itself."""
    migrated_to: int | None = None
    shown: dict[int, Shown] = field(default_factory=dict)
    drafts: list[tuple[int, str]] = field(default_factory=list)
    """(draft_id, text), as `sendMessageDraft` had them."""
    actions: list[str] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def private(self) -> bool:
        return self.type == "private"

    @property
    def body(self) -> Json:
        told: Json = {"id": self.id, "type": self.type}
        told |= {"first_name": self.title} if self.private else {"title": self.title}
        told |= {"username": self.username} if self.username else {}
        return told | ({"is_forum": True} if self.forum else {})


class World:
    """All chats of one bot."""

    def __init__(self) -> None:
        self.bot = Person(BOT_ID, "Reverie", BOT_USERNAME, is_bot=True)
        self.sees_all = True
        """Privacy mode is off: groups deliver everything."""
        self.has_topics = False
        """Topics are on in private chats."""
        self.chats: dict[int, Chat] = {}
        self.people: dict[int, Person] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        """file_id -> path, content."""
        self.callbacks: dict[str, Json | None] = {}
        """Callback query -> how it was answered; None: not yet."""
        self._person_ids = itertools.count(1001)
        self._account_ids = itertools.count(1)
        """Private chats and basic groups share one counter; supergroups have their own."""

    def person(self, name: str, username: str | None = None, language: str | None = None, **more: bool) -> Person:
        made = Person(next(self._person_ids), name, username, language, **more)
        self.people[made.id] = made
        return made

    def private(self, person: Person) -> Chat:
        """The chat with them, begun by them."""
        if person.id not in self.chats:
            self.chats[person.id] = Chat(person.id, "private", person.name, person.username, ids=self._account_ids)
        return self.chats[person.id]

    def group(self, title: str, *, chat_id: int, basic: bool = False, forum: bool = False) -> Chat:
        made = Chat(chat_id, "group" if basic else "supergroup", title, forum=forum)
        if basic:
            made.ids = self._account_ids
        self.chats[chat_id] = made
        return made

    def chat(self, chat_id: object) -> Chat:
        """Where the bot may act. Raises `ApiError`."""
        found = self.chats.get(chat_id) if isinstance(chat_id, int) else None
        if isinstance(chat_id, str):
            found = next((c for c in self.chats.values() if c.username and f"@{c.username}" == chat_id), None)
        if found is None or (found.private and not found.shown):
            raise ApiError(400, "Bad Request: chat not found")
        if found.migrated_to is not None:
            told = "Bad Request: group chat was upgraded to a supergroup chat"
            raise ApiError(400, told, migrate_to_chat_id=found.migrated_to)
        if found.closed:
            kicked = "bot was blocked by the user" if found.private else f"bot was kicked from the {found.type} chat"
            raise ApiError(403, f"Forbidden: {kicked}")
        if found.left:
            raise ApiError(403, f"Forbidden: bot is not a member of the {found.type} chat")
        return found

    def thread(self, chat: Chat, thread: object) -> int | None:
        """A topic that exists. Raises `ApiError`."""
        if thread is None or (chat.forum and thread == GENERAL):
            return None
        if not isinstance(thread, int) or thread not in chat.topics:
            raise ApiError(400, "Bad Request: message thread not found")
        return thread

    def message(self, chat: Chat, message_id: object, what: str) -> Shown:
        """A message that is still there. Raises `ApiError`; `what` cannot be done."""
        found = chat.shown.get(message_id) if isinstance(message_id, int) else None
        if found is None:
            raise ApiError(400, f"Bad Request: {what} not found")
        return found

    def body(self, chat: Chat, person: Person, content: Json, thread: int | None = None, **more: object) -> Json:
        """A message as the API writes it, with the next id of its chat."""
        told: Json = {"message_id": next(chat.ids), "from": person.body, "chat": chat.body, "date": int(time.time())}
        if thread is not None:
            told |= {"message_thread_id": thread, "is_topic_message": True}
        return told | content | {name: value for name, value in more.items() if value is not None}

    def show(self, chat: Chat, body: Json) -> Shown:
        """From now on people see it."""
        made = Shown(
            body["message_id"],
            str(body.get("text", body.get("caption", ""))),
            body["from"]["id"] == self.bot.id,
            body,
            body.get("message_thread_id"),
        )
        chat.shown[made.id] = made
        return made
