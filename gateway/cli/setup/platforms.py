"""Questions about Telegram, Discord and IRC.

Parsers of answers raise ValueError with a hint on the correct form.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pydantic import SecretStr, ValidationError

from channels.discord.check import DiscordProbeResult, find_discord_name, probe_discord
from channels.discord.config import DiscordConfig
from channels.irc.check import probe_irc, probe_irc_server
from channels.irc.config import IrcConfig, SaslConfig, TlsConfig
from channels.telegram.check import (
    PRIVACY_FIX,
    TelegramProbeResult,
    find_contacts,
    find_telegram_name,
    probe_telegram,
)
from channels.telegram.config import TelegramConfig
from gateway.cli.setup.dialog import (
    DiscordAnswers,
    IrcAnswers,
    Respondent,
    SecretQuestion,
    SecretReference,
    SetupQuestion,
    TelegramAnswers,
    review_findings,
    split_words,
)
from gateway.core.addresses import is_loopback_host
from gateway.core.findings import Finding

LATER = "later"


BotReplyT = TypeVar("BotReplyT", TelegramProbeResult, DiscordProbeResult)


def ask_token(
    person: Respondent,
    question: SecretQuestion,
    unseen: BotReplyT,
    *,
    probe: Callable[[SecretReference], Coroutine[None, None, BotReplyT]],
    name: Callable[[BotReplyT], str],
    later: str,
) -> tuple[SecretReference, BotReplyT]:
    """Ask for a token and probe it.

    Return it with the result, `unseen` if its value is not known. Raises PlatformSkipped.

    `name`: returns the bot's name; empty: not known. `later`: code of a finding that is shown with
    another question.
    """
    existing, platform = question.existing, question.key.partition(".")[0].capitalize()
    while True:
        token = person.ask_secret(replace(question, existing=existing))
        existing = token if not token.is_new else existing
        if token.value is None:
            person.tell(
                f"  {token.reference} is not set here, so setup cannot check the token now."
            )
            return token, unseen
        way, result = "again", unseen
        while way == "again":
            person.tell(f"  Asking {platform} ...")
            result = person.probe(probe(token))
            way = review_findings(person, (one for one in result.findings if one.code != later))
        if way != "correct" and (
            not name(result) or person.confirm(f"Is {name(result)} the right bot?")
        ):
            return token, result


def ask_owner(
    person: Respondent,
    question: SetupQuestion,
    find_name: Callable[[str], Coroutine[None, None, str]] | None,
    doubt: Callable[[str], bool],
    *,
    known: tuple[str | None, ...],
    find_id: Callable[[], str | None] | None = None,
) -> str | None:
    """Ask for the owner's id; None: later.

    `find_name`: returns the name of an id; None: nobody can be looked up. `doubt`: asks whether to
    accept an id that nobody has. `known`: ids that are not looked up. `find_id`: returns the id for
    empty input; its None: ask again.
    """
    while True:
        answer = person.ask(question)
        if answer == LATER:
            return None
        if answer == "" and find_id is not None:
            if (number := find_id()) is not None:
                return number
            continue
        if find_name is None or answer in known:
            return answer
        if who := person.probe(find_name(answer)):
            person.tell(f"  That is {who}.")
            return answer
        if doubt(answer):
            return answer


_DISCORD_INTRO = (
    "",
    "Discord",
    "  Create a bot at https://discord.com/developers/applications",
    "  New Application, then Bot: switch on MESSAGE CONTENT INTENT; Reset Token shows the token.",
)


def ask_discord(
    person: Respondent,
    before: DiscordAnswers | None,
    owner: str | None,
    channel: str,
    urls: tuple[str | None, str | None] = (None, None),
) -> tuple[DiscordAnswers, str | None]:
    """Ask about a Discord bot; return it and its owner's id. Raises PlatformSkipped.

    `urls`: of another server, for HTTP and for the gateway.
    """
    person.tell(*_DISCORD_INTRO)
    answers = before or DiscordAnswers(channel=channel, token=SecretReference(reference=""))
    answers = replace(
        answers, api_url=urls[0] or answers.api_url, gateway_url=urls[1] or answers.gateway_url
    )
    token, result = ask_token(
        person,
        SecretQuestion(
            "discord.token", "Token", f"{channel}.token", existing=before.token if before else None
        ),
        DiscordProbeResult(),
        probe=lambda token: probe_discord(
            build_discord_config(replace(answers, token=token, rooms=()))
        ),
        name=lambda result: result.name,
        later="discord.guilds",
    )
    answers = replace(answers, token=token, name=result.name, invitation=result.invitation_url)
    rooms = _ask_discord_rooms(person, answers, result)
    owner_id = _ask_discord_owner(person, answers, owner, result)
    return replace(answers, rooms=rooms), owner_id


def _ask_discord_rooms(
    person: Respondent, answers: DiscordAnswers, result: DiscordProbeResult
) -> tuple[str, ...]:
    while not result.guilds and result.id:
        person.tell("", "  It is in no guild yet. Open this address and choose a guild:", "")
        person.tell(f"  {result.invitation_url}", "")
        answer = person.ask(
            SetupQuestion(
                "",
                "Press Enter when it is there, or write `go on`",
                default="",
                noninteractive_default="go on",
            )
        )
        if answer:
            break
        result = person.probe(probe_discord(build_discord_config(answers)))
    person.tell("", *(f"  {number}  {name}" for number, name in result.guilds[:10]))
    default = " ".join(answers.rooms) or (
        result.guilds[0][0] if len(result.guilds) == 1 else "none"
    )
    while True:
        answer = person.ask(
            SetupQuestion(
                "discord.rooms",
                "Where the bot may act: ids of these or of channels, `*`, `none`",
                default=default,
                parse=_parse_discord_rooms,
            )
        )
        rooms = () if answer == "none" else split_words(answer)
        wanted = [
            room
            for room in rooms
            if room != "*" and room not in {number for number, _ in result.guilds}
        ]
        if answers.token.value is None or not wanted:
            return rooms
        checked = person.probe(
            probe_discord(build_discord_config(replace(answers, rooms=tuple(wanted))))
        )
        way = review_findings(
            person,
            [one for one in checked.findings if one.code == "discord.rooms"],
            skip=False,
            also=("discord.rooms",),
        )
        if way == "go on":
            return rooms


def _ask_discord_owner(
    person: Respondent, answers: DiscordAnswers, before: str | None, result: DiscordProbeResult
) -> str | None:
    number, name = result.owner
    person.tell("", "  The owner may do everything, and is identified by a Discord id.")
    if before is None and number:
        person.tell(f"  The application belongs to {name} ({number}).")
    elif before is None:
        person.tell(
            "  Yours: Settings, Advanced, Developer Mode; then right-click your name, Copy User ID."
        )
    return ask_owner(
        person,
        SetupQuestion(
            "discord.owner",
            f"Your id, or `{LATER}`",
            default=before or number or LATER,
            parse=_parse_discord_id,
        ),
        partial(find_discord_name, build_discord_config(answers))
        if answers.token.value is not None
        else None,
        lambda answer: person.confirm(
            f"Discord knows nobody with the id {answer}. Use it anyway?", default=False
        ),
        known=(before, number),
    )


def build_discord_config(answers: DiscordAnswers) -> DiscordConfig:
    """Build the channel as the configuration will have it."""
    more = {"api_url": answers.api_url, "gateway_url": answers.gateway_url}
    token = SecretStr(answers.token.value or "")
    base = {"platform": "discord", "token": token, "rooms": answers.rooms}
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
            raise ValueError(
                f"{one} is not an id: right-click the channel or the guild, Copy ID (in developer "
                "mode)"
            )
    return " ".join(split_words(words))


NONE: Final = "none"
TLS_PORT: Final = 6697
"""Port for TLS: RFC 7194."""


def irc_channel_name(host: str) -> str:
    """Return a channel name for a host: `irc.libera` for irc.libera.chat."""
    if is_loopback_host(host) or re.fullmatch(r"[0-9.:]+", host):
        return "irc.local" if is_loopback_host(host) else "irc.main"
    labels = host.lower().split(".")
    name = re.sub(r"[^a-z0-9-]", "", labels[-2] if len(labels) > 1 else labels[0])
    return f"irc.{name or 'main'}"


def parse_irc_address(words: str) -> str:
    """Parse `host` or `host:port` to `host:port`; the default port is that of TLS."""
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
    """Parse a nick."""
    _validate_irc(nick=words.strip())
    return words.strip()


def parse_irc_rooms(words: str) -> str:
    """Parse rooms separated by spaces, or `none`."""
    if words.strip().lower() in {"", NONE}:
        return NONE
    rooms = [f"#{room}" if room[0].isalnum() else room for room in split_words(words)]
    _validate_irc(rooms=rooms)
    return " ".join(rooms)


def parse_irc_account(words: str) -> str:
    """Parse an account name, or `later`."""
    words = words.strip()
    if words.lower() == LATER:
        return LATER
    name = words.removeprefix("account:")
    if not name or not re.fullmatch(r"[^\s:!@*]+", name):
        raise ValueError(
            "that is not an account: write the name with which you log in to the services"
        )
    return name


def parse_irc_contact(words: str) -> str:
    """Parse a contact: any text that is not blank."""
    if not words.strip():
        raise ValueError("networks want a contact for every bot: a name, and an address or a nick")
    return words.strip()


def _validate_irc(**given: object) -> None:
    """Validate values with the model of the channel's configuration. Raises ValueError with its
    message.
    """
    try:
        IrcConfig.model_validate({"host": "127.0.0.1", "nick": "reverie", "contact": "x"} | given)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


_PLAIN_PORT = 6667
"""Port of servers without TLS: RFC 1459, 8.11.1."""
_IRC_INTRO = (
    "",
    "IRC",
    "  If the network has services, register the bot's nick with them first, as you did yours.",
    "  Many networks want to know who runs a bot. Ask in a room before you bring one.",
)
_ALL_QUESTIONS = ("server", "given", "nick", "account", "contact", "rooms")
_REVIEWED_WARNINGS = ("irc.nick", "irc.sts")
"""Codes of warnings that are asked about."""
_QUESTION_BY_CODE = {
    "irc.nick": "nick",
    "irc.sasl": "account",
    "irc.password": "password",
    "irc.sts": "server",
    "irc.tls": "server",
    "net.": "server",
}
"""Question to repeat, by the beginning of a finding's code."""


