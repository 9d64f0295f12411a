"""The console at a terminal without one: keys, panes, a gateway that comes and goes. The gateway is
scripted."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events as textual_events

from channels import aio
from gateway.cli.main import main
from gateway.core.installing import install_command
from gateway.plugins.console.app import LINE_BREAK, ConsoleApp, PaneLog, Prompt
from reverie.testing.servers.ports import free_port
from tests.kits.console import AT, OWN, Seat, StubGateway, mind, opened, seated, turn
from tests.kits.ops import TOKEN, operated

ROOM = "irc.x/#lobby"


@pytest.fixture
async def seat() -> AsyncIterator[Seat]:
    async with seated() as made:
        yield made


def say(seat: Seat, words: str, seq: int = 1, where: str = OWN) -> None:
    seat.gateway.tell(
        "notification",
        seq,
        type="x.direct",
        kind="direct",
        conversation=where,
        who="ann",
        text=words,
        urgency=2,
    )


def tool(seat: Seat, state: str, call: str = "c1", where: str = OWN, **more: Any) -> None:
    fields = {
        "turn": "t1",
        "agent": "reverie",
        "conversation": where,
        "call": call,
        "name": "shell",
        "state": state,
    }
    ends = {"arguments": "{}", "result": "", "error": False}
    seat.gateway.tell("tool", **{**fields, **ends, **more})


def pane(seat: Seat, name: str) -> PaneLog:
    return seat.app.query_one(f"#{name}", PaneLog)


async def test_the_four_panes(seat: Seat) -> None:
    tell = seat.gateway.tell
    say(seat, "what is new?")
    tell("turn", **turn("started", autonomous=True, conversation="inner/reverie"))
    tell(
        "thinking",
        turn="t1",
        agent="reverie",
        conversation="inner/reverie",
        autonomous=True,
        delta="let me look",
    )
    tool(seat, "started", arguments='{"command": "ls"}')
    tool(seat, "ended", result="file a\nfile b")
    tell("post", 2, conversation=OWN, text="Two files.")
    await seat.sees("let me look", "autonomous")
    await seat.sees("ann  what is new?", "conversation")
    await seat.sees("reverie  Two files.", "conversation")
    await seat.sees("command: ls", "tools")
    await seat.sees("file b", "tools")
    await seat.sees("attached 127.0.0.1")
    await seat.sees("reverie resting")
    await seat.sees("today 100k in 98 % read 1.2k out $0.0312 │ model claude-test")
    await seat.sees("thinks")


async def test_what_is_typed_is_said(seat: Seat) -> None:
    await seat.enters("hello there")
    await seat.until(lambda: seat.gateway.said == ["hello there"])
    await seat.enters("/status")
    await seat.until(lambda: seat.gateway.said[1:] == ["/status"])
    assert seat.app.query_one(Prompt).value == ""


async def test_what_is_not_taken_is_told(seat: Seat) -> None:
    seat.gateway.refuses = "the store is full [bold]"
    await seat.enters("hello")
    await seat.sees("not said: the store is full [bold]", "conversation")
    seat.app.query_one(Prompt).value = "x" * 17_000
    await seat.pilot.press("enter")
    await seat.sees("17000 characters", "conversation")


async def test_what_is_pasted_is_one_message_without_what_nobody_sees(seat: Seat) -> None:
    prompt = seat.app.query_one(Prompt)
    prompt.post_message(textual_events.Paste("one\r\ntwo\tx\x1b[31m\u202ethree\nfour"))
    await seat.until(lambda: "four" in prompt.value)
    assert seat.gateway.said == []
    await seat.pilot.press("enter")
    await seat.until(lambda: seat.gateway.said == ["one\ntwo x[31m[U+202E]three\nfour"])


async def test_a_second_line_and_the_history(seat: Seat) -> None:
    prompt = seat.app.query_one(Prompt)
    await seat.types("one")
    await seat.pilot.press("ctrl+j")
    await seat.enters("two")
    await seat.until(lambda: seat.gateway.said == ["one\ntwo"])
    await seat.types("draft")
    await seat.pilot.press("up")
    assert prompt.value == f"one{LINE_BREAK}two"
    await seat.pilot.press("down")
    assert prompt.value == "draft"


async def test_commands_are_completed_and_explained(seat: Seat) -> None:
    prompt = seat.app.query_one(Prompt)
    seat.gateway.places = [
        {"conversation": ROOM, "agent": "reverie", "last_at": AT, "last_text": "", "last_who": ""}
    ]
    await seat.until(lambda: bool(seat.app.model.conversations))  # which are asked for now and then
    await seat.types("/dm")
    await seat.sees("dmn")
    await seat.pilot.press("tab")
    assert prompt.value == "/dmn "
    await seat.types("pau")
    await seat.pilot.press("tab")
    assert prompt.value == "/dmn pause "
    assert prompt.has_focus
    prompt.clear()
    await seat.types("/follow i")
    await seat.pilot.press("tab")
    assert prompt.value == f"/follow {ROOM} "
    prompt.clear()
    await seat.types("/status")
    await seat.sees("/status: Show the connections")


async def test_behind_a_turn_the_sums_are_asked_for(seat: Seat) -> None:
    seat.gateway.status["today"]["cost_usd"] = 7.25
    seat.gateway.tell("turn", **turn("ended"))
    await seat.sees("out $7.25")


async def test_reasoning_is_hidden_and_shown(seat: Seat) -> None:
    def think(words: str) -> None:
        fields = {"turn": "t1", "agent": "reverie", "conversation": OWN, "autonomous": False}
        seat.gateway.tell("thinking", **fields, delta=words)

    think("deep thoughts")
    await seat.sees("deep thoughts", "autonomous")
    await seat.pilot.press("ctrl+r")
    await seat.sees("reasoning is hidden", "autonomous")
    think(" and more")
    await seat.until(lambda: "and more" not in seat.screen())
    await seat.pilot.press("ctrl+r")
    await seat.sees("and more", "autonomous")


async def test_a_tool_is_killed(seat: Seat) -> None:
    await seat.pilot.press("ctrl+k")
    await seat.sees("no tool is running", "conversation")
    tool(seat, "started", "c1", ROOM)
    tool(seat, "started", "c2", turn="t2")
    await seat.until(lambda: len(seat.app.model.turns) == 2)
    await seat.pilot.press("ctrl+k")
    await seat.sees("killing shell in console/operator", "conversation")
    await seat.sees("it is done", "conversation")
    assert [(*one["words"], one["place"]) for one in seat.gateway.orders] == [("kill", OWN)]


async def test_a_turn_is_stopped(seat: Seat) -> None:
    await seat.pilot.press("escape")
    await seat.sees("no turn is running", "conversation")
    seat.gateway.tell("turn", **turn("started"))
    await seat.until(lambda: bool(seat.app.model.turns))
    seat.gateway.refuses = "it has just ended"
    await seat.pilot.press("escape")
    await seat.sees("it has just ended", "conversation")
    assert [(*one["words"], one["place"]) for one in seat.gateway.orders] == [("stop", OWN)]


async def test_somebody_elses_turn_is_stopped_where_it_is_followed(seat: Seat) -> None:
    seat.gateway.tell("turn", **turn("started", conversation=ROOM))
    await seat.until(lambda: bool(seat.app.model.turns))
    await seat.pilot.press("escape")
    await seat.sees("/follow it", "conversation")
    assert seat.gateway.orders == []
    await seat.enters(f"/follow {ROOM}")
    await seat.until(lambda: seat.app.model.followed == ROOM)
    await seat.pilot.press("escape")
    await seat.until(lambda: [one["place"] for one in seat.gateway.orders] == [ROOM])


async def test_tab_goes_round_the_panes(seat: Seat) -> None:
    def focused() -> str | None:
        return seat.app.focused.id if seat.app.focused else None

    seen = []
    for _ in range(4):
        await seat.pilot.press("tab")
        seen.append(focused())
    assert seen == ["tools", "autonomous", "conversation", "prompt"]
    await seat.pilot.press("shift+tab")
    assert focused() == "conversation"


async def test_scrolling_up_pins_and_the_end_follows_again(seat: Seat) -> None:
    for number in range(100):
        say(seat, f"line {number:03}", number + 1)
    await seat.sees("line 099", "conversation")
    await seat.pilot.press("pageup")  # from the prompt, too
    await seat.until(lambda: "line 099" not in "".join(seat.rows("conversation")))
    before = seat.rows("conversation")
    for number in range(100, 105):
        say(seat, f"line {number:03}", number + 1)
    await seat.sees("↓ End")
    assert seat.rows("conversation") == before
    await seat.pilot.press("shift+tab", "end")
    await seat.sees("line 104", "conversation")
    assert "↓ End" not in seat.screen()
    say(seat, "and on", 200)
    await seat.sees("and on", "conversation")
    await seat.pilot.press("home")
    await seat.sees("line 000", "conversation")


async def test_a_pane_is_emptied(seat: Seat) -> None:
    say(seat, "hello")
    tool(seat, "started")
    await seat.sees("▶ shell", "tools")
    await seat.sees("hello", "conversation")
    await seat.pilot.press("ctrl+l")
    await seat.until(lambda: "".join(seat.rows("conversation")) == "")
    await seat.sees("▶ shell", "tools")
    await seat.pilot.press("tab", "ctrl+l")
    await seat.until(lambda: "".join(seat.rows("tools")) == "")
    say(seat, "again", 2)
    await seat.sees("again", "conversation")
    await seat.pilot.press("tab", "tab", "tab")
    await seat.enters("/clear")
    await seat.until(lambda: "".join(seat.rows("conversation")) == "")
    assert seat.gateway.said == []


async def test_another_conversation_is_followed(seat: Seat) -> None:
    seat.gateway.messages = [
        {
            "seq": 3,
            "at": AT,
            "who": "bob",
            "ours": False,
            "text": "older words",
            "kind": "room",
            "fate": "answered",
        }
    ]
    seat.gateway.places = [
        {
            "conversation": ROOM,
            "agent": "reverie",
            "last_at": AT,
            "last_text": "bye",
            "last_who": "bob",
        }
    ]
    say(seat, "elsewhere", 2, ROOM)
    await seat.enters(f"/follow {ROOM}")
    await seat.sees("bob  older words", "conversation")
    await seat.sees(f"{ROOM} (what you say is not said here)")
    assert "elsewhere" not in seat.screen()
    say(seat, "newer words", 4, ROOM)
    await seat.sees("newer words", "conversation")
    await seat.enters("/follow all")
    await seat.sees(f"{ROOM} bob  bye", "conversation")
    await seat.sees("all conversations")
    seat.gateway.messages = []
    await seat.enters("/follow own")
    await seat.sees("nothing was said here yet", "conversation")
    assert seat.gateway.said == []


async def test_help_lists_the_commands_of_the_console(seat: Seat) -> None:
    await seat.pilot.press("f1")
    for words in ("/follow", "/quit", "Ctrl+J", "Ctrl+Q quits"):
        await seat.sees(words, "conversation")


@pytest.mark.parametrize(
    "keys",
    [
        ("ctrl+q",),
        ("slash", "q", "u", "i", "t", "enter"),
    ],
)
async def test_ways_out(keys: tuple[str, ...]) -> None:
    async with seated() as seat:
        await seat.pilot.press(*keys)
        await asyncio.wait_for(seat.app._task or asyncio.sleep(0), 120)
        assert seat.app.return_code == 0


async def test_one_ctrl_c_does_not_quit(seat: Seat) -> None:
    await seat.pilot.press("ctrl+c")
    await seat.sees("Ctrl+Q quits", "conversation")
    assert seat.app.is_running


HOSTILE = (
    "[bold red]markup[/] [link=http://x]y[/link] [/] [",
    "\x1b]0;title\x07\x1b[2J\x1b[31mred",
    "\u202ereversed\u2066 \u200bhidden\u200d \U000e0041\U000e0042",
    "日本語のとても長い文" * 12,
    "👨\u200d👩\u200d👧👍🏽❤\ufe0f🇩🇪" * 10,
    "z" + "\u0301" * 200,
    "a" * 5_000,
    "\r\rover\x08\x08write\x00\x7f\x9b",
    "\ud800",
    "مرحبا שלום",
)


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 12), (20, 8)])
async def test_hostile_text_breaks_no_layout(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        tell = seat.gateway.tell
        for number, text in enumerate(HOSTILE):
            say(seat, text, number + 1)
            tell("thinking", turn="t1", agent=text, conversation=text, autonomous=True, delta=text)
            tool(seat, "started", f"c{number}", text, arguments=json.dumps({text: text}))
            tool(seat, "ended", f"c{number}", text, result=text, error=True)
            tell("dmn", **mind(text, agent=text))
            tell("log", level=text, logger=text, message=text)
            tell("channel", channel=text, platform=text, state="down", reason=text)
        tell("log", level="warning", logger="x", message="the end")
        await seat.until(lambda: "the end" in pane(seat, "autonomous").entries[-1].plain)
        await seat.pilot.pause(0.1)
        strips = _strips(seat.app)
        assert {strip.cell_length for strip in strips} == {size[0]}
        drawn = "".join(segment.text for strip in strips for segment in strip)
        assert not set(drawn) & set("\x1b\x07\x08\x00\x7f\x9b\u202e\u2066\u200b\u200d\ufe0f\r\n")
        await seat.pilot.resize_terminal(60, 20)
        await seat.until(lambda: {strip.cell_length for strip in _strips(seat.app)} == {60})


async def test_a_small_terminal_shows_everything_that_matters() -> None:
    async with seated((80, 24)) as seat:
        say(seat, "can you read this?")
        tool(seat, "started")
        seat.gateway.tell("dmn", **mind("foraging"))
        for words in (
            "can you read this?",
            "▶ shell",
            "is awake",
            "attached",
            "^q quit",
            "say something",
        ):
            await seat.sees(words)


async def test_a_restarted_gateway_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "FIRST_DELAY_S", 0.05)
    async with seated() as seat:
        gateway = seat.gateway
        say(seat, "before", 41)
        await seat.sees("before", "conversation")
        gateway.tell("turn", **turn("started"))
        gateway.tell(
            "text",
            turn="t1",
            agent="reverie",
            conversation=OWN,
            autonomous=False,
            delta="half an ans",
        )
        await seat.sees("half an ans", "conversation")
        await gateway.stop()
        await seat.sees("the connection to the gateway is gone", "autonomous")
        await seat.sees("again in")
        await seat.enters("into the void")
        await seat.sees("not said: nobody answers there", "conversation")
        await gateway.start()
        await seat.sees("attached again", "autonomous")
        await seat.until(lambda: "half an ans" not in seat.screen())
        say(seat, "after", 42)
        await seat.sees("after", "conversation")
        await seat.sees("● attached")


async def test_another_token_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "FIRST_DELAY_S", 0.05)
    async with seated() as seat:
        await seat.gateway.stop()
        seat.gateway.token = "another one"
        await seat.gateway.start()
        await seat.sees("send the token (401)")


async def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with seated() as seat:
        say(seat, "hello")
        await seat.sees("hello", "conversation")
        strips = [
            strip.apply_filter(one, seat.app.screen.background_colors[0])
            for strip in _strips(seat.app)
            for one in seat.app._filters
            if one.enabled
        ]
        assert all(
            not segment.style or segment.style.color is None or segment.style.color.is_default
            for strip in strips
            for segment in strip
        )


def _strips(app: ConsoleApp) -> list[Any]:
    return app.screen._compositor.render_strips(app.size)


# The console on gateways that run: in this process, and the command in a terminal.


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def test_a_person_talks_to_a_real_gateway(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway, opened(url(gateway.port), TOKEN) as eyes:
        await eyes.sees("attached")
        await eyes.enters("hello there")
        await eyes.sees("operator  hello there", "conversation")
        await eyes.sees("reverie  You said:", "conversation")
        await eyes.enters("/version")
        await eyes.sees("operator  /version", "conversation")
        await eyes.sees("Reverie 0.", "conversation")
        await eyes.enters("/dmn pause")
        await eyes.sees("reverie paused")
        await eyes.sees("is paused", "autonomous")
        await gateway.console.receive_message("reverie: and me?", sender="ann", room="lobby")
        await eyes.enters("/follow demo/lobby")
        await eyes.sees("ann  reverie: and me?", "conversation")
        await eyes.until(lambda: not eyes.app.model.turns)
        assert "is writing" not in eyes.screen()


async def test_commands_of_plugins_that_are_off_are_not_offered(tmp_path: Path) -> None:
    off = {"off": ["approvals"]}
    async with operated(tmp_path, plugins=off) as gateway, opened(url(gateway.port), TOKEN) as eyes:
        await eyes.sees("attached")
        names = eyes.app.model.find_completions("/")
    assert {"status", "recap"} <= set(names)
    assert not {"approve", "deny"}.intersection(names)


async def test_a_restarted_gateway_tells_what_was_said_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "FIRST_DELAY_S", 0.05)
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        async with operated(tmp_path, ops={"port": port}):
            eyes = await stack.enter_async_context(opened(url(port), TOKEN))
            await eyes.sees("attached")
            await eyes.enters("before")
            await eyes.sees("You said:", "conversation")
        await eyes.sees("the connection to the gateway is gone", "autonomous")
        async with operated(tmp_path, ops={"port": port}) as again:
            await eyes.sees("attached again", "autonomous")
            await again.post("/api/say", {"text": "from elsewhere"})
            await eyes.sees("operator  from elsewhere", "conversation")
            assert " ".join(eyes.rows("conversation")).count("operator  before") == 1


class Terminal:
    def __init__(self, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        command = [sys.executable, "-m", "gateway.cli.main", "console", *args]
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
            cwd=Path.cwd(),
        )
        os.close(theirs)
        self.drawn = b""

    def until(self, found: Callable[[bytes], bool]) -> None:
        while not found(self.drawn):
            try:
                data = os.read(self._ours, 65_536)
            except OSError:  # the other side is closed
                data = b""
            assert data, self.drawn[-3_000:].decode("utf-8", "replace")
            self.drawn += data

    def keys(self, data: bytes) -> None:
        os.write(self._ours, data)

    def end(self) -> int:
        """Read to the end; the exit code."""
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 65_536):
                self.drawn += data
        os.close(self._ours)
        return self.process.wait(30)


CONFIG = """
channels:
  irc.test: {{platform: irc, host: 127.0.0.1, port: 1, tls: false, nick: reverie, rooms: ["#lobby"]}}
