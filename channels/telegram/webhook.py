"""Webhook: an HTTP server that Telegram sends updates to (core.telegram.org/bots/api#setwebhook).

Telegram repeats an update until it is answered with 200, and that happens only when its events are
durable. It sends the next update of a chat only then, so the pictures of an album arrive as
separate messages.
"""

import asyncio
import hmac
import logging

from aiohttp import web

from channels.aio import cancel_and_wait
from channels.telegram.api import parse_object
from channels.telegram.config import TelegramWebhook
from channels.telegram.updates import TelegramReceiver
from channels.telegram.wire import ALLOWED_UPDATES, parse_updates
from channels.text import single_line

logger = logging.getLogger("reverie.telegram")
_MAX_BODY_BYTES = 2**20
"""An update is a few kilobytes."""
_CLOSE_TIMEOUT_S = 0.3
_CHECK_INTERVAL_S = 60.0
"""Seconds between two checks that our webhook is still set: a poller elsewhere may have removed it,
and then no update would arrive."""


class TelegramWebhookServer:
    """HTTP server for one account's updates."""

    def __init__(self, config: TelegramWebhook, receiver: TelegramReceiver) -> None:
        self._config, self._receiver = config, receiver
        self._lock = asyncio.Lock()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve. Ends only by cancellation, by `Denied`, or by an error of `emit`."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post(self._config.path, self._handle_request)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_TIMEOUT_S)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._config.listen, self._config.port).start()
            except OSError as error:
                where = f"{self._config.listen}:{self._config.port}"
                await self._receiver.deny(
                    f"cannot listen on {where} for the webhook: {error.strerror}"
                )
            await self._serve()
        finally:
            await runner.cleanup()

    async def _serve(self) -> None:
        watching = asyncio.create_task(self._watch_webhook())
        try:
            await asyncio.wait({watching, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            (watching if watching.done() else self._failure).result()
        finally:
            await cancel_and_wait(watching)

    async def _watch_webhook(self) -> None:
        receiver, name, failed = self._receiver, self._receiver.reader.context.channel, None
        await self._set_webhook()
        while True:
            await receiver.clock.sleep(_CHECK_INTERVAL_S)
            info = await receiver.retry(lambda bot: bot.get_webhook_info())
            await receiver.record_success()
            if info.url != self._config.url:
                logger.warning("%s: somebody has changed the bot's webhook; it is set again", name)
                await self._set_webhook()
            if info.last_error_date not in (None, failed):
                failed, message = (
                    info.last_error_date,
                    single_line(receiver.api.redact(info.last_error_message), 200),
                )
                logger.warning("%s: Telegram could not call the webhook: %s", name, message)

    async def _set_webhook(self) -> None:
        await self._receiver.retry(
            lambda bot: bot.set_webhook(
                self._config.url,
                allowed_updates=ALLOWED_UPDATES,
                drop_pending_updates=False,
                secret_token=self._config.secret.get_secret_value(),
            )
        )
        await self._receiver.record_success()

    async def _handle_request(self, request: web.Request) -> web.Response:
        secret = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "").encode(
            "utf-8", "surrogateescape"
        )
        if not hmac.compare_digest(secret, self._config.secret.get_secret_value().encode()):
            return web.Response(status=403)
        body = (
            await request.read()
        )  # aiohttp itself answers one that is too large (413) or breaks off
        try:  # what is no update is accepted: a repetition would be as invalid
            updates = parse_updates([parse_object(body)])
            async with self._lock:
                await self._receiver.take(updates)
        except Exception as error:  # noqa: BLE001 - raised by `run`
            if not self._failure.done():
                self._failure.set_exception(error)
            return web.Response(status=503)
        return web.Response()
