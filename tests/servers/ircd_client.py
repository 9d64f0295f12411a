"""A connection to the scripted IRC server, as the server sees it."""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.servers.ircd_sasl import Login

if TYPE_CHECKING:
    from tests.servers.ircd import Ircd


class Client:
    """One connection to the server."""

    def __init__(self, ircd: "Ircd", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        self.late: list[bytes] = []
        self.captured: list[bytes] | None = None
        """While a labelled command is dealt with: the answers to it."""

    @property
    def mask(self) -> str:
        return f"{self.nick}!{self.user}@{self.host}"

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self.captured is not None:
            self.captured.append(data)
        elif not self._writer.is_closing():
            self._writer.write(data)

    def send(self, line: str, tags: Mapping[str, str] | None = None) -> None:
        """Send a line, with those tags that the client asked for; cut to 512 bytes."""
        capability = {
            "time": "server-time",
            "account": "account-tag",
            "msgid": "message-tags",
            "batch": "batch",
            "label": "labeled-response",
        }
        told = {k: v for k, v in (tags or {}).items() if capability.get(k, "message-tags") in self.caps}
        head = "@" + ";".join(f"{k}={v}" if v else k for k, v in told.items()) + " " if told else ""
        self.raw(head.encode() + line.encode()[:510] + b"\r\n")

    def numeric(self, code: str, *params: str) -> None:
        self.send(f":irc.test {code} {self.nick or '*'} {' '.join(params)}")

    def drop(self) -> None:
        """Cut the connection, without a word."""
        self._writer.transport.abort()

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
            faults.drop_on = faults.drop_on if faults.drop_again else None
            return True
        return faults.drop_after is not None and len(self.lines) >= faults.drop_after
