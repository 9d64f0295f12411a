"""Restoring a backup: extract, verify, and put in place. Blocks.

Nothing in the archive is trusted. Everything is extracted, verified and prepared beside its target; only then it is
moved into place, all at once (`gateway.store.files`). Until then nothing is changed.

The gateway may have gone on after the backup: waiting posts may have been sent, unread messages answered, and events in
a platform's history processed. Repeating any of it could show people something twice. So `reconcile_restored` records
posts as uncertain, turns unread messages into context, resets history cursors, and reports how much there was.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from gateway.cli.backup import (
    ARCHIVE_NAME,
    MANIFEST_NAME,
    STORE_NAME,
    BackupManifest,
    BackupMember,
    InvalidBackup,
    backup_roots,
    is_safe_name,
    parse_manifest,
    root_name,
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
from gateway.store import NewEntry, Store, StoreReader, StoreUnreadable, TableDifference
from gateway.store.files import (
    FileMove,
    check_store,
    finish_moves,
    move_files,
    move_plan_path,
    seal_store,
)
from gateway.store.mark import mark_path
from gateway.store.rebuild import rebuild_blocking
from gateway.store.schema import StoreLock, migrate_schema, newest_schema

_READ_BYTES: Final = 1 << 20
_MAX_TURNS: Final = 50
"""Turns that are searched for an interrupted one, as `gateway.runtime.agents` does at start."""
_MAX_MANIFEST_BYTES: Final = 64 << 20
"""Enough for about 400,000 files."""
_DAMAGED: Final = "it is cut off or damaged: copy it again, or take an earlier one"

ReadProgress = Callable[[int, int], None]
"""Called now and then with the bytes read, and all bytes."""


def extract_backup(archive: Path, into: Path, progress: ReadProgress = lambda _done, _whole: None) -> BackupManifest:
    """Extract a backup into the new directory `into` and compare it with its manifest.

    Files become plain and private to their owner. Raises InvalidBackup, whatever the archive contains, and OSError;
    what was written until then stays.
    """
    into.mkdir(mode=0o700)
    whole, found = archive.stat().st_size, dict[str, BackupMember]()
    manifest: BackupManifest | None = None
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for header in tar:
                if manifest is not None:
                    raise InvalidBackup(f"something stands behind its manifest: {_DAMAGED}")
                data = _open_member(tar, header, found.keys())
                if header.name == MANIFEST_NAME:
                    manifest = parse_manifest(_read_manifest(data, header.size))
                else:
                    found[header.name] = _extract_member(data, header, into)
                progress(tar.offset, whole)
    except (tarfile.TarError, EOFError, UnicodeError, ValueError, OverflowError):
        raise InvalidBackup(f"it is no backup, or {_DAMAGED}") from None
    if manifest is None:
        raise InvalidBackup(f"it has no manifest: {_DAMAGED}")
    _compare_members(manifest, found)
    for root in manifest.roots:
        _make_private_directory(into / root)
    return manifest


def _open_member(tar: tarfile.TarFile, header: tarfile.TarInfo, known: Collection[str]) -> IO[bytes]:
    if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or header.issparse():
        raise InvalidBackup(f"{header.name!r} in it is no plain file: no reverie made this; do not use it")
    if header.name != MANIFEST_NAME and not is_safe_name(header.name):
        raise InvalidBackup(f"{header.name!r} in it is no name of a backup: no reverie made this; do not use it")
    if header.name in known:
        raise InvalidBackup(f"{header.name!r} is twice in it: no reverie made this; do not use it")
    data = tar.extractfile(header)
    assert data is not None, "a plain file has content"
    return data


def _read_manifest(data: IO[bytes], size: int) -> bytes:
    if size > _MAX_MANIFEST_BYTES:
        raise InvalidBackup(f"its manifest has {size} bytes: no reverie made this; do not use it")
    return data.read(size)


def _extract_member(data: IO[bytes], header: tarfile.TarInfo, into: Path) -> BackupMember:
    path = into / header.name
    _make_private_directory(path.parent)
    mode = 0o700 if header.mode & 0o100 else 0o600
    digest, size = hashlib.sha256(), 0
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(opened, "wb") as file:
        while piece := data.read(_READ_BYTES):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(opened)
    return BackupMember(name=header.name, size_bytes=size, sha256=digest.hexdigest())


def _make_private_directory(directory: Path) -> None:
    """Create a directory and its parents, all private: `parents` of mkdir() would not make the parents private."""
    if not directory.is_dir():
        _make_private_directory(directory.parent)
        directory.mkdir(mode=0o700)


def _compare_members(manifest: BackupManifest, found: Mapping[str, BackupMember]) -> None:
    listed = {one.name: one for one in manifest.members}
    for name in sorted(listed.keys() | found.keys()):
        if name not in found:
            raise InvalidBackup(f"{name!r} is missing in it: {_DAMAGED}")
        if listed.get(name) != found[name]:
            raise InvalidBackup(f"{name!r} in it is not what was put there: {_DAMAGED}")
        if name != root_name(name) and root_name(name) not in manifest.roots:
            raise InvalidBackup(f"{name!r} in it belongs nowhere: no reverie made this; do not use it")


def _digest_tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): _digest_file(path)
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def _digest_file(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return "no plain file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


HISTORY_PLATFORMS: Final = frozenset({"irc", "discord"})
"""Platforms whose history is read from a cursor. Telegram only delivers updates that were not confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """Numbers of what was reconciled."""

    uncertain_posts: int
    """Posts that were waiting and are uncertain now."""
    unread_conversations: int
    """Conversations with unanswered messages, which are context now."""
    reset_channels: tuple[str, ...]
    """Channels whose history cursor was reset."""


