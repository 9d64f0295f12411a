"""A private answer reaches the person who asked, whatever they are called by now, and nobody
else."""

import asyncio
from typing import Any

import pytest

from channels.base import RecipientAway
from channels.irc.state import IrcState, current_nick, resolve_target
from gateway.core.clock import ManualClock
from gateway.core.events import Receipt, RoomId
from reverie.testing.servers.ircd import CAPS, MODERN, Client, Ircd, Options
from tests.channels.irc.channel_kit import Running, hear, part, running, sent_together, settled

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
