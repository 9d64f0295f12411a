"""The update queue of the fake Bot API: long polls, confirmation, webhook.

After core.telegram.org/bots/api#getting-updates and the source of tdlib/telegram-bot-api (`Client.cpp`).
"""

import asyncio
import json
from typing import Any

from tests.servers.bot_api_http import Json, post
from tests.servers.bot_api_text import ApiError

FIRST_UPDATE = 700_000_001
NOT_BY_DEFAULT = frozenset({"chat_member", "message_reaction", "message_reaction_count"})
TERMINATED = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
HOOKED = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"


class Updates:
    """What the bot has not confirmed yet."""

    def __init__(self) -> None:
        self.pending: list[tuple[int, Any]] = []
        """(update_id, update), oldest first."""
        self.confirmed: list[int] = []
        self.allowed: frozenset[str] | None = None
        """None: the default. Set by the last call that said it; counts for updates from then on."""
        self.refused: list[str] = []
        """Kinds of updates that were dropped because they are not allowed."""
        self.hook: Json | None = None
        """As `setWebhook` had it."""
        self.deliveries: list[tuple[int, int]] = []
        """(update_id, status) of every attempt at the webhook; status 0: no answer."""
        self.retry_s = 0.05
        self._next_id = FIRST_UPDATE
        self._poll: asyncio.Future[str] | None = None
        """The one long poll that waits: done with `news`, or with whom it was terminated by."""
        self._delivering: asyncio.Task[None] | None = None

    def put(self, kind: str, body: Any) -> int | None:
        """Queue an update; its id, or None if it is not of an allowed kind."""
        allowed = kind not in NOT_BY_DEFAULT if self.allowed is None else kind in self.allowed
        if not allowed:
            self.refused.append(kind)
            return None
        return self.put_raw({"update_id": self._next_id, kind: body})

    def put_raw(self, update: Any) -> int:
        """Queue anything in place of an update. Its own `update_id` is not looked at."""
        mine, self._next_id = self._next_id, self._next_id + 1
        self.pending.append((mine, update))
        self._wake("news")
        return mine

    async def get(self, offset: int, limit: int, timeout_s: float, allowed: list[str] | None) -> list[Any]:
        """`getUpdates`. Raises `ApiError`."""
        if self.hook is not None:
            raise ApiError(409, HOOKED)
        self._wake("other")
        if allowed is not None:
            self.allowed = frozenset(allowed) or None
        self._confirm(offset)
        if not self.pending and timeout_s > 0:
            self._poll = poll = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    if await poll == "other":
                        raise ApiError(409, TERMINATED)
            except TimeoutError:
                pass
            finally:
                if self._poll is poll:
                    self._poll = None
        return [update for _, update in self.pending[: max(1, min(limit, 100))]]

    def restart(self, next_id: int) -> None:
        """The next update has this id."""
        self._next_id = next_id

    @property
    def polling(self) -> bool:
        """A long poll waits at this moment."""
        return self._poll is not None and not self._poll.done()

    def set_hook(self, hook: Json | None, *, drop_pending: bool) -> None:
        """`setWebhook` and `deleteWebhook`."""
        self.hook = hook
        if drop_pending:
            self._confirm(self._next_id)
        if hook is not None:
            self._wake("other")
            if hook.get("allowed_updates") is not None:
                self.allowed = frozenset(hook["allowed_updates"]) or None
            self._wake("news")

    def close(self) -> None:
        if self._delivering is not None:
            self._delivering.cancel()

    def _confirm(self, offset: int) -> None:
        if offset < 0:
            offset = self.pending[offset][0] if len(self.pending) >= -offset else 0
        self.confirmed += [mine for mine, _ in self.pending if mine < offset]
        self.pending = [(mine, update) for mine, update in self.pending if mine >= offset]

    def _wake(self, why: str) -> None:
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(why)
        if why == "news" and self.hook is not None and (self._delivering is None or self._delivering.done()):
            self._delivering = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Post to the webhook, oldest first, each again until it is taken."""
        while self.pending and self.hook is not None:
            mine, update = self.pending[0]
            secret = self.hook.get("secret_token")
            headers = {"X-Telegram-Bot-Api-Secret-Token": secret} if secret else {}
            try:
                status = await post(self.hook["url"], headers, json.dumps(update).encode())
            except (OSError, EOFError):
                status = 0
            self.deliveries.append((mine, status))
            if 200 <= status < 300:
                self._confirm(mine + 1)
            else:
                await asyncio.sleep(self.retry_s)