def ask_irc(
    person: Respondent, before: IrcAnswers | None, owner: str | None
) -> tuple[IrcAnswers, str | None]:
    """Ask about an IRC account; return it and its owner as `account:NAME`. Raises
    PlatformSkipped.
    """
    person.tell(*_IRC_INTRO)
    answers = before or IrcAnswers(channel="", host="", nick="")
    wanted: tuple[str, ...] = _ALL_QUESTIONS
    while True:
        for one in wanted:
            answers = _IRC_QUESTIONS[one](person, answers)
        answers = replace(
            answers, channel=before.channel if before else irc_channel_name(answers.host)
        )
        if not _are_passwords_known(answers):
            person.tell("  A password is not set here, so setup cannot test this now.")
            break
        person.tell(f"  Logging in to {answers.host}:{answers.port} ...")
        findings = person.probe(
            probe_irc(_with_ca_path(build_irc_config(answers), person.directory))
        )
        way = review_findings(person, findings, also=_REVIEWED_WARNINGS)
        if way == "go on":
            break
        wanted = _questions_to_repeat(findings) if way == "correct" else ()
        # A refused secret is not proposed again if it was just typed.
        if (
            "account" in wanted
            and wanted != _ALL_QUESTIONS
            and answers.account_password
            and answers.account_password.is_new
        ):
            answers = replace(answers, account_password=None)
        if "password" in wanted and answers.server_password and answers.server_password.is_new:
            answers = replace(answers, server_password=None)
    owner_account = _ask_irc_owner(person, answers, owner)
    return answers, owner_account


