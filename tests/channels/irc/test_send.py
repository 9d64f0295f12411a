"""Parts out: pace, receipts, refusals, cuts and the length of lines."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.base import BeforeSend, RecipientAway, Rejected, Uncertain, Unreachable
from channels.irc.channel import IrcChannel
from channels.irc.outgoing import SendItem, SendWindow
from channels.irc.state import IrcState, current_nick, resolve_target
from channels.irc.wire import is_refusal, parse_line
from channels.text import clean_outgoing
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import (
    Address,
    MessageDeleted,
    Post,
    PostKey,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)
from reverie.testing.servers.ircd import CAPS, MODERN, Client, Ircd, Options
from tests.channels.irc.channel_kit import (
    NAME,
    Running,
    config,
    hear,
    part,
    running,
    sent_together,
    settled,
)
from tests.kits.examples import examples


@given(
    text=st.text(
        st.characters(
            exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="*_`#[]<>\\~|&•"
        ),
        min_size=1,
    )
)
@settings(max_examples=examples(60))
def test_every_relayed_line_fits_and_nothing_is_lost(text: str) -> None:
    # A word in front: marks alone (`---`) would be Markdown.
    text = clean_outgoing("w" + (text * 40).strip())
    channel = IrcChannel(NAME, config(6667, page_lines=0), SystemClock())
    bodies = channel.split(
        Post(key=PostKey("k"), to=Address(channel=NAME, room=RoomId("#room")), text=text)
    )
    mask = "reverie!~" + "u" * 10 + "@" + "h" * 63
    assert all(len(f":{mask} PRIVMSG #room :{body}\r\n".encode()) <= 512 for body in bodies)
    bare = [
        body.removeprefix("•") for body in bodies
    ]  # in front of what another bot may take for a command
    assert "".join("".join(bare).split()) == "".join(text.split())


async def test_a_room_whose_name_has_an_exclamation_mark_gets_its_answers_itself() -> None:
    async with Ircd() as ircd, running(ircd, rooms=["#wow!"]) as run:
        await run.up()
        await run.channel.send(part("hi", room="#wow!"))
        assert "PRIVMSG #wow! :hi" in ircd.lines


@pytest.mark.parametrize("who", ["account:olga", "mask:olga!o@h"])
async def test_a_reminder_names_whom_it_is_for_by_the_nick_that_they_have_now(who: str) -> None:
    async with Ircd() as ircd, running(ircd) as run:
        bot = await ircd.joined("reverie", "#room")
        await run.up()
        bot.send(":olga!o@h JOIN #room olga :x")
        bot.send(":olga!o@h NICK olga_afk")
        await settled(bot, "read")
        reminder = Post(
            key=PostKey("k"),
            to=Address(channel=NAME, room=RoomId("#room")),
            text="tea",
            notify=(Sender(id=SenderId(who), name="olga"),),
        )
        assert run.channel.split(reminder) == ("olga_afk: tea",)


async def test_pace_is_burst_then_rate() -> None:
    clock = ManualClock()
    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 4, "per_s": 1}) as run:
        await run.up()
        clock.advance(5)
        sends = [asyncio.create_task(run.channel.send(part(str(number)))) for number in range(6)]
        paced = ("PRIVMSG", "PING")
        count = 4
        await ircd.received("PRIVMSG", times=4)
        for _ in range(5):
            ircd.clients[0].send(f"PING :{count}")
            await ircd.received(f"PONG :{count}")
            assert sum(line.startswith(paced) for line in ircd.lines) == count
            clock.advance(1.0)
            count += 1
            if count <= 8:
                await ircd.until(
                    lambda n=count: sum(line.startswith(paced) for line in ircd.lines) == n  # type: ignore[misc]
                )
        await asyncio.gather(*sends)
        said = [line for line in ircd.lines if line.startswith("PRIVMSG")]
        assert said == [f"PRIVMSG #room :{number}" for number in range(6)]


async def _sending(run: Running, ircd: Ircd, body: str = "x") -> "asyncio.Task[Any]":
    task = asyncio.create_task(run.channel.send(part(body)))
    await ircd.received(f"PRIVMSG #room :{body}")
    return task


async def test_a_pong_confirms_what_was_written_before_its_ping_and_nothing_after(
    ircd: Ircd, run: Running
) -> None:
    ircd.faults.hold_pongs = True
    sends = []
    for number, body in enumerate("abc", start=1):
        sends.append(await _sending(run, ircd, body))
        await ircd.received("PING", times=number)
    bot = ircd.clients[0]
    first, *others = bot.held
    bot.send(first)
    await sends[0]
    await settled(bot, "first")
    assert [sending.done() for sending in sends] == [True, False, False]
    bot.send(others[-1])  # in order: what answers the third has dealt with the second
    await asyncio.gather(*sends)


async def _steps() -> None:
    """Let everything run that can while the clock stands still."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_part_goes_only_when_its_turn_has_come() -> None:
    clock, gone = ManualClock(), list[str]()

    def going(name: str) -> BeforeSend:
        async def write_down() -> None:
            gone.append(name)
            assert not [line for line in ircd.lines if line.endswith(f":{name}")], (
                "before it is on the wire"
            )

        return write_down

    async with Ircd() as ircd, running(ircd, clock, flood={"burst": 3, "per_s": 1.0}) as run:
        await run.up()
        clock.advance(10.0)  # the bucket is full again
        sends = [
            asyncio.create_task(run.channel.send(part(name, key=name), going(name)))
            for name in "abcde"
        ]
        await ircd.received(r"PRIVMSG #room :c")
        await _steps()
        assert gone == ["a", "b", "c"]
        clock.advance(1.0)
        await ircd.received(r"PRIVMSG #room :d")
        await _steps()
        assert gone == ["a", "b", "c", "d"]
        sends[-1].cancel()
        while not all(send.done() for send in sends):
            clock.advance(1.0)
            await asyncio.sleep(0)
        assert gone == ["a", "b", "c", "d"]


