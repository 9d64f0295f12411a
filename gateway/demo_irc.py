"""The demo's own IRC network: a small loopback server, and the client behind the demo's keyboard."""

import asyncio
import logging
import select
import sys
import threading
from collections.abc import Callable

import irc.server

from channels.irc.wire import IrcLine, format_line, parse_line

logger = logging.getLogger("reverie.demo.irc")

RELAY_POLL_S = 0.02
"""How long a relayed line may wait in the server."""


class _DemoServerClient(irc.server.IRCClient):  # type: ignore[misc]  # the library ships no types
    """`irc.server`'s client, with what everyday clients (irssi, WeeChat) ask for when they connect and join."""

    def _handle_one(self) -> None:
        # The library polls for writability, which is always given: that would be a busy loop.
        while self.send_queue:
            self._send(self.send_queue.pop(0))
        readable, _, _ = select.select([self.request], [], [], RELAY_POLL_S)
        if readable:
            self._handle_incoming()

    def handle_cap(self, params: str) -> str | None:
        """No capabilities, said as https://ircv3.net/specs/extensions/capability-negotiation asks."""
        subcommand, _, asked = params.partition(" ")
        answer = {"LS": "LS :", "LIST": "LIST :", "REQ": f"NAK {asked}"}.get(subcommand.upper())
        return f":{self.server.servername} CAP {self.nick or '*'} {answer}" if answer else None

    def handle_join(self, params: str) -> None:
        """As the library does, but also for a name behind a colon."""
        super().handle_join(params.lstrip(":"))

    def handle_mode(self, params: str) -> str:
        """Rooms have no modes."""
        return f":{self.server.servername} 324 {self.nick} {params.split(' ', maxsplit=1)[0]} +"

    def handle_who(self, params: str) -> str:
        """The names that came with the join are all there is to know."""
        return f":{self.server.servername} 315 {self.nick} {params.split(' ', maxsplit=1)[0]} :End of WHO list"


class DemoIrcServer(irc.server.IRCServer):  # type: ignore[misc]  # the library ships no types
    """`irc.server` of the irc package, on loopback, in a thread. Any IRC client can join."""

    def __init__(self, port: int) -> None:
        """Listen on `port`, or on any free one if that is taken."""
        try:
            super().__init__(("127.0.0.1", port), _DemoServerClient)
        except OSError:
            super().__init__(("127.0.0.1", 0), _DemoServerClient)
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, name="irc server", daemon=True)

    def start(self) -> None:
        """Serve until `stop`."""
        logging.getLogger("irc.server").setLevel(logging.CRITICAL)  # it warns of every unknown command
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. Clients that are still there lose their connection with the process."""
        self.shutdown()
        self.server_close()

    def handle_error(self, _request: object, client_address: object) -> None:
        """A client sent what the library cannot read: that client alone is gone."""
        logger.debug("client %s broke off: %s", client_address, sys.exc_info()[1])


class DemoIrcClient:
    """An IRC client for one person in one room."""

    def __init__(self, nick: str, room: str, heard: Callable[[str, str], None]) -> None:
        """`heard(nick, text)` is called for every line that somebody else says in the room."""
        self.nick = nick
        self.room = room
        self._on_message = heard
        self._joined: dict[str, asyncio.Event] = {}
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, port: int) -> None:
        """Join and listen until cancelled or cut off."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        self._write(format_line("NICK", self.nick), format_line("USER", self.nick, "0", "*", trailing=self.nick))
        try:
            while raw := await reader.readline():
                if (received := parse_line(raw.decode("utf-8", "replace"))) is not None:
                    self._handle(received)
        finally:
            self._writer.close()

    async def wait_until_joined(self, nick: str) -> None:
        """Return once both this person and `nick` are in the room."""
        await self._joined_event(self.nick).wait()
        await self._joined_event(nick).wait()

    def say(self, text: str) -> None:
        """Say one line in the room."""
        self._write(format_line("PRIVMSG", self.room, trailing=text))

    def _joined_event(self, nick: str) -> asyncio.Event:
        return self._joined.setdefault(nick, asyncio.Event())

    def _write(self, *lines: str) -> None:
        assert self._writer is not None
        self._writer.write("".join(f"{item}\r\n" for item in lines).encode())

    def _handle(self, received: IrcLine) -> None:
        match received.command:
            case "001":
                self._write(format_line("JOIN", self.room))
            case "433":
                self.nick += "_"
                self._write(format_line("NICK", self.nick))
            case "PING":
                self._write(format_line("PONG", trailing=received.param(0)))
            case "JOIN" if received.param(0) == self.room:
                self._joined_event(received.source.nick).set()
            case "353":
                for nick in received.param(-1).split():
                    self._joined_event(nick.lstrip("@+")).set()
            case "PRIVMSG" if received.param(0) == self.room:
                self._on_message(received.source.nick, received.param(1))
            case _:
                pass
