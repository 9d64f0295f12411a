"""Known guilds, channels, threads and roles of Discord, and the text and senders of its events.
Pure.

`DiscordDirectory` replaces the library's cache, which keeps whole objects and needs them to be
well-formed. Discord's markup is Markdown with references in angle brackets
(https://discord.com/developers/docs/reference#message-formatting); inside code they are plain text.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from channels.aio import RoomSignals
from channels.base import Audience
from channels.discord.ids import get_snowflake, get_snowflakes
from channels.text import Json, clean_name, get_bool, get_int, get_object, get_objects, get_str
from gateway.core.events import Address, ChannelName, PlaceNames, RoomId, Sender, SenderId, ThreadId
from gateway.core.frozen import frozen
from gateway.core.ratelimit import LruDict

THREAD_TYPES = frozenset({10, 11, 12})
"""Announcement, public and private threads; forum posts are public threads."""
DIRECT_TYPES = frozenset({1, 3})
_PRIVATE_THREAD_TYPE = 12
"""Only added people and moderators can read it."""
ADMINISTRATOR, _VIEW_CHANNEL, _READ_MESSAGE_HISTORY = 1 << 3, 1 << 10, 1 << 16
SEND_MESSAGES, _SEND_IN_THREADS = 1 << 11, 1 << 38
_CONNECT, _MANAGE_THREADS = 1 << 20, 1 << 34
OPEN_THREADS = 1 << 35 | 1 << 38
"""CREATE_PUBLIC_THREADS and SEND_MESSAGES_IN_THREADS."""
"""https://discord.com/developers/docs/topics/permissions#permissions-bitwise-permission-flags."""
_ALL_PERMISSIONS = -1
_VOICE_TYPES = frozenset({2, 13})
"""Who cannot connect to them cannot read their chat."""
_MAX_DIGITS = 40
SILENT_TYPES = frozenset({4, 14, 15, 16})
"""Categories, directories, forums: only their threads have messages."""
_THREADED_TYPES = frozenset({0, 5})
"""Text and announcements: a thread can be made of a message there."""
_RIGHTS_EVENTS = frozenset({
    "GUILD_CREATE", "GUILD_UPDATE", "GUILD_MEMBER_UPDATE", "CHANNEL_UPDATE", "THREAD_CREATE",
    "THREAD_UPDATE", "GUILD_ROLE_UPDATE", "GUILD_ROLE_DELETE",
})  # fmt: skip
"""Events that may change what we may do in a guild."""
ANY_ROOM = "*"
_MAX_PLANNED = 1000


@frozen
class DiscordPlace:
    """One channel or thread."""

    id: str
    guild: str
    """Empty: a direct chat."""
    name: str
    kind: int
    """https://discord.com/developers/docs/resources/channel#channel-object-channel-types."""
    parent: str
    """Channel of a thread; empty for a channel."""
    last_message: str
    """Newest message at the time of the event; empty: unknown, or none."""
    topic: str | None = None
    """None: unknown."""
    owner: str = ""
    """Who opened the thread; empty: unknown, or a channel."""
    overwrites: tuple[tuple[str, int, int], ...] | None = None
    """Role or person, and the permissions they are allowed and denied in addition to their roles.
    None: unknown."""


@dataclass(slots=True)
class _Guild:
    name: str = ""
    owner: str = ""
    roles: dict[str, int] = field(default_factory=dict)
    """Role -> its permissions. The role with the id of the guild is that of all members."""
    bot_role: str = ""
    """Role that Discord created for us."""
    our_roles: Sequence[str] | None = None


def _needed_rights(at: Address) -> dict[str, int]:
    """Return the permissions that posting there needs, by Discord's names."""
    if at.thread is None:
        return {"View Channel": _VIEW_CHANNEL, "Send Messages": SEND_MESSAGES}
    return {"View Channel": _VIEW_CHANNEL, "Send Messages in Threads": _SEND_IN_THREADS}


