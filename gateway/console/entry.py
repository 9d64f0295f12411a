"""What is typed: its history, which commands there are, what a line means, and how one that is begun goes on. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.commands.table import COMMANDS, CommandDefinition, format_arg

LocalCommandName = Literal["quit", "clear", "follow", "help"]
LOCAL_COMMANDS: Final[dict[LocalCommandName, str]] = {
    "quit": "leave the console",
    "clear": "empty the pane above",
    "follow": "show another conversation: its name, `own`, or `all`",
    "help": "this screen; with a command's name, what the gateway says of it",
}
"""Commands of the console itself."""
MAX_HISTORY: Final = 500
MAX_MESSAGE_CHARS: Final = 16_000
"""What the API takes at once, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCommand:
    """A command of the console."""

    name: LocalCommandName
    args: str


def parse_input(typed: str) -> LocalCommand | str:
    """A command of ours, or what is to be said to the gateway as it is (its own commands are said, too)."""
    name, _, args = typed.strip().partition(" ")
    args = args.strip()
    match name:
        case "/quit" | "/clear" if not args:
            return LocalCommand(name="quit" if name == "/quit" else "clear", args="")
        case "/follow":
            return LocalCommand(name="follow", args=args)
        case "/help" if not args:
            return LocalCommand(name="help", args="")
    return typed.strip()


class InputHistory:
    """What was said before, gone through with up and down."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._index = 0
        self._draft = ""

    def add(self, line: str) -> None:
        """It is the newest now."""
        if line and self._messages[-1:] != [line]:
            self._messages.append(line)
            del self._messages[:-MAX_HISTORY]
        self._index, self._draft = len(self._messages), ""

    def older(self, now: str) -> str | None:
        """The one before; `now`: what stands there, which is kept. None: there is none."""
        if self._index == 0:
            return None
        if self._index == len(self._messages):
            self._draft = now
        self._index -= 1
        return self._messages[self._index]

    def newer(self) -> str | None:
        """The one behind, at last what stood there at first. None: there is none."""
        if self._index == len(self._messages):
            return None
        self._index += 1
        return self._messages[self._index] if self._index < len(self._messages) else self._draft


def find_completions(typed: str, conversations: Iterable[str] = ()) -> list[str]:
    """How the last word of a command may go on, whole words; empty: it is no command, or nothing is known of it."""
    if not typed.startswith("/") or "\n" in typed:
        return []
    *before, word = typed[1:].split(" ")
    before = [one for one in before if one]
    return [one for one in _list_candidates(before, conversations) if one.startswith(word) and one != word]


def complete_input(typed: str, found: Sequence[str]) -> str:
    """As far as all of `found` agree; one alone is whole, and a space behind it."""
    head, space, word = typed.rpartition(" ")
    if not space:
        head, word = "", typed.removeprefix("/")
    goal = f"{found[0]} " if len(found) == 1 else _common_prefix(found)
    start = f"{head} " if space else "/"
    return f"{start}{goal if len(goal) > len(word) else word}"


def _common_prefix(found: Sequence[str]) -> str:
    """What all of them begin with."""
    first, last = min(found, default=""), max(found, default="")  # whatever these two share, those between them have
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def format_usage(typed: str) -> str:
    """What a command that is typed is for, and how it is written. Empty: it is none."""
    name, *words = typed.removeprefix("/").split(" ")
    row = _find_command(name)
    if not typed.startswith("/") or row is None:
        return LOCAL_COMMANDS.get(name, "") if typed.startswith("/") else ""  # type: ignore[call-overload]  # any text may be asked for
    sub = row.find_sub(words[0]) if words else None
    args = " ".join(map(format_arg, sub.args if sub else row.args))
    return " ".join(filter(None, (f"/{row.name}", sub.name if sub else "", args))) + f": {(sub or row).summary}"


def _list_candidates(before: Sequence[str], conversations: Iterable[str]) -> Iterable[str]:
    if not before:
        return sorted({*LOCAL_COMMANDS, *(row.name for row in COMMANDS)})
    if before == ["follow"]:
        return ["all", "own", *conversations]
    row = _find_command(before[0])
    if row is None:
        return []
    if before[0] == "help" and len(before) == 1:
        return sorted(one.name for one in COMMANDS)
    sub = row.find_sub(before[1]) if len(before) > 1 else None
    if len(before) == 1 and row.subs:
        return [one.name for one in row.subs]
    args = sub.args if sub is not None else row.args
    place = len(before) - (2 if sub is not None else 1)
    return args[place].choices if place < len(args) else []


def _find_command(name: str) -> CommandDefinition | None:
    return next((row for row in COMMANDS if row.name == name), None)
