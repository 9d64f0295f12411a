"""config/metrics.md, made of what a running gateway shows: `python tests/checks/metrics.py`, or `make docs`."""

import asyncio
import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.kits.gateway import running

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FILE = ROOT / "config" / "metrics.md"
HEAD = """\
# Every metric

What Prometheus finds at `/metrics`, made of a running gateway's own page by `make docs`. Histograms have `_bucket`,
`_sum` and `_count` behind their names. While the server listens on loopback the page is open; elsewhere it needs
`ops.token`, as `authorization: {credentials: ...}` in Prometheus' scrape configuration.

| metric | kind | what it tells |
|---|---|---|
"""


class Metric(NamedTuple):
    """One, as it is told."""

    name: str
    kind: str
    told: str


def scraped(text: str) -> list[Metric]:
    """The metrics of a page in Prometheus' text format, sorted."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    return sorted(
        Metric(name, kind, helps[name]) for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    )


def parsed(document: str) -> list[Metric]:
    """The metrics of the document."""
    return [Metric(*found) for found in re.findall(r"^\| `(\S+)` \| (\S+) \| (.*) \|$", document, re.MULTILINE)]


def page(metrics: Sequence[Metric]) -> str:
    """The document."""
    return HEAD + "".join(f"| `{one.name}` | {one.kind} | {one.told} |\n" for one in metrics)


async def shown(tmp: Path) -> list[Metric]:
    """What a gateway shows that has answered once."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    async with running(tmp, ops={"port": port}) as gateway:
        await gateway.console.receive_message("hello")
        await gateway.took(1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            return scraped((await client.get("/metrics")).text)


def main() -> int:
    """Write it."""
    with tempfile.TemporaryDirectory() as tmp:
        FILE.write_text(page(asyncio.run(shown(Path(tmp)))), "utf-8")
    print(FILE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
