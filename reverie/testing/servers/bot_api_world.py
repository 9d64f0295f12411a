"""Chats, people, messages and updates behind the fake Bot API, as Telegram's servers would know
them.

Lengths of texts count UTF-16 units (core.telegram.org/bots/api#messageentity). The words of the
refusals are those of tdlib/td `MessageEntity.cpp`. Stricter than Telegram where it would mend
silently what the bot got wrong: more than 100 entities, entities that overlap without one inside
the other, anything inside `pre` or `code`. Long polls, confirmation and webhooks are after
core.telegram.org/bots/api#getting-updates and tdlib/telegram-bot-api `Client.cpp`.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from reverie.testing.servers.bot_api_http import Json, post

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_CALLBACK_BYTES = 64
MAX_ENTITIES = 100
_TYPES = (
    "mention hashtag cashtag bot_command url email phone_number bold italic underline "
    "strikethrough spoiler "
    "blockquote expandable_blockquote code pre text_link text_mention custom_emoji date_time"
)
TYPES = frozenset(_TYPES.split())


class ApiError(Exception):
    """A refusal."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code, self.description, self.parameters = code, description, parameters

    @property
    def body(self) -> Json:
        told: Json = {"ok": False, "error_code": self.code, "description": self.description}
        return told | ({"parameters": self.parameters} if self.parameters else {})


