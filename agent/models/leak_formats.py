"""Formats in which models write tool calls as text, and readers for each of them. Pure.

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

The order of this file: `TextScanner` finds tags and extents, `ValueReader` reads values (JSON, nearly JSON, Python's
literals), `DeclaredTools` resolves names and builds calls, then one reader for each family: `JsonCallReader` (JSON and
Python), `ElementCallReader` (arguments as elements), `TokenCallReader` (special tokens that became text). All of them
serve `LeakedCallReader`.

A scan is a generator that yields while the text so far does not decide it, and then goes on at the same position. So
the result does not depend on how the text was cut into pieces, and each character is read a fixed number of times. Text
between two tags is not escaped. If an end tag is missing, an argument ends before the next argument or call.
"""  # noqa: RUF002 - the models write these characters

import contextlib
import html
import json
import math
import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.core.tool_spec import ToolSpec

ScanResult = TypeVar("ScanResult")
Scan = Generator[None, None, ScanResult]
"""Generator that yields where it needs more of the text, and returns its result."""

MAX_TAG_CHARS: Final = 256
MAX_NAME_CHARS: Final = 128
MAX_VALUE_CHARS: Final = 500_000
"""Characters of the arguments of one call, and of one value."""
MAX_DEPTH: Final = 64
"""Levels of nested lists and objects."""

ENVELOPE_TAGS: Final = frozenset(
    ["tool_call", "tool_calls", "toolcall", "function_call", "function_calls", "tool_use", "tools"]
)
"""Tags around calls."""
SPECIAL_TOKENS: Final = frozenset(
    [
        *("tool_calls_begin", "tool_calls_end", "tool_call_begin", "tool_call_end", "tool_sep"),
        *("tool_calls_section_begin", "tool_calls_section_end", "tool_call_argument_begin"),
        *("tool_call_start", "tool_call", "/tool_call", "python_tag", "python_start", "python_end"),
        *("open", "close", "sep", "channel", "constrain", "message", "call", "start", "end"),
        *("START_ACTION", "END_ACTION"),
    ]
)
END_TOKENS: Final = frozenset({"eom_id", "eot_id", "im_end", "end_of_msg", "end_of_sentence", "endoftext", "return"})
"""Tokens behind a whole answer."""
_TAGS: Final = ENVELOPE_TAGS | {"function", "invoke", "parameter", "param", "arg_key", "arg_value", "s"}
_PREFIXES: Final = ("", "|DSML|", "minimax:", "antml:")
"""Prefixes of tags by DeepSeek, MiniMax and Claude."""
_TAG_HEADS: Final = frozenset(
    [f"{slash}{prefix}{tag}" for slash in ("", "/") for prefix in _PREFIXES for tag in _TAGS]
    + [f"|{name}|" for name in SPECIAL_TOKENS | END_TOKENS]
)
_TAG_HEAD_PREFIXES: Final = frozenset(head[:length] for head in _TAG_HEADS for length in range(len(head) + 1))
_LOOKALIKE_CHARS: Final = str.maketrans("\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}", "|_")
"""Maps the characters of DeepSeek's special tokens to their ASCII look-alikes."""
_HEAD_END: Final = re.compile("[^A-Za-z0-9_:/|\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}]")
_TAG_END: Final = re.compile(r"[<>\n]")
_ATTRIBUTE: Final = re.compile(r"""([A-Za-z_]{1,32}) ?= ?(?:"([^"]*)"|'([^']*)')""")
_NAME_END: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_STRUCTURE: Final = re.compile(r"""["'{}\[\]()]""")
_STRING_ENDS: Final = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_CLOSING_BRACKETS: Final = {"{": "}", "[": "]", "(": ")"}


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


class TextScanner:
    """Text that may still grow, with the scans that all readers share."""

    def __init__(self) -> None:
        self.text = ""
        self.is_complete = False

    def wait_for_end(self) -> Scan[None]:
        """Wait until the text is complete."""
        while not self.is_complete:
            yield

    def read_char(self, at: int) -> Scan[str]:
        """Return the character at this position; empty behind the end."""
        while at >= len(self.text):
            if self.is_complete:
                return ""
            yield
        return self.text[at]

    def skip_space(self, at: int) -> Scan[int]:
        """Return the position behind the white space."""
        while True:
            while at < len(self.text) and self.text[at].isspace():
                at += 1
            if at < len(self.text) or self.is_complete:
                return at
            yield

    def starts_with(self, at: int, literal: str) -> Scan[bool]:
        """Return True if the text has `literal` at this position."""
        while not self.is_complete and len(self.text) - at < len(literal) and literal.startswith(self.text[at:]):
            yield
        return self.text.startswith(literal, at)

    def find(self, pattern: re.Pattern[str], at: int, within: int | None = None) -> Scan[int]:
        """Return the position of the next match of `pattern`, a pattern of one character.

        -1: there is none, or none `within` so many characters.
        """
        start, end = at, None if within is None else at + within
        while True:
            found = pattern.search(self.text, start) if end is None else pattern.search(self.text, start, end)
            if found:
                return found.start()
            if self.is_complete or (end is not None and len(self.text) >= end):
                return -1
            start = max(start, len(self.text))
            yield

    def read_name(self, at: int) -> Scan[str]:
        """Return the word at this position that may be a tool's name; empty: there is none."""
        end = yield from self.find(_NAME_END, at, MAX_NAME_CHARS)
        if end < 0:
            return self.text[at:] if self.is_complete and len(self.text) - at < MAX_NAME_CHARS else ""
        return self.text[at:end]

    def read_tag(self, at: int) -> Scan[MarkupTag | None]:
        """Read the tag that begins with `<` at this position. None: not a known tag."""
        end = at + 1
        while True:
            found = _HEAD_END.search(self.text, end)
            head = self.text[at + 1 : found.start() if found else len(self.text)].translate(_LOOKALIKE_CHARS)
            if head not in (_TAG_HEADS if found else _TAG_HEAD_PREFIXES) or (found is None and self.is_complete):
                return None
            if found:
                break
            yield
        special, end = head.startswith("|") and head.endswith("|"), found.start()
        if self.text[end] == ">":
            return _parse_tag(head, special, "", end + 1)
        if special or not (self.text[end] == "=" or self.text[end].isspace()):
            return None
        close = yield from self.find(_TAG_END, end, MAX_TAG_CHARS)
        if close < 0 or self.text[close] != ">":
            return None
        return _parse_tag(head, special, self.text[end:close], close + 1)

    def find_extent(self, at: int) -> Scan[tuple[int, str]]:  # noqa: C901 - one small machine
        """Return the end of the list, object or parenthesis that begins here, and its error; empty: none.

        Everything within quotes of either kind counts as a string.
        """
        pos, quote, open_ = at, "", list[str]()
        while True:
            found = (_STRING_ENDS[quote] if quote else _STRUCTURE).search(self.text, pos)
            if found is None:
                if self.is_complete:
                    return len(self.text), "it is cut off"
                pos = max(pos, len(self.text))
                yield
                continue
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


