"""Each hook, kind of entry, tool and command is used in a test, as far as its syntax tells: a name
in a comment, a docstring, a list of names or a longer text does not count."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gateway.commands.table import build_table
from gateway.core import facts
from gateway.core.facts import fact_kinds
from gateway.core.tool import permits_of
from gateway.hooks import HOOK_NAMES
from gateway.plugins import find_plugins

ROOT = Path(__file__).resolve().parents[2]
KIND, TOOL, COMMAND, HOOK = "kinds of entries", "tools of plugins", "commands", "hooks"


def name_of(node: ast.expr) -> str:
    """The last part of a name. Empty: it is no name."""
    return getattr(node, "id", getattr(node, "attr", ""))


def elements(node: ast.expr) -> Iterator[ast.expr]:
    yield node
    if isinstance(node, ast.Tuple | ast.List):
        for one in node.elts:
            yield from elements(one)


def texts(*nodes: ast.expr) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def uses_of_call(call: ast.Call) -> Iterator[tuple[str, str]]:
    """What a call uses: a fact that it builds, asks for or counts by its kind; a tool that it runs,
    by its method or by a model's turn; a command that it sends."""
    name = name_of(call.func)
    yield from ((one, name) for one in (HOOK, KIND, TOOL))
    if name == "isinstance":
        yield from (
            (KIND, name_of(one))
            for one in ast.walk(call.args[1])
            if isinstance(one, ast.Name | ast.Attribute)
        )
    given = [*call.args, *(one.value for one in call.keywords)]
    for one in (nested for node in given for nested in elements(node)):
        yield from ((KIND, text) for text in texts(one))
        if isinstance(one, ast.Tuple | ast.List) and len(one.elts) > 1:
            yield from ((TOOL, text) for text in texts(one.elts[0]))
        for text in texts(one):
            if text.startswith(("!", "/")):
                yield COMMAND, text[1:].split(" ", 1)[0]
    for text in texts(
        *call.args, *(one.value for one in call.keywords if one.arg in ("name", "tool"))
    ):
        yield TOOL, text
    words = [one.value for one in call.keywords if one.arg == "words"]
    for text in texts(*call.args, *(each for one in words for each in elements(one))):
        yield COMMAND, text.split(" ", 1)[0]


def uses_in(path: Path) -> Iterator[tuple[str, str]]:
    """What a file of tests uses: what it is, and its name; also many other names."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Call():
                yield from uses_of_call(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if any(name_of(one) == "hook" for one in node.decorator_list):
                    yield HOOK, node.name
            case ast.MatchClass():
                yield KIND, name_of(node.cls)
            case ast.Compare():
                for one in (node.left, *node.comparators):
                    yield from ((KIND, text) for each in elements(one) for text in texts(each))


def class_of_kind(kind: str) -> str:
    """The class of a kind of entries of the path; a test may name either. Empty: a plugin's."""
    for name, one in vars(facts).items():
        field = getattr(one, "__dataclass_fields__", {}).get("kind")
        if field is not None and field.default == kind:
            return name
    return ""


def names() -> Mapping[str, set[str]]:
    classes = find_plugins().classes
    return {
        HOOK: set(HOOK_NAMES),
        KIND: set(fact_kinds()),
        TOOL: set(permits_of(*classes)),
        COMMAND: {row.name for row in build_table(classes).operator.values()},
    }


@pytest.fixture(scope="module")
def uses() -> set[tuple[str, str]]:
    files = [path for path in ROOT.glob("tests/**/*.py") if path != Path(__file__)]
    return {use for path in files for use in uses_in(path)}


@pytest.mark.parametrize("what", names())
def test_each_is_used_in_a_test(what: str, uses: set[tuple[str, str]]) -> None:
    assert len(names()[what]) > 1
    missing = {one for one in names()[what] if (what, one) not in uses}
    assert {one for one in missing if (what, class_of_kind(one)) not in uses} == set()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            '"""roll"""\n# roll\nNAMES = ["roll", "x"]\nsay("they roll on")\nset_off(off=["roll"])',
            "",
        ),
        ('Script(calls=(("roll", "{}"),))', TOOL),
        ("await dice.roll(context)", TOOL),
        ('await gateway.say("!roll 20")', COMMAND),
        ('carry_out(words=("roll", "20"))', COMMAND),
        ('newest_entries(1, kinds=["roll"])', KIND),
        ("class Dice(Plugin):\n    @hook\n    async def roll(self): ...", HOOK),
    ],
)
def test_a_use_is_told_from_a_mention(code: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(code)
    found = {kind for kind, name in uses_in(path) if name == "roll"}
    assert what in found or (not what and not found - {KIND})
