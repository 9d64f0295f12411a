"""The stream of events of the API: what it tells of turns, tools and notifications, and what it
leaves out."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.context.observer import AnswerGrew, Progress, RunningTurn, ThinkingGrew, ToolProgress
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.facts import TurnId
from gateway.plugins.dashboard import Dashboard, api_views, live_events
from gateway.plugins.dashboard.live_events import EventBroadcaster
from gateway.plugins.http import site
from reverie.testing.waiting import until
from tests.kits.model_gateway import Home, settings
from tests.kits.ops import TOKEN, Operated, operated

SILENT = [{"id": "reverie", "bindings": [{"listen": "mention"}]}]


async def chatter(gateway: Operated, count: int, text: str = "word {}") -> None:
    for number in range(count):
        await gateway.console.receive_message(text.format(number), sender="ann", room="lobby")


async def connected(gateway: Operated, buffer_bytes: int) -> socket.socket:
    """Return a listener that reads only when the test does."""
    loop, made = asyncio.get_running_loop(), socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    made.setblocking(False)
    await loop.sock_connect(made, ("127.0.0.1", gateway.port))
    head = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    await loop.sock_sendall(made, head.encode())
    return made


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Operated]:
    async with operated(tmp_path, agents=SILENT) as made:
        yield made


async def test_a_slow_listener_is_told_how_much_it_missed_and_slows_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "MAX_BUFFER_BYTES", 20_000)
    async with operated(tmp_path, agents=SILENT) as gateway, gateway.listening() as quick:
        loop, slow = asyncio.get_running_loop(), await connected(gateway, 2_048)
        heard = await loop.sock_recv(slow, 1_000)  # and then it does not read for long
        assert heard.startswith(b"HTTP/1.1 200")
        for _ in range(40):
            await chatter(gateway, 20, "x" * 3_000 + " {}")
            await asyncio.sleep(0)
        await quick.until(
            lambda told: (
                len(told.named("notification")) + sum(one["count"] for one in told.named("lost"))
                >= 800
            )
        )
        async with asyncio.timeout(120):
            while b"event: lost" not in heard:
                heard = heard[-100:] + await loop.sock_recv(slow, 65_536)
        slow.close()


async def test_a_listener_that_takes_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "STALLED_READER_S", 0.2)
    async with operated(tmp_path, agents=SILENT) as gateway:
        stuck = await connected(gateway, 2_048)
        await asyncio.get_running_loop().sock_recv(stuck, 1_000)
        logging.getLogger("reverie.test").warning("x" * 3_000)
        gone = False
        async with asyncio.timeout(120):
            while not gone:
                for _ in range(300):
                    logging.getLogger("reverie.test").warning("x" * 3_000)
                await asyncio.sleep(0.15)
                flows = [
                    task for task in asyncio.all_tasks() if "run_asgi" in repr(task.get_coro())
                ]
                gone = not flows
        stuck.close()


async def test_listeners_are_bounded_and_each_leaves_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events, "MAX_STREAMS", 2)
    async with operated(tmp_path) as gateway:
        async with gateway.listening(), gateway.listening():
            answer = await gateway.client.get("/api/events")
            assert answer.status_code == 503
            assert (await gateway.client.get("/api/status")).status_code == 200
        async with asyncio.timeout(120):
            while True:
                async with gateway.client.stream("GET", "/api/events") as answer:
                    if answer.status_code == 200:
                        break


async def test_listeners_do_not_count_as_requests_and_live_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(api_views, "RESPONSE_TIMEOUT_S", 0.5)
    async with operated(tmp_path, agents=SILENT) as gateway, gateway.listening() as told:
        await asyncio.sleep(0.8)
        await chatter(gateway, 1)
        await told.until(lambda told: told.named("notification"))


async def test_what_happens_at_once_is_written_at_once_in_few_pieces(gateway: Operated) -> None:
    loop, listening = asyncio.get_running_loop(), await connected(gateway, 1_000_000)
    pieces, heard = list[float](), b""
    saying = asyncio.create_task(chatter(gateway, 200))
    async with asyncio.timeout(120):
        while b"word 199" not in heard:
            heard += await loop.sock_recv(listening, 1_000_000)
            pieces.append(time.monotonic())
    await saying
    took_s = pieces[-1] - pieces[0]
    assert len(pieces) <= 3 + 2 * (
        took_s / 0.1 + 1
    )  # ten times a second, each perhaps in two packets
    listening.close()


async def test_warnings_are_told_and_end_with_the_listener(tmp_path: Path) -> None:
    log = logging.getLogger("reverie.test")
    async with operated(tmp_path) as gateway:
        async with gateway.listening() as told:
            log.info("not this")
            log.warning("something is odd: %s", "password=hunter2hunter2")
            await asyncio.to_thread(log.error, "from elsewhere")
            await told.until(lambda told: len(told.named("log")) == 2)
            first, second = told.named("log")
            assert (first["level"], first["logger"]) == ("warning", "reverie.test")
            assert first["message"] == "something is odd: password=[redacted]"
            assert (second["level"], second["message"]) == ("error", "from elsewhere")
        handlers = logging.getLogger("reverie").handlers
        await until(
            lambda: not any(isinstance(one, live_events.WarningLogHandler) for one in handlers)
        )


async def test_no_secret_comes_out_by_any_way(tmp_path: Path) -> None:
    key, said = "sk-ant-api03-" + "Zq9" * 24, "the-configured-secret-4711"
    script = Script(
        rules=(
            ScriptRule(match="look", calls=(("bash", json.dumps({"command": f"echo {said}"})),)),
            ScriptRule(match=".", reply=f"I know {key} and {said}."),
        ),
        pace_s=0.02,
    )
    async with operated(tmp_path, script, ops={"token": said}) as gateway:
        gateway.client.headers["Authorization"] = f"Bearer {said}"
        async with gateway.listening() as told:
            await gateway.console.receive_message(f"look at {key} and {said}", sender="ann")
            await gateway.post("/api/say", {"text": f"remember {said} and {key}"})
            await gateway.client.post(
                "/api/orders", json={"kind": "kill", "conversation": f"demo/{said}"}
            )
            logging.getLogger("reverie.test").warning("it is %s", said)
            await told.until(lambda told: len(told.named("delivery")) >= 2 and told.named("log"))
            everything = told.raw
            for path in (
                "/api/status",
                "/api/conversations",
                "/api/conversation?id=demo/ann",
                "/api/conversation?id=console/operator",
                "/api/notifications",
                "/api/turns",
                "/api/outbox",
                "/api/audit",
            ):
                everything += (await gateway.client.get(path)).text
            assert said not in everything
            assert key not in everything
            assert "[redacted]" in everything


async def test_the_gateway_ends_soon_although_somebody_listens(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway, gateway.listening() as told:
        await gateway.console.receive_message("hello", sender="ann")
        await told.until(lambda told: told.named("delivery"))
        gateway.stop.set()
        await gateway.task


# What is told of a turn as it goes on: nothing of a secret that grows, and nothing kept of turns
# that are over

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SECRET = "the-configured-secret-4711"
PLACE = Address(channel=ChannelName("demo"), room=RoomId("lobby"))


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[EventBroadcaster]:
    home = Home(settings(tmp_path), ManualClock(NOW), None, str)
    await home.begin()
    gateway = home._gateway
    gateway.handle.redactor.add_secrets([SECRET])
    dashboard = gateway.plugins.get(Dashboard)
    assert dashboard is not None
    try:
        yield dashboard.open()
    finally:
        await home.end()


def turn(number: int) -> RunningTurn:
    return RunningTurn(
        turn=TurnId(f"t{number}"),
        agent="ana",
        conversation=PLACE.conversation,
        autonomous=False,
        cause="addressed",
        since=NOW,
    )


class Listener:
    """A client of the stream, which waits for each batch."""

    def __init__(self, events: EventBroadcaster) -> None:
        self._events, self._chunks = events, events.subscribe()

    async def hear(self) -> list[dict[str, Any]]:
        """Return the events of the next batch."""
        self._events.on_warning("warning", "test", "the batch has something")
        lines = (await anext(self._chunks)).decode().splitlines()
        told = [json.loads(line.removeprefix("data: ")) for line in lines if line[:5] == "data:"]
        return [one for one in told if one.get("logger") != "test"]

    async def __aenter__(self) -> Self:
        await anext(self._chunks)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._chunks.aclose()


async def test_a_secret_that_is_thought_in_pieces_is_taken_out(here: EventBroadcaster) -> None:
    tracker, running, thoughts = here.api.turn_tracker, turn(1), list[str]()
    pieces = ("it is ", SECRET[:9], SECRET[9:20], SECRET[20:], " and so\non, I thi", "nk")
    happened: list[Progress] = [ThinkingGrew(piece) for piece in pieces]
    happened.append(ToolProgress(call="c", name="x", arguments="", state="started"))
    async with Listener(here) as listener:
        with tracker.track(running):
            for news in happened:
                tracker.tell(running.turn, news)
                thoughts += [one["delta"] for one in await listener.hear() if "delta" in one]
    assert "".join(thoughts) == "it is [redacted] and so\non, I think"


async def test_a_long_answer_that_comes_at_once_is_told_whole(here: EventBroadcaster) -> None:
    running = turn(1)
    async with Listener(here) as listener:
        with here.api.turn_tracker.track(running):
            here.api.turn_tracker.tell(running.turn, AnswerGrew("word " * 2_000 + "last"))
            told = [one["delta"] for one in await listener.hear() if "delta" in one]
    assert told == [("word " * 2_000).rstrip()]


async def test_of_a_turn_that_is_over_nothing_is_kept(here: EventBroadcaster) -> None:
    """Also where its end was among what was too much to be told."""
    running, told = turn(1), list[dict[str, Any]]()
    async with Listener(here) as listener:
        for _ in range(2):
            with here.api.turn_tracker.track(running):
                here.api.turn_tracker.tell(running.turn, ThinkingGrew("let me see"))
                here.api.turn_tracker.tell(running.turn, AnswerGrew("hello there"))
            told += [one for one in await listener.hear() if "delta" in one]
    assert [one["delta"] for one in told] == ["let me ", "hello"] * 2
    assert [one["begins"] for one in told if "begins" in one] == [True, True]
