"""Registry of the tools of all agents: shared services, each agent's tools, their state for turns and for people."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from agent.models.base import Model
from agent.workspace import default_workspace
from agent.workspace.skills import SKILLS_FOLDER
from channels.base import Channel
from gateway.config.models import AgentConfig
from gateway.config.reload import DerivedSettingsListener, LiveSettings
from gateway.config.tools import ToolsConfig
from gateway.context.observer import TurnTracker
from gateway.context.services import BackgroundServices
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ChannelName, ConversationId, EventId, TaskFinished, ToolImage
from gateway.core.facts import ApprovalEnded, ApprovalRequested, ToolRefused
from gateway.core.identity import ROLE_ORDER, AccessPolicy
from gateway.core.permissions import ToolPermit, apply_rules
from gateway.core.private_files import agent_directory
from gateway.core.redaction import Redactor
from gateway.core.tool import Tool, specs_of, tools_of
from gateway.core.tool_spec import Image, ToolCallRefused, ToolSpec
from gateway.store import OutboxPost, Store
from gateway.stream.media import MediaStore
from gateway.stream.outbox import OutgoingFiles
from gateway.stream.routing import Bindings
from gateway.tools.agent import RestTools, SkillTools
from gateway.tools.approvals import Approvals
from gateway.tools.dispatch import (
    MAX_WINDOW_SHARE,
    FittedDynamicTools,
    PermissionGate,
    RunningCalls,
    ToolDispatcher,
    ToolList,
    fit_families,
    render_tool_status,
)
from gateway.tools.files import AuthoredFiles, FileTools, prepare_image
from gateway.tools.mcp.client import McpServers, McpServerState
from gateway.tools.mcp.review import ToolDefinitionReview
from gateway.tools.memory import MemoryTools, ReminderTools
from gateway.tools.metrics import ToolStats
from gateway.tools.platform import FileSender, MessagingTools, PlatformTools, ResolveReachable
from gateway.tools.read_room import RoomReader
from gateway.tools.sandbox import SKILLS_PATH
from gateway.tools.shell import BackgroundJob, ShellTools
from gateway.tools.web import WebTools
from gateway.tools.workspace_fs import WorkspaceRoot

logger = logging.getLogger("reverie.tooling")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServices:
    """Services that tools use. Wired once."""

    live: LiveSettings
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    life: BackgroundServices
    access_policy: AccessPolicy
    bindings: Bindings
    media: MediaStore
    outfiles: OutgoingFiles
    post: Callable[[OutboxPost], None]
    command_prefixes: Mapping[ChannelName, str]
    tasks: asyncio.TaskGroup
    directory: Path | None = None
    """Directory of the configuration files. None: there are none."""
    redactor: Redactor
    """Applied to all results of tools."""
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    """Sends a notice to the owners, given its key and text."""
    turn_tracker: TurnTracker
    """Told of each call when it begins and when it has ended."""


SERVER_SETTLE_S = 5.0
"""Longest wait of an agent's first turn for MCP servers that are starting."""
FILES_DIRECTORY = "files"
"""Name of an agent's file directory, in its own directory, unless the operator configures another path."""


