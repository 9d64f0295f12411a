"""The whole gateway on Discord: whatever breaks, each message is answered once, also what came
while it was away.

Or else the log says that nobody knows, and why. Over real sockets, a real store and, where
something is killed, the real program.
"""

import logging
import re
from pathlib import Path

import pytest

from reverie.testing.channels import story
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from tests.channels.discord.faults_kit import SAY
from tests.gateway.system.platforms.discord_kit import NAME, town


@pytest.mark.parametrize("refused", ["token", "intent"])
async def test_a_refused_bot_stops_and_another_goes_on(
    refused: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = Options(token="the.other-bots.token", message_content=refused != "intent")

    async with town(tmp_path) as it, DiscordApi(options) as closed:
        token = "wrong.token-of.mine" if refused == "token" else closed.token
        here = it.config["channels"][NAME]
        urls = {"api_url": closed.api_url, "gateway_url": closed.gateway_url}
        it.config["channels"]["discord.closed"] = here | urls | {"token": token}
        async with it.inside():
            await it.api.connected()
            await it.answered(it.say())
            said = "is refused: .*token" if refused == "token" else "is refused: .*MESSAGE CONTENT"
            assert [
                r
                for r in caplog.records
                if r.name == "reverie.runner" and re.search(said, r.getMessage())
            ]
            await it.answered(it.say())
        await it.fair()
        lines = [r.getMessage() + str(r.exc_info and r.exc_info[1]) for r in caplog.records]
        assert not [
            line for line in lines if any(secret in line for secret in (it.api.token, token))
        ]
        assert (tmp_path / "reverie.db").read_bytes().find(token.encode()) == -1


@story
async def test_a_killed_process_answers_what_was_said_while_it_was_dead(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.start()
        await it.api.connected()
        await it.answered(it.say())
        await it.kill()
        away = [it.say(room) for room in (it.api.room, it.api.other)]
        await it.start()
        await it.answered(*away)
        await it.calm()
        await it.end()
        assert (await it.fair()).uncertain == 0
        assert it.api.token not in it.log


@pytest.mark.system
@story
async def test_a_process_killed_between_the_message_and_its_receipt_does_not_say_it_twice(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, request_timeout=30) as it:
        await it.start()
        await it.api.connected()
        it.api.faults.add(SAY, "silent")
        await it.answered(it.say())
        await it.kill()
        await it.start()
        await it.calm()
        await it.end()
        assert (await it.fair()).uncertain == 0
        assert len(it.api.made(SAY)) == 2


@story
async def test_a_server_that_forgets_nonces_is_found_out(tmp_path: Path) -> None:
    """The proof of the proofs: without the platform's help the same fault shows the answer twice,
    and is noticed."""
    async with town(tmp_path, options=Options(nonce_s=0)) as it, it.inside():
        await it.api.connected()
        it.api.faults.add(SAY, "500 after")
        await it.answered(it.say())
        await it.calm()
        assert (await it.verdict()).duplicated > 0


@story
async def test_an_answer_that_one_person_sees_is_in_the_language_of_their_client(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as it:
        it.api.commands.locales[it.api.ann] = "de"
        async with it.inside():
            await it.api.connected()
            helped = {
                who: it.api.slash(it.api.room, who, "help") for who in (it.api.ann, it.api.ben)
            }
            await it.api.until(lambda: all(map(it.api.told, helped.values())))
            in_german = {who: "Zeigt " in it.api.told(one)[0] for who, one in helped.items()}
            assert in_german == {it.api.ann: True, it.api.ben: False}
