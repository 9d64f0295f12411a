"""Old tool results that the API leaves out of long prompts by itself, where the operator wants that. Pure.

Obeys platform.claude.com/docs/en/build-with-claude/context-editing: the request stays whole, results are replaced by a
placeholder before the model reads it, and the cache is lost from the first of them on. Thinking is not concerned: it
goes back within its loop only, and blocks stay valid whatever is left out there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.models.anthropic_thinking import Json
from agent.models.anthropic_wire import loop_begins
from agent.models.base import Said, ToolResult
from agent.models.claude import rules
from agent.view import usable_tokens

BETA = "context-management-2025-06-27"
"""Needed in the header `anthropic-beta`."""
_EARLIER = 0.7
"""Of what whole prompts may have: less than where anything is done here by default, so the provider is first."""
_LEAST = 0.1
"""Of that must go at once: less is not worth what it costs to write the cache again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """What is asked for."""

    trigger_tokens: int
    """Of the whole prompt, from which on results are left out."""
    keep_results: int
    """So many of the newest stay."""


def clearing(model: str, context_tokens: int, output_tokens: int, keep: int) -> Clearing | None:
    """Return what to ask `model` for, with this window and this much of it for answers. None: it does not do that."""
    if not rules(model).takes_context_editing:
        return None
    return Clearing(trigger_tokens=int(usable_tokens(context_tokens, output_tokens) * _EARLIER), keep_results=keep)


def editing(wanted: Clearing, conversation: Sequence[Said]) -> Json:
    """Return `context_management` for a request.

    What the tool loop brought in which the conversation ends stays, too: the model has not read it, or just now. So
    nothing that is cached changes while a loop goes on.
    """
    loop = conversation[loop_begins(conversation) :]
    fresh = sum(isinstance(part, ToolResult) for said in loop for part in said.parts)
    return {
        "edits": [
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "input_tokens", "value": wanted.trigger_tokens},
                "keep": {"type": "tool_uses", "value": max(1, wanted.keep_results + fresh)},  # 0 is not documented
                "clear_at_least": {"type": "input_tokens", "value": int(wanted.trigger_tokens * _LEAST)},
            }
        ]
    }