async def reconcile_restored(
    path: Path, settings: Settings, clock: Clock, *, made: datetime, by: str, exact: bool
) -> ReconcileReport:
    """Reconcile the restored store at `path`, in one transaction. Raises StoreError.

    `exact`: no gateway ran since the backup, so only the audit entry is written. `made`: time of the backup. `by`: who
    restores, for people.
    """
    async with await Store.open(path, clock) as store:
        now, why = clock.now(), f"restored from a backup of {made:%Y-%m-%d %H:%M:%S} UTC"
        posts = () if exact else await store.undelivered_posts()
        with_history = [
            ChannelName(name) for name, one in settings.channels.items() if one.platform in HISTORY_PLATFORMS
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
            entries.append(NewEntry(fact=ended, at=now, conversation=item.post.to.conversation, key=dedup_key(ended)))
        if not exact:
            unanswered = f"{why}: it may have been answered since"
            closing, conversations = await build_unanswered_entries(store, now, unanswered, settings.agents[0].id)
            entries, unread = entries + closing, len(conversations)
        entries += [NewEntry(fact=CursorMoved(channel=name, value=""), at=now) for name in cursors]
        await store.append(entries)
    return ReconcileReport(uncertain_posts=len(posts), unread_conversations=unread, reset_channels=tuple(cursors))


async def build_unanswered_entries(
    store: StoreReader, now: datetime, why: str, agent: str
) -> tuple[list[NewEntry], Collection[ConversationId]]:
    """Return the entries that take unread messages as perhaps answered, and the conversations that have some.

    They become context for the next turn there. `why`: the reason, for people.
    """
    due = [place for place, _ in await store.due_conversations(LOW)]
    interrupted, last = await _find_interrupted(store), await store.last_position()
    entries = [_closing_turn_entry(now, place, why) for place in interrupted]
    if due:
        looked = tuple((place, last) for place in due)
        entries.append(_closing_turn_entry(now, inner_conversation(agent), why, agent=agent, looked=looked))
    return entries, {*due, *interrupted}


async def _find_interrupted(store: StoreReader) -> dict[ConversationId, tuple[Seq, Seq]]:
    """Return the first and last of the newest turns of conversations, where they were interrupted.

    The next start would answer them again.
    """
    found = dict[ConversationId, tuple[Seq, Seq]]()
    for one in await store.newest_entries(_MAX_TURNS, kinds=["turn_ended"]):
        place, fact = one.conversation, one.fact
        if place is None or is_inner(place) or not isinstance(fact, TurnRecord) or fact.cause == "compact":
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
    """Build a turn without output that marks due messages as looked at. It consumes no unread messages."""
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


_STAGING_SUFFIX: Final = ".restoring"
_SQLITE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""Files of SQLite beside the store. Those of another store would be taken for this one's
(https://www.sqlite.org/howtocorrupt.html).
"""

RestoreProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBackup:
    """Findings on a usable backup."""

    manifest: BackupManifest
    differences: tuple[TableDifference, ...]
    """Tables that differed from the log and are corrected. Not compared for an older schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """Result of a restore."""

    verified: VerifiedBackup
    reconciled: ReconcileReport
    restored_paths: tuple[Path, ...]
    kept_paths: tuple[Path, ...]
    """New paths of what was there before."""


def verify_backup(archive: Path, into: Path, progress: RestoreProgress) -> VerifiedBackup:
    """Extract the backup into the new directory `into` and check its store.

    Raises InvalidBackup, OSError, StoreError.
    """
    manifest = extract_backup(archive, into, lambda done, whole: progress("read", done, whole))
    if manifest.schema_version > newest_schema():
        raise InvalidBackup(
            f"it has schema {manifest.schema_version} and this reverie knows up to {newest_schema()}: "
            f"restore it with reverie {manifest.version} or newer"
        )
    store = into / STORE_NAME
    if not store.exists():
        raise InvalidBackup("it holds no store: no reverie made this; do not use it")
    found = check_store(store)
    if (found.schema, found.entries, found.last) != (manifest.schema_version, manifest.entries, manifest.last):
        raise InvalidBackup("its store is not the one that its manifest tells of: do not use it")
    current = found.schema == newest_schema()
    differences = (
        rebuild_blocking(
            store, lambda done, whole: progress("replayed", done, whole), SystemClock(), into / ARCHIVE_NAME
        )
        if current
        else []
    )
    seal_store(store)
    return VerifiedBackup(manifest=manifest, differences=tuple(differences))


def restore_backup(
    archive: Path, settings: Settings, now: datetime, *, replace: bool, exact: bool, by: str, progress: RestoreProgress
) -> RestoreReport:
    """Verify a backup, prepare it, and put it in place. `exact`, `by`: see `reconcile_restored`.

    `replace`: what is there and differs is renamed, with the time in its name; without it that is an error. The gateway
    must not run: raises StoreInUse; also InvalidBackup, FileExistsError, OSError, StoreError. Until the last step
    nothing existing is changed.
    """
    store = settings.store.path
    if settings.store.url is not None:
        raise StoreUnreadable(
            "a backup is restored into a file: take store.url out of the configuration, restore, bring the file into "
            "an empty database with `reverie store copy`, and put store.url back"
        )
    _make_owned_directory(store.parent)
    lock = StoreLock(store, now)
    try:
        finish_moves(store)
        with _restore_staging(store.parent) as staging:
            verified = verify_backup(archive, staging / "all", progress)
            targets = {
                name: target
                for name, target in _target_paths(verified.manifest, settings).items()
                if name == STORE_NAME or not _is_in_place(staging, name, target)
            }
            occupied = ", ".join(str(target) for target in targets.values() if _is_occupied(target))
            if occupied and not replace:
                raise FileExistsError(
                    f"there is something else at {occupied}: --replace keeps it beside, as *.before-..."
                )
            migrate_schema(staging / "all" / STORE_NAME)  # the backup still has the old schema
            made = verified.manifest.made
            reconciling = reconcile_restored(
                staging / "all" / STORE_NAME, settings, SystemClock(), made=made, by=by, exact=exact
            )
            settled = asyncio.run(reconciling)
            seal_store(staging / "all" / STORE_NAME)
            with _staged_targets(staging / "all", targets, store) as ready:
                moves = _plan_moves(ready, targets, store, f".before-{now:%Y%m%dT%H%M%SZ}")
                move_files(store, moves)
            _chown_like(store.with_name(f"{store.name}.lock"), store.parent)
        kept = tuple(move.old for move in moves if move.old is not None and os.path.lexists(move.old))
        return RestoreReport(
            verified=verified, reconciled=settled, restored_paths=tuple(targets.values()), kept_paths=kept
        )
    finally:
        lock.release()


@contextlib.contextmanager
def _restore_staging(directory: Path) -> Iterator[Path]:
    """Create a temporary directory; remove what a kill left of one. The store's lock is held."""
    for stale in directory.glob(f"{_STAGING_SUFFIX}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{_STAGING_SUFFIX}-", dir=directory))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _target_paths(manifest: BackupManifest, settings: Settings) -> dict[str, Path]:
    """Return the target of each root and of the store. Raises InvalidBackup for a root without a target."""
    known = {root.name: root.path for root in backup_roots(settings)} | {STORE_NAME: settings.store.path}
    for name in manifest.roots:
        if name not in known and any(one.name.startswith(f"{name}/") for one in manifest.members):
            kind, _, agent = name.partition("/")
            what = f"the agent {agent}" if kind == "mind" else f"`{kind}` of the agent {agent}"
            raise InvalidBackup(
                f"it holds files of {what}, which the configuration does not name: add that, and restore"
            )
    return {name: known[name] for name in (*manifest.roots, STORE_NAME) if name in known}


def _is_in_place(staging: Path, name: str, target: Path) -> bool:
    is_directory = target.is_dir() and not target.is_symlink()
    return is_directory and _digest_tree(staging / "all" / name) == _digest_tree(target)


def _is_occupied(path: Path) -> bool:
    if os.path.ismount(path):
        raise OSError(f"{path} is a mount, and cannot be moved: mount what is above it, and restore")
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return os.path.lexists(path)


@contextlib.contextmanager
def _staged_targets(all_: Path, targets: dict[str, Path], store: Path) -> Iterator[dict[str, Path]]:
    """Move each root beside its target, on the same file system, under a temporary name.

    If the final move was interrupted they stay: whoever opens the store next completes it.
    """
    ready = dict[str, Path]()
    try:
        for name, target in targets.items():
            _make_owned_directory(target.parent)
            beside = target.with_name(f"{target.name}{_STAGING_SUFFIX}")
            _remove_path(beside)
            ready[name] = beside
            try:
                (all_ / name).rename(beside)
            except OSError:  # another file system
                _copy_durably(all_ / name, beside)
            _chown_like(beside, target.parent)
        yield ready
    finally:
        for beside in () if move_plan_path(store).exists() else ready.values():
            _remove_path(beside)


def _copy_durably(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
    for path in [target, *target.rglob("*")] if target.is_dir() else [target]:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _make_owned_directory(directory: Path) -> None:
    if not directory.is_dir():
        _make_owned_directory(directory.parent)
        directory.mkdir(mode=0o700)
        _chown_like(directory, directory.parent)


def _chown_like(path: Path, like: Path) -> None:
    """As root, give files to the owner of the directory: the gateway runs as that user."""
    if os.geteuid() == 0:
        owner = like.stat()
        for one in [path, *path.rglob("*")]:
            os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _plan_moves(ready: dict[str, Path], targets: dict[str, Path], store: Path, suffix: str) -> list[FileMove]:
    """Plan the moves, the store last: its mark and SQLite's files of the old store move with it."""

    def old(path: Path) -> Path | None:
        return path.with_name(f"{path.name}{suffix}").absolute() if os.path.lexists(path) else None

    moves = [
        FileMove(new=beside.absolute(), place=targets[name].absolute(), old=old(targets[name]))
        for name, beside in ready.items()
        if name != STORE_NAME
    ]
    sides = [mark_path(store), *(store.with_name(f"{store.name}{side}") for side in _SQLITE_SUFFIXES)]
    moves += [FileMove(new=None, place=side.absolute(), old=old(side)) for side in sides if os.path.lexists(side)]
    return [*moves, FileMove(new=ready[STORE_NAME].absolute(), place=store.absolute(), old=old(store))]


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
