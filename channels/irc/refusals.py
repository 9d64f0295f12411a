"""Which answers of a server refuse what we asked. Pure."""

import re
from typing import Final

from channels.base import RateLimited, Rejected, SendError
from channels.irc.wire import IrcLine

# fmt: off
TARGET_REFUSALS: Final = frozenset({
    "401", "402", "403", "404", "405", "406", "408", "415", "416", "432", "437", "439", "442",
    "447", "461", "477", "480", "482", "486", "489", "492", "494", "531", "539", "716",
})
"""Numerics that refuse a message to the target they name; 301 (away) and 717 (told of us) do not."""
UNTARGETED_REFUSALS: Final = frozenset(["407", "411", "412", "413", "414", "417"])
"""The same, for those that need not name a target."""
JOIN_REFUSALS: Final = frozenset({
    "403", "405", "407", "437", "448", "470", "471", "473", "474", "475", "476", "477", "479", "480",
    "485", "489", "495", "500", "520", "524", "926",
})
"""Numerics that keep us out of the room they name."""
# fmt: on
_TOO_FAST: Final = "(439)"
"""How the reason ends where we spoke to too many: ERR_TARGETTOOFAST of ircu and hybrid."""
_TOO_FAST_S: Final = 120.0
_SECONDS: Final = re.compile(r"\b([0-9]{1,4}) *s(?:ec|econds?)?\b")
_UNKNOWN_COMMAND: Final = "421"
_FAIL_COMMANDS: Final = frozenset({"PRIVMSG", "NOTICE", "BATCH", "*"})


def is_message_refusal(line: IrcLine) -> bool:
    """Whether a message of ours may be what it is about."""
    return (
        line.command in TARGET_REFUSALS
        or line.command in UNTARGETED_REFUSALS
        or (line.command == "FAIL" and line.param(0).upper() in _FAIL_COMMANDS)
    )


def is_command_refusal(line: IrcLine, command: str) -> bool:
    """Whether it says no to this command of ours, or that there is no such; `command` empty: we gave none."""
    told = line.param(0) if line.command == "FAIL" else line.param(1) if line.command == _UNKNOWN_COMMAND else ""
    return bool(command) and told.upper() == command


def is_untargeted(line: IrcLine) -> bool:
    """Whether it need not name the target that it is about."""
    return line.command in UNTARGETED_REFUSALS or line.command in {"FAIL", _UNKNOWN_COMMAND}


def refusal_reason(line: IrcLine) -> str:
    """For people and logs."""
    said = line.param(-1) or "refused"
    code = " ".join(line.params[:2]) if line.command == "FAIL" else ""
    return f"{said[:300]} ({line.command}{' ' + code[:100] if code else ''})"


def refusal_error(told: str) -> SendError:
    """A reason as made by `refusal_reason`, as what is raised for it."""
    if not told.endswith(_TOO_FAST):
        return Rejected(told)
    seconds = _SECONDS.search(told)
    return RateLimited(told, retry_after_s=float(seconds[1]) if seconds else _TOO_FAST_S)
