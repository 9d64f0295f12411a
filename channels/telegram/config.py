"""Configuration of one Telegram bot."""

import re
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from channels.base import ChannelConfig
from gateway.core.fields import ConfigSection, Duration
from gateway.core.proxy import ProxySetting

_TOKEN = re.compile(r"[^\s/?#%{}]+")
_ROOM = re.compile(r"-[0-9]{1,20}|\*")
_CALLED = re.compile(r"https://[^\s/:]+(:(443|80|88|8443))?(/|$)")
"""What Telegram calls: core.telegram.org/bots/webhooks."""
_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")
"""Telegram takes 1 to 256 (core.telegram.org/bots/api#setwebhook); who guesses it can say anything
as anybody."""


class TelegramRateLimit(ConfigSection):
    """Limits of sending.

    Telegram's own numbers are the defaults (core.telegram.org/bots/faq, "My bot is hitting
    limits").
    """

    per_chat_s: float = Field(default=1.0, ge=0)
    """Seconds between two messages in one chat; 0: none."""
    group_per_min: int = Field(default=20, ge=1)
    """Messages to one group in any sixty seconds."""
    overall_per_s: int = Field(default=30, ge=1)
    """Messages to all chats together in any second."""


class TelegramWebhook(ConfigSection):
    """Webhook: Telegram calls the gateway instead of being polled. Needs a TLS terminator in front
    of `listen`.
    """

    listen: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(ge=0, le=65535)
    """Port to listen on. 0: any free one (tests)."""
    path: str = Field(default="/telegram", pattern=r"^/[^\s?#{}]*$")
    """Path that receives updates."""
    url: str = Field(pattern=r"^https?://[^\s/]")
    """Public address that Telegram calls."""
    secret: SecretStr
    """Secret that Telegram sends with every call; a call without it is refused. 16 to 256 letters,
    digits, _ and -."""

    @field_validator("secret")
    @classmethod
    def _secret(cls, secret: SecretStr) -> SecretStr:
        if not _SECRET.fullmatch(secret.get_secret_value()):
            raise ValueError(
                "write 16 to 256 letters, digits, _ and -: `openssl rand -hex 32` makes a good one"
            )
        return secret


class TelegramConfig(ChannelConfig):
    """Bot account."""

    sender_ids: ClassVar = r"-?\d+"
    sender_id_example: ClassVar = "1001"
    account_keys: ClassVar = ("token",)
    adapter_modules: ClassVar = ("channels.telegram.channel",)

    platform: Literal["telegram"]
    token: SecretStr
    """Token from BotFather."""

    @field_validator("token")
    @classmethod
    def _token(cls, token: SecretStr) -> SecretStr:
        if not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError(
                "not a token: one word without blanks and line breaks; copy it from @BotFather, it "
                "reads like 123456:ABC-DEF"
            )
        return token

    base_url: str = Field(default="https://api.telegram.org", pattern=r"^https?://[^\s/]")
    """Root of any server with the Bot API, without `/bot`."""
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment
    says."""
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of the groups where the bot may act; `*` means any group. For private chats see
    `access.dm`."""

    @field_validator("rooms")
    @classmethod
    def _rooms(cls, rooms: tuple[str, ...]) -> tuple[str, ...]:
        for room in rooms:
            if not _ROOM.fullmatch(room):
                raise ValueError(
                    f"{room!r} is not the id of a group, a number that begins with a minus; write "
                    'it in quotes ("*" is any): `reverie setup` lists the groups of the bot, '
                    "and the log names those where it was refused"
                )
        return rooms

    flood: TelegramRateLimit = TelegramRateLimit.model_construct()
    poll_timeout: Duration = Field(default=25.0, le=50)
    """Longest time that a polling request waits for an update, in whole seconds."""
    request_timeout: Duration = Field(default=20.0, gt=0)
    """Longest time that any other request waits for its answer."""
    typing: bool = True
    """Show that an answer is being written."""
    preview: Literal["off", "private", "all"] = "private"
    """Places where a growing answer is shown: nowhere, in private chats (drafts), or in groups too
    (edits)."""
    webhook: TelegramWebhook | None = None
    """Webhook instead of long polling. None: long polling."""

    def find_warnings(self) -> Iterator[tuple[tuple[str, ...], str]]:
        called = self.webhook is None or _CALLED.match(self.webhook.url)
        if not called and "://api.telegram.org" in self.base_url:
            yield (
                ("webhook", "url"),
                (
                    "Telegram calls addresses with https:// only, at port 443, 80, 88 or 8443; "
                    "write such an address"
                ),
            )

    def listens(self) -> Iterator[tuple[str, str]]:
        if self.webhook is not None:
            yield "webhook.listen", self.webhook.listen
