"""Tool calls that a model wrote as the text of its answer, recovered once the answer is whole.
Pure.

A model does that if its server has no parser for what it writes, or the wrong one. An answer counts
only if all of it is calls of declared tools: beside other words it only talks about a call. A call
that is cut off is not completed. A model that repeats somebody's text writes the same, so
`is_call_in_request` looks for the call in the request.

Read are the forms of models that people run on their own machines, as in the models' chat
templates:

`<tool_call>{...}</tool_call>`                    Hermes, Qwen
`<function=f><parameter=k>v</parameter></function>`, with or without `<tool_call>` around it
Qwen3-Coder `{"name": ..., "parameters": ...}`, with or without `<|python_tag|>`
Llama 3 `[TOOL_CALLS][{...}]`, `[TOOL_CALLS]f[ARGS]{...}`
Mistral

Calls in other forms are recognized by how they begin and end, and never carried out.

The order of this file: values, declared tools, calls, then calls that the model may only repeat.

Text between two tags is not escaped. Each character is read a fixed number of times.
"""

import html
import json
import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final
from urllib.parse import unquote

from agent.models.base import ModelRequest, TextPart, ToolResult
from agent.tools import unwrap_call
from gateway.core.tool_spec import ToolCall, ToolSpec

MAX_NAME_CHARS: Final = 128
MAX_VALUE_CHARS: Final = 500_000
"""Characters of the arguments of one call, and of one value."""
MAX_DEPTH: Final = 64
"""Levels of nested lists and objects."""
MISTRAL_MARKER: Final = "[TOOL_CALLS]"
CUT_OFF: Final = "it is cut off"
NO_OBJECT: Final = "its arguments are not one JSON object"
NAME_KEYS: Final = ("name", "tool_name", "tool", "function")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "tool_input")
_STRUCTURE: Final = re.compile(r"""["'{}\[\]()]""")
_STRING_ENDS: Final = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_CLOSING_BRACKETS: Final = {"{": "}", "[": "]", "(": ")"}
_TOKEN: Final = re.compile(
    rf"""\s*+(?:
    \[TOOL_CALLS\]\s*+(?P<named>[A-Za-z0-9_.:-]{{1,{MAX_NAME_CHARS}}}+)
        (?:\[CALL_ID\][A-Za-z0-9]{{1,64}}+)?+ (?:\[ARGS\])?+ \s*+ (?={{)
    | (?P<opening><tool_call>|<\|python_tag\|>|\[TOOL_CALLS\])
    | (?P<closing></tool_call>|</s>|<\|(?:eom_id|eot_id|im_end|endoftext)\|>)
    | <function=(?P<function>[A-Za-z0-9_.:-]{{1,{MAX_NAME_CHARS}}}+)>
    | (?P<json>(?:\[\s*+)?{{)(?=\s*+["'])
    | [,;}}\]]
    )""",
    re.VERBOSE,
)
"""Matches one step: the beginning or end of calls, or what stands between two, where a bracket may
be one too many."""
_PARAMETER: Final = re.compile(r"\s*+(?:<parameter=([^<>\n]{1,128})>|</function>|(?=</tool_call>))")
_UNREAD_OPENING: Final = re.compile(
    r"""\s*+(?:
    <(?:\|DSML\||[a-z]{1,16}:)?(?:tool|function|invoke|param|arg_)[a-z_]{0,16}[>=\s]
    | <\|(?:tool_|python_|START_ACTION\|>|open\|>|close\|>)
    | (?:<\|(?:start|channel)\|>[a-z ]{0,32}){1,2}\bto= | to=functions\.
    | \[TOOL_CALLS\] | \[[A-Za-z_][\w.-]{0,127}\(
    )""",
    re.VERBOSE,
)
_UNREAD_CLOSING: Final = re.compile(
    r"</[^<>\s]{1,40}>|<\|(?:/tool_call|call|eom_id|eot_id|\w{1,40}_end|(?:END|end)\w{1,40}|close\|>\w{1,20}<\|sep)\|>"
    r"|[}\]](?![\w{])|(?:<[^<>\s]{0,40}|`{1,3})\Z"
)
"""Where calls of any form begin and end, also of Claude, Cohere, DeepSeek, GLM, gpt-oss, Kimi,
LFM2, Llama 4, MiniMax and Phi. The end of the text may be half a tag."""
_LOOKALIKE_CHARS: Final = str.maketrans(
    "\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}", "|_"
)
"""Maps the characters of DeepSeek's special tokens to their ASCII look-alikes."""
_NAMED_TOOL: Final = re.compile(
    rf"""["'](?:{"|".join(NAME_KEYS)})["']\s*:\s*["']([A-Za-z0-9_.:-]{{1,{MAX_NAME_CHARS}}})["']"""
)
_NAMED_ARGUMENTS: Final = re.compile(rf"""["'](?:{"|".join(ARGUMENT_KEYS)})["']\s*:""")

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


class InvalidValue(ValueError):
    """The text is not a value of the expected form. The message is for the model and repeats
    nothing of the text.
    """


