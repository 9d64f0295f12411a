"""Tool calls that a model wrote as the text of its answer, recovered once the answer is whole. Pure.

A model does that if its server has no parser for what it writes, or the wrong one. An answer counts only if all of it
is calls of declared tools: beside other words it only talks about a call. A call that is cut off is not completed. A
model that repeats somebody's text writes the same, so `is_call_in_request` looks for the call in the request.

Formats by their beginning, as in SGLang's detectors (sgl-project/sglang, srt/function_call) and in the models' own chat
templates:

`<tool_call>` and the like       Hermes and Qwen (JSON), Qwen3-Coder (`<function=f>`), GLM (`f<arg_key>`), MiniMax
`<function=f>`, `<invoke name>`  the same without the tags around it; Claude; DeepSeek, `｜DSML｜` in each tag
`<|tool_call_begin|>`            DeepSeek and Kimi K2, with `▁` or `_`
`<|open|>call`                   Kimi K3
`<|channel|>commentary to=f`     gpt-oss
`<|python_tag|>`, `[TOOL_CALLS]`, `<|tool_call_start|>`   Llama (JSON, Python), Mistral (JSON), LFM2 (Python)
`[f(a=1)]` on lines of its own   Llama 4
JSON that is the whole answer    Llama 3

The order of this file: values, declared tools, calls, then calls that the model may only repeat.

Text between two tags is not escaped. If an end tag is missing, an argument ends before the next argument or call. Each
character is read a fixed number of times.
"""  # noqa: RUF002 - the models write these characters

import contextlib
import html
import json
import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final
from urllib.parse import unquote

from agent.models.base import ModelRequest, TextPart, ToolResult
from agent.tools import unwrap_call
from gateway.core.tool_spec import ToolCall, ToolSpec

MAX_TAG_CHARS: Final = 256
MAX_NAME_CHARS: Final = 128
MAX_VALUE_CHARS: Final = 500_000
"""Characters of the arguments of one call, and of one value."""
MAX_DEPTH: Final = 64
"""Levels of nested lists and objects."""
MAX_RUNAWAYS: Final = 16
"""Calls without an end that are followed: for each, the text is read up to the next tag, perhaps to its end."""
MAX_HEADER_PARTS: Final = 4

ENVELOPE_TAGS: Final = frozenset(
    ["tool_call", "tool_calls", "toolcall", "function_call", "function_calls", "tool_use", "tools"]
)
"""Tags around calls."""
CALL_TAGS: Final = frozenset({"function", "invoke"})
ARGUMENT_TAGS: Final = frozenset({"parameter", "param"})
END_TOKENS: Final = frozenset({"eom_id", "eot_id", "im_end", "end_of_msg", "end_of_sentence", "endoftext", "return"})
"""Special tokens behind a whole answer."""
OPENING_TOKENS: Final = frozenset(
    [
        *("python_tag", "python_start", "tool_calls_begin", "tool_calls_section_begin"),
        *("tool_call_start", "tool_call", "START_ACTION"),
    ]
)
CLOSING_TOKENS: Final = END_TOKENS | {
    *("python_end", "tool_calls_end", "tool_call_end", "tool_calls_section_end"),
    *("/tool_call", "END_ACTION", "call"),
}
SPECIAL_TOKENS: Final = (
    OPENING_TOKENS
    | CLOSING_TOKENS
    | {
        *("tool_call_begin", "tool_sep", "tool_call_argument_begin", "open", "close", "sep", "channel"),
        *("constrain", "message", "start", "end"),
    }
)
MISTRAL_MARKER: Final = "[TOOL_CALLS]"
CUT_OFF: Final = "it is cut off"
NO_OBJECT: Final = "its arguments are not one JSON object"
NAME_KEYS: Final = ("name", "tool_name", "tool", "function")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "tool_input")
_PREFIXES: Final = ("", "|DSML|", "minimax:", "antml:")
"""Prefixes of tags by DeepSeek, MiniMax and Claude."""
_TAG_HEADS: Final = frozenset(
    [
        f"{slash}{prefix}{tag}"
        for slash in ("", "/")
        for prefix in _PREFIXES
        for tag in ENVELOPE_TAGS | CALL_TAGS | ARGUMENT_TAGS | {"arg_key", "arg_value", "s"}
    ]
    + [f"|{name}|" for name in SPECIAL_TOKENS]
)
_LOOKALIKE_CHARS: Final = str.maketrans("\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}", "|_")
"""Maps the characters of DeepSeek's special tokens to their ASCII look-alikes."""
_HEAD_END: Final = re.compile("[^A-Za-z0-9_:/|\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}]")
_TAG_END: Final = re.compile(r"[<>\n]")
_CALL_START: Final = re.compile(r"[<\[]")
_ATTRIBUTE: Final = re.compile(r"""([A-Za-z_]{1,32}) ?= ?(?:"([^"]*)"|'([^']*)')""")
_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(rf"[A-Za-z0-9_.:-]{{0,{MAX_NAME_CHARS}}}")
_LINE_REST: Final = re.compile(r"[ \t]*")
_STRUCTURE: Final = re.compile(r"""["'{}\[\]()]""")
_STRING_ENDS: Final = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_CLOSING_BRACKETS: Final = {"{": "}", "[": "]", "(": ")"}
_NAMED_TOOL: Final = re.compile(
    rf"""["'](?:{"|".join(NAME_KEYS)})["']\s*:\s*["']([A-Za-z0-9_.:-]{{1,{MAX_NAME_CHARS}}})["']"""
)
_NAMED_ARGUMENTS: Final = re.compile(rf"""["'](?:{"|".join(ARGUMENT_KEYS)})["']\s*:""")
_RECIPIENT: Final = re.compile(r"\bto=([A-Za-z0-9_.:-]{1,128})")
_CALL_NUMBER: Final = re.compile(r":[0-9]{1,6}\Z")
_HEADER_KEYS: Final = re.compile(r'([a-z]{1,16})="([^"]{0,200})"')