def _parse_tag(head: str, special: bool, rest: str, end: int) -> MarkupTag:
    if special:
        return MarkupTag(name=head[1:-1], end=end, is_special=True)
    closing, name = head.startswith("/"), head.removeprefix("/")
    for prefix in _PREFIXES[1:]:
        name = name.removeprefix(prefix)
    value, attributes = "", dict[str, str]()
    if rest.startswith("="):
        value = rest[1:].strip().strip("\"'")
    else:
        for key, double, single in _ATTRIBUTE.findall(rest):
            attributes[key] = html.unescape(double or single)
    return MarkupTag(name=name, end=end, is_closing=closing, value=value, attributes=attributes)


_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,400})(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_LITERALS: Final[Mapping[str, object]] = {
    "true": True, "True": True, "false": False, "False": False, "null": None, "None": None,
}  # fmt: skip
_STRING_BODIES: Final = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "\n": ""}
_HEX: Final = re.compile("[0-9A-Fa-f]{4}")


class InvalidValue(ValueError):
    """The text is not a value of the expected form. The message is for the model and repeats nothing of the text."""


def read_value(text: str) -> object:
    """Read JSON, also with raw line breaks in strings, single quotes, Python's literals or a comma too many.

    Raises InvalidValue.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_reject_json_constant)
    except (ValueError, RecursionError):
        pass
    reader = ValueReader(text)
    value = reader.read_value(0)
    reader.expect_end()
    return value


def to_json(value: object) -> str:
    """Encode as JSON. Raises InvalidValue for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise InvalidValue("a number in it is too large") from None


def _reject_json_constant(_: str) -> object:
    raise InvalidValue("NaN and Infinity are no JSON")


class ValueReader:
    """Reads values from a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read_calls(self) -> list[tuple[str, dict[str, object]]]:
        """Read `[f(a=1), g()]`, or `f(a=1)` alone. Raises InvalidValue."""
        calls = []
        if not self._accept("["):
            calls.append(self._read_call())
        else:
            while not self._accept("]"):
                calls.append(self._read_call())
                if not self._accept(","):
                    self._expect("]")
                    break
        self.expect_end()
        return calls

    def _read_call(self) -> tuple[str, dict[str, object]]:
        name, arguments = self._read_word().removesuffix(".call"), dict[str, object]()
        self._expect("(")
        while not self._accept(")"):
            key = self._read_word()
            if not self._accept("="):
                raise InvalidValue("each argument must be named: key=value")
            arguments[key] = self.read_value(0)
            if not self._accept(","):
                self._expect(")")
                break
        return name, arguments

    def read_value(self, depth: int) -> object:
        """Read the next value. Raises InvalidValue."""
        if depth > MAX_DEPTH:
            raise InvalidValue(f"its arguments are nested deeper than {MAX_DEPTH}")
        self._skip_space()
        char = self._text[self._at : self._at + 1]
        if char == "{":
            return self._read_object(depth)
        if char == "[":
            return self._read_list(depth)
        if char and char in "\"'":
            return self._read_string()
        if found := _NUMBER.match(self._text, self._at):
            self._at = found.end()
            return json.loads(found.group())
        word = self._read_word()
        if word not in _LITERALS:
            raise InvalidValue(f"a value at character {self._at} is neither a number nor in quotes")
        return _LITERALS[word]

    def expect_end(self) -> None:
        """Raise InvalidValue if there is more text."""
        self._skip_space()
        if self._at < len(self._text):
            raise InvalidValue(f"something follows at character {self._at}")

    def _read_object(self, depth: int) -> dict[str, object]:
        result = dict[str, object]()
        self._expect("{")
        while not self._accept("}"):
            if self._text[self._at : self._at + 1] not in ("'", '"'):
                raise InvalidValue(f"a key at character {self._at} is not in quotes")
            key = self._read_string()
            self._expect(":")
            result[key] = self.read_value(depth + 1)
            if not self._accept(","):
                self._expect("}")
                break
        return result

    def _read_list(self, depth: int) -> list[object]:
        result = list[object]()
        self._expect("[")
        while not self._accept("]"):
            result.append(self.read_value(depth + 1))
            if not self._accept(","):
                self._expect("]")
                break
        return result

    def _read_string(self) -> str:
        quote = self._text[self._at]
        plain, parts, at = _STRING_BODIES[quote], list[str](), self._at + 1
        while True:
            found = plain.match(self._text, at)
            assert found is not None
            parts.append(found.group())
            at = found.end()
            if self._text[at : at + 1] == quote:
                self._at = at + 1
                return "".join(parts)
            if at + 1 >= len(self._text):
                raise InvalidValue("a string in it does not end")
            escaped = self._text[at + 1]
            if escaped == "u" and (code := _HEX.match(self._text, at + 2)):
                parts.append(chr(int(code.group(), 16)))
                at = code.end()
                continue
            parts.append(_ESCAPES.get(escaped, escaped if escaped in "\"'\\/" else f"\\{escaped}"))
            at += 2

    def _read_word(self) -> str:
        self._skip_space()
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise InvalidValue(f"a word is missing at character {self._at}")
        self._at = found.end()
        return found.group()

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _accept(self, token: str) -> bool:
        self._skip_space()
        if not self._text.startswith(token, self._at):
            return False
        self._at += 1
        self._skip_space()
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise InvalidValue(f"{token!r} is missing at character {self._at}")


def coerce_value(raw: str, key: str, schema: Mapping[str, object]) -> object:
    """Convert plain text to the type that a tool's schema declares for this key; unchanged if that is not possible."""
    properties = schema.get("properties")
    declared = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = _allowed_types(declared, schema, 0)
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


