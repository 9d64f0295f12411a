"""llama.cpp: tools/server/README.md, and what its slots forget."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from agent.models.base import ModelMessage, ModelRequest, PromptTooLong, SystemBlock, TextPart
from agent.models.llamacpp import LlamaCppModel
from gateway.core.events import Usage
from tests.kits.models import TOOL, ask, assistant, end, request, text, user
from tests.servers.llama_api import LlamaApi
from tests.servers.model_api_events import Answer

SHARED = SystemBlock(name="identity", text="You are Reverie . " * 40, ttl="long")


def of(place: str, *said: ModelMessage, now: str = "") -> ModelRequest:
    card = SystemBlock(name="channel", text=f"This is {place} .", ttl="short")
    return replace(request(*said or (user("hi"),), blocks=(SHARED, card)), conversation_id=place, now=now)


def against_llama(story: Callable[[LlamaApi, LlamaCppModel], Awaitable[None]], api: LlamaApi | None = None) -> None:
    async def run() -> None:
        async with api or LlamaApi() as server, asyncio.timeout(120):
            model = LlamaCppModel(name="main", base_url=server.url)
            try:
                await story(server, model)
            finally:
                await model.aclose()

    asyncio.run(run())


async def settled(model: LlamaCppModel) -> None:
    while (task := model._preloader._task) is not None:
        await asyncio.wait([task])
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def test_timings_are_the_usage() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        first, second = [end(await ask(model, of("a"))).usage for _ in range(2)]
        size = len(SHARED.text.split())
        assert first.cache_read_tokens == 0
        assert second.cache_read_tokens > size
        assert second.input_tokens + second.cache_read_tokens == first.input_tokens
        assert second.output_tokens == len(["You", "said:", "hi"])
        assert all(seen.body["cache_prompt"] for seen in api.completions)

    against_llama(story)


def test_after_a_reply_all_but_the_next_message_is_read_in() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        await ask(model, of("a", now="It is late ."))
        await settled(model)
        next_one = of("a", user("hi"), assistant("You said: hi\n\nIt is late ."), user("and then ?"))
        usage = end(await ask(model, next_one)).usage
        assert usage.input_tokens == len(["and", "then", "?", "<end>", "<assistant>"])
        assert api.read_in[0].body["messages"][-1] == {"role": "user", "content": "(nothing yet)"}
        assert "It is late" not in api.read_in[0].body["messages"][-3]["content"]
        assert all(seen.body["max_tokens"] == 0 for seen in api.read_in)

    against_llama(story)


def test_conversations_keep_apart_and_a_new_one_begins_warm() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        a, b = of("a"), of("b")
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

    against_llama(story)


def test_more_conversations_than_slots_still_share_their_beginning() -> None:
    async def story(_: LlamaApi, model: LlamaCppModel) -> None:
        await ask(model, of("first"))
        await settled(model)
        for place in "abcde":
            usage = end(await ask(model, of(place))).usage
            assert usage.cache_read_tokens >= 0.9 * len(SHARED.text.split())
            await settled(model)

    against_llama(story)


def test_reading_in_gives_way_to_a_message_and_goes_on_later() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
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
        read = [seen.body["messages"][0]["content"].rpartition("This is ")[2][0] for seen in api.read_in]
        assert {"a", "b", "c"} <= set(read)

    against_llama(story)


def test_what_was_to_be_read_in_is_not_once_the_conversation_goes_on() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        api.hangs = True
        await ask(model, of("a"))
        await until(lambda: bool(api.read_in))
        api.then(Answer(calls=(("c", "look_up", "{}"),)))
        before = len(api.read_in)
        await ask(model, replace(of("a"), tools=(TOOL,)))
        await asyncio.sleep(0)
        assert all("a ." not in str(seen.body) for seen in api.read_in[before:])

    against_llama(story)


def test_reading_in_on_demand_waits_for_answers_and_says_what_it_read() -> None:
    async def story(_: LlamaApi, model: LlamaCppModel) -> None:
        chunks = await ask(model, replace(of(""), blocks=(SHARED,), conversation=(), max_output_tokens=0))
        assert (len(chunks), text(chunks), end(chunks).stop_reason) == (1, "", "end")
        assert end(chunks).usage.input_tokens > 100
        assert end(chunks).usage.output_tokens == 0
        assert end(await ask(model, of("a"))).usage.cache_read_tokens >= 0.9 * len(SHARED.text.split())

    against_llama(story)


def beginning(agent: str) -> ModelRequest:
    """What all conversations of an agent begin with, and nobody's."""
    block = replace(SHARED, text=f"You are {agent} . " * 40)
    return replace(of(""), blocks=(block,), conversation=(), shared_key=agent, max_output_tokens=0)


def first_words(api: LlamaApi) -> set[str]:
    """Whose beginnings the slots hold."""
    return {" ".join(held[1:4]) for held in api.held}


