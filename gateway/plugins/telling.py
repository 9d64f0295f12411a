"""Telling an owner: what an agent lets an owner know unasked, in their own chat with it.

`tell` writes down what is to be told (`OwnerTold`, held), and `OwnerTelling.run` posts it as a turn
of that chat, in one transaction with the fact that it is posted: at once, or with all that waits
once the owner writes there, or after `MAX_HELD`. While people sleep or the agent is quiet, all of
it waits.

An owner may read everything, so telling is free. Where it comes from and whose words caused it
stand in front of it in the gateway's own words: the model chooses neither. What it tells is one
quoted line, so nothing in it can pass for another such heading.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from agent.dmn import load_state
from agent.signals import DmnMode, DmnState
from channels.aio import with_timeout
from gateway.cluster.cluster import agent_lease
from gateway.context.conversation import find_setter
from gateway.context.digest import MAX_ROOM_LINES, find_senders
from gateway.core.events import (
    Address,
    Command,
    Message,
    PostKey,
    Sender,
)
from gateway.core.facts import (
    OPERATOR_CHANNEL,
    OwnerTold,
    Seq,
    inner_conversation,
    is_inner,
)
from gateway.core.i18n import _, language_for, use_language
from gateway.core.identity import ADMIN_ROLES, identify, lowest_role, person_key, stable_source
from gateway.core.labels import Label, join, rank_integrity
from gateway.core.moments import parse_timezone
from gateway.core.permissions import OWN
from gateway.core.text_safety import inline_code, to_single_line
from gateway.core.tool import Requester, ToolContext, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.messaging import build_post_entries, words_of
from gateway.store import LogEntry, NewEntry, StoreReader
from gateway.stream.attention import (
    DIRECT_KINDS,
    DirectChat,
    iter_direct_chats,
    parse_direct_chat,
)

MAX_TEXT_CHARS: Final = 600
MAX_NAMED: Final = 5
"""People who are named with what is told."""
MAX_HELD: Final = timedelta(hours=4)
"""Longest wait of what is held, unless people sleep or the agent is quiet."""
MAX_HELD_COUNT: Final = 20
"""What one owner may have waiting: one post of that length is read, a longer one is not. Half of it
by others than owners and admins."""
MAX_CAUSED_PER_DAY: Final = 2
"""What one person who is no owner or admin may have told in a UTC day."""
REMEMBERED: Final = timedelta(days=7)
"""Time in which nothing is told twice."""
SAME_SHARE: Final = 0.8
SAME_PLACE_SHARE: Final = 0.6
"""Share of the words that two texts have in common from which they tell the same."""
RECHECK_S: Final = 60.0
"""Time between two looks at whether what is held may go out."""
_RECENT: Final = 500
"""Newest facts that are searched: more than a week has."""


class Told(NamedTuple):
    """Something that is told or waits, with the newest time of either."""

    seq: Seq
    at: datetime
    fact: OwnerTold


class OwnerTelling(Plugin):
    """`tell` of all agents, and what goes out of it: each agent's is posted where it is led."""

    name = "telling"
    summary = "lets an owner know, in their own chat, what the agent was told or noticed: tell"
    requires = ("messaging",)
    family = "itself"
    watches = (OwnerTold,)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._clock, self._live = gateway.store, gateway.clock, gateway.live
        self._places, self._people = gateway.places, gateway.people
        self._digests = context.digests
        self._held = dict[str, Told]()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        """One after the other, so that they can be compared and counted."""
        self._unsubscribe: Callable[[], None] | None = None
        """Ends the subscription to lines, which lasts while anything waits."""

    async def start(self) -> None:
        """Find what waits. Raises StoreError."""
        for agent in self._live.settings.agents:
            told = await find_told(self._store, agent.id, since=self._clock.now() - REMEMBERED)
            self._held |= {one.fact.tell: one for one in told if one.fact.state == "held"}
        self._notify_held()

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        """Take what waits, and what does not any more."""
        for entry in entries:
            if isinstance(fact := entry.fact, OwnerTold):
                self._held.pop(fact.tell, None)
                if fact.state == "held":
                    self._held[fact.tell] = Told(entry.seq, entry.at, fact)
        self._notify_held()

    def _notify_held(self) -> None:
        """Look again, and hear of lines as long as anything waits."""
        if self._held and self._unsubscribe is None:
            self._unsubscribe = self._store.subscribe(self._on_written, Message, Command)
        if not self._held and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._changed.set()

    def _on_written(self, entries: Sequence[LogEntry]) -> None:
        chats = {one.fact.to.conversation for one in self._held.values()}
        if any(one.conversation in chats for one in entries):
            self._changed.set()

    async def on_lease(self, lease: str) -> None:  # noqa: ARG002 - whichever agent is led here
        """Look again."""
        self._changed.set()

    @tool("Tell an owner something. It is posted in their own chat with you.", effect=OWN)
    async def tell(
        self,
        context: ToolContext,
        *,
        text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)],
        who: Annotated[
            str, Field(max_length=100, description="Name. Default: who wrote last.")
        ] = "",
        about: Annotated[
            str, Field(max_length=200, description="By yourself: the room it is about.")
        ] = "",
        urgency: Annotated[
            Literal["now", "digest"], Field(description="`digest`: it can wait for hours.")
        ] = "now",
    ) -> str:
        """Have an owner told; durable on return. Raises ToolCallRefused and StoreError."""
        text = to_single_line(text, MAX_TEXT_CHARS)
        if not text:
            raise ToolCallRefused("There is nothing to tell.")
        chat = await self._find_chat(who, context.agent)
        if chat.at == context.at:
            raise ToolCallRefused("You are in that chat now: your answer is posted there.")
        place = self._find_place(about, text, context)
        people, others = await self._find_people(place, context)
        keys = [
            stable_source(person_key(place.channel, one.id))
            for one in people
            if place is not None and one.role not in ADMIN_ROLES
        ]
        now, agent = self._clock.now(), context.agent
        async with self._lock:
            told = await find_told(self._store, agent, since=now - REMEMBERED)
            if (same := find_same(text, place, told, to=chat.at)) is not None:
                raise ToolCallRefused(
                    f"You told that at {self._format_time(same.at, now)}. If something is new, "
                    "say what."
                )
            today = [one.fact.people for one in told if _day(one.at) == _day(now)]
            # Owners and admins may have as much told as they like.
            is_free = not people or any(one.role in ADMIN_ROLES for one in people)
            if not is_free and all(
                sum(key in some for some in today) >= MAX_CAUSED_PER_DAY for key in keys
            ):
                raise ToolCallRefused(
                    f"Whoever asks here had an owner told {MAX_CAUSED_PER_DAY} things today, which "
                    "is the limit."
                )
            waiting = [one for one in told if one.fact.state == "held" and one.fact.to == chat.at]
            theirs = sum(bool(one.fact.people) for one in waiting)
            if len(waiting) >= MAX_HELD_COUNT or (not is_free and theirs >= MAX_HELD_COUNT // 2):
                raise ToolCallRefused("Too many things wait to be told already.")
            fact = OwnerTold(
                tell=_tell_id(agent, chat.at, text, now),
                agent=agent,
                to=chat.at,
                who=chat.sender.name,
                text=text,
                about=place,
                people=() if is_free else tuple(dict.fromkeys(keys)),
                names=tuple(
                    f"{inline_code(one.name, MAX_NAMED_CHARS)} ({one.role})"
                    for one in people[:MAX_NAMED]
                ),
                others=others or len(people) > MAX_NAMED,
                urgency=urgency,
                turn=context.turn,
                label=context.request.label,
                state="held",
            )
            entry = NewEntry(
                fact=fact,
                at=now,
                conversation=inner_conversation(agent),
                key=f"told:{fact.tell}",
            )
            await self._store.append([entry])
        return await self._explain_delay(fact, [*told, Told(Seq(0), now, fact)], now)

    async def _explain_delay(self, fact: OwnerTold, told: Sequence[Told], now: datetime) -> str:
        state = await self._read_state(fact.agent)
        if self._is_silent(state, now) or state.mode in (DmnMode.PAUSED, DmnMode.OFF):
            return f"{fact.who} is not to be disturbed now, and is told later."
        if fact.urgency == "now" and self._may_tell_now(fact, told, now):
            return f"{fact.who} is told now."
        return f"{fact.who} is told with what else can wait."

    async def _find_chat(self, who: str, agent: str) -> DirectChat:
        """Return the chat of an owner with this agent, else with another one, the one used last.
        Raises ToolCallRefused.
        """
        chats = dict[Address, DirectChat]()
        async for one in iter_direct_chats(self._store):
            if self._places.bindings.find(one.at).listen != "off" and self._is_owner(one, agent):
                chats.setdefault(one.at, one)
        found = sorted(
            chats.values(),
            key=lambda one: (one.at.channel == OPERATOR_CHANNEL, not self._is_own(one.at, agent)),
        )
        if not found:
            raise ToolCallRefused("No owner has a chat with you, so you can tell none.")
        wanted = who.strip().lstrip("@").casefold()
        if wanted in ("", "owner"):
            return found[0]
        await self._places.titles.load([one.at.conversation for one in found])
        for one in found:
            if wanted in self._names_of(one):
                return one
        names = ", ".join(dict.fromkeys(to_single_line(one.sender.name) for one in found))
        raise ToolCallRefused(f"No owner is called so. You may tell: {names}.")

    def _names_of(self, chat: DirectChat) -> set[str]:
        handle = self._places.titles.place_names(chat.at).handle or ""
        names = (chat.sender.name, chat.sender.account or "", handle, chat.at.room)
        return {one.lstrip("@").casefold() for one in names if one}

    def _is_own(self, at: Address, agent: str) -> bool:
        return self._places.bindings.find(at).agent == agent

    def _is_owner(self, chat: DirectChat, agent: str) -> bool:
        """Return whether they are an owner there, and in a chat with another agent everywhere,
        which needs an id that the platform vouches for.
        """
        who = identify(self._people, chat.at, chat.sender)
        role = who.role if self._is_own(chat.at, agent) else who.global_role
        return not chat.sender.is_bot and role == "owner"

    def _find_place(self, about: str, text: str, context: ToolContext) -> Address | None:
        """Return the place that a turn tells about: its own, or a room of the newest digest; where
        none is named, the one whose lines share most words with the text. None: that shows no room.
        Raises ToolCallRefused.
        """
        if not is_inner(context.at.conversation):
            return context.at
        titles = self._places.titles
        shown = [Address.parse(one) for one in sorted(self._digests[context.agent].shown)]
        found = [one for one in titles.find_places(about, shown) if one in shown]
        if not about.strip():
            texts, words = self._digests[context.agent].texts, words_of(text)
            common = {one: len(words & words_of(texts[one.conversation])) for one in shown}
            most = max(common.values(), default=0)
            found = [one for one in shown if common[one] == most]
        if len(found) > 1 or (about.strip() and not found):
            named = ", ".join(titles.heading(one.conversation) for one in shown)
            raise ToolCallRefused(
                f"Name in `about` the room that it is about: {named or 'none is shown'}."
            )
        return found[0] if found else None

    async def _find_people(
        self, place: Address | None, context: ToolContext
    ) -> tuple[Sequence[Requester], bool]:
        """Return who asked for it, or else whose words there are new to the turn; and whether the
        turn rests on words of others, too.
        """
        if place is None:
            return [], _is_lower(context.request.label, [])
        if place != context.at:
            shown = self._digests[context.agent].shown
            people = self._identify(place, shown[place.conversation])
            return people, len(shown) > 1 or _is_lower(context.request.label, people)
        unread = await self._store.unread_entries(place.conversation, most=MAX_ROOM_LINES)
        setters = filter(None, [find_setter(one.fact) for one in unread.messages])
        present = self._identify(place, [*find_senders(unread.messages), *setters])
        people = _unique(context.requesters) or present
        others = {one.id for one in present} - {one.id for one in people}
        return people, bool(others) or _is_lower(context.request.label, people)

    def _identify(self, place: Address, senders: Iterable[Sender]) -> Sequence[Requester]:
        return _unique(
            Requester(id=one.id, name=one.name, role=identify(self._people, place, one).role)
            for one in senders
        )

    async def run(self) -> None:
        """Post what is due, until cancelled. Without anything held it waits without waking. Raises
        StoreError.
        """
        cluster = self.context.gateway.channels.cluster
        while True:
            self._changed.clear()
            chats = {(one.fact.agent, one.fact.to) for one in self._held.values()}
            for agent, to in sorted(chats, key=str):
                if cluster.holds(agent_lease(agent)) and await self._find_due(agent, to):
                    async with self.context.locks.lock_for(to.conversation):  # behind a turn there
                        await self._post(agent, to, await self._find_due(agent, to))
            if not self._held:
                await self._changed.wait()
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, RECHECK_S, self._changed.wait())

    async def _find_due(self, agent: str, to: Address) -> Sequence[Told]:
        """Return what is to be posted there now, the oldest first."""
        now = self._clock.now()
        held = [
            one
            for one in self._held.values()
            if (one.fact.agent, one.fact.to) == (agent, to) and now - one.at < REMEMBERED
        ]
        state = await self._read_state(agent)
        seq, chat = await self._read_newest(to)
        if (
            not held
            or self._is_silent(state, now)
            or chat is None
            or not self._is_owner(chat, agent)
        ):
            return []
        if seq > held[0].seq:
            return held
        if state.mode in (DmnMode.PAUSED, DmnMode.OFF):
            return []
        if now - held[0].at >= MAX_HELD:
            return held
        told = await find_told(self._store, agent, since=now - timedelta(days=1))
        return [
            one
            for one in held
            if one.fact.urgency == "now" and self._may_tell_now(one.fact, told, now)
        ]

    async def _read_newest(self, to: Address) -> tuple[Seq, DirectChat | None]:
        newest = await self._store.newest_entries(
            1, kinds=DIRECT_KINDS, conversation=to.conversation
        )
        return (newest[0].seq, parse_direct_chat(newest[0].fact)) if newest else (Seq(0), None)

    def _may_tell_now(self, fact: OwnerTold, told: Iterable[Told], now: datetime) -> bool:
        """Return whether the day's budget has room for one more post. Others than owners and
        admins have half of it, so that they keep nothing else from being told.
        """
        posted = [
            one.fact
            for one in told
            if one.fact.state == "posted"
            and one.fact.to == fact.to
            and one.fact.urgency == "now"
            and _day(one.at) == _day(now)
        ]
        per_day = self._live.settings.dmn.tell.per_day
        if fact.people and len({one.post for one in posted if one.people}) >= (per_day + 1) // 2:
            return False
        return len({one.post for one in posted}) < per_day

    def _is_silent(self, state: DmnState, now: datetime) -> bool:
        is_quiet = state.quiet_until is not None and state.quiet_until > now
        return is_quiet or self.context.attention.presence.level == "sleeping"

    async def _read_state(self, agent: str) -> DmnState:
        saved = await self._store.dmn_state(agent)
        try:
            return load_state(saved) if saved else DmnState()
        except ValueError:  # written by another version: it begins at rest
            return DmnState()

    async def _post(self, agent: str, to: Address, due: Sequence[Told]) -> None:
        if not due:
            return
        now = self._clock.now()
        ids = " ".join(one.fact.tell for one in due)
        key = PostKey(hashlib.sha256(f"{agent} {ids}".encode()).hexdigest()[:26])
        _seq, chat = await self._read_newest(to)
        language = self._places.bindings.find(to).language
        person = chat.language if chat is not None else None
        await self._places.titles.load(
            [one.fact.about.conversation for one in due if one.fact.about is not None]
        )
        with use_language(language_for(language, person, direct=True)):
            text = "\n\n".join([await self._render(one, now) for one in due])
            entries = build_post_entries(
                to,
                text,
                agent=self._places.bindings.find(to).agent,
                within=due[-1].fact.turn,
                label=join(one.fact.label for one in due),
                now=now,
                key=key,
            )
        await self._store.append(
            [
                *entries,
                *(
                    NewEntry(
                        fact=replace(one.fact, state="posted", post=key),
                        at=now,
                        conversation=inner_conversation(agent),
                        key=f"told:{one.fact.tell}:posted",
                    )
                    for one in due
                ),
            ]
        )

    async def _render(self, told: Told, now: datetime) -> str:
        """Return what is told in Markdown, below where it comes from and because of whom."""
        fact, people = told.fact, ", ".join(told.fact.names)
        if fact.others:
            people = _("{people} and others").format(people=people) if people else _("others")
        if fact.about is None:
            origin = _("From me, after words of {people}") if people else _("From me")
        elif await self._places.is_direct(fact.about.conversation):
            origin = _("From {people}, in private")
        else:
            origin = _("From {place}, after words of {people}") if people else _("From {place}")
        title = self._places.titles.title(fact.about.conversation) if fact.about else ""
        origin = origin.format(place=inline_code(title, 2 * MAX_NAMED_CHARS), people=people)
        when = f", {self._format_time(told.at, now)}" if now - told.at > _SHOWN_AGE else ""
        return f"{origin}{when}:\n> {fact.text}"

    def _format_time(self, at: datetime, now: datetime) -> str:
        zone = parse_timezone(self._live.settings.dmn.timezone)
        local, today = at.astimezone(zone), now.astimezone(zone)
        return f"{local:%H:%M}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M}"


