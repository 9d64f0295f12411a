"""Titles of places, shown to people and models instead of ids.

Adapters know the names (`channels.base.HasPlaceNames`). Changes are recorded as `PlaceRenamed`, so
that the names are known after a restart. All of it is untrusted: it is cleaned, bounded and put on
one line here, once for all users.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Final, Literal

from channels.base import Channel, HasPlaceNames
from channels.text import single_line
from gateway.access.policy import Routed, is_room_chosen
from gateway.core.clock import new_id
from gateway.core.control_messages import OPERATOR
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConversationId,
    EventId,
    MembershipChanged,
    Message,
    PlaceNames,
    PlaceRenamed,
)
from gateway.core.facts import OPERATOR_CHANNEL, is_inner
from gateway.core.identity import ADMIN_ROLES, AccessPolicy
from gateway.core.ratelimit import LruDict
from gateway.core.redaction import Redactor
from gateway.core.text_safety import inline_code, shorten, strip_hidden
from gateway.store import LogEntry, StoreReader
from gateway.store.queries import COLUMNS
from gateway.store.types import read_entries

_COLUMNS: Final = ", ".join(f"log.{name}" for name in COLUMNS.split(", "))
NEWEST_NAMES: Final = (
    f"SELECT {_COLUMNS} FROM holds JOIN log USING (seq) "  # noqa: S608 - constants only
    "WHERE holds.kind = 'named' ORDER BY holds.seq DESC LIMIT $1"
)
NAMES_OF: Final = (
    f"SELECT {_COLUMNS} FROM json_each($1) AS asked CROSS JOIN holds CROSS JOIN log "  # noqa: S608 - constants only
    "WHERE holds.kind = 'named' AND holds.key = asked.value AND log.seq = holds.seq"
)

MAX_TITLE_CHARS: Final = 100
"""Longest title of Discord; Telegram's have at most 128 characters, and longer ones are cut."""
MAX_TOPIC_CHARS: Final = 400
_MAX_CACHED_TITLES: Final = 10_000
_REPORTED_NAMES: Final[tuple[Literal["room", "server", "thread", "topic", "me"], ...]] = (
    "room",
    "server",
    "thread",
    "topic",
    "me",
)
"""Names whose change is shown to the model. A person's new name is seen on their next message."""
_CHOSEN_NAMES: Final = ("room", "server", "person")
"""Names for which `PlaceRenamed.role` stands."""
_LABELLED: Final = re.compile(r"\(([^\s()]+/\S+)\)$")
_QUOTED_ADDRESS: Final = re.compile(r"(?<![(`])`([^`\s/]+/[^`\s]+)`(?! \(`)")
"""An address in code that has no title before or after it."""
_NUMERIC_ID: Final = re.compile(r"-?\d+")
_NAMES: Final = [one.name for one in fields(PlaceNames)]
_NO_NAMES: Final = PlaceNames()


