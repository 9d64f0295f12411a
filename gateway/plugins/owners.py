"""Owners' notices: what the gateway tells its owners unasked, in their own chat with it.

The path and plugins tell what owners should know (`gateway.stream.notices`): limits that were
reached, codes that wait for an admin, channels that do not work. It is posted to `access.tell`, or
in the direct chat that a verified owner used last: each once a UTC day, and few of one kind. Where
no owner is known, the texts are only in the log of the process.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Final

from channels.base import PostPart, SendError
from gateway.core.clock import new_id
from gateway.core.events import Address, ChannelName, Command, Message, Post, PostKey
from gateway.core.facts import OPERATOR_CHANNEL, PostQueued, is_direct_line
from gateway.core.format import format_duration
from gateway.core.i18n import N_, _, current_language, language_for, use_language
from gateway.core.ratelimit import SlidingWindows
from gateway.plugin import Plugin, PluginContext, hook
from gateway.store import LogEntry, NewEntry, StoreError
from gateway.store.effects import build_notice_end
from gateway.stream.attention import (
    DirectChat,
    find_owner_chat,
    is_of_owner,
    parse_direct_chat,
)
from gateway.stream.notices import Notice, NoticeText

logger = logging.getLogger("reverie.owners")

MAX_POSTS_PER_KIND: Final = 10
"""Posts of each kind in 24 hours of what outsiders may cause; one more post says that there was
more. Each process counts its own."""
MORE_TEXT: Final = N_(
    "There are more notices of this kind today. I send at most {count} of a kind in a day; "
    "`{command}` shows the others."
)
LASTING_S: Final = 600.0
"""Seconds after which trouble that began again on the same day is told again."""
TOLD_EVERY: Final = timedelta(days=1)
"""Time after which trouble that lasts is told again, if it is seen again."""
NOTICE_DAYS: Final = 7
"""Days after which the buttons of a notice stay: what it asks about was decided elsewhere. A tap
says so."""


@dataclass(slots=True)
class _Trouble:
    since: datetime
    told: datetime | None = None
    """When it was posted last: its end will be posted, too. None: it was not."""


class Owners(Plugin):
    """Posts what owners should know."""

    name = "owners"
    summary = "tells owners what they should know: limits, requests, what does not work"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._gateway = gateway = context.gateway
        self._store, self._clock, self._channels = gateway.store, gateway.clock, gateway.channels
        self._owner_chat: DirectChat | None = None
        self._lock = asyncio.Lock()
        """One text after the other, so that they can be counted."""
        self._posts = SlidingWindows(86_400.0)
        """Posts of each kind, so that many of one kind do not suppress another."""
        self._troubles = dict[str, _Trouble]()
        """By cause, what is wrong now."""
        self._store.subscribe(self._on_chat, Message, Command, where=is_direct_line)

    async def start(self) -> None:
        """Find the chat in which an owner wrote last."""
        self._owner_chat = await find_owner_chat(self._store, self._gateway.people)

    def _on_chat(self, entries: Sequence[LogEntry]) -> None:
        """Move notices to the direct chat in which an owner writes.

        To the operator's own channel only while no other chat is known: nobody may be looking
        there.
        """
        for entry in entries:
            chat = parse_direct_chat(entry.fact)
            if chat is None or not is_of_owner(chat, self._gateway.people):
                continue
            if self._owner_chat is None or chat.at.channel != OPERATOR_CHANNEL:
                self._owner_chat = chat

    @hook
    async def notify(self, notice: Notice) -> None:
        """Post a notice; it is durable then, and not repeated after a restart.

        What begins again on the same day is told, with its end, only if it is seen after
        `LASTING_S`.
        """
        match notice.state:
            case "unrecorded":
                await self._send_unrecorded(notice.text)
            case "begins":
                trouble = self._troubles.setdefault(notice.key, _Trouble(self._clock.now()))
                async with self._lock:
                    await self._tell_trouble(notice, trouble)
            case "ends":
                causes = [one for one in self._troubles if one.startswith(notice.key)]
                if ended := [self._troubles.pop(one) for one in causes]:
                    async with self._lock:  # after the post of the beginning
                        await self._tell_end(notice, ended)
            case "decided":
                async with self._lock:
                    await self._end_notice(notice)
            case "once":
                async with self._lock:
                    await self._post(notice, max_posts=MAX_POSTS_PER_KIND)

    async def _end_notice(self, notice: Notice) -> None:
        now = self._clock.now()
        for days in range(NOTICE_DAYS):
            key = _post_key(now - timedelta(days=days), notice.key)
            queued = await self._store.entry_by_key(f"post:{key}")
            if queued is None or not isinstance(queued.fact, PostQueued):
                continue
            with use_language(queued.fact.post.language):
                ends = build_notice_end(queued.fact.post, notice.text(queued.fact.post.to))
            await self._store.append(
                [
                    NewEntry(fact=one.fact, at=now, conversation=one.place, key=one.key)
                    for one in ends
                ]
            )

    async def _post(
        self,
        notice: Notice,
        *,
        key: str = "",
        text: NoticeText | None = None,
        max_posts: float = inf,
    ) -> bool:
        """Post it, unless that was done today. Return whether it was done now. The caller holds the
        lock.

        `key` and `text`: in place of the notice's own. `max_posts`: posts of this kind in 24 hours.
        """
        key, text, now = key or notice.key, text or notice.text, self._clock.now()
        kind, now_s = key.partition(":")[0], self._clock.monotonic()
        to, tag = await self._find_address(notice.beside)
        count = self._posts.count(kind, now_s)
        if to is None or count > max_posts:
            return False
        is_last = count == max_posts
        channel = self._channels.get(to.channel)
        can_show = channel is not None and channel.capabilities.buttons and not is_last
        with use_language(tag):
            if is_last:
                command = f"{self._channels.command_prefix(to.channel)}log tail"
                words = _(MORE_TEXT).format(count=MAX_POSTS_PER_KIND, command=command)
            else:
                words = text(to)
            post = Post(
                key=_post_key(now, f"{kind}:more" if is_last else key),
                to=to,
                text=self._gateway.places.titles.add_titles(words),
                style="notice",
                buttons=notice.buttons() if can_show else (),
                language=current_language(),
            )
        entry = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=to.conversation, key=f"post:{post.key}"
        )
        (queued,) = await self._store.append([entry])
        if queued.is_new:
            self._posts.add(kind, now_s)
        return queued.is_new

    async def _tell_trouble(self, notice: Notice, trouble: _Trouble) -> None:
        now = self._clock.now()
        if trouble.told is not None and now - trouble.told < TOLD_EVERY:
            return  # also at midnight
        is_again = (now - trouble.since).total_seconds() >= LASTING_S and trouble.told is None
        key = f"{notice.key}:{trouble.since.isoformat()}" if is_again else notice.key
        if await self._post(notice, key=key):
            trouble.told = now

    async def _tell_end(self, notice: Notice, ended: Sequence[_Trouble]) -> None:
        if not any(one.told for one in ended):
            return
        now = self._clock.now()
        age_s = (now - min(one.since for one in ended)).total_seconds()

        def render(to: Address | None) -> str:
            lasted = _("It lasted {span}.").format(span=format_duration(age_s))
            return f"{notice.text(to)} {lasted}"

        await self._post(notice, key=f"{notice.key}over:{now.isoformat()}", text=render)

    async def _send_unrecorded(self, text: NoticeText) -> None:
        """Send this text to owners at once, past the log, which cannot be written: it is not tried
        again.
        """
        try:
            to, tag = await self._find_address(None)
            channel = None if to is None else self._channels.get(to.channel)
            if (
                to is None or channel is None or not self._channels.holds(to.channel)
            ):  # its holder tells them
                return
            with use_language(tag):
                words = text(to)
            post = Post(key=PostKey(new_id(self._clock.now())), to=to, text=words, style="notice")
            for index, body in enumerate(channel.split(post)):
                await channel.send(
                    PostPart(key=f"{post.key}#{index}", to=to, body=body, style="notice")
                )
        except (SendError, StoreError) as error:
            logger.warning("owners could not be told: %s", error)

    async def _find_address(self, beside: ChannelName | None) -> tuple[Address | None, str | None]:
        """Return the address for notices, and the tag of the language there.

        Ownership is checked again: the configuration or roles may have changed since.
        """
        tell, people = self._gateway.live.settings.access.tell, self._gateway.people
        to, chat = Address.parse(tell) if tell else None, None
        if to is None:
            if self._owner_chat is None or not is_of_owner(self._owner_chat, people):
                self._owner_chat = await find_owner_chat(self._store, people)
            chat = self._owner_chat
            to = None if chat is None else chat.at
        if (
            to is not None
            and to.channel == beside
            and (elsewhere := await find_owner_chat(self._store, people, beside))
        ):
            to, chat = elsewhere.at, elsewhere
        if to is None:
            return None, None
        person = chat.language if chat is not None else None
        room = self._gateway.places.bindings.find(to).language
        return to, language_for(room, person, direct=chat is not None)


def _post_key(at: datetime, key: str) -> PostKey:
    day = at.date().isoformat()
    return PostKey(hashlib.sha256(f"owners:{day}:{key}".encode()).hexdigest()[:26])
