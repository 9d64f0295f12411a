"""`reverie ctl`: commands of the table from the shell, beside a running gateway and on the store of
a stopped one."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent import dmn
from agent.models.scripted import Script, ScriptRule
from agent.signals import DmnMode
from gateway.cli.client import ask_gateway
from gateway.cli.main import main
from gateway.cluster.database import DatabaseCluster, read_processes
from gateway.core.clock import SystemClock
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import ControlServer, send_control_request
from gateway.core.events import Address
from gateway.core.facts import (
    AuditRecord,
    DmnDirective,
    DmnStateSaved,
    Fact,
    RoleAssigned,
)
from gateway.core.metrics import GatewaySnapshot
from gateway.core.process_files import (
    hold_process_files,
    socket_path,
)
from gateway.plugins.pairing.codes import issue_code
from gateway.store import NewEntry, ServerStore, Store, rebuild
from gateway.store.schema import connect_server, migrate_server, migrations, newest_schema
from reverie.testing.channels import story
from reverie.testing.gateway import Gateway, running
from tests.gateway.plugins.memory.test_dreams import dream, model
from tests.kits.journal import ANN, ROOM, at, papers
from tests.kits.store import opened, run
from tests.servers.real_postgresql import PostgresServer

ROOT = Path(__file__).resolve().parents[3]
CONFIG: dict[str, object] = {
    "channels": {
        "console": {"platform": "console", "rooms": ["lobby"]},
        "irc.test": {"platform": "irc", "host": "127.0.0.1", "nick": "reverie"},
    },
    "agents": [{"id": "reverie", "bindings": [{"match": {"room": "lobby"}}]}, {"id": "bob"}],
    "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
    "store": {"path": "s.db"},
    "dmn": {"timezone": "Europe/Zurich"},
    "ops": {"port": 0},
}
HOLDS = "The gateway is not running. This takes effect at its next start."
SAVED = "The gateway is not running. This is its saved state."
BOB = "irc.test:account:bob"
Ctl = Callable[..., list[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reverie.yaml").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def ctl(folder: Path, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Returns what `reverie WORDS` prints; fails if it ends with another code."""

    def command(*words: str, code: int = 0) -> list[str]:
        line = [*words, "--config", str(folder)]
        found = ask_gateway(line)
        assert (main(line) if found is None else found) == code
        shown = capsys.readouterr()
        return (shown.err if code else shown.out).splitlines()

    return command


def log(folder: Path, *kinds: str) -> Sequence[Fact]:
    async def read() -> list[Fact]:
        async with await Store.open_readonly(folder / "s.db") as reader:
            return [one.fact for one in await reader.entries(kinds=kinds)]

    return run(read())


def filled(folder: Path, *entries: NewEntry) -> None:
    async def fill() -> None:
        async with await Store.open(folder / "s.db", SystemClock()) as store:
            await store.append(entries)

    run(fill())


def test_the_first_owner_is_let_in_before_the_first_start(folder: Path, ctl: Ctl) -> None:
    assert ctl("pair", "seed", "irc.test:account:Bob", "--role", "owner") == [
        f"`{BOB}` is owner from now on.",
        HOLDS,
    ]
    (given,) = log(folder, "role_given")
    assert isinstance(given, RoleAssigned)
    assert (given.person, given.role, given.why) == (BOB, "owner", "seed")
    (audit,) = log(folder, "audited")
    assert isinstance(audit, AuditRecord)
    assert (audit.by, audit.role, audit.what, audit.args, audit.at, audit.ok) == (
        "operator",
        "operator",
        "pair",
        f"seed {'irc.test:account:Bob'} owner",
        None,
        True,
    )
    assert audit.name.endswith(" at the command line")
    assert ctl("pair", "seed", BOB, "owner", code=1) == [f"`{BOB}` is already owner."]
    for wrong in ("irc.test:bob", "nowhere:account:bob", "bob", "irc.test:mask:*!*@x.org"):
        ctl("ctl", "pair", "seed", wrong, "admin", code=1)
    assert any(f"`{BOB}`: owner" in line for line in ctl("ctl", "pair", "list"))
    assert ctl("pair", "revoke", BOB)[-1] == HOLDS
    assert not any(BOB in line for line in ctl("pair", "list"))