_NOT_JSON: Final = re.compile(
    r"""
    (?P<quote>["'])(?P<string>(?:\\.|(?!(?P=quote))[^\\])*+)(?P<end>(?P=quote)|\\?\Z)
    | \b(?P<word>True|False|None)\b
    | (?<![\[{(,\s])\s*+(?P<comma>,)\s*+(?=[\]})])
    | (?P<space>\s++)
    """,
    re.VERBOSE | re.DOTALL,
)
"""Matches what differs between JSON and Python's literals, and each string."""
_JSON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_STRING_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED_CHARS: Final = {
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "\n": "",
    **{char: char for char in "\"'\\/"},
}
_PYTHON_NAME: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]{0,127})\s*")


class InvalidValue(ValueError):
    """The text is not a value of the expected form. The message is for the model and repeats nothing of the text."""


class NotACall(Exception):
    """The text at this position is not a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakedCall:
    """Call of a declared tool."""

    name: str
    arguments: str = ""
    """A JSON object. May hold lone surrogates, if the model wrote any."""
    problem: str = ""
    """Not empty: the call cannot be carried out. For the model: the error and the remedy; repeats nothing of its text.
    """


FoundCalls = tuple[list[LeakedCall], int]
"""Calls, and the position behind them."""


def recover_tool_calls(text: str, specs: Iterable[ToolSpec]) -> list[LeakedCall]:
    """Return the calls that a whole answer consists of, in order. Empty: it is text.

    Never raises.
    """
    try:
        return _CallReader(text, DeclaredTools(specs)).read_answer()
    except NotACall:
        return []


def read_value(text: str) -> object:
    """Read JSON, also with raw line breaks in strings, single quotes, Python's literals or a comma too many.

    Raises InvalidValue for anything else: a value that is cut off, or a word without quotes, is not guessed.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(_to_strict_json(text), parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise InvalidValue(f"it is not JSON ({error.msg})") from None
    except InvalidValue:
        raise
    except (ValueError, RecursionError):
        raise InvalidValue("a number in it is too large, or it is nested too deep") from None


def read_python_calls(text: str) -> list[tuple[str, dict[str, object]]]:
    """Read `[f(a=1), g()]`, or `f(a=1)` alone. Raises InvalidValue."""
    text = _to_strict_json(text).strip()
    if text.startswith("["):
        text = text[1:-1].strip()
    calls, at = list[tuple[str, dict[str, object]]](), 0
    while at < len(text) or not calls:
        name, at = _read_python_name(text, at, "(")
        arguments = dict[str, object]()
        while not text.startswith(")", at):
            key, at = _read_python_name(text, at, "=")
            arguments[key], at = _read_json(text, at)
            at = _read_comma(text, at, ")")
        calls.append((name.removesuffix(".call"), arguments))
        at = _read_comma(text, at + 1, "")
    return calls


def to_json(value: object) -> str:
    """Encode as JSON. Raises InvalidValue for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise InvalidValue("a number in it is too large") from None


def _reject_constant(_: str) -> object:
    raise InvalidValue("NaN and Infinity are no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant)


def _to_strict_json(text: str) -> str:
    return _NOT_JSON.sub(_replace_with_json, text)


def _replace_with_json(found: re.Match[str]) -> str:
    if found["word"]:
        return _JSON_WORDS[found["word"]]
    if found["comma"]:
        return ""
    if found["space"]:
        return " "
    if found["end"] != found["quote"]:
        raise InvalidValue("a string in it does not end")
    return json.dumps(_STRING_ESCAPE.sub(_unescape_char, found["string"]))


def _unescape_char(found: re.Match[str]) -> str:
    char = found[1]
    return chr(int(char[1:], 16)) if len(char) > 1 else _ESCAPED_CHARS.get(char, found[0])


def _read_python_name(text: str, at: int, behind: str) -> tuple[str, int]:
    """Return the name at this position, and the position behind the character that must follow it."""
    found = _PYTHON_NAME.match(text, at)
    if found is None:
        raise InvalidValue(f"a word is missing at character {at}")
    if not text.startswith(behind, found.end()):
        raise InvalidValue(f"{behind!r} is missing at character {found.end()}")
    return found[1], _skip_space(text, found.end() + 1)


def _read_json(text: str, at: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise InvalidValue(f"it is not JSON ({error.msg})") from None
    except RecursionError:
        raise InvalidValue("it is nested too deep") from None


def _read_comma(text: str, at: int, closing: str) -> int:
    """Return the position behind the comma. Without one, `closing` must stand here."""
    at = _skip_space(text, at)
    if text.startswith(",", at):
        return _skip_space(text, at + 1)
    if text[at : at + 1] != closing:
        raise InvalidValue(f"a comma is missing at character {at}")
    return at


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


class DeclaredTools:
    """Tools of the request, by name."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._schemas = dict[str, Mapping[str, object]]()

    def resolve_name(self, written: str) -> str:
        """Return the name of the declared tool. Empty: there is none."""
        name = written.strip()
        return next((one for one in (name, name.removeprefix("functions.")) if one in self._specs), "")

    def has_required(self, arguments: Mapping[str, object], name: str) -> bool:
        """Return True if no required argument of the tool is missing."""
        required = self._load_schema(name).get("required")
        return not isinstance(required, list) or all(one in arguments for one in required)

    def coerce(self, raw: str, key: str, name: str) -> object:
        """Convert plain text to the type that the tool's schema declares for this key; unchanged if that fails."""
        schema = self._load_schema(name)
        properties = schema.get("properties")
        kinds = _allowed_types(properties.get(key) if isinstance(properties, Mapping) else None, schema, 0)
        if not kinds or "string" in kinds:
            return raw
        plain = raw.strip()
        if "boolean" in kinds and plain.lower() in ("true", "false"):
            return plain.lower() == "true"
        if "null" in kinds and plain in ("null", "None", ""):
            return None
        try:
            value = read_value(plain)
        except InvalidValue:
            return raw
        fits = {
            "integer": isinstance(value, int) or (isinstance(value, float) and value.is_integer()),
            "number": isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)),
            "object": isinstance(value, dict),
            "array": isinstance(value, list),
        }
        if isinstance(value, bool) or not any(fits.get(kind) for kind in kinds):
            return raw
        return int(value) if isinstance(value, float) and "number" not in kinds else value

    def build_call(self, name: str, arguments: object, form: str) -> LeakedCall:
        """Build a call with these arguments: an object, or its JSON."""
        try:
            if isinstance(arguments, str):
                arguments = read_value(arguments) if arguments.strip() else {}
            if isinstance(arguments, dict):
                return LeakedCall(name=name, arguments=to_json(arguments))
        except InvalidValue as error:
            return self.build_bad_call(name, form, str(error))
        return self.build_bad_call(name, form, NO_OBJECT)

    def build_bad_call(self, name: str, form: str, why: str) -> LeakedCall:
        """Build a call that cannot be carried out."""
        return LeakedCall(
            name=name,
            problem=f"You wrote a call of {name} into your text ({form}), and it cannot be carried out: {why}. "
            f"Nothing was done. Call {name} as the tool that it is, with its arguments as one JSON object.",
        )

    def build_calls(self, value: object, form: str, *, strict: bool = False) -> list[LeakedCall]:
        """Build the calls that a value of JSON holds. Empty: it holds none, or not only calls.

        `strict`: each must have its arguments.
        """
        calls = list[LeakedCall]()
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and isinstance(item.get("function"), dict):
                item = item["function"]  # noqa: PLW2901 - as OpenAI writes it
            if not isinstance(item, dict):
                return []
            name = next((self.resolve_name(item[key]) for key in NAME_KEYS if isinstance(item.get(key), str)), "")
            arguments = [item[key] for key in ARGUMENT_KEYS if key in item]
            if not name or (strict and not arguments):
                return []
            calls.append(self.build_call(name, {} if not arguments or arguments[0] is None else arguments[0], form))
        return calls

    def find_named_tool(self, text: str) -> str:
        """Return the tool that a broken object names. Empty: none."""
        return next((name for found in _NAMED_TOOL.finditer(text) if (name := self.resolve_name(found[1]))), "")

    def _load_schema(self, name: str) -> Mapping[str, object]:
        if name not in self._schemas:
            try:
                schema = json.loads(self._specs[name].schema)
            except (ValueError, RecursionError):  # a schema of an MCP server
                schema = {}
            self._schemas[name] = schema if isinstance(schema, dict) else {}
        return self._schemas[name]


