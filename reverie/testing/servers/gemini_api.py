"""A loopback server that speaks Google's Gemini API, besides what `ModelApi` speaks.

    async with GeminiApi() as api: ...      # base_url is api.url

- `/v1beta/models/NAME:streamGenerateContent?alt=sse` streams the next scripted `Answer`,
  `:generateContent` sends it whole; `/v1beta/models` lists `models`. Under `/v1` too, where a
  system instruction is no known field (vercel/ai#2256, fishjar/kiss-translator#256).
- STRICT: what Google refuses is refused, kept in `violations`, and not counted against the script.
  The words of refusals are those of reports.
- Signatures are made from the model and the part that they come with, and must come back with just
  that part. Gemini 3 and later demand one at the first call of each answer of the turn under way.
- Of an `Answer`: `stop`, `usage` and `error_after` are in Google's words, `content` holds parts in
  front of the rest, and `stop_details` is the `promptFeedback` of a prompt that is blocked. A call
  whose arguments are no object never came to its end and is left out.
- `signs` False: calls come without a signature, as from models that do not think. `gives_ids`
  False: they come without an id, as from older models. Both may be set at any time.

Sources: ai.google.dev/api/generate-content, ai.google.dev/api/caching (Content, Part, Tool),
ai.google.dev/gemini-api/docs: function-calling, thinking, thought-signatures,
generate-content/api-errors.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reverie.testing.servers.model_api import Answer, ModelApi, Reply, Seen, echo

Json = dict[str, Any]
UNSIGNED = "skip_thought_signature_validator"
"""Taken for every signature (thought-signatures, FAQ)."""
_PATH = re.compile(
    r"/v1(?:alpha|beta)?/models/([^/:?]+):(streamGenerateContent\?alt=sse|generateContent)"
)
_LIST = re.compile(r"/v1(?:alpha|beta)?/models(\?pageSize=(\d+))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
_FIELDS = {
    "request": {
        "contents",
        "systemInstruction",
        "tools",
        "toolConfig",
        "generationConfig",
        "safetySettings",
        "cachedContent",
    },
    "content": {"role", "parts"},
    "functionCall": {"id", "name", "args"},
    "functionResponse": {"id", "name", "response"},
    "inlineData": {"mimeType", "data"},
    "tool": {"functionDeclarations"},
    "declaration": {"name", "description", "parameters", "parametersJsonSchema"},
    "config": {"maxOutputTokens", "temperature", "topP", "topK", "stopSequences", "thinkingConfig"},
    "thinking": {"thinkingLevel", "thinkingBudget", "includeThoughts"},
    "schema": {
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "enum",
        "items",
        "minItems",
        "maxItems",
        "properties",
        "required",
        "propertyOrdering",
        "anyOf",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "default",
        "example",
    },
}
_DATA = {"text", "inlineData", "functionCall", "functionResponse"}
_MEDIA = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8",
    "image/webp": b"RIFF",
    "application/pdf": b"%PDF",
}
_MAX_OUTPUT = 65_536
_PIECE = 6
"""Characters of text in one chunk."""


def error(status: int, word: str, message: str, *details: Json) -> Answer:
    """An error as Google's APIs write it (google.aip.dev/193)."""
    body: Json = {"code": status, "message": message, "status": word}
    if details:
        body["details"] = details
    return Answer(status=status, body=json.dumps({"error": body}).encode())


def exhausted(delay: str, quota: str = "GenerateRequestsPerMinutePerProjectPerModel") -> Answer:
    """A 429 of a quota that is used up, with the time to wait, e.g. `31.5s`."""
    kind = "type.googleapis.com/google.rpc."
    return error(
        429,
        "RESOURCE_EXHAUSTED",
        "You exceeded your current quota, please check your plan and billing details.",
        {"@type": f"{kind}QuotaFailure", "violations": [{"quotaId": quota}]},
        {"@type": f"{kind}Help", "links": []},
        {"@type": f"{kind}RetryInfo", "retryDelay": delay},
    )


