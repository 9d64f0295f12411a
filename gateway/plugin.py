"""The interface of plugins: what a plugin declares, and the hooks that the path of a message calls.

A feature of Reverie, of its own or of anybody else's, is one subclass of `Plugin`. A method that is
marked with `@hook` and named as one of `Hooks` is called by the path; methods marked with `@tool`
and `@command` are what the agent and people can call. `gateway.plugins` finds plugins and puts them
in order. The interface is unstable until version 2: a plugin names the version in `api`.

An exception of a hook never ends the gateway, nor the turn: it is logged with the plugin's name,
counted, and shown by `doctor`, `/ready` and to the owners. `StoreError` goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, cast

import pluggy
from pydantic import BaseModel

from gateway.core.facts import PluginFact
from gateway.core.frozen import frozen

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from agent.models.settings import ProviderSettings
    from channels.base import Channel, ChannelConfig
    from gateway.access.policy import Routed
    from gateway.context.conversation import ConversationLocks, ConversationReader, RenderedMessage
    from gateway.context.digest import DigestBuilder
    from gateway.context.history import HistoryTurn
    from gateway.context.observer import Progress, RunningTurn
    from gateway.context.workspace_fs import AgentFiles
    from gateway.core.events import ConversationId, Post
    from gateway.core.facts import Fact, TurnRecord
    from gateway.core.labels import Label
    from gateway.core.permissions import PermissionDecision
    from gateway.core.tool import Tool, ToolContext
    from gateway.core.tool_spec import ToolCall
    from gateway.store import LogEntry
    from gateway.store.effects import Decision, EffectFact
    from gateway.store.projections import Table
    from gateway.stream.attention import InternalIntake, LiveAttention
    from gateway.stream.handle import GatewayHandle
    from gateway.stream.inbox import ConversationInbox
    from gateway.stream.media import MediaStore
    from gateway.stream.notices import Notice
    from gateway.stream.outbox import OutgoingFiles

API_VERSION: Final = 1
"""Version of this interface. A plugin that was written for another one is not loaded."""
PROJECT: Final = "reverie"
PluginT = TypeVar("PluginT", bound="Plugin")
hook: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a method of a plugin as the hook of its name; `@hook(trylast=True)`: behind those of all
other plugins. A name that is no hook, or an argument that the hook does not have, is an error when
the plugin is loaded."""
_specified = pluggy.HookspecMarker(PROJECT)


@frozen
class Part:
    """A text that a plugin adds to the prompt of one turn."""

    block: Literal["recall", "now"]
    """recall: words of people, or of the agent about them; never an instruction. now: instructions
    with the operator's authority. Both stand behind all that is cached, and later prompts do not
    repeat them."""
    text: str
    """Never empty: where there is nothing to add there is no part."""
    label: Label
    """Who may have caused the text, and who may read it: the turn gets the label, too."""
    names: tuple[str, ...] = ()
    """Names of the items shown, for the record of the turn (`TurnRecord.recalled`)."""


@frozen
class TurnView:
    """A turn as its hooks see it."""

    context: ToolContext
    """Its id, agent, place, visibility, requesters and label so far."""
    unread: Sequence[LogEntry] = ()
    """Entries that are new, oldest first, also those deleted since. Empty as `lines`."""
    lines: Sequence[RenderedMessage] = ()
    """New input, oldest first. Empty in the inner conversation."""
    past: Sequence[HistoryTurn] = ()
    """Earlier turns that the prompt holds, oldest first."""
    memory: str = ""
    """Part of MEMORY.md that the prompt holds anyway."""
    is_plain: bool = False
    """True: the model is so small that its prompt should hold little."""


@frozen
class Plan:
    """What an agent means to do in a conversation later."""

    text: str
    """One line, for the agent."""
    label: Label
    is_open: bool
    """True: it waits for neither a time nor an event, so the agent goes on with it by itself."""


@frozen(kw_only=False)
class Ask:
    """An admin must approve the call."""

    rule: str
    """Reason, for the admin and the log: one sentence without a full stop."""


@frozen(kw_only=False)
class Refuse:
    """The call is not carried out."""

    rule: str
    """Reason, for the model and the log: one sentence without a full stop."""


