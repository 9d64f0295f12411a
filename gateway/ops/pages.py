"""What the operator's HTTP server shows."""

import json
from http import HTTPStatus

from gateway.clock import Clock
from gateway.ops import metrics
from gateway.ops.llm_stats import LlmStats
from gateway.ops.mind_stats import MindStats
from gateway.ops.server import Page, Pages
from gateway.ops.stats import Stats


def pages(
    stats: Stats, clock: Clock, version: str, llm: LlmStats | None = None, minds: MindStats | None = None
) -> Pages:
    """`/health`: this process lives. `/ready`: it is connected. `/metrics`: for Prometheus.

    `llm`, `minds`: what the metrics of models and agents are taken from; None: there are none.
    """

    def health() -> Page:
        started = stats.snapshot().started
        body = {"status": "ok", "version": version, "started": started.isoformat()}
        return Page(body=json.dumps(body) + "\n", content_type="application/json")

    def ready() -> Page:
        now = stats.snapshot()
        states = {one.channel: one.state for one in now.channels}
        return Page(
            body=json.dumps({"ready": now.ready, "channels": states}) + "\n",
            status=HTTPStatus.OK if now.ready else HTTPStatus.SERVICE_UNAVAILABLE,
            content_type="application/json",
        )

    def metric() -> Page:
        more = [family for source in (llm, minds) if source is not None for family in source.families()]
        text = metrics.render(stats.snapshot(), clock.now(), version, more)
        return Page(body=text, content_type=metrics.CONTENT_TYPE)

    return {"/health": health, "/ready": ready, "/metrics": metric}