def _bodies(ircd: Ircd) -> list[str]:
    return [line.partition(" :")[2] for line in ircd.lines if "PRIVMSG " in line]


async def test_places_take_turns_and_a_short_answer_passes_long_ones_elsewhere() -> None:
    async with Ircd() as ircd, running(ircd) as run:
        await run.up()
        for nick in "abc":
            ircd.people[nick] = f"{nick}!{nick}@h", nick
            ircd.clients[0].send(f":{nick}!{nick}@h JOIN #room {nick} :real")
        await settled(ircd.clients[0], "seen")
        pages = [
            part(f"{nick}{line}", f"{nick}!account:{nick}") for nick in "abc" for line in range(4)
        ]
        told = await sent_together(run, [*pages, part("short")])
        assert all(isinstance(receipt, Receipt) for receipt in told)
        order = "a0 b0 c0 short a1 b1 c1 a2 b2 c2 a3 b3 c3"
        assert _bodies(ircd) == order.split()


@settings(max_examples=examples(20), deadline=None)
@given(queue=st.text("abcd", min_size=1, max_size=14))
def test_the_order_in_each_place_is_kept_and_none_waits_for_more_than_a_line_of_each_other(
    queue: str,
) -> None:
    async def check() -> None:
        parts = [part(f"{room}{number}", f"#{room}") for number, room in enumerate(queue)]
        async with Ircd() as ircd, running(ircd, rooms=["#a", "#b", "#c", "#d"]) as run:
            await run.up()
            await sent_together(run, parts)
            bodies = _bodies(ircd)
        for room in "abcd":
            here = [body for body in bodies if body[0] == room]
            assert here == [one.body for one in parts if one.body[0] == room]
            waits = len({body[0] for body in bodies})
            assert all(bodies.index(body) < waits * number for number, body in enumerate(here, 1))

    asyncio.run(check())


