"""What is asked about an IRC account. Pure.

What is asked about a Telegram bot. Pure.

What is asked about a Discord bot. Pure.

What is asked about every bot that has a token: the token, who it is, and whose it is. Pure.

How what is answered about IRC is written. Pure; each raises ValueError, whose text says how.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from pydantic import SecretStr, ValidationError

from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig, SaslConfig, TlsConfig, is_loopback
from channels.telegram.config import TelegramConfig
from gateway.cli.probes.base import Finding
from gateway.cli.probes.discord import DiscordProbeResult
from gateway.cli.probes.irc import IrcProbeResult
from gateway.cli.probes.telegram import PRIVACY_FIX, TelegramContacts, TelegramProbeResult
from gateway.cli.setup.dialog import (
    DialogFlow,
    DiscordAnswers,
    IrcAnswers,
    PersonProbeRequest,
    ProbeRequest,
    SecretQuestion,
    SecretReference,
    SetupQuestion,
    TelegramAnswers,
    WaitingProbeRequest,
    ask,
    ask_secret,
    confirm,
    request_probe,
    review_findings,
    split_words,
    tell,
)

LATER = "later"


BotReplyT = TypeVar("BotReplyT", TelegramProbeResult, DiscordProbeResult)


def ask_token(
    question: SecretQuestion,
    platform: str,
    unseen: BotReplyT,
    *,
    config: Callable[[SecretReference], TelegramConfig | DiscordConfig],
    name: Callable[[BotReplyT], str],
    later: str,
) -> DialogFlow[tuple[SecretReference, BotReplyT]]:
    """A token, and what was seen with it: `unseen` where it is not known here. Raises Skipped.

    `config`: with a token. `name`: empty: not known. `later`: the code of what is told with another question.
    """
    kept = question.existing
    while True:
        token = yield from ask_secret(replace(question, existing=kept))
        kept = token if not token.is_new else kept
        if token.value is None:
            yield from tell(f"  {token.reference} is not set here, so the token cannot be looked at now.")
            return token, unseen
        seen = yield from _check_token(platform, type(unseen), config(token), name, later)
        if seen is not None:
            return token, seen


def _check_token(
    platform: str,
    kind: type[BotReplyT],
    config: TelegramConfig | DiscordConfig,
    name: Callable[[BotReplyT], str],
    later: str,
) -> DialogFlow[BotReplyT | None]:
    """None: another token is to be asked for."""
    while True:
        yield from tell(f"  Asking {platform} ...")
        seen = yield from request_probe(ProbeRequest(config), kind)
        way = yield from review_findings(one for one in seen.findings if one.code != later)
        if way == "correct":
            return None
        if way == "again":
            continue
        if name(seen) and not (yield from confirm(f"Is {name(seen)} the one?")):
            return None
        return seen


def ask_owner(
    question: SetupQuestion,
    config: TelegramConfig | DiscordConfig | None,
    unknown: Callable[[str], DialogFlow[bool]],
    *,
    known: tuple[str | None, ...],
    found: Callable[[], DialogFlow[str | None]] | None = None,
) -> DialogFlow[str | None]:
    """The owner's id; None: told later.

    `config`: to look somebody up with; None: nobody can be. `unknown`: whether to take an id that nobody there has.
    `known`: ids that need no look. `found`: what an empty answer means; its None: ask again.
    """
    while True:
        answer = yield from ask(question)
        if answer == LATER:
            return None
        if answer == "" and found is not None:
            if (number := (yield from found())) is not None:
                return number
            continue
        if config is None or answer in known:
            return answer
        if who := (yield ProbeRequest(PersonProbeRequest(config, answer))):
            yield from tell(f"  That is {who}.")
            return answer
        if (yield from unknown(answer)):
            return answer


_DISCORD_INTRO = (
    "",
    "Discord",
    "  A bot is made at https://discord.com/developers/applications",
    "  New Application, then Bot: switch on MESSAGE CONTENT INTENT; Reset Token shows the token.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordSetup:
    """What came out."""

    channel: DiscordAnswers
    owner: str | None
    """The owner's id. None: not told."""


