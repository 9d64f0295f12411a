"""Privacy of places: private unless opened."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from channels.base import Audience, Membership
from gateway.access.channels import Channels
from gateway.access.policy import ConversationBinding
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    EventId,
    MembershipChanged,
    Message,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from gateway.core.facts import AudienceReported, NoteWritten, Seq, inner_conversation
from gateway.core.labels import INTEGRITIES, Integrity, Label
from gateway.core.scopes import OWNER_SCOPE, PUBLIC, Visibility, group_scope, space_scope
from gateway.store import NewEntry, Store
from gateway.stream.routing import MAX_ASKED_SCOPES, BindingPattern, Bindings, PrivacyCache
from reverie.testing.console import ConsoleChannel
from tests.kits.places import PlayedChannels, privacy
from tests.kits.settings import live_settings
from tests.kits.store import NOW, heard, opened, place, said

ANY = Bindings(
    [
        BindingPattern(
            channel="*", room="*", thread=None, binding=ConversationBinding(listen="ambient")
        )
    ]
)


OPEN = Bindings(
    [
        BindingPattern(
            channel="*",
            room="*",
            thread=None,
            binding=ConversationBinding(listen="ambient", private=False),
        )
    ]
)
ROOM, ULLA, NEVER = place("#room"), place("ulla"), place("#never")


async def test_a_place_is_its_own_unless_somebody_says_more(tmp_path: Path) -> None:
    async def look(bindings: Bindings) -> list[tuple[bool, str]]:
        async with await opened(tmp_path / "s.db") as store:
            await store.append(heard(1, room="#room"))
            await store.append([said(2, room="ulla", kind="direct")])
            places = privacy(store, bindings)
            asked = [
                ROOM.conversation,
                ULLA.conversation,
                NEVER.conversation,
                ConversationId(inner_conversation("a")),
            ]
            return [(await places.is_private(one), await places.scope(one)) for one in asked]

    own = [(True, "irc.test/ulla"), (True, "irc.test/#never"), (False, "agent/a")]
    assert await look(ANY) == [(False, "irc.test/#room"), *own], "nobody says who can read there"
    assert await look(OPEN) == [(False, PUBLIC), *own], (
        "the operator opens rooms, and no direct chats"
    )


async def test_a_platform_opens_and_closes_a_room(tmp_path: Path) -> None:
    """Messages from before it opened stay private; when it closes, all are; the same after a
    restart."""
    told: dict[Address, str] = {}

    def known(number: int) -> list[NewEntry]:
        message = said(number, room="#room")
        audience = AudienceReported(at=ROOM, scope=told[ROOM])
        return [
            message,
            NewEntry(fact=audience, at=NOW, conversation=ROOM.conversation, cause=message),
        ]

    async with await opened(tmp_path / "s.db") as store:
        places = privacy(store, ANY, PlayedChannels(scope_of=told.get))
        store.subscribe(places.on_appended)
        (before,) = await store.append([said(1, room="#room")])
        told[ROOM] = PUBLIC
        first, _ = await store.append(known(2))
        (later,) = await store.append([said(3, room="#room")])

        async def scopes(of: PrivacyCache) -> list[str]:
            return [await of.scope(ROOM.conversation, one.seq) for one in (before, first, later)]

        assert await scopes(places) == [ROOM.conversation, PUBLIC, PUBLIC]
        assert await places.scope(ROOM.conversation) == PUBLIC
        again = privacy(store, ANY)
        assert await scopes(again) == [ROOM.conversation] * 3, "it has not read the log yet"
        await again.load()
        assert await scopes(again) == [ROOM.conversation, PUBLIC, PUBLIC]
        told[ROOM] = ROOM.conversation
        assert await scopes(places) == [ROOM.conversation] * 3, (
            "closed, though nothing was said there since"
        )
        await store.append(known(4))
        told[ROOM] = PUBLIC
        assert await scopes(places) == [ROOM.conversation] * 3, (
            "it opens for what is said from then on"
        )
        await store.append(known(5))
        (last,) = await store.append([said(6, room="#room")])
        assert await scopes(places) == [ROOM.conversation] * 3
        assert await places.scope(ROOM.conversation, last.seq) == PUBLIC


async def test_a_thread_that_the_platform_keeps_apart_stays_so_in_a_room_that_is_opened(
    tmp_path: Path,
) -> None:
    ops = replace(ROOM, thread=ThreadId("@"))
    async with await opened(tmp_path / "s.db") as store:
        await store.append(heard(1, room="#room"))
        places = privacy(
            store,
            OPEN,
            PlayedChannels(scope_of=lambda at: at.conversation if at.thread else PUBLIC),
        )
        places.direct.put(ops.conversation, False)
        assert await places.scope(ROOM.conversation) == PUBLIC
        assert await places.scope(ops.conversation) == ops.conversation
        assert not (await places.visibility(ROOM.conversation)).can_see(ops.conversation)


async def test_what_is_to_be_written_down_of_an_audience_is_what_is_new(store: Store) -> None:
    told = {ROOM: PUBLIC}
    places = privacy(store, ANY, PlayedChannels(scope_of=told.get))
    store.subscribe(places.on_appended)
    message, direct = said(1, room="#room").fact, said(2, room="#room", kind="direct").fact
    assert isinstance(message, Message)
    assert isinstance(direct, Message)
    fact = places.find_new_audience(message)
    assert fact == AudienceReported(at=ROOM, scope=PUBLIC)
    assert places.find_new_audience(direct) is None
    await store.append([NewEntry(fact=fact, at=NOW, conversation=ROOM.conversation)])
    assert places.find_new_audience(message) is None
    told[ROOM] = ROOM.conversation
    assert places.find_new_audience(message) == AudienceReported(at=ROOM, scope=ROOM.conversation)
    told.clear()
    assert places.find_new_audience(message) is None, (
        "it does not tell now, so what it told last holds"
    )


async def test_the_open_channels_of_a_space_share_an_audience_and_nobody_else_does(
    tmp_path: Path,
) -> None:
    space = space_scope(ChannelName("irc.test"), RoomId("9"))
    closed = place("#staff")
    thread = replace(closed, thread=ThreadId("7"))
    told = {ROOM: space, closed: closed.conversation, thread: closed.conversation}
    public = place("#public")
    told[public] = PUBLIC
    async with await opened(tmp_path / "s.db") as store:
        for number, at in enumerate((ROOM, closed, public), 1):
            await store.append([said(number, room=at.room)])
        within = said(9, room="#staff").fact
        assert isinstance(within, Message)
        await store.append(
            [NewEntry(fact=replace(within, at=thread), at=NOW, conversation=thread.conversation)]
        )
        places = privacy(
            store,
            ANY,
            PlayedChannels(
                scope_of=told.get, space_of=lambda at: RoomId("9") if at != public else None
            ),
        )

        async def seen(at: Address) -> set[str]:
            sight = await places.visibility(at.conversation)
            everywhere = {
                PUBLIC,
                space,
                closed.conversation,
                thread.conversation,
                ROOM.conversation,
            }
            return {scope for scope in everywhere if sight.can_see(scope)}

        assert await seen(ROOM) == {PUBLIC, space, ROOM.conversation}
        assert await seen(closed) == {PUBLIC, space, closed.conversation}, (
            "who is there is in that space"
        )
        assert await seen(thread) == {PUBLIC, space, closed.conversation, thread.conversation}
        assert await seen(public) == {PUBLIC}, "who reads there need not be in that space"
        assert await seen(ULLA) == {PUBLIC}


async def test_closed_rooms_that_the_operator_groups_share_an_audience(tmp_path: Path) -> None:
    grouped = ConversationBinding(listen="ambient", group="staff")
    bindings = Bindings(
        [
            BindingPattern(
                channel="*",
                room="#closed",
                thread=None,
                binding=ConversationBinding(listen="ambient"),
            ),
            BindingPattern(channel="*", room="*", thread=None, binding=grouped),
        ]
    )
    public, closed, thread = place("#public"), place("#closed"), replace(ROOM, thread=ThreadId("7"))
    told = {public: PUBLIC, thread: thread.conversation}
    async with await opened(tmp_path / "s.db") as store:
        for number, at in enumerate((ROOM, public, closed, place("#other")), 1):
            await store.append([said(number, room=at.room)])
        within = said(9, room="#room").fact
        assert isinstance(within, Message)
        await store.append(
            [NewEntry(fact=replace(within, at=thread), at=NOW, conversation=thread.conversation)]
        )
        await store.append([said(10, room="ulla", kind="direct")])
        places = privacy(store, bindings, PlayedChannels(scope_of=told.get))
        staff = await places.scope(ROOM.conversation)
        scopes = [
            await places.scope(one.conversation)
            for one in (place("#other"), public, closed, thread, ULLA)
        ]
        assert scopes == [
            staff,
            PUBLIC,
            closed.conversation,
            thread.conversation,
            ULLA.conversation,
        ]
        sees = [
            (await places.visibility(one.conversation)).can_see(staff)
            for one in (ROOM, public, closed, ULLA)
        ]
        assert sees == [True, False, False, False]


def says(
    number: int, room: str, sender: str = "ulla", kind: Literal["room", "direct"] = "room"
) -> NewEntry:
    """Somebody whom the platform vouches for says something."""
    entry = said(number, room=room, kind=kind)
    assert isinstance(entry.fact, Message)
    return replace(
        entry,
        fact=replace(entry.fact, sender=Sender(id=SenderId(sender), name=sender, verified=True)),
    )


async def test_somebody_alone_may_be_shown_what_they_are_a_member_of(tmp_path: Path) -> None:
    """Asked for what is to be shown only, and never of another platform's rooms, private rooms and
    direct chats."""
    closed, bob, far = (
        place("#staff"),
        place("bob"),
        Address(channel=ChannelName("irc.far"), room=RoomId("#staff")),
    )
    grouped, space = place("#grouped"), space_scope(ChannelName("irc.test"), RoomId("9"))
    bindings = Bindings(
        [
            BindingPattern(
                channel="*",
                room=room,
                thread=None,
                binding=ConversationBinding(listen="ambient", **more),
            )
            for room, more in (
                ("#mine", {"private": True}),
                ("#grouped", {"group": "staff"}),
                ("*", {}),
            )
        ]
    )
    reads: dict[str, Membership] = dict.fromkeys(
        ("#staff", "#grouped", "#mine", "bob", "9"), "reads_all"
    )
    asked = list[Address]()

    def membership(at: Address, person: SenderId) -> Membership | None:
        assert person == "ulla"
        asked.append(at)
        return reads.get(at.room)

    async with await opened(tmp_path / "s.db") as store:
        await store.append([says(1, "ulla", kind="direct"), said(2, room="bob", kind="direct")])
        reported = AudienceReported(at=grouped, scope=grouped.conversation)
        await store.append([NewEntry(fact=reported, at=NOW, conversation=grouped.conversation)])
        places = privacy(store, bindings, PlayedChannels(membership=membership))
        await places.load()
        here, rooms = (
            await places.visibility(ULLA.conversation),
            await places.visibility(closed.conversation),
        )

        async def shown(*scopes: str, to: Visibility = here) -> list[str]:
            asked.clear()
            seen = await places.with_memberships(to, scopes)
            return [scope for scope in scopes if seen.can_see(scope) and not to.can_see(scope)]

        known = [closed.conversation, group_scope("staff"), space]
        assert await shown(*known) == known
        assert asked == [closed, grouped, place("9")]
        assert not await shown(
            far.conversation, place("#mine").conversation, bob.conversation, PUBLIC, OWNER_SCOPE
        )
        assert not await shown(here.scope, inner_conversation("a"), group_scope("other"))
        assert not asked
        assert not await shown(place("#other").conversation)
        assert not await shown(*known, to=rooms), "others read it"
        assert not asked
        many = [place(f"#{number}").conversation for number in range(50)]
        again = await places.with_memberships(here, many)
        assert await shown(*many, *known, to=again) == []
        assert len(again.asked) == MAX_ASKED_SCOPES
        assert not asked


async def test_a_member_who_cannot_read_what_was_said_before_is_shown_it_from_their_joining_on(
    store: Store,
) -> None:
    closed = place("#staff")
    places = privacy(store, ANY, PlayedChannels(membership=lambda _, __: "reads_new"))
    await store.append([says(1, "ulla", kind="direct")])
    here = await places.visibility(ULLA.conversation)

    async def first_shown() -> Seq | None:
        """Where what they are shown begins."""
        seen = await places.with_memberships(here, [closed.conversation])
        newest = await store.newest_entries(1)
        return next(
            (n for n in range(1, newest[0].seq + 1) if seen.can_see(closed.conversation, n)), None
        )  # type: ignore[return-value]

    def changes(
        number: int, change: Literal["join", "part", "kick"], sender: str = "ulla"
    ) -> NewEntry:
        who = Sender(id=SenderId(sender), name=sender, verified=True)
        fact = MembershipChanged(
            id=EventId(f"c{number}"), at=closed, sender=who, change=change, sent=NOW
        )
        return NewEntry(fact=fact, at=NOW, conversation=closed.conversation)

    await store.append([says(2, "#staff", "bob"), changes(1, "join", "bob")])
    assert await first_shown() is None, "nothing tells that they were there"
    for entry, is_first in (
        (says(3, "#staff"), True),
        (says(4, "#staff"), False),
        (changes(2, "join"), True),
        (says(5, "#staff"), False),
        (changes(3, "part"), None),
        (says(6, "#staff"), True),
    ):
        before = await first_shown()
        (written,) = await store.append([entry])
        assert await first_shown() == {True: written.seq, False: before, None: None}[is_first]


async def test_a_note_is_known_as_far_as_whoever_had_it_written_is_trusted(store: Store) -> None:
    (first,) = await store.append([said(1, room="#room")])
    places = privacy(store, OPEN)

    async def scope(
        integrity: Integrity,
        at: str = ROOM.conversation,
        scope: str = PUBLIC,
        who: PrivacyCache = places,
    ) -> str:
        noted = NoteWritten(
            agent="a", scope=scope, title="", text="x", lasting=True, label=Label(integrity)
        )
        return await who.note_scope(ConversationId(at), first.seq, noted)

    for integrity in INTEGRITIES[:3]:
        assert await scope(integrity) == ROOM.conversation
    for integrity in INTEGRITIES[3:]:
        assert await scope(integrity) == PUBLIC
        assert await scope(integrity, inner_conversation("a")) == PUBLIC
        assert await scope(integrity, scope=ULLA.conversation) == ULLA.conversation
        assert await scope(integrity, who=privacy(store, ANY)) == ROOM.conversation


async def test_the_operator_can_make_a_room_private(tmp_path: Path) -> None:
    bindings = Bindings(
        [
            BindingPattern(
                channel="*",
                room="#staff",
                thread=None,
                binding=ConversationBinding(listen="ambient", private=True),
            ),
            BindingPattern(
                channel="*", room="*", thread=None, binding=ConversationBinding(listen="ambient")
            ),
        ]
    )

    async def look() -> tuple[bool, bool]:
        async with await opened(tmp_path / "s.db") as store:
            await store.append(heard(1, room="#staff"))
            await store.append(heard(2, room="#room"))
            places = privacy(store, bindings)
            return await places.is_private(place("#staff").conversation), await places.is_private(
                place("#room").conversation
            )

    assert await look() == (True, False)


_SCOPES = st.sampled_from([PUBLIC, "irc.test/ulla", "irc.test/vera", "telegram.main/1"])


@given(_SCOPES, _SCOPES, st.booleans())
def test_nothing_private_is_told_anywhere_else_but_to_an_owner(
    scope: str, here: str, everything: bool
) -> None:
    seen = Visibility(scope=here, sees_everything=everything).only_visible([scope], lambda one: one)
    assert bool(seen) == (everything or scope in {PUBLIC, here})


class Guild(ConsoleChannel):
    """Tells what the test says. Of a channel that another process holds, nothing."""

    known_audience: Audience | None = None
    known_space: RoomId | None = None

    def __init__(self, name: ChannelName) -> None:
        super().__init__(name, lambda _: None)

    def audience(self, at: Address) -> Audience | None:
        del at
        return self.known_audience

    def space(self, room: RoomId) -> RoomId | None:
        del room
        return self.known_space


async def test_the_log_tells_every_process_the_space_of_a_room(tmp_path: Path) -> None:
    """Also of a room that was reported before its space was known; then what was readable to all
    stays so."""
    guild, name = RoomId("9"), ChannelName("irc.test")
    adapter, far = Guild(name), Guild(name)
    async with await opened(tmp_path / "s.db") as store:
        near, elsewhere = (
            Channels(live_settings(), {name: adapter}),
            Channels(live_settings(), {name: far}),
        )
        here, there = privacy(store, ANY, near), privacy(store, ANY, elsewhere)
        store.subscribe(here.on_appended)
        store.subscribe(there.on_appended)
        adapter.known_audience = "everybody"
        first = said(1, room="#room")
        early = NewEntry(
            fact=AudienceReported(at=ROOM, scope=PUBLIC),
            at=NOW,
            conversation=ROOM.conversation,
            cause=first,
        )
        written, _ = await store.append([first, early])
        adapter.known_space = guild
        message = said(2, room="#room")
        assert isinstance(message.fact, Message)
        found = here.find_new_audience(message.fact)
        assert found == AudienceReported(at=ROOM, scope=PUBLIC, space=guild, since=written.seq)
        assert elsewhere.space_of(ROOM) is None
        await store.append(
            [message, NewEntry(fact=found, at=NOW, conversation=ROOM.conversation, cause=message)]
        )
        assert elsewhere.space_of(ROOM) == guild
        assert here.find_new_audience(message.fact) is None
        again = Channels(live_settings(), {name: far})
        late = privacy(store, ANY, again)
        await late.load()
        assert again.space_of(ROOM) == guild
        assert await late.scope(ROOM.conversation, written.seq) == PUBLIC


async def test_a_closed_thread_stays_so_while_its_platform_cannot_be_asked(tmp_path: Path) -> None:
    ops = replace(ROOM, thread=ThreadId("@"))
    async with await opened(tmp_path / "s.db") as store:
        closed = AudienceReported(at=ops, scope=ops.conversation)
        message = said(1, room="#room").fact
        assert isinstance(message, Message)
        entry = NewEntry(fact=replace(message, at=ops), at=NOW, conversation=ops.conversation)
        await store.append(
            [entry, NewEntry(fact=closed, at=NOW, conversation=ops.conversation, cause=entry)]
        )
        places = privacy(store, OPEN)
        await places.load()
        assert await places.scope(ops.conversation) == ops.conversation
