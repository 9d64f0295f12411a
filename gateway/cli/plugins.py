"""The command `reverie plugins`: which plugins there are, and who hangs on each hook, in order."""

import argparse
import sys
from typing import Any

from gateway.command_line import BAD_USAGE, add_command, default_config, load_settings
from gateway.hooks import find_hooks
from gateway.plugins import find_plugins


def add_commands(commands: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add it to a command line."""
    parser = add_command(
        commands,
        "plugins",
        "list the plugins, and who hangs on each hook, in order",
        _list,
        where="maybe config",
    )
    parser.add_argument(
        "--off",
        action="append",
        default=[],
        metavar="NAME",
        help="list what is left without this one, and say how to turn it off",
    )


def _list(args: argparse.Namespace) -> int:
    found = find_plugins()
    directory = args.config or default_config()
    off = {*args.off, *(load_settings(directory).plugins.off if directory else ())}
    if unknown := sorted(off - {one.name for one in found.classes}):
        print(f"there is no plugin {', '.join(unknown)}", file=sys.stderr)
        return BAD_USAGE
    used = found.without(off)
    print("Plugins, in their order:")
    for one in found.classes:
        note = "" if one in used else "off: "
        origin = f" ({found.origins[one.name]})" if one.name in found.origins else ""
        print(f"  {one.name:<16} {note}{one.summary}{origin}".rstrip())
    print("\nHooks, in the order in which they are called:")
    for name, hooks in find_hooks(used).items():
        names = ", ".join(one.plugin.name for one in hooks)
        print(f"  {name:<16} {names or '-'}")
    for problem in found.problems:
        print(f"\n{problem}", file=sys.stderr)
    if args.off:
        print(f"\nTo turn it off, write: plugins: {{off: [{', '.join(sorted(off))}]}}")
    return 1 if found.problems else 0
