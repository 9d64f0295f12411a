"""A backup: whole, for its owner alone, the same bytes for the same files; and back, as one, or not
at all."""

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.models.scripted import ScriptedModel
from gateway import app
from gateway.cli.main import main
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import SystemClock
from gateway.core.events import (
    Address,
    ChannelName,
    Message,
    MessageId,
    Post,
    PostKey,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    AuditRecord,
    CursorMoved,
    Judgement,
    PartSendStarted,
    PostQueued,
    TurnRecord,
    dedup_key,
)
from gateway.plugins.backup.create import STORE_NAME, InvalidBackup, create_backup, is_safe_name
from gateway.plugins.backup.restore import RestoreReport, restore_backup
from gateway.plugins.trace import explain_event
from gateway.store import (
    NewEntry,
    Store,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreTooNew,
    rebuild,
)
from gateway.store.files import mark_path
from gateway.store.schema import StoreLock
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, Screen, running, settings
from reverie.testing.waiting import until
from tests.kits.backup import WHEN, configured, grown, made, put, rewritten, stored, tree, write
from tests.kits.store import NOW, heard, list_unread, opened, place, post, run, turn

Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture
def source(tmp_path: Path) -> Settings:
    """A store with a line that was heard, and files, in `a`."""
    there = grown(tmp_path / "a")
    stored(there, heard(1))
    return there


@pytest.fixture
def archive(tmp_path: Path, source: Settings) -> Path:
    made(source, tmp_path / "b.tar")
    return tmp_path / "b.tar"


def test_a_restored_store_counts_as_whole(tmp_path: Path, archive: Path, source: Settings) -> None:
    other = configured(tmp_path / "c")
    stored(source, heard(2), heard(3))
    mark_path(other.store.path).parent.mkdir(parents=True)
    shutil.copy(
        mark_path(source.store.path), mark_path(other.store.path)
    )  # of a store that was deleted
    put(archive, other)

    async def story() -> None:
        async with await opened(other.store.path) as store:
            assert store.lost_end is None

    run(story())


def test_what_was_there_is_there_again(tmp_path: Path) -> None:
    settings = grown(tmp_path / "a")
    stored(settings, heard(1), heard(2))
    backup = made(settings, tmp_path / "b.tar")
    assert stat.S_IMODE((tmp_path / "b.tar").stat().st_mode) == 0o600
    assert (backup.store.entries, backup.store.last, backup.left_out) == (4, 4, ())

    other = configured(tmp_path / "c")
    put(tmp_path / "b.tar", other)
    before, after = tree(tmp_path / "a"), tree(tmp_path / "c")
    store = {
        name for name in before if name.startswith(("data/reverie.db", "data/.reverie.db.mark"))
    }
    cache = {name for name in before if name.startswith("data/media")}
    assert {name: after.get(name) for name in before if name not in store | cache} == {
        name: text for name, text in before.items() if name not in store | cache
    }
    assert cache
    assert not set(after) & cache
    assert os.access(tmp_path / "c/data/mind/ann/files/run.sh", os.X_OK)
    for path in (tmp_path / "c").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert run(rebuild(other.store.path)) == []
    with sqlite3.connect(other.store.path) as connection:
        assert connection.execute("SELECT seq, kind FROM log ORDER BY seq").fetchall()[:5] == [
            (1, "room"),
            (2, "judged"),
            (3, "room"),
            (4, "judged"),
            (5, "audited"),
        ]
    connection.close()
    assert not list((tmp_path / "c").rglob(".restoring*")), "nothing half is left"
    with tarfile.open(tmp_path / "b.tar") as tar:  # by hand, without this program
        tar.extractall(tmp_path / "d", filter="data")
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "d", check=False
    )
    assert checked.returncode == 0


