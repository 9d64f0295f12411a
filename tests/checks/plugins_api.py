"""Write docs/plugins-api.md from the names that `reverie` exports: `python
tests/checks/plugins_api.py`, or `make docs`."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "plugins-api.md"
HEAD = """\
# The public interface

What a plugin may import: `reverie`, `reverie.platforms`, `reverie.providers`, and in its tests `reverie.testing` (extra
`testing`). All else can change with any release. `make docs` generates this page from the code; each name's docstring is
its contract. First the names, each with its first sentence; below them, whole, the contracts of what a plugin
implements or is given:

"""
SECTIONS = {
    "A plugin": {
        "gateway.plugin": "Plugin PluginContext",
        "gateway.core.facts": "PluginFact",
        "gateway.store.projections": "Table",
    },
    "Tools and commands": {
        "gateway.core.tool": "tool Tool ToolContext ToolOutput",
        "gateway.core.tool_spec": "ToolSpec",
        "gateway.core.permissions": "ToolPermit Effect",
        "gateway.commands.definition": "CommandDefinition",
        "gateway.commands.context": "CommandCall",
    },
    "Routes and checks": {
        "gateway.core.route": "route",
        "gateway.config.check_registry": "check CheckContext",
    },
    "A platform": {"gateway.plugin": "PlatformFactory", "channels.base": ""},
    "Events": {"gateway.core.events": ""},
    "A model": {"agent.models.base": "Model ModelRequest StreamEnd Usage"},
    "Settings of a provider of models": {
        "agent.models.settings": "ProviderSettings RemoteSettings KeyedSettings ModelTraits"
    },
}
"""What is shown whole: names of each module; empty: all that `reverie.platforms` exports of it."""
EXPORTING = ("reverie", "reverie.platforms", "reverie.providers")


def source_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(source_of(module).read_text("utf-8"))


def exports(module: str) -> dict[str, str]:
    """What a module exports: names, with the modules that define them."""
    return {
        alias.name: node.module or ""
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def documented(module: str) -> Iterator[tuple[str, str]]:
    before: ast.stmt | None = None
    for node in parsed(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            targets = before.targets if isinstance(before, ast.Assign) else []
            targets = [before.target] if isinstance(before, ast.AnnAssign) else targets
            for target in targets:
                yield ast.unparse(target), str(node.value.value)
        before = node


def first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<!e\.g)(?<=[.:]) (?=[A-Z`])", paragraph)[0].replace("|", "\\|").rstrip(":")


def rows(module: str) -> list[tuple[str, str]]:
    """Names that a module exports, each with its first sentence. Empty: it has none."""
    return [
        (name, first_sentence(dict(documented(home)).get(name, "")))
        for name, home in sorted(exports(module).items(), key=lambda one: one[0].lower())
    ]


def methods(of: ast.ClassDef | ast.Module) -> Iterator[str]:
    """The public methods of a class or functions of a module, each with its signature and its contract."""
    for node in of.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        is_private = node.name.startswith("_") and node.name not in {"__init__", "__call__"}
        if docstring is None or is_private:  # without one: as in the base class
            continue
        given = re.sub("^(self|cls)(, )?", "", ast.unparse(node.args))
        marks = [ast.unparse(one) for one in node.decorator_list]
        arguments = "" if "property" in marks else f"({given})"
        answer = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
        begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        begin = "classmethod " if "classmethod" in marks else begin
        yield described(f"{begin}{node.name}{arguments}{answer}", docstring)


def fields(of: ast.ClassDef) -> Iterator[str]:
    """The declarations and fields of a class, each with its default and its docstring."""
    for node, after in zip(of.body, [*of.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            told = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                told = str(after.value.value)
            yield described(ast.unparse(node), cleandoc(told))


def described(signature: str, docstring: str) -> str:
    told = "\n".join(f"> {line}".rstrip() for line in docstring.split("\n") if docstring)
    return f"\n`{signature}`\n" + (f"\n{told}\n" if told else "")


def class_of(module: str, name: str) -> ast.ClassDef:
    return next(
        one for one in parsed(module).body if isinstance(one, ast.ClassDef) and one.name == name
    )


def members() -> Iterator[str]:
    """What authors of plugins implement and are given, whole: each class with its members."""
    yield "\n## Hooks\n"
    yield from methods(class_of("gateway.plugin", "Hooks"))
    for about, homes in SECTIONS.items():
        yield f"\n## {about}\n"
        for module, names in homes.items():
            shown = names.split() or exports("reverie.platforms")
            for of in parsed(module).body:
                if isinstance(of, ast.FunctionDef) and of.name in shown:
                    yield f"\n### {of.name}\n"
                    yield from methods(ast.Module([of], []))
                elif isinstance(of, ast.ClassDef) and of.name in shown:
                    yield f"\n### {of.name}\n\n{ast.get_docstring(of)}\n"
                    yield from fields(of)
                    yield from methods(of)


def contents(page: str) -> Iterator[str]:
    """The names whose contracts a page holds, as links: a line for each of its sections."""
    for about, *contracts in (one.split("\n### ") for one in f"\n{page}".split("\n## ")[1:]):
        title, shown = about.split("\n")[0], (one.split("\n")[0] for one in contracts)
        hooks = re.findall(r"^`(?:async )?(\w+)\(", about, re.MULTILINE)
        names = [*map("`{}`".format, hooks), *(f"[`{one}`](#{one.lower()})" for one in shown)]
        yield f"- [{title}](#{title.lower().replace(' ', '-')}): {', '.join(names)}\n"


def text() -> str:
    contracts = "".join(members())
    parts = [HEAD, *contents(contracts)]
    for module in EXPORTING:
        about = (ast.get_docstring(parsed(module)) or "").split("\n\n")[0]
        parts.append(f"\n## {module}\n\n{about}\n\n| name | |\n|---|---|\n")
        parts += [f"| `{name}` | {told} |\n" for name, told in rows(module)]
    parts.append("\n## reverie.testing\n\n| module | |\n|---|---|\n")
    for path in sorted((ROOT / "reverie" / "testing").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        told = first_sentence(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
        parts.append(f"| `{module}` | {told} |\n")
    return "".join([*parts, contracts])


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
    print(FILE.relative_to(ROOT))
    sys.exit()
