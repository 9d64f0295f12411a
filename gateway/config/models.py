"""The sections about people, commands and the machine: `access`, `commands`, `store`, `ops`.

The configuration, whole: one model per section, each default in one place.

Frozen. Reading files, `${...}` and error reports are `gateway.config.loader`'s. Every path in a
`Settings` is absolute. Secrets are `SecretStr`: no `repr` shows them.

The part of the configuration that says what a model is told, and what that may cost: caches, folds, recall.

What may interrupt, as the operator says it. See `gateway.config.models` for what holds of every section.

The `media` section.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from agent.models.config import ModelConfig, ProviderConfig
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.config.source import check_path
from gateway.config.tools import ToolsConfig
from gateway.core.events import Address
from gateway.core.facts import AMBIENT, INNER_CHANNEL, LOW, NORMAL, URGENT
from gateway.core.fields import ConfigSection, Duration, GuardedRegex, TimeZone
from gateway.core.media_types import FILE_PLACEHOLDER


def _check_command(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and (not value[0].strip() or not any(FILE_PLACEHOLDER in argument for argument in value[1:])):
        raise ValueError(f"a command is a list: the program, then its arguments, one of them with {FILE_PLACEHOLDER}")
    return value


class MediaConfig(ConfigSection):
    """What becomes of images and voice notes. Everything else is described in words only."""

    max_bytes: int = Field(default=10_000_000, ge=0)
    """Of one download; an image beyond what models take is never fetched. 0: nothing is."""
    max_images: int = Field(default=4, ge=0, le=5)
    """Shown with the new lines of one turn, the newest, if the model sees. 0: none."""
    timeout: Duration = 20.0
    """Seconds for the downloads of one turn, which go side by side."""
    transcribe: Annotated[tuple[str, ...], AfterValidator(_check_command)] = Field(default=(), strict=False)
    """A program and its arguments, which writes what is said in `{file}` to its standard output. Empty: none."""
    transcribe_timeout: Duration = 60.0
    """Seconds for the voice notes of one turn, one after the other; what is not written out by then is described."""
    keep: Duration = 86_400.0
    """How long an image stays on disk after it was last shown."""


_PERSON_PATTERN = re.compile(r"[A-Za-z0-9._-]+:\S.*")


def _check_person(value: str) -> str:
    if not _PERSON_PATTERN.fullmatch(value):
        raise ValueError("write `<channel>:<sender id>`, e.g. telegram.main:1001")
    return value


LocalPath = Annotated[Path, Field(strict=False), AfterValidator(check_path)]
"""Relative to the configuration directory when written, absolute when read."""
PersonKey = Annotated[str, AfterValidator(_check_person)]
"""`<channel>:<sender id>`, e.g. `telegram.main:1001` or `irc.libera:account:someone`."""


class RolesConfig(ConfigSection):
    """Who somebody is. A stable id of a verified sender, never a nick."""

    owner: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """May do and see all."""
    admin: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """May administer it."""
    member: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """Is answered in direct chats."""
    guest: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """As anybody else."""
    blocked: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """Is never answered, and never shown to the model."""


def _check_room_scope(value: str) -> str:
    try:
        place = Address.parse(value)
    except ValueError:
        raise ValueError("write `<channel>/<room>`, e.g. telegram.main/-1001 or discord.main/<guild>") from None
    if place.thread is not None:
        raise ValueError("a thread is of its room: write `<channel>/<room>`")
    return value


RoomScope = Annotated[str, AfterValidator(_check_room_scope)]
"""`<channel>/<room>`, or what rooms are part of: `<channel>/<guild>`."""


class GrantConfig(ConfigSection):
    """A role that somebody has in some places only."""

    who: PersonKey
    """As in `access.roles`."""
    role: Literal["owner", "admin", "member", "blocked"]
    """Instead of the one that they have elsewhere."""
    agent: str | None = None
    """With this agent."""
    room: RoomScope | None = None
    """There."""

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        if (self.agent is None) == (self.room is None):
            raise ValueError("name an agent or a room; what holds everywhere stands in access.roles")
        return self


class PlatformRoleConfig(ConfigSection):
    """A role for whom a platform says something of in a room. No bot administers by it."""

    channel: str
    """A glob, e.g. discord.*."""
    room: str = "*"
    """A room, or a guild. `*`: any."""
    has: Annotated[str, Field(min_length=1)]
    """Discord: `role:<id>`; Telegram: `creator`, `administrator`; IRC: `founder`, `protected`, `op`, `halfop`,
    `voice`."""
    role: Literal["owner", "admin", "member", "guest", "blocked"]
    """Unless a person has a role of their own."""


class RateConfig(ConfigSection):
    """How often somebody may have the agent answer: so many at once, then so many a minute."""

    burst: int = Field(ge=0)
    """0, with a pace: one."""
    per_minute: float = Field(ge=0)
    """0, with a burst of 0: no limit."""


class RatesConfig(ConfigSection):
    """Of what is said to the agent. Owners and admins have no limit; what they say leaves less to others."""

    sender: RateConfig = RateConfig(burst=200, per_minute=30)
    room: RateConfig = RateConfig(burst=400, per_minute=90)
    agent: RateConfig = RateConfig(burst=1_000, per_minute=300)
    """What comes in a burst is told in few turns (`attention.coalesce`), so that it costs little; what goes on does."""


class BudgetsConfig(ConfigSection):
    """What people who are neither owners nor admins may cause per UTC day, in US dollars. `null`: no limit.

    Before each request as much is set aside as it may cost at most, so a day never costs more, however many ask at
    once. Answers and reminders count for whom they are. Past a budget the person is told once, owners once a day. A
    model that is in no price table counts with the table's `default`, and one that is listed without a price as much; a
    model of your own that costs nothing has to be listed with 0 (`prices.yaml`), but for the kinds `local` and
    `llamacpp`.
    """

    sender_usd: float | None = Field(default=1.0, ge=0)
    """For one person, in all places: about 100 answers of a middling model. Nobody alone uses up what a room has."""
    room_usd: float | None = Field(default=5.0, ge=0)
    """In one room: five people who have used up their own."""
    agent_usd: float | None = Field(default=10.0, ge=0)
    """With one agent, in all places: what a raid costs at most. Enough for about 80 answers at the same moment."""


class AccessConfig(ConfigSection):
    """Who may talk to the agent."""

    dm: Literal["pairing", "allowlist", "open", "disabled"] = "pairing"
    rooms: Literal["approval", "listed"] = "approval"
    """What becomes of rooms that are not listed. approval: who speaks to the agent there, or invites it, is shown a
    code by which an admin opens the room; listed: nothing."""
    roles: RolesConfig = RolesConfig()
    grants: tuple[GrantConfig, ...] = Field(default=(), strict=False)
    platform_roles: tuple[PlatformRoleConfig, ...] = Field(default=(), strict=False)
    masks: bool = False
    """Whether somebody may be paired of whom a platform only shows a mask, which anybody may have tomorrow."""
    rates: RatesConfig = RatesConfig()
    budgets: BudgetsConfig = BudgetsConfig()
    tell: RoomScope | None = None
    """Where owners are told of limits that were reached, and of what waits for an admin. None: in the direct chat that
    an owner used last."""
    max_bot_exchanges: int = Field(default=5, ge=0)
    """Messages of a listed bot that are answered in a row, until a person speaks. 0: none."""


class CommandsConfig(ConfigSection):
    """What can be asked of the gateway itself."""

    prefix: Annotated[str, Field(pattern=r"^[!-/:-@\[-`{-~]{0,3}$")] = "!"
    """In front of a command's name; up to 3 punctuation marks. Empty: only native commands."""
    contact: str | None = None
    """Who runs this bot and how to reach them, where the channel itself does not say."""
    per_minute: int = Field(default=10, ge=0)
    """Commands of one person that are answered. 0: none."""


