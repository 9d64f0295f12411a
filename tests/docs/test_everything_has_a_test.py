"""Each hook, kind of entry, tool and command is named in a test: as a text, a name or an attribute,
so that a comment or a docstring does not count."""

import ast
from pathlib import Path

import pytest

from gateway.commands.table import build_table
from gateway.core import facts
from gateway.core.facts import fact_kinds
from gateway.core.tool import permits_of
from gateway.plugin import HOOK_NAMES
from gateway.plugins import find_plugins

ROOT = Path(__file__).resolve().parents[2]


def words_of(path: Path) -> set[str]:
    """The names and the words of texts in a file of tests, without its docstrings."""
    found, documented = set[str](), set[ast.AST]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant() as text):
                documented.add(text)
            case ast.Constant(value=str() as text) if node not in documented:
                found.update(text.replace("!", " ").replace("/", " ").split(), [text])
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found


@pytest.fixture(scope="module")
def words() -> set[str]:
    files = [path for path in ROOT.glob("tests/**/*.py") if path != Path(__file__)]
    return set[str]().union(*map(words_of, files))


def class_of_kind(kind: str) -> str:
    """The class of a kind of entries of the path; a test may name either. Empty: a plugin's."""
    for name, one in vars(facts).items():
        field = getattr(one, "__dataclass_fields__", {}).get("kind")
        if field is not None and field.default == kind:
            return name
    return ""


def names() -> dict[str, set[str]]:
    classes = find_plugins().classes
    return {
        "hooks": set(HOOK_NAMES),
        "kinds of entries": set(fact_kinds()),
        "tools of plugins": set(permits_of(*classes)),
        "commands": {row.name for row in build_table(classes).operator.values()},
    }


@pytest.mark.parametrize("what", names())
def test_each_is_named_in_a_test(what: str, words: set[str]) -> None:
    assert len(names()[what]) > 1
    missing = sorted(names()[what] - words)
    assert [one for one in missing if class_of_kind(one) not in words - {""}] == []


def test_a_comment_or_a_docstring_is_no_test(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        '"""parts"""\n# judge\ndef test_it() -> None:\n    "judge"\n    say("!roll 20")\n'
    )
    assert words_of(path) == {"test_it", "say", "!roll 20", "roll", "20"}