def test_each_agent_s_beginning_is_kept_while_there_are_slots() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        for agent in ("Ana", "Ben", "Cem"):
            assert end(await ask(model, beginning(agent))).usage.input_tokens
            await settled(model)
        assert first_words(api) == {"You are Ana", "You are Ben", "You are Cem"}
        await ask(model, beginning("Ana"))
        await settled(model)
        assert first_words(api) == {"You are Ana", "You are Ben", "You are Cem"}
        assert api.timings[-1]["prompt_n"] < 10

    against_llama(story, LlamaApi(slots=4))


def test_agents_that_begin_at_the_same_time_are_all_read_in() -> None:
    async def story(_: LlamaApi, model: LlamaCppModel) -> None:
        both = await asyncio.gather(*(ask(model, beginning(agent)) for agent in ("Ana", "Ben")))
        assert all(end(chunks).usage.input_tokens for chunks in both)

    against_llama(story)


def test_who_waits_for_reading_in_is_told_when_a_message_comes_first() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        api.hangs = True
        waiting = asyncio.create_task(ask(model, replace(of("a"), max_output_tokens=0)))
        await until(lambda: bool(api.read_in))
        await ask(model, of("a"))
        assert end(await waiting).usage == Usage()
        cancelled = asyncio.create_task(ask(model, replace(of("b"), max_output_tokens=0)))
        await until(lambda: ("b", "") in model._preloader._jobs)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert ("b", "") not in model._preloader._jobs

    against_llama(story)


def test_a_server_that_forgets_slots_is_not_told_slots(caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
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

    with caplog.at_level(logging.WARNING):
        against_llama(story, LlamaApi(forgets=True))
    assert [r.getMessage().partition("; ")[2] for r in caplog.records] == [
        "start it with --no-cache-idle-slots to keep each one's prompt"
    ]


def test_a_server_with_one_slot_is_not_told_which() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        for place in "aba":
            await ask(model, of(place))
            await settled(model)
        assert all("id_slot" not in seen.body for seen in api.completions)
        assert sum(seen.path == "/props" for seen in api.seen) == 1

    against_llama(story, LlamaApi(slots=1))


@pytest.mark.parametrize("old", [False, True])
def test_it_counts_as_the_server_does(old: bool) -> None:
    async def story(_: LlamaApi, model: LlamaCppModel) -> None:
        usage = end(await ask(model, of("a"))).usage
        assert await model.count_tokens(of("a")) == usage.input_tokens + usage.cache_read_tokens

    against_llama(story, LlamaApi(old=old))


def test_what_does_not_fit_is_told_as_that() -> None:
    async def story(_: LlamaApi, model: LlamaCppModel) -> None:
        with pytest.raises(PromptTooLong):
            await ask(model, of("a"))

    against_llama(story, LlamaApi(window=20))


def test_closing_breaks_off_what_is_read_in() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        api.hangs = True
        await ask(model, of("a"))
        await until(lambda: bool(api.read_in))
        await model.aclose()
        await api.read_in[0].finished.wait()
        assert api.read_in[0].hung_up

    against_llama(story)


def test_an_answer_that_is_broken_off_frees_its_slot() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        for _ in range(5):
            api.then(Answer(text="a longer answer in pieces", silent_after=3))
            stream = model.stream(of("a"))
            assert isinstance(await anext(stream), TextPart)
            await stream.aclose()
        chunks = await ask(model, of("a"))
        assert text(chunks) == "You said: hi"
        assert api.answered[-1].body["id_slot"] == api.answered[0].body["id_slot"]

    against_llama(story)


def test_what_conversations_do_not_share_is_not_put_into_every_slot() -> None:
    skills = SystemBlock(name="skills", text="You can look things up .", ttl="long")

    def bound(place: str) -> ModelRequest:
        binding = SystemBlock(name="binding", text=f"In {place} be brief .", ttl="long")
        return replace(of(place), blocks=(SHARED, skills, binding))

    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        await ask(model, bound("a"))
        await ask(model, bound("b"))
        await settled(model)
        told = [seen.body["messages"][0]["content"] for seen in api.read_in if len(seen.body["messages"]) == 2]
        assert told[-1] == f"{SHARED.text}\n\n{skills.text}"

    against_llama(story, LlamaApi(slots=4))


def test_cancelling_while_reading_in_is_broken_off_is_not_lost() -> None:
    async def story(api: LlamaApi, model: LlamaCppModel) -> None:
        api.hangs = True
        await ask(model, of("a"))
        await until(lambda: bool(api.read_in))
        before = len(api.answered)
        asking = asyncio.create_task(ask(model, of("b")))
        await asyncio.sleep(0)  # now it waits for that to end
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(api.answered) == before
        api.hangs = False
        assert text(await ask(model, of("b"))) == "You said: hi"

    against_llama(story)
