"""A whole gateway that answers each question of a server channel in a thread of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.system.platforms.discord_kit import NAME, Town, town
from tests.kits.channels import story
from tests.servers.model_api import Answer, Json

OPENS: dict[str, Any] = {"threads": ["*"]}
TITLED = "Title: Tea in <@1> Berlin\n\n"


def titles(it: Town) -> list[str]:
    return [call.body["name"] for call in it.api.made("POST .*/threads") if call.status == 200]


def asked_for_title(body: Json) -> bool:
    return "Your answer opens a new thread" in str(body["messages"][-1])


@story
async def test_each_question_gets_a_thread_with_the_models_title_and_the_talk_goes_on_there(tmp_path: Path) -> None:
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
            (question,) = [one for one in it.api.world.channels.values() if one.get("parent_id") == it.api.room]
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


@story
async def test_without_a_title_of_the_model_the_question_names_the_thread(tmp_path: Path) -> None:
    async with town(tmp_path, **OPENS) as it:
        async with it.inside():
            await it.api.connected()
            token = it.say()
            await it.answered(token)
            await it.calm()
        assert titles(it) == [f"what about {token}?"]
        await it.fair()


@pytest.mark.system
@pytest.mark.parametrize("moment", ["before the thread", "after the thread", "after the answer"])
@story
async def test_killed_between_thread_and_answer_it_says_it_once(tmp_path: Path, moment: str) -> None:
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
        (thread,) = [one for one in it.api.world.channels.values() if one.get("parent_id") == it.api.room]
        assert it.heard(token) == len([text for text in it.api.texts(thread["id"]) if token in text]) == 1
        assert it.api.texts(it.api.room) == []
        assert (await it.fair()).uncertain == 0


@story
async def test_what_was_taken_in_before_threads_were_wanted_is_not_answered_again(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        async with it.inside():
            await it.api.connected()
            token = it.say()
            await it.answered(token)
            await it.calm()
        it.config["channels"][NAME] |= OPENS
        it.api.forget()  # so the history is read again
        async with it.inside():
            identified = len(it.api.identifies)
            await it.api.until(lambda: len(it.api.identifies) >= identified and bool(it.api.made("GET .*/messages")))
            later = it.say()
            await it.answered(later)
            await it.calm()
        assert it.heard(token) == 1
        assert len(titles(it)) == 1
        await it.fair()


@story
async def test_what_was_said_in_the_room_before_can_be_looked_up(tmp_path: Path) -> None:
    async with town(tmp_path, **OPENS) as it:
        it.config["llm"]["models"]["main"]["context_tokens"] = 100_000
        plain, results = it.model.default, list[str]()

        def looks(body: Json) -> Answer:
            found = [one["content"] for one in body["messages"] if one["role"] == "tool"]
            results.extend(map(str, found))
            return plain(body) if found else Answer(calls=(("c1", "read_room", '{"address": "#general"}'),))

        it.model.default = looks
        async with it.inside():
            await it.api.connected()
            it.api.says(it.api.room, it.api.ben, "the boiler stands in the cellar")
            it.say()
            await it.api.until(lambda: len(results) == 1)
            await it.calm()
        assert "the boiler stands in the cellar" in results[0]
