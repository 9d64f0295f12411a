"""A request as another model can take it. Pure."""

from collections.abc import Callable
from dataclasses import replace

from agent.models.base import Image, Model, Piece, Request, Said, Text, ToolCall


def adapted(request: Request, model: Model) -> Request:
    """Return `request` as `model` can take it: within its output limit; without tools or images if it takes none.

    Without tools, results stay as words of the user, and calls as a note of the assistant. Without images, there
    are words about them.
    """
    request = replace(request, max_output_tokens=min(request.max_output_tokens, model.max_output_tokens))
    if not model.takes_images and any(isinstance(part, Image) for said in request.conversation for part in said.parts):
        request = replace(request, conversation=tuple(_each(said, _unseen) for said in request.conversation))
    return request if model.takes_tools else without_tools(request)


def without_tools(request: Request) -> Request:
    """The same without any tools: what was done with them stays as words."""
    conversation = tuple([_each(said, _unused) for said in request.conversation])
    return replace(request, tools=(), answer_only=False, conversation=conversation)


def _each(said: Said, change: Callable[[Piece], Piece]) -> Said:
    """The same object where nothing changes: whoever lays requests out knows it by that."""
    parts = tuple([change(part) for part in said.parts])
    same = all(new is old for new, old in zip(parts, said.parts, strict=True))
    return said if same else Said(role=said.role, parts=parts)


def _unseen(part: Piece) -> Piece:
    return Text(text=part.description) if isinstance(part, Image) else part


def _unused(part: Piece) -> Piece:
    if isinstance(part, Image):
        return part
    return Text(text=f"(used the tool {part.name})" if isinstance(part, ToolCall) else part.text)
