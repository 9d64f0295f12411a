"""requirements/install on machines that lack something. Nothing is fetched here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.system
def test_an_environment_without_pip_gets_it_where_there_is_no_uv(tmp_path: Path) -> None:
    """As an earlier run leaves it that was stopped half-way, or a uv that is no longer there."""
    (tmp_path / "requirements").mkdir()
    for name in ("install", "uv.txt"):
        shutil.copy(ROOT / "requirements" / name, tmp_path / "requirements" / name)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True, timeout=60
    )
    folders = [one for one in os.environ["PATH"].split(":") if not (Path(one) / "uv").exists()]
    env = {"PATH": ":".join(folders), "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    tried = subprocess.run(
        ["bash", tmp_path / "requirements" / "install"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "No matching distribution found for uv" in tried.stderr, "pip is there, and asked"


def test_the_http_client_comes_without_its_command_line() -> None:
    code = """
import contextlib, io, sys
from gateway.cli.__main__ import main
sys.argv = ["reverie", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
import httpx
print({"rich", "pygments", "click"} & set(sys.modules), httpx.Client)
"""
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert told == "set() <class 'httpx.Client'>\n"