class DiscordDirectory:
    """Known places of one account; fed with events by `apply_event`."""

    def __init__(self, channel: ChannelName, *, threads: Iterable[str] = ()) -> None:
        self._channel, self.thread_rooms = channel, frozenset(threads)
        self.own_id = ""
        """Our user id; empty until READY."""
        self.rights = RoomSignals()
        """Notified with a guild when what we may do there may have changed."""
        self.handle = ""
        """Our user name; empty until READY."""
        self._guilds: dict[str, _Guild] = {}
        self._awaited_guilds: set[str] | None = None
        """Guilds whose GUILD_CREATE is to come in this session; what is known of them may be
        outdated. None: READY has not arrived."""
        self.places: dict[str, DiscordPlace] = {}
        self._planned = LruDict[str, str](_MAX_PLANNED)
        """Message whose answer opens a thread -> its room."""
        self.unopened = LruDict[str, str](_MAX_PLANNED)
        """Thread that Discord does not let us open -> the room where its messages stand instead."""

    def address(self, channel: str, message: str = "") -> Address:
        """Return the place of a channel. `message`: of an event there; a message with a thread of
        ours belongs to that.

        An unknown channel is a room of its own, in no guild: closed unless opened by its id.
        """
        thread = self.places.get(message)
        if self._planned.get(message) == channel or (
            thread is not None and thread.parent == channel and self.is_own_thread(message)
        ):
            return Address(channel=self._channel, room=RoomId(channel), thread=ThreadId(message))
        place = self.places.get(channel)
        if place is not None and place.parent:
            return Address(
                channel=self._channel, room=RoomId(place.parent), thread=ThreadId(channel)
            )
        return Address(channel=self._channel, room=RoomId(channel))

    def plan_thread(self, at: Address) -> None:
        """Record that the answer to a message there opens the thread."""
        if at.thread is not None:
            self._planned.put(at.thread, at.room)

    def opens_threads(self, room: str) -> bool:
        """Return whether the operator wants threads there, and Discord lets us open them, as far as
        is known.
        """
        place = self.places.get(room)
        if place is None or place.kind not in _THREADED_TYPES or not self.is_thread_room(room):
            return False
        if room in self.unopened.values():
            return False
        permissions = self._own_permissions(room)
        return not permissions or permissions & OPEN_THREADS == OPEN_THREADS

    def _own_permissions(self, room: str) -> int:
        guild = self._guilds.get(self.guild_of(room))
        roles = None if guild is None else guild.our_roles
        return 0 if roles is None else self._member_permissions(room, self.own_id, roles)

    def describe_missing_rights(self, at: Address) -> str:
        """Return what a refusal to post there comes from, as far as is known."""
        if missing := self.missing_rights(at):
            return f"it lacks the permission {' and '.join(missing)}"
        needed = " and ".join(_needed_rights(at))
        return f"give it the permissions {needed}, and end its timeout if it has one"

    def missing_rights(self, at: Address) -> list[str] | None:
        """Return the permissions that it needs to post there and lacks, by Discord's names. None:
        not known.
        """
        permissions = self._own_permissions(at.room)
        if not permissions:
            return None
        return [name for name, bit in _needed_rights(at).items() if not permissions & bit]

    def is_thread_room(self, room: str) -> bool:
        return ANY_ROOM in self.thread_rooms or bool(
            {room, self.guild_of(room)} & self.thread_rooms
        )

    def is_own_thread(self, channel: str) -> bool:
        place = self.places.get(channel)
        return (
            place is not None
            and bool(place.parent)
            and bool(self.own_id)
            and place.owner == self.own_id
        )

    def is_unopened(self, at: Address) -> bool:
        """Return whether a place is a thread that has to be opened, or that is not known since it
        is archived.
        """
        if at.thread is None or at.thread in self.places:
            return False
        room = self.places.get(at.room)
        if room is None:  # its guild has not arrived yet
            return bool(self.thread_rooms)
        return room.kind in _THREADED_TYPES and self.is_thread_room(at.room)

    def guild_of(self, channel: str) -> str:
        """Return the guild of a channel; empty: none, or unknown."""
        place = self.places.get(channel)
        return place.guild if place else ""

    def rooms(self) -> list[RoomId]:
        """Return the channels of guilds that take messages, without threads."""
        return [
            RoomId(one.id)
            for one in self.places.values()
            if one.guild and not one.parent and one.kind not in SILENT_TYPES
        ]

    def find_guild(self, room: str) -> str:
        """Return the guild of a room, or the guild that has this id; empty: none, or unknown."""
        return room if room in self._guilds else self.guild_of(room)

    def is_direct(self, channel: str) -> bool:
        """Return whether it is a chat outside of guilds; True for unknown channels."""
        place = self.places.get(channel)
        return place is None or place.kind in DIRECT_TYPES

    def audience(self, at: Address) -> Audience | None:
        """Return the audience of a place:
        https://discord.com/developers/docs/topics/permissions.
        """
        place, room = self.places.get(at.thread or at.room), self.places.get(at.room)
        if at.thread is not None and self._planned.get(at.thread) == at.room:
            place = room  # the thread that is opened is a public one
        if place is None or room is None or not place.guild:
            return None
        if place.kind == _PRIVATE_THREAD_TYPE:
            return "thread"
        guild = self._guilds.get(room.guild)
        everyone = None if guild is None else guild.roles.get(room.guild)
        if everyone is None or room.overwrites is None:
            return None
        for target, allowed, denied in room.overwrites:
            if denied & _VIEW_CHANNEL:
                return "room"  # some members of the server cannot read it
            if target == room.guild:
                everyone |= allowed
        return "space" if everyone & _VIEW_CHANNEL else "room"

    def can_read(self, at: Address, user: str, roles: Iterable[str]) -> bool | None:
        """Return whether a member of its guild, with these roles, can read a place and its history.

        None: only if they were added to it, a private thread.
        """
        permissions = self._member_permissions(at.room, user, roles)
        place, needed = self.places.get(at.room), _VIEW_CHANNEL | _READ_MESSAGE_HISTORY
        if place is not None and place.kind in _VOICE_TYPES:
            needed |= _CONNECT
        if at.thread is None or permissions & needed != needed:
            return permissions & needed == needed
        thread = self.places.get(at.thread)
        if thread is None or thread.parent != at.room:
            return False
        is_open = thread.kind != _PRIVATE_THREAD_TYPE or permissions & _MANAGE_THREADS
        return True if is_open else None

    def _member_permissions(self, room: str, user: str, roles: Iterable[str]) -> int:
        """Return the permissions of a member in a room, or, given a guild, in all its rooms without
        overwrites.

        0 if anything of it is unknown.
        https://discord.com/developers/docs/topics/permissions#permission-overwrites.
        """
        place, held = self.places.get(room), set(roles)
        number, overwrites = (place.guild, place.overwrites) if place is not None else (room, ())
        guild = self._guilds.get(number)
        if guild is None or number in (self._awaited_guilds or ()) or overwrites is None:
            return 0
        permissions = 0
        for role in held | {number}:
            permissions |= guild.roles.get(role, 0)
        if guild.owner == user or permissions & ADMINISTRATOR:
            return _ALL_PERMISSIONS
        for targets in ({number}, held - {number}, {user}):
            allowed = denied = 0
            for target, allow, deny in overwrites:
                if target in targets:
                    allowed, denied = allowed | allow, denied | deny
            permissions = permissions & ~denied | allowed
        return permissions

    def place_names(self, at: Address) -> PlaceNames | None:
        room = self.places.get(at.room)
        thread = self.places.get(at.thread) if at.thread is not None else None
        place = thread or room
        me = (
            f"@{self.handle}" if self.handle else None
        )  # our nick there is anybody's word who may change it
        if place is None:  # the room may be a whole guild
            whole = self._guilds.get(at.room)
            return None if whole is None else PlaceNames(room=whole.name or None, topic="", me=me)
        if place.kind in DIRECT_TYPES:
            return PlaceNames(me=me)
        guild = self._guilds.get(place.guild)
        return PlaceNames(
            room=f"#{room.name}" if room is not None and room.name else None,
            server=(guild.name or None) if guild is not None else None,
            thread=(thread.name or None) if thread is not None else None,
            topic=room.topic if room is not None else None,
            me=me,
        )

    def is_visible(self, room: str) -> bool:
        """Return whether Discord has sent that channel, or any channel of that guild."""
        return room in self.places or any(place.guild == room for place in self.places.values())

    @property
    def is_complete(self) -> bool:
        """True if every guild named in READY has arrived: until then a missing place may still
        appear.
        """
        return self._awaited_guilds is not None and not self._awaited_guilds

    def is_own_role(self, role: str) -> bool:
        """Return whether it is the role that Discord created for this bot: its mention addresses
        the bot.
        """
        return bool(role) and any(guild.bot_role == role for guild in self._guilds.values())

    def apply_event(self, event: str, data: Json) -> None:  # noqa: C901, PLR0912 - one case per event
        """Process one event of the gateway; events without places change nothing."""
        if event in _RIGHTS_EVENTS:
            self.rights.notify(get_snowflake(data, "guild_id") or get_snowflake(data, "id"))
        match event:
            case "READY":
                self.own_id = get_snowflake(get_object(data, "user"), "id") or self.own_id
                self.handle = get_str(get_object(data, "user"), "username") or self.handle
                named = {get_snowflake(guild, "id") for guild in get_objects(data, "guilds")}
                self._awaited_guilds = (self._awaited_guilds or set()) | named
                self.unopened.clear()
            case "GUILD_CREATE":
                self._add_guild(data)
            case "GUILD_UPDATE":
                self._update_guild(data)
            case "GUILD_DELETE" if not get_bool(data, "unavailable"):
                self._forget_guild(get_snowflake(data, "id"))
            case "THREAD_UPDATE" if get_bool(get_object(data, "thread_metadata"), "archived"):
                # Archived threads are unlimited in number; Discord sends one again when it is used.
                self.places.pop(get_snowflake(data, "id"), None)
            case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
                # Its permissions may have changed, so threads may be opened there.
                room = get_snowflake(data, "id")
                for thread in [one for one, where in self.unopened.items() if where == room]:
                    del self.unopened[thread]
                self.add_channel(data, get_snowflake(data, "guild_id"))
            case "GUILD_MEMBER_UPDATE":
                self._learn_own(data, get_snowflake(data, "guild_id"))
            case "CHANNEL_DELETE" | "THREAD_DELETE":
                self.places.pop(get_snowflake(data, "id"), None)
            case "THREAD_LIST_SYNC":
                for one in get_objects(data, "threads"):
                    self.add_channel(one, get_snowflake(data, "guild_id"))
            case "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE":
                self._add_role(get_object(data, "role"), get_snowflake(data, "guild_id"))
                self.unopened.clear()
            case "GUILD_ROLE_DELETE":
                if guild := self._guilds.get(get_snowflake(data, "guild_id")):
                    guild.roles.pop(get_snowflake(data, "role_id"), None)

    def add_channel(self, data: Json, guild: str) -> DiscordPlace | None:
        """Add one channel object; return None if it is invalid."""
        channel, kind = get_snowflake(data, "id"), get_int(data, "type")
        if not channel or kind is None:
            return None
        place = DiscordPlace(
            id=channel,
            guild="" if kind in DIRECT_TYPES else guild,
            kind=kind,
            name=get_str(data, "name"),
            parent=get_snowflake(data, "parent_id") if kind in THREAD_TYPES else "",
            last_message=get_snowflake(data, "last_message_id"),
            topic=get_str(data, "topic") if "topic" in data else None,
            owner=get_snowflake(data, "owner_id") if kind in THREAD_TYPES else "",
            overwrites=_parse_overwrites(data),
        )
        self.places[channel] = place
        if place.parent and place.parent not in self.places:
            # A thread may arrive before its guild; its parent channel is in the same guild.
            self.add_channel({"id": place.parent, "type": 0}, guild)
        return place

    def guild_places(self, guild: str) -> list[DiscordPlace]:
        """Return the guild's channels and threads, oldest first."""
        return sorted(
            (p for p in self.places.values() if p.guild == guild), key=lambda place: int(place.id)
        )

    def _add_guild(self, data: Json) -> None:
        guild = get_snowflake(data, "id")
        if self._awaited_guilds is not None:
            self._awaited_guilds.discard(guild)
        if not guild or get_bool(data, "unavailable"):
            return
        self._forget_guild(guild)
        self._guilds[guild] = _Guild()
        self._update_guild(data)
        for member in get_objects(data, "members"):
            self._learn_own(member, guild)
        for channel in (*get_objects(data, "channels"), *get_objects(data, "threads")):
            self.add_channel(channel, guild)
        for role in get_objects(data, "roles"):
            self._add_role(role, guild)

    def _learn_own(self, member: Json, guild: str) -> None:
        """Take in what a member object tells of us; others are ignored."""
        user, known = get_snowflake(get_object(member, "user"), "id"), self._guilds.get(guild)
        if known is not None and user and user == self.own_id:
            known.our_roles = get_snowflakes(member, "roles")
            self.unopened.clear()

    def _update_guild(self, data: Json) -> None:
        if guild := self._guilds.get(get_snowflake(data, "id")):
            guild.name = get_str(data, "name") or guild.name
            guild.owner = get_snowflake(data, "owner_id") or guild.owner

    def _add_role(self, data: Json, number: str) -> None:
        role, guild = get_snowflake(data, "id"), self._guilds.get(number)
        if role and guild is not None:
            guild.roles[role] = _parse_permissions(data, "permissions")
            if self.own_id and get_snowflake(get_object(data, "tags"), "bot_id") == self.own_id:
                guild.bot_role = role

    def _forget_guild(self, guild: str) -> None:
        for place in self.guild_places(guild):
            del self.places[place.id]
        self._guilds.pop(guild, None)