def ask_discord(
    before: DiscordAnswers | None, owner: str | None, channel: str, urls: tuple[str | None, str | None] = (None, None)
) -> DialogFlow[DiscordSetup]:
    """Raises Skipped. `urls`: of another server, for HTTP and for the gateway."""
    yield from tell(*_DISCORD_INTRO)
    made = before or DiscordAnswers(channel=channel, token=SecretReference(reference=""))
    made = replace(made, api_url=urls[0] or made.api_url, gateway_url=urls[1] or made.gateway_url)
    token, seen = yield from ask_token(
        SecretQuestion(
            key="discord.token", text="Token", file=f"{channel}.token", existing=before.token if before else None
        ),
        "Discord",
        DiscordProbeResult(),
        config=lambda token: build_discord_config(replace(made, token=token, rooms=())),
        name=lambda seen: seen.name,
        later="discord.guilds",
    )
    made = replace(made, token=token, name=seen.name, invitation=seen.invitation_url)
    rooms = yield from _ask_discord_rooms(made, seen)
    told = yield from _ask_discord_owner(made, owner, seen)
    return DiscordSetup(channel=replace(made, rooms=rooms), owner=told)


def _ask_discord_rooms(made: DiscordAnswers, seen: DiscordProbeResult) -> DialogFlow[tuple[str, ...]]:
    while not seen.guilds and seen.id:
        yield from tell("", "  It is in no guild yet. Open this address, and choose where it is to be:", "")
        yield from tell(f"  {seen.invitation_url}", "")
        answer = yield from ask(
            SetupQuestion(
                key="",
                text="Press Enter once it is there, or `go on` without",
                default="",
                noninteractive_default="go on",
            )
        )
        if answer:
            break
        seen = yield from request_probe(ProbeRequest(build_discord_config(made)), DiscordProbeResult)
    yield from tell("", *(f"  {number}  {name}" for number, name in seen.guilds[:10]))
    default = " ".join(made.rooms) or (seen.guilds[0][0] if len(seen.guilds) == 1 else "none")
    while True:
        answer = yield from ask(
            SetupQuestion(
                key="discord.rooms",
                text="Where it may act: ids of these or of channels, `*`, `none`",
                default=default,
                parse=_parse_discord_rooms,
            )
        )
        rooms = () if answer == "none" else split_words(answer)
        wanted = [room for room in rooms if room != "*" and room not in {number for number, _ in seen.guilds}]
        if made.token.value is None or not wanted:
            return rooms
        checked = yield from request_probe(
            ProbeRequest(build_discord_config(replace(made, rooms=tuple(wanted)))), DiscordProbeResult
        )
        way = yield from review_findings(
            [one for one in checked.findings if one.code == "discord.rooms"], skip=False, also=("discord.rooms",)
        )
        if way == "go on":
            return rooms


def _ask_discord_owner(made: DiscordAnswers, before: str | None, seen: DiscordProbeResult) -> DialogFlow[str | None]:
    number, name = seen.owner
    yield from tell("", "  The owner may do everything, and is known by an id of Discord's.")
    if before is None and number:
        yield from tell(f"  The application belongs to {name} ({number}).")
    elif before is None:
        yield from tell("  Yours: Settings, Advanced, Developer Mode; then right-click your name, Copy User ID.")
    return (
        yield from ask_owner(
            SetupQuestion(
                key="discord.owner",
                text=f"Your id, or `{LATER}`",
                default=before or number or LATER,
                parse=_parse_discord_id,
            ),
            build_discord_config(made) if made.token.value is not None else None,
            lambda answer: confirm(f"Discord knows nobody with the id {answer}. Take it all the same?", default=False),
            known=(before, number),
        )
    )


def build_discord_config(made: DiscordAnswers) -> DiscordConfig:
    """As the configuration will have it."""
    more = {"api_url": made.api_url, "gateway_url": made.gateway_url}
    token = SecretStr(made.token.value or "")
    base = {"platform": "discord", "token": token, "rooms": made.rooms}
    return DiscordConfig.model_validate(base | {key: value for key, value in more.items() if value})


def _parse_discord_id(words: str) -> str:
    words = words.strip().lower()
    if words != LATER and not re.fullmatch(r"[0-9]{1,20}", words):
        raise ValueError("an id is a number, e.g. 123456789012345678")
    return words


def _parse_discord_rooms(words: str) -> str:
    words = words.strip().lower()
    if words in {"", "none"}:
        return "none"
    for one in split_words(words):
        if not re.fullmatch(r"[0-9]{1,20}|\*", one):
            raise ValueError(f"{one} is no id: right-click the channel or the guild, Copy ID (in developer mode)")
    return " ".join(split_words(words))


NONE: Final = "none"
TLS_PORT: Final = 6697
"""RFC 7194."""


