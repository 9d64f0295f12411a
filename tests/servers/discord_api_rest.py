"""The HTTP API of the loopback Discord: the door (tokens, buckets, faults) and what it says of bots and channels.

https://discord.com/developers/docs/reference, /topics/rate-limits, /topics/opcodes-and-status-codes
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from aiohttp import web

from tests.servers.discord_api_faults import Fault, Told
from tests.servers.discord_api_world import Json

if TYPE_CHECKING:
    from tests.servers.discord_api import DiscordApi


class Refused(Exception):
    """An error of the API."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def refuse(status: int, code: int, message: str) -> NoReturn:
    raise Refused(status, code, message)


@dataclass(slots=True, kw_only=True)
class Call:
    """One request, as it came."""

    method: str
    path: str
    """Below `/api/v10`, e.g. `/channels/1/messages`."""
    query: dict[str, str]
    body: Json
    files: dict[str, bytes]
    kinds: dict[str, str]
    """The files' types, by name."""
    at_s: float
    """Monotonic."""
    status: int = 0
    """As answered; 0: not (yet), or the connection was cut."""

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


Handler = Callable[[Call, re.Match[str]], object]
"""Answers with JSON, or None for 204."""


class Rest:
    """The door."""

    def __init__(self, api: "DiscordApi") -> None:
        self.api = api
        self.routes: list[tuple[re.Pattern[str], Handler]] = []
        self._used: dict[str, tuple[float, int]] = {}

    def route(self, pattern: str, handler: Handler) -> None:
        """`pattern` matches a whole `Call.line`."""
        self.routes.append((re.compile(pattern), handler))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Every request comes through here."""
        call = await _read(request)
        self.api.calls.append(call)
        self.api.changed()
        fault = self.api.faults.due(call.line)
        if fault is not None and fault.do.endswith("before"):
            return self._broken(request, fault, call)
        if fault is not None and fault.do in {"429", "banned"}:
            return self._limited(call, fault.retry_after_s, fault.scope, via=fault.do == "429", told=fault.told)
        wait_s, headers = self._bucket(call)
        if wait_s > 0:
            return self._limited(call, wait_s, "user", headers=headers)
        status, answer = self._answer(request, call)
        if fault is not None and fault.do == "slow":
            await asyncio.sleep(fault.delay_s)
        if fault is not None and fault.do == "silent":
            self.api.changed()
            await asyncio.Event().wait()
        if fault is not None and fault.do.endswith("after"):
            return self._broken(request, fault, call)
        return self._respond(call, status, answer, headers)

    def _answer(self, request: web.Request, call: Call) -> tuple[int, object]:
        try:
            open_to_all = re.match(r"/(webhooks|interactions)/", call.path)
            if not open_to_all and request.headers.get("Authorization") != f"Bot {self.api.options.token}":
                refuse(401, 0, "401: Unauthorized")
            for pattern, handler in self.routes:
                if found := pattern.fullmatch(call.line):
                    answer = handler(call, found)
                    return (204 if answer is None else 200), answer
            refuse(404, 0, "404: Not Found")
        except Refused as error:
            return error.status, {"message": error.message, "code": error.code}

    def _respond(self, call: Call, status: int, answer: object, headers: dict[str, str]) -> web.Response:
        call.status = status
        self.api.changed()
        if answer is None:
            return web.Response(status=204, headers=headers)
        body = json.dumps(answer).encode()
        return web.Response(status=status, body=body, headers=headers | {"Content-Type": self.api.options.json_type})

    def _broken(self, request: web.Request, fault: Fault, call: Call) -> web.Response:
        if fault.do.startswith("reset"):
            assert request.transport is not None
            request.transport.abort()
            self.api.changed()
            return web.Response()
        call.status = int(fault.do[:3])
        self.api.changed()
        return web.Response(status=call.status, text="upstream error")

    def _limited(
        self,
        call: Call,
        wait_s: float,
        scope: str,
        *,
        headers: dict[str, str] | None = None,
        via: bool = True,
        told: Told = "both",
    ) -> web.Response:
        call.status = 429
        body: Json = {"message": "You are being rate limited.", "global": scope == "global"}
        body |= {"retry_after": wait_s} if told in {"both", "body"} else {}
        more = {"X-RateLimit-Scope": scope, "Content-Type": self.api.options.json_type}
        more |= {"Retry-After": str(max(1, round(wait_s)))} if told in {"both", "header"} else {}
        more |= {"Via": "1.1 google"} if via else {}
        more |= {"X-RateLimit-Global": "true"} if scope == "global" else {}
        self.api.changed()
        return web.Response(status=429, body=json.dumps(body).encode(), headers=(headers or {}) | more)

    def _bucket(self, call: Call) -> tuple[float, dict[str, str]]:
        """Seconds to wait (0: go), and the headers."""
        shape = re.sub(r"(?<=/messages/)\d+|(?<=/reactions/).*", "x", call.line)
        limit, window_s = next((n, s) for pattern, n, s in self.api.options.limits if re.match(pattern, call.line))
        now_s = time.monotonic()
        begun_s, used = self._used.get(shape, (now_s, 0))
        if now_s - begun_s >= window_s:
            begun_s, used = now_s, 0
        left_s = begun_s + window_s - now_s
        if re.match(r"\w+ /(interactions|webhooks)/", call.line):
            return 0.0, {}
        headers = {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(max(0, limit - used - 1)),
            "X-RateLimit-Reset": f"{time.time() + left_s:.3f}",
            "X-RateLimit-Reset-After": f"{left_s:.3f}",
            "X-RateLimit-Bucket": f"{hash(re.sub(r'[0-9]+', 'n', shape)) & 0xFFFFFFFF:08x}",
        }
        if used >= limit:
            return left_s, headers
        self._used[shape] = (begun_s, used + 1)
        return 0.0, headers


async def _read(request: web.Request) -> Call:
    body: Json = {}
    files: dict[str, bytes] = {}
    kinds: dict[str, str] = {}
    if request.content_type.startswith("multipart/"):
        async for field in await request.multipart():
            data = await field.read()  # type: ignore[union-attr] # no nested multiparts here
            if field.name == "payload_json":  # type: ignore[union-attr] # the same
                body = json.loads(data)
            elif re.fullmatch(r"files\[\d\]", field.name or ""):  # type: ignore[union-attr] # the same
                name = field.filename or "file"  # type: ignore[union-attr] # the same
                files[name], kinds[name] = bytes(data), field.headers.get("Content-Type", "")  # type: ignore[union-attr] # the same
    elif raw := await request.read():
        loaded = json.loads(raw)
        body = loaded if isinstance(loaded, dict) else {"": loaded}
    path = "/" + request.match_info["tail"]
    query = dict(request.query)
    return Call(
        method=request.method, path=path, query=query, body=body, files=files, kinds=kinds, at_s=time.monotonic()
    )
