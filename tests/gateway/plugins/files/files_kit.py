"""An agent's files, with the operator's beside them, and its hands on them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from agent.models.base import ToolResult
from gateway.access.channels import Channels
from gateway.config.tools import FilesConfig, ToolsConfig
from gateway.context.workspace_fs import AgentFiles, FilesArea, WorkspaceRoot
from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, RoomId, SenderId
from gateway.core.facts import TurnId
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Requester, ToolContext, tools_of
from gateway.core.tool_spec import ToolCall, canonical_json
from gateway.plugins.files import Files as FilesPlugin
from gateway.store import Store
from gateway.stream.media import MediaStore
from gateway.stream.routing import Bindings
from gateway.tools.dispatch import ToolDispatcher
from tests.kits.places import privacy
from tests.kits.plugins import plugin_of
from tests.kits.settings import live_settings
from tests.kits.tools import dispatcher, live_tools

SECRET = "the operator's secret"
ROOM = Address(channel=ChannelName("irc.test"), room=RoomId("#room"))


def where(role: str = "admin") -> ToolContext:
    """A turn that somebody with this role asked for."""
    asker = Requester(id=SenderId("ann"), name="Ann", role=role, verified=True)
    sight = Visibility(scope=PUBLIC, sees_everything=False)
    return ToolContext(
        turn=TurnId("t"),
        agent="reverie",
        at=ROOM,
        visibility=sight,
        autonomous=False,
        requesters=(asker,),
    )


@dataclass
class Files:
    tree: Path
    """All directories."""
    area: FilesArea
    """That of everybody."""
    outside: Path
    max_bytes: int
    store: Path

    @property
    def path(self) -> Path:
        return self.root.path

    @property
    def root(self) -> WorkspaceRoot:
        return self.area.root

    def call(self, tool: str, **arguments: object) -> ToolResult:
        """As who may do everything."""
        return self.call_in(where(), tool, **arguments)

    def call_in(self, place: ToolContext, tool: str, **arguments: object) -> ToolResult:
        """In a turn of that place, after a restart."""

        async def run() -> ToolResult:
            async with self.hands() as hands:
                return await hands.call(
                    ToolCall(id="1", name=tool, arguments=canonical_json(arguments)), place
                )

        return asyncio.run(run())

    @contextlib.asynccontextmanager
    async def hands(self) -> AsyncIterator[ToolDispatcher]:
        async with await Store.open(self.store, SystemClock()) as store:
            yield dispatcher(tools_of(file_tools(self.tree, store, self.max_bytes)))

    def told(self, tool: str, **arguments: object) -> str:
        result = self.call(tool, **arguments)
        assert not result.is_error, result.text
        return result.text

    def refused(self, tool: str, **arguments: object) -> str:
        """Why it is not carried out."""
        result = self.call(tool, **arguments)
        assert result.is_error, result.text
        return result.text

    def put(self, path: str, data: str | bytes) -> Path:
        """A file, written by another program."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        return file


def agent_files(
    path: Path, store: Store, max_bytes: int = 1_000_000, channels: Channels | None = None
) -> AgentFiles:
    live = live_tools(ToolsConfig(files=FilesConfig(max_bytes=max_bytes)), files=path)
    return AgentFiles(
        live, path.parent / "store" / "reverie.db", privacy(store, Bindings(()), channels)
    )


def files(tmp_path: Path, max_bytes: int = 100_000) -> Files:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    tree = tmp_path / "files"
    area = FilesArea(WorkspaceRoot(tree / "public", max_bytes), PUBLIC, ("public",), is_own=True)
    return Files(
        tree, area, outside, max_bytes, tmp_path.with_name(f"{tmp_path.name}_store") / "reverie.db"
    )


def file_tools(
    path: Path, store: Store, max_bytes: int = 1_000_000, channels: Channels | None = None
) -> FilesPlugin:
    """Tools for the files that are here; pictures are kept beside them."""
    media = MediaStore(live_settings(), path.parent / "media", {}, SystemClock())
    return plugin_of(FilesPlugin, files=agent_files(path, store, max_bytes, channels), media=media)


def state(directory: Path) -> dict[str, tuple[int, bytes]]:
    """All that is there, with modes and contents."""
    return {
        str(one): (one.lstat().st_mode, one.read_bytes() if one.is_file() else b"")
        for one in directory.rglob("*")
    }
