"""Matrix, on a real homeserver: what the conformance checks need, and a proxy that breaks
connections."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal, Self

import aiohttp
from aiohttp import web
from homeserver import Homeserver, Person
from reverie_matrix.channel import MatrixChannel
from reverie_matrix.config import MatrixConfig
from yarl import URL

from reverie.platforms import Address, Channel, ChannelName, RoomId, SystemClock
from reverie.testing.platforms import COMMANDS, Kit, Where
from reverie.testing.waiting import until

NAME = ChannelName("matrix.test")
_NOT_PASSED_ON = ("host", "content-length", "transfer-encoding", "connection", "content-encoding")


class Proxy:
    """Stands between an adapter and its homeserver. An async context manager."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._port = 0
        self._polls: list[web.Request] = []
        self._cuts_left = 0
        self._cut_transaction: str | None = None
        self._limit_s: float | None = None
        self._answer: bytes | None = None
        self._repeats = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def is_polled(self) -> bool:
        """Whether an adapter waits for news."""
        return bool(self._polls)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=True)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._session.close()

    async def start(self) -> None:
        """Listen, at the same port each time."""
        application = web.Application(client_max_size=2**27)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application, handler_cancellation=True, shutdown_timeout=0.01, access_log=None
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Cut all connections, and take no more."""
        for request in list(self._polls):
            _cut(request)
        await self._runner.cleanup()

    def cut(self) -> None:
        """Cut the connection of the poll, and of its repetition: aiohttp repeats it once."""
        self._cuts_left = 2 - len(self._polls)
        for request in list(self._polls):
            _cut(request)

    def cut_send(self) -> None:
        """Pass the next message on, and cut its connection, however often it is tried."""
        self._cut_transaction = ""

    def mend_send(self) -> None:
        """Cut no message any more."""
        self._cut_transaction = None

    def limit(self, seconds: float) -> None:
        """Refuse the next message for being too early."""
        self._limit_s = seconds

    def repeat(self) -> None:
        """Give the latest answer that told of something once more."""
        self._repeats = True
        for request in list(self._polls):
            _cut(request)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/sync"):
            return await self._poll(request)
        if "/send/m.room.message/" in request.path:
            return await self._send(request)
        return await self._pass_on(request)

    async def _poll(self, request: web.Request) -> web.StreamResponse:
        if self._repeats and self._answer is not None and "since=" in request.query_string:
            self._repeats = False
            return web.Response(body=self._answer, content_type="application/json")
        if self._cuts_left:
            self._cuts_left -= 1
            _cut(request)
        self._polls.append(request)
        try:
            answer = await self._pass_on(request)
        finally:
            self._polls.remove(request)
        assert isinstance(answer.body, bytes)
        if json.loads(answer.body).get("rooms"):
            self._answer = answer.body
        return answer

    async def _send(self, request: web.Request) -> web.StreamResponse:
        transaction = request.path.rpartition("/")[2]
        if self._limit_s is not None:
            wait_ms, self._limit_s = int(self._limit_s * 1000), None
            refusal = {"errcode": "M_LIMIT_EXCEEDED", "error": "x", "retry_after_ms": wait_ms}
            return web.json_response(refusal, status=429)
        answer = await self._pass_on(request)
        if self._cut_transaction == "":
            self._cut_transaction = transaction
        if self._cut_transaction == transaction:
            _cut(request)
        return answer

    async def _pass_on(self, request: web.Request) -> web.Response:
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _NOT_PASSED_ON]
        async with self._session.request(
            request.method,
            URL(self._upstream + request.raw_path, encoded=True),
            headers=headers,
            data=await request.read(),
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            headers = [(k, v) for k, v in answer.headers.items() if k.lower() not in _NOT_PASSED_ON]
            return web.Response(body=await answer.read(), status=answer.status, headers=headers)


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def make_channel(
    homeserver: str, bot: Person, cursor: str | None = None, **settings: object
) -> MatrixChannel:
    """An adapter for an account, by its access token."""
    config = MatrixConfig.model_validate(
        {"platform": "matrix", "homeserver": homeserver, "access_token": bot.token, "rooms": ["*"]}
        | settings
    )
    return MatrixChannel(
        NAME, config, SystemClock(), cursor=cursor, commands=COMMANDS, random=lambda: 0.0
    )


class MatrixKit(Kit):
    """Hands and eyes for `reverie_matrix`."""

    label = "matrix"
    lacks: ClassVar = {
        "it_previews": "each edit stays in the history of a room for good",
        "it_pages": "a screen scrolls, and a message holds 4,096 characters",
        "it_adapts": "it is made anew, and the homeserver keeps what it missed",
        "it_completes": "Matrix has no native commands",
        "it_offers": "Matrix has no native commands",
        "it_whispers": "a chat has to be opened, and the other one may decline it",
    }

    homeserver: ClassVar[Homeserver]

    def __init__(self) -> None:
        homeserver = self.homeserver
        self.name = NAME
        self.nowhere = RoomId("!nowhere:localhost")
        self.bot = homeserver.person("reverie")
        self.people = {name: homeserver.person(name) for name in ("alice", "bob")}
        alice, bob = self.alice, self.people["bob"]
        everybody = (bob.id, self.bot.id)
        self.rooms: dict[str, str] = {}
        for name in ("room", "other"):
            self.rooms[name] = room = alice.create_room(name=name, invite=everybody)
            bob.join(room)
            self.bot.join(room)
        self.direct = {
            name: person.create_room(
                invite=(self.bot.id,), is_direct=True, preset="trusted_private_chat"
            )
            for name, person in self.people.items()
        }
        self.proxy = Proxy(homeserver.url)

    @property
    def alice(self) -> Person:
        return self.people["alice"]

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        async with self.proxy:
            yield

    def make(self, cursor: str | None = None) -> Channel:
        return make_channel(self.proxy.url, self.bot, cursor)

    def address(self, where: Literal["room", "other"]) -> Address:
        return Address(channel=self.name, room=RoomId(self.rooms[where]))

    def _room(self, where: Where, by: Literal["alice", "bob"] = "alice") -> str:
        return self.direct[by] if where == "direct" else self.rooms[where]

    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        await asyncio.to_thread(self.people[by].say, self._room(where, by), text)

    async def mention(self, text: str) -> None:
        pill = f'<a href="https://matrix.to/#/{self.bot.id}">reverie</a>: {text}'
        self.alice.say(
            self.rooms["room"],
            f"reverie: {text}",
            format="org.matrix.custom.html",
            formatted_body=pill,
            **{"m.mentions": {"user_ids": [self.bot.id]}},
        )

    async def formatted(self) -> str:
        html = "<p>👍 <strong>bold</strong> and <em>italic</em> and <code>a*b*c</code></p>"
        plain = "👍 bold and italic and a*b*c"
        self.alice.say(
            self.rooms["room"], plain, format="org.matrix.custom.html", formatted_body=html
        )
        return "👍 **bold** and *italic* and `a*b*c`"

    def _said(self, where: Where) -> list[dict[str, Any]]:
        return self.alice.messages(self._room(where), self.bot.id)

    async def seen(self, where: Where, count: int = 1) -> list[str]:
        await until(lambda: len(self._said(where)) >= count, limit_s=self.patience_s, every_s=0.05)
        return [content["body"] for content in self._said(where)]

    async def again(self) -> None:
        self.proxy.repeat()

    async def echo(self, text: str) -> None:
        self.bot.say(self.rooms["room"], text)

    async def noise(self) -> None:
        room = self.rooms["room"]
        odd = self.alice.send(room, {"x": [None]}, "org.example.odd")
        annotation = {"rel_type": "m.annotation", "event_id": odd, "key": "x" * 200}
        contents: list[tuple[str, dict[str, object]]] = [
            ("m.reaction", {"x": 1}),
            ("m.room.message", {"msgtype": "x", "body": "", "url": 3}),
            ("m.room.message", {"msgtype": "m.text", "body": "", "m.relates_to": []}),
            ("m.room.message", {"msgtype": "m.image", "body": "x", "url": "mxc://../../etc"}),
            ("m.room.message", {"msgtype": "m.text", "body": "", "format": 7}),
            ("m.sticker", {"body": 1, "url": None, "info": []}),
            ("m.reaction", {"m.relates_to": annotation}),
            ("m.call.invite", {"call_id": {}}),
        ]
        for kind, content in contents:
            self.alice.send(room, content, kind)
        self.alice.set_state(room, "org.example.state", {"topic": "x"}, "key")
        self.alice.edit(room, odd, "never")
        self.alice.redact(room, self.alice.react(room, odd, "y"))

    async def refuse(self) -> None:
        levels = self.alice.state(self.rooms["other"], "m.room.power_levels")
        new = levels | {"events_default": 50}
        self.alice.set_state(self.rooms["other"], "m.room.power_levels", new)

    async def limit(self, seconds: float) -> None:
        self.proxy.limit(seconds)

    async def cut_send(self) -> None:
        self.proxy.cut_send()

    async def bad_login(self) -> None:
        self.bot.ask("POST", "logout", {})

    async def cut(self) -> None:
        self.proxy.cut()

    async def away(self) -> None:
        await self.proxy.stop()

    async def back(self) -> None:
        await self.proxy.start()

    async def attach(self, data: bytes) -> None:
        uri = self.alice.upload(data, "application/octet-stream")
        info = {"size": len(data), "mimetype": "application/octet-stream"}
        content = {"msgtype": "m.file", "body": "notes.bin", "url": uri, "info": info}
        self.alice.send(self.rooms["room"], content)

    async def typing_seen(self) -> None:
        room = self.rooms["room"]

        def is_typing() -> bool:
            news = self.alice.ask("GET", "sync")["rooms"]["join"][room]["ephemeral"]["events"]
            return any(
                self.bot.id in event["content"].get("user_ids", ())
                for event in news
                if event["type"] == "m.typing"
            )

        await until(is_typing, limit_s=self.patience_s, every_s=0.1)

    async def invited(self) -> Address:
        room = self.alice.create_room(name="third", invite=(self.bot.id,))
        return Address(channel=self.name, room=RoomId(room))

    def _membership(self, at: Address) -> str:
        found: str = self.alice.state(at.room, "m.room.member", self.bot.id)["membership"]
        return found

    async def joined(self, at: Address) -> None:
        await until(lambda: self._membership(at) == "join", limit_s=self.patience_s, every_s=0.05)

    async def left(self, at: Address) -> None:
        await until(lambda: self._membership(at) == "leave", limit_s=self.patience_s, every_s=0.05)

    async def appoint(self) -> None:
        levels = self.alice.state(self.rooms["room"], "m.room.power_levels")
        levels["users"][self.bot.id] = 50
        self.alice.set_state(self.rooms["room"], "m.room.power_levels", levels)

    async def reactions(self) -> list[str]:
        events = self.alice.events(self.rooms["room"])
        newest = next(
            event["event_id"]
            for event in reversed(events)
            if event["type"] == "m.room.message" and event["sender"] == self.alice.id
        )
        relations = [
            event["content"]["m.relates_to"]
            for event in events
            if event["type"] == "m.reaction" and event["sender"] == self.bot.id and event["content"]
        ]
        return [one["key"] for one in relations if one["event_id"] == newest]

    async def topic(self) -> str:
        found: str = self.alice.state(self.rooms["room"], "m.room.topic")["topic"]
        return found

    async def theirs(self) -> list[str]:
        return [
            content["body"]
            for person in self.people.values()
            for content in self.alice.messages(self.rooms["room"], person.id)
        ]

    def files(self) -> list[tuple[str, str, bytes]]:
        return [
            (content["filename"], content["body"], self.alice.download(content["url"]))
            for content in self._said("room")
            if content["msgtype"] == "m.file"
        ]

    def replied(self, where: Where) -> bool:
        return "m.in_reply_to" in self._said(where)[-1].get("m.relates_to", {})

    def alarmed(self) -> int:
        asked = (
            person.ask("GET", "notifications?only=highlight") for person in self.people.values()
        )
        return sum(
            one["event"]["sender"] == self.bot.id
            for found in asked
            for one in found["notifications"]
        )

    def fits(self, seen: str) -> bool:
        return len(seen.encode()) <= 65_536

    async def gone(self) -> None:
        await until(lambda: not self.proxy.is_polled, limit_s=self.patience_s)
