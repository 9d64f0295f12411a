"""What is so about the store. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gateway.probes.base import Finding

LOW_SPACE_BYTES: Final = 1_000_000_000
"""Free space below which a store that grows by its usual megabytes a day fills the disk within months."""
NO_SPACE_BYTES: Final = 100_000_000
"""Below that the next media file or backup may be the last."""
LARGE_WAL_BYTES: Final = 268_435_456
"""Four times what the writer lets stand (`journal_size_limit`): somebody holds an old view of the store open."""
RECENT_S: Final = 86_400.0
"""What is longer ago people have dealt with, or never will."""
LONG_WAIT_S: Final = 600.0
"""A post that waits longer than any platform's usual limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreObservation:
    """The file as it was found."""

    path: str
    exists: bool
    directory_problem: str = ""
    """Why its directory cannot be used; empty: it can."""
    open_problem: str = ""
    """Why it cannot be opened; empty: it can."""
    schema: int = 0
    newest_schema: int = 0
    """The schema that this version knows."""
    damage: tuple[str, ...] = ()
    checked: Literal["whole", "partly", "no"] = "no"
    size_bytes: int = 0
    wal_bytes: int = 0
    free_bytes: int = 0
    writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxObservation:
    """Posts that are not delivered."""

    waiting: int
    oldest_s: float
    """0: none waits."""
    uncertain: int
    """Of which nobody knows whether people have seen them, lately."""


def judge_store(seen: StoreObservation) -> Iterator[Finding]:
    """Whether it can be used, and for how long."""
    yield from _judge_space(seen)
    if seen.directory_problem:
        yield _bad_finding(
            seen,
            "store.directory",
            f"its directory cannot be used: {seen.directory_problem}",
            "make that directory writable for the gateway's user, or set store.path to another",
        )
        return
    if not seen.exists:
        yield Finding(
            code="store.file", level="ok", what="there is none yet; the first start makes it", where=seen.path
        )
        return
    if not seen.writable:
        yield _bad_finding(
            seen,
            "store.readonly",
            "the gateway's user cannot read and write it",
            "chown it to the user that runs the gateway (mode 600), or look whether its disk is mounted read-only",
        )
        return
    if seen.open_problem:
        yield _bad_finding(
            seen,
            "store.foreign",
            seen.open_problem,
            "set store.path to the right file, or restore a backup (`reverie restore FILE --config DIR`)",
        )
        return
    if seen.damage:
        yield _bad_finding(
            seen,
            "store.damaged",
            f"the file is damaged: {'; '.join(seen.damage[:3])}",
            "stop the gateway, keep a copy, look at the disk, and restore the newest backup "
            "(`reverie restore FILE --config DIR`)",
        )
        return
    yield from _judge_schema(seen)
    extent = "whole" if seen.checked == "whole" else "looked through in part, for want of time, and good so far"
    yield Finding(
        code="store.file",
        level="ok",
        what=f"{_format_size(seen.size_bytes)}, schema {seen.schema}, {extent}",
        where=seen.path,
    )


def judge_outbox(seen: OutboxObservation, *, running: bool, where: str) -> Iterator[Finding]:
    """What waits to be delivered."""
    if seen.uncertain:
        yield Finding(
            code="store.uncertain",
            level="warning",
            what=f"of {seen.uncertain} post(s) since yesterday nobody knows whether people have seen them",
            fix="see `reverie log show --kind delivery`, and say it again by hand where it matters",
            where=where,
        )
    if seen.waiting and (not running or seen.oldest_s > LONG_WAIT_S):
        how = "the gateway is stopped" if not running else f"the oldest for {seen.oldest_s / 60:.0f} minutes"
        yield Finding(
            code="store.waiting",
            level="warning",
            what=f"{seen.waiting} post(s) wait to be delivered; {how}",
            fix="start the gateway" if not running else "see the findings of the channels that they are for",
            where=where,
        )
    elif not seen.uncertain:
        yield Finding(code="store.outbox", level="ok", what="everything is delivered", where=where)


def _judge_schema(seen: StoreObservation) -> Iterator[Finding]:
    if seen.schema > seen.newest_schema:
        yield _bad_finding(
            seen,
            "store.schema",
            f"a newer reverie wrote it (schema {seen.schema}, this one knows up to {seen.newest_schema})",
            "upgrade the program to that version again, or restore a backup from before",
        )
    elif seen.schema < seen.newest_schema:
        yield Finding(
            code="store.older",
            level="ok",
            what=f"it has the older schema {seen.schema}; the next start brings it to {seen.newest_schema}",
            where=seen.path,
        )


def _judge_space(seen: StoreObservation) -> Iterator[Finding]:
    if seen.free_bytes < LOW_SPACE_BYTES:
        yield Finding(
            code="store.disk",
            level="bad" if seen.free_bytes < NO_SPACE_BYTES else "warning",
            what=f"{_format_size(seen.free_bytes)} are free on its disk",
            fix="make room there, or move the store to a larger disk (store.path)",
            where=seen.path,
        )
    if seen.wal_bytes > LARGE_WAL_BYTES:
        yield Finding(
            code="store.wal",
            level="warning",
            what=f"its write-ahead log has {_format_size(seen.wal_bytes)}",
            fix="end programs that hold the store open (a `reverie log tail -f`, an SQLite shell), then restart",
            where=seen.path,
        )


def _bad_finding(seen: StoreObservation, code: str, what: str, fix: str) -> Finding:
    return Finding(code=code, level="bad", what=what, fix=fix, where=seen.path)


def _format_size(count: int) -> str:
    for unit, name in ((1_000_000_000, "GB"), (1_000_000, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1000:.0f} kB"
