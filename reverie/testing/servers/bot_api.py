"""A strict fake Telegram Bot API on loopback, for tests and for the crash harness.

    async with BotApi() as api:                     # or: api = BotApi(); await api.start(); await api.stop()
        TelegramConfig(platform="telegram", token=api.token, base_url=api.url, rooms=("*",))
        ann = api.person("Ann", username="ann")     # ids count from 1001
        api.private_says(ann, "hi")                 # -> message id; the update is queued, a long poll wakes
        lounge = api.group("lounge")                # supergroup; basic=True: may migrate; forum=True: topics
        api.mentions(lounge, ann, "how are you?")   # also group_says, commands, sends, album, located, edits, reacts,
        api.topic(forum, "news")                    #   presses, joins, leaves, blocks, migrates: see bot_api_world
        await api.until(lambda: api.said(ann) == ["hello"])     # what the bot's messages read like now
        await api.called("sendMessage", 2)          # -> the second such `Call` (method, parameters, at_s, answer)

It knows `getMe`, `getUpdates`, webhooks (posted with the secret header, again until taken),
commands, `sendMessage`, drafts, chat actions, callback answers, files both ways, and edits,
deletions, reactions, descriptions, topics and who is there (`bot_api_methods`). It refuses what
Telegram refuses, in its words: unknown and closed chats, topics that are not there, texts and
entities that are not right (`bot_api_world` says where it is stricter), migrated groups, a second
poller, a poll beside a webhook. Text is limited by UTF-16 units. `api.methods.flood = Flood()`
turns on the flood limits; `api.world.sees_all = False` privacy mode. Records: `api.calls` (all
requests in order of arrival), `api.shown(chat)` (every message as people see it now), `api.updates`
(`pending`, `confirmed`, `deliveries`), `api.connections` (how many there ever were). Faults, at any time, each `times` (None: until `clear`) and for calls
`where` it fits:
    api.faults.fail("sendMessage", 429, retry_after=1)          # an error in the API's form; after=True: processed
    api.faults.say("getUpdates", BAD_GATEWAY, status=502, kind="text/html")     # any bytes as body
    api.faults.drop("sendMessage", after=True)      # connection reset before or after processing; begun=b"HTTP/1.1 2"
    api.faults.stall("getUpdates")                  # no answer until `api.faults.release()`
    api.faults.slow("getUpdates", chunk_bytes=1)    # the answer in many segments
    api.faults.hang_up("sendMessage")               # answered, then the kept-alive connection is closed unsaid
`await api.stop()` closes the port; `await api.start()` takes the same port again.
`api.updates.put_raw(anything)` queues a malformed update under the id that it returns.
"""

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import Callable
from typing import Any

from reverie.testing.servers.bot_api_http import (
    Call,
    Fault,
    Faults,
    Json,
    Request,
    answer,
    read_request,
)
from reverie.testing.servers.bot_api_methods import Methods
from reverie.testing.servers.bot_api_world import ApiError, Chat, People, Person, Shown
from reverie.testing.servers.ports import LoopbackServer

TOKEN = "7000000001:AAtest-token_that-must_never-be_logged"