def units(text: str) -> int:
    """UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def checked(text: object, entities: object, limit: int = MAX_TEXT) -> str:
    """The text as it will be shown. Raises `ApiError`."""
    if not isinstance(text, str) or not text.strip():
        raise ApiError(
            400,
            "Bad Request: message text is empty"
            if limit == MAX_TEXT
            else "Bad Request: no caption",
        )
    if any("\ud800" <= char <= "\udfff" for char in text) or "\0" in text:
        raise ApiError(400, "Bad Request: strings must be encoded in UTF-8")
    if units(text) > limit:
        what = "message is" if limit == MAX_TEXT else "message caption is"
        raise ApiError(400, f"Bad Request: {what} too long")
    if entities:
        _entities(text, entities)
    return text


def keyboard(markup: object) -> Json | None:
    """The inline keyboard as it will be shown; None: there is none. Raises `ApiError`.

    core.telegram.org/bots/api#inlinekeyboardmarkup; of the buttons only those with `callback_data`
    are known here.
    """
    if markup is None:
        return None
    rows = markup.get("inline_keyboard") if isinstance(markup, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) and row for row in rows):
        raise ApiError(400, "Bad Request: object expected as reply markup")
    for button in (button for row in rows for button in row):
        if not isinstance(button.get("text"), str) or not button["text"]:
            raise ApiError(
                400,
                'Bad Request: can\'t parse inline keyboard button: Field "text" must be of type '
                "String",
            )
        data = button.get("callback_data")
        if not isinstance(data, str) or not data:
            unallowed = "Text buttons are unallowed in the inline keyboard"
            raise ApiError(400, f"Bad Request: can't parse inline keyboard button: {unallowed}")
        if len(data.encode()) > MAX_CALLBACK_BYTES:
            raise ApiError(400, "Bad Request: BUTTON_DATA_INVALID")
        if button.keys() - {"text", "callback_data"}:
            raise ApiError(
                400, f"Bad Request: strict: unknown fields of a button: {sorted(button)}"
            )
    return {"inline_keyboard": rows} if rows else None


def _entities(text: str, entities: object) -> None:
    if not isinstance(entities, list) or not all(isinstance(entity, dict) for entity in entities):
        raise ApiError(400, "Bad Request: can't parse entities JSON object")
    if len(entities) > MAX_ENTITIES:
        raise ApiError(
            400, f"Bad Request: strict: {len(entities)} entities, at most {MAX_ENTITIES}"
        )
    size, raw = units(text), text.encode("utf-16-le")
    for entity in entities:
        offset, length = entity.get("offset"), entity.get("length")
        if entity.get("type") not in TYPES:
            raise ApiError(
                400,
                f"Bad Request: can't parse MessageEntity: unsupported type {entity.get('type')}",
            )
        if entity["type"] == "text_link" and not entity.get("url"):
            raise ApiError(
                400, 'Bad Request: can\'t parse MessageEntity: field "url" must be of type String'
            )
        if type(offset) is not int or type(length) is not int or offset < 0 or length <= 0:
            raise ApiError(
                400,
                f"Bad Request: receive an entity with incorrect offset {offset} or length {length}",
            )
        for what, at in (("begins", offset), ("ends", offset + length)):
            if at > size:
                raise ApiError(
                    400,
                    f"Bad Request: entity beginning at UTF-16 offset {offset} {what} "
                    f"after the end of the text at UTF-16 offset {size}",
                )
            if at < size and 0xDC <= raw[2 * at + 1] <= 0xDF:
                raise ApiError(
                    400,
                    f"Bad Request: entity beginning at UTF-16 offset {offset} {what} in the middle "
                    "of a UTF-16 symbol",
                )
    _nesting(entities)


def _nesting(entities: list[Json]) -> None:
    """`bold` and its like nest freely; `pre` and `code` hold nothing and stand in nothing but a
    quote.
    """
    quotes = ("blockquote", "expandable_blockquote")
    spans = sorted(
        (e["offset"], -e["length"], e["type"] not in quotes, e["type"]) for e in entities
    )
    around: list[tuple[int, str]] = []
    for offset, length, plain, kind in spans:
        end = offset - length
        while around and around[-1][0] <= offset:
            around.pop()
        if around:
            outer_end, outer = around[-1]
            if end > outer_end:
                raise ApiError(400, f"Bad Request: strict: {kind} at {offset} overlaps {outer}")
            alone = outer in ("pre", "code") or (kind in ("pre", "code") and outer not in quotes)
            if alone or (not plain and outer in quotes) or kind == outer == "text_link":
                raise ApiError(
                    400, f"Bad Request: strict: {kind} at {offset} can't be nested in {outer}"
                )
        around.append((end, kind))


BOT_ID = 7_000_000_001
BOT_USERNAME = "reverie_bot"
GENERAL = 1
"""The topic of a forum that every message without `message_thread_id` belongs to."""


_RIGHTS = (
    "can_be_edited is_anonymous can_manage_chat can_delete_messages can_manage_video_chats "
    "can_restrict_members can_promote_members can_change_info can_invite_users can_post_stories "
    "can_edit_stories can_delete_stories is_member can_pin_messages can_send_messages "
    "can_send_polls can_send_other_messages can_add_web_page_previews can_manage_topics "
    "can_send_audios can_send_documents can_send_photos can_send_videos can_send_video_notes "
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
    "old_chat_member": {
        "status": "member",
        "user": {"id": 1, "is_bot": False, "first_name": "somebody"},
    },
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
        name: complete(
            [_ALWAYS.get(name, {}) | item if isinstance(item, dict) else item for item in value]
        )
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
    """Its inline keyboard."""

    @property
    def taps(self) -> list[str]:
        """The `callback_data` of its buttons."""
        return [
            button["callback_data"]
            for row in (self.buttons or {}).get("inline_keyboard", [])
            for button in row
        ]


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
    statuses: dict[int, str] = field(default_factory=dict)
    """User -> status, of those who were ever there (core.telegram.org/bots/api#chatmember). `out`:
    restricted, and not there."""
    history_visible: bool = False
    """New members can read what was said before."""
    description: str = ""
    reactions: frozenset[str] | None = None
    """Those that are allowed there; None: all that there are."""
    closed: bool = False
    """The bot was blocked there, or kicked."""
    muted: bool = False
    """The bot is there, and must not write."""
    members_muted: bool = False
    """Only administrators may write."""
    closed_topics: set[int] = field(default_factory=set)
    """Topics in which only administrators write."""
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

    def person(
        self, name: str, username: str | None = None, language: str | None = None, **more: bool
    ) -> Person:
        made = Person(next(self._person_ids), name, username, language, **more)
        self.people[made.id] = made
        return made

    def private(self, person: Person) -> Chat:
        """The chat with them, begun by them."""
        if person.id not in self.chats:
            self.chats[person.id] = Chat(
                person.id, "private", person.name, person.username, ids=self._account_ids
            )
        return self.chats[person.id]

    def group(self, title: str, *, chat_id: int, basic: bool = False, forum: bool = False) -> Chat:
        made = Chat(chat_id, "group" if basic else "supergroup", title, forum=forum)
        if basic:
            made.ids = self._account_ids
        self.chats[chat_id] = made
        return made

    def member(self, chat: Chat, person: Person) -> Json:
        """A `ChatMember`."""
        status = chat.statuses.get(person.id, "left")
        restricted: Json = (
            {"is_member": status == "restricted"} if status in ("restricted", "out") else {}
        )
        body: Json = {"status": "restricted" if restricted else status, "user": person.body}
        whole: Json = complete(body | restricted)
        return whole

    def chat(self, chat_id: object) -> Chat:
        """Where the bot may act. Raises `ApiError`."""
        found = self.chats.get(chat_id) if isinstance(chat_id, int) else None
        if isinstance(chat_id, str):
            found = next(
                (c for c in self.chats.values() if c.username and f"@{c.username}" == chat_id), None
            )
        if found is None or (found.private and not found.shown):
            raise ApiError(400, "Bad Request: chat not found")
        if found.migrated_to is not None:
            told = "Bad Request: group chat was upgraded to a supergroup chat"
            raise ApiError(400, told, migrate_to_chat_id=found.migrated_to)
        if found.closed:
            kicked = (
                "bot was blocked by the user"
                if found.private
                else f"bot was kicked from the {found.type} chat"
            )
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

    def body(
        self, chat: Chat, person: Person, content: Json, thread: int | None = None, **more: object
    ) -> Json:
        """A message as the API writes it, with the next id of its chat."""
        told: Json = {
            "message_id": next(chat.ids),
            "from": person.body,
            "chat": chat.body,
            "date": int(time.time()),
        }
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


FIRST_UPDATE = 700_000_001
NOT_BY_DEFAULT = frozenset({"chat_member", "message_reaction", "message_reaction_count"})
TERMINATED = (
    "Conflict: terminated by other getUpdates request; make sure that only one bot "
    "instance is running"
)
HOOKED = (
    "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to "
    "delete the webhook first"
)


class Updates:
    """What the bot has not confirmed yet."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, Any]] = []
        """(update_id, update), oldest first."""
        self.confirmed: list[int] = []
        self.allowed: frozenset[str] | None = None
        """None: the default. Set by the last call that said it; counts for updates from then on."""
        self.refused: list[str] = []
        """Kinds of updates that were dropped because they are not allowed."""
        self.hook: Json | None = None
        """As `setWebhook` had it."""
        self.deliveries: list[tuple[int, int]] = []
        """(update_id, status) of every attempt at the webhook; status 0: no answer."""
        self.retry_s = 0.05
        self._next_id = FIRST_UPDATE
        self._poll: asyncio.Future[str] | None = None
        """The one long poll that waits: done with `news`, or with whom it was terminated by."""
        self._delivering: asyncio.Task[None] | None = None

    def put(self, kind: str, body: Any) -> int | None:
        """Queue an update; its id, or None if it is not of an allowed kind."""
        allowed = kind not in NOT_BY_DEFAULT if self.allowed is None else kind in self.allowed
        if not allowed:
            self.refused.append(kind)
            return None
        return self.put_raw({"update_id": self._next_id, kind: body})

    def put_raw(self, update: Any) -> int:
        """Queue anything in place of an update. Its own `update_id` is not looked at."""
        mine, self._next_id = self._next_id, self._next_id + 1
        self.pending.append((mine, update))
        self._wake("news")
        return mine

    async def get(
        self, offset: int, limit: int, timeout_s: float, allowed: list[str] | None
    ) -> list[Any]:
        """`getUpdates`. Raises `ApiError`."""
        if self.hook is not None:
            raise ApiError(409, HOOKED)
        self._wake("other")
        if allowed is not None:
            self.allowed = frozenset(allowed) or None
        self._confirm(offset)
        if not self.pending and timeout_s > 0:
            self._poll = poll = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    if await poll == "other":
                        raise ApiError(409, TERMINATED)
            except TimeoutError:
                pass
            finally:
                if self._poll is poll:
                    self._poll = None
        return [update for _, update in self.pending[: max(1, min(limit, 100))]]

    def restart(self, next_id: int) -> None:
        """The next update has this id."""
        self._next_id = next_id

    @property
    def polling(self) -> bool:
        """A long poll waits at this moment."""
        return self._poll is not None and not self._poll.done()

    def set_hook(self, hook: Json | None, *, drop_pending: bool) -> None:
        """`setWebhook` and `deleteWebhook`."""
        self.hook = hook
        if drop_pending:
            self._confirm(self._next_id)
        if hook is not None:
            self._wake("other")
            if hook.get("allowed_updates") is not None:
                self.allowed = frozenset(hook["allowed_updates"]) or None
            self._wake("news")

    def close(self) -> None:
        if self._delivering is not None:
            self._delivering.cancel()

    def _confirm(self, offset: int) -> None:
        if offset < 0:
            offset = self.pending[offset][0] if len(self.pending) >= -offset else 0
        self.confirmed += [mine for mine, _ in self.pending if mine < offset]
        self.pending = [(mine, update) for mine, update in self.pending if mine >= offset]

    def _wake(self, why: str) -> None:
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(why)
        if (
            why == "news"
            and self.hook is not None
            and (self._delivering is None or self._delivering.done())
        ):
            self._delivering = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Post to the webhook, oldest first, each again until it is taken."""
        while self.pending and self.hook is not None:
            mine, update = self.pending[0]
            secret = self.hook.get("secret_token")
            headers = {"X-Telegram-Bot-Api-Secret-Token": secret} if secret else {}
            try:
                status = await post(self.hook["url"], headers, json.dumps(update).encode())
            except (OSError, EOFError):
                status = 0
            self.deliveries.append((mine, status))
            if 200 <= status < 300:
                self._confirm(mine + 1)
            else:
                await asyncio.sleep(self.retry_s)


Place = Chat | Person | int
"""A person: the private chat with them, which they begin."""
_MEDIA: dict[str, Json] = {
    "photo": {"width": 90, "height": 90},
    "voice": {"duration": 3, "mime_type": "audio/ogg"},
    "audio": {"duration": 3},
    "video": {"width": 90, "height": 90, "duration": 3},
    "sticker": {
        "width": 90,
        "height": 90,
        "type": "regular",
        "is_animated": False,
        "is_video": False,
    },
    "document": {},
}


class People:
    """Acts. Those that say something return the message's id; it is delivered unless privacy mode
    hides it.
    """

    def __init__(self) -> None:
        self.world, self.updates = World(), Updates()
        self._groups, self._files = itertools.count(1), itertools.count(1)

    def person(
        self, name: str, username: str | None = None, language: str | None = None, **more: bool
    ) -> Person:
        """Somebody new; ids count from 1001."""
        return self.world.person(name, username, language, **more)

    def group(
        self,
        title: str = "lounge",
        *,
        chat_id: int | None = None,
        basic: bool = False,
        forum: bool = False,
    ) -> Chat:
        """A supergroup that the bot is in; `basic`: one that may migrate; `forum`: with topics."""
        number = next(self._groups)
        return self.world.group(
            title,
            chat_id=chat_id or (-4000 - number if basic else -1001234567000 - number),
            basic=basic,
            forum=forum,
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
        """They write in a group. `more`: `entities`, `thread`, `reply_to` (a message id), or any
        other field.
        """
        return self._say(self._chat(chat), person, {"text": text}, **more)

    def mentions(self, chat: Place, person: Person, text: str, **more: Any) -> int:
        """They write `@reverie_bot TEXT`, with the entity that a client makes of it."""
        at = f"@{self.world.bot.username}"
        entity = {"type": "mention", "offset": 0, "length": units(at)}
        return self._say(
            self._chat(chat), person, {"text": f"{at} {text}", "entities": [entity]}, **more
        )

    def commands(self, chat: Place, person: Person, text: str, **more: Any) -> int:
        """They write a command, e.g. `/why 3`, with its entity."""
        entity = {"type": "bot_command", "offset": 0, "length": units(text.split(maxsplit=1)[0])}
        return self._say(self._chat(chat), person, {"text": text, "entities": [entity]}, **more)

    def sends(
        self, chat: Place, person: Person, form: str, content: bytes = b"x", **more: Any
    ) -> int:
        """They send a `photo`, `voice`, `document`, `video`, `audio` or `sticker`; it can be
        downloaded.

        Fields of the media go into `media`, those of the message beside it (`caption`,
        `caption_entities`).
        """
        file_id = f"file{next(self._files)}"
        self.world.files[file_id] = (f"{form}s/{file_id}.bin", content)
        media: Json = {
            "file_id": file_id,
            "file_unique_id": f"u{file_id}",
            "file_size": len(content),
        }
        media |= _MEDIA[form] | more.pop("media", {})
        small = media | {"file_id": f"{file_id}s", "width": 9, "height": 9, "file_size": 1}
        return self._say(
            self._chat(chat), person, {form: [small, media] if form == "photo" else media}, **more
        )

    def album(
        self, chat: Place, person: Person, count: int, caption: str | None = None, **more: Any
    ) -> list[int]:
        """They send `count` photos as one group; the caption stands on the first."""
        group = str(time.monotonic_ns())
        texts: list[Json] = [
            {"caption": caption} if caption and not number else {} for number in range(count)
        ]
        return [
            self.sends(chat, person, "photo", media_group_id=group, **text, **more)
            for text in texts
        ]

    def located(
        self, chat: Place, person: Person, latitude: float, longitude: float, **more: Any
    ) -> int:
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

    def reacts(
        self, chat: Place, person: Person, message_id: int, old: list[str], new: list[str]
    ) -> None:
        """They change their reactions to a message, from these emoji to those.

        In a group only administrators are told (core.telegram.org/bots/api#update,
        `message_reaction`).
        """
        there = self._chat(chat)
        if not (there.admin or there.body["type"] == "private"):
            return
        emoji = [[{"type": "emoji", "emoji": one} for one in side] for side in (old, new)]
        body: Json = {
            "chat": there.body,
            "message_id": message_id,
            "user": person.body,
            "date": int(time.time()),
        }
        self.updates.put(
            "message_reaction", body | {"old_reaction": emoji[0], "new_reaction": emoji[1]}
        )

    def presses(
        self,
        chat: Place,
        person: Person,
        message_id: int,
        data: str,
        *,
        forged: bool = False,
        old: bool = False,
    ) -> str:
        """They tap a button of ours; the id of the callback query.

        `forged`: with a client of their own, which sends any data for any message
        (core.telegram.org/bots/api#callbackquery). `old`: the message is too old for Telegram to
        show it.
        """
        there, query = self._chat(chat), str(time.monotonic_ns())
        shown = there.shown[message_id]
        assert forged or data in shown.taps, f"no button of {message_id} has {data!r}: {shown.taps}"
        self.world.callbacks[query] = None
        body: Json = {
            "id": query,
            "from": person.body,
            "chat_instance": str(there.id),
            "data": data,
        }
        whole = shown.body | ({"reply_markup": shown.buttons} if shown.buttons else {})
        inaccessible = {"chat": there.body, "message_id": message_id, "date": 0}
        self.updates.put("callback_query", body | {"message": inaccessible if old else whole})
        return query

    def joins(self, chat: Place, person: Person) -> int:
        """They enter a group."""
        self._chat(chat).statuses[person.id] = "member"
        return self._say(self._chat(chat), person, {"new_chat_members": [person.body]})

    def leaves(self, chat: Place, person: Person) -> int:
        """They leave a group."""
        number = self._say(self._chat(chat), person, {"left_chat_member": person.body})
        self._chat(chat).statuses[person.id] = "left"
        return number

    def removes(self, chat: Chat, by: Person, person: Person, *, told: bool = True) -> None:
        """Somebody is removed from a group, which administrators and (`told`) everybody there are
        told.
        """
        before = self.world.member(chat, person)
        chat.statuses[person.id] = "kicked"
        if told:
            self._say(chat, by, {"left_chat_member": person.body})
        if chat.admin:
            body: Json = {"chat": chat.body, "from": by.body, "date": int(time.time())}
            sides = {"old_chat_member": before, "new_chat_member": self.world.member(chat, person)}
            self.updates.put("chat_member", body | sides)

    def blocks(self, person: Person, *, again: bool = True) -> None:
        """They block the bot, or (`again=False`) let it back in."""
        chat = self.world.private(person)
        chat.closed = again
        old, new = ("member", "kicked") if again else ("kicked", "member")
        body: Json = {"chat": chat.body, "from": person.body, "date": int(time.time())}
        sides = {
            name: {"user": self.world.bot.body, "status": status}
            | ({"until_date": 0} if status == "kicked" else {})
            for name, status in (("old_chat_member", old), ("new_chat_member", new))
        }
        self.updates.put("my_chat_member", body | sides)

    def mutes(self, chat: Chat, person: Person, *, again: bool = True) -> None:
        """They take the right to write from the bot in a group, or (`again=False`) give it back."""
        chat.muted = again
        body: Json = {"chat": chat.body, "from": person.body, "date": int(time.time())}
        sides = {
            name: complete({"status": "restricted", "user": self.world.bot.body, "is_member": True})
            | {"can_send_messages": may}
            for name, may in (("old_chat_member", again), ("new_chat_member", not again))
        }
        self.updates.put("my_chat_member", body | sides)

    def adds(self, chat: Chat, person: Person) -> None:
        """They take the bot into a group."""
        chat.left = False
        body: Json = {"chat": chat.body, "from": person.body, "date": int(time.time())}
        old, new = (
            {"user": self.world.bot.body, "status": status} for status in ("left", "member")
        )
        self.updates.put("my_chat_member", body | {"old_chat_member": old, "new_chat_member": new})

    def migrates(self, chat: Chat, person: Person, *, told: bool = True) -> Chat:
        """A basic group becomes a supergroup with another id; `told`: the two service messages are
        delivered.
        """
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
        chat.statuses.setdefault(person.id, "member")  # who speaks is there
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