def test_a_code_lets_somebody_in_once_and_is_written_nowhere(folder: Path, ctl: Ctl) -> None:
    direct, now = Address.parse("irc.test/ann"), datetime.now(UTC)
    code, asked = issue_code(
        "pair", (), now, person="irc.test:account:ann", name="Ann\x1b[2J", at=direct
    )
    plain = code.replace("-", "")
    filled(
        folder,
        NewEntry(fact=asked, at=now, conversation=direct.conversation, key=f"code:{asked.request}"),
    )
    waiting = "\n".join(ctl("pair", "list"))
    assert asked.request in waiting
    assert "\x1b" not in waiting
    assert code not in waiting
    assert plain not in waiting
    ctl("pair", "approve", "WRONGONE", code=1)
    assert log(folder, "role_given") == []
    assert ctl("pair", "approve", f" {code.lower()} ")[0].startswith("Approved: ")
    ctl("pair", "approve", plain, code=1)
    assert len(log(folder, "role_given")) == 1
    used = [
        one
        for one in log(folder, "audited")
        if isinstance(one, AuditRecord) and one.args.startswith("approve")
    ]
    assert [(one.args, one.ok) for one in used] == [
        ("approve ***", False),
        ("approve ***", True),
        ("approve ***", False),
    ]
    whole = (folder / "s.db").read_bytes() + b"".join(
        one.read_bytes() for one in folder.glob("s.db-*")
    )
    for form in (plain, plain.lower(), code):
        assert form.encode() not in whole


def test_one_object_has_the_answer_and_its_data(ctl: Ctl) -> None:
    ctl("pair", "seed", BOB)
    (line,) = ctl("ctl", "pair", "list", "--json")
    assert line.isascii()
    answer = json.loads(line)
    assert answer["ok"]
    assert [(one["person"], one["role"]) for one in answer["data"]["roles"]] == [(BOB, "member")]
    (line,) = ctl("dmn", "status", "--json", "--agent", "bob")
    (bob,) = json.loads(line)["data"]
    assert (bob["agent"], bob["mode"]) == ("bob", "resting")


def test_what_is_told_to_agents_is_saved_for_the_next_start(folder: Path, ctl: Ctl) -> None:
    filled(folder)
    assert ctl("dmn", "off", "--agent", "bob") == ["bob is off.", HOLDS]
    (directed,) = log(folder, "directed")
    assert isinstance(directed, DmnDirective)
    assert (directed.agent, directed.what) == ("bob", "off")
    assert directed.by.endswith(" at the command line")
    (saved,) = log(folder, "dmn")
    assert isinstance(saved, DmnStateSaved)
    assert (saved.agent, dmn.load_state(saved.state).mode) == ("bob", DmnMode.OFF)
    assert ctl("ctl", "dmn", "sleep", "8h", "--agent", "bob", code=1) == [
        "bob is off; write `dmn wake` first."
    ]
    assert ctl("dmn", "wake")[:2] == ["reverie is awake.", "bob is awake."]
    assert "checks again" not in "\n".join(ctl("dmn", "status")), "nothing runs that could"
    summer = datetime.now(UTC).year + 1
    ctl(
        "dmn",
        "sleep",
        "until",
        f"{summer}-07-01T07:00",
        "on",
        "irc",
        "telegram.x",
        "--in",
        "console/lobby",
    )
    assert ctl("dmn", "status")[0].startswith(f"reverie is asleep until {summer}-07-01 07:00 CEST")
    assert "bob is resting" in "\n".join(ctl("dmn", "status"))
    assert ctl("dmn", "off", "--agent", "eve", code=1) == [
        "there is no agent eve; the agents are reverie, bob"
    ]
    assert ctl("dmn", "quiet", "a", "while", code=1)[0].startswith(
        "That is no time that is understood here"
    )


