"""Servers of the protocol as a turn uses them, and what is left of them afterwards."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.models.base import ToolResult
from channels.aio import cancel_and_wait
from gateway.config.tools import McpServerConfig, ToolsConfig
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import SenderId
from gateway.core.facts import TurnId
from gateway.core.labels import RequestLabel
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Requester, Tool, ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.plugins.mcp import Mcp
from gateway.plugins.mcp.convert import McpToolMap
from gateway.store import Store
from gateway.stream.media import MediaStore
from reverie.testing.servers.ports import free_port
from reverie.testing.waiting import until
from tests.kits.handle import handle_of
from tests.kits.owners import NotedNotices
from tests.kits.plugins import subscribed_plugin
from tests.kits.settings import live_settings
from tests.kits.store import place
from tests.kits.tools import dispatcher

ROOT = Path(__file__).parents[2]
OWN, RAW = (str(ROOT / "tests/servers" / name) for name in ("mcp_own.py", "mcp_raw.py"))
EVERYTHING = ROOT / ".venv/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
LOOPBACK = (  # it would listen on every address
    'data:text/javascript,import net from "node:net";const listen=net.Server.prototype.listen;'
    "net.Server.prototype.listen=function(port,...more){return "
    'listen.call(this,{port:Number(port),host:"127.0.0.1"},'
    "...more)}"
)
MARK = "REVERIE_TEST_MARK"
ADMIN = Requester(id=SenderId("1"), name="Ann", role="admin", verified=True)
AT = ToolContext(
    turn=TurnId("t"),
    agent="reverie",
    at=place("#a"),
    visibility=Visibility(scope=PUBLIC),
    autonomous=False,
    requesters=(ADMIN,),
)


def everything() -> list[str]:
    """The command of the server that others wrote, without its arguments."""
    node = shutil.which("node")
    if node is None or not EVERYTHING.exists():
        missing = (
            "@modelcontextprotocol/server-everything is not installed: "
            "requirements/npm/install (needs node, npm)"
        )
        if os.environ.get("CI"):
            raise FileNotFoundError(missing)
        pytest.skip(missing)
    return [node, "--import", LOOPBACK, str(EVERYTHING)]


class Town:
    """A gateway's servers under way."""

    def __init__(
        self, plugin: Mcp, owners: NotedNotices, mark: str, secrets: Collection[str] = ()
    ) -> None:
        """`secrets`: those of the configuration, which no result may hold."""
        self.plugin, self.owners, self.mark, self.secrets = plugin, owners, mark, secrets
        self.store = plugin.context.gateway.store

    @property
    def tools(self) -> Sequence[Tool]:
        return self.plugin.dynamic_tools() or ()

    async def call(self, name: str, **arguments: object) -> ToolResult:
        return await self.call_json(name, json.dumps(arguments))

    async def call_json(self, name: str, arguments: str) -> ToolResult:
        hands = dispatcher(self.tools, secrets=self.secrets)
        new = dataclasses.replace(
            AT, request=RequestLabel()
        )  # a turn of its own: nothing came in from outside
        return await hands.call(ToolCall(id="1", name=f"mcp_{name}", arguments=arguments), new)

    @property
    def names(self) -> set[str]:
        return {tool.spec.name for tool in self.tools}

    async def until_listed(self, name: str, *, there: bool = True) -> None:
        """Return once a tool is there, or is gone."""
        await until(lambda: (name in self.names) == there)

    async def until(self, state: str) -> None:
        await until(lambda: all(one.state == state for one in self.plugin.servers))

    def kill(self) -> None:
        """All that was started by this town, without warning."""
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)


class SteadyMcp(Mcp):
    """Tries to start servers at times that a test can tell."""

    chance = staticmethod(lambda: 0.0)


class TrustingMcp(SteadyMcp):
    """Admits all tools, however often they change."""

    def admit(self, server: str, tools: McpToolMap) -> McpToolMap:
        del server
        return tools


def mcp_plugin(
    config: Mapping[str, McpServerConfig],
    store: Store,
    clock: Clock,
    *,
    tasks: asyncio.TaskGroup | None = None,
    media: MediaStore | None = None,
    notices: NotedNotices | None = None,
    kind: type[Mcp] = TrustingMcp,
) -> Mcp:
    """The plugin with these servers, none of which is started."""
    live = live_settings(tools=ToolsConfig(mcp=dict(config)), agents=())
    gateway = handle_of(store, clock, live=live, tasks=tasks, notices=notices or NotedNotices())
    return subscribed_plugin(kind, gateway=gateway, media=media)


@asynccontextmanager
async def town(
    servers: Mapping[str, Mapping[str, Any]],
    *,
    clock: Clock | None = None,
    media: MediaStore | None = None,
    path: Path | None = None,
    wait_s: float = 30,
) -> AsyncIterator[Town]:
    """Start them, and see that nothing is left of them. `path`: of a store that outlives them;
    None: the tools are not reviewed."""
    mark = uuid.uuid4().hex
    config = {}
    for name, one in servers.items():
        env = {"env": {MARK: mark, **one.get("env", {})}} if "command" in one else {}
        config[name] = McpServerConfig.model_validate({"timeout": 10, **one, **env})
    secrets = [
        one for each in config.values() for one in (*each.env.values(), *each.headers.values())
    ]
    with tempfile.TemporaryDirectory() as folder:
        at = path or Path(folder) / "store.db"
        async with await Store.open(at, SystemClock()) as store, asyncio.TaskGroup() as group:
            owners = NotedNotices()
            plugin = mcp_plugin(
                config,
                store,
                clock or SystemClock(),
                tasks=group,
                media=media,
                notices=owners,
                kind=SteadyMcp if path else TrustingMcp,
            )
            await plugin.start()
            running = asyncio.create_task(plugin.run())
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await asyncio.gather(*(one.settled.wait() for one in plugin.servers))
                yield Town(plugin, owners, mark, [one.get_secret_value() for one in secrets])
            finally:
                await cancel_and_wait(running)
    await until(lambda: not marked(mark), every_s=0.01)  # what is killed ends soon, but not at once


def marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def raw(**plan: object) -> dict[str, Any]:
    """The configuration of the server with bad manners."""
    return {"command": [sys.executable, RAW, json.dumps(plan)]}


class Listening:
    """A server at an address of ours, which can be ended and started again."""

    def __init__(
        self, start: Callable[[int], Sequence[str]], env: Callable[[int], Mapping[str, str]]
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._start = start
        self._env = env
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        quiet = subprocess.DEVNULL
        env = {**os.environ, **self._env(self.port)}
        self.process = subprocess.Popen(self._start(self.port), stdout=quiet, stderr=quiet, env=env)
        for _ in range(600):
            assert self.process.poll() is None
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(self.url, timeout=1)
                return
            time.sleep(0.05)
        raise RuntimeError("it does not come up")

    def down(self) -> None:
        """Without warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(5)


@contextlib.contextmanager
def listening_everything() -> Iterator[Listening]:
    command = everything()
    server = Listening(lambda _: [*command, "streamableHttp"], lambda port: {"PORT": str(port)})
    try:
        server.up()
        yield server
    finally:
        server.down()


@contextlib.contextmanager
def listening_own(directory: Path) -> Iterator[Listening]:
    server = Listening(lambda port: [sys.executable, OWN, str(port), str(directory)], lambda _: {})
    try:
        server.up()
        yield server
    finally:
        server.down()


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]
