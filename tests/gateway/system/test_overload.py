"""A provider that is overloaded for a while: questions wait, people are told once, and are answered
when it is back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.dmn import FIRST_AWAY_S
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import ManualClock
from gateway.core.format import format_moment
from gateway.runtime.agent import LANES, LANES_OF_OWN_MODEL, build_dmn_policy
from gateway.runtime.turn_record import FAILURE_TEXTS, PUT_OFF_TEXTS, QUEUED_TEXT
from gateway.store import rebuild
from reverie.testing.gateway import UNHURRIED, Gateway, Held, running
from reverie.testing.servers.model_api import Answer, ModelApi, failure
from reverie.testing.waiting import until

IRC, TELEGRAM = "irc.libera", "telegram.main"
MINUTE = timedelta(minutes=1)
OVERLOADED, UNREACHABLE = PUT_OFF_TEXTS["overloaded"], PUT_OFF_TEXTS["unreachable"]


def configured(
    tmp: Path,
    url: str,
    dmn: dict[str, Any] | None = None,
    tell: str = "",
    recall: int = 150,
    **llm: Any,
) -> Settings:
    return parse_config(
        {
            "channels": {
                IRC: {"platform": "console", "rooms": ["#garden", "#kitchen"]},
                TELEGRAM: {"platform": "console", "rooms": ["-100"]},
            },
            "agents": [{"id": "ana", "bindings": [{"private": False}]}],
            "llm": {
                "providers": {"p": {"kind": "anthropic", "base_url": url, "api_key": "k"}},
                "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
                **llm,
            },
            "attention": {
                "coalesce": 0,
                "rules": [{"type": "irc", "urgency": "normal", "keyword": "fire"}],
            },
            "access": {
                "dm": "open",
                "rates": UNHURRIED,
                "roles": {"admin": [f"{IRC}:root"]},
                "tell": tell or None,
            },
            "dmn": dmn or {},
            "recall": {"ambient_tokens": recall},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        tmp,
    )


@contextlib.asynccontextmanager
async def garden(tmp: Path, url: str, clock: ManualClock, **llm: Any) -> AsyncIterator[Gateway]:
    async with asyncio.timeout(100), Gateway(configured(tmp, url, **llm), clock=clock) as made:
        yield made


async def asked(
    made: Gateway, text: str, *, channel: str = IRC, sender: str = "ann", room: str | None = None
) -> None:
    await made.say(text, sender=sender, room=room, on=channel)


def words(made: Gateway) -> list[str]:
    return [" ".join(one.split()) for one in made.sent()]


def requests(api: ModelApi) -> list[str]:
    """The bodies of the requests for answers."""
    return [json.dumps(one.body) for one in api.seen if one.path.endswith("/messages")]


FAULTS = {
    "529": (failure(529, "overloaded_error"), OVERLOADED),
    "500": (failure(500, "api_error"), OVERLOADED),
    "503": (failure(503, "overloaded_error"), OVERLOADED),
    "429": (failure(429, "rate_limit_error", retry_after_s=50), OVERLOADED),
    "cut": (Answer(text="Half of an answer", cut_after=3), UNREACHABLE),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_questions_wait_are_told_so_once_and_answered_when_it_is_back(
    tmp_path: Path, fault: str, clock: ManualClock
) -> None:
    answer, told = FAULTS[fault]
    async with ModelApi() as api, garden(tmp_path, api.url, clock) as made:
        api.default = lambda _: answer
        await asked(made, "reverie, what is for tea?", room="#garden")
        await made.until(lambda: len(made.screen.parts) == 1, step_s=0.1)
        await asked(made, "reverie, and for lunch?", room="#kitchen", sender="bob")
        await asked(made, "are you there?", channel=TELEGRAM, sender="cy")
        await made.until(lambda: len(made.screen.parts) == 3, step_s=0.1)
        assert all(one.endswith(told) for one in words(made))
        until_s, before = clock.monotonic() + 40, len(requests(api))
        await asked(made, "reverie, cake would be nice", room="#garden", sender="bob")
        await made.until(lambda: clock.monotonic() >= until_s, step_s=0.1)
        assert len(made.screen.parts) == 3  # told once, however often it is tried
        assert len(requests(api)) - before <= 3 * 4 * 5  # each is tried ever more seldom
        api.default = lambda _: Answer(text="Here I am.")
        await made.until(lambda: len(made.screen.parts) == 6, step_s=0.1)
        assert all("Here I am." in one for one in words(made)[3:])
        garden_request = next(one for one in requests(api)[-3:] if "for tea" in one)
        assert "cake would be nice" in garden_request
        assert told not in garden_request  # it is not the agent's word
        assert not api.violations
    assert await rebuild(tmp_path / "reverie.db") == []


def poisoned(api: ModelApi, answer: Answer) -> None:
    """The model fails at requests that hold a certain word, and answers all others."""
    api.default = lambda body: (
        answer if "henbane" in json.dumps(body) else Answer(text="Here I am.")
    )


@pytest.mark.parametrize("fault", ["500", "503", "cut"])
async def test_one_question_at_which_the_model_fails_keeps_nobody_else_waiting(
    tmp_path: Path, fault: str, clock: ManualClock
) -> None:
    answer, told = FAULTS[fault]
    async with (
        ModelApi() as api,
        garden(tmp_path, api.url, clock, tell=f"{TELEGRAM}/-100", recall=0) as made,
    ):
        poisoned(api, answer)
        await asked(made, "reverie, is henbane tea?", room="#garden")
        await made.until(lambda: any(one.endswith(told) for one in words(made)), step_s=0.1)
        failed_s = clock.monotonic()
        await asked(made, "reverie, what is for lunch?", room="#kitchen", sender="bob")
        await made.until(lambda: any("Here I am." in one for one in words(made)), step_s=0.1)
        assert clock.monotonic() < failed_s + FIRST_AWAY_S, "it was asked at once"
        await made.until(
            lambda: any(one.endswith(FAILURE_TEXTS["conversation"]) for one in words(made)),
            step_s=0.1,
        )
        before = len(requests(api))
        await asked(made, "reverie, and cake?", room="#kitchen", sender="bob")
        await asked(made, "are you there?", sender="cy")
        await made.until(lambda: sum("Here I am." in one for one in words(made)) == 3, step_s=0.1)
        assert not [one for one in requests(api)[before:] if "henbane" in one], "it is settled"
        await asked(made, "reverie, is mint tea?", room="#garden")
        await made.until(lambda: sum("Here I am." in one for one in words(made)) == 4, step_s=0.1)
        assert "henbane" not in requests(api)[-1], (
            "what the model fails at is not shown to it again"
        )
        until_s = clock.monotonic() + 120
        await made.until(lambda: clock.monotonic() >= until_s, step_s=0.5)
        people = [one for one in words(made) if told in one or FAILURE_TEXTS["conversation"] in one]
        assert len(people) == 2, "told once that it waits, and once that it failed"
        owners = [one for one in words(made) if "ana " in one]
        assert [
            sum(text in one for one in owners)
            for text in ("so far", "gave no answer", "again.", "No model")
        ] == [*(1, 1, 1, 0)]
        assert "again." in owners[-1], "once nobody waits"
        assert not api.violations
    assert await rebuild(tmp_path / "reverie.db") == []


async def test_everybody_who_asks_meanwhile_is_told_once_and_until_when(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with ModelApi() as api, garden(tmp_path, api.url, clock) as made:
        api.default = lambda _: failure(429, "rate_limit_error", retry_after_s=3_600)
        began, ends = clock.now(), clock.now() + 60 * MINUTE
        await asked(made, "reverie, what is for tea?", room="#garden")
        await made.until(lambda: len(made.screen.parts) == 1, step_s=0.1)

        async def ask_more(sender: str, shown: int) -> None:
            await asked(made, "reverie, and for lunch?", room="#garden", sender=sender)
            await made.until(lambda: len(made.screen.parts) == shown, step_s=0.1)

        await ask_more("bob", 2)
        await ask_more("cy", 3)
        await ask_more("bob", 3)
        until_s = clock.monotonic() + 30
        await made.until(lambda: clock.monotonic() >= until_s, step_s=0.1)
        assert len(made.screen.parts) == 3
        assert all(PUT_OFF_TEXTS["overloaded"] in one for one in words(made))
        until = [format_moment(one, began) for one in (ends, ends + MINUTE)]
        assert all(any(time in one for time in until) for one in words(made))


async def test_a_waiting_question_is_answered_after_a_restart_and_nobody_is_told_twice(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with ModelApi() as api:
        api.default = lambda _: failure(529, "overloaded_error")
        async with garden(tmp_path, api.url, clock) as made:
            await asked(made, "reverie, what is for tea?", room="#garden")
            await made.until(lambda: len(made.screen.parts) == 1, step_s=0.1)
        async with garden(tmp_path, api.url, clock) as made:
            before = len(requests(api))
            await made.until(lambda: len(requests(api)) >= before + 5, step_s=0.1)
            assert not made.sent()
            api.default = lambda _: Answer(text="Scones.")
            await made.until(lambda: len(made.screen.parts) == 1, step_s=0.1)
            assert words(made)[0].endswith("Scones.")


async def test_after_a_while_whoever_waits_is_told_to_ask_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with ModelApi() as api, garden(tmp_path, api.url, clock, overload_wait="90s") as made:
        api.default = lambda _: failure(529, "overloaded_error")
        await asked(made, "reverie, what is for tea?", room="#garden")
        await made.until(lambda: len(made.screen.parts) == 2, step_s=0.1)
        assert 90 <= clock.monotonic() < 180
        assert words(made)[1].endswith(FAILURE_TEXTS["overloaded"])
        before = len(requests(api))
        until_s = clock.monotonic() + 120
        await made.until(lambda: clock.monotonic() >= until_s, step_s=0.1)
        assert (len(made.screen.parts), len(requests(api))) == (2, before)


async def test_what_is_taken_back_meanwhile_is_not_answered(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with ModelApi() as api, garden(tmp_path, api.url, clock) as made:
        api.default = lambda _: failure(529, "overloaded_error")
        question = await made.say("reverie, what is for tea?", sender="ann", room="#garden")
        await asked(made, "are you there?", channel=TELEGRAM, sender="cy")
        await made.until(lambda: len(made.screen.parts) == 2, step_s=0.1)
        await made.consoles[IRC].receive_delete(question)
        api.default = lambda _: Answer(text="Here I am.")
        await made.until(lambda: len(made.screen.parts) == 3, step_s=0.1)
        until_s = clock.monotonic() + 120
        await made.until(lambda: clock.monotonic() >= until_s, step_s=0.1)
        assert len(made.screen.parts) == 3
        assert "for tea" not in requests(api)[-1]


LOOK: tuple[str, str] = ("intend", "look after the tea")


async def planned(made: Gateway, api: ModelApi, kind: str, text: str, **when: str) -> None:
    """Have the agent remember this."""
    given = {"what" if kind == "intend" else "text": text, **when}
    calls = (("c", "call_capability", json.dumps({"capability": kind, "args": given})),)
    api.then(Answer(calls=calls), Answer(text="I will."))
    said = len(made.screen.parts)
    await asked(made, f"please {kind}", channel=TELEGRAM)
    await made.screen.until(said + 1)


async def test_a_reminder_comes_in_time_without_a_model_and_a_promise_is_kept_once_it_is_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with ModelApi() as api, garden(tmp_path, api.url, clock) as made:
        await planned(made, api, "remind", text="drink *tea*", at="in 10m")
        await planned(made, api, *LOOK, when="in 20m")
        api.default = lambda _: failure(529, "overloaded_error")
        await made.until(lambda: len(made.screen.parts) == 3, step_s=5)
        assert clock.monotonic() < 20 * 60
        assert words(made)[2] == r"Reminder: drink \*tea\*"
        await made.until(lambda: clock.monotonic() > 90 * 60, step_s=30)
        assert len(made.screen.parts) == 3, "nobody asked anything"
        api.default = lambda _: Answer(text="It stands on the table.")
        await made.until(lambda: len(made.screen.parts) == 4, step_s=5)
        assert clock.monotonic() < 100 * 60
        assert "look after the tea" in requests(api)[-1]
        assert words(made)[3] == "It stands on the table."


async def test_a_reminder_of_an_admin_is_charged_to_nobody_else(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with ModelApi() as api:
        made = configured(tmp_path, api.url)
        budgets = made.access.budgets.model_copy(update={"sender_usd": 0.0001})
        access = made.access.model_copy(update={"budgets": budgets})
        async with Gateway(made.model_copy(update={"access": access}), clock=clock) as gateway:
            calls = (("c", "remind", json.dumps({"text": "tea", "at": "in 10m"})),)
            api.then(Answer(calls=calls), Answer(text="I will."))
            api.default = lambda _: Answer(text="It is time.")
            await asked(gateway, "remind me of the tea", sender="root")
            await gateway.screen.until(1)
            await gateway.until(lambda: len(gateway.screen.parts) == 2, step_s=10)
            assert words(gateway) == ["I will.", "It is time."]


async def test_who_asks_where_a_promise_waits_for_a_model_is_told_if_that_takes_too_long(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with ModelApi() as api, garden(tmp_path, api.url, clock) as made:
        await planned(made, api, *LOOK, when="in 10m")
        api.default = lambda _: failure(529, "overloaded_error")
        await made.until(lambda: clock.monotonic() > 15 * 60, step_s=10)
        await asked(made, "are you there?", channel=TELEGRAM)
        await made.until(lambda: clock.monotonic() > 40 * 60, step_s=10)
        assert len(made.screen.parts) == 3
        ends = FAILURE_TEXTS["overloaded"], FAILURE_TEXTS["unreachable"]  # in the last try
        assert words(made)[2].endswith(ends)
        assert LOOK[1] in words(made)[2], "the promise is not kept"


async def test_a_promise_waits_until_there_is_money_for_it_also_over_a_kill(
    tmp_path: Path, clock: ManualClock
) -> None:
    few = {"daily_cost_usd": 0.0001}
    async with ModelApi() as api, garden(tmp_path, api.url, clock, dmn=few) as made:
        await planned(made, api, *LOOK, when="in 10m")
        api.default = lambda _: Answer(text="It stands on the table.")
        await made.until(lambda: clock.monotonic() > 30 * 60, step_s=10)
        assert len(made.screen.parts) == 1
        await made.kill()
        made.settings = configured(tmp_path, api.url, dmn={"daily_turns": 0})
        made.start()
        await made.until(lambda: clock.monotonic() > 40 * 60, step_s=10)
        assert words(made)[1:] == ["It stands on the table."]


@pytest.mark.parametrize(
    ("dmn", "said"),
    [
        ({"max_autonomous_turns": 1, "daily_turns": 2}, "It is time."),
        ({"daily_cost_usd": 0.0001}, "Reminder: tea"),
    ],
)
async def test_a_reminder_comes_however_many_came_before_and_with_no_money_left(
    tmp_path: Path, clock: ManualClock, dmn: dict[str, Any], said: str
) -> None:
    async with ModelApi() as api, garden(tmp_path, api.url, clock, dmn=dmn) as made:
        calls = (("c", "remind", json.dumps({"text": "tea", "every": "10 minutes"})),)
        api.then(Answer(calls=calls), Answer(text="I will."))
        api.default = lambda _: Answer(text="It is time.")
        await asked(made, "remind me of the tea", channel=TELEGRAM)
        await made.screen.until(1)
        await made.until(lambda: len(made.screen.parts) == 6, step_s=10)
        assert words(made)[1:] == [said] * 5


# Many rooms ask at once: so many turns at a time, the others in their order, and told that they
# wait.

ROOMS = [f"room{number}" for number in range(6)]
ANSWER = "You said: "


@pytest.mark.parametrize(
    ("kind", "dmn", "lanes"),
    [
        ("anthropic", {}, LANES),
        ("local", {}, LANES_OF_OWN_MODEL),
        ("local", {"parallel_turns": 3}, 3),
    ],
)
def test_a_model_that_refuses_nothing_is_asked_by_few_at_a_time(
    tmp_path: Path, kind: str, dmn: dict[str, int], lanes: int
) -> None:
    llm = {
        "providers": {"p": {"kind": kind}},
        "models": {"main": {"provider": "p", "name": "m"}},
    }
    given = {"agents": [{"id": "ana"}], "llm": llm, "store": {"path": "r.db"}, "dmn": dmn}
    assert build_dmn_policy(parse_config(given, tmp_path), "ana").lanes == lanes


async def asked_in(gateway: Gateway, room: str, text: str = "hello?") -> None:
    await gateway.say(f"reverie, {text}", sender="ann", room=room)


async def test_a_hundred_rooms_are_answered_side_by_side(tmp_path: Path) -> None:
    rooms, model = [f"room{number}" for number in range(99)], Held()
    async with running(tmp_path, model, rooms=rooms) as gateway:
        for room in rooms:
            await asked_in(gateway, room)
        await gateway.asked(99)  # all of them, before any is answered
        model.go.set()
        await gateway.screen.until(99)
    assert sorted(part.to.room for part in gateway.screen.parts) == sorted(rooms)


async def test_who_has_to_wait_for_others_is_told_once_and_answered_in_turn(tmp_path: Path) -> None:
    clock, model = ManualClock(), Held()
    async with running(
        tmp_path, model, rooms=ROOMS, clock=clock, dmn={"parallel_turns": 3}
    ) as gateway:
        for room in ROOMS[:4]:  # one of the three is for direct chats alone
            await asked_in(gateway, room)
            await asyncio.sleep(0.02)
        await asked_in(gateway, ROOMS[0], "and again?")
        await gateway.asked(2)
        clock.advance(14)
        await asyncio.sleep(0.02)
        assert gateway.screen.parts == []
        while len(gateway.screen.parts) < 2:
            clock.advance(0.5)
            await asyncio.sleep(0.005)
        assert clock.monotonic() >= 15
        assert [(part.to.room, part.body, part.style) for part in gateway.screen.parts] == [
            (room, QUEUED_TEXT, "notice") for room in ROOMS[2:4]
        ]
        model.go.set()
        await until(
            lambda: len([one for one in gateway.screen.parts if one.body.startswith(ANSWER)]) >= 5
        )
        taken_up = [one.conversation_id for one in model.requests][:5]
        assert len(set(taken_up[:4])) == 4, "nobody is taken up twice before all are once"
        assert taken_up[4] == taken_up[0]
        queued = [part for part in gateway.screen.parts if part.body == QUEUED_TEXT]
        assert len(queued) == 2
        assert QUEUED_TEXT not in str(model.requests[-1].conversation)
