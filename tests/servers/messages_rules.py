"""What the Messages API refuses. Pure: a request in, a complaint or None out.

Sources: platform.claude.com/docs/en, api/messages, api/errors, build-with-claude/prompt-caching, thinking,
thinking-troubleshooting, mid-conversation-system-messages, handle-tool-calls, context-editing and
models/fable-5-1/whats-new-fable-5-1.
Where the page quotes the refusal this says it in the same words. Server tools, files and most betas are not played.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.servers.messages_binding import CONTROLS
from tests.servers.messages_content import conversation
from tests.servers.messages_editing import BETA, management
from tests.servers.messages_marks import marks
from tests.servers.messages_models import Profile, profile
from tests.servers.messages_prompt import Json, blocks

MAX_BYTES = 32 * 1024 * 1024
MAX_MESSAGES = 100_000
_MAX_OUTPUT = 128_000
_VERSIONS = {"2023-01-01", "2023-06-01", "2026-10-21"}
_COUNTED = {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control"}
_SAMPLING = {"temperature": 1, "top_p": 1, "top_k": None}
"""What is sent without harm: the defaults. `top_k` has none."""
_KEYS = _COUNTED | {*_SAMPLING, "max_tokens", "stream", "metadata", "stop_sequences", "service_tier", "diagnostics"}
_BETA_KEYS = {"speed": "fast-mode-", "context_management": BETA}
"""Known only to who sends a beta header that begins so."""
_THINKING_KEYS = {"adaptive": {"display"}, "between_tools": {"display"}, "enabled": {"display", "budget_tokens"}}
_TOOL_KEYS = {"type", "name", "description", "input_schema", "cache_control", "strict", "input_examples"}


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a request is refused."""

    message: str
    status: int = 400
    kind: str = "invalid_request_error"

    def wire(self, request_id: str) -> Json:
        return {"type": "error", "error": {"type": self.kind, "message": self.message}, "request_id": request_id}


def check(body: Json, headers: Mapping[str, str] | None = None, *, counting: bool = False) -> Complaint | None:
    """Return the first thing that is wrong. `headers`: lower case names; None: those are not looked at.

    `counting`: as /v1/messages/count_tokens takes it.
    """
    if headers is not None and not (headers.get("x-api-key") or headers.get("authorization")):
        return Complaint("x-api-key header is required", 401, "authentication_error")
    version = "2023-06-01" if headers is None else headers.get("anthropic-version", "")
    if version not in _VERSIONS:
        said = f'"{version}" is not a valid version' if version else "header is required"
        return Complaint(f"anthropic-version: {said}")
    betas = betas_of(headers or {})
    try:
        wrong = next(_wrong(body, version, betas, counting), None)
    except (KeyError, TypeError, AttributeError) as error:
        wrong = f"messages: Input should be of the documented form ({type(error).__name__}: {error})"
    return Complaint(wrong) if wrong else None


def betas_of(headers: Mapping[str, str]) -> list[str]:
    """Return what `anthropic-beta` names."""
    return [beta.strip() for beta in headers.get("anthropic-beta", "").split(",") if beta.strip()]


def _wrong(body: Json, version: str, betas: list[str], counting: bool) -> Iterator[str]:
    known = {key for key, beta in _BETA_KEYS.items() if any(name.startswith(beta) for name in betas)}
    for key in body.keys() - known - (_COUNTED if counting else _KEYS):
        yield f"{key}: Extra inputs are not permitted"
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: Field required"
    if not isinstance(body.get("messages"), list):
        yield "messages: Field required"
    model = profile(body["model"])
    if not counting:
        yield from _output(body)
        yield from _sampling(body, model)
    yield from _effort(body, model)
    yield from _thinking(body, model, betas)
    yield from _tools(body.get("tools") or [])
    yield from _choice(body, model)
    for place, block in enumerate(blocks(body.get("system") or [])):
        if block.get("type") != "text":
            yield f"system.{place}.type: Input should be 'text'"
        if not block["text"].strip():
            yield "system: text content blocks must contain non-whitespace text"
    if len(body["messages"]) > MAX_MESSAGES:
        yield f"messages: at most {MAX_MESSAGES} messages are permitted"
    yield from conversation(body["messages"], model, version, betas)
    yield from management(body, model)
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
            f"max_tokens: {limit} > {_MAX_OUTPUT}, which is the maximum allowed number of output tokens "
            f"for {body['model']}"
        )
    elif limit == 0:
        if body.get("stream"):
            yield "max_tokens: 0 is not supported when `stream` is true"
        if (body.get("thinking") or {}).get("type") == "enabled":
            yield 'max_tokens: 0 is not supported with "thinking.type.enabled"'
        if (body.get("output_config") or {}).get("format"):
            yield "max_tokens: 0 is not supported with `output_config.format`"
        if (body.get("tool_choice") or {}).get("type") in {"any", "tool"}:
            yield "max_tokens: 0 is not supported when `tool_choice` forces tool use"


