"""What the operator's HTTP server shows."""

import json
from http import HTTPStatus

from gateway.clock import Clock
from gateway.ops import metrics
from gateway.ops.http import HttpResponse
from gateway.ops.limit_stats import LimitStats
from gateway.ops.llm_stats import LlmStats
from gateway.ops.mind_stats import AgentStats
from gateway.ops.report import describe_problem
from gateway.ops.site import PageFactories
from gateway.ops.stats import ChannelStats, GatewayStats
from gateway.ops.tool_stats import ToolStats
from gateway.redaction import Redact, Redactor


def build_pages(
    stats: GatewayStats,
    clock: Clock,
    version: str,
    llm: LlmStats | None = None,
    minds: AgentStats | None = None,
    *,
    tools: ToolStats | None = None,
    limits: LimitStats | None = None,
    redact: Redact | None = None,
) -> PageFactories:
    """`/health`: this process lives. `/ready`: it is connected. `/metrics`: for Prometheus.

    `llm`, `minds`, `tools`, `limits`: what the metrics of models, agents, tools and of limits that were reached are
    taken from; None: there are none. `redact` is given the labels of metrics.
    """
    clean = redact or Redactor()

    def health() -> HttpResponse:
        started = stats.snapshot().started
        body = {"status": "ok", "version": version, "started": started.isoformat()}
        return HttpResponse(body=json.dumps(body) + "\n", content_type="application/json")

    def ready() -> HttpResponse:
        now = stats.snapshot()
        states = {one.channel: one.state for one in now.channels}
        reasons = [clean(describe_problem(one)) for one in now.problems]
        reasons += [clean(_format_channel_problem(one)) for one in now.channels if one.state != "up"]
        return HttpResponse(
            body=json.dumps({"ready": now.is_ready, "channels": states, "reasons": reasons}) + "\n",
            status=HTTPStatus.OK if now.is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
            content_type="application/json",
        )

    def metric() -> HttpResponse:
        more = [family for source in (llm, minds, tools, limits) if source is not None for family in source.families()]
        text = metrics.render_metrics(stats.snapshot(), clock.now(), version, more, clean)
        return HttpResponse(body=text, content_type=metrics.CONTENT_TYPE)

    return {"/health": health, "/ready": ready, "/metrics": metric}


def _format_channel_problem(one: ChannelStats) -> str:
    """Why a channel is not up, in one line. Untrusted: perhaps the platform's words."""
    why = " ".join(one.reason.split())
    return f"{one.channel} is {one.state}{f': {why}' if why else ''}"
