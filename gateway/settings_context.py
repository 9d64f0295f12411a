"""The part of the configuration that says what a model is told, and what that may cost: caches, folds, recall."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from gateway.fields import ConfigSection, Duration


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
