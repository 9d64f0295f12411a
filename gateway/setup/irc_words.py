"""How what is answered about IRC is written. Pure; each raises ValueError, whose text says how."""

import re
from typing import Final

from pydantic import ValidationError

from channels.irc.config import IrcConfig
from gateway.setup.ask_bot import LATER
from gateway.setup.dialog import split_words

NONE: Final = "none"
TLS_PORT: Final = 6697
"""RFC 7194."""


def irc_channel_name(host: str) -> str:
    """The name of its channel: `irc.libera` for irc.libera.chat."""
    if is_local_host(host) or re.fullmatch(r"[0-9.:]+", host):
        return "irc.local" if is_local_host(host) else "irc.main"
    labels = host.lower().split(".")
    name = re.sub(r"[^a-z0-9-]", "", labels[-2] if len(labels) > 1 else labels[0])
    return f"irc.{name or 'main'}"


def is_local_host(host: str) -> bool:
    """Whether it is this machine."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def parse_irc_address(words: str) -> str:
    """`host:port`; the port for TLS where none is written."""
    words = words.strip()
    host, colon, port = words.rpartition(":")
    bare = ":" in host and not host.endswith("]")  # IPv6 without a port
    if not colon or bare or words.endswith("]"):
        host, port = words, str(TLS_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:  # noqa: PLR2004 - of TCP
        raise ValueError("write host or host:port, e.g. irc.libera.chat:6697")
    _validate_irc(host=host)
    return f"{host}:{int(port)}"


def parse_irc_nick(words: str) -> str:
    """A nick."""
    _validate_irc(nick=words.strip())
    return words.strip()


def parse_irc_rooms(words: str) -> str:
    """Rooms with spaces between them, or `none`."""
    if words.strip().lower() in {"", NONE}:
        return NONE
    rooms = [f"#{room}" if room[0].isalnum() else room for room in split_words(words)]
    _validate_irc(rooms=rooms)
    return " ".join(rooms)


def parse_irc_account(words: str) -> str:
    """The name of an account, or `later`."""
    words = words.strip()
    if words.lower() == LATER:
        return LATER
    name = words.removeprefix("account:")
    if not name or not re.fullmatch(r"[^\s:!@*]+", name):
        raise ValueError("that is no account: write the name with which you log in to the services")
    return name


def parse_irc_contact(words: str) -> str:
    """Anything but nothing."""
    if not words.strip():
        raise ValueError("networks want to be able to reach whoever runs a bot: a name, and an address or a nick")
    return words.strip()


def _validate_irc(**given: object) -> None:
    """As the adapter's settings have it. Raises ValueError with their words."""
    try:
        IrcConfig.model_validate({"host": "127.0.0.1", "nick": "reverie", "contact": "x"} | given)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