_NAME_KEYS: Final = ("name", "tool_name", "tool", "function")
_ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "tool_input")
_NAME_PATTERN: Final = re.compile(
    r"""["'](?:name|tool_name|tool|function)["']\s*:\s*["']([A-Za-z0-9_.:-]{1,128})["']"""
)
_ARGUMENTS_PATTERN: Final = re.compile(r"""["'](?:arguments|parameters|args|input|tool_input)["']\s*:""")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakedCall:
    """Call of a declared tool."""

    name: str
    arguments: str
    """A JSON object. May hold lone surrogates, if the model wrote any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLeakedCall:
    """Text that was meant as a call of a declared tool, and cannot be carried out."""

    name: str
    message: str
    """For the model: the error and the remedy. Repeats nothing of what it wrote."""


class NotACall(Exception):
    """The text at this position is not a call."""

    def __init__(self, upto: int) -> None:
        super().__init__(upto)
        self.upto = upto  # no call begins before this position


class DeclaredTools:
    """Tools of the request, by name."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._schemas = {spec.name: spec.schema for spec in specs}
        self._parsed_schemas = dict[str, Mapping[str, object]]()

    def resolve_name(self, written: str) -> str:
        """Return the name of the declared tool. Empty: there is none."""
        name = written.strip()
        return name if name in self._schemas else self._strip_prefix(name.removeprefix("functions."))

    def _strip_prefix(self, name: str) -> str:
        return name if name in self._schemas else ""

    def has_required(self, arguments: Mapping[str, object], name: str) -> bool:
        """Return True if no required argument of the tool is missing."""
        required = self._load_schema(name).get("required")
        return not isinstance(required, list) or all(one in arguments for one in required)

    def coerce(self, raw: str, key: str, name: str) -> object:
        """Convert an argument that was written as plain text."""
        return coerce_value(raw, key, self._load_schema(name))

    def build_call(self, name: str, arguments: object, form: str) -> LeakedCall | BadLeakedCall:
        """Build a call with these arguments."""
        try:
            if isinstance(arguments, str):
                arguments = read_value(arguments) if arguments.strip() else {}
            if isinstance(arguments, dict):
                return LeakedCall(name=name, arguments=to_json(arguments))
        except InvalidValue as wrong:
            return self.build_bad_call(name, form, str(wrong))
        return self.build_bad_call(name, form, "its arguments are not one JSON object")

    def build_bad_call(self, name: str, form: str, why: str) -> BadLeakedCall:
        """Build a call that cannot be carried out."""
        return BadLeakedCall(
            name=name,
            message=f"You wrote a call of {name} into your text ({form}), and it cannot be carried out: {why}. "
            f"Nothing was done. Call {name} as the tool that it is, with its arguments as one JSON object.",
        )

    def build_calls(self, value: object, form: str, *, strict: bool = False) -> list[LeakedCall | BadLeakedCall]:
        """Build the calls that a value of JSON holds. Empty: it holds none, or not only calls.

        `strict`: each must have its arguments.
        """
        calls = list[LeakedCall | BadLeakedCall]()
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and isinstance(item.get("function"), dict):
                item = item["function"]  # noqa: PLW2901 - as OpenAI writes it
            if not isinstance(item, dict):
                return []
            name = next((self.resolve_name(item[key]) for key in _NAME_KEYS if isinstance(item.get(key), str)), "")
            arguments = [item[key] for key in _ARGUMENT_KEYS if key in item]
            if not name or (strict and not arguments):
                return []
            calls.append(self.build_call(name, {} if not arguments or arguments[0] is None else arguments[0], form))
        return calls

    def find_named_tool(self, text: str, *, strict: bool = False) -> str:
        """Return the tool that a broken object names. Empty: none, or `strict` and it names no arguments."""
        found = (self.resolve_name(match[1]) for match in _NAME_PATTERN.finditer(text))
        return next((name for name in found if name), "") if not strict or _ARGUMENTS_PATTERN.search(text) else ""

    def _load_schema(self, name: str) -> Mapping[str, object]:
        if name not in self._parsed_schemas:
            try:
                schema = json.loads(self._schemas[name])
            except (ValueError, RecursionError):  # a schema of an MCP server
                schema = {}
            self._parsed_schemas[name] = schema if isinstance(schema, dict) else {}
        return self._parsed_schemas[name]


