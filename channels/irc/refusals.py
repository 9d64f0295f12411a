"""Which answers of a server refuse what we asked. Pure."""

from typing import Final

from channels.irc.wire import Line

# fmt: off
TARGET: Final = frozenset({
    "401", "402", "403", "404", "405", "406", "408", "415", "416", "432", "437", "439", "442",
    "447", "461", "477", "480", "482", "486", "489", "492", "494", "531", "539", "716",
})
"""Numerics that refuse a message to the target they name; 301 (away) and 717 (told of us) do not."""
ANY: Final = frozenset(["407", "411", "412", "413", "414", "417"])
"""The same, for those that need not name a target."""
JOIN: Final = frozenset({
    "403", "405", "407", "437", "470", "471", "473", "474", "475", "476", "477", "479", "480",
    "485", "489", "495", "500", "520", "524", "926",
})
"""Numerics that keep us out of the room they name."""
# fmt: on
_FAILS: Final = frozenset({"PRIVMSG", "NOTICE", "BATCH", "*"})


def refuses_message(line: Line) -> bool:
    """Whether a message of ours may be what it is about."""
    return line.command in TARGET or line.command in ANY or (line.command == "FAIL" and line.param(0).upper() in _FAILS)


def names_nobody(line: Line) -> bool:
    """Whether it need not name the target that it is about."""
    return line.command in ANY or line.command == "FAIL"


def reason(line: Line) -> str:
    """For people and logs."""
    said = line.param(-1) or "refused"
    code = " ".join(line.params[:2]) if line.command == "FAIL" else ""
    return f"{said[:300]} ({line.command}{' ' + code[:100] if code else ''})"