class ToolRegistry:
    """Tools of all agents."""

    def __init__(self, services: ToolServices) -> None:
        self._services = services
        config, store, clock = services.live.settings.tools, services.store, services.clock
        self._definitions = ToolDefinitionReview(store, clock, services.tasks, services.notify_owners)
        self.approvals = Approvals(
            store=store,
            clock=clock,
            live=services.live,
            places=services.life.places,
            access_policy=services.access_policy,
            command_prefixes=services.command_prefixes,
            definitions=self._definitions,
            post=services.post,
        )
        self.stats = ToolStats()
        store.subscribe(self.stats.on_appended, ToolRefused, ApprovalRequested, ApprovalEnded)
        self._gate = PermissionGate(services.live, store, clock, self.approvals, services.access_policy)
        self._web = WebTools(config.web, clock)
        self._mcp = McpServers(
            config.mcp, clock, services.tasks, lambda *_: None, keep=self._keep_image, definitions=self._definitions
        )
        life = services.life
        self._memory = (
            MemoryTools(life.journal_store, life.recall_search, life.forgetter, life.evidence),
            ReminderTools(life.reminders, clock),
        )
        self._shells: dict[str, ShellTools] = {}
        self._family_by_tool: dict[str, str] = {}
        """Family of each tool, by name. Tools of MCP servers have none."""
        self._families_by_agent: dict[str, dict[str, list[Tool]]] = {}
        """Tools of each agent by family. Built once: its shell goes on when the agent changes its model."""
        self._roots: list[WorkspaceRoot] = []
        self.running = RunningCalls(services.turn_tracker, self.stats)
        self._turn_starts = WeakKeyDictionary[ToolDispatcher, float]()
        """Begin of the last turn, by the agent's dispatcher."""

        services.live.add_listener(DerivedSettingsListener(lambda settings: settings.tools, self._reconfigure))

    def _reconfigure(self, config: ToolsConfig) -> None:
        """Apply the new settings to calls that begin from now on."""
        self._web.reconfigure(config.web)
        for shell in self._shells.values():
            shell.reconfigure(config.bash)
        for root in self._roots:
            root.max_bytes = config.files.max_bytes

    @property
    def has_dynamic_tools(self) -> bool:
        """True if tools may come and go."""
        return bool(self._services.live.settings.tools.mcp)

    def files_directory(self, agent: AgentConfig) -> Path:
        """Return the directory of an agent's files."""
        return agent.files or agent_directory(agent.workspace, self._services.store.path, agent.id) / FILES_DIRECTORY

    def build_dispatcher(
        self, agent: AgentConfig, model: Model, own: Sequence[Tool], reach: ResolveReachable, skills: SkillTools
    ) -> ToolDispatcher:
        """Build the dispatcher of an agent. `own`: tools for itself. `reach`: where it may act.

        `skills`: its skills.

        `model`: the agent's model; a small window has no room for all tools. Call it again for another model: the tools
        stay the same then, and `own`, `reach` and `skills` are ignored.
        """
        if agent.id not in self._families_by_agent:
            self._families_by_agent[agent.id] = self._build_families(agent, own, reach, skills)
        config = self._services.live.settings.tools
        families = self._families_by_agent[agent.id]
        if model.takes_tools:
            families = fit_families(agent.id, families, model.context_tokens, config.off)
        self._family_by_tool |= {tool.spec.name: family for family, some in families.items() for tool in some}
        return ToolDispatcher(
            [tool for some in families.values() for tool in some],
            self._gate,
            self.running,
            self._services.redactor,
            dynamic=FittedDynamicTools(self._mcp, agent.id, int(model.context_tokens * MAX_WINDOW_SHARE))
            if self.has_dynamic_tools
            else None,
            off=config.off,
        )

    def _build_families(
        self, agent: AgentConfig, own: Sequence[Tool], reach: ResolveReachable, skills: SkillTools
    ) -> dict[str, list[Tool]]:
        services, config = self._services, self._services.live.settings.tools
        path = self.files_directory(agent)
        root = WorkspaceRoot(path, config.files.max_bytes)
        shell = ShellTools(
            path,
            config.bash,
            services.clock,
            skills.paths,
            hidden=self._hidden_directories(),
            finished=self._on_job_finished,
        )
        self._shells[agent.id] = shell
        self._roots.append(root)
        rooms = PlatformTools(
            store=services.store,
            clock=services.clock,
            channels=services.channels,
            places=services.life.places,
            bindings=services.bindings,
            who=services.access_policy,
            reach=reach,
            files=root,
            outfiles=services.outfiles,
            post=services.post,
            redactor=services.redactor,
        )
        files = FileTools(root, services.media, AuthoredFiles(services.store, services.clock))
        return {
            "itself": [*own, *tools_of(*self._memory, skills)],
            "rooms": rooms.tools,
            "files": tools_of(files),
            "shell": tools_of(shell),
            "web": tools_of(self._web),
        }

    def _hidden_directories(self) -> list[Path]:
        """Return the directories that no command sees: the configuration, the store, and what is each agent's own."""
        services = self._services
        own = [
            path
            for one in services.live.settings.agents
            for path in (one.workspace, self.files_directory(one))
            if path is not None
        ]
        return [services.store.path.parent, *own, *([services.directory] if services.directory is not None else [])]

    def build_skill_tools(self, agent: AgentConfig) -> SkillTools:
        """Build the skill tools for the agent's workspace."""
        workspace, bindings = agent.workspace or default_workspace(), self._services.bindings

        def scripts() -> str:
            boxed = self._services.live.settings.tools.bash.sandbox == "bubblewrap"
            return SKILLS_PATH if boxed else str(workspace / SKILLS_FOLDER)

        return SkillTools(workspace, lambda at: bindings.find(at).skills, scripts=scripts)

    def describe_shell(self, agent: str) -> str:
        """Describe in one line how the agent's shell runs, for the agent."""
        return self._shells[agent].describe()

    async def render_status(
        self, agent: str, conversation: ConversationId, dispatcher: ToolDispatcher, roles: Sequence[str]
    ) -> str:
        """Render the current state of the tools for a turn.

        The shell's is shown only if one of these roles may use it.
        """
        permits, config = dispatcher.permits(), self._services.live.settings.tools
        required_role = apply_rules("bash", permits["bash"], config.rules).role if "bash" in permits else None
        reached = required_role is not None and any(
            ROLE_ORDER.index(role) >= ROLE_ORDER.index(required_role) for role in roles
        )
        found = await self.approvals.grants.list_grants() if reached else {}
        approved = sorted({one.tool for one in found if (one.agent, one.conversation) == (agent, conversation)})
        return render_tool_status(self.describe_shell(agent) if reached else "", approved, *dispatcher.changed_names)

    async def prepare_turn(self, dispatcher: ToolDispatcher, lasts_s: float) -> None:
        """Prepare a turn: renew the pinned specs once nothing of the prompt can be cached any more.

        `lasts_s`: seconds for which it can be.
        """
        now_s, before_s = self._services.clock.monotonic(), self._turn_starts.get(dispatcher)
        self._turn_starts[dispatcher] = now_s
        if self.has_dynamic_tools and before_s is None:
            await self._mcp.wait_settled(SERVER_SETTLE_S)
        if before_s is None or now_s - before_s > lasts_s:
            dispatcher.pin_specs()

    def list_tools(self, agent: str, dispatcher: ToolDispatcher, at: Address) -> ToolList:
        """Return the tools and their state, for people who ask in this place."""
        config, families = self._services.live.settings.tools, dict[str, dict[str, ToolPermit]]()
        for name, permit in dispatcher.permits().items():
            families.setdefault(self._family_by_tool.get(name, "MCP"), {})[name] = permit
        states = [self.describe_shell(agent), *(_describe_server(one) for one in self._mcp.describe())]
        return ToolList(
            families=families,
            rules=config.rules,
            off=config.off,
            status_lines=states,
            running=dispatcher.running_calls(at.conversation),
        )

    async def start(self) -> None:
        """Recover the state of an earlier process, and start what takes long. Call once, before the first turn."""
        await self.approvals.recover()
        await self._services.outfiles.sweep()
        await self._definitions.load()
        self._mcp.start()

    async def kill_jobs(self, theirs: Callable[[BackgroundJob], bool]) -> None:
        """Kill the background jobs for which `theirs` returns True."""
        for shell in self._shells.values():
            await shell.kill_jobs(theirs)

    async def close(self) -> None:
        """Stop everything that runs for tools. Call after the turns have ended."""
        await asyncio.gather(*(shell.aclose() for shell in self._shells.values()))
        await self._mcp.aclose()
        await self._web.aclose()
        await self.approvals.close()

    async def _keep_image(self, data: bytes, about: str) -> tuple[ToolImage, Image] | None:
        try:
            return await prepare_image(self._services.media, data, about)
        except ToolCallRefused:
            return None

    async def _on_job_finished(self, agent: str, at: Address, text: str, ok: bool) -> None:
        now = self._services.clock.now()
        event = TaskFinished(id=EventId(new_id(now)), what="job", ok=ok, text=text, sent=now, agent=agent, at=at)
        await self._services.life.internal_intake.submit(event)


def built_in_specs() -> list[ToolSpec]:
    """Return the specifications of all tools that are no MCP server's."""
    return specs_of(
        *(RestTools, MessagingTools, SkillTools, MemoryTools, ReminderTools),
        *(PlatformTools, RoomReader, FileSender, FileTools, ShellTools, WebTools),
    )


def _describe_server(server: McpServerState) -> str:
    why = f": {server.why}" if server.why else ""
    return f"MCP server {server.name} is {server.state}, {server.tools} tools{why}"
