"""`reverie demo`: the path of a message through a real gateway, without any setup.

A loopback IRC server, a gateway with an embedded configuration in `#lobby`, and an IRC client
behind the keyboard. A typed line goes over IRC to the channel, through stream, DMN, turn and
outbox, and the answer comes back the same way. With `--console` the terminal itself is the channel.
"""

import asyncio
import contextlib
import logging
import os
import select
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import irc.server

from agent.models.base import Model, ModelError, ModelUnusable
from agent.models.config import build_model
from agent.models.local import find_weights
from channels.console import ConsoleChannel
from channels.irc.wire import IrcLine, format_line, parse_line
from gateway import app
from gateway.config.loader import ConfigError, parse_config
from gateway.config.models import Settings
from gateway.core.clock import SystemClock
from gateway.core.events import ChannelName
from gateway.core.facts import TurnRecord
from gateway.plugins import find_providers
from gateway.store import Store, StoreOpenError

logger = logging.getLogger("reverie.demo.irc")

RELAY_POLL_S = 0.02
"""Longest time in seconds that a relayed line waits in the server; also between two looks for the
rest of an answer."""


class _DemoServerClient(irc.server.IRCClient):  # type: ignore[misc]  # the library ships no types
    """Client of `irc.server` with the commands that common clients (irssi, WeeChat) send when they
    connect and join.
    """

    def _handle_one(self) -> None:
        # The library polls for writability, which is always given: that would be a busy loop.
        while self.send_queue:
            self._send(self.send_queue.pop(0))
        readable, _, _ = select.select([self.request], [], [], RELAY_POLL_S)
        if readable:
            self._handle_incoming()

    def handle_cap(self, params: str) -> str | None:
        """Answer that there are no capabilities
        (https://ircv3.net/specs/extensions/capability-negotiation).
        """
        subcommand, _, asked = params.partition(" ")
        answer = {"LS": "LS :", "LIST": "LIST :", "REQ": f"NAK {asked}"}.get(subcommand.upper())
        return f":{self.server.servername} CAP {self.nick or '*'} {answer}" if answer else None

    def handle_join(self, params: str) -> None:
        """Join, accepting a name behind a colon as well."""
        super().handle_join(params.lstrip(":"))

    def handle_mode(self, params: str) -> str:
        """Answer that the room has no modes."""
        return f":{self.server.servername} 324 {self.nick} {params.split(' ', maxsplit=1)[0]} +"

    def handle_who(self, params: str) -> str:
        """Answer with an empty list: the names sent at the join are all."""
        return (
            f":{self.server.servername} 315 {self.nick} {params.split(' ', maxsplit=1)[0]} :End of "
            "WHO list"
        )


class DemoIrcServer(irc.server.IRCServer):  # type: ignore[misc]  # the library ships no types
    """`irc.server` of the irc package, on loopback, in a thread. Any IRC client can join."""

    def __init__(self, port: int) -> None:
        """Listen on `port`, or on any free port if it is taken."""
        try:
            super().__init__(("127.0.0.1", port), _DemoServerClient)
        except OSError:
            super().__init__(("127.0.0.1", 0), _DemoServerClient)
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, name="irc server", daemon=True)

    def start(self) -> None:
        """Serve until `stop`."""
        logging.getLogger("irc.server").setLevel(logging.CRITICAL)  # it logs every unknown command
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. Connected clients are disconnected when the process ends."""
        self.shutdown()
        self.server_close()

    def handle_error(self, _request: object, client_address: object) -> None:
        """Log what the library cannot read. Only that client is disconnected."""
        logger.debug("client %s broke off: %s", client_address, sys.exc_info()[1])


class DemoIrcClient:
    """An IRC client for one person in one room."""

    def __init__(self, nick: str, room: str, on_message: Callable[[str, str], None]) -> None:
        """`on_message(nick, text)` is called for each message in the room, or to this person."""
        self.nick = nick
        self.room = room
        self._on_message = on_message
        self._joined: dict[str, asyncio.Event] = {}
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, port: int) -> None:
        """Join and listen until cancelled or disconnected."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        self._write(
            format_line("NICK", self.nick),
            format_line("USER", self.nick, "0", "*", trailing=self.nick),
        )
        try:
            while raw := await reader.readline():
                if (received := parse_line(raw.decode("utf-8", "replace"))) is not None:
                    self._handle(received)
        finally:
            self._writer.close()

    async def wait_until_joined(self, nick: str) -> None:
        """Wait until both this client and `nick` are in the room."""
        await self._joined_event(self.nick).wait()
        await self._joined_event(nick).wait()

    async def say(self, text: str) -> None:
        """Send one line to the room."""
        self._write(format_line("PRIVMSG", self.room, trailing=text))

    def _joined_event(self, nick: str) -> asyncio.Event:
        return self._joined.setdefault(nick, asyncio.Event())

    def _write(self, *lines: str) -> None:
        assert self._writer is not None
        self._writer.write("".join(f"{item}\r\n" for item in lines).encode())

    def _handle(self, received: IrcLine) -> None:
        match received.command:
            case "001":
                self._write(format_line("JOIN", self.room))
            case "433":
                self.nick += "_"
                self._write(format_line("NICK", self.nick))
            case "PING":
                self._write(format_line("PONG", trailing=received.param(0)))
            case "JOIN" if received.param(0) == self.room:
                self._joined_event(received.source.nick).set()
            case "353":
                for nick in received.param(-1).split():
                    self._joined_event(nick.lstrip("@+")).set()
            case "PRIVMSG" if received.param(0) == self.room:
                self._on_message(received.source.nick, received.param(1))
            case "NOTICE" if received.param(0) == self.nick:  # an answer to a command
                self._on_message(received.source.nick, received.param(1))
            case _:
                pass


