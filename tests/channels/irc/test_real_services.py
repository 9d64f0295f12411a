"""SASL against real services: Atheme behind InspIRCd."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from channels.base import Denied, RecipientAway
from tests.channels.irc.channel_kit import part, running
from tests.channels.irc.test_real_servers import Raw
from tests.kits.channels import story
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
            assert session.registration.account.lower() == "reverie"
            alice = await Raw.joined(port)
            await run.channel.send(part("logged in"))
            await alice.until(r":reverie\S* PRIVMSG #room :logged in")
            await alice.close()
        async with running(port, sasl=SASL | {"password": "wrong"}) as refused:
            with pytest.raises(Denied, match="904"):
                await refused.task
            assert refused.links == [False]


@story
async def test_a_private_answer_waits_for_the_account_that_asked(tmp_path: Path) -> None:
    with network(tmp_path) as port:
        boss = await Raw.joined(port)
        boss.say("NICK boss")
        await boss.until(r":alice\S* NICK ")
        boss.say("PRIVMSG NickServ :REGISTER correcthorse boss@example.org")
        await boss.until(r":NickServ\S* NOTICE boss :.*(registered|REGISTERED)")
        async with running(port, rooms=[]) as run:
            await run.up()
            boss.say("PRIVMSG reverie :the plan?")
            asked = await run.message()
            assert asked.at.room == "boss!account:boss"
            await run.channel.send(part("first", room=asked.at.room))
            await boss.until(r":reverie\S* PRIVMSG boss :first")
            boss.say("QUIT")
            await boss.close()
            eve = await Raw.joined(port)
            eve.say("NICK boss")
            await eve.until(r":alice\S* NICK ")
            with pytest.raises(RecipientAway, match="not logged in as boss"):
                await run.channel.send(part("secret", room=asked.at.room))
            waiting = asyncio.create_task(run.channel.wait_for_recipient(asked.at))
            eve.say("PRIVMSG NickServ :IDENTIFY boss correcthorse")
            await eve.until(r":NickServ\S* NOTICE boss :.*identified")
            eve.say("NICK chief")
            await eve.until(r":boss\S* NICK ")
            eve.say("PRIVMSG reverie :I am back")
            await asyncio.wait_for(waiting, 10)
            await run.channel.send(part("for the account", room=asked.at.room))
            await eve.until(r":reverie\S* PRIVMSG chief :for the account")
            await eve.close()
