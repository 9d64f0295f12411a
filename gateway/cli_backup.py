"""`reverie backup`, `reverie restore`. Exit codes: 0 done; 1 interrupted, or something is to be mended; 2 refused.

A backup is made beside a running gateway; for a restore there must be none.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.cli_reading import ResolveSettings, current_user, report_failure
from gateway.progress import show_progress
from gateway.settings import Settings
from gateway.store import StoreError
from gateway.store.lines import escape_unprintable

if TYPE_CHECKING:
    from gateway.backup.making import BackupReport
    from gateway.backup.manifest import BackupManifest
    from gateway.backup.placing import RestoreReport, VerifiedBackup


_BACKUP_STEPS: Final = {
    "copied": ("copying the store", "MB", 1_000_000),
    "read": ("reading the backup", "MB", 1_000_000),
    "replayed": ("comparing with the log", "entries", 1),
}
"""What is said of each step, counted in what, of how many of its own units."""


def add_backup_parsers(subparsers: Any, settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add both to a command line."""
    text = "copy the store and the agents' files into one archive, beside the running gateway"
    made = subparsers.add_parser("backup", help=text, description=text)
    made.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
    made.add_argument("-o", "--output", type=Path, metavar="FILE", help="a new file, or the directory for one")
    made.add_argument("--whole", action="store_true", help="compare each table with the log, however long it is")
    made.set_defaults(handler=backup_command, settings=settings)
    text = "put a backup in place, with the gateway stopped"
    put = subparsers.add_parser("restore", help=text, description=text)
    put.add_argument("file", type=Path, metavar="FILE", help="the backup")
    put.add_argument("--config", type=Path, metavar="DIR", help="the configuration that says where")
    put.add_argument("--verify", action="store_true", help="only say whether it can be restored")
    put.add_argument("--replace", action="store_true", help="where something else is: keep that beside")
    put.add_argument(
        "--nothing-since",
        action="store_true",
        help="no gateway ran since the backup: go on exactly where it stopped, as when you move to another machine",
    )
    put.set_defaults(handler=restore_command, settings=settings)


def backup_command(args: argparse.Namespace) -> int:
    """Handler of `backup_command`."""
    from gateway.backup.making import create_backup  # noqa: PLC0415 - the other commands start faster without it

    settings: Settings = args.settings(args.config)
    now = datetime.now(UTC)
    target: Path = args.output if args.output is not None else Path()
    if target.is_dir():
        target /= f"reverie-{now:%Y%m%dT%H%M%SZ}.tar"
    try:
        with _step_progress() as told:
            made = create_backup(settings, target, now, whole=args.whole, progress=told)
    except (StoreError, OSError) as error:
        return report_failure("backup", error)
    except KeyboardInterrupt:
        print("interrupted: there is no backup", file=sys.stderr)
        return 1
    return _print_backup(made)


def restore_command(args: argparse.Namespace) -> int:
    """Handler of `restore_command`."""
    from gateway.backup.manifest import InvalidBackup  # noqa: PLC0415 - the other commands start faster without it

    try:
        if args.verify:
            _print_verified(_verify_archive(args.file))
            return 0
        if args.config is None:
            return report_failure("restore", ValueError("say where it goes: --config DIR (or --verify)"))
        from gateway.backup.placing import restore_backup as put  # noqa: PLC0415 - the same

        settings: Settings = args.settings(args.config)
        now, exact = datetime.now(UTC), args.nothing_since
        with _step_progress() as told:
            done = put(args.file, settings, now, replace=args.replace, exact=exact, by=current_user(), progress=told)
    except InvalidBackup as error:
        return report_failure("restore", ValueError(f"{args.file} cannot be restored: {error}"))
    except (StoreError, OSError) as error:
        return report_failure("restore", error)
    except KeyboardInterrupt:
        print("interrupted: what was not begun to be put in place is as it was; restore again", file=sys.stderr)
        return 1
    _print_restored(done, exact=exact)
    return 0


def _verify_archive(file: Path) -> "VerifiedBackup":
    import tempfile  # noqa: PLC0415 - the same

    from gateway.backup.placing import verify_backup  # noqa: PLC0415 - the same

    with tempfile.TemporaryDirectory(prefix=".reverie-verify-", dir=file.parent) as half, _step_progress() as told:
        return verify_backup(file, Path(half) / "all", told)


def _print_backup(made: "BackupReport") -> int:
    print(f"{made.path}: {made.size_bytes / 1e6:.1f} MB, {_describe_manifest(made.manifest)}")
    for name in made.manifest.left_out:
        print(f"left out, as it is no plain file: {escape_unprintable(name)}")
    for one in made.differences:
        print(
            f"{one.table} differs from the log: {one.missing} missing and {one.extra} extra rows; the backup is right"
        )
    if made.differences:
        print("mend the running store: stop the gateway, and run `reverie log rebuild`")
    return 1 if made.differences else 0


def _print_verified(verified: "VerifiedBackup") -> None:
    print(
        f"it can be restored: {_describe_manifest(verified.manifest)}, made "
        f"{verified.manifest.made:%Y-%m-%d %H:%M:%S} UTC"
    )
    for one in verified.differences:
        print(f"{one.table} differs from the log: {one.missing} missing and {one.extra} extra rows; a restore mends it")


def _print_restored(done: "RestoreReport", *, exact: bool) -> None:
    _print_verified(done.verified)
    for place in done.restored_paths:
        print(f"restored: {place}")
    for place in done.kept_paths:
        print(f"kept, what was there before: {place}")
    settled = done.reconciled
    if exact:
        print("it goes on exactly where the backup stopped; had a gateway run since, people would see things twice")
        return
    print(
        f"{settled.uncertain_posts} posts that waited may have been sent since: they are uncertain, and not sent again"
    )
    print(
        f"{settled.unread_conversations} conversations had something unanswered: it is told with the next message there"
    )
    for name in settled.reset_channels:
        print(f"{name} begins anew: what was said there since the backup is not read from its history")
    print("who was let in, blocked or given a role since is as it was; reminders that were due since come, late")


def _describe_manifest(manifest: "BackupManifest") -> str:
    replayed = ", every table is what the log says" if manifest.replayed else ""
    return f"{manifest.entries} log entries up to {manifest.last}, integrity checked{replayed}"


@contextlib.contextmanager
def _step_progress() -> Iterator[Callable[[str, int, int], None]]:
    """How far the step is that is being done; each takes the place of the one before."""
    with contextlib.ExitStack() as shown:
        step, tell = "", None

        def told(what: str, done: int, whole: int) -> None:
            nonlocal step, tell
            words, unit, size = _BACKUP_STEPS[what]
            if what != step or tell is None:
                shown.close()
                step, tell = what, shown.enter_context(show_progress(words, unit))
            tell(done // size, whole // size)

        yield told