FLOODS: dict[str, tuple[str, Sequence[type]]] = {
    "echoes": (CAPS, (Receipt, Receipt, Unreachable, Unreachable)),
    "neither": (CAPS.replace("echo-message ", ""), (Uncertain, Uncertain, Uncertain, Uncertain)),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_who_is_thrown_off_for_flooding_knows_what_was_relayed(what: str) -> None:
    caps, fates = FLOODS[what]
    async with Ircd(Options(caps=caps)) as ircd, running(ircd, ManualClock()) as run:
        await run.up()
        ircd.faults.flood_at = 3
        results = await sent_together(run, [part(body, key=body) for body in ("a", "b", "c", "d")])
        assert [type(result) for result in results] == list(fates)


NO_ECHO = CAPS.replace("echo-message ", "")
ROOM = [("a", "#r", "one"), ("b", "#r", "two")]
E, R, NAMELESS = "echo", "refuse", "nameless"


def _judge_window(lines: list[tuple[str, str, str]], answers: list[tuple[str, str]]) -> list[str]:
    window = SendWindow()
    window.lines = [SendItem(f"PRIVMSG {target} :{text}", target) for _, target, text in lines]
    for kind, about in answers:
        if kind == E:
            window.record_echo("#r", about, f"id-{about}")
        else:
            window.record_refusal({about}, "no (404)", anybody=kind == NAMELESS)
    fates: dict[type, str] = {Receipt: "taken", Rejected: "refused", Uncertain: "unknown"}
    return [fates[type(outcome)] for _, outcome in window.outcomes()]


@pytest.mark.parametrize(
    ("lines", "answers", "fates"),
    [
        (ROOM, [], "taken taken"),
        (ROOM, [(R, "#r")], "unknown unknown"),
        (ROOM, [(R, "#r"), (R, "#r")], "refused refused"),
        (ROOM, [(R, "#r"), (R, "#r"), (R, "#r")], "refused refused"),
        (ROOM, [(R, "#other")], "taken taken"),
        (ROOM, [(E, "one"), (R, "#r")], "taken refused"),
        (ROOM, [(R, "#r"), (E, "two")], "refused taken"),
        (ROOM, [(E, "one"), (R, "#r"), (R, "#r")], "taken refused"),
        (ROOM, [(E, "one"), (E, "two"), (R, "#r")], "taken taken"),
        ([*ROOM, ("c", "#r", "three")], [(R, "#r"), (E, "three")], "unknown unknown taken"),
        ([("a", "#r", "same"), ("b", "#r", "same")], [(R, "#r"), (E, "same")], "refused taken"),
        ([("a", "#r", "same"), ("b", "#r", "same")], [(E, "same"), (R, "#r")], "taken refused"),
        (ROOM, [(E, "from our bouncer"), (R, "#r")], "unknown unknown"),
        (ROOM, [(E, "\x02on"), (R, "#r")], "taken refused"),
        ([*ROOM, ("c", "al", "hi")], [(R, "al")], "taken taken refused"),
        ([*ROOM, ("c", "al", "hi")], [(R, "#r"), (R, "#r")], "refused refused taken"),
        ([*ROOM, ("c", "al", "hi")], [(NAMELESS, "")], "unknown unknown unknown"),
        ([*ROOM, ("c", "al", "hi")], [(NAMELESS, "")] * 3, "refused refused refused"),
        ([*ROOM, ("c", "al", "hi")], [(R, "al"), (NAMELESS, "")], "unknown unknown refused"),
        (ROOM, [(R, "#r"), (NAMELESS, "")], "refused refused"),
    ],
)
def test_what_a_window_of_lines_came_to(
    lines: list[tuple[str, str, str]], answers: list[tuple[str, str]], fates: str
) -> None:
    assert _judge_window(lines, answers) == fates.split()


@pytest.mark.parametrize(
    ("caps", "refused", "results"),
    [
        (NO_ECHO, "b", "Uncertain Uncertain Uncertain"),
        (NO_ECHO, "abc", "MayNotPost MayNotPost MayNotPost"),
        (NO_ECHO, "", "Receipt Receipt Receipt"),
        (CAPS, "b", "Receipt MayNotPost Receipt"),
        (CAPS, "abc", "MayNotPost MayNotPost MayNotPost"),
    ],
)
async def test_a_refusal_among_several_parts_blames_the_right_one_or_none(
    caps: str, refused: str, results: str
) -> None:
    options = Options(caps=caps, muted_texts=frozenset(refused))
    async with Ircd(options) as ircd, running(ircd) as run:
        await run.up()
        sent = await sent_together(run, [part(body) for body in "abc"])
        assert [type(result).__name__ for result in sent] == results.split()
        # What comes after the barrier is not touched by what was before.
        await run.channel.send(part("next"))


# A private answer reaches the person who asked, whatever they are called by now, and nobody
# else.

BOSS = "boss!account:boss"


class Told:
    """What a client knows that was told these lines."""

    def __init__(self, *lines: str) -> None:
        self.state = IrcState("reverie")
        self.state.caps.add("account-notify")
        self.hear(":reverie!r@x JOIN #room * :real", *lines)

    def hear(self, *lines: str) -> "Told":
        for raw in lines:
            hear(self.state, raw)
        return self

    def whom(self, chat: str) -> tuple[str, str]:
        return resolve_target(self.state, RoomId(chat), 1.0)

    def nick(self, chat: str) -> str:
        return current_nick(self.state, chat)


def _whois(nick: str, account: str = "", userhost: str = "b@h") -> list[str]:
    user, _, host = userhost.partition("@")
    told = [
        f":s 311 reverie {nick} {user} {host} * :real",
        f":s 330 reverie {nick} {account} :is logged in as",
    ]
    return [*(told if account else told[:1]), f":s 318 reverie {nick} :End"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([":boss!b@h JOIN #room boss :real"], ("boss", "known")),
        ([], ("boss", "unknown")),
        ([":boss!b@h JOIN #room boss :real", ":boss!b@h QUIT :bye"], ("boss", "unknown")),
        ([":boss!b@h JOIN #room boss :real", ":boss!b@h PART #room"], ("boss", "unknown")),
        (
            [
                ":boss!b@h JOIN #room boss :real",
                ":boss!b@h QUIT :bye",
                ":boss!e@h JOIN #room * :real",
            ],
            ("boss", "unknown"),
        ),
        ([":boss!b@h JOIN #room mallory :real"], ("boss", "other")),
        ([":boss!b@h JOIN #room boss :real", ":boss!b@h ACCOUNT *"], ("boss", "unknown")),
        (
            [
                ":boss!b@h JOIN #room boss :real",
                ":boss!b@h NICK chief",
                ":eve!e@h JOIN #room * :r",
                ":eve!e@h NICK boss",
            ],
            ("chief", "known"),
        ),
        ([":chief!b@h JOIN #room boss :real"], ("chief", "known")),
        (
            ["@account=boss :chief!b@h PRIVMSG reverie :hi", *_whois("boss", "mallory")],
            ("chief", "unknown"),
        ),
        (["@account=boss :boss!b@h PRIVMSG reverie :hi"], ("boss", "unknown")),
        (_whois("boss", "boss"), ("boss", "known")),
        (_whois("BOSS", "boss"), ("boss", "known")),
        (_whois("boss", "Boss"), ("boss", "known")),
        (_whois("boss", "bos\u017f"), ("boss", "other")),
        ([":boss!b@h JOIN #room Boss :real"], ("boss", "known")),
        ([":chief!b@h JOIN #room Boss :real"], ("chief", "known")),
        (
            ["@account=Boss :chief!b@h PRIVMSG reverie :hi", *_whois("boss", "x")],
            ("chief", "unknown"),
        ),
        (_whois("boss", "bosss"), ("boss", "other")),
        (_whois("boss"), ("boss", "other")),
        ([":s 401 reverie boss :No such nick"], ("boss", "other")),
        ([*_whois("boss", "boss"), ":boss!b@h NICK x"], ("boss", "unknown")),
        ([*_whois("boss", "boss"), ":eve!e@h NICK boss"], ("boss", "unknown")),
        ([*_whois("boss", "boss"), ":boss!b@h QUIT :x"], ("boss", "unknown")),
        ([*_whois("boss", "boss"), ":boss!b@h ACCOUNT *"], ("boss", "unknown")),
        ([*_whois("boss", "boss"), ":s 731 reverie :boss"], ("boss", "unknown")),
    ],
)
def test_an_account_is_known_only_while_the_server_says_so(
    lines: list[str], expected: tuple[str, str]
) -> None:
    assert Told(*lines).whom(BOSS) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([":al!a@h JOIN #room * :real"], ("al", "known")),
        ([":al!a@H JOIN #room * :real"], ("al", "known")),
        ([":al!x@h JOIN #room * :real"], ("al", "other")),
        ([":bob!a@h JOIN #room * :real"], ("al", "unknown")),
        ([":al!a@h JOIN #room * :real", ":al!a@h NICK al2"], ("al2", "known")),
        ([":al!a@h JOIN #room * :real", ":al!a@h CHGHOST a user/al"], ("al", "known")),
        (
            [
                ":al!a@h JOIN #room * :real",
                ":al!a@h CHGHOST a user/al",
                ":al!a@user/al NICK al2",
                ":al2!a@user/al CHGHOST a elsewhere",
            ],
            ("al2", "known"),
        ),
        (
            [
                ":al!a@h JOIN #room * :real",
                ":al!a@h CHGHOST a user/al",
                ":al!a@user/al PART #room",
                ":al!e@x JOIN #room * :real",
            ],
            ("al", "other"),
        ),
        (
            [
                ":al!a@h JOIN #room * :real",
                ":al!a@h CHGHOST a user/al",
                ":al!a@user/al QUIT :x",
                *_whois("al", "", "e@x"),
            ],
            ("al", "other"),
        ),
        (_whois("al", "", "a@h"), ("al", "known")),
        (_whois("al", "", "a@other"), ("al", "other")),
    ],
)
def test_somebody_without_an_account_is_known_by_their_user_and_host(
    lines: list[str], expected: tuple[str, str]
) -> None:
    assert Told(*lines).whom("al!a@h") == expected


