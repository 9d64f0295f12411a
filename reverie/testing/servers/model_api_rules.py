"""What the model APIs refuse. Pure: a request in, a complaint or None out.

Sources of the Messages API, below platform.claude.com/docs/en: api/messages, api/errors,
build-with-claude/vision, prompt-caching, thinking, thinking-troubleshooting,
mid-conversation-system-messages, handle-tool-calls and models/fable-5-1/whats-new-fable-5-1. Where
the page quotes the refusal this says it in the same words; complaints name the place as the API
does, `messages.1.content.0`. What this gateway never sends (sampling, budgets and display of
thinking, betas, forced tools, caching of whole requests, parts in results) is refused as something
unknown. Of chat completions: platform.openai.com/docs/api-reference/chat and guides/images-vision; llama.cpp#13516
and vllm#13978 (content, tool_calls).
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from reverie.testing.servers.messages_prompt import THINKING, Json, Profile, blocks, profile

_PDF_URL = "data:application/pdf;base64,"
_IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_IMAGE_BYTES = 5 * 1024 * 1024
"""Of one image, as base64."""
_MAGIC = {
    "image/jpeg": b"\xff\xd8\xff",
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}
_ID_CHARS = 40
"""Of a call's id, at OpenAI (langgenius/dify#28987, camel-ai/camel#2215)."""
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)

_OPENAI_KEYS = {
    "reasoning_effort",
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "max_tokens",
    "temperature",
    "top_p",
    "repeat_penalty",
    "cache_prompt",  # this and the rest: llama.cpp
    "id_slot",
    "n_predict",
}


def openai(body: Json) -> str | None:
    """Check a chat completion request, as a strict compatible server would."""
    return next(_openai(body), None)


def deepseek(body: Json) -> str | None:
    """Check a request as DeepSeek does since V4: thinking of answers with calls is wanted in all
    later requests.

    api-docs.deepseek.com, guides/thinking_mode. V4 Pro takes no empty text for it.
    """
    asked = [message for message in body["messages"] if message.get("tool_calls")]
    if all(message.get("reasoning_content") for message in asked):
        return None
    return "The `reasoning_content` in the thinking mode must be passed back to the API."


