"""An answer reaches the person who asked, whatever they are called by now; and what marks another bot."""

import pytest

from channels.base import CanType, Rejected
from channels.irc.isupport import Isupport
from channels.irc.moves import Moves
from channels.irc.people import People
from channels.irc.wire import parse
from tests.channels.irc_kit import part, running, settled, story
from tests.servers.ircd import CAPS, MODERN, Ircd, Options


def _fed(moves: Moves, raw: str) -> Moves:
    said = parse(raw)
    assert said is not None
    moves.feed(said, People(), Isupport())
    return moves


def test_a_chat_follows_whoever_it_is_with() -> None:
    moves = _fed(Moves(), ":al!a@h NICK al_away")
    assert (moves.nick("al!a@h"), moves.nick("al!x@y"), moves.nick("#room")) == ("al_away", "al", "#room")
    _fed(moves, "@account=alice :AL_away!a@h NICK al2")
    assert (moves.nick("al!a@h"), moves.nick("AL_away!a@h"), moves.nick("AL_away!account:alice")) == ("al2",) * 3
    _fed(moves, ":al2!a@h NICK al")
    assert moves.nick("al!a@h") == moves.nick("AL_away!a@h") == "al"
    _fed(moves, ":AL!a@h QUIT :bye")
    assert moves.nick("AL_away!a@h") == "AL_away"
    _fed(moves, ":al!a@h NICK other")
    _fed(moves, ":al!a@h PRIVMSG #room :somebody else behind the same host")
    assert moves.nick("al!a@h") == "al"
    for number in range(5_000):
        _fed(moves, f":x{number}!a@h NICK y{number}")
    assert moves.nick("x4999!a@h") == "y4999"
    assert moves.nick("x0!a@h") == "x0", "memory is bounded"


@pytest.mark.parametrize("account", ["", "alice"])
@story
async def test_an_answer_goes_to_who_asked_not_to_who_has_the_nick_now(account: str) -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        tags = f"@account={account} " if account else ""
        bot.send(f":al!a@h JOIN #room {account or '*'} :real")
        bot.raw(f"{tags}:al!a@h PRIVMSG reverie :hello\r\n".encode())
        asked = await run.message()
        bot.raw(f"{tags}:al!a@h NICK al_away\r\n:ev!e@h JOIN #room * :real\r\n:ev!e@h NICK al\r\n".encode())
        await settled(bot, "moved")
        with pytest.raises(Rejected):  # nobody of that name is on this server
            await run.channel.send(part("for al only", room=asked.at.room))
        assert isinstance(run.channel, CanType)
        await run.channel.typing(asked.at, active=True)
        await ircd.received("@.typing=active TAGMSG al_away")
        assert [line for line in ircd.lines if "PRIVMSG" in line] == ["PRIVMSG al_away :for al only"]


@pytest.mark.parametrize(
    ("tags", "is_bot"),
    [("bot", True), ("draft/bot", True), ("inspircd.org/bot=", True), ("+bot", False), ("x/bot", False)],
)
@story
async def test_other_bots_are_known_by_each_tag_that_servers_have_for_them(tags: str, is_bot: bool) -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(f"@{tags} :al!a@h PRIVMSG #room :beep\r\n".encode())
        assert (await run.message()).sender.is_bot is is_bot
