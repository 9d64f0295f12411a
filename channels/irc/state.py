"""State of one connection, as its lines have said it: our nick, the rooms and the people in them,
who they are, and what is collected of an answer. Pure: time comes in with a line.

`IrcState.apply` takes each line after the login and returns what it changed; everything else reads
that and the state. Rooms and nicks are folded, each name of a line once.

The functions behind it say who somebody is. A private answer goes to a person, never to a nick. A
direct chat is named after its person: `name!account:name`, whatever their nick is, or
`nick!user@host` without an account.
An answer may take minutes, and by then the nick may be somebody else's. So a nick counts as that
person only

- while we see it in a room of ours, where the server reports each QUIT, NICK and ACCOUNT, or
- for a moment after the server has answered WHOIS about it.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from channels.irc.wire import BIP_NICK, IrcLine, Isupport, format_line, is_from_bip
from gateway.core.events import RoomId, Sender, SenderId
from gateway.core.identity import fold_account
from gateway.core.ratelimit import LruDict

ACCOUNT_PREFIX: Final = "account:"
_WHOX_QUERY_TYPE = "152"
"""Marks the answers to our queries."""
WHOX_FIELDS: Final = f"%tcuhnfar,{_WHOX_QUERY_TYPE}"
"""What WHO asks about the people in a room, with accounts:
https://ircv3.net/specs/extensions/whox."""
_WHOX_ACCOUNT = 7
_EXTENDED_JOIN_PARAMS = 2
"""A JOIN with more parameters has the account: https://ircv3.net/specs/extensions/extended-join."""
_MAX_ROOMS = 1_000
_MAX_PEOPLE = 50_000
"""Per room. More people are not tracked: a server must not fill our memory."""
_MAX_REMEMBERED: Final = 1_000
CLOSED_MODES: Final = frozenset("ikpsO")
"""Modes of rooms that not everybody may enter or find: invite-only, key, private, secret, operators
only (https://modern.ircdocs.horse/#channel-modes)."""
_WHOIS_FRESH_S: Final = 2.0
_WHOIS_FRESH_MONITORED_S: Final = 10.0
"""Validity of an answer to WHOIS; longer if the server reports at once that the nick is gone."""
_SPLIT_REASON = re.compile(r"(?:\*|[\w*-]+)(?:\.[\w*-]+)+ (?:\*|[\w*-]+)(?:\.[\w*-]+)+", re.ASCII)
"""A split makes everybody behind the lost server quit with the names of two servers as the reason
(RFC 1459 section 4.1.6). People cannot fake that: servers prefix their reasons, or reject such
ones."""
_REJOIN_WINDOW_S: Final = 3600.0
"""People who return later than that have joined anew."""
_HISTORY_BATCHES: Final = frozenset({"chathistory", "draft/chathistory-targets"})
_MAX_BATCHES = 32
_MAX_BATCH_LINES = 500
"""Lines of one collected batch. Servers answer with at most a few hundred."""


@dataclass(slots=True)
class Batch:
    """Batch as the server has opened it (https://ircv3.net/specs/extensions/batch); of an answer to
    CHATHISTORY also its lines.
    """

    kind: str
    target: str
    """Room or person of a history; empty for a list of targets."""
    lines: list[IrcLine] = field(default_factory=list)


@dataclass(slots=True)
class NickOwner:
    """Owner of a nick, as WHOIS reports it."""

    userhost: str = ""
    account: str = ""
    until_s: float = 0.0
    """Time until which the answer counts; 0: it is not complete yet."""


@dataclass(slots=True)
class Person:
    """Somebody in a room of ours, as far as the server has told."""

    mask: str
    """`nick!user@host`, or the nick where no more is known."""
    account: str = ""
    """Services account. Empty: none, or unknown."""
    past_hosts: tuple[str, ...] = ()
    """Earlier `user@host`, which we saw change."""


