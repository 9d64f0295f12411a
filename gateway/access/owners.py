"""Notices to owners, and command menus by role: shown to people without a request.

`OwnerNotifier` posts what owners did not ask for but should know: limits that were reached, codes
that wait for an admin. `CommandMenuPublisher` shows people with a role the commands that they may
use, where the platform can.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Final, Literal, NamedTuple
from weakref import WeakSet

from channels.base import CanSetCommandMenus, Channel, Part, SendError
from channels.text import fold_words
from gateway.access.channels import Channels
from gateway.access.limits import format_limit_report, limit_report_key
from gateway.access.place_names import PlaceTitles
from gateway.access.texts import (
    definition_code,
    render_request_for_owners,
    render_request_outcome,
    request_buttons,
)
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock, new_id
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    Message,
    Post,
    PostButton,
    PostKey,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    OPERATOR_CHANNEL,
    CodeEnded,
    CodeIssued,
    Fact,
    IdentityLinked,
    LimitReached,
    McpToolApproved,
    PostQueued,
    RoleAssigned,
    is_direct_line,
)
from gateway.core.format import format_duration
from gateway.core.i18n import N_, _, current_language, language_for, use_language
from gateway.core.identity import AccessPolicy, identify
from gateway.core.ratelimit import LruDict
from gateway.core.text_safety import PLACE_CHARS, inline_code
from gateway.store import LogEntry, NewEntry, Store, StoreError, StoreReader
from gateway.store.effects import build_notice_end

logger = logging.getLogger("reverie.owners")

MAX_POSTS_PER_KIND: Final = 10
"""Posts of each kind in a UTC day of what outsiders may cause; one more post says that there was
more."""
MORE_TEXT: Final = N_(
    "There are more notices of this kind today. I send at most {count} of a kind in a day; "
    "`reverie log tail` shows "
    "the others."
)
MIN_NAME_CHARS: Final = 3
"""Shorter names of owners are words of the talk too often."""
LASTING_S: Final = 600.0
"""Seconds after which trouble that began again on the same day is told again."""
NoticeText = str | Callable[[Address | None], str]
"""Text for owners, or a function that makes it for the place of the post and in its language.

