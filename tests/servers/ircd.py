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
(after recording, before relaying; once, unless `.drop_again`), `.hold_pongs` (until `release_pongs()`), `.hold_labels`,
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

from tests.servers.ircd_client import Client
from tests.servers.ircd_login import Door
from tests.servers.ircd_options import Faults, Options
from tests.servers.ircd_v3 import V3, labelled, read_tags


class Ircd:
    """The server. See the top of the file."""

    def __init__(self, options: Options | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.options, self.faults = options or Options(), Faults()
        self._tls = tls
        self.clients: list[Client] = []
        self.lines: list[str] = []
        self.rooms: dict[str, list[Client]] = {}
        self.topics: dict[str, str] = {}
        self.people: dict[str, tuple[str, str]] = {}
        """Folded nick -> mask and account, as they spoke last by `say`, and as WHOIS tells it."""
        self.said: dict[str, str] = {}
        """Message -> the nick of its author; without those that were taken back."""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._condition = asyncio.Condition()
        self._ids = itertools.count(1)
        self._door, self._v3 = Door(self), V3(self)

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

    async def until(self, true: Callable[[], bool], limit_s: float = 20.0) -> None:
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
        self.people[by.partition("!")[0].lower()] = by, tags.get("account", "")
        self.relay(target, f":{by} PRIVMSG {target} :{text}", tags)
        await self.changed()

    def relay(self, target: str, line: str, tags: Mapping[str, str], sender: Client | None = None) -> None:
        stamped = self.stamp(tags)
        self.said[stamped["msgid"]] = line[1:].partition("!")[0]
        there = self.rooms.get(target.lstrip("@+").lower())
        for client in there if there is not None else [c for c in self.here() if c.nick.lower() == target.lower()]:
            if client is not sender:
                client.send(line, stamped)
        if sender is not None and "echo-message" in sender.caps:
            sender.send(line, stamped)

    def stamp(self, tags: Mapping[str, str]) -> dict[str, str]:
        return {"msgid": f"m{next(self._ids)}", "time": _now(), **tags}

    def release_labels(self) -> None:
        """Send what `hold_labels` held back."""
        self.faults.hold_labels = False
        for client in self.clients:
            client.raw(b"".join(client.late))
            client.late.clear()

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
        tags, line = read_tags(line)
        if "label" in tags and "labeled-response" in client.caps and not line.startswith("BATCH"):
            client.captured = []
            self._answer(client, tags, line)
            answers, client.captured = client.captured, None
            answer = labelled(tags["label"], answers, f"l{next(self._ids)}")
            if self.faults.hold_labels:
                client.late.append(answer)
            else:
                client.raw(answer)
        else:
            self._answer(client, tags, line)

    def _answer(self, client: Client, tags: Mapping[str, str], line: str) -> None:
        head, colon, trailing = line.partition(" :")
        command, *params = head.split() or [""]
        params += [trailing] if colon else []
        params += [""] * (2 - len(params))
        if client.registered and self._v3.answer(client, tags, command.upper(), params):
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
                pong = f":irc.test PONG irc.test :{params[0] if self.options.pong_token else 'irc.test'}"
                if self.faults.hold_pongs:
                    client.held.append(pong)
                else:
                    client.send(pong)
            case "QUIT":
                client.send(f"ERROR :Closing link ({params[0]})")
            case "JOIN" | "PART" | "TOPIC" | "PRIVMSG" | "NOTICE" if client.registered:
                self._talk(client, command.upper(), params, {k: v for k, v in tags.items() if k.startswith("+")})
            case "MODE" if self.options.modes is not None and params[0].startswith("#"):
                modes = self.options.modes.get(params[0])
                client.numeric("324" if modes else "403", params[0], modes or ":No such channel")
            case "WHOIS" if self.options.whois != "421":
                self._whois(client, params[0])
            case "PONG":
                pass
            case _:
                client.numeric("421", command, ":Unknown command")

    def _whois(self, client: Client, nick: str) -> None:
        if self.options.whois:
            return
        found = next(((c.mask, c.account) for c in self.here() if c.nick.lower() == nick.lower()), None)
        mask, account = self.people.get(nick.lower()) or found or ("", "")
        if mask:
            name, _, userhost = mask.partition("!")
            client.numeric("311", name, *userhost.split("@"), "*", ":real")
            if account:
                client.numeric("330", name, account, ":is logged in as")
        else:
            client.numeric("401", nick, ":No such nick")
        client.numeric("318", nick, ":End of /WHOIS list")

    def _talk(self, client: Client, command: str, params: list[str], tags: Mapping[str, str]) -> None:
        tags = {**tags, "account": client.account} if client.account else tags
        for target in params[0].split(","):
            members = self.rooms.setdefault(target.lower(), []) if target.startswith("#") else []
            if command == "JOIN" and target in self.options.refused:
                client.numeric(self.options.refused[target], target, ":Cannot join channel")
            elif command == "JOIN" and (target in self.options.deaf or client in members):
                pass  # no server answers who is in already
            elif command == "JOIN":
                members.append(client)
                for member in members:
                    extended = f" {client.account or '*'} :real" if "extended-join" in member.caps else ""
                    stamped = {"time": _now()} if self.options.joins_timed else {}
                    member.send(f":{client.mask} JOIN {target}{extended}", stamped)
                client.numeric("353", "=", target, ":" + " ".join(member.nick for member in members))
                client.numeric("366", target, ":End of /NAMES list")
            elif target in self.options.muted or params[1] in self.options.muted_texts:
                client.numeric(self.options.muted.get(target, "404"), target, f":{self.options.muted_reason}")
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
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
