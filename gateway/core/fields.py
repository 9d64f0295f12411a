"""Types of configuration values: durations, time zones, paths, and guarded regular expressions.

Some regular expressions take exponential time on some texts
(https://owasp.org/www-community/attacks/Regular_expression_Denial_of_Service_-_ReDoS), and a sender
who knows one could block the gateway. So only the first characters of a text are searched, each
search has a time limit, and after a timeout the expression is skipped for a while: a flood of such
texts costs little, too.
"""

import logging
import os
import re
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

logger = logging.getLogger("reverie.fields")

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")
REGEX_TEXT_CHARS: Final = 4_096
"""Characters of a text that are searched: Telegram's longest message."""
REGEX_TIMEOUT_S: Final = 0.005
"""Limit of one search. The library checks the clock only now and then: measured, it takes up to
eight times as long."""
SKIPPED_AFTER_TIMEOUT: Final = 200
"""Number of texts that are not searched after a timeout."""
_REGEX_SOURCE_CHARS: Final = 500
_MAX_REPEATS: Final = 1_000
"""Same limit as RE2 (https://github.com/google/re2/wiki/Syntax): `a{99999999}` alone exhausts the
memory."""
_COUNT = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


def _parse_duration(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(
            "not a duration; write seconds (300) or a number with ms, s, m, h or d (5m)"
        )
    return float(match[1]) * _UNITS[match[2]]


def _check_time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("not a time zone; write an IANA name, e.g. Europe/Zurich") from None
    return value


TimeZone = Annotated[
    str, AfterValidator(_check_time_zone), Field(json_schema_extra={"format": "time-zone"})
]
"""An IANA name, e.g. `Europe/Zurich`."""
Duration = Annotated[
    float,
    BeforeValidator(_parse_duration),
    Field(ge=0, strict=True, allow_inf_nan=False, json_schema_extra={"format": "duration"}),
]
"""Seconds. Accepts `300`, `5m`, `1h`."""


PathT = TypeVar("PathT", str, Path)


def _resolve_path(path: PathT, info: ValidationInfo) -> PathT:
    """Return the path, which starts at the directory that is the context of the validation. Raises
    ValueError if the system does not accept it.
    """
    if "\0" in str(path):
        raise ValueError("a path cannot contain the character NUL")
    try:
        os.fsencode(path)
        expanded = Path(path).expanduser()
    except UnicodeEncodeError as error:
        why = f"the encoding of file names is {error.encoding} here, which lacks a character of it"
        raise ValueError(f"{why}; set LC_ALL to a UTF-8 locale, e.g. C.UTF-8") from None
    except RuntimeError:  # `~user` without a home here: keep the path
        expanded = Path(path)
    return type(path)(info.context / expanded) if info.context and str(path) else path


LocalPath = Annotated[Path, Field(strict=False), AfterValidator(_resolve_path)]
"""Path that is relative to the configuration directory when written, absolute when read."""
LocalFile = Annotated[str, AfterValidator(_resolve_path)]
"""Path of a file, as text: see `LocalPath`."""


class ConfigSection(BaseModel):
    """A part of the configuration: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class GuardedRegex:
    """Expression in the syntax of the `regex` library, a superset of Python's.

    Searched anywhere in the text, case-sensitive unless it contains `(?i)`.
    """

    def __init__(self, source: str) -> None:
        """Raises ValueError, with a reason for people, if the source is no expression or too
        large.
        """
        self._compiled = compile_regex(source)
        self.source = source
        self._skips_left = 0

    def find(self, text: str) -> bool:
        """Return whether it is in the text; False also because of a timeout in this search, which
        is logged, or a recent one. Blocks for about the time limit at most (`REGEX_TIMEOUT_S`).
        """
        if self._skips_left:
            self._skips_left -= 1
            return False
        try:
            # Keeps the global lock: getting it back would take longer than most searches.
            found = self._compiled.search(
                text[:REGEX_TEXT_CHARS], timeout=REGEX_TIMEOUT_S, concurrent=False
            )
        except TimeoutError:
            self._skips_left = SKIPPED_AFTER_TIMEOUT
            logger.warning("too slow, and left out for a while: the regex %s", self.source)
            return False
        return found is not None


def compile_regex(source: str, *, ignore_case: bool = False) -> Any:  # noqa: ANN401 - the library has no types
    """Compile with the `regex` library: pass a `timeout` to each search. Raises ValueError, like
    `GuardedRegex`.
    """
    import regex  # noqa: PLC0415 - takes 3 MB, and few configurations have an expression

    if len(source) > _REGEX_SOURCE_CHARS:
        raise ValueError(f"longer than {_REGEX_SOURCE_CHARS} characters")
    repeats = 1
    for count in _COUNT.finditer(source):
        repeats *= max([1, *(int(number[:9]) for number in count.groups() if number)])
        if repeats > 100 * _MAX_REPEATS or any(
            int(number[:9]) > _MAX_REPEATS for number in count.groups() if number
        ):
            raise ValueError(
                f"repeats something more often than {_MAX_REPEATS:,} times, or "
                f"{100 * _MAX_REPEATS:,} times all in all"
            )
    try:
        return regex.compile(source, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