def test_what_is_no_command_or_needs_a_gateway_is_told(
    folder: Path, ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "start it" in ctl("pair", "list", code=2)[0], "there is no store"
    assert not (folder / "s.db").exists()
    filled(folder)
    (unknown,) = ctl("ctl", "par", "list", code=2)
    assert unknown == (
        "I do not know that command. Did you mean `reverie ctl part` or `reverie ctl pair`? "
        "`reverie ctl help` lists all commands."
    )
    assert ctl("dmn", "dance", code=2)[0].startswith(
        "There is no `dmn dance`. Write `reverie ctl dmn` and one of "
    )
    assert ctl("pair", "approve", code=2)[0].startswith("`code` is missing.")
    assert ctl("pair", "seed", "x" * 5_000, code=2) == ["reverie ctl: that is too long"]
    for words in (["status"], ["reload"], ["stop"], ["dmn", "presence", "sleeping"], ["compact"]):
        assert "needs a running gateway" in ctl(*words, code=2)[0]
    assert ctl("ctl", "retry", "--in", "nowhere", code=1) == [
        "nowhere is not a conversation: write it as the log shows it"
    ]
    for bad in (["ctl"], ["pair", "list"], ["frobnicate"]):
        with pytest.raises(SystemExit) as ended:
            main(bad)
        assert ended.value.code == 2
    assert "there is no command frobnicate" in capsys.readouterr().err


async def test_a_store_that_a_gateway_without_a_socket_holds_is_told(
    folder: Path, ctl: Ctl
) -> None:
    async with await opened(folder / "s.db"):
        (line,) = await asyncio.to_thread(ctl, "dmn", "off", code=2)
        assert "is in use by process" in line


def test_a_store_beside_which_no_socket_fits_can_still_be_told(folder: Path, ctl: Ctl) -> None:
    deep = {**CONFIG, "store": {"path": f"{'d' * 120}/s.db"}}
    (folder / "reverie.yaml").write_text(json.dumps(deep))
    assert ctl("pair", "seed", BOB)[-1] == HOLDS
    assert ctl("dmn", "pause", "--agent", "bob")[0] == "bob is paused."


async def test_what_the_gateway_answers_is_shown_safely(folder: Path, ctl: Ctl) -> None:
    async def refuses(order: CommandRequest) -> ControlResponse:
        return ControlResponse(
            ok=False, lines=(f"no\x1b[2J {' '.join(order.words)} {order.place}",)
        )

    path = socket_path(folder / "s.db")
    control = asyncio.create_task(ControlServer(path, refuses, state).run())
    while not path.exists():
        await asyncio.sleep(0)
    found = await asyncio.to_thread(ctl, "rewind", "2", "--in", "c/ann", code=1)
    assert found == ["no\\x1b[2J rewind 2 c/ann"]
    control.cancel()
    await asyncio.gather(control, return_exceptions=True)


def state() -> GatewaySnapshot:
    return GatewaySnapshot(started=datetime.now(UTC), channels=())


async def test_one_process_of_several_carries_it_out_or_the_named_one(
    folder: Path, ctl: Ctl
) -> None:
    store = folder / "s.db"

    def serve(name: str, path: Path) -> ControlServer:
        async def answers(order: CommandRequest) -> ControlResponse:
            return ControlResponse(
                ok=name != "b" or order.words[0] == "version", lines=(f"{name} did",)
            )

        return ControlServer(socket_path(path), answers, state)

    with contextlib.ExitStack() as held:
        paths = {
            name: held.enter_context(hold_process_files(store, name, datetime.now(UTC)))
            for name in "abc"
        }
        socket_path(paths["c"]).touch()  # as one that was killed
        tasks = [asyncio.create_task(serve(name, paths[name]).run()) for name in "ab"]
        while not all(socket_path(paths[name]).is_socket() for name in "ab"):
            await asyncio.sleep(0)
        assert await asyncio.to_thread(ctl, "version", "--name", "b") == ["b did"]
        assert await asyncio.to_thread(ctl, "version") in (["a did"], ["b did"])
        assert await asyncio.to_thread(ctl, "status", "--name", "a") == ["a did"]
        for words in (["reload"], ["ctl", "--agent", "bob", "Reload"]):
            answers = await asyncio.to_thread(ctl, *words, code=1)
            assert sorted(answers) == ["a: a did", "b: b did"]
        (told,) = await asyncio.to_thread(ctl, "version", "--name", "d", code=2)
        assert "no process named d runs on this host" in told
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


TALK = Script(
    rules=(ScriptRule(match="one", reply="first"), ScriptRule(match="two", reply="second"))
)
PLACE = "console/ann"


async def talk(gateway: Gateway) -> None:
    for words in ("say one", "say two"):
        await gateway.ask(words)


async def order(gateway: Gateway, *words: str, place: str = PLACE) -> ControlResponse:
    return await send_control_request(
        socket_path(gateway.path), CommandRequest(words=words, by="ops", place=place)
    )


@story
async def test_a_running_gateway_changes_what_is_in_view(tmp_path: Path) -> None:
    async with running(tmp_path, TALK) as gateway:
        await talk(gateway)
        said = await order(gateway, "retry")
        assert (said.ok, said.lines[0]) == (
            True,
            "I take back my last answer and answer 1 message again.",
        )
        await gateway.screen.until(3)
        assert gateway.screen.parts[2].body == "second"
        said = await order(gateway, "rewind", "5")
        assert (said.ok, "I see no more of them here." in said.lines[0]) == (True, True)
        said = await order(gateway, "rewind")
        assert (said.ok, said.lines) == (False, ("I see no exchange here that I could take back.",))
        await gateway.ask("say one", sender="ann")
        said = await order(gateway, "compact")
        assert (said.ok, len(said.lines)) == (True, 1)
        assert (await order(gateway, "new")).ok
        seeded = await order(gateway, "pair", "seed", "console:1", "owner", place="")
        assert seeded.lines == ("`console:1` is owner from now on.",)
        assert "console:1" in "\n".join((await order(gateway, "role", "list", place="")).lines)
        assert (await order(gateway, "status", place="")).ok
    assert await rebuild(gateway.path) == []


def test_where_none_runs_the_view_is_changed_for_the_next_start(folder: Path, ctl: Ctl) -> None:
    (folder / "reverie.yaml").write_text(json.dumps(replace_store(CONFIG)))

    async def before() -> None:
        async with running(folder, TALK) as gateway:
            await talk(gateway)

    async def after() -> Gateway:
        async with running(folder, TALK) as gateway:
            await gateway.screen.until(1)
        return gateway

    asyncio.run(before())
    (folder / "reverie.yaml").write_text(json.dumps(replace_store(CONFIG)))
    told = ctl("retry", "--in", PLACE)
    assert told[0].startswith("I take back my last answer")
    assert told[1] == HOLDS
    gateway = asyncio.run(after())
    (folder / "reverie.yaml").write_text(json.dumps(replace_store(CONFIG)))
    assert gateway.screen.parts[0].body == "second"
    ctl("ctl", "rewind", "2", "--in", PLACE)
    assert asyncio.run(rebuild(gateway.path)) == []


def replace_store(config: dict[str, object]) -> dict[str, object]:
    """Return the configuration with the store of `running`."""
    return {**config, "store": {"path": "reverie.db"}, "agents": [{"id": "reverie"}]}


@pytest.mark.system
def test_the_program_is_answered_by_the_program(folder: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "gateway.cli.main", *words, "--config", str(folder)]
        return subprocess.run(
            line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )

    done = command("pair", "seed", BOB, "owner")
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (
        0,
        f"`{BOB}` is owner from now on.",
        "",
    )
    assert "pair seed" in command("audit").stdout
    assert command("ctl", "nonsense").returncode == 2


def dreamt(folder: Path, *texts: str) -> None:
    """Each time that it dreamt, and the gateway stopped."""

    async def dreams() -> None:
        async with papers(folder) as kit:
            for text in texts:
                await kit.remember(at(ROOM), text)
                await dream(kit, model(f"- {text}"))

    run(dreams())
    (folder / "reverie.yaml").write_text(json.dumps(owned(CONFIG)))


def owned(config: dict[str, object]) -> dict[str, object]:
    """Return the configuration with the files of `papers`."""
    return {**config, "agents": [{"id": "reverie", "workspace": "./mind/reverie"}]}


def memory_file(folder: Path) -> Path:
    return folder / "mind" / "reverie" / "MEMORY.md"


def test_dreams_are_shown_and_undone_one_by_one(folder: Path, ctl: Ctl) -> None:
    dreamt(folder, "one", "two\x1b[2J", "three")
    assert "- three" in ctl("memory", "show")
    for text in ("- two[2J\n", "- one\n", ""):
        assert (
            ctl("memory", "undo")[0] == "MEMORY.md is again as it was before 2026-03-04 05:06 UTC."
        )
        assert memory_file(folder).read_text() == text
    assert ctl("memory", "undo", code=1) == ["There is no dream to undo."]


def test_edits_are_not_undone_unless_it_is_asked_for(folder: Path, ctl: Ctl) -> None:
    dreamt(folder, "one", "two")
    memory_file(folder).write_text("- by hand\n")
    assert "edited MEMORY.md after the last dream" in ctl("memory", "undo", code=1)[0]
    assert memory_file(folder).read_text() == "- by hand\n"
    ctl("memory", "undo", "force")
    assert memory_file(folder).read_text() == "- one\n"


def test_the_journal_is_shown(folder: Path, ctl: Ctl) -> None:
    async def wrote() -> None:
        async with papers(folder) as kit:
            await kit.write_entry(at(ROOM), "Boats", "The harbour\n\nopens on Monday")
            kit.clock.advance(60)
            await kit.write_entry(at(ANN), "", "Ann likes the Café\x1b[2J\u202e")

    run(wrote())
    (folder / "reverie.yaml").write_text(json.dumps(owned(CONFIG)))
    with (folder / "mind" / "reverie" / "journal.md").open("a") as file:
        file.write("\n## 2026-03-04 05:06:30 - Lake\nscope: public\nNo boats\n")
    newest, lake, boats, _ = ctl("journal")
    assert "Ann likes the Café" in newest
    assert not any("\x1b" in one or "\u202e" in one for one in ctl("journal"))
    assert "No boats" in lake
    assert "opens on Monday" in boats
    (gone,) = ctl("journal", "search", "BOATS", code=2)
    assert gone.endswith("`journal search` is gone: search the file JOURNAL.md of the agent.")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("notifications", "types"), "There was no notification so far."),
        (("reminders", "list"), "There is nothing that I intend here, and no reminder."),
    ],
)
def test_names_of_older_versions_are_understood(
    folder: Path, ctl: Ctl, words: tuple[str, ...], first: str
) -> None:
    filled(folder)
    assert ctl(*words)[0] == first


