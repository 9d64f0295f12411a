"""The documents name only what there is: links, files, commands of the shell and of the chat,
configurations."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.config.loader import read_config
from tests.checks import permissions
from tests.kits.commands import TABLE

ROOT = Path(__file__).resolve().parents[2]
ROOTED = [
    ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
]
PAGES = [*ROOTED, *sorted(ROOT.glob("docs/**/*.md"))]
NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""Pages that speak of this version alone."""
FOLDERS = (
    "reverie/",
    "gateway/",
    "channels/",
    "agent/",
    "tests/",
    "config/",
    "docs/",
    "requirements/",
    ".ci/",
)

page_of = pytest.mark.parametrize("page", NOW, ids=lambda page: page.relative_to(ROOT).as_posix())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def blocks(page: Path) -> Iterator[str]:
    for block in re.findall(
        r"^```[a-z]*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        yield from block.splitlines()


def spans(page: Path) -> list[str]:
    outside = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", outside)


def code(page: Path) -> list[str]:
    return [*blocks(page), *spans(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(target)
    assert wrong == []


@page_of
def test_files_that_are_named_exist(page: Path) -> None:
    named = {
        one for one in code(page) if one.startswith(FOLDERS) and re.fullmatch(r"[\w./-]+", one)
    }
    made = ("config/my-config",)
    assert [one for one in sorted(named) if one not in made and not (ROOT / one).exists()] == []


def test_classes_and_functions_that_are_named_exist() -> None:
    code = "\n".join(
        path.read_text("utf-8")
        for top in ("gateway", "channels", "agent")
        for path in ROOT.glob(f"{top}/**/*.py")
    )
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/decisions/*.md")]
    named = {
        name
        for page in pages
        for name in spans(page)
        if re.fullmatch(r"_?[A-Z][a-z]+([A-Z][a-z]+)+|[a-z]+_[a-z_]+", name)
    }
    assert len(named) > 15
    assert sorted(name for name in named if not re.search(rf"\b{name}\b", code)) == []


@page_of
def test_commands_of_the_shell_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    typed = [line[2:] for line in blocks(page) if line.startswith("$ ")]
    for line in [*typed, *spans(page)]:
        for command in re.findall(r"(?:^|&& |; )reverie ([a-z][a-z-]*(?: [a-z|]+)?)", line):
            name, _, subs = command.partition(" ")
            with pytest.raises(SystemExit) as help_of:
                sys.exit(main([name, "--help"]))
            told = capsys.readouterr().out
            listed = re.search(r"positional arguments:\n(?:  COMMAND\n)?(.*?)\n\n", told, re.DOTALL)
            known = (
                re.findall(r"^    ([a-z]+)", listed[1], re.MULTILINE)
                if listed and "COMMAND" in told
                else None
            )
            if help_of.value.code or (
                known and not set(filter(None, subs.split("|"))) <= set(known)
            ):
                wrong.append(command)
    assert wrong == []


@page_of
def test_commands_of_the_chat_exist(page: Path) -> None:
    said = {name for span in spans(page) for name in re.findall(r"^[!/]([a-z]+)(?= |$)", span)}
    others = {
        "health",
        "ready",
        "metrics",
        "telegram",
        "bot",
        "newbot",
        "setprivacy",
        "mybots",
        "msg",
        "proc",
        "workspace",
        "tour",
        "skip",
        "quit",
    }
    assert sorted(said - others - set(TABLE.people)) == []


def test_the_page_of_operations_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    names = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert len(names) > 10
    assert [name for name in names if f"`reverie {name}" not in text] == []


@page_of
def test_make_has_the_targets(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {name for line in code(page) for name in re.findall(r"(?:^|\$ )make ([a-z]+)", line)}
    assert named <= targets


@page_of
def test_whole_configurations_are_good(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for block in blocks:
        if all(
            re.search(rf"^{key}:", block, re.MULTILINE) for key in ("channels", "agents", "llm")
        ):
            (tmp_path / "reverie.yaml").write_text(block, "utf-8")
            secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", block), "a-secret-of-16-letters")
            warnings = read_config(tmp_path, secrets).warnings
            assert warnings == ()


def test_the_table_of_permissions_is_what_the_code_says() -> None:
    assert permissions.FILE.read_text("utf-8") == permissions.text(), "`make docs` writes it anew"
