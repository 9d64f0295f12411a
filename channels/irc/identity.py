"""Names of people and direct chats, and who has a nick at this moment, as far as the server has
reported. Pure.

A private answer goes to a person, never to a nick. A direct chat is named after its person:
`nick!account:name`, or `nick!user@host` without an account. An answer may take minutes, and by then
the nick may be somebody else's. So a nick counts as that person only

- while we see it in a room of ours, where the server reports each QUIT, NICK and ACCOUNT, or
- for a moment after the server has answered WHOIS about it.
"""

from typing import Final, Literal

from channels.irc.state import ACCOUNT_PREFIX, IrcState
from channels.irc.wire import IrcLine, format_line
from gateway.core.events import RoomId, Sender, SenderId

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
    conversation.
    """
    mask = sender.id.removeprefix("mask:") if mask is None else mask
    return RoomId(
        f"{sender.name}!{ACCOUNT_PREFIX}{sender.account}" if sender.account else str(mask)
    )


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
    return RoomId(room if "!" in room else f"{room}!{ACCOUNT_PREFIX}{room}")


def message_target(room: str) -> str:
    """Return the target of messages to a room or direct chat: `nick` for `nick!user@host` or
    `nick!account:name`.
    """
    return room.partition("!")[0] or room


def current_nick(state: IrcState, chat: str) -> str:
    """Return the last known nick of the person; a room's name is itself."""
    return state.chat_nicks.get(chat) or message_target(chat)


def resolve_target(state: IrcState, chat: RoomId, now_s: float) -> tuple[str, IdentityState]:
    """Return the nick to write to, and whether it is known to be the person's.

    `unknown`: WHOIS would tell. `other`: it is not.
    """
    _, account, userhost = _read_owner(chat)
    names = [current_nick(state, chat), message_target(chat)]
    if account:  # many people may share a `user@host`, but not an account
        names += [state.mask(nick).partition("!")[0] for nick in state.nicks_of(account)]
        names += filter(None, [state.account_nicks.get(account)])
    found = [(name, _identity_state(state, name, account, userhost, now_s)) for name in names]
    best = (one for wanted in ("known", "unknown") for one in found if one[1] == wanted)
    return next(best, (names[0], "other"))


def _identity_state(
    state: IrcState, name: str, account: str, userhost: str, now_s: float
) -> IdentityState:
    nick = state.isupport.fold(name)
    if state.is_visible(nick):
        mask, current_account = state.mask(nick).partition("!")[2], state.accounts.get(nick)
        if account and current_account and "account-notify" in state.caps:
            return "known" if current_account == account else "other"
        if userhost and "@" in mask:
            return "known" if _is_same_host(mask, userhost) else "other"
    owner = state.whois.get(nick)
    if owner is None or owner.until_s <= now_s:
        return "unknown"
    is_same = owner.account == account if account else _is_same_host(owner.userhost, userhost)
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
    logged_in = {"JOIN": line.param(1), "ACCOUNT": line.param(0)}.get(line.command)
    is_person = (
        account in {line.tags.get("account"), logged_in}
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
    """Return the nick in the name of a direct chat, and the account or the `user@host` of its
    owner.
    """
    nick, _, owner = chat.partition("!")
    if owner.startswith(ACCOUNT_PREFIX):
        return nick, owner.removeprefix(ACCOUNT_PREFIX), ""
    return nick, "", owner


def _is_same_host(first: str, second: str) -> bool:
    """Return whether two `user@host` are equal; hosts are compared like DNS names."""
    user, _, host = first.partition("@")
    other_user, _, other_host = second.partition("@")
    return bool(host) and (user, host.lower()) == (other_user, other_host.lower())
