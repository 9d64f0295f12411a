"""The sections about people, commands and the machine: `access`, `commands`, `store`, `ops`."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.events import Address
from gateway.fields import ConfigSection
from gateway.settings_source import check_path

_PERSON_PATTERN = re.compile(r"[A-Za-z0-9._-]+:\S.*")


def _check_person(value: str) -> str:
    if not _PERSON_PATTERN.fullmatch(value):
        raise ValueError("write `<channel>:<sender id>`, e.g. telegram.main:1001")
    return value


LocalPath = Annotated[Path, Field(strict=False), AfterValidator(check_path)]
"""Relative to the configuration directory when written, absolute when read."""
PersonKey = Annotated[str, AfterValidator(_check_person)]
"""`<channel>:<sender id>`, e.g. `telegram.main:1001` or `irc.libera:account:someone`."""


class RolesConfig(ConfigSection):
    """Who somebody is. A stable id of a verified sender, never a nick."""

    owner: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """May do and see all."""
    admin: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """May administer it."""
    member: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """Is answered in direct chats."""
    guest: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """As anybody else."""
    blocked: tuple[PersonKey, ...] = Field(default=(), strict=False)
    """Is never answered, and never shown to the model."""


def _check_room_scope(value: str) -> str:
    try:
        place = Address.parse(value)
    except ValueError:
        raise ValueError("write `<channel>/<room>`, e.g. telegram.main/-1001 or discord.main/<guild>") from None
    if place.thread is not None:
        raise ValueError("a thread is of its room: write `<channel>/<room>`")
    return value


RoomScope = Annotated[str, AfterValidator(_check_room_scope)]
"""`<channel>/<room>`, or what rooms are part of: `<channel>/<guild>`."""


class GrantConfig(ConfigSection):
    """A role that somebody has in some places only."""

    who: PersonKey
    """As in `access.roles`."""
    role: Literal["owner", "admin", "member", "blocked"]
    """Instead of the one that they have elsewhere."""
    agent: str | None = None
    """With this agent."""
    room: RoomScope | None = None
    """There."""

    @model_validator(mode="after")
    def _check_scope(self) -> Self:
        if (self.agent is None) == (self.room is None):
            raise ValueError("name an agent or a room; what holds everywhere stands in access.roles")
        return self


class PlatformRoleConfig(ConfigSection):
    """A role for whom a platform says something of in a room. No bot administers by it."""

    channel: str
    """A glob, e.g. discord.*."""
    room: str = "*"
    """A room, or a guild. `*`: any."""
    has: Annotated[str, Field(min_length=1)]
    """Discord: `role:<id>`; Telegram: `creator`, `administrator`; IRC: `founder`, `protected`, `op`, `halfop`,
    `voice`."""
    role: Literal["owner", "admin", "member", "guest", "blocked"]
    """Unless a person has a role of their own."""


class RateConfig(ConfigSection):
    """How often somebody may have the agent answer: so many at once, then so many a minute."""

    burst: int = Field(ge=0)
    """0, with a pace: one."""
    per_minute: float = Field(ge=0)
    """0, with a burst of 0: no limit."""


class RatesConfig(ConfigSection):
    """Of what is said to the agent. Owners and admins have no limit; what they say leaves less to others."""

    sender: RateConfig = RateConfig(burst=200, per_minute=30)
    room: RateConfig = RateConfig(burst=400, per_minute=90)
    agent: RateConfig = RateConfig(burst=1_000, per_minute=300)
    """What comes in a burst is told in few turns (`attention.coalesce`), so that it costs little; what goes on does."""


class BudgetsConfig(ConfigSection):
    """What people who are neither owners nor admins may cause per UTC day, in US dollars. `null`: no limit.

    Before each request as much is set aside as it may cost at most, so a day never costs more, however many ask at
    once. Answers and reminders count for whom they are. Past a budget the person is told once, owners once a day. A
    model that is in no price table counts with the table's `default`, and one that is listed without a price as much; a
    model of your own that costs nothing has to be listed with 0 (`prices.yaml`), but for the kinds `local` and
    `llamacpp`.
    """

    sender_usd: float | None = Field(default=1.0, ge=0)
    """For one person, in all places: about 100 answers of a middling model. Nobody alone uses up what a room has."""
    room_usd: float | None = Field(default=5.0, ge=0)
    """In one room: five people who have used up their own."""
    agent_usd: float | None = Field(default=10.0, ge=0)
    """With one agent, in all places: what a raid costs at most. Enough for about 80 answers at the same moment."""


class AccessConfig(ConfigSection):
    """Who may talk to the agent."""

    dm: Literal["pairing", "allowlist", "open", "disabled"] = "pairing"
    rooms: Literal["approval", "listed"] = "approval"
    """What becomes of rooms that are not listed. approval: who speaks to the agent there, or invites it, is shown a
    code by which an admin opens the room; listed: nothing."""
    roles: RolesConfig = RolesConfig()
    grants: tuple[GrantConfig, ...] = Field(default=(), strict=False)
    platform_roles: tuple[PlatformRoleConfig, ...] = Field(default=(), strict=False)
    masks: bool = False
    """Whether somebody may be paired of whom a platform only shows a mask, which anybody may have tomorrow."""
    rates: RatesConfig = RatesConfig()
    budgets: BudgetsConfig = BudgetsConfig()
    tell: RoomScope | None = None
    """Where owners are told of limits that were reached, and of what waits for an admin. None: in the direct chat that
    an owner used last."""
    max_bot_exchanges: int = Field(default=5, ge=0)
    """Messages of a listed bot that are answered in a row, until a person speaks. 0: none."""


class CommandsConfig(ConfigSection):
    """What can be asked of the gateway itself."""

    prefix: Annotated[str, Field(pattern=r"^[!-/:-@\[-`{-~]{0,3}$")] = "!"
    """In front of a command's name; up to 3 punctuation marks. Empty: only native commands."""
    contact: str | None = None
    """Who runs this bot and how to reach them, where the channel itself does not say."""
    per_minute: int = Field(default=10, ge=0)
    """Commands of one person that are answered. 0: none."""


class StoreConfig(ConfigSection):
    """Where the log is."""

    path: LocalPath = Path("data/reverie.db")
    """One file, made at the first start; what agents keep lies beside it."""


MIN_TOKEN_CHARS = 16
"""Of the operator's token: fewer could be guessed."""


def _check_token(token: SecretStr) -> SecretStr:
    """Raises ValueError for one that could be guessed."""
    if len(token.get_secret_value()) < MIN_TOKEN_CHARS:
        raise ValueError(f"at least {MIN_TOKEN_CHARS} characters are needed: `openssl rand -hex 32` makes a good one")
    return token


class OpsConfig(ConfigSection):
    """The operator's HTTP server."""

    host: str = "127.0.0.1"
    """Other addresses than those of this machine need a proxy with TLS in front."""
    port: int = Field(default=9090, ge=0, le=65535)
    """0: any free one."""
    token: Annotated[SecretStr, AfterValidator(_check_token)] | None = None
    """At least 16 characters: whoever bears it sees and steers everything. None: only health and metrics are served."""
    hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")], ...] = Field(default=(), strict=False)
    """Other names under which the server is asked for, e.g. behind a proxy. Requests for any other host are refused."""