class NotACall(Exception):
    """The text at this position is not a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakedCall:
    """Call of a declared tool."""

    name: str
    arguments: str = ""
    """A JSON object. May hold lone surrogates, if the model wrote any."""
    problem: str = ""
    """Not empty: the call cannot be carried out. For the model: the error and the remedy; repeats
    nothing of its text.
    """


def recover_tool_calls(text: str, specs: Iterable[ToolSpec]) -> list[LeakedCall]:
    """Return the calls that a whole answer consists of, in order. Empty: it is text.

    Never raises.
    """
    tools = DeclaredTools(specs)
    try:
        calls = _read_calls(text, tools)
    except NotACall:
        calls = []
    return calls or _find_unread_call(text, tools)


def read_value(text: str) -> object:
    """Read JSON, also with raw line breaks in strings, single quotes, Python's literals or a comma
    too many.

    Raises InvalidValue for anything else: a value that is cut off, or a word without quotes, is not
    guessed.
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


def to_json(value: object) -> str:
    """Encode as JSON. Raises InvalidValue for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise InvalidValue("a number in it is too large") from None


def _reject_constant(_: str) -> object:
    raise InvalidValue("NaN and Infinity are no JSON")


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


class DeclaredTools:
    """Tools of the request, by name."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._schemas = dict[str, Mapping[str, object]]()

    def resolve_name(self, written: str) -> str:
        """Return the name of the declared tool. Empty: there is none."""
        name = written.strip()
        return next(
            (one for one in (name, name.removeprefix("functions.")) if one in self._specs), ""
        )

    def coerce(self, raw: str, key: str, name: str) -> object:
        """Convert plain text to the type that the tool's schema declares for this key; unchanged if
        that fails.
        """
        schema = self._load_schema(name)
        properties = schema.get("properties")
        kinds = _allowed_types(
            properties.get(key) if isinstance(properties, Mapping) else None, schema, 0
        )
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
            problem=f"You wrote a call of {name} into your text ({form}), and it cannot be carried "
            f"out: {why}. "
            f"Nothing was done. Call {name} as the tool that it is, with its arguments as one JSON "
            "object.",
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
            name = next(
                (
                    self.resolve_name(item[key])
                    for key in NAME_KEYS
                    if isinstance(item.get(key), str)
                ),
                "",
            )
            arguments = [item[key] for key in ARGUMENT_KEYS if key in item]
            if not name or (strict and not arguments):
                return []
            calls.append(
                self.build_call(
                    name, {} if not arguments or arguments[0] is None else arguments[0], form
                )
            )
        return calls

    def find_named_tool(self, text: str) -> str:
        """Return the tool that a broken object names. Empty: none."""
        return next(
            (name for found in _NAMED_TOOL.finditer(text) if (name := self.resolve_name(found[1]))),
            "",
        )

    def find_mentioned(self, text: str) -> str:
        """Return the first declared tool whose name stands in the text. Empty: none."""
        names = "|".join(re.escape(name) for name in self._specs)
        found = re.search(rf"(?<![\w-])(?:{names})(?![\w-])", text) if names else None
        return found.group() if found else ""

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
    found |= (
        {kind} if isinstance(kind, str) else {one for one in _as_list(kind) if isinstance(one, str)}
    )
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


def _read_calls(text: str, tools: DeclaredTools) -> list[LeakedCall]:
    """Read all calls. Raises NotACall if there is anything else."""
    calls, form, at, end = list[LeakedCall](), "", 0, len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            raise NotACall
        at = token.end()
        if token["opening"] or token["closing"]:
            form = token["opening"] or ""
        elif token["json"]:
            found, at = _read_json(text, token.start("json"), form, tools)
            calls += found
        elif written := token["named"] or token["function"]:
            name = tools.resolve_name(written)
            if not name:
                raise NotACall
            read = _read_arguments if token["named"] else _read_parameters
            call, at = read(text, at, name, tools)
            calls.append(call)
    return calls


def _read_json(text: str, at: int, form: str, tools: DeclaredTools) -> tuple[list[LeakedCall], int]:
    """Read the object or list of objects that begins here. Without a marker (`form`) each must have
    its arguments.
    """
    calls = list[LeakedCall]()
    end, why = _find_extent(text, at)
    try:
        calls = (
            []
            if why
            else tools.build_calls(read_value(text[at:end]), form or "JSON", strict=not form)
        )
    except InvalidValue as error:
        why = str(error)
    if (
        why
        and (form or _NAMED_ARGUMENTS.search(text, at))
        and (meant := tools.find_named_tool(text[at:]))
    ):
        calls, end = [tools.build_bad_call(meant, form or "JSON", why)], _skip_broken(text, at)
    if not calls:
        raise NotACall
    return calls, end


def _read_arguments(text: str, at: int, name: str, tools: DeclaredTools) -> tuple[LeakedCall, int]:
    """Read the object that begins here, as the arguments of the tool `name`."""
    end, why = _find_extent(text, at)
    if why:
        return tools.build_bad_call(name, MISTRAL_MARKER, why), _skip_broken(text, at)
    return tools.build_call(name, text[at:end], MISTRAL_MARKER), end