class Hooks:
    """The hooks. Each is called for the plugins in their order; a plugin marks its own with
    `@hook`, and may leave out arguments that it does not need.
    """

    @_specified
    async def judge(self, routed: Routed, so_far: Decision) -> Decision | None:
        """Return another decision about an event, or None for no change, before it is logged.

        What it returns is appended in the event's own transaction, so it never appends by itself.
        Called for events of `Plugin.judged_kinds` whose fate so far is in `Plugin.judged_fates`.
        All events of the channel wait meanwhile. Cancelled, the event is judged again later.
        """

    @_specified
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        """Take entries of the kinds in `Plugin.watches`, after their commit, also those of other
        processes. Returns at once.
        """

    @_specified
    async def parts(self, turn: TurnView) -> Iterable[Part]:
        """Return what the prompt of a turn is to hold besides. Cancelled with its turn."""
        raise NotImplementedError

    @_specified
    async def plans(self, agent: str, place: ConversationId) -> Iterable[Plan]:
        """Return what an agent means to do in a conversation; by itself, in its inner one. The
        digest shows these.
        """
        raise NotImplementedError

    @_specified
    async def skills(self, agent: str, tools: Collection[str]) -> str:
        """Return stable text for the block of skills in all prompts of an agent, the same bytes for
        every place and hour until what it tells of changes: then all is cached anew. Empty: none.

        `tools`: names of the tools that the prompt describes. Asked again after some seconds.
        """
        raise NotImplementedError

    @_specified
    async def before_call(
        self, turn: ToolContext, call: ToolCall, tool: Tool
    ) -> Ask | Refuse | None:
        """Return whether a call of a tool has to be approved or is refused. None: no objection.

        Called once the arguments were checked. The strictest answer counts, and the rules of the
        gateway (`gateway.core.permissions`) count besides.
        """

    @_specified
    async def approve(
        self, turn: ToolContext, call: ToolCall, decision: PermissionDecision
    ) -> str | None:
        """Ask somebody whether a call that needs an approval may be carried out, and wait for their
        word. Empty: it may, if roles and rights allow it then, too. A text: why not, or not yet,
        for the model; the plugin has logged it. None: the next plugin is asked; without any, the
        call is refused. Cancelled with its turn.
        """

    @_specified
    def on_progress(self, turn: RunningTurn, news: Progress) -> None:
        """Take what happens in a running turn. Returns at once."""

    @_specified
    async def before_post(self, turn: RunningTurn, post: Post) -> Post | None:
        """Return another post in place of that of a running turn, or None for no change."""

    @_specified
    async def after_turn(self, turn: TurnRecord) -> Iterable[Fact]:
        """Return facts to append with the record of a turn, in its transaction and at its place."""
        raise NotImplementedError

    @_specified
    async def notify(self, notice: Notice) -> None:
        """Let owners know of something. The notices before it were begun. It may wait for as long
        as the log cannot be written.
        """
        raise NotImplementedError


@frozen
class PlatformFactory:
    """A platform that a plugin brings."""

    settings: type[ChannelConfig]
    """Settings of a channel, with `platform: Literal[NAME]`."""
    make: Callable[..., Channel]
    """Called with these, all by name; returns the adapter of one account. Heavy libraries are
    imported there, and not before. name: `ChannelName`. settings: of the type `settings`. clock:
    `Clock`. cursor: the last durable one, or None. commands: the command table (`CommandSpec`).
    ranked_rooms: the rooms for which the ranks that the platform gives to people matter
    (`Sender.ranks`); `*`: all."""


@frozen(eq=False)
class PluginContext:
    """What plugins work with: the gateway, and the services of the path."""

    gateway: GatewayHandle
    internal: InternalIntake
    """Entrance for events of the gateway itself, e.g. an `Alarm`."""
    inbox: ConversationInbox
    attention: LiveAttention
    reader: ConversationReader
    locks: ConversationLocks
    """Held by each turn."""
    digests: Mapping[str, DigestBuilder]
    """Of each agent, by its id."""
    outgoing: OutgoingFiles
    media: MediaStore
    files: AgentFiles
    plugins: Mapping[str, Plugin] = field(default_factory=dict)
    """Those that were built before this one, by name. See `get`."""

    async def append(self, *facts: EffectFact) -> None:
        """Append facts in one transaction, for work beside the path; one whose key is in the log
        already is left out. A post is appended as `queue_post(post)`. Raises StoreError.
        """
        from gateway.store.effects import build_effect_entries  # noqa: PLC0415 - declarations need no store

        now, keys = self.gateway.clock.now(), [None] * len(facts)
        await self.gateway.store.append(build_effect_entries(facts, keys, at=now, place=None))

    def get(self, kind: type[PluginT]) -> PluginT:
        """Return a plugin that the caller's `requires` names. Raises KeyError."""
        return cast("PluginT", self.plugins[kind.name])