ROOM, NICK = "#lobby", "reverie"
ANSWER_TIMEOUT_S = 180.0
"""Seconds that `--once` waits: enough for the embedded model on a slow machine, including loading
its weights."""
STOP_TIMEOUT_S = 15.0
SCRIPTED_REPLIES = [
    {
        "match": r"(?i)\b(hello|hi|hey)\b",
        "reply": "Hello! I am Reverie. Your line came to me over real IRC.",
    },
    {
        "match": r"(?i)what can you|help|who are you",
        "reply": (
            "I answer in IRC, Telegram and Discord rooms. `reverie setup` connects me to yours."
        ),
    },
    {
        "match": "",
        "reply": (
            "I have heard you. These answers are scripted: give me a model, and I will think "
            "about it."
        ),
    },
]
"""Replies of the scripted model; the first match counts."""


def run_demo(
    *, once: str | None, console: bool, port: int, data: Path, env: Mapping[str, str]
) -> int:
    """Run the demo and return its exit code: with `once`, 0 only if an answer came back."""
    with tempfile.TemporaryDirectory(prefix="reverie-demo-") as fresh:
        try:
            store = (Path(fresh) if once else data.absolute()) / "reverie.db"
            return asyncio.run(_run(once, port=None if console else port, store=store, env=env))
        except (ConfigError, StoreOpenError, ModelError, app.NoChannelsLeft) as error:
            _print_line(f"The demo cannot run: {error}")
            return 1
        except KeyboardInterrupt:
            return 0 if once is None else 1


def build_demo_settings(
    env: Mapping[str, str], *, store: Path, channel: dict[str, object]
) -> Settings:
    """Build the demo's configuration.

    The model is the one whose key is in the environment; else the embedded one if it is installed;
    else scripted.
    """
    provider: dict[str, object]
    named = {"name": env["REVERIE_MODEL"]} if env.get("REVERIE_MODEL") else {}
    for kind, settings in find_providers().items():
        prefix, usual = settings.demo
        if prefix and (key := env.get(f"{prefix}_API_KEY")):
            url = env.get(f"{prefix}_BASE_URL")
            provider = {"kind": kind, "api_key": key, **({"base_url": url} if url else {})}
            model = {"name": usual} | named
            break
    else:
        provider, model = _model_without_key(), {}
    return parse_config(
        {
            "channels": {"demo": channel},
            "agents": [{"id": NICK, "bindings": [{"match": {"channel": "*"}, "listen": "all"}]}],
            "llm": {
                "providers": {"demo": provider},
                "models": {"main": {"provider": "demo", **model}},
                "overload_wait": 0,  # who tries it out is told at once
            },
            "attention": {"coalesce": 0.3},
            "access": {"dm": "open"},
            "store": {"path": str(store)},
            "ops": {"port": 0},
        },
        Path.cwd(),
    )


def _model_without_key() -> dict[str, object]:
    """Return the embedded model, or scripted replies if it is not installed."""
    try:
        find_weights()
    except ModelUnusable:
        return {"kind": "scripted", "replies": SCRIPTED_REPLIES}
    return {"kind": "local"}


def _print_line(text: str) -> None:
    print(text, flush=True)