MAX_NAMED_CHARS: Final = 60
_SHOWN_AGE: Final = timedelta(minutes=10)
"""Age from which the time is shown."""


def _unique(people: Iterable[Requester]) -> Sequence[Requester]:
    """Return each person once, in order, without those who are blocked."""
    return [*{one.id: one for one in people if one.role != "blocked"}.values()]


def _is_lower(label: Label, people: Sequence[Requester]) -> bool:
    """Return whether the request holds words of somebody with less rights than these people."""
    lowest = lowest_role([one.role for one in people]) if people else "owner"
    return rank_integrity(label.integrity) < rank_integrity(lowest)


async def find_told(reader: StoreReader, agent: str, *, since: datetime) -> list[Told]:
    """Return what an agent has told since then, or means to, each in its newest state. Raises
    StoreError.
    """
    newest = await reader.newest_entries(
        _RECENT, kinds=["told"], conversation=inner_conversation(agent)
    )
    found = {
        one.fact.tell: Told(one.seq, one.at, one.fact)
        for one in newest
        if isinstance(one.fact, OwnerTold) and one.at >= since
    }
    return list(found.values())


def find_same(
    text: str, place: Address | None, told: Iterable[Told], *, to: Address
) -> Told | None:
    """Return what that owner was told, or is to be told, in nearly the same words. None: nothing.

    The share of common words decides, and it need not be as large for the same place where one text
    only says more; numbers have to be the same. Another word in place of one is news: "the backup
    failed" after "the deploy failed". Pure.
    """
    words = words_of(text)
    for one in told:
        before = words_of(one.fact.text)
        is_near = one.fact.about == place and (words <= before or before <= words)
        share = SAME_PLACE_SHARE if is_near else SAME_SHARE
        common = len(words & before) / max(1, len(words | before))
        if one.fact.to == to and common >= share and _numbers(words) == _numbers(before):
            return one
    return None


def _numbers(words: Collection[str]) -> set[str]:
    return {one for one in words if any(map(str.isdigit, one))}


def _day(at: datetime) -> str:
    return at.astimezone(UTC).date().isoformat()


def _tell_id(agent: str, to: Address, text: str, now: datetime) -> str:
    named = f"{agent} {to.conversation} {_day(now)} {' '.join(sorted(words_of(text)))}"
    return hashlib.sha256(named.encode()).hexdigest()[:26]
