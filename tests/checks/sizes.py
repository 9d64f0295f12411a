"""Files of at most 250 lines, functions of at most 50, unless a line `# size: <reason>` says why."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("gateway", "channels", "agent")
MAX_FILE_LINES = 250
MAX_FUNCTION_LINES = 50
REASON = re.compile(r"^\s*# size: \S", re.MULTILINE)


def too_long(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if REASON.search(text):
        return
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path}: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"


def main() -> int:
    found = [line for package in PACKAGES for path in sorted(Path(package).rglob("*.py")) for line in too_long(path)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
