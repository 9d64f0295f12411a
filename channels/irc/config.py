"""Configuration of one IRC account, and its TLS."""

import hashlib
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from channels.base import ChannelConfig, Denied
from gateway.core.addresses import is_loopback_host
from gateway.core.fields import ConfigSection, LocalFile
from gateway.core.proxy import ProxySetting

_NICK = re.compile(r"[^\s:@!*?,.#&0-9\x00-\x20-][^\s@!*?,\x00-\x20]*")
_ROOM = re.compile(r"[#&+!][^\s,\x00-\x20]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[^\s:@!*?,\x00-\x20]+")
_COMMAND_LINE = re.compile(r"(?P<command>[A-Za-z]+|[0-9]{3})(?: [^\r\n\0]*)?")
_LOGIN_LINE = re.compile(r"\b(?:IDENTIFY|AUTH|LOGIN|REGAIN|GHOST|OPER)\b", re.IGNORECASE)
"""Words of services and servers that a password follows."""
_OWN_COMMANDS = frozenset({"AUTHENTICATE", "CAP", "JOIN", "NICK", "PART", "PASS", "QUIT", "USER"})
"""Commands that other keys of the configuration stand for."""
_MAX_CONNECT_LINES, _MAX_CONNECT_LINE_BYTES = 20, 400
_HOST = re.compile(r"[^\s\x00-\x20/@]+")
_NICK_ALONE = re.compile(r"[^#&!+][^!]*")
"""A room that is a nick and nothing else."""


def _matching(pattern: re.Pattern[str], problem: str) -> AfterValidator:
    """Return the check that a text has this form; `problem` says what it is not."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text!r} {problem}")
        return text

    return AfterValidator(check)


_RoomName = Annotated[
    str, _matching(_ROOM, 'is not an IRC channel; write it as "#name", in quotes')
]


class TlsConfig(ConfigSection):
    """Transport security in detail; `tls: true` means the defaults."""

    ca_file: LocalFile | None = None
    """PEM file of trusted roots. None: the system's."""
    verify: bool = True
    """False accepts any certificate: only for tests."""
    cert_file: LocalFile | None = None
    """PEM file with our certificate and key, for `sasl: {mechanism: external}`."""
    fingerprints: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """SHA-256 fingerprints of certificates, in hex, with or without colons: the server must show
    one of them, and may have signed it itself. Empty: the trusted roots decide."""

    @field_validator("fingerprints")
    @classmethod
    def _fingerprints(cls, fingerprints: tuple[str, ...]) -> tuple[str, ...]:
        plain = tuple(one.replace(":", "").lower() for one in fingerprints)
        for one in plain:
            if not _SHA256.fullmatch(one):
                raise ValueError(f"{one!r} is no SHA-256 fingerprint; it has 64 hexadecimal digits")
        return plain

    @model_validator(mode="after")
    def _one_way_to_trust(self) -> Self:
        if self.fingerprints and (self.ca_file or not self.verify):
            raise ValueError(
                "fingerprints are checked instead of roots: take ca_file and verify out"
            )
        return self


def check_fingerprint(config: bool | TlsConfig, certificate: bytes | None) -> None:
    """Raise ssl.SSLCertVerificationError if fingerprints are configured and `certificate` (DER) has
    none of them.
    """
    accepted = config.fingerprints if isinstance(config, TlsConfig) else ()
    shown = hashlib.sha256(certificate or b"").hexdigest()
    if accepted and shown not in accepted:
        message = f"it has the fingerprint {shown}, which is not in tls.fingerprints"
        error = ssl.SSLCertVerificationError(
            ssl.SSLErrorNumber.SSL_ERROR_SSL, f"certificate verify failed: {message}"
        )
        error.verify_code, error.verify_message = 0, message
        raise error


