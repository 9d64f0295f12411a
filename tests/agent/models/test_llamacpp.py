"""llama.cpp: tools/server/README.md, and what its slots forget."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from agent.models.base import (
    ModelMessage,
    ModelRequest,
    PartialText,
    PromptTooLong,
    StreamStart,
    SystemBlock,
)
from agent.models.llamacpp import LlamaCppModel
from reverie.testing.servers.llama_api import LlamaApi
from reverie.testing.servers.model_api import Answer
from reverie.testing.waiting import until
from tests.kits.models import ask, assistant, end, request, text, user

SHARED = SystemBlock(name="identity", text="You are Reverie . " * 40)


def of(place: str, *said: ModelMessage, now: str = "") -> ModelRequest:
    card = SystemBlock(name="channel", text=f"This is {place} .")
    return replace(
        request(*said or (user("hi"),), blocks=(SHARED, card)), conversation_id=place, now=now
    )


@asynccontextmanager
async def against_llama(
    api: LlamaApi | None = None,
) -> AsyncIterator[tuple[LlamaApi, LlamaCppModel]]:
    async with (
        api or LlamaApi() as server,
        aclosing(LlamaCppModel(name="main", base_url=server.url)) as model,
    ):
        yield server, model


async def settled(model: LlamaCppModel) -> None:
    while (task := model._preloading) is not None:
        await asyncio.wait([task])
        await asyncio.sleep(0)


async def test_timings_are_the_usage() -> None:
    async with against_llama() as (api, model):
        first, second = [end(await ask(model, of("a"))).usage for _ in range(2)]
        size = len(SHARED.text.split())
        assert first.cache_read_tokens == 0
        assert second.cache_read_tokens > size
        assert second.input_tokens + second.cache_read_tokens == first.input_tokens
        assert second.output_tokens == len(["You", "said:", "hi"])
        assert all(seen.body["cache_prompt"] for seen in api.completions)


async def test_after_a_reply_all_but_the_next_message_is_read_in() -> None:
    async with against_llama() as (api, model):
        await ask(model, of("a", now="It is late ."))
        await settled(model)
        next_one = of(
            "a", user("hi"), assistant("You said: hi\n\nIt is late ."), user("and then ?")
        )
        usage = end(await ask(model, next_one)).usage
        assert usage.input_tokens == len(["and", "then", "?", "<end>", "<assistant>"])
        assert api.read_in[0].body["messages"][-1] == {"role": "user", "content": "(nothing yet)"}
        assert "It is late" not in api.read_in[0].body["messages"][-3]["content"]
        assert all(seen.body["max_tokens"] == 0 for seen in api.read_in)


async def test_conversations_keep_apart_and_a_new_one_begins_warm() -> None:
    async with against_llama() as (api, model):
        a, b = of("a"), of("b")
        await ask(model, beginning("Reverie"))
        await settled(model)
        await ask(model, a)
        await settled(model)
        chunks = await ask(model, b)
        await settled(model)
        assert end(chunks).usage.cache_read_tokens >= 0.9 * len(SHARED.text.split())
        slots = [seen.body["id_slot"] for seen in api.answered]
        assert sorted(slots) == [0, 1]
        for asked in (a, b, a, b):
            said = (*asked.conversation, assistant("You said: hi"), user("more"))
            usage = end(await ask(model, replace(asked, conversation=said))).usage
            await settled(model)
            assert usage.input_tokens <= 5
        assert [seen.body["id_slot"] for seen in api.answered] == slots * 3


async def test_reading_in_gives_way_to_a_message_and_goes_on_later() -> None:
    async with against_llama() as (api, model):
        api.hangs = True
        await ask(model, of("a"))
        await until(lambda: bool(api.read_in))
        held_up = api.read_in[0]
        assert text(await ask(model, of("b"))) == "You said: hi"
        await held_up.finished.wait()
        assert held_up.hung_up
        api.hangs = False
        await until(lambda: len(api.read_in) >= 2)
        await ask(model, of("c"))  # breaks off once more
        await settled(model)
        read = [
            seen.body["messages"][0]["content"].rpartition("This is ")[2][0] for seen in api.read_in
        ]
        assert {"a", "b", "c"} <= set(read)


def beginning(agent: str) -> ModelRequest:
    """What all conversations of an agent begin with, and nobody's."""
    block = replace(SHARED, text=f"You are {agent} . " * 40)
    return replace(
        of(""), blocks=(block,), conversation=(), shared_key=agent.lower(), max_output_tokens=0
    )


def first_words(api: LlamaApi) -> set[str]:
    """Whose beginnings the slots hold."""
    return {" ".join(held[1:4]) for held in api.held}


async def test_the_conversation_that_was_quiet_for_longest_loses_its_slot() -> None:
    async with against_llama() as (api, model):
        for place in "abacb":
            await ask(model, of(place))
            await settled(model)
        a, b = [seen.body["id_slot"] for seen in api.answered[:2]]
        assert [seen.body["id_slot"] for seen in api.answered] == [a, b, a, b, a]


async def test_each_agent_s_beginning_is_kept_while_there_are_slots() -> None:
    async with against_llama(LlamaApi(slots=3)) as (api, model):
        for agent in ("Ana", "Ben", "Cem"):
            await ask(model, beginning(agent))
            await settled(model)
        assert first_words(api) == {"You are Ana", "You are Ben", "You are Cem"}
        await ask(model, beginning("Ana"))
        await settled(model)
        assert first_words(api) == {"You are Ana", "You are Ben", "You are Cem"}
        assert api.timings[-1]["prompt_n"] < 10


async def test_a_server_that_forgets_slots_is_not_told_slots(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with against_llama(LlamaApi(forgets=True)) as (api, model):
        asked = {place: of(place) for place in "ab"}
        for _ in range(4):
            for place in "ab":
                await ask(model, asked[place])
                await settled(model)
                said = (*asked[place].conversation, assistant("You said: hi"), user("hi"))
                asked[place] = replace(asked[place], conversation=said)
        assert "id_slot" in api.answered[0].body
        assert "id_slot" not in api.answered[-1].body
        assert "id_slot" not in api.read_in[-1].body
    assert [r.getMessage().partition("; ")[2] for r in caplog.records] == [
        "start it with --no-cache-idle-slots to keep each one's prompt"
    ]


async def test_what_does_not_fit_is_told_as_that() -> None:
    async with against_llama(LlamaApi(window=20)) as (_, model):
        with pytest.raises(PromptTooLong):
            await ask(model, of("a"))


async def test_an_answer_that_is_broken_off_frees_its_slot() -> None:
    async with against_llama() as (api, model):
        for _ in range(5):
            api.then(Answer(text="a longer answer in pieces", silent_after=3))
            stream = model.stream(of("a"))
            assert [type(await anext(stream)) for _ in range(2)] == [StreamStart, PartialText]
            await stream.aclose()
        chunks = await ask(model, of("a"))
        assert text(chunks) == "You said: hi"
        assert api.answered[-1].body["id_slot"] == api.answered[0].body["id_slot"]