def test_a_chat_follows_whoever_it_is_with() -> None:
    told = Told(":al!a@h JOIN #room * :r", ":al!a@h NICK al_away")
    assert (told.nick("al!a@h"), told.nick("al!x@y"), told.nick("#room")) == (
        "al_away",
        "al",
        "#room",
    )
    told.hear("@account=alice :AL_away!a@h NICK al2")
    assert (
        told.nick("al!a@h"),
        told.nick("AL_away!a@h"),
        told.nick("alice!account:alice"),
    ) == ("al2",) * 3
    told.hear(":al2!a@h NICK al")
    assert told.nick("al!a@h") == told.nick("AL_away!a@h") == "al"
    told.hear(":AL!a@h QUIT :bye")
    assert told.nick("AL_away!a@h") == "AL_away"
    told.hear(":al!a@h NICK other", ":al!a@h PRIVMSG #room :somebody else behind the same host")
    assert told.nick("al!a@h") == "al"
    for number in range(5_000):
        told.hear(f":x{number}!a@h NICK y{number}")
    assert (told.nick("x4999!a@h"), told.nick("x0!a@h")) == ("y4999", "x0"), "memory is bounded"


def _said(ircd: Ircd) -> list[str]:
    return [
        line.partition("PRIVMSG ")[2]
        for line in ircd.lines
        if "PRIVMSG " in line and "CAP" not in line
    ]


