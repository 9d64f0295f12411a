"""Types of configuration values shared by every section.

An operator's regular expression against text that anybody may send.

Some expressions take for ever on some texts (https://owasp.org/www-community/attacks/Regular_expression_Denial_of_Service_-_ReDoS),
and whoever knows one could stall everybody. So a text is only read up to a limit, a search has a time limit, and
after one that ran out of time the expression rests for a while: a flood of such texts costs little, too.
"""

import re
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


def _parse_duration(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("not a duration; write seconds (300) or a number with ms, s, m, h or d (5m)")
    return float(match[1]) * _UNITS[match[2]]


def _check_time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("not a time zone; write an IANA name, e.g. Europe/Zurich") from None
    return value


TimeZone = Annotated[str, AfterValidator(_check_time_zone)]
"""An IANA name, e.g. `Europe/Zurich`."""
Duration = Annotated[float, BeforeValidator(_parse_duration), Field(ge=0, strict=True, allow_inf_nan=False)]
"""Seconds. Reads `300`, `5m`, `1h`."""


class ConfigSection(BaseModel):
    """A part of the configuration: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


REGEX_TEXT_CHARS: Final = 4_096
"""Characters of a text that are looked at: Telegram's longest message."""
REGEX_TIMEOUT_S: Final = 0.005
"""For one search. The library looks at the clock now and then only: measured, it takes up to eight times as long."""
SKIPPED_AFTER_TIMEOUT: Final = 200
"""Texts that are not looked at after a search that took too long."""
_REGEX_SOURCE_CHARS: Final = 500
_MAX_REPEATS: Final = 1_000
"""As RE2's (https://github.com/google/re2/wiki/Syntax): `a{99999999}` alone takes all memory there is."""
_COUNT = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")

RegexOutcome = Literal["yes", "no", "late"]
"""late: not known, for it took too long, now or a moment ago."""


class GuardedRegex:
    """One expression, in the syntax of https://pypi.org/project/regex/, which is Python's and more.

    Found anywhere in the text, in the case in which it is written unless it says `(?i)`.
    """

    def __init__(self, source: str) -> None:
        """Raises ValueError, with a reason for people, for what is no expression or too large to be one."""
        self._compiled = compile_regex(source)
        self.source = source
        self._resting = 0

    def find(self, text: str) -> RegexOutcome:
        """Whether it is in the text. Blocks for the time limit at most, as well as the library keeps it."""
        if self._resting:
            self._resting -= 1
            return "late"
        try:
            # Holding Python's lock: to get it back would take longer than most searches do.
            found = self._compiled.search(text[:REGEX_TEXT_CHARS], timeout=REGEX_TIMEOUT_S, concurrent=False)
        except TimeoutError:
            self._resting = SKIPPED_AFTER_TIMEOUT
            return "late"
        return "no" if found is None else "yes"


def compile_regex(source: str, *, ignore_case: bool = False) -> Any:  # noqa: ANN401 - the library has no types
    """The library's own pattern: give each of its searches a `timeout`. Raises ValueError, as `GuardedRegex` does."""
    import regex  # noqa: PLC0415 - takes 3 MB, and few configurations have an expression

    if len(source) > _REGEX_SOURCE_CHARS:
        raise ValueError(f"longer than {_REGEX_SOURCE_CHARS} characters")
    repeats = 1
    for count in _COUNT.finditer(source):
        repeats *= max([1, *(int(number[:9]) for number in count.groups() if number)])
        if repeats > 100 * _MAX_REPEATS or any(int(number[:9]) > _MAX_REPEATS for number in count.groups() if number):
            raise ValueError(
                f"repeats something more often than {_MAX_REPEATS:,} times, or {100 * _MAX_REPEATS:,} times all in all"
            )
    try:
        return regex.compile(source, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
