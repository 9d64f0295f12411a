"""What is asked about an IRC account. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pydantic import SecretStr

from channels.irc.config import IrcConfig, SaslConfig, TlsConfig, is_loopback
from gateway.probes.base import Finding
from gateway.probes.irc import IrcProbeResult
from gateway.setup.answers import IrcAnswers
from gateway.setup.ask_bot import LATER
from gateway.setup.dialog import (
    DialogFlow,
    ProbeRequest,
    SecretQuestion,
    SetupQuestion,
    ask,
    ask_secret,
    confirm,
    request_probe,
    review_findings,
    split_words,
    tell,
)
from gateway.setup.irc_words import (
    NONE,
    TLS_PORT,
    irc_channel_name,
    is_local_host,
    parse_irc_account,
    parse_irc_address,
    parse_irc_contact,
    parse_irc_nick,
    parse_irc_rooms,
)

_PLAIN_PORT = 6667
"""Where servers listen without TLS: RFC 1459 8.11.1."""
_IRC_INTRO = (
    "",
    "IRC",
    "  If the network has services, register the bot's nick with them first, as you did yours.",
    "  Many networks want to know who runs a bot. Ask a room before you bring one.",
)
_ALL_QUESTIONS = ("server", "given", "nick", "account", "contact", "rooms")
_REVIEWED_WARNINGS = ("irc.nick", "irc.sts")
"""What is worth a question though it works."""
_QUESTION_BY_CODE = {
    "irc.nick": "nick",
    "irc.sasl": "account",
    "irc.password": "password",
    "irc.sts": "server",
    "irc.tls": "server",
    "net.": "server",
}
"""Which questions a finding asks anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcSetup:
    """What came out."""

    channel: IrcAnswers
    owner: str | None
    """`account:NAME`. None: not told."""


def ask_irc(before: IrcAnswers | None, owner: str | None) -> DialogFlow[IrcSetup]:
    """Raises Skipped."""
    yield from tell(*_IRC_INTRO)
    made = before or IrcAnswers(channel="", host="", nick="")
    wanted: tuple[str, ...] = _ALL_QUESTIONS
    while True:
        for one in wanted:
            made = yield from _IRC_QUESTIONS[one](made)
        made = replace(made, channel=before.channel if before else irc_channel_name(made.host))
        if not _are_passwords_known(made):
            yield from tell("  A password is not set here, so this cannot be tried now.")
            break
        yield from tell(f"  Connecting to {made.host}:{made.port} ...")
        seen = yield from request_probe(ProbeRequest(build_irc_config(made)), IrcProbeResult)
        way = yield from review_findings(seen.findings, also=_REVIEWED_WARNINGS)
        if way == "go on":
            break
        wanted = _questions_to_repeat(seen.findings) if way == "correct" else ()
        # What was refused is not proposed again, if it was typed just now.
        if "account" in wanted and wanted != _ALL_QUESTIONS and made.account_password and made.account_password.is_new:
            made = replace(made, account_password=None)
        if "password" in wanted and made.server_password and made.server_password.is_new:
            made = replace(made, server_password=None)
    told = yield from _ask_irc_owner(made, owner)
    return IrcSetup(channel=made, owner=told)


def _questions_to_repeat(findings: Iterable[Finding]) -> tuple[str, ...]:
    wrong = [
        one.code
        for one in findings
        if one.level == "bad" or (one.level == "warning" and one.code in _REVIEWED_WARNINGS)
    ]
    found = {question for code in wrong for start, question in _QUESTION_BY_CODE.items() if code.startswith(start)}
    return tuple(one for one in ("server", "nick", "account", "password") if one in found) or _ALL_QUESTIONS


def _ask_irc_server(made: IrcAnswers) -> DialogFlow[IrcAnswers]:
    there = f"{made.host}:{made.port}" if made.host else "irc.libera.chat:6697"
    words = yield from ask(SetupQuestion(key="irc.server", text="Server", default=there, parse=parse_irc_address))
    host, _, port = words.rpartition(":")
    number = int(port)
    same = made.host == host and made.port == number
    default = made.tls if same else number != _PLAIN_PORT and not is_local_host(host)
    ca_file = made.ca_file if same else None
    answer = yield from ask(
        SetupQuestion(
            key="irc.tls",
            text="TLS: yes, no, or a file with the root of a server of your own",
            default=ca_file or ("yes" if default else "no"),
            is_optional=number == TLS_PORT and default and ca_file is None,
        )
    )
    tls = answer.lower() not in {"no", "n", "off", "false"}
    ca_file = None if answer.lower() in {"yes", "y", "no", "n", "on", "off", "true", "false"} else answer
    return replace(made, host=host, port=number, tls=tls, ca_file=ca_file)


