"""Servers of the protocol that die, hang, change, lie and flood."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.tools import McpServerConfig
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.labels import Label, RequestLabel
from gateway.core.permissions import PermissionRequest, decide_permission
from gateway.core.scopes import Visibility
from gateway.core.tool_spec import ToolCall
from gateway.stream.media import MediaStore
from gateway.tools.mcp.client import McpServers
from gateway.tools.mcp.convert import MAX_SERVER_TOOLS
from reverie.testing.stopwatch import Stopwatch
from tests.kits.mcp import (
    AT,
    OWN,
    RAW,
    ROOT,
    Town,
    listening_own,
    logged,
    marked,
    raw,
    town,
)
from tests.kits.settings import live_settings
from tests.kits.tasks import LooseTasks

PATIENCE_S = 4.0
"""How long a call may take here: a busy machine answers within it, and who does not answer takes
all of it."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for a server that starts again, however busy the machine is."""
    monkeypatch.setattr("gateway.tools.mcp.client.DOWN_WAIT_S", 25.0)


def own(directory: Path) -> dict[str, object]:
    return {"command": [sys.executable, OWN, "stdio", str(directory)]}


@pytest.fixture
async def at() -> AsyncIterator[Town]:
    async with town({"raw": raw()}) as made:
        yield made


async def test_a_changed_list_is_fetched_and_told(tmp_path: Path) -> None:
    """As of 2026-07-28, where changes have to be asked for."""

    async with town({"own": own(tmp_path)}) as at:
        before = at.names
        assert (await at.call("own_grow")).text == "grown"
        await at.until_listed("mcp_own_extra")
        assert at.names == before | {"mcp_own_extra"}
        assert (await at.call("own_extra")).text == "I am new"
        assert (await at.call("own_shrink")).text == "shrunk"
        await at.until_listed("mcp_own_extra", there=False)
        assert at.names == before
        gone = await at.call("own_extra")
        assert gone.is_error
        assert gone.text == "There is no tool named 'mcp_own_extra'."


async def test_a_changed_list_is_fetched_from_servers_of_old(at: Town) -> None:

    before = at.names
    assert (await at.call("raw_grow")).text == "grown"
    await at.until_listed("mcp_raw_later")
    assert at.names == before | {"mcp_raw_later"}


@pytest.mark.usefixtures("patient")
async def test_a_server_that_dies_in_a_call_is_there_for_the_next(tmp_path: Path) -> None:

    async with town({"own": own(tmp_path)}) as at:
        before = at.names
        cut = await at.call("own_die")
        assert cut.is_error
        assert "It may have had an effect all the same" in cut.text
        assert (await at.call("own_slow", seconds=0)).text == "at last"
        assert at.names == before


async def test_a_call_that_takes_too_long_is_cancelled_there(tmp_path: Path) -> None:

    async with town({"own": {**own(tmp_path), "timeout": PATIENCE_S}}) as at:
        late = await at.call("own_slow", seconds=60)
        assert late.is_error
        assert f"did not answer within {PATIENCE_S:g} s" in late.text
        await there(tmp_path / "cancelled")
        assert (await at.call("own_slow", seconds=0)).text == "at last"
        assert [one.state for one in at.servers.servers] == [
            "up"
        ]  # it answers, so it is left alone


async def test_a_turn_that_is_interrupted_cancels_its_call(tmp_path: Path) -> None:

    async with town({"own": own(tmp_path)}) as at:
        calling = asyncio.create_task(at.call("own_slow", seconds=60))
        await there(tmp_path / "began")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await there(tmp_path / "cancelled")


async def test_the_same_at_an_address(tmp_path: Path) -> None:

    with listening_own(tmp_path) as server:
        async with town({"own": {"url": server.url, "timeout": PATIENCE_S}}) as at:
            assert (await at.call("own_grow")).text == "grown"
            await at.until_listed("mcp_own_extra")
            assert (await at.call("own_extra")).text == "I am new"
            assert (
                f"did not answer within {PATIENCE_S:g} s"
                in (await at.call("own_slow", seconds=60)).text
            )
            await there(tmp_path / "cancelled")
            calling = asyncio.create_task(at.call("own_slow", seconds=60))
            await asyncio.sleep(0)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            assert (await at.call("own_slow", seconds=0)).text == "at last"
            cut = await at.call("own_die")
            assert cut.is_error
            server.down()
            await asyncio.to_thread(server.up)
            await at.until("up")
            assert (await at.call("own_slow", seconds=0)).text == "at last"


