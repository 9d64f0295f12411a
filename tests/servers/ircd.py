"""A small scripted IRC server on loopback, for tests and for the crash harness.

    async with Ircd() as ircd:                      # or: ircd = Ircd(); await ircd.start(); await ircd.stop()
        IrcConfig(host="127.0.0.1", port=ircd.port, tls=False, nick="reverie", rooms=("#room",))
        bot = await ircd.joined("reverie", "#room")  # -> Client, once it is in the room
        await ircd.say("#room", "reverie: hi", by="alice!a@host")
        reply = await ircd.received(r"PRIVMSG #room :(.*)")     # -> re.Match on a line from any client

It registers clients (with or without CAP and SASL), relays JOIN, PART, NICK, TOPIC, QUIT, PRIVMSG and
NOTICE between them as a real server does (cut to 512 bytes with the sender's mask), and answers PING.

Options (`Options`): capabilities, SASL accounts, taken nicks, refused rooms and targets, ISUPPORT tokens.
With `Ircd(tls=context)` it speaks TLS.
Records: `ircd.clients` (all there ever were, oldest first), `client.lines` (each line as received, without
CR LF), `client.wire` (the same as bytes, untouched), `ircd.lines` (those of all clients in order of arrival).
Faults, at any time: `ircd.faults.drop_after = 12` (that many lines of a connection), `.drop_on = r"PRIVMSG"`
(after recording, before relaying; once, unless `.drop_again`), `.hold_pongs` (until `release_pongs()`),
`.silent` (read, record, answer nothing); `client.raw(b"...")` sends any bytes, `client.drop()` resets.
"""

import asyncio
import itertools
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from tests.servers import ircd_sasl
from tests.servers.ircd_client import Client
from tests.servers.ircd_options import CAPS, CERTIFIED, Faults, Options
from tests.servers.ircd_sasl import Login

__all__ = ["CAPS", "Client", "Faults", "Ircd", "Options"]