def _ask_irc_nick(made: IrcAnswers) -> DialogFlow[IrcAnswers]:
    nick = yield from ask(
        SetupQuestion(key="irc.nick", text="Nick", default=made.nick or "reverie", parse=parse_irc_nick)
    )
    return replace(made, nick=nick)


def _ask_irc_account(made: IrcAnswers) -> DialogFlow[IrcAnswers]:
    if made.mechanism == "external":
        return made
    if _is_password_exposed(made):
        yield from tell("  Without TLS no password is sent to another machine, so it has no account there.")
        return replace(made, account=None, account_password=None)
    # Who has no services on a server of their own has no account there.
    default = made.account or (NONE if is_local_host(made.host) else made.nick)
    account = yield from ask(
        SetupQuestion(
            key="irc.account",
            text="Its account with the services, or `none`",
            default=default,
            noninteractive_default=made.account or NONE,
        )
    )
    if account.lower() == NONE:
        return replace(made, account=None, account_password=None)
    kept = made.account_password if account == made.account else None
    channel = made.channel or irc_channel_name(made.host)
    password = yield from ask_secret(
        SecretQuestion(key="irc.password", text="Password of that account", file=f"{channel}.password", existing=kept)
    )
    return replace(made, account=account, account_password=password)


def _ask_irc_password(made: IrcAnswers, *, quiet: bool = False) -> DialogFlow[IrcAnswers]:
    if _is_password_exposed(made):
        return replace(made, server_password=None)
    channel = made.channel or irc_channel_name(made.host)
    password = yield from ask_secret(
        SecretQuestion(
            key="irc.server.password",
            text="Password of the server, not of the services",
            file=f"{channel}.server-password",
            existing=made.server_password,
            is_optional=quiet,
        )
    )
    return replace(made, server_password=password if password.reference else None)


def _is_password_exposed(made: IrcAnswers) -> bool:
    """Whether others could read a password on its way."""
    return not made.tls and not is_loopback(made.host)


def _ask_irc_contact(made: IrcAnswers) -> DialogFlow[IrcAnswers]:
    if is_local_host(made.host):
        return made
    contact = yield from ask(
        SetupQuestion(
            key="irc.contact", text="Who runs it, and how to reach them", default=made.contact, parse=parse_irc_contact
        )
    )
    return replace(made, contact=contact)


def _ask_irc_rooms(made: IrcAnswers) -> DialogFlow[IrcAnswers]:
    words = yield from ask(
        SetupQuestion(
            key="irc.rooms",
            text="Rooms that it joins, or `none`",
            default=" ".join(made.rooms) or NONE,
            parse=parse_irc_rooms,
        )
    )
    return replace(made, rooms=() if words == NONE else split_words(words))


_IRC_QUESTIONS: Mapping[str, Callable[[IrcAnswers], DialogFlow[IrcAnswers]]] = {
    "server": _ask_irc_server,
    "nick": _ask_irc_nick,
    "account": _ask_irc_account,
    "password": _ask_irc_password,
    "given": partial(_ask_irc_password, quiet=True),  # few servers have one, so it is asked for once it is missed
    "contact": _ask_irc_contact,
    "rooms": _ask_irc_rooms,
}


def _ask_irc_owner(made: IrcAnswers, before: str | None) -> DialogFlow[str | None]:
    yield from tell(
        "",
        "  The owner may do everything, and is known by an account with the services, never by a nick.",
    )
    known = before.removeprefix("account:") if before else None
    while True:
        name = yield from ask(
            SetupQuestion(
                key="irc.owner",
                text=f"Your own account there, or `{LATER}`",
                default=known or LATER,
                parse=parse_irc_account,
            )
        )
        if name == LATER:
            return None
        same = made.account is not None and name.lower() == made.account.lower()
        if not same or (yield from confirm("That is the bot's own account. Is it yours, too?", default=False)):
            return f"account:{name}"


def build_irc_config(made: IrcAnswers) -> IrcConfig:
    """As the configuration will have it; without rooms, which a look does not need."""
    sasl = None
    if made.account and made.account_password:
        password = SecretStr(made.account_password.value or "")
        sasl = SaslConfig.model_validate({"mechanism": made.mechanism, "account": made.account, "password": password})
    secret = made.server_password
    return IrcConfig(
        host=made.host,
        port=made.port,
        tls=TlsConfig(ca_file=made.ca_file) if made.tls and made.ca_file else made.tls,
        nick=made.nick,
        sasl=sasl,
        password=SecretStr(secret.value or "") if secret else None,
        contact=made.contact or ("setup" if not is_local_host(made.host) else None),
    )


def _are_passwords_known(made: IrcAnswers) -> bool:
    return all(secret.value is not None for secret in (made.account_password, made.server_password) if secret)
