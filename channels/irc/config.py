"""Configuration of one IRC account."""

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.core.fields import ConfigSection, Duration

_NICK = re.compile(r"[^\s:@!*?,.#&0-9\x00-\x20-][^\s@!*?,\x00-\x20]*")
_ROOM = re.compile(r"[#&+!][^\s,\x00-\x20]+")
_USERNAME = re.compile(r"[^\s:@!\x00-\x20][^\s@!\x00-\x20]*(?: [^\s@!\x00-\x20]+)*")
_HOST = re.compile(r"[^\s\x00-\x20/@]+")


class TlsConfig(ConfigSection):
    """Transport security in detail; `tls: true` means the defaults."""

    ca_file: str | None = None
    """PEM file of trusted roots. None: the system's."""
    verify: bool = True
    """False accepts any certificate: only for tests."""
    cert_file: str | None = None
    """PEM file with our certificate and key, for `sasl: {mechanism: external}`."""


class SaslConfig(ConfigSection):
    """How to log in to the network's services. If it fails, the channel stops; it never goes on unauthenticated."""

    mechanism: Literal["plain", "external", "scram-sha-256"]
    """plain needs TLS, unless the host is loopback; external uses `tls.cert_file`; scram-sha-256 does not show the
    password to the server."""
    account: str = ""
    """Of the services. Not for external."""
    password: SecretStr | None = None
    """Of that account. Not for external."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.mechanism != "external" and not (self.account and self.password):
            raise ValueError(f"mechanism {self.mechanism} needs account and password")
        return self


class IrcRateLimit(ConfigSection):
    """Our pace towards the server (a token bucket)."""

    burst: int = Field(default=4, ge=1)
    """Lines that may go out at once after a silence."""
    per_s: float = Field(default=1.0, gt=0)
    """Lines per second after that."""


class IrcConfig(ConfigSection):
    """One account on one network."""

    platform: Literal["irc"] = "irc"
    host: str
    """Of the network, e.g. irc.libera.chat."""
    port: int = Field(default=6697, ge=1, le=65535)
    """6697 is for TLS, 6667 without."""
    tls: bool | TlsConfig = True
    """false: without, for servers on this machine."""
    nick: str
    """Where it is taken, another is chosen, and this one won back."""
    username: str | None = None
    """None: the nick."""
    realname: str | None = None
    """None: the contact."""
    password: SecretStr | None = None
    """Server password (PASS). Not the services password: that is `sasl`. Like `sasl` with plain, it needs TLS."""
    sasl: SaslConfig | None = None
    contact: str | None = None
    """Who runs this bot. Shown as the real name and in answer to CTCP VERSION."""
    rooms: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Joined after login. The only ones that are."""
    rejoin_after_kick: bool = False
    """False: thrown out of a room, we stay out until an administrator invites us or the process starts anew."""
    history_age: Duration = 3600.0
    """After a reconnect or a restart, what was said since then and is not older is asked for, where the server
    keeps a history. 0: nothing is."""
    source: str = "Reverie"
    """Where our source code is; the answer to CTCP SOURCE."""
    flood: IrcRateLimit = IrcRateLimit()
    page_lines: int = Field(default=12, ge=0)
    """Messages of a long answer that are shown at once; the rest after "more". 0: always all of it."""
    connect_timeout: Duration = 60.0
    """From the first packet to being welcomed."""
    ping_interval: Duration = Field(default=60.0, gt=0)
    """Silence after which we ask whether the server is there."""
    ping_timeout: Duration = Field(default=30.0, gt=0)
    """Silence after that until we reconnect."""

    @field_validator("nick")
    @classmethod
    def _nick(cls, nick: str) -> str:
        if not _NICK.fullmatch(nick):
            raise ValueError(f"{nick!r} is not a nick; use letters, digits, _ - [ ] {{ }} \\ | ^ `, no digit first")
        return nick

    @field_validator("host")
    @classmethod
    def _host(cls, host: str) -> str:
        try:
            if _HOST.fullmatch(host) and host.encode("idna"):
                return host
        except UnicodeError:
            pass
        raise ValueError(f"{host!r} is not the name of a host")

    @field_validator("username")
    @classmethod
    def _username(cls, username: str | None) -> str | None:
        if username is not None and not _USERNAME.fullmatch(username):
            raise ValueError(f"{username!r} is not a user name; use letters and digits")
        return username

    @field_validator("rooms")
    @classmethod
    def _rooms(cls, rooms: tuple[str, ...]) -> tuple[str, ...]:
        for room in rooms:
            if not _ROOM.fullmatch(room):
                raise ValueError(f'{room!r} is not an IRC channel; write it as "#name", in quotes')
        return rooms

    @model_validator(mode="after")
    def _no_password_in_the_clear(self) -> Self:
        plain = self.sasl is not None and self.sasl.mechanism == "plain"
        if self.tls is False and (plain or self.password) and not is_loopback(self.host):
            which = "sasl.password" if plain else "password"
            raise ValueError(
                f"{which} would be sent to {self.host} over plain text; write `tls: true` and the port for TLS "
                "(mostly 6697), use mechanism scram-sha-256, or reach the server through a tunnel on 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _reachable_operator(self) -> Self:
        if self.contact is None and not is_loopback(self.host):
            raise ValueError(
                "contact is missing: add who runs this bot and how to reach them, "
                'e.g. contact: "alice, alice@example.org" (only loopback servers may do without)'
            )
        return self


def is_loopback(host: str) -> bool:
    """Return whether traffic to `host` never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