def sign(model: str, part: Json) -> str:
    """Return the signature of a part of an answer of `model`."""
    bare = {key: value for key, value in part.items() if key != "thoughtSignature"}
    told = json.dumps([model, bare], sort_keys=True).encode()
    return base64.b64encode(b"thought:" + hashlib.sha256(told).digest()).decode()


class _Refused(Exception):
    """Why a request is refused."""


def check(body: Json, model: str) -> str | None:
    """Return the first thing that is wrong with a request."""
    try:
        for rule in (_check_form, _check_order, _check_signatures):
            rule(body, model)
    except _Refused as wrong:
        return str(wrong)
    except (KeyError, TypeError, AttributeError) as wrong:
        return f"Invalid JSON payload received. ({type(wrong).__name__}: {wrong})"
    return None


def _known(value: Json, kind: str, where: str) -> None:
    for key in value:
        if key not in _FIELDS[kind]:
            raise _Refused(
                f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find "
                "field."
            )


def _check_form(body: Json, model: str) -> None:
    _known(body, "request", "")
    if not body.get("contents"):
        raise _Refused("* GenerateContentRequest.contents: contents is not specified")
    for place, content in enumerate(body["contents"]):
        where = f"contents[{place}]"
        _check_content(content, where)
        if content.get("role") not in {"user", "model"}:
            raise _Refused("Please use a valid role: user, model.")
        alien = "functionCall" if content["role"] == "user" else "functionResponse"
        if any(alien in part for part in content["parts"]):
            raise _Refused(f"{where}: {alien} in the wrong role")
    if (system := body.get("systemInstruction")) is not None:
        _check_content(system, "system_instruction")
        if any("text" not in part for part in system["parts"]):
            raise _Refused("System instruction takes text only.")
    _check_tools(body)
    _check_options(body.get("generationConfig") or {}, model)


