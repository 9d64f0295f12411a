"""What a connected account does: messages, files, edits, reactions, topics, members, rooms.

A message has its key as transaction id: a homeserver that has one with this id from this device
answers with the event that it made then
(https://spec.matrix.org/latest/client-server-api/#transaction-identifiers). So a part is shown
once, however often it is handed over.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

from nio import MatrixRoom, RoomPreset

from reverie.platforms import (
    MEMBERSHIP_TIMEOUT_S,
    Address,
    Attachment,
    Audience,
    BeforeSend,
    Capabilities,
    ChannelName,
    Clock,
    Denied,
    LruDict,
    Membership,
    MessageId,
    OutgoingFile,
    PlaceNames,
    Post,
    PostPart,
    Receipt,
    Rejected,
    RoomId,
    RoomMembers,
    RoomSignals,
    Sender,
    SenderId,
    SendError,
    Uncertain,
    Unreachable,
    clean_outgoing,
    get_objects,
    get_raw_str,
    no_before_send,
    safe_content_type,
    safe_file_name,
    single_line,
    split_markdown,
)
from reverie_matrix.client import MatrixClient, refusal_code
from reverie_matrix.config import MatrixConfig
from reverie_matrix.events import (
    MatrixEvent,
    Place,
    display_name,
    is_id,
    is_media_uri,
    parse_event,
    reaction_key,
)
from reverie_matrix.html import to_html

logger = logging.getLogger("reverie.matrix")
MAX_BODY_UNITS: Final = 4096
"""Longest text of one message, in UTF-16 units: with its HTML it stays far below the 65,536 bytes
of an event (https://spec.matrix.org/latest/client-server-api/#size-limits)."""
_MAX_CONTENT_BYTES: Final = 60_000
"""Longest content with HTML: the homeserver adds to it."""
MAX_FILE_BYTES: Final = 50 * 2**20
"""Synapse's limit where nothing else is configured (`max_upload_size`)."""
_MAX_TOPIC_CHARS: Final = 1000
_MAX_REACTION_CHARS: Final = 64
_TYPING_TIMEOUT_MS: Final = 30_000
_MAX_REMEMBERED: Final = 10_000
_FORMATTING: Final = (
    "Matrix shows **bold**, *italic*, ~~strike~~, ||spoiler||, `code`, fenced code, > quotes and "
    "[links](url); headings become bold, tables become code blocks."
)


class MatrixActions:
    """Actions of one account, while it is connected."""

    typing_interval_s = 20.0

    def __init__(self, name: ChannelName, config: MatrixConfig, clock: Clock) -> None:
        self._name, self._config, self._clock = name, config, clock
        self._client: MatrixClient | None = None
        """Set while there is a connection."""
        self._events = LruDict[str, MatrixEvent](_MAX_REMEMBERED)
        """Recent messages and reactions by id: what later events refer to."""
        self._own_reactions = LruDict[tuple[str, str], str](_MAX_REMEMBERED)
        """Message and emoji -> the event of our reaction."""
        self._direct_rooms: dict[str, list[str]] = {}
        """Person -> rooms that this account calls a direct chat with them (`m.direct`)."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Room -> lock: concurrent requests could overtake each other."""
        self._rights = RoomSignals()
        self._opening = asyncio.Lock()

    @property
    def name(self) -> ChannelName:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            platform="Matrix",
            formatting=_FORMATTING,
            replies=True,
            resend_window_s=self._config.resend_window,
            max_file_bytes=MAX_FILE_BYTES,
        )

    @property
    def _connected(self) -> MatrixClient:
        if self._client is None:
            raise Unreachable(f"{self._name} is not connected")
        return self._client

    def _room(self, at: Address) -> MatrixRoom | None:
        """Return the room as it is now; None: the bot is not there, or there is no connection."""
        return self._client.nio.rooms.get(at.room) if self._client else None

    def _is_direct(self, room: MatrixRoom) -> bool:
        """Return whether it is a chat with one person: nobody else is there or invited, nobody can
        come in uninvited, and it is no named room, unless the account calls it a direct chat.
        """
        return (
            room.member_count == 2  # noqa: PLR2004 - the bot and somebody
            and room.join_rule in ("invite", "private")
            and (
                not room.is_named or any(room.room_id in one for one in self._direct_rooms.values())
            )
        )

    def _place(self, room: MatrixRoom) -> Place:
        return Place(channel=self._name, room=room, direct=self._is_direct(room))

    def split(self, post: Post) -> tuple[str, ...]:
        return split_markdown(clean_outgoing(post.text), MAX_BODY_UNITS) or ("\ufffd",)

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        if part.file is not None and len(part.file.data) > MAX_FILE_BYTES:
            raise Rejected(f"files may have {MAX_FILE_BYTES} bytes here")
        room_id = _check_room(part.to)
        async with self._locks.setdefault(room_id, asyncio.Lock()):  # first in, first out
            client, room = self._connected, self._room(part.to)
            if room is not None and room.encrypted:
                raise Rejected("the room is encrypted, and this program cannot encrypt")
            uri = ""
            if part.file is not None:
                uri = await _upload(client, part.file)
            content = message_content(part, uri)
            await before_send()
            if self._client is not client:
                raise Unreachable(f"{self._name} is not connected any more")
            key = transaction_id(part.key)
            sent = await client.act(
                client.nio.room_send(room_id, "m.room.message", content, tx_id=key)
            )
        self._remember_own(client, sent.event_id, content)
        return Receipt(ids=(MessageId(sent.event_id),))

    def _remember_own(
        self, client: MatrixClient, event_id: str, content: Mapping[str, object]
    ) -> None:
        """Remember a message of the bot before the homeserver tells of it."""
        source = {
            "event_id": event_id,
            "type": "m.room.message",
            "sender": client.nio.user_id,
            "content": content,
        }
        if (event := parse_event(source, self._clock.now())) is not None:
            self._events.put(event.id, event)

    async def _find_event(
        self, client: MatrixClient, room_id: str, event_id: str, *, fresh: bool = False
    ) -> MatrixEvent:
        """Return an event of a room. Raises SendError: `Rejected` if there is no such event."""
        if not is_id(event_id, "$"):
            raise Rejected("there is no such message")
        known = None if fresh else self._events.get(event_id)
        if known is not None:
            return known
        try:
            answer = await client.act(client.nio.room_get_event(room_id, event_id))
        except Rejected:
            raise Rejected("there is no such message in this room") from None
        found = parse_event(getattr(answer.event, "source", None), self._clock.now())
        if found is None:
            raise Rejected("there is no such message in this room")
        self._events.put(found.id, found)
        return found

    async def _own_message(self, at: Address, message: MessageId, *, fresh: bool) -> MatrixEvent:
        client = self._connected
        event = await self._find_event(client, _check_room(at), message, fresh=fresh)
        if event.sender != client.nio.user_id or event.state_key is not None:
            raise Rejected("that is not a message of the bot")
        return event

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        pieces = split_markdown(clean_outgoing(text), MAX_BODY_UNITS)
        if len(pieces) != 1:
            raise Rejected("the text is too long for one message" if pieces else "it needs text")
        client, room_id = self._connected, _check_room(at)
        event = await self._own_message(at, message, fresh=False)
        if not event.is_message:
            raise Rejected("that message is gone")
        kept = {key: value for key, value in event.content.items() if key in _KEPT_BY_EDITS}
        new = kept | text_content(pieces[0])
        content = {
            "msgtype": new["msgtype"],
            "body": f"* {new['body']}",
            "m.new_content": new,
            "m.mentions": {},
            "m.relates_to": {"rel_type": "m.replace", "event_id": event.id},
        }
        async with self._locks.setdefault(room_id, asyncio.Lock()):
            await client.act(client.nio.room_send(room_id, "m.room.message", content))

    async def delete(self, at: Address, message: MessageId) -> None:
        client, event = self._connected, await self._own_message(at, message, fresh=True)
        if not event.is_redacted:
            await client.act(client.nio.room_redact(at.room, event.id))

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        key = single_line(reaction, len(reaction))
        if not key or len(key) > _MAX_REACTION_CHARS:
            raise Rejected("a reaction is an emoji")
        client, room_id = self._connected, _check_room(at)
        if not is_id(message, "$"):
            raise Rejected("there is no such message")
        relation = {"rel_type": "m.annotation", "event_id": message, "key": key}
        if add:
            try:
                sent = await client.act(
                    client.nio.room_send(room_id, "m.reaction", {"m.relates_to": relation})
                )
            except Rejected as error:
                if refusal_code(error) != "M_DUPLICATE_ANNOTATION":
                    raise
            else:
                self._own_reactions.put((message, key), sent.event_id)
            return
        event_id = self._own_reactions.pop((message, key), "") or await self._find_reaction(
            client, room_id, message, key
        )
        if event_id:
            await client.act(client.nio.room_redact(room_id, event_id))

    async def _find_reaction(
        self, client: MatrixClient, room_id: str, message: str, key: str
    ) -> str:
        """Return the id of our reaction to a message; empty: there is none."""
        path = ("rooms", room_id, "relations", message, "m.annotation", "m.reaction")
        found = await client.get(*path)
        for source in get_objects(found, "chunk"):
            event = parse_event(source, self._clock.now())
            if event and event.sender == client.nio.user_id and reaction_key(event) == key:
                return event.id
        return ""

    async def set_topic(self, at: Address, topic: str) -> None:
        new, room_id = single_line(topic, len(topic)), _check_room(at)
        if len(new) > _MAX_TOPIC_CHARS:
            raise Rejected(f"it may have {_MAX_TOPIC_CHARS} characters, and has {len(new)}")
        client = self._connected
        await client.act(client.nio.room_put_state(room_id, "m.room.topic", {"topic": new}))

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        client = self._connected
        answer = await client.act(client.nio.joined_members(_check_room(at)))
        members = [
            Sender(
                id=SenderId(one.user_id),
                name=display_name(one.user_id, one.display_name),
                verified=True,
            )
            for one in answer.members
            if one.user_id != client.nio.user_id
        ]
        return RoomMembers(members=tuple(members[: max(most, 0)]), total=len(answer.members))

    async def membership(self, at: Address, person: SenderId) -> Membership | None:
        client, room = self._client, self._room(at)
        if client is None or room is None or not is_id(person, "@"):
            return None
        asked = client.nio.room_get_state_event(at.room, "m.room.member", person)
        try:
            answer = await client.call(asked, limit_s=MEMBERSHIP_TIMEOUT_S)
        except SendError:
            return None
        if get_raw_str(answer.content, "membership") != "join":
            return None
        return (
            "reads_all" if room.history_visibility in ("shared", "world_readable") else "reads_new"
        )

    def audience(self, at: Address) -> Audience | None:
        """Who is in a space may enter its rooms (`restricted`), and that is not followed here."""
        room = self._room(at)
        if room is None:
            return None
        if room.join_rule == "public" or room.history_visibility == "world_readable":
            return "everybody"
        return "room" if room.join_rule in ("invite", "private", "knock") else None

    def place_names(self, at: Address) -> PlaceNames | None:
        room = self._room(at)
        if room is None:
            return None
        place = self._place(room)
        other = next((user for user in room.users if user != place.own_id), "")
        return PlaceNames(
            room=single_line(room.named_room_name() or "", 200),
            person=place.sender(other).name if place.direct and other else None,
            handle=other if place.direct and other else None,
            server=place.own_id.partition(":")[2],
            topic=single_line(room.topic or "", _MAX_TOPIC_CHARS),
            me=place.own_name,
        )

    def is_joined(self, room: RoomId) -> bool | None:
        return room in self._client.nio.rooms if self._client else None

    async def wait_for_rights(self, at: Address) -> None:
        await self._rights.wait(at.room)

    async def typing(self, at: Address, *, active: bool) -> None:
        with contextlib.suppress(SendError):
            client = self._connected
            await client.act(
                client.nio.room_typing(_check_room(at), active, timeout=_TYPING_TIMEOUT_MS)
            )

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:  # noqa: ARG002 - the id is the file's
        """Nothing was sent, so every other failure than a refusal or a rate limit is
        `Unreachable`.
        """
        if not is_media_uri(attachment.id):
            raise Rejected("there is no such file")
        if (attachment.size_bytes or 0) > limit_bytes:
            raise Rejected(f"it has more than {limit_bytes} bytes")
        try:
            return await self._connected.download(attachment.id, limit_bytes)
        except (Denied, Uncertain) as error:
            raise Unreachable(error.reason) from None

    async def join(self, at: Address) -> None:
        client = self._connected
        await client.act(client.nio.join(_check_room(at)))

    async def leave(self, at: Address) -> None:
        if at.thread is not None:
            raise Rejected("a thread cannot be left by itself, only the whole room")
        client = self._connected
        await client.act(client.nio.room_leave(_check_room(at)))

    async def open_direct(self, person: Sender) -> RoomId:
        if not is_id(person.id, "@"):
            raise Rejected("there is no such person")
        async with self._opening:
            client = self._connected
            for room in client.nio.rooms.values():
                if person.id in room.users and self._is_direct(room) and not room.encrypted:
                    return RoomId(room.room_id)
            created = await client.act(
                client.nio.room_create(
                    is_direct=True, invite=[person.id], preset=RoomPreset.trusted_private_chat
                )
            )
            await self._record_direct(client, created.room_id, person.id)
        return RoomId(created.room_id)

    async def _record_direct(self, client: MatrixClient, room_id: str, person: str) -> None:
        """Call a room a direct chat, also for later processes. Best effort: raises only
        cancellation.
        """
        rooms = self._direct_rooms.setdefault(person, [])
        if room_id not in rooms:
            rooms.append(room_id)
            with contextlib.suppress(SendError):
                await client.put(
                    *("user", client.nio.user_id, "account_data", "m.direct"),
                    body=self._direct_rooms,
                )


