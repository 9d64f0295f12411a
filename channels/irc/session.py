"""One connection's life: log in, join, follow what the server says. Sync; `channel` waits for it."""

import asyncio
import itertools
import logging
import math
import secrets
from collections.abc import Callable, Iterable

from channels.base import Denied, Unreachable
from channels.irc.batches import Answered, Batches, Heard, History
from channels.irc.bucket import Bucket
from channels.irc.compose import LOCAL, Limits
from channels.irc.config import IrcConfig
from channels.irc.ctcp import Ctcps
from channels.irc.history import PONG
from channels.irc.identity import Identities, State
from channels.irc.inbound import View
from channels.irc.isupport import Isupport
from channels.irc.mask import Mask
from channels.irc.memory import NO_CURSOR, Memory
from channels.irc.outgoing import Outgoing
from channels.irc.people import People, who
from channels.irc.presence import Presence
from channels.irc.registration import Logins, Registration, Upgrade
from channels.irc.render import plain
from channels.irc.rooms import Openness
from channels.irc.splits import Splits
from channels.irc.sts import Offer
from channels.irc.telling import Put, Telling
from channels.irc.wire import Line, line, parse
from channels.irc.writing import Writing
from gateway.clock import Clock
from gateway.events import ChannelName, RoomId
from gateway.ids import new_id

_LOG = logging.getLogger("reverie.irc")
_WHOIS_S = 15.0
"""Longer than servers take to answer WHOIS."""
_ADRIFT_S = 60.0
"""How long services may take to let us in again."""


