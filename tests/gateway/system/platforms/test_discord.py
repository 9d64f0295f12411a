"""The whole gateway on Discord: whatever breaks, each message is answered once, also what came
while it was away.

Or else the log says that nobody knows, and why. Over real sockets, a real store and, where
something is killed, the real program.
"""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from reverie.testing.channels import story
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.model_api import Answer, Json
from tests.channels.discord.faults_kit import SAY
from tests.gateway.system.platforms.discord_kit import NAME, Town, town


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


# A whole gateway that answers each question of a server channel in a thread of its own.

OPENS: dict[str, Any] = {"threads": ["*"]}
TITLED = "Title: Tea in <@1> Berlin\n\n"


def titles(it: Town) -> list[str]:
    return [call.body["name"] for call in it.api.made("POST .*/threads") if call.status == 200]


def asked_for_title(body: Json) -> bool:
    return "Your answer opens a new thread" in str(body["messages"][-1])


@story
async def test_each_question_gets_a_thread_with_the_models_title_and_the_talk_goes_on_there(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, **OPENS) as it:
        plain, bodies = it.model.default, list[Json]()

        def titled(body: Json) -> Answer:
            bodies.append(body)
            answer = plain(body)
            return Answer(text=TITLED + answer.text) if asked_for_title(body) else answer

        it.model.default = titled
        async with it.inside():
            await it.api.connected()
            first = it.say()
            await it.answered(first)
            (question,) = [
                one for one in it.api.world.channels.values() if one.get("parent_id") == it.api.room
            ]
            thread = question["id"]
            token = it.token()
            it.tokens.append(token)
            it.api.says(thread, it.api.ann, f"and {token}?")
            await it.answered(token)
            await it.calm()
        assert titles(it) == ["Tea in Berlin"]
        assert it.api.texts(it.api.room) == []
        assert not any("Title:" in text for text in it.api.texts(thread))
        assert first in str(bodies[-1])  # what was said before, there
        assert [asked_for_title(body) for body in bodies] == [True, False]
        assert [it.heard(token) for token in it.tokens] == [1, 1]
        assert it.api.offences == []


@pytest.mark.system
@pytest.mark.parametrize("moment", ["before the thread", "after the thread", "after the answer"])
@story
async def test_killed_between_thread_and_answer_it_says_it_once(
    tmp_path: Path, moment: str
) -> None:
    holds: dict[str, tuple[str, Any]] = {
        "before the thread": ("POST .*/threads", "502 before"),
        "after the thread": ("POST .*/threads", "silent"),
        "after the answer": ("POST /channels/[0-9]+/messages$", "silent"),
    }
    async with town(tmp_path, **OPENS, request_timeout=30) as it:
        pattern, does = holds[moment]
        fault = it.api.faults.add(pattern, does)
        await it.start()
        await it.api.connected()
        token = it.say()
        await it.api.until(lambda: fault.times == 0)
        await it.kill()
        await it.start()
        await it.answered(token)
        await it.calm()
        await it.end()
        (thread,) = [
            one for one in it.api.world.channels.values() if one.get("parent_id") == it.api.room
        ]
        assert (
            it.heard(token)
            == len([text for text in it.api.texts(thread["id"]) if token in text])
            == 1
        )
        assert it.api.texts(it.api.room) == []
        assert (await it.fair()).uncertain == 0


@story
async def test_who_adds_a_mention_by_an_edit_is_answered_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        it.model.default = lambda _: Answer(text="Noon.")
        async with it.inside():
            await it.api.connected()
            said = it.api.says(it.api.room, it.api.ann, "what time is it?")
            for text in ("what time?", f"<@{it.api.bot}> what tim?", f"<@{it.api.bot}> what time?"):
                it.api.edits(it.api.room, said, text)
                await it.calm()
            (answer,) = it.api.visible(it.api.room)
            assert answer["message_reference"]["message_id"] == said
            it.api.says(it.api.room, it.api.ann, f"<@{it.api.bot}> thanks")
            await it.api.shown(it.api.room, 2)
        assert 'and now says: "@' in str(it.model.seen[-1].body["messages"][-1])
