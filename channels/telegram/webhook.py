"""Being told of updates instead of asking (core.telegram.org/bots/api#setwebhook).

Telegram sends an update again until it is answered with 200, and that is done only when what it said is durable. It
sends the next of a chat only then, so the pictures of an album come as messages of their own.
"""

import asyncio
import hmac
import json
import logging

from aiohttp import web
from telegram import WebhookInfo
from telegram.error import TelegramError

from channels.base import Emit
from channels.payload import Json
from channels.telegram.calls import Api
from channels.telegram.config import Webhook
from channels.telegram.cursor import Cursor
from channels.telegram.inbound import Inbound, valid
from channels.telegram.knowing import know
from channels.telegram.trouble import Trouble
from channels.text import line
from gateway.clock import Clock

_LOG = logging.getLogger("reverie.telegram")
_BODY_BYTES = 2**20
"""An update is a few kilobytes."""
_CLOSE_S = 0.3
_LOOK_S = 60.0
"""How often we see whether Telegram still means to call us: a poller elsewhere may have removed the webhook, and then
nothing would ever come."""
_SECRET = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the header's name


class Hook:
    """The listener. `run` it."""

    def __init__(
        self, config: Webhook, *, api: Api, inbound: Inbound, emit: Emit, clock: Clock, trouble: Trouble
    ) -> None:
        self._config, self._api, self._inbound, self._emit = config, api, inbound, emit
        self._clock, self._trouble = clock, trouble
        self._durable: Cursor | None = None
        """None: not known. A group may have moved while nobody was looking."""
        self._order = asyncio.Lock()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Ends only by cancellation, by `Denied`, or by what `emit` raises."""
        app = web.Application(client_max_size=_BODY_BYTES)
        app.router.add_post(self._config.path, self._called)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_S)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._config.listen, self._config.port).start()
            except OSError as error:
                where = f"{self._config.listen}:{self._config.port}"
                await self._trouble.hopeless(f"cannot listen on {where} for the webhook: {error.strerror}")
            await self._stay()
        finally:
            await runner.cleanup()

    async def _stay(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        try:
            done, _ = await asyncio.wait({watching, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        await self._announce()
        failed = None
        while True:
            await self._clock.sleep(_LOOK_S)
            info = await self._info()
            if info.url != self._config.url:
                _LOG.warning("%s: somebody has changed the bot's webhook; it is set again", self._inbound.view.channel)
                await self._announce()
            if info.last_error_date not in (None, failed):
                failed, said = info.last_error_date, self._api.clean(info.last_error_message)
                _LOG.warning("%s: Telegram could not call the webhook: %s", self._inbound.view.channel, line(said, 200))

    async def _info(self) -> WebhookInfo:
        """What Telegram has of our webhook, however long it takes. Raises Denied."""
        while True:
            try:
                info = await self._api.read(self._api.bot.get_webhook_info())
            except TelegramError as error:
                await self._trouble.met(error)
            else:
                await self._trouble.over()
                return info

    async def _announce(self) -> None:
        """Tell Telegram where we are, however long it takes. Raises Denied."""
        while True:
            try:
                await self._api.read(
                    self._api.bot.set_webhook(
                        self._config.url,
                        allowed_updates=self._inbound.allowed,
                        drop_pending_updates=False,
                        secret_token=self._config.secret.get_secret_value(),
                    )
                )
            except TelegramError as error:
                await self._trouble.met(error)
            else:
                await self._trouble.over()
                return

    async def _called(self, request: web.Request) -> web.Response:
        told = request.headers.get(_SECRET, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(told, self._config.secret.get_secret_value().encode()):
            return web.Response(status=403)
        try:
            updates = valid([json.loads(await request.read())])
        except (ValueError, RecursionError):
            updates = []  # it will not be better the next time
        try:
            await self._take(updates)
        except Exception as error:  # noqa: BLE001 - comes out of `run`
            if not self._broken.done():
                self._broken.set_exception(error)
            return web.Response(status=503)
        return web.Response()

    async def _take(self, updates: list[Json]) -> None:
        async with self._order:
            await know(self._api, self._inbound.ranks, updates, self._clock.now())
            taken = self._inbound.take(updates, self._clock.now())
            if taken.batch or taken.cursor != self._durable:
                await self._emit(taken.batch, cursor=taken.cursor.dump())
                self._durable = self._inbound.durable = taken.cursor
        await self._api.rest(taken.buttons)
