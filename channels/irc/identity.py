"""Owner of a nick at this moment, as far as the server has reported. Pure.

A private answer goes to a person, never to a nick. A direct chat is named after its person:
`nick!account:name`, or `nick!user@host` without an account. An answer may take minutes, and by then
the nick may be somebody else's. So a nick counts as that person only

- while we see it in a room of ours, where the server reports each QUIT, NICK and ACCOUNT, or
- for a moment after the server has answered WHOIS about it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

from channels.irc.people import IrcUsers, message_target
from channels.irc.wire import IrcLine, Isupport, format_line
from gateway.core.events import RoomId
from gateway.core.ratelimit import LruDict

_MAX_REMEMBERED: Final = 1_000
_MAX_MONITORED: Final = 30
"""Nicks that we watch (https://ircv3.net/specs/extensions/monitor)."""
_WHOIS_FRESH_S: Final = 2.0
_WHOIS_FRESH_MONITORED_S: Final = 10.0
"""Validity of an answer to WHOIS; longer if the server reports at once that the nick is gone."""
_ACCOUNT_PREFIX: Final = "account:"
IdentityState = Literal["known", "unknown", "other"]


@dataclass(slots=True)
class _NickOwner:
    """Owner of a nick, as reported by the server."""

    userhost: str = ""
    account: str = ""
    until_s: float = 0.0


def is_room_name(room: str) -> bool:
    """Return whether the name alone marks a room: RFC 2811 section 2.1."""
    return room[:1] in set("#&!+")


def direct_chat_of(room: str) -> RoomId | None:
    """Return the chat with one person, who is identified by more than the nick; None: a room.

    A nick alone, as an operator may write it, means whoever is logged in to the account of that
    name: anybody can take the nick.
    """
    if is_room_name(room):
        return None
    return RoomId(room if "!" in room else f"{room}!{_ACCOUNT_PREFIX}{room}")


class NickIdentities:
    """Nick owners of one connection, fed with every line."""

    def __init__(self, people: IrcUsers, isupport: Isupport) -> None:
        self._people, self._isupport = people, isupport
        self._nicks = LruDict[str, str](_MAX_REMEMBERED)
        """Direct chat -> the person's current nick, if it changed; the latest last."""
        self._account_nicks = LruDict[str, str](_MAX_REMEMBERED)
        """Account -> nick of its last message."""
        self._partial_whois: dict[str, _NickOwner] = {}
        """Folded nick -> answer so far."""
        self._whois_answers: dict[str, _NickOwner] = {}
        """Folded nick -> last complete answer."""
        self._monitored: OrderedDict[str, None] = OrderedDict()
        self.has_account_updates = False
        """The server reports each login and logout (account-notify)."""

    def feed(self, line: IrcLine) -> None:  # noqa: C901 - one case per command
        """Process a line, before the people do."""
        fold, nick = self._isupport.fold, self._isupport.fold(line.source.nick)
        account = line.tags.get("account") or self._people.account(line.source.nick)
        chats = [line.source, f"{line.source.nick}!{_ACCOUNT_PREFIX}{account}"]
        match line.command:
            case "QUIT":
                self._forget_nick(nick)
                self._rename_nick(nick, "")
            case "PRIVMSG":  # the sender is the person that this name means
                for chat in chats:
                    self._nicks.pop(chat, None)
                self._forget_nick(nick)  # the owner may have changed
                if account:
                    self._account_nicks.put(account, line.source.nick)
            case "NICK" if line.param(0) and line.source.user:
                self._forget_nick(nick)
                self._forget_nick(fold(line.param(0)))
                self._rename_nick(nick, line.param(0))
                for chat in chats if account else chats[:1]:
                    self._nicks.put(chat, line.param(0))
            case "CHGHOST":
                self._forget_nick(nick)
            case "ACCOUNT" | "JOIN":
                self._whois_answers.pop(nick, None)
            case "731":  # RPL_MONOFFLINE
                for name in line.param(-1).split(","):
                    self._forget_nick(fold(name.partition("!")[0]))
            case "401":
                self._forget_nick(fold(line.param(1)))

    def feed_whois(self, line: IrcLine, now_s: float) -> str:
        """Process a line that may be part of an answer to WHOIS.

        Returns the folded nick whose answer the line completes, else "".
        """
        nick = self._isupport.fold(line.param(1))
        match line.command:
            case "311":  # RPL_WHOISUSER
                owner = self._partial_whois.setdefault(nick, _NickOwner())
                owner.userhost = f"{line.param(2)}@{line.param(3)}"
            case "330":  # RPL_WHOISACCOUNT
                self._partial_whois.setdefault(nick, _NickOwner()).account = line.param(2)
            case "318" | "401":  # RPL_ENDOFWHOIS; some servers send none after a 401
                fresh_s = _WHOIS_FRESH_MONITORED_S if nick in self._monitored else _WHOIS_FRESH_S
                owner = self._partial_whois.pop(nick, _NickOwner())
                owner.until_s = now_s + fresh_s
                self._whois_answers[nick] = owner
                return nick
        return ""

    def mark_absent(self, nick: str, now_s: float) -> None:
        """Record that the server does not say who has this folded nick."""
        self._whois_answers[nick] = _NickOwner(until_s=now_s + _WHOIS_FRESH_S)

    def _forget_nick(self, nick: str) -> None:
        self._whois_answers.pop(nick, None)
        self._partial_whois.pop(nick, None)

    def _rename_nick(self, nick: str, new: str) -> None:
        renamed = [chat for chat, now in self._nicks.items() if self._isupport.fold(now) == nick]
        for chat in renamed:
            self._nicks.put(chat, new)

    def current_nick(self, chat: str) -> str:
        """Return the last known nick of the person; a room's name is itself."""
        return self._nicks.get(chat) or message_target(chat)

    def resolve_target(self, chat: RoomId, now_s: float) -> tuple[str, IdentityState]:
        """Return the nick to write to, and whether it is known to be the person's.

        `unknown`: WHOIS would tell. `other`: it is not.
        """
        owner = chat.partition("!")[2]
        account = owner.removeprefix(_ACCOUNT_PREFIX) if owner.startswith(_ACCOUNT_PREFIX) else ""
        names = [self.current_nick(chat), message_target(chat)]
        if account:  # many people may share a `user@host`, but not an account
            names += [
                *self._people.nicks_of(account),
                *filter(None, [self._account_nicks.get(account)]),
            ]
        hosts = "" if account else owner
        states = [(name, self._identity_state(name, account, hosts, now_s)) for name in names]
        best = (one for wanted in ("known", "unknown") for one in states if one[1] == wanted)
        return next(best, (names[0], "other"))

    def _identity_state(
        self, name: str, account: str, userhost: str, now_s: float
    ) -> IdentityState:
        folded, people = self._isupport.fold(name), self._people
        if people.shared_rooms(name):
            mask = people.mask(folded).partition("!")[2]
            current_account = people.account(name)
            if account and current_account and self.has_account_updates:
                return "known" if current_account == account else "other"
            if userhost and "@" in mask:
                return "known" if _is_same_host(mask, userhost) else "other"
        owner = self._whois_answers.get(folded)
        if owner is None or owner.until_s <= now_s:
            return "unknown"
        is_same = owner.account == account if account else _is_same_host(owner.userhost, userhost)
        return "known" if is_same else "other"

    def whois_lines(self, nick: str) -> list[str]:
        """Return the lines to send to learn the owner of a nick."""
        isupport, lines = self._isupport, list[str]()
        folded = isupport.fold(nick)
        self._whois_answers.pop(folded, None)
        if isupport.monitors > 1 and folded not in self._monitored:
            while len(self._monitored) >= min(_MAX_MONITORED, isupport.monitors - 1):
                lines.append(format_line("MONITOR", "-", self._monitored.popitem(last=False)[0]))
            self._monitored[folded] = None
            lines.append(format_line("MONITOR", "+", nick))
        return [*lines, format_line("WHOIS", nick)]

    def is_sign_of(self, chat: RoomId, line: IrcLine) -> bool:
        """Return whether a line may come from that person, so that another attempt is
        worthwhile.
        """
        fold, (nick, _, owner) = self._isupport.fold, chat.partition("!")
        names = {fold(nick), fold(self.current_nick(chat))}
        if line.command == "730":  # RPL_MONONLINE
            return not names.isdisjoint(
                fold(mask.partition("!")[0]) for mask in line.param(-1).split(",")
            )
        account = owner.removeprefix(_ACCOUNT_PREFIX) if owner.startswith(_ACCOUNT_PREFIX) else ""
        if line.command == "NICK" and fold(line.param(0)) in names:
            return True
        if not line.source.user or line.command in {"QUIT", "PART"}:
            return False
        logged_in = {"JOIN": line.param(1), "ACCOUNT": line.param(0)}.get(line.command)
        is_person = (
            account in {line.tags.get("account"), logged_in}
            if account
            else line.source.endswith(f"!{owner}")
        )
        is_arrival = line.command == "JOIN" or (
            line.command == "PRIVMSG" and not self._isupport.is_room(line.param(0))
        )
        # A message to a room is no news about the sender's identity.
        return is_person or (is_arrival and fold(line.source.nick) in names)


def absence_text(chat: RoomId) -> str:
    """Return the reason why a message to that person waits, for people."""
    nick, _, owner = chat.partition("!")
    if owner.startswith(_ACCOUNT_PREFIX):
        account = owner.removeprefix(_ACCOUNT_PREFIX)
        return (
            f"{nick} is not there, or not logged in as {account}; it waits until that account "
            "is seen"
        )
    return f"{nick} is not there as {owner}; it waits until they are seen"


def _is_same_host(first: str, second: str) -> bool:
    """Return whether two `user@host` are equal; hosts are compared like DNS names."""
    user, _, host = first.partition("@")
    other_user, _, other_host = second.partition("@")
    return bool(host) and (user, host.lower()) == (other_user, other_host.lower())