class Changes(NamedTuple):
    """A line, and what it changed."""

    line: IrcLine
    nick: str = ""
    """Nick of the sender, folded."""
    target: str = ""
    """The first parameter, folded."""
    is_mine: bool = False
    account: str = ""
    """The sender's services account before the line (after a JOIN), as far as known."""
    rooms: Mapping[str, frozenset[str]] = MappingProxyType({})
    """Rooms of ours in which the sender was before the line (after a JOIN), with the letters of the
    modes that are their ranks there."""
    entered: str = ""
    left: str = ""
    """Room that we are no longer in."""
    is_netsplit: bool = False
    """Nobody acted: a network fell apart or came together."""
    whois: str = ""
    """Nick whose answer to WHOIS is complete."""
    history: Batch | None = None
    """Answer to CHATHISTORY that is complete. The line is nothing else then."""


class IrcState:
    """State of one connection.

    An account is trusted only while the server reports its changes: once somebody shares no room
    with us, the next person with that nick is unknown.
    """

    def __init__(self, nick: str) -> None:
        self.isupport = Isupport()
        self.caps: set[str] = set()
        self.account = ""
        """Our services account; empty: none."""
        self.is_bouncer = False
        self.rooms: dict[str, dict[str, frozenset[str]]] = {}
        """Room of ours -> nick -> letters of the modes that are ranks."""
        self.people: dict[str, Person] = {}
        """Nick -> who has it, for everybody in `rooms`."""
        self.room_modes: dict[str, set[str]] = {}
        """Room -> letters of its modes. Rooms with unknown modes are left out."""
        self.unknown_modes: dict[str, None] = {}
        """Rooms whose modes must be requested."""
        self.chat_nicks = LruDict[str, str](_MAX_REMEMBERED)
        """Direct chat -> the person's current nick, if it changed; the latest last."""
        self.account_nicks = LruDict[str, str](_MAX_REMEMBERED)
        """Account -> nick of its last message."""
        self.whois = LruDict[str, NickOwner](_MAX_REMEMBERED)
        """Nick -> last answer."""
        self.monitored: OrderedDict[str, None] = OrderedDict()
        """Nicks that the server watches for us."""
        self._gone = LruDict[str, tuple[str, float]](20_000)
        """Nick -> mask and time, of people lost in netsplits, so that their return is no event
        either; for servers without netsplit batches."""
        self._batches: dict[str, Batch] = {}
        self.set_nick(nick)

    def set_nick(self, nick: str) -> None:
        self.nick, self.me = nick, self.isupport.fold(nick)

    def mask(self, nick: str) -> str:
        """Return the mask of a folded nick, in its own spelling."""
        return self.people[nick].mask if nick in self.people else nick

    def account_of(self, nick: str) -> str:
        """Return the services account of a visible person; empty: none, or unknown."""
        return self.people[nick].account if nick in self.people else ""

    def hosts(self, nick: str) -> tuple[str, ...]:
        """Return the `user@host` of a visible person, and the earlier ones; empty: unknown."""
        userhost = self.mask(nick).partition("!")[2]
        return (userhost, *self.people[nick].past_hosts) if "@" in userhost else ()

    def nicks_of(self, services_account: str) -> list[str]:
        """Return the folded nicks of visible people who are logged in to this account."""
        wanted = fold_account(services_account)
        return [nick for nick, one in self.people.items() if fold_account(one.account) == wanted]

    def mark_absent(self, nick: str, now_s: float) -> None:
        """Record that the server does not say who has this folded nick."""
        self.whois.put(nick, NickOwner(until_s=now_s + _WHOIS_FRESH_S))

    def read_past(self, line: IrcLine, place: str) -> Changes:
        """Return a line of the history of a room or person. Current data does not apply to it, and
        direct messages count as addressed to our current nick.
        """
        nick, is_room = self.isupport.fold(line.source.nick), self.isupport.is_room(place)
        return Changes(
            line,
            nick,
            self.isupport.fold(line.param(0)) if is_room else self.me,
            nick == self.me or bool(self.account and line.tags.get("account") == self.account),
            rooms={place: frozenset()} if is_room else {},
        )

    def apply(self, line: IrcLine, now_s: float) -> Changes | None:  # noqa: C901, PLR0912 - one case per command
        """Process a line. None: it is part of a batch that is collected."""
        if line.command == "BATCH":
            return self._apply_batch(line)
        name = line.tags.get("batch", "")
        batch = self._batches.get(name)
        if batch is not None and batch.kind in _HISTORY_BATCHES:
            batch.lines.append(line)
            # Longer than any real answer: the rest are plain lines.
            return self._close_batch(line, name) if len(batch.lines) >= _MAX_BATCH_LINES else None
        nick, target = self.isupport.fold(line.source.nick), self.isupport.fold(line.param(0))
        is_mine = nick == self.me
        self._learn_mask(line, nick)
        if line.command == "JOIN":
            self._join(line, nick, target)
        account = self.account_of(nick)
        rooms = {room: nicks[nick] for room, nicks in self.rooms.items() if nick in nicks}
        left = whois = ""
        is_netsplit = batch is not None and batch.kind in {"netsplit", "netjoin"}
        match line.command:
            case "PRIVMSG":
                self._gone.pop(nick, None)
                self.whois.pop(nick, None)  # the owner may have changed
                # The sender is the person that the name of their chat means.
                self.chat_nicks.pop(line.source, None)
                if proven := line.tags.get("account") or account:
                    self.chat_nicks.pop(account_chat(proven), None)
                    self.account_nicks.put(fold_account(proven), line.source.nick)
            case "JOIN":
                mask, gone_s = self._gone.get(nick, (None, 0.0))
                is_back = mask == line.source and now_s - gone_s < _REJOIN_WINDOW_S
                is_netsplit = is_netsplit or is_back
            case "PART" | "KICK":
                gone = nick if line.command == "PART" else self.isupport.fold(line.param(1))
                left = target if gone == self.me else ""
                self._part(gone, target)
            case "QUIT":
                is_netsplit = is_netsplit or bool(_SPLIT_REASON.fullmatch(line.param(0)))
                self._quit(line, nick, now_s, is_netsplit=is_netsplit)
            case "NICK" if target:
                self._rename(line, nick, target)
            case "MODE":
                self._apply_modes(target, line.params[1:])
            case "ACCOUNT":
                self.whois.pop(nick, None)
                self._set_account(nick, line.param(0))
            case "CHGHOST":
                self.whois.pop(nick, None)
                if person := self.people.get(nick):
                    person.past_hosts = self.hosts(nick)[:10]
                    person.mask = f"{line.source.nick}!{line.param(0)}@{line.param(1)}"
            case numeric if numeric.isdecimal():
                whois = self._apply_reply(line, now_s)
        entered = target if is_mine and line.command == "JOIN" else ""
        return Changes(
            line, nick, target, is_mine, account, rooms, entered, left, is_netsplit, whois
        )

    def _learn_mask(self, line: IrcLine, nick: str) -> None:
        if is_from_bip(line):
            # Somebody on the network may have that host, but neither of these nicks.
            self.is_bouncer = self.is_bouncer or nick in {self.me, BIP_NICK}
        elif line.source.host and (person := self.people.get(nick)) and "@" not in person.mask:
            person.mask = line.source

    def _apply_batch(self, line: IrcLine) -> Changes | None:
        sign, name, kind = line.param(0)[:1], line.param(0)[1:], line.param(1).lower()
        if sign == "-":
            return self._close_batch(line, name)
        if name and (name in self._batches or len(self._batches) < _MAX_BATCHES):
            self._batches[name] = Batch(kind, line.param(2) if kind == "chathistory" else "")
        return None

    def _close_batch(self, line: IrcLine, name: str) -> Changes | None:
        batch = self._batches.pop(name, None)
        is_history = batch is not None and batch.kind in _HISTORY_BATCHES
        return Changes(line, history=batch) if is_history else None

    def _apply_reply(self, line: IrcLine, now_s: float) -> str:  # noqa: C901 - one case per numeric
        """Process a numeric; return the nick whose answer to WHOIS it completes, or an empty
        text.
        """
        about = self.isupport.fold(line.param(1))
        match line.command:
            case "005":
                self.isupport.load(line.params)
                self.set_nick(self.nick)
            case "311":  # RPL_WHOISUSER
                self.whois.put(about, NickOwner(f"{line.param(2)}@{line.param(3)}"))
            case "330" if about in self.whois and not self.whois[about].until_s:  # RPL_WHOISACCOUNT
                self.whois[about].account = line.param(2)
            case "318" | "401":  # RPL_ENDOFWHOIS; some servers send none after a 401
                owner = self.whois.get(about)
                if owner is None or owner.until_s or line.command == "401":
                    self.whois.put(about, owner := NickOwner())
                watched = about in self.monitored
                owner.until_s = now_s + (_WHOIS_FRESH_MONITORED_S if watched else _WHOIS_FRESH_S)
                return about
            case "324":  # RPL_CHANNELMODEIS
                self._set_modes(about, line.param(2))
            case "353":  # RPL_NAMREPLY
                self._add_names(self.isupport.fold(line.param(-2)), line.param(-1).split())
            case "354" if line.param(1) == _WHOX_QUERY_TYPE and len(line.params) > _WHOX_ACCOUNT:
                # Fields as WHOX_FIELDS asks: token, room, user, host, nick, flags, account, real
                # name.
                self._set_account(self.isupport.fold(line.param(5)), line.param(_WHOX_ACCOUNT))
            case "473" | "475":  # invite-only, or needs a key
                self._set_modes(about, "i" if line.command == "473" else "k")
            case "731":  # RPL_MONOFFLINE
                for name in line.param(-1).split(","):
                    self.whois.pop(self.isupport.fold(name.partition("!")[0]), None)
        return ""

    def _join(self, line: IrcLine, nick: str, room: str) -> None:
        self.whois.pop(nick, None)
        if nick == self.me and (room in self.rooms or len(self.rooms) < _MAX_ROOMS):
            self._forget_unseen(self.rooms.pop(room, {}))
            self.rooms[room] = {}
            self.room_modes.pop(room, None)
            self.unknown_modes[room] = None
        self._add_user(room, nick, line.source)
        if len(line.params) > _EXTENDED_JOIN_PARAMS:
            self._set_account(nick, line.param(1))

    def _part(self, nick: str, room: str) -> None:
        self._gone.pop(nick, None)
        self.rooms.get(room, {}).pop(nick, None)
        if nick == self.me:
            self.unknown_modes.pop(room, None)
            self._forget_unseen(self.rooms.pop(room, {}))
        self._forget_unseen([nick])

    def _quit(self, line: IrcLine, nick: str, now_s: float, *, is_netsplit: bool) -> None:
        self._gone.pop(nick, None)
        if is_netsplit:
            self._gone.put(nick, (line.source, now_s))
        for nicks in self.rooms.values():
            nicks.pop(nick, None)
        self._forget_unseen([nick])
        self.whois.pop(nick, None)
        self._rename_chats(nick, "")

    def _rename(self, line: IrcLine, old: str, new: str) -> None:
        self._gone.pop(old, None)
        spelled, account, past = line.param(0), self.account_of(old), tuple[str, ...]()
        if person := self.people.pop(old, None):
            person.mask = spelled + line.source[len(line.source.nick) :]
            self.people[new], past = person, person.past_hosts
        for nicks in self.rooms.values():
            if old in nicks:
                nicks[new] = nicks.pop(old)
        self.whois.pop(old, None)
        self.whois.pop(new, None)
        if line.source.user:
            self._rename_chats(old, spelled)
            for userhost in (*past, line.source.partition("!")[2]):
                self.chat_nicks.put(f"{line.source.nick}!{userhost}", spelled)
            if account := line.tags.get("account") or account:
                self.chat_nicks.put(account_chat(account), spelled)
        if old == self.me:
            self.set_nick(spelled)

    def _rename_chats(self, nick: str, new: str) -> None:
        fold = self.isupport.fold
        for chat in [chat for chat, now in self.chat_nicks.items() if fold(now) == nick]:
            self.chat_nicks.put(chat, new)

    def _add_user(
        self, room: str, nick: str, mask: str, modes: frozenset[str] = frozenset()
    ) -> None:
        nicks = self.rooms.get(room)
        if nicks is not None and (nick in nicks or len(nicks) < _MAX_PEOPLE):
            nicks[nick] = modes
            person = self.people.setdefault(nick, Person(mask))
            person.mask = mask if "@" in mask else person.mask

    def _add_names(self, room: str, names: Iterable[str]) -> None:
        """Add people as the server lists them: signs of their ranks (all or the highest), then the
        nick or mask.
        """
        modes = self.isupport.rank_modes
        for name in names:
            mask = name.lstrip("~&@%+!" + "".join(modes))
            signs = name[: len(name) - len(mask)]
            nick = self.isupport.fold(mask.partition("!")[0])
            ranks = frozenset(modes[sign] for sign in signs if sign in modes)
            self._add_user(room, nick, mask, ranks)

    def _apply_modes(self, room: str, params: Sequence[str]) -> None:
        """Apply a change of modes (https://modern.ircdocs.horse/#mode-message) to a room and the
        ranks of people who are there.

        The server declares the modes that are ranks, and the modes that take a parameter (PREFIX
        and CHANMODES, https://modern.ircdocs.horse/#prefix-parameter). For an undeclared mode it is
        unknown how many parameters it takes, so the parameters of the other modes in that line are
        unknown, too: then nobody in that room has a rank until we enter it again.
        """
        letters, modes = params[0] if params else "", self.room_modes.get(room, set())
        if (nicks := self.rooms.get(room)) is None:
            return
        ranks = frozenset(self.isupport.rank_modes.values())
        lists, always, when_set, never = self.isupport.mode_groups
        on, is_clear, arguments = True, True, iter(params[1:])
        for letter in letters:
            if letter in "+-":
                on = letter == "+"
            elif letter in ranks:
                nick = self.isupport.fold(next(arguments, ""))
                is_clear = is_clear and bool(nick)
                if nick in nicks:
                    nicks[nick] = nicks[nick] | {letter} if on else nicks[nick] - {letter}
            elif letter in lists:
                next(arguments, "")
            else:
                (modes.add if on else modes.discard)(letter)
                if letter in always or (on and letter in when_set):
                    next(arguments, "")
                is_clear = is_clear and letter in always + when_set + never
        if not is_clear:
            self.rooms[room] = dict.fromkeys(nicks, frozenset())

    def _set_modes(self, room: str, letters: str) -> None:
        if room in self.room_modes or len(self.room_modes) < _MAX_ROOMS:
            self.room_modes[room] = set(letters)

    def _set_account(self, nick: str, account: str) -> None:
        if person := self.people.get(nick):
            person.account = "" if account in {"*", "0"} else account

    def _forget_unseen(self, nicks: Iterable[str]) -> None:
        for nick in nicks:
            if not any(nick in nicks for nicks in self.rooms.values()):
                self.people.pop(nick, None)


