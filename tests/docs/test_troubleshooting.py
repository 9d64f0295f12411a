"""docs/troubleshooting.md names only codes that `reverie doctor` can print."""

import re

from tests.checks.metrics import ROOT

CODE = re.compile(r"^\| `([a-z]+(?:\.[a-z_]+)+)` \|", re.MULTILINE)


def test_each_code_that_it_explains_is_one_of_the_doctors() -> None:
    codes = set(CODE.findall((ROOT / "docs" / "troubleshooting.md").read_text("utf-8")))
    folders = (ROOT / "gateway", ROOT / "channels")
    sources = "\n".join(
        path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py")
    )
    assert len(codes) > 60
    literal = {code for code in codes if f'"{code}"' in sources}
    areas = {code.partition(".")[0] for code in codes - literal}
    assert areas <= {"files", "net"}, "codes that are put together: of modes, and of certificates"