class Session:
    """Fed with lines by the connection; tells through its events."""

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        clock: Clock,
        write: Callable[[str], bool],
        put: Put,
        *,
        memory: Memory,
        logins: Logins,
        secure_port: int | None,
    ) -> None:
        """`memory` and `logins` outlive the connection; `secure_port`: where it is TLS; None: it is not."""
        self.name, self._config, self._clock, self._write = name, config, clock, write
        self.login = Registration(config, secrets.token_urlsafe(18), logins, secure=secure_port is not None)
        self._secure_port = secure_port
        self.memory = memory
        self._telling = Telling(put, memory, lambda: LOCAL + new_id(clock.now()), config.history_age)
        self._batches, self.people, self._splits, self.identities = Batches(), People(), Splits(), Identities()
        self.openness = Openness()
        self._mask, self.writing, self._numbers = Mask(), Writing(), itertools.count(1)
        self.heard_s = self._adrift_s = clock.monotonic()
        self._ctcps = Ctcps(config.contact, config.source, self.heard_s)
        self.isupport = Isupport()
        self.nick = config.nick
        self.outgoing = Outgoing(clock, Bucket(config.flood.burst, config.flood.per_s, self.heard_s), write)
        self.outgoing.whom = self.whom
        self.outgoing.fold = lambda name: self.isupport.fold(name)  # noqa: PLW0108 - `isupport` changes
        self.outgoing.ask = lambda nick: self.identities.ask(nick, self.isupport)
        self._awaited: list[tuple[RoomId, asyncio.Future[None]]] = []
        self.presence = Presence(name, config, memory, self.outgoing.say, self.heard_s)
        self.ready = asyncio.Event()
        """Welcomed, and the server has said all it says on its own (end of MOTD)."""
        self.welcomed = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection ended; Denied if there is no use in another."""
        self._last_words = ""
        """Of the server: its ERROR."""
        self.upgrade: int | None = None
        """The connection ended because the server wants TLS on this port."""

    def start(self) -> None:
        """Say the first lines."""
        for raw in self.login.start():
            self._write(raw)

    def whom(self, chat: RoomId) -> tuple[str, State]:
        """As `Identities.whom`, at this moment."""
        self.identities.accounts_told = "account-notify" in self.login.caps
        return self.identities.whom(chat, self.people, self.isupport, self._clock.monotonic())

    async def seen(self, chat: RoomId) -> None:
        """Return once there is a sign of that person, or the connection has ended."""
        sign: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append((chat, sign))
        try:
            await sign
        finally:
            self._awaited.remove((chat, sign))

    @property
    def multiline(self) -> Limits | None:
        """What one multiline message may hold; None: the server takes none."""
        agreed = {"batch", "draft/multiline"} <= self.login.caps
        return Limits.read(self.login.offer("draft/multiline") or "") if agreed else None

    def reference(self) -> str:
        """A new name for a batch of ours."""
        return f"b{next(self._numbers)}"

    def end(self, reason: str) -> None:
        """The connection is lost, or shall be held to be."""
        reason += f": {self._last_words}" if self._last_words else ""
        self.outgoing.close(reason)
        if not self.lost.done():
            self.lost.set_result(reason)

    def finish(self) -> None:
        """Nothing more will be heard: tell what was held back, and whoever waits for a room."""
        self._telling.flush(self._clock.now())
        self.presence.close()
        for _, sign in self._awaited:
            if not sign.done():
                sign.set_result(None)

    def on_line(self, raw: str) -> None:
        """Handle one line. May raise on what nobody thought of: the connection logs that and goes on."""
        self.heard_s = self._clock.monotonic()
        said = parse(raw)
        if said is None or self.lost.done() or not self._registered(said):
            return
        if said.command == "PING":
            self._write(line("PONG", trailing=said.param(-1)))
        elif said.command == "ERROR":
            # https://modern.ircdocs.horse/#error-message: the server is about to hang up. Not all do so at once.
            self._last_words = plain(said.param(-1))[:300]
            self.end("the server closed the connection")
            return
        elif said.command == "001" and not self.welcomed.is_set():
            self.nick = self.login.nick
            self.welcomed.set()
        elif said.command == "PONG" and said.param(-1).startswith(PONG):
            self._say(self._telling.pong(said.param(-1), self._clock.now()))
            return
        if self.welcomed.is_set():
            for heard in self._batches.feed(said):
                self._handle(heard)

    def _registered(self, said: Line) -> bool:
        before = "account-tag" in self.login.caps
        try:
            for answer in self.login.feed(said):
                self._write(answer)
        except Denied as denied:
            self.outgoing.close(denied.reason)
            self.lost.set_exception(denied)
        except Unreachable as unreachable:
            self.end(unreachable.reason)
        except Upgrade as upgrade:
            self.upgrade = upgrade.port
            self.end(str(upgrade))
        if said.command == "CAP":
            self._keep_policy()
            self.outgoing.labelled = {"batch", "labeled-response"} <= self.login.caps
            self._telling.keeps = {"batch", "draft/chathistory", "server-time"} <= self.login.caps
            if before and "account-tag" not in self.login.caps:
                for room in self.presence.entered:
                    self._ask_who(room)
        if not self.login.adrift:
            self._adrift_s = self.heard_s
        return not self.lost.done()

    def _keep_policy(self) -> None:
        """https://ircv3.net/specs/extensions/sts: what is told over TLS is remembered at once, and over restarts."""
        offered, sts = self.login.offer("sts"), self.memory.sts
        if self._secure_port is None or offered is None:
            return
        before = sts.text
        sts.secured(self._config.host, self._secure_port, Offer.read(offered), self._clock.now())
        if sts.text != before:
            self._telling.put(None, self.memory.cursor or NO_CURSOR)

    def _handle(self, heard: Heard | Answered | History) -> None:
        if isinstance(heard, History):
            _LOG.info("%s: %d lines of %s are read again", self.name, len(heard.lines), heard.target[:100] or "people")
            self._say(self._telling.page(heard, self._view(past=self.isupport.fold(heard.target)), self._clock.now()))
            return
        self.outgoing.feed(heard, self.nick, self.isupport)
        if isinstance(heard, Heard):
            self._follow(heard)

    def _follow(self, heard: Heard) -> None:  # noqa: C901, PLR0912 - one case per command
        """What a logged-in client must know and tell."""
        said, now, fold = heard.line, self._clock.now(), self.isupport.fold
        mine = fold(said.source.nick) == fold(self.nick)
        if said.command.isdecimal() or said.command == "PONG" or (mine and said.command == "JOIN"):
            self._telling.heard(said, now, self.heard_s)
        quiet = self._splits.quiet(said, self.isupport, self.heard_s, batched=heard.quiet)
        if said.command == "JOIN":
            self.people.feed(said, self.nick, self.isupport)
        self.identities.feed(said, self.people, self.isupport)
        if not quiet:
            self._telling.live(said, self._view(), now, self.heard_s)
        if said.command != "JOIN":
            self.people.feed(said, self.nick, self.isupport)
        self._identify(said)
        self._say(line("NAMES", room) for room in self.people.ranks.doubted())
        self._mask.feed(said, mine=mine)
        match said.command:
            case "005":
                self.isupport = self.isupport.updated(said.params[1:])
            case "376" | "422":
                self.ready.set()
            case "366":
                self._ask_who(said.param(1))
            case "NICK" if mine and said.param(0):
                _LOG.info("%s: we are %s now", self.name, said.param(0)[:100])
                self.nick = said.param(0)
            case "PRIVMSG" | "NOTICE" if mine and "msgid" in said.tags:
                self.memory.own.add(said.tags["msgid"])
            case "PRIVMSG" if not mine:
                self._answer_ctcp(said)
            case "421" | "FAIL" if "TAGMSG" in said.params:
                self.writing.unknown = True
            case "JOIN" if mine and "time" in said.tags:
                self._telling.seen(said, now)
        self.openness.feed(said, self.nick, self.isupport)
        self.presence.feed(said, self.nick, self.isupport, self.heard_s)
        if said.command in {"366", "MODE"}:
            self._ask_modes()

    def _ask_modes(self) -> None:
        """Learn who may enter our rooms, as far as nothing else is to be said: nobody waits for it."""
        while (room := self.openness.wanted()) and self.outgoing.aside(line("MODE", room)):
            self.openness.asked(room)

    def _identify(self, said: Line) -> None:
        """Go on with what waits to know who has a nick, or for somebody to come back."""
        if told := self.identities.answered(said, self.isupport, self.heard_s):
            self.outgoing.told(told)
        elif said.command == "421" and said.param(1).upper() == "WHOIS":
            self.identities.deaf = True
            self.outgoing.unanswered(math.inf)
        for chat, sign in self._awaited:
            if not sign.done() and self.identities.may_be_back(chat, said, self.isupport):
                sign.set_result(None)

    def _ask_who(self, room: str) -> None:
        """Learn the accounts of who was there before us, if the server tells of changes but not with each line."""
        ask = self.isupport.whox and "account-notify" in self.login.caps and "account-tag" not in self.login.caps
        if ask and self.isupport.fold(room) in self.presence.entered:
            self.outgoing.say(who(room))

    def _answer_ctcp(self, said: Line) -> None:
        answer = self._ctcps.answer(said, self.heard_s)
        if answer is not None:
            self.outgoing.say(answer, self.isupport.fold(said.source.nick))

    def body_bytes(self, target: str) -> int:
        """How much text fits a message to `target`; our nick counts as the longer of what it is and shall be."""
        nick = max(len(self.nick.encode()), len(self._config.nick.encode()))
        return self._mask.body_bytes(target, nick, self.isupport)

    def hurry(self) -> None:
        """We have been waiting for long to be welcomed."""
        for raw in self.login.hurry():
            self._write(raw)

    def settle_in(self) -> None:
        """Say that we are a bot, if the server has a mode for that, and ask to be let into our rooms.

        `presence.joined` is set when all is answered. https://ircv3.net/specs/extensions/bot-mode
        """
        if self.isupport.bot_mode:
            self.outgoing.say(line("MODE", self.nick, f"+{self.isupport.bot_mode}"))
        rooms = self.presence.open(self.isupport, self._clock.monotonic())
        self._telling.expect(map(self.isupport.fold, rooms))
        self.presence.regain(self.nick, self.isupport)

    def fill_gap(self) -> None:
        """Ask for what was said while we were away."""
        rooms = [room for room in self.presence.configured if self.isupport.fold(room) in self.presence.entered]
        self._say(self._telling.fill(rooms, self._clock.now(), self.isupport))

    def keep_up(self) -> None:
        """To be called now and then."""
        now_s = self._clock.monotonic()
        self.presence.keep_up(self.nick, self.isupport, now_s)
        self._telling.keep_up(self._clock.now())
        self._ask_modes()
        if self.outgoing.unanswered(now_s - _WHOIS_S):
            self.identities.deaf = not self.identities.heard
        if self.login.adrift and now_s - self._adrift_s > _ADRIFT_S:
            self.end("the services logged us out and do not let us in again")

    def _say(self, lines: Iterable[str]) -> None:
        for raw in lines:
            self.outgoing.say(raw)

    def _view(self, past: str | None = None) -> View:
        return View(
            channel=self.name,
            me=self.nick,
            rooms={self.isupport.fold(room): room for room in self.presence.configured},
            isupport=self.isupport,
            people=self.people,
            account_tag="account-tag" in self.login.caps,
            own=self.memory.own,
            past=past,
            account=self.login.account,
        )