def _read_parameters(text: str, at: int, name: str, tools: DeclaredTools) -> tuple[LeakedCall, int]:
    """Read the elements `<parameter=k>v</parameter>` behind `<function=f>`, and the end of the
    call.

    Text with a tag in it is a value like any other, but where the end tag of a value may be missing
    nothing is guessed.
    """
    form, arguments = "<function>", dict[str, object]()
    while tag := _PARAMETER.match(text, at):
        at, key = tag.end(), tag[1]
        if key is None:
            return tools.build_call(name, arguments, form), at
        end = text.find("</parameter>", at)
        raw = text[at:end].removeprefix("\n").removesuffix("\n")
        why = CUT_OFF if end < 0 else "a value in it has no end tag" if "<parameter=" in raw else ""
        if len(raw) > MAX_VALUE_CHARS:
            why = why or f"a value has more than {MAX_VALUE_CHARS} characters"
        if why:
            return tools.build_bad_call(name, form, why), _skip_broken(text, at)
        arguments[key] = tools.coerce(raw, key, name)
        at = end + len("</parameter>")
    if text[at:].strip():
        raise NotACall
    return tools.build_bad_call(name, form, CUT_OFF), len(text)


def _skip_broken(text: str, at: int) -> int:
    """Return the position behind the last call that ends: what is broken here may end anywhere
    before.
    """
    ends = [
        end + len(tag)
        for tag in ("</tool_call>", "</function>")
        if (end := text.rfind(tag, at)) >= 0
    ]
    return max(ends, default=len(text))


def _find_extent(text: str, at: int) -> tuple[int, str]:
    """Return the end of the list or object that begins here, and its error; empty: none.

    Everything within quotes of either kind counts as a string.
    """
    pos, quote, open_ = at, "", list[str]()
    while found := (_STRING_ENDS[quote] if quote else _STRUCTURE).search(text, pos):
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
    return len(text), CUT_OFF


def _find_unread_call(text: str, tools: DeclaredTools) -> list[LeakedCall]:
    """Return a call that cannot be carried out, if the text looks like calls in any form and like
    nothing else.
    """
    text = text.translate(_LOOKALIKE_CHARS)
    opening, name, end = _UNREAD_OPENING.match(text), tools.find_mentioned(text), 0
    if opening is None or not name:
        return []
    for closing in _UNREAD_CLOSING.finditer(text, opening.end()):
        end = closing.end()
    if end and text[end:].strip() and not _UNREAD_OPENING.match(text, end):
        return []
    return [tools.build_bad_call(name, "markup", "calls in this form are not read")]


DISTINCTIVE_CHARS: Final = 6
"""Letters and digits: an argument of this length beside the tool's name is the same call, whatever
the other arguments.
"""
MAX_GAP_CHARS: Final = 600
"""Letters and digits between a tool's name and an argument of the same call, beside its other
arguments."""
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
_ESCAPE: Final = re.compile(
    r"\\(?:u\{?([0-9A-Fa-f]{4,6})\}?|x([0-9A-Fa-f]{2})|([nrtbf])|(.))", re.DOTALL
)
_OUR_MARKUP: Final = re.compile(
    r"(?m)^<<<untrusted [0-9a-f]{12} \S*|\[U\+[0-9A-F]{4,6}(?: and \d+ more)?\]"
)
"""Matches the marks that fences and `gateway.core.text_safety` insert before and into untrusted
text."""


def is_call_in_request(call: ToolCall, request: ModelRequest) -> bool:
    """Return True if the request holds this call in any form: then the model may only repeat it.

    White space, quotation marks, escapes, the order of arguments and the format make no difference.
    Calls that the model made itself do not count, but the values of their arguments do.
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
    layers = [
        layer
        for text in _request_texts(request, tools=bool(distinctive))
        for layer in _decoded_layers(text)
    ]
    if not values:
        bare = re.compile(_BARE_CALL.format(name=re.escape(call.name.casefold())))
        return any(bare.search(layer) for layer in layers)
    if distinctive:
        return any(
            _stand_together(layer, name, [forms], max_distance)
            for layer in layers
            for forms in distinctive
        )
    return any(_stand_together(layer, name, values, max_distance) for layer in layers)


def _request_texts(request: ModelRequest, *, tools: bool) -> Iterator[str]:
    """Yield all text of a request, except the calls that the model made itself.

    `tools`: also the descriptions of tools. These name each other and have short words in their
    schemas.
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
    """Return True if the name and all these values stand close together in the text, with the marks
    of a call.

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

    found = [
        sorted((at, at + len(form)) for form in forms for at in places(form)) for forms in values
    ]
    for at in places(name) if all(found) else ():
        spans = [(at, at + len(name))]
        for one in found:
            after = bisect_left(one, (at, 0))
            spans.append(
                min(one[max(0, after - 1) : after + 1], key=lambda span: abs(span[0] - at))
            )
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
    """Return the text, and the text with entities, backslashes and percent signs decoded, level by
    level.
    """
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
