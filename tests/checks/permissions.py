"""Writes the table of permissions into docs/security.md again: `python
tests/checks/permissions.py`."""

import re
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.core.permissions import TABLE

FILE: Final = Path(__file__).resolve().parents[2] / "docs/security.md"
HEAD: Final = "| effect | who asks | lowest author | readers | then | because |"
_OUTCOMES: Final = {
    "allowed": "free",
    "refused": "refused",
    "approval": "one tap of somebody who may",
}


def text() -> str:
    """The page with the table as it is in the code."""
    lines = [HEAD, "|---|---|---|---|---|---|"]
    for row in TABLE:
        cells = [f"`{cell}`" if cell else "any" for cell in row[:4]]
        lines.append(f"| {' | '.join([*cells, _OUTCOMES[row.outcome], row.why])} |")
    pattern = rf"{re.escape(HEAD)}\n(?:\|.*\n)*"
    return re.sub(pattern, lambda _: "\n".join(lines) + "\n", FILE.read_text("utf-8"))


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
