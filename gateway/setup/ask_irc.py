"""What is asked about an IRC account. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pydantic import SecretStr

from channels.irc.config import IrcConfig, Sasl, Tls, is_loopback
from gateway.probes.base import Finding
from gateway.probes.irc import IrcSeen
from gateway.setup.answers import Irc
from gateway.setup.ask_bot import LATER
from gateway.setup.dialog import Ask, AskSecret, Flow, Look, ask, ask_secret, confirm, look, settle, several, tell
from gateway.setup.irc_words import (
    NONE,
    TLS_PORT,
    address,
    as_account,
    as_nick,
    as_rooms,
    channel_of,
    contact_of,
    local,
)

_PLAIN_PORT = 6667
"""Where servers listen without TLS: RFC 1459 8.11.1."""
_HOW = (
    "",
    "IRC",
    "  If the network has services, register the bot's nick with them first, as you did yours.",
    "  Many networks want to know who runs a bot. Ask a room before you bring one.",
)
_ALL = ("server", "given", "nick", "account", "contact", "rooms")
_WARNED = ("irc.nick", "irc.sts")
"""What is worth a question though it works."""
_BY_CODE = {
    "irc.nick": "nick",
    "irc.sasl": "account",
    "irc.password": "password",
    "irc.sts": "server",
    "irc.tls": "server",
    "net.": "server",
}
"""Which questions a finding asks anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came out."""

    channel: Irc
    owner: str | None
    """`account:NAME`. None: not told."""


def ask_irc(before: Irc | None, owner: str | None) -> Flow[Told]:
    """Raises Skipped."""
    yield from tell(*_HOW)
    made = before or Irc(channel="", host="", nick="")
    wanted: tuple[str, ...] = _ALL
    while True:
        for one in wanted:
            made = yield from _QUESTIONS[one](made)
        made = replace(made, channel=before.channel if before else channel_of(made.host))
        if not _known(made):
            yield from tell("  A password is not set here, so this cannot be tried now.")
            break
        yield from tell(f"  Connecting to {made.host}:{made.port} ...")
        seen = yield from look(Look(config_of(made)), IrcSeen)
        way = yield from settle(seen.findings, also=_WARNED)
        if way == "go on":
            break
        wanted = _anew(seen.findings) if way == "correct" else ()
        # What was refused is not proposed again, if it was typed just now.
        if "account" in wanted and wanted != _ALL and made.account_password and made.account_password.is_new:
            made = replace(made, account_password=None)
        if "password" in wanted and made.server_password and made.server_password.is_new:
            made = replace(made, server_password=None)
    told = yield from _owner(made, owner)
    return Told(channel=made, owner=told)


def _anew(findings: Iterable[Finding]) -> tuple[str, ...]:
    wrong = [one.code for one in findings if one.level == "bad" or (one.level == "warning" and one.code in _WARNED)]
    found = {question for code in wrong for start, question in _BY_CODE.items() if code.startswith(start)}
    return tuple(one for one in ("server", "nick", "account", "password") if one in found) or _ALL


def _server(made: Irc) -> Flow[Irc]:
    there = f"{made.host}:{made.port}" if made.host else "irc.libera.chat:6697"
    words = yield from ask(Ask(key="irc.server", text="Server", default=there, parse=address))
    host, _, port = words.rpartition(":")
    number = int(port)
    same = made.host == host and made.port == number
    default = made.tls if same else number != _PLAIN_PORT and not local(host)
    ca_file = made.ca_file if same else None
    answer = yield from ask(
        Ask(
            key="irc.tls",
            text="TLS: yes, no, or a file with the root of a server of your own",
            default=ca_file or ("yes" if default else "no"),
            is_optional=number == TLS_PORT and default and ca_file is None,
        )
    )
    tls = answer.lower() not in {"no", "n", "off", "false"}
    ca_file = None if answer.lower() in {"yes", "y", "no", "n", "on", "off", "true", "false"} else answer
    return replace(made, host=host, port=number, tls=tls, ca_file=ca_file)


def _nick(made: Irc) -> Flow[Irc]:
    nick = yield from ask(Ask(key="irc.nick", text="Nick", default=made.nick or "reverie", parse=as_nick))
    return replace(made, nick=nick)


def _account(made: Irc) -> Flow[Irc]:
    if made.mechanism == "external":
        return made
    if _readable(made):
        yield from tell("  Without TLS no password is sent to another machine, so it has no account there.")
        return replace(made, account=None, account_password=None)
    # Who has no services on a server of their own has no account there.
    default = made.account or (NONE if local(made.host) else made.nick)
    account = yield from ask(
        Ask(
            key="irc.account",
            text="Its account with the services, or `none`",
            default=default,
            noninteractive_default=made.account or NONE,
        )
    )
    if account.lower() == NONE:
        return replace(made, account=None, account_password=None)
    kept = made.account_password if account == made.account else None
    channel = made.channel or channel_of(made.host)
    password = yield from ask_secret(
        AskSecret(key="irc.password", text="Password of that account", file=f"{channel}.password", existing=kept)
    )
    return replace(made, account=account, account_password=password)


def _password(made: Irc, *, quiet: bool = False) -> Flow[Irc]:
    if _readable(made):
        return replace(made, server_password=None)
    channel = made.channel or channel_of(made.host)
    password = yield from ask_secret(
        AskSecret(
            key="irc.server.password",
            text="Password of the server, not of the services",
            file=f"{channel}.server-password",
            existing=made.server_password,
            is_optional=quiet,
        )
    )
    return replace(made, server_password=password if password.reference else None)


def _readable(made: Irc) -> bool:
    """Whether others could read a password on its way."""
    return not made.tls and not is_loopback(made.host)


def _contact(made: Irc) -> Flow[Irc]:
    if local(made.host):
        return made
    contact = yield from ask(
        Ask(key="irc.contact", text="Who runs it, and how to reach them", default=made.contact, parse=contact_of)
    )
    return replace(made, contact=contact)


def _rooms(made: Irc) -> Flow[Irc]:
    words = yield from ask(
        Ask(
            key="irc.rooms", text="Rooms that it joins, or `none`", default=" ".join(made.rooms) or NONE, parse=as_rooms
        )
    )
    return replace(made, rooms=() if words == NONE else several(words))


_QUESTIONS: Mapping[str, Callable[[Irc], Flow[Irc]]] = {
    "server": _server,
    "nick": _nick,
    "account": _account,
    "password": _password,
    "given": partial(_password, quiet=True),  # few servers have one, so it is asked for once it is missed
    "contact": _contact,
    "rooms": _rooms,
}


def _owner(made: Irc, before: str | None) -> Flow[str | None]:
    yield from tell(
        "",
        "  The owner may do everything, and is known by an account with the services, never by a nick.",
    )
    known = before.removeprefix("account:") if before else None
    while True:
        name = yield from ask(
            Ask(key="irc.owner", text=f"Your own account there, or `{LATER}`", default=known or LATER, parse=as_account)
        )
        if name == LATER:
            return None
        same = made.account is not None and name.lower() == made.account.lower()
        if not same or (yield from confirm("That is the bot's own account. Is it yours, too?", default=False)):
            return f"account:{name}"


def config_of(made: Irc) -> IrcConfig:
    """As the configuration will have it; without rooms, which a look does not need."""
    sasl = None
    if made.account and made.account_password:
        password = SecretStr(made.account_password.value or "")
        sasl = Sasl.model_validate({"mechanism": made.mechanism, "account": made.account, "password": password})
    secret = made.server_password
    return IrcConfig(
        host=made.host,
        port=made.port,
        tls=Tls(ca_file=made.ca_file) if made.tls and made.ca_file else made.tls,
        nick=made.nick,
        sasl=sasl,
        password=SecretStr(secret.value or "") if secret else None,
        contact=made.contact or ("setup" if not local(made.host) else None),
    )


def _known(made: Irc) -> bool:
    return all(secret.value is not None for secret in (made.account_password, made.server_password) if secret)
