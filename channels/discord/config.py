"""What an operator says about one Discord bot."""

from typing import Literal

from pydantic import Field, SecretStr

from gateway.fields import Section


class DiscordConfig(Section):
    """One bot account."""

    platform: Literal["discord"]
    token: SecretStr
    api_url: str = Field(default="https://discord.com/api/v10", pattern=r"^https?://[^\s/]")
    """Any server that speaks this version of the HTTP API."""
    gateway_url: str = Field(default="wss://gateway.discord.gg", pattern=r"^wss?://[^\s/]")
    """Where events come from."""
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of the channels or guilds where the bot may act; `*` means any. Direct messages are `access.dm`'s."""