def test_the_same_files_are_the_same_bytes(tmp_path: Path) -> None:
    settings = grown(tmp_path)
    stored(settings, heard(1))
    made(settings, tmp_path / "1.tar")
    os.utime(tmp_path / "persona/SOUL.md", (1, 1))
    made(settings, tmp_path / "2.tar")
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_links_pipes_and_names_that_are_no_text_are_left_out_and_told(tmp_path: Path) -> None:
    settings = grown(tmp_path)
    stored(settings, heard(1))
    (tmp_path / "work/passwords").symlink_to("/etc/shadow")
    (tmp_path / "work/everything").symlink_to("/")
    os.mkfifo(tmp_path / "work/pipe")
    (tmp_path / os.fsdecode(b"work/\xff")).write_text("?")
    (tmp_path / "work/two\nlines").write_text("?")
    backup = made(settings, tmp_path / "b.tar")
    assert sorted(backup.left_out) == [
        "files/bob/\\udcff",
        "files/bob/everything",
        "files/bob/passwords",
        "files/bob/pipe",
        "files/bob/two\nlines",
    ]
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert all(header.isreg() for header in tar)


def test_a_backup_replaces_nothing_and_leaves_nothing_when_it_fails(tmp_path: Path) -> None:
    settings = grown(tmp_path)
    with pytest.raises(StoreMissing):
        made(settings, tmp_path / "b.tar")
    stored(settings, heard(1))
    (tmp_path / "b.tar").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="no backup replaces a file"):
        made(settings, tmp_path / "b.tar")
    assert not (tmp_path / "nowhere").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_damaged_store_makes_no_backup(tmp_path: Path) -> None:
    settings = grown(tmp_path)
    stored(settings, *[heard(number) for number in range(200)])
    with settings.store.path.open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xff" * 8192)
    with pytest.raises(StoreError, match=r"damaged|cannot read"):
        made(settings, tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()


@pytest.mark.parametrize(
    "there",
    ["data/reverie.db", "data/reverie.db-wal", "data/mind/ann/x", "persona/SOUL.md", "work/x"],
)
def test_a_backup_is_restored_only_where_nothing_is(
    tmp_path: Path, archive: Path, there: str
) -> None:
    other = configured(tmp_path / "c")
    write(tmp_path / "c" / there, "somebody's")
    (tmp_path / "c/data/mind/bob").mkdir(parents=True)  # an empty directory is nothing
    before = tree(tmp_path / "c")
    with pytest.raises(FileExistsError, match=r"there is something at .*; move it away"):
        put(archive, other)
    assert tree(tmp_path / "c") == before
    (tmp_path / "c" / there).unlink()
    assert put(archive, other).store.entries == 2


def test_nothing_is_restored_where_a_gateway_begins(tmp_path: Path, archive: Path) -> None:
    other = configured(tmp_path / "c")
    other.store.path.parent.mkdir(parents=True)
    lock = StoreLock(other.store.path, WHEN)
    with pytest.raises(StoreInUse, match="kill"):
        put(archive, other)
    lock.release()


def _patch(at: int, new: bytes, *, with_sums: bool = True) -> Callable[[Members], None]:
    """Bytes of the store are others; `with_sums`: and so is its checksum."""

    def change(members: Members) -> None:
        place = next(
            index for index, (header, _) in enumerate(members) if header.name == STORE_NAME
        )
        header, content = members[place]
        changed = content[:at] + new + content[at + len(new) :]
        members[place] = header, changed
        if with_sums:
            old, now = (hashlib.sha256(one).hexdigest().encode() for one in (content, changed))
            members[-1] = members[-1][0], members[-1][1].replace(old, now)

    return change


USER_VERSION, APPLICATION_ID = 60, 68
"""Where they stand in a file of SQLite (https://www.sqlite.org/fileformat.html)."""


def _append(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[Members], None]:
    def change(members: Members) -> None:
        header = tarfile.TarInfo(name)
        header.type, header.linkname = kind, link
        members.insert(0, (header, b"x" if kind == tarfile.REGTYPE else b""))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_patch(USER_VERSION, (99).to_bytes(4)), "schema 99 .*run a newer reverie"),
        (
            _patch(APPLICATION_ID, (0x52455652).to_bytes(4)),
            r"^the backup's store is of a reverie before 0\.2\.0, whose stores are read no more",
        ),
        (_append("../escaped"), "no name of a backup"),
        (_append("/etc/cron.d/escaped"), "no name of a backup"),
        (_append("mind/../../escaped"), "no name of a backup"),
        (_append("persona/SOUL.md"), "no name of a backup"),
        (_append("work/link", tarfile.SYMTYPE, "/etc"), "no plain file"),
        (_append("mind/ann/link", tarfile.SYMTYPE, "/etc"), "no plain file"),
        (_append("mind/ann/hard", tarfile.LNKTYPE, "/etc/passwd"), "no plain file"),
        (_append("mind/ann/dir", tarfile.DIRTYPE), "no plain file"),
        (_append("mind/ann/device", tarfile.CHRTYPE), "no plain file"),
        (_append("mind/ann/" + "a/" * 1_500 + "b"), "no backup"),
        (_append("mind/ann/extra"), "not what was put there"),
        (_append("mind/ann/journal.md"), "twice"),
        (_patch(5_000, b"another", with_sums=False), "not what was put there"),
        (lambda members: members.pop(), "no checksums"),
        (lambda members: members.pop(0), "is missing"),
        (lambda members: members.reverse(), "behind its checksums"),
        (lambda members: members.clear(), "no checksums"),
    ],
)
def test_an_archive_that_is_not_right_touches_nothing(
    tmp_path: Path, archive: Path, change: Callable[[Members], None], message: str
) -> None:
    rewritten(archive, tmp_path / "bad.tar", change)
    before = tree(tmp_path)
    with pytest.raises((InvalidBackup, StoreError), match=message):
        put(tmp_path / "bad.tar", configured(tmp_path / "c"))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_an_archive_that_was_cut_off_touches_nothing(
    tmp_path: Path, archive: Path, share: float
) -> None:
    whole = archive.read_bytes()
    end = tarfile.RECORDSIZE  # a tar ends in blocks of zeros
    (tmp_path / "bad.tar").write_bytes(whole[: int((len(whole) - end) * share)])
    before = tree(tmp_path)
    with pytest.raises(InvalidBackup):
        put(tmp_path / "bad.tar", configured(tmp_path / "c"))
    assert tree(tmp_path) == before


