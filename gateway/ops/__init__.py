"""HTTP API, dashboard, metrics and health of a running gateway.

`server` has the listener and `OpsService`, which runs it with the control socket. `http`, imported
at the first connection, has the site (`OpsSite`, on Starlette: pages for everybody, the API with a
token) and its connections on uvicorn. `health` asks a gateway from outside how it is, and has
`OutageMonitor`.

The API: `gateway.core.api_models` has the models of queries, answers and events, which the console
reads as well; `api_views` the functions that answer, by their paths, redaction and titles.
`live_events` has `/api/events` (server-sent events). `metrics` counts for Prometheus. `page/` holds
the dashboard's files.

Rules: what a client receives is redacted and cut in one place, where it becomes JSON
(`serialize_answer`, `SseEncoder`), not where it is made. A request never changes state without the
token; the port listens on loopback unless `ops.host` says otherwise.
"""