def create_ssl_context(config: bool | TlsConfig) -> ssl.SSLContext | None:
    """Return the context, None without TLS. Reads the configured files; raises Denied if one is
    unusable.

    With `tls.fingerprints` the context accepts any certificate: call `check_fingerprint` before
    anything is sent.
    """
    if config is False:
        return None
    tls = config if isinstance(config, TlsConfig) else TlsConfig()
    for path in filter(None, (tls.ca_file, tls.cert_file)):
        if Path(path).exists() and not Path(path).is_file():  # opening a pipe could block for ever
            raise Denied(f"cannot use the TLS files of the configuration: {path} is no plain file")
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file)
    except OSError as error:
        raise Denied(f"cannot use the TLS files of the configuration: {error}") from error
    if tls.fingerprints or not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class SaslConfig(ConfigSection):
    """Login to the network's services. If it fails, the channel stops; it never goes on
    unauthenticated.
    """

    mechanism: Literal["plain", "external", "scram-sha-256"]
    """plain needs TLS, unless the host is loopback; external uses `tls.cert_file`; scram-sha-256
    does not show the password to the server."""
    account: str = ""
    """Account at the services. Not for external."""
    password: SecretStr | None = None
    """Password of that account. Not for external."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.mechanism != "external" and not (self.account and self.password):
            raise ValueError(f"mechanism {self.mechanism} needs account and password")
        return self


class IrcRateLimit(ConfigSection):
    """Limit of the lines to the server (a token bucket)."""

    burst: int = Field(default=4, ge=1)
    """Lines that may be sent at once after a silence."""
    per_s: float = Field(default=1.0, gt=0)
    """Lines per second after that."""


class IrcConfig(ChannelConfig):
    """Account on a network."""

    sender_ids: ClassVar = r"(?:account|mask|relay|bridge):.+"
    sender_id_example: ClassVar = "account:someone"
    account_keys: ClassVar = ("nick", "host", "port")
    adapter_modules: ClassVar = ("channels.irc.channel", "channels.irc.connection")
    reads_history: ClassVar = True

    platform: Literal["irc"] = "irc"
    host: str
    """Host name of the network, e.g. irc.libera.chat."""
    port: int = Field(default=6697, ge=1, le=65535)
    """Port: 6697 with TLS, 6667 without."""
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment says
    (`ALL_PROXY`)."""
    tls: bool | TlsConfig = True
    """TLS. False: without, for servers on this machine."""
    nick: Annotated[
        str,
        _matching(
            _NICK, "is not a nick; use letters, digits, _ - [ ] { } \\ | ^ `, no digit first"
        ),
    ]
    """Nick of the bot. If somebody else has it, another one is used until it is free again."""
    password: SecretStr | None = None
    """Server password (PASS). Not the services password: that is `sasl`. Like `sasl` with plain, it
    needs TLS."""
    sasl: SaslConfig | None = None
    on_connect: Annotated[tuple[SecretStr, ...], Field(strict=False)] = ()
    """Lines that are sent as they are after the welcome, before the rooms are joined, e.g.
    `PRIVMSG NickServ :IDENTIFY account password` where there is no SASL. At most 20, each of at
    most 400 bytes. `{nick}` is our nick."""
    contact: str | None = None
    """Person who runs this bot, and how to reach them. Shown as the real name and in answer to CTCP
    VERSION."""
    rooms: Annotated[tuple[_RoomName, ...], Field(strict=False)] = ()
    """Rooms that the bot joins after login; it joins no others. A room with a key (`+k`) may be
    written `{name: "#a", key: b}`, which puts the key into `keys`."""
    keys: dict[_RoomName, SecretStr] = Field(default={})
    """Keys of rooms, by the room's name; also of rooms that are approved later."""
    bridges: Annotated[
        tuple[Annotated[str, _matching(_NAME, "is not an account or nick")], ...],
        Field(strict=False),
    ] = ()
    """Relay bots, by services account, or by nick on a network without accounts: whoever speaks
    through one (`<kai> mybot: hello`) is a guest by that name."""
    flood: IrcRateLimit = IrcRateLimit.model_construct()
    page_lines: int = Field(default=12, ge=0)
    """Messages of a long answer that are sent at once; a full line counts as three. The rest
    follows after "more". 0: always all of it."""

    @field_validator("host")
    @classmethod
    def _host(cls, host: str) -> str:
        try:
            if _HOST.fullmatch(host) and host.encode("idna"):
                return host
        except UnicodeError:
            pass
        raise ValueError(f"{host!r} is not the name of a host")

    @field_validator("on_connect")
    @classmethod
    def _on_connect(cls, lines: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        """Check the lines; errors quote none, for they may hold passwords."""
        if len(lines) > _MAX_CONNECT_LINES:
            raise ValueError(f"there may be {_MAX_CONNECT_LINES} lines")
        for number, line in enumerate(lines, 1):
            found = _COMMAND_LINE.fullmatch(line.get_secret_value())
            if found is None or len(line.get_secret_value().encode()) > _MAX_CONNECT_LINE_BYTES:
                raise ValueError(
                    f"line {number} cannot be sent: it is one command of IRC, without a slash in "
                    f"front, of at most {_MAX_CONNECT_LINE_BYTES} bytes"
                )
            if (command := found["command"].upper()) in _OWN_COMMANDS:
                raise ValueError(
                    f"line {number} is {command}, which the other keys of the channel are for"
                )
        return lines

    @model_validator(mode="before")
    @classmethod
    def _keys_of_rooms(cls, data: object) -> object:
        rooms = data.get("rooms") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(rooms, list | tuple):
            return data
        keyed = [room for room in rooms if isinstance(room, dict)]
        if any(room.keys() != {"name", "key"} for room in keyed):
            raise ValueError('a room with a key is written {name: "#name", key: "its key"}')
        keys = {str(room["name"]): room["key"] for room in keyed}
        names = [room["name"] if isinstance(room, dict) else room for room in rooms]
        given = data.get("keys") or {}
        return {**data, "rooms": names} | (
            {"keys": {**given, **keys}} if keys and isinstance(given, dict) else {}
        )

    @field_validator("keys")
    @classmethod
    def _keys(cls, keys: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for room, key in keys.items():
            if not re.fullmatch(r"[^\s,:\x00-\x20][^\s,\x00-\x20]*", key.get_secret_value()):
                raise ValueError(
                    f"the key of {room} cannot be sent: take out blanks, commas, and a colon in "
                    "front"
                )
        return keys

    @model_validator(mode="after")
    def _no_password_in_the_clear(self) -> Self:
        plain = self.sasl is not None and self.sasl.mechanism == "plain"
        logs_in = any(_LOGIN_LINE.search(line.get_secret_value()) for line in self.on_connect)
        is_told = plain or self.password or logs_in
        if self.tls is False and is_told and not is_loopback_host(self.host):
            which = "sasl.password" if plain else "password" if self.password else "on_connect"
            raise ValueError(
                f"{which} would be sent to {self.host} over plain text; write `tls: true` and the "
                "port for TLS (mostly 6697), use sasl with scram-sha-256, or reach the server "
                "through a tunnel on 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _reachable_operator(self) -> Self:
        if self.contact is None and not is_loopback_host(self.host):
            raise ValueError(
                "contact is missing: add who runs this bot and how to reach them, "
                'e.g. contact: "alice, alice@example.org" (only loopback servers may do without)'
            )
        return self

    def explain_unconnectable(self) -> str:
        try:
            create_ssl_context(self.tls)
        except Denied as error:
            return error.reason
        return ""

    def find_warnings(self) -> Iterator[tuple[tuple[str, ...], str]]:
        is_told = self.password or (self.sasl and self.sasl.password)
        if isinstance(self.tls, TlsConfig) and not self.tls.verify and is_told:
            yield (
                ("tls", "verify"),
                (
                    "anybody on the way can read the password; name the server's root certificate "
                    "in tls.ca_file"
                ),
            )

    def explain_unsafe_room(self, room: str) -> str:
        if not _NICK_ALONE.fullmatch(room):
            return ""
        return f"anybody can take that nick; write {room}!account:NAME instead"
