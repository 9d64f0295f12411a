"""The sections about people, commands and the machine: `access`, `commands`, `store`, `ops`."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.fields import Section
from gateway.settings_source import path_for_system

_PERSON = re.compile(r"[A-Za-z0-9._-]+:\S.*")


def _person(value: str) -> str:
    if not _PERSON.fullmatch(value):
        raise ValueError("write `<channel>:<sender id>`, e.g. telegram.main:1001")
    return value


LocalPath = Annotated[Path, Field(strict=False), AfterValidator(path_for_system)]
"""Relative to the configuration directory when written, absolute when read."""
Person = Annotated[str, AfterValidator(_person)]
"""`<channel>:<sender id>`, e.g. `telegram.main:1001` or `irc.libera:account:someone`."""


class Roles(Section):
    """Who somebody is. A stable id of a verified sender, never a nick."""

    owner: tuple[Person, ...] = Field(default=(), strict=False)
    admin: tuple[Person, ...] = Field(default=(), strict=False)
    member: tuple[Person, ...] = Field(default=(), strict=False)
    guest: tuple[Person, ...] = Field(default=(), strict=False)
    blocked: tuple[Person, ...] = Field(default=(), strict=False)


class AccessConfig(Section):
    """Who may talk to the agent."""

    dm: Literal["pairing", "allowlist", "open", "disabled"] = "pairing"
    roles: Roles = Roles()
    max_bot_exchanges: int = Field(default=5, ge=0)
    """Messages of a listed bot that are answered in a row, until a person speaks. 0: none."""


class CommandsConfig(Section):
    """What can be asked of the gateway itself."""

    prefix: Annotated[str, Field(pattern=r"^[!-/:-@\[-`{-~]{0,3}$")] = "!"
    """In front of a command's name; up to 3 punctuation marks. Empty: only native commands."""
    contact: str | None = None
    """Who runs this bot and how to reach them, where the channel itself does not say."""
    per_minute: int = Field(default=10, ge=0)
    """Commands of one person that are answered. 0: none."""


class StoreConfig(Section):
    """Where the log is."""

    path: LocalPath = Path("data/reverie.db")


class OpsConfig(Section):
    """The operator's HTTP server."""

    host: str = "127.0.0.1"
    port: int = Field(default=9090, ge=0, le=65535)
    """0: any free one."""
    token: SecretStr | None = None
    """None: only health and metrics are served."""
