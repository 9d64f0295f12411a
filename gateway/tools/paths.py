"""Names of files as a model writes them, and as they are told to it. Pure.

A path is taken apart here and never put together again: whoever opens files walks its parts one by one.
"""

import unicodedata
from typing import Final

from agent.tools.schema import Refused

Parts = tuple[str, ...]
"""The names on the way down from the root, none of which is `.`, `..` or empty. No names: the root itself."""

PREFIX: Final = "/workspace"
"""What the root is called in the shell."""
MAX_CHARS: Final = 2_000
MAX_PARTS: Final = 40
MAX_NAME_BYTES: Final = 255
"""Linux's NAME_MAX."""


def inside(written: str) -> Parts:
    """Where in the root that is. Raises Refused for whatever cannot be a place there."""
    if len(written) > MAX_CHARS:
        raise Refused(f"A path has at most {MAX_CHARS:,} characters.")
    if not all(map(_seen, written)):
        raise Refused("A path has no line ends, control characters or other characters that nobody sees.")
    if written.startswith("/"):
        if written != PREFIX and not written.startswith(f"{PREFIX}/"):
            raise Refused(f"{told(written)} is outside: write it relative to {PREFIX}, e.g. notes/today.md.")
        written = written.removeprefix(PREFIX)
    parts = tuple(one for one in written.split("/") if one not in ("", "."))
    if ".." in parts:
        raise Refused(f"{told(written)} goes up with `..`: write the path from the top, e.g. notes/today.md.")
    if parts[:1] == ("~",):
        raise Refused(f"{told(written)}: `~` means nothing here, write the path from the top, e.g. notes/today.md.")
    if len(parts) > MAX_PARTS:
        raise Refused(f"A path has at most {MAX_PARTS} parts.")
    if any(len(one.encode()) > MAX_NAME_BYTES for one in parts):
        raise Refused(f"A name of a file or directory has at most {MAX_NAME_BYTES} bytes.")
    return parts


def a_file(written: str) -> Parts:
    """The same, of what can be a file. Raises Refused."""
    parts = inside(written)
    if not parts:
        raise Refused("Say which file: write its path from the top, e.g. notes/today.md.")
    return parts


def told(path: str | Parts) -> str:
    """On one line, as a model reads it. What nobody sees in a name is shown as `?`."""
    name = path if isinstance(path, str) else "/".join(path) or "."
    return "".join(one if _seen(one) else "?" for one in name)


def _seen(one: str) -> bool:
    """Blanks of other widths count: file names of people have them (macOS puts U+202F into those of screenshots)."""
    return one.isprintable() or unicodedata.category(one) == "Zs"