_MAX_MONITORED: Final = 30
"""Nicks that we watch (https://ircv3.net/specs/extensions/monitor)."""
IdentityState = Literal["known", "unknown", "other"]


def build_sender_id(mask: str, account: str | None) -> SenderId:
    """Return the id of a person: their services account, else the whole mask.

    Anybody can take a nick, so it alone identifies nobody.
    """
    return SenderId(f"{ACCOUNT_PREFIX}{account}" if account else f"mask:{mask}")


def direct_chat(sender: Sender, mask: str | None = None) -> RoomId:
    """Return the direct chat with a sender whose name is their nick; `mask` is needed only if their
    id is not the mask.

    The owner of the nick is part of the name, so a stranger who takes the nick later gets another
    conversation. Who is logged in goes on in the same one under each of their nicks.
    """
    if sender.account:
        return account_chat(sender.account)
    return RoomId(sender.id.removeprefix("mask:") if mask is None else str(mask))


def account_chat(account: str) -> RoomId:
    """Return the direct chat with whoever is logged in to this account."""
    return RoomId(f"{account}!{ACCOUNT_PREFIX}{account}")


def is_room_name(room: str) -> bool:
    """Return whether the name alone marks a room: RFC 2811 section 2.1."""
    return room.startswith(("#", "&", "!", "+"))


