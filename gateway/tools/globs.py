"""Patterns for paths, as shells write them: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of directories. Pure.

A pattern is followed down a tree name by name, so that directories in which nothing can match are never opened. Names
that begin with a dot match as all others do. No name can make it slow: `fnmatch` never goes back.
"""

import re
from collections.abc import Iterator
from fnmatch import translate
from typing import Final

from agent.tools.schema import ToolCallRefused
from gateway.tools.paths import ROOT_PREFIX, display_path

MAX_ALTERNATIVES: Final = 64
"""Patterns that the braces of one make."""
_DOUBLE_STAR: Final = "**"
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")

GlobState = frozenset[tuple[int, int]]
"""How far the choices of a pattern have come: which, and how many of its names. Empty: nothing below can match."""


class GlobPattern:
    """One pattern."""

    def __init__(self, written: str, *, anywhere: bool = False) -> None:
        """Raises Refused for what can match nothing. `anywhere`: it may begin in any directory, not only at the top."""
        pattern = written.strip()
        if pattern.startswith("/") and not pattern.startswith(f"{ROOT_PREFIX}/"):
            raise ToolCallRefused(
                f"{display_path(pattern)} is outside: write a pattern relative to {ROOT_PREFIX}, e.g. **/*.md."
            )
        pattern = pattern.removeprefix(f"{ROOT_PREFIX}/")
        if anywhere:
            pattern = f"{_DOUBLE_STAR}/{pattern}"
        self._alternatives = [
            tuple(one for one in choice.split("/") if one not in ("", ".")) for choice in _expand_braces(pattern)
        ]
        if any(".." in names for names in self._alternatives):
            raise ToolCallRefused(
                f"{display_path(pattern)} goes up with `..`: write a pattern from the top, e.g. **/*.md."
            )
        if not all(self._alternatives):
            raise ToolCallRefused("A pattern names files, e.g. `*` or `**/*.md`.")
        self._names = {name: re.compile(translate(name)) for names in self._alternatives for name in names}
        self.names = frozenset(self._names)
        """What stands between its slashes."""
        self.initial_state = self._expand_double_stars({(number, 0) for number in range(len(self._alternatives))})

    def advance(self, place: GlobState, name: str) -> GlobState:
        """Where it stands behind this name."""
        found = set[tuple[int, int]]()
        for choice, at in place:
            names = self._alternatives[choice]
            if at == len(names):
                continue
            if names[at] == _DOUBLE_STAR:
                found.add((choice, at))
            elif self._names[names[at]].match(name):
                found.add((choice, at + 1))
        return self._expand_double_stars(found)

    def is_match(self, place: GlobState) -> bool:
        """The names that led here match as a whole."""
        return any(at == len(self._alternatives[choice]) for choice, at in place)

    def can_match_below(self, place: GlobState) -> bool:
        """Something below can match."""
        return any(at < len(self._alternatives[choice]) for choice, at in place)

    def _expand_double_stars(self, found: set[tuple[int, int]]) -> GlobState:
        """With those that are reached because `**` stands for no directory, too."""
        left = list(found)
        while left:
            choice, at = left.pop()
            if (
                at < len(self._alternatives[choice])
                and self._alternatives[choice][at] == _DOUBLE_STAR
                and (choice, at + 1) not in found
            ):
                found.add((choice, at + 1))
                left.append((choice, at + 1))
        return frozenset(found)


def _expand_braces(pattern: str) -> list[str]:
    """What its braces stand for. Raises Refused if that is too much."""
    done, left = list[str](), [pattern]
    while left:
        one = left.pop()
        made = list(_expand_first_brace(one))
        if made:
            left += reversed(made)
        else:
            done.append(one)
        if len(done) + len(left) > MAX_ALTERNATIVES:
            raise ToolCallRefused(f"The braces of a pattern stand for {MAX_ALTERNATIVES} patterns at most: use fewer.")
    return done


def _expand_first_brace(pattern: str) -> Iterator[str]:
    """With its first innermost braces replaced by each of what is in them."""
    found = _BRACES.search(pattern)
    if found:
        for choice in found[1].split(","):
            yield pattern[: found.start()] + choice + pattern[found.end() :]
