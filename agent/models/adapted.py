"""A request as another model can take it. Pure."""

from collections.abc import Callable
from dataclasses import replace

from agent.models.base import Image, MessagePart, Model, ModelMessage, ModelRequest, TextPart, ToolCall


def adapt_request(request: ModelRequest, model: Model) -> ModelRequest:
    """Return `request` as `model` can take it: within its output limit; without tools or images if it takes none.

    Without tools, results stay as words of the user, and calls as a note of the assistant. Without images, there
    are words about them.
    """
    request = replace(request, max_output_tokens=min(request.max_output_tokens, model.max_output_tokens))
    if not model.takes_images and any(isinstance(part, Image) for said in request.conversation for part in said.parts):
        request = replace(
            request, conversation=tuple(_map_parts(said, _replace_image) for said in request.conversation)
        )
    return request if model.takes_tools else strip_tools(request)


def strip_tools(request: ModelRequest) -> ModelRequest:
    """The same without any tools: what was done with them stays as words."""
    conversation = tuple([_map_parts(said, _replace_tool_use) for said in request.conversation])
    return replace(request, tools=(), answer_only=False, conversation=conversation)


def _map_parts(said: ModelMessage, change: Callable[[MessagePart], MessagePart]) -> ModelMessage:
    """The same object where nothing changes: whoever lays requests out knows it by that."""
    parts = tuple([change(part) for part in said.parts])
    same = all(new is old for new, old in zip(parts, said.parts, strict=True))
    return said if same else ModelMessage(role=said.role, parts=parts)


def _replace_image(part: MessagePart) -> MessagePart:
    return TextPart(text=part.description) if isinstance(part, Image) else part


def _replace_tool_use(part: MessagePart) -> MessagePart:
    if isinstance(part, Image):
        return part
    return TextPart(text=f"(used the tool {part.name})" if isinstance(part, ToolCall) else part.text)
