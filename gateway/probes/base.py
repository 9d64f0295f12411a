"""What asking the world found. Pure."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "bad"]
"""`warning`: it works, and something will surprise somebody; `bad`: it does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    code: str
    """What was looked at, for programs: dotted, lower case, e.g. `telegram.token`. It stays the same over versions."""
    level: Severity
    what: str
    """What is so, in one sentence without secrets. Quoted words of servers are printable."""
    fix: str = ""
    """What the operator can do about it: one sentence. Never empty unless the level is `ok`."""
    where: str = ""
    """The key of the configuration, the file, or the channel that it is about. Empty: the machine."""
