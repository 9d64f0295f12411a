"""What an attempt cost that broke off after the provider had begun to answer."""

import asyncio
from dataclasses import replace

import pytest

from agent.models.base import ModelBusy
from agent.models.failover import FailoverModel
from agent.prompt import PromptInput
from agent.turn import take_turn
from agent.turn_context import TurnOutcome, TurnProgress
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from tests.agent.cache.test_client import ANSWER, IDENTITY, Bench, request, story
from tests.kits.scripted_turn import Host, NoTools
from tests.servers.model_api_events import Answer, failure

BROKEN = replace(ANSWER, text="Half of an answer that", error_after=(4, "overloaded_error"))
BRIEF = PromptInput(persona=IDENTITY.text, card="# Where", history=(), input_text="hello", conversation="irc/#a")


class Patient(ManualClock):
    """For which all waiting is over at once."""

    async def sleep(self, delay_s: float) -> None:
        self.advance(delay_s)


class Watched(ManualClock):
    """Tells that somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()

    async def sleep(self, delay_s: float) -> None:
        self.waits.set()
        await super().sleep(delay_s)


async def turn(bench: Bench, attempts: int) -> TurnOutcome:
    model = FailoverModel([bench.keeper], clock=Patient(), random=lambda: 0.0, attempts=attempts)
    return await take_turn(BRIEF, model, NoTools(), key="ana")


def test_an_attempt_that_breaks_off_is_accounted_for() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(failure(529, "overloaded_error"), BROKEN, ANSWER)
        outcome = await turn(bench, 4)
        billed = [one.ticket.usage for one in bench.api.seen if one.ticket is not None][-2:]
        assert (outcome.outcome, outcome.requests, len(outcome.accounts)) == ("replied", 2, 2)
        first, second = (account.usage for account in outcome.accounts)
        assert (first.cache_write_tokens, second.cache_read_tokens) == (
            billed[0].cache_creation_input_tokens,
            billed[1].cache_read_input_tokens,
        )
        assert first.cache_write_tokens > 1_000
        assert outcome.usage == first + second
        assert all(account.cost_usd for account in outcome.accounts)

    story(test)


def test_a_turn_that_fails_tells_what_it_cost() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(BROKEN, BROKEN)
        outcome = await turn(bench, 2)
        assert (outcome.outcome, outcome.requests, len(outcome.accounts)) == ("failed", 2, 2)
        assert outcome.usage.cache_write_tokens > 1_000

    story(test)


@pytest.mark.parametrize("broken", [(), (BROKEN,), (BROKEN, BROKEN)])
def test_a_turn_that_is_cut_off_knows_what_it_cost(broken: tuple[Answer, ...]) -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(*broken, replace(ANSWER, text="Once upon a time there was", silent_after=5))
        model = FailoverModel([bench.keeper], clock=Patient(), random=lambda: 0.0)
        progress, heard = TurnProgress(), asyncio.Event()
        grown = (lambda text: heard.set() if text.startswith("Once") else None) if broken else lambda _: heard.set()
        turn = asyncio.ensure_future(
            take_turn(BRIEF, model, NoTools(), Host(glimpse=grown), key="ana", progress=progress)
        )
        async with asyncio.timeout(120):
            await heard.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        done = progress.current
        assert (done.outcome, done.requests, len(done.accounts)) == ("interrupted", len(broken) + 1, len(broken) + 1)
        assert done.accounts[0].usage.cache_write_tokens > 1_000
        assert [account.usage.cache_read_tokens > 1_000 for account in done.accounts[1:]] == [True] * len(broken)
        assert done.usage == sum((account.usage for account in done.accounts), start=Usage())

    story(test)


def test_a_turn_that_is_cut_off_between_attempts_knows_what_it_cost() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(BROKEN)
        clock, progress = Watched(), TurnProgress()
        model = FailoverModel([bench.keeper], clock=clock, random=lambda: 0.0)
        turn = asyncio.ensure_future(take_turn(BRIEF, model, NoTools(), key="ana", progress=progress))
        async with asyncio.timeout(120):
            await clock.waits.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert (progress.current.requests, len(progress.current.accounts)) == (1, 1)

    story(test)


def test_what_was_refused_costs_nothing() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(failure(529, "overloaded_error"))
        with pytest.raises(ModelBusy) as refused:
            await bench.ask(request("irc/#a", "hello"))
        assert refused.value.accounts == ()

    story(test)
