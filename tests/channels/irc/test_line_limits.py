"""How long a line may be, as the server tells us who we are to others."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from channels.irc.channel import IrcChannel
from gateway.core.events import Address, Post, PostKey, RoomId
from tests.channels.irc.channel_kit import NAME, part, running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, Options

UNKNOWN = 512 - len(":reverie!~" + "u" * 10 + "@" + "h" * 63 + " PRIVMSG #room :\r\n")


def _room_for(mask: str, line_bytes: int = 512) -> int:
    return line_bytes - len(f":{mask} PRIVMSG #room :\r\n".encode())


def _split(channel: IrcChannel, text: str) -> tuple[str, ...]:
    return channel.split(Post(key=PostKey("k"), to=Address(channel=NAME, room=RoomId("#room")), text=text))


@pytest.mark.parametrize(
    ("told", "room"),
    [
        ("", _room_for("reverie!reverie@test.host")),
        (":irc.test 396 reverie cloak.example :is now your displayed host", _room_for("reverie!reverie@cloak.example")),
        (":irc.test 396 reverie u@cloak :is now your displayed host", _room_for("reverie!u@cloak")),
        (":irc.test 396 reverie", _room_for("reverie!~" + "u" * 10 + "@" + "h" * 63)),
        (":reverie!x@y CHGHOST ~new new.host", _room_for("reverie!~new@new.host")),
        (":other!x@y CHGHOST ~new new.host", _room_for("reverie!reverie@test.host")),
        (":reverie!~seen@by.others PRIVMSG #room :echo", _room_for("reverie!~seen@by.others")),
        (":reverie!x@y NICK longer_nick", _room_for("longer_nick!x@y")),
        (":reverie!x@y NICK x", _room_for("reverie!x@y")),  # we will ask for the configured one again
        (":irc.test 005 reverie LINELEN=2048 :are", _room_for("reverie!reverie@test.host", 2048)),
        (":irc.test 005 reverie LINELEN=100 :are", _room_for("reverie!reverie@test.host")),
        (":irc.test 005 reverie LINELEN=99999999 :are", _room_for("reverie!reverie@test.host")),
    ],
)
@story
async def test_the_room_for_text_follows_what_the_server_tells(told: str, room: int) -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        assert run.channel.max_body_bytes("#room") == UNKNOWN
        await run.up()
        if told:
            ircd.clients[0].send(told)
        await settled(ircd.clients[0], "told")
        assert run.channel.max_body_bytes("#room") == room
        assert [len(body) for body in _split(run.channel, "x" * (room + 1))] == [room, 1]


@story
async def test_a_mask_that_the_server_keeps_from_us_is_thought_as_long_as_can_be() -> None:
    async with Ircd(Options(isupport=("USERLEN=18",))) as ircd, running(ircd, rooms=[]) as run:
        await run.up()
        await settled(ircd.clients[0], "told")
        assert run.channel.max_body_bytes("#room") == UNKNOWN - 8


@story
async def test_a_body_is_cut_again_when_the_room_has_shrunk() -> None:
    text = "**" + "word " * 100 + "end**"
    async with Ircd(Options(isupport=("LINELEN=1024",))) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        (body,) = _split(run.channel, text)
        bot.send(":irc.test 005 reverie -LINELEN :are")
        bot.send(":reverie!reverie@test.host CHGHOST ~" + "u" * 10 + " " + "h" * 63)
        await settled(bot, "told")
        bot.user, bot.host = "~" + "u" * 10, "h" * 63
        receipt = await run.channel.send(part(body))
        said = [line.partition(" :")[2] for line in bot.lines if line.startswith("PRIVMSG")]
        assert len(said) == len(receipt.ids) == 2
        assert all(len(f":reverie!{bot.user}@{bot.host} PRIVMSG #room :{line}\r\n".encode()) <= 512 for line in said)
        assert " ".join(line.strip("\x02") for line in said).split() == text.strip("*").split()
        assert all(line[0] == line[-1] == "\x02" for line in said), "bold goes on across the cut"


WORDS = st.text(
    st.characters(
        exclude_categories=["Cs", "Cc", "Cf", "Cn", "Co", "Mn", "Zl", "Zp"], exclude_characters="*_`#[]<>\\~|&"
    ),
    min_size=1,
).filter(str.strip)
HOSTS = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-:/", min_size=1, max_size=63).map(
    lambda name: f"0{name[1:]}" if name.startswith(":") else name  # as servers do, or it would be a trailing parameter
)


@story
async def test_every_relayed_line_fits_the_learnt_mask_and_nothing_is_lost() -> None:
    async with Ircd() as ircd, running(ircd, page_lines=0) as run:
        await run.up()
        session = run.channel._session
        assert session is not None

        @given(text=WORDS, user=HOSTS.map(lambda name: name[:10]), host=HOSTS, more=st.sampled_from([0, 100, 1536]))
        @settings(max_examples=100, suppress_health_check=list(HealthCheck))
        def check(text: str, user: str, host: str, more: int) -> None:
            session.on_line(f":irc.test 005 reverie LINELEN={512 + more} :are supported")
            session.on_line(f":reverie!x@y CHGHOST {user} {host}")
            text = (text * 60).strip()
            bodies = _split(run.channel, text)
            for body in bodies:
                assert len(f":reverie!{user}@{host} PRIVMSG #room :{body}\r\n".encode()) <= 512 + more
            assert "".join("".join(bodies).split()) == "".join(text.split())

        check()