def test_files_of_an_agent_that_is_not_configured_are_not_dropped(
    tmp_path: Path, archive: Path
) -> None:
    other = configured(tmp_path / "c")
    alone = other.model_copy(update={"agents": other.agents[:1]})
    with pytest.raises(
        InvalidBackup, match="it holds mind/bob, which the configuration does not name"
    ):
        put(archive, alone)
    assert not (tmp_path / "c/data/reverie.db").exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/../b",
        "mind",
        "mind/",
        "mind//a",
        "store/other",
        "mind/a\0",
        "mind/a/b\nc",
        "SHA256SUMS",
        "x/y",
    ],
)
def test_names_that_are_no_places_of_a_backup(name: str) -> None:
    assert not is_safe_name(name)


def test_the_command_line_says_what_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "a"
    stored(grown(config), heard(1))
    write(config / "reverie.yaml", json.dumps(_yaml()))
    out = tmp_path / "b.tar"
    assert main(["backup", "--config", str(config), "-o", str(out)]) == 0
    assert "2 log entries up to 2, integrity checked" in capsys.readouterr().out
    assert main(["restore", str(out), "--verify"]) == 0
    assert (
        "it can be restored: 2 log entries up to 2, integrity checked, made 20"
        in capsys.readouterr().out
    )
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["restore", str(out)])
    assert "--config DIR" in capsys.readouterr().err
    assert main(["restore", str(out), "--config", str(config)]) == 2
    assert "move it away" in capsys.readouterr().err
    assert main(["restore", str(out), "--config", str(config), "--replace"]) == 2
    assert "--replace is gone: move away what is there" in capsys.readouterr().err
    write(tmp_path / "c/reverie.yaml", json.dumps(_yaml()))
    assert main(["restore", str(out), "--config", str(tmp_path / "c")]) == 0
    assert f"restored: {tmp_path}/c/data/reverie.db\n" in capsys.readouterr().out
    assert main(["restore", str(tmp_path / "nowhere.tar"), "--verify"]) == 2
    assert main(["restore", str(config / "reverie.yaml"), "--verify"]) == 2
    assert "it is no backup" in capsys.readouterr().err


