"""Places where the bot may not post: a missing right, a mute, a ban, a closed channel, a block.

A post that a platform refuses with `MayNotPost` waits in the outbox until it can be delivered, and
its place is mute as long as it waits: the log has that refusal (`PartSendEnded.may_not_post`), so a
restart changes nothing. Meanwhile no turn begins there; what is asked stays unread, and is answered
once the place is well. Owners are told once when it begins and once when it is over; whoever asks
is told once in private, where the platform lets us.

Of an answer that is refused for what it says the outbox tells whoever asked, in the place itself;
owners are told here.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from channels.base import CanOpenDirect, SendError
from gateway.access.channels import Channels
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConversationId,
    DeliveryReport,
    Message,
    Post,
    PostKey,
)
from gateway.core.facts import (
    AMBIENT,
    URGENT,
    Fact,
    Judgement,
    PartSendEnded,
    PostQueued,
    TurnRecord,
    is_direct_line,
)
from gateway.core.frozen import frozen
from gateway.core.i18n import N_, _, language_for, use_language
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_markdown
from gateway.store import LogEntry, NewEntry, Store
from gateway.store.active import judged_events
from gateway.stream.inbox import ConversationInbox, ReadyConversation
from gateway.stream.notices import Notices

if TYPE_CHECKING:
    from gateway.access.place_names import PlaceTitles


MAX_REASON_CHARS: Final = 300
REDACT: Final = Redactor()
"""Applied before the Markdown of a reason is escaped, which would hide what looks like a secret."""
MAX_ATTEMPTS: Final = 500
"""Newest attempts at the posts of a place that are searched at the start: more than a week has
(`MAX_REFUSED_S`)."""


@frozen
class MutePlace:
    """A place where the bot may not post."""

    at: Address
    post: PostKey
    reason: str
    """Untrusted: the platform's text."""
    since: datetime


