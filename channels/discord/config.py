"""Configuration of one Discord bot."""

from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from channels.base import ChannelConfig
from gateway.core.fields import Duration
from gateway.core.proxy import ProxySetting


class DiscordConfig(ChannelConfig):
    """Bot account."""

    sender_ids: ClassVar = r"\d+"
    sender_id_example: ClassVar = "80351110224678912"
    account_keys: ClassVar = ("token", "shard")
    adapter_modules: ClassVar = ("channels.discord.channel", "channels.discord.session")
    reads_history: ClassVar = True

    platform: Literal["discord"]
    token: SecretStr
    """Token of the bot, from discord.com/developers/applications."""

    @field_validator("token")
    @classmethod
    def _token(cls, token: SecretStr) -> SecretStr:
        if any(map(str.isspace, token.get_secret_value())):
            raise ValueError(
                "not a token: one word without blanks and line breaks; copy it again from the "
                "bot's page"
            )
        return token

    api_url: str = Field(default="https://discord.com/api/v10", pattern=r"^https?://[^\s/]")
    """Any server with this version of the HTTP API."""
    gateway_url: str = Field(default="wss://gateway.discord.gg", pattern=r"^wss?://[^\s/]")
    """Server of the events (the gateway of Discord)."""
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment
    says."""
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of the channels or guilds where the bot may act; `*` means any. For direct messages see
    `access.dm`."""
    threads: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of channels or guilds where a message that mentions the bot is answered in a new thread;
    `*` means all."""
    history_age: Duration = 3600.0
    """Age up to which the bot answers messages that came while it was away (seconds, or `1h`). 0:
    none."""
    shard: tuple[int, ...] | None = Field(default=None, strict=False, min_length=2, max_length=2)
    """Of a bot in more than 2,500 guilds: the number of this connection, from 0, and how many there
    are; each is a channel of its own. null: the only one."""
    typing: bool = True
    """Show that an answer is being written."""
    preview: Literal["off", "all"] = "off"
    """`all`: a growing answer is shown in a message that is edited until it is the answer."""
    link_previews: bool = False
    """Let Discord show previews of the links in our messages."""
    request_timeout: Duration = Field(default=30.0, gt=0)
    """Longest time of a request to the HTTP API."""

    @field_validator("rooms", "threads")
    @classmethod
    def _rooms(cls, rooms: tuple[str, ...]) -> tuple[str, ...]:
        for room in rooms:
            if room != "*" and not (room.isascii() and room.isdigit()):
                raise ValueError(
                    f"{room!r} is not the id of a channel or guild: in Discord, turn on developer "
                    "mode, "
                    'right-click it, copy its id, and write it in quotes ("*" is any)'
                )
        return rooms
