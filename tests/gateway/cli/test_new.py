"""`reverie new`: the tests of each skeleton pass as it is written, whatever its name."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cli.plugins import write_skeleton

NAME = "my_box"


def run_module(at: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python with the distribution in `at` as if it were installed."""
    project = tomllib.loads((at / "pyproject.toml").read_text("utf-8"))["project"]
    information = at / "src" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text(f"Name: {project['name']}\nVersion: 0.1.0\n")
    entries = project["entry-points"]["reverie.plugins"]
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (information / "entry_points.txt").write_text("\n".join(["[reverie.plugins]", *lines]))
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=at,
        env=os.environ | {"PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "kind",
    ["plugin", "provider", pytest.param("platform", marks=pytest.mark.integration)],
)
def test_the_tests_of_a_skeleton_pass_and_its_plugin_is_found(kind: str, tmp_path: Path) -> None:
    assert main(["new", kind, NAME, "--to", str(tmp_path)]) == 0
    at = tmp_path / "reverie-my-box"
    tested = run_module(at, "pytest", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
    assert re.search(r"\b[1-9]\d* passed", tested.stdout), tested.stdout
    listed = run_module(at, "reverie", "plugins")
    assert listed.returncode == 0, listed.stderr
    assert re.search(rf"^  {NAME} .*\(reverie-my-box 0\.1\.0\)", listed.stdout, re.MULTILINE)
    texts = [
        path.read_text("utf-8")
        for path in at.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    assert not [text for text in texts if "acme" in text.lower()]


@pytest.mark.integration
def test_the_types_of_the_skeletons_hold_as_strictly_as_their_settings_say(tmp_path: Path) -> None:
    for kind in ("plugin", "platform"):
        at = write_skeleton(kind, NAME, tmp_path / kind)
        checked = run_module(at, "mypy", "--cache-dir", str(tmp_path / "cache"))
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", ["Box", "1box", "a/b", "..", "", "store", "gateway", "x" * 33])
def test_a_name_that_no_plugin_can_have_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "plugin", name, "--to", str(tmp_path)]) == 2
    assert "name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_exists_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reverie-box").mkdir()
    assert main(["new", "plugin", "box", "--to", str(tmp_path)]) == 2
    assert "reverie-box" in capsys.readouterr().err
    assert list((tmp_path / "reverie-box").iterdir()) == []


BLOCKS = re.findall(
    r"```python\n(.*?)```",
    (Path(__file__).resolve().parents[3] / "docs" / "plugins.md").read_text("utf-8"),
    re.DOTALL,
)


def test_the_first_plugin_of_the_page_passes_the_tests_of_the_page(tmp_path: Path) -> None:
    assert main(["new", "plugin", "dice", "--to", str(tmp_path)]) == 0
    at = tmp_path / "reverie-dice"
    code, tests, _ = BLOCKS
    (at / "src" / "reverie_dice" / "__init__.py").write_text(code)
    (at / "tests" / "test_dice.py").write_text(tests)
    tested = run_module(at, "pytest", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout


def test_the_provider_of_the_page_passes_the_tests_of_the_skeleton(tmp_path: Path) -> None:
    assert main(["new", "provider", "parrot", "--to", str(tmp_path)]) == 0
    at = tmp_path / "reverie-parrot"
    package = at / "src" / "reverie_parrot"
    (package / "__init__.py").rename(package / "client.py")
    (package / "__init__.py").write_text(BLOCKS[2])
    tested = run_module(at, "pytest", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