agents: [{{id: reverie}}]
llm: {{providers: {{s: {{kind: scripted}}}}, models: {{main: {{provider: s}}}}}}
store: {{path: reverie.db}}
ops: {ops}
"""


@pytest.mark.parametrize(
    "way",
    ["ctrl+q", *(pytest.param(way, marks=pytest.mark.system) for way in ("SIGTERM", "SIGHUP"))],
)
async def test_the_command_attaches_and_leaves(tmp_path: Path, way: str) -> None:
    async with operated(tmp_path / "gateway") as gateway:
        (tmp_path / "reverie.yaml").write_text(
            CONFIG.format(ops=f"{{port: {gateway.port}, token: {TOKEN}}}")
        )
        terminal = Terminal("--config", str(tmp_path))

        def play() -> int:
            terminal.until(lambda drawn: b"attached" in drawn)
            if way == "ctrl+q":
                terminal.keys(b"\x11")
            else:
                terminal.process.send_signal(getattr(signal, way))
            return terminal.end()

        assert await asyncio.to_thread(play) == 0


def test_what_is_missing_is_told_with_its_fix(tmp_path: Path) -> None:
    def run(ops: str, *more: str) -> tuple[int, str]:
        (tmp_path / "reverie.yaml").write_text(CONFIG.format(ops=ops))
        terminal = Terminal(*more)
        return terminal.end(), terminal.drawn.decode()

    port, here = free_port(), ("--config", str(tmp_path))
    code, said = run(f"{{port: {port}, token: {TOKEN}}}", *here)
    assert (code, f"start `reverie run --config {tmp_path}`" in said) == (3, True)
    for ops, more, reason in (
        (f"{{port: {port}}}", here, "need a token: set ops.token"),
        (f"{{port: 0, token: {TOKEN}}}", here, "ops.port is 0"),
        ("{port: 0}", (), "--config"),
        ("{port: 0}", ("--url", "http://example.org:9090"), "is not this machine"),
        ("{port: 0}", ("--url", "ftp://127.0.0.1"), "is no address"),
        ("{port: 0}", ("--url", url(port)), "the token is empty"),
    ):
        code, said = run(ops, *more)
        assert (code, reason in said) == (2, True), said


async def test_a_wrong_token_and_something_else_are_told(tmp_path: Path) -> None:
    stub = StubGateway()
    await stub.start()
    (tmp_path / "reverie.yaml").write_text(
        CONFIG.format(ops=f"{{port: {stub.port}, token: {TOKEN}}}")
    )
    terminal = Terminal("--config", str(tmp_path))
    assert (await asyncio.to_thread(terminal.end), b"send the token (401)" in terminal.drawn) == (
        2,
        True,
    )
    stub.token, stub.status = TOKEN, []  # type: ignore[assignment] # nor is this what a gateway says
    terminal = Terminal("--config", str(tmp_path))
    assert (await asyncio.to_thread(terminal.end), b"of another version" in terminal.drawn) == (
        2,
        True,
    )
    await stub.stop()


def test_without_a_terminal_there_is_no_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console", "--config", str(tmp_path)]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_without_its_extra_it_tells_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    assert main(["console", "--config", str(tmp_path)]) == 2
    assert install_command("console") in capsys.readouterr().err