async def _status_beside_a_process(store: ServerStore, ctl: Ctl) -> list[str]:
    """Return what `status` says while a process of this host is there that has no files beside the
    store."""
    cluster = await DatabaseCluster.join(store.url, name="elsewhere")
    try:
        async with asyncio.timeout(60):
            while all(
                one.state == "cut off" for one in (await read_processes(store.url)).processes
            ):
                await asyncio.sleep(0.01)
        return await asyncio.to_thread(ctl, "status")
    finally:
        await cluster.leave()


@pytest.mark.integration
def test_status_says_why_it_cannot_tell_of_a_process(
    folder: Path, ctl: Ctl, postgresql: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ServerStore(postgresql.url("older"), folder / "s.db")
    (folder / "reverie.yaml").write_text(
        json.dumps({**CONFIG, "store": {"path": "s.db", "url": store.url}})
    )
    try:
        *_, line = ctl("status", code=2)
        assert "there is no store at" in line
        with contextlib.closing(connect_server(store, "writer")) as connection:
            migrate_server(connection, store)
        steps, newest = migrations("migrations/postgresql"), newest_schema(store)
        with monkeypatch.context() as next_version:
            next_version.setattr(
                "gateway.store.schema.migrations", lambda _folder: (*steps, (newest + 1, ""))
            )
            *_, line = ctl("status", code=2)
            assert f"has the older schema {newest}: start the gateway once" in line
        assert ctl("status", code=1)[-1] == "No process of this gateway is running."
        told = asyncio.run(_status_beside_a_process(store, ctl))
        assert (
            told[0]
            == f"No process on this host has its files beside {store.path}: see that it is mounted."
        )
        assert told[2].startswith("elsewhere  starting")
    finally:
        postgresql.drop("older")


@contextlib.contextmanager
def answering(folder: Path, answer: bytes) -> Iterator[list[bytes]]:
    """Answers one client in place of a gateway, and yields what it asks."""
    asked = list[bytes]()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_path(folder / "s.db")))
        server.listen()
        server.settimeout(30)

        def serve() -> None:
            with contextlib.suppress(TimeoutError), server.accept()[0] as link:
                asked.append(link.recv(65_536))
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        thread.join()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"[]\n", "another program"),
        (b'{"ok": true}\n', "another program"),
        (b"HTTP/1.1 400 Bad Request\r\n", "another program"),
        (b"", "busy or ending"),
    ],
)
def test_what_is_no_gateway_is_told_and_asked_once(
    folder: Path, capsys: pytest.CaptureFixture[str], answer: bytes, why: str
) -> None:
    with answering(folder, answer) as asked:
        assert ask_gateway(["why", "17", "--config", str(folder)]) == 2
    assert why in capsys.readouterr().err
    assert [json.loads(one)["words"] for one in asked] == [["why", "17"]]


@pytest.mark.parametrize(
    ("output", "code", "told"),
    [(">&-", 0, ""), (">/dev/full", 1, "No space left"), ("", 0, "")],
    ids=["closed", "full disk", "pipe that nobody reads"],
)
def test_an_answer_that_cannot_be_written_ends_without_a_traceback(
    folder: Path, output: str, code: int, told: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    answer = {"ok": True, "understood": True, "lines": ["é"], "data": None}
    line = f"exec {sys.executable} -m reverie whoami --config {folder} {output}"
    with answering(folder, json.dumps(answer).encode() + b"\n"):
        done = subprocess.run(
            ["sh", "-c", line],
            check=False, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=20,
        )  # fmt: skip
    os.close(writing)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert done.stderr.count("\n") == bool(told)


@pytest.mark.parametrize(
    "line",
    [[], ["run"], ["health"], ["nonsense"], ["reload"], ["ctl"], ["ctl", "reload"], ["trust"],
     ["why", "--entry", "17"], ["status"], ["say", "x" * 300]],
)  # fmt: skip
def test_what_no_running_gateway_does_is_left_to_the_whole_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    monkeypatch.setenv("REVERIE_CONFIG", str(folder))
    assert ask_gateway(line) is None
