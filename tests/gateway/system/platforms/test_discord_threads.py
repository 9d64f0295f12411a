"""A whole gateway that answers each question of a server channel in a thread of its own."""

from pathlib import Path
from typing import Any

import pytest

from reverie.testing.channels import story
from reverie.testing.servers.model_api import Answer, Json
from tests.gateway.system.platforms.discord_kit import Town, town

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
