"""A gateway's API as the console needs it, scripted, on a real socket; and the console in front of
it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final, get_args, get_origin

from aiohttp import web
from pydantic import BaseModel
from textual.pilot import Pilot

from gateway.core import api_models
from gateway.core.metrics import ChannelStats
from gateway.plugins.console.app import ConsoleApp, PaneLog
from gateway.plugins.console.client import GatewayApiClient

TOKEN = "a-token-for-tests"
AT = "2026-11-22T10:00:00Z"
OWN = "console/operator"
_EMPTY: Final[dict[object, object]] = {
    str: "",
    int: 0,
    float: 0.0,
    bool: False,
    dict: {},
    datetime: AT,
}


def filled(kind: Any, value: Any) -> Any:
    """The value with all fields of a model; those that a test does not give are empty."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict | None):
        given, fields = value or {}, kind.model_fields.items()
        needed = [
            (name, field.annotation)
            for name, field in fields
            if field.is_required() or name in given
        ]
        return {name: filled(annotation, given.get(name)) for name, annotation in needed}
    if kind is ChannelStats:
        return {"platform": "irc", "state": "up", "since": AT, **value}
    if get_origin(kind) is tuple and isinstance(value, list | None):
        return [filled(get_args(kind)[0], one) for one in value or ()]
    return _EMPTY.get(get_origin(kind) or kind) if value is None else value


