"""What each Claude model takes and refuses, as far as the Messages API fake must know it. Pure.

Sources: platform.claude.com/docs/en, build-with-claude/prompt-caching (minimum cacheable prompt),
thinking-troubleshooting (types of thinking), mid-conversation-system-messages, and the what's-new pages of
Opus 5.5 and Fable 5.1.
"""

import re
from dataclasses import dataclass, replace

_DATED = re.compile(r"-20\d{6}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model."""

    minimum: int = 1024
    """Tokens: a shorter prefix is silently not cached."""
    thinking: frozenset[str] = frozenset({"adaptive", "disabled"})
    """The types that `thinking` may have."""
    mild_only: frozenset[str] = frozenset()
    """Of these types, those that are refused at effort `xhigh` and `max`."""
    efforts: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    """The levels that `output_config.effort` may have. Empty: it must not be there."""
    effort: str = "high"
    """The default: to say it explicitly changes nothing."""
    forced_tools: bool = True
    """Whether `tool_choice` may be `any` or `tool`."""
    prefill: bool = False
    """Whether the last message may be the assistant's."""
    sampling: bool = False
    """Whether temperature, top_p and top_k may differ from their defaults."""
    system_messages: bool = True
    """Whether `messages` may hold the role `system`."""
    clears: bool = True
    """Whether `context_management` may be there."""
    binds: bool = False
    """Thinking is bound to the exact prefix that it came after. Mythos 5.1 does not check that."""
    strips: bool = False
    """Thinking in front of the newest words of the user is taken out, and with it the cache behind that place."""


_ADAPTIVE = frozenset({"adaptive"})
_OLD = Profile(
    thinking=frozenset({"enabled", "disabled"}), efforts=(), prefill=True, sampling=True, system_messages=False
)
_MIDDLE = Profile(
    thinking=frozenset({"adaptive", "enabled", "disabled"}),
    efforts=("low", "medium", "high", "max"),
    sampling=True,
    system_messages=False,
)
_UNKNOWN = Profile(
    thinking=frozenset({"adaptive", "disabled", "enabled", "between_tools"}), system_messages=False, clears=False
)
_NEWEST = Profile(minimum=512, thinking=_ADAPTIVE, forced_tools=False, binds=True)
_NEW = Profile(minimum=512, thinking=_ADAPTIVE)
_LATER = Profile(thinking=_ADAPTIVE, forced_tools=False, binds=True)
"""Their minimum is not documented: the most common one."""

_PROFILES = {
    "claude-fable-5-2": _LATER,
    "claude-mythos-5-2": replace(_LATER, binds=False),
    "claude-fable-5-1": _NEWEST,
    "claude-mythos-5-1": replace(_NEWEST, binds=False),
    "claude-opus-5-5": Profile(minimum=512, thinking=_ADAPTIVE, effort="medium", forced_tools=False, binds=True),
    "claude-sonnet-5-5": Profile(
        minimum=512,
        thinking=frozenset({"adaptive", "between_tools"}),
        mild_only=frozenset({"between_tools"}),
        forced_tools=False,
        binds=True,
    ),
    "claude-haiku-5-5": Profile(minimum=512, mild_only=frozenset({"disabled"}), effort="medium", binds=True),
    "claude-fable-5": _NEW,
    "claude-mythos-5": _NEW,
    "claude-opus-5": Profile(minimum=512, mild_only=frozenset({"disabled"})),
    "claude-sonnet-5": Profile(system_messages=False),
    "claude-opus-4-8": Profile(),
    "claude-opus-4-7": Profile(minimum=2048, system_messages=False),
    "claude-mythos-preview": Profile(
        minimum=2048, thinking=_ADAPTIVE, efforts=("low", "medium", "high", "max"), system_messages=False
    ),
    "claude-opus-4-6": replace(_MIDDLE, minimum=4096),
    "claude-sonnet-4-6": _MIDDLE,
    "claude-opus-4-5": replace(_OLD, minimum=4096, efforts=("low", "medium", "high")),
    "claude-sonnet-4-5": replace(_OLD, strips=True),
    "claude-haiku-4-5": replace(_OLD, minimum=4096, strips=True),
}


def undated(model: str) -> str:
    """Return the name without the date that a pinned version ends in: it is the same model."""
    return _DATED.sub("", model)


def known(model: str) -> bool:
    """Return whether the table has it."""
    return undated(model) in _PROFILES


def profile(model: str) -> Profile:
    """Return what is known of the model; one that is not known refuses little."""
    return _PROFILES.get(undated(model), _UNKNOWN)
