"""The stage of the demo: an IRC server on loopback, people on it, and a gateway as a process of its
own.

The server knows accounts by passwords that are made anew each time, so no other user of the machine
can be the owner.
"""

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from channels.irc.wire import format_line, parse_line
from gateway.command_line import dashboard_url
from gateway.config.loader import read_config
from gateway.plugins import find_providers
from reverie.testing.servers.ircd import CAPS, Ircd, Options
from reverie.testing.servers.ports import free_port

ROOM: Final = "#lobby"
BOT: Final = "reverie"
OWNER: Final = "you"
CHANNEL: Final = "irc.demo"
ANSWER_S: Final = 180.0
"""Longest wait in seconds: a small model on a slow machine, including loading its weights."""
QUIET_S: Final = 0.3
"""Silence in seconds after which an answer of several lines is complete."""
STOP_S: Final = 12.0
"""Longest wait in seconds for the gateway's own end; it parks its work within 10."""
_PR_SET_PDEATHSIG: Final = 1
"""Number of the option, from prctl(2)."""
_FORMATTING: Final = re.compile(r"[\x02\x0f\x11\x16\x1d\x1e\x1f]|\x03(?:\d{1,2}(?:,\d{1,2})?)?")
"""Bold, colours and the like (https://modern.ircdocs.horse/formatting)."""


class GatewayEnded(Exception):
    """The gateway has ended by itself. The text is the end of its log."""


