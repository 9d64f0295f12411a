"""Cache marks on a request that is laid out. Pure.

Obeys platform.claude.com/docs/en/build-with-claude/prompt-caching.
"""

from collections.abc import Mapping, Sequence

from agent.models.anthropic_thinking import Json
from agent.models.base import CacheBreakpoint

_BREAKPOINT_BLOCKS = frozenset({"text", "image", "tool_use", "tool_result"})
"""Thinking takes no mark, nor does anything that we do not know."""


def apply_breakpoints(
    marks: Sequence[CacheBreakpoint],
    tools: list[Json],
    system: list[Json],
    messages: list[Json],
    places: Mapping[int, Sequence[tuple[int, int]]],
) -> dict[str, list[Json]]:
    """Put the marks on. Copies what it changes: contents may be remembered ones, and all of it may yet be hashed."""
    tools, system, messages = [*tools], [*system], [*messages]
    for mark in marks:
        control: Json = {"cache_control": {"type": "ephemeral", "ttl": mark.lifetime}}
        if mark.behind == "tools":
            tools[-1:] = [tool | control for tool in tools[-1:]]
        elif mark.behind == "block":
            if 0 <= mark.index < len(system):
                system[mark.index] = {**system[mark.index], **control}
        else:
            _mark_message(messages, places.get(mark.index, ()), control)
    return {"tools": tools, "system": system, "messages": messages}


def _mark_message(messages: list[Json], places: Sequence[tuple[int, int]], control: Json) -> None:
    """Mark the last block that can be marked of these."""
    for message, index in reversed(places):
        content = messages[message]["content"]
        assert isinstance(content, list)
        block = content[index]
        if block["type"] in _BREAKPOINT_BLOCKS and block.get("text") != "":
            marked = [*content[:index], block | control, *content[index + 1 :]]
            messages[message] = messages[message] | {"content": marked}
            return
