"""Webhook: an HTTP server that Telegram sends updates to (core.telegram.org/bots/api#setwebhook).

Telegram repeats an update until it is answered with 200, and that happens only when its events are durable. It sends
the next update of a chat only then, so the pictures of an album arrive as separate messages.
"""

import asyncio
import hmac
import logging
from collections.abc import Sequence

from aiohttp import web
from telegram import Update, WebhookInfo
from telegram.error import TelegramError

from channels.base import Emit
from channels.telegram.api import TelegramApi, parse_object
from channels.telegram.config import TelegramWebhook
from channels.telegram.ids import TelegramCursor
from channels.telegram.updates import PollBackoff, fetch_ranks
from channels.telegram.wire import UpdateReader, readable_updates
from channels.text import single_line
from gateway.core.clock import Clock

logger = logging.getLogger("reverie.telegram")
_MAX_BODY_BYTES = 2**20
"""An update is a few kilobytes."""
_CLOSE_TIMEOUT_S = 0.3
_CHECK_INTERVAL_S = 60.0
"""Seconds between two checks that our webhook is still set: a poller elsewhere may have removed it, and then no update
would arrive."""
_SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the header's name


class TelegramWebhookServer:
    """HTTP server for one account's updates."""

    def __init__(
        self,
        config: TelegramWebhook,
        *,
        api: TelegramApi,
        reader: UpdateReader,
        emit: Emit,
        clock: Clock,
        backoff: PollBackoff,
    ) -> None:
        self._config, self._api, self._reader, self._emit = config, api, reader, emit
        self._clock, self._backoff = clock, backoff
        self._durable_cursor: TelegramCursor | None = None
        """None: unknown. A group may have moved while the gateway was not running."""
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
                await self._backoff.deny(f"cannot listen on {where} for the webhook: {error.strerror}")
            await self._serve()
        finally:
            await runner.cleanup()

    async def _serve(self) -> None:
        watching = asyncio.ensure_future(self._watch_webhook())
        try:
            done, _ = await asyncio.wait({watching, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            for finished in done:
                finished.result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch_webhook(self) -> None:
        await self._set_webhook()
        failed = None
        while True:
            await self._clock.sleep(_CHECK_INTERVAL_S)
            info = await self._get_info()
            if info.url != self._config.url:
                logger.warning(
                    "%s: somebody has changed the bot's webhook; it is set again", self._reader.context.channel
                )
                await self._set_webhook()
            if info.last_error_date not in (None, failed):
                failed, message = info.last_error_date, self._api.redact(info.last_error_message)
                logger.warning(
                    "%s: Telegram could not call the webhook: %s",
                    self._reader.context.channel,
                    single_line(message, 200),
                )

    async def _get_info(self) -> WebhookInfo:
        """Request Telegram's state of our webhook until it succeeds. Raises Denied."""
        while True:
            try:
                info = await self._api.await_call(self._api.bot.get_webhook_info())
            except TelegramError as error:
                await self._backoff.handle_error(error)
            else:
                await self._backoff.record_success()
                return info

    async def _set_webhook(self) -> None:
        """Set our webhook; repeat until it succeeds. Raises Denied."""
        while True:
            try:
                await self._api.await_call(
                    self._api.bot.set_webhook(
                        self._config.url,
                        allowed_updates=self._reader.allowed_updates,
                        drop_pending_updates=False,
                        secret_token=self._config.secret.get_secret_value(),
                    )
                )
            except TelegramError as error:
                await self._backoff.handle_error(error)
            else:
                await self._backoff.record_success()
                return

    async def _handle_request(self, request: web.Request) -> web.Response:
        secret = request.headers.get(_SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(secret, self._config.secret.get_secret_value().encode()):
            return web.Response(status=403)
        try:  # what is no update is accepted: a repetition would be as invalid
            updates = Update.de_list(readable_updates([parse_object(await request.read())]))
            await self._process(updates)
        except Exception as error:  # noqa: BLE001 - raised by `run`
            if not self._failure.done():
                self._failure.set_exception(error)
            return web.Response(status=503)
        return web.Response()

    async def _process(self, updates: Sequence[Update]) -> None:
        async with self._lock:
            await fetch_ranks(self._api, self._reader.ranks, updates, self._clock.now())
            batch = self._reader.read_batch(updates, self._clock.now())
            if batch.notifications or batch.cursor != self._durable_cursor:
                await self._emit(batch.notifications, cursor=batch.cursor.to_json())
                self._durable_cursor = self._reader.durable_cursor = batch.cursor
        await self._api.answer_buttons(batch.button_presses)
