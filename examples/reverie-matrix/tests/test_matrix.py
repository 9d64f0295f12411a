"""What the adapter does with a real homeserver, in both directions."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from homeserver import Homeserver, Person
from kit import NAME, Proxy, make_channel
from reverie_matrix.channel import MatrixChannel
from reverie_matrix.config import MatrixConfig

from reverie.platforms import (
    Address,
    ConnectionChanged,
    MayNotPost,
    MembershipChanged,
    MessageDeleted,
    MessageEdited,
    PostPart,
    RateLimited,
    ReactionChanged,
    Rejected,
    RoomId,
    Sender,
    SenderId,
    SystemClock,
    ThreadId,
    Uncertain,
)
from reverie.testing.channels import Run
from reverie.testing.waiting import until


class World:
    """The bot, alice and bob in one room."""

    def __init__(self, homeserver: Homeserver) -> None:
        self.homeserver = homeserver
        self.bot = homeserver.person("reverie")
        self.alice, self.bob = homeserver.person("alice"), homeserver.person("bob")
        self.room = self.alice.create_room(name="garden", invite=(self.bob.id, self.bot.id))
        self.bob.join(self.room)
        self.bot.join(self.room)
        self.at = self.address(self.room)

    @staticmethod
    def address(room: str, thread: str | None = None) -> Address:
        return Address(channel=NAME, room=RoomId(room), thread=ThreadId(thread) if thread else None)

    @contextlib.asynccontextmanager
    async def running(
        self, cursor: str | None = None, url: str = "", **settings: object
    ) -> AsyncIterator[Run[MatrixChannel]]:
        """The adapter, once it has heard of all that was before."""
        url = url or self.homeserver.url
        run = Run(make_channel(url, self.bot, cursor, **settings), cursor)
        try:
            await run.until(lambda: run.cursor not in (None, cursor) or run.links[-1:] == [True])
            yield run
        finally:
            await run.end()

    def part(self, body: str, key: str = "k#0", **more: object) -> PostPart:
        return PostPart(**{"key": key, "to": self.at, "body": body} | more)  # type: ignore[arg-type]  # as given

    def shown(self) -> list[str]:
        """What alice sees of the bot's messages."""
        return [content["body"] for content in self.alice.messages(self.room, self.bot.id)]


@pytest.fixture
def world(homeserver: Homeserver) -> World:
    return World(homeserver)


def person(who: Person, name: str) -> Sender:
    return Sender(id=SenderId(who.id), name=name, verified=True)


async def test_cut_message_is_shown_once_after_restarts_of_adapter_and_server(world: World) -> None:
    async with Proxy(world.homeserver.url) as proxy:
        async with world.running(url=proxy.url) as run:
            world.alice.say(world.room, "before")
            await run.message()
            proxy.cut_send()
            with pytest.raises(Uncertain):
                await run.channel.send(world.part("only once", "post7#0"))
            cursor = run.cursor
        world.alice.say(world.room, "while you were out")
        world.homeserver.stop()
        world.homeserver.start()
        async with world.running(cursor, proxy.url) as again:
            assert (await again.message()).text == "while you were out"
            proxy.mend_send()
            first = await again.channel.send(world.part("only once", "post7#0"))
            second = await again.channel.send(world.part("only once", "post7#0"))
            other = await again.channel.send(world.part("another", "post8#0"))
    assert world.shown() == ["only once", "another"]
    assert first == second != other


async def test_login_by_password_repeats_no_message_either(world: World) -> None:
    bot = world.homeserver.person("reverie", password="not in any log")
    world.alice.ask("POST", f"rooms/{world.room}/invite", {"user_id": bot.id})
    bot.join(world.room)
    config = MatrixConfig.model_validate(
        {
            "platform": "matrix",
            "homeserver": world.homeserver.url,
            "user": bot.id,
            "password": bot.password,
        }
    )
    receipts = []
    for _ in range(2):
        run = Run(MatrixChannel(NAME, config, SystemClock()))
        await run.up()
        receipts.append(await run.channel.send(world.part("hello")))
        await run.end()
    assert receipts[0] == receipts[1]
    assert [one["body"] for one in world.alice.messages(world.room, bot.id)] == ["hello"]


async def test_wrong_password_is_no_secret_in_the_reason(world: World) -> None:
    config = MatrixConfig.model_validate(
        {
            "platform": "matrix",
            "homeserver": world.homeserver.url,
            "user": world.bot.id,
            "password": "wrong-password",
        }
    )
    run = Run(MatrixChannel(NAME, config, SystemClock()))
    with pytest.raises(Exception, match="refused") as caught:
        await run.task
    assert "wrong-password" not in str(caught.value)
    assert [link.up for link in run.all(ConnectionChanged)] == [False]


