"""The directories of an agent's files, and the only way from its tools to the disk. Blocks; safe in
threads.

Each audience has a directory of its own (`directory_of`): who may read a file is told by where it
is, and by nothing else. A place works in its own directory and reads those that everybody in it may
read (`FilesView`).

The agent's shell changes the same files meanwhile, and may be hostile. So no path of several parts
is ever opened: each directory is opened from the one above it, by one name and never through a
link, and a file is accessed from its opened directory (openat(2), section "Rationale for openat()
and other directory file descriptor APIs"). A directory that becomes a link meanwhile changes
nothing that was opened before, and is refused if it is opened after.

Paths of the model are parsed into parts, and never joined again.
"""

import contextlib
import errno
import hashlib
import os
import stat
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from gateway.config.reload import LiveSettings
from gateway.core.events import Address, ConversationId
from gateway.core.facts import is_inner
from gateway.core.frozen import frozen
from gateway.core.labels import Label, join, readers_of
from gateway.core.private_files import (
    agent_directory,
    make_directories,
    remove_stale_partials,
    replace_in,
)
from gateway.core.scopes import (
    OWNER_SCOPE,
    PUBLIC,
    group_scope,
    is_shared_scope,
    parse_space_scope,
    space_scope,
)
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCallRefused
from gateway.stream.routing import PrivacyCache

PathParts = tuple[str, ...]
"""Names from the root down, none of which is `.`, `..` or empty. No names: the root itself."""

ROOT_PREFIX: Final = "/workspace"
"""Path of the root in the shell."""
MAX_PATH_CHARS: Final = 2_000
MAX_PATH_PARTS: Final = 40
MAX_NAME_BYTES: Final = 255
"""Linux's NAME_MAX."""


def parse_path(written: str) -> PathParts:
    """Parse a path below the root. Raises ToolCallRefused if it cannot be one."""
    if len(written) > MAX_PATH_CHARS:
        raise ToolCallRefused(f"A path has at most {MAX_PATH_CHARS:,} characters.")
    if not all(map(_is_visible_char, written)):
        raise ToolCallRefused(
            "A path has no line ends, control characters or other characters that nobody sees."
        )
    if written.startswith("/"):
        if written != ROOT_PREFIX and not written.startswith(f"{ROOT_PREFIX}/"):
            raise ToolCallRefused(
                f"{display_path(written)} is outside: write it relative to {ROOT_PREFIX}, e.g. "
                "notes/today.md."
            )
        written = written.removeprefix(ROOT_PREFIX)
    parts = tuple(one for one in written.split("/") if one not in ("", "."))
    if ".." in parts:
        raise ToolCallRefused(
            f"{display_path(written)} goes up with `..`: write the path from the top, e.g. "
            "notes/today.md."
        )
    if parts[:1] == ("~",):
        raise ToolCallRefused(
            f"{display_path(written)}: `~` means nothing here, write the path from the top, e.g. "
            "notes/today.md."
        )
    if len(parts) > MAX_PATH_PARTS:
        raise ToolCallRefused(f"A path has at most {MAX_PATH_PARTS} parts.")
    return parts


def display_path(path: str | PathParts) -> str:
    """Return a path on one line, for a model, with `?` for invisible characters."""
    name = path if isinstance(path, str) else "/".join(path) or "."
    return "".join(one if _is_visible_char(one) else "?" for one in name)


def _is_visible_char(one: str) -> bool:
    """Return True if it is visible, or a space of another width (macOS puts U+202F into names of
    screenshots).
    """
    return one.isprintable() or unicodedata.category(one) == "Zs"


FILES_DIRECTORY: Final = "files"
"""Name of an agent's file directory, in its own directory, unless the operator configures another
path."""
RESERVED_DISK_BYTES: Final = 268_435_456
"""Bytes that files leave free on the disk, or a twentieth of a smaller one: the gateway's store is
there, too."""

