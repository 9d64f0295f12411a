"""requirements/install on machines that lack something. Nothing is fetched here."""

import os
import re
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


ADD_MCP = "from gateway.core.installing import install_command as tell; print(tell('mcp'))"


@pytest.mark.parametrize(
    ("marker", "folder", "starts"),
    [
        ("uv-receipt.toml", "reverie-gateway", "uv tool install "),
        ("pipx_metadata.json", "reverie-gateway", "pipx install --force "),
        ("pyvenv.cfg", "archive-v0/abc", "uvx --from "),
        ("pyvenv.cfg", "venv", r"(uv pip install --python \S+|\S+ -m pip install) "),
    ],
)
def test_what_installs_an_extra_is_told_as_the_installer_wants_it(
    tmp_path: Path, marker: str, folder: str, starts: str
) -> None:
    """The environments are as those programs leave them: of uv 0.13, and of pipx 1.18."""
    venv = tmp_path / folder
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    (venv / marker).touch()
    files = [ROOT, *(one for one in sys.path if one.endswith("site-packages"))]
    done = subprocess.run(
        [venv / "bin/python", "-c", ADD_MCP],
        env={"PYTHONPATH": ":".join(map(str, files))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert re.match(starts, done), done
    assert re.search(r"\[(\w+,)*mcp(,\w+)*\]", done), done


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