def _questions_to_repeat(findings: Iterable[Finding]) -> tuple[str, ...]:
    wrong = [
        one.code
        for one in findings
        if one.level == "bad" or (one.level == "warning" and one.code in _REVIEWED_WARNINGS)
    ]
    found = {
        question
        for code in wrong
        for start, question in _QUESTION_BY_CODE.items()
        if code.startswith(start)
    }
    return (
        tuple(one for one in ("server", "nick", "account", "password") if one in found)
        or _ALL_QUESTIONS
    )


def _ask_irc_server(person: Respondent, answers: IrcAnswers) -> IrcAnswers:
    """Ask for the server until it can be reached, or the person accepts that it cannot."""
    while True:
        answers = _ask_irc_address(person, answers)
        bare = replace(answers, nick="reverie", account=None, server_password=None)
        way = "again"
        while way == "again":
            person.tell(f"  Connecting to {answers.host}:{answers.port} ...")
            findings = person.probe(
                probe_irc_server(_with_ca_path(build_irc_config(bare), person.directory))
            )
            way = review_findings(person, findings)
        if way != "correct":
            return answers


def _ask_irc_address(person: Respondent, answers: IrcAnswers) -> IrcAnswers:
    address = f"{answers.host}:{answers.port}" if answers.host else "irc.libera.chat:6697"
    words = person.ask(
        SetupQuestion("irc.server", "Server", default=address, parse=parse_irc_address)
    )
    host, _, port = words.rpartition(":")
    number = int(port)
    same = answers.host == host and answers.port == number
    default = answers.tls if same else number != _PLAIN_PORT and not is_loopback_host(host)
    ca_file = answers.ca_file if same else None
    answer = person.ask(
        SetupQuestion(
            "irc.tls",
            "TLS: yes, no, or a file with the root certificate of your own server",
            default=ca_file or ("yes" if default else "no"),
            is_optional=number == TLS_PORT and default and ca_file is None,
        )
    )
    tls = answer.lower() not in {"no", "n", "off", "false"}
    ca_file = (
        None if answer.lower() in {"yes", "y", "no", "n", "on", "off", "true", "false"} else answer
    )
    return replace(answers, host=host, port=number, tls=tls, ca_file=ca_file)


