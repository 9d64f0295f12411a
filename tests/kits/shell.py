"""A shell as a turn uses it, and who is left in its directory afterwards."""

import json
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.models.base import ToolResult
from gateway.config.tools import BashConfig, ToolsConfig
from gateway.context.workspace_fs import AgentFiles
from gateway.core.clock import SystemClock
from gateway.core.events import Address, Alarm, SenderId, TaskFinished
from gateway.core.facts import TurnId
from gateway.core.labels import RequestLabel
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Requester, ToolContext, tools_of
from gateway.core.tool_spec import ToolCall
from gateway.plugins.shell import Shell
from gateway.plugins.skills import Skills
from gateway.store import NewEntry, Store
from gateway.stream.attention import InternalIntake
from gateway.stream.routing import Bindings
from reverie.testing.waiting import until
from tests.kits.handle import handle_of
from tests.kits.places import privacy
from tests.kits.plugins import plugin_of
from tests.kits.store import place
from tests.kits.tools import dispatcher, live_tools

MODES = (pytest.param("bubblewrap", marks=pytest.mark.boxed), "off")
ADMIN = Requester(id=SenderId("1"), name="Ann", role="admin", verified=True)
ROOM = ToolContext(
    turn=TurnId("t"),
    agent="reverie",
    at=place("#a"),
    visibility=Visibility(scope=PUBLIC),
    autonomous=False,
    requesters=(ADMIN,),
)
OTHER = replace(ROOM, at=place("#b"))
OWNER = replace(OTHER, visibility=Visibility(scope=PUBLIC, sees_everything=True))
ALONE = replace(
    ROOM,
    at=place("olga"),
    visibility=Visibility(scope="irc.test/olga", is_private=True, sees_everything=True),
)
"""The owner is alone with the agent."""
CLOSED = replace(ROOM, at=place("#closed"), visibility=Visibility(scope="irc.test/#closed"))
"""Not everybody may read it."""

_TOOK = re.compile(r"((?:ended|exit status \d+(?: \([^)]*\))?)) after \d+ s")
"""How a command ended, and how long it took where that was a second or more: on a busy machine that
may be any."""


class Desk:
    """Calls it, and remembers what was reported."""

    def __init__(
        self,
        root: Path,
        config: BashConfig,
        store: Store,
        *,
        hidden: tuple[Path, ...],
    ) -> None:
        self.root = root / "public"
        """Where those work who are in `ROOM`."""
        self.tree = root
        self._is_open = config.sandbox == "off"
        self.reports: list[tuple[str, Address | None, str, bool]] = []
        self.ended: list[TaskFinished] = []
        live, desk = (
            live_tools(ToolsConfig(bash=config), files=root, workspace=root.parent / "workspace"),
            self,
        )

        class Files(AgentFiles):
            def hidden_directories(self) -> list[Path]:
                return [*hidden]

        class Reports(InternalIntake):
            def __init__(self) -> None:
                """Takes nothing."""

            async def submit(
                self, event: Alarm | TaskFinished, *, cause: NewEntry | None = None
            ) -> None:
                assert isinstance(event, TaskFinished)
                assert cause is None
                desk.ended.append(event)
                desk.reports.append(
                    (event.agent, event.at, _TOOK.sub(r"\1", event.text, count=1), event.ok)
                )

        places = privacy(store, Bindings(()))
        gateway = handle_of(store, SystemClock(), live=live, places=places)
        self.shell = plugin_of(
            Shell,
            gateway=gateway,
            files=Files(live, root.parent / "state" / "reverie.db", places),
            internal=Reports(),
            plugins={Skills.name: plugin_of(Skills, gateway=gateway)},
        )
        self.hands = dispatcher(tools_of(self.shell))

    async def call(self, name: str, where: ToolContext = ROOM, **arguments: object) -> ToolResult:
        """In a turn of its own, whose request has the label of `where`."""
        if self._is_open:
            let_nobody_in(
                self.tree.parent
            )  # each time: another run of pytest may have closed its directory again
        turn = replace(where, request=RequestLabel(where.request.label))
        return await self.hands.call(
            ToolCall(id="1", name=name, arguments=json.dumps(arguments)), turn
        )

    async def says(self, name: str, where: ToolContext = ROOM, **arguments: object) -> str:
        result = await self.call(name, where, **arguments)
        assert not result.is_error, result.text
        return result.text

    async def refuses(self, name: str, where: ToolContext = ROOM, **arguments: object) -> str:
        result = await self.call(name, where, **arguments)
        assert result.is_error, result.text
        return result.text

    async def bash(self, command: str, **arguments: Any) -> str:
        """What it tells, but for how long that took."""
        return _TOOK.sub(r"\1", await self.says("bash", command=command, **arguments), count=1)

    async def empty(self) -> None:
        """Return once nobody is left: what is killed ends soon, but not at once."""
        await until(lambda: not inside(self.root), every_s=0.01)


def let_nobody_in(tmp_path: Path) -> None:
    """Commands without a sandbox run as `nobody` where the tests run as root, and have to get to
    their files."""
    folders = (tmp_path, *tmp_path.parents)
    for folder in (
        folders[: folders.index(Path(tempfile.gettempdir()).resolve())] if os.geteuid() == 0 else ()
    ):
        folder.chmod(folder.stat().st_mode | 0o011)


@asynccontextmanager
async def desk(
    tmp_path: Path,
    mode: str,
    *,
    hidden: tuple[Path, ...] = (),
    **settings: Any,
) -> AsyncIterator[Desk]:
    config = BashConfig.model_validate({"sandbox": mode, **settings})
    async with await Store.open(tmp_path / "labels" / "reverie.db", SystemClock()) as store:
        made = Desk(tmp_path / "files", config, store, hidden=hidden)
        try:
            yield made
        finally:
            await made.shell.stop()
            await made.empty()


def inside(root: Path) -> list[str]:
    """Who is at work in this directory, whatever it is called there: command lines. Nobody who has
    ended is."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.path.samestat((folder / "cwd").stat(), root.stat()):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
