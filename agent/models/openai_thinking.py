"""Thoughts in the raw text of an answer, taken out while it streams. No IO.

Servers that parse a model's reasoning send it in fields of its own; this is for those that do not. The marks are
those of SGLang's parsers (srt/parser/reasoning_parser.py): `<think>` of DeepSeek, Qwen and most others, `[THINK]` of
Mistral. Where the chat template writes the opening mark itself (DeepSeek-R1), the text holds only the closing one.
"""

import re

_THINKING_MARKS = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_CLOSING_MARK = re.compile(r"(?<![`'\"])(?:</think>|\[/THINK\])(?![`'\"])")
"""Not quoted, as an answer about such marks would have it."""
_MARK_CHARS = 16
"""Characters in which a closing mark and what stands before it fit."""


class UnmarkedThinking(Exception):
    """What has been given out was thinking: the opening mark was missing."""


class ThinkingFilter:
    """Feed it an answer's text; it gives out what is to be said.

    Thoughts stand in front of the words; marks further behind are words about them. `held`: give out nothing before
    the end, because the opening mark may be missing. Otherwise a closing mark that nothing opened raises
    `UnmarkedThinking`: what was given out cannot be taken back, so the answer must be asked for again, held.
    """

    def __init__(self, *, held: bool) -> None:
        self._holds_text = held
        self._text = ""
        """Not given out yet."""
        self._close = ""
        """What ends the thought that we are in; empty: in none."""
        self._is_answering = False
        """The first words have come."""
        self._tail = ""
        """The end of what was given out."""

    def feed(self, text: str) -> str:
        """Return what can be said now."""
        self._text += text
        return "" if self._holds_text else self._release(final=False)

    def finish(self) -> str:
        """Return the rest. A thought that never ended is none of it."""
        if not self._holds_text:
            return self._release(final=True)
        rest = self._release(final=True, closing=False)
        closed = _CLOSING_MARK.search(rest)
        return rest[closed.end() :].lstrip() if closed else rest

    def _release(self, *, final: bool, closing: bool = True) -> str:
        while not self._is_answering:
            if self._close:
                found = self._text.find(self._close)
                if found < 0:
                    self._text = self._text[-_MARK_CHARS:]
                    return ""
                self._text, self._close = self._text[found + len(self._close) :], ""
            self._text = self._text.lstrip()
            opened = next((mark for mark in _THINKING_MARKS if self._text.startswith(mark)), "")
            if opened:
                self._text, self._close = self._text.removeprefix(opened), _THINKING_MARKS[opened]
            elif not self._text or (not final and any(mark.startswith(self._text) for mark in _THINKING_MARKS)):
                return ""
            else:
                self._is_answering = True
        out, self._text = self._text, ""
        if closing:
            whole = self._tail + out
            closed = _CLOSING_MARK.search(whole)
            if closed and (final or closed.end() < len(whole)):
                raise UnmarkedThinking
            self._tail = whole[-_MARK_CHARS:]
        return out