def direct_chat_of(room: str) -> RoomId | None:
    """Return the chat with one person, who is identified by more than the nick; None: a room.

    A nick alone, as an operator may write it, means whoever is logged in to the account of that
    name: anybody can take the nick.
    """
    if is_room_name(room):
        return None
    return RoomId(room) if "!" in room else account_chat(room)


def message_target(room: str) -> str:
    """Return the target of messages to a room (`#wow!`) or direct chat: `nick` for
    `nick!user@host` or `nick!account:name`.
    """
    return room if is_room_name(room) else room.partition("!")[0]


def current_nick(state: IrcState, chat: str) -> str:
    """Return the last known nick of the person; a room's name is itself."""
    account = "" if is_room_name(chat) else _read_owner(chat)[1]
    known = state.chat_nicks.get(chat) or state.account_nicks.get(account)
    return known or message_target(chat)


def resolve_target(state: IrcState, chat: RoomId, now_s: float) -> tuple[str, IdentityState]:
    """Return the nick to write to, and whether it is known to be the person's.

    `unknown`: WHOIS would tell. `other`: it is not.
    """
    _, account, userhost = _read_owner(chat)
    names = [current_nick(state, chat), message_target(chat)]
    if account:  # many people may share a `user@host`, but not an account
        names += [state.mask(nick).partition("!")[0] for nick in state.nicks_of(account)]
    found = [(name, _identity_state(state, name, account, userhost, now_s)) for name in names]
    best = (one for wanted in ("known", "unknown") for one in found if one[1] == wanted)
    return next(best, (names[0], "other"))