OPEN_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""A link that was put there is not followed, and a pipe must not block."""
_ERROR_REASONS: Final = {
    errno.ENOENT: "there is no such file or directory; glob lists what there is",
    errno.ENOTDIR: "a part of the path is a link, or no directory; links are not followed",
    errno.ELOOP: "it is a link, and links are not followed",
    errno.EISDIR: "it is a directory",
    errno.EACCES: "it may not be opened (its mode forbids it)",
    errno.EPERM: "it may not be changed",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EROFS: "the files can only be read",
    errno.ENXIO: "it is no regular file",
    errno.EIO: "the disk fails",
    errno.ENAMETOOLONG: f"a name of a file or directory has at most {MAX_NAME_BYTES} bytes",
}


class WorkspaceRoot:
    """Files below one directory.

    All methods raise ToolCallRefused, with a text for the model without paths of the machine.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """`path` is the operator's: links on the way to it are followed. `max_bytes`: of a file,
        read or written.

        The directory is made at the first use, for its owner only.
        """
        self.path = path
        self.max_bytes = max_bytes
        self._write_lock = threading.Lock()

    def read(self, parts: PathParts) -> bytes:
        """Return the content of a file."""
        with self.open_directory(parts[:-1]) as above, refuse_os_errors(parts):
            return self.read_at(above, parts)

    def read_at(self, above: int, parts: PathParts) -> bytes:
        """Return the content of the last part, in an open directory. Raises OSError, too."""
        require_regular(
            os.stat(parts[-1], dir_fd=above, follow_symlinks=False), parts
        )  # opening a device can have effects
        handle = os.open(parts[-1], _OPEN_FILE_FLAGS, dir_fd=above)
        with os.fdopen(handle, "rb") as file:
            size = require_regular(os.fstat(handle), parts).st_size
            content = file.read(self.max_bytes + 1) if size <= self.max_bytes else b""
        size = max(size, len(content))
        if size > self.max_bytes:
            raise ToolCallRefused(
                f"{display_path(parts)} has {size:,} bytes, more than the {self.max_bytes:,} that "
                "can be read at once: take a part of it with the shell."
            )
        return content

    def is_directory(self, parts: PathParts) -> bool:
        """Return True if the path, which is not the root itself, is a directory now."""
        with self.open_directory(parts[:-1]) as above, refuse_os_errors(parts):
            return stat.S_ISDIR(os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode)

    def write(self, parts: PathParts, data: bytes, mode: int = 0o600) -> int | None:
        """Create or replace a file, with the directories above it. `mode`: of a new file.

        Returns the number of bytes before; None: there was no such file. The file is written whole
        or not at all, also in a crash, and is on the disk afterwards.
        """
        self._check_size(parts, data)
        return self._replace_content(parts, lambda _: data, mode)

    def edit(self, parts: PathParts, change: Callable[[bytes], bytes]) -> None:
        """Replace the content of a file by the result of `change`, which may raise ToolCallRefused.

        Never creates a file.

        As safe as `write`. No other write of ours comes between.
        """
        self._replace_content(parts, change, None)

    @contextlib.contextmanager
    def open_directory(self, parts: PathParts, *, make: bool = False) -> Iterator[int]:
        """Open a directory; the descriptor is valid inside the `with` block. `make`: create missing
        ones.
        """
        with contextlib.ExitStack() as stack:
            handle = self._open_root()
            stack.callback(os.close, handle)
            for number, part in enumerate(parts, start=1):
                with refuse_os_errors(parts[:number]):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o700, dir_fd=handle)
                            os.fsync(handle)
                    handle = os.open(part, OPEN_DIRECTORY_FLAGS, dir_fd=handle)
                stack.callback(os.close, handle)
            yield handle

    def _open_root(self) -> int:
        try:
            make_directories(self.path)
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ToolCallRefused(
                f"The files cannot be reached now ({error.strerror}): an admin has to look at it."
            ) from error

    def _replace_content(
        self, parts: PathParts, change: Callable[[bytes], bytes], mode: int | None
    ) -> int | None:
        make = mode is not None
        with (
            self._write_lock,
            self.open_directory(parts[:-1], make=make) as above,
            refuse_os_errors(parts),
        ):
            before = _stat_existing(above, parts)
            if before is None and not make:
                raise FileNotFoundError(errno.ENOENT, "")
            data = change(b"" if make else self.read_at(above, parts))
            self._check_size(parts, data)
            if not has_disk_space(above, len(data)):
                raise ToolCallRefused(
                    "The disk is nearly full, so nothing is written: remove what is not needed, or "
                    "tell an admin."
                )
            remove_stale_partials(above)
            mode = stat.S_IMODE(before.st_mode) & 0o777 if before else mode or 0o600
            replace_in(above, parts[-1], data, mode, before or os.fstat(above))
            return before.st_size if before else None

    def _check_size(self, parts: PathParts, data: bytes) -> None:
        if len(data) > self.max_bytes:
            raise ToolCallRefused(
                f"{display_path(parts)} would have {len(data):,} bytes, and a file may have "
                f"{self.max_bytes:,}: write less of it, or several files."
            )


FILES_PREFIX: Final = "/files"
"""Path of all directories in the shell and for the tools."""
_DEPTHS: Final = {"public": 1, OWNER_SCOPE.rstrip(":"): 1, "groups": 2, "spaces": 3, "places": 3}
"""Number of names in the path of an audience's directory, by the first of them."""
_MAX_ESCAPED_CHARS: Final = 200


