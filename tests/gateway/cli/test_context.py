"""`reverie context`: beside a running gateway, and where none runs."""

import asyncio
from pathlib import Path

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.cli.main import main
from gateway.core.control_messages import ContextRequest, ControlResponse
from gateway.core.control_socket import send_control_request, socket_path
from gateway.core.facts import ConversationRewound, ViewFolded
from gateway.store import rebuild
from tests.kits.channels import story
from tests.kits.gateway import Running, running

CONFIG = """
channels: {console: {platform: console, rooms: [lobby]}}
agents: [{id: reverie}]
llm: {providers: {s: {kind: scripted}}, models: {main: {provider: s}}}
store: {path: reverie.db}
"""
TALK = Script(rules=(ScriptRule(match="one", reply="first"), ScriptRule(match="two", reply="second")))
ANN = "console/ann"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reverie.yaml").write_text(CONFIG)
    return tmp_path


async def _talk(gateway: Running) -> None:
    for count, words in enumerate(["say one", "say two"], start=1):
        await gateway.console.receive_message(words, sender="ann")
        await gateway.screen.until(count)


async def _order(gateway: Running, what: str, place: str = ANN, count: int = 1) -> ControlResponse:
    order = ContextRequest.model_validate({"what": what, "conversation": place, "by": "ops", "count": count})
    return await send_control_request(socket_path(gateway.path), order)


@story
async def test_a_running_gateway_is_asked(tmp_path: Path) -> None:
    async with running(tmp_path, TALK) as gateway:
        await _talk(gateway)
        said = await _order(gateway, "retry")
        assert (said.ok, said.lines[0][:23]) == (True, "Once more: 1 message of")
        await gateway.screen.until(3)
        assert gateway.screen.parts[2].body == "second"
        said = await _order(gateway, "rewind", count=5)
        assert (said.ok, "(of 5: no more are in view)" in said.lines[0]) == (True, True)
        said = await _order(gateway, "rewind")
        assert (said.ok, said.lines) == (False, ("Nothing is in view here that could be taken back.",))
        await gateway.console.receive_message("say one", sender="ann")
        await gateway.screen.until(4)
        said = await _order(gateway, "compact")
        assert (said.ok, len(said.lines)) == (True, 1)
        assert (await _order(gateway, "new")).ok
        assert (await _order(gateway, "new", "nowhere")).lines == (
            "nowhere is no conversation: write it as the log has it",
        )
        assert [fact.by for fact in await gateway.log("rewound") if isinstance(fact, ConversationRewound)] == [
            "ops",
            "ops",
        ]
    assert await rebuild(gateway.path) == []


def test_where_none_runs_the_log_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def before() -> None:
        async with running(folder, TALK) as gateway:
            await _talk(gateway)

    async def after() -> Running:
        async with running(folder, TALK) as gateway:
            await gateway.screen.until(1)
        return gateway

    asyncio.run(before())
    assert main(["context", "compact", ANN, "--config", str(folder)]) == 1
    assert capsys.readouterr().err == "no gateway is running, and only a running one folds: start it\n"
    assert main(["context", "retry", ANN, "--config", str(folder)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("Once more: 1 message")
    assert told[1] == "no gateway is running: this holds from its next start"
    gateway = asyncio.run(after())
    assert gateway.screen.parts[0].body == "second"
    assert main(["context", "rewind", ANN, "2", "--config", str(folder)]) == 0
    assert main(["context", "rewind", ANN, "--config", str(folder)]) == 1
    assert main(["context", "new", ANN, "--config", str(folder)]) == 1
    facts = asyncio.run(gateway.log("rewound", "folded"))
    assert [type(fact) for fact in facts] == [ConversationRewound, ConversationRewound]
    assert not [fact for fact in facts if isinstance(fact, ViewFolded)]
    assert asyncio.run(rebuild(gateway.path)) == []


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["rewind", ANN, "none"], "N is a number from 1 to 1000"),
        (["new", ANN], "there is no store at "),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], args: list[str], reason: str
) -> None:
    assert main(["context", *args, "--config", str(folder)]) == 2
    assert reason in capsys.readouterr().err
    assert not (folder / "reverie.db").exists()