def _identity_state(
    state: IrcState, name: str, account: str, userhost: str, now_s: float
) -> IdentityState:
    nick = state.isupport.fold(name)
    if nick in state.people:
        current_account = state.account_of(nick)
        if account and current_account and "account-notify" in state.caps:
            return "known" if fold_account(current_account) == account else "other"
        if userhost and (hosts := state.hosts(nick)):
            return "known" if any(_is_same_host(one, userhost) for one in hosts) else "other"
    owner = state.whois.get(nick)
    if owner is None or owner.until_s <= now_s:
        return "unknown"
    is_same = (
        fold_account(owner.account) == account
        if account
        else _is_same_host(owner.userhost, userhost)
    )
    return "known" if is_same else "other"


def whois_lines(state: IrcState, nick: str) -> list[str]:
    """Return the lines to send to learn the owner of a nick."""
    lines, folded, monitors = list[str](), state.isupport.fold(nick), state.isupport.monitors
    state.whois.pop(folded, None)
    if monitors > 1 and folded not in state.monitored:
        while len(state.monitored) >= min(_MAX_MONITORED, monitors - 1):
            lines.append(format_line("MONITOR", "-", state.monitored.popitem(last=False)[0]))
        state.monitored[folded] = None
        lines.append(format_line("MONITOR", "+", nick))
    return [*lines, format_line("WHOIS", nick)]


