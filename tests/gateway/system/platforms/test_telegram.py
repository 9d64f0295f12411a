"""The whole gateway on Telegram: whatever breaks, each update is handled once and each reply is
visible once.

Or else the log says that nobody knows, and why. Over real sockets, a real store and, where
something is killed, the real program. Run the slow ones with `-s` to see the figures.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway.core.events import DeliveryReport
from gateway.core.facts import CursorMoved, IdentityLinked, PostQueued
from tests.gateway.system.platforms.telegram_kit import Town, town
from tests.kits.channels import story
from tests.kits.delivery_judge import DOUBT, Verdict, fair
from tests.kits.waiting import until
from tests.servers.bot_api_http import BAD_GATEWAY
from tests.servers.bot_api_world import Person
from tests.servers.model_api import Answer

CODE = re.compile(r"\b[A-Z0-9]{4}-[A-Z0-9]{4}\b")


def people(it: Town, count: int) -> list[Person]:
    return [it.api.person(f"p{number}") for number in range(count)]


@story
async def test_a_storm_of_429_delays_only_its_own_chat_and_costs_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        ann, ben = people(it, 2)
        storm = it.api.faults.fail(
            "sendMessage", 429, retry_after=1, times=3, where=lambda call: call["chat_id"] == ann.id
        )
        async with it.inside():
            stormy = it.say(ann)
            await it.api.until(lambda: storm.met > 0)
            calm = it.say(ben)
            await it.answered(calm)
            assert not it.heard(stormy)
            await it.answered(stormy)
            assert storm.met == 3
            await it.calm()
        found = await it.verdict()
        fair(found)
        assert found.uncertain == 0
        gaps_s = [call.at_s for call in it.api.asked("sendMessage") if call["chat_id"] == ann.id]
        assert all(after - before >= 1 for before, after in pairwise(gaps_s))


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "dropped before": ("drop", {}),
    "dropped after": ("drop", {"after": True}),
    "silent before": ("stall", {}),
    "silent after": ("stall", {"after": True}),
}


@pytest.mark.parametrize("what", BROKEN)
@story
async def test_a_reply_without_an_answer_is_there_once(what: str, tmp_path: Path) -> None:
    kind, more = BROKEN[what]
    async with town(tmp_path) as it:
        (ann,) = people(it, 1)
        async with it.inside():
            await it.answered(it.say(ann))
            (it.api.faults.drop if kind == "drop" else it.api.faults.stall)("sendMessage", **more)
            await it.answered(it.say(ann))
            await it.answered(it.say(ann))
            await it.calm()
        found = await it.verdict()
        fair(found)
        assert found.uncertain == 0
        assert [delivery.state for delivery in await it.facts(DeliveryReport)] == ["sent"] * 3


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("page", [False, True])
@story
async def test_a_reply_that_met_a_failing_server_is_there_once(
    page: bool, after: bool, tmp_path: Path
) -> None:
    async with town(tmp_path) as it:
        (ann,) = people(it, 1)
        async with it.inside():
            await it.answered(it.say(ann))
            if page:
                it.api.faults.say(
                    "sendMessage", BAD_GATEWAY, status=502, kind="text/html", after=after
                )
            else:
                it.api.faults.fail("sendMessage", 500, after=after)
            broken = it.say(ann)
            await it.answered(broken)
            await it.answered(it.say(ann))
            await it.calm()
        fair(await it.verdict())
        assert it.heard(broken) == 1
        assert [delivery.state for delivery in await it.facts(DeliveryReport)] == ["sent"] * 3


@story
async def test_a_storm_of_everything_at_once_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with town(tmp_path, seed=6) as it:
        faults, everybody, roll = it.api.faults, people(it, 20), it.random.random
        storms = [
            faults.fail(
                "sendMessage", 429, retry_after=1, times=None, where=lambda _: roll() < 0.3
            ),
            faults.drop("sendMessage", times=None, where=lambda _: roll() < 0.1),
            faults.drop("sendMessage", after=True, times=None, where=lambda _: roll() < 0.1),
            faults.fail("sendMessage", 500, after=True, times=None, where=lambda _: roll() < 0.1),
            faults.hang_up("*", times=None, where=lambda _: roll() < 0.2),
            faults.drop("getUpdates", after=True, times=None, where=lambda _: roll() < 0.1),
        ]
        async with it.inside():
            said = 0
            while said < 100 or not all(
                storm.met for storm in storms
            ):  # how many calls there are, time decides
                it.say(it.random.choice(everybody))
                said += 1
                await asyncio.sleep(0.02)
            await it.calm()
        fair(await it.verdict())


@story
async def test_the_position_moves_in_the_transaction_of_what_was_heard(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        for person in people(it, 50):
            it.say(person)
        async with it.inside():
            await it.calm()
        entries = await it.entries()
        moved = [entry for entry in entries if isinstance(entry.fact, CursorMoved)]
        assert moved
        assert it.api.updates.confirmed == sorted(it.api.updates.confirmed)
        fair(await it.verdict())


@pytest.mark.system
def test_kills_amid_failing_sends_lose_and_double_nothing_and_tell_what_is_uncertain(
    tmp_path: Path,
) -> None:
    kills(tmp_path, rounds=4, seed=5, spoils=SPOILS)


SPOILS = 0.08
"""Part of the calls that each kind of fault meets."""


def spoil(it: Town, part: float) -> None:
    """Let sends fail in every way, before and after they are carried out, until the faults are
    cleared."""
    faults, roll = it.api.faults, it.random.random
    for after in (False, True):
        more: dict[str, Any] = {"times": None, "after": after, "where": lambda _: roll() < part}
        faults.drop("sendMessage", **more)
        faults.fail("sendMessage", 500, **more)
        faults.say("sendMessage", BAD_GATEWAY, status=504, kind="text/html", **more)
    faults.say("getMe", BAD_GATEWAY, status=502, times=None, where=lambda _: roll() < part)
    faults.fail("editMessageReplyMarkup", 500, times=None, where=lambda _: roll() < part)
    faults.drop("getUpdates", after=True, times=None, where=lambda _: roll() < part)


CONFIRMS_TOO_EARLY = """
import asyncio
import sys
from channels.telegram.updates import TelegramReceiver

