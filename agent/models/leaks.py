"""Tool calls that a model wrote as the text of its answer, recovered once the answer is whole.
Pure.

A model does that if its server has no parser for what it writes, or the wrong one. An answer counts
only if all of it is calls of declared tools: beside other words it only talks about a call. A model
that repeats somebody's text writes the same, so `is_call_in_request` looks for the call in the
request.

Read are the forms of models that people run on their own machines, as in the models' chat
templates:

- `<tool_call>{...}</tool_call>`: Hermes, Qwen
- `<function=f><parameter=k>v</parameter></function>`, with or without `<tool_call>` around it:
  Qwen3-Coder
- `{"name": ..., "parameters": ...}`, with or without `<|python_tag|>`: Llama 3
- `[TOOL_CALLS][{...}]`, `[TOOL_CALLS]f[ARGS]{...}`: Mistral

Objects are JSON. What else begins and ends like calls is recognized, and never carried out: calls
in other forms, cut off, or with arguments that are no JSON.

Each character is read a fixed number of times.
"""

import html
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final
from urllib.parse import unquote

from agent.models.base import ModelRequest, TextPart, ToolResult
from agent.tools import unwrap_call
from gateway.core.tool_spec import ToolCall, ToolSpec

_NAME: Final = "[A-Za-z0-9_.:-]{1,128}+"
_NAME_KEYS: Final = ("name", "tool_name", "tool", "function")
_ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "tool_input")
_STEP: Final = re.compile(
    rf"""\s*+(?:
    \[TOOL_CALLS\]\s*+(?P<named>{_NAME})(?:\[CALL_ID\][A-Za-z0-9]{{1,64}}+)?+(?:\[ARGS\])?+
        \s*+(?=(?P<value>{{))
    | (?P<opening><tool_call>|<\|python_tag\|>|\[TOOL_CALLS\])
    | (?P<closing></tool_call>|</s>|<\|(?:eom_id|eot_id|im_end|endoftext)\|>)
    | <function=(?P<function>{_NAME})>
        (?P<parameters>(?:\s*+<parameter=[^<>\n]{{1,128}}>(?>.*?</parameter>))*+)
        \s*+(?:</function>|(?=</tool_call>))
    | (?=(?P<json>(?:\[\s*+)?{{\s*+"))
    | [,;}}\]]
    )""",
    re.VERBOSE | re.DOTALL,
)
"""Matches one step: the beginning or end of calls, a call, or what stands between two, where a
bracket may be one too many."""
_PARAMETER: Final = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_OPENING: Final = re.compile(
    rf"""\s*+(?:
    <(?:\|DSML\||[a-z]{{1,16}}:)?(?:tool|function|invoke|param|arg_)[a-z_]{{0,16}}[>=\s]
    | <\|(?:tool_|python_|START_ACTION\|>|open\|>|close\|>)
    | (?:<\|(?:start|channel)\|>[a-z ]{{0,32}}){{1,2}}\bto= | to=functions\.
    | \[TOOL_CALLS\] | \[[A-Za-z_][\w.-]{{0,127}}\(
    | (?:\[\s*+)?{{\s*+["'](?:{"|".join(_NAME_KEYS)}|type)["']
        (?=.*["'](?:{"|".join(_ARGUMENT_KEYS)})["']\s*+:)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSING: Final = re.compile(
    r"</[^<>\s]{1,40}>|<\|(?:/tool_call|call|eom_id|eot_id|\w{1,40}_end|(?:END|end)\w{1,40}|close\|>\w{1,20}<\|sep)\|>"
    r"|[}\]](?![\w{])|(?:<[^<>\s]{0,40}|`{1,3})\Z"
)
"""Where calls of any form begin and end, also of Claude, Cohere, DeepSeek, GLM, gpt-oss, Kimi,
LFM2, Llama 4, MiniMax and Phi. The end of the text may be half a tag."""
_LOOKALIKE_CHARS: Final = str.maketrans(
    "\N{FULLWIDTH VERTICAL LINE}\N{LOWER ONE EIGHTH BLOCK}", "|_"
)
"""Maps the characters of DeepSeek's special tokens to their ASCII look-alikes."""


def recover_tool_calls(text: str, specs: Iterable[ToolSpec]) -> list[ToolCall]:
    """Return the calls that a whole answer consists of, in order. Empty: it is text.

    One without `arguments` cannot be read: `describe_unread_call`. Never raises.
    """
    tools = {spec.name: spec for spec in specs}
    try:
        calls = [
            ToolCall(
                id=f"leak_{number}",
                name=name,
                arguments=json.dumps(arguments, ensure_ascii=False, allow_nan=False),
                is_recovered=True,
            )
            for number, (name, arguments) in enumerate(_read_calls(text.rstrip(), tools), start=1)
        ]
    except (ValueError, RecursionError):
        calls = []
    return calls or _find_unread_call(text.translate(_LOOKALIKE_CHARS), tools)


def describe_unread_call(name: str) -> str:
    """Return the sentence for a model whose call of this tool could not be read."""
    return (
        f"You wrote a call of {name} into your text, and it cannot be carried out: calls in this "
        f"form are not read. Nothing was done. Call {name} as the tool that it is, with its "
        "arguments as one JSON object."
    )


def _read_calls(
    text: str, tools: Mapping[str, ToolSpec]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the name and arguments of each call. Raises ValueError if there is anything else."""
    at, is_marked = 0, False
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise NotACall
        at = step.end()
        if step["opening"] or step["closing"]:
            is_marked = bool(step["opening"])
        elif name := step["function"]:
            yield _resolve_name(name, tools), _read_parameters(step["parameters"], tools.get(name))
        elif step["named"] or step["json"]:
            value, at = _DECODER.raw_decode(text, at)
            if step["named"]:
                yield _resolve_name(step["named"], tools), value
                continue
            for item in value if isinstance(value, list) else [value]:
                yield _read_object(item, tools, is_marked=is_marked)


class NotACall(ValueError):
    """The text is not made of calls alone."""


def _reject_constant(_: str) -> object:
    raise NotACall


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_reject_constant)


def _read_object(
    item: object, tools: Mapping[str, ToolSpec], *, is_marked: bool
) -> tuple[str, dict[str, object]]:
    """Return the name and arguments of an object that is a call. Only behind a marker these may be
    missing.
    """
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]  # as OpenAI writes it
    if not isinstance(item, dict):
        raise NotACall
    name = next((item[key] for key in _NAME_KEYS if isinstance(item.get(key), str)), "")
    given = [item[key] for key in _ARGUMENT_KEYS if key in item]
    arguments = given[0] if given else {} if is_marked else None
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments or "{}")
    if not isinstance(arguments, dict):
        raise NotACall
    return _resolve_name(name, tools), arguments


def _resolve_name(written: str, tools: Mapping[str, ToolSpec]) -> str:
    name = written.strip()
    name = name if name in tools else name.removeprefix("functions.")
    if name not in tools:
        raise NotACall
    return name


def _read_parameters(text: str, spec: ToolSpec | None) -> dict[str, object]:
    """Return the elements `<parameter=k>v</parameter>`. Text between two tags is not escaped; where
    an end tag may be missing nothing is guessed.
    """
    schema = json.loads(spec.schema) if spec is not None else {}
    properties = schema.get("properties") or {}
    arguments = dict[str, object]()
    for key, raw in _PARAMETER.findall(text):
        if "<parameter=" in raw:
            raise NotACall
        arguments[key] = _to_declared(raw, properties.get(key))
    return arguments


def _to_declared(raw: str, declared: object) -> object:
    """Read a value as JSON, unless the tool declares it as text or nothing about it, or it is no
    JSON.
    """
    choices = [declared, *declared.get("anyOf", ())] if isinstance(declared, dict) else []
    kinds = {one.get("type") for one in choices if isinstance(one, dict)} - {None}
    if not kinds or "string" in kinds:
        return raw
    plain = raw.strip()
    try:
        return _DECODER.decode(plain.lower() if "boolean" in kinds else plain)
    except (ValueError, RecursionError):
        return raw


def _find_unread_call(text: str, tools: Mapping[str, ToolSpec]) -> list[ToolCall]:
    """Return a call without arguments, if the text looks like calls in any form and like nothing
    else.
    """
    names = "|".join(map(re.escape, tools))
    opening, end = _OPENING.match(text), 0
    meant = re.search(rf"(?<![\w-])(?:{names})(?![\w-])", text) if names and opening else None
    if opening is None or meant is None:
        return []
    for closing in _CLOSING.finditer(text, opening.end()):
        end = closing.end()
    if end and text[end:].strip() and not _OPENING.match(text, end):
        return []
    return [ToolCall(id="", name=meant.group(), arguments="", is_recovered=True)]


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
    return "".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