def irc_channel_name(host: str) -> str:
    """The name of its channel: `irc.libera` for irc.libera.chat."""
    if is_local_host(host) or re.fullmatch(r"[0-9.:]+", host):
        return "irc.local" if is_local_host(host) else "irc.main"
    labels = host.lower().split(".")
    name = re.sub(r"[^a-z0-9-]", "", labels[-2] if len(labels) > 1 else labels[0])
    return f"irc.{name or 'main'}"


def is_local_host(host: str) -> bool:
    """Whether it is this machine."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def parse_irc_address(words: str) -> str:
    """`host:port`; the port for TLS where none is written."""
    words = words.strip()
    host, colon, port = words.rpartition(":")
    bare = ":" in host and not host.endswith("]")  # IPv6 without a port
    if not colon or bare or words.endswith("]"):
        host, port = words, str(TLS_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:  # noqa: PLR2004 - of TCP
        raise ValueError("write host or host:port, e.g. irc.libera.chat:6697")
    _validate_irc(host=host)
    return f"{host}:{int(port)}"


def parse_irc_nick(words: str) -> str:
    """A nick."""
    _validate_irc(nick=words.strip())
    return words.strip()


def parse_irc_rooms(words: str) -> str:
    """Rooms with spaces between them, or `none`."""
    if words.strip().lower() in {"", NONE}:
        return NONE
    rooms = [f"#{room}" if room[0].isalnum() else room for room in split_words(words)]
    _validate_irc(rooms=rooms)
    return " ".join(rooms)


def parse_irc_account(words: str) -> str:
    """The name of an account, or `later`."""
    words = words.strip()
    if words.lower() == LATER:
        return LATER
    name = words.removeprefix("account:")
    if not name or not re.fullmatch(r"[^\s:!@*]+", name):
        raise ValueError("that is no account: write the name with which you log in to the services")
    return name


def parse_irc_contact(words: str) -> str:
    """Anything but nothing."""
    if not words.strip():
        raise ValueError("networks want to be able to reach whoever runs a bot: a name, and an address or a nick")
    return words.strip()


def _validate_irc(**given: object) -> None:
    """As the adapter's settings have it. Raises ValueError with their words."""
    try:
        IrcConfig.model_validate({"host": "127.0.0.1", "nick": "reverie", "contact": "x"} | given)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


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


