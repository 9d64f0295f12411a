"""Calls whose arguments are JSON, or Python. Pure."""

import re
from typing import Final

from agent.models.leaks_input import Scan, TextScanner
from agent.models.leaks_values import InvalidValue, ValueReader, read_value
from agent.models.leaks_written import BadLeakedCall, DeclaredTools, LeakedCall, NotACall

MAX_RUNAWAYS: Final = 16
"""Calls without an end that are looked into: for each the text is read up to the next tag, perhaps to its end."""
_CALL_START: Final = re.compile(r"[<\[]")
MISTRAL_MARKER: Final = "[TOOL_CALLS]"

FoundCalls = tuple[list[LeakedCall | BadLeakedCall], int]
"""What was found, and where it ends."""


class JsonCallReader:
    """Reads them. All raise NotACall."""

    def __init__(self, text: TextScanner, declared: DeclaredTools) -> None:
        self._scanner = text
        self._declared = declared
        self._runaways = 0

    def read_calls(self, at: int, form: str) -> Scan[FoundCalls]:
        """The object or list of objects that begins there; a list may hold Python's calls in place of objects."""
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
        """The object that begins there, as the arguments of that tool."""
        end, why = yield from self._scanner.find_extent(at)
        if why:
            end = yield from self._find_next_tag(at)
            return [self._declared.build_bad_call(name, form, why)], end
        return [self._declared.build_call(name, self._scanner.text[at:end], form)], end

    def read_python(self, at: int, name: str, form: str) -> Scan[FoundCalls]:
        """`[f(a=1), g()]` or `f(a=1)`, the first of which is named so."""
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
            self._declared.build_call(self._declared.resolve_name(called), given, form) for called, given in calls
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
        """Where the next tag is: all before belongs to a call without an end."""
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