def mistral(body: Json) -> str | None:
    """Check the ids of calls and the order of messages as Mistral does (mistral-common,
    validator.py).
    """
    roles = [message["role"] for message in body["messages"]]
    if ("tool", "user") in pairwise(roles):
        return "Unexpected role 'user' after role 'tool'"
    ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or ()]
    ids += [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    wrong = [ident for ident in ids if not re.fullmatch(r"[a-zA-Z0-9]{9}", ident)]
    return (
        f"Tool call id was {wrong[0]} but must be a-z, A-Z, 0-9, with a length of 9."
        if wrong
        else None
    )


def picture(media_type: str, data: str) -> Iterator[str]:
    """One image of either API: declared as what it is, whole base64, not too large."""
    if media_type not in _IMAGE_TYPES:
        yield f"media_type: Input should be one of {sorted(_IMAGE_TYPES)}"
        return
    if len(data) > _IMAGE_BYTES:
        yield f"image exceeds 5 MB maximum: {len(data)} bytes > {_IMAGE_BYTES} bytes"
    try:
        raw = base64.b64decode(data, validate=True)
    except binascii.Error:
        yield "image: invalid base64 data"
        return
    if not raw.startswith(_MAGIC[media_type]):
        yield f"image does not match the provided media type {media_type}"
    if b"broken" in raw:  # how a test makes a picture that looks like one from outside
        yield "Could not process image"


def pdf(data: str) -> Iterator[str]:
    """One PDF of either API: whole base64, not encrypted, at most 100 pages
    (docs/en/build-with-claude/pdf-support).
    """
    try:
        raw = base64.b64decode(data, validate=True)
    except binascii.Error:
        yield "document: invalid base64 data"
        return
    if not raw.startswith(b"%PDF-") or b"/Encrypt" in raw:
        yield "The PDF specified was not valid."
    if len(re.findall(rb"/Type\s*/Page\b", raw)) > _MAX_PDF_PAGES:
        yield f"A maximum of {_MAX_PDF_PAGES} PDF pages may be provided."


def _pieces(role: str, content: list[Json]) -> Iterator[str]:
    """The parts of a chat completion message that is no plain string."""
    if role != "user":
        yield "content must be a string"
        return
    for piece in content:
        if piece.get("type") == "text" and str(piece.get("text", "")).strip():
            continue
        if piece.get("type") == "file":
            given = piece.get("file") or {}
            if piece.keys() != {"type", "file"} or given.keys() != {"filename", "file_data"}:
                yield "file: expected filename and file_data"
            elif not given["file_data"].startswith(_PDF_URL):
                yield "Invalid file data: only application/pdf is supported"
            else:
                yield from pdf(given["file_data"].removeprefix(_PDF_URL))
        elif piece.get("type") != "image_url" or piece.keys() != {"type", "image_url"}:
            yield "content parts are text that is not empty and image_url"
        elif url := _DATA_URL.fullmatch(piece["image_url"]["url"]):
            yield from picture(url[1], url[2])
        else:
            yield "image_url.url: expected a base64-encoded data URL"


def _openai(body: Json) -> Iterator[str]:
    for key in body.keys() - _OPENAI_KEYS:
        yield f"Unrecognized request argument supplied: {key}"
    if "max_tokens" not in body:
        yield "max_tokens is required here"
    messages = body.get("messages") or []
    if not messages or messages[-1]["role"] == "assistant":
        yield "the last message must not be the assistant's"
    if body.get("tool_choice", "auto") not in ("auto", "none", "required"):
        yield "Invalid value for 'tool_choice'"
    if "tool_choice" in body and not body.get("tools"):
        yield "'tool_choice' is only allowed when 'tools' are specified."
    if body.get("tools") == []:
        yield "[] is too short - 'tools'"
    before = ""
    asked: set[str] = set()
    for place, message in enumerate(messages):
        role = message["role"]
        if isinstance(message.get("content"), list):
            yield from _pieces(role, message["content"])
        elif not isinstance(message.get("content"), str):
            yield "content must be a string"
        if role == "system" and place:
            yield "System message must be at the beginning."
        if role in {"user", "assistant"} and role == before:
            yield "Conversation roles must alternate user/assistant/user/assistant/..."
        if role == "tool":
            if message["tool_call_id"] not in asked:
                yield (
                    "messages with role 'tool' must be a response to a preceding message with "
                    "'tool_calls'"
                )
            asked.discard(message["tool_call_id"])
        elif asked:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages for "
                "each 'tool_call_id'"
            )
        if message.get("tool_calls") == []:
            yield "[] is too short - 'messages.tool_calls'"
        if role == "assistant":
            asked = {call["id"] for call in message.get("tool_calls") or []}
            if any(len(ident) > _ID_CHARS for ident in asked):
                yield "string too long. Expected a string with maximum length 40"
        before = role
    if asked:
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages for each "
            "'tool_call_id'"
        )


_MAX_IMAGES = 100
_MAX_PDF_PAGES = 100
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_BLOCK_KEYS = {
    "text": {"text", "citations", "cache_control"},
    "image": {"source", "cache_control"},
    "document": {"source", "title", "context", "citations", "cache_control"},
    "tool_use": {"id", "name", "input", "cache_control"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
}
_NEEDED = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
_MAY_SAY = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "tool_use", *THINKING},
    "system": {"text"},
}


def conversation(messages: list[Json], model: Profile) -> Iterator[str]:
    """Check `messages`."""
    if not messages:
        yield "messages: at least one message is required"
        return
    for place, message in enumerate(messages):
        yield from _message(f"messages.{place}", message)
    if messages[0]["role"] == "system":
        yield "messages.0: use the top-level 'system' parameter for the initial system prompt"
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    if messages[-1]["role"] == "assistant":
        yield (
            "This model does not support assistant message prefill. The conversation must end with "
            "a user message."
        )
    yield from _systems(messages, model)
    yield from _pairs(messages)
    shown = sum(
        block["type"] == "image" for message in messages for block in blocks(message["content"])
    )
    if shown > _MAX_IMAGES:
        yield f"Too many images: {shown} > {_MAX_IMAGES}"


def _message(where: str, message: Json) -> Iterator[str]:
    role = message.get("role")
    if role not in _MAY_SAY:
        yield f"{where}.role: Input should be 'user', 'assistant' or 'system'"
        return
    for key in message.keys() - {"role", "content"}:
        yield f"{where}.{key}: Extra inputs are not permitted"
    content = message.get("content")
    if not isinstance(content, list | str):
        yield f"{where}.content: Input should be a valid list"
        return
    if not content:
        yield (
            f"{where}: all messages must have non-empty content except for the optional final "
            "assistant message"
        )
    for index, block in enumerate(blocks(content)):
        if block.get("type") == "text" and len(block) == 2 and block["text"].strip():
            continue  # nearly all of them
        place = f"{where}.content.{index}"
        yield from _block(place, block)
        if block["type"] not in _MAY_SAY[role]:
            yield (
                f"{place}: {block['type']} blocks are only permitted in {_owner(block['type'])} "
                "messages"
            )
    if role == "assistant" and content and blocks(content)[-1]["type"] in THINKING:
        yield (
            f"{where}: The final block in an assistant message cannot be "
            f"`{blocks(content)[-1]['type']}`."
        )


