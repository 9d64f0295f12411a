"""Calls whose arguments are JSON, or Python. Pure."""

import re
from typing import Final

from agent.models.leaks_input import Input, Scan
from agent.models.leaks_values import Reader, Wrong, read
from agent.models.leaks_written import BadCall, Call, Declared, NotACall

MAX_RUNAWAYS: Final = 16
"""Calls without an end that are looked into: for each the text is read up to the next tag, perhaps to its end."""
_MAYBE: Final = re.compile(r"[<\[]")
MISTRAL: Final = "[TOOL_CALLS]"

Found = tuple[list[Call | BadCall], int]
"""What was found, and where it ends."""


class Json:
    """Reads them. All raise NotACall."""

    def __init__(self, text: Input, declared: Declared) -> None:
        self._in = text
        self._declared = declared
        self._runaways = 0

    def calls(self, at: int, form: str) -> Scan[Found]:
        """The object or list of objects that begins there; a list may hold Python's calls in place of objects."""
        if (yield from self._in.char(at)) == "[":
            first = yield from self._in.space(at + 1)
            name = yield from self._in.name(first)
            if name:
                return (yield from self.python(at, name, form))
        end, why = yield from self._in.extent(at)
        if why:
            return (yield from self._broken(at, form, why))
        text = self._in.text[at:end]
        try:
            calls = self._declared.objects(read(text), form)
        except Wrong as wrong:
            return self._bad(text, end, form, str(wrong)), end
        if not calls:
            raise NotACall(end)
        return calls, end

    def arguments(self, at: int, name: str, form: str) -> Scan[Found]:
        """The object that begins there, as the arguments of that tool."""
        end, why = yield from self._in.extent(at)
        if why:
            end = yield from self._next(at)
            return [self._declared.bad(name, form, why)], end
        return [self._declared.called(name, self._in.text[at:end], form)], end

    def python(self, at: int, name: str, form: str) -> Scan[Found]:
        """`[f(a=1), g()]` or `f(a=1)`, the first of which is named so."""
        bare = (yield from self._in.char(at)) != "["
        start = (yield from self._in.space(at + (0 if bare else 1))) + len(name)
        tool = self._declared.name(name.removesuffix(".call"))
        if not tool or (yield from self._in.char(start)) != "(":
            raise NotACall(at + 1)
        end, why = yield from self._in.extent(start if bare else at)
        if why:
            end = yield from self._next(start)
            return [self._declared.bad(tool, form, why)], end
        try:
            calls = Reader(self._in.text[at:end]).calls()
        except Wrong as wrong:
            return [self._declared.bad(tool, form, str(wrong))], end
        if not all(self._declared.name(called) for called, _ in calls):
            raise NotACall(end)
        return [self._declared.called(self._declared.name(called), given, form) for called, given in calls], end

    def _broken(self, at: int, form: str, why: str) -> Scan[Found]:
        end = yield from self._next(at)
        return self._bad(self._in.text[at:end], end, form, why), end

    def _bad(self, text: str, end: int, form: str, why: str) -> list[Call | BadCall]:
        meant = self._declared.meant(text)
        if not meant:
            raise NotACall(end)
        return [self._declared.bad(meant, form, why)]

    def _next(self, at: int) -> Scan[int]:
        """Where the next tag is: all before belongs to a call without an end."""
        self._runaways += 1
        while self._runaways <= MAX_RUNAWAYS:
            at = yield from self._in.find(_MAYBE, at + 1)
            if at < 0:
                break
            if (yield from self._in.starts(at, MISTRAL)):
                return at
            if self._in.text[at] == "<" and (yield from self._in.tag(at)) is not None:
                return at
        yield from self._in.all()
        return len(self._in.text)