def _allowed_types(declared: object, root: Mapping[str, object], depth: int) -> set[str]:
    """Return the names of the types that a value may have. Empty: any."""
    if not isinstance(declared, Mapping) or depth > MAX_DEPTH:
        return set()
    kind, found = declared.get("type"), set[str]()
    found |= {kind} if isinstance(kind, str) else {one for one in _as_list(kind) if isinstance(one, str)}
    for several in ("anyOf", "oneOf", "allOf"):
        for one in _as_list(declared.get(several)):
            found |= _allowed_types(one, root, depth + 1)
    for one in _as_list(declared.get("enum")):
        found |= {"string"} if isinstance(one, str) else set()
    reference, definitions = declared.get("$ref"), root.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, Mapping):
        found |= _allowed_types(definitions.get(reference.rpartition("/")[2]), root, depth + 1)
    return found


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkupTag:
    """A tag or a special token."""

    name: str
    """Without prefix, slash and bars: `invoke`, `tool_sep`."""
    end: int
    """Position behind it."""
    is_special: bool = False
    is_closing: bool = False
    value: str = ""
    """Text behind a `=`: `f` in `<function=f>`."""
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The tool or argument that the tag names: `f` in `<function=f>` and `<invoke name="f">`."""
        return self.value or self.attributes.get("name", "")


class _CallReader:
    """Reads the calls in one text. Positions are those of the text; methods raise NotACall."""

    def __init__(self, text: str, tools: DeclaredTools) -> None:
        self._text = text
        self._tools = tools
        self._runaways = 0

    def read_answer(self) -> list[LeakedCall]:
        """Read all calls. Raises NotACall if there is anything else."""
        calls, at = list[LeakedCall](), self._skip_space(0)
        if self._text[at : at + 1] in ("{", "["):
            with contextlib.suppress(NotACall):
                return self._read_json_answer(at)
        if self._text.startswith("to=functions.", at):  # gpt-oss, the first token is missing
            with contextlib.suppress(NotACall):
                calls, at = self._read_harmony(at)
                at = self._skip_end_tokens(at)
        while (at := self._skip_space(at)) < len(self._text):
            if self._text[at] == "<" or self._text.startswith(MISTRAL_MARKER, at):
                found, at = self._read_region(at)
            elif self._text[at] == "[":
                found, at = self._read_python_lines(at)
            else:
                raise NotACall
            calls += found
        return calls

    def _read_json_answer(self, at: int) -> list[LeakedCall]:
        """Read an answer that is JSON and nothing else, with tools and their arguments."""
        calls, form = list[LeakedCall](), "JSON"
        while self._text[at : at + 1] in ("{", "["):
            if not self._is_json_start(at):
                raise NotACall
            end, why = self._find_extent(at)
            found = list[LeakedCall]()
            try:
                found = [] if why else self._tools.build_calls(read_value(self._text[at:end]), form, strict=True)
            except InvalidValue as error:
                why = str(error)
            if why:
                rest = self._text[at:]
                meant = self._tools.find_named_tool(rest) if _NAMED_ARGUMENTS.search(rest) else ""
                found, end = [self._tools.build_bad_call(meant, form, why)] if meant else [], len(self._text)
            if not found:
                raise NotACall
            calls += found
            at = self._skip_space(self._skip_end_tokens(end))
            if self._text.startswith((";", ","), at):
                at = self._skip_space(at + 1)
        if at < len(self._text):
            raise NotACall
        return calls

    def _is_json_start(self, at: int) -> bool:
        """Return True if an object, or a list of objects, may begin here."""
        if self._text[at] == "[":
            at = self._skip_space(at + 1)
            if not self._text.startswith("{", at):
                return False
        return self._text.startswith(('"', "'"), self._skip_space(at + 1))

    def _read_python_lines(self, at: int) -> FoundCalls:
        """Read `[f(a=1)]` at the end of a line."""
        calls, end = self._read_python(at, self._read_name(self._skip_space(at + 1)), "Python")
        behind = _LINE_REST.match(self._text, end)
        assert behind is not None
        if self._text[behind.end() : behind.end() + 1] not in ("", "\n", "\r", "<"):
            raise NotACall
        return calls, self._skip_end_tokens(end)

    def _read_region(self, start: int) -> FoundCalls:
        """Read all calls that follow each other from here on, with their envelopes."""
        at = end = start
        form, calls = "", list[LeakedCall]()
        while True:
            at = self._skip_space(at)
            try:
                form, found, at = self._read_step(at, form)
            except NotACall:
                if calls:
                    return calls, end
                raise
            calls += found
            end = at if found or (calls and not form) else end

    def _read_step(self, at: int, form: str) -> tuple[str, list[LeakedCall], int]:
        """Read the tag, marker or call that begins here.

        Returns the form that is open afterwards (empty: none), the calls, and the next position.
        """
        tag = self._read_tag(at)
        if tag is not None:
            return self._read_token(tag, form) if tag.is_special else self._read_markup(tag, form)
        if self._text.startswith(MISTRAL_MARKER, at):
            return MISTRAL_MARKER, [], at + len(MISTRAL_MARKER)
        if not form or at == len(self._text):
            raise NotACall
        if self._text[at] in ",;}]":  # between two calls; or one too many, before the end
            return form, [], at + 1
        return form, *self._read_enclosed(at, form)

    def _read_markup(self, tag: MarkupTag, form: str) -> tuple[str, list[LeakedCall], int]:
        if tag.name in CALL_TAGS and not tag.is_closing:
            return form, *self._read_element_call(tag)
        if tag.name in ENVELOPE_TAGS or (tag.is_closing and tag.name in {*CALL_TAGS, "s"}):
            return "" if tag.is_closing else f"<{tag.name}>", [], tag.end
        raise NotACall

    def _read_token(self, tag: MarkupTag, form: str) -> tuple[str, list[LeakedCall], int]:
        if tag.name in CLOSING_TOKENS:
            return "", [], tag.end
        if tag.name == "tool_call_begin":
            return f"<|{tag.name}|>", *self._read_headed(tag)
        if tag.name in OPENING_TOKENS:
            return f"<|{tag.name}|>", [], tag.end
        if tag.name in ("channel", "start"):
            return "", *self._read_harmony(tag.end)
        if tag.name not in ("open", "close"):
            raise NotACall
        header, end = self._read_header(tag)
        if tag.name == "open" and header.startswith("call"):
            return form, *self._read_kimi(header, end)
        if header.startswith("tools") or (tag.name == "close" and header.startswith("message")):
            return "<|open|>tools" if tag.name == "open" else "", [], end
        raise NotACall

    def _read_enclosed(self, at: int, form: str) -> FoundCalls:
        """Read a call that only its envelope marks as one."""
        if self._text[at] in "{[":
            return self._read_json_calls(at, form)
        name = self._read_name(at)
        tool = self._tools.resolve_name(name.removesuffix(".call"))
        if not tool:
            raise NotACall
        end = self._skip_space(at + len(name))
        if form == MISTRAL_MARKER:
            end = self._skip_mistral_labels(end)
        if self._text.startswith("{", end):
            return self._read_arguments(end, tool, form)
        if self._text.startswith("(", end) and end == at + len(name):
            return self._read_python(at, name, form)
        tag = self._read_tag(end)
        if tag is None or tag.is_special:
            raise NotACall
        if tag.name != "arg_key" and not (tag.is_closing and tag.name in ENVELOPE_TAGS):
            raise NotACall
        return self._read_pairs(tool, end, form)

    def _skip_mistral_labels(self, at: int) -> int:
        """Return the position behind `[CALL_ID]...[ARGS]`, which may be missing."""
        if self._text.startswith("[CALL_ID]", at):
            at += len("[CALL_ID]")
            at += len(self._read_name(at))
        if self._text.startswith("[ARGS]", at):
            at = self._skip_space(at + len("[ARGS]"))
        return at

    def _read_json_calls(self, at: int, form: str) -> FoundCalls:
        """Read the object or list of objects that begins here; a list may hold Python calls in place of objects."""
        if self._text[at] == "[" and (name := self._read_name(self._skip_space(at + 1))):
            return self._read_python(at, name, form)
        end, why = self._find_extent(at)
        if why:
            end = self._find_next_tag(at)
        try:
            calls = [] if why else self._tools.build_calls(read_value(self._text[at:end]), form)
        except InvalidValue as error:
            calls, why = [], str(error)
        if why and (meant := self._tools.find_named_tool(self._text[at:end])):
            calls = [self._tools.build_bad_call(meant, form, why)]
        if not calls:
            raise NotACall
        return calls, end

    def _read_arguments(self, at: int, name: str, form: str) -> FoundCalls:
        """Read the object that begins here, as the arguments of the tool `name`."""
        end, why = self._find_extent(at)
        if why:
            return [self._tools.build_bad_call(name, form, why)], self._find_next_tag(at)
        return [self._tools.build_call(name, self._text[at:end], form)], end

    def _read_python(self, at: int, name: str, form: str) -> FoundCalls:
        """Read `[f(a=1), g()]` or `f(a=1)`; `name` is the name of the first call."""
        is_list = self._text[at] == "["
        start = (self._skip_space(at + 1) if is_list else at) + len(name)
        tool = self._tools.resolve_name(name.removesuffix(".call"))
        if not tool or not self._text.startswith("(", start):
            raise NotACall
        end, why = self._find_extent(at if is_list else start)
        if why:
            return [self._tools.build_bad_call(tool, form, why)], self._find_next_tag(start)
        try:
            calls = read_python_calls(self._text[at:end])
        except InvalidValue as error:
            return [self._tools.build_bad_call(tool, form, str(error))], end
        tools = [self._tools.resolve_name(called) for called, _ in calls]
        if not all(tools):
            raise NotACall
        return [
            self._tools.build_call(tool, arguments, form) for tool, (_, arguments) in zip(tools, calls, strict=True)
        ], end

    def _read_element_call(self, tag: MarkupTag) -> FoundCalls:
        """Read the call behind `tag`, which is `<function=f>` or `<invoke name="f">`."""
        form, name = f"<{tag.name}>", self._tools.resolve_name(tag.target)
        if not name:
            raise NotACall
        at = self._skip_space(tag.end)
        if self._text.startswith("{", at):  # Llama 3.1
            found, at = self._read_arguments(at, name, form)
            return found, self._skip_call_end(at)
        arguments = dict[str, object]()
        while True:
            inner = self._read_tag(at)
            if inner is not None and inner.is_closing and inner.name in CALL_TAGS:
                return [self._tools.build_call(name, arguments, form)], inner.end
            if inner is None or inner.is_closing or inner.name not in ARGUMENT_TAGS:
                return self._finish_unclosed(name, arguments, at, form)
            value = self._read_element(inner, inner.name)
            if value is None:
                return [self._tools.build_bad_call(name, form, CUT_OFF)], len(self._text)
            raw, at = value
            if len(raw) > MAX_VALUE_CHARS:
                why = f"a value has more than {MAX_VALUE_CHARS} characters"
                return [self._tools.build_bad_call(name, form, why)], at
            if tag.name == "function":
                raw = raw.removeprefix("\n").removesuffix("\n")
            arguments[inner.target] = self._coerce(raw, inner.target, inner.attributes.get("string", ""), name)
            at = self._skip_space(at)

    def _coerce(self, raw: str, key: str, is_string: str, name: str) -> object:
        """Convert a value. DeepSeek marks in the tag which values are text: `true` or `false`."""
        if not is_string or is_string not in ("true", "false"):
            return self._tools.coerce(raw, key, name)
        with contextlib.suppress(InvalidValue):
            return raw if is_string == "true" else read_value(raw)
        return raw

    def _read_pairs(self, name: str, at: int, form: str) -> FoundCalls:
        """Read GLM's `<arg_key>k</arg_key><arg_value>v</arg_value>`, behind the name of a tool."""
        arguments = dict[str, object]()
        while True:
            at = self._skip_space(at)
            tag = self._read_tag(at)
            if tag is None or tag.name != "arg_key" or tag.is_closing:
                break
            key = self._read_element(tag, "arg_value")
            if key is None:
                return [self._tools.build_bad_call(name, form, CUT_OFF)], len(self._text)
            at = self._skip_space(key[1])
            tag = self._read_tag(at)
            if tag is None or tag.name != "arg_value" or tag.is_closing:
                return [self._tools.build_bad_call(name, form, "a key in it has no value")], at
            value = self._read_element(tag, "arg_key")
            if value is None:
                return [self._tools.build_bad_call(name, form, CUT_OFF)], len(self._text)
            at = value[1]
            arguments[key[0].strip()] = self._tools.coerce(value[0], key[0].strip(), name)
        if tag is not None and tag.is_closing:
            return [self._tools.build_call(name, arguments, form)], at
        return self._finish_unclosed(name, arguments, at, form)

    def _finish_unclosed(self, name: str, arguments: dict[str, object], at: int, form: str) -> FoundCalls:
        """Build a call whose arguments are whole, but whose end tag is missing.

        At the end of the text either the end tag or an argument is missing. If no required argument is missing, it is
        the tag.
        """
        if at < len(self._text) and self._text[at] != "<":
            return [self._tools.build_bad_call(name, form, "there is text between its arguments")], at
        if not arguments or not self._tools.has_required(arguments, name):
            return [self._tools.build_bad_call(name, form, CUT_OFF)], at
        return [self._tools.build_call(name, arguments, form)], at

    def _skip_call_end(self, at: int) -> int:
        """Return the position behind the call's end tag, if that follows; else `at`."""
        tag = self._read_tag(self._skip_space(at))
        return tag.end if tag is not None and tag.is_closing and tag.name in CALL_TAGS else at

    def _read_element(self, opened: MarkupTag, beside: str) -> tuple[str, int] | None:
        """Return the text of an element and the position behind it. None: the text ends before.

        `beside`: name of the tag that may follow the element. An end tag of something around it counts only if its own
        end tag is missing; another call counts only behind such an end tag, because a value may be about calls.
        """
        at, first, within = opened.end, -1, 0
        while (at := self._text.find("<", at)) >= 0:
            tag = self._read_tag(at)
            if tag is None or tag.is_special:
                at += 1
                continue
            if tag.is_closing and tag.name == opened.name:
                return self._text[opened.end : at], tag.end
            is_outer = tag.name in ENVELOPE_TAGS or tag.name in CALL_TAGS
            if tag.is_closing and is_outer and first < 0:
                first, within = (at, 0) if within == 0 else (-1, within - 1)
            elif not tag.is_closing and (tag.name in (opened.name, beside) or (is_outer and first >= 0)):
                first = at if first < 0 else first
                break
            elif is_outer and not tag.is_closing:
                within += 1
            at = tag.end
        return None if first < 0 else (self._text[opened.end : first], first)

    def _read_headed(self, tag: MarkupTag) -> FoundCalls:
        """Read a call of DeepSeek V3 (`function`, name, fenced JSON), V3.1 (name, JSON) or Kimi K2 (name:0)."""
        form = f"<|{tag.name}|>"
        text, mark = self._read_until_token(tag.end)
        at = mark.end
        if mark.name == "tool_sep" and text.strip() == "function":
            line = self._text.find("\n", at, at + MAX_TAG_CHARS)
            text, at = self._text[at : max(line, at)], max(line, at)
        elif mark.name not in ("tool_sep", "tool_call_argument_begin"):
            raise NotACall
        name = self._tools.resolve_name(_CALL_NUMBER.sub("", text.strip()))
        if not name:
            raise NotACall
        at = self._skip_space(at)
        is_fenced = self._text.startswith("```json", at)
        at = self._skip_space(at + len("```json")) if is_fenced else at
        if not self._text.startswith("{", at):
            return [self._tools.build_bad_call(name, form, NO_OBJECT)], at
        found, at = self._read_arguments(at, name, form)
        end = self._skip_space(at)
        return found, end + len("```") if is_fenced and self._text.startswith("```", end) else at

    def _read_kimi(self, header: str, at: int) -> FoundCalls:
        """Read the arguments behind `<|open|>call tool="f" index="1"<|sep|>`, as elements or as JSON."""
        form = "<|open|>call"
        name = self._tools.resolve_name(html.unescape(dict(_HEADER_KEYS.findall(header)).get("tool", "")))
        if not name:
            raise NotACall
        arguments = dict[str, object]()
        while True:
            at = self._skip_space(at)
            inner = self._read_tag(at)
            if inner is None or inner.name not in ("open", "close"):
                why = CUT_OFF if at == len(self._text) else "it has no end"
                return [self._tools.build_bad_call(name, form, why)], at
            header, end = self._read_header(inner)
            if inner.name == "close":
                return [self._tools.build_call(name, arguments, form)], end if header.startswith("call") else at
            closed = self._find_kimi_close(end)
            if closed is None:
                return [self._tools.build_bad_call(name, form, CUT_OFF)], len(self._text)
            raw, keys, at = self._text[end : closed[0]], dict(_HEADER_KEYS.findall(header)), closed[1]
            if header.startswith("json"):
                return [self._tools.build_call(name, raw, form)], self._skip_kimi_close(at)
            key = html.unescape(keys.get("key", ""))
            arguments[key] = self._coerce_kimi(raw, key, keys.get("type", ""), name)

    def _coerce_kimi(self, raw: str, key: str, kind: str, name: str) -> object:
        value = raw if kind == "string" else self._tools.coerce(raw, key, name)
        if kind in ("", "string") or not isinstance(value, str):
            return value
        with contextlib.suppress(InvalidValue):
            return read_value(raw)
        return raw

    def _read_header(self, tag: MarkupTag) -> tuple[str, int]:
        """Return the text between `<|open|>` or `<|close|>` and `<|sep|>`, and the position behind it."""
        header, mark = self._read_until_token(tag.end)
        if mark.name != "sep":
            raise NotACall
        return header, mark.end

    def _read_harmony(self, at: int) -> FoundCalls:
        """Read `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}`, behind its first token."""
        form, header = "<|channel|>", ""
        for _ in range(MAX_HEADER_PARTS):
            piece, mark = self._read_until_token(at)
            header, at = f"{header}{piece} ", mark.end
            if mark.name == "message":
                break
            if mark.name not in ("channel", "constrain"):
                raise NotACall
        to = _RECIPIENT.search(header)
        name = self._tools.resolve_name(to[1]) if to else ""
        if not name:
            raise NotACall
        at = self._skip_space(at)
        if not self._text.startswith("{", at):
            return [self._tools.build_bad_call(name, form, NO_OBJECT)], at
        return self._read_arguments(at, name, form)

    def _read_until_token(self, at: int) -> tuple[str, MarkupTag]:
        """Return the text before the next special token, and the token."""
        end = self._text.find("<", at, at + MAX_TAG_CHARS)
        tag = self._read_tag(end) if end >= 0 else None
        if tag is None or not tag.is_special:
            raise NotACall
        return self._text[at:end], tag

    def _find_kimi_close(self, at: int) -> tuple[int, int] | None:
        """Return the begin and end of the next `<|close|>...<|sep|>`. None: the text ends before."""
        while (at := self._text.find("<", at)) >= 0:
            tag = self._read_tag(at)
            if tag is not None and tag.is_special and tag.name == "close":
                with contextlib.suppress(NotACall):
                    return at, self._read_header(tag)[1]
            at += 1
        return None

    def _skip_kimi_close(self, at: int) -> int:
        """Return the position behind the call's end, if that follows; else `at`."""
        end = self._skip_space(at)
        closed = self._find_kimi_close(end)
        return closed[1] if closed is not None and closed[0] == end else at

    def _skip_space(self, at: int) -> int:
        return _skip_space(self._text, at)

    def _skip_end_tokens(self, at: int) -> int:
        """Return the position behind the tokens that end an answer, else `at`."""
        while True:
            tag = self._read_tag(self._skip_space(at))
            if tag is None or not (
                tag.name in CLOSING_TOKENS if tag.is_special else tag.name == "s" and tag.is_closing
            ):
                return at
            at = tag.end

    def _read_name(self, at: int) -> str:
        """Return the word at this position that may be a tool's name. Empty: there is none."""
        found = _NAME.match(self._text, at)
        name = found.group() if found else ""
        return name if len(name) < MAX_NAME_CHARS else ""

    def _read_tag(self, at: int) -> MarkupTag | None:
        """Read the tag at this position. None: there is no known tag."""
        if not self._text.startswith("<", at) or not (head_end := _HEAD_END.search(self._text, at + 1)):
            return None
        end = head_end.start()
        head = self._text[at + 1 : end].translate(_LOOKALIKE_CHARS)
        if head not in _TAG_HEADS:
            return None
        is_special = head.startswith("|") and head.endswith("|")
        if self._text[end] == ">":
            return _parse_tag(head, "", end + 1)
        if is_special or not (self._text[end] == "=" or self._text[end].isspace()):
            return None
        close = _TAG_END.search(self._text, end, end + MAX_TAG_CHARS)
        if close is None or close.group() != ">":
            return None
        return _parse_tag(head, self._text[end : close.start()], close.end())

    def _find_next_tag(self, at: int) -> int:
        """Return the position of the next tag: everything before it belongs to a call without an end."""
        self._runaways += 1
        while self._runaways <= MAX_RUNAWAYS and (found := _CALL_START.search(self._text, at + 1)):
            at = found.start()
            if self._text.startswith(MISTRAL_MARKER, at) or self._read_tag(at) is not None:
                return at
        return len(self._text)

    def _find_extent(self, at: int) -> tuple[int, str]:
        """Return the end of the list, object or parenthesis that begins here, and its error; empty: none.

        Everything within quotes of either kind counts as a string.
        """
        pos, quote, open_ = at, "", list[str]()
        while found := (_STRING_ENDS[quote] if quote else _STRUCTURE).search(self._text, pos):
            pos, char = found.end(), found.group()
            if pos - at > MAX_VALUE_CHARS:
                return pos, f"its arguments are longer than {MAX_VALUE_CHARS} characters"
            if char == "\\":
                pos += 1
            elif char in "\"'":
                quote = "" if quote else char
            elif char in _CLOSING_BRACKETS:
                open_.append(_CLOSING_BRACKETS[char])
                if len(open_) > MAX_DEPTH:
                    return pos, f"its arguments are nested deeper than {MAX_DEPTH}"
            elif open_.pop() != char:
                return pos, f"{char!r} closes what is not open"
            elif not open_:
                return pos, ""
        return len(self._text), CUT_OFF


