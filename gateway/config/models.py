"""Configuration sections as pydantic models: `Settings` and everything below it except `tools`.

Sections are frozen; unknown keys are errors; each default stands in one place. Every path in a
`Settings` is absolute. Secrets are `SecretStr`: no `repr` shows them. Reading files, `${...}` and
error messages: `gateway.config.loader`.
"""

import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from agent.models.settings import ModelConfig, ProviderSettings
from channels.base import ChannelConfig
from gateway.config.source import DEFAULT_STORE
from gateway.config.tools import ToolsConfig
from gateway.core.control_messages import OPERATOR
from gateway.core.events import Address
from gateway.core.facts import AMBIENT, INNER_CHANNEL, LOW, NORMAL, URGENT
from gateway.core.fields import ConfigSection, Duration, LocalPath, TimeZone
from gateway.core.route import ClientRole

FILE_PLACEHOLDER: Final = "{file}"
"""Stands in an argument of `media.transcribe` for the path of the sound file."""


def _check_command(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and (
        not value[0].strip() or not any(FILE_PLACEHOLDER in argument for argument in value[1:])
    ):
        raise ValueError(
            "a command is a list: the program, then its arguments, one of them with "
            f"{FILE_PLACEHOLDER}"
        )
    return value


class MediaConfig(ConfigSection):
    """Handling of images, voice notes and documents. All other attachments are only described in
    words.
    """

    max_bytes: int = Field(default=10_000_000, ge=0)
    """Size of one download; an image larger than models accept is never fetched. 0: no
    downloads."""
    pdf_pages: int = Field(default=0, ge=0, le=100)
    """PDFs of at most so many pages that are sent to the agent are shown whole, with pictures and
    layout, to models of Anthropic and OpenAI that take images. A page takes up to 4,600 tokens. 0:
    their text alone."""
    transcribe: Annotated[tuple[str, ...], AfterValidator(_check_command)] = Field(
        default=(), strict=False
    )
    """A program and its arguments, which writes the words spoken in `{file}` to its standard
    output. Empty: none."""
    transcribe_timeout: Duration = 60.0
    """Seconds for the voice notes of one turn, one after the other; those not transcribed by then
    are only described."""
    keep: Duration = 86_400.0
    """Time that an image, or the text of a document, stays on disk after it was last shown."""


def _check_person(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+:\S.*", value):
        raise ValueError("write `<channel>:<sender id>`, e.g. telegram.main:1001")
    return value


PersonKey = Annotated[str, AfterValidator(_check_person)]
"""`<channel>:<sender id>`, e.g. `telegram.main:1001` or `irc.libera:account:someone`."""


class RolesConfig(ConfigSection):
    """Roles of people, by stable ids of verified senders, never by nicks."""

    owner: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """May do and see everything."""
    admin: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """May administer the gateway."""
    member: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """Is answered in direct chats."""
    guest: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """The role of everybody who is not listed."""
    blocked: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """Is never answered, and never shown to the model."""


def _check_room_scope(value: str) -> str:
    try:
        place = Address.parse(value)
    except ValueError:
        raise ValueError(
            "write `<channel>/<room>`, e.g. telegram.main/-1001 or discord.main/<guild>"
        ) from None
    if place.thread is not None:
        raise ValueError("threads follow their room: write `<channel>/<room>`")
    return value


RoomScope = Annotated[str, AfterValidator(_check_room_scope)]
"""`<channel>/<room>`, or a space of rooms: `<channel>/<guild>`."""


class GrantConfig(ConfigSection):
    """A role of a person in some places only."""

    who: PersonKey
    """A person, as in `access.roles`."""
    role: Literal["owner", "admin", "member", "blocked"]
    """Replaces the person's general role there."""
    agent: str | None = None
    """Valid with this agent."""
    room: RoomScope | None = None
    """Valid in this room."""

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        if (self.agent is None) == (self.room is None):
            raise ValueError("name an agent or a room; roles for all places belong in access.roles")
        return self


class PlatformRoleConfig(ConfigSection):
    """A role for people with a rank of the platform in a room. Never gives administration to a
    bot.
    """

    channel: str
    """A glob, e.g. discord.*."""
    room: str = "*"
    """A room, or a guild. `*`: any."""
    has: Annotated[str, Field(min_length=1)]
    """Discord: `role:<id>`; Telegram: `creator`, `administrator`; IRC: `founder`, `protected`,
    `op`, `halfop`, `voice`."""
    role: Literal["owner", "admin", "member", "guest", "blocked"]
    """Role of these people. The strongest of a person's roles counts, `blocked` before all
    others."""


class RateConfig(ConfigSection):
    """Limit of the agent's answers: this many at once, then this many a minute."""

    burst: int = Field(ge=0)
    """0, with a rate per minute: one."""
    per_minute: float = Field(ge=0)
    """0, with a burst of 0: no limit."""


class RatesConfig(ConfigSection):
    """Rate limits of messages to the agent, and of the turns that answer them.

    Owners and admins have none, but their messages leave less for others.
    """

    sender: RateConfig = RateConfig(burst=200, per_minute=30)
    room: RateConfig = RateConfig(burst=400, per_minute=90)
    agent: RateConfig = RateConfig(burst=1_000, per_minute=300)
    """A burst is covered by few turns (`attention.coalesce`), so it costs little."""
    sender_turns: RateConfig = RateConfig(burst=6, per_minute=6)
    """Turns of the agent for one person: an answer of a hundred words takes half a minute to read.
    Beyond it, what a person writes waits for its turn, together."""
    agent_turns: RateConfig = RateConfig(burst=100, per_minute=60)
    """Turns of one agent for all people together: a hundred may ask at the same moment, one more
    each second."""


class BudgetsConfig(ConfigSection):
    """Limits of the cost that people who are neither owners nor admins cause, in US dollars.
    `null`: none.

    They count for a UTC day. Before each request its maximal cost is reserved, so it never costs
    more, however many people ask at once. Answers and reminders count for the people they are for.
    Beyond a budget, the person gets one notice, and owners get
    one a day. A model that is missing from the price table, or listed there without a price, counts
    with the table's `default`, but costs nothing at a server of your own: kind `local`, `llamacpp`,
    or `openai` without a key at a private address. A proxy there that costs needs prices
    (`prices.yaml`).
    """

    sender_usd: float | None = Field(default=1.0, ge=0)
    """For one person, in all places: about 100 answers of a medium model. Less than the budget of a
    room."""
    room_usd: float | None = Field(default=5.0, ge=0)
    """In one room: five people who have used up their own budget."""
    agent_usd: float | None = Field(default=10.0, ge=0)
    """With one agent, in all places: the maximal cost of a raid. Enough for about 80 answers at the
    same moment."""


class AccessConfig(ConfigSection):
    """People and rooms that may talk to the agent."""

    dm: Literal["pairing", "allowlist", "open", "disabled"] = "pairing"
    rooms: Literal["approval", "listed"] = "approval"
    """Rooms that are not listed. approval: a person who addresses the agent there, or invites it,
    gets a code with which an admin can approve the room; listed: nothing happens."""
    roles: RolesConfig = RolesConfig.model_construct()
    grants: tuple[GrantConfig, ...] = Field(default=(), strict=False)
    platform_roles: tuple[PlatformRoleConfig, ...] = Field(default=(), strict=False)
    masks: bool = False
    """True: people whose only id is a mask may be approved, although another person may have that
    mask tomorrow."""
    rates: RatesConfig = RatesConfig.model_construct()
    budgets: BudgetsConfig = BudgetsConfig.model_construct()
    tell: RoomScope | None = None
    """Room where owners are notified of reached limits and of approvals that wait for an admin.
    None: the direct chat that an owner used last."""
    max_bot_exchanges: int = Field(default=5, ge=0)
    """Messages of a listed bot that are answered in a row, until a person writes. 0: none."""


class CommandsConfig(ConfigSection):
    """Commands to the gateway itself."""

    prefix: Annotated[str, Field(pattern=r"^[!-/:-@\[-`{-~]{0,3}$")] = "!"
    """Prefix of a command's name; up to 3 punctuation marks. Empty: only native commands."""
    contact: str | None = None
    """The person who runs this bot and how to reach them, if the channel itself does not show
    it."""
    per_minute: int = Field(default=10, ge=0)
    """Commands of one person that are answered per minute. 0: none."""


MIN_KEEP_S = 31 * 86_400.0


def _check_keep(value: float) -> float:
    if value < MIN_KEEP_S:
        raise ValueError("must be at least 31d, because whole months leave")
    return value


KeepTime = Annotated[Duration, AfterValidator(_check_keep)]


_URL_CHAR = r"(?:[^\s@/?#%\[\]]|%[0-9A-Fa-f]{2})"
_DATABASE_URL = re.compile(
    rf"postgres(?:ql)?://(?:{_URL_CHAR}*@)?(?:{_URL_CHAR}|[\[\]])*(?:/{_URL_CHAR}*)?(?:\?(?:{_URL_CHAR}|/)*)?"
)


def _check_database_url(url: SecretStr) -> SecretStr:
    """Raises ValueError for a URL that names no PostgreSQL database, and for one in which a part of
    the password would be read as the host or the name.
    """
    if not _DATABASE_URL.fullmatch(url.get_secret_value()):
        raise ValueError(
            "a URL like postgresql://user@host:5432/name is needed, with a colon and the password "
            "behind the user; in the password write %40 for @, %2F for /, %23 for #, %3F for ?, "
            "%25 for %, %5B for [, %5D for ], %20 for a space"
        )
    return url


class StoreConfig(ConfigSection):
    """Location of the log, and how long it keeps entries that nothing needs any more."""

    path: LocalPath = Path(DEFAULT_STORE)
    """One file, created at the first start; the agents' own files are beside it."""
    url: Annotated[SecretStr, AfterValidator(_check_database_url)] | None = None
    """A PostgreSQL database in place of that file, as `postgresql://user@host:5432/name`
    (PostgreSQL 14 or newer; needs `reverie-gateway[postgres]`). Files are beside `path` all the
    same. null: the file."""
    exit_after: Duration | None = None
    """Time for which the log cannot be written (disk full, locked, deleted) until the gateway exits
    with code 75, so that a supervisor starts it again. null: it waits until the log can be
    written."""
    keep: KeepTime | None = None
    """Age at which the log's entries leave it, whole months at a time, for a file beside it each.
    Notes, approvals, settings made in chat, the audit and what waits for an answer stay. None:
    everything stays."""


MIN_TOKEN_CHARS = 16
"""Length of the operator's token: a shorter one could be guessed."""


def _check_token(token: SecretStr) -> SecretStr:
    """Raises ValueError for a token that could be guessed."""
    if len(token.get_secret_value()) < MIN_TOKEN_CHARS:
        raise ValueError(
            f"at least {MIN_TOKEN_CHARS} characters are needed: `openssl rand -hex 32` makes a "
            "good one"
        )
    return token


class OpsToken(ConfigSection):
    """A further token for the operator's HTTP server."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,32}$")
    """Name of who has it: the audit says it for each act. Not `operator`, which `ops.token` is."""
    role: ClientRole = "read"
    """read: sees all conversations, notices and costs, and changes nothing. operate: also does what
    an admin may, and speaks to the agent as one. own: everything, as `ops.token`, also the
    configuration."""
    token: Annotated[SecretStr, AfterValidator(_check_token)]
    """At least 16 characters, another one for each name."""


def _check_tokens(value: tuple[OpsToken, ...]) -> tuple[OpsToken, ...]:
    names = [OPERATOR, *(one.name for one in value)]
    if len(set(names)) < len(names):
        raise ValueError(f"each needs a name of its own, and not {OPERATOR}")
    if len({one.token.get_secret_value() for one in value}) < len(value):
        raise ValueError("each needs a token of its own")
    return value


class OpsConfig(ConfigSection):
    """The operator's HTTP server."""

    host: str = "127.0.0.1"
    """Addresses of other machines need a proxy with TLS in front."""
    port: int = Field(default=9090, ge=0, le=65535)
    """0: any free one."""
    token: Annotated[SecretStr, AfterValidator(_check_token)] | None = None
    """At least 16 characters. Whoever has it sees and controls everything. None: only health and
    metrics are served."""
    tokens: Annotated[tuple[OpsToken, ...], AfterValidator(_check_tokens)] = Field(
        default=(), strict=False
    )
    """Further tokens, which may do less. They need `token` as well."""
    hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")], ...] = Field(
        default=(), strict=False
    )
    """Other host names of the server, e.g. behind a proxy. Requests for any other host are
    refused."""


_URGENCY_LEVELS = {
    "inherit": -1,
    "ambient": AMBIENT,
    "low": LOW,
    "normal": NORMAL,
    "urgent": URGENT,
}


def _parse_level(value: object) -> object:
    return _URGENCY_LEVELS.get(value, value) if isinstance(value, str) else value


def _check_hours(value: str) -> str:
    start, _, end = value.partition("-")
    if (
        not all(re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", part) for part in (start, end))
        or start == end
    ):
        raise ValueError("write a start and an end, e.g. 23:00-07:00")
    return value


ThresholdLevel = Annotated[int, BeforeValidator(_parse_level), Field(ge=-1, le=URGENT)]
"""0 ambient, 1 low, 2 normal, 3 urgent, -1 inherits; the names are accepted, too."""


class AttentionRuleConfig(ConfigSection):
    """Urgency of matching notifications. The first rule that matches decides."""

    type: str
    """Glob or prefix of a dotted type, e.g. `irc.libera.room.#ops` or `*.reaction`."""
    urgency: Literal["ambient", "low", "normal", "urgent"]
    """ambient: context only; low: shown later; normal: wakes the agent at its next tick; urgent:
    starts a turn."""
    keyword: str | None = None
    """Only texts that contain this, in upper or lower case. None: all."""
    role: Literal["guest", "member", "admin", "owner"] | None = None
    """Only events of people with this role or a higher one. None: all, also those without a
    person."""


class PresenceConfig(ConfigSection):
    """Presence of people, by the time they last addressed the agent: of owners and admins, else of
    anybody.
    """

    idle: Duration = 900.0
    """Silence after which thresholds are one lower, and an owner who returns is told what
    happened."""
    away: Duration = 14_400.0
    """Silence after which they are away. Not less than `idle`."""
    sleep: Annotated[str, AfterValidator(_check_hours)] | None = None
    """`HH:MM-HH:MM`. People silent at that time are asleep, and only urgent events wake the agent.
    None: never."""
    timezone: TimeZone = "UTC"
    """Time zone of `sleep`, e.g. `Europe/Zurich`."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.away < self.idle:
            raise ValueError("`away` must not be less than `idle`")
        return self


class AttentionConfig(ConfigSection):
    """Events that may interrupt the agent."""

    coalesce: Duration = 1.5
    """Time that a turn waits for more lines of the same conversation. 0: none."""
    rules: tuple[AttentionRuleConfig, ...] = Field(default=(), strict=False)
    thresholds: dict[str, ThresholdLevel] = Field(default={})
    """Lowest urgency that passes, by type prefix; the longest prefix decides."""
    presence: PresenceConfig = PresenceConfig.model_construct()


def _check_cache_ttl(value: float) -> float:
    if value not in {300.0, 3600.0}:
        raise ValueError("providers cache for 5m or for 1h; write one of these")
    return value


ConfiguredCacheTtl = Annotated[Duration, AfterValidator(_check_cache_ttl)]
"""Cache lifetimes that providers offer
(platform.claude.com/docs/en/build-with-claude/prompt-caching)."""


class PromptCacheConfig(ConfigSection):
    """Cache marks on requests to a model."""

    enabled: bool = True
    """False: no marks, and only providers that cache every prefix by themselves do so."""
    policy: Literal["auto", "fixed"] = "auto"
    """fixed: the lifetimes of the table in ARCHITECTURE.md. auto: each conversation begins with
    these, and gets others if the gaps between its own messages make them cheaper."""
    long_ttl: ConfiguredCacheTtl = 3600.0
    """Lifetime of the part that all conversations share, and the longest that `auto` may choose."""
    short_ttl: ConfiguredCacheTtl = 300.0
    """Lifetime of the part after it, under `fixed`; `auto` begins with 5m and chooses. Not longer
    than `long_ttl`."""
    long_ttl_providers: tuple[str, ...] = Field(default=("anthropic", "vertex"), strict=False)
    """Kinds or names of providers that support one hour; others are never asked for it."""
    keep_warm_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Budget for repeating a prompt only so that it stays cached, per agent and UTC day. 0:
    never."""

    @field_validator("short_ttl")
    @classmethod
    def _check_short_ttl(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("long_ttl", value):
            raise ValueError("must not be longer than long_ttl; write 5m, or long_ttl: 1h")
        return value


class CompactionConfig(ConfigSection):
    """Summaries by a model in place of the older part of long conversations."""

    enabled: bool = False
    compact_at_pct: float = Field(default=0.75, gt=0, le=1)
    """Share of the usable window at which a summary is made."""
    tail_keep_tokens: int = Field(default=20_000, ge=0)
    tool_result_max_pct: float = Field(default=0.30, gt=0, le=1)
    """Share of the usable window that one tool result may fill."""
    summarizer_model: str = ""
    """A key of `llm.models`. Empty: the agent's own."""
    lock_ttl_seconds: int = Field(default=300, ge=1)
    """Time during which no second summary of the same conversation is started."""


class FoldsConfig(ConfigSection):
    """Reduction of a conversation's view: when and how."""

    policy: Literal["auto", "always", "full"] = "auto"
    """auto: when it costs nothing or saves money; always: before each turn; full: only when the
    window is full."""


class TokenCounterConfig(ConfigSection):
    """Token counts of prompts before they are sent."""

    enabled: bool = True
    """False: only estimates."""
    backend: Literal["auto", "anthropic_api", "tiktoken"] = "auto"
    cache_capacity: int = Field(default=1024, ge=0)
    """Number of cached counts. 0: none."""


class WorkspaceCacheConfig(ConfigSection):
    """Persona files kept in memory."""

    enabled: bool = True
    """False: they are read before each turn."""
    watch_debounce_ms: int = Field(default=500, ge=0)
    max_age_seconds: int = Field(default=0, ge=0)
    """0: re-read only when a file changes."""


class ContextOptimizationConfig(ConfigSection):
    """The four context optimizations and the folds."""

    prompt_cache: PromptCacheConfig = PromptCacheConfig.model_construct()
    compaction: CompactionConfig = CompactionConfig.model_construct()
    folds: FoldsConfig = FoldsConfig.model_construct()
    token_counter: TokenCounterConfig = TokenCounterConfig.model_construct()
    workspace_cache: WorkspaceCacheConfig = WorkspaceCacheConfig.model_construct()


def _check_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", value):
        raise ValueError("a name has letters, digits, `.`, `_` and `-` only")
    return value


def _check_channel_name(value: str) -> str:
    if value == INNER_CHANNEL:
        raise ValueError(
            f"`{INNER_CHANNEL}` is reserved for the agents; write another name, e.g. irc.libera"
        )
    return value


Name = Annotated[str, AfterValidator(_check_name)]
"""Letters, digits, `.`, `_` and `-`."""


ChannelKey = Annotated[Name, AfterValidator(_check_channel_name)]
"""Key of a channel."""


class BindingMatch(ConfigSection):
    """Conversations of a binding. Globs, whole and case-sensitive: `*`, `?`, `[abc]`."""

    channel: str = "*"
    """Name under `channels`."""
    room: str = "*"
    """The platform's own id of the room, or of a direct chat."""
    thread: str | None = None
    """None: a room and all its threads."""


class BindingConfig(ConfigSection):
    """Behaviour of an agent in the conversations that match."""

    match: BindingMatch = BindingMatch.model_construct()
    listen: Literal["mention", "ambient", "all", "off"] = "ambient"
    """mention: the agent answers mentions and does not see other messages; ambient: it answers
    mentions and sees other messages in its next turn; all: every message starts a turn; off: no
    turns."""
    speaks_up: Literal["never", "when_useful", "sometimes"] = "never"
    """Talk that is not to the agent, in rooms, once nobody has written there for 3 minutes. never:
    it is only context; when_useful: the agent looks at it after a question to nobody, and may
    answer, correct a plain mistake, or do what it promised; sometimes: also after much talk, at
    most 4 times a day. With `listen: mention` it hears the room then, as with ambient."""
    addressing: Literal["anywhere", "start"] = "anywhere"
    """Messages in a room that count as addressed to the agent by its name. anywhere: the name is a
    separate word in the message; start: the message begins with the name. Replies always count. On
    IRC, where a name may be a common word."""
    prompt: str = ""
    """Text added to the system prompt there."""
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([-_]\w+)*$")] | None = None
    """BCP 47, e.g. `de` or `pt-BR`. None: the language of the person who wrote."""
    private: bool | None = None
    """true: texts from there are shown nowhere else, as in a direct chat. false: they may be shown
    in all places. Left out: as the platform reports. Texts that everybody can read there (a
    Telegram group with a username, an IRC channel without the modes i, k, p and s) may be shown in
    all places; those of an open channel of a Discord server, in all of that server; all others in
    that room alone."""
    group: str = Field(default="", max_length=40, pattern=r"^[\w.-]*$")
    """Name of a group of closed rooms that share their texts: texts from one are shown in all rooms
    of the group. Rooms that the platform opens to more people, and private ones, do not take
    part."""
    skills: tuple[str, ...] | None = Field(default=None, strict=False)
    """Skills available here. None: all of the workspace."""
    arrivals: Literal["steer", "queue", "interrupt"] = "steer"
    """Messages to the agent while it answers. steer: it sees them between two tool calls, and an
    answer without tools is begun anew for whoever asked; queue: it sees them in the next turn;
    interrupt: the turn ends, and the next begins at once."""


class OptimizationSwitches(ConfigSection):
    """Context optimizations of one agent. None: as in `llm.context_optimization`."""

    prompt_cache: bool | None = None
    """Cache marks and their plan."""
    compaction: bool | None = None
    """A model's summary in place of turns that leave the window."""
    token_counter: bool | None = None
    """Exact counts beside the estimates."""
    workspace_cache: bool | None = None
    """Persona files are read again only when they change."""


class AgentConfig(ConfigSection):
    """One agent: a persona, a model and the places where it is active."""

    id: Name
    """Name of the agent in bindings, in the log and for other agents."""
    workspace: LocalPath | None = None
    """Directory of the persona files. None: the persona that comes with the package."""
    model: str = "main"
    """A key of `llm.models`."""
    files: LocalPath | None = None
    """Working directory of file tools and the shell. None: `files` beside the agent's own files."""
    context_optimization: OptimizationSwitches = OptimizationSwitches.model_construct()
    bindings: tuple[BindingConfig, ...] = Field(default=(BindingConfig(),), strict=False)
    """The first match decides; a conversation without a match is ignored. Left out: all match."""


class LlmConfig(ConfigSection):
    """Providers and models."""

    providers: dict[Name, ProviderSettings]
    models: dict[str, ModelConfig]
    overload_wait: Duration = 900.0
    """Time that a question waits while no model answers; then the bot asks the person to ask again.
    0: no wait."""
    context_optimization: ContextOptimizationConfig = ContextOptimizationConfig.model_construct()


class TellConfig(ConfigSection):
    """What an agent tells an owner unasked, by its tool `tell`."""

    per_day: int = Field(default=6, ge=0)
    """Times a UTC day that it tells an owner something at once. What is more is told together with
    what can wait."""


class DmnConfig(ConfigSection):
    """Pace and limits of the agent's autonomous work."""

    engaged: Duration = 5.0
    """Interval of ticks while a person talks to it."""
    working: Duration = 3.0
    """Interval while it works on a task."""
    foraging: Duration = 30.0
    """Interval while it has no task and may look for one."""
    resting: Duration = 300.0
    """Interval while there is nothing to do. A tick that finds nothing costs nothing."""
    max_autonomous_turns: int = Field(default=20, ge=0)
    """Autonomous turns in a row. 0: none."""
    daily_turns: int = Field(default=200, ge=0)
    """Autonomous turns per UTC day. 0: none."""
    daily_cost_usd: float = Field(default=2.0, ge=0)
    """Cost of autonomous turns per UTC day. 0: none that cost anything."""
    forage: bool = True
    """Look at what is of low urgency when there is nothing to answer."""
    forage_per_day: int = Field(default=12, ge=0)
    """Turns per UTC day for such looks. 0: none."""
    dream_every: Duration = 64_800.0
    """Shortest time between two dreams, which turn notes into MEMORY.md. 0: never."""
    dream_tokens: int = Field(default=500, ge=0)
    """Smallest size of new notes for a dream."""
    parallel_turns: int | None = Field(default=None, ge=1)
    """Turns of an agent at the same time, in different conversations. None: 8 for llamacpp and
    local, which refuse nothing and become slower, else 100. How many requests a model takes at the
    same time is learnt from what its provider refuses."""
    timezone: TimeZone = "UTC"
    """Time zone of schedules that name none: an IANA name, e.g. Europe/Zurich."""
    tell: TellConfig = TellConfig.model_construct()


class PluginsConfig(ConfigSection):
    """Which plugins are used."""

    off: tuple[str, ...] = Field(default=(), strict=False)
    """Names of plugins that are not used, nor those that require them. `reverie plugins` lists
    all."""
    need: tuple[str, ...] = Field(default=(), strict=False)
    """Names of plugins without which the gateway does not start."""


class Settings(ConfigSection):
    """The whole configuration, without what plugins bring: `gateway.plugins.settings_model` has
    it.
    """

    channels: dict[ChannelKey, ChannelConfig] = Field(default={})
    agents: tuple[AgentConfig, ...] = Field(strict=False)
    """At least one. A conversation belongs to the first binding that matches, from the first agent
    on."""
    llm: LlmConfig
    dmn: DmnConfig = DmnConfig.model_construct()
    tools: ToolsConfig = ToolsConfig.model_construct()
    attention: AttentionConfig = AttentionConfig.model_construct()
    access: AccessConfig = AccessConfig.model_construct()
    commands: CommandsConfig = CommandsConfig.model_construct()
    media: MediaConfig = MediaConfig.model_construct()
    store: StoreConfig = StoreConfig.model_construct()
    ops: OpsConfig = OpsConfig.model_construct()
    plugins: PluginsConfig = PluginsConfig.model_construct()