def directory_of(scope: str) -> PathParts:
    """Return the directory of those who may read texts of this scope: the same for as long as the
    scope is called so.

    `public`, `owner`, `groups/NAME`, `spaces/CHANNEL/ID` or `places/CHANNEL/ROOM`.
    """
    if scope in (PUBLIC, OWNER_SCOPE):
        return (scope.rstrip(":"),)
    if (space := parse_space_scope(scope)) is not None:
        scope, kind = space.conversation, "spaces"
    else:
        kind = "groups" if is_shared_scope(scope) else "places"
    channel, _, rest = scope.partition("/")
    return (kind, _escape(rest)) if kind == "groups" else (kind, _escape(channel), _escape(rest))


def scope_of(directory: PathParts) -> str:
    """Return the scope of a directory. What is no audience's is for owners only."""
    kind, *names = map(unquote, directory or ("",))
    if kind == "public":
        scope = PUBLIC
    elif kind == "groups":
        scope = group_scope("/".join(names))
    else:
        scope = "/".join(names)
        try:
            at = Address.parse(ConversationId(scope))
        except ValueError:
            return OWNER_SCOPE
        scope = space_scope(at.channel, at.room) if kind == "spaces" else scope
    return scope if directory_of(scope) == directory else OWNER_SCOPE


def _escape(name: str) -> str:
    """Return a name of a directory that stands for this one only: others have chosen it."""
    escaped = quote(name, safe="#&+!@")
    if escaped.startswith("."):
        escaped = f"%2E{escaped[1:]}"
    if len(escaped) <= _MAX_ESCAPED_CHARS:
        return escaped
    return f"{escaped[:_MAX_ESCAPED_CHARS]}%{hashlib.sha256(name.encode()).hexdigest()}"[
        :MAX_NAME_BYTES
    ]


class FilesArea(NamedTuple):
    """Directory of one audience, as one place sees it."""

    root: WorkspaceRoot
    scope: str
    """Scope of those who may read its files."""
    directory: PathParts
    """Its path among all of them. None of it: that of all."""
    is_own: bool
    """True if paths of it are written without the directory."""

    @property
    def label(self) -> Label:
        """Label of all that is in there: what is read from files is text from outside."""
        return Label("outside", readers_of(self.scope))

    def name(self, parts: PathParts) -> str:
        """Return how a path is written in this place."""
        return display_path(parts if self.is_own else (FILES_PREFIX, *self.directory, *parts))


@frozen(kw_only=False)
class FilesView:
    """Files that one place sees."""

    files: "AgentFiles"
    agent: str
    own: FilesArea
    """Where it works, and where relative paths start."""
    others: tuple[FilesArea, ...]
    """Other directories that everybody who may read `own` may read, if there are files. For an
    owner in private: one with all directories."""

    @property
    def label(self) -> Label:
        """Label of whatever is read in there."""
        return join(area.label for area in (self.own, *self.others))

    def find(self, written: str) -> tuple[FilesArea, PathParts]:
        """Return where a path leads. Raises ToolCallRefused, also for what is not seen here."""
        if written != FILES_PREFIX and not written.startswith(f"{FILES_PREFIX}/"):
            return self.own, parse_path(written)
        parts = parse_path(written.removeprefix(FILES_PREFIX).lstrip("/"))
        depth = _DEPTHS.get(parts[0], 0) if parts else 0
        directory = parts[:depth] if len(parts) >= depth else ()
        seen = {area.directory: area for area in (self.own, *self.others)}
        if directory not in seen and () in seen and directory_of(scope_of(directory)) == directory:
            return self.files.area(self.agent, scope_of(directory)), parts[depth:]
        for known in (directory, ()):
            if known in seen:
                return seen[known], parts[len(known) :]
        raise ToolCallRefused(f"{display_path(written)}: {_ERROR_REASONS[errno.ENOENT]}.")

    def find_file(self, written: str) -> tuple[FilesArea, PathParts]:
        """Like `find`. Raises ToolCallRefused also for the directory of an audience itself."""
        area, parts = self.find(written)
        if not parts or (not area.directory and parts[0] in _DEPTHS):
            raise ToolCallRefused(
                "Say which file: write its path from the top, e.g. notes/today.md."
            )
        return area, parts