The place is None for the process's own log, which is English.
"""
NoticeButtons = Callable[[], tuple[PostButton, ...]]
"""Function that makes the buttons of a notice, in the language of the post."""
DIRECT_KINDS: Final = ("direct", "command")
"""Kinds of entries that somebody may have written in a direct chat."""
PAGE_ENTRIES: Final = 300
MAX_PAGES: Final = 10
"""At most this many pages of this size of direct messages, newest first, are searched for one from
an owner."""
MAX_POSTS_SEARCHED: Final = 2_000
"""Newest posts searched for today's notices. There are more in a day only where each kind has
some."""
NOTICE_DAYS: Final = 7
"""Days after which the buttons of a notice stay: what it asks about was decided elsewhere. A tap
says so."""
PersonWithRole = tuple[Sender, Literal["owner", "admin", "member"]]


class DirectChat(NamedTuple):
    """A direct chat, as its newest line shows it."""

    at: Address
    sender: Sender
    language: str | None = None
    """Tag of the language of their client, if known."""


@dataclass(slots=True)
class _Trouble:
    """Something that is wrong, and goes on."""

    since: datetime
    is_told: bool = False
    """Its beginning was posted, so its end will be."""


class OwnerNotifier:
    """Posts notices to the gateway's owners: to `access.tell`, or the direct chat that a verified
    owner used last.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        policy: AccessPolicy,
        *,
        live: LiveSettings,
        tasks: asyncio.TaskGroup,
        channels: Channels,
        titles: PlaceTitles,
        room_language: Callable[[Address], str | None] = lambda _at: None,
    ) -> None:
        """`room_language`: returns the tag of the language that is set for a place. None: none is
        set.
        """
        self._room_language = room_language
        self._channels = channels
        self._titles = titles
        self._store = store
        self._clock = clock
        self._policy = policy
        self._live = live
        self._tasks = tasks
        self._owner_chat: DirectChat | None = None
        self.names = set[str]()
        """Names of the owners who wrote to an agent, each as words in lower case with a space
        between: whole, and its first word."""
        self._lock = asyncio.Lock()
        """One text after the other, so that they can be counted."""
        self._day = ""
        self._post_counts: dict[str, int] = {}
        """Posts of that day in the log, by kind, so that many of one kind do not suppress
        another."""
        self._logged = LruDict[str, None]()
        """Keys of the texts that the process has logged, with their days."""
        self._troubles = dict[str, _Trouble]()
        """By cause, what is wrong now."""
        store.subscribe(self._on_owner_wrote, Message, Command, where=is_direct_line)
        store.subscribe(self._on_limits_reached, LimitReached, own=True)
        store.subscribe(self._on_code_issued, CodeIssued, own=True)
        store.subscribe(self._on_decided, *_DECISIONS, own=True)

    @property
    def configured_address(self) -> Address | None:
        """`access.tell`. None: not configured."""
        tell = self._live.settings.access.tell
        return Address.parse(tell) if tell else None

    async def load(self) -> None:
        """Find the chat in which an owner wrote last. Call it once roles are loaded."""
        self._owner_chat = await self._find_newest_chat()
        if self._owner_chat is not None:
            self._learn_name(self._owner_chat)

    def _learn_name(self, chat: DirectChat) -> None:
        names = (chat.sender.name, chat.sender.name.partition(" ")[0], chat.sender.account or "")
        self.names.update(one for one in map(fold_words, names) if len(one) >= MIN_NAME_CHARS)

    def _on_owner_wrote(self, entries: Sequence[LogEntry]) -> None:
        """Move notices to the direct chat in which an owner writes.

        To the operator's own channel only while no other chat is known: nobody may be looking
        there.
        """
        for entry in entries:
            chat = parse_direct_chat(entry.fact)
            if chat is None or not self._is_owner(chat):
                continue
            self._learn_name(chat)
            if self._owner_chat is None or chat.at.channel != OPERATOR_CHANNEL:
                self._owner_chat = chat

    def _on_posted(self, entries: Sequence[LogEntry]) -> None:
        """Count the notices of this day, whichever process posts them."""
        prefixes = {kind: f"post:{_day_prefix(self._day, kind)}" for kind in self._post_counts}
        for entry in entries:
            for kind, prefix in prefixes.items():
                self._post_counts[kind] += (entry.key or "").startswith(prefix)

    def _on_limits_reached(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, LimitReached):
                place = entry.conversation or ConversationId("")
                text = partial(format_limit_report, entry.fact, place)
                self.notify(limit_report_key(entry.fact, entry.at), text)

    def _on_code_issued(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(request := entry.fact, CodeIssued) and request.what in ("pair", "room"):
                text = partial(self._render_request, request)
                self.notify(f"code:{request.salt}", text, buttons=partial(request_buttons, request))

    def _render_request(self, request: CodeIssued, to: Address | None) -> str:
        prefix = "reverie " if to is None else self._channels.command_prefix(to.channel)
        return render_request_for_owners(request, prefix, has_buttons=self._shows_buttons(to))

    def _shows_buttons(self, to: Address | None) -> bool:
        channel = None if to is None else self._channels.get(to.channel)
        return channel is not None and channel.capabilities.buttons

    def _on_decided(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self._tasks.create_task(self._end_notice(entry))

    async def _end_notice(self, decided: LogEntry) -> None:
        """Take the buttons from the notices about what was decided, also from those of earlier
        days.
        """
        kind, about, render_outcome = _describe_decision(decided)
        if not about:
            return
        async with self._lock:
            for days in range(NOTICE_DAYS):
                day = (decided.at - timedelta(days=days)).date().isoformat()
                queued = await self._store.entry_by_key(
                    f"post:{_post_key(day, kind, f'{kind}:{about}')}"
                )
                notice = (
                    queued.fact.post
                    if queued is not None and isinstance(queued.fact, PostQueued)
                    else None
                )
                with use_language(notice.language if notice is not None else None):
                    outcome = render_outcome()
                await self._store.append(
                    [
                        NewEntry(
                            fact=one.fact, at=self._clock.now(), conversation=one.place, key=one.key
                        )
                        for one in build_notice_end(notice, outcome)
                    ]
                )

    def notify(
        self,
        key: str,
        text: NoticeText,
        *,
        beside: ChannelName | None = None,
        buttons: NoticeButtons = tuple,
    ) -> None:
        """Post this text to owners once a UTC day for each key. Markdown, not blank. Returns at
        once.

        `beside`: a channel that does not work; another one is used if an owner is known there.
        `buttons`: shown below where the channel can.

        The post is durable soon after, and not repeated after a restart. Every text is also logged
        by the process; where no owner is known, only there.
        """
        self._tasks.create_task(self.notify_and_wait(key, text, beside=beside, buttons=buttons))

    async def notify_and_wait(
        self,
        key: str,
        text: NoticeText,
        *,
        beside: ChannelName | None = None,
        buttons: NoticeButtons = tuple,
    ) -> None:
        """As `notify`, but return once the post is durable. Raises `StoreError`."""
        async with self._lock:
            await self._post(key, text, beside, buttons, max_posts=MAX_POSTS_PER_KIND)

    async def _post(
        self,
        key: str,
        text: NoticeText,
        beside: ChannelName | None,
        buttons: NoticeButtons = tuple,
        *,
        max_posts: float = inf,
    ) -> bool:
        """Post it, unless that was done today. Return whether it was done now. The caller holds the
        lock.

        `max_posts`: posts of this kind in a day.
        """
        now = self._clock.now()
        day = now.date().isoformat()
        if day != self._day:
            if not self._day:  # nothing is counted before the first notice
                self._store.subscribe(self._on_posted, PostQueued)
            self._post_counts, self._day = {}, day
        kind = key.partition(":")[0]
        if kind not in self._post_counts:
            self._post_counts[kind] = await self._count_posts(day, kind)
        if f"{day}:{key}" not in self._logged:
            self._logged.put(f"{day}:{key}", None)
            with use_language(None):
                logger.warning("for owners: %s", _render(text, None))
        to, tag = await self._find_address(beside)
        if to is None or self._post_counts[kind] > max_posts:
            return False
        is_last = self._post_counts[kind] == max_posts
        with use_language(tag):
            words = _(MORE_TEXT).format(count=MAX_POSTS_PER_KIND) if is_last else _render(text, to)
            post = Post(
                key=_post_key(day, kind, "more" if is_last else key),
                to=to,
                text=self._titles.add_titles(words),
                style="notice",
                buttons=buttons() if self._shows_buttons(to) and not is_last else (),
                language=current_language(),
            )
        entry = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=to.conversation, key=f"post:{post.key}"
        )
        (queued,) = await self._store.append([entry])
        return queued.is_new

    def begin_trouble(
        self, cause: str, text: NoticeText, *, beside: ChannelName | None = None
    ) -> None:
        """Tell owners that something is wrong until `end_trouble`. Call it each time it is seen;
        returns at once.

        `cause`: kind, place and what can be done, e.g. `channel:irc.libera:refused`. Told once a
        UTC day for each cause; what begins again on the same day is told, with its end, only if it
        is seen after `LASTING_S`.
        """
        trouble = self._troubles.setdefault(cause, _Trouble(self._clock.now()))
        self._tasks.create_task(self._tell_trouble(cause, trouble, text, beside))

    async def _tell_trouble(
        self, cause: str, trouble: _Trouble, text: NoticeText, beside: ChannelName | None
    ) -> None:
        async with self._lock:
            lasts = (self._clock.now() - trouble.since).total_seconds() >= LASTING_S
            if lasts and not trouble.is_told:
                cause = f"{cause}:{trouble.since.isoformat()}"
            trouble.is_told |= await self._post(cause, text, beside)

    def end_trouble(
        self, prefix: str, text: NoticeText, *, beside: ChannelName | None = None
    ) -> None:
        """Tell owners that no cause that begins so is there any more, if they were told of one.
        Returns at once.
        """
        ended = {
            cause: self._troubles.pop(cause)
            for cause in list(self._troubles)
            if cause.startswith(prefix)
        }
        if ended:
            self._tasks.create_task(self._tell_end(prefix, text, ended, beside))

    async def _tell_end(
        self,
        prefix: str,
        text: NoticeText,
        ended: Mapping[str, _Trouble],
        beside: ChannelName | None,
    ) -> None:
        async with self._lock:  # after the post of the beginning
            if not any(one.is_told for one in ended.values()):
                return
            now = self._clock.now()
            age_s = (now - min(one.since for one in ended.values())).total_seconds()

            def render(to: Address | None) -> str:
                lasted = _("It lasted {span}.").format(span=format_duration(age_s))
                return f"{_render(text, to)} {lasted}"

            await self._post(f"{prefix}over:{now.isoformat()}", render, beside)

    def tell_unrecorded(self, text: NoticeText) -> asyncio.Task[None]:
        """Send this text to owners at once, past the log, which cannot be written. Returns at once.

        Nothing of it is recorded, and it is not tried again. The task ends once it was sent, or
        could not be.
        """
        return self._tasks.create_task(self._send_unrecorded(text))

    async def _send_unrecorded(self, text: NoticeText) -> None:
        try:
            to, tag = await self._find_address(None)
            channel = None if to is None else self._channels.get(to.channel)
            if (
                to is None or channel is None or not self._channels.holds(to.channel)
            ):  # its holder tells them
                return
            with use_language(tag):
                words = _render(text, to)
            post = Post(key=PostKey(new_id(self._clock.now())), to=to, text=words, style="notice")
            for index, body in enumerate(channel.split(post)):
                await channel.send(
                    Part(key=f"{post.key}#{index}", to=to, body=body, style="notice")
                )
        except (SendError, StoreError) as error:
            logger.warning("owners could not be told: %s", error)

    async def _find_address(self, beside: ChannelName | None) -> tuple[Address | None, str | None]:
        """Return the address for notices, and the tag of the language there.

        Ownership is checked again: the configuration or roles may have changed since.
        """
        to, chat = self.configured_address, None
        if to is None:
            if self._owner_chat is None or not self._is_owner(self._owner_chat):
                self._owner_chat = await self._find_newest_chat()
            chat = self._owner_chat
            to = None if chat is None else chat.at
        if (
            to is not None
            and to.channel == beside
            and (elsewhere := await self._find_newest_chat(beside))
        ):
            to, chat = elsewhere.at, elsewhere
        if to is None:
            return None, None
        person = chat.language if chat is not None else None
        return to, language_for(self._room_language(to), person, direct=chat is not None)

    async def _find_newest_chat(self, beside: ChannelName | None = None) -> DirectChat | None:
        """Return the chat in which an owner wrote last; that of the operator's own channel only if
        there is no other.

        `beside`: a channel that does not count.
        """
        operator_chat = None
        async for chat in iter_direct_chats(self._store):
            if chat.at.channel != beside and self._is_owner(chat):
                if chat.at.channel != OPERATOR_CHANNEL:
                    return chat
                operator_chat = operator_chat or chat
        return operator_chat

    def _is_owner(self, chat: DirectChat) -> bool:
        """Return whether this is a verified owner everywhere: an owner of one room or agent gets no
        notices.
        """
        return identify(self._policy, chat.at, chat.sender).global_role == "owner"

    async def _count_posts(self, day: str, kind: str) -> int:
        rows = await self._store.entry_rows(kinds=["post"], limit=MAX_POSTS_SEARCHED, newest=True)
        return sum((row[4] or "").startswith(f"post:{_day_prefix(day, kind)}") for row in rows)


def _render(text: NoticeText, to: Address | None) -> str:
    return text if isinstance(text, str) else text(to)


_DECISIONS: Final = (CodeEnded, McpToolApproved)
"""Facts that decide what a notice with buttons asks about."""


def _describe_decision(decided: LogEntry) -> tuple[str, str, Callable[[], str]]:
    """Return kind and rest of the key of the notice that it decides, empty for none.

    Return also the function that renders the outcome, in Markdown.
    """
    match decided.fact:
        case CodeEnded() as ended:
            return (
                "code",
                (decided.key or "").removeprefix("code_over:"),
                partial(render_request_outcome, ended),
            )
        case McpToolApproved(by=by) as approved if by:
            code = definition_code(approved.server, approved.tool, approved.definition)
            return "mcp", code, lambda: _render_approved(by)
        case __:
            return "", "", str


def _render_approved(by: str) -> str:
    return _("**Approved** by {person}.").format(person=inline_code(by, PLACE_CHARS))


def parse_direct_chat(fact: Fact) -> DirectChat | None:
    """Return the direct chat in which somebody wrote this. None: it was not written in one."""
    if isinstance(fact, Message | Command) and is_direct_line(fact):
        return DirectChat(fact.at, fact.sender, fact.language)
    return None


async def iter_direct_chats(reader: StoreReader) -> AsyncIterator[DirectChat]:
    """Yield the direct chats in which people wrote, the newest lines first; a chat again for each
    of them. Raises StoreError.
    """
    before = None
    for __ in range(MAX_PAGES):
        page = await reader.newest_entries(PAGE_ENTRIES, before=before, kinds=DIRECT_KINDS)
        for one in reversed(page):
            if (chat := parse_direct_chat(one.fact)) is not None:
                yield chat
        if len(page) < PAGE_ENTRIES:
            return
        before = page[0].seq


def _day_prefix(day: str, kind: str) -> str:
    """Return the prefix that exactly the keys of that day's posts have."""
    return hashlib.sha256(f"owners:{day}:{kind}".encode()).hexdigest()[:12]


def _post_key(day: str, kind: str, key: str) -> PostKey:
    """Return a key as long as a ULID, always the same."""
    return PostKey(_day_prefix(day, kind) + hashlib.sha256(key.encode()).hexdigest()[:14])


class CommandMenuPublisher:
    """Publishes the command menus of people with a role, on all channels of this process that
    can.
    """

    def __init__(
        self, store: Store, live: LiveSettings, policy: AccessPolicy, channels: Channels
    ) -> None:
        """`policy` must already reflect the appended facts: subscribe the roster before."""
        self._policy = policy
        self._channels = channels
        self._published = WeakSet[Channel]()
        """Channels that have a menu, if they can. One that is added later gets it when its link
        comes up."""
        store.subscribe(lambda _fact: self._changed.set(), RoleAssigned, IdentityLinked)
        store.subscribe(self._on_link, ConnectionChanged)
        live.on_change(lambda _: self._changed.set)
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Publish the current menus, then publish again after each change, until cancelled.

        Start it once roles are loaded.
        """
        while True:
            self._changed.clear()
            for name, channel in list(self._channels.items()):
                self._published.add(channel)
                if isinstance(channel, CanSetCommandMenus) and self._channels.holds(name):
                    await channel.set_command_menus(self.list_people(name))
            await self._changed.wait()

    def _on_link(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged) and entry.fact.up:
                channel = self._channels.get(entry.fact.channel)
                if channel is not None and channel not in self._published:
                    self._changed.set()

    def list_people(self, channel: ChannelName) -> list[PersonWithRole]:
        """Return the people with a role everywhere on that channel."""
        return sorted(self._iter_people(channel), key=lambda one: one[0].id)

    def _iter_people(self, channel: ChannelName) -> Iterator[PersonWithRole]:
        known = self._policy.roster_state()
        people = {*self._policy.roles, *known.grants, *known.links}
        for one in people:
            where, __, sender_id = one.partition(":")
            if where != channel or not sender_id:
                continue
            sender = Sender(id=SenderId(sender_id), name=sender_id, verified=True)
            role = identify(
                self._policy, Address(channel=channel, room=RoomId(sender_id)), sender
            ).global_role
            if role in ("owner", "admin", "member"):
                yield sender, role