_TELEGRAM_INTRO = (
    "",
    "Telegram",
    "  A bot is made by talking to @BotFather: send /newbot, choose a name, copy the token.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSetup:
    """What came out."""

    channel: TelegramAnswers
    owner: str | None
    """The owner's id. None: not told."""


def ask_telegram(
    before: TelegramAnswers | None, owner: str | None, channel: str, *, polled: bool, url: str | None = None
) -> DialogFlow[TelegramSetup]:
    """Raises Skipped. `polled`: a gateway of ours runs with this bot, so its messages are not to be asked for.

    `url`: of another Bot API server.
    """
    yield from tell(*_TELEGRAM_INTRO)
    base = url or (before.base_url if before else None)
    made = replace(before or TelegramAnswers(channel=channel, token=SecretReference(reference="")), base_url=base)
    question = SecretQuestion(
        key="telegram.token",
        text="Token",
        file=f"{channel}.token",
        existing=before.token if before else None,
        parse=_parse_telegram_token,
    )
    token, seen = yield from ask_token(
        question,
        "Telegram",
        TelegramProbeResult(),
        config=lambda token: build_telegram_config(replace(made, token=token, rooms=())),
        name=lambda seen: f"@{seen.username}" if seen.username else "",
        later="telegram.commands",
    )
    made = replace(made, token=token, username=seen.username)
    told = yield from _ask_telegram_owner(made, owner, polled=polled)
    rooms = yield from _ask_telegram_rooms(made, polled=polled)
    made = replace(made, rooms=rooms)
    if rooms and seen.reads_whole_groups is False:
        yield from _ask_privacy(made)
    return TelegramSetup(channel=made, owner=told)


def _ask_telegram_owner(made: TelegramAnswers, before: str | None, *, polled: bool) -> DialogFlow[str | None]:
    name = f"@{made.username}" if made.username else "the bot"
    lines = ["", "  The owner may do everything, and is known by an id of Telegram's."]
    if before is None and not polled and made.token.value is not None:
        lines.append(f"  Write anything to {name} in Telegram now, then press Enter here: the id is read from it.")
    elif before is None:
        lines.append(f"  To see yours, say /whoami to {name} once it runs.")
    yield from tell(*lines)
    readable = before is None and not polled and made.token.value is not None
    default = before or ("" if readable else LATER)
    question = SetupQuestion(
        key="telegram.owner",
        text=f"Your id, or `{LATER}`" + (", or Enter once you have written" if default == "" else ""),
        default=default,
        noninteractive_default=before or LATER,
        parse=_parse_telegram_id,
    )
    return (
        yield from ask_owner(
            question,
            build_telegram_config(made) if made.token.value is not None else None,
            lambda answer: confirm(f"{name} has never met anybody with the id {answer}. Take it all the same?"),
            known=(before,),
            found=lambda: _ask_who_wrote(made),
        )
    )


def _ask_who_wrote(made: TelegramAnswers) -> DialogFlow[str | None]:
    """Who has written to the bot; None: nobody, or not the owner."""
    waiting = yield from request_probe(ProbeRequest(WaitingProbeRequest(build_telegram_config(made))), TelegramContacts)
    yield from review_findings(waiting.findings)
    if not waiting.people:
        yield from tell("  Nothing has come yet.")
    for number, name in waiting.people[:5]:
        if (yield from confirm(f"{name}, id {number}, wrote to it. Is that you?")):
            return number
    return None


def _ask_telegram_rooms(made: TelegramAnswers, *, polled: bool) -> DialogFlow[tuple[str, ...]]:
    findable = made.token.value is not None and not polled
    yield from tell(
        "",
        "  Private chats always work. Groups are optional"
        + (": `look` lists those that it was just added to, or spoken to in." if findable else "."),
    )
    while True:
        answer = yield from ask(
            SetupQuestion(
                key="telegram.groups",
                text="Groups where it may act: ids, `*`, `none`",
                default=" ".join(made.rooms) or "none",
                parse=_parse_telegram_groups,
            )
        )
        if answer != "look":
            return () if answer == "none" else split_words(answer)
        waiting = yield from request_probe(
            ProbeRequest(WaitingProbeRequest(build_telegram_config(made))), TelegramContacts
        )
        lines = [f"  {number}  {title}" for number, title in waiting.groups]
        yield from tell(*(lines or ["  No group was seen. Add the bot to one, and say something to it there."]))
        if waiting.groups:
            made = replace(made, rooms=tuple(number for number, _ in waiting.groups))


def _ask_privacy(made: TelegramAnswers) -> DialogFlow[None]:
    """Privacy mode hides from it what is not said to it: that may be meant so."""
    while True:
        yield from tell("", f"  In groups it is shown only what is said to it. That may be meant so; {PRIVACY_FIX}.")
        answer = yield from ask(
            SetupQuestion(
                key="",
                text="Press Enter to look again, or `go on` as it is",
                default="",
                noninteractive_default="go on",
            )
        )
        if answer:
            return
        seen = yield from request_probe(ProbeRequest(build_telegram_config(made)), TelegramProbeResult)
        yield from review_findings(one for one in seen.findings if one.code in {"telegram.privacy", "telegram.rooms"})
        if seen.reads_whole_groups is not False:
            return


def build_telegram_config(made: TelegramAnswers) -> TelegramConfig:
    """As the configuration will have it."""
    more = {"base_url": made.base_url} if made.base_url else {}
    token = SecretStr(made.token.value or "")
    return TelegramConfig.model_validate({"platform": "telegram", "token": token, "rooms": made.rooms} | more)


def _parse_telegram_token(words: str) -> str:
    words = words.strip()
    try:
        build_telegram_config(TelegramAnswers(channel="x", token=SecretReference(reference="", value=words)))
    except ValidationError:
        raise ValueError("that is no token; copy it from @BotFather, it reads like 123456:ABC-DEF") from None
    return words


def _parse_telegram_id(words: str) -> str:
    words = words.strip().lower()
    if words in {"", LATER}:
        return words
    if words.startswith("@"):
        raise ValueError("a @name can change hands; an id is a number, and /whoami shows it once the bot runs")
    if words.startswith("-"):
        raise ValueError("that is a group's id; a person's is a number without a minus")
    if not re.fullmatch(r"[0-9]{1,20}", words):
        raise ValueError("an id is a number, e.g. 1234567")
    return words


def _parse_telegram_groups(words: str) -> str:
    words = words.strip().lower()
    if words in {"", "none", "look", "*"}:
        return words or "none"
    for one in split_words(words):
        if not re.fullmatch(r"-[0-9]{1,20}", one) and one != "*":
            raise ValueError(f"{one} is not a group's id: these are numbers that begin with a minus")
    return " ".join(split_words(words))
