"""Persona of an agent: the workspace files that say who it is, read from the disk and composed to
text.

`read_workspace` blocks on the disk: not for the event loop's thread. `compose_bundle` is pure:
equal files give equal bytes, whatever program wrote them, wherever they are stored, at any time.

`identity` stands in front of every prompt in every channel, so it must not depend on where the
agent speaks, on whether the private files were read, or on their length.
"""

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from agent.workspace.character_card import (
    CARD_FILES,
    MAX_CARD_FILE_BYTES,
    InvalidCard,
    decode_text,
    render_card,
)
from gateway.core.frozen import frozen

PersonaScope = Literal["public", "private"]
"""private: the agent is alone with its owner."""

AVATAR = "AVATAR"
IDENTITY = ("IDENTITY", "SOUL", "AGENTS", AVATAR)
PRIVATE = ("USER", "MEMORY")
TINY_PERSONA = "IDENTITY.local.md"
"""Persona of the embedded model, which cannot follow more than a sentence: this file and nothing
else."""

MAX_FILE_CHARS = 12_000
MAX_BUNDLE_CHARS = 60_000
"""Limit of all files together, without headings. More would be noise in every prompt, and paid for
every hour."""
MAX_FILE_BYTES = 250_000
"""Limit of bytes read of a file: `MAX_FILE_CHARS` in any script, and whatever is dropped between
them."""
CUT_MARK = "[cut here: the file goes on]"
"""Has no number, so that changes behind the cut change no byte of the prompt."""


@frozen
class PersonaBundle:
    """Text of a workspace, ready for a prompt. Either part may be empty."""

    identity: str
    """IDENTITY, SOUL, AGENTS and the character card. The same in every channel."""
    private: str
    """USER and MEMORY. Empty in public scope."""


def find_paths(
    root: Path, scope: PersonaScope, family: str, own: Path | None = None
) -> dict[str, list[Path]]:
    """Return by section, in the order of the text, the paths at which its file may be: the first
    that exists is used. Raises ValueError for a family that cannot be part of a file's name.
    """
    if not family.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"{family!r} is not the name of a model family")
    found = dict[str, list[Path]]()
    for name in IDENTITY + PRIVATE if scope == "private" else IDENTITY:
        files = CARD_FILES if name == AVATAR else (f"{name}.{family}.md", f"{name}.md")
        places = (own, root) if own is not None and name in PRIVATE else (root,)
        found[name] = [place / file for place in places for file in files]
    return found


def compose_bundle(found: Mapping[str, tuple[str, bytes]]) -> tuple[PersonaBundle, tuple[str, ...]]:
    """Compose the bundle. Return it with notes for the operator.

    `found`: by section's name, the file that was used and its bytes. Content that cannot be used is
    left out and noted.
    """
    if found.get("IDENTITY", ("", b""))[0] == TINY_PERSONA:
        return PersonaBundle(
            identity=decode_text(found["IDENTITY"][1])[:MAX_FILE_CHARS], private=""
        ), ()
    notes: list[str] = []
    texts: dict[str, str] = {}
    chars_left = MAX_BUNDLE_CHARS
    for section in IDENTITY + PRIVATE:
        if section not in found:
            continue
        file, content = found[section]
        text = _render_section(section, file, content, notes)
        most = min(MAX_FILE_CHARS, chars_left)
        chars_left -= min(len(text), most)
        if len(text) > most:
            notes.append(f"{file} has {len(text)} characters; only the first {most} are used")
            text = f"{text[:most].rstrip()}\n{CUT_MARK}".lstrip()
        if text:
            # The heading does not depend on the file, so that a card gives the same bytes as JSON
            # and as PNG.
            texts[section] = f"# {section if section == AVATAR else f'{section}.md'}\n\n{text}"
    identity = "\n\n".join(texts[section] for section in IDENTITY if section in texts)
    return PersonaBundle(
        identity=identity,
        private="\n\n".join(texts[section] for section in PRIVATE if section in texts),
    ), tuple(notes)


def _render_section(section: str, file: str, content: bytes, notes: list[str]) -> str:
    if section == AVATAR:
        try:
            return render_card(content)
        except InvalidCard as bad:
            notes.append(f"{file} is left out: {bad}")
            return ""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        if (
            error.start < 4 * MAX_FILE_CHARS
        ):  # else it is behind the cut, or the end of what was read
            notes.append(
                f"{file} is not UTF-8 at byte {error.start}; what cannot be read is replaced"
            )
    return decode_text(content)


@frozen
class WorkspaceReading:
    """Result of reading a workspace once."""

    bundle: PersonaBundle
    notes: tuple[str, ...]
    """Notes for the operator, with paths."""
    is_missing: bool
    """True: the directory does not exist, and the bundle is empty."""


_HERE = Path(__file__).resolve().parent.parent.parent
_PACKAGED = _HERE / "gateway" / "defaults" / "workspace"
DEFAULT_WORKSPACE = _PACKAGED if _PACKAGED.is_dir() else _HERE / "config" / "workspace"
"""Workspace that ships with the product: in the wheel, or in `config/` of the checkout."""


def read_workspace(
    root: Path, scope: PersonaScope, family: str, own: Path | None = None
) -> WorkspaceReading:
    """Read a workspace. Links that lead out of their directory are not followed; only regular files
    are opened.

    `own`: the agent's own directory, which is searched for private files first if the workspace is
    shared. Raises OSError if a file exists but cannot be read, ValueError for a family that cannot
    be part of a file's name.
    """
    paths = find_paths(root, scope, family, own)
    notes: list[str] = []
    found: dict[str, tuple[str, bytes]] = {}
    missing = not root.resolve().is_dir()
    for section, some in {} if missing else paths.items():
        limit = MAX_CARD_FILE_BYTES if section == AVATAR else MAX_FILE_BYTES
        for path in some:
            content = _read_content(path.parent.resolve(), path.name, limit, notes)
            if content is not None:
                found[section] = (path.name, content)
                break
    bundle, bundle_notes = compose_bundle(found)
    notes += [f"{root}: {note}" for note in bundle_notes]
    if missing:
        notes.append(f"there is no directory {root}: going on without a persona")
    elif not bundle.identity:
        notes.append(f"no persona in {root}: expected IDENTITY.md; going on without one")
    return WorkspaceReading(bundle=bundle, notes=tuple(notes), is_missing=missing)


def _read_content(root: Path, file: str, limit: int, notes: list[str]) -> bytes | None:
    """Return at most one byte more than `limit`, so that a longer file can be recognized.

    None: no file that may be read.
    """
    path = root / file
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:  # a link to itself: RuntimeError before Python 3.13
        if isinstance(error, OSError) and error.errno != errno.ELOOP:
            raise
        notes.append(f"{path} is not read: it links to itself")
        return None
    if not real.is_relative_to(root):
        notes.append(f"{path} is not read: it links to a place outside of the workspace")
        return None
    if (content := read_regular(real, limit + 1)) is None:
        notes.append(f"{path} is not read: it is not a file")
    return content


def read_regular(real: Path, most: int) -> bytes | None:
    """Return the first bytes of a file by its resolved path. None: it is no regular file. Raises
    OSError.
    """
    # The resolved path holds no link, so a link found now was created meanwhile. Opening a pipe
    # must not block.
    handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with os.fdopen(handle, "rb", closefd=False) as opened:
            return opened.read(most)
    finally:
        os.close(handle)