class Person:
    """Somebody with an IRC client, logged in to an account of the same name."""

    def __init__(self, name: str, on_message: Callable[[str, str, str], None]) -> None:
        """`on_message(sender, text, private)` is called for each message; `private`: who alone
        reads it, empty in the room.
        """
        self.name = name
        self._on_message = on_message
        self.heard: list[str] = []
        """What the bot has said where this person reads it, oldest first, and topics."""
        self._changed = asyncio.Event()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self, port: int, password: str) -> None:
        """Log in. The connection ends with the task of `listen`."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        login = base64.b64encode(f"\0{self.name}\0{password}".encode()).decode()
        self._write(
            format_line("CAP", "REQ", trailing="sasl"),
            format_line("AUTHENTICATE", "PLAIN"),
            format_line("AUTHENTICATE", login),
            format_line("CAP", "END"),
            format_line("NICK", self.name),
            format_line("USER", self.name, "0", "*", trailing=self.name),
        )

    async def listen(self) -> None:
        """Take in what the server says, until it is cancelled or disconnected."""
        try:
            while raw := await self._reader.readline():
                line = parse_line(raw.decode("utf-8", "replace"))
                if line is None:
                    continue
                sender, text = line.source.nick, _FORMATTING.sub("", line.param(1))
                if line.command == "PING":
                    self._write(format_line("PONG", trailing=line.param(0)))
                elif line.command in ("PRIVMSG", "NOTICE") and sender:
                    self._on_message(sender, text, "" if line.param(0) == ROOM else self.name)
                    self._hear(f"{sender}: {text}")
                elif line.command == "TOPIC":
                    self._hear(f"{sender} topic: {text}")
        finally:
            self._writer.close()

    def join(self) -> None:
        """Enter the room."""
        self._write(format_line("JOIN", ROOM))

    def say(self, text: str, to: str = ROOM) -> None:
        """Send one line."""
        self._write(format_line("PRIVMSG", to, trailing=text))

    async def hear(self, pattern: str, since: int, limit_s: float = ANSWER_S) -> re.Match[str]:
        """Return the first match in what was heard after the first `since` lines, once the bot is
        quiet. Raises TimeoutError.
        """
        async with asyncio.timeout(limit_s):
            while not (found := self.find(pattern, since)):
                await self._next()
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(QUIET_S):
                    await self._next()
        return found

    def find(self, pattern: str, since: int) -> re.Match[str] | None:
        """Return the first match in what was heard after the first `since` lines."""
        found = (re.search(pattern, line) for line in self.heard[since:])
        return next(filter(None, found), None)

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _hear(self, line: str) -> None:
        self.heard.append(line)
        self._changed.set()

    def _write(self, *lines: str) -> None:
        self._writer.write("".join(f"{item}\r\n" for item in lines).encode())


class Stage:
    """The server and the gateway in a directory, which is made anew for each demo."""

    def __init__(
        self, directory: Path, provider: Mapping[str, object], model: Mapping[str, object]
    ) -> None:
        """`provider` and `model`: sections of the configuration."""
        self.directory = directory
        self.store = directory / "reverie.db"
        self._passwords: dict[str, str] = {}
        self.server = Ircd(Options(caps=f"{CAPS} sasl", sasl=self._passwords, host="localhost"))
        self._provider, self._model = provider, model
        self._gateway: asyncio.subprocess.Process | None = None
        self._is_meant_to_run = asyncio.Event()
        self._listening = list[asyncio.Task[None]]()

    @contextlib.asynccontextmanager
    async def opened(self, port: int) -> AsyncIterator[None]:
        """Start the server on `port`, or on any free port if it is taken. At the end nothing is
        left running.
        """
        self.server.port = port
        try:
            await self.server.start()
        except (OSError, OverflowError):
            self.server.port = 0
            await self.server.start()
        try:
            self._write_config()
            yield
        finally:
            await self.stop()
            for task in self._listening:
                task.cancel()
            await asyncio.gather(*self._listening, return_exceptions=True)
            await self.server.stop()

    def _write_config(self) -> None:
        channel = {
            "platform": "irc",
            "host": "127.0.0.1",
            "port": self.server.port,
            "tls": False,
            "nick": BOT,
            "rooms": [ROOM],
            "flood": {"burst": 100, "per_s": 100},
        }
        config = {
            "channels": {CHANNEL: channel},
            "agents": [{"id": BOT, "bindings": [{"match": {"channel": "*"}, "listen": "all"}]}],
            "llm": {
                "providers": {"demo": self._provider},
                "models": {"main": {"provider": "demo", **self._model}},
                "overload_wait": 0,  # who tries it out is told at once
            },
            "attention": {"coalesce": 0.3},
            "access": {
                "roles": {"owner": [f"{CHANNEL}:account:{OWNER}"]},
                "tell": f"{CHANNEL}/{OWNER}!account:{OWNER}",
            },
            "store": {"path": str(self.store)},
            "ops": {"port": free_port(), "token": secrets.token_urlsafe(24)},
        }
        file = self.directory / "reverie.yaml"
        file.touch(mode=0o600)
        file.write_text(json.dumps(config, indent=2))  # JSON is YAML

    @property
    def dashboard(self) -> str:
        """Address of the dashboard, with its token behind `#`, which no browser sends."""
        ops = read_config(self.directory, os.environ, needs=("ops",)).settings.ops
        token = ops.token.get_secret_value() if ops.token is not None else ""
        return f"{dashboard_url(ops)}#token={token}"

    async def enter(self, name: str, on_message: Callable[[str, str, str], None]) -> Person:
        """Connect somebody to the server."""
        person, self._passwords[name] = Person(name, on_message), secrets.token_urlsafe(24)
        await person.connect(self.server.port, self._passwords[name])
        self._listening.append(asyncio.create_task(person.listen()))
        await self.server.until(lambda: any(one.nick == name for one in self.server.here()))
        return person

    async def start(self) -> int:
        """Start the gateway, and return its process id once it is in the room.

        Its session is its own, so that Ctrl-C does not reach it, and it never outlives this
        process.
        """
        command = (sys.executable, "-P", "-m", "reverie", "run", "--log", "text", "--config")
        with (self.directory / "gateway.log").open("ab") as log:
            self._gateway = await asyncio.create_subprocess_exec(
                *command,
                self.directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._is_meant_to_run.set()
        await self.server.joined(BOT, ROOM)
        return self._gateway.pid

    async def watch(self) -> NoReturn:
        """Raise GatewayEnded once the gateway ends by itself."""
        while True:
            await self._is_meant_to_run.wait()
            gateway = self._gateway
            assert gateway is not None
            await gateway.wait()
            if gateway is self._gateway and self._is_meant_to_run.is_set():
                log = (self.directory / "gateway.log").read_text(errors="replace")
                raise GatewayEnded("\n".join(log.splitlines()[-5:]))

    async def kill(self) -> int:
        """Kill the gateway and its process group with SIGKILL, and return its process id."""
        assert self._gateway is not None
        self._is_meant_to_run.clear()
        os.killpg(self._gateway.pid, signal.SIGKILL)
        await self._gateway.wait()
        await self.server.until(lambda: all(one.nick != BOT for one in self.server.here()))
        return self._gateway.pid

    async def stop(self) -> None:
        """End the gateway, if it runs."""
        if self._gateway is None or self._gateway.returncode is not None:
            return
        self._is_meant_to_run.clear()
        self._gateway.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self._gateway.wait()
        except TimeoutError:
            await self.kill()


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def choose_model(env: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the sections of a provider and its model for the first key in the environment. None:
    there is no key.
    """
    for kind, settings in find_providers().items():
        prefix, usual = settings.demo
        if prefix and env.get(f"{prefix}_API_KEY"):
            provider = {"kind": kind, "api_key": f"${{{prefix}_API_KEY}}"}
            if url := env.get(f"{prefix}_BASE_URL"):
                provider["base_url"] = url
            return provider, {"name": env.get("REVERIE_MODEL") or usual}
    return None