class Plugin:
    """A feature. One object is built for each gateway, before anything is read or received.

    Declarations are attributes of the class, so that they are known before any object is built: for
    the configuration, the commands, the log and its tables.
    """

    name: ClassVar[str]
    """1 to 32 of `a-z`, `0-9` and `_`, the first a letter. It is the key of its settings in the
    configuration, the prefix of its facts and tables, and the name of its logger."""
    summary: ClassVar[str] = ""
    """What it does, in one line for `reverie plugins`."""
    api: ClassVar[int] = API_VERSION
    """Version of the interface that it was written for."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Names of the plugins that are built before it. It is left out with any of them."""
    Settings: ClassVar[type[BaseModel] | None] = None
    """Its section of the configuration: a `ConfigSection` whose fields all have defaults."""
    facts: ClassVar[tuple[type[PluginFact], ...]] = ()
    """Kinds of entries that it adds to the log."""
    tables: ClassVar[tuple[Table, ...]] = ()
    """Tables that are derived from the log, see `gateway.store.projections`."""
    watches: ClassVar[tuple[type[Any], ...]] = ()
    """Types of facts for `on_facts`."""
    judged_kinds: ClassVar[tuple[str, ...]] = ("direct", "mention", "reply", "room")
    """Kinds of events for `judge`, as in the log."""
    judged_fates: ClassVar[tuple[str, ...]] = ("noted", "context", "due")
    """Fates so far for `judge`: `refused` has to be named for events that access does not allow."""
    abilities: ClassVar[tuple[type[Any], ...]] = ()
    """Protocols of channels, for `on_progress` and `before_post`. Empty: of all."""
    parts_for: ClassVar[Literal["everybody", "owner"]] = "everybody"
    """owner: `parts` is called only where an owner is alone with the agent."""
    family: ClassVar[str] = ""
    """Heading of its tools in lists, and their rank: agents with small models do without later
    families. Empty: the plugin's name."""
    checks: ClassVar[str] = ""
    """Dotted name of a module with `@check` functions (`gateway.config.check_registry`), which only
    `reverie doctor` imports. Empty: there are none."""
    subcommands: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Commands of the shell, `reverie NAME`: a line for `reverie --help`, and `module:function`,
    which is imported where NAME is called. It takes the `argparse.ArgumentParser`, and adds the
    arguments and the default `handler`: given what was parsed, it returns the exit code."""
    metrics: Collector | None = None
    """Metrics for Prometheus, whose names begin with `reverie_NAME_`. None: there are none."""
    platforms: ClassVar[Mapping[str, PlatformFactory]] = {}
    """Platforms that it brings, by the name in `channels.NAME.platform`."""
    providers: ClassVar[Mapping[str, type[ProviderSettings]]] = {}
    """Providers of models that it brings, by the name in `llm.providers.NAME.kind`."""

    def __init__(self, context: PluginContext) -> None:
        """Keep the context. It must not read the log, nor start anything: that is for `start`."""
        self.context = context

    @property
    def settings(self) -> Any:  # noqa: ANN401 - a plugin with settings says their type
        """Its section of the settings in force; read it again for each use. None: it has none."""
        return getattr(self.context.gateway.live.settings, self.name, None)

    def dynamic_tools(self) -> Sequence[Tool] | None:
        """Return the tools that come and go while the gateway runs, beside its `@tool` methods. It
        is read for each use, and returns at once. The agent can call a new one at once; prompts
        describe it where that costs no cached prefix. None: there are none, now and later.
        """
        return None

    async def wait_for_tools(self) -> None:
        """Return once `dynamic_tools` are complete, or need no more waiting: turns wait for it."""

    def states(self) -> Sequence[str]:
        """Return the state of what its tools need, in a line each, for the list of tools."""
        return ()

    async def start(self) -> None:
        """Read from the log what the hooks need, before the first event. Work that goes on is for
        `run`. Raises StoreError.
        """

    async def on_lease(self, lease: str) -> None:
        """Go on with what this process leads from now on: everything, an agent, a channel
        (`gateway.cluster.cluster`). Called after `start`, before the events of that lease.
        """

    async def run(self) -> None:
        """Work beside the path until it is cancelled, or return. An exception is told as that of a
        hook, and `run` is not called again before a restart.
        """

    async def upkeep(self) -> None:
        """Work for the whole gateway that only one of its processes does at a time; as `run`, but
        cancelled when another process takes it over.
        """

    async def stop(self) -> None:
        """End what goes on within 10 s, while the log can still be written. `run` is cancelled
        after it.
        """
