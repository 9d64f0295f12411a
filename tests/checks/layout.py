"""Figures of the code's layout, printed as a table: `python tests/checks/layout.py [CHECKOUT...]`. Nothing is limited.

One column for each checkout, e.g. an older one beside this one. `tests/checks/hello.py` counts what one message runs
through.
"""

import ast
import collections
import functools
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "channels", "agent")


def read_modules(root: Path) -> dict[str, tuple[int, ast.Module]]:
    """Return lines and syntax tree of each product module of a checkout, by its dotted name."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", *(f"{package}/*.py" for package in PACKAGES)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    found = {}
    for path in listed:
        name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        text = (root / path).read_text(encoding="utf-8")
        found[name] = (text.count("\n"), ast.parse(text))
    return found


def _imported(tree: ast.Module, names: Mapping[str, object]) -> Iterator[str]:
    """Yield own modules that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from [name for name in (full, node.module) if name in names][:1]
        elif isinstance(node, ast.Import):
            yield from [alias.name for alias in node.names if alias.name in names]


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list)


def _passes_on(keyword: ast.keyword) -> bool:
    """Return True for `x=x`, `x=self.x` and `x=self._x`."""
    value = keyword.value
    if isinstance(value, ast.Name):
        return value.id == keyword.arg
    of_self = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self"
    return of_self and isinstance(value, ast.Attribute) and value.attr.lstrip("_") == keyword.arg


def _longest_ladder(imports: Mapping[str, set[str]]) -> int:
    """Return how many modules stand in the longest chain of imports."""
    under_way: set[str] = set()

    @functools.cache
    def height(name: str) -> int:
        under_way.add(name)
        best = max((height(other) for other in imports[name] if other not in under_way), default=0)
        under_way.discard(name)
        return best + 1

    return max(map(height, sorted(imports)))


def measure(root: Path) -> dict[str, str]:
    """Return the figures of one checkout, by what they are."""
    modules = read_modules(root)
    lines = sorted(count for count, _ in modules.values())
    nodes = [node for _, tree in modules.values() for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    names = collections.Counter(node.name for node in classes)
    imports = {name: set(_imported(tree, modules)) - {name} for name, (_, tree) in modules.items()}
    importers = collections.Counter(other for found in imports.values() for other in found)
    keywords = [keyword for node in nodes if isinstance(node, ast.Call) for keyword in node.keywords]
    return {
        "files": f"{len(modules):,}",
        "lines": f"{sum(lines):,}",
        "lines of a file, median": f"{statistics.median(lines):.0f}",
        "lines of a file, 90th percentile": f"{lines[len(lines) * 9 // 10]}",
        "classes": f"{len(classes):,}",
        "data classes": f"{sum(map(_is_dataclass, classes)):,}",
        "classes that share their name": f"{sum(count for count in names.values() if count > 1):,}",
        "files imported by one other file": f"{sum(importers[name] == 1 for name in modules):,}",
        "pass-through keywords": f"{sum(map(_passes_on, keywords)):,}",
        "longest import ladder": f"{_longest_ladder(imports)} modules",
    }


def main() -> None:
    """Print the table."""
    roots = [Path(root).resolve() for root in sys.argv[1:]] or [ROOT]
    columns = [measure(root) for root in roots]
    print("| figure | " + " | ".join(str(root.name) for root in roots) + " |")
    print("|---" * (len(roots) + 1) + "|")
    for figure in columns[0]:
        print(f"| {figure} | " + " | ".join(column[figure] for column in columns) + " |")


if __name__ == "__main__":
    main()