MAX_RUNAWAYS: Final = 16
"""Calls without an end that are followed: for each, the text is read up to the next tag, perhaps to its end."""
_CALL_START: Final = re.compile(r"[<\[]")
MISTRAL_MARKER: Final = "[TOOL_CALLS]"

FoundCalls = tuple[list[LeakedCall | BadLeakedCall], int]
"""Calls, and the position behind them."""


class JsonCallReader:
    """Reads calls with arguments in JSON or Python. All methods raise NotACall."""

    def __init__(self, text: TextScanner, declared: DeclaredTools) -> None:
        self._scanner = text
        self._declared = declared
        self._runaways = 0

    def read_calls(self, at: int, form: str) -> Scan[FoundCalls]:
        """Read the object or list of objects that begins here; a list may hold Python calls in place of objects."""
        if (yield from self._scanner.read_char(at)) == "[":
            first = yield from self._scanner.skip_space(at + 1)
            name = yield from self._scanner.read_name(first)
            if name:
                return (yield from self.read_python(at, name, form))
        end, why = yield from self._scanner.find_extent(at)
        if why:
            return (yield from self._read_broken(at, form, why))
        text = self._scanner.text[at:end]
        try:
            calls = self._declared.build_calls(read_value(text), form)
        except InvalidValue as wrong:
            return self._build_bad_calls(text, end, form, str(wrong)), end
        if not calls:
            raise NotACall(end)
        return calls, end

    def read_arguments(self, at: int, name: str, form: str) -> Scan[FoundCalls]:
        """Read the object that begins here, as the arguments of the tool `name`."""
        end, why = yield from self._scanner.find_extent(at)
        if why:
            end = yield from self._find_next_tag(at)
            return [self._declared.build_bad_call(name, form, why)], end
        return [self._declared.build_call(name, self._scanner.text[at:end], form)], end

    def read_python(self, at: int, name: str, form: str) -> Scan[FoundCalls]:
        """Read `[f(a=1), g()]` or `f(a=1)`; `name` is the name of the first call."""
        bare = (yield from self._scanner.read_char(at)) != "["
        start = (yield from self._scanner.skip_space(at + (0 if bare else 1))) + len(name)
        tool = self._declared.resolve_name(name.removesuffix(".call"))
        if not tool or (yield from self._scanner.read_char(start)) != "(":
            raise NotACall(at + 1)
        end, why = yield from self._scanner.find_extent(start if bare else at)
        if why:
            end = yield from self._find_next_tag(start)
            return [self._declared.build_bad_call(tool, form, why)], end
        try:
            calls = ValueReader(self._scanner.text[at:end]).read_calls()
        except InvalidValue as wrong:
            return [self._declared.build_bad_call(tool, form, str(wrong))], end
        if not all(self._declared.resolve_name(called) for called, _ in calls):
            raise NotACall(end)
        return [
            self._declared.build_call(self._declared.resolve_name(called), arguments, form)
            for called, arguments in calls
        ], end

    def _read_broken(self, at: int, form: str, why: str) -> Scan[FoundCalls]:
        end = yield from self._find_next_tag(at)
        return self._build_bad_calls(self._scanner.text[at:end], end, form, why), end

    def _build_bad_calls(self, text: str, end: int, form: str, why: str) -> list[LeakedCall | BadLeakedCall]:
        meant = self._declared.find_named_tool(text)
        if not meant:
            raise NotACall(end)
        return [self._declared.build_bad_call(meant, form, why)]

    def _find_next_tag(self, at: int) -> Scan[int]:
        """Return the position of the next tag: everything before it belongs to a call without an end."""
        self._runaways += 1
        while self._runaways <= MAX_RUNAWAYS:
            at = yield from self._scanner.find(_CALL_START, at + 1)
            if at < 0:
                break
            if (yield from self._scanner.starts_with(at, MISTRAL_MARKER)):
                return at
            if self._scanner.text[at] == "<" and (yield from self._scanner.read_tag(at)) is not None:
                return at
        yield from self._scanner.wait_for_end()
        return len(self._scanner.text)


CUT_OFF: Final = "it is cut off"
CALL_TAGS: Final = frozenset({"function", "invoke"})
ARGUMENT_TAGS: Final = frozenset({"parameter", "param"})
_TAG_START: Final = re.compile("<")


