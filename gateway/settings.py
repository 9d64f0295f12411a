"""The configuration, whole: one model per section, each default in one place.

Frozen. Reading files, `${...}` and error reports are `gateway.settings_load`'s. Every path in a
`Settings` is absolute. Secrets are `SecretStr`: no `repr` shows them.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agent.models.config import ModelConfig, ProviderConfig
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.fields import ConfigSection, Duration, TimeZone
from gateway.media_config import MediaConfig
from gateway.records import INNER_CHANNEL
from gateway.settings_attention import AttentionConfig
from gateway.settings_context import ContextOptimizationConfig, RecallConfig
from gateway.settings_operator import AccessConfig, CommandsConfig, LocalPath, OpsConfig, StoreConfig
from gateway.settings_tools import ToolsConfig

_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]+")


def _check_name(value: str) -> str:
    if not _NAME_PATTERN.fullmatch(value):
        raise ValueError("a name has letters, digits, `.`, `_` and `-` only")
    return value


def _check_channel_name(value: str) -> str:
    if value == INNER_CHANNEL:
        raise ValueError(f"`{INNER_CHANNEL}` is the agents' own; write another name, e.g. irc.libera")
    return value


Name = Annotated[str, AfterValidator(_check_name)]
"""Letters, digits, `.`, `_` and `-`."""


class ConsoleConfig(ConfigSection):
    """The channel inside the process: a keyboard, or a test."""

    platform: Literal["console"]
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Their names, as a test calls them."""


ChannelConfig = Annotated[IrcConfig | TelegramConfig | DiscordConfig | ConsoleConfig, Field(discriminator="platform")]


class BindingMatch(ConfigSection):
    """Which conversations a binding is for. Globs, whole and case-sensitive: `*`, `?`, `[abc]`."""

    channel: str = "*"
    """As it stands under `channels`."""
    room: str = "*"
    """The platform's own id of it, or a direct chat's."""
    thread: str | None = None
    """None: a room and all its threads."""


class BindingConfig(ConfigSection):
    """How an agent behaves in the conversations that match."""

    match: BindingMatch = BindingMatch()
    listen: Literal["mention", "ambient", "all", "off"] = "ambient"
    """mention: other talk is not kept for the next turn; ambient: it is; all: it starts turns; off: nothing does."""
    prompt: str = ""
    """Added to the system prompt there."""
    language: str | None = None
    """BCP 47. None: the language of whoever is speaking."""
    private: bool | None = None
    """true: what is said there is told nowhere else, as in a direct chat. false: it may be told in all places. Left
    out: as the platform says. What everybody can read there (a Telegram group with a username, an IRC channel without
    the modes i, k, p and s) may be told in all places; an open channel of a Discord server, in all of that server;
    everything else in that room alone."""
    skills: tuple[str, ...] | None = Field(default=None, strict=False)
    """Those that are for here. None: all of the workspace."""
    arrivals: Literal["steer", "queue", "interrupt"] = "steer"
    """What becomes of a turn when somebody speaks to the agent in its middle: it is told between two tool calls; the
    next turn is told; it is ended, and the next begins at once."""


class OptimizationSwitches(ConfigSection):
    """The four mechanisms, per agent. None: as `llm.context_optimization` says."""

    prompt_cache: bool | None = None
    """Cache marks, and the plan of them."""
    compaction: bool | None = None
    """A model's summary in place of what leaves the window."""
    token_counter: bool | None = None
    """Exact counting beside the estimates."""
    workspace_cache: bool | None = None
    """The persona is read again only when it changes."""


class AgentConfig(ConfigSection):
    """One mind: a persona, a model and the places where it lives."""

    id: Name
    """Its name in bindings, in the log and for other agents."""
    workspace: LocalPath | None = None
    """Directory of the persona files. None: the persona that comes with the package."""
    model: str = "main"
    """A key of `llm.models`."""
    surface: Literal["native", "capability"] = "native"
    """native: each tool is told by itself; capability: one tool calls all of them, and what there is stands in a
    catalogue, so that a new one changes nothing in front of it."""
    files: LocalPath | None = None
    """The directory that file tools and the shell work in. None: `files` beside its own files."""
    context_optimization: OptimizationSwitches = OptimizationSwitches()
    bindings: tuple[BindingConfig, ...] = Field(default=(BindingConfig(),), strict=False)
    """The first match wins; a conversation that matches none is not listened to. Left out: all match."""


class LlmConfig(ConfigSection):
    """Where answers come from."""

    providers: dict[Name, ProviderConfig]
    models: dict[str, ModelConfig]
    context_optimization: ContextOptimizationConfig = ContextOptimizationConfig()


class DmnConfig(ConfigSection):
    """The pace and the limits of what the agent does unasked."""

    engaged: Duration = 5.0
    """Between looks while somebody speaks to it."""
    working: Duration = 3.0
    """While it goes on with a task."""
    foraging: Duration = 30.0
    """Without a task, while it may look for one."""
    resting: Duration = 300.0
    """While nothing is to be done. A look that finds nothing costs nothing."""
    max_autonomous_turns: int = Field(default=20, ge=0)
    """In a row. 0: none."""
    daily_turns: int = Field(default=200, ge=0)
    """Autonomous ones, per UTC day. 0: none."""
    daily_cost_usd: float = Field(default=2.0, ge=0)
    """For autonomous turns, per UTC day. 0: none that cost anything."""
    forage: bool = False
    """Look for something to do when there is nothing to answer."""
    dream_every: Duration = 64_800.0
    """At most so often what was written down is consolidated into MEMORY.md. 0: never."""
    dream_tokens: int = Field(default=500, ge=0)
    """Once so much has been written down since."""
    memory_chars: int = Field(default=8_000, ge=0, le=12_000)
    """MEMORY.md is kept below this."""
    timezone: TimeZone = "UTC"
    """Of schedules that name none: an IANA name, e.g. Europe/Zurich."""
    max_reminders: int = Field(default=20, ge=0)
    """Of one conversation at once. 0: none."""


class Settings(ConfigSection):
    """Everything an operator can say."""

    channels: dict[Annotated[Name, AfterValidator(_check_channel_name)], ChannelConfig] = Field(default={})
    agents: tuple[AgentConfig, ...] = Field(strict=False)
    """At least one. A conversation belongs to the first binding that matches, from the first agent on."""
    llm: LlmConfig
    dmn: DmnConfig = DmnConfig()
    recall: RecallConfig = RecallConfig()
    tools: ToolsConfig = ToolsConfig()
    attention: AttentionConfig = AttentionConfig()
    access: AccessConfig = AccessConfig()
    commands: CommandsConfig = CommandsConfig()
    media: MediaConfig = MediaConfig()
    store: StoreConfig = StoreConfig()
    ops: OpsConfig = OpsConfig()
