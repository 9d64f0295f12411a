"""What the server says, as notifications, and who says it: nobody who only looks like them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from channels.base import Rejected
from channels.irc.history import MAX_HELD
from channels.irc.inbound import IrcLineContext, sent_at, to_notifications
from channels.irc.state import IrcState
from channels.irc.wire import parse_line
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import ChannelName, MembershipChanged, Message, Sender
from reverie.testing.servers.ircd import CAPS, Ircd, Options
from tests.channels.irc.channel_kit import Running, hear, part, running, settled


async def test_people_and_rooms_are_told_apart() -> None:
    async with Ircd() as ircd, running(ircd, rooms=["#Room", "#a[b]"]) as run:
        await run.up()
        bot = ircd.clients[0]
        lines = [
            ("@account=al :alice!a@h PRIVMSG reverie :direct, verified", "direct", "al!account:al"),
            ("@account=al :al_away!a@h PRIVMSG reverie :still me", "direct", "al!account:al"),
            (":alice!a@h PRIVMSG REVERIE :direct", "direct", "alice!a@h"),
            (":alice!a@h PRIVMSG #ROOM :hi reverie", "mention", "#Room"),
            (":alice!a@h PRIVMSG @#room :to the ops", "room", "#Room"),
            (":alice!a@h PRIVMSG #A{B} :folded", "room", "#a[b]"),
            (":alice!a@h PRIVMSG #Else :not ours", "room", "#else"),
            ("@bot :rss!a@h PRIVMSG #room :news", "room", "#Room"),
            (":alice!a@h PRIVMSG #room :\x01ACTION pokes reverie\x01", "mention", "#Room"),
            (":alice!a@h PRIVMSG #room :\x01ACTION waves", "room", "#Room"),
            ("@time=nonsense :alice!a@h PRIVMSG #room hi", "room", "#Room"),
            (
                "@time=2020-01-01T00:00:00 :a!a@h PRIVMSG #room :reverie: no zone",
                "mention",
                "#Room",
            ),
        ]
        for line, _, _ in lines:
            bot.send(line)
        await run.message(len(lines))
        assert [(m.kind, m.at.room) for m in run.messages] == [
            (kind, room) for _, kind, room in lines
        ]
        assert [m.at.thread for m in run.messages] == [None] * 4 + ["@"] + [None] * 7
        assert [m.sender.id for m in run.messages[1:3]] == ["account:al", "mask:alice!a@h"]
        assert [m.sender.is_bot for m in run.messages] == [False] * 7 + [True] + [False] * 4
        assert [m.text for m in run.messages[8:10]] == ["/me pokes reverie", "/me waves"]
        assert len({m.id for m in run.messages}) == len(lines)


async def test_people_may_call_us_by_the_nick_that_we_should_have() -> None:
    """Unless somebody else has it in that room: a dead connection of ours is nobody else."""
    called: list[str] = []
    async with Ircd(Options(taken={"reverie"})) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for lines in (
            [],
            [f":{bot.nick}!{bot.user}@{bot.host} CHGHOST {bot.user} user/reverie"],
            [f":reverie!{bot.user}@{bot.host} JOIN #room"],
            [f":reverie!{bot.user}@{bot.host} QUIT :gone", ":Reverie!x@y JOIN #room"],
            [":Reverie!x@y PART #room"],
        ):
            for line in [*lines, ":al!a@h PRIVMSG #room :reverie: hi"]:
                bot.send(line)
            called.append((await run.message(len(called) + 1)).kind)
    assert called == ["mention", "mention", "mention", "room", "mention"]


async def test_a_file_that_somebody_offers_is_told_without_their_address() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].send(":al!a@h PRIVMSG #room :\x01DCC SEND a.jpg 2130706433 4000 9\x01")
        ircd.clients[0].send(":al!a@h PRIVMSG reverie :\x01DCC SEND a.jpg 2130706433 4000 9\x01")
        told = await run.message()
        assert told.kind == "direct"
        assert "SEND a.jpg" in told.text
        assert "2130706433" not in told.text


@pytest.mark.parametrize(
    "line",
    [
        ":alice!a@h NOTICE #room :reverie: hi",
        ":alice!a@h NOTICE reverie :\x01VERSION x\x01",
        ":alice!a@h PRIVMSG #room",
        ":alice!a@h PRIVMSG",
        ":alice!a@h PRIVMSG #room :",
        ":alice!a@h PRIVMSG #room :\x02\x0f",
        ":alice!a@h PRIVMSG #room :\x01DCC SEND x\x01",
        ":alice!a@h PRIVMSG somebody :not for us",
        ":reverie!r@h PRIVMSG #room :our own",
        "PRIVMSG #room :nobody",
        ":alice!a@h INVITE reverie trap",
        ":alice!a@h INVITE bob #trap",
        ":alice!a@h AWAY :lunch",
        ":alice!a@h SETNAME :Alice",
        ":alice!a@h CHGHOST x y",
        ":irc.test WARN JOIN X :words",
        ":alice!a@h QUIT",
        ":alice!a@h TAGMSG #room",
        ":alice!a@h JOIN",
        ":alice!a@h KICK #room",
        ":reverie!r@h TOPIC #room :ours",
        "@batch=x :alice!a@h JOIN #room",
    ],
)
async def test_what_is_not_for_us_is_dropped_quietly(line: str, ircd: Ircd, run: Running) -> None:
    bot = ircd.clients[0]
    bot.send(":irc.test BATCH +x netjoin a b")
    bot.send(line)
    bot.send(":alice!a@h PRIVMSG #room :after")
    assert (await run.message()).text == "after"
    assert len(run.seen) == 2  # the link and that message
    assert not any("#trap" in said for said in bot.lines)


async def test_membership_of_others_is_told() -> None:
    async with Ircd() as ircd, running(ircd, rooms=["#Room", "#two"]) as run:
        await run.up()
        bot = ircd.clients[0]
        for line in (
            ":al!a@h JOIN #room acc :real",
            ":al!a@h JOIN #two * :real",
            ":al!a@h NICK bo",
            ":bo!a@h TOPIC #room :new \x02topic",
            ":op!o@h KICK #room bo :out",
            ":bo!a@h PART #two",
        ):
            bot.send(line)
        await run.until(lambda: len(run.seen) == 8)
        told = [event for event in run.seen if isinstance(event, MembershipChanged)]
        assert [(e.change, e.at.room, e.sender.name, e.subject, e.text) for e in told] == [
            ("join", "#Room", "al", None, None),
            ("join", "#two", "al", None, None),
            ("nick", "#Room", "al", "bo", None),
            ("nick", "#two", "al", "bo", None),
            ("topic", "#Room", "bo", None, "new topic"),
            ("kick", "#Room", "op", "bo", "out"),
            ("part", "#two", "bo", None, None),
        ]


async def test_where_nothing_is_taken_for_long_the_newest_and_what_is_said_to_us_is_kept(
    ircd: Ircd, run: Running, clock: ManualClock
) -> None:
    run.open.clear()
    bot, channel = ircd.clients[0], run.channel
    count = MAX_HELD + 3000
    bot.send(":al!a@h PRIVMSG #room :reverie: are you there?")
    for number in range(count):
        bot.send(f":al!a@h PRIVMSG #room :{number}")
    await channel._inbox.wait_until_full()
    advancing = asyncio.create_task(run.until_advancing(clock, lambda: not channel._inbox.is_full))
    await channel._inbox.wait_for_room()
    await advancing
    bot.send("PING :end")
    await ircd.received("PONG :end")
    run.open.set()
    await run.until(lambda: bool(run.messages) and run.messages[-1].text == str(count - 1))
    kept = [message.text for message in run.messages]
    assert kept[0].endswith("are you there?")
    numbers = [int(text) for text in kept[1:]]
    assert numbers == sorted(numbers)
    assert numbers[-2000:] == list(range(count - 2000, count))
    assert channel.dropped_count == count - len(numbers) > 0


def _ago(seconds: float) -> str:
    return (
        (datetime.now(UTC) - timedelta(seconds=seconds))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


async def test_what_is_played_back_is_history_and_what_is_said_now_is_not(
    ircd: Ircd, run: Running
) -> None:
    bot = ircd.clients[0]
    for text, target, seconds in (
        ("reverie: old", "#room", 90),
        ("!dmn off", "#room", 3600 * 24 * 2000),
        ("old too", "reverie", 61),
        ("reverie: new", "#room", 30),
        ("ahead", "reverie", -90),
    ):
        bot.raw(f"@time={_ago(seconds)};account=al :al!a@h PRIVMSG {target} :{text}\r\n".encode())
    bot.raw(f"@time={_ago(99)} :al!a@h INVITE reverie #room\r\n".encode())
    await run.message(5)
    await settled(bot, "all")
    assert [(one.text, one.kind, one.history) for one in run.messages] == [
        ("reverie: old", "room", True),
        ("!dmn off", "room", True),
        ("old too", "direct", True),
        ("reverie: new", "mention", False),
        ("ahead", "direct", False),
    ]
    assert not [
        event
        for event in run.seen
        if isinstance(event, MembershipChanged) and event.change == "invite"
    ]


@pytest.mark.parametrize("late_s", [30, 65, 90, 300])
async def test_what_was_said_while_we_were_connected_is_a_question_however_late_it_is_read(
    late_s: float,
) -> None:
    clock = ManualClock(datetime.now(UTC))
    caps = CAPS.replace("account-tag ", "")
    async with Ircd(Options(caps=caps)) as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.raw(b":al!a@h JOIN #room al :real\r\n")
        await settled(bot, "here")
        clock.advance(
            late_s + 1
        )  # the process stood still, and reads now what was said to it meanwhile
        said = datetime.now(UTC) + timedelta(seconds=1)
        for text, target, sent in (
            ("reverie: there?", "#room", said),
            ("there?", "reverie", said),
            ("reverie: long before", "#room", said - timedelta(seconds=100)),
        ):
            stamp = sent.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            bot.raw(f"@time={stamp} :al!a@h PRIVMSG {target} :{text}\r\n".encode())
        await run.message(3)
        found = [(one.kind, one.history, one.sender.account) for one in run.messages]
        assert found[:2] == [("mention", False, "al"), ("direct", False, "al")]
        assert found[2][:2] == ("room", True)
        assert abs(run.messages[0].sent - said) < timedelta(seconds=1), (
            "a command in it is known to be late"
        )


async def test_a_line_without_an_id_that_comes_again_is_the_same() -> None:
    line = f"@time={_ago(10)} :al!a@h PRIVMSG #room :reverie: once\r\n".encode()
    clock = SystemClock()
    async with Ircd() as ircd, running(ircd, clock) as run:
        await run.up()
        ircd.clients[0].raw(line + line)
        await run.message(2)
        first = {message.id for message in run.messages}
        assert len(first) == 2, "said twice"
        ircd.clients[0].drop()
        await run.up(2)
        ircd.clients[1].raw(line + line + line.replace(b"once", b"more"))
        await run.message(3)
        assert [message.text for message in run.messages][2:] == ["reverie: more"]
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(line)
        assert (await run.message()).id in first, "also in another process"


async def test_what_is_said_to_operators_alone_is_answered_to_them_alone() -> None:
    async with (
        Ircd(Options(caps=CAPS, isupport=("STATUSMSG=@+", "PREFIX=(ov)@+"))) as ircd,
        running(ircd) as run,
    ):
        await run.up()
        bot = ircd.clients[0]
        bot.send(":op!o@h PRIVMSG @#room :reverie: ops only?")
        bot.send(":op!o@h PRIVMSG #room :reverie: all?")
        await run.message(2)
        ops, everybody = run.messages
        assert (ops.kind, ops.at.room, ops.at.thread) == ("mention", "#room", "@")
        assert ops.at.conversation != everybody.at.conversation
        assert run.channel.audience(ops.at) == "thread"
        assert run.channel.audience(everybody.at) != "thread"
        await run.channel.send(replace(part("for you"), to=ops.at))
        await run.channel.send(part("for all"))
        assert [line for line in ircd.lines if line.startswith("PRIVMSG")] == [
            "PRIVMSG @#room :for you",
            "PRIVMSG #room :for all",
        ]
        assert {
            one.name for one in (await run.channel.list_members(ops.at, most=9)).members
        } == set()
        bot.send(":irc.test 005 reverie -STATUSMSG :are supported")
        await settled(bot, "gone")
        with pytest.raises(Rejected, match="does not let anybody write to @#room"):
            await run.channel.send(replace(part("secret"), to=ops.at))
        assert "secret" not in str(ircd.lines)


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Room:
    """A room as we see it. It takes lines, and says who an author is."""

    def __init__(self, *, account_tag: bool = False, bridges: Sequence[str] = ()) -> None:
        self.state = IrcState("reverie")
        self.state.caps |= {"account-tag"} if account_tag else set()
        self._bridges = bridges
        self.feed(
            ":irc.test 005 reverie PREFIX=(qaohv)~&@%+ CHANMODES=beI,k,lH,imnpst :are supported",
            ":reverie!r@h JOIN #room * :real",
            ":irc.test 353 reverie = #room :reverie",
        )

    def feed(self, *lines: str) -> None:
        for raw in lines:
            hear(self.state, raw)

    def who(self, line: str, *, past: str | None = None) -> Sender:
        """The author of the message that `line` is."""
        (told,) = self.read(line, past=past)
        assert isinstance(told, Message)
        return told.sender

    def read(self, line: str, *, past: str | None = None) -> Sequence[object]:
        context = IrcLineContext(ChannelName("irc.test"), self.state, bridges=self._bridges)
        told = hear(self.state, line)
        told = self.state.read_past(told.line, past) if past else told
        return to_notifications(told, context, NOW, lambda: "fresh", is_past=bool(past))

    def says(self, nick: str = "ann", room: str = "#room") -> Sender:
        return self.who(f":{nick}!a@h PRIVMSG {room} :!status")


ANN = ":ann!a@h JOIN #room * :Ann"


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        ([], ()),
        ([ANN, ":ChanServ!s@s MODE #room +o ann"], ("op",)),
        ([ANN, ":ChanServ!s@s MODE #ROOM +vo-v ANN ann Ann"], ("op",)),
        (
            [ANN, ":c!s@s MODE #room +qaohv ann ann ann ann ann"],
            ("founder", "protected", "op", "halfop", "voice"),
        ),
        ([":irc.test 353 reverie = #room :@+ann!a@h bob"], ("op", "voice")),
        ([":irc.test 353 reverie = #room :~&ann"], ("founder", "protected")),
        ([":irc.test 353 reverie = #room :@ann", ":irc.test 353 reverie = #room :ann"], ()),
        ([":irc.test 353 reverie = #other :@ann"], ()),
        ([":reverie!r@h JOIN #other", ":irc.test 353 reverie = #other :@ann"], ()),
        ([ANN, ":c!s@s MODE #room +o ann", ":c!s@s MODE #room -o ann"], ()),
        ([ANN, ":c!s@s MODE #room +ov ann ann", ":c!s@s MODE #room -o ann"], ("voice",)),
        # parameters of other modes are nobody's
        ([ANN, ":c!s@s MODE #room +bko *!*@* ann bob"], ()),
        ([ANN, ":c!s@s MODE #room +kl-k+o key 5 ann ann"], ("op",)),
        ([ANN, ":c!s@s MODE #room -l+o ann"], ("op",)),
        ([ANN, ":c!s@s MODE #room +Ho 5:1 ann"], ("op",)),
        # what cannot be read gives nobody anything, and takes what was there
        ([ANN, ":c!s@s MODE #room +o ann", ":c!s@s MODE #room +X ann"], ()),
        ([ANN, ":c!s@s MODE #room +Xo evil ann"], ()),
        ([ANN, ":c!s@s MODE #room +oo ann"], ()),
        # it is somebody else's, or nobody's
        ([ANN, ":c!s@s MODE #other +o ann"], ()),
        ([ANN, ":c!s@s MODE ann +o"], ()),
        ([":c!s@s MODE #room +o ann", ANN], ()),
        # who went has none, and who comes back or takes the nick has none yet
        ([ANN, ":c!s@s MODE #room +o ann", ":ann!a@h PART #room", ANN], ()),
        ([ANN, ":c!s@s MODE #room +o ann", ":c!s@s KICK #room ann", ANN], ()),
        ([ANN, ":c!s@s MODE #room +o ann", ":ann!a@h QUIT :irc.a irc.b", ANN], ()),
        ([ANN, ":c!s@s MODE #room +o ann", ":ann!a@h NICK bob", ":eve!a@h NICK ann"], ()),
        (
            [
                ANN,
                ":bob!b@h JOIN #room",
                ":c!s@s MODE #room +o bob",
                ":ann!a@h PART #room",
                ":bob!b@h NICK ann",
            ],
            ("op",),
        ),
        (
            [
                ANN,
                ":c!s@s MODE #room +o ann",
                ":reverie!r@h PART #room",
                ":reverie!r@h JOIN #room",
                ANN,
            ],
            (),
        ),
        (
            [
                ANN,
                ":c!s@s MODE #room +o ann",
                ":c!s@s KICK #room reverie",
                ":reverie!r@h JOIN #room",
                ANN,
            ],
            (),
        ),
    ],
)
def test_ranks_are_what_the_server_says_of_that_nick_now(
    lines: list[str], ranks: tuple[str, ...]
) -> None:
    room = Room()
    room.feed(*lines)
    assert room.says().ranks == ranks


@pytest.mark.parametrize(
    "lines",
    [
        [":ann!a@h PART #room", ":ann!evil@x JOIN #room * :Ann"],
        [":ann!a@h QUIT :bye", ":ann!evil@x JOIN #room * :Ann"],
        [":ann!a@h NICK away", ":eve!evil@x NICK ann"],
        [":c!s@s KICK #room ann", ":ann!evil@x JOIN #room"],
        [":ann!a@h ACCOUNT *"],
        [
            ":reverie!r@h PART #room",
            ":reverie!r@h JOIN #room * :real",
            ":irc.test 353 reverie = #room :ann",
        ],
    ],
)
def test_an_account_ends_with_whoever_had_it(lines: list[str]) -> None:
    room = Room()
    room.feed(":ann!a@h JOIN #room ann :Ann")
    before = room.says()
    assert (before.id, before.verified) == ("account:ann", True)
    room.feed(*lines)
    after = room.says()
    assert (after.verified, after.account, after.id) == (False, None, "mask:ann!a@h")


@pytest.mark.parametrize("account", ["*", "", "0"])
def test_nobody_is_logged_in_to_an_account_that_says_none(account: str) -> None:
    room = Room()
    room.feed(f":ann!a@h JOIN #room {account} :Ann")
    tagged = Room(account_tag=True).who(f"@account={account} :ann!a@h PRIVMSG #room :!status")
    assert (tagged.verified, tagged.id) == (False, "mask:ann!a@h")
    assert not room.says().verified


def test_with_account_tags_only_the_tag_counts() -> None:
    fake = Room().who("@account=fake :ann!a@h PRIVMSG #room :!status")
    assert not fake.verified, "the server has not agreed to check such tags"
    room = Room(account_tag=True)
    room.feed(":ann!a@h JOIN #room ann :Ann")
    assert room.who("@account=ann :ann!a@h PRIVMSG #room :!status").verified
    assert (
        not room.says().verified
    )  # logged out a moment ago: the tag is gone before ACCOUNT is told


def test_a_nick_that_reads_like_the_owners_is_not_the_owner() -> None:
    room = Room(account_tag=True)
    for nick in ("Ann_", "аnn", "ann\u200b", "ANN"):
        sender = room.says(nick)
        assert (sender.verified, sender.account) == (False, None)
        assert sender.id == f"mask:{nick}!a@h"


def test_what_a_bridge_relays_is_the_bridges() -> None:
    room = Room(account_tag=True)
    told = room.who("@account=bridge :bridge!b@h PRIVMSG #room :<ann> !status")
    assert told.id == "account:bridge"
    for tag in ("draft/relaymsg", "relaymsg"):
        relayed = room.who(f"@account=ann;{tag}=bridge :ann/discord!r@h PRIVMSG #room :!status")
        assert (relayed.id, relayed.verified, relayed.account) == (
            "relay:bridge:ann/discord",
            False,
            None,
        )
        assert relayed.ranks == ()


@pytest.mark.parametrize(
    ("line", "person", "name", "kind"),
    [
        ("<kai> reverie: hi", "kai", "kai (via Relay)", "mention"),
        ("<K\u200bai> reverie: hi", "kai", "Kai (via Relay)", "mention"),
        ("\x0305<k\u200bai>\x0f reverie: hi", "kai", "kai (via Relay)", "mention"),
        (
            "<\x0312kai/discord\x0f> reverie: hi",
            "kai/discord",
            "kai/discord (via Relay)",
            "mention",
        ),
        ("[tg] <kai> reverie: hi", "kai", "kai (via Relay)", "mention"),
        ("<boss> hi", "boss", "boss (via Relay)", "room"),
        ("kai joined", "", "Relay", "room"),
        ("<\u200b> reverie: hi", "", "Relay", "room"),
    ],
)
@pytest.mark.parametrize("tags", ["account=relay", "account=RELAY;bot"])
def test_who_speaks_through_a_configured_bridge_is_a_guest_by_their_own_name(
    line: str, person: str, name: str, kind: str, tags: str
) -> None:
    room = Room(account_tag=True, bridges=["relay"])
    room.feed(":Relay!b@h JOIN #room", ":c!s@s MODE #room +o Relay")
    (told,) = room.read(f"@{tags} :Relay!b@h PRIVMSG #room :{line}")
    assert isinstance(told, Message)
    by = told.sender
    assert (by.id, by.name, told.kind) == (f"bridge:relay:{person}", name, kind)
    assert (by.verified, by.account, by.ranks) == (False, None, ())
    assert by.is_bot == ("bot" in tags and not person), "what the bridge says of itself is a bot's"
    assert told.text == (line.rpartition(">")[2].lstrip("\x0f ") if person else line)


def test_a_line_like_that_of_a_bridge_is_the_authors_own() -> None:
    tagged, nicks = Room(account_tag=True, bridges=["relay"]), Room(bridges=["relay"])
    for line in ("@account=eve :relay!e@h", ":relay!e@h", "@account=eve :eve!e@h"):
        (told,) = tagged.read(f"{line} PRIVMSG #room :<boss> reverie: hi")
        assert isinstance(told, Message)
        assert (told.kind, told.text) == ("room", "<boss> reverie: hi")
        assert not told.sender.id.startswith("bridge:"), (
            "where accounts are told, a nick is no bridge"
        )
    assert nicks.who(":RELAY!e@h PRIVMSG #room :<Kai> hi").id == "bridge:relay:kai"
    assert nicks.who(":relay!b@h PRIVMSG reverie :<kai> hi").id == "bridge:relay:", (
        "it passes on rooms alone"
    )


def test_who_has_the_nick_now_did_not_say_what_was_played_back() -> None:
    room = Room()
    room.feed(":ann!a@h JOIN #room ann :Ann")
    old, new = ((NOW - timedelta(minutes=ago)).isoformat() for ago in (6, 1))
    assert not room.who(":ann!a@h PRIVMSG #room :!status", past="#room").verified
    assert not room.who(f"@time={old} :ann!a@h PRIVMSG #room :!status").verified
    assert room.who(f"@time={new} :ann!a@h PRIVMSG #room :!status").verified
    tagged = Room(account_tag=True)
    assert tagged.who(
        f"@time={old};account=ann :ann!a@h PRIVMSG #room :!status", past="#room"
    ).verified


def test_a_time_of_another_century_is_not_believed() -> None:
    now, sent = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
    for told, taken in (
        ("2026-11-01T00:00:00Z", sent),
        ("0001-01-01T00:00:00Z", now),
        ("9999-12-31T23:59:59Z", now),
    ):
        line = parse_line(f"@time={told} :al!a@h PRIVMSG #room :x")
        assert line is not None
        assert sent_at(line, now) == taken
