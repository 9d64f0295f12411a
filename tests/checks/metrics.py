"""Write docs/metrics.md from the metrics of a running gateway: `python tests/checks/metrics.py`, or
`make docs`."""

import asyncio
import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
from prometheus_client import CollectorRegistry, generate_latest

from gateway.cluster.database import DatabaseCluster
from gateway.cluster.monitor import ProcessMonitor
from gateway.core.clock import SystemClock
from gateway.store import Store
from reverie.testing.gateway import running

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FILE = ROOT / "docs" / "metrics.md"
HEAD = """\
# Metrics

All metrics that Prometheus finds at `/metrics` of the ops server (`ops.host` and `ops.port`, default 127.0.0.1:9090).
`make docs` generates this page from a running gateway. Histograms add `_bucket`, `_sum` and `_count` to their names.

On loopback the page needs no token. Elsewhere it needs `ops.token`: write `authorization: {credentials: ...}` in
Prometheus' scrape configuration.

## What to watch

| metric | healthy |
|---|---|
| `llm_cache_read_tokens_total` | much larger than `llm_cache_creation_tokens_total` |
| `llm_cache_hit_ratio` | above 0.7 where people talk; below 0.3 you pay for writing the cache and do not read it |
| `llm_prompt_tokens_drift` | within 20 percent; beyond that the token counter does not fit the model |
| `llm_compaction_triggered_total` | grows slowly; its label tells how summaries by a model ended |

## All metrics

| metric | kind | meaning |
|---|---|---|
"""


class Metric(NamedTuple):
    name: str
    kind: str
    told: str


def scraped(text: str) -> list[Metric]:
    """The metrics of a page in Prometheus' text format, sorted."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    return sorted(
        Metric(name, kind, helps[name])
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    )


def replace_told(one: Metric) -> Metric:
    """A metric that only several processes have."""
    return one._replace(told=f"{one.told} Only with several processes.")


def parsed(document: str) -> list[Metric]:
    return [
        Metric(*found)
        for found in re.findall(r"^\| `(\S+)` \| (\S+) \| (.*) \|$", document, re.MULTILINE)
    ]


def page(metrics: Sequence[Metric]) -> str:
    return HEAD + "".join(f"| `{one.name}` | {one.kind} | {one.told} |\n" for one in metrics)


async def shown(tmp: Path) -> list[Metric]:
    """What a gateway shows that has answered once."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    async with running(tmp, ops={"port": port}) as gateway:
        await gateway.console.receive_message("hello")
        await gateway.took(1)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False
        ) as client:
            text = (await client.get("/metrics")).text
        registry, cluster = CollectorRegistry(), DatabaseCluster("postgresql://localhost/unused")
        async with await Store.open(tmp / "unused.db", SystemClock()) as store:
            registry.register(ProcessMonitor(cluster, store, SystemClock(), dict))
            several = [replace_told(one) for one in scraped(generate_latest(registry).decode())]
        return sorted([*scraped(text), *several])


def main() -> int:
    with tempfile.TemporaryDirectory() as tmp:
        FILE.write_text(page(asyncio.run(shown(Path(tmp)))), "utf-8")
    print(FILE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
