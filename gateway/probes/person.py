"""Who has an id, as far as a platform tells its bots."""

import asyncio
from typing import TYPE_CHECKING

from channels.payload import get_str
from gateway.probes.found import FindingCollector
from gateway.probes.net import PROBE_TIMEOUT_S

if TYPE_CHECKING:
    from channels.discord.config import DiscordConfig
    from channels.telegram.config import TelegramConfig


async def find_telegram_name(config: "TelegramConfig", number: str) -> str:
    """The name; empty if the bot has never met them, or it cannot be asked. Never raises but for cancellation."""
    from telegram.error import TelegramError  # noqa: PLC0415 - the library takes half a second

    from channels.telegram.calls import TelegramApi  # noqa: PLC0415 - the same

    try:
        api = TelegramApi(config)
    except (RuntimeError, ValueError, OSError):
        return ""
    try:
        with api.redact_logs():
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                url = f"{api.bot.base_url}/getChat?chat_id={int(number)}"
                told = await api.await_call(api.bot.request.post(url))
    except (TelegramError, TimeoutError, ValueError):
        return ""
    finally:
        await api.close()
    return clean_person_name(get_str(told, "first_name") if get_str(told, "type") == "private" else "")


async def find_discord_name(config: "DiscordConfig", number: str) -> str:
    """The same; Discord tells of anybody."""
    import aiohttp  # noqa: PLC0415 - the libraries take half a second
    import discord  # noqa: PLC0415 - the same

    from channels.base import SendError  # noqa: PLC0415 - the same
    from channels.discord.client import DiscordClient  # noqa: PLC0415 - the same
    from channels.discord.rest import DiscordRestClient  # noqa: PLC0415 - the same

    client, api = DiscordClient(config, lambda *_: None), DiscordRestClient()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await client.log_in(config.token.get_secret_value().strip())
            api.client = client
            told = await api.call("GET", "/users/{user_id}", again=False, user_id=number)
    except (discord.DiscordException, aiohttp.ClientError, SendError, OSError, ValueError, KeyError, TypeError):
        return ""
    finally:
        await client.http.close()
    return clean_person_name(get_str(told, "global_name") or get_str(told, "username"))


def clean_person_name(name: str) -> str:
    """Return the name without control characters, in at most 60 characters."""
    return FindingCollector().clean(name)[:60]