async def _run(once: str | None, *, port: int | None, store: Path, env: Mapping[str, str]) -> int:
    """Start server and gateway, exchange messages, and stop everything. `port` None: this terminal
    is the channel.
    """
    started, stop, answered = time.monotonic(), asyncio.Event(), asyncio.Event()
    answered.set()

    def show(nick: str, text: str) -> None:
        _print_line(f"<{nick}> {text}")
        if nick == NICK:
            answered.set()

    async with contextlib.AsyncExitStack() as stack:
        person, terminal = (
            None,
            ConsoleChannel(ChannelName("demo"), lambda part: show(NICK, part.body)),
        )
        server_port = 0
        if port is None:
            settings = build_demo_settings(env, store=store, channel={"platform": "console"})
        else:
            person, server = DemoIrcClient("you", ROOM, show), DemoIrcServer(port)
            server_port = server.port
            server.start()
            stack.callback(server.stop)
            _print_line(
                f"IRC server: 127.0.0.1 port {server_port} without TLS. Any IRC client can join "
                f"{ROOM} there."
            )
            channel = {
                "platform": "irc",
                "host": "127.0.0.1",
                "port": server_port,
                "tls": False,
                "nick": NICK,
            }
            settings = build_demo_settings(env, store=store, channel={**channel, "rooms": [ROOM]})
        model = await _start_model(settings)
        channels = {terminal.name: terminal} if person is None else None
        gateway = asyncio.create_task(app.run(settings, stop, channels=channels, model=model))
        stack.push_async_callback(_stop, gateway, stop)
        if person is not None:
            listening = asyncio.create_task(person.run(server_port))
            stack.callback(listening.cancel)
            async with asyncio.timeout(30):
                await person.wait_until_joined(NICK)
            _print_line(
                f"{NICK} and you are in {ROOM}, {time.monotonic() - started:.1f} s after the start."
            )

        async def say(text: str) -> None:
            answered.clear()
            await (terminal.receive_message(text) if person is None else person.say(text))

        if once is not None:
            _print_line(f"<you> {once}")
            await say(once)
            return await _judge_answer(store) if await _wait(answered) else 1
        _print_line("Type a line and press Enter. Ctrl-D or Ctrl-C ends the demo.\n")
        async for typed in _read_keyboard():
            if typed.strip():
                await say(typed)
        if not os.isatty(0):  # a pipe ends at once; a person who ends the input does not wait
            await _wait(answered)
    return 0


async def _wait(answered: asyncio.Event) -> bool:
    """Wait for an answer to the last line. False after printing that none came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await answered.wait()
    _print_line(f"No answer came within {ANSWER_TIMEOUT_S:.0f} s.")
    return False


async def _judge_answer(store: Path) -> int:
    """Wait for the rest of the answer. Return 0, or 1 after printing that the turn has failed."""
    async with await Store.open_readonly(store) as log:
        turns = await log.newest_entries(1, kinds=["turn_ended"])  # none: a command was answered
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while await log.undelivered_posts():  # noqa: ASYNC110 - a file tells nobody
                    await asyncio.sleep(RELAY_POLL_S)
    for turn in turns:
        if isinstance(turn.fact, TurnRecord) and turn.fact.outcome == "failed":
            _print_line(f"The model gave no answer: {turn.fact.reason}")
            return 1
    return 0


async def _start_model(settings: Settings) -> Model:
    model = build_model("main", settings.llm.models, settings.llm.providers, SystemClock())
    _print_line(f"Model: {model.label}.")
    if model.family == "local":
        _print_line(
            "It has 135 million parameters: a stand-in that shows the way of a message, not a good "
            "companion."
        )
    elif model.family == "scripted":
        _print_line("It gives prepared answers: the embedded model is not installed.")
    if model.family in ("local", "scripted"):
        *others, last = (
            f"{one.demo[0]}_API_KEY" for one in find_providers().values() if one.demo[0]
        )
        _print_line(
            f"Set {', '.join(others)} or {last} (and *_BASE_URL, REVERIE_MODEL) for a real one."
        )
    if model.family == "local":
        _print_line("Loading the weights ...")
    await model.start()
    return model


async def _stop(gateway: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Stop the gateway, and raise what it raised."""
    stop.set()
    await asyncio.wait({gateway}, timeout=STOP_TIMEOUT_S)
    gateway.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gateway


async def _read_keyboard() -> AsyncIterator[str]:
    """Yield lines of standard input until its end. Read in a thread: a terminal, pipe or file all
    block there.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read() -> None:
        rest = b""
        # os.read, not sys.stdin: its lock would be held at exit by a thread that waits for a key.
        while chunk := os.read(0, 4096):
            *whole, rest = (rest + chunk).split(b"\n")
            for item in whole:
                loop.call_soon_threadsafe(lines.put_nowait, item.decode("utf-8", "replace"))
        if rest:
            loop.call_soon_threadsafe(lines.put_nowait, rest.decode("utf-8", "replace"))
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="keyboard", daemon=True).start()
    while (typed := await lines.get()) is not None:
        yield typed
