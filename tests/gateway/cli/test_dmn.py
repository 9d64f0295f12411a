"""`reverie dmn`, beside a running gateway and without one."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent import dmn, signals
from agent.signals import DmnMode, DmnPolicy, DmnState
from gateway.cli.main import main
from gateway.core.control_messages import ControlRequest, ControlResponse, DmnRequest
from gateway.core.control_socket import ControlServer, socket_path
from gateway.core.facts import DmnDirective, DmnStateSaved, inner_conversation
from gateway.core.metrics import SNAPSHOT, GatewayStats
from gateway.runtime import dmn_admin
from gateway.runtime.dmn_admin import SavedDmn
from gateway.store import NewEntry, Store
from tests.kits.store import judged, opened, run, said

ROOT = Path(__file__).resolve().parents[3]
CONFIG = {
    "channels": {"c": {"platform": "console"}},
    "agents": [{"id": "ana", "bindings": [{"match": {"room": "a"}}]}, {"id": "bob"}],
    "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
    "store": {"path": "r.db"},
    "dmn": {"daily_turns": 7, "timezone": "Europe/Zurich"},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "reverie.yaml").write_text(json.dumps(CONFIG))
    return tmp_path


def dmn_output(capsys: pytest.CaptureFixture[str], config: Path, *options: str, code: int = 0) -> list[str]:
    assert main(["dmn", *options, "--config", str(config)]) == code
    shown = capsys.readouterr()
    return (shown.err if code else shown.out).splitlines()


def log(path: Path, *kinds: str) -> list[object]:
    async def story() -> list[object]:
        async with await Store.open_readonly(path) as reader:
            return [one.fact for one in await reader.entries(kinds=kinds)]

    return run(story())


def test_without_a_gateway_what_is_told_is_saved_for_the_next_start(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = config / "r.db"
    assert dmn_output(capsys, config, "off", "--agent", "bob") == [
        "bob is off",
        "no gateway is running: this holds from its next start",
    ]
    (directed,) = log(store, "directed")
    assert isinstance(directed, DmnDirective)
    assert (directed.agent, directed.what) == ("bob", "off")
    assert directed.by.endswith(" at the command line")
    (saved,) = log(store, "dmn")
    assert isinstance(saved, DmnStateSaved)
    assert (saved.agent, signals.load_state(saved.state).mode) == ("bob", DmnMode.OFF)
    head, ana, *_, bob, spent, people = dmn_output(capsys, config, "status")
    assert head == f"no gateway is running with the store {store}; this was saved"
    assert (ana, bob, people) == ("ana is resting", "bob is off", "  people: present")
    assert spent == "  unasked: 0 of 7 turns, $0.00 of $2.00 today; 0 of 20 turns in a row"
    assert dmn_output(capsys, config, "sleep", "8h", "--agent", "bob", code=1) == [
        "bob is off, which is more: wake it first"
    ]
    assert dmn_output(capsys, config, "wake")[:2] == ["ana is foraging", "bob is foraging"]
    assert len(log(store, "directed")) == 3


def test_times_are_of_the_configured_zone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summer = datetime.now(UTC).year + 1
    until = f"{summer}-07-01T07:00"
    dmn_output(capsys, config, "sleep", "until", until, "--agent", "ana", "--on", "irc", "--on", "telegram.x")
    dmn_output(capsys, config, "quiet", "30m", "--agent", "ana")
    (answer,) = dmn_output(capsys, config, "status", "--json", "--agent", "ana")
    assert answer.isascii()
    (ana,) = json.loads(answer)["data"]
    assert (ana["mode"], ana["stored_until"], ana["wake_on"]) == (
        "stored",
        f"{summer}-07-01T05:00:00Z",
        ["irc", "telegram.x"],
    )
    left = datetime.fromisoformat(ana["quiet_until"]) - datetime.now(UTC)
    assert timedelta(minutes=29) < left <= timedelta(minutes=30)
    assert ana["next_tick_s"] is None


def test_what_was_saved_for_all_agents_is_the_first_ones(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with await opened(config / "r.db") as store:
            now = datetime.now(UTC)
            await store.append(
                [NewEntry(fact=DmnStateSaved(state=signals.dump_state(DmnState(mode=DmnMode.PAUSED))), at=now)]
            )
            await store.append([NewEntry(fact=DmnStateSaved(state="{", agent="bob"), at=now)])
            message = said(1, kind="mention")
            await store.append([message, judged(message, 3, "due")])

    run(story())
    _, ana, *_, bob, _, unread = dmn_output(capsys, config, "debug")
    assert (ana, bob) == ("ana is paused", "bob is resting")
    assert unread == "unread, for the next start: irc.test/#a (urgent)"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("status", "--agent", "eve"), "there is no agent eve; there is ana, bob"),
        (("off", "--agent", "e\x1bve"), "there is no agent e\\x1bve; there is ana, bob"),
    ],
)
def test_an_unknown_agent_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], why: str
) -> None:
    assert dmn_output(capsys, config, *options, code=1) == [why]


def test_what_a_person_can_get_wrong_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = dmn_output(capsys, config, "quiet", "a", "while", code=2)
    assert line.startswith("reverie dmn: That is no time that is understood here; write e.g. ")
    (config / "reverie.yaml").write_text("channels: 7")
    for options in (["status", "--config", str(config)], ["status"], ["dance", "--config", str(config)], []):
        with pytest.raises(SystemExit) as ended:
            main(["dmn", *options])
        assert ended.value.code == 2


@contextlib.asynccontextmanager
async def gateway(store: Path, minds: dict[str, SavedDmn]) -> AsyncIterator[None]:
    """What a running gateway does with orders: the store is held, what is told is written down and carried out."""

    async def handler(order: ControlRequest) -> ControlResponse:
        assert isinstance(order, DmnRequest)
        now = datetime.now(UTC)
        answer, todo = dmn_admin.answer_order(order, list(minds.values()), now)
        await held.append(
            [NewEntry(fact=one.directed, at=now, conversation=inner_conversation(one.agent)) for one in todo]
        )
        for agent, directive, _ in todo:
            state, _ = dmn.step(minds[agent].state, directive, minds[agent].policy)
            minds[agent] = replace(minds[agent], state=state)
        return answer

    async with await opened(store) as held:
        listening = asyncio.create_task(ControlServer(socket_path(store), handler).run())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


def test_a_running_gateway_is_asked_and_does_it(config: Path) -> None:
    store = config / "r.db"
    minds = {
        "ana": SavedDmn(
            id="ana", state=DmnState(), policy=DmnPolicy(inner=inner_conversation("ana")), next_tick_s=120.0
        )
    }

    def command(*options: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "gateway.cli.main", "dmn", *options, "--config", str(config)]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    async def story() -> None:
        async with gateway(store, minds):
            shown = await asyncio.to_thread(command, "status")
            assert (shown.returncode, shown.stderr) == (0, "")
            assert shown.stdout.splitlines()[0] == "ana is resting; it looks again in 2 min"
            slept = await asyncio.to_thread(command, "sleep", "2h", "--on", "irc")
            assert slept.stdout.endswith("(for 2 h) or irc comes\n")
            assert (minds["ana"].state.mode, minds["ana"].state.wake_on) == (DmnMode.STORED, ("irc",))
            unknown = await asyncio.to_thread(command, "off", "--agent", "bob", "--json")
            assert (unknown.returncode, json.loads(unknown.stdout)["ok"]) == (1, False)
        async with await Store.open_readonly(store) as reader:
            (only,) = await reader.entries(kinds=["directed"])
            assert isinstance(only.fact, DmnDirective)
            assert (only.fact.what, only.conversation) == ("sleep", inner_conversation("ana"))
        off = await asyncio.to_thread(command, "off", "--agent", "ana")
        assert off.stdout == "ana is off\nno gateway is running: this holds from its next start\n"

    run(story())


def test_a_gateway_that_cannot_be_asked_is_told_apart_from_none(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = config / "r.db"

    async def story() -> None:
        async with await opened(store):
            code = await asyncio.to_thread(main, ["dmn", "off", "--config", str(config)])
            assert code == 2
            assert f"{store} is in use by process" in capsys.readouterr().err
            (config / "r.db.alive").write_bytes(SNAPSHOT.dump_json(GatewayStats({}, datetime.now(UTC)).snapshot()))
            assert await asyncio.to_thread(main, ["dmn", "status", "--config", str(config)]) == 0
            assert capsys.readouterr().out.startswith("no gateway answers, though one gave a sign of life 0 s ago; ")

    run(story())


def test_a_store_beside_which_no_socket_fits_can_still_be_told(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = {**CONFIG, "store": {"path": f"{'d' * 120}/r.db"}}
    (config / "reverie.yaml").write_text(json.dumps(deep))
    assert dmn_output(capsys, config, "status")[1] == "ana is resting"  # there is no store yet
    assert dmn_output(capsys, config, "pause", "--agent", "ana")[0] == "ana is paused"
    assert dmn_output(capsys, config, "status")[1] == "ana is paused"
