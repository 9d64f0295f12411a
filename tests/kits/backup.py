"""A configuration with agents that have files, and what stands in its store."""

import io
import tarfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import ManualClock
from gateway.plugins.backup.create import BackupReport, create_backup
from gateway.plugins.backup.restore import RestoreReport, restore_backup
from gateway.store import NewEntry, Store
from tests.kits.store import run

WHEN = datetime(2026, 3, 4, 12, tzinfo=UTC)
LATER = datetime(2026, 3, 4, 13, tzinfo=UTC)


def configured(tmp: Path, *, channel: str = "irc.test") -> Settings:
    """Two agents: one with everything by default, one with a workspace and files of its own."""
    return parse_config(
        {
            "channels": {
                channel: {"platform": "irc", "host": "127.0.0.1", "nick": "r", "tls": False}
            },
            "agents": [
                {"id": "ann", "bindings": []},
                {"id": "bob", "workspace": "persona", "files": "work"},
            ],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "store": {"path": "data/reverie.db"},
            "ops": {"port": 0},
        },
        tmp,
    )


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def grown(tmp: Path) -> Settings:
    """The same, and some files."""
    write(tmp / "data/mind/ann/journal.md", "\n## then\nann's\n")
    write(tmp / "data/mind/ann/journal.mark", "01N")
    write(tmp / "data/mind/ann/files/run.sh", "#!/bin/sh\n", 0o755)
    write(tmp / "data/mind/bob/journal.mark", "01M")
    write(tmp / "data/outfiles" / ("0" * 64), "a picture")
    write(tmp / "data/media" / ("1" * 64), "a cache")
    write(tmp / "persona/SOUL.md", "# Bob\n")
    write(tmp / "persona/MEMORY.md", "ünïcode is remembered\n")
    write(tmp / "work/deep/down/é.txt", "work")
    return configured(tmp)


def stored(settings: Settings, *batches: Sequence[NewEntry]) -> None:
    async def story() -> None:
        async with await Store.open(settings.store.path, ManualClock(WHEN)) as store:
            for batch in batches:
                await store.append(batch)

    run(story())


def made(settings: Settings, target: Path) -> BackupReport:
    return create_backup(settings, target, WHEN, lambda *_: None)


def put(archive: Path, settings: Settings, *, exact: bool = False) -> RestoreReport:
    return restore_backup(archive, settings, LATER, exact=exact, by="tess")


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below it, but what belongs to no backup."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix != ".lock"
    }


def rewritten(
    source: Path, target: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]
) -> None:
    """The archive again, with its members changed."""
    members = []
    with tarfile.open(source) as tar:
        for header in tar:
            data = tar.extractfile(header)
            members.append((header, data.read() if data is not None else b""))
    change(members)
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for header, content in members:
            header.size = len(content) if header.isreg() else 0
            tar.addfile(header, io.BytesIO(content))
