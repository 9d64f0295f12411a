"""The commands `reverie plugins`, which plugins there are and who hangs on each hook, in order, and
`reverie new`, which writes the skeleton of a plugin, a platform or a provider.

The skeletons are whole distributions, in `skeletons`, with a word for the name in them: their own
tests pass before anything is changed.
"""

import argparse
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.command_line import (
    BAD_USAGE,
    add_command,
    default_config,
    load_settings,
    report_failure,
)
from gateway.hooks import find_hooks
from gateway.plugin import Plugin
from gateway.plugins import UnusablePlugin, check_plugin, find_plugins

SKELETONS: Final = Path(__file__).with_name("skeletons")
"""One folder for each kind."""
_ANY_CASE: Final = re.compile("reverie-acme|ACME|Acme|acme")


def add_commands(commands: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add both to a command line."""
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
    text = "write the skeleton of a plugin, with tests that pass"
    parser = commands.add_parser("new", help=text, description=text)
    parser.add_argument("kind", choices=sorted(one.name for one in SKELETONS.iterdir()))
    parser.add_argument("name", help="1 to 32 of a-z, 0-9 and _, the first a letter")
    parser.add_argument(
        "--to",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where its directory reverie-NAME is made (default: here)",
    )
    parser.set_defaults(handler=_new)


def _list(args: argparse.Namespace) -> int:
    directory = args.config or default_config()
    off = {*args.off, *(load_settings(directory).plugins.off if directory else ())}
    found = find_plugins(tuple(off))
    known = {*(one.name for one in found.classes), *(one.plugin for one in found.problems)}
    if unknown := sorted(off - known):
        print(f"there is no plugin {', '.join(unknown)}", file=sys.stderr)
        return BAD_USAGE
    print("Plugins, in their order:")
    for one in found.classes:
        origin = f" ({found.origins[one.name]})" if one.name in found.origins else ""
        print(
            f"  {one.name:<16} {'' if one in found.used else 'off: '}{one.summary}{origin}".rstrip()
        )
    print("\nHooks, in the order in which they are called:")
    for name, hooks in find_hooks(found.used).items():
        print(f"  {name:<16} {', '.join(one.plugin.name for one in hooks) or '-'}")
    for problem in found.problems:
        print(f"\n{problem}", file=sys.stderr)
    if args.off:
        print(f"\nTo turn it off, write: plugins: {{off: [{', '.join(sorted(off))}]}}")
    return 1 if found.problems else 0


def write_skeleton(kind: str, name: str, parent: Path) -> Path:
    """Write the skeleton of a kind into a new directory below `parent`, and return it.

    Raises UnusablePlugin for a name that a plugin cannot have, OSError (FileExistsError if the
    directory is there).
    """
    check_plugin(type(name, (Plugin,), {"name": name}), find_plugins().classes)

    spelled = {
        "reverie-acme": f"reverie-{name.replace('_', '-')}",
        "ACME": name.upper(),
        "Acme": "".join(word.capitalize() for word in name.split("_")),
        "acme": name,
    }
    named = partial(_ANY_CASE.sub, lambda found: spelled[found[0]])
    target = parent / named("reverie-acme")
    target.mkdir(parents=True)
    files = (one for one in (SKELETONS / kind).rglob("*") if one.is_file())
    for source in (one for one in sorted(files) if one.suffix != ".pyc"):
        path = target / named(str(source.relative_to(SKELETONS / kind)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(named(source.read_text("utf-8")), "utf-8")
    return target


def _new(args: argparse.Namespace) -> int:
    try:
        target = write_skeleton(args.kind, args.name, args.to)
    except (UnusablePlugin, OSError) as error:
        return report_failure("new", error)
    print(f"wrote {target}; its README.md says how to install and test it")
    return 0
