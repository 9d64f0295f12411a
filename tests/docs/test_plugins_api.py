"""The public interface: docs/plugins-api.md lists it, and each name is there, typed and explained."""

import subprocess
import sys
from importlib import import_module

import pytest

import reverie
from tests.checks.plugins_api import EXPORTING, FILE, ROOT, exports, rows, text


def test_the_page_is_generated_from_the_code() -> None:
    assert FILE.read_text("utf-8") == text(), "run `make docs`"


@pytest.mark.parametrize("module", EXPORTING)
def test_each_name_is_that_of_its_home_and_has_a_docstring(module: str) -> None:
    found = import_module(module)
    for name, home in exports(module).items():
        assert getattr(found, name) is getattr(import_module(home), name)
    assert [name for name, told in rows(module) if not told] == []


def test_type_checkers_see_the_names_that_can_be_imported() -> None:
    assert dir(reverie) == sorted(exports("reverie"))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = reverie.nonsense  # type: ignore[attr-defined] # that is the point


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import reverie", {"pydantic", "asyncio", "gateway", "channels", "agent"}),
        ("from reverie import tool, Label, Channel, Model", {"aiosqlite", "yaml"}),
        ("from reverie import Part, Plugin, hook", {"aiosqlite", "yaml"}),
        ("import reverie.platforms, reverie.providers", {"aiosqlite", "httpx", "aiohttp"}),
    ],
)
def test_a_name_is_imported_where_it_is_used(code: str, absent: set[str]) -> None:
    heavy = absent | {"discord", "telegram", "irc", "tiktoken", "pytest"}
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*{heavy!r} & sys.modules.keys())"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout
    assert told.split() == []