class ElementCallReader:
    """Reads calls whose arguments are elements with plain text. All methods raise NotACall."""

    def __init__(self, text: TextScanner, declared: DeclaredTools, json_reader: JsonCallReader) -> None:
        self._scanner = text
        self._declared = declared
        self._json = json_reader

    def read_call(self, tag: MarkupTag, form: str) -> Scan[FoundCalls]:
        """Read the call behind `tag`, which is `<function=f>` or `<invoke name="f">`."""
        name = self._declared.resolve_name(tag.target)
        if not name:
            raise NotACall(tag.end)
        at = yield from self._scanner.skip_space(tag.end)
        if (yield from self._scanner.read_char(at)) == "{":  # Llama 3.1
            found, at = yield from self._json.read_arguments(at, name, form)
            return found, (yield from self._skip_close(at))
        arguments, at = dict[str, object](), tag.end
        while True:
            at = yield from self._scanner.skip_space(at)
            inner = (yield from self._scanner.read_tag(at)) if (yield from self._scanner.read_char(at)) == "<" else None
            if inner is not None and inner.name in ARGUMENT_TAGS and not inner.is_closing:
                value = yield from self._read_value(inner, inner.name)
                if value is None:
                    return [self._declared.build_bad_call(name, form, CUT_OFF)], len(self._scanner.text)
                raw, at = value
                if len(raw) > MAX_VALUE_CHARS:
                    return [
                        self._declared.build_bad_call(name, form, f"a value has more than {MAX_VALUE_CHARS} characters")
                    ], at
                raw = _strip_line_breaks(raw) if tag.name == "function" else raw
                arguments[inner.target] = self._coerce(raw, inner, name)
            elif inner is not None and inner.is_closing and inner.name in CALL_TAGS:
                return [self._declared.build_call(name, arguments, form)], inner.end
            else:
                return self._finish_unclosed(name, arguments, at, form)

    def read_pairs(self, name: str, at: int, form: str) -> Scan[FoundCalls]:
        """Read GLM's `<arg_key>k</arg_key><arg_value>v</arg_value>`, behind the name of a tool."""
        arguments = dict[str, object]()
        while True:
            at = yield from self._scanner.skip_space(at)
            tag = (yield from self._scanner.read_tag(at)) if (yield from self._scanner.read_char(at)) == "<" else None
            if tag is None or tag.name != "arg_key" or tag.is_closing:
                break
            key = yield from self._read_value(tag, "arg_value")
            if key is None:
                return [self._declared.build_bad_call(name, form, CUT_OFF)], len(self._scanner.text)
            at = yield from self._scanner.skip_space(key[1])
            tag = (yield from self._scanner.read_tag(at)) if (yield from self._scanner.read_char(at)) == "<" else None
            if tag is None or tag.name != "arg_value" or tag.is_closing:
                return [self._declared.build_bad_call(name, form, "a key in it has no value")], at
            value = yield from self._read_value(tag, "arg_key")
            if value is None:
                return [self._declared.build_bad_call(name, form, CUT_OFF)], len(self._scanner.text)
            at = value[1]
            arguments[key[0].strip()] = self._declared.coerce(value[0], key[0].strip(), name)
        if tag is not None and tag.is_closing:
            return [self._declared.build_call(name, arguments, form)], at
        return self._finish_unclosed(name, arguments, at, form)

    def _finish_unclosed(self, name: str, arguments: dict[str, object], at: int, form: str) -> FoundCalls:
        """Build a call whose arguments are whole, but whose end tag is missing.

        At the end of the text either the end tag or an argument is missing. If no required argument is missing, it is
        the tag.
        """
        if at < len(self._scanner.text) and self._scanner.text[at] != "<":
            return [self._declared.build_bad_call(name, form, "there is text between its arguments")], at
        if not arguments or not self._declared.has_required(arguments, name):
            return [self._declared.build_bad_call(name, form, CUT_OFF)], at
        return [self._declared.build_call(name, arguments, form)], at

    def _skip_close(self, at: int) -> Scan[int]:
        """Return the position behind the call's end tag, if that follows; else `at`."""
        end = yield from self._scanner.skip_space(at)
        tag = (yield from self._scanner.read_tag(end)) if (yield from self._scanner.read_char(end)) == "<" else None
        return tag.end if tag is not None and tag.is_closing and tag.name in CALL_TAGS else at

    def _read_value(self, opened: MarkupTag, beside: str) -> Scan[tuple[str, int] | None]:
        """Return the text of an element and the position behind it. None: the text ends before.

        `beside`: name of the tag that may follow the element. An end tag of something around it counts only if its own
        end tag is missing; another call counts only behind such an end tag, because a value may be about calls.
        """
        at, first, within = opened.end, -1, 0
        while (at := (yield from self._scanner.find(_TAG_START, at))) >= 0:
            tag = yield from self._scanner.read_tag(at)
            if tag is None or tag.is_special:
                at += 1
                continue
            if tag.is_closing and tag.name == opened.name:
                return self._scanner.text[opened.end : at], tag.end
            outer = tag.name in ENVELOPE_TAGS or tag.name in CALL_TAGS
            if tag.is_closing and outer and first < 0:
                first, within = (at, 0) if within == 0 else (-1, within - 1)
            elif not tag.is_closing and (tag.name in (opened.name, beside) or (outer and first >= 0)):
                first = at if first < 0 else first
                break
            elif outer and not tag.is_closing:
                within += 1
            at = tag.end
        return None if first < 0 else (self._scanner.text[opened.end : first], first)

    def _coerce(self, raw: str, tag: MarkupTag, name: str) -> object:
        """Convert a value. DeepSeek marks in the tag which values are text."""
        if (declared := tag.attributes.get("string")) == "true":
            return raw
        if declared == "false":
            try:
                return read_value(raw)
            except InvalidValue:
                return raw
        return self._declared.coerce(raw, tag.target, name)


