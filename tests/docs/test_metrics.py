"""docs/metrics.md names every metric that a running gateway exports, with its help text, and no
other."""

import asyncio
import re
from pathlib import Path

from tests.checks.metrics import FILE, ROOT, page, parsed, shown

NAME = re.compile(r"`((?:reverie|llm|process|workspace)_[a-z0-9_{},]+)")


def documents() -> list[Path]:
    """All documents but ARCHITECTURE.md, which names files."""
    pages = [path for path in ROOT.glob("docs/**/*.md") if "decisions" not in path.parts]
    return [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *pages,
        *ROOT.glob("config/**/*.md"),
        *ROOT.glob("config/**/*.yaml"),
    ]


def meant(written: str) -> list[str]:
    """`a_{b,c}_d` is `a_b_d` and `a_c_d`; the parts of a histogram are the histogram."""
    before, _, rest = written.partition("{")
    choices, _, behind = rest.rpartition("}")
    names = [f"{before}{choice}{behind}" for choice in choices.split(",")] if choices else [written]
    return [re.sub(r"_(bucket|sum|count)$", "", name) for name in names]


def test_the_page_and_the_documents_name_the_same_metrics(tmp_path: Path) -> None:
    there = asyncio.run(shown(tmp_path))
    assert len(there) > 20
    assert parsed(FILE.read_text("utf-8")) == there
    assert FILE.read_text("utf-8") == page(there), "`make docs` writes it anew"
    names = {one.name for one in there}
    found = [
        (path.name, name)
        for path in documents()
        for one in NAME.findall(path.read_text("utf-8"))
        for name in meant(one)
    ]
    assert {name for _, name in found} >= names
    assert not [f"{document}: {name}" for document, name in found if name not in names]