def _client(ircd: Ircd, nick: str) -> Client:
    """Who has that nick: they connect in any order."""
    return next(one for one in ircd.clients if one.nick == nick)


async def _all_registered(ircd: Ircd) -> None:
    await ircd.until(lambda: len(ircd.clients) == 2 and all(one.registered for one in ircd.clients))


async def _asked_by_boss(run: Running, bot: Client, *, seen: bool) -> str:
    if seen:
        bot.send(":boss!b@h JOIN #room boss :real")
    bot.raw(b"@account=boss :boss!b@h PRIVMSG reverie :the plan?\r\n")
    return (await run.message()).at.room


@pytest.mark.parametrize("caps", [CAPS, MODERN])
@pytest.mark.parametrize("seen", [True, False])
async def test_who_takes_the_nick_of_the_person_who_asked_is_told_nothing(
    seen: bool, caps: str
) -> None:
    async with (
        Ircd(Options(caps=caps)) as ircd,
        running(ircd) as run,
        running(ircd, nick="eve", rooms=[]) as eve,
    ):
        await run.up()
        await eve.up()
        bot, thief = _client(ircd, "reverie"), _client(ircd, "eve")
        chat = await _asked_by_boss(run, bot, seen=seen)
        assert chat == BOSS
        if seen:
            bot.send(":boss!b@h QUIT :gone")
        thief.nick = "boss"  # without a word, as one who shares no room with us would take it
        await settled(bot, "changed")
        with pytest.raises(RecipientAway, match="not logged in as boss"):
            await run.channel.send(part("secret", room=chat))
        assert _said(ircd) == []
        thief.account = "boss"
        await _asked_by_boss(run, bot, seen=seen)
        await settled(bot, "back")
        await run.channel.send(part("for boss", room=chat))
        assert _said(ircd) == ["boss :for boss"]


