"""Restoring a backup: extract it, compare it with its checksums, and put it in place. Blocks.

Nothing in the archive is trusted: it makes plain files in the configured places, and nothing else.
All of it is extracted and checked beside these places, which must be empty, and only then moved
into them, the store last. A backup that is damaged is refused, and leaves nothing behind.

The gateway may have gone on after the backup: waiting posts may have been sent, unread messages
answered, and events in a platform's history processed. Repeating any of it could show people
something twice. So `reconcile_restored` records posts as uncertain, turns unread messages into
context, resets history cursors, and reports how much there was.
"""

import argparse
import asyncio
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from gateway.command_line import (
    current_user,
    fill_command,
    find_config,
    load_settings,
    report_failure,
)
from gateway.config.models import Settings
from gateway.core.clock import Clock, SystemClock, new_id
from gateway.core.control_messages import OPERATOR, OPERATOR_EVIDENCE
from gateway.core.events import ChannelName, ConversationId, DeliveryReport, EventId, Usage
from gateway.core.facts import (
    LOW,
    AuditRecord,
    CursorMoved,
    Seq,
    TurnId,
    TurnRecord,
    dedup_key,
    inner_conversation,
    is_inner,
)
from gateway.core.frozen import frozen
from gateway.core.labels import TRUSTED_LABEL
from gateway.plugins.backup.create import (
    OUTFILES_NAME,
    STORE_NAME,
    SUMS_NAME,
    InvalidBackup,
    backup_roots,
    describe_store,
    explain_full_disk,
    is_safe_name,
)
from gateway.store import NewEntry, Store, StoreError, StoreReader, StoreUnreadable
from gateway.store.files import StoreSummary, check_store, mark_path, seal_store, sync_directory
from gateway.store.schema import StoreLock, migrate_schema

