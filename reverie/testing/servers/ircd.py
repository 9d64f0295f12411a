"""A small scripted IRC server on loopback, for tests and for the crash harness.

    async with Ircd() as ircd:                      # or: ircd = Ircd(); await ircd.start(); await ircd.stop()
        IrcConfig(host="127.0.0.1", port=ircd.port, tls=False, nick="reverie", rooms=("#room",))
        bot = await ircd.joined("reverie", "#room")  # -> Client, once it is in the room
        await ircd.say("#room", "reverie: hi", by="alice!a@host")
        reply = await ircd.received(r"PRIVMSG #room :(.*)")     # -> re.Match on a line from any client

It registers clients (with or without CAP and SASL), relays JOIN, PART, NICK, TOPIC, QUIT, PRIVMSG
and NOTICE between them as a real server does (cut to 512 bytes with the sender's mask), and answers
PING. Of younger IRCv3 it knows history, MONITOR and WHOX.

Options (`Options`): capabilities, SASL accounts, taken nicks, refused rooms and targets, ISUPPORT
tokens. With `Ircd(tls=server_context())` it speaks TLS, with certificates that are good for nothing
else. Records: `ircd.clients` (all there ever were, oldest first), `client.lines` (each line as
received, without CR LF), `client.wire` (the same as bytes, untouched), `ircd.lines` (those of all
clients in order of arrival). Faults, at any time: `ircd.faults.drop_on = r"PRIVMSG"` (after
recording, before relaying; once), `.hold_pongs` (until `release_pongs()`), `.silent` (read, record,
answer nothing); `client.raw(b"...")` sends any bytes, `client.drop()` resets.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import itertools
import re
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from reverie.testing.servers.ports import LoopbackServer

CERTIFIED = "certified"
CAPS = (
    "account-notify account-tag batch chghost echo-message extended-join message-tags multi-prefix "
    "server-time userhost-in-names"
)
MODERN = (
    f"{CAPS} draft/chathistory draft/event-playback draft/message-redaction extended-monitor "
    "standard-replies"
)
"""As a server offers them that knows all that we do."""


@dataclass
class Options:
    """How the server is."""

    caps: str | None = CAPS
    """What CAP LS offers; None: a server without CAP (421)."""
    cap_lines: int = 1
    """Over how many lines CAP LS is spread."""
    nak: frozenset[str] = frozenset()
    """Capabilities that are offered, but refused when asked for."""
    sasl: Mapping[str, str] = field(default_factory=dict)
    """Account -> password, for SASL. Who shows a client certificate is `CERTIFIED` in SASL
    EXTERNAL."""
    sasl_fails: str = ""
    """Numeric with which every SASL login is refused."""
    scram_proof: Literal["true", "false", "none", "error"] = "true"
    """Whether the server proves that it knows the password, too."""
    isupport: tuple[str, ...] = (
        "NETWORK=Fakenet",
        "CASEMAPPING=rfc1459",
        "CHANTYPES=#&",
        "STATUSMSG=@+",
        "PREFIX=(ov)@+",
    )
    taken: set[str] = field(default_factory=set)
    """Nicks that somebody else has."""
    reserved: set[str] = field(default_factory=set)
    """Nicks that the services hold (432)."""
    nick_length: int = 99
    """A longer nick is refused (432)."""
    modes: Mapping[str, str] | None = None
    """Room -> modes, as MODE tells them; others are not there (403). None: MODE is not known
    (421)."""
    bans: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Room -> masks that it bans."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Room -> numeric with which JOIN is refused."""
    muted: Mapping[str, str] = field(default_factory=dict)
    """Target -> numeric with which PRIVMSG is refused."""
    opless: frozenset[str] = frozenset()
    """Rooms whose topic only operators may set (482)."""
    voiceless: set[str] = field(default_factory=set)
    """User names of clients that may say nothing in rooms (404)."""
    muted_texts: frozenset[str] = frozenset()
    """Texts that are refused wherever they are said (404)."""
    deaf: frozenset[str] = frozenset()
    """Rooms whose JOIN is not answered."""
    host: str = "test.host"
    """What others see as every client's host."""
    greeting: bytes = b""
    """Said as soon as somebody connects."""
    banned: bool = False
    password: str | None = None
    motd: bool = True
    history: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    """What CHATHISTORY knows: room or nick, tags (`time`, `msgid`, ...), line; oldest first."""
    history_fails: str = ""
    """Code of the FAIL that answers every CHATHISTORY."""
    history_deaf: bool = False
    """CHATHISTORY is not answered."""
    accounts: Mapping[str, str] = field(default_factory=dict)
    """Nick -> account, for WHO with WHOX fields."""
    whois: Literal["", "421", "deaf"] = ""
    """How every WHOIS is refused; empty: it is answered."""
    pong_token: bool = True
    """False: PONG without the token, as jaraco's server does."""