async def test_a_long_answer_stops_in_the_middle_once_its_reader_is_gone() -> None:
    clock = ManualClock()
    options, pace = Options(), {"burst": 2, "per_s": 1.0}
    async with (
        Ircd(options) as ircd,
        running(ircd, clock, flood=pace) as run,
        running(ircd, nick="boss", rooms=[]),
    ):
        await run.until_advancing(clock, lambda: run.links == [True])
        await _all_registered(ircd)
        boss = _client(ircd, "boss")
        boss.account = "boss"
        parts = [part(f"line {number}", room=BOSS, key=f"k{number}") for number in range(6)]
        sending = asyncio.create_task(sent_together(run, parts))
        await run.until_advancing(clock, lambda: len(_said(ircd)) == 2)
        boss.account = ""
        await run.until_advancing(clock, sending.done)
        results = [type(one).__name__ for one in await sending]
        assert results in (
            ["Receipt"] * number + ["RecipientAway"] * (6 - number) for number in (2, 3, 4)
        ), results
        assert len(_said(ircd)) == results.count("Receipt")


@pytest.mark.parametrize("caps", [CAPS, MODERN])
@pytest.mark.parametrize("told", [True, False])
async def test_the_rest_of_a_long_answer_follows_a_change_of_nick(caps: str, told: bool) -> None:
    clock = ManualClock()
    pace = {"burst": 3, "per_s": 1.0}
    async with (
        Ircd(Options(caps=caps)) as ircd,
        running(ircd, clock, flood=pace) as run,
        running(ircd, nick="alice", rooms=[]),
    ):
        await run.until_advancing(clock, lambda: run.links == [True])
        await _all_registered(ircd)
        bot, alice = _client(ircd, "reverie"), _client(ircd, "alice")
        alice.account = "alice"
        bot.raw(b"@account=alice :alice!a@h PRIVMSG reverie :tell me\r\n")
        if told:
            bot.send(":alice!a@h JOIN #room alice :real")
        await settled(bot, "asked")
        parts = [
            part(f"line {number}", room="alice!account:alice", key=f"k{number}")
            for number in range(12)
        ]
        sending = asyncio.create_task(_all_of(run, parts))
        await run.until_advancing(clock, lambda: len(_said(ircd)) == 4)
        alice.nick = "alicia"
        if told:  # but only once lines to the old nick are under way
            await run.until_advancing(clock, lambda: len(_said(ircd)) > 4)
            bot.send(":alice!a@h NICK alicia")
        else:
            bot.raw(b"@account=alice :alicia!a@h PRIVMSG reverie :I am here now\r\n")
        await run.until_advancing(clock, sending.done)
        await sending
        taken = [line.partition(" :") for line in _said(ircd)]
        arrived = [text for nick, _, text in taken[:4]] + [
            text for nick, _, text in taken if nick == "alicia"
        ]
        assert arrived == [f"line {number}" for number in range(12)]


async def _all_of(run: Running, parts: list[Any]) -> None:
    """As the outbox does: four at a time, and again what waits."""
    while parts:
        results = await sent_together(run, parts[:4])
        assert all(isinstance(one, Receipt | RecipientAway) for one in results), results
        parts = [
            one
            for one, result in zip(parts[:4], results, strict=True)
            if not isinstance(result, Receipt)
        ] + parts[4:]


