"""What an operator says about one Telegram bot."""

from typing import Literal

from pydantic import Field, SecretStr

from gateway.fields import Section


class TelegramConfig(Section):
    """One bot account."""

    platform: Literal["telegram"]
    token: SecretStr
    """From BotFather."""
    base_url: str = Field(default="https://api.telegram.org", pattern=r"^https?://[^\s/]")
    """Any server that speaks the Bot API."""
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of the groups where the bot may act; `*` means any group. Private chats are `access.dm`'s."""