def _owner(kind: str) -> str:
    return "user" if kind in _MAY_SAY["user"] else "assistant"


def _block(place: str, block: Json) -> Iterator[str]:
    kind = block.get("type")
    if kind not in _BLOCK_KEYS:
        yield (
            f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected "
            "tags"
        )
        return
    for key in block.keys() - _BLOCK_KEYS[kind] - {"type"}:
        yield f"{place}.{kind}.{key}: Extra inputs are not permitted"
    for key in _NEEDED.get(kind, ()):
        if key not in block:
            yield f"{place}.{kind}.{key}: Field required"
    if kind == "text":
        if not block["text"] and "cache_control" in block:
            yield f"{place}.text: cache_control cannot be set for empty text blocks"
        if not block["text"]:
            yield "messages: text content blocks must be non-empty"
        if not block["text"].strip():
            yield "messages: text content blocks must contain non-whitespace text"
    elif kind == "image":
        yield from _image(place, block.get("source") or {})
    elif kind == "document":
        yield from _document(place, block.get("source") or {})
    elif kind == "tool_use":
        if not isinstance(block["input"], dict):
            yield f"{place}.tool_use.input: Input should be a valid dictionary"
        if not _ID.fullmatch(block["id"]):
            yield f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    elif kind == "tool_result" and not isinstance(block.get("content", ""), str):
        yield f"{place}.tool_result.content: Input should be a valid string"


def _image(place: str, source: Json) -> Iterator[str]:
    if source.keys() != {"type", "media_type", "data"}:
        yield f"{place}.image.source: Extra inputs are not permitted"
    elif source["type"] != "base64":  # URLs are taken there; this fake fetches nothing
        yield f"{place}.image.source.type: Input should be 'base64'"
    else:
        for wrong in picture(source["media_type"], source["data"]):
            yield f"{place}.image.source.base64: {wrong}"


def _document(place: str, source: Json) -> Iterator[str]:
    """A PDF; the other sources (`text`, `content`, `url`, `file`) are taken there, too, and not
    used here.
    """
    if source.keys() != {"type", "media_type", "data"} or source["type"] != "base64":
        yield f"{place}.document.source: strict: expected a base64 source"
    elif source["media_type"] != "application/pdf":
        yield f"{place}.document.source.base64.media_type: Input should be 'application/pdf'"
    else:
        yield from pdf(source["data"])


def _systems(messages: list[Json], model: Profile) -> Iterator[str]:
    for place, message in enumerate(messages):
        if message["role"] != "system":
            continue
        if not model.system_messages:
            yield "role 'system' is not supported on this model"
        before = messages[place - 1]["role"] if place else ""
        after = messages[place + 1]["role"] if place + 1 < len(messages) else "assistant"
        if before != "user" or after != "assistant":
            yield (
                f"messages.{place}: role 'system' must directly follow a user message, "
                "and be the last message or be followed by an assistant message"
            )


def merged(messages: list[Json]) -> list[tuple[str, list[Json]]]:
    """Return role and content; neighbours of the same role are one message to the API, system
    messages none.
    """
    out: list[tuple[str, list[Json]]] = []
    for message in messages:
        content = blocks(message["content"])
        if message["role"] == "system":
            continue
        if out and out[-1][0] == message["role"]:
            out[-1] = (message["role"], out[-1][1] + content)
        else:
            out.append((message["role"], content))
    return out