class StoreConfig(ConfigSection):
    """Where the log is."""

    path: LocalPath = Path("data/reverie.db")
    """One file, made at the first start; what agents keep lies beside it."""


MIN_TOKEN_CHARS = 16
"""Of the operator's token: fewer could be guessed."""


def _check_token(token: SecretStr) -> SecretStr:
    """Raises ValueError for one that could be guessed."""
    if len(token.get_secret_value()) < MIN_TOKEN_CHARS:
        raise ValueError(f"at least {MIN_TOKEN_CHARS} characters are needed: `openssl rand -hex 32` makes a good one")
    return token


class OpsConfig(ConfigSection):
    """The operator's HTTP server."""

    host: str = "127.0.0.1"
    """Other addresses than those of this machine need a proxy with TLS in front."""
    port: int = Field(default=9090, ge=0, le=65535)
    """0: any free one."""
    token: Annotated[SecretStr, AfterValidator(_check_token)] | None = None
    """At least 16 characters: whoever bears it sees and steers everything. None: only health and metrics are served."""
    hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")], ...] = Field(default=(), strict=False)
    """Other names under which the server is asked for, e.g. behind a proxy. Requests for any other host are refused."""


_URGENCY_LEVELS = {"inherit": -1, "ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}


def _parse_level(value: object) -> object:
    return _URGENCY_LEVELS.get(value, value) if isinstance(value, str) else value


def _check_regex(value: str) -> str:
    GuardedRegex(value)
    return value


def _check_hours(value: str) -> str:
    start, _, end = value.partition("-")
    if not all(re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", part) for part in (start, end)) or start == end:
        raise ValueError("write from when to when, e.g. 23:00-07:00")
    return value


ThresholdLevel = Annotated[int, BeforeValidator(_parse_level), Field(ge=-1, le=URGENT)]
"""0 ambient, 1 low, 2 normal, 3 urgent, -1 inherits; reads the names too."""


class AttentionRuleConfig(ConfigSection):
    """Gives an urgency to notifications. The first rule that fits decides."""

    type: str
    """Glob or prefix of a dotted type, e.g. `irc.libera.room.#ops` or `*.reaction`."""
    urgency: Literal["ambient", "low", "normal", "urgent"]
    """ambient: context only; low: told later; normal: wakes the agent at its next look; urgent: a turn begins."""
    keyword: str | None = None
    """Only where the text contains this, in any case. None: always."""
    role: Literal["guest", "member", "admin", "owner"] | None = None
    """Only what somebody did who has this role or a higher one. None: always, also what nobody did."""
    regex: Annotated[str, AfterValidator(_check_regex)] | None = None
    """Only where this expression is found in the first 4,096 characters of the text. None: always."""


class SalienceConfig(ConfigSection):
    """What lifts the talk of a room with `listen: ambient` to normal, though nobody spoke to the agent."""

    people: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """`<channel>:<sender id>`: whatever they say."""
    keywords: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), strict=False)
    """Any of these in the text, in any case."""
    questions: bool = False
    """A line that ends with a question mark and names nobody."""
    activity: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """So many times as many lines in a minute as were usual in the last hour, and ten at least. 0: however many."""
    rest: Duration = 300.0
    """After a room was lifted it is not lifted again for so long."""


