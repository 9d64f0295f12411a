"""What a benchmark of the whole gateway needs: `reverie run` in a process of its own, and a model
to ask.

Times are `time.perf_counter()` of the benchmark's process, taken where the bytes pass.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from reverie.testing.gateway import UNBOUNDED, UNHURRIED
from reverie.testing.servers.ircd import Client, Ircd

REVERIE = Path(sys.executable).with_name("reverie")
NICK, ROOM = "reverie", "#bench"
ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 60.0

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
"""Compiled code is kept between starts, as it is where the gateway is installed: compiling takes
0.3 s."""


class Figure(NamedTuple):
    """One line of the table."""

    name: str
    value: float
    unit: str
    promise: str = ""


def show(figures: Iterable[Figure]) -> None:
    """Print them as a table."""
    print(f"{'figure':46} {'measured':>10} {'unit':8} promise")
    for name, value, unit, promise in figures:
        print(f"{name:46} {value:10.3f} {unit:8} {promise}")


def write_config(
    folder: Path,
    *,
    irc_port: int,
    model_url: str | None,
    store: Path,
    beside: Mapping[str, Mapping[str, object]] | None = None,
    rooms: Sequence[str] = (ROOM,),
    store_url: str | None = None,
) -> None:
    """A gateway on loopback IRC, and on what stands `beside` it.

    `model_url` None: the scripted model; else an openai provider there.
    """
    provider: dict[str, object] = {
        "kind": "scripted",
        "replies": [{"match": ".", "reply": "all is well"}],
    }
    model: dict[str, object] = {"provider": "p"}
    if model_url is not None:
        provider = {"kind": "openai", "base_url": model_url, "api_key": "none"}
        model |= {"name": "bench"}
    channel = {
        "platform": "irc",
        "host": "127.0.0.1",
        "port": irc_port,
        "tls": False,
        "nick": NICK,
        "rooms": list(rooms),
        "flood": {"burst": 1000, "per_s": 100_000.0},
    }
    config = {
        "channels": {"irc.bench": channel} | dict(beside or {}),
        "access": {"rates": UNHURRIED, "budgets": UNBOUNDED},
        "agents": [
            {"id": "reverie", "bindings": [{"match": {"channel": "*"}, "listen": "mention"}]}
        ],
        "llm": {"providers": {"p": provider}, "models": {"main": model}},
        "attention": {"coalesce": 0},
        "store": {"path": str(store), "url": store_url},
        "ops": {"port": 0},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reverie.yaml").write_text(json.dumps(config), encoding="utf-8")


class Wire(Ircd):
    """An IRC server that stamps what the bot writes: `stamps[i]` is when `lines[i]` was dealt
    with."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps: list[float] = []

    def handle(self, client: Client, line: str) -> None:
        self.stamps.append(time.perf_counter())
        super().handle(client, line)

    def seen_s(self, head: str, *, after: int = 0) -> float | None:
        """When the first line that begins with `head` (behind its tags) came, among those from
        number `after` on."""
        lines = list(zip(self.stamps, self.lines, strict=False))[
            after:
        ]  # a line is stamped as it is dealt with
        return next((at for at, line in lines if line.startswith(head)), None)

    async def said_s(self, head: str, *, after: int) -> float:
        """When it came, as soon as it has."""
        await self.until(lambda: self.seen_s(head, after=after) is not None)
        seen_s = self.seen_s(head, after=after)
        assert seen_s is not None
        return seen_s