def _check_content(content: Json, where: str) -> None:
    _known(content, "content", where)
    if not content.get("parts"):
        raise _Refused(f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty.")
    for place, part in enumerate(content["parts"]):
        _check_part(part, f"{where}.parts[{place}]")


def _check_part(part: Json, where: str) -> None:
    for key in part.keys() - _DATA - {"thought", "thoughtSignature"}:
        raise _Refused(
            f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find field."
        )
    data = [key for key in _DATA if key in part and part[key] != ""]
    if len(data) != 1:
        raise _Refused(
            f"* GenerateContentRequest.{where}.data: required oneof field 'data' must have one "
            "initialized field"
        )
    if "thoughtSignature" in part:
        _decoded(part["thoughtSignature"], f"{where}.thought_signature")
    value = part[data[0]]
    if data == ["text"]:
        if not isinstance(value, str):
            raise _Refused(f"Invalid value at '{where}.text' (TYPE_STRING)")
        return
    _known(value, data[0], f"{where}.{data[0]}")
    if data == ["inlineData"]:
        magic = _MEDIA.get(value["mimeType"])
        if magic is None:
            raise _Refused(f"Unsupported MIME type: {value['mimeType']}")
        if not _decoded(value["data"], f"{where}.inline_data.data").startswith(magic):
            raise _Refused("Unable to process input image. Please retry or report in our docs.")
    else:
        field = "args" if data == ["functionCall"] else "response"
        if not _NAME.fullmatch(value.get("name", "")):
            raise _Refused(
                f"* GenerateContentRequest.{where}: [FIELD_INVALID] Invalid function name"
            )
        if not isinstance(value.get(field, {}), dict):
            raise _Refused(f"Invalid value at '{where}.{field}' (type.googleapis.com/Struct)")


def _decoded(written: str, where: str) -> bytes:
    try:  # Google's JSON takes both alphabets
        return base64.b64decode(written.translate(str.maketrans("-_", "+/")), validate=True)
    except binascii.Error:
        raise _Refused(f"Invalid value at '{where}' (TYPE_BYTES), Base64 decoding failed") from None


def _check_tools(body: Json) -> None:
    names = []
    for place, tool in enumerate(body.get("tools") or ()):
        _known(tool, "tool", f"tools[{place}]")
        for index, declared in enumerate(tool["functionDeclarations"]):
            where = f"tools[{place}].function_declarations[{index}]"
            _known(declared, "declaration", where)
            if not _NAME.fullmatch(declared["name"]):
                raise _Refused(f"* GenerateContentRequest.{where}.name: Invalid function name.")
            if {"parameters", "parametersJsonSchema"} <= declared.keys():
                raise _Refused(f"{where}: only one of parameters and parameters_json_schema")
            if "parameters" in declared:
                _check_schema(declared["parameters"], f"{where}.parameters")
            elif declared.get("parametersJsonSchema", {"type": "object"}).get("type") != "object":
                raise _Refused(f"{where}.parameters_json_schema: must describe an object")
            names.append(declared["name"])
    if len(set(names)) < len(names):
        raise _Refused("Duplicate function declaration found.")
    choice = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if choice and choice["mode"] not in {"AUTO", "ANY", "NONE", "VALIDATED"}:
        raise _Refused("Invalid value at 'tool_config.function_calling_config.mode'")
    if choice and not names:
        raise _Refused("Function calling config is set without function_declarations.")


def _check_schema(schema: Json, where: str) -> None:
    """Check a schema of `parameters`: a part of OpenAPI 3.0's."""
    _known(schema, "schema", where)
    if str(schema["type"]).upper() == "OBJECT" and not schema.get("properties"):
        raise _Refused(f"{where}.properties: should be non-empty for OBJECT type")
    for name, one in (schema.get("properties") or {}).items():
        _check_schema(one, f"{where}.properties[{name}]")
    if "items" in schema:
        _check_schema(schema["items"], f"{where}.items")


def _check_options(options: Json, model: str) -> None:
    _known(options, "config", "generation_config")
    limit = options.get("maxOutputTokens", 1)
    if not isinstance(limit, int) or not 0 < limit <= _MAX_OUTPUT:
        raise _Refused(
            f"Unable to submit request because it has a maxOutputTokens value of {limit} but the "
            "supported range is from 1 (inclusive) to 65537 (exclusive)."
        )
    thinking = options.get("thinkingConfig") or {}
    _known(thinking, "thinking", "generation_config.thinking_config")
    if {"thinkingLevel", "thinkingBudget"} <= thinking.keys():
        raise _Refused("You can only set one of thinking budget and thinking level.")
    if "thinkingLevel" in thinking and not is_signed(model):
        raise _Refused("Thinking level is not supported for this model.")
    if thinking.get("thinkingLevel", "LOW").upper() not in {"MINIMAL", "LOW", "MEDIUM", "HIGH"}:
        raise _Refused("Invalid value at 'generation_config.thinking_config.thinking_level'")
    if "thinkingBudget" in thinking and model.startswith("gemini-2.0"):
        raise _Refused("Thinking is not supported for this model.")
    if thinking.get("thinkingBudget", 1) == 0 and model.startswith("gemini-2.5-pro"):
        raise _Refused("Budget 0 is invalid. This model only works in thinking mode.")


def _turns(body: Json) -> list[tuple[str, list[Json]]]:
    """Return role and parts; neighbours of the same role are one to the API."""
    turns: list[tuple[str, list[Json]]] = []
    for content in body["contents"]:
        if turns and turns[-1][0] == content["role"]:
            turns[-1] = (content["role"], turns[-1][1] + content["parts"])
        else:
            turns.append((content["role"], content["parts"]))
    return turns


def _check_order(body: Json, _: str) -> None:
    """Check that calls and results belong together (function-calling)."""
    before: list[Json] = []
    last = ""
    for role, parts in _turns(body):
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if calls and last != "user":
            raise _Refused(
                "Please ensure that function call turn comes immediately after a user turn or "
                "after a function response turn."
            )
        if results and not before:
            raise _Refused(
                "Please ensure that function response turn comes immediately after a function "
                "call turn."
            )
        if len(results) != len(before):
            raise _Refused(
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )
        for call, result in zip(before, results, strict=True):
            if (call["name"], call.get("id")) != (result["name"], result.get("id")):
                raise _Refused("Function response does not match its function call.")
        before, last = calls, role
    if before:
        raise _Refused(
            "Please ensure that single turn requests end with a user role or the role field is "
            "empty."
        )


def is_signed(model: str) -> bool:
    """Return whether calls of this model must come back with their signature."""
    return not re.match(r"gemini-[12]\.", model)


def _check_signatures(body: Json, model: str) -> None:
    turns = _turns(body)
    begun = max(
        (
            place
            for place, (role, parts) in enumerate(turns)
            if role == "user" and not any("functionResponse" in part for part in parts)
        ),
        default=0,
    )
    for place, (_, parts) in enumerate(turns):
        for part in parts:
            signature = part.get("thoughtSignature")
            if signature not in {None, UNSIGNED, sign(model, part)}:
                raise _Refused("Corrupted thought signature.")
        calls = [part for part in parts if "functionCall" in part]
        if calls and place > begun and is_signed(model) and "thoughtSignature" not in calls[0]:
            raise _Refused(
                "Function call is missing a thought_signature in functionCall parts. This is "
                "required for tools to work correctly, and missing thought_signature may lead to "
                "degraded model performance. Additional data, function call "
                f"`default_api:{calls[0]['functionCall']['name']}`, position {place}."
            )


def echo_contents(body: Json) -> Answer:
    """Answer with the newest content's text."""
    texts = [str(part["text"]) for part in body["contents"][-1]["parts"] if "text" in part]
    return Answer(text=f"You said: {chr(10).join(texts)}")


class GeminiApi(ModelApi):
    """See the top of the file."""

    def __init__(self, **more: Any) -> None:
        """`more`: as of `ModelApi`."""
        super().__init__(**more)
        self.signs = self.gives_ids = True
        self.default = lambda body: echo_contents(body) if "contents" in body else echo(body)

    def reply(self, seen: Seen) -> Reply:
        if "x-goog-api-key" in seen.headers and (listed := _LIST.fullmatch(seen.path)):
            return self._listed(seen.headers, int(listed[2] or 50))
        if not (asked := _PATH.fullmatch(seen.path)):
            return super().reply(seen)
        if (refused := self._entry(seen.headers, asked[1])) is not None:
            return Reply(answer=refused, events=[])
        seen.body = _in_camel_case(seen.body)
        wrong = check(seen.body, asked[1])
        if seen.path.startswith("/v1/") and "systemInstruction" in seen.body:
            wrong = 'Invalid JSON payload received. Unknown name "systemInstruction"'
        if self.strict and wrong:
            self.violated(seen, wrong)
            return Reply(answer=error(400, "INVALID_ARGUMENT", wrong), events=[])
        answer = self.take(seen.body)
        chunks = list(self._chunks(answer, seen.body, asked[1]))
        if asked[2].startswith("stream"):
            return Reply(answer=answer, events=_events(answer, chunks))
        whole = chunks[-1]
        whole["candidates"][0]["content"]["parts"] = [
            part for chunk in chunks for part in chunk["candidates"][0]["content"].get("parts", ())
        ]
        told = Answer(status=answer.status, headers=_JSON_TYPE, body=answer.body)
        return Reply(answer=told, events=[json.dumps(whole).encode()])

    def _entry(self, headers: Mapping[str, str], model: str) -> Answer | None:
        """Return the error of a wrong key or of a model that there is not. None: neither."""
        key = headers.get("x-goog-api-key")
        if not key:
            told = "Method doesn't allow unregistered callers. Please use API Key."
            return error(403, "PERMISSION_DENIED", told)
        if self.key is not None and key != self.key:
            info = {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
            }
            told = "API key not valid. Please pass a valid API key."
            return error(400, "INVALID_ARGUMENT", told, info)
        if self.models is not None and model not in [one["id"] for one in self.models]:
            told = (
                f"models/{model} is not found for API version v1beta, or is not supported for "
                "generateContent. Call ListModels to see the list of available models."
            )
            return error(404, "NOT_FOUND", told)
        return None

    def _listed(self, headers: Mapping[str, str], size: int) -> Reply:
        models = self.models or []
        if (refused := self._entry(headers, models[0]["id"] if models else "")) is not None:
            return Reply(answer=refused, events=[])
        rows = [
            {
                "name": f"models/{one['id']}",
                "supportedGenerationMethods": ["generateContent", "countTokens"],
                "inputTokenLimit": one.get("max_input_tokens", 1_048_576),
            }
            for one in models
        ]
        rows.append({"name": "models/embed", "supportedGenerationMethods": ["embedContent"]})
        told = json.dumps({"models": rows[:size]}).encode()
        return Reply(answer=Answer(headers=_JSON_TYPE), events=[told])

    def _chunks(self, answer: Answer, body: Json, model: str) -> Iterator[Json]:
        """Yield the chunks of an answer, before its faults."""
        prompt = len(json.dumps(body)) // 4
        usage: Json = {"promptTokenCount": prompt, "totalTokenCount": prompt}
        base = {"usageMetadata": usage, "modelVersion": model, "responseId": "r-1"}
        if answer.stop_details is not None:
            yield base | {"promptFeedback": answer.stop_details}
            return
        thoughts, said = len(answer.thinking or "") // 4, len(answer.text) // 4 + 1
        last = usage | {
            "candidatesTokenCount": said,
            "thoughtsTokenCount": thoughts,
            "totalTokenCount": prompt + said + thoughts,
        }
        parts: list[Json] = [dict(part) for part in answer.content]
        if answer.thinking:
            parts.append({"text": answer.thinking, "thought": True})
        texts = range(0, len(answer.text), _PIECE)
        parts += [{"text": answer.text[at : at + _PIECE]} for at in texts]
        calls = [(ident, name, _parsed(written)) for ident, name, written in answer.calls]
        for place, (ident, name, args) in enumerate(one for one in calls if one[2] is not None):
            named = {"id": ident} if ident and self.gives_ids else {}
            part: Json = {"functionCall": named | {"name": name, "args": args}}
            if self.signs and not place:
                part["thoughtSignature"] = sign(model, part)
            parts.append(part)
        for place, part in enumerate(parts or [{}], 1):
            if part.get("thoughtSignature") is True:
                part["thoughtSignature"] = sign(model, part)
            said_by = {"role": "model"} | ({"parts": [part]} if part else {})
            candidate: Json = {"content": said_by, "index": 0}
            if place < len(parts):
                yield base | {"candidates": [candidate]}
            else:
                candidate["finishReason"] = answer.stop or "STOP"
                yield base | {"candidates": [candidate], "usageMetadata": answer.usage or last}


_JSON_TYPE = {"content-type": "application/json"}


def _in_camel_case(value: Any) -> Any:
    """Return a body with its fields named alike: protobuf's JSON takes both spellings."""
    if isinstance(value, list):
        return [_in_camel_case(one) for one in value]
    if not isinstance(value, dict):
        return value
    camel = {re.sub(r"_([a-z])", lambda one: one[1].upper(), key): key for key in value}
    return {
        name: value[key] if name in _STRUCTS else _in_camel_case(value[key])
        for name, key in camel.items()
    }


_STRUCTS = {"args", "response", "parametersJsonSchema", "properties"}
"""Fields whose own names are not the API's."""


def _parsed(written: str) -> Json | None:
    try:
        read = json.loads(written or "{}")
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


def _events(answer: Answer, chunks: list[Json]) -> list[bytes]:
    events = [b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks]
    if answer.error_after is not None:
        place, word = answer.error_after
        told = {"error": {"code": _CODES.get(word, 500), "message": word, "status": word}}
        return [*events[:place], b"data: " + json.dumps(told).encode() + b"\r\n\r\n"]
    if answer.garbled_after is not None:
        return [*events[: answer.garbled_after], b"data: {not json\r\n\r\n"]
    return events


_CODES = {"UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 429, "UNAUTHENTICATED": 401}
