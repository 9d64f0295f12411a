"""Who has an id, as far as a platform tells its bots."""

import asyncio
from typing import TYPE_CHECKING

from channels.payload import string
from gateway.probes.found import Found
from gateway.probes.net import LIMIT_S

if TYPE_CHECKING:
    from channels.discord.config import DiscordConfig
    from channels.telegram.config import TelegramConfig


async def telegram_person(config: "TelegramConfig", number: str) -> str:
    """The name; empty if the bot has never met them, or it cannot be asked. Never raises but for cancellation."""
    from telegram.error import TelegramError  # noqa: PLC0415 - the library takes half a second

    from channels.telegram.calls import Api  # noqa: PLC0415 - the same

    try:
        api = Api(config)
    except (RuntimeError, ValueError, OSError):
        return ""
    try:
        with api.redact_logs():
            async with asyncio.timeout(LIMIT_S):
                url = f"{api.bot.base_url}/getChat?chat_id={int(number)}"
                told = await api.await_call(api.bot.request.post(url))
    except (TelegramError, TimeoutError, ValueError):
        return ""
    finally:
        await api.close()
    return _clean(string(told, "first_name") if string(told, "type") == "private" else "")


async def discord_person(config: "DiscordConfig", number: str) -> str:
    """The same; Discord tells of anybody."""
    import aiohttp  # noqa: PLC0415 - the libraries take half a second
    import discord  # noqa: PLC0415 - the same

    from channels.base import SendError  # noqa: PLC0415 - the same
    from channels.discord.client import Client  # noqa: PLC0415 - the same
    from channels.discord.rest import Api  # noqa: PLC0415 - the same

    client, api = Client(config, lambda *_: None), Api()
    try:
        async with asyncio.timeout(LIMIT_S):
            await client.log_in(config.token.get_secret_value().strip())
            api.client = client
            told = await api.call("GET", "/users/{user_id}", again=False, user_id=number)
    except (discord.DiscordException, aiohttp.ClientError, SendError, OSError, ValueError, KeyError, TypeError):
        return ""
    finally:
        await client.http.close()
    return _clean(string(told, "global_name") or string(told, "username"))


def _clean(name: str) -> str:
    return Found().clean(name)[:60]
