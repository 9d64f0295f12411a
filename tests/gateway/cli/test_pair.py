"""`reverie pair`, beside a running gateway and without one; and `reverie audit`, which tells of it."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.console import ConsoleChannel
from gateway import app
from gateway.access.pairing import GeneratedCode, generate_code
from gateway.access.pairing_admin import PairingAdmin
from gateway.access.texts import format_code
from gateway.cli.main import main
from gateway.config.loader import load_config
from gateway.core.clock import SystemClock
from gateway.core.control_messages import ControlRequest, ControlResponse, PairingRequest
from gateway.core.control_socket import ControlServer, socket_path
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.facts import AuditRecord, CodeEnded, CodeIssued, PostQueued, RoleAssigned, RoomAccessChanged
from gateway.core.redaction import Redactor
from gateway.store import AppendFailed, NewEntry, Store
from tests.kits.store import run

ROOT = Path(__file__).resolve().parents[3]
DIRECT = Address(channel=ChannelName("irc.test"), room=RoomId("ann"))
ROOM = Address(channel=ChannelName("irc.test"), room=RoomId("#new"))
CONFIG = {
    "channels": {"c": {"platform": "console"}},
    "agents": [{"id": "ana"}],
    "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
    "store": {"path": "r.db"},
    "ops": {"port": 0},
}


def code_entry(minted: GeneratedCode, *, room: Address | None = None, name: str = "Ann\x1b[2J") -> NewEntry:
    now = datetime.now(UTC)
    fact = CodeIssued(
        request=minted.request,
        what="room" if room else "pair",
        person="irc.test:account:ann",
        name=name,
        at=DIRECT,
        room=room,
        salt=minted.salt,
        digest=minted.digest,
        until=now + timedelta(hours=1),
    )
    return NewEntry(fact=fact, at=now, conversation=DIRECT.conversation, key=f"code:{minted.request}")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "reverie.yaml").write_text(json.dumps(CONFIG))
    return tmp_path


def fill_store(config: Path, *entries: NewEntry) -> None:
    async def story() -> None:
        async with await Store.open(config / "r.db", SystemClock()) as store:
            await store.append(entries)

    run(story())


def pair_output(capsys: pytest.CaptureFixture[str], config: Path, *options: str, code: int = 0) -> list[str]:
    assert main(["pair", *options, "--config", str(config)]) == code
    seen = capsys.readouterr()
    return (seen.err if code else seen.out).splitlines()


def log(config: Path, *kinds: str) -> list[object]:
    async def story() -> list[object]:
        async with await Store.open_readonly(config / "r.db") as reader:
            return [one.fact for one in await reader.entries(kinds=kinds)]

    return run(story())


def audits(config: Path) -> list[AuditRecord]:
    return [fact for fact in log(config, "audited") if isinstance(fact, AuditRecord)]


def test_a_code_lets_somebody_in_once_and_is_written_nowhere(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    minted = generate_code(())
    fill_store(config, code_entry(minted))
    (asks,) = pair_output(capsys, config, "list")
    assert minted.request in asks
    assert "irc.test:account:ann" in asks
    assert "\x1b" not in asks
    assert minted.code not in asks

    words = pair_output(capsys, config, "approve", f" {format_code(minted.code).lower()} ")
    assert words[0].startswith("Let in: ")
    assert words[1:] == ["no gateway is running: this holds from its next start"]
    (given,) = log(config, "role_given")
    assert isinstance(given, RoleAssigned)
    assert (given.person, given.role, given.by, given.why) == ("irc.test:account:ann", "member", "operator", "pairing")
    assert [type(fact) for fact in log(config, "code_over", "post")] == [CodeEnded, PostQueued]

    pair_output(capsys, config, "approve", minted.code, code=1)
    assert len(log(config, "role_given")) == 1
    first, second = audits(config)
    assert (first.by, first.args, first.ok, first.at) == ("operator", "approve ***", True, None)
    assert (second.args, second.ok) == ("approve ***", False)
    assert "command line" in first.name
    whole = (config / "r.db").read_bytes() + b"".join(one.read_bytes() for one in config.glob("r.db-*"))
    for form in (minted.code, minted.code.lower(), format_code(minted.code)):
        assert form.encode() not in whole


def test_a_wrong_code_lets_nobody_in_and_is_audited(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(config, code_entry(generate_code(())))
    assert pair_output(capsys, config, "approve", "WRONGONE", code=1)
    assert log(config, "role_given") == []
    assert [one.ok for one in audits(config)] == [False]


def test_a_room_is_opened_by_its_code(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    minted = generate_code(())
    fill_store(config, code_entry(minted, room=ROOM))
    pair_output(capsys, config, "approve", minted.code)
    (opened,) = log(config, "room_opened")
    assert isinstance(opened, RoomAccessChanged)
    assert (opened.room, opened.open) == (ROOM, True)


def test_somebody_is_let_in_unasked_and_out_again(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    irc = {"irc.test": {"platform": "irc", "host": "127.0.0.1", "nick": "reverie"}}
    (config / "reverie.yaml").write_text(json.dumps(CONFIG | {"channels": irc}))
    for wrong in ("irc.test:bob", "irc:account:bob"):  # a nick is nobody, and there is no such channel
        assert main(["pair", "seed", wrong, "--role", "admin", "--config", str(config)]) == 2
        assert capsys.readouterr().err.startswith(f"reverie pair: `{wrong}` is nobody")
    assert "is admin from now on" in pair_output(capsys, config, "seed", "irc.test:account:Bob", "--role", "admin")[0]
    assert pair_output(capsys, config, "seed", "irc.test:account:bob", "--role", "admin", code=1)
    assert any("account:bob" in line for line in pair_output(capsys, config, "list"))
    pair_output(capsys, config, "revoke", "irc.test:account:bob")
    assert pair_output(capsys, config, "list") == ["nobody asks, and nobody was let in"]
    assert pair_output(capsys, config, "seed", "bob", code=1)
    assert pair_output(capsys, config, "seed", "irc.test:mask:*!*@x.org", "--role", "owner", code=1)
    assert [(one.args, one.ok) for one in audits(config)] == [
        ("seed irc.test:account:Bob admin", True),
        ("seed irc.test:account:bob admin", False),
        ("revoke irc.test:account:bob", True),
        ("seed bob member", False),
        ("seed irc.test:mask:*!*@x.org owner", False),
    ]


def test_a_list_makes_no_store(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pair_output(capsys, config, "list") == ["nobody asks, and nobody was let in"]
    assert not (config / "r.db").exists()
    assert main(["pair", "list", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_a_running_gateway_is_asked_and_takes_it_in_at_once(config: Path) -> None:
    async def story() -> None:
        stop, settings, name = asyncio.Event(), load_config(config, {}), ChannelName("c")
        channels = {name: ConsoleChannel(name, lambda _: None)}
        running = asyncio.create_task(app.run(settings, stop, channels=channels))
        try:
            path = socket_path(settings.store.path)
            async with asyncio.timeout(120):
                while not path.exists():
                    await asyncio.sleep(0.01)
                done = await _program(config, "pair", "seed", "c:1", "--role", "owner")
                assert done == (0, "`c:1` is owner from now on.\n", "")
                assert "c:1" in (await _program(config, "pair", "list"))[1]
                code, out, _ = await _program(config, "audit")
                assert code == 0
                assert "pair seed c:1 owner" in out
                assert "no gateway is running" not in out
        finally:
            stop.set()
            await running

    run(story())


async def _program(config: Path, *said: str) -> tuple[int, str, str]:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", *said, "--config", str(config)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await program.communicate()
    assert program.returncode is not None
    return program.returncode, out.decode(), err.decode()


def test_where_nothing_can_be_written_nothing_is_done(config: Path) -> None:
    async def story() -> None:
        async with await Store.open(config / "r.db", SystemClock()) as store:
            await store._writing.execute_fetchall("PRAGMA query_only = 1")  # as a full disk
            with pytest.raises(AppendFailed):
                await PairingAdmin(store, SystemClock(), redactor=Redactor()).execute(
                    PairingRequest(what="seed", who="c:1", by="a test")
                )
            assert await store.current_facts("role_given") == []

    run(story())


def test_what_the_gateway_answers_is_shown_safely(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def refuses(order: ControlRequest) -> ControlResponse:
        assert isinstance(order, PairingRequest)
        return ControlResponse(ok=False, lines=(f"no\x1b[2J {order.who} {order.role}",))

    async def story() -> None:
        control = asyncio.create_task(ControlServer(socket_path(config / "r.db"), refuses).run())
        while not socket_path(config / "r.db").exists():
            await asyncio.sleep(0)
        code = await asyncio.to_thread(main, ["pair", "seed", "c:1", "--role", "admin", "--config", str(config)])
        assert code == 1
        control.cancel()
        await asyncio.gather(control, return_exceptions=True)

    run(story())
    assert capsys.readouterr().err == "no\\x1b[2J c:1 admin\n"


def test_what_a_person_can_get_wrong_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pair", "seed", "x" * 300, "--config", str(config)]) == 2
    assert "xxx" not in capsys.readouterr().err
    for options in (["approve"], ["seed", "c:1", "--role", "guest"], ["nonsense"], []):
        with pytest.raises(SystemExit) as ended:
            main(["pair", *options, "--config", str(config)])
        assert ended.value.code == 2
