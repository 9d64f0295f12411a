"""An operator's regular expression against text that anybody may send.

Some expressions take for ever on some texts (https://owasp.org/www-community/attacks/Regular_expression_Denial_of_Service_-_ReDoS),
and whoever knows one could stall everybody. So a text is only read up to a limit, a search has a time limit, and
after one that ran out of time the expression rests for a while: a flood of such texts costs little, too.
"""

import re
from typing import Any, Final, Literal

TEXT_LIMIT: Final = 4_096
"""Characters of a text that are looked at: Telegram's longest message."""
LIMIT_S: Final = 0.005
"""For one search. The library looks at the clock now and then only: measured, it takes up to eight times as long."""
RESTS: Final = 200
"""Texts that are not looked at after a search that took too long."""
_SOURCE_LIMIT: Final = 500
_REPEATS: Final = 1_000
"""As RE2's (https://github.com/google/re2/wiki/Syntax): `a{99999999}` alone takes all memory there is."""
_COUNT = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")

Answer = Literal["yes", "no", "late"]
"""late: not known, for it took too long, now or a moment ago."""


class Regex:
    """One expression, in the syntax of https://pypi.org/project/regex/, which is Python's and more.

    Found anywhere in the text, in the case in which it is written unless it says `(?i)`.
    """

    def __init__(self, source: str) -> None:
        """Raises ValueError, with a reason for people, for what is no expression or too large to be one."""
        self._compiled = compiled(source)
        self.source = source
        self._resting = 0

    def find(self, text: str) -> Answer:
        """Whether it is in the text. Blocks for the time limit at most, as well as the library keeps it."""
        if self._resting:
            self._resting -= 1
            return "late"
        try:
            # Holding Python's lock: to get it back would take longer than most searches do.
            found = self._compiled.search(text[:TEXT_LIMIT], timeout=LIMIT_S, concurrent=False)
        except TimeoutError:
            self._resting = RESTS
            return "late"
        return "no" if found is None else "yes"


def compiled(source: str, *, ignore_case: bool = False) -> Any:  # noqa: ANN401 - the library has no types
    """The library's own pattern: give each of its searches a `timeout`. Raises ValueError, as `Regex` does."""
    import regex  # noqa: PLC0415 - takes 3 MB, and few configurations have an expression

    if len(source) > _SOURCE_LIMIT:
        raise ValueError(f"longer than {_SOURCE_LIMIT} characters")
    repeats = 1
    for count in _COUNT.finditer(source):
        repeats *= max([1, *(int(number[:9]) for number in count.groups() if number)])
        if repeats > 100 * _REPEATS or any(int(number[:9]) > _REPEATS for number in count.groups() if number):
            raise ValueError(
                f"repeats something more often than {_REPEATS:,} times, or {100 * _REPEATS:,} times all in all"
            )
    try:
        return regex.compile(source, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
