"""Calls between special tokens that became text. Pure."""

import contextlib
import html
import re
from typing import Final

from agent.models.leaks_elements import CUT_OFF
from agent.models.leaks_input import MAX_TAG_CHARS, MarkupTag, Scan, TextScanner
from agent.models.leaks_json import FoundCalls, JsonCallReader
from agent.models.leaks_values import InvalidValue, read_value
from agent.models.leaks_written import DeclaredTools, NotACall

MAX_HEADER_PARTS: Final = 4
_TOKEN_START: Final = re.compile("<")
_LINE: Final = re.compile("\n")
_RECIPIENT: Final = re.compile(r"\bto=([A-Za-z0-9_.:-]{1,128})")
_CALL_NUMBER: Final = re.compile(r":[0-9]{1,6}\Z")
_HEADER_KEYS: Final = re.compile(r'([a-z]{1,16})="([^"]{0,200})"')


class TokenCallReader:
    """Reads them. All raise NotACall."""

    def __init__(self, text: TextScanner, declared: DeclaredTools, json: JsonCallReader) -> None:
        self._scanner = text
        self._declared = declared
        self._json = json

    def read_headed(self, tag: MarkupTag) -> Scan[FoundCalls]:
        """DeepSeek V3 (`function`, name, fenced JSON), V3.1 (name, JSON), Kimi K2 (name:0)."""
        form = f"<|{tag.name}|>"
        said, mark = yield from self._read_until_token(tag.end, tag.end)
        at = mark.end
        if mark.name == "tool_sep" and said.strip() == "function":
            line = yield from self._scanner.find(_LINE, at, MAX_TAG_CHARS)
            said, at = self._scanner.text[at : max(line, at)], max(line, at)
        elif mark.name not in ("tool_sep", "tool_call_argument_begin"):
            raise NotACall(tag.end)
        name = self._declared.resolve_name(_CALL_NUMBER.sub("", said.strip()))
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
        """Behind `<|open|>call tool="f" index="1"<|sep|>`: its arguments as elements, or as JSON."""
        form, (said, at) = "<|open|>call", (yield from self.read_header(tag))
        name = self._declared.resolve_name(html.unescape(dict(_HEADER_KEYS.findall(said)).get("tool", "")))
        if not said.startswith("call") or not name:
            raise NotACall(at)
        given = dict[str, object]()
        while True:
            at = yield from self._scanner.skip_space(at)
            inner = (yield from self._scanner.read_tag(at)) if (yield from self._scanner.read_char(at)) == "<" else None
            if inner is None or inner.name not in ("open", "close"):
                return [
                    self._declared.build_bad_call(
                        name, form, CUT_OFF if at == len(self._scanner.text) else "it has no end"
                    )
                ], at
            said, end = yield from self.read_header(inner)
            if inner.name == "close":
                return [self._declared.build_call(name, given, form)], end if said.startswith("call") else at
            closed = yield from self._find_close(end)
            if closed is None:
                return [self._declared.build_bad_call(name, form, CUT_OFF)], len(self._scanner.text)
            raw, keys, at = self._scanner.text[end : closed[0]], dict(_HEADER_KEYS.findall(said)), closed[1]
            if said.startswith("json"):
                found = self._declared.build_call(name, raw, form)
                return [found], (yield from self._skip_close(at))
            key = html.unescape(keys.get("key", ""))
            given[key] = self._coerce(raw, key, keys.get("type", ""), name)

    def read_header(self, tag: MarkupTag) -> Scan[tuple[str, int]]:
        """What stands between `<|open|>` or `<|close|>` and `<|sep|>`, and where that ends."""
        said, mark = yield from self._read_until_token(tag.end, tag.end)
        if mark.name != "sep":
            raise NotACall(tag.end)
        return said, mark.end

    def read_harmony(self, start: int) -> Scan[FoundCalls]:
        """`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}`, behind its first token."""
        form, header, at = "<|channel|>", "", start
        for _ in range(MAX_HEADER_PARTS):
            said, mark = yield from self._read_until_token(at, start)
            header, at = f"{header}{said} ", mark.end
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
        """What stands in front of the next special token, and that. Raises NotACall(upto)."""
        end = yield from self._scanner.find(_TOKEN_START, at, MAX_TAG_CHARS)
        tag = (yield from self._scanner.read_tag(end)) if end >= 0 else None
        if tag is None or not tag.is_special:
            raise NotACall(upto)
        return self._scanner.text[at:end], tag

    def _find_close(self, at: int) -> Scan[tuple[int, int] | None]:
        """Where the next `<|close|>...<|sep|>` begins and ends. None: the text ends before."""
        while (at := (yield from self._scanner.find(_TOKEN_START, at))) >= 0:
            tag = yield from self._scanner.read_tag(at)
            if tag is not None and tag.is_special and tag.name == "close":
                with contextlib.suppress(NotACall):
                    return at, (yield from self.read_header(tag))[1]
            at += 1
        return None

    def _skip_close(self, at: int) -> Scan[int]:
        """Behind the call's end, if that follows."""
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
