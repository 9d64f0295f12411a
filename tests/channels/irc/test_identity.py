"""Who somebody is on IRC, and who only looks like it: through the reader of lines, and on the wire."""

from datetime import UTC, datetime, timedelta

import pytest

from channels.irc.inbound import IrcLineContext, to_notifications
from channels.irc.people import IrcUsers
from channels.irc.wire import Isupport, parse_line
from gateway.core.events import ChannelName, Message, Sender
from tests.channels.irc.channel_kit import features, running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, Options

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FULL = features("PREFIX=(qaohv)~&@%+", "CHANMODES=beI,k,lH,imnpst")


class Room:
    """A room as we see it. It takes lines, and says who an author is."""

    def __init__(self, isupport: Isupport = FULL, *, account_tag: bool = False) -> None:
        self.isupport, self.people, self.me = isupport, IrcUsers(isupport), "reverie"
        self._tagged = account_tag
        self.feed(":reverie!r@h JOIN #room * :real", ":irc.test 353 reverie = #room :reverie")

    def feed(self, *lines: str) -> None:
        for raw in lines:
            said = parse_line(raw)
            assert said is not None
            self.people.feed(said, self.me)

    def who(self, line: str, *, past: str | None = None) -> Sender:
        """The author of the message that `line` is."""
        (told,) = self.read(line, past=past)
        assert isinstance(told, Message)
        return told.sender

    def read(self, line: str, *, past: str | None = None) -> tuple[object, ...]:
        view = IrcLineContext(
            channel=ChannelName("irc.test"),
            own_nick=self.me,
            rooms={},
            isupport=self.isupport,
            people=self.people,
            has_account_tag=self._tagged,
            history_place=past,
        )
        said = parse_line(line)
        assert said is not None
        return to_notifications(said, view, NOW, lambda: "fresh")

    def says(self, nick: str = "ann", room: str = "#room") -> Sender:
        return self.who(f":{nick}!a@h PRIVMSG {room} :!status")


ANN = ":ann!a@h JOIN #room * :Ann"


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        ([], ()),
        ([ANN, ":ChanServ!s@s MODE #room +o ann"], ("op",)),
        ([ANN, ":ChanServ!s@s MODE #ROOM +vo-v ANN ann Ann"], ("op",)),
        ([ANN, ":c!s@s MODE #room +qaohv ann ann ann ann ann"], ("founder", "protected", "op", "halfop", "voice")),
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
        ([ANN, ":bob!b@h JOIN #room", ":c!s@s MODE #room +o bob", ":ann!a@h PART #room", ":bob!b@h NICK ann"], ("op",)),
        ([ANN, ":c!s@s MODE #room +o ann", ":reverie!r@h PART #room", ":reverie!r@h JOIN #room", ANN], ()),
        ([ANN, ":c!s@s MODE #room +o ann", ":c!s@s KICK #room reverie", ":reverie!r@h JOIN #room", ANN], ()),
    ],
)
def test_ranks_are_what_the_server_says_of_that_nick_now(lines: list[str], ranks: tuple[str, ...]) -> None:
    room = Room()
    room.feed(*lines)
    assert room.says().ranks == ranks


def test_ranks_are_of_one_room_and_not_of_the_past() -> None:
    room = Room()
    room.feed(ANN, ":reverie!r@h JOIN #other", ":ann!a@h JOIN #other", ":c!s@s MODE #room +o ann")
    assert room.says().ranks == ("op",)
    assert room.says(room="#other").ranks == ()
    assert room.who(":ann!a@h PRIVMSG reverie :!status").ranks == ()
    assert room.who(":ann!a@h PRIVMSG #room :!status", past="#room").ranks == ()
    old = (NOW - timedelta(minutes=6)).isoformat()
    assert room.who(f"@time={old} :ann!a@h PRIVMSG #room :!status").ranks == ()


def test_a_server_that_tells_nothing_of_modes_has_ops_and_voices() -> None:
    room = Room(Isupport())
    room.feed(ANN, ":c!s@s MODE #room +bo *!*@* ann")
    assert room.says().ranks == ("op",)
    none = Room(features("PREFIX="))
    none.feed(ANN, ":c!s@s MODE #room +o ann")
    assert none.says().ranks == ()


@pytest.mark.parametrize(
    "lines",
    [
        [":ann!a@h PART #room", ":ann!evil@x JOIN #room * :Ann"],
        [":ann!a@h QUIT :bye", ":ann!evil@x JOIN #room * :Ann"],
        [":ann!a@h NICK away", ":eve!evil@x NICK ann"],
        [":c!s@s KICK #room ann", ":ann!evil@x JOIN #room"],
        [":ann!a@h ACCOUNT *"],
        [":reverie!r@h PART #room", ":reverie!r@h JOIN #room * :real", ":irc.test 353 reverie = #room :ann"],
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
    room = Room(account_tag=True)
    room.feed(":ann!a@h JOIN #room ann :Ann")
    assert room.who("@account=ann :ann!a@h PRIVMSG #room :!status").verified
    assert not room.says().verified  # logged out a moment ago: the tag is gone before ACCOUNT is told


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
        assert (relayed.id, relayed.verified, relayed.account) == ("relay:bridge:ann/discord", False, None)
        assert relayed.ranks == ()


@pytest.mark.parametrize(
    "line",
    [
        "@account=ann :ann!a@h NOTICE #room :!status",
        "@account=ann :ann!a@h NOTICE reverie :!status",
        "@account=ann :ann!a@h PRIVMSG reverie :\x01PING !status\x01",
        "@account=ann :reverie!a@h PRIVMSG #room :!status",
        "@account=ann :REVERIE!a@h PRIVMSG reverie :!status",
        "@account=ann PRIVMSG #room :!status",
        "@account=ann :ann!a@h PRIVMSG eve :!status",
    ],
)
def test_what_nobody_says_to_us_is_nobodys_command(line: str) -> None:
    assert not Room(account_tag=True).read(line)


def test_an_action_is_no_command() -> None:
    (told,) = Room().read(":ann!a@h PRIVMSG #room :\x01ACTION !status\x01")
    assert isinstance(told, Message)
    assert told.text == "/me !status"


def test_who_has_the_nick_now_did_not_say_what_was_played_back() -> None:
    room = Room()
    room.feed(":ann!a@h JOIN #room ann :Ann")
    old, new = ((NOW - timedelta(minutes=ago)).isoformat() for ago in (6, 1))
    assert not room.who(":ann!a@h PRIVMSG #room :!status", past="#room").verified
    assert not room.who(f"@time={old} :ann!a@h PRIVMSG #room :!status").verified
    assert room.who(f"@time={new} :ann!a@h PRIVMSG #room :!status").verified
    tagged = Room(account_tag=True)
    assert tagged.who(f"@time={old};account=ann :ann!a@h PRIVMSG #room :!status", past="#room").verified


@story
async def test_ranks_are_told_on_the_wire_and_asked_for_when_in_doubt() -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for line in (":ann!a@h JOIN #room", ":c!s@s MODE #room +o ann", ":ann!a@h PRIVMSG #room :one"):
            bot.send(line)
        assert (await run.message(1)).sender.ranks == ("op",)
        bot.send(":c!s@s MODE #room +X mystery")
        await ircd.received("NAMES #room")
        bot.send(":ann!a@h PRIVMSG #room :two")
        assert (await run.message(2)).sender.ranks == ()
        bot.send(":irc.test 353 reverie = #room :reverie @ann")
        bot.send(":ann!a@h PRIVMSG #room :three")
        assert (await run.message(3)).sender.ranks == ("op",)
        await settled(bot, "end")
