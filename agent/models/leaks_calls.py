"""Tool calls as models write them when they write them as text: one after the other, of any format. Pure.

The formats, by what begins them, as SGLang's detectors have them (sgl-project/sglang, srt/function_call) and as the
models' own chat templates write them:

`<tool_call>` and the like       Hermes and Qwen (JSON), Qwen3-Coder (`<function=f>`), GLM (`f<arg_key>`), MiniMax
`<function=f>`, `<invoke name>`  the same without what should be around it; Claude; DeepSeek, `｜DSML｜` in each tag
`<|tool_call_begin|>`            DeepSeek and Kimi K2, with `▁` or `_`
`<|open|>call`                   Kimi K3
`<|channel|>commentary to=f`     gpt-oss
`<|python_tag|>`, `[TOOL_CALLS]`, `<|tool_call_start|>`   Llama (JSON, Python), Mistral (JSON), LFM2 (Python)
`[f(a=1)]` on lines of its own   Llama 4
JSON that is the whole answer    Llama 3
"""  # noqa: RUF002 - that is how it is written

from dataclasses import dataclass
from typing import Final

from agent.models.leaks_elements import CALL_TAGS, ElementCallReader
from agent.models.leaks_input import END_TOKENS, ENVELOPE_TAGS, MarkupTag, Scan, TextScanner
from agent.models.leaks_json import MISTRAL_MARKER, FoundCalls, JsonCallReader
from agent.models.leaks_tokens import TokenCallReader
from agent.models.leaks_values import InvalidValue, read_value
from agent.models.leaks_written import BadLeakedCall, DeclaredTools, LeakedCall, NotACall

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
"""What is open afterwards (empty: nothing), what was found, and where to go on."""


@dataclass(frozen=True, slots=True)
class CallRegion:
    """A stretch of the text that is calls and nothing else."""

    end: int
    calls: tuple[LeakedCall | BadLeakedCall, ...]
    """Not empty."""


class LeakedCallReader:
    """Reads calls of declared tools. Positions are those of the input's text."""

    def __init__(self, text: TextScanner, declared: DeclaredTools) -> None:
        self._scanner = text
        self._declared = declared
        self._json = JsonCallReader(text, declared)
        self._elements = ElementCallReader(text, declared, self._json)
        self._tokens = TokenCallReader(text, declared, self._json)

    def read_region(self, start: int) -> Scan[CallRegion]:
        """All calls that follow each other from there on, with what is around them. Raises NotACall."""
        at = end = start
        form, found = "", list[LeakedCall | BadLeakedCall]()
        while True:
            at = yield from self._scanner.skip_space(at)
            one = yield from self._scanner.read_char(at)
            try:
                form, calls, at = yield from self._read_step(at, one, form)
            except NotACall as no:
                if found:
                    return CallRegion(end, tuple(found))
                raise NotACall(max(no.upto, start + 1)) from None
            found += calls
            end = at if calls or (found and not form) else end

    def read_whole(self, start: int) -> Scan[CallRegion]:
        """An answer that is JSON and nothing else, which names tools and their arguments. Raises NotACall."""
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
        """`to=functions.f<|channel|>...`, as gpt-oss begins an answer. Raises NotACall."""
        if not (yield from self._scanner.starts_with(at, "to=functions.")):
            raise NotACall(at)
        found, end = yield from self._tokens.read_harmony(at)
        return CallRegion((yield from self._skip_end_tokens(end, blank=end)), tuple(found))

    def read_python(self, at: int) -> Scan[CallRegion]:
        """`[f(a=1)]`, behind which nothing stands in its line. Raises NotACall."""
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

    def _read_step(self, at: int, one: str, form: str) -> Scan[ScanStep]:
        """What stands there, beginning with that character. Raises NotACall."""
        if one == "<" and (tag := (yield from self._scanner.read_tag(at))) is not None:
            return (yield from self._read_token(tag, at, form) if tag.is_special else self._read_tag(tag, at, form))
        if one == "[" and (yield from self._scanner.starts_with(at, MISTRAL_MARKER)):
            return MISTRAL_MARKER, [], at + len(MISTRAL_MARKER)
        if not form or not one:
            raise NotACall(at)
        if one in (",", ";", "}", "]"):  # between two; or one too many, in front of the end
            return form, [], at + 1
        found, end = yield from self._read_enclosed(at, one, form)
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
            said, end = yield from self._tokens.read_header(tag)
            if tag.name == "open" and said.startswith("call"):
                found, end = yield from self._tokens.read_kimi(tag)
                return form, found, end
            if said.startswith("tools") or (tag.name == "close" and said.startswith("message")):
                return "<|open|>tools" if tag.name == "open" else "", [], end
        raise NotACall(at + 1)

    def _read_enclosed(self, at: int, one: str, form: str) -> Scan[FoundCalls]:
        """A call that is told by what is around it."""
        if one in "{[":
            return (yield from self._json.read_calls(at, form))
        name = yield from self._scanner.read_name(at)
        tool = self._declared.resolve_name(name.removesuffix(".call"))
        if not tool:
            raise NotACall(at + max(len(name), 1))
        end = yield from self._scanner.skip_space(at + len(name))
        if form == MISTRAL_MARKER:
            end = yield from self._skip_labels(end)
        one = yield from self._scanner.read_char(end)
        if one == "{":
            return (yield from self._json.read_arguments(end, tool, form))
        if one == "(" and end == at + len(name):
            return (yield from self._json.read_python(at, name, form))
        tag = (yield from self._scanner.read_tag(end)) if one == "<" else None
        if (
            tag is None
            or tag.is_special
            or not (tag.name == "arg_key" or (tag.is_closing and tag.name in ENVELOPE_TAGS))
        ):
            raise NotACall(at + len(name))
        return (yield from self._elements.read_pairs(tool, end, form))

    def _skip_labels(self, at: int) -> Scan[int]:
        """Behind Mistral's `[CALL_ID]...[ARGS]`, which may be missing."""
        if (yield from self._scanner.starts_with(at, "[CALL_ID]")):
            at += 9
            at += len((yield from self._scanner.read_name(at)))
        if (yield from self._scanner.starts_with(at, "[ARGS]")):
            at = yield from self._scanner.skip_space(at + 6)
        return at

    def _is_json_start(self, at: int) -> Scan[bool]:
        """Whether an object, or a list of objects, may begin there."""
        if self._scanner.text[at] == "[":
            at = yield from self._scanner.skip_space(at + 1)
            if (yield from self._scanner.read_char(at)) != "{":
                return False
        at = yield from self._scanner.skip_space(at + 1)
        return (yield from self._scanner.read_char(at)) in ("'", '"')

    def _skip_end_tokens(self, at: int, *, blank: int | None = None) -> Scan[int]:
        """Behind the tokens that end an answer. `blank`: what to give if there are none. None: behind white space."""
        while True:
            at = yield from self._scanner.skip_space(at)
            tag = (yield from self._scanner.read_tag(at)) if (yield from self._scanner.read_char(at)) == "<" else None
            if tag is None or not (
                tag.name in _CLOSING_TOKENS if tag.is_special else tag.name == "s" and tag.is_closing
            ):
                return at if blank is None else blank
            at = tag.end
            blank = at if blank is not None else None