async def test_edit_reaction_and_deletion_come_in(world: World) -> None:
    async with world.running() as run:
        event = world.alice.say(world.room, "hullo")
        await run.message()
        world.alice.edit(world.room, event, "hello")
        world.bob.edit(world.room, event, "not mine to edit")
        reaction = world.bob.react(world.room, event, "👍")
        await run.one(ReactionChanged)
        world.bob.redact(world.room, reaction)
        world.alice.redact(world.room, event)
        deleted = await run.one(MessageDeleted)
        edited = run.all(MessageEdited)
        reacted = run.all(ReactionChanged)
    alice, bob = world.alice.id, world.bob.id
    assert [(one.message, one.text, one.sender.id) for one in edited] == [(event, "hello", alice)]
    assert [(one.message, one.reaction, one.added, one.sender.id) for one in reacted] == [
        (event, "👍", True, bob),
        (event, "👍", False, bob),
    ]
    assert (deleted.message, deleted.at, deleted.sender) == (
        event,
        world.at,
        run.messages[0].sender,
    )


async def test_edit_reaction_reply_and_deletion_go_out(world: World) -> None:
    async with world.running() as run:
        event = world.alice.say(world.room, "a question")
        asked = await run.message()
        reply = world.part("an *answer*", reply_to=asked.id, notify=(asked.sender,))
        (answer,) = (await run.channel.send(reply)).ids
        (shown,) = world.alice.messages(world.room, world.bot.id)
        assert shown["m.relates_to"] == {"m.in_reply_to": {"event_id": event}}
        assert shown["m.mentions"] == {"user_ids": [world.alice.id]}
        assert shown["formatted_body"] == "an <em>answer</em>"
        await run.channel.edit(world.at, answer, "a better one")
        assert world.shown() == ["a better one"]
        await run.channel.react(world.at, asked.id, "👀", add=True)
        await run.channel.delete(world.at, answer)
        assert world.shown() == []


async def test_reply_to_the_bot_is_told_from_another_reply(world: World) -> None:
    async with world.running() as run:
        (ours,) = (await run.channel.send(world.part("ask me"))).ids
        theirs = world.bob.say(world.room, "bob says **this**")
        world.alice.reply(world.room, ours, "who are you?")
        world.alice.reply(world.room, theirs, "reverie, what does he mean?")
        _, to_us, to_bob = [await run.message(number) for number in (1, 2, 3)]
    assert (to_us.kind, to_us.reply_to) == ("reply", ours)
    assert to_us.quoted is not None
    assert (to_us.quoted.sender.id, to_us.quoted.text) == (world.bot.id, "")
    assert (to_bob.kind, to_bob.reply_to) == ("mention", theirs)
    assert to_bob.quoted is not None
    assert to_bob.quoted.text == "bob says **this**"


async def test_adapter_that_was_restarted_knows_its_own_messages(world: World) -> None:
    async with world.running() as run:
        (ours,) = (await run.channel.send(world.part("ask me"))).ids
        world.alice.say(world.room, "later")
        await run.message()
        cursor = run.cursor
    async with world.running(cursor) as again:
        world.alice.reply(world.room, ours, "now")
        assert (await again.message()).kind == "reply"


async def test_thread_is_an_address_of_its_own(world: World) -> None:
    async with world.running() as run:
        root = world.alice.say(world.room, "root")
        relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}
        relation |= {"m.in_reply_to": {"event_id": root}}
        inside = world.alice.say(world.room, "inside", **{"m.relates_to": relation})
        heard = await run.message(2)
        await run.channel.send(world.part("me too", to=heard.at))
        assert run.channel.audience(heard.at) == "room"
    assert (heard.at, heard.reply_to) == (world.address(world.room, root), None)
    (shown,) = world.alice.messages(world.room, world.bot.id)
    assert shown["m.relates_to"]["event_id"] == root != inside


async def test_room_says_who_can_read_it_and_what_it_is_called(world: World) -> None:
    async with world.running() as run:
        channel = run.channel
        names = channel.place_names(world.at)
        assert names is not None
        assert (names.room, names.person, names.me) == ("garden", None, "reverie")
        assert channel.audience(world.at) == "room"
        assert await channel.membership(world.at, SenderId(world.bob.id)) == "reads_all"
        assert await channel.membership(world.at, SenderId("@nobody:localhost")) is None
        history = {"history_visibility": "joined"}
        world.alice.set_state(world.room, "m.room.history_visibility", history)
        world.alice.set_state(world.room, "m.room.topic", {"topic": "roses"})
        world.alice.set_state(world.room, "m.room.name", {"name": "orchard"})
        await run.until(lambda: len(run.all(MembershipChanged)) == 2)
        assert await channel.membership(world.at, SenderId(world.bob.id)) == "reads_new"
        world.alice.set_state(world.room, "m.room.join_rules", {"join_rule": "public"})
        await until(lambda: channel.audience(world.at) == "everybody")
        names = channel.place_names(world.at)
    assert names is not None
    assert (names.room, names.topic) == ("orchard", "roses")
    told = [(one.change, one.text) for one in run.all(MembershipChanged)]
    assert told == [("topic", "roses"), ("title", "orchard")]