def _ask_irc_nick(person: Respondent, answers: IrcAnswers) -> IrcAnswers:
    nick = person.ask(
        SetupQuestion("irc.nick", "Nick", default=answers.nick or "reverie", parse=parse_irc_nick)
    )
    return replace(answers, nick=nick)


def _ask_irc_account(person: Respondent, answers: IrcAnswers) -> IrcAnswers:
    if answers.mechanism == "external":
        return answers
    if _is_password_exposed(answers):
        person.tell(
            "  Without TLS, the bot sends no password to another machine, so it has no account "
            "there."
        )
        return replace(answers, account=None, account_password=None)
    # A private server mostly has no services, so the default there is no account.
    default = answers.account or (NONE if is_loopback_host(answers.host) else answers.nick)
    account = person.ask(
        SetupQuestion(
            "irc.account",
            "Its account with the services, or `none`",
            default=default,
            noninteractive_default=answers.account or NONE,
            parse=parse_irc_account,
        )
    )
    if account.lower() == NONE:
        return replace(answers, account=None, account_password=None)
    existing = answers.account_password if account == answers.account else None
    channel = answers.channel or irc_channel_name(answers.host)
    password = person.ask_secret(
        SecretQuestion(
            "irc.password", "Password of that account", f"{channel}.password", existing=existing
        )
    )
    return replace(answers, account=account, account_password=password)


def _ask_irc_password(
    person: Respondent, answers: IrcAnswers, *, quiet: bool = False
) -> IrcAnswers:
    if _is_password_exposed(answers):
        return replace(answers, server_password=None)
    channel = answers.channel or irc_channel_name(answers.host)
    password = person.ask_secret(
        SecretQuestion(
            "irc.server.password",
            "Password of the server, not of the services",
            f"{channel}.server-password",
            existing=answers.server_password,
            is_optional=quiet,
        )
    )
    return replace(answers, server_password=password if password.reference else None)


def _is_password_exposed(answers: IrcAnswers) -> bool:
    return not answers.tls and not is_loopback_host(answers.host)


def _ask_irc_contact(person: Respondent, answers: IrcAnswers) -> IrcAnswers:
    local = is_loopback_host(answers.host)  # then a contact may be left out
    contact = person.ask(
        SetupQuestion(
            "irc.contact",
            "Who runs the bot, and how to reach them",
            default=answers.contact or ("" if local else None),
            parse=parse_irc_contact,
            is_optional=local,
        )
    )
    return replace(answers, contact=contact or None)


def _ask_irc_rooms(person: Respondent, answers: IrcAnswers) -> IrcAnswers:
    words = person.ask(
        SetupQuestion(
            "irc.rooms",
            "Rooms that the bot joins, or `none`",
            default=" ".join(answers.rooms) or NONE,
            parse=parse_irc_rooms,
        )
    )
    return replace(answers, rooms=() if words == NONE else split_words(words))


_IRC_QUESTIONS: Mapping[str, Callable[[Respondent, IrcAnswers], IrcAnswers]] = {
    "server": _ask_irc_server,
    "nick": _ask_irc_nick,
    "account": _ask_irc_account,
    "password": _ask_irc_password,
    "given": partial(
        _ask_irc_password, quiet=True
    ),  # few servers have a password, so it is only asked for when missed
    "contact": _ask_irc_contact,
    "rooms": _ask_irc_rooms,
}