class BotApi(People, LoopbackServer):
    """The server. See the top of the file."""

    def __init__(self, token: str = TOKEN) -> None:
        People.__init__(self)
        LoopbackServer.__init__(self)
        self.token = token
        self.methods = Methods(self.world, self.updates)
        self.faults = Faults()
        self.calls: list[Call] = []
        self.now: Callable[[], float] = time.monotonic
        """Clock of `Call.at_s`."""

    @property
    def url(self) -> str:
        """For `base_url`."""
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Close every connection and stop listening. Chats and updates stay."""
        self.updates.close()
        await super().stop()

    def shown(self, chat: Chat | Person | int) -> list[Shown]:
        """The messages of a chat as people see them now, oldest first."""
        found = self.world.chats.get(chat if isinstance(chat, int) else chat.id)
        return list(found.shown.values()) if found else []

    def said(self, chat: Chat | Person | int) -> list[str]:
        """What the bot's messages there read like now."""
        return [shown.text for shown in self.shown(chat) if shown.by_bot]

    def asked(self, method: str) -> list[Call]:
        """The calls of a method so far."""
        return [call for call in self.calls if call.method == method]

    def story(self) -> list[Call]:
        return self.calls

    async def called(self, method: str, times: int = 1) -> Call:
        """The `times`-th call of a method."""
        await self.until(lambda: len(self.asked(method)) >= times)
        return self.asked(method)[times - 1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            await self.changed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun = b""
        while request := await read_request(reader, begun):
            working = asyncio.create_task(self._answer(request, writer))
            more = asyncio.create_task(
                reader.read(1)
            )  # the next request, or the end of the connection
            try:
                await asyncio.wait({working, more}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done() and not more.result():
                    return  # the client is gone
                going_on = await working
            finally:
                working.cancel()
                more.cancel()
                await asyncio.gather(working, more, return_exceptions=True)
            if not going_on:
                return
            begun = b"" if more.cancelled() else more.result()
            if not begun and reader.at_eof():
                return

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        if request.path.startswith("/file/"):
            writer.write(self._file(request))
            return True
        where, _, method = request.path.removeprefix("/bot").rpartition("/")
        call = Call(method, request.parameters, self.now())
        self.calls.append(call)
        await self.changed()
        fault = self.faults.of(call)
        if fault is not None and not fault.after:
            if fault.does == "stall":
                await self.faults.released.wait()
            else:
                return self._end(writer, fault)
        code, body = await self._process(call, request, known=where == self.token)
        if fault is not None and fault.after and fault.does == "stall":
            await self.faults.released.wait()
        if fault is not None and fault.does in ("answer", "drop"):
            await self.changed()
            return self._end(writer, fault)
        call.answer = body
        await self._send(writer, answer(code, json.dumps(body).encode()), fault)
        await self.changed()
        return fault is None or fault.does != "hang_up"

    async def _process(self, call: Call, request: Request, *, known: bool) -> tuple[int, Json]:
        if not known:
            return 401, ApiError(401, "Unauthorized").body
        try:
            result: Any = await self.methods.call(call.method, request.parameters, request.uploads)
        except ApiError as error:
            return error.code, error.body
        except (
            KeyError,
            TypeError,
            AttributeError,
        ) as error:  # what a bot sends may have any shape
            return 400, {
                "ok": False,
                "error_code": 400,
                "description": f"Bad Request: strict: {error!r}",
            }
        call.processed = True
        return 200, {"ok": True, "result": result}

    def _end(self, writer: asyncio.StreamWriter, fault: Fault) -> bool:
        if fault.wire:
            writer.write(fault.wire)
        if fault.does == "drop" and fault.wire:
            writer.close()  # not a reset: that could overtake what was written
        elif fault.does == "drop":
            writer.transport.abort()
        return fault.does != "drop"

    async def _send(self, writer: asyncio.StreamWriter, whole: bytes, fault: Fault | None) -> None:
        step = fault.chunk_bytes if fault is not None and fault.does == "slow" else 0
        for at in range(0, len(whole), step or len(whole)):
            writer.write(whole[at : at + (step or len(whole))])
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            if fault is not None and step:
                await asyncio.sleep(fault.every_s)

    def _file(self, request: Request) -> bytes:
        name = request.path.removeprefix(f"/file/bot{self.token}/")
        content = next(
            (content for where, content in self.world.files.values() if where == name), None
        )
        if content is None:
            return answer(404, b'{"ok":false,"error_code":404,"description":"Not Found"}')
        if "gzip" in request.headers.get(
            "accept-encoding", ""
        ):  # as a web server in front of it may
            return answer(
                200, gzip.compress(content), "application/octet-stream\r\nContent-Encoding: gzip"
            )
        return answer(200, content, "application/octet-stream")
