"""Calls whose arguments are elements with plain text in them. Pure.

What is between two tags is not escaped, so an end that is missing is told by what follows: an argument ends in front of
the next one, or of the next call.
"""

import re
from typing import Final

from agent.models.leaks_input import ENVELOPE_TAGS, MAX_VALUE_CHARS, MarkupTag, Scan, TextScanner
from agent.models.leaks_json import FoundCalls, JsonCallReader
from agent.models.leaks_values import InvalidValue, read_value
from agent.models.leaks_written import DeclaredTools, NotACall

CUT_OFF: Final = "it is cut off"
CALL_TAGS: Final = frozenset({"function", "invoke"})
ARGUMENT_TAGS: Final = frozenset({"parameter", "param"})
_TAG_START: Final = re.compile("<")


class ElementCallReader:
    """Reads them. All raise NotACall."""

    def __init__(self, text: TextScanner, declared: DeclaredTools, json: JsonCallReader) -> None:
        self._scanner = text
        self._declared = declared
        self._json = json

    def read_call(self, tag: MarkupTag, form: str) -> Scan[FoundCalls]:
        """`<function=f>` or `<invoke name="f">`, which is behind us, and all that belongs to it."""
        name = self._declared.resolve_name(tag.target)
        if not name:
            raise NotACall(tag.end)
        at = yield from self._scanner.skip_space(tag.end)
        if (yield from self._scanner.read_char(at)) == "{":  # Llama 3.1
            found, at = yield from self._json.read_arguments(at, name, form)
            return found, (yield from self._skip_close(at))
        given, at = dict[str, object](), tag.end
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
                given[inner.target] = self._coerce(raw, inner, name)
            elif inner is not None and inner.is_closing and inner.name in CALL_TAGS:
                return [self._declared.build_call(name, given, form)], inner.end
            else:
                return self._finish_unclosed(name, given, at, form)

    def read_pairs(self, name: str, at: int, form: str) -> Scan[FoundCalls]:
        """GLM's `<arg_key>k</arg_key><arg_value>v</arg_value>`, behind the name of a tool."""
        given = dict[str, object]()
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
            given[key[0].strip()] = self._declared.coerce(value[0], key[0].strip(), name)
        if tag is not None and tag.is_closing:
            return [self._declared.build_call(name, given, form)], at
        return self._finish_unclosed(name, given, at, form)

    def _finish_unclosed(self, name: str, given: dict[str, object], at: int, form: str) -> FoundCalls:
        """Arguments that are whole, in front of something that is not their call's end.

        At the end of the text that is a forgotten tag or a lost argument; if the call can do without it is the former.
        """
        if at < len(self._scanner.text) and self._scanner.text[at] != "<":
            return [self._declared.build_bad_call(name, form, "there is text between its arguments")], at
        if not given or not self._declared.has_required(given, name):
            return [self._declared.build_bad_call(name, form, CUT_OFF)], at
        return [self._declared.build_call(name, given, form)], at

    def _skip_close(self, at: int) -> Scan[int]:
        """Behind the call's end, if that follows."""
        end = yield from self._scanner.skip_space(at)
        tag = (yield from self._scanner.read_tag(end)) if (yield from self._scanner.read_char(end)) == "<" else None
        return tag.end if tag is not None and tag.is_closing and tag.name in CALL_TAGS else at

    def _read_value(self, opened: MarkupTag, beside: str) -> Scan[tuple[str, int] | None]:
        """What is in an element, and where it ends. None: the text ends before. `beside`: what may follow it.

        What is around it ends it only if its own end is missing, and another call only behind such an end: a value may
        be about calls.
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
        """DeepSeek says itself what is text."""
        if (said := tag.attributes.get("string")) == "true":
            return raw
        if said == "false":
            try:
                return read_value(raw)
            except InvalidValue:
                return raw
        return self._declared.coerce(raw, tag.target, name)


def _strip_line_breaks(raw: str) -> str:
    """Without the line breaks that stand between a value and its tags."""
    return raw.removeprefix("\n").removesuffix("\n")