@dataclass
class Faults:
    """What goes wrong; may be changed at any time."""

    drop_on: str | None = None
    hold_pongs: bool = False
    silent: bool = False
    flood_at: int | None = None
    """Message of a connection at which the server throws it off for flooding, with what it has not
    read yet."""
    flooder: str = ""
    """Nick that alone is thrown off; empty: anybody."""


LOCALHOST = Path(__file__).with_name("localhost.test-only.pem")
"""Certificate and key for localhost and 127.0.0.1; signed by itself, so it is also its own root."""
WRONG = Path(__file__).with_name("wrong.test-only.pem")
"""The same for a host that we never connect to."""


def server_context(pem: Path = LOCALHOST) -> ssl.SSLContext:
    """Shows `pem`; looks at a client certificate if there is one, and trusts only `LOCALHOST`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.load_verify_locations(LOCALHOST)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


CHUNK = 400
Exchange = Generator[bytes, bytes, str | None]
"""Yields challenges, is sent answers, returns the account or None."""


def plain(accounts: Mapping[str, str]) -> Exchange:
    answer = yield b""
    identity, account, password = answer.decode().split("\0")
    return (
        account
        if account and identity in {"", account} and accounts.get(account) == password
        else None
    )


def external(certified: str | None) -> Exchange:
    """`certified` is the account of the client certificate."""
    answer = yield b""
    return certified if answer.decode() in {"", certified} else None


def scram(accounts: Mapping[str, str], proof_of_ours: str = "true") -> Exchange:
    """RFC 5802, from the server's side, whose own proof is "true", "false", "none", or an "error"
    to say no.
    """
    first = (yield b"").decode().removeprefix("n,,")
    fields = dict(field.split("=", 1) for field in first.split(","))
    account, salt = fields["n"].replace("=2C", ",").replace("=3D", "="), b"salt"
    challenge = f"r={fields['r']}server,s={base64.b64encode(salt).decode()},i=4096"
    final = (yield challenge.encode()).decode()
    bare, _, proof = final.rpartition(",p=")
    salted = hashlib.pbkdf2_hmac(
        "sha256", accounts.get(account, "no such account").encode(), salt, 4096
    )
    whole = f"{first},{challenge},{bare}".encode()
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    signature = hmac.digest(stored, whole, "sha256")
    key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    if hashlib.sha256(key).digest() != stored:
        if proof_of_ours == "error":
            yield b"e=invalid-proof"
        return None
    if proof_of_ours == "error":
        yield b"e=other-error"  # and lets us in without a proof
    if proof_of_ours in {"none", "error"}:
        return account
    mine = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), whole, "sha256")
    yield b"v=" + base64.b64encode(b"x" * 32 if proof_of_ours == "false" else mine)
    return account


class Login:
    """One exchange over AUTHENTICATE; `say` sends a line, `done` is told the account or None."""

    def __init__(
        self, exchange: Exchange, say: Callable[[str], None], done: Callable[[str | None], None]
    ) -> None:
        self._exchange, self._say, self._done = exchange, say, done
        self._received = ""
        self._challenge(next(exchange))

    def _challenge(self, challenge: bytes) -> None:
        encoded = base64.b64encode(challenge).decode()
        for start in range(0, len(encoded) or 1, CHUNK):
            self._say(f"AUTHENTICATE {encoded[start : start + CHUNK] or '+'}")

    def feed(self, chunk: str) -> None:
        assert len(chunk) <= CHUNK
        self._received += "" if chunk == "+" else chunk
        if len(chunk) == CHUNK:
            return
        answer, self._received = base64.b64decode(self._received), ""
        try:
            self._challenge(self._exchange.send(answer))
        except StopIteration as finished:
            self._done(finished.value)


class V3:
    """Of one server."""

    def __init__(self, ircd: "Ircd") -> None:
        self._ircd = ircd
        self._numbers = itertools.count(1)

    def answer(self, client: "Client", command: str, params: list[str]) -> bool:
        """Deal with a line; False: it is not one of these."""
        if command == "CHATHISTORY":
            self._history(client, params)
        elif command == "MONITOR" and params[0] == "+":
            taken = params[1] in self._ircd.options.taken
            client.numeric("730" if taken else "731", f":{params[1]}")
        elif command == "MONITOR":
            pass
        elif command == "INVITE":
            shown = {"account": client.account} if client.account else {}
            for other in self._ircd.here():
                if other.nick.lower() == params[0].lower():
                    other.send(
                        f":{client.mask} INVITE {other.nick} {params[1]}", self._ircd.stamp(shown)
                    )
            client.numeric("341", *params[:2])
        elif command == "WHO":
            for nick, account in self._ircd.options.accounts.items():
                client.numeric(
                    "354",
                    params[1].partition(",")[2],
                    params[0],
                    "u",
                    "h",
                    nick,
                    "H",
                    account,
                    ":real",
                )
            client.numeric("315", params[0], ":End of WHO")
        else:
            return False
        return True

    def _history(self, client: "Client", params: list[str]) -> None:
        if self._ircd.options.history_deaf:
            return
        if self._ircd.options.history_fails:
            client.send(
                f"FAIL CHATHISTORY {self._ircd.options.history_fails} {' '.join(params[:2])} :no"
            )
            return
        name, limit = f"s{next(self._numbers)}", int(params[-1])
        if params[0] == "TARGETS":
            client.send(f":irc.test BATCH +{name} draft/chathistory-targets")
            for target in dict.fromkeys(
                t for t, _, _ in self._ircd.options.history if not t.startswith("#")
            ):
                client.send(
                    f"CHATHISTORY TARGETS {target} 2026-01-01T00:00:00.000Z", {"batch": name}
                )
        else:
            target, reference = params[1], params[2]
            said = [
                (tags, line)
                for place, tags, line in self._ircd.options.history
                if place.lower() == target.lower()
            ]
            kind, _, value = reference.partition("=")
            if kind == "timestamp":
                said = [(tags, line) for tags, line in said if tags["time"] > value]
            else:
                ids = [tags.get("msgid") for tags, _ in said]
                said = said[ids.index(value) + 1 :]
            client.send(f":irc.test BATCH +{name} chathistory {target}")
            for tags, line in said[:limit]:
                client.send(line, {"batch": name, **tags})
        client.send(f":irc.test BATCH -{name}")


class Client:
    """One connection to the server."""

    def __init__(
        self, ircd: "Ircd", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.ircd, self._reader, self._writer = ircd, reader, writer
        self.lines: list[str] = []
        self.wire = bytearray()
        self.nick = self.user = self.account = ""
        self.host = ircd.options.host
        self.login: Login | None = None
        self.caps: set[str] = set()
        self.negotiating = self.registered = self.closed = False
        self.password = ""
        self.held: list[str] = []
        self.lost = False
        """The network between has gone: nothing arrives, and neither side is told so."""

    @property
    def mask(self) -> str:
        return f"{self.nick}!{self.user}@{self.host}"

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        if not self._writer.is_closing() and not self.lost:
            self._writer.write(data)

    def send(self, line: str, tags: Mapping[str, str] | None = None) -> None:
        """Send a line, with those tags that the client asked for; cut to 512 bytes."""
        capability = {
            "time": "server-time",
            "account": "account-tag",
            "msgid": "message-tags",
            "batch": "batch",
        }
        told = {
            k: v for k, v in (tags or {}).items() if capability.get(k, "message-tags") in self.caps
        }
        head = "@" + ";".join(f"{k}={v}" if v else k for k, v in told.items()) + " " if told else ""
        self.raw(head.encode() + line.encode()[:510] + b"\r\n")

    def numeric(self, code: str, *params: str) -> None:
        self.send(f":irc.test {code} {self.nick or '*'} {' '.join(params)}")

    def drop(self) -> None:
        """Cut the connection, without a word."""
        self._writer.transport.abort()

    def lose(self) -> None:
        """Leave the connection half open: the server holds it for good until it drops it, and
        nothing gets through.
        """
        self.lost = True
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def drop_after_flush(self) -> None:
        """Close in order: what was sent still arrives."""
        self._writer.close()

    @property
    def certified(self) -> bool:
        """Whether there is a client certificate."""
        return bool(self._writer.get_extra_info("peercert"))

    async def serve(self) -> None:
        self.raw(self.ircd.options.greeting)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while data := await self._reader.readline():
                self.wire += data
                line = data.rstrip(b"\r\n").decode("utf-8", "replace")
                self.lines.append(line)
                self.ircd.lines.append(line)
                if self._fault(line):
                    self.drop()
                    break
                said = sum("PRIVMSG" in one for one in self.lines)
                if said == self.ircd.faults.flood_at and self.ircd.faults.flooder in (
                    "",
                    self.nick,
                ):
                    self.send("ERROR :Closing Link: 127.0.0.1 (Excess Flood)")
                    break
                if not self.ircd.faults.silent:
                    self.ircd.handle(self, line)
                await self.ircd.changed()
                if line.startswith("QUIT") and not self.ircd.faults.silent:
                    break
        self.closed = True
        self.ircd.gone(self)
        self._writer.close()
        await self.ircd.changed()

    def _fault(self, line: str) -> bool:
        faults = self.ircd.faults
        if faults.drop_on is not None and re.search(faults.drop_on, line):
            faults.drop_on = None
            return True
        return False


class Door:
    """Answers what a client says until it is welcomed, and its later NICKs."""

    def __init__(self, ircd: "Ircd") -> None:
        self._ircd = ircd

    def cap(self, client: Client, params: list[str]) -> None:
        if self._ircd.options.caps is None:
            client.send(":irc.test 421 CAP :Unknown command")
            return
        match params[0]:
            case "LS":
                client.negotiating = True
                names, lines = self._ircd.options.caps.split(), self._ircd.options.cap_lines
                size = -(-len(names) // lines) or 1
                chunks = [names[i : i + size] for i in range(0, len(names), size)] or [[]]
                for chunk in chunks:
                    star = "" if chunk is chunks[-1] else "* "
                    client.send(f":irc.test CAP * LS {star}:{' '.join(chunk)}")
            case "REQ":
                self._request(client, params[1].split())
            case "END":
                client.negotiating = False
                self.register(client)
            case _:
                pass

    def _request(self, client: Client, names: list[str]) -> None:
        options = self._ircd.options
        offered = {name.partition("=")[0] for name in (options.caps or "").split()} - options.nak
        if offered.issuperset(names):
            client.caps |= set(names)
            client.send(f":irc.test CAP * ACK :{' '.join(names)}")
            return
        client.send(f":irc.test CAP * NAK :{' '.join(names)}")

    def authenticate(self, client: Client, payload: str) -> None:
        proof = self._ircd.options.scram_proof
        exchanges = {
            "PLAIN": lambda: plain(self._ircd.options.sasl),
            "EXTERNAL": lambda: external(CERTIFIED if client.certified else None),
            "SCRAM-SHA-256": lambda: scram(self._ircd.options.sasl, proof),
        }
        if payload == "*":
            client.login = None
            client.numeric("906", ":SASL authentication aborted")
        elif self._ircd.options.sasl_fails:
            client.numeric(
                self._ircd.options.sasl_fails,
                *(["PLAIN"] if self._ircd.options.sasl_fails == "908" else []),
                ":no SASL",
            )
        elif client.login is not None:
            client.login.feed(payload)
        elif payload in exchanges:
            client.login = Login(
                exchanges[payload](), client.send, lambda account: self._logged_in(client, account)
            )
        else:
            client.numeric("904", ":SASL authentication failed")

    def _logged_in(self, client: Client, account: str | None) -> None:
        client.login = None
        client.account = account or ""
        if account:
            client.numeric("900", "*", account, ":You are now logged in")
            client.numeric("903", ":SASL authentication successful")
        else:
            client.numeric("904", ":SASL authentication failed")

    def nick(self, client: Client, nick: str) -> None:
        if len(nick) > self._ircd.options.nick_length or nick in self._ircd.options.reserved:
            client.numeric("432", nick, ":Erroneous nickname")
            return
        if nick in self._ircd.options.taken or any(
            c.nick == nick for c in self._ircd.here() if c is not client
        ):
            client.numeric("433", nick, ":Nickname is already in use")
            return
        if client.registered:
            told = {client} | {
                other
                for members in self._ircd.rooms.values()
                if client in members
                for other in members
            }
            for other in told:
                other.send(f":{client.mask} NICK {nick}")
        client.nick = nick
        self.register(client)

    def register(self, client: Client) -> None:
        if client.registered or client.negotiating or not (client.nick and client.user):
            return
        if (
            self._ircd.options.password is not None
            and client.password != self._ircd.options.password
        ):
            client.numeric("464", ":Password incorrect")
            client.send("ERROR :Bad password")
            return
        if self._ircd.options.banned:
            client.numeric("465", ":You are banned")
            client.send("ERROR :Closing link")
            return
        client.registered = True
        client.numeric("001", f":Welcome {client.mask}")
        client.numeric("005", *self._ircd.options.isupport, ":are supported")
        if self._ircd.options.motd:
            client.numeric("422", ":no MOTD")


class Ircd(LoopbackServer):
    """The server. See the top of the file."""

    def __init__(self, options: Options | None = None, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        self.options, self.faults = options or Options(), Faults()
        self.clients: list[Client] = []
        self.lines: list[str] = []
        self.rooms: dict[str, list[Client]] = {}
        self.topics: dict[str, str] = {}
        self.people: dict[str, tuple[str, str]] = {}
        """Folded nick -> mask and account, as they spoke last by `say`, and as WHOIS tells it."""
        self._ids = itertools.count(1)
        self._door, self._v3 = Door(self), V3(self)

    async def stop(self) -> None:
        """Drop everybody and stop listening."""
        for client in self.clients:
            if not client.closed:
                client.drop()
        await super().stop()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.append(Client(self, reader, writer))
        await self.clients[-1].serve()

    def story(self) -> list[str]:
        return self.lines

    async def received(self, pattern: str, times: int = 1) -> re.Match[str]:
        """The `times`-th line from any client that matches `pattern` (from its start)."""

        def found() -> list[re.Match[str]]:
            return [match for line in list(self.lines) if (match := re.match(pattern, line))]

        await self.until(lambda: len(found()) >= times)
        return found()[times - 1]

    async def joined(self, nick: str, room: str) -> Client:
        """The client called `nick`, once it is in `room`."""

        def here() -> list[Client]:
            return [client for client in self.rooms.get(room.lower(), []) if client.nick == nick]

        await self.until(lambda: bool(here()))
        return here()[0]

    async def say(self, target: str, text: str, by: str = "alice!a@host", **tags: str) -> None:
        """Somebody who is not connected says something, to a room's members or to the client of
        that nick.
        """
        self.people[by.partition("!")[0].lower()] = by, tags.get("account", "")
        self.relay(target, f":{by} PRIVMSG {target} :{text}", tags)
        await self.changed()

    def relay(
        self, target: str, line: str, tags: Mapping[str, str], sender: Client | None = None
    ) -> None:
        stamped = self.stamp(tags)
        there = self.rooms.get(target.lstrip("@+").lower())
        for client in (
            there
            if there is not None
            else [c for c in self.here() if c.nick.lower() == target.lower()]
        ):
            if client is not sender:
                client.send(line, stamped)
        if sender is not None and "echo-message" in sender.caps:
            sender.send(line, stamped)

    def stamp(self, tags: Mapping[str, str]) -> dict[str, str]:
        return {"msgid": f"m{next(self._ids)}", "time": _now(), **tags}

    def release_pongs(self) -> None:
        """Send what `hold_pongs` held back."""
        self.faults.hold_pongs = False
        for client in self.clients:
            for line in client.held:
                client.send(line)
            client.held.clear()

    def here(self) -> Iterable[Client]:
        return (client for client in self.clients if client.registered and not client.closed)

    def gone(self, client: Client) -> None:
        for members in self.rooms.values():
            if client in members:
                members.remove(client)
                for other in members:
                    other.send(f":{client.mask} QUIT :gone")

    def handle(self, client: Client, line: str) -> None:
        """Answer one line."""
        head, colon, trailing = line.partition(" :")
        command, *params = head.split() or [""]
        params += [trailing] if colon else []
        params += [""] * (2 - len(params))
        if client.registered and self._v3.answer(client, command.upper(), params):
            return
        match command.upper():
            case "CAP":
                self._door.cap(client, params)
            case "AUTHENTICATE":
                self._door.authenticate(client, params[0])
            case "PASS":
                client.password = params[0]
            case "NICK":
                self._door.nick(client, params[0])
            case "USER":
                client.user = params[0]
                self._door.register(client)
            case "PING":
                pong = (
                    ":irc.test PONG irc.test "
                    f":{params[0] if self.options.pong_token else 'irc.test'}"
                )
                if self.faults.hold_pongs:
                    client.held.append(pong)
                else:
                    client.send(pong)
            case "QUIT":
                client.send(f"ERROR :Closing link ({params[0]})")
            case "JOIN" | "PART" | "TOPIC" | "PRIVMSG" | "NOTICE" if client.registered:
                self._talk(client, command.upper(), params)
            case "MODE" if self.options.modes is not None and params[0].startswith("#"):
                modes = self.options.modes.get(params[0])
                if modes and params[1:] == ["b"]:
                    for mask in self.options.bans.get(params[0], ()):
                        client.numeric("367", params[0], mask)
                    client.numeric("368", params[0], ":End of channel ban list")
                else:
                    told = (params[0], modes or ":No such channel")
                    client.numeric("324" if modes else "403", *told)
            case "USERHOST":
                client.numeric("302", f":{client.nick}=+{client.mask.partition('!')[2]}")
            case "WHOIS" if self.options.whois != "421":
                self._whois(client, params[0])
            case "PONG":
                pass
            case _:
                client.numeric("421", command, ":Unknown command")

    def _whois(self, client: Client, nick: str) -> None:
        if self.options.whois:
            return
        found = next(
            ((c.mask, c.account) for c in self.here() if c.nick.lower() == nick.lower()), None
        )
        mask, account = self.people.get(nick.lower()) or found or ("", "")
        if mask:
            name, _, userhost = mask.partition("!")
            client.numeric("311", name, *userhost.split("@"), "*", ":real")
            if account:
                client.numeric("330", name, account, ":is logged in as")
        else:
            client.numeric("401", nick, ":No such nick")
        client.numeric("318", nick, ":End of /WHOIS list")

    def _talk(self, client: Client, command: str, params: list[str]) -> None:
        tags = {"account": client.account} if client.account else {}
        for target in params[0].split(","):
            members = self.rooms.setdefault(target.lower(), []) if target.startswith("#") else []
            if command == "JOIN" and target in self.options.refused:
                client.numeric(self.options.refused[target], target, ":Cannot join channel")
            elif command == "JOIN" and (target in self.options.deaf or client in members):
                pass  # no server answers who is in already
            elif command == "JOIN":
                members.append(client)
                for member in members:
                    extended = (
                        f" {client.account or '*'} :real" if "extended-join" in member.caps else ""
                    )
                    member.send(f":{client.mask} JOIN {target}{extended}", {"time": _now()})
                client.numeric(
                    "353", "=", target, ":" + " ".join(member.nick for member in members)
                )
                client.numeric("366", target, ":End of /NAMES list")
            elif (
                target in self.options.muted
                or params[1] in self.options.muted_texts
                or (target.startswith("#") and client.user in self.options.voiceless)
            ):
                client.numeric(self.options.muted.get(target, "404"), target, ":Cannot send")
            elif target.startswith("#") and client not in members:
                client.numeric("442", target, ":You're not on that channel")
            elif not target.lstrip("@+").startswith("#") and not (
                self.people.get(target) or any(c.nick == target for c in self.here())
            ):
                client.numeric("401", target, ":No such nick")
            elif command in {"PRIVMSG", "NOTICE"}:
                self.relay(target, f":{client.mask} {command} {target} :{params[1]}", tags, client)
            elif command == "TOPIC" and target in self.options.opless:
                client.numeric("482", target, ":You're not channel operator")
            else:
                if command == "TOPIC":
                    self.topics[target] = params[1]
                for member in members:
                    member.send(f":{client.mask} {command} {target} :{params[1]}")
                if command == "PART":
                    members.remove(client)


def _now() -> str:
    return (
        datetime.fromtimestamp(time.time(), UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
