"""Tool calls that a model wrote into its text: found while the text comes, and taken out of it. Pure.

It happens with every kind of model: where a server has no parser for what its model writes, or the wrong one, and also
where a model forgets how it is to call (platform.claude.com, "tool calls appear as text"). What counts is told in
`leaks_calls`; so does only a declared tool, and nothing within code or quotations (see `leaks_prose`). All else stays
text, character for character.

Only an answer of a model may be read so, never what anybody else wrote. A call that is cut off is not made whole.
"""

import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Final

from agent.models.base import Text, ToolCall, ToolSpec
from agent.models.leaks_calls import Calls, Region
from agent.models.leaks_input import Input
from agent.models.leaks_prose import Prose
from agent.models.leaks_written import BadCall, Call, Declared, NotACall

__all__ = ["MAX_CALLS", "BadCall", "Leaks", "Recovered", "recover"]

MAX_CALLS: Final = 64
"""In one answer. What is more is taken out and not carried out."""
TOO_MANY: Final = f"You wrote more than {MAX_CALLS} calls into one answer: those after them were not carried out."
KEPT_CHARS: Final = 4_096
"""Of what is done with, before it is let go."""
WAITS: Final = 64
"""What is held back is looked at again once it has grown by this part of itself: else long calls that come in small
pieces would be copied at each of them."""
_MAYBE: Final = re.compile(r"[\n<\[`\\]")

Heard = Text | ToolCall | BadCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """An answer, taken apart."""

    text: str
    """Without the calls."""
    calls: tuple[ToolCall, ...]
    problems: tuple[BadCall, ...]


def recover(text: str, specs: Iterable[ToolSpec]) -> Recovered:
    """Take a whole answer apart."""
    leaks = Leaks(specs)
    leaks.feed(text)
    leaks.end()
    return Recovered(text=leaks.text, calls=tuple(leaks.calls), problems=tuple(leaks.problems))


class Leaks:
    """Takes an answer apart while it comes. What is found does not depend on how it is cut into pieces."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        """`specs`: the tools that may be called, by whatever name."""
        self.calls: list[ToolCall] = []
        self.problems: list[BadCall] = []
        self._in = Input()
        self._prose = Prose(self._in)
        self._calls = Calls(self._in, Declared(specs))
        self._told = 0
        self._texts: list[str] = []
        self._news: list[Heard] = []
        self._pending: list[str] = []
        self._waiting = 0
        self._deaf = 0
        """In front of there nothing begins a call."""
        self._reading: Generator[None, None, None] | None = self._read()

    @property
    def text(self) -> str:
        """What is surely words so far, without the calls."""
        self._texts = ["".join(self._texts)]
        return self._texts[0]

    def feed(self, text: str) -> list[Heard]:
        """Take what comes next, and give what is sure by now: words, calls (`leak_1` and so on), and bad ones.

        Raises nothing, whatever the text.
        """
        assert not self._in.ended
        self._pending.append(text)
        self._waiting += len(text)
        held = len(self._in.text) - self._told
        return self._go_on() if text and self._waiting >= held // WAITS else []

    def end(self) -> list[Heard]:
        """There is no more: all that was held back. Safe to call twice."""
        self._in.ended = True
        return self._go_on()

    def _go_on(self) -> list[Heard]:
        self._in.text += "".join(self._pending)
        self._pending, self._waiting = [], 0
        if self._reading is not None:
            try:
                next(self._reading)
            except StopIteration:
                self._reading = None
                self._prose.sure = len(self._in.text)
        self._tell(self._prose.sure)
        news, self._news = self._news, []
        return news

    def _read(self) -> Generator[None, None, None]:
        at = yield from self._in.space(0)
        one = yield from self._in.char(at)
        try:
            if one in ("{", "["):
                self._take(at, (yield from self._calls.whole(at)))
                return
            region = yield from self._calls.addressed(at)
            self._take(at, region)
            at = region.end
        except NotACall:
            at = 0
        while at < len(self._in.text) or not self._in.ended:
            at = self._let_go(at)
            kind, at = yield from self._prose.line(at)
            if kind in ("words", "blank"):
                at = yield from self._words(at)

    def _words(self, at: int) -> Generator[None, None, int]:
        """A line, and more if calls in it go on behind it; gives where the next one begins."""
        first, _ = yield from self._prose.indent(at, 0)
        while True:
            found = _MAYBE.search(self._in.text, at)
            at = found.start() if found else len(self._in.text)
            self._prose.sure = max(self._prose.sure, at)
            if found is None:
                if self._in.ended:
                    return at
                kept = self._let_go(at)
                first, at = first - (at - kept), kept
                yield
                continue
            one = found.group()
            if one == "\n":
                self._prose.sure = at + 1
                return at + 1
            if one == "\\":
                escaped = yield from self._in.char(at + 1)
                if escaped and escaped in "<[" and at + 1 >= self._deaf:
                    at = yield from self._maybe(at + 1, alone=at == first, escaped=True)
                else:
                    at += 2 if escaped and escaped in "\\`<[" else 1
            elif one == "`":
                at = yield from self._prose.span(at)
            elif at < self._deaf:
                at += 1
            else:
                at = yield from self._maybe(at, alone=at == first)

    def _maybe(self, at: int, *, alone: bool, escaped: bool = False) -> Generator[None, None, int]:
        """What may be a call; gives where to go on.

        `alone`: nothing stands in front of it in its line. `escaped`: but a backslash: so it is none.
        """
        mistral = self._in.text[at] == "[" and (yield from self._in.starts(at, "[T"))
        try:
            if self._in.text[at] == "<" or mistral:
                region = yield from self._calls.region(at)
            elif alone:
                region = yield from self._calls.python(at)
            else:
                return at + 1
        except NotACall as no:
            self._deaf = no.upto
            return at + 1
        if escaped:
            self._deaf = region.end
            return at + 1
        self._take(at, region)
        return region.end

    def _take(self, start: int, region: Region) -> None:
        self._tell(start)
        for one in region.found:
            if len(self.calls) + len(self.problems) >= MAX_CALLS:
                self._problem(BadCall(name=one.name, said=TOO_MANY))
                break
            if isinstance(one, Call):
                call = ToolCall(id=f"leak_{len(self.calls) + 1}", name=one.name, arguments=one.arguments)
                self.calls.append(call)
                self._news.append(call)
            else:
                self._problem(one)
        self._told = self._prose.sure = region.end

    def _problem(self, bad: BadCall) -> None:
        if not self.problems or self.problems[-1].said != TOO_MANY:
            self.problems.append(bad)
            self._news.append(bad)

    def _tell(self, upto: int) -> None:
        """As words."""
        text = self._in.text[self._told : upto]
        if text:
            self._texts.append(text)
            self._told = upto
            if self._news and isinstance(before := self._news[-1], Text):
                self._news[-1] = Text(text=before.text + text)
            else:
                self._news.append(Text(text=text))

    def _let_go(self, at: int) -> int:
        """Forget what is done with; gives where `at` is then."""
        if min(at, self._told) < KEPT_CHARS:
            return at
        by = min(at, self._told)
        self._in.text = self._in.text[by:]
        self._prose.moved(by)
        self._told -= by
        self._deaf -= by
        return at - by