def _parse_tag(head: str, rest: str, end: int) -> MarkupTag:
    if head.startswith("|") and head.endswith("|"):
        return MarkupTag(name=head[1:-1], end=end, is_special=True)
    is_closing, name = head.startswith("/"), head.removeprefix("/")
    for prefix in _PREFIXES[1:]:
        name = name.removeprefix(prefix)
    value, attributes = "", dict[str, str]()
    if rest.startswith("="):
        value = rest[1:].strip().strip("\"'")
    else:
        for key, double, single in _ATTRIBUTE.findall(rest):
            attributes[key] = html.unescape(double or single)
    return MarkupTag(name=name, end=end, is_closing=is_closing, value=value, attributes=attributes)


DISTINCTIVE_CHARS: Final = 6
"""Letters and digits: an argument of this length beside the tool's name is the same call, whatever the other arguments.
"""
MAX_GAP_CHARS: Final = 600
"""Letters and digits between a tool's name and an argument of the same call, beside its other arguments."""
NEAR_CHARS: Final = 24
"""Characters before and behind both, in which the marks of a call may stand."""
MAX_LAYERS: Final = 4
"""Levels of nested escapes that are decoded."""
_WORD: Final = re.compile(r"[^\W_]+")
_CALL_MARKS: Final = re.compile(r"""[{}<>]|=\s*["'“”‘’«»„`\[]|\w\(""")  # noqa: RUF001 - quotation marks as people type them
"""Matches punctuation of calls in any format, rare where people just speak of a tool."""
_BARE_CALL: Final = (
    r"""(?:<[^<>]{{0,60}}[>\s="']|["'“”](?:name|tool|tool_name|function)["'“”]\s*:\s*["'“”]|\bto(?:ol)?=["'“”]?|\[\s*|\])"""
    r"""\s*(?:functions\.)?{name}(?![\w-])"""
)
"""A call of the tool without arguments. `{name}`: a regular expression."""
_ESCAPE: Final = re.compile(r"\\(?:u\{?([0-9A-Fa-f]{4,6})\}?|x([0-9A-Fa-f]{2})|([nrtbf])|(.))", re.DOTALL)
_OUR_MARKUP: Final = re.compile(r"(?m)^<<<untrusted [0-9a-f]{12} \S*|\[U\+[0-9A-F]{4,6}(?: and \d+ more)?\]")
"""Matches the marks that fences and `gateway.core.text_safety` insert before and into untrusted text."""