def _pairs(messages: list[Json]) -> Iterator[str]:
    asked: list[str] = []
    ever: set[str] = set()
    for place, (_, content) in enumerate(merged(messages)):
        answers = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if missing := [ident for ident in asked if ident not in answers]:
            yield (
                f"messages.{place - 1}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {', '.join(missing)}. Each `tool_use` block must have a "
                "corresponding `tool_result` block in the next message."
            )
        for ident in answers:
            if ident not in asked:
                yield (
                    f"messages.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{ident}. Each `tool_result` block must have a corresponding `tool_use` block "
                    "in the previous message."
                )
        if len(set(answers)) < len(answers):
            yield f"messages.{place}: each tool_use must have a single result."
        if any(block["type"] == "tool_result" for block in content[len(answers) :]):
            yield f"messages.{place}: tool_result blocks must come first in content"
        asked = [block["id"] for block in content if block["type"] == "tool_use"]
        if ever & set(asked) or len(set(asked)) < len(asked):
            yield f"messages.{place}: `tool_use` ids must be unique"
        ever |= set(asked)
    if asked:
        yield (
            "`tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(asked)}."
        )


_MAX_MARKS = 4


def marks(body: Json) -> Iterator[str]:
    """Check every `cache_control`, in the order in which the API reads them."""
    marked = list(_marked(body))
    for where, mark in marked:
        yield from _mark(f"{where}.cache_control", mark)
    if len(marked) > _MAX_MARKS:
        yield (
            f"A maximum of {_MAX_MARKS} blocks with cache_control may be provided. Found "
            f"{len(marked)}."
        )
    short = False
    for where, mark in marked:
        ttl = mark.get("ttl", "5m")
        if short and ttl == "1h":
            yield (
                f"{where}.cache_control.ttl: a ttl='1h' cache_control block must "
                "not come after a ttl='5m' cache_control block. Note that blocks are processed in "
                "the following order: `tools`, `system`, `messages`."
            )
        short = short or ttl == "5m"


def _mark(where: str, mark: Json) -> Iterator[str]:
    if mark.get("type") != "ephemeral":
        yield (
            f"{where}: Input tag '{mark.get('type')}' found using 'type' does not match any of "
            "the expected tags"
        )
    for key in mark.keys() - {"type", "ttl"}:
        yield f"{where}.ephemeral.{key}: Extra inputs are not permitted"
    if mark.get("ttl", "5m") not in {"5m", "1h"}:
        yield f"{where}.ephemeral.ttl: Input should be '5m' or '1h'"


def _marked(body: Json) -> Iterator[tuple[str, Json]]:
    """Yield the place and the mark of every marked block, in the API's order."""
    for place, tool in enumerate(body.get("tools") or []):
        if "cache_control" in tool:
            yield f"tools.{place}", tool["cache_control"]
    for place, block in enumerate(blocks(body.get("system") or [])):
        if "cache_control" in block:
            yield f"system.{place}", block["cache_control"]
    for place, message in enumerate(body["messages"]):
        for index, block in enumerate(blocks(message["content"])):
            if "cache_control" in block:
                yield f"messages.{place}.content.{index}", block["cache_control"]