def _parse_overwrites(data: Json) -> tuple[tuple[str, int, int], ...] | None:
    if not isinstance(data.get("permission_overwrites"), list):
        return None
    overwrites = get_objects(data, "permission_overwrites")
    return tuple(
        (
            get_snowflake(item, "id"),
            _parse_permissions(item, "allow"),
            _parse_permissions(item, "deny"),
        )
        for item in overwrites
    )


def _parse_permissions(data: Json, key: str) -> int:
    """Return permissions, a number written as text. Invalid text allows nothing."""
    text = get_str(data, key)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


_REFERENCE = re.compile(
    r"(?P<code>```.*?```|``.*?``|`[^`\n]+`)"
    r"|<@!?(?P<user>\d{1,20})>|<@&(?P<role>\d{1,20})>|<#(?P<channel>\d{1,20})>"
    r"|<a?:(?P<emoji>\w{1,64}):\d{1,20}>|</(?P<command>[^:<>\n]{1,110}):\d{1,20}>"
    r"|<t:(?P<time>-?\d{1,13})(?::(?P<style>[tTdDfFRsS]))?>",
    re.DOTALL,
)
_HANDLE = re.compile(r"[a-z0-9._]{2,32}")
"""https://discord.com/developers/docs/resources/user#usernames-and-nicknames: bots may have other
names."""
_MAX_EMBED_CHARS = 600
_MAX_EMBEDS = 3
_MAX_OPTIONS = 10
_MAX_COMPONENT_DEPTH = 4