def _strip_line_breaks(raw: str) -> str:
    """Remove the line breaks between a value and its tags."""
    return raw.removeprefix("\n").removesuffix("\n")


MAX_HEADER_PARTS: Final = 4
_LINE: Final = re.compile("\n")
_RECIPIENT: Final = re.compile(r"\bto=([A-Za-z0-9_.:-]{1,128})")
_CALL_NUMBER: Final = re.compile(r":[0-9]{1,6}\Z")
_HEADER_KEYS: Final = re.compile(r'([a-z]{1,16})="([^"]{0,200})"')


class TokenCallReader:
    """Reads calls between special tokens that became text. All methods raise NotACall."""

    def __init__(self, text: TextScanner, declared: DeclaredTools, json_reader: JsonCallReader) -> None:
        self._scanner = text
        self._declared = declared
        self._json = json_reader

    def read_headed(self, tag: MarkupTag) -> Scan[FoundCalls]:
        """Read a call of DeepSeek V3 (`function`, name, fenced JSON), V3.1 (name, JSON) or Kimi K2 (name:0)."""
        form = f"<|{tag.name}|>"
        text, mark = yield from self._read_until_token(tag.end, tag.end)
        at = mark.end
        if mark.name == "tool_sep" and text.strip() == "function":
            line = yield from self._scanner.find(_LINE, at, MAX_TAG_CHARS)
            text, at = self._scanner.text[at : max(line, at)], max(line, at)
        elif mark.name not in ("tool_sep", "tool_call_argument_begin"):
            raise NotACall(tag.end)
        name = self._declared.resolve_name(_CALL_NUMBER.sub("", text.strip()))
        if not name:
            raise NotACall(at)
        at = yield from self._scanner.skip_space(at)
        fenced = yield from self._scanner.starts_with(at, "```json")
        at = (yield from self._scanner.skip_space(at + 7)) if fenced else at
        if (yield from self._scanner.read_char(at)) != "{":
            return [self._declared.build_bad_call(name, form, "its arguments are not one JSON object")], at
        found, at = yield from self._json.read_arguments(at, name, form)
        end = yield from self._scanner.skip_space(at)
        return found, end + 3 if fenced and (yield from self._scanner.starts_with(end, "```")) else at

    def read_kimi(self, tag: MarkupTag) -> Scan[FoundCalls]:
        """Read the arguments behind `<|open|>call tool="f" index="1"<|sep|>`, as elements or as JSON."""
        form, (header, at) = "<|open|>call", (yield from self.read_header(tag))
        name = self._declared.resolve_name(html.unescape(dict(_HEADER_KEYS.findall(header)).get("tool", "")))
        if not header.startswith("call") or not name:
            raise NotACall(at)
        arguments = dict[str, object]()
        while True:
            at = yield from self._scanner.skip_space(at)
            inner = (yield from self._scanner.read_tag(at)) if (yield from self._scanner.read_char(at)) == "<" else None
            if inner is None or inner.name not in ("open", "close"):
                return [
                    self._declared.build_bad_call(
                        name, form, CUT_OFF if at == len(self._scanner.text) else "it has no end"
                    )
                ], at
            header, end = yield from self.read_header(inner)
            if inner.name == "close":
                return [self._declared.build_call(name, arguments, form)], end if header.startswith("call") else at
            closed = yield from self._find_close(end)
            if closed is None:
                return [self._declared.build_bad_call(name, form, CUT_OFF)], len(self._scanner.text)
            raw, keys, at = self._scanner.text[end : closed[0]], dict(_HEADER_KEYS.findall(header)), closed[1]
            if header.startswith("json"):
                found = self._declared.build_call(name, raw, form)
                return [found], (yield from self._skip_close(at))
            key = html.unescape(keys.get("key", ""))
            arguments[key] = self._coerce(raw, key, keys.get("type", ""), name)

    def read_header(self, tag: MarkupTag) -> Scan[tuple[str, int]]:
        """Return the text between `<|open|>` or `<|close|>` and `<|sep|>`, and the position behind it."""
        header, mark = yield from self._read_until_token(tag.end, tag.end)
        if mark.name != "sep":
            raise NotACall(tag.end)
        return header, mark.end

    def read_harmony(self, start: int) -> Scan[FoundCalls]:
        """Read `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}`, behind its first token."""
        form, header, at = "<|channel|>", "", start
        for _ in range(MAX_HEADER_PARTS):
            piece, mark = yield from self._read_until_token(at, start)
            header, at = f"{header}{piece} ", mark.end
            if mark.name == "message":
                break
            if mark.name not in ("channel", "constrain"):
                raise NotACall(start)
        to = _RECIPIENT.search(header)
        name = self._declared.resolve_name(to[1]) if to else ""
        if not name:
            raise NotACall(start)
        at = yield from self._scanner.skip_space(at)
        if (yield from self._scanner.read_char(at)) != "{":
            return [self._declared.build_bad_call(name, form, "its arguments are not one JSON object")], at
        return (yield from self._json.read_arguments(at, name, form))

    def _read_until_token(self, at: int, upto: int) -> Scan[tuple[str, MarkupTag]]:
        """Return the text before the next special token, and the token. Raises NotACall(upto)."""
        end = yield from self._scanner.find(_TAG_START, at, MAX_TAG_CHARS)
        tag = (yield from self._scanner.read_tag(end)) if end >= 0 else None
        if tag is None or not tag.is_special:
            raise NotACall(upto)
        return self._scanner.text[at:end], tag

    def _find_close(self, at: int) -> Scan[tuple[int, int] | None]:
        """Return the begin and end of the next `<|close|>...<|sep|>`. None: the text ends before."""
        while (at := (yield from self._scanner.find(_TAG_START, at))) >= 0:
            tag = yield from self._scanner.read_tag(at)
            if tag is not None and tag.is_special and tag.name == "close":
                with contextlib.suppress(NotACall):
                    return at, (yield from self.read_header(tag))[1]
            at += 1
        return None

    def _skip_close(self, at: int) -> Scan[int]:
        """Return the position behind the call's end, if that follows; else `at`."""
        end = yield from self._scanner.skip_space(at)
        closed = yield from self._find_close(end)
        return closed[1] if closed is not None and closed[0] == end else at

    def _coerce(self, raw: str, key: str, kind: str, name: str) -> object:
        value = raw if kind == "string" else self._declared.coerce(raw, key, name)
        if not kind or kind == "string" or not isinstance(value, str):
            return value
        try:
            return read_value(raw)
        except InvalidValue:
            return raw