async def test_who_comes_and_goes_is_told(world: World) -> None:
    async with world.running() as run:
        carol = world.homeserver.person("carol")
        world.alice.ask("POST", f"rooms/{world.room}/invite", {"user_id": carol.id})
        carol.join(world.room)
        carol.set_state(
            world.room,
            "m.room.member",
            {"membership": "join", "displayname": "Caro"},
            carol.id,
        )
        carol.ask("POST", f"rooms/{world.room}/leave", {"reason": "tea"})
        kick = {"user_id": world.bob.id, "reason": "noise"}
        world.alice.ask("POST", f"rooms/{world.room}/kick", kick)
        world.alice.ask("POST", f"rooms/{world.room}/kick", {"user_id": world.bot.id})
        await run.until(lambda: len(run.all(MembershipChanged)) == 5)
        assert run.channel.is_joined(world.at.room) is False
    told = [(one.change, one.subject, one.text) for one in run.all(MembershipChanged)]
    assert told == [
        ("join", None, None),
        ("nick", "Caro", None),
        ("part", None, "tea"),
        ("kick", "bob", "noise"),
        ("kick", "reverie", None),
    ]


async def test_direct_chat_is_heard_from_its_invitation_on(world: World) -> None:
    async with world.running() as run:
        room = world.alice.create_room(
            invite=(world.bot.id,), is_direct=True, preset="trusted_private_chat"
        )
        world.alice.say(room, "are you there?")
        heard = await run.message()
        assert (heard.kind, heard.text, heard.at) == (
            "direct",
            "are you there?",
            world.address(room),
        )
        names = run.channel.place_names(heard.at)
        assert names is not None
        assert (names.person, names.handle) == ("alice", world.alice.id)
        assert world.bot.ask("GET", f"user/{world.bot.id}/account_data/m.direct") == {
            world.alice.id: [room]
        }
        world.alice.ask("POST", f"rooms/{room}/invite", {"user_id": world.bob.id})
        world.bob.join(room)
        world.alice.say(room, "now there are three of us")
        assert (await run.message(2)).kind == "room"


async def test_direct_chat_is_opened_once(world: World) -> None:
    async with world.running() as run:
        room = await run.channel.open_direct(person(world.alice, "alice"))
        await run.channel.send(world.part("psst", to=world.address(room)))
        await until(lambda: run.channel.is_joined(room))
        world.alice.join(room)
        assert await run.channel.open_direct(person(world.alice, "alice")) == room
        world.alice.say(room, "yes?")
        assert (await run.message()).kind == "direct"


@pytest.mark.parametrize("direct", [True, False])
async def test_other_invitation_is_told_and_not_followed(world: World, direct: bool) -> None:
    async with world.running(direct_invitations=["@somebody:example.org"]) as run:
        name = {} if direct else {"name": "shed"}
        room = world.alice.create_room(invite=(world.bot.id,), is_direct=direct, **name)
        invited = await run.one(MembershipChanged)
        assert (invited.change, invited.at, invited.sender.id) == (
            "invite",
            world.address(room),
            world.alice.id,
        )
        assert run.channel.is_joined(RoomId(room)) is False
        world.alice.say(room, "before")
        await run.channel.join(invited.at)
        await until(lambda: run.channel.is_joined(RoomId(room)))
        world.alice.say(room, "after")
        await run.until(lambda: "after" in [one.text for one in run.messages])
    heard = [one.text for one in run.messages]
    assert heard == (["before", "after"] if direct else ["after"])


async def test_configured_room_is_joined_or_says_why_not(world: World) -> None:
    open_room = world.alice.create_room(preset="public_chat")
    closed = world.alice.create_room()
    async with world.running(rooms=[open_room, closed]) as run:
        await until(lambda: run.channel.is_joined(RoomId(open_room)))
        await until(lambda: run.channel.join_refusal(RoomId(closed)))
        assert run.channel.join_refusal(RoomId(open_room)) == ""


async def test_rate_limit_of_the_server_says_how_long(world: World) -> None:
    admin = world.homeserver.person("admin", admin=True)
    limit = {"messages_per_second": 1, "burst_count": 3}
    path = f"_synapse/admin/v1/users/{world.bot.id}/override_ratelimit"
    admin.ask("POST", path, limit, root="")
    async with world.running() as run:
        with pytest.raises(RateLimited) as caught:  # noqa: PT012 - it is not known at which line
            for number in range(10):
                await run.channel.send(world.part(f"line {number}", f"k{number}#0"))
        assert 0 < caught.value.retry_after_s <= 1
        shown = world.shown()
    assert 1 <= len(shown) < 10


