"""A long answer on real servers with their own limits against floods: all of it arrives, and nobody is thrown out."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from channels.irc.config import IrcRateLimit
from gateway.core.events import Address, Post, PostKey, RoomId
from tests.channels.irc.channel_kit import NAME, part, running
from tests.channels.irc.test_real_servers import Raw, served
from tests.servers.real_ircd import inspircd, ngircd

FLOOD = IrcRateLimit()
SLACK_S = 0.25
"""The reader shares a busy machine with the server and with us."""
CODE = """def __init__(self, *args, **kwargs):
    self.a_b_c = a*b*c  # `не` **жирно**

\tif x ** 2 > 3 or y[0](1):
        return "##  двa  пробела"
> не цитата
- не пункт"""
LONG = " ".join(f"слово{number:03d}" for number in range(100))
LINES = [f"Строка номер {number}: съешь ещё этих мягких французских булок" for number in range(1, 19)]
SHORT = f"{LINES[0]}\n```py\n{CODE}\n```"
STRESS = "\n".join([*LINES[:9], "```py", CODE, "```", LONG, *LINES[9:]])
MORE = re.compile(r"\(page \d+ of \d+; say \"(?:\w+: )?more\"\)")


@contextmanager
def long_inspircd(directory: Path, *, limits: bool = False) -> Iterator[int]:
    with inspircd(directory, limits=limits, more='<limits maxnick="60">') as port:
        yield port


@contextmanager
def long_ngircd(directory: Path, *, limits: bool = False) -> Iterator[int]:
    with ngircd(directory, limits=limits, more="CloakHost = a.long.cloak.hides.our.users.example.org") as port:
        yield port


Server = Callable[..., AbstractContextManager[int]]
SERVERS = [
    pytest.param(long_inspircd, "reverie_under_a_name_as_long_as_a_name_can_be_here", id="inspircd"),
    pytest.param(long_ngircd, "reverie_with_20_char", id="ngircd"),
]


@pytest.mark.parametrize(("server", "nick"), SERVERS)
def test_code_arrives_untouched_within_the_limits(server: Server, nick: str, tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(_stress(server, nick, tmp_path, SHORT, page_lines=0), 120))


@pytest.mark.system
@pytest.mark.parametrize("page_lines", [0, 12])
@pytest.mark.parametrize(("server", "nick"), SERVERS)
def test_a_long_answer_arrives_whole_within_the_limits(
    server: Server, nick: str, page_lines: int, tmp_path: Path
) -> None:
    asyncio.run(asyncio.wait_for(_stress(server, nick, tmp_path, STRESS, page_lines), 120))


async def _stress(server: Server, nick: str, directory: Path, text: str, page_lines: int) -> None:
    with served(lambda where: server(where, limits=True), directory) as port:
        async with running(port, nick=nick, page_lines=page_lines, flood=FLOOD) as run:
            await run.up()
            alice = await Raw.joined(port)
            post = Post(key=PostKey("p"), to=Address(channel=NAME, room=RoomId("#room")), text=text)
            pages = run.channel.page_count(post)
            assert (pages > 1) == (page_lines > 0)
            bodies = [
                body
                for page in range(1, pages + 1)
                for body in run.channel.split(Post(key=post.key, to=post.to, text=text, page=page))
            ]
            sending = asyncio.gather(*(run.channel.send(part(body, key=str(at))) for at, body in enumerate(bodies)))
            heard = [await _hear(alice, nick) for _ in bodies]
            await sending
            alice.say("PING :end")
            await alice.until(r":\S+ PONG ")
            assert not [line for line in alice.lines if re.match(rf":{re.escape(nick)}!\S+ (QUIT|PART) ", line)]
            assert run.links == [True]
            await alice.close()
    assert all(len(prefix) >= 67 for _, prefix, _ in heard)
    _judge([said for _, _, said in heard], text)
    times = [at for at, _, _ in heard]
    peak = _peak(times)
    size = sum(len(said.encode()) for _, _, said in heard)
    print(
        f"{server.__name__}: {len(heard)} lines, {size} bytes, {pages} pages, prefix {len(heard[0][1])} bytes, "
        f"{times[-1] - times[0]:.1f} s, at most {peak:.2f} lines above {FLOOD.per_s:g}/s (burst {FLOOD.burst})"
    )
    assert peak <= FLOOD.burst + FLOOD.per_s * SLACK_S


async def _hear(alice: Raw, nick: str) -> tuple[float, str, str]:
    """When, with which prefix and what the bot said next."""
    line = await alice.until(rf":{re.escape(nick)}!\S+ PRIVMSG #room :")
    prefix, _, rest = line.partition("PRIVMSG #room :")
    return time.monotonic(), prefix, rest


def _judge(heard: Sequence[str], text: str) -> None:
    """Every line of `text` in order, code byte for byte; only a line too long for IRC comes in pieces."""
    said = [line for line in heard if not MORE.fullmatch(line)]
    for expected in (line for line in text.split("\n") if line.strip() and not line.startswith("```")):
        joined = said.pop(0)
        while len(joined) < len(expected):
            joined += " " + said.pop(0)
        assert joined == expected
    assert not said


def _peak(times: Sequence[float]) -> float:
    """The most lines that came in any stretch of time beyond those that the rate allows in it."""
    return max(
        end - start + 1 - FLOOD.per_s * (times[end] - times[start])
        for start in range(len(times))
        for end in range(start, len(times))
    )
