"""SASL against real services: Atheme behind InspIRCd."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from channels.base import Denied
from tests.channels.irc_kit import part, running, story
from tests.channels.test_irc_real import Raw
from tests.servers.ports import free_port
from tests.servers.real_ircd import inspircd
from tests.servers.real_services import link, services

SASL = {"mechanism": "plain", "account": "reverie", "password": "correct horse"}


@contextlib.contextmanager
def network(directory: Path) -> Iterator[int]:
    linked = free_port()
    try:
        with inspircd(directory, more=link(linked)) as port, services(linked):
            yield port
    except FileNotFoundError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


async def _register(port: int) -> None:
    owner = await Raw.joined(port)
    owner.say("NICK reverie")
    await owner.until(r":alice\S* NICK ")
    owner.say("PRIVMSG NickServ :REGISTER correcthorse bot@example.org")
    await owner.until(r":NickServ\S* NOTICE reverie :.*(registered|REGISTERED)")
    owner.say("QUIT")
    await owner.close()


@story
async def test_the_right_password_logs_in_and_a_wrong_one_stops_the_channel(tmp_path: Path) -> None:
    with network(tmp_path) as port:
        await _register(port)
        right = SASL | {"password": "correcthorse"}
        async with running(port, sasl=right) as run:
            await run.up()
            session = run.channel._session
            assert session is not None
            assert (session.login.account.lower(), session.login.logged_in) == ("reverie", True)
            alice = await Raw.joined(port)
            await run.channel.send(part("logged in"))
            await alice.until(r":reverie\S* PRIVMSG #room :logged in")
            await alice.close()
        async with running(port, sasl=SASL | {"password": "wrong"}) as refused:
            with pytest.raises(Denied, match="904"):
                await refused.task
            assert refused.links == [False]