def is_sign_of(state: IrcState, chat: RoomId, line: IrcLine) -> bool:
    """Return whether a line may come from that person, so that another attempt is worthwhile."""
    fold, (nick, account, userhost) = state.isupport.fold, _read_owner(chat)
    names = {fold(nick), fold(current_nick(state, chat))}
    if line.command == "730":  # RPL_MONONLINE
        return not names.isdisjoint(
            fold(mask.partition("!")[0]) for mask in line.param(-1).split(",")
        )
    if line.command == "NICK" and fold(line.param(0)) in names:
        return True
    if not line.source.user or line.command in {"QUIT", "PART"}:
        return False
    logged_in = {"JOIN": line.param(1), "ACCOUNT": line.param(0)}.get(line.command, "")
    is_person = (
        account in map(fold_account, (line.tags.get("account", ""), logged_in))
        if account
        else line.source.endswith(f"!{userhost}")
    )
    # A message to a room is no news about the sender's identity.
    is_arrival = line.command == "JOIN" or (
        line.command == "PRIVMSG" and not state.isupport.is_room(line.param(0))
    )
    return is_person or (is_arrival and fold(line.source.nick) in names)


def absence_text(chat: RoomId) -> str:
    """Return the reason why a message to that person waits, for people."""
    nick, account, userhost = _read_owner(chat)
    if account:
        return (
            f"{nick} is not there, or not logged in as {account}; it waits until that account "
            "is seen"
        )
    return f"{nick} is not there as {userhost}; it waits until they are seen"


def _read_owner(chat: str) -> tuple[str, str, str]:
    """Return the nick in the name of a direct chat, and the account (folded) or the `user@host` of
    its owner.
    """
    nick, _, owner = chat.partition("!")
    if owner.startswith(ACCOUNT_PREFIX):
        return nick, fold_account(owner.removeprefix(ACCOUNT_PREFIX)), ""
    return nick, "", owner


def _is_same_host(first: str, second: str) -> bool:
    """Return whether two `user@host` are equal; hosts are compared like DNS names."""
    user, _, host = first.partition("@")
    other_user, _, other_host = second.partition("@")
    return bool(host) and (user, host.lower()) == (other_user, other_host.lower())