MAX_BYTES = 32 * 1024 * 1024
MAX_MESSAGES = 100_000
_MAX_OUTPUT = 128_000
_VERSIONS = {"2023-01-01", "2023-06-01"}
_BETAS = {"prompt-caching-2024-07-31", "extended-cache-ttl-2025-04-11"}
_COUNTED = {
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
}
_KEYS = _COUNTED | {"max_tokens", "stream"}
_TOOL_KEYS = {"name", "description", "input_schema", "cache_control"}


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a request is refused."""

    message: str
    status: int = 400
    kind: str = "invalid_request_error"

    def wire(self, request_id: str) -> Json:
        return {
            "type": "error",
            "error": {"type": self.kind, "message": self.message},
            "request_id": request_id,
        }


def check(
    body: Json, headers: Mapping[str, str] | None = None, *, counting: bool = False
) -> Complaint | None:
    """Return the first thing that is wrong. `headers`: lower case names; None: those are not looked
    at.

    `counting`: as /v1/messages/count_tokens takes it.
    """
    if headers is not None and not (headers.get("x-api-key") or headers.get("authorization")):
        return Complaint("x-api-key header is required", 401, "authentication_error")
    version = "2023-06-01" if headers is None else headers.get("anthropic-version", "")
    if version not in _VERSIONS:
        said = f'"{version}" is not a valid version' if version else "header is required"
        return Complaint(f"anthropic-version: {said}")
    betas = [one for one in (headers or {}).get("anthropic-beta", "").split(",") if one]
    if unknown := set(map(str.strip, betas)) - _BETAS:
        named = ", ".join(f"`{one}`" for one in sorted(unknown))
        return Complaint(f"Unexpected value(s) {named} for the `anthropic-beta` header.")
    try:
        wrong = next(_wrong(body, counting), None)
    except (KeyError, TypeError, AttributeError) as error:
        wrong = (
            f"messages: Input should be of the documented form ({type(error).__name__}: {error})"
        )
    return Complaint(wrong) if wrong else None


def _wrong(body: Json, counting: bool) -> Iterator[str]:
    for key in body.keys() - (_COUNTED if counting else _KEYS):
        yield f"{key}: Extra inputs are not permitted"
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: Field required"
    if not isinstance(body.get("messages"), list):
        yield "messages: Field required"
    model = profile(body["model"])
    if not counting:
        yield from _output(body)
    yield from _effort(body, model)
    yield from _thinking(body, model)
    yield from _tools(body.get("tools") or [])
    yield from _choice(body)
    for place, block in enumerate(blocks(body.get("system") or [])):
        if block.get("type") != "text":
            yield f"system.{place}.type: Input should be 'text'"
        if not block["text"].strip():
            yield "system: text content blocks must contain non-whitespace text"
    if len(body["messages"]) > MAX_MESSAGES:
        yield f"messages: at most {MAX_MESSAGES} messages are permitted"
    yield from conversation(body["messages"], model)
    yield from marks(body)


def _output(body: Json) -> Iterator[str]:
    limit = body.get("max_tokens")
    if limit is None:
        yield "max_tokens: Field required"
    elif not isinstance(limit, int) or isinstance(limit, bool):
        yield "max_tokens: Input should be a valid integer"
    elif limit < 0:
        yield "max_tokens: Input should be greater than or equal to 0"
    elif limit > _MAX_OUTPUT:
        yield (
            f"max_tokens: {limit} > {_MAX_OUTPUT}, which is the maximum allowed number of output "
            f"tokens for {body['model']}"
        )
    elif limit == 0 and body.get("stream"):
        yield "max_tokens: 0 is not supported when `stream` is true"


def _effort(body: Json, model: Profile) -> Iterator[str]:
    config = body.get("output_config") or {}
    for key in config.keys() - {"effort"}:
        yield f"output_config.{key}: Extra inputs are not permitted"
    effort = config.get("effort")
    if effort is None:
        return
    if effort not in {"low", "medium", "high", "xhigh", "max"}:
        yield "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"
    elif not model.efforts:
        yield "This model does not support the effort parameter."
    elif effort not in model.efforts:
        levels = ", ".join(sorted(model.efforts))
        yield f"This model does not support effort level '{effort}'. Supported levels: {levels}."


def _thinking(body: Json, model: Profile) -> Iterator[str]:
    thinking = body.get("thinking")
    if thinking is None:
        return
    kind = thinking.get("type")
    if kind not in {"adaptive", "between_tools", "disabled"}:
        yield "thinking: Input tag found using 'type' does not match any of the expected tags"
    for key in thinking.keys() - {"type"}:
        yield f"thinking.{kind}.{key}: Extra inputs are not permitted"
    effort = (body.get("output_config") or {}).get("effort") or model.effort
    if kind not in model.thinking:
        if kind == "adaptive":
            yield "adaptive thinking is not supported on this model"
        lowest = '"thinking.type.between_tools" for the lowest thinking setting, or ' * (
            kind == "disabled" and "between_tools" in model.thinking
        )
        yield (
            f'"thinking.type.{kind}" is not supported for this model. Use '
            f'{lowest}"thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    if kind in model.mild_only and effort in {"xhigh", "max"}:
        yield f'"thinking.type.{kind}" is not supported at effort "{effort}" for this model.'


def _tools(tools: list[Json]) -> Iterator[str]:
    for place, tool in enumerate(tools):
        for key in tool.keys() - _TOOL_KEYS:
            yield f"tools.{place}.custom.{key}: Extra inputs are not permitted"
        if not tool.get("name"):
            yield f"tools.{place}.custom.name: Field required"
        if not isinstance(tool.get("input_schema"), dict):
            yield f"tools.{place}.custom.input_schema: Field required"
        if tool["input_schema"].get("type") != "object":
            yield f"tools.{place}.custom.input_schema.type: Input should be 'object'"
    if len({tool["name"] for tool in tools}) < len(tools):
        yield "tools: Tool names must be unique."


def _choice(body: Json) -> Iterator[str]:
    choice = body.get("tool_choice")
    if choice is None:
        return
    if choice not in ({"type": "auto"}, {"type": "none"}):
        yield "tool_choice: Input tag found using 'type' does not match any of the expected tags"
    if not body.get("tools"):
        yield "tool_choice: may only be specified while providing tools"