def mentions_us(content: str, me: str) -> bool:
    """Return whether our mention is in the text itself, outside of code."""
    return any(found["user"] == me for found in _REFERENCE.finditer(content)) if me else False


def resolve_references(content: str, handles: dict[str, str], directory: DiscordDirectory) -> str:
    """Return `content` with words of nobody in place of markup. `handles`: user id to user name.

    A text is its author's, so names that others chose (of people, roles, channels, emoji, commands)
    are no part of it: of people it has the handle, which is one plain word, of the rest the id at
    most.
    """

    def token(found: re.Match[str]) -> str:
        if user := found["user"]:
            handle = directory.handle if user == directory.own_id else handles.get(user)
            return f"@{handle or f'user-{user}'}"
        if role := found["role"]:
            return f"@{(directory.is_own_role(role) and directory.handle) or f'role-{role}'}"
        if found["channel"]:
            return f"#{found['channel']}"
        if found["emoji"]:
            return ":emoji:"
        if found["time"]:
            return _format_timestamp(int(found["time"]), found["style"] or "f") or found[0]
        return "/command" if found["command"] else found[0]

    return _REFERENCE.sub(token, content)


def _format_timestamp(unix_s: int, style: str) -> str:
    """Return the time that a timestamp shows, in UTC whatever its style; a day for the styles of
    days. Empty: none.

    https://discord.com/developers/docs/reference#message-formatting-timestamp-styles
    """
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=unix_s)
    except OverflowError:
        return ""
    return (
        when.date().isoformat()
        if style in "dD"
        else f"{when.replace(tzinfo=None).isoformat(' ', 'minutes')} UTC"
    )


