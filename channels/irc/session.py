"""One connection's life: log in, join, follow what the server says. Sync; `channel` waits for it."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable

from channels.base import Denied, Unreachable
from channels.irc.config import IrcConfig
from channels.irc.inbound import View, ctcp, to_notifications
from channels.irc.outgoing import Bucket, Outgoing
from channels.irc.people import People
from channels.irc.registration import Registration
from channels.irc.wire import Isupport, Line, line, parse
from gateway.clock import Clock
from gateway.events import ChannelName, Notification
from gateway.ids import new_id

_LOG = logging.getLogger("reverie.irc")
_ROOMS_PER_JOIN = 10
_CTCP_BURST, _CTCP_PER_S = 3, 0.05
_LONGEST_CTCP = 100
_HOST_BYTES = 63
"""The longest host name that servers show; sopel counts the same."""
# fmt: off
_JOIN_REFUSED = frozenset({
    "403", "405", "407", "437", "470", "471", "473", "474", "475", "476", "477", "479", "480",
    "485", "489", "495", "500", "520", "524", "926",
})
# fmt: on


class Session:
    """Fed with lines by the connection; tells through its events."""

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        clock: Clock,
        write: Callable[[str], bool],
        put: Callable[[Notification], None],
        *,
        logged_in_before: bool = False,
    ) -> None:
        """`logged_in_before`: the same configuration was already accepted by the network's services."""
        self._name, self._config, self._clock, self._write, self._put = name, config, clock, write, put
        self._registration = Registration(config, secrets.token_urlsafe(18), logged_in_before=logged_in_before)
        self._userhost = ""
        self._people = People()
        self._quiet: set[str] = set()
        """Open netjoin and netsplit batches."""
        self._pending: set[str] = set()
        self._ctcp = Bucket(_CTCP_BURST, _CTCP_PER_S, clock.monotonic())
        self.isupport = Isupport()
        self.nick = config.nick
        self.heard_s = clock.monotonic()
        self.outgoing = Outgoing(clock, Bucket(config.flood.burst, config.flood.per_s, self.heard_s), write)
        self.ready = asyncio.Event()
        """Welcomed, and the server has said all it says on its own (end of MOTD)."""
        self.welcomed = asyncio.Event()
        self.joined = asyncio.Event()
        """Every room is joined or refused."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection ended; Denied if there is no use in another."""

    def start(self) -> None:
        """Say the first lines."""
        for raw in self._registration.start():
            self._write(raw)

    @property
    def logged_in(self) -> bool:
        """SASL was configured and succeeded."""
        return self._registration.logged_in

    def fresh_id(self) -> str:
        """A new name for something that the server did not name."""
        return new_id(self._clock.now())

    def end(self, reason: str) -> None:
        """The connection is lost, or shall be held to be."""
        self.outgoing.close(reason)
        if not self.lost.done():
            self.lost.set_result(reason)

    def on_line(self, raw: str) -> None:
        """Handle one line. May raise on what nobody thought of: the connection logs that and goes on."""
        self.heard_s = self._clock.monotonic()
        said = parse(raw)
        if said is None or self.lost.done():
            return
        try:
            for answer in self._registration.feed(said):
                self._write(answer)
        except Denied as denied:
            self.outgoing.close(denied.reason)
            self.lost.set_exception(denied)
            return
        except Unreachable as unreachable:
            self.end(unreachable.reason)
            return
        if said.command == "PING":
            self._write(line("PONG", trailing=said.param(-1)))
        elif said.command == "ERROR":
            _LOG.warning("%s: the server says: %s", self._name, said.param(-1)[:300])
        elif said.command == "001" and not self.welcomed.is_set():
            self.nick = self._registration.nick
            self.welcomed.set()
        if self.welcomed.is_set():
            self._follow(said)

    def _follow(self, said: Line) -> None:
        """What a logged-in client must know and tell."""
        self.outgoing.feed(said, self.nick, self.isupport)
        if said.command == "JOIN":
            self._people.feed(said, self.nick, self.isupport)
        self._tell(said)
        if said.command != "JOIN":
            self._people.feed(said, self.nick, self.isupport)
        self._learn_mask(said)
        match said.command:
            case "005":
                self.isupport = self.isupport.updated(said.params[1:])
            case "376" | "422":
                self.ready.set()
            case "BATCH":
                self._batch(said)
            case "PRIVMSG":
                self._answer_ctcp(said)
            case "NICK" | "QUIT":
                self._nick_freed(said)
            case "KICK" if self._is_me(said.param(1)):
                _LOG.warning("%s: kicked from %s by %s", self._name, said.param(0)[:100], said.source.nick)
            case _:
                pass
        self._join_settled(said)

    def _is_me(self, nick: str) -> bool:
        return self.isupport.fold(nick) == self.isupport.fold(self.nick)

    def _tell(self, said: Line) -> None:
        if said.tags.get("batch") in self._quiet:
            return
        view = View(
            channel=self._name,
            me=self.nick,
            rooms={self.isupport.fold(room): room for room in self._config.rooms},
            isupport=self.isupport,
            people=self._people,
            account_tag="account-tag" in self._registration.caps,
        )
        for notification in to_notifications(said, view, self._clock.now(), self.fresh_id):
            self._put(notification)

    def _batch(self, said: Line) -> None:
        reference = said.param(0)
        if reference.startswith("+") and said.param(1).lower() in {"netjoin", "netsplit"}:
            self._quiet.add(reference[1:])
        elif reference.startswith("-"):
            self._quiet.discard(reference[1:])

    def _learn_mask(self, said: Line) -> None:
        if said.command == "396":  # RPL_VISIBLEHOST: the host, on some servers user@host
            shown = said.param(1)
            self._userhost = shown if "@" in shown else self._userhost.partition("@")[0] + "@" + shown
            return
        if not self._is_me(said.source.nick):
            return
        if said.command == "CHGHOST":
            self._userhost = f"{said.param(0)}@{said.param(1)}"
        elif said.source.user and said.source.host:
            self._userhost = f"{said.source.user}@{said.source.host}"
        if said.command == "NICK" and said.param(0):
            _LOG.info("%s: we are %s now", self._name, said.param(0)[:100])
            self.nick = said.param(0)

    def body_bytes(self, target: str) -> int:
        """How much text fits a message to `target` once the server has put our mask in front.

        RFC 1459 section 2.3 counts the line as the receiver gets it. While the mask is unknown, the
        longest that it can be.
        """
        nick = max(len(self.nick.encode()), len(self._config.nick.encode()))
        user, at, host = self._userhost.partition("@")
        known = len(self._userhost.encode()) if user and at and host else 0
        userhost = known or 1 + self.isupport.user_bytes + 1 + _HOST_BYTES
        frame = len(":! PRIVMSG  :\r\n") + nick + userhost + len(target.encode())
        return max(self.isupport.line_bytes - frame, 64)

    def mark_as_bot(self) -> None:
        """Tell the server what we are, if it has a mode for that: https://ircv3.net/specs/extensions/bot-mode."""
        if self.isupport.bot_mode:
            self.outgoing.say(line("MODE", self.nick, f"+{self.isupport.bot_mode}"))

    def join(self, rooms: Iterable[str]) -> None:
        """Ask to be let in; `joined` is set when all is answered."""
        wanted = list(dict.fromkeys(rooms))
        self._pending = {self.isupport.fold(room) for room in wanted}
        for start in range(0, len(wanted), _ROOMS_PER_JOIN):
            self.outgoing.say(line("JOIN", ",".join(wanted[start : start + _ROOMS_PER_JOIN])))
        if not wanted:
            self.joined.set()

    def _join_settled(self, said: Line) -> None:
        if not self._pending:
            return
        if said.command == "JOIN" and self._is_me(said.source.nick):
            self._pending.discard(self.isupport.fold(said.param(0)))
        elif said.command in _JOIN_REFUSED:
            for room in self._pending & {self.isupport.fold(param) for param in said.params}:
                _LOG.error("%s: cannot join %s: %s (%s)", self._name, room, said.param(-1)[:300], said.command)
                self._pending.discard(room)
        if not self._pending:
            self.joined.set()

    def _nick_freed(self, said: Line) -> None:
        if self.isupport.fold(said.source.nick) == self.isupport.fold(self._config.nick):
            self.regain_nick()

    def regain_nick(self) -> None:
        """Ask for the configured nick if we have another."""
        if not self._is_me(self._config.nick):
            self.outgoing.say(line("NICK", self._config.nick))

    def _answer_ctcp(self, said: Line) -> None:
        request = ctcp(said.param(1))
        if request is None or not said.source.user or self._is_me(said.source.nick):
            return
        contact = f" ({self._config.contact})" if self._config.contact else ""
        answers = {"VERSION": f"Reverie{contact}", "SOURCE": "Reverie", "PING": request.argument[:_LONGEST_CTCP]}
        answer = answers.get(request.command)
        if answer is None or self._ctcp.wait_s(self._clock.monotonic()) > 0:
            return
        self._ctcp.take()
        nick = said.source.nick
        self.outgoing.say(
            line("NOTICE", nick, trailing=f"\x01{request.command} {answer}\x01"), self.isupport.fold(nick)
        )