async def test_missing_right_is_named_and_its_return_is_noticed(world: World) -> None:
    levels = world.alice.state(world.room, "m.room.power_levels")
    world.alice.set_state(world.room, "m.room.power_levels", levels | {"events_default": 50})
    async with world.running() as run:
        with pytest.raises(MayNotPost, match="M_FORBIDDEN"):
            await run.channel.send(world.part("may I?"))
        world.alice.set_state(world.room, "m.room.power_levels", levels)
        await run.channel.wait_for_rights(world.at)
        await run.channel.send(world.part("may I?"))
    assert world.shown() == ["may I?"]


async def test_encrypted_room_is_reported_once_and_gets_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    encryption = {"algorithm": "m.megolm.v1.aes-sha2"}
    async with world.running() as run:
        world.alice.set_state(world.room, "m.room.encryption", encryption)
        for _ in range(3):
            cipher = encryption | {"ciphertext": "x", "session_id": "x", "sender_key": "x"}
            world.alice.send(world.room, cipher | {"device_id": "x"}, "m.room.encrypted")
        world.alice.set_state(world.room, "m.room.topic", {"topic": "secrets"})
        await run.one(MembershipChanged)
        with pytest.raises(Rejected, match="encrypted"):
            await run.channel.send(world.part("in the open"))
        state = [{"type": "m.room.encryption", "state_key": "", "content": encryption}]
        room = world.alice.create_room(invite=(world.bot.id,), is_direct=True, initial_state=state)
        await until(
            lambda: world.alice.state(room, "m.room.member", world.bot.id)["membership"] == "leave"
        )
        assert not run.messages
    assert world.shown() == []
    assert "encrypted" in world.alice.state(room, "m.room.member", world.bot.id)["reason"]
    assert [world.room in one.getMessage() for one in caplog.records] == [True, False]


async def test_file_comes_in_with_its_name_and_caption(world: World) -> None:
    async with world.running() as run:
        uri = world.alice.upload(b"\x89PNG", "image/png")
        info = {"size": 4, "mimetype": "image/png"}
        content = {"msgtype": "m.image", "url": uri, "info": info}
        world.alice.send(world.room, content | {"body": "cat.png"})
        world.alice.send(world.room, content | {"body": "my cat", "filename": "../cat.png"})
        bare, captioned = [await run.message(number) for number in (1, 2)]
        (image,) = captioned.attachments
        assert await run.channel.download(world.at, image, limit_bytes=4) == b"\x89PNG"
    assert (bare.text, captioned.text) == ("", "my cat")
    assert (image.form, image.name, image.content_type, image.size_bytes) == (
        "image",
        "../cat.png",
        "image/png",
        4,
    )


async def test_notice_is_a_program_and_its_name_is_no_mention(world: World) -> None:
    async with world.running() as run:
        world.alice.send(world.room, {"msgtype": "m.notice", "body": "42 builds are red"})
        world.alice.say(world.room, "what a reverie-like day, reveries!")
        world.alice.say(world.room, "Reverie: are you there?")
        notice, talk, called = [await run.message(number) for number in (1, 2, 3)]
    assert (notice.sender.is_bot, talk.sender.is_bot) == (True, False)
    assert (notice.kind, called.kind) == ("room", "mention")


async def test_gap_of_an_absence_is_filled_up_to_its_limit(world: World) -> None:
    async with world.running() as run:
        world.alice.say(world.room, "known")
        await run.message()
        cursor = run.cursor
    texts = [f"line {number}" for number in range(250)]
    for text in texts:
        world.alice.say(world.room, text)
    async with world.running(cursor) as again:
        await again.until(lambda: len(again.messages) >= len(texts))
        assert [one.text for one in again.messages] == texts
    async with world.running(cursor, history_age="0s") as late:
        world.alice.say(world.room, "now")
        await late.until(lambda: "now" in [one.text for one in late.messages])
        assert len(late.messages) < 100


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "access_token"),
        ({"access_token": "x", "password": "x", "user": "@a:b"}, "either"),
        ({"password": "x"}, "user"),
        ({"access_token": "x", "rooms": ["#garden:example.org"]}, "begins with"),
        ({"access_token": "x", "direct_invitations": ["ann"]}, "id of a person"),
        ({"access_token": "x", "homeserver": "matrix.example.org"}, "homeserver"),
    ],
)
def test_wrong_setting_is_explained(more: dict[str, object], reason: str) -> None:
    section = {"platform": "matrix", "homeserver": "https://matrix.example.org"} | more
    with pytest.raises(ValueError, match=reason) as caught:
        MatrixConfig.model_validate(section)
    assert "x" not in str(caught.value).split()