def _yaml() -> dict[str, object]:
    return {
        "channels": {},
        "agents": [
            {"id": "ann", "bindings": []},
            {"id": "bob", "workspace": "persona", "files": "work"},
        ],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "store": {"path": "data/reverie.db"},
    }


def test_a_store_of_a_newer_schema_is_not_copied(tmp_path: Path) -> None:
    settings = grown(tmp_path)
    stored(settings, heard(1))
    with sqlite3.connect(settings.store.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreTooNew, match="run a newer reverie"):
        made(settings, tmp_path / "b.tar")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_restores_is_whose_the_directories_are(tmp_path: Path, archive: Path) -> None:
    for path in (tmp_path / "c", tmp_path / "c/data"):
        path.mkdir()
        os.chown(path, 12345, 12346)
    put(archive, configured(tmp_path / "c"))
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "c").rglob("*")}
    assert owners == {(12345, 12346)}


def test_directories_on_other_file_systems_are_restored_too(tmp_path: Path, archive: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        other = configured(tmp_path / "c")
        ann, bob = other.agents
        there = other.model_copy(
            update={"agents": (ann, bob.model_copy(update={"files": Path(elsewhere) / "work"}))}
        )
        put(archive, there)
        assert tree(Path(elsewhere)) == {"work/deep/down/é.txt": b"work"}


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_an_interrupted_command_leaves_nothing_half(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    config = tmp_path / "a"
    settings = grown(config)
    stored(settings, heard(1))
    write(config / "reverie.yaml", json.dumps(_yaml()))
    write(tmp_path / "d/reverie.yaml", json.dumps(_yaml()))
    made(settings, tmp_path / "b.tar")
    before = _lasting(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.plugins.backup.create.check_store", interrupted)
    monkeypatch.setattr("gateway.plugins.backup.restore.check_store", interrupted)
    arguments = {
        "backup": ["backup", "--config", str(config), "-o", str(tmp_path / "c.tar")],
        "restore": ["restore", str(tmp_path / "b.tar"), "--config", str(tmp_path / "d")],
    }[command]
    assert main(arguments) == 1
    assert "interrupted" in capsys.readouterr().err
    assert _lasting(tmp_path) == before


def _lasting(directory: Path) -> dict[str, bytes]:
    """Without what SQLite keeps for readers."""
    return {
        name: text for name, text in tree(directory).items() if not name.endswith(("-shm", "-wal"))
    }


# A gateway goes on from a backup, though another one went on from the same: people see nothing
# twice

ROOM = Address(channel=CONSOLE, room=RoomId("lobby"))
REASON = "restored from a backup of 2026-03-04 12:00:00 UTC"


def moved(here: Settings, there: Settings, archive: Path, *, exact: bool = False) -> RestoreReport:
    create_backup(here, archive, datetime(2026, 3, 4, 12, tzinfo=UTC), lambda *_: None)
    return restore_backup(archive, there, datetime.now(UTC), exact=exact, by="tess")


def at(path: Path) -> Settings:
    """A directory of its own, as the other machine."""
    path.mkdir(exist_ok=True)
    return settings(path)


def irc(path: Path) -> Settings:
    """Channels whose history is told again, and one whose is not."""
    path.mkdir(exist_ok=True)
    return parse_config(
        {
            "channels": {
                "irc.test": {"platform": "irc", "host": "127.0.0.1", "nick": "r", "tls": False},
                "discord.main": {"platform": "discord", "token": "a.b.c"},
                "telegram.main": {"platform": "telegram", "token": "1:" + "A" * 35},
            },
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "store": {"path": "reverie.db"},
        },
        path,
    )


def waiting(here: Settings) -> None:
    """Three posts: not begun, begun and cut off, half of it said; something due, something
    overheard."""
    posts = [
        NewEntry(fact=PostQueued(post=post(key)), at=NOW, key=f"post:{key}")
        for key in ("new", "begun", "half")
    ]
    sendings = [
        NewEntry(fact=PartSendStarted(post=post(key).key, part=0, bodies=bodies), at=NOW)
        for key, bodies in (("begun", ("one",)), ("half", ("one", "two")))
    ]
    cursors = [
        NewEntry(fact=CursorMoved(channel=ChannelName(name), value="then"), at=NOW)
        for name in ("irc.test", "discord.main", "telegram.main")
    ]
    said = heard(1, room="#due"), heard(2, room="#talk", urgency=0)
    stored(here, posts, sendings, *said, cursors)


def test_what_waited_is_uncertain_what_was_due_is_context_and_the_log_says_why(
    tmp_path: Path,
) -> None:
    here, there = irc(tmp_path / "a"), irc(tmp_path / "b")
    waiting(here)
    settled = moved(here, there, tmp_path / "b.tar").reconciled
    assert (settled.uncertain_posts, settled.unread_conversations) == (3, 1)
    assert settled.reset_channels == ("irc.test", "discord.main")

    async def story() -> None:
        async with await opened(there.store.path) as store:
            assert await store.undelivered_posts() == []
            assert await store.due_conversations(1) == []
            assert [urgency for _, urgency in await list_unread(store)] == [0, 0], (
                "and nothing is forgotten"
            )
            cursors = [await store.saved_cursor(ChannelName(name)) for name in there.channels]
            assert cursors == ["", "", "then"], (
                "Telegram keeps what nobody has confirmed, and only that"
            )
            (audited,) = [one.fact for one in await store.entries(kinds=["audited"])]
            assert isinstance(audited, AuditRecord)
            assert (audited.what, audited.name, audited.result) == ("restore", "tess", REASON)
            queued = next(one for one in await store.entries(kinds=["post"]))
            told = "\n".join(await explain_event(store, queued.seq) or [])
            assert f"{REASON}: it may have been sent since" in told
            said = next(one for one in await store.entries(kinds=["room"]))
            told = "\n".join(await explain_event(store, said.seq) or [])
            assert f"which yielded: {REASON}: it may have been answered since" in told
            assert "outcome: looked at" in told

    run(story())


def test_where_nothing_ran_since_it_goes_on_exactly_there(tmp_path: Path) -> None:
    here, there = irc(tmp_path / "a"), irc(tmp_path / "b")
    waiting(here)
    settled = moved(here, there, tmp_path / "b.tar", exact=True).reconciled
    assert (settled.uncertain_posts, settled.unread_conversations, settled.reset_channels) == (
        0,
        0,
        (),
    )

    async def story() -> None:
        async with await opened(there.store.path) as store:
            assert [item.post.key for item in await store.undelivered_posts()] == [
                "new",
                "begun",
                "half",
            ]
            assert [place for place, _ in await store.due_conversations(1)] == [
                place("#due").conversation
            ]
            assert await store.saved_cursor(ChannelName("irc.test")) == "then"

    run(story())


def test_a_turn_that_was_interrupted_is_not_taken_again(tmp_path: Path) -> None:
    here, there = irc(tmp_path / "a"), irc(tmp_path / "b")

    stored(here, heard(1), [turn(place().conversation, 1, outcome="interrupted")])
    assert moved(here, there, tmp_path / "b.tar").reconciled.unread_conversations == 1

    async def after() -> None:
        async with await opened(there.store.path) as store:
            (newest,) = await store.newest_entries(
                1, kinds=["turn_ended"], conversation=place().conversation
            )
            assert isinstance(newest.fact, TurnRecord)
            assert newest.fact.outcome == "yielded"

    run(after())


@pytest.mark.parametrize("exact", [False, True])
def test_two_gateways_from_one_moment_say_things_once(tmp_path: Path, exact: bool) -> None:
    """The first is cut off with an answer on its way and a question open; it goes on, and so does
    the restored one.

    `exact`: the same where nobody went on, and then nothing is lost either.
    """

    async def story() -> tuple[list[str], list[str]]:
        here, there = at(tmp_path / "a"), at(tmp_path / "b")
        async with await Store.open(here.store.path, SystemClock()) as store:
            queued = PostQueued(post=Post(key=PostKey("answer"), to=ROOM, text="the answer"))
            await store.append([NewEntry(fact=queued, at=datetime.now(UTC), key="post:answer")])
        await asyncio.to_thread(lambda: moved(here, there, tmp_path / "b.tar", exact=exact))
        first = Screen()
        if not exact:
            first = await _goes_on(here, 1)
        return first.said("lobby"), (await _goes_on(there, 1 if exact else 0)).said("lobby")

    first, second = asyncio.run(story())
    assert first + second == ["the answer"]


async def _goes_on(made: Settings, count: int) -> Screen:
    """A gateway runs until it has said so much, and then something else."""
    screen, stop = Screen(), asyncio.Event()
    console = ConsoleChannel(CONSOLE, screen.show)
    model = ScriptedModel(clock=SystemClock())
    task = asyncio.create_task(app.run(made, stop, channels={CONSOLE: console}, model=model))
    try:
        await screen.until(count)

        async def settled() -> bool:
            async with await Store.open_readonly(made.store.path) as reader:
                up = any(link.up for link in await reader.connection_states())
                return up and not await reader.undelivered_posts()

        await until(settled)
    finally:
        stop.set()
        await task
    return screen


def test_a_restored_gateway_answers_what_is_said_next_and_has_heard_what_was_open(
    tmp_path: Path,
) -> None:
    here, there = at(tmp_path / "a"), at(tmp_path / "b")
    alone = Address(channel=CONSOLE, room=RoomId("ann"))

    async def before() -> None:
        async with running(tmp_path / "a") as gateway:
            await gateway.ask("hello", sender="ann")
        async with await Store.open(
            here.store.path, SystemClock()
        ) as store:  # and then it was cut off
            said = Message(
                id=MessageId("77"),
                at=alone,
                sender=Sender(id=SenderId("ann"), name="ann", verified=True),
                text="an open question",
                sent=datetime.now(UTC),
                kind="direct",
            )
            entry = NewEntry(
                fact=said,
                at=datetime.now(UTC),
                conversation=alone.conversation,
                key=dedup_key(said),
            )
            judged = Judgement(
                type="console.direct.ann", urgency=3, fate="due", rule="default", role="guest"
            )
            cause = NewEntry(
                fact=judged, at=datetime.now(UTC), conversation=alone.conversation, cause=entry
            )
            await store.append([entry, cause])

    asyncio.run(before())
    assert moved(here, there, tmp_path / "b.tar").reconciled.unread_conversations == 1

    async def after() -> None:
        async with running(tmp_path / "b") as gateway:
            await gateway.ask("are you back?", sender="ann")
            (asked,) = gateway.scripted.requests
            told = str(asked.conversation)
            assert "hello" in told, "it remembers what was said before"
            assert "an open question" in told, "it was told what nobody may have answered"
            assert "are you back?" in told
        assert len(gateway.screen.parts) == 1

    asyncio.run(after())
