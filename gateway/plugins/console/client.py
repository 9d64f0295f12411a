"""HTTP client of a running gateway's API and its event stream; and the command `reverie console`.

Plain HTTP is accepted for this machine only, else HTTPS.

Errors:
- `ConsoleApiError`: tell the person; the token or the request was refused, or the answer is none.
- `ApiUnavailable`, one of these: wait; nothing answers there, or the answer broke off.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx
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
from gateway.core.api_models import EVENT_MODELS, ApiEvent, GatewayStatus
from gateway.core.installing import install_command

ModelT = TypeVar("ModelT", bound=BaseModel)


def parse_event(name: str, data: str) -> ApiEvent | None:
    """Parse an event of the stream; None: its kind is unknown, or it is malformed."""
    kind = EVENT_MODELS.get(name)
    try:
        return TypeAdapter(kind).validate_json(data) if kind is not None else None
    except ValueError:
        return None


REQUEST_TIMEOUT_S: Final = 10.0
STREAM_TIMEOUT_S: Final = 40.0
"""Seconds: a stream sends something every 15 s, at least a comment."""


class ConsoleApiError(Exception):
    """No usable answer. The message is one sentence for people."""


class ApiUnavailable(ConsoleApiError):
    """Nothing answers there at the moment."""


async def _read_batches(response: httpx.Response) -> AsyncGenerator[list[ApiEvent]]:
    """Yield what arrives together. Raises ApiUnavailable at the end of the connection."""
    parser = SseParser()
    try:
        async for data in response.aiter_bytes():
            found = parser.feed(data)
            yield [event for one in found if (event := parse_event(one.name, one.data)) is not None]
    except (httpx.HTTPError, SseEventTooLarge) as error:
        raise ApiUnavailable(_describe_http_error(error)) from error
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
        self._client = httpx.AsyncClient(
            base_url=f"{parts.scheme}://{self.address}",
            headers={"authorization": f"Bearer {token}"},
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, kind: type[ModelT], path: str, **query: str) -> ModelT:
        """Return an answer of the API. Raises ConsoleApiError."""
        return await self._request(kind, "GET", path, query, None)

    async def post(self, kind: type[ModelT], path: str, **body: object) -> ModelT:
        """Have something done; return the answer. Raises ConsoleApiError."""
        return await self._request(kind, "POST", path, {}, body)

    @asynccontextmanager
    async def open_stream(self) -> AsyncGenerator[AsyncGenerator[list[ApiEvent]]]:
        """Open the event stream. Raises ConsoleApiError."""
        headers = {"accept": "text/event-stream"}
        limits = httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_TIMEOUT_S)
        try:
            async with self._client.stream(
                "GET", "/api/events", headers=headers, timeout=limits
            ) as response:
                if response.is_error:
                    await response.aread()
                    _raise_for_status(response)
                yield _read_batches(response)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error

    async def _request(
        self,
        kind: type[ModelT],
        method: str,
        path: str,
        query: dict[str, str],
        body: dict[str, object] | None,
    ) -> ModelT:
        try:
            response = await self._client.request(method, path, params=query, json=body)
        except httpx.HTTPError as error:
            raise ApiUnavailable(_describe_http_error(error)) from error
        if response.is_error:
            _raise_for_status(response)
        try:
            return kind.model_validate_json(response.content)
        except ValueError as error:
            raise ConsoleApiError(
                "the gateway's answer is not one: it is of another version, or no gateway"
            ) from error


def _raise_for_status(response: httpx.Response) -> NoReturn:
    try:
        detail = json.loads(response.content)
    except ValueError:
        detail = response.text
    if isinstance(detail, dict):
        detail = detail.get("detail") or ""
    words = str(detail).strip()[:500] or response.reason_phrase
    kind = ApiUnavailable if response.is_server_error else ConsoleApiError
    raise kind(f"{words} ({response.status_code})")


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
    if importlib.util.find_spec("textual") is None:
        what = f"textual is not installed: {install_command('console')}"
        return report_failure("console", ValueError(what))
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
        await api.get(GatewayStatus, "/api/status")
        app = ConsoleApp(api, f"{current_user()} at the console")
        await app.run_async()
    finally:
        await api.close()
    return app.return_code or 0