async def test_a_server_that_hangs_is_started_again() -> None:
    """It has to be killed: it reads nothing any more, and its standard input is no way to tell
    it."""

    async with town({"raw": {**raw(), "timeout": PATIENCE_S}}) as at:
        assert f"did not answer within {PATIENCE_S:g} s" in (await at.call("raw_forever")).text
        await at.until("down")
        await at.until("up")
        assert (await at.call("raw_echo", a=1)).text == '{"a": 1}'


async def test_a_server_that_does_not_read_holds_nobody_up() -> None:

    async with town({"raw": {**raw(deaf=True), "timeout": 1.0}}) as at:
        calls = [asyncio.create_task(at.call("raw_echo", text="x" * 900_000)) for _ in range(4)]
        with Stopwatch() as watch:
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            first_s = watch.seconds
            told = await asyncio.gather(*calls)
        assert all(one.is_error for one in told)
        assert watch.seconds < 3 * first_s, "none of the four waits for the one before"


@pytest.mark.parametrize(
    "how", [{"initialize": "ignore"}, {"discover": "ignore", "initialize": "ignore"}]
)
async def test_a_server_that_never_answers_is_down(
    how: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:

    clock = ManualClock()
    async with town({"raw": raw(**how)}, clock=clock, wait_s=0) as at:
        for _ in range(3):  # it stays so, however often it is started
            async with asyncio.timeout(120):
                while not marked(at.mark):
                    clock.advance(5)  # the pause before it is started again
                    await asyncio.sleep(0.01)
                (pid, *_) = marked(at.mark)
                while pid in marked(at.mark):
                    assert at.servers.servers[0].state in ("starting", "down")
                    clock.advance(60)
                    await asyncio.sleep(0.01)
        (state,) = at.servers.servers
        assert (state.state, state.reason) == ("down", "it did not come up within 60 s")
        assert at.servers.tools == ()
    assert len(logged(caplog, logging.WARNING)) == 1


async def test_a_server_that_cannot_bear_to_be_asked_what_it_speaks_is_not_asked_again() -> None:

    async with town({"raw": raw(discover="exit")}) as at:
        await at.until("up")
        assert (await at.call("raw_echo")).text == "{}"


async def test_a_program_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """Attempts are further and further apart, and the operator is told once."""
    caplog.set_level(logging.DEBUG)

    def down() -> list[str]:
        return [line for line in logged(caplog) if "is down" in line]

    clock = ManualClock()
    async with town({"none": {"command": ["/nowhere/at-all", "--token=hush"]}}, clock=clock) as at:
        (state,) = at.servers.servers
        assert (state.state, state.reason) == (
            "down",
            "/nowhere/at-all cannot be started: No such file or directory",
        )
        async with asyncio.timeout(120):
            while len(down()) < 20:
                tries = len(down())
                clock.advance(60)
                while len(down()) == tries:
                    await asyncio.sleep(0.01)
    assert len(logged(caplog, logging.WARNING)) == 1
    assert len(down()) == 20, "one attempt for each pause"
    assert "hush" not in caplog.text


async def test_a_call_waits_a_little_for_a_server_that_is_down() -> None:

    clock = ManualClock()
    async with town({"raw": raw()}, clock=clock) as at:
        at.kill()
        await until_seen(at, clock)
        calling = asyncio.create_task(at.call("raw_echo"))
        await asyncio.sleep(0.05)
        clock.advance(0.9)
        await asyncio.sleep(0.05)
        assert not calling.done()
        clock.advance(0.2)  # the first back-off is a second
        assert (await calling).text == "{}"


async def test_a_call_does_not_wait_for_ever_for_a_server_that_is_down(tmp_path: Path) -> None:
    once = f"test -e {tmp_path}/been && exit 1; touch {tmp_path}/been; exec {sys.executable} {RAW}"

    clock = ManualClock()
    async with town({"raw": {"command": ["/bin/sh", "-c", once]}}, clock=clock) as at:
        at.kill()
        await until_seen(at, clock)
        calling = asyncio.create_task(at.call("raw_echo"))
        for _ in range(12):
            await asyncio.sleep(0.05)
            clock.advance(0.5)
        assert "does not run (it ended). Nothing was done" in (await calling).text


async def test_thousands_of_tools_on_hundreds_of_pages(caplog: pytest.LogCaptureFixture) -> None:

    async with town({"raw": raw(count=20_000, page=50)}) as at:
        assert len(at.servers.tools) == MAX_SERVER_TOOLS
    (told,) = logged(caplog, logging.WARNING)
    assert "tools are left out" in told


async def test_only_the_tools_that_the_operator_wants() -> None:

    async with town(
        {"raw": {**raw(), "tools": ["ec*", "huge"], "role": "member", "approval": "always"}}
    ) as at:
        assert [hand.spec.name for hand in at.servers.tools] == ["mcp_raw_echo", "mcp_raw_huge"]
        assert {(hand.permit.role, hand.permit.approval) for hand in at.servers.tools} == {
            ("member", "always")
        }


async def test_that_nobody_is_asked_about_a_server_does_not_mean_that_it_may_read_what_is_private() -> (
    None
):

    async with town({"raw": {**raw(), "approval": "never"}}) as at:
        (tool,) = (one for one in at.servers.tools if one.spec.name == "mcp_raw_echo")
        call = ToolCall(
            id="c", name="mcp_raw_echo", arguments='{"text": "the secret of the direct chat"}'
        )
        found = []
        for readers in ((), ("irc/olga",)):
            label = Label("outside", readers)
            where = replace(AT, request=RequestLabel(label))
            effect = await tool.find_effect(call, where)
            here = Visibility(scope="irc/olga", is_private=True, sees_everything=True)
            asked = PermissionRequest(
                roles=["owner"], unasked_role="member", here=here, label=label, effect=effect
            )
            found.append(decide_permission(tool.spec.name, tool.permit, asked).outcome)
        assert found == ["allowed", "approval"]


async def test_huge_answers(at: Town) -> None:

    large = await at.call("raw_huge", bytes=3_000_000)
    assert not large.is_error
    assert len(large.text) < 1_000_100


async def test_what_a_server_wants_of_us_it_is_denied(at: Town) -> None:

    assert (await at.call("raw_asks")).text == (
        "sampling/createMessage: refused; elicitation/create: refused; roots/list: "
        "refused; ping: answered"
    )


async def test_no_secret_is_told_to_anybody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async with town({"raw": {**raw(), "env": {"TOKEN": "hush-hush-hush"}}}) as at:
        assert (await at.call("raw_noise")).text == "after the noise"
        error = await at.call("raw_errs")
        assert "broke with" in error.text
        assert set(eval_names((await at.call("raw_env")).text)) <= {
            *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
            "LC_CTYPE",  # Python's own
            "TOKEN",
            "REVERIE_TEST_MARK",
        }
    assert "hush" not in caplog.text


def eval_names(text: str) -> list[str]:
    read: dict[str, str] = json.loads(text)
    return list(read)


async def test_an_address_is_told_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = "http://ann:hush-hush@127.0.0.1:9/mcp?key=hush-hush"

    async with town(
        {"web": {"url": url, "headers": {"X-Key": "hush\nhush"}}, "far": {"url": url}}
    ) as at:
        assert [(one.name, one.state) for one in at.servers.servers] == [
            ("far", "down"),
            ("web", "down"),
        ]
        assert at.servers.servers[0].reason == "it cannot be reached"
    assert "hush" not in caplog.text


async def test_arguments_that_cannot_be_sent(at: Town) -> None:

    for wrong in ("[]", "{", '{"a": NaN}', '{"a": "\\ud800"}', '"x"', "[" * 100_000):
        told = await at.call_json("raw_echo", wrong)
        assert told.is_error
        assert "JSON" in told.text
    assert (await at.call_json("raw_echo", "")).text == "{}"
    assert (await at.call_json("raw_echo", '{"a": "é"}')).text == '{"a": "\\u00e9"}'


async def test_half_a_character_in_a_line_is_replaced() -> None:
    half = {"content": [{"type": "text", "text": "cut \ud83d here, \U0001f9e9 whole"}]}
    async with town({"raw": raw(results={"echo": half})}) as at:
        told = await at.call("raw_echo")
        assert (told.text, told.is_error) == ("cut \ufffd here, \U0001f9e9 whole", False)


async def test_what_comes_is_somebody_elses_words(at: Town) -> None:

    told = await at.call("raw_fails")
    assert (told.is_untrusted, told.is_error, told.kind, told.origin) == (
        True,
        False,
        "mcp",
        "mcp raw fails",
    )
    assert told.text == "It did not work. The server says:\nno such file"
    assert (await at.call("raw_structured")).text == '{"n": 1}'
    broken = (await at.call("raw_broken")).text.splitlines()
    assert broken[0] == "[image that cannot be read]"
    assert broken[2:] == [
        "[sound, audio/wav, 3 bytes: it cannot be shown here]",
        "[file, of no known kind, 3 bytes: it cannot be shown here]",
    ]


async def test_images_are_kept_and_shown(tmp_path: Path) -> None:
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    block = {"type": "image", "data": png, "mimeType": "image/gif"}
    tool = {"name": "draw", "inputSchema": {"type": "object"}}

    plan = raw(tools=[tool], results={"draw": {"content": [block] * 6}})
    async with town(
        {"raw": plan}, media=MediaStore(live_settings(), tmp_path, {}, SystemClock())
    ) as at:
        told = await at.call("raw_draw")
        assert [shown.about for shown, _ in told.images] == [
            "[image image from mcp raw draw, 1x1, 70 bytes]"
        ] * 4
        assert told.text.splitlines()[0].endswith("shown]")
        assert told.text.splitlines()[5].endswith("cannot be shown here]")


async def test_all_is_closed_while_one_that_hangs_is_being_ended() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

    clock = ManualClock()
    async with town(
        {"raw": {"command": [sys.executable, "-c", code]}}, clock=clock, wait_s=0
    ) as at:
        while not marked(at.mark):
            await asyncio.sleep(0.01)
        clock.advance(60)  # it has not come up
        await asyncio.sleep(0.3)
        assert len(marked(at.mark)) == 1  # it is still given time


async def test_turns_wait_for_a_starting_server_until_one_time_for_all() -> None:
    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    clock, config = ManualClock(), McpServerConfig.model_validate({"command": ["never-begun"]})
    servers = McpServers({"raw": config}, clock, LooseTasks())
    waits = [asyncio.create_task(servers.wait_settled(5))]
    await settle()
    clock.advance(3)
    waits.append(asyncio.create_task(servers.wait_settled(5)))
    await settle()
    assert not any(one.done() for one in waits), "the second one waits, too"
    clock.advance(2)
    await settle()
    assert all(one.done() for one in waits)


async def test_nothing_waits_for_a_server(tmp_path: Path) -> None:

    async with town({"own": own(tmp_path), "raw": raw(initialize="ignore")}, wait_s=0.0) as at:
        assert [one.state for one in at.servers.servers] == ["starting", "starting"]
        assert at.servers.tools == ()


def test_a_missing_package_is_said_once() -> None:
    code = """
import asyncio, sys
sys.modules["mcp"] = sys.modules["mcp.client"] = None
from gateway.core.clock import SystemClock
from gateway.config.tools import McpServerConfig
from gateway.tools.mcp.client import McpServers
from tests.kits.tasks import LooseTasks
async def story():
    config = {"raw": McpServerConfig.model_validate({"command": ["nothing"]})}
    servers = McpServers(config, SystemClock(), LooseTasks())
    servers.start()
    await servers.wait_settled(20)
    print(servers.servers[0].state)
    await servers.aclose()
asyncio.run(story())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert ran.stdout == "off\n"
    assert (
        ran.stderr
        == "MCP server raw: the package mcp is not installed: pip install 'reverie-gateway[mcp]'\n"
    )


def test_who_has_no_servers_does_not_pay_for_them() -> None:
    code = (
        "import sys, gateway.tools.mcp.client; sys.exit(any(name in sys.modules for name in "
        "('mcp', 'httpx2')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_hands_of_none() -> None:
    servers = McpServers({}, ManualClock(), LooseTasks())
    assert (servers.tools, servers.servers) == ((), [])
    with pytest.raises(ValueError, match="either a command or a url"):
        McpServerConfig.model_validate({})


async def there(file: Path) -> None:
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(file.exists):
            await asyncio.sleep(0.01)


async def until_seen(at: Town, clock: ManualClock) -> None:
    """Return once it is seen that a server has ended, which is when its tools are listed again."""
    async with asyncio.timeout(120):
        while at.servers.servers[0].state != "down":
            clock.advance(1)
            await asyncio.sleep(0.01)