def _ask_irc_owner(person: Respondent, answers: IrcAnswers, before: str | None) -> str | None:
    person.tell(
        "",
        "  The owner may do everything, and is identified by a services account, never by a nick.",
    )
    known = before.removeprefix("account:") if before else None
    while True:
        name = person.ask(
            SetupQuestion(
                "irc.owner",
                f"Your own account there, or `{LATER}`",
                default=known or LATER,
                parse=parse_irc_account,
            )
        )
        if name == LATER:
            return None
        same = answers.account is not None and name.lower() == answers.account.lower()
        if not same or (
            person.confirm("That is the bot's own account. Is it also yours?", default=False)
        ):
            return f"account:{name}"


def build_irc_config(answers: IrcAnswers) -> IrcConfig:
    """Build the channel as the configuration will have it, without rooms, which a probe does not
    need.
    """
    sasl = None
    if answers.account and answers.account_password:
        password = SecretStr(answers.account_password.value or "")
        sasl = SaslConfig.model_validate(
            {"mechanism": answers.mechanism, "account": answers.account, "password": password}
        )
    secret = answers.server_password
    return IrcConfig(
        host=answers.host,
        port=answers.port,
        tls=TlsConfig(ca_file=answers.ca_file) if answers.tls and answers.ca_file else answers.tls,
        nick=answers.nick,
        sasl=sasl,
        password=SecretStr(secret.value or "") if secret else None,
        contact=answers.contact or ("setup" if not is_loopback_host(answers.host) else None),
    )


def _with_ca_path(irc: IrcConfig, directory: Path) -> IrcConfig:
    """Return the configuration with the path of its root certificate resolved as the loader does
    it.
    """
    if not isinstance(irc.tls, TlsConfig) or irc.tls.ca_file is None:
        return irc
    ca_file = str(directory.absolute() / Path(irc.tls.ca_file).expanduser())
    return irc.model_copy(update={"tls": irc.tls.model_copy(update={"ca_file": ca_file})})


def _are_passwords_known(answers: IrcAnswers) -> bool:
    return all(
        secret.value is not None
        for secret in (answers.account_password, answers.server_password)
        if secret
    )


_TELEGRAM_INTRO = (
    "",
    "Telegram",
    "  To create a bot, talk to @BotFather: send /newbot, choose a name, copy the token.",
)


def ask_telegram(
    person: Respondent,
    before: TelegramAnswers | None,
    owner: str | None,
    channel: str,
    *,
    polled: bool,
    url: str | None = None,
) -> tuple[TelegramAnswers, str | None]:
    """Ask about a Telegram bot; return it and its owner's id. Raises PlatformSkipped.

    `polled`: a gateway of ours runs with this bot, so its updates must not be requested. `url`: of
    another Bot API server.
    """
    person.tell(*_TELEGRAM_INTRO)
    base = url or (before.base_url if before else None)
    answers = replace(
        before or TelegramAnswers(channel=channel, token=SecretReference(reference="")),
        base_url=base,
    )
    question = SecretQuestion(
        "telegram.token",
        "Token",
        f"{channel}.token",
        existing=before.token if before else None,
        parse=_parse_telegram_token,
    )
    token, result = ask_token(
        person,
        question,
        TelegramProbeResult(),
        probe=lambda token: probe_telegram(
            build_telegram_config(replace(answers, token=token, rooms=()))
        ),
        name=lambda result: f"@{result.username}" if result.username else "",
        later="telegram.commands",
    )
    answers = replace(answers, token=token, username=result.username)
    owner_id = _ask_telegram_owner(person, answers, owner, polled=polled)
    rooms = _ask_telegram_rooms(person, answers, polled=polled)
    answers = replace(answers, rooms=rooms)
    if rooms and result.reads_whole_groups is False:
        _ask_privacy(person, answers)
    return answers, owner_id


def _ask_telegram_owner(
    person: Respondent, answers: TelegramAnswers, before: str | None, *, polled: bool
) -> str | None:
    name = f"@{answers.username}" if answers.username else "the bot"
    lines = ["", "  The owner may do everything, and is identified by a Telegram id."]
    if before is None and not polled and answers.token.value is not None:
        lines.append(
            f"  Write anything to {name} in Telegram now, then press Enter here: setup reads your "
            "id from that message."
        )
    elif before is None:
        lines.append(f"  To see yours, write /whoami to {name} when it runs.")
    person.tell(*lines)
    readable = before is None and not polled and answers.token.value is not None
    default = before or ("" if readable else LATER)
    question = SetupQuestion(
        "telegram.owner",
        f"Your id, or `{LATER}`" + (", or Enter when you have written" if default == "" else ""),
        default=default,
        noninteractive_default=before or LATER,
        parse=_parse_telegram_id,
    )
    return ask_owner(
        person,
        question,
        partial(find_telegram_name, build_telegram_config(answers))
        if answers.token.value is not None
        else None,
        lambda answer: person.confirm(f"{name} knows nobody with the id {answer}. Use it anyway?"),
        known=(before,),
        find_id=lambda: _ask_who_wrote(person, answers),
    )