class StubGateway:
    """Answers what the API answers, and tells what it is given to tell."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.said: list[str] = []
        self.orders: list[dict[str, Any]] = []
        """`Last-Event-ID` of each stream that was begun."""
        self.refuses = ""
        self.status: dict[str, Any] = {
            "version": "0.1",
            "now": AT,
            "ready": True,
            "model": "claude-test",
            "agents": [mind()],
            "today": {
                "requests": 3,
                "input_tokens": 1_000,
                "read_tokens": 98_000,
                "written_tokens": 1_000,
                "output_tokens": 1_200,
                "cost_usd": 0.0312,
                "read_share": 0.98,
            },
            "store": {"size_bytes": 1_000_000, "bytes_per_day": None, "full_on": None},
            "activity": [],
        }
        self.messages: list[dict[str, Any]] = []
        self.places: list[dict[str, Any]] = []
        self.commands: list[dict[str, Any]] = [
            {"name": name, "usage": name, "help": "Show the connections."}
            for name in ("status", "dmn pause", "dmn quiet", "reload")
        ]
        self._readers: set[asyncio.Queue[bytes | None]] = set()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(
            "/api/status", self._reply(lambda _: filled(api_models.GatewayStatus, self.status))
        )
        app.router.add_get("/api/conversation", self._reply(self._conversation))
        app.router.add_get(
            "/api/conversations",
            self._reply(
                lambda _: filled(
                    api_models.Page[api_models.ConversationSummary], {"items": self.places}
                )
            ),
        )
        app.router.add_get(
            "/api/commands",
            self._reply(
                lambda _: filled(api_models.Page[api_models.CommandEntry], {"items": self.commands})
            ),
        )
        app.router.add_get("/api/events", self._events)
        app.router.add_post("/api/say", self._say)
        app.router.add_post("/api/orders", self._order)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        if not self.port:
            self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """As when it is restarted: every stream ends."""
        for reader in self._readers:
            reader.put_nowait(None)
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def attached(self) -> int:
        return len(self._readers)

    def tell(self, kind: str, seq: int | None = None, /, **fields: Any) -> None:
        self.tell_raw(event(kind, seq, **fields))

    def tell_raw(self, data: bytes) -> None:
        for reader in self._readers:
            reader.put_nowait(data)

    def _denied(self, request: web.Request) -> web.Response | None:
        if request.headers.get("authorization") == f"Bearer {self.token}":
            return None
        return web.json_response({"title": "Unauthorized", "detail": "send the token"}, status=401)

    def _reply(self, make: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.Response:
            return self._denied(request) or web.json_response(make(request))

        return answer

    def _conversation(self, request: web.Request) -> dict[str, Any]:
        detail = {
            "conversation": request.query["id"],
            "agent": "reverie",
            "messages": self.messages,
        }
        return dict(filled(api_models.ConversationDetail, detail))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if denied := self._denied(request):
            return denied
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        mine: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._readers.add(mine)
        try:
            with contextlib.suppress(ConnectionError):
                await response.write(b": hello\n\n")
                while (data := await mine.get()) is not None:
                    await response.write(data)
        finally:
            self._readers.discard(mine)
        return response

    async def _say(self, request: web.Request) -> web.Response:
        if denied := self._denied(request):
            return denied
        if self.refuses:
            return web.json_response({"detail": self.refuses}, status=422)
        text = (await request.json())["text"]
        self.said.append(text)
        return web.json_response({"seq": 1})

    async def _order(self, request: web.Request) -> web.Response:
        if denied := self._denied(request):
            return denied
        self.orders.append(await request.json())
        return web.json_response(
            {"ok": not self.refuses, "lines": [self.refuses or "it is done"], "data": []}
        )


def event(kind: str, seq: int | None = None, /, **fields: Any) -> bytes:
    body = filled(api_models.EVENT_MODELS[kind], {"at": AT, "seq": seq, **fields})
    return f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode()


def mind(mode: str = "resting", **more: Any) -> dict[str, Any]:
    return {
        "agent": "reverie",
        "mode": mode,
        "next_tick_s": 300.0,
        "running": [],
        "waiting": [],
        "held": [],
        "in_a_row": 0,
        "turns_today": 2,
        "daily_turns": 200,
        "quiet": False,
        **more,
    }


def turn(
    state: str, *, key: str = "t1", autonomous: bool = False, conversation: str = OWN, **more: Any
) -> dict[str, Any]:
    return {
        "turn": key,
        "agent": "reverie",
        "conversation": conversation,
        "state": state,
        "autonomous": autonomous,
        "cause": "messages",
        "outcome": "" if state == "started" else "replied",
        **more,
    }


class Eyes:
    def __init__(self, app: ConsoleApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    def rows(self, name: str) -> list[str]:
        """What a pane shows, row by row, with what is growing below it."""
        view = self.app.query_one(f"#{name}", PaneLog)
        growing = self.app.model.growing(view.pane_name).plain.splitlines()
        return [view.render_line(y).text.rstrip() for y in range(view.size.height)] + growing

    def screen(self) -> str:
        """Everything on the screen, as text."""
        width, height = self.app.size
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return "\n".join(
            "".join(segment.text for segment in strip)[:width] for strip in strips[:height]
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)
        await self.pilot.pause()

    async def sees(self, words: str, name: str = "") -> None:
        """Wait until it stands there."""
        try:
            await self.until(
                lambda: words in (" ".join(self.rows(name)) if name else self.screen())
            )
        except TimeoutError:
            raise AssertionError(f"{words!r} is not on the screen:\n{self.screen()}") from None

    async def types(self, text: str) -> None:
        await self.pilot.press(
            *("space" if char == " " else "slash" if char == "/" else char for char in text)
        )

    async def enters(self, text: str) -> None:
        await self.types(text)
        await self.pilot.press("enter")


class Seat(Eyes):
    """The same, and the scripted gateway."""

    def __init__(self, gateway: StubGateway, app: ConsoleApp, pilot: Pilot[int]) -> None:
        super().__init__(app, pilot)
        self.gateway = gateway


@contextlib.asynccontextmanager
async def opened(url: str, token: str, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Eyes]:
    api = GatewayApiClient(url, token)
    app = ConsoleApp(api, "a tester")
    try:
        async with app.run_test(size=size) as pilot:
            yield Eyes(app, pilot)
    finally:
        await api.close()


@contextlib.asynccontextmanager
async def seated(size: tuple[int, int] = (120, 40)) -> AsyncIterator[Seat]:
    """A console that is attached to a scripted gateway."""
    served = StubGateway()
    await served.start()
    try:
        async with opened(served.url, TOKEN, size) as eyes:
            seat = Seat(served, eyes.app, eyes.pilot)
            await seat.until(lambda: served.attached > 0)
            await seat.sees("attached")
            yield seat
    finally:
        await served.stop()