@dataclass(slots=True)
class Gateway:
    """A running `reverie run`, or another bot."""

    process: asyncio.subprocess.Process
    launched_s: float
    """Just before it was started."""
    joined_s: float
    """When its JOIN was on the wire."""
    up_s: float
    """When its log said that the link is up; of several links, the last."""
    bot: Client

    def cpu_s(self) -> float:
        """Processor time that it has taken until now, also in the kernel."""
        fields = (
            Path(f"/proc/{self.process.pid}/stat")
            .read_text(encoding="ascii")
            .rpartition(") ")[2]
            .split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """What it holds in memory now: VmRSS."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def gateway_command(config: Path) -> tuple[object, ...]:
    return REVERIE, "run", "--config", config


@contextlib.asynccontextmanager
async def running(
    wire: Wire, *command: object, links: int = 1, tree: Path | None = None
) -> AsyncIterator[Gateway]:
    """Start a program, wait until its links are up, hand it over, stop it. `tree`: the checkout
    whose code it is; None: this one. Raises RuntimeError with its log if they do not come up.
    """
    already = len(wire.lines)
    launched_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env=ENVIRONMENT | {"PYTHONPATH": str(tree or ROOT)},
    )
    assert process.stderr is not None
    reading: asyncio.Task[None] | None = None
    try:
        up_s = await asyncio.wait_for(_up(process.stderr, links), START_LIMIT_S)
        reading = asyncio.create_task(_drain(process.stderr))
        bot = await wire.joined(NICK, ROOM)
        yield Gateway(process, launched_s, await wire.said_s("JOIN", after=already), up_s, bot)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        if reading is not None:
            reading.cancel()


async def _up(log: asyncio.StreamReader, links: int) -> float:
    told = []
    while line := await log.readline():
        links -= b" is up: " in line
        if not links:
            return time.perf_counter()
        told.append(line.decode())
    raise RuntimeError("the gateway did not come up:\n" + "".join(told))


async def _drain(log: asyncio.StreamReader) -> None:
    """An unread pipe would fill and stop the gateway."""
    while await log.read(65536):
        pass


class Answered(NamedTuple):
    """When each part of an answer was on the wire."""

    said_s: float
    requested_s: float
    """First byte of the request to the model."""
    written_s: float
    """Last byte of the model's answer."""
    replied_s: float


async def ask(
    wire: Wire, model: "FastModel", bot: Client, text: str, sender: str = "alice"
) -> Answered:
    """Say one line to the bot and wait for its answer."""
    already, asked, said_s = len(wire.lines), len(model.stamps), time.perf_counter()
    bot.raw(f":{sender}!a@host PRIVMSG {ROOM} :{NICK}: {text}\r\n".encode())
    replied_s = await wire.said_s("PRIVMSG", after=already)
    await wire.said_s("PING", after=already)
    await asyncio.sleep(0.005)  # what is written after a reply is not the next one's delay
    return Answered(said_s, model.stamps[asked], model.answered[asked], replied_s)


@dataclass(slots=True)
class FirstByte(asyncio.Protocol):
    """One connection of `answering`: a chat completion for every request, and the times of both."""

    stamps: list[float]
    """When the first byte of each request came. Shared by all connections."""
    answered: list[float]
    """When the last byte of each answer was written. Shared by all connections."""
    delay_s: float = 0.0
    """Time that the model takes."""
    _ahead: bytearray = field(default_factory=bytearray)
    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._ahead:
            self.stamps.append(time.perf_counter())
        self._ahead += data
        head, ended, body = bytes(self._ahead).partition(b"\r\n\r\n")
        if not ended or len(body) < _length(head):
            return
        self._ahead.clear()
        answer = _answer(len(body) // 4)
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, self._answer, answer)
        else:
            self._answer(answer)

    def _answer(self, answer: bytes) -> None:
        assert self._transport is not None
        self._transport.write(answer)
        self.answered.append(time.perf_counter())


def _length(head: bytes) -> int:
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    return int(fields[b"content-length"])


def _answer(prompt_tokens: int) -> bytes:
    """An answer whose prompt was read from the cache, but for its end."""
    frame = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "bench"}
    choices = [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "all is well"},
            "finish_reason": None,
        },
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 3,
        "total_tokens": prompt_tokens + 3,
        "prompt_tokens_details": {"cached_tokens": int(prompt_tokens * 0.99)},
    }
    events = [json.dumps(frame | {"choices": [choice]}) for choice in choices]
    events += [json.dumps(frame | {"choices": [], "usage": usage}), "[DONE]"]
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )


class FastModel:
    """A chat-completions server that costs next to nothing. The strict one is
    `reverie.testing.servers.model_api`."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.stamps: list[float] = []
        self.answered: list[float] = []
        """As in `FirstByte`."""
        self._delay_s = delay_s
        self.url = ""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: FirstByte(self.stamps, self.answered, self._delay_s), "127.0.0.1", 0
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