class AgentFiles:
    """Files of all agents."""

    def __init__(self, live: LiveSettings, store_path: Path, places: PrivacyCache) -> None:
        self._live = live
        self._store_path = store_path
        self._places = places
        self._roots: dict[tuple[str, PathParts], WorkspaceRoot] = {}

    def directory(self, agent: str) -> Path:
        """Return the directory of an agent's files."""
        config = self._live.agents[agent]
        return (
            config.files
            or agent_directory(config.workspace, self._store_path, agent) / FILES_DIRECTORY
        )

    def undo_directory(self, agent: str) -> Path:
        """Return where `undo` keeps what was changed."""
        return agent_directory(self._live.agents[agent].workspace, self._store_path, agent) / "undo"

    def area(self, agent: str, scope: str) -> FilesArea:
        """Return the directory of those who may read texts of this scope, written with its whole
        path.
        """
        return self._area(agent, scope, directory_of(scope))

    def _area(self, agent: str, scope: str, directory: PathParts) -> FilesArea:
        key = (agent, directory)
        if key not in self._roots:
            self._roots[key] = WorkspaceRoot(self.directory(agent).joinpath(*directory), 0)
        self._roots[key].max_bytes = self._live.settings.tools.files.max_bytes
        return FilesArea(self._roots[key], scope, directory, is_own=False)

    async def view(self, context: ToolContext, path: str = "") -> FilesView:
        """Return the files that are seen in a turn. `path`: one that it names. Raises StoreError.

        No directory is seen that some reader of the own one may not read: nothing that is written
        there tells more.
        """
        agent, here = context.agent, context.visibility
        scope = context.at.conversation if is_inner(context.at.conversation) else here.scope
        own = self.area(agent, scope)._replace(is_own=True)
        if here.sees_everything:
            return FilesView(self, agent, own, (self._area(agent, OWNER_SCOPE, ()),))
        tree, seen = self.directory(agent), [PUBLIC]
        if not is_shared_scope(scope):
            patterns = ("groups/*", "spaces/*/*", "places/*/*")
            found = [
                one.relative_to(tree).parts for each in patterns for one in sorted(tree.glob(each))
            ]
            found.sort(key=lambda parts: not path.startswith("/".join((FILES_PREFIX, *parts))))
            scopes = list(map(scope_of, found))
            here = await self._places.with_memberships(here, scopes)
            seen += [one for one in scopes if here.can_see(one)]
        others = [self.area(agent, one) for one in dict.fromkeys(seen) if one != scope]
        return FilesView(self, agent, own, tuple(others))

    def hidden_directories(self) -> list[Path]:
        """Return the directories that no command sees: the configuration, the store, and what is
        each agent's own.
        """
        own = [
            path
            for one in self._live.settings.agents
            for path in (one.workspace, self.directory(one.id))
            if path is not None
        ]
        directory = self._live.directory
        return [self._store_path.parent, *own, *([directory] if directory is not None else [])]


def _stat_existing(above: int, parts: PathParts) -> os.stat_result | None:
    """Return the status of the file to replace. None: there is none."""
    try:
        status = require_regular(os.stat(parts[-1], dir_fd=above, follow_symlinks=False), parts)
    except FileNotFoundError:
        return None
    if status.st_nlink > 1:
        raise ToolCallRefused(
            f"{display_path(parts)} has several names (hard links), so it is not written: choose "
            "another name."
        )
    return status


def has_disk_space(folder: int | Path, size: int = 0) -> bool:
    """Return whether a disk has room for `size` more bytes in a folder, without those that stay
    free. Raises OSError.
    """
    disk = os.statvfs(folder)
    spare = min(RESERVED_DISK_BYTES, disk.f_blocks * disk.f_frsize // 20)
    return disk.f_bavail * disk.f_frsize - size >= spare


def require_regular(status: os.stat_result, parts: PathParts) -> os.stat_result:
    """Return `status`. Raises ToolCallRefused if it is not a regular file."""
    if stat.S_ISREG(status.st_mode):
        return status
    kinds = (
        (stat.S_ISDIR, "a directory: list it with glob"),
        (stat.S_ISLNK, "a link, and links are not followed: name the file itself"),
        (stat.S_ISFIFO, "a pipe, not a file"),
        (stat.S_ISSOCK, "a socket, not a file"),
    )
    what = next((words for test, words in kinds if test(status.st_mode)), "a device, not a file")
    raise ToolCallRefused(f"{display_path(parts)} is {what}.")


@contextlib.contextmanager
def refuse_os_errors(parts: PathParts) -> Iterator[None]:
    """Raise ToolCallRefused in place of OSError, in words for the model."""
    try:
        yield
    except OSError as error:
        why = _ERROR_REASONS.get(error.errno or 0, os.strerror(error.errno or 0).lower())
        raise ToolCallRefused(f"{display_path(parts)}: {why}.") from error