class Ircd:
    """The server. See the top of the file."""

    def __init__(self, options: Options | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.options, self.faults = options or Options(), Faults()
        self._tls = tls
        self.clients: list[Client] = []
        self.lines: list[str] = []
        self.rooms: dict[str, list[Client]] = {}
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._condition = asyncio.Condition()
        self._ids = itertools.count(1)

    async def start(self, port: int = 0) -> None:
        """Listen; `port` 0 picks a free one. After `stop` the same port can be taken again."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", port or self.port, limit=2**20, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Drop everybody and stop listening."""
        assert self._server is not None
        self._server.close()
        for client in self.clients:
            if not client.closed:
                client.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(self, reader, writer)
        self.clients.append(client)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await client.serve()
        self._tasks.discard(task)

    async def changed(self) -> None:
        async with self._condition:
            self._condition.notify_all()

    async def until(self, true: Callable[[], bool], limit_s: float = 10.0) -> None:
        """Wait for something to be so; checked after every line and loss. Raises TimeoutError."""

        async def wait() -> None:
            async with self._condition:
                await self._condition.wait_for(true)

        try:
            await asyncio.wait_for(wait(), limit_s)
        except TimeoutError:
            raise TimeoutError("the wire so far:\n" + "\n".join(self.lines[-40:])) from None

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
        """Somebody who is not connected says something, to a room's members or to the client of that nick."""
        self.relay(target, f":{by} PRIVMSG {target} :{text}", tags)
        await self.changed()

    def relay(self, target: str, line: str, tags: Mapping[str, str], sender: Client | None = None) -> None:
        stamped = {"msgid": f"m{next(self._ids)}", "time": _now(), **tags}
        there = self.rooms.get(target.lstrip("@+").lower())
        for client in there if there is not None else [c for c in self._here() if c.nick.lower() == target.lower()]:
            if client is not sender:
                client.send(line, stamped)
        if sender is not None and "echo-message" in sender.caps:
            sender.send(line, stamped)

    def release_pongs(self) -> None:
        """Send what `hold_pongs` held back."""
        self.faults.hold_pongs = False
        for client in self.clients:
            for line in client.held:
                client.send(line)
            client.held.clear()

    def _here(self) -> Iterable[Client]:
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
        match command.upper():
            case "CAP":
                self._cap(client, params)
            case "AUTHENTICATE":
                self._authenticate(client, params[0])
            case "PASS":
                client.password = params[0]
            case "NICK":
                self._nick(client, params[0])
            case "USER":
                client.user = params[0]
                self._register(client)
            case "PING":
                pong = f":irc.test PONG irc.test :{params[0] if self.options.pong_token else 'irc.test'}"
                if self.faults.hold_pongs:
                    client.held.append(pong)
                else:
                    client.send(pong)
            case "QUIT":
                client.send(f"ERROR :Closing link ({params[0]})")
            case "JOIN" | "PART" | "TOPIC" | "PRIVMSG" | "NOTICE" if client.registered:
                self._talk(client, command.upper(), params)
            case "PONG":
                pass
            case _:
                client.numeric("421", command, ":Unknown command")

    def _cap(self, client: Client, params: list[str]) -> None:
        if self.options.caps is None:
            client.send(":irc.test 421 CAP :Unknown command")
            return
        match params[0]:
            case "LS":
                client.negotiating = True
                names, lines = self.options.caps.split(), self.options.cap_lines
                size = -(-len(names) // lines) or 1
                chunks = [names[i : i + size] for i in range(0, len(names), size)] or [[]]
                for chunk in chunks:
                    star = "" if chunk is chunks[-1] else "* "
                    client.send(f":irc.test CAP * LS {star}:{' '.join(chunk)}")
            case "REQ":
                offered = {name.partition("=")[0] for name in self.options.caps.split()} - self.options.nak
                ok = set(params[1].split()) <= offered
                client.caps |= set(params[1].split()) if ok else set()
                client.send(f":irc.test CAP * {'ACK' if ok else 'NAK'} :{params[1]}")
            case "END":
                client.negotiating = False
                self._register(client)
            case _:
                pass

    def _authenticate(self, client: Client, payload: str) -> None:
        proof = self.options.scram_proof
        exchanges = {
            "PLAIN": lambda: ircd_sasl.plain(self.options.sasl),
            "EXTERNAL": lambda: ircd_sasl.external(CERTIFIED if client.certified else None),
            "SCRAM-SHA-256": lambda: ircd_sasl.scram(self.options.sasl, lies=proof == "false", silent=proof == "none"),
        }
        if payload == "*":
            client.login = None
            client.numeric("906", ":SASL authentication aborted")
        elif self.options.sasl_fails:
            client.numeric(
                self.options.sasl_fails, *(["PLAIN"] if self.options.sasl_fails == "908" else []), ":no SASL"
            )
        elif client.login is not None:
            client.login.feed(payload)
        elif payload in exchanges:
            client.login = Login(exchanges[payload](), client.send, lambda account: self._logged_in(client, account))
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

    def _nick(self, client: Client, nick: str) -> None:
        if nick in self.options.taken or any(c.nick == nick for c in self._here() if c is not client):
            client.numeric("433", nick, ":Nickname is already in use")
            return
        if client.registered:
            told = {client} | {other for members in self.rooms.values() if client in members for other in members}
            for other in told:
                other.send(f":{client.mask} NICK {nick}")
        client.nick = nick
        self._register(client)

    def _register(self, client: Client) -> None:
        if client.registered or client.negotiating or not (client.nick and client.user):
            return
        if self.options.password is not None and client.password != self.options.password:
            client.numeric("464", ":Password incorrect")
            client.send("ERROR :Bad password")
            return
        if self.options.banned:
            client.numeric("465", ":You are banned")
            client.send("ERROR :Closing link")
            return
        client.registered = True
        client.numeric("001", f":Welcome {client.mask}")
        client.numeric("005", *self.options.isupport, ":are supported")
        if self.options.motd:
            client.numeric("422", ":no MOTD")

    def _talk(self, client: Client, command: str, params: list[str]) -> None:
        tags = {"account": client.account} if client.account else {}
        for target in params[0].split(","):
            members = self.rooms.setdefault(target.lower(), []) if target.startswith("#") else []
            if command == "JOIN" and target in self.options.refused:
                client.numeric(self.options.refused[target], target, ":Cannot join channel")
            elif command == "JOIN" and target in self.options.deaf:
                pass
            elif command == "JOIN":
                members.append(client)
                for member in members:
                    extended = f" {client.account or '*'} :real" if "extended-join" in member.caps else ""
                    member.send(f":{client.mask} JOIN {target}{extended}")
                client.numeric("353", "=", target, ":" + " ".join(member.nick for member in members))
                client.numeric("366", target, ":End of /NAMES list")
            elif target in self.options.muted or params[1] in self.options.muted_texts:
                client.numeric(self.options.muted.get(target, "404"), target, ":Cannot send")
            elif target.startswith("#") and client not in members:
                client.numeric("442", target, ":You're not on that channel")
            elif not target.startswith("#") and not any(c.nick == target for c in self._here()):
                client.numeric("401", target, ":No such nick")
            elif command in {"PRIVMSG", "NOTICE"}:
                self.relay(target, f":{client.mask} {command} {target} :{params[1]}", tags, client)
            else:
                for member in members:
                    member.send(f":{client.mask} {command} {target} :{params[1]}")
                if command == "PART":
                    members.remove(client)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