_MAX_TURNS: Final = 50
"""Turns that are searched for an interrupted one, as `gateway.runtime.agents` does at start."""
_MAX_SUMS_BYTES: Final = 64 << 20
"""Enough for about 400,000 files."""
_DAMAGED: Final = "it is cut off or damaged: copy it again, or take an earlier one"
_FOREIGN: Final = "no reverie made this; do not use it"
_SQLITE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""Files of SQLite beside the store. Those of another store would be taken for this one's
(https://www.sqlite.org/howtocorrupt.html).
"""


def extract_backup(archive: Path, place: Callable[[str], Path]) -> datetime:
    """Extract a backup, compare it with its checksums, and return when it was made.

    `place`: returns the path for a file, which does not exist. Files become plain and private to
    their owner. Raises InvalidBackup, whatever the archive contains, and OSError; what was written
    until then stays.
    """
    found, sums, made = dict[str, str](), None, datetime.now(UTC)
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for header in tar:
                if sums is not None:
                    raise InvalidBackup(f"something stands behind its checksums: {_DAMAGED}")
                data = _open_member(tar, header, found)
                if header.name == SUMS_NAME:
                    sums, made = (
                        data.read(_MAX_SUMS_BYTES).decode(),
                        datetime.fromtimestamp(header.mtime, UTC),
                    )
                else:
                    found[header.name] = _extract_file(
                        data, place(header.name), runs=bool(header.mode & 0o100)
                    )
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError):
        raise InvalidBackup(f"it is no backup, or {_DAMAGED}") from None
    if sums is None:
        raise InvalidBackup(f"it has no checksums: {_DAMAGED}")
    listed = {
        name: digest for digest, _, name in (line.partition("  ") for line in sums.splitlines())
    }
    for name in sorted(listed.keys() | found.keys()):
        if name not in found:
            raise InvalidBackup(f"{name!r} is missing in it: {_DAMAGED}")
        if listed.get(name) != found[name]:
            raise InvalidBackup(f"{name!r} in it is not what was put there: {_DAMAGED}")
    if STORE_NAME not in found:
        raise InvalidBackup(f"it holds no store: {_FOREIGN}")
    return made


def _open_member(
    tar: tarfile.TarFile, header: tarfile.TarInfo, known: Collection[str]
) -> IO[bytes]:
    if not header.isreg() or header.issparse():
        raise InvalidBackup(f"{header.name!r} in it is no plain file: {_FOREIGN}")
    if header.name != SUMS_NAME and not is_safe_name(header.name):
        raise InvalidBackup(f"{header.name!r} in it is no name of a backup: {_FOREIGN}")
    if header.name in known:
        raise InvalidBackup(f"{header.name!r} is twice in it: {_FOREIGN}")
    data = tar.extractfile(header)
    assert data is not None, "a plain file has content"
    return data


def _extract_file(data: IO[bytes], path: Path, *, runs: bool) -> str:
    """Write a file durably, and return its digest."""
    digest = hashlib.sha256()
    opened = os.open(
        path,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o700 if runs else 0o600,
    )
    with os.fdopen(opened, "wb") as file:
        while piece := data.read(1 << 20):
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(opened)
    return digest.hexdigest()


@frozen
class ReconcileReport:
    """Numbers of what was reconciled."""

    uncertain_posts: int
    unread_conversations: int
    """Conversations with unanswered messages, which are context now."""
    reset_channels: tuple[str, ...]
    """Channels whose history cursor was reset."""


async def reconcile_restored(
    path: Path, settings: Settings, clock: Clock, *, made: datetime, by: str, exact: bool
) -> ReconcileReport:
    """Reconcile the restored store at `path`, in one transaction. Raises StoreError.

    `exact`: no gateway ran since the backup, so only the audit entry is written. `made`: time of
    the backup. `by`: who restores, for people.
    """
    async with await Store.open(path, clock) as store:
        now, why = clock.now(), f"restored from a backup of {made:%Y-%m-%d %H:%M:%S} UTC"
        posts = () if exact else await store.undelivered_posts()
        with_history = [
            ChannelName(name) for name, one in settings.channels.items() if one.reads_history
        ]
        cursors = () if exact else [name for name in with_history if await store.saved_cursor(name)]
        entries, unread = [_audit_entry(now, by, why, exact=exact)], 0
        for item in posts:
            ended = DeliveryReport(
                id=EventId(item.post.key),
                at=item.post.to,
                post=item.post.key,
                state="uncertain",
                reason=f"{why}: it may have been sent since",
                sent=now,
            )
            entries.append(
                NewEntry(
                    fact=ended, at=now, conversation=item.post.to.conversation, key=dedup_key(ended)
                )
            )
        if not exact:
            unanswered = f"{why}: it may have been answered since"
            closing, conversations = await build_unanswered_entries(
                store, now, unanswered, settings.agents[0].id
            )
            entries, unread = entries + closing, len(conversations)
        entries += [NewEntry(fact=CursorMoved(channel=name, value=""), at=now) for name in cursors]
        await store.append(entries)
    return ReconcileReport(
        uncertain_posts=len(posts), unread_conversations=unread, reset_channels=tuple(cursors)
    )


async def build_unanswered_entries(
    store: StoreReader, now: datetime, why: str, agent: str
) -> tuple[list[NewEntry], Collection[ConversationId]]:
    """Return the entries that take unread messages as perhaps answered, and the conversations that
    have some.

    They become context for the next turn there. `why`: the reason, for people.
    """
    due = [place for place, _ in await store.due_conversations(LOW)]
    interrupted, last = await _find_interrupted(store), await store.last_position()
    entries = [_closing_turn_entry(now, place, why) for place in interrupted]
    if due:
        looked = tuple((place, last) for place in due)
        entries.append(
            _closing_turn_entry(now, inner_conversation(agent), why, agent=agent, looked=looked)
        )
    return entries, {*due, *interrupted}


async def _find_interrupted(store: StoreReader) -> dict[ConversationId, tuple[Seq, Seq]]:
    """Return the first and last of the newest turns of conversations, where they were interrupted.

    The next start would answer them again.
    """
    found = dict[ConversationId, tuple[Seq, Seq]]()
    for one in await store.newest_entries(_MAX_TURNS, kinds=["turn_ended"]):
        place, fact = one.conversation, one.fact
        if (
            place is None
            or is_inner(place)
            or not isinstance(fact, TurnRecord)
            or fact.cause == "compact"
        ):
            continue
        if fact.outcome == "interrupted":
            found[place] = found.get(place, (one.seq, one.seq))[0], one.seq
        else:
            found.pop(place, None)
    return found


def _closing_turn_entry(
    now: datetime,
    place: ConversationId,
    reason: str,
    *,
    agent: str = "",
    looked: tuple[tuple[ConversationId, Seq], ...] = (),
) -> NewEntry:
    """Build a turn without output that marks due messages as looked at. It consumes no unread
    messages.
    """
    turn = TurnId(new_id(now))
    fact = TurnRecord(
        turn=turn,
        covers=(),
        omitted=0,
        heard="",
        upto=Seq(0),
        outcome="yielded",
        text="",
        reason=reason,
        model="",
        usage=Usage(),
        requests=0,
        autonomous=False,
        agent=agent,
        looked=looked,
        label=TRUSTED_LABEL,  # it holds no text
    )
    return NewEntry(fact=fact, at=now, conversation=place, key=f"turn:{turn}")


def _audit_entry(now: datetime, by: str, why: str, *, exact: bool) -> NewEntry:
    fact = AuditRecord(
        what="restore",
        by=OPERATOR,
        name=by,
        evidence=OPERATOR_EVIDENCE,
        role=OPERATOR,
        rule="the command line",
        at=None,
        args="--nothing-since" if exact else "",
        ok=True,
        result=why,
    )
    return NewEntry(fact=fact, at=now)


@frozen
class RestoreReport:
    """Result of a restore."""

    made: datetime
    """Time of the backup, UTC."""
    store: StoreSummary
    reconciled: ReconcileReport
    restored_paths: tuple[Path, ...]


def _check_extracted(store: Path) -> StoreSummary:
    """Check a store as `check_store` does. An error names it as the backup's, not by where it is
    for a moment.
    """
    try:
        return check_store(store)
    except StoreError as error:
        raise type(error)(str(error).replace(str(store), "the backup's store")) from error


def verify_backup(archive: Path) -> tuple[datetime, StoreSummary]:
    """Extract a backup beside it for a moment. Return when it was made, and what its store has.

    Raises InvalidBackup, OSError, StoreError.
    """
    with tempfile.TemporaryDirectory(prefix=".reverie-verify-", dir=archive.parent) as half:

        def place(name: str) -> Path:
            _make_directory((path := Path(half, name)).parent)
            return path

        return extract_backup(archive, place), _check_extracted(Path(half, STORE_NAME))


def restore_backup(
    archive: Path, settings: Settings, now: datetime, *, exact: bool, by: str
) -> RestoreReport:
    """Verify a backup, and put it into places where nothing is. `exact`, `by`: see
    `reconcile_restored`.

    Raises FileExistsError if something is there, InvalidBackup, OSError and StoreError, StoreInUse
    among them: then nothing is left.
    """
    store = settings.store.path
    if settings.store.url is not None:
        raise StoreUnreadable(
            "a backup is restored into a file: take store.url out of the configuration, restore, "
            "bring the file into an empty database with `reverie store copy`, and put store.url "
            "back"
        )
    places = _Places(settings)
    _check_empty(store)
    _make_directory(store.parent)
    lock = StoreLock(store, now)
    try:
        made = extract_backup(archive, places.make)
        fresh = places.staged[store]
        found = _check_extracted(fresh)
        migrate_schema(fresh)  # the backup still has the old schema
        reconciled = asyncio.run(
            reconcile_restored(fresh, settings, SystemClock(), made=made, by=by, exact=exact)
        )
        seal_store(fresh)
        mark_path(store).unlink(missing_ok=True)  # of a store that is gone
        places.publish()
        return RestoreReport(
            made=made, store=found, reconciled=reconciled, restored_paths=tuple(places.staged)
        )
    finally:
        places.clear()
        _chown_like(store.with_name(f"{store.name}.lock"), store.parent)
        lock.release()


class _Places:
    def __init__(self, settings: Settings) -> None:
        self._store = settings.store.path
        self._roots = {root.name: root.path for root in backup_roots(settings)}
        self.staged = dict[Path, Path]()
        """Where each file of the store, and each directory, is until it is moved."""

    def make(self, name: str) -> Path:
        """Return where to extract a file. Raises InvalidBackup, FileExistsError and OSError."""
        if name.startswith(STORE_NAME):
            return self._stage(
                self._store.with_name(f"{self._store.name}{name.removeprefix(STORE_NAME)}")
            )
        top, below, *_ = name.split("/")
        root = top if top == OUTFILES_NAME else f"{top}/{below}"
        if root not in self._roots:
            raise InvalidBackup(
                f"it holds {root}, which the configuration does not name: add that, and restore"
            )
        path = self._stage(self._roots[root]) / name.removeprefix(f"{root}/")
        _make_directory(path.parent)
        return path

    def _stage(self, target: Path) -> Path:
        if target not in self.staged:
            _check_empty(target)
            staged = target.parent / ".restoring" / target.name
            if staged.parent not in {one.parent for one in self.staged.values()}:
                shutil.rmtree(staged.parent, ignore_errors=True)  # left by a kill
            _make_directory(staged.parent)
            self.staged[target] = staged
        return self.staged[target]

    def publish(self) -> None:
        """Move all to their places, the store last. Raises OSError; then none of it is there."""
        moved = list[Path]()
        try:
            for target, staged in sorted(
                self.staged.items(), key=lambda one: one[0] == self._store
            ):
                _chown_like(staged, target.parent)
                staged.rename(target)
                moved.append(target)
                sync_directory(target.parent)
        except BaseException:
            for target in moved:
                if target.is_dir():
                    shutil.rmtree(target)
                else:
                    target.unlink(missing_ok=True)
            raise

    def clear(self) -> None:
        """Remove what was not moved."""
        for directory in {staged.parent for staged in self.staged.values()}:
            shutil.rmtree(directory, ignore_errors=True)


def _check_empty(target: Path) -> None:
    """Raises FileExistsError if something is there, and OSError for a mount."""
    if os.path.ismount(target):
        raise OSError(
            f"{target} is a mount, and cannot be replaced: mount what is above it, and restore"
        )
    for path in (
        target,
        *(target.with_name(f"{target.name}{suffix}") for suffix in _SQLITE_SUFFIXES),
    ):
        if os.path.lexists(path) and (
            path.is_symlink() or not path.is_dir() or any(path.iterdir())
        ):
            raise FileExistsError(
                f"there is something at {path}: a backup is restored where nothing is; move it away"
            )


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents, all private: `parents` of mkdir() would not make the
    parents private.
    """
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(mode=0o700)
        _chown_like(directory, directory.parent)


def _chown_like(path: Path, like: Path) -> None:
    """As root, give files to the owner of the directory: the gateway runs as that user."""
    if os.geteuid() == 0:
        owner = like.stat()
        for one in [path, *path.rglob("*")]:
            os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie restore`. Exit codes: 0 done; 1 interrupted, or the disk failed; 2
    refused.
    """
    fill_command(parser, _run, where="maybe config")
    parser.add_argument("file", type=Path, metavar="FILE", help="the backup")
    parser.add_argument(
        "--verify", action="store_true", help="only check whether it can be restored"
    )
    text = (
        "continue exactly where the backup stopped, e.g. on another machine; only if no gateway "
        "ran since"
    )
    parser.add_argument("--nothing-since", action="store_true", help=text)


def _run(args: argparse.Namespace) -> int:
    try:
        if args.verify:
            made, store = verify_backup(args.file)
            print(f"it can be restored: {describe_store(store)}, made {made:%Y-%m-%d %H:%M:%S} UTC")
            return 0
        settings = load_settings(find_config(args.config))
        report = restore_backup(
            args.file, settings, datetime.now(UTC), exact=args.nothing_since, by=current_user()
        )
    except InvalidBackup as error:
        return report_failure("restore", ValueError(f"{args.file} cannot be restored: {error}"))
    except (StoreError, OSError) as error:
        changed_nothing = "nothing was restored, and the backup is as it was"
        remedy = "make room where the backup is" if args.verify else "make room at the store"
        return report_failure("restore", explain_full_disk(error, f"{changed_nothing}: {remedy}"))
    except KeyboardInterrupt:
        print("interrupted: nothing was restored", file=sys.stderr)
        return 1
    _print_restored(report, exact=args.nothing_since)
    return 0


def _print_restored(report: RestoreReport, *, exact: bool) -> None:
    for place in report.restored_paths:
        print(f"restored: {place}")
    print(f"a backup of {report.made:%Y-%m-%d %H:%M:%S} UTC, {describe_store(report.store)}")
    changes = report.reconciled
    if exact:
        print(
            "it continues exactly where the backup stopped; if a gateway ran since, people would "
            "see messages twice"
        )
        return
    print(
        f"{changes.uncertain_posts} waiting posts may have been sent since: they are uncertain and "
        "are not sent again"
    )
    print(
        f"{changes.unread_conversations} conversations had unanswered messages: "
        "the agent sees them with the next message there"
    )
    for name in changes.reset_channels:
        print(f"{name} starts again: messages since the backup are not read from its history")
    print("approvals, blocks and roles since the backup are lost; reminders of that time come late")