assert TelegramReceiver.take, "what is replaced exists"

async def take(self, updates):
    batch = self.reader.read_batch(updates, self.clock.now())
    await self._emit((), cursor=batch.cursor.to_json())
    print("ran ahead", file=sys.stderr, flush=True)
    await asyncio.sleep(5)
    await self._emit(batch.notifications)
    self.reader.durable_cursor = batch.cursor
    return len(updates)

TelegramReceiver.take = take
"""


@pytest.mark.system
def test_a_position_that_runs_ahead_of_what_was_heard_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="an update was lost"):
        kills(tmp_path, rounds=5, seed=3, sabotage=CONFIRMS_TOO_EARLY, moments=("taking",))


MOMENTS = ("polled", "unconfirmed", "sending", "asked", "sending", "launch", "unconfirmed")
"""When to kill; see `_until`."""


def kills(
    directory: Path,
    *,
    rounds: int,
    seed: int,
    sabotage: str = "",
    moments: Sequence[str] = MOMENTS,
    spoils: float = 0.0,
) -> Verdict:
    return asyncio.run(_kills(directory, rounds, seed, sabotage, moments=moments, spoils=spoils))


async def _kills(
    directory: Path, rounds: int, seed: int, sabotage: str, *, moments: Sequence[str], spoils: float
) -> Verdict:
    begun_s, killed = time.monotonic(), Counter[str]()
    async with town(directory, seed, sabotage) as it:
        it.slow_s, it.long = 0.1, True
        everybody, rooms = (
            people(it, 25),
            [it.api.group(name) for name in ("one", "two", "three", "four")],
        )
        for turn in range(rounds):
            for _ in range(50):
                room = it.random.choice([None, None, None, None, *rooms])
                it.say(it.random.choice(everybody), room)
            if spoils:
                spoil(it, spoils)
            await it.start()
            moment = moments[turn % len(moments)]
            await _until(it, moment)
            killed[moment] += 1
            await it.kill()
            it.api.faults.clear()
        await it.start()
        await it.calm()
        await it.end()
        found = await it.verdict()
        row = {
            "rounds": rounds,
            "updates": len(it.tokens),
            "answered": found.answered,
            "uncertain and told": found.uncertain,
        }
        row |= {
            "lost": found.lost,
            "duplicated": found.duplicated,
            "asked twice": found.asked_twice,
        }
        row |= {"model requests": len(it.asked), "seconds": round(time.monotonic() - begun_s)}
        print("\n" + " | ".join(f"{name}: {value}" for name, value in row.items()), dict(killed))
        fair(found)
        entries = [one.fact for one in await it.entries()]
        notices = {
            str(fact.post.key)
            for fact in entries
            if isinstance(fact, PostQueued) and DOUBT in fact.post.text
        }
        unsettled = {
            fact.post
            for fact in entries
            if isinstance(fact, DeliveryReport) and fact.state == "uncertain"
        }
        assert len(notices) == len(unsettled - notices), "each unsettled answer is told once"
        assert "Traceback" not in it.log
        assert it.api.token not in it.log
        return found


async def _until(it: Town, moment: str) -> None:
    """Wait for a moment in the middle of what the new process has to do."""
    calls, asked = len(it.api.calls), len(it.asked)
    sent, ran_ahead = len(it.api.asked("sendMessage")), it.log.count("ran ahead")
    within = it.random.uniform
    match moment:
        case "launch":
            await asyncio.sleep(within(0.3, 1.5))
        case "polled":
            await _reached(
                it,
                lambda: any(
                    call.method == "getUpdates" and call.answer for call in it.api.calls[calls:]
                ),
            )
            await asyncio.sleep(within(0, 0.03))
        case "taking":
            await _reached(it, lambda: it.log.count("ran ahead") > ran_ahead)
        case "asked":
            more = it.random.randrange(1, 12)
            await _reached(it, lambda: len(it.asked) >= asked + more)
        case "sending":
            more = it.random.randrange(1, 15)
            await _reached(it, lambda: len(it.api.asked("sendMessage")) >= sent + more)
            await asyncio.sleep(it.random.choice((0, 0, within(0, 0.004), within(0, 0.03))))
        case _:
            it.api.faults.stall("sendMessage", after=it.random.random() < 0.5, times=None)
            await _reached(it, lambda: len(it.api.asked("sendMessage")) > sent)
            await asyncio.sleep(within(0, 0.1))


async def _reached(it: Town, moment: Callable[[], bool]) -> None:
    """Return at that moment, or once nothing is left to do that could bring it."""
    idle = asyncio.create_task(it.calm())
    try:
        await until(lambda: moment() or idle.done(), limit_s=300)
    finally:
        idle.cancel()
        await asyncio.gather(idle, return_exceptions=True)


@story
async def test_a_link_to_the_bot_hands_in_a_code_or_a_word(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        ann, ben = people(it, 2)
        it.model.default = lambda _: Answer(text="Hello.")
        async with it.inside():
            it.api.commands(ann, ann, "/start ref_12345")
            await it.api.until(lambda: len(it.api.said(ann)) == 1)
            assert not it.model.seen, "nothing begins by it"
            it.api.private_says(ann, "what now?")
            await it.api.until(lambda: "Hello." in it.api.said(ann))
            assert (
                'p0 opened this chat through a link with the word: "ref_12345"'
                in it.model.seen[-1].body["messages"][-1]["content"]
            )
            it.api.commands(ann, ann, "/link")
            await it.api.until(lambda: len(it.api.said(ann)) == 3)
            code, *_ = CODE.findall(it.api.said(ann)[-1])
            it.api.commands(ben, ben, f"/start {code}")
            await it.api.until(lambda: len(it.api.said(ben)) == 1 and len(it.api.said(ann)) == 4)
            second, *_ = CODE.findall(it.api.said(ben)[0])
            it.api.commands(ann, ann, f"/start {second}")
            await it.api.until(lambda: len(it.api.said(ben)) == 2)
            it.api.commands(ben, ben, f"/start {second}")
            await it.api.until(lambda: len(it.api.said(ben)) == 3)
        assert len(await it.facts(IdentityLinked)) == 1
        assert it.api.said(ben)[2].startswith("I do not know this code.")
