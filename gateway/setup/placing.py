"""Puts a configuration in place: looked at as a whole beside it, and then all at once."""

import contextlib
import errno
import os
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.settings_load import ConfigError, check_config, is_config_file

_PRIVATE_DIRECTORY, _PRIVATE, _DIRECTORY, _OPEN = 0o700, 0o600, 0o755, 0o644
_STAGE_PREFIX = ".reverie-setup-"
_STALE_STAGE_S = 3_600.0
"""A look at what is to be written takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFile:
    """One file that is to be."""

    path: str
    """Below the configuration directory."""
    text: str
    secret: bool = False
    """Nobody else may read it, and its text is shown to nobody."""


def read_config_files(directory: Path) -> dict[str, str]:
    """The files of a configuration by name, in the order in which they are read. Raises OSError, UnicodeError."""
    if not directory.is_dir():
        return {}
    return {one.name: one.read_text(encoding="utf-8") for one in sorted(directory.iterdir()) if is_config_file(one)}


def is_writable(directory: Path) -> bool:
    """Whether a configuration can be put there, as far as can be told before."""
    if directory.exists():
        return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)
    parent = _nearest_existing_parent(directory)
    return os.access(parent, os.W_OK | os.X_OK)


def check_files(directory: Path, files: tuple[SetupFile, ...], env: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """What would be wrong, and what unwise, if the files were in place. Raises OSError."""
    with _staging_directory(directory) as stage:
        for one in directory.iterdir() if directory.is_dir() else ():
            if one != stage and one.name not in {Path(file.path).parts[0] for file in files}:
                (stage / one.name).symlink_to(one.absolute())
        for name in {Path(file.path).parts[0] for file in files if len(Path(file.path).parts) > 1}:
            if (directory / name).is_dir():
                shutil.copytree(directory / name, stage / name, symlinks=True)
        for file in files:
            _write_file(stage / file.path, file)
        try:
            _, warnings = check_config(stage, env)
        except ConfigError as error:
            return [_with_real_path(str(one), stage, directory) for one in error.problems], []
        return [], [_with_real_path(str(one), stage, directory) for one in warnings]


def _with_real_path(said: str, stage: Path, directory: Path) -> str:
    return said.replace(str(stage), str(directory))


@contextlib.contextmanager
def _staging_directory(directory: Path) -> Iterator[Path]:
    """An empty directory that is gone afterwards; where relative paths mean the same, if that can be."""
    parent = _nearest_existing_parent(directory)
    around = parent if os.access(parent, os.W_OK) else directory
    _remove_stale_stages(around)
    stage = around / f"{_STAGE_PREFIX}{secrets.token_hex(4)}"
    stage.mkdir(mode=_PRIVATE_DIRECTORY)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _remove_stale_stages(around: Path) -> None:
    """Take away what a setup that was killed left behind: it may hold what was typed."""
    for left in around.glob(f"{_STAGE_PREFIX}*"):
        with contextlib.suppress(OSError):  # another one's, or just going
            if time.time() - left.stat().st_mtime > _STALE_STAGE_S:
                shutil.rmtree(left, ignore_errors=True)


def _nearest_existing_parent(directory: Path) -> Path:
    """The nearest directory above that is there."""
    parent = directory.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def write_files(directory: Path, files: tuple[SetupFile, ...]) -> None:
    """Write all of them, secrets first and the configuration last. Raises OSError, and then nothing has changed.

    Unless the disk itself breaks between two of them, each of which is whole.

    While they take their places, which is a matter of milliseconds, Ctrl-C waits.
    """
    made: list[Path] = []
    waiting: list[tuple[Path, Path]] = []
    private = {(directory / file.path).parent for file in files if file.secret}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        for folder in _missing_folders(directory, files):
            folder.mkdir(mode=_PRIVATE_DIRECTORY if folder in private else _DIRECTORY)
            made.append(folder)
        for file in sorted(files, key=lambda one: (not one.secret, Path(one.path).suffix in {".yaml", ".yml"})):
            target = directory / file.path
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
            draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            waiting.append((draft, target))
            _write_file(draft, file, like=target)
        for draft, target in waiting:
            draft.replace(target)
    except OSError:
        for draft, _ in waiting:
            draft.unlink(missing_ok=True)
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _missing_folders(directory: Path, files: tuple[SetupFile, ...]) -> list[Path]:
    """Those that are not there yet, outermost first."""
    wanted = {directory / file.path for file in files}
    missing = {folder for path in wanted for folder in path.parents if not folder.exists()}
    return sorted(missing, key=lambda folder: len(folder.parts))


def _write_file(path: Path, file: SetupFile, like: Path | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
    mode = _PRIVATE if file.secret else _OPEN
    if like is not None and like.exists() and not file.secret:
        mode = stat.S_IMODE(like.stat().st_mode)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        os.fchmod(opened.fileno(), mode)
        opened.write(file.text)
        opened.flush()
        os.fsync(opened.fileno())