def mentioned_handles(message: Json) -> dict[str, str]:
    """Return the user names of the people that a message mentions, without those that are more than
    a plain word.
    """
    found = {
        get_snowflake(user, "id"): get_str(user, "username")
        for user in get_objects(message, "mentions")
    }
    return {user: handle for user, handle in found.items() if _HANDLE.fullmatch(handle)}


def display_name(user: Json) -> str:
    """Return the name that somebody has chosen for themselves, freely. Empty if there is none.

    Their nick in a guild (`member.nick`) is no such name: moderators change it.
    """
    return clean_name(get_str(user, "global_name") or get_str(user, "username"))


def listed_name(user: Json, member: Json) -> str:
    """Return all names of somebody, for lists of people: the displayed one, and the handle that
    mentions have.
    """
    shown, handle = (
        clean_name(get_str(member, "nick")) or display_name(user),
        get_str(user, "username"),
    )
    return f"{shown}, @{handle}" if _HANDLE.fullmatch(handle) and shown != handle else shown


def message_files(data: Json) -> list[Json]:
    """Return the attachments of a message, and of the message that it forwards."""
    forwarded = [
        get_object(snapshot, "message") for snapshot in get_objects(data, "message_snapshots")
    ]
    return [file for message in (data, *forwarded) for file in get_objects(message, "attachments")]


