"""The whole gateway on Discord: whatever breaks, each message is answered once, also what came while it was away.

Or else the log says that nobody knows, and why. Over real sockets, a real store and, where something is killed, the
real program. Run the slow ones with `-s` to see the figures.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway import app
from gateway.events import Delivery
from gateway.settings_load import parse
from tests.channels.discord_faults_kit import SAY, Hurried, story
from tests.gateway.discord_kit import NAME, Town, town
from tests.gateway.kill_judge import Verdict
from tests.servers.discord_api import DiscordApi, Options


@pytest.mark.parametrize("what", ["500 before", "500 after", "reset before", "reset after", "silent", "429"])
@story
async def test_an_answer_is_seen_once_whatever_becomes_of_its_request(what: Any, tmp_path: Path) -> None:
    async with town(tmp_path) as it, it.inside():
        await it.api.connected()
        it.api.faults.add(SAY, what)
        await it.answered(it.say())
        await it.calm()
        assert (await it.fair()).uncertain == 0
        assert {call.body["nonce"] for call in it.api.made(SAY)} == {it.api.made(SAY)[0].body["nonce"]}


@pytest.mark.parametrize("what", ["reset after", "silent"])
@story
async def test_a_storm_after_processing_is_seen_once_and_uncertain(what: Any, tmp_path: Path) -> None:
    async with town(tmp_path, request_timeout=0.2) as it, it.inside():
        await it.api.connected()
        it.api.faults.add(SAY, what, times=10**6)
        await it.answered(it.say())
        await it.calm()
        (ended,) = await it.facts(Delivery)
        assert ended.state == "uncertain"
        assert ended.reason
        await it.fair()


@pytest.mark.parametrize("what", ["cut", "close", "reconnect", "invalid", "gone", "no acknowledgements"])
@story
async def test_a_cut_in_the_middle_of_a_turn_costs_nothing(what: str, tmp_path: Path) -> None:
    async with town(tmp_path, options=Options(heartbeat_s=4, heartbeat_grace_s=60)) as it, it.inside():
        it.slow_s = 0.3
        await it.api.connected()
        tokens = [it.say(room) for room in it.rooms]
        await it.api.until(lambda: (it.api.live != [] and it.asked != []) or it.heard(tokens[0]) > 0)
        match what:
            case "cut":
                it.api.cut()
            case "close":
                it.api.cut(4000)
            case "reconnect":
                it.api.ask_reconnect()
            case "invalid":
                it.api.faults.invalid_sessions = 2
                it.api.cut()
            case "gone":
                it.api.forget()
                it.api.cut()
            case _:
                it.api.faults.hold_acks = True
                await it.api.until(lambda: it.api.connections[0].close_code is not None)
                it.api.faults.hold_acks = False
        tokens += [it.say(room) for room in it.rooms]
        await it.answered(*tokens)
        await it.calm()
        assert (await it.fair()).uncertain == 0


@story
async def test_what_was_said_while_it_was_stopped_is_answered_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        async with it.inside():
            await it.api.connected()
            await it.answered(it.say(), it.say(it.direct))
        old = it.say(ago_s=5000)
        away = [it.say(room) for room in it.rooms]
        async with it.inside():
            await it.answered(*away)
            await it.answered(it.say())
            await it.calm()
        assert it.heard(old) == 0
        assert (await it.fair()).uncertain == 0


@story
async def test_a_room_that_is_too_fast_does_not_stall_another(tmp_path: Path) -> None:
    async with town(tmp_path) as it, it.inside():
        await it.api.connected()
        it.api.faults.add(f"POST /channels/{it.api.room}/messages", "429", times=2, retry_after_s=1.0)
        slow = it.say()
        await it.api.until(lambda: bool(it.api.made(SAY)))
        begun_s = time.monotonic()
        await it.answered(it.say(it.api.other), it.say(it.direct))
        assert time.monotonic() - begun_s < 0.9
        assert it.heard(slow) == 0
        await it.answered(slow)
        await it.calm()
        assert (await it.fair()).uncertain == 0


@pytest.mark.parametrize("refused", ["token", "intent"])
def test_a_refused_bot_stops_and_another_goes_on(
    refused: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = Options(token="the.other-bots.token", message_content=refused != "intent")

    @story
    async def run() -> None:
        async with town(tmp_path) as it, DiscordApi(options) as closed:
            token = "wrong.token-of.mine" if refused == "token" else closed.token
            here = it.config["channels"][NAME]
            urls = {"api_url": closed.api_url, "gateway_url": closed.gateway_url}
            it.config["channels"]["discord.closed"] = here | urls | {"token": token}
            async with it.inside():
                await it.api.connected()
                await it.answered(it.say())
                said = "stays off: .*token" if refused == "token" else "stays off: .*MESSAGE CONTENT"
                assert [r for r in caplog.records if r.name == "reverie.app" and re.search(said, r.getMessage())]
                await it.answered(it.say())
            await it.fair()
            lines = [r.getMessage() + str(r.exc_info and r.exc_info[1]) for r in caplog.records]
            assert not [line for line in lines if any(secret in line for secret in (it.api.token, token))]
            assert (tmp_path / "reverie.db").read_bytes().find(token.encode()) == -1

    run()


@story
async def test_when_every_bot_is_refused_the_gateway_says_so(tmp_path: Path) -> None:
    async with town(tmp_path, token="wrong") as it:
        with pytest.raises(app.NothingLeft):
            await app.run(parse(it.config, tmp_path), asyncio.Event(), clock=Hurried(20))


@story
async def test_a_killed_process_answers_what_was_said_while_it_was_dead(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.start()
        await it.api.connected()
        await it.answered(it.say())
        await it.kill()
        away = [it.say(room) for room in (it.api.room, it.api.other)]
        await it.start()
        await it.answered(*away)
        await it.calm()
        await it.end()
        assert (await it.fair()).uncertain == 0
        assert it.api.token not in it.log


@story
async def test_a_process_killed_between_the_message_and_its_receipt_does_not_say_it_twice(tmp_path: Path) -> None:
    async with town(tmp_path, request_timeout=30) as it:
        await it.start()
        await it.api.connected()
        it.api.faults.add(SAY, "silent")
        await it.answered(it.say())
        await it.kill()
        await it.start()
        await it.calm()
        await it.end()
        assert (await it.fair()).uncertain == 0
        assert len(it.api.made(SAY)) == 2


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_half_a_minute_of_trouble_costs_nothing(seed: int, tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(_soak(tmp_path, seed, kills=0), 180))


@pytest.mark.slow
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
                count += await _trouble(it, it.random.uniform(0.2, 4))
                await it.kill()
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
