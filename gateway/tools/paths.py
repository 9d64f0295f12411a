"""Names of files as a model writes them, and as they are told to it. Pure.

A path is taken apart here and never put together again: whoever opens files walks its parts one by one.
"""

import unicodedata
from typing import Final

from agent.tools.schema import ToolCallRefused

PathParts = tuple[str, ...]
"""The names on the way down from the root, none of which is `.`, `..` or empty. No names: the root itself."""

ROOT_PREFIX: Final = "/workspace"
"""What the root is called in the shell."""
MAX_PATH_CHARS: Final = 2_000
MAX_PATH_PARTS: Final = 40
MAX_NAME_BYTES: Final = 255
"""Linux's NAME_MAX."""


def parse_path(written: str) -> PathParts:
    """Where in the root that is. Raises Refused for whatever cannot be a place there."""
    if len(written) > MAX_PATH_CHARS:
        raise ToolCallRefused(f"A path has at most {MAX_PATH_CHARS:,} characters.")
    if not all(map(_is_visible_char, written)):
        raise ToolCallRefused("A path has no line ends, control characters or other characters that nobody sees.")
    if written.startswith("/"):
        if written != ROOT_PREFIX and not written.startswith(f"{ROOT_PREFIX}/"):
            raise ToolCallRefused(
                f"{display_path(written)} is outside: write it relative to {ROOT_PREFIX}, e.g. notes/today.md."
            )
        written = written.removeprefix(ROOT_PREFIX)
    parts = tuple(one for one in written.split("/") if one not in ("", "."))
    if ".." in parts:
        raise ToolCallRefused(
            f"{display_path(written)} goes up with `..`: write the path from the top, e.g. notes/today.md."
        )
    if parts[:1] == ("~",):
        raise ToolCallRefused(
            f"{display_path(written)}: `~` means nothing here, write the path from the top, e.g. notes/today.md."
        )
    if len(parts) > MAX_PATH_PARTS:
        raise ToolCallRefused(f"A path has at most {MAX_PATH_PARTS} parts.")
    if any(len(one.encode()) > MAX_NAME_BYTES for one in parts):
        raise ToolCallRefused(f"A name of a file or directory has at most {MAX_NAME_BYTES} bytes.")
    return parts


def parse_file_path(written: str) -> PathParts:
    """The same, of what can be a file. Raises Refused."""
    parts = parse_path(written)
    if not parts:
        raise ToolCallRefused("Say which file: write its path from the top, e.g. notes/today.md.")
    return parts


def display_path(path: str | PathParts) -> str:
    """On one line, as a model reads it. What nobody sees in a name is shown as `?`."""
    name = path if isinstance(path, str) else "/".join(path) or "."
    return "".join(one if _is_visible_char(one) else "?" for one in name)


def _is_visible_char(one: str) -> bool:
    """Blanks of other widths count: file names of people have them (macOS puts U+202F into those of screenshots)."""
    return one.isprintable() or unicodedata.category(one) == "Zs"
