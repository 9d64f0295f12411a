"""Other distributions with packages of our names: told at the start, and by `find_name_clashes`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.packages import install


@pytest.mark.parametrize("package", ["gateway", "channels", "agent"])
@pytest.mark.parametrize("is_installed", [True, False])
def test_one_that_is_loaded_in_place_of_ours_is_told_in_one_line(
    package: str, is_installed: bool, tmp_path: Path
) -> None:
    if is_installed:
        install(tmp_path, "somebody-elses", package)
        told = "pip uninstall somebody-elses"
    else:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        told = str(tmp_path / package)
    done = subprocess.run(
        [Path(sys.executable).with_name("reverie"), "run", "--config", tmp_path],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line


def test_a_gateway_that_runs_beside_one_warns_at_its_start(tmp_path: Path) -> None:
    install(tmp_path / "behind", "somebody-elses", "agent")
    code = f"import sys; sys.path.append({str(tmp_path / 'behind')!r}); sys.argv[0] = 'reverie'\n"
    code += "from reverie.__main__ import main; sys.exit(main())"
    (tmp_path / "reverie.yaml").write_text(
        "channels: {irc.a: {platform: irc, host: localhost, port: 1, tls: false, nick: ana}}\n"
        "agents: [{id: ana}]\n"
        "llm: {providers: {s: {kind: scripted}}, models: {main: {provider: s}}}\n"
    )
    (tmp_path / "prices.yaml").write_text("models: 1\n")  # by which it ends before it connects
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--config", tmp_path, "--log", "text"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("pip uninstall somebody-elses") == 1, done.stderr
