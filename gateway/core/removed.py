"""Commands and flags that are gone, each with one sentence that says what to do."""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.i18n import N_

_NAME_CONFIG: Final = "`--store` is gone here: name the configuration with `--config DIR`."
_REMOVED: Final[Mapping[str, str]] = {
    "trust": N_("`trust` is gone: start over with `new`, or approve the call that waits."),
    "context": N_(
        "`context` is gone: write `compact`, `rewind` or `new`, and `--in CONVERSATION`."
    ),
    "revoke": N_(
        "`revoke` is gone: each approval is for one call. A rule in `tools.rules` opens a tool for "
        "longer."
    ),
    "replay": N_("`replay` is gone: `why` explains what was decided about an entry."),
    "dmn debug": "`dmn debug` is gone: `dmn status` shows what I want to look at.",
    "journal show": "`journal show` is gone: write `journal`.",
    "journal search": "`journal search` is gone: search the file JOURNAL.md of the agent.",
    "journal export": "`journal export` is gone: JOURNAL.md of the agent has all entries.",
    "memory diff": "`memory diff` is gone: `log show --kind dreamed` shows each dream.",
    "notify rules": N_(
        "`notify rules` is gone: put rules under `attention.rules` in the configuration file."
    ),
    "notify pending": "`notify pending` is gone: `dmn status` shows what waits.",
    "pending": N_("`pending` is gone: `dmn status` shows what waits."),
    "run --role": (
        "`--role` is gone: each process does everything for the channels that it holds; "
        "leave it out."
    ),
    "run --stay": "`--stay` is gone: `run` always goes on and tries again; leave it out.",
    "console --run": "`--run` is gone: start the gateway with `reverie run`, then the console.",
    "log why": "`log why` is gone: write `reverie why ENTRY`.",
    "why --store": _NAME_CONFIG,
    "audit --store": _NAME_CONFIG,
    "cache --store": _NAME_CONFIG,
    "restore --replace": "--replace is gone: move away what is there, and restore",
    "cache --conversation": "`--conversation` is gone here: write `--in CONVERSATION`.",
}
"""By the command, and a subcommand or a flag of it. Those of commands alone are said in chats,
too."""


def find_removed(words: Sequence[str]) -> str:
    """Return what to do in place of this command line. Empty: nothing of it is gone."""
    plain = [word.partition("=")[0] for word in words]
    lines = [
        " ".join(plain[:2]),
        *plain[:1],
        *(f"{plain[0]} {flag}" for flag in plain[1:] if flag.startswith("--")),
    ]
    return next((_REMOVED[line] for line in lines if line in _REMOVED), "")
