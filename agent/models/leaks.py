"""Tool calls that a model wrote as the text of its answer, recovered once the answer is whole. Pure.

A model does that if its server has no parser for what it writes, or the wrong one. `leak_formats` knows the formats. An
answer counts only if all of it is calls of declared tools: beside other words it only talks about a call. A call that
is cut off is not completed. A model that repeats somebody's text writes the same, so `is_call_in_request` looks for the
call in the request.
"""

import html
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final
from urllib.parse import unquote

from agent.models.base import ModelRequest, TextPart, ToolResult
from agent.models.leak_formats import (
    BadLeakedCall,
    CallRegion,
    DeclaredTools,
    LeakedCall,
    LeakedCallReader,
    NotACall,
    Scan,
    TextScanner,
)
from agent.tools import unwrap_call
from agent.turn_context import format_call
from gateway.core.tool_spec import ToolCall, ToolSpec

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


def recover_tool_calls(text: str, specs: Iterable[ToolSpec]) -> tuple[LeakedCall | BadLeakedCall, ...]:
    """Return the calls that a whole answer consists of, in order. Empty: it is text.

    Never raises.
    """
    source = TextScanner()
    source.text, source.is_complete = text, True
    try:
        next(reading := _read_calls(source, LeakedCallReader(source, DeclaredTools(specs))))
    except StopIteration as read:
        found: tuple[LeakedCall | BadLeakedCall, ...] = read.value
        return found
    except NotACall:
        return ()
    reading.close()
    raise AssertionError("a text that has ended decides everything")


def _read_calls(source: TextScanner, calls: LeakedCallReader) -> Scan[tuple[LeakedCall | BadLeakedCall, ...]]:
    """Read all calls. Raises NotACall if there is anything else."""
    found = list[LeakedCall | BadLeakedCall]()
    at = yield from source.skip_space(0)
    for first in (calls.read_whole, calls.read_addressed):
        try:
            region: CallRegion = yield from first(at)
        except NotACall:
            continue
        found, at = [*found, *region.calls], region.end
        break
    while char := (yield from source.read_char(at := (yield from source.skip_space(at)))):
        mistral = char == "[" and (yield from source.starts_with(at, "[T"))
        if char not in "<[":
            raise NotACall(at)
        region = yield from (calls.read_region(at) if char == "<" or mistral else calls.read_python(at))
        found, at = [*found, *region.calls], region.end
    return tuple(found)


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
    own_lines = {f"- {format_call(call)}" for call in calls}  # as `agent.turn_context.format_call_list` lists them
    yield "\n".join(line for line in request.aside.splitlines() if line not in own_lines)
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
