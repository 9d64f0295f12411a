"""What each Claude model takes of effort, thinking, system messages and context editing. Pure.

Sources: platform.claude.com/docs/en, build-with-claude/{thinking-troubleshooting, effort,
mid-conversation-system-messages, context-editing} and the what's-new pages of the models. A name that is not here may
be anything (a newer model, a compatible server): it is sent what the configuration says, told nothing in a system
message, and not asked to leave anything out.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""`output_config.effort`, from the least."""
ThinkingMode = Literal["default", "off", "between_tools"]
"""`default`: as the model does by itself. `between_tools`: only there (Sonnet 5.5)."""

_CLAUDE_NAME = re.compile(r"claude-((?:fable|mythos|opus|sonnet|haiku)-(?:preview|\d(?:-\d)?(?!\d)))")
"""Also inside the names that Bedrock, Vertex and proxies have for them, and in front of a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeCapabilities:
    """One model."""

    thinking_types: frozenset[str]
    """What `thinking.type` may be."""
    thinks_by_default: bool
    """Unless told otherwise."""
    limits_off_at_high_effort: bool = False
    """`disabled` and `between_tools` are refused at the efforts `xhigh` and `max`."""
    efforts: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
    """Empty: it has no such setting."""
    takes_system_messages: bool = True
    """`messages` may hold the role `system`."""
    takes_context_editing: bool = True
    """Leaves old tool results out by itself (`context_management`), if it is asked to."""


_NEW = ClaudeCapabilities(thinking_types=frozenset({"adaptive"}), thinks_by_default=True)
_EITHER = ClaudeCapabilities(thinking_types=frozenset({"adaptive", "disabled"}), thinks_by_default=True)
_QUIET = ClaudeCapabilities(thinking_types=frozenset({"adaptive"}), thinks_by_default=False)
_MIDDLE = ClaudeCapabilities(
    thinking_types=frozenset({"adaptive", "enabled"}),
    thinks_by_default=False,
    efforts=("low", "medium", "high", "max"),
    takes_system_messages=False,
)
_OLD = ClaudeCapabilities(
    thinking_types=frozenset({"enabled"}), thinks_by_default=False, efforts=(), takes_system_messages=False
)
_UNKNOWN = ClaudeCapabilities(
    thinking_types=frozenset({"disabled", "between_tools"}),
    thinks_by_default=True,
    takes_system_messages=False,
    takes_context_editing=False,
)

_CAPABILITIES: dict[str, ClaudeCapabilities] = {
    "fable-5-2": _NEW,
    "mythos-5-2": _NEW,
    "fable-5-1": _NEW,
    "mythos-5-1": _NEW,
    "opus-5-5": _NEW,
    "sonnet-5-5": ClaudeCapabilities(
        thinking_types=frozenset({"adaptive", "between_tools"}), thinks_by_default=True, limits_off_at_high_effort=True
    ),
    "haiku-5-5": replace(_EITHER, limits_off_at_high_effort=True),
    "fable-5": _NEW,
    "mythos-5": _NEW,
    "opus-5": replace(_EITHER, limits_off_at_high_effort=True),
    "sonnet-5": replace(_EITHER, takes_system_messages=False),
    "opus-4-8": _QUIET,
    "opus-4-7": replace(_QUIET, takes_system_messages=False),
    "mythos-preview": replace(_NEW, efforts=("low", "medium", "high", "max"), takes_system_messages=False),
    "opus-4-6": _MIDDLE,
    "sonnet-4-6": _MIDDLE,
    "opus-4-5": replace(_OLD, efforts=("low", "medium", "high")),
    "sonnet-4-5": _OLD,
    "haiku-4-5": _OLD,
}


def find_capabilities(model: str) -> ClaudeCapabilities:
    """Return what holds for `model`, as its provider names it."""
    found = _CLAUDE_NAME.search(model.lower())
    return _CAPABILITIES.get(found[1], _UNKNOWN) if found else _UNKNOWN


def find_unsupported_setting(
    model: str, effort: Effort | None, thinking: ThinkingMode
) -> tuple[Literal["effort", "thinking"], str] | None:
    """Return which of the two settings the model would refuse, and why, with the remedy. None: neither."""
    known = find_capabilities(model)
    if effort is not None and effort not in known.efforts:
        levels = f"write one of {', '.join(known.efforts)}" if known.efforts else "leave effort out"
        return "effort", f"{model} has no effort {effort!r}; {levels}"
    kind = _thinking_type(known, thinking)
    if kind is None:
        return None
    if kind not in known.thinking_types:
        least = " or write between_tools for the least of it" if "between_tools" in known.thinking_types else ""
        told = (
            "always thinks" if thinking == "off" and known.thinks_by_default else f"does not know thinking: {thinking}"
        )
        return "thinking", f"{model} {told}; leave thinking out{least}"
    if known.limits_off_at_high_effort and effort in {"xhigh", "max"}:
        return "thinking", f"{model} takes thinking: {thinking} up to effort high only; lower effort or leave it out"
    return None


def build_options(model: str, effort: Effort | None, thinking: ThinkingMode) -> dict[str, object]:
    """Return what a request's body says of the two: the same in every request, because the cache depends on it.

    Raises ValueError for what is `find_unsupported_setting`.
    """
    if refused := find_unsupported_setting(model, effort, thinking):
        raise ValueError(refused[1])
    told: dict[str, object] = {}
    if effort is not None:
        told["output_config"] = {"effort": effort}
    kind = _thinking_type(find_capabilities(model), thinking)
    if kind is not None:
        told["thinking"] = {"type": kind}
    return told


def _thinking_type(known: ClaudeCapabilities, thinking: ThinkingMode) -> str | None:
    """Return `thinking.type`. None: need not be said."""
    if thinking == "default" or (thinking == "off" and not known.thinks_by_default):
        return None
    return "disabled" if thinking == "off" else thinking
