"""What an attempt cost that broke off after the provider had begun to answer."""

from dataclasses import replace

import pytest

from agent.brief import Brief
from agent.models.base import Busy
from agent.models.failover import Failover
from agent.outcome import Outcome
from agent.turn import NoTools, take_turn
from gateway.clock import ManualClock
from tests.agent.test_cache_keeper import ANSWER, IDENTITY, Bench, request, story
from tests.servers.model_api import failure

BROKEN = replace(ANSWER, text="Half of an answer that", error_after=(4, "overloaded_error"))
BRIEF = Brief(persona=IDENTITY.text, card="# Where", history=(), heard="hello", conversation="irc/#a")


class Patient(ManualClock):
    """For which all waiting is over at once."""

    async def sleep(self, delay_s: float) -> None:
        self.advance(delay_s)


async def turn(bench: Bench, attempts: int) -> Outcome:
    model = Failover([bench.keeper], clock=Patient(), random=lambda: 0.0, attempts=attempts)
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


def test_what_was_refused_costs_nothing() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(failure(529, "overloaded_error"))
        with pytest.raises(Busy) as refused:
            await bench.ask(request("irc/#a", "hello"))
        assert refused.value.accounts == ()

    story(test)
