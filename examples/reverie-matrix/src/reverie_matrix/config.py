"""Configuration of one Matrix account."""

import re
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from reverie.platforms import ChannelConfig, Duration

_ROOM = re.compile(r"![^\s]{1,254}|\*")
_USER = re.compile(r"@[^\s:]{0,250}:[^\s]{1,250}|\*")


class MatrixConfig(ChannelConfig):
    """Bot account."""

    account_keys: ClassVar = ("access_token", "user", "homeserver")
    adapter_modules: ClassVar = ("reverie_matrix.channel",)
    reads_history: ClassVar = True

    platform: Literal["matrix"]
    homeserver: str = Field(pattern=r"^https?://[^\s/?#]+$")
    """Root of the client-server API, e.g. `https://matrix.example.org`."""
    access_token: SecretStr | None = None
    """Access token of the account. None: `user` and `password` log in at each start."""
    user: str = Field(default="", pattern=r"^(@[^\s:]+:\S+)?$")
    """Id of the account, e.g. `@reverie:example.org`; only for a login by password."""
    password: SecretStr | None = None
    device: str = Field(default="REVERIE", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Device of a login by password. It stays the same, because servers recognise a repeated
    message by it. No two programs may use the same one."""
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Ids of the rooms where the bot may act, which it joins at the start; `*` means any. For
    direct chats see `access.dm`."""
    direct_invitations: tuple[str, ...] = Field(default=(), strict=False)
    """People whose invitations to a direct chat are accepted at once: ids, `@*:example.org` for
    everybody on a server, `*` for all. Empty: everybody on the bot's own server. What they may do
    there is for `access.dm`. All other invitations are decided like those to rooms."""
    history_age: Duration = 86_400.0
    """Age of the oldest message that is fetched after an absence."""
    resend_window: Duration = 12 * 3600.0
    """Time in which the homeserver drops a repeated message (client-server API, "Transaction
    identifiers": it is not specified). Synapse keeps them for a day in its database."""
    poll_timeout: Duration = Field(default=30.0, ge=1, le=300)
    """Longest time that a request waits for an event."""
    request_timeout: Duration = Field(default=20.0, gt=0)
    """Longest time that any other request waits for its answer."""

    @field_validator("rooms")
    @classmethod
    def _rooms(cls, rooms: tuple[str, ...]) -> tuple[str, ...]:
        for room in rooms:
            if not _ROOM.fullmatch(room):
                raise ValueError(
                    f"{room!r} is not the id of a room, which begins with `!`: Element shows it in "
                    "the settings of the room, under Advanced"
                )
        return rooms

    @field_validator("direct_invitations")
    @classmethod
    def _people(cls, people: tuple[str, ...]) -> tuple[str, ...]:
        for person in people:
            if not _USER.fullmatch(person):
                raise ValueError(f"{person!r} is not the id of a person, e.g. @ann:example.org")
        return people

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if (self.access_token is None) == (self.password is None):
            raise ValueError("write either access_token, or user and password")
        if self.password is not None and not self.user:
            raise ValueError("a login by password needs user")
        return self