async def _upload(client: MatrixClient, file: OutgoingFile) -> str:
    """Return the address of a file. Raises SendError: the message itself was surely not sent."""
    try:
        uri = await client.upload(file.data, safe_content_type(file.content_type))
    except (Denied, Uncertain) as error:
        raise Unreachable(f"the file is not uploaded: {error.reason}") from None
    if not is_media_uri(uri):
        raise Rejected("the homeserver gives the file no address")
    return uri


_KEPT_BY_EDITS: Final = ("msgtype", "url", "info", "filename")


def _check_room(at: Address) -> str:
    """Return the id of a room. Raises Rejected if it is none."""
    if not is_id(at.room, "!"):
        raise Rejected("there is no such room")
    return at.room


def transaction_id(key: str) -> str:
    """Return the same short word for the same key at all times."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def text_content(text: str) -> dict[str, object]:
    """Return the content of a message with this Markdown."""
    content: dict[str, object] = {"msgtype": "m.text", "body": text}
    html = to_html(text)
    if html and len(text.encode()) + len(html.encode()) < _MAX_CONTENT_BYTES:
        content |= {"format": "org.matrix.custom.html", "formatted_body": html}
    return content


def message_content(part: PostPart, uri: str) -> dict[str, object]:
    """Return the content of a part; `uri`: the address of its file.

    It notifies only those whom it is for (https://spec.matrix.org/latest/client-server-api/#user-and-room-mentions).
    """
    content = text_content(part.body)
    if part.style == "notice":
        content["msgtype"] = "m.notice"
    if part.file is not None:
        content |= {
            "msgtype": "m.file",
            "filename": safe_file_name(part.file.name),
            "url": uri,
            "info": {
                "mimetype": safe_content_type(part.file.content_type),
                "size": len(part.file.data),
            },
        }
    people = [one.id for one in part.notify if is_id(one.id, "@")]
    content["m.mentions"] = {"user_ids": people} if people else {}
    relation: dict[str, object] = {}
    if part.reply_to is not None and is_id(part.reply_to, "$"):
        relation["m.in_reply_to"] = {"event_id": part.reply_to}
    if part.to.thread is not None and is_id(part.to.thread, "$"):
        relation |= {"rel_type": "m.thread", "event_id": part.to.thread, "is_falling_back": False}
        relation.setdefault("m.in_reply_to", {"event_id": part.to.thread})
        relation["is_falling_back"] = part.reply_to is None
    if relation:
        content["m.relates_to"] = relation
    return content