class PresenceConfig(ConfigSection):
    """How near people are taken to be, by when they last spoke to the agent: owners and admins, else anybody."""

    idle: Duration = 900.0
    """After so much silence thresholds are one lower."""
    away: Duration = 14_400.0
    """After so much they are away, and told what is unread when they come back. Not less than `idle`."""
    sleep: Annotated[str, AfterValidator(_check_hours)] | None = None
    """`HH:MM-HH:MM`. Who is silent then sleeps, and only what is urgent wakes the agent. None: nobody sleeps."""
    timezone: TimeZone = "UTC"
    """Of `sleep`, e.g. `Europe/Zurich`."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.away < self.idle:
            raise ValueError("`away` must not be less than `idle`")
        return self


class AttentionConfig(ConfigSection):
    """What may interrupt whom."""

    coalesce: Duration = 1.5
    """How long a turn waits for more lines of the same conversation. 0: at once."""
    rules: tuple[AttentionRuleConfig, ...] = Field(default=(), strict=False)
    thresholds: dict[str, ThresholdLevel] = Field(default={})
    """Lowest urgency that passes, by type prefix; the longest prefix decides."""
    salience: SalienceConfig = SalienceConfig()
    presence: PresenceConfig = PresenceConfig()


def _check_cache_ttl(value: float) -> float:
    if value not in {300.0, 3600.0}:
        raise ValueError("providers cache for 5m or for 1h; write one of these")
    return value


ConfiguredCacheTtl = Annotated[Duration, AfterValidator(_check_cache_ttl)]
"""What providers can be asked to cache for (platform.claude.com/docs/en/build-with-claude/prompt-caching)."""


class PromptCacheConfig(ConfigSection):
    """Cache marks on what is sent to a model."""

    enabled: bool = True
    """False: none is set, and only providers that keep every prefix by themselves cache."""
    policy: Literal["auto", "fixed"] = "auto"
    """fixed: the lifetimes of the table in ARCHITECTURE.md. auto: each conversation begins with these; one whose own
    gaps show that it is cheaper gets others."""
    long_ttl: ConfiguredCacheTtl = 3600.0
    """Of what all conversations share, and the longest that `auto` may choose."""
    short_ttl: ConfiguredCacheTtl = 300.0
    """Of what is behind it, under `fixed`; `auto` begins with 5m and chooses. Not longer than `long_ttl`."""
    long_ttl_providers: tuple[str, ...] = Field(default=("anthropic",), strict=False)
    """Kinds or names of providers that honour an hour; others are never asked for it."""
    keep_warm_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """For reading a prompt again only so that it stays cached, per agent and UTC day. 0: never."""

    @field_validator("short_ttl")
    @classmethod
    def _check_short_ttl(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("long_ttl", value):
            raise ValueError("must not be longer than long_ttl; write 5m, or long_ttl: 1h")
        return value


class CompactionConfig(ConfigSection):
    """Folding of long conversations by a model's summary."""

    enabled: bool = False
    compact_at_pct: float = Field(default=0.75, gt=0, le=1)
    """Share of the usable window that starts it."""
    tail_keep_tokens: int = Field(default=20_000, ge=0)
    tool_result_max_pct: float = Field(default=0.30, gt=0, le=1)
    """Share of the usable window that one tool result may fill."""
    summarizer_model: str = ""
    """A key of `llm.models`. Empty: the agent's own."""
    lock_ttl_seconds: int = Field(default=300, ge=1)
    """So long nobody else begins a summary of the same conversation."""