@pytest.mark.parametrize("whois", ["421", "deaf"])
async def test_without_whois_people_are_answered_who_are_in_a_room_with_us(whois: Any) -> None:
    clock = ManualClock()
    async with (
        Ircd(Options(caps=None, whois=whois)) as ircd,
        running(ircd, clock) as run,
        running(ircd, nick="al", rooms=[]),
    ):
        await run.up()
        await _all_registered(ircd)
        bot = _client(ircd, "reverie")
        bot.send(":al!a@h PRIVMSG reverie :hi")
        chat = (await run.message()).at.room
        sending = asyncio.create_task(run.channel.send(part("secret", room=chat)))
        await run.until_advancing(clock, sending.done)
        with pytest.raises(RecipientAway):
            await sending
        bot.send(":al!a@h JOIN #room")
        await settled(bot, "here")
        await run.channel.send(part("hello", room=chat))
        assert _said(ircd) == ["al :hello"]


@pytest.mark.parametrize(
    ("tags", "is_bot"),
    [
        ("bot", True),
        ("draft/bot", True),
        ("inspircd.org/bot=", True),
        ("+bot", False),
        ("x/bot", False),
    ],
)
async def test_other_bots_are_known_by_each_tag_that_servers_have_for_them(
    tags: str, is_bot: bool
) -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(f"@{tags} :al!a@h PRIVMSG #room :beep\r\n".encode())
        assert (await run.message()).sender.is_bot is is_bot


# What others take back, and topics: as the server allows them, and what is said where it does
# not.


def at(room: str = "#room") -> Address:
    return Address(channel=NAME, room=RoomId(room))


async def test_what_others_take_back_is_told() -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as it:
        bot = await ircd.joined("reverie", "#room")
        await it.up()
        bot.send(":al!a@h REDACT #Room m7 :typo")
        bot.send(":al!a@h REDACT reverie m8")
        bot.send(":al!a@h REDACT #room")
        bot.send(":al!a@h REDACT")
        second = await it.one(MessageDeleted, 2)
        first = it.all(MessageDeleted)[0]
        assert (first.at, first.message, first.sender and first.sender.name) == (at(), "m7", "al")
        assert (second.at, second.message) == (at("al!a@h"), "m8")
        await settled(bot, "done")
        assert len(it.all(MessageDeleted)) == 2


async def test_a_refused_topic_is_never_taken_for_a_refused_message() -> None:
    options = Options(caps=CAPS.replace("echo-message ", ""), opless=frozenset({"#room"}))
    async with Ircd(options) as ircd, running(ircd) as it:
        await it.up()
        said = [part(f"line {number}", key=f"k{number}") for number in range(3)]
        talking = asyncio.create_task(sent_together(it, said))
        await asyncio.sleep(0)
        topic = asyncio.create_task(it.channel.set_topic(at(), "cats"))
        await asyncio.sleep(0)
        more = asyncio.create_task(sent_together(it, [part("line 3", key="k3")]))
        assert not [one for one in [*await talking, *await more] if isinstance(one, BaseException)]
        with pytest.raises(Rejected, match="482"):
            await topic
        told = [line for line in ircd.lines if line.startswith(("PRIVMSG", "TOPIC"))]
        assert [line.partition(":")[2] for line in told] == [
            "line 0",
            "line 1",
            "line 2",
            "cats",
            "line 3",
        ]


def test_what_refuses_a_command() -> None:
    for raw, command, refuses in (
        ("FAIL REDACT UNKNOWN_MSGID #room m1 :no", "REDACT", True),
        ("FAIL REDACT UNKNOWN_MSGID #room m1 :no", "TOPIC", False),
        (":s 421 reverie TAGMSG :no", "TAGMSG", True),
        (":s 421 reverie TAGMSG :no", "", False),
        (":s 404 reverie #room :no", "", True),
        ("FAIL PRIVMSG X :no", "TOPIC", True),
        ("FAIL", "", False),
    ):
        line = parse_line(raw)
        assert line is not None
        assert is_refusal(line, command) is refuses
