"""Write docs/admin-commands.md from the command table: `python tests/checks/commands.py`, or `make
docs`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.commands.definition import COMMAND_GROUPS, CommandDefinition, CommandGroup
from gateway.commands.help import format_usage
from tests.kits.commands import TABLE

ROOT = Path(__file__).resolve().parents[2]

FILE = ROOT / "docs" / "admin-commands.md"
PREFIX = "!"
HEAD = """\
# Commands in the chat

Commands are answered at once and without the model; the model never sees them. `make docs` generates the tables on this
page from the command table of the program, which also makes the help, Discord's slash commands and Telegram's menus.

## How to give a command

| platform | write |
|---|---|
| IRC | `!status` (the prefix is `commands.prefix`), or `reverie: status` with the bot's nick |
| Telegram | `/status`, from the menu of the chat |
| Discord | `/status`; the options have suggestions |
| dashboard and console | `/status`; you are `console:operator` there, an owner |

- `!help` lists what you may use where you are. `!help NAME` explains each argument.
- On IRC a command may be given without the prefix if it is its name alone, or with that of a subcommand, by somebody
  who may give it: `reverie: status` and `reverie: dmn pause` are commands, `reverie: help me with this` is not.
- What a command changes here, and what I am (`about`), is said in the room. Every other answer is shown only to you:
  on IRC by a notice, on Discord by itself; in a group of Telegram, which cannot do that, the group sees it.
- Whoever may not use a command is told so, once a minute, in one sentence: alone on IRC, and where they chose the command
  from a menu.
- A command that acts (those of admins, and `link`) is not carried out if it arrives more than a minute after it was
  given, for example from a platform's queue. The person is told so.
- `<name>` must be given, `[name]` may be left out, `a | b` is a choice.

## Who may use a command

Roles are explained in [access and pairing](access-and-pairing.md). The column *who* names the lowest role.

| in the tables | meaning |
|---|---|
| everybody | any person who may talk to the agent |
| members | role `member` or above |
| admins | role `admin` or above, there: an admin of one room administers that room |
| admins everywhere | the role must hold in all places |
| own chat | also anybody in their own direct chat with the agent, for that chat |
| direct only | works only in a direct chat |

What administrators do, and what others try to do, is recorded with the person, the proof of identity, the place, the
arguments and the result, without secrets: `reverie audit --config DIR --since 2h`.

What `role`, `block`, `pair`, `room`, `notify` and `model switch` set stays after a restart.
"""

TITLES: Final[dict[CommandGroup, str]] = {
    "me and you": "General",
    "this conversation": "This conversation",
    "approvals": "Tools and approvals",
    "people": "People",
    "rooms": "Rooms",
    "what I do": "The agent's own activity",
    "how I run": "The gateway",
}
TAIL = """\
## Notes

- `stop` ends what is under way in this conversation. Lines sent until then are kept as context and are not answered.
- `pause`, `quiet`, `wake` and `reminders` stand for `dmn pause`, `dmn quiet`, `dmn wake` and `intentions list`; `start` is a
  welcome.
- `remind 10m tea`, or `remind me to call Ann every second friday at 9:00`, is `intentions add`. Its times are
  English, German or Spanish; in other languages ask the agent.
- `why` without a number explains the last answer here in one sentence.
- `new` begins afresh: the model sees nothing of what was said here before. The log keeps everything.
- `model switch NAME` applies from the next turn until `model reset`. `model here NAME` and `persona here NAME` (an agent
  with its own persona, memory and tools) apply to this room and its threads until `here default`; one that is not
  configured any more no longer counts, and owners are told once.
- `approve ID` is for one call. See [tools and sandbox](tools-and-sandbox.md#approvals).
- `why ENTRY` tells of other conversations only to an admin everywhere, in a direct chat. Private conversations are
  named by `why` and `usage`, and shown by `log tail`, only to owners.
- The shell takes the same words (`reverie ctl pair list`): see
  [operations](operations.md#give-a-command-from-the-shell).
"""


def who(row: CommandDefinition) -> str:
    """Return the lowest role that may use a command, and where."""
    name = {"guest": "everybody", "member": "members", "admin": "admins", "owner": "owners"}[
        row.role
    ]
    words = [f"{name} everywhere" if row.needs_global_role else name]
    words += ["own chat"] if row.allowed_in_own_chat else []
    words += ["direct only"] if row.direct_only else []
    return ", ".join(words)


def lines_of(row: CommandDefinition) -> Iterator[str]:
    """Yield a table line for the command, or one for each of its subcommands."""
    for sub in row.subs or (None,):
        cells = (format_usage(row, PREFIX, sub), who(sub or row), (sub or row).summary)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def text() -> str:
    lines = [HEAD]
    for group in COMMAND_GROUPS:
        lines += [f"## {TITLES[group]}", "", "| command | who | effect |", "|---|---|---|"]
        lines += [line for row in TABLE.rows if row.group == group for line in lines_of(row)]
        lines.append("")
    return "\n".join([*lines, TAIL])


def main() -> int:
    """Write the page."""
    FILE.write_text(text(), "utf-8")
    print(FILE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
