"""Old tool results that the API leaves out of long prompts by itself, where the operator wants that. Pure.

Obeys platform.claude.com/docs/en/build-with-claude/context-editing: the request stays whole, results are replaced by a
placeholder before the model reads it, and the cache is lost from the first of them on. Thinking is not concerned: it
goes back within its loop only, and blocks stay valid whatever is left out there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.models.anthropic_thinking import Json
from agent.models.anthropic_wire import find_tool_loop_start
from agent.models.base import ModelMessage, ToolResult
from agent.models.claude import find_capabilities
from agent.view import usable_tokens

CONTEXT_EDITING_BETA = "context-management-2025-06-27"
"""Needed in the header `anthropic-beta`."""
_TRIGGER_SHARE = 0.7
"""Of what whole prompts may have: less than where anything is done here by default, so the provider is first."""
_MIN_CLEARED_SHARE = 0.1
"""Of that must go at once: less is not worth what it costs to write the cache again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEditing:
    """What is asked for."""

    trigger_tokens: int
    """Of the whole prompt, from which on results are left out."""
    keep_results: int
    """So many of the newest stay."""


def find_context_editing(model: str, context_tokens: int, output_tokens: int, keep: int) -> ContextEditing | None:
    """Return what to ask `model` for, with this window and this much of it for answers. None: it does not do that."""
    if not find_capabilities(model).takes_context_editing:
        return None
    return ContextEditing(
        trigger_tokens=int(usable_tokens(context_tokens, output_tokens) * _TRIGGER_SHARE), keep_results=keep
    )


def render_context_editing(wanted: ContextEditing, conversation: Sequence[ModelMessage]) -> Json:
    """Return `context_management` for a request.

    What the tool loop brought in which the conversation ends stays, too: the model has not read it, or just now. So
    nothing that is cached changes while a loop goes on.
    """
    loop = conversation[find_tool_loop_start(conversation) :]
    fresh = sum(isinstance(part, ToolResult) for said in loop for part in said.parts)
    return {
        "edits": [
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "input_tokens", "value": wanted.trigger_tokens},
                "keep": {"type": "tool_uses", "value": max(1, wanted.keep_results + fresh)},  # 0 is not documented
                "clear_at_least": {"type": "input_tokens", "value": int(wanted.trigger_tokens * _MIN_CLEARED_SHARE)},
            }
        ]
    }