def is_call_in_request(call: ToolCall, request: ModelRequest) -> bool:
    """Return True if the request holds this call in any form: then the model may only repeat it.

    White space, quotation marks, escapes, the order of arguments and the format make no difference. Calls that the
    model made itself do not count, but the values of their arguments do.
    """
    call = unwrap_call(call)
    name = _keep_letters(call.name)
    values = [
        forms
        for value in _argument_values(call.arguments)
        if (forms := {_keep_letters(form) for form in _decoded_layers(value)} - {""})
    ]
    distinctive = [forms for forms in values if max(map(len, forms)) >= DISTINCTIVE_CHARS]
    max_distance = MAX_GAP_CHARS + sum(max(map(len, forms)) for forms in values)
    layers = [layer for text in _request_texts(request, tools=bool(distinctive)) for layer in _decoded_layers(text)]
    if not values:
        bare = re.compile(_BARE_CALL.format(name=re.escape(call.name.casefold())))
        return any(bare.search(layer) for layer in layers)
    if distinctive:
        return any(_stand_together(layer, name, [forms], max_distance) for layer in layers for forms in distinctive)
    return any(_stand_together(layer, name, values, max_distance) for layer in layers)


def _request_texts(request: ModelRequest, *, tools: bool) -> Iterator[str]:
    """Yield all text of a request, except the calls that the model made itself.

    `tools`: also the descriptions of tools. These name each other and have short words in their schemas.
    """
    yield from (block.text for block in request.blocks)
    yield from (f"{spec.description}\n{spec.schema}" for spec in request.tools if tools)
    parts = [part for message in request.conversation for part in message.parts]
    calls = [unwrap_call(part) for part in parts if isinstance(part, ToolCall)]
    yield "\n".join(
        [part.text for part in parts if isinstance(part, TextPart | ToolResult)]
    )  # joined: a call may stand in two of them
    yield from (call.arguments for call in calls)
    yield request.aside
    yield request.now


