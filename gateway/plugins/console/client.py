"""HTTP client of a running gateway's API and its event stream; and the command `reverie console`.

Plain HTTP is accepted for this machine only, else HTTPS.

Errors:
- `ConsoleApiError`: no usable answer.
- `ApiUnavailable`: wait; nothing answers there, or the answer broke off.
- `ApiRejected`: tell the person; the token or the request was refused.
"""

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, TypeAdapter

from agent.models.http import SseEventTooLarge, SseParser
from gateway.command_line import (
    current_user,
    dashboard_url,
    fill_command,
    find_config,
    load_settings,
    report_failure,
)
from gateway.config.models import OpsConfig
from gateway.core.addresses import is_loopback_host
from gateway.core.api_models import (
    EVENT_MODELS,
    ApiEvent,
    ConversationDetail,
    ConversationSummary,
    GatewayStatus,
    Page,
    PluginEntry,
    SayReceipt,
)
from gateway.core.control_messages import ControlResponse

if TYPE_CHECKING:
    import httpx


ModelT = TypeVar("ModelT", bound=BaseModel)


def parse_event(name: str, data: str) -> ApiEvent | None:
    """Parse an event of the stream; None: its kind is unknown, or it is malformed."""
    kind = EVENT_MODELS.get(name)
    try:
        return TypeAdapter(kind).validate_json(data) if kind is not None else None
    except ValueError:
        return None


REQUEST_TIMEOUT_S = 10.0
STREAM_TIMEOUT_S = 40.0
"""Seconds: a stream sends something every 15 s, at least a comment."""
_NO, _BROKEN = 400, 500


class ConsoleApiError(Exception):
    """No usable answer. The message is one sentence for people."""


class ApiUnavailable(ConsoleApiError):
    """Nothing answers there at the moment."""


class ApiRejected(ConsoleApiError):
    """The token or the request was refused."""


EventBatch = tuple[str, list[ApiEvent]]
"""What arrived together: the last position of the log in it (empty: none), and the events."""


async def _read_batches(response: "httpx.Response") -> AsyncGenerator[EventBatch]:
    """Yield what arrives. Raises ApiUnavailable at the end of the connection."""
    import httpx  # noqa: PLC0415 - as below

    parser = SseParser()
    try:
        async for data in response.aiter_bytes():
            found = parser.feed(data)
            events = [
                event for one in found if (event := parse_event(one.name, one.data)) is not None
            ]
            yield next((one.id for one in reversed(found) if one.id), ""), events
    except (httpx.HTTPError, SseEventTooLarge) as error:
        raise ApiUnavailable(f"the connection broke: {_describe_http_error(error)}") from error
    raise ApiUnavailable("the gateway closed the connection")