def extra_lines(message: Json, directory: DiscordDirectory, *, embeds: bool) -> list[str]:
    """Return content besides the text, as lines of text. `embeds`: include embeds and texts of
    components, which only bots can write.
    """
    lines = []
    for snapshot in get_objects(message, "message_snapshots")[:_MAX_EMBEDS]:
        inner = {**get_object(snapshot, "message"), "message_snapshots": ()}
        text = resolve_references(get_str(inner, "content"), mentioned_handles(inner), directory)
        lines += [f"[forwarded] {text}".rstrip(), *extra_lines(inner, directory, embeds=True)]
    lines += ["[sticker]"] * len(get_objects(message, "sticker_items"))
    if poll := get_object(message, "poll"):
        answers = [
            get_str(get_object(answer, "poll_media"), "text")
            for answer in get_objects(poll, "answers")[:_MAX_OPTIONS]
        ]
        lines.append(
            f"[poll: {get_str(get_object(poll, 'question'), 'text')} - {' / '.join(answers)}]"
        )
    if embeds:
        texts = [*map(_embed_text, get_objects(message, "embeds")), *_component_texts(message, 0)]
        lines += list(filter(None, texts))[:_MAX_EMBEDS]
    return lines


def _component_texts(holder: Json, depth: int) -> Iterator[str]:
    """Yield what a message without `content` shows, which only bots can write.

    https://discord.com/developers/docs/components/reference#text-display
    """
    for one in get_objects(holder, "components") if depth < _MAX_COMPONENT_DEPTH else ():
        yield get_str(one, "content")[:_MAX_EMBED_CHARS]
        yield from _component_texts(one, depth + 1)


def _embed_text(embed: Json) -> str:
    if get_str(embed, "type") not in {"", "rich"}:  # the others are previews of links in the text
        return ""
    fields = [
        f"{get_str(field, 'name')}: {get_str(field, 'value')}"
        for field in get_objects(embed, "fields")[:_MAX_OPTIONS]
    ]
    text = " - ".join(
        part
        for part in (get_str(embed, "title"), get_str(embed, "description"), *fields)
        if part.strip()
    )
    return text[:_MAX_EMBED_CHARS] + ("…" if len(text) > _MAX_EMBED_CHARS else "")


_PRIVATE_CONTEXT = 2
"""Context of a command in a chat outside of guilds that does not include us
(https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-interaction-context-types).
"""


def interaction_sender(data: Json) -> Sender | None:
    """Return the user of an interaction, verified by Discord."""
    user = get_object(get_object(data, "member"), "user") or get_object(data, "user")
    return user_sender(user, data)


def user_sender(user: Json, event: Json | None = None, name: str = "") -> Sender | None:
    """Return a user, with their roles as `event` tells them. None: it is none.

    https://discord.com/developers/docs/resources/guild#guild-member-object
    """
    if not (user_id := get_snowflake(user, "id")):
        return None
    return Sender(
        id=SenderId(user_id),
        name=name or display_name(user) or user_id,
        is_bot=get_bool(user, "bot"),
        verified=True,
        ranks=tuple(
            f"role:{role}" for role in get_snowflakes(get_object(event, "member"), "roles")
        ),
    )


def is_direct_interaction(data: Json) -> bool:
    """Return whether an interaction is in a direct chat with us."""
    return not get_snowflake(data, "guild_id") and get_int(data, "context") != _PRIVATE_CONTEXT