def _stand_together(text: str, name: str, values: Sequence[set[str]], max_distance: int) -> bool:
    """Return True if the name and all these values stand close together in the text, with the marks of a call.

    Each value may have several forms. `max_distance`: largest distance, in letters and digits.
    """
    words = list(_WORD.finditer(text))
    letters = "".join([word.group() for word in words])
    begins = [0, *accumulate(len(word.group()) for word in words)]
    edges = set(begins)

    def places(wanted: str) -> Iterator[int]:
        at = letters.find(wanted)
        while at >= 0:
            if len(wanted) >= DISTINCTIVE_CHARS or {at, at + len(wanted)} <= edges:
                yield at
            at = letters.find(wanted, at + 1)

    found = [sorted((at, at + len(form)) for form in forms for at in places(form)) for forms in values]
    for at in places(name) if all(found) else ():
        spans = [(at, at + len(name))]
        for one in found:
            after = bisect_left(one, (at, 0))
            spans.append(min(one[max(0, after - 1) : after + 1], key=lambda span: abs(span[0] - at)))
        first, last = min(span[0] for span in spans), max(span[1] for span in spans)
        if last - first <= max_distance + len(name):
            start = words[bisect_right(begins, first) - 1].start()
            end = words[bisect_left(begins, last) - 1].end()
            if _CALL_MARKS.search(text, max(0, start - NEAR_CHARS), end + NEAR_CHARS):
                return True
    return False


def _argument_values(arguments: str) -> Iterator[str]:
    """Yield each single value in a call's arguments, as text."""
    try:
        left: list[object] = [json.loads(arguments or "{}")]
    except (ValueError, RecursionError):
        left = [arguments]
    while left:
        match left.pop():
            case dict() as several:
                left += several.values()
            case list() as several:
                left += several
            case str() as text:
                yield text
            case other:
                yield json.dumps(other)


def _decoded_layers(text: str) -> list[str]:
    """Return the text, and the text with entities, backslashes and percent signs decoded, level by level."""
    layers = [unicodedata.normalize("NFKC", _OUR_MARKUP.sub("", text))]
    while len(layers) <= MAX_LAYERS:
        plain = _ESCAPE.sub(_unescape, html.unescape(unquote(layers[-1])))
        if plain == layers[-1]:
            break
        layers.append(plain)
    return [layer.casefold() for layer in layers]


def _unescape(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    if code:
        return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else " "  # noqa: PLR2004 - the last code point
    return " " if found[3] else found[4]


def _keep_letters(text: str) -> str:
    """Return the letters and digits of the text, case-folded."""
    return "".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
