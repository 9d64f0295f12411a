"""The real program is cut while a tool is under way: nothing of that is left running, and what
comes next is right."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from gateway.core.facts import TurnRecord
from gateway.plugins.approvals import ApprovalEnded, ApprovalRequested
from reverie.testing.servers.bot_api_world import Person
from reverie.testing.servers.model_api import Answer, Json
from reverie.testing.servers.web_server import Page, WebServer
from tests.gateway.system.platforms.telegram_kit import Town, town

pytestmark = pytest.mark.boxed

What = Literal["bash", "job", "web", "approval", "write"]
How = Literal["kill", "end", "interrupt"]
CASES: list[tuple[How, What]] = [
    *[("kill", what) for what in ("bash", "job", "web", "approval", "write")],
    *[("end", what) for what in ("bash", "job", "web", "approval")],
    *[("interrupt", what) for what in ("bash", "web", "approval")],
]
QUICK: list[tuple[How, What]] = [("kill", "bash"), ("end", "job")]
WORDS = "line of a large file\n" * 3_000


@dataclass
class Cut:
    """One program, somebody who may have everything done, and a model that calls what it is told
    to."""

    town: Town
    olga: Person
    site: WebServer
    mark: str
    """In the command line of all that is started."""
    calls: list[tuple[str, Json]] = field(default_factory=list)
    """Made once, side by side, by the first answer."""
    told: int = 0

    def __post_init__(self) -> None:
        self.town.model.default = self._answer

    def _answer(self, body: Json) -> Answer:
        self.told += 1
        calls, self.calls = self.calls, []
        made = tuple(
            (f"toolu_{self.told}x{at}", name, json.dumps(args))
            for at, (name, args) in enumerate(calls)
        )
        if made:
            return Answer(thinking="Let me see.", calls=made)
        return Answer(text=" ".join(self.town.tokens_of({"messages": [_newest(body)]})) or "done")

    def plan(self, what: What) -> None:
        sleep = f"echo {self.mark}; sleep 3617"
        calls: dict[What, list[tuple[str, Json]]] = {
            "bash": [("bash", {"command": sleep})],
            "job": [
                ("bash", {"command": sleep, "background": True}),
                ("bash", {"command": f"true; {sleep}"}),
            ],
            "web": [("web_fetch", {"url": self.site.url("/slow")})],
            "approval": [("bash", {"command": sleep})],
            "write": [
                ("write_file", {"path": "large.txt", "text": WORDS}),
                ("bash", {"command": sleep}),
            ],
        }
        self.calls = calls[what]

    async def under_way(self, what: What) -> None:
        async with asyncio.timeout(120):
            while not await self._begun(what):
                await asyncio.sleep(0.02)

    async def _begun(self, what: What) -> bool:
        if what == "web":
            return bool(self.site.seen)
        if what == "approval":
            return self.told > 0 and bool(await self.town.facts(ApprovalRequested))
        sleeping = sum("sleep\x003617" in words for words in running(""))
        return len(running(self.mark)) > 0 and sleeping >= (2 if what == "job" else 1)

    async def replied(self) -> None:
        """Return once a turn has ended with a reply."""
        async with asyncio.timeout(120):
            while "replied" not in {one.outcome for one in await self.town.facts(TurnRecord)}:
                await asyncio.sleep(0.05)

    async def nothing_left(self) -> None:
        """Return once nobody is left: what is killed ends soon, but not at once."""
        async with asyncio.timeout(120):
            while running(self.mark):
                await asyncio.sleep(0.02)


def _newest(body: Json) -> Json:
    return next(one for one in reversed(body["messages"]) if one["role"] == "user")


def running(mark: str) -> list[str]:
    """Command lines of whoever has this in it."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                folder.name.isdigit()
                and mark in (words := (folder / "cmdline").read_text())
                and words
            ):
                found.append(words)
    return found


@contextlib.asynccontextmanager
async def cut(folder: Path, what: What, how: How) -> AsyncIterator[Cut]:
    """Everything but the program up, and down at the end."""
    async with WebServer() as site, town(folder) as it:
        site.pages["/slow"] = Page(
            b"<p>slow", {"content-type": "text/html"}, endless=b"drip ", every_s=0.2
        )
        olga = it.api.person("Olga")
        rules = [{"tool": "bash", "approval": "always" if what == "approval" else "never"}]
        models = it.config["llm"]
        models["providers"]["fake"] = {
            "kind": "anthropic",
            "base_url": it.model.url,
            "api_key": "test",
        }
        models["models"]["main"] |= {"name": "claude-opus-5-5"}
        it.config["agents"] = [
            {
                "id": "reverie",
                "files": "files",
                "bindings": [{"arrivals": how if how == "interrupt" else "steer"}],
            }
        ]
        it.config["access"]["roles"] = {"owner": [f"telegram.test:{olga.id}"]}
        it.config["tools"] = {"rules": rules, "web": {"allow_private": ["127.0.0.1"]}}
        it.write()
        yield Cut(it, olga, site, f"mark{uuid.uuid4().hex}")


async def story(folder: Path, how: How, what: What) -> None:
    async with cut(folder, what, how) as it:
        program = it.town
        it.plan(what)
        await program.start()
        first = program.say(it.olga)
        await it.under_way(what)
        if how == "interrupt":
            second = program.say(it.olga)
            await program.answered(second)
            if what != "approval":
                await it.nothing_left()
        else:
            await (program.kill() if how == "kill" else program.end())
            await it.nothing_left()
            await program.start()
            if how == "kill":  # it is heard again
                await program.answered(first)
            else:  # what was begun is written down, and gone on with
                await it.replied()
            second = program.say(it.olga)
            await program.answered(second)
        await program.calm()
        await it.nothing_left()
        await program.end()
        assert [one.complaint for one in program.model.violations] == []
        assert program.heard(second) == 1
        assert program.heard(first) <= 1
        turns = await program.facts(TurnRecord)
        assert {one.outcome for one in turns} <= {"replied", "interrupted"}
        if what == "approval":
            assert [one.verdict for one in await program.facts(ApprovalEnded)] == ["dropped"]
        if what == "write":
            (written,) = (one for one in (folder / "files").rglob("*") if one.is_file())
            assert (written.name, written.read_text()) == ("large.txt", WORDS)


@pytest.mark.parametrize(("how", "what"), QUICK)
def test_a_tool_that_is_under_way_is_cut(tmp_path: Path, how: How, what: What) -> None:
    asyncio.run(story(tmp_path, how, what))


@pytest.mark.system
@pytest.mark.parametrize(("how", "what"), [case for case in CASES if case not in QUICK])
def test_whatever_tool_is_under_way_is_cut(tmp_path: Path, how: How, what: What) -> None:
    asyncio.run(story(tmp_path, how, what))