class FoldsConfig(ConfigSection):
    """When and how what the model sees of a conversation is made smaller."""

    policy: Literal["auto", "always", "full"] = "auto"
    """auto: when it costs nothing or pays; always: before each turn; full: only when the window is."""
    keep_recent_tool_results: int = Field(default=2, ge=0)
    """Whole in every fold."""
    active_evidence_tokens: int = Field(default=18_000, ge=0)
    """Of what tools bring in one turn, told word for word; the rest is told with a handle."""
    completed_evidence_tokens: int = Field(default=2_000, ge=0)
    """The same of all summarised tool loops together."""
    nudge_at_pct: float = Field(default=0.80, gt=0, le=1)
    """Share of the usable window at which the agent is asked, once, to write down what matters."""
    fold_at_pct: float = Field(default=0.90, gt=0, le=1)
    """Share of it, as the provider counts, at which the view is folded whatever that costs."""
    provider_side: Literal["off", "clear", "compact"] = "off"
    """What the provider is asked to do by itself, where the model can. clear: leave old tool results out."""

    @field_validator("provider_side")
    @classmethod
    def _check_provider_side(cls, value: str) -> str:
        # What only the provider holds is in no log: it survives no restart, and no handle leads to what it stands for.
        if value == "compact":
            raise ValueError("summaries are made here, where the log has them; write off, and compaction.enabled: true")
        return value


class PrefetchConfig(ConfigSection):
    """A command that is asked before each turn what else the agent should know."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    """The program and its arguments, without a shell. Empty: none."""
    timeout: Duration = 2.0


class RecallConfig(ConfigSection):
    """What is called to mind before each turn."""

    ambient_tokens: int = Field(default=150, ge=0, le=2_000)
    """Of what was said and written down before and has to do with the newest messages. 0: nothing."""
    prefetch: PrefetchConfig = PrefetchConfig()


class TokenCounterConfig(ConfigSection):
    """How prompts are measured before they are sent."""

    enabled: bool = True
    """False: they are only estimated."""
    backend: Literal["auto", "anthropic_api", "tiktoken"] = "auto"
    cache_capacity: int = Field(default=1024, ge=0)
    """Counts remembered. 0: none."""


class WorkspaceCacheConfig(ConfigSection):
    """Persona files kept in memory."""

    enabled: bool = True
    """False: they are read before each turn."""
    watch_debounce_ms: int = Field(default=500, ge=0)
    max_age_seconds: int = Field(default=0, ge=0)
    """0: re-read only when a file changes."""


class ContextOptimizationConfig(ConfigSection):
    """The four mechanisms and their knobs."""

    prompt_cache: PromptCacheConfig = PromptCacheConfig()
    compaction: CompactionConfig = CompactionConfig()
    folds: FoldsConfig = FoldsConfig()
    token_counter: TokenCounterConfig = TokenCounterConfig()
    workspace_cache: WorkspaceCacheConfig = WorkspaceCacheConfig()


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
