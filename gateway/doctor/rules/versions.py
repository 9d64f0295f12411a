"""Whether what is installed is what the program was made for. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.probes.base import Finding

MIN_PYTHON: Final = (3, 11)
MIN_SQLITE: Final = (3, 37)
"""STRICT tables: https://www.sqlite.org/stricttables.html."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?")
_BOUND: Final = re.compile(r"\s*(>=|<=|==|!=|~=|<|>)\s*([0-9][0-9A-Za-z.]*)\s*")
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of the package."""

    name: str
    bounds: tuple[tuple[str, str], ...]
    is_optional: bool
    """It is only for who asks for it, or for another system."""


def parse_requirement(text: str) -> Requirement | None:
    """Read a requirement (PEP 508) as far as ours go. None: it is none."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        return None
    name, bounds, marker = match.groups()
    found = tuple((one[1], one[2]) for part in bounds.strip("() ").split(",") if (one := _BOUND.fullmatch(part)))
    return Requirement(name, found, bool(marker and marker.strip()))


def is_allowed_version(bounds: Iterable[tuple[str, str]], version: str) -> bool:
    """Whether a version is within the bounds. Compares numbers only: releases are what people have installed."""
    have = _parse_version(version)
    for sign, bound in bounds:
        want = _parse_version(bound)
        width = max(len(have), len(want))
        a, b = (*have, *[0] * (width - len(have))), (*want, *[0] * (width - len(want)))
        held = {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b, "~=": a >= b}
        if not held[sign]:
            return False
    return True


def judge_libraries(needs: Iterable[str], installed: Callable[[str], str | None]) -> Iterator[Finding]:
    """Of the package's requirements, which are not met. `installed`: a version by name, None: it is not there."""
    count = 0
    found = []
    for one in map(parse_requirement, needs):
        version = None if one is None else installed(one.name)
        if one is None or (one.is_optional and version is None):
            continue
        count += 1
        wanted = ",".join(f"{sign}{bound}" for sign, bound in one.bounds)
        if version is None:
            what = f"{one.name} is not installed ({wanted or 'any version'} is needed)"
        elif not is_allowed_version(one.bounds, version):
            what = f"{one.name} {version} is installed, and {wanted} is needed"
        else:
            continue
        found.append(
            Finding(
                code="versions.library",
                level="bad",
                what=what,
                fix=f"pip install '{one.name}{wanted}', or install reverie-gateway anew in an environment of its own",
                where=one.name,
            )
        )
    yield from found
    if not found:
        yield Finding(code="versions.library", level="ok", what=f"{count} libraries are as they are needed")


def judge_python(version: tuple[int, ...], sqlite: tuple[int, ...], *, strict: bool, fts5: bool) -> Iterator[Finding]:
    """Whether Python and the SQLite in it can do what is needed."""
    told = ".".join(map(str, version))
    if version < MIN_PYTHON:
        fix = f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer"
        yield Finding(code="versions.python", level="bad", what=f"this is Python {told}", fix=fix)
    else:
        yield Finding(code="versions.python", level="ok", what=f"Python {told}")
    lacks = [name for name, there in (("STRICT tables", strict), ("FTS5", fts5)) if not there]
    engine = ".".join(map(str, sqlite))
    if lacks:
        what = f"SQLite {engine} here has no {' and no '.join(lacks)}"
        fix = (
            f"use a Python with SQLite {'.'.join(map(str, MIN_SQLITE))} or newer, with FTS5 (python.org's "
            "and Debian's are)"
        )
        yield Finding(code="versions.sqlite", level="bad", what=what, fix=fix)
    else:
        yield Finding(code="versions.sqlite", level="ok", what=f"SQLite {engine} with STRICT tables and FTS5")


def _parse_version(version: str) -> tuple[int, ...]:
    release = re.split(r"[A-Za-z+-]", version, maxsplit=1)[0]
    return tuple(int(number) for number in _NUMBERS.findall(release))
