"""Patterns for paths, as shells write them: `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of directories. Pure.

A pattern is followed down a tree name by name, so that directories in which nothing can match are never opened. Names
that begin with a dot match as all others do. No name can make it slow: `fnmatch` never goes back.
"""

import re
from collections.abc import Iterator
from fnmatch import translate
from typing import Final

from agent.tools.schema import Refused
from gateway.tools.paths import PREFIX, told

MOST_CHOICES: Final = 64
"""Patterns that the braces of one make."""
_ANY: Final = "**"
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")

Place = frozenset[tuple[int, int]]
"""How far the choices of a pattern have come: which, and how many of its names. Empty: nothing below can match."""


class Glob:
    """One pattern."""

    def __init__(self, written: str, *, anywhere: bool = False) -> None:
        """Raises Refused for what can match nothing. `anywhere`: it may begin in any directory, not only at the top."""
        pattern = written.strip()
        if pattern.startswith("/") and not pattern.startswith(f"{PREFIX}/"):
            raise Refused(f"{told(pattern)} is outside: write a pattern relative to {PREFIX}, e.g. **/*.md.")
        pattern = pattern.removeprefix(f"{PREFIX}/")
        if anywhere:
            pattern = f"{_ANY}/{pattern}"
        self._alternatives = [
            tuple(one for one in choice.split("/") if one not in ("", ".")) for choice in _spread(pattern)
        ]
        if any(".." in names for names in self._alternatives):
            raise Refused(f"{told(pattern)} goes up with `..`: write a pattern from the top, e.g. **/*.md.")
        if not all(self._alternatives):
            raise Refused("A pattern names files, e.g. `*` or `**/*.md`.")
        self._names = {name: re.compile(translate(name)) for names in self._alternatives for name in names}
        self.names = frozenset(self._names)
        """What stands between its slashes."""
        self.initial_state = self._expand_double_stars({(number, 0) for number in range(len(self._alternatives))})

    def advance(self, place: Place, name: str) -> Place:
        """Where it stands behind this name."""
        found = set[tuple[int, int]]()
        for choice, at in place:
            names = self._alternatives[choice]
            if at == len(names):
                continue
            if names[at] == _ANY:
                found.add((choice, at))
            elif self._names[names[at]].match(name):
                found.add((choice, at + 1))
        return self._expand_double_stars(found)

    def is_match(self, place: Place) -> bool:
        """The names that led here match as a whole."""
        return any(at == len(self._alternatives[choice]) for choice, at in place)

    def can_match_below(self, place: Place) -> bool:
        """Something below can match."""
        return any(at < len(self._alternatives[choice]) for choice, at in place)

    def _expand_double_stars(self, found: set[tuple[int, int]]) -> Place:
        """With those that are reached because `**` stands for no directory, too."""
        left = list(found)
        while left:
            choice, at = left.pop()
            if (
                at < len(self._alternatives[choice])
                and self._alternatives[choice][at] == _ANY
                and (choice, at + 1) not in found
            ):
                found.add((choice, at + 1))
                left.append((choice, at + 1))
        return frozenset(found)


def _spread(pattern: str) -> list[str]:
    """What its braces stand for. Raises Refused if that is too much."""
    done, left = list[str](), [pattern]
    while left:
        one = left.pop()
        made = list(_opened(one))
        if made:
            left += reversed(made)
        else:
            done.append(one)
        if len(done) + len(left) > MOST_CHOICES:
            raise Refused(f"The braces of a pattern stand for {MOST_CHOICES} patterns at most: use fewer.")
    return done


def _opened(pattern: str) -> Iterator[str]:
    """With its first innermost braces replaced by each of what is in them."""
    found = _BRACES.search(pattern)
    if found:
        for choice in found[1].split(","):
            yield pattern[: found.start()] + choice + pattern[found.end() :]
