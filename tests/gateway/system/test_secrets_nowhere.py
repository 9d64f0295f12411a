"""Two hundred planted secrets, and those of the configuration: none of them comes out anywhere.

A whole gateway, as the real program, on loopback IRC, Telegram and Discord. The secrets stand in
its configuration, its environment, in files that the agent reads and pages that it fetches, in what
people say, in arguments of commands, in topics, in what a program on its standard error and servers
in their errors say, and in what the model answers. Then everything that came out is looked through:
the process' output, the audit, metrics, what was said on the wire, what the command line shows, and
every request that the model got.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from reverie.testing.gateway import UNBOUNDED, UNHURRIED
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Person
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.ircd import Ircd
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from reverie.testing.servers.ports import free_port
from reverie.testing.servers.web_server import Page, WebServer
from tests.kits.gateway_process import CHECKOUT, Program, so
from tests.kits.planted_secrets import COUNT, Planted, passwords, planted

ROUTES = (
    "irc",
    "telegram",
    "discord",
    "command",
    "file",
    "page",
    "model",
    "error",
    "refusal",
    "topic",
)
"""How a secret gets in, in turn."""
LIMIT_S = 240.0
KNOWN = 12
"""Of the configuration: no pattern tells these."""
SHOWS = (
    "audit",
    "audit --json",
    "log show --last 100000",
    "channels",
    "health",
    "dmn status",
    "reminders list",
)
"""What the command line is asked for afterwards."""
CRASHES = "import os, sys; print('no:', os.environ['PLANTED'], file=sys.stderr); sys.exit(3)"


@dataclass(slots=True)
class Way:
    by: dict[str, list[Planted]] = field(default_factory=dict)

    def lines(self, route: str) -> list[str]:
        return [one.text.strip().replace("\n", "\\n") for one in self.by[route]]


def ways() -> Way:
    way = Way({route: [] for route in ROUTES})
    for number, one in enumerate(planted()):
        way.by[ROUTES[number % len(ROUTES)]].append(one)
    assert sum(map(len, way.by.values())) == COUNT
    return way


class Town(Program):
    def __init__(
        self, directory: Path, model: ModelApi, channels: Json, known: list[str], owner: Person
    ) -> None:
        super().__init__(directory, model, 1, channels, context_tokens=200_000)
        self.port = free_port()
        self.config["access"] = {
            "dm": "open",
            "roles": {"owner": [f"telegram.test:{owner.id}"]},
            "rates": UNHURRIED,
            "budgets": UNBOUNDED,
        }
        self.config["commands"] = {"per_minute": 1_000}
        self.config["ops"] = {"port": self.port, "token": known[0]}
        self.config["llm"]["providers"]["fake"]["api_key"] = "${REVERIE_KEY}"
        self.config["agents"] = [{"id": "reverie", "files": str(directory / "files")}]
        (directory / "key.txt").write_text(known[3])
        self.config["tools"] = {
            "web": {
                "allow_private": ["127.0.0.1"],
                "search": {"provider": "brave", "api_key": "${file:key.txt}"},
            },
            "mcp": {
                "broken": {
                    "command": [sys.executable, "-c", CRASHES],
                    "env": {"PLANTED": known[4]}
                    | {f"P{number}": one for number, one in enumerate(known)},
                },
                "remote": {
                    "url": "http://127.0.0.1:1/mcp",
                    "headers": {"Authorization": f"Bearer {known[5]}"},
                },
            },
        }
        self.write()

    def out(self) -> str:
        """All that the model was asked, without the headers: there the key has to be."""
        return "\n".join(json.dumps(one.body, ensure_ascii=False) for one in self.model.seen)


def answering(way: Way, page: str, known: list[str]) -> "Answering":
    return Answering(iter([*way.lines("model"), *known]), page)


@dataclass(slots=True)
class Answering:
    """A model that reads, fetches, and lets slip something in each of its answers."""

    slips: Iterator[str]
    page: str
    calls: int = 0

    def __call__(self, body: Json) -> Answer:
        newest = body["messages"][-1]
        said = json.dumps(newest)
        if newest["role"] == "user" and "please read" in said:
            self.calls += 1
            return Answer(
                calls=(
                    (
                        f"read-{self.calls}",
                        "read_file",
                        json.dumps({"path": "/files/public/notes.txt"}),
                    ),
                    (f"fetch-{self.calls}", "web_fetch", json.dumps({"url": self.page})),
                )
            )
        return Answer(text=f"Well: {next(self.slips, 'nothing more')} - so it is. {said[-3_000:]}")


@pytest.mark.system
def test_no_planted_secret_comes_out_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, known = ways(), passwords(KNOWN)
    monkeypatch.setenv("REVERIE_KEY", "key-of-the-environment-77")
    known[1] = "key-of-the-environment-77"
    secrets = {form for one in planted() for form in one.forms()} | {*known}

    async def story() -> None:
        async with AsyncExitStack() as stack:
            api, discord = (
                await stack.enter_async_context(BotApi()),
                await stack.enter_async_context(DiscordApi()),
            )
            ircd, model = (
                await stack.enter_async_context(Ircd()),
                await stack.enter_async_context(ModelApi()),
            )
            site = await stack.enter_async_context(WebServer())
            owner = api.person("Olga")
            town = Town(tmp_path, model, channels(api, discord, ircd), known, owner)
            stack.push_async_callback(town.close)
            (tmp_path / "files" / "public").mkdir(parents=True)
            (tmp_path / "files" / "public" / "notes.txt").write_text(
                "\n".join([*way.lines("file"), *known])
            )
            model.default = answering(way, site.url("/page"), known)
            site.pages["/page"] = Page(
                body="\n".join(way.lines("page")).encode(), headers={"content-type": "text/plain"}
            )
            await town.start()
            await ircd.joined("reverie", "#lobby")
            await discord.connected()
            await talk(town, way, known, Places(api, owner, discord, ircd, site.url("/page")))
            await town.calm()
            scrape = await asyncio.to_thread(scraped, town.port)
            await town.end()
            shown = {name: await shows(town, name) for name in SHOWS}
            wire = "\n".join(
                [*api.said(owner), *discord.texts(discord.world.dm(discord.ben)), *ircd.lines]
            )
        out = {"log": town.log, "metrics": scrape, "wire": wire, "model": town.out(), **shown}
        found = {
            place: sorted(one for one in secrets if one in text) for place, text in out.items()
        }
        assert {place: some for place, some in found.items() if some} == {}
        for place in ("log", "wire", "model", "audit", "log show --last 100000"):
            assert "[redacted]" in out[place], f"nothing that was planted came by {place}"
        assert len(model.seen) > COUNT // 2

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))


def channels(api: BotApi, discord: DiscordApi, ircd: Ircd) -> Json:
    flood = {"per_chat_s": 0, "group_per_min": 1_000, "overall_per_s": 1_000}
    return {
        "irc.test": {
            "platform": "irc",
            "host": "127.0.0.1",
            "port": ircd.port,
            "tls": False,
            "nick": "reverie",
            "rooms": ["#lobby"],
            "flood": {"burst": 1_000, "per_s": 1_000},
        },
        "telegram.test": {
            "platform": "telegram",
            "token": api.token,
            "base_url": api.url,
            "rooms": ["*"],
            "flood": flood,
            "poll_timeout": 2,
            "request_timeout": 1,
        },
        "discord.test": {
            "platform": "discord",
            "token": discord.token,
            "api_url": discord.api_url,
            "gateway_url": discord.gateway_url,
            "rooms": [discord.guild],
            "request_timeout": 1,
            "typing": False,
        },
    }


@dataclass(frozen=True, slots=True)
class Places:
    """Where people talk."""

    api: BotApi
    owner: Person
    discord: DiscordApi
    ircd: Ircd
    page: str


async def talk(town: Town, way: Way, known: list[str], at: Places) -> None:
    """Everybody lets everything slip, a bit at a time."""
    direct = at.discord.world.dm(at.discord.ben)
    words = (
        "Monday",
        "the weather",
        "about lunch",
        "what of the report",
        "is it late",
        "shall we go",
        "any news",
    )
    at.api.private_says(at.owner, f"please read my notes and {at.page}")
    assert await so(lambda: len(town.model.seen) >= 2, 20.0), town.log[-3_000:]
    for number in range(COUNT // len(ROUTES)):
        asked = len(town.model.seen)
        await at.ircd.say("reverie", way.lines("irc")[number])
        at.api.private_says(at.owner, way.lines("telegram")[number])
        at.discord.says(
            direct, at.discord.ben, f"{way.lines('discord')[number]} {known[number % KNOWN]}"
        )
        assert await so(lambda: len(town.model.seen) >= asked + 3, 20.0), town.log[-3_000:]  # noqa: B023 - run at once
        await town.calm()
        for command in ("say irc.test/#lobby", "role set", "nonsense", "why"):
            at.api.commands(at.owner, at.owner, f"/{command} {way.lines('command')[number]}")
        at.ircd.relay("#lobby", f":alice!a@host TOPIC #lobby :{way.lines('topic')[number]}", {})
        error = {
            "error": {
                "message": f"refused: {way.lines('error')[number]}",
                "type": "invalid_request_error",
            }
        }
        town.model.then(Answer(status=400, body=json.dumps(error).encode()))
        at.discord.says(direct, at.discord.ben, f"and now, {words[number % len(words)]}?")
        await town.calm()
        at.api.faults.fail("sendMessage", 400, f"Bad Request: {way.lines('refusal')[number]}")
        at.api.private_says(at.owner, "what do you say?")
        await town.calm()


def scraped(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        return str(answer.read().decode())


async def shows(town: Town, command: str) -> str:
    """What `reverie COMMAND` says."""
    program = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "gateway.cli.main",
            *command.split(),
            "--config",
            str(town.directory),
        ),
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = await program.communicate()
    return out.decode()
