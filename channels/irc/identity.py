"""Who has a nick at this moment, as far as the server has told. Pure.

A private answer goes to a person, never to a nick.

A direct chat is named after who spoke: `nick!account:name`, or `nick!user@host` of somebody without an account. An
answer may take minutes, and by then somebody else may have the nick. So a nick counts as that person only

- while we see it in a room of ours, where the server tells of each QUIT, NICK and ACCOUNT, or
- for a moment after the server has answered WHOIS about it, or
- on a server that knows no WHOIS (421): while nothing has happened since they spoke to us there.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from channels.irc.people import IrcUsers, message_target
from channels.irc.wire import IrcLine, Isupport, format_line
from gateway.core.events import RoomId

_MAX_REMEMBERED: Final = 1_000
_MAX_MONITORED: Final = 30
"""Nicks that the server tells us of (https://ircv3.net/specs/extensions/monitor), besides our own."""
_WHOIS_FRESH_S: Final = 2.0
_WHOIS_FRESH_MONITORED_S: Final = 10.0
"""For so long an answer to WHOIS counts; longer where the server tells us at once that the nick is gone."""
_ACCOUNT_PREFIX: Final = "account:"
IdentityState = Literal["known", "told", "unknown", "other"]
ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class _NickOwner:
    """What the server said of a nick."""

    userhost: str = ""
    account: str = ""
    until_s: float = 0.0


def is_room_name(room: str) -> bool:
    """Whether it names a room, as far as its name alone tells: RFC 2811 section 2.1."""
    return room[:1] in set("#&!+")


def is_direct_chat(room: str) -> bool:
    """Whether it names a chat with one person, of whom more than the nick is known."""
    return "!" in room and not is_room_name(room)


class NickIdentities:
    """Of one connection. Fed with every line."""

    def __init__(self) -> None:
        self._nicks: OrderedDict[str, str] = OrderedDict()
        """Direct chat -> nick, where that person was seen to take another one; the latest last."""
        self._hosts: OrderedDict[str, str] = OrderedDict()
        """Direct chat -> `user@host`, where that person was seen to get another one."""
        self._account_nicks: OrderedDict[str, str] = OrderedDict()
        """Account -> nick under which it was heard last."""
        self._last_speakers: OrderedDict[str, _NickOwner] = OrderedDict()
        """Folded nick -> as whom it spoke last. Counts only where there is no WHOIS."""
        self._partial_whois: dict[str, _NickOwner] = {}
        """Folded nick -> the answer so far."""
        self._whois_answers: dict[str, _NickOwner] = {}
        """Folded nick -> the last whole answer."""
        self._monitored: OrderedDict[str, None] = OrderedDict()
        self.is_whois_unsupported = False
        """The server knows no WHOIS."""
        self.has_whois_answer = False
        """It has answered one."""
        self.has_account_updates = False
        """The server tells of each login and logout (account-notify)."""

    def feed(self, said: IrcLine, people: IrcUsers, isupport: Isupport) -> None:  # noqa: C901, PLR0912 - one case per command
        """Take in a line; `people` as they were before it."""
        fold, nick = isupport.fold, isupport.fold(said.source.nick)
        before = self._last_speakers.get(nick, _NickOwner())
        account = said.tags.get("account") or people.account(said.source.nick, isupport) or ""
        if said.command == "NICK":
            account = account or before.account
        userhost = said.source.mask.partition("!")[2]
        chats = [said.source.mask, *([f"{said.source.nick}!{_ACCOUNT_PREFIX}{account}"] if account else [])]
        match said.command:
            case "QUIT":
                self._forget_nick(nick)
                self._nicks = OrderedDict((chat, now) for chat, now in self._nicks.items() if fold(now) != nick)
            case "PRIVMSG":  # whoever speaks under that name is who is meant by it
                for chat in chats:
                    self._nicks.pop(chat, None)
                    self._hosts.pop(chat, None)
                self._forget_nick(nick)  # it may be news
                _remember(self._last_speakers, nick, _NickOwner(userhost, account))
                if account:
                    _remember(self._account_nicks, account, said.source.nick)
            case "NICK" if said.param(0) and said.source.user:
                self._forget_nick(nick)
                self._forget_nick(fold(said.param(0)))
                self._rename_nick(nick, said.param(0), chats, isupport)
                if before.userhost:
                    _remember(self._last_speakers, fold(said.param(0)), before)
            case "CHGHOST" if said.param(1):
                self._forget_nick(nick)
                if people.shared_rooms(said.source.nick, isupport):
                    new = f"{said.param(0)}@{said.param(1)}"
                    for chat in [
                        c for c, host in self._hosts.items() if host == userhost and fold(message_target(c)) == nick
                    ]:
                        _remember(self._hosts, chat, new)
                    _remember(self._hosts, said.source.mask, new)
            case "ACCOUNT" | "JOIN":
                self._whois_answers.pop(nick, None)
                self._last_speakers.pop(nick, None)
            case "731":  # RPL_MONOFFLINE
                for name in said.param(-1).split(","):
                    self._forget_nick(fold(name.partition("!")[0]))
            case "401":
                self._forget_nick(fold(said.param(1)))

    def feed_whois(self, said: IrcLine, isupport: Isupport, now_s: float) -> str:
        """Take in a line that may be part of an answer to WHOIS; the folded nick that it is now whole about."""
        nick = isupport.fold(said.param(1))
        self.has_whois_answer = self.has_whois_answer or said.command == "318"
        match said.command:
            case "311":  # RPL_WHOISUSER
                self._partial_whois[nick] = _NickOwner(
                    f"{said.param(2)}@{said.param(3)}", self._partial_whois.get(nick, _NickOwner()).account
                )
            case "330":  # RPL_WHOISACCOUNT
                self._partial_whois.setdefault(nick, _NickOwner()).account = said.param(2)
            case "318":  # RPL_ENDOFWHOIS
                seen = self._partial_whois.pop(nick, _NickOwner())
                seen.until_s = now_s + (_WHOIS_FRESH_MONITORED_S if nick in self._monitored else _WHOIS_FRESH_S)
                self._whois_answers[nick] = seen
                return nick
            case "401":  # not each server sends 318 behind it
                self._whois_answers[nick] = _NickOwner(until_s=now_s + _WHOIS_FRESH_S)
                return nick
        return ""

    def _forget_nick(self, nick: str) -> None:
        """What was told of it does not hold any more."""
        self._last_speakers.pop(nick, None)
        self._whois_answers.pop(nick, None)
        self._partial_whois.pop(nick, None)

    def _rename_nick(self, nick: str, new: str, chats: Iterable[str], isupport: Isupport) -> None:
        for chat, now in self._nicks.items():
            if isupport.fold(now) == nick:
                self._nicks[chat] = new
        for chat in chats:
            _remember(self._nicks, chat, new)

    def current_nick(self, chat: str) -> str:
        """Under which name they were seen last; a room's name is itself."""
        return self._nicks.get(chat) or message_target(chat)

    def resolve_target(
        self, chat: RoomId, people: IrcUsers, isupport: Isupport, now_s: float
    ) -> tuple[str, IdentityState]:
        """Whom to write to, and whether that is known to be the person.

        `told`: WHOIS said so a moment ago, for whatever waited for that. `unknown`: WHOIS would tell.
        """
        account = chat.partition("!")[2].removeprefix(_ACCOUNT_PREFIX) if f"!{_ACCOUNT_PREFIX}" in chat else ""
        userhost = "" if account else self._hosts.get(chat) or chat.partition("!")[2]
        names = [self.current_nick(chat), message_target(chat)]
        if account:  # many people may share a `user@host`, but not an account
            names += [*people.nicks_of(account), *filter(None, [self._account_nicks.get(account)])]
        ask = ""
        for name in dict.fromkeys(names):
            state = self._identity_state(name, account, userhost, people, isupport, now_s)
            if state in {"known", "told"}:
                return name, state
            ask = ask or (name if state == "unknown" else "")
        return (ask, "unknown") if ask else (names[0], "other")

    def _identity_state(  # noqa: PLR0917 - a person is told from all of this
        self, name: str, account: str, userhost: str, people: IrcUsers, isupport: Isupport, now_s: float
    ) -> IdentityState:
        folded = isupport.fold(name)
        if people.shared_rooms(name, isupport):
            mask = people.mask(folded).partition("!")[2]
            here = people.account(name, isupport)
            if account and here and self.has_account_updates:
                return "known" if here == account else "other"
            if userhost and "@" in mask:
                return "known" if _is_same_host(mask, userhost) else "other"
        seen = (
            self._last_speakers.get(folded, _NickOwner())
            if self.is_whois_unsupported
            else self._whois_answers.get(folded)
        )
        if self.is_whois_unsupported and seen is None:
            return "other"
        if seen is None or (not self.is_whois_unsupported and seen.until_s <= now_s):
            return "unknown"
        same = seen.account == account if account else _is_same_host(seen.userhost, userhost)
        return "other" if not same else "known" if self.is_whois_unsupported else "told"

    def whois_lines(self, nick: str, isupport: Isupport) -> list[str]:
        """What to send to learn who has this nick."""
        folded, lines = isupport.fold(nick), list[str]()
        self._whois_answers.pop(folded, None)
        if isupport.monitors > 1 and folded not in self._monitored:
            while len(self._monitored) >= min(_MAX_MONITORED, isupport.monitors - 1):
                lines.append(format_line("MONITOR", "-", self._monitored.popitem(last=False)[0]))
            self._monitored[folded] = None
            lines.append(format_line("MONITOR", "+", nick))
        return [*lines, format_line("WHOIS", nick)]

    def is_sign_of(self, chat: RoomId, said: IrcLine, isupport: Isupport) -> bool:
        """Whether a line is a sign of that person, so that it is worth asking again."""
        fold, (nick, _, who) = isupport.fold, chat.partition("!")
        names = {fold(nick), fold(self.current_nick(chat))}
        if said.command == "730":  # RPL_MONONLINE
            return not names.isdisjoint(fold(one.partition("!")[0]) for one in said.param(-1).split(","))
        account = who.removeprefix(_ACCOUNT_PREFIX) if who.startswith(_ACCOUNT_PREFIX) else ""
        if said.command == "NICK" and fold(said.param(0)) in names:
            return True
        if not said.source.user or said.command in {"QUIT", "PART"}:
            return False
        logged_in = {"JOIN": said.param(1), "ACCOUNT": said.param(0)}.get(said.command)
        tells = account in {said.tags.get("account"), logged_in} if account else said.source.mask.endswith(f"!{who}")
        asks = said.command == "JOIN" or (said.command == "PRIVMSG" and not isupport.is_room(said.param(0)))
        return tells or (asks and fold(said.source.nick) in names)  # what they say in a room is no news of who they are


def absence_text(chat: RoomId) -> str:
    """Why what is for that person waits, for people."""
    nick, _, who = chat.partition("!")
    if who.startswith(_ACCOUNT_PREFIX):
        account = who.removeprefix(_ACCOUNT_PREFIX)
        return f"{nick} is not there, or not logged in as {account}; it waits until that account is seen"
    return f"{nick} is not there as {who}; it waits until they are seen"


def _is_same_host(one: str, other: str) -> bool:
    """Whether two `user@host` are the same; hosts are compared as DNS does."""
    user, _, host = one.partition("@")
    as_user, _, as_host = other.partition("@")
    return bool(host) and (user, host.lower()) == (as_user, as_host.lower())


def _remember(kept: OrderedDict[str, ValueT], key: str, value: ValueT) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_REMEMBERED:
        kept.popitem(last=False)