def _sampling(body: Json, model: Profile) -> Iterator[str]:
    for key, default in _SAMPLING.items():
        if body.get(key) in {None, default}:
            continue
        if not model.sampling:
            yield f"`{key}` is deprecated for this model."
        if (body.get("thinking") or {}).get("type") in {"enabled", "adaptive"} and key != "top_p":
            yield f"`{key}` may only be set to {default or 'its default'} when thinking is enabled."
    if body.get("temperature") is not None and not 0 <= body["temperature"] <= 1:
        yield "temperature: range: 0..1"


def _effort(body: Json, model: Profile) -> Iterator[str]:
    config = body.get("output_config") or {}
    for key in config.keys() - {"effort", "format"}:
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


def _thinking(body: Json, model: Profile, betas: list[str]) -> Iterator[str]:
    thinking = body.get("thinking")
    if thinking is None:
        return
    kind = thinking.get("type")
    if kind not in {"adaptive", "between_tools", "enabled", "disabled"}:
        yield "thinking: Input tag found using 'type' does not match any of the expected tags"
    allowed = {"type"} | _THINKING_KEYS.get(kind, set()) | ({"block_binding"} if CONTROLS in betas else set())
    for key in thinking.keys() - allowed:
        yield f"thinking.{kind}.{key}: Extra inputs are not permitted"
    if (thinking.get("block_binding") or {}).get("prefix_mismatch_behavior", "error") not in {"error", "drop_block"}:
        yield "thinking.block_binding.prefix_mismatch_behavior: Input should be 'error' or 'drop_block'"
    if thinking.get("display", "omitted") not in {"summarized", "omitted"}:
        yield f"thinking.{kind}.display: Input should be 'summarized' or 'omitted'"
    effort = (body.get("output_config") or {}).get("effort") or model.effort
    if kind not in model.thinking:
        if kind == "adaptive":
            yield "adaptive thinking is not supported on this model"
        lowest = '"thinking.type.between_tools" for the lowest thinking setting, or ' * (
            kind == "disabled" and "between_tools" in model.thinking
        )
        yield (
            f'"thinking.type.{kind}" is not supported for this model. Use {lowest}"thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    if kind in model.mild_only and effort in {"xhigh", "max"}:
        yield f'"thinking.type.{kind}" is not supported at effort "{effort}" for this model.'
    if kind == "enabled":
        yield from _budget(body, thinking.get("budget_tokens"))


def _budget(body: Json, budget: object) -> Iterator[str]:
    if not isinstance(budget, int):
        yield "thinking.enabled.budget_tokens: Field required"
    elif budget < 1024:
        yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    elif "max_tokens" in body and budget >= body["max_tokens"]:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`"


def _tools(tools: list[Json]) -> Iterator[str]:
    for place, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            yield f"tools.{place}: Input tag '{tool['type']}' is not one that is played here"
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


def _choice(body: Json, model: Profile) -> Iterator[str]:
    choice = body.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type")
    if kind not in {"auto", "any", "tool", "none"}:
        yield "tool_choice: Input tag found using 'type' does not match any of the expected tags"
    if not body.get("tools"):
        yield "tool_choice: may only be specified while providing tools"
    if kind in {"any", "tool"} and not model.forced_tools:
        yield 'tool_choice: type "tool" and "any" are not supported for this model.'
    if kind in {"any", "tool"} and (body.get("thinking") or {}).get("type") == "enabled":
        yield "Thinking may not be enabled when tool_choice forces tool use."
    if kind == "tool" and choice.get("name") not in {tool["name"] for tool in body.get("tools") or []}:
        yield f"Tool '{choice.get('name')}' not found in provided tools"