class PlaceTitles:
    """Current names of all places."""

    def __init__(
        self,
        reader: StoreReader,
        redactor: Redactor,
        channels: Mapping[ChannelName, Channel] | None = None,
    ) -> None:
        """`redactor` is applied to each name before it is shown. `channels` None: any may exist,
        but none has names.
        """
        self._reader, self._redactor = reader, redactor
        self._channels: Mapping[ChannelName, Channel] = {} if channels is None else channels
        self._accepts_all = channels is None
        self._known = LruDict[ConversationId, PlaceRenamed](_MAX_CACHED_TITLES)
        """Names from the log."""
        self._cleaned = LruDict[ConversationId, tuple[PlaceNames, PlaceNames]](_MAX_CACHED_TITLES)
        """Last names from a channel, raw and cleaned: most often they are unchanged."""
        self._recorded = LruDict[ConversationId, tuple[PlaceNames, PlaceRenamed | None]](
            _MAX_CACHED_TITLES
        )
        """Last names from a channel that the log has already, and its entry that has them."""

    def _is_channel(self, name: ChannelName) -> bool:
        return self._accepts_all or name in self._channels

    async def load_recent(self) -> None:
        """Load the places that were named last."""
        newest = await self._reader.rows(NEWEST_NAMES, 1_000)
        self.on_appended(read_entries(newest[::-1]))

    async def load(self, conversations: Iterable[ConversationId]) -> None:
        """Load the names of these places from the log, in one query: call it before many of them
        are shown.
        """
        wanted = [
            one
            for one in dict.fromkeys(conversations)
            if one not in self._known and not is_inner(one)
        ]
        if wanted:
            found = await self._reader.rows(NAMES_OF, json.dumps(wanted))
            self.on_appended(read_entries(found))

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Update the names. Subscribes to `PlaceRenamed`."""
        for entry in entries:
            if isinstance(entry.fact, PlaceRenamed):
                self.learn(entry.fact)

    def learn(self, named: PlaceRenamed) -> None:
        """Use names that are now in the log."""
        self._known.put(named.at.conversation, named)

    async def find_new_names(
        self,
        routed: Routed,
        now: datetime,
        written: dict[ConversationId, PlaceRenamed],
        access_policy: AccessPolicy,
    ) -> PlaceRenamed | None:
        """Return the names of an event's place, if they are not in the log yet.

        `written`: names that are being appended; the result is added to it.
        """
        event, at, conversation = routed.event, routed.at, routed.conversation
        if at is None or conversation is None or is_inner(conversation):
            return None
        whom = ""
        if isinstance(event, Message | Command) and routed.visibility == "direct":
            whom = event.sender.name
        current = self._names_now(at)
        if whom and current.person is None:
            current = replace(current, person=self._clean_text(whom))
        known = written.get(conversation) or self._known.get(conversation)
        seen, in_log = self._recorded.get(conversation, (None, None))
        if seen is current and in_log is known:
            return None
        if replace(current, me=None) == _NO_NAMES:
            return None
        if known is None:
            await self.load([conversation])
            known = self._known.get(conversation)
        before = known.names if known is not None else _NO_NAMES
        names = _merge_names(before, current)
        if names == before:
            self._recorded.put(conversation, (current, known))
            return None
        changed = [
            one
            for one in _REPORTED_NAMES
            if getattr(before, one) is not None and getattr(before, one) != getattr(names, one)
        ]
        namer = (
            known.role
            if known is not None and _chosen_names(before) == _chosen_names(names)
            else self._find_namer(routed, at, names, before, access_policy)
        )
        named = PlaceRenamed(
            id=EventId(new_id(now)),
            at=at,
            names=names,
            sent=now,
            changed=tuple(changed),
            role=namer,
        )
        written[conversation] = named
        return named

    def _find_namer(
        self,
        routed: Routed,
        at: Address,
        names: PlaceNames,
        before: PlaceNames,
        access_policy: AccessPolicy,
    ) -> str:
        """Return `PlaceRenamed.role` of names that somebody chose with this event."""
        event = routed.event
        if isinstance(event, Message | Command) and routed.visibility == "direct":
            return routed.role
        if isinstance(event, MembershipChanged) and event.change == "title":
            chosen = {
                getattr(names, one)
                for one in _CHOSEN_NAMES
                if getattr(names, one) and getattr(before, one) != getattr(names, one)
            }
            if chosen == {self._clean_text(event.text or "")}:
                return routed.role
        is_first = _chosen_names(before) == _chosen_names(_NO_NAMES)
        return "" if is_first and is_room_chosen(access_policy, at) else "guest"

    def has_trusted_names(self, at: Address) -> bool:
        """Return whether the names of a room, or of the person there, may stand where they have no
        label.

        They may where an admin chose them, or the operator or an admin let the agent act in a room
        that was called so (docs/decisions/0058-names-that-strangers-chose-are-left-out.md). `load`
        the place first.
        """
        known = self._known.get(at.conversation)
        if known is None:
            return True  # it is listed in the configuration, and nothing was said there yet
        now = _merge_names(known.names, self._names_now(at))
        is_same = _chosen_names(now) == _chosen_names(known.names)
        return is_same and (known.role or "owner") in ADMIN_ROLES

    def place_names(self, at: Address) -> PlaceNames:
        """Return the names of a place, cleaned and without secrets."""
        named = self._known.get(at.conversation)
        known = named.names if named is not None else None
        if known is None and at.thread is not None:
            room = self._known.get(replace(at, thread=None).conversation)
            known = replace(room.names if room is not None else _NO_NAMES, thread=None)
        names = _merge_names(known or _NO_NAMES, self._names_now(at))
        values = {one: getattr(names, one) for one in _NAMES}
        return PlaceNames(**{key: value and self._redactor(value) for key, value in values.items()})

    def title(self, conversation: ConversationId | str) -> str:
        """Return the title of a place, on one line: never empty, and never a bare id."""
        try:
            at = Address.parse(conversation)
        except ValueError:  # not written by us
            return self._clean_text(conversation)
        if is_inner(at.conversation):
            return f"{at.room} by itself"
        if at.conversation == f"{OPERATOR_CHANNEL}/{OPERATOR}":
            return "the operator's console"
        names = self.place_names(at)
        if names.person:
            return f"{names.person} ({names.handle})" if names.handle else names.person
        room = self._room_title(at, names)
        if room and names.server and room != at.room:
            room = f"{room} in {names.server}"
        room = room or self._format_untitled(at)
        return (
            room
            if at.thread is None
            else f"{self._thread_title(at, names) or 'a thread'} in {room}"
        )

    def room_title(self, at: Address) -> str:
        """Return the title of the room of that address, which may be a thread. Empty: unknown."""
        return self._room_title(at, self.place_names(at))

    def _room_title(self, at: Address, names: PlaceNames) -> str:
        return names.room or ("" if _NUMERIC_ID.fullmatch(at.room) else self._clean_text(at.room))

    def thread_title(self, at: Address) -> str:
        """Return the title of the thread of that address. Empty: unknown."""
        return self._thread_title(at, self.place_names(at))

    def _thread_title(self, at: Address, names: PlaceNames) -> str:
        own = at.thread or ""
        return names.thread or ("" if _NUMERIC_ID.fullmatch(own) else self._clean_text(own))

    def label(self, conversation: ConversationId | str) -> str:
        """Return a place as text for a model: its quoted title, and the address that tools accept.

        The address alone where it consists of names, as on IRC.
        """
        at, title = Address.parse(conversation), self.title(conversation)
        if is_inner(at.conversation) or title == at.room:
            return str(conversation)
        if not self._has_title(at):
            return f"{title} ({conversation})"
        shown = title.replace('"', "'")
        return f'"{shown}" ({conversation})'

    def trusted_label(self, conversation: ConversationId | str) -> str:
        """Return a place as `label` does, or its address alone if strangers may have chosen a part
        of its title.

        `load` it first.
        """
        at = Address.parse(conversation)
        has_thread_title = at.thread is not None and self.thread_title(at) not in ("", at.thread)
        return (
            self.label(conversation)
            if self.has_trusted_names(at) and not has_thread_title
            else str(conversation)
        )

    def heading(self, conversation: ConversationId | str) -> str:
        """Return a place as `trusted_label` does, but in one form for all of them: always with a
        quoted title.
        """
        at, label = Address.parse(conversation), self.trusted_label(conversation)
        if label.startswith('"'):
            return label
        named = "" if _NUMERIC_ID.fullmatch(at.room) else self._clean_text(at.room)
        title = named.replace('"', "'") or self._format_untitled(at)
        return f'"{title if at.thread is None else f"a thread in {title}"}" ({conversation})'

    def add_titles(self, text: str) -> str:
        """Return a text for people with the title in front of each address that is in code.

        An address stays as it is where its title says no more, or is there already.
        """
        return _QUOTED_ADDRESS.sub(self._add_title, text)

    def _add_title(self, found: re.Match[str]) -> str:
        conversation = found[1]
        try:
            at = Address.parse(conversation)
        except ValueError:
            return found[0]
        if is_inner(at.conversation) or not self._is_channel(at.channel):
            return found[0]
        title = self.title(conversation)
        if title == at.room:
            return found[0]
        shown = inline_code(title, 2 * MAX_TITLE_CHARS) if self._has_title(at) else title
        return f"{shown} ({found[0]})"

    def find_places(self, written: str, more: Iterable[Address] = ()) -> list[Address]:
        """Return the places that somebody may mean by an address, a label, or a displayed title.

        An address is returned as it is. Titles are searched among the known places and `more`.
        """
        stripped = written.strip()
        labelled = _LABELLED.search(stripped)
        for one in (labelled[1] if labelled else "", stripped):
            try:
                at = Address.parse(one)
            except ValueError:
                continue
            if self._is_channel(at.channel) or is_inner(at.conversation):
                return [at]
        wanted, known = _fold_title(stripped), [Address.parse(one) for one in self._known]
        return [
            at
            for at in dict.fromkeys((*known, *more))
            if wanted and wanted in map(_fold_title, self._all_titles(at))
        ]

    def _all_titles(self, at: Address) -> list[str]:
        names, conversation = self.place_names(at), at.conversation
        own = names.thread if at.thread is not None else names.room or names.person
        return [self.title(conversation), own or "", names.handle or ""]

    def _has_title(self, at: Address) -> bool:
        known = bool(self.place_names(at).person or self.room_title(at))
        return known and (at.thread is None or bool(self.thread_title(at)))

    def _format_untitled(self, at: Address) -> str:
        channel = self._channels.get(at.channel)
        if channel is None:
            return f"a room on {at.channel.partition('.')[0].capitalize()}"
        able = channel.capabilities
        return able.room_title or f"a room on {able.platform}"

    def _names_now(self, at: Address) -> PlaceNames:
        channel: object = self._channels.get(at.channel)
        raw = channel.place_names(at) if isinstance(channel, HasPlaceNames) else None
        if raw is None:
            return _NO_NAMES
        last = self._cleaned.get(at.conversation)
        if last is not None and (last[0] is raw or last[0] == raw):
            return last[1]
        limits = {"topic": MAX_TOPIC_CHARS}
        values = {one: getattr(raw, one) for one in _NAMES}
        cleaned = PlaceNames(
            **{
                key: value and self._clean_text(value, limits.get(key, MAX_TITLE_CHARS))
                for key, value in values.items()
            }
        )
        self._cleaned.put(at.conversation, (raw, cleaned))
        return cleaned

    def _clean_text(self, text: str, max_chars: int = MAX_TITLE_CHARS) -> str:
        """Return the text on one line, without secrets, invisible characters and direction changes;
        cut last.
        """
        printable = "".join(
            one if one.isprintable() else " " if one.isspace() else "" for one in strip_hidden(text)
        )
        flat = self._redactor(single_line(printable, len(printable)))
        if _LABELLED.search(flat):  # or a title could be taken for the label of another place
            flat = flat.replace("(", "[").replace(")", "]")
        return shorten(flat, max_chars)


def _chosen_names(names: PlaceNames) -> tuple[str | None, ...]:
    return tuple(getattr(names, one) or None for one in _CHOSEN_NAMES)


def _merge_names(before: PlaceNames, newer: PlaceNames) -> PlaceNames:
    both = {
        one: getattr(before, one) if getattr(newer, one) is None else getattr(newer, one)
        for one in _NAMES
    }
    first = both.pop("thread_created_as")
    return PlaceNames(**{**both, "thread": both["thread"] or first or None})


def _fold_title(text: str) -> str:
    return " ".join(text.replace('"', "").split()).casefold().lstrip("#")