class GatewayApiClient:
    """Client of one gateway."""

    def __init__(self, url: str, token: str) -> None:
        """Raises ValueError for an unusable address or token."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is no address: write http://127.0.0.1:9090")
        if parts.scheme == "http" and not is_loopback_host(parts.hostname):
            raise ValueError(
                f"http://{parts.hostname} is not this machine, and all on the way would read the "
                "token"
            )
        if not (token.isascii() and token.isprintable() and token.strip()):
            raise ValueError("the token is empty, or holds what no header can")
        self.address = parts.netloc.rpartition("@")[2]
        """Host and port, for people."""
        self._url = f"{parts.scheme}://{self.address}"
        self._headers = {"authorization": f"Bearer {token}"}
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def get_status(self) -> GatewayStatus:
        """Return the state of the gateway."""
        return await self._request(GatewayStatus, "GET", "/api/status")

    async def get_history(self, conversation: str, limit: int = 100) -> ConversationDetail:
        """Return the newest messages of a conversation, oldest first."""
        query = {"id": conversation, "limit": str(limit)}
        return await self._request(ConversationDetail, "GET", "/api/conversation", query=query)

    async def list_conversations(self, limit: int = 50) -> Page[ConversationSummary]:
        """Return conversations, the most recently active first."""
        return await self._request(
            Page[ConversationSummary], "GET", "/api/conversations", query={"limit": str(limit)}
        )

    async def list_plugins(self) -> Page[PluginEntry]:
        """Return the plugins in use."""
        return await self._request(Page[PluginEntry], "GET", "/api/plugins")

    async def say(self, text: str) -> None:
        """Post a text as the operator; return when it is durable."""
        await self._request(SayReceipt, "POST", "/api/say", body={"text": text})

    async def send_order(self, command: str, conversation: str, by: str) -> ControlResponse:
        """Give a command, `stop` or `kill`, in a conversation."""
        body = {"words": [command], "place": conversation, "by": by}
        return await self._request(ControlResponse, "POST", "/api/orders", body=body)

    @asynccontextmanager
    async def open_stream(self, last: str) -> AsyncGenerator[AsyncGenerator[EventBatch]]:
        """Open the event stream. `last`: continue behind this position of the log; empty: from now
        on.
        """
        import httpx  # noqa: PLC0415 - as below

        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        limits = httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_TIMEOUT_S)
        try:
            async with self._http_client().stream(
                "GET", "/api/events", headers=headers, timeout=limits
            ) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    _raise_for_status(response)
                yield _read_batches(response)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error

    def _http_client(self) -> "httpx.AsyncClient":
        if self._client is None:
            import httpx  # noqa: PLC0415 - takes 200 ms, which `reverie --help` does not need

            self._client = httpx.AsyncClient(
                base_url=self._url,
                headers=self._headers,
                timeout=REQUEST_TIMEOUT_S,
                trust_env=False,
                follow_redirects=False,
            )
        return self._client

    async def _request(
        self,
        kind: type[ModelT],
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> ModelT:
        import httpx  # noqa: PLC0415 - as above

        try:
            response = await self._http_client().request(method, path, params=query, json=body)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error
        _raise_for_status(response)
        try:
            return kind.model_validate_json(response.content)
        except ValueError as error:
            raise ApiRejected(
                "the gateway's answer is not one: it is of another version, or no gateway"
            ) from error


def _raise_for_status(response: "httpx.Response") -> None:
    """Raise the error for the status, with the message of the response."""
    status = response.status_code
    if status < _NO:
        return
    try:
        detail = json.loads(response.content)
    except ValueError:
        detail = response.text
    if isinstance(detail, dict):
        detail = detail.get("detail") or ""
    sentence = f"{str(detail).strip()[:500] or response.reason_phrase} ({status})"
    raise (ApiUnavailable if status >= _BROKEN else ApiRejected)(sentence)


def _describe_http_error(error: Exception) -> str:
    name = type(error).__name__
    words = {"ConnectError": "nobody answers there", "ReadTimeout": "nothing came for too long"}
    return words.get(name) or str(error) or name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie console`. Exit codes: 0 it was left; 2 it could not be opened; 3 no
    gateway answers.
    """
    fill_command(parser, _run, where="maybe config")
    text = "connect to the gateway at this address, with the token in REVERIE_TOKEN"
    parser.add_argument("--url", default="", metavar="URL", help=text)


def _run(args: argparse.Namespace) -> int:
    if not (
        sys.stdin.isatty() and sys.stderr.isatty()
    ):  # Textual reads from stdin and draws on stderr
        return report_failure(
            "console", ValueError("it needs a terminal; `reverie log tail -f` can be piped")
        )
    if args.config is None and not args.url:
        args.config = find_config(None)
    settings = (
        load_settings(args.config, needs=("store", "ops")) if args.config is not None else None
    )
    configured = settings.ops.token if settings is not None else None
    token = configured.get_secret_value() if configured is not None else ""
    url = args.url
    try:
        url = url or dashboard_url(settings.ops if settings is not None else OpsConfig())
        token = os.environ.get("REVERIE_TOKEN") or token if args.url else token
        return asyncio.run(_run_console(GatewayApiClient(url, token)))
    except ApiUnavailable as error:
        where = f" --config {shlex.quote(str(args.config))}" if args.config is not None else ""
        sys.stderr.write(
            f"console: no gateway answers at {url} ({error}): start `reverie run{where}`\n"
        )
        return 3
    except (ConsoleApiError, OSError, ValueError) as error:
        return report_failure("console", error)


async def _run_console(api: GatewayApiClient) -> int:
    from gateway.plugins.console.app import ConsoleApp  # noqa: PLC0415 - nothing else imports Textual

    try:
        await api.get_status()
        app = ConsoleApp(api, f"{current_user()} at the console")
        await app.run_async()
    finally:
        await api.close()
    return app.return_code or 0
