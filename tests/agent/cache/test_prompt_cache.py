"""A `ModelClient` with the prompt cache of a real Anthropic client: what is billed, who waits for whom, what a tool
loop alone sends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

import pytest

from agent.cache.idle import UNKNOWN_FORECAST
from agent.cache.plan import CachePolicy, CacheProfile
from agent.cache.prompt_cache import PromptCache
from agent.models.anthropic import AnthropicModel
from agent.models.base import ModelBusy, ModelRequest, SystemBlock
from agent.models.openai import OpenAIModel
from agent.prompt import PromptTurn
from agent.turn_context import TurnOutcome
from gateway.core.clock import ManualClock
from gateway.core.events import RequestUsage
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, ModelApi
from reverie.testing.waiting import until
from tests.agent.cache.request_kit import ANSWER, MODEL, PRICES, Bench, Bytes, request
from tests.agent.test_turn import turn


async def test_what_is_expected_is_what_is_billed(bench: Bench) -> None:
    lines = ["[x] ann (guest): " + "hello " * 40]
    account = await bench.ask(request("irc/#a", *lines))
    for number in range(6):
        account = await bench.ask(request("irc/#a", *lines))
        lines += ["Yes.", f"[x] ann (guest): {number} " + "and so on " * 30]
        bench.clock.advance(60)
    read, written = (
        sum(getattr(block, name) for block in account.blocks) for name in ("read", "written")
    )
    assert account.missed == ""
    assert read == pytest.approx(account.usage.cache_read_tokens, rel=0.05)
    assert written == pytest.approx(account.usage.cache_write_tokens, rel=0.2)
    assert [block.name for block in account.blocks] == ["tools", "identity", "channel", "history"]
    assert account.cost_usd == pytest.approx(PRICES.find(MODEL).cost_usd(account.usage))
    assert bench.api.violations == []


@pytest.mark.parametrize(
    "told",
    [
        {"input_tokens": 10**15},
        {"input_tokens": -5},
        {"output_tokens": 10**15},
        {"cache_creation": {"ephemeral_1h_input_tokens": 10**15}},
        {"cache_creation": {"ephemeral_1h_input_tokens": -5}},
    ],
)
async def test_a_bill_that_cannot_be_costs_what_the_request_can(
    bench: Bench, told: dict[str, int | dict[str, int]]
) -> None:
    fair = {"input_tokens": 300, "output_tokens": 5}
    bench.api.then(Answer(text="hi", usage=fair | told))
    usage = (await bench.ask(request("irc/#a", "hello"))).usage
    assert 0 <= usage.cache_write_1h_tokens <= usage.cache_write_tokens
    assert 0 <= usage.prompt_tokens < 10_000
    assert 0 <= usage.output_tokens < 10_000


async def test_a_cold_shared_prefix_is_written_once(bench: Bench) -> None:
    bench.api.then(replace(ANSWER, delay_s=0.2), ANSWER, ANSWER)
    places = ("irc/#a", "telegram/1", "discord/2")
    accounts = await asyncio.gather(
        *(bench.ask(request(place, f"hello from {place}")) for place in places)
    )
    wrote = [account.usage.cache_write_tokens > 1_000 for account in accounts]
    assert wrote == [True, False, False]
    assert all(account.usage.cache_read_tokens > 1_000 for account in accounts[1:])


async def test_a_cancelled_first_call_lets_the_others_go_on(bench: Bench) -> None:
    bench.api.then(replace(ANSWER, delay_s=60), ANSWER)
    first = asyncio.create_task(bench.ask(request("irc/#a", "hello")))
    await until(lambda: bench.api.seen)
    second = asyncio.create_task(bench.ask(request("irc/#b", "hello")))
    await asyncio.sleep(0.05)
    assert len(bench.api.seen) == 1
    first.cancel()
    assert (await second).usage.cache_write_tokens > 1_000


async def test_a_writer_that_takes_too_long_is_waited_for_no_more(bench: Bench) -> None:
    bench.api.then(replace(ANSWER, delay_s=60), ANSWER)
    first = asyncio.create_task(bench.ask(request("irc/#a", "hello")))
    await until(lambda: bench.api.seen)
    second = asyncio.create_task(bench.ask(request("irc/#b", "hello")))
    await until(lambda: bench.cache.pending_requests == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    bench.clock.advance(9.9)
    await until(lambda: not second.done())
    assert len(bench.api.seen) == 1
    bench.clock.advance(0.2)
    assert (await second).usage.cache_write_tokens > 1_000
    first.cancel()


async def test_the_byte_that_spoilt_the_cache_is_named(bench: Bench) -> None:
    long = "hello " * 500
    await bench.ask(request("irc/#a", long))
    await bench.ask(request("irc/#a", long, "Yes.", "more"))
    account = await bench.ask(
        request("irc/#a", long, "Yes.", "more", "Yes.", "again", card="# Where you ARE")
    )
    assert account.missed == "channel: blocks[1].text differs at byte 12"
    told = await bench.ask(
        request("irc/#a", long, "No!", "more", "Yes.", "again", card="# Where you ARE")
    )
    assert told.missed == "history: conversation[1].parts[0] differs at byte 0"


async def test_what_the_provider_lost_is_said_and_believed(bench: Bench) -> None:
    long = "hello " * 500
    await bench.ask(request("irc/#a", long))
    bench.api._messages.cache = MessagesCache(lambda text: -(-len(text) // 4))
    bench.clock.advance(30)
    account = await bench.ask(request("irc/#a", long, "Yes.", "more"))
    assert account.missed.startswith("0 of about ")
    assert "no byte differs, last sent 30 s before" in account.missed
    again = await bench.ask(request("irc/#a", long, "Yes.", "more", "Yes.", "again"))
    assert (again.missed, again.usage.cache_read_tokens > 1_000) == ("", True)


async def test_what_is_lost_of_one_conversation_is_still_there_of_another(bench: Bench) -> None:
    def asked(place: str, *lines: str) -> ModelRequest:
        plain, binding = (
            request(place, *lines, card=place),
            SystemBlock(name="binding", text="Be short. " * 200),
        )
        return replace(plain, blocks=(plain.blocks[0], binding, plain.blocks[1]))

    first, *more = ["hello " * 500, *[f"line {number}" for number in range(24)]]
    for place in ("irc/#a", "irc/#b"):
        await bench.ask(asked(place, first))
    lost = {"cache_read_input_tokens": 2_000, "cache_creation_input_tokens": 1_500}
    bench.api.then(Answer(text="Yes.", usage=lost | {"input_tokens": 0, "output_tokens": 2}))
    assert (await bench.ask(asked("irc/#a", first, *more))).missed
    assert bench.cache.forecast("ana", "irc/#b").is_cold is False


@pytest.mark.parametrize(
    ("caching", "kind", "looked_after"),
    [
        ("marks", "auto", True),
        ("marks", "off", False),
        ("automatic", "auto", True),
        ("automatic", "off", True),  # it caches all the same
        ("none", "auto", False),
        ("none", "off", False),
    ],
)
async def test_only_of_a_cache_that_is_there_anything_is_told(
    caching: Literal["marks", "automatic", "none"],
    kind: Literal["auto", "off"],
    looked_after: bool,
    bench: Bench,
) -> None:
    bench.policy = CachePolicy(kind=kind)
    dialect = CacheProfile(provider="x", model=MODEL, price=PRICES.find(MODEL), caching=caching)
    model = AnthropicModel(name="main", model=MODEL, base_url=bench.api.url, api_key="k")
    cache = PromptCache(
        model, dialect, clock=bench.clock, gauge=Bytes(), policy=lambda _: bench.policy
    )
    async with aclosing(model):
        before = cache.forecast("ana", "irc/#a")
        assert (before == UNKNOWN_FORECAST) is not looked_after
        await Bench(bench.api, model, cache, bench.clock).ask(request("irc/#a", "hello"))
        told = cache.forecast("ana", "irc/#a")
    assert (told == UNKNOWN_FORECAST) is not looked_after
    if looked_after:
        assert (told.is_cold, told.read_share) == (False, PRICES.find(MODEL).read)


@pytest.fixture
async def automatic() -> AsyncIterator[Bench]:
    """Of a server that caches by itself."""
    profile = CacheProfile(
        provider="openai", model="m-1", price=PRICES.find("m-1"), caching="automatic"
    )
    async with (
        ModelApi() as api,
        aclosing(OpenAIModel(name="main", model="m-1", base_url=api.url)) as model,
    ):
        clock = ManualClock()
        cache = PromptCache(
            model, profile, clock=clock, gauge=Bytes(), policy=lambda _: CachePolicy()
        )
        yield Bench(api, model, cache, clock)


async def test_of_a_server_without_a_cache_nothing_is_expected_until_a_bill_names_one(
    automatic: Bench,
) -> None:
    said, missed = ["hello " * 900], list[bool]()
    for read in (0, 0, 0, 0, 3_000, 3_000, 0):
        used = {"prompt_tokens": 3_900, "prompt_tokens_details": {"cached_tokens": read}}
        automatic.api.then(Answer(text="hi", usage=used | {"completion_tokens": 2}))
        missed.append(bool((await automatic.ask(request("irc/#a", *said))).missed))
        said += ["hi", "and so on"]
    assert missed == [False, True, *[False] * 4, True]


async def test_what_a_provider_does_not_bill_is_estimated(automatic: Bench) -> None:
    automatic.api.then(Answer(text="word " * 70, usage={}))
    usage = (await automatic.ask(request("irc/#a", "hello " * 900))).usage
    assert usage.input_tokens > 1_000
    assert usage.output_tokens == 100


async def test_an_answer_that_a_server_cut_off_before_its_bill_is_estimated(
    automatic: Bench,
) -> None:
    automatic.api.then(Answer(text="a longer answer in pieces", cut_after=3))
    with pytest.raises(ModelBusy) as caught:
        await automatic.ask(request("irc/#a", "hello " * 900))
    (account,) = caught.value.accounts
    assert account.usage.input_tokens > 1_000


async def test_what_holds_for_now_is_part_of_the_account_and_never_read(bench: Bench) -> None:
    told = replace(request("irc/#a", "hello"), now="Answer in one line.")
    await bench.ask(told)
    account = await bench.ask(told)
    assert (account.blocks[-1].name, account.blocks[-1].read, account.blocks[-1].written) == (
        "now",
        0,
        0,
    )


HEARD = "[x] ann (guest): " + "and so on " * 200


async def turns(bench: Bench, loops: list[int]) -> list[RequestUsage]:
    """Take turns with so many rounds of tools each, all of them thought about."""
    history = list[PromptTurn]()
    accounts = list[RequestUsage]()
    for number, rounds in enumerate(loops):
        for place in range(rounds):
            calls = tuple(
                (f"c{number}_{place}_{which}", "look_up", f'{{"q": {10 * place + which}}}')
                for which in range(4)
            )
            bench.api.then(Answer(thinking="hmm " * 50, text="Hm.", calls=calls))
        bench.api.then(Answer(thinking="hmm", text=f"Answer {number}."))
        outcome: TurnOutcome = await turn(bench, history, f"{HEARD} {number}")
        assert (outcome.outcome, len(outcome.steps)) == ("replied", rounds)
        accounts += outcome.accounts
    assert not bench.api.violations
    return accounts


@pytest.mark.parametrize("loops", [[2, 2, 2, 0, 0, 2], [0, 5, 0, 5, 0]])
async def test_the_next_turn_reads_what_was_in_front_of_the_loop_and_expects_no_more(
    loops: list[int], bench: Bench
) -> None:
    accounts = await turns(bench, loops)
    assert [account.missed for account in accounts] == [""] * len(accounts)
    begins = [sum(rounds + 1 for rounds in loops[:number]) for number in range(len(loops))]
    for first in begins[1:]:
        usage, expected = accounts[first].usage, sum(block.read for block in accounts[first].blocks)
        assert usage.cache_read_tokens == pytest.approx(expected, rel=0.05, abs=256)
        assert expected > 2_000  # however long the loop was, what was in front of it is found


async def test_a_server_that_reads_less_than_it_was_sent_is_told_of_once(
    automatic: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cache = automatic.cache

    async def say(text: str, read: int) -> None:
        automatic.api.then(Answer(text="hi", usage={"prompt_tokens": read, "completion_tokens": 2}))
        await automatic.ask(request("irc/#a", text))

    await say("once upon a time " * 800, 5_200)  # a tokenizer that needs fewer
    seen = [cache.cut_prompt]
    await say("once upon a time " * 700, 4_096)  # more than that, as Ollama reads by default
    seen.append(cache.cut_prompt)
    assert seen[0] is None
    assert seen[1] is not None
    read, sent = seen[1]
    assert read == 4_096
    assert 4_300 < sent < 6_000
    await say("once upon a time " * 3_000, 3_900)
    assert cache.cut_prompt == (read, sent)
    ratio = cache.max_cost_usd(request("irc/#b", "once upon a time " * 3_000))
    assert ratio > 10_000 * 5 / 1_000_000, "the estimate does not follow bills for half a prompt"
    (told,) = [
        one.getMessage() for one in caplog.records if "OLLAMA_CONTEXT_LENGTH" in one.getMessage()
    ]
    assert f"has read 4096 of about {sent} tokens" in told


async def test_what_only_a_tool_loop_repeats_is_not_written_for_an_hour(bench: Bench) -> None:
    bench.policy = CachePolicy(kind="fixed", short_lifetime="1h")
    accounts = await turns(bench, [2, 2, 0])
    assert [account.missed for account in accounts] == [""] * len(accounts)
    hours = [bool(account.usage.cache_write_1h_tokens) for account in accounts]
    assert all(account.usage.cache_write_tokens for account in accounts)
    # The first loop shows that its messages are not sent again as they were.
    assert hours[3:] == [True, False, False, True]
