"""Configuration of one Telegram bot."""

import re
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from gateway.core.fields import ConfigSection, Duration

_TOKEN = re.compile(r"[^\s/?#%{}]+")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")


class TelegramRateLimit(ConfigSection):
    """Our pace. Telegram's own numbers are the defaults (core.telegram.org/bots/faq, "My bot is hitting limits")."""

    per_chat_s: float = Field(default=1.0, ge=0)
    """Seconds between two messages in one chat; 0: none."""
    group_per_min: int = Field(default=20, ge=1)
    """Messages to one group in any sixty seconds."""
    overall_per_s: int = Field(default=30, ge=1)
    """Messages to all chats together in any second."""


class TelegramWebhook(ConfigSection):
    """Telegram calls us instead of being asked. Needs a TLS terminator in front of `listen`."""

    listen: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(ge=0, le=65535)
    """0: any free one (tests)."""
    path: str = Field(default="/telegram", pattern=r"^/[^\s?#{}]*$")
    """Where updates are taken in."""
    url: str = Field(pattern=r"^https?://[^\s/]")
    """What Telegram is told to call."""
    secret: SecretStr
    """Telegram sends it with every call; a call without it is refused. Letters, digits, `_` and `-`."""

    @field_validator("secret")
    @classmethod
    def _secret(cls, secret: SecretStr) -> SecretStr:
        if not _SECRET.fullmatch(secret.get_secret_value()):
            raise ValueError("write 1 to 256 letters, digits, _ and -")
        return secret


class TelegramConfig(ConfigSection):
    """One bot account."""

    platform: Literal["telegram"]
    token: SecretStr
    """From BotFather."""

    @field_validator("token")
    @classmethod
    def _token(cls, token: SecretStr) -> SecretStr:
        if not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError("not a token; copy it from @BotFather, it reads like 123456:ABC-DEF")
        return token

    base_url: str = Field(default="https://api.telegram.org", pattern=r"^https?://[^\s/]")
    """Any server that speaks the Bot API; its root, without `/bot`."""
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of the groups where the bot may act; `*` means any group. Private chats are `access.dm`'s."""
    flood: TelegramRateLimit = TelegramRateLimit()
    poll_timeout: Duration = Field(default=25.0, le=50)
    """How long one request waits for something to happen, in whole seconds."""
    request_timeout: Duration = Field(default=20.0, gt=0)
    """How long any other request may wait for its answer."""
    typing: bool = True
    """Show that an answer is being written."""
    preview: Literal["off", "private", "all"] = "private"
    """Where a growing answer is shown: nowhere, in private chats (drafts), or in groups too (edits)."""
    webhook: TelegramWebhook | None = None
    """None: long polling."""