_OPENING_TOKENS: Final = frozenset(
    [
        *("python_tag", "python_start", "tool_calls_begin", "tool_calls_section_begin"),
        *("tool_call_start", "tool_call", "START_ACTION"),
    ]
)
_CLOSING_TOKENS: Final = END_TOKENS | {
    *("python_end", "tool_calls_end", "tool_call_end", "tool_calls_section_end"),
    *("/tool_call", "END_ACTION", "call"),
}
ScanStep = tuple[str, list[LeakedCall | BadLeakedCall], int]
"""Form that is open afterwards (empty: none), the calls, and the next position."""


@dataclass(frozen=True, slots=True)
class CallRegion:
    """Stretch of the text that is calls and nothing else."""

    end: int
    calls: tuple[LeakedCall | BadLeakedCall, ...]
    """Not empty."""


class LeakedCallReader:
    """Reads calls of declared tools in all formats. Positions are those of the scanner's text."""

    def __init__(self, text: TextScanner, declared: DeclaredTools) -> None:
        self._scanner = text
        self._declared = declared
        self._json = JsonCallReader(text, declared)
        self._elements = ElementCallReader(text, declared, self._json)
        self._tokens = TokenCallReader(text, declared, self._json)

    def read_region(self, start: int) -> Scan[CallRegion]:
        """Read all calls that follow each other from `start` on, with their envelopes. Raises NotACall."""
        at = end = start
        form, found = "", list[LeakedCall | BadLeakedCall]()
        while True:
            at = yield from self._scanner.skip_space(at)
            char = yield from self._scanner.read_char(at)
            try:
                form, calls, at = yield from self._read_step(at, char, form)
            except NotACall as no:
                if found:
                    return CallRegion(end, tuple(found))
                raise NotACall(max(no.upto, start + 1)) from None
            found += calls
            end = at if calls or (found and not form) else end

    def read_whole(self, start: int) -> Scan[CallRegion]:
        """Read an answer that is JSON and nothing else, with tools and their arguments. Raises NotACall."""
        at, form, found = start, "JSON", list[LeakedCall | BadLeakedCall]()
        while (yield from self._scanner.read_char(at)) in ("{", "["):
            if not (yield from self._is_json_start(at)):
                raise NotACall(start)
            end, why = yield from self._scanner.find_extent(at)
            calls = list[LeakedCall | BadLeakedCall]()
            try:
                calls = (
                    self._declared.build_calls(read_value(self._scanner.text[at:end]), form, strict=True)
                    if not why
                    else []
                )
            except InvalidValue as wrong:
                why = str(wrong)
            if why:
                yield from self._scanner.wait_for_end()
                meant = self._declared.find_named_tool(self._scanner.text[at:], strict=True)
                calls, end = [self._declared.build_bad_call(meant, form, why)] if meant else [], len(self._scanner.text)
            if not calls:
                raise NotACall(start)
            found += calls
            at = yield from self._skip_end_tokens(end)
            if (yield from self._scanner.read_char(at)) in (";", ","):
                at = yield from self._scanner.skip_space(at + 1)
        if (yield from self._scanner.read_char(at)) or not found:
            raise NotACall(start)
        return CallRegion(len(self._scanner.text), tuple(found))

    def read_addressed(self, at: int) -> Scan[CallRegion]:
        """Read `to=functions.f<|channel|>...`, the beginning of an answer by gpt-oss. Raises NotACall."""
        if not (yield from self._scanner.starts_with(at, "to=functions.")):
            raise NotACall(at)
        found, end = yield from self._tokens.read_harmony(at)
        return CallRegion((yield from self._skip_end_tokens(end, blank=end)), tuple(found))

    def read_python(self, at: int) -> Scan[CallRegion]:
        """Read `[f(a=1)]` at the end of a line. Raises NotACall."""
        name = yield from self._scanner.read_name((yield from self._scanner.skip_space(at + 1)))
        if not name or not self._declared.resolve_name(name):
            raise NotACall(at + 1)
        found, end = yield from self._json.read_python(at, name, "Python")
        behind = end
        while (yield from self._scanner.read_char(behind)) in (" ", "\t"):
            behind += 1
        if (yield from self._scanner.read_char(behind)) not in ("", "\n", "\r", "<"):
            raise NotACall(end)
        return CallRegion((yield from self._skip_end_tokens(end, blank=end)), tuple(found))

    def _read_step(self, at: int, char: str, form: str) -> Scan[ScanStep]:
        """Read the tag, marker or call that begins here with the character `char`. Raises NotACall."""
        if char == "<" and (tag := (yield from self._scanner.read_tag(at))) is not None:
            return (yield from self._read_token(tag, at, form) if tag.is_special else self._read_tag(tag, at, form))
        if char == "[" and (yield from self._scanner.starts_with(at, MISTRAL_MARKER)):
            return MISTRAL_MARKER, [], at + len(MISTRAL_MARKER)
        if not form or not char:
            raise NotACall(at)
        if char in (",", ";", "}", "]"):  # between two calls; or one too many, before the end
            return form, [], at + 1
        found, end = yield from self._read_enclosed(at, char, form)
        return form, found, end

    def _read_tag(self, tag: MarkupTag, at: int, form: str) -> Scan[ScanStep]:
        if tag.name in CALL_TAGS and not tag.is_closing:
            found, end = yield from self._elements.read_call(tag, f"<{tag.name}>")
            return form, found, end
        if tag.name in ENVELOPE_TAGS or (tag.is_closing and tag.name in {*CALL_TAGS, "s"}):
            return "" if tag.is_closing else f"<{tag.name}>", [], tag.end
        raise NotACall(at + 1)

    def _read_token(self, tag: MarkupTag, at: int, form: str) -> Scan[ScanStep]:
        if tag.name in _CLOSING_TOKENS:
            return "", [], tag.end
        if tag.name == "tool_call_begin":
            found, end = yield from self._tokens.read_headed(tag)
            return f"<|{tag.name}|>", found, end
        if tag.name in _OPENING_TOKENS:
            return f"<|{tag.name}|>", [], tag.end
        if tag.name in ("channel", "start"):
            found, end = yield from self._tokens.read_harmony(tag.end)
            return "", found, end
        if tag.name in ("open", "close"):
            header, end = yield from self._tokens.read_header(tag)
            if tag.name == "open" and header.startswith("call"):
                found, end = yield from self._tokens.read_kimi(tag)
                return form, found, end
            if header.startswith("tools") or (tag.name == "close" and header.startswith("message")):
                return "<|open|>tools" if tag.name == "open" else "", [], end
        raise NotACall(at + 1)

    def _read_enclosed(self, at: int, char: str, form: str) -> Scan[FoundCalls]:
        """Read a call that only its envelope marks as one."""
        if char in "{[":
            return (yield from self._json.read_calls(at, form))
        name = yield from self._scanner.read_name(at)
        tool = self._declared.resolve_name(name.removesuffix(".call"))
        if not tool:
            raise NotACall(at + max(len(name), 1))
        end = yield from self._scanner.skip_space(at + len(name))
        if form == MISTRAL_MARKER:
            end = yield from self._skip_labels(end)
        char = yield from self._scanner.read_char(end)
        if char == "{":
            return (yield from self._json.read_arguments(end, tool, form))
        if char == "(" and end == at + len(name):
            return (yield from self._json.read_python(at, name, form))
        tag = (yield from self._scanner.read_tag(end)) if char == "<" else None
        if (
            tag is None
            or tag.is_special
            or not (tag.name == "arg_key" or (tag.is_closing and tag.name in ENVELOPE_TAGS))
        ):
            raise NotACall(at + len(name))
        return (yield from self._elements.read_pairs(tool, end, form))

    def _skip_labels(self, at: int) -> Scan[int]:
        """Return the position behind Mistral's `[CALL_ID]...[ARGS]`, which may be missing."""
        if (yield from self._scanner.starts_with(at, "[CALL_ID]")):
            at += 9
            at += len((yield from self._scanner.read_name(at)))
        if (yield from self._scanner.starts_with(at, "[ARGS]")):
            at = yield from self._scanner.skip_space(at + 6)
        return at

    def _is_json_start(self, at: int) -> Scan[bool]:
        """Return True if an object, or a list of objects, may begin here."""
        if self._scanner.text[at] == "[":
            at = yield from self._scanner.skip_space(at + 1)
            if (yield from self._scanner.read_char(at)) != "{":
                return False
        at = yield from self._scanner.skip_space(at + 1)
        return (yield from self._scanner.read_char(at)) in ("'", '"')

    def _skip_end_tokens(self, at: int, *, blank: int | None = None) -> Scan[int]:
        """Return the position behind the tokens that end an answer.

        `blank`: the result if there are none; None: the position behind the white space.
        """
        while True:
            at = yield from self._scanner.skip_space(at)
            tag = (yield from self._scanner.read_tag(at)) if (yield from self._scanner.read_char(at)) == "<" else None
            if tag is None or not (
                tag.name in _CLOSING_TOKENS if tag.is_special else tag.name == "s" and tag.is_closing
            ):
                return at if blank is None else blank
            at = tag.end
            blank = at if blank is not None else None