class MutePlaces:
    """All places where the bot may not post, by conversation."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        channels: Channels,
        tasks: asyncio.TaskGroup,
        *,
        notices: Notices,
        titles: "PlaceTitles",
        inbox: ConversationInbox,
    ) -> None:
        """The process that holds a channel tells of its places. `inbox` learns what waits in one
        that is well.
        """
        self._store, self._clock, self._channels, self._tasks = store, clock, channels, tasks
        self._notices, self._titles, self._inbox = notices, titles, inbox
        self.places = dict[ConversationId, MutePlace]()
        self._unsubscribe = ExitStack()
        """Ends the subscriptions, which last while any place is mute."""

    async def load(self) -> None:
        """Find the places that were mute when the last process ended. Raises StoreError."""
        for item in await self._store.undelivered_posts():
            post = item.post
            if not any(part.attempts for part in item.parts):
                continue
            ends = await self._store.newest_entries(
                MAX_ATTEMPTS, after=item.seq, kinds=["part"], conversation=post.to.conversation
            )
            for one in ends:
                fact = one.fact
                if isinstance(fact, PartSendEnded) and fact.post == post.key and fact.may_not_post:
                    self.begin(post, fact.reason, since=one.at)
                    break

    def begin(self, post: Post, reason: str, *, since: datetime | None = None) -> None:
        """Count a place as mute where this post waits until the bot may post. `since` None: since
        now.
        """
        place, now = post.to.conversation, self._clock.now()
        if place in self.places:
            return
        if not self.places:
            subscribe, ends = self._store.subscribe, self._unsubscribe.callback
            ends(subscribe(self._on_delivery, PartSendEnded, DeliveryReport))
            ends(subscribe(self._on_asked, Judgement, Message, Command, own=True))
        mute = MutePlace(at=post.to, post=post.key, reason=reason, since=since or now)
        self.places[place] = mute
        if mute.since.date() == now.date():  # else it was told
            self._tasks.create_task(self._tell_begin(mute))

    def _on_delivery(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            known = self.places.get(entry.conversation) if entry.conversation is not None else None
            is_sent = getattr(entry.fact, "state", "") == "sent"
            if known is not None and (
                is_sent
                or (isinstance(entry.fact, DeliveryReport) and entry.fact.post == known.post)
            ):
                del self.places[known.at.conversation]
                self._tasks.create_task(self._tell_end(known, is_well=is_sent))
        if not self.places:
            self._unsubscribe.close()

    def _others(self, mute: MutePlace) -> list[MutePlace]:
        same = (one for one in self.places.values() if one != mute and one.reason == mute.reason)
        return [
            one for one in same if (one.at.channel, one.at.room) == (mute.at.channel, mute.at.room)
        ]

    async def _tell_begin(self, mute: MutePlace) -> None:
        if not self._is_held(mute.at):
            return
        _post, cause = await self._store.find_post(mute.post)
        heard = [cause.fact] if cause is not None else []
        if cause is not None and isinstance(cause.fact, TurnRecord):
            heard = [
                one.fact
                for seq in cause.fact.covers
                if (one := await self._store.entry(seq)) is not None
            ]
        if not self._others(mute):
            is_direct = any(map(is_direct_line, heard))
            text = N_(
                "I cannot post in {room}: {reason}. I try again and again, and tell you when it "
                "works."
            )
            self._notify(mute, "mute", text, beside=mute.at.channel if is_direct else None)
        for fact in heard:
            await self._tell_asker(mute, fact)

    def _on_asked(self, entries: Sequence[LogEntry]) -> None:
        for fact, entry, judged in judged_events(entries):
            mute = self.places.get(entry.conversation) if entry.conversation is not None else None
            if mute is not None and judged.fate != "refused":
                self._tasks.create_task(self._tell_asker(mute, fact))

    async def tell_refused(self, report: DeliveryReport) -> None:
        """Tell owners once a day of each reason for which answers are refused in a room: e.g. a
        filter of words.
        """
        _post, cause = await self._store.find_post(report.post)
        if cause is not None and isinstance(cause.fact, TurnRecord):
            text = N_("My answer in {room} was refused: {reason}.")
            render = partial(self._render, text, report.at, report.reason)
            self._notices.tell(
                f"refused:{report.at.channel}/{report.at.room}:{report.reason}", render
            )

    async def _tell_asker(self, mute: MutePlace, fact: Fact) -> None:
        """Tell whoever has asked something there in private, once for each outage. Not possible:
        the answer waits.
        """
        is_asked = isinstance(fact, Command) or (isinstance(fact, Message) and fact.kind != "room")
        channel: object = self._channels.get(mute.at.channel)
        if (
            not is_asked
            or is_direct_line(fact)
            or not isinstance(channel, CanOpenDirect)
            or not self._is_held(mute.at)
        ):
            return
        assert isinstance(fact, Message | Command)
        try:
            to = Address(channel=mute.at.channel, room=await channel.open_direct(fact.sender))
        except SendError:
            return
        now, key = (
            self._clock.now(),
            hashlib.sha256(f"mute:{mute.post}:{fact.sender.id}".encode()).hexdigest()[:26],
        )
        with use_language(language_for(None, fact.language, direct=True)):
            text = _("I cannot post in {room}: {reason}. I answer there as soon as I can.").format(
                room=self._titles.label(mute.at.conversation),
                reason=escape_markdown(REDACT(mute.reason), MAX_REASON_CHARS),
            )
        post = Post(key=PostKey(key), to=to, text=self._titles.add_titles(text), style="notice")
        queued = PostQueued(post=post)
        await self._store.append(
            [NewEntry(fact=queued, at=now, conversation=to.conversation, key=f"post:{key}")]
        )

    async def _tell_end(self, mute: MutePlace, *, is_well: bool) -> None:
        """Go on with what waits there. A post that was given up proves nothing, so owners are told
        of no end.
        """
        place = mute.at.conversation
        if is_well and self._is_held(mute.at) and not self._others(mute):
            self._notify(mute, "unmute", N_("I can post in {room} again."))
        if self._is_held(mute.at) and await self._store.unread_urgency(place) > AMBIENT:
            self._inbox.add(ReadyConversation(conversation=place, urgency=URGENT))

    def _is_held(self, at: Address) -> bool:
        return at.channel in self._channels and self._channels.holds(at.channel)

    def _notify(
        self, mute: MutePlace, what: str, text: str, beside: ChannelName | None = None
    ) -> None:
        self._notices.tell(
            f"{what}:{mute.post}", partial(self._render, text, mute.at, mute.reason), beside=beside
        )

    def _render(self, text: str, at: Address, reason: str, to: Address | None) -> str:
        shown = REDACT(reason) if to is None else escape_markdown(REDACT(reason), MAX_REASON_CHARS)
        return _(text).format(room=self._titles.label(at.conversation), reason=shown)
