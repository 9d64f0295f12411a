"""Asking Telegram who runs a group, before what was said there is read."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from telegram.error import TelegramError

from channels.payload import Json, get_objects
from channels.telegram.calls import TelegramApi
from channels.telegram.ranks import TelegramRanks

logger = logging.getLogger("reverie.telegram")
_RANKS_TIMEOUT_S: Final = 5.0
"""What was said waits for the answer."""


async def fetch_ranks(api: TelegramApi, ranks: TelegramRanks, updates: Sequence[Json], now: datetime) -> None:
    """Have `ranks` know what is needed to read `updates`, or that it is not to be known. Raises nothing."""
    if not (chats := ranks.chats_to_ask(updates, now)):
        return
    answers: dict[str, list[Json]] = {}

    async def one(chat: str) -> None:
        # Not by the library's method, which insists on every field.
        told = await api.await_call(api.bot.request.post(f"{api.bot.base_url}/getChatAdministrators?chat_id={chat}"))
        if isinstance(told, list):
            answers[chat] = get_objects({"told": told}, "told")

    try:
        async with asyncio.timeout(_RANKS_TIMEOUT_S):
            results = await asyncio.gather(*map(one, chats), return_exceptions=True)
    except TimeoutError:
        results = [TelegramError("no answer in time")]
    for failed in (one for one in results if isinstance(one, Exception)):
        logger.warning("who runs a group cannot be told, so nobody there has a rank for now: %s", api.redact(failed))
    for chat in chats:
        ranks.record_answer(chat, answers.get(chat), now)