def _ask_who_wrote(person: Respondent, answers: TelegramAnswers) -> str | None:
    """Ask which of the people who wrote to the bot is the owner; None: nobody wrote, or none of
    them.
    """
    waiting = person.probe(find_contacts(build_telegram_config(answers)))
    review_findings(person, waiting.findings)
    if not waiting.people:
        person.tell("  No message has arrived yet.")
    for number, name in waiting.people[:5]:
        if person.confirm(f"{name}, id {number}, wrote to it. Is that you?"):
            return number
    return None


def _ask_telegram_rooms(
    person: Respondent, answers: TelegramAnswers, *, polled: bool
) -> tuple[str, ...]:
    findable = answers.token.value is not None and not polled
    person.tell(
        "",
        "  Private chats always work. Groups are optional"
        + (": `look` lists groups that just added it or wrote to it." if findable else "."),
    )
    while True:
        answer = person.ask(
            SetupQuestion(
                "telegram.groups",
                "Groups where the bot may act: ids, `*`, `none`",
                default=" ".join(answers.rooms) or "none",
                parse=_parse_telegram_groups,
            )
        )
        if answer != "look":
            return () if answer == "none" else split_words(answer)
        waiting = person.probe(find_contacts(build_telegram_config(answers)))
        lines = [f"  {number}  {title}" for number, title in waiting.groups]
        person.tell(
            *(
                lines
                or ["  Setup saw no group. Add the bot to one, and write something to it there."]
            )
        )
        if waiting.groups:
            answers = replace(answers, rooms=tuple(number for number, _ in waiting.groups))


def _ask_privacy(person: Respondent, answers: TelegramAnswers) -> None:
    """Explain privacy mode until it is off or accepted: with it the bot does not receive all
    messages of groups.
    """
    while True:
        person.tell(
            "", f"  In groups the bot sees only messages to it. If you want more: {PRIVACY_FIX}."
        )
        answer = person.ask(
            SetupQuestion(
                "",
                "Press Enter to check again, or write `go on`",
                default="",
                noninteractive_default="go on",
            )
        )
        if answer:
            return
        result = person.probe(probe_telegram(build_telegram_config(answers)))
        shown = [
            one for one in result.findings if one.code in {"telegram.privacy", "telegram.rooms"}
        ]
        review_findings(person, shown)
        if result.reads_whole_groups is not False:
            return


def build_telegram_config(answers: TelegramAnswers) -> TelegramConfig:
    """Build the channel as the configuration will have it."""
    more = {"base_url": answers.base_url} if answers.base_url else {}
    token = SecretStr(answers.token.value or "")
    return TelegramConfig.model_validate(
        {"platform": "telegram", "token": token, "rooms": answers.rooms} | more
    )


def _parse_telegram_token(words: str) -> str:
    words = words.strip()
    try:
        build_telegram_config(
            TelegramAnswers(channel="x", token=SecretReference(reference="", value=words))
        )
    except ValidationError:
        raise ValueError(
            "that is not a token; copy it from @BotFather, it looks like 123456:ABC-DEF"
        ) from None
    return words


def _parse_telegram_id(words: str) -> str:
    words = words.strip().lower()
    if words in {"", LATER}:
        return words
    if words.startswith("@"):
        raise ValueError(
            "a @name can get another owner; an id is a number, and /whoami shows it when the bot "
            "runs"
        )
    if words.startswith("-"):
        raise ValueError(
            "that is the id of a group; the id of a person is a number without a minus"
        )
    if not re.fullmatch(r"[0-9]{1,20}", words):
        raise ValueError("an id is a number, e.g. 1234567")
    return words


def _parse_telegram_groups(words: str) -> str:
    words = words.strip().lower()
    if words in {"", "none", "look", "*"}:
        return words or "none"
    for one in split_words(words):
        if not re.fullmatch(r"-[0-9]{1,20}", one) and one != "*":
            raise ValueError(
                f"{one} is not the id of a group: that is a number that begins with a minus"
            )
    return " ".join(split_words(words))
