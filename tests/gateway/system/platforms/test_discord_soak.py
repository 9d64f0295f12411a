"""The whole gateway on Discord while everything goes wrong at random: each message is answered once.

Run it with `-m system -s` to see the figures.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.channels.discord.faults_kit import SAY
from tests.gateway.system.platforms.discord_kit import Town, town
from tests.kits.delivery_judge import Verdict


async def _trouble(it: Town, seconds: float) -> Counter[str]:
    """Things go wrong at random, while people talk."""
    count: Counter[str] = Counter()
    sends = ("500 before", "500 after", "502 after", "reset before", "reset after", "silent", "slow", "429")
    links = ("cut", "close", "reconnect", "forget", "invalid", "stutter")
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        await asyncio.sleep(it.random.uniform(0.01, 0.15))
        it.say(it.random.choice(it.rooms))
        if it.random.random() < 0.25:
            what: Any = it.random.choice(sends)
            it.api.faults.add(SAY, what)
            count[what] += 1
        if it.random.random() < 0.06:
            link = it.random.choice(links)
            count[link] += 1
            match link:
                case "close":
                    it.api.cut(it.random.choice((1000, 1001, 1011, 4000, 4009)))
                case "reconnect":
                    it.api.ask_reconnect()
                case "forget":
                    it.api.forget()
                    it.api.cut()
                case "invalid":
                    it.api.faults.invalid_sessions = 1
                    it.api.faults.resumable = it.random.random() < 0.5
                    it.api.cut()
                case "stutter":
                    it.api.raw('{"op": 0, "t": "MESSAGE_CREATE", "s": 7, "d": {"id": []}}')
                case _:
                    it.api.cut()
    return count


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_half_a_minute_of_trouble_costs_nothing(seed: int, tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(_soak(tmp_path, seed, kills=0), 180))


@pytest.mark.soak
def test_kills_amid_trouble_cost_nothing(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(_soak(tmp_path, 3, kills=12), 240))


async def _soak(directory: Path, seed: int, *, kills: int) -> Verdict:
    async with town(directory, seed, request_timeout=0.5) as it:
        it.slow_s = 0.2
        if kills:
            count: Counter[str] = Counter()
            for _ in range(kills):
                sessions = len(it.api.sessions)
                await it.start()
                await it.api.until(lambda before=sessions: len(it.api.sessions) > before)  # type: ignore[misc] # mypy cannot infer a lambda with a default
                if not it.tokens:  # as below
                    await it.answered(it.say(it.direct))
                count += await _trouble(it, it.random.uniform(0.2, 4))
                await it.kill()
                for room in it.rooms:
                    it.say(room)
            it.api.faults.rest.clear()
            await it.start()
            await it.calm(90)
            await it.answered(*it.tokens[-5:])
            await it.calm()
            await it.end()
            assert it.api.token not in it.log
            assert "Traceback" not in it.log
        else:
            async with it.inside():
                await it.api.connected()
                await it.answered(it.say(it.direct))  # Discord lists no direct chats: only known ones can be asked for
                count = await _trouble(it, 30)
                it.api.faults.rest.clear()
                await it.answered(*it.tokens[-5:], limit_s=60)
                await it.calm()
        found = await it.fair()
        print(f"\n{found.accepted} accepted, {found.answered} answered, {found.uncertain} uncertain, {kills} kills")
        print(
            f"{len(it.api.identifies)} identifies, {len(it.api.resumes)} resumes; faults: {dict(count.most_common())}"
        )
        print(f"reasons: {dict(found.reasons)}")
        return found
