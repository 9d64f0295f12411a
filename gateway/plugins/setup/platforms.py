"""Questions about Telegram, Discord and IRC.

Each page takes the section of a channel, as it is or with its platform alone, and returns it with
the answers. Parsers of answers raise ValueError with a hint on the correct form.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, TypeVar

from pydantic import ValidationError

from channels.discord.check import DiscordProbeResult, find_discord_name, probe_discord
from channels.discord.config import DiscordConfig
from channels.irc.check import probe_irc, probe_irc_server
from channels.irc.config import IrcConfig
from channels.telegram.check import (
    PRIVACY_FIX,
    TelegramProbeResult,
    find_contacts,
    find_telegram_name,
    probe_telegram,
)
from channels.telegram.config import TelegramConfig
from gateway.core.addresses import is_loopback_host
from gateway.core.findings import Finding
from gateway.core.frozen import frozen
from gateway.plugins.setup.dialog import (
    AGAIN,
    CORRECT,
    GO_ON,
    LATER,
    NONE,
    Respondent,
    Values,
    split_words,
    unset,
)


@frozen(kw_only=False)
class ChannelAnswers:
    """Answers about one channel."""

    name: str
    section: Values
    owner: str | None
    """Id of the owner there. None: later."""
    farewell: list[str]
    """How to talk to the bot."""


BotResultT = TypeVar("BotResultT", TelegramProbeResult, DiscordProbeResult)


def _ask_token(
    person: Respondent,
    name: str,
    section: Values,
    unseen: BotResultT,
    *,
    probe: Callable[[Values], Coroutine[None, None, BotResultT]],
    label: Callable[[BotResultT], str],
    later: str,
    parse: Callable[[str], str] = str.strip,
) -> tuple[Values, BotResultT]:
    """Ask for a token and probe it; return the section with it, and the result: `unseen` if its
    value is not known.

    `label`: returns the bot's name; empty: not known. `later`: code of a finding that is shown with
    another question.
    """
    platform: str = section["platform"]
    existing = section.get("token")
    while True:
        token = person.ask_secret(f"{platform}.token", f"{name}.token", existing, parse=parse)
        section = section | {"token": token}
        if person.reveal(token) is None:
            person.review([unset(f"{platform}.token", token)])
            return section, unseen
        way, result = AGAIN, unseen
        while way == AGAIN:
            person.tell(f"  Asking {platform.capitalize()} ...")
            result = asyncio.run(probe(section))
            way = person.review(one for one in result.findings if one.code != later)
        if way != CORRECT and (not (who := label(result)) or person.confirm(f"Use {who}?")):
            return section, result


def _ask_owner(
    person: Respondent,
    key: str,
    *,
    default: str,
    unattended: str | None = None,
    known: tuple[str | None, ...],
    parse: Callable[[str], str],
    find_name: Callable[[str], Coroutine[None, None, str]] | None,
    doubt: Callable[[str], bool],
    find_id: Callable[[], str | None] = lambda: None,
) -> str | None:
    """Ask for the owner's id; None: later.

    `known`: ids that are not looked up. `find_name`: returns the name of an id; None: nobody can be
    looked up. `doubt`: asks whether to accept an id that nobody has. `find_id`: returns the id for
    empty input; its None: ask again.
    """
    while True:
        answer = person.ask(key, default=default, unattended=unattended, parse=parse)
        if answer == LATER:
            return None
        if answer == "":
            if (number := find_id()) is not None:
                return number
        elif find_name is None or answer in known:
            return answer
        elif who := asyncio.run(find_name(answer)):
            person.tell(f"  That is {who}.")
            return answer
        elif doubt(answer):
            return answer


def _rooms(answer: str) -> list[str]:
    return [] if answer == NONE else split_words(answer)


def ask_discord(
    person: Respondent, name: str, section: Values, owner: str | None
) -> ChannelAnswers:
    """Ask about a Discord bot."""
    person.tell(
        "",
        "Discord",
        "  Create a bot at https://discord.com/developers/applications",
        "  New Application, then Bot: switch on MESSAGE CONTENT INTENT; Reset Token shows the "
        "token.",
    )
    for key, url in (("discord.api.url", "api_url"), ("discord.gateway.url", "gateway_url")):
        if given := person.ask(key, default=section.get(url), optional=True):
            section = section | {url: given}

    def probe(section: Values, rooms: list[str]) -> Coroutine[None, None, DiscordProbeResult]:
        return probe_discord(person.build(DiscordConfig, section, rooms=rooms))

    section, result = _ask_token(
        person,
        name,
        section,
        DiscordProbeResult(),
        probe=lambda section: probe(section, []),
        label=lambda result: result.name,
        later="discord.guilds",
    )
    farewell = [f"  Discord   write to {result.name or 'the bot'} in a direct message, or name it "]
    farewell[0] += "in a channel"
    if result.invitation_url:
        farewell += ["            to add it to a guild, open:", result.invitation_url]
    section = section | {"rooms": _ask_discord_rooms(person, section, result, probe)}
    number, who = result.owner
    person.tell("", "  The owner may do everything, and is identified by a Discord id.")
    if owner is None:
        person.tell(
            f"  The application belongs to {who} ({number})."
            if number
            else "  Yours: Settings, Advanced, Developer Mode; then right-click your name, Copy "
            "User ID."
        )
    find_name = None
    if person.reveal(section["token"]):
        find_name = partial(find_discord_name, person.build(DiscordConfig, section))
    owner = _ask_owner(
        person,
        "discord.owner",
        default=owner or number or LATER,
        known=(owner, number),
        parse=_parse_discord_id,
        find_name=find_name,
        doubt=lambda answer: person.confirm(
            f"Discord knows nobody with the id {answer}. Use it anyway?", default=False
        ),
    )
    return ChannelAnswers(name, section, owner, farewell)


def _ask_discord_rooms(
    person: Respondent,
    section: Values,
    result: DiscordProbeResult,
    probe: Callable[[Values, list[str]], Coroutine[None, None, DiscordProbeResult]],
) -> list[str]:
    while not result.guilds and result.id:
        person.tell("", "  It is in no guild yet. Open this address and choose a guild:", "")
        person.tell(f"  {result.invitation_url}", "")
        text = f"Press Enter when it is there, or write `{GO_ON}`"
        if person.ask(text, default="", unattended=GO_ON):
            break
        result = asyncio.run(probe(section, []))
    person.tell("", *(f"  {number}  {guild}" for number, guild in result.guilds[:10]))
    default = result.guilds[0][0] if len(result.guilds) == 1 else NONE
    default = " ".join(section.get("rooms") or ()) or default
    known = {"*", *(number for number, _ in result.guilds)}
    while True:
        rooms = _rooms(person.ask("discord.rooms", default=default, parse=_parse_discord_rooms))
        wanted = [room for room in rooms if room not in known]
        if not wanted or person.reveal(section["token"]) is None:
            return rooms
        checked = asyncio.run(probe(section, wanted))
        found = [one for one in checked.findings if one.code == "discord.rooms"]
        if person.review(found, also=("discord.rooms",)) == GO_ON:
            return rooms


def _parse_discord_id(words: str) -> str:
    words = words.strip().lower()
    if words != LATER and not re.fullmatch(r"[0-9]{1,20}", words):
        raise ValueError("an id is a number, e.g. 123456789012345678")
    return words


def _parse_discord_rooms(words: str) -> str:
    rooms = [] if words.strip().lower() == NONE else split_words(words)
    for one in rooms:
        if not re.fullmatch(r"[0-9]{1,20}|\*", one):
            raise ValueError(
                f"{one} is not an id: right-click the channel or the guild, Copy ID (in developer "
                "mode)"
            )
    return " ".join(rooms) or NONE


def ask_telegram(
    person: Respondent, name: str, section: Values, owner: str | None, *, polled: bool
) -> ChannelAnswers:
    """Ask about a Telegram bot.

    `polled`: a gateway of ours runs with this bot, so its updates must not be requested.
    """
    person.tell(
        "",
        "Telegram",
        "  To create a bot, talk to @BotFather: send /newbot, choose a name, copy the token.",
    )
    if url := person.ask("telegram.url", default=section.get("base_url"), optional=True):
        section = section | {"base_url": url}
    section, result = _ask_token(
        person,
        name,
        section,
        TelegramProbeResult(),
        probe=lambda section: probe_telegram(person.build(TelegramConfig, section, rooms=[])),
        label=lambda result: f"@{result.username}" if result.username else "",
        later="",
        parse=_parse_telegram_token,
    )
    who, find_name = f"@{result.username}" if result.username else "the bot", None
    is_known = person.reveal(section["token"]) is not None
    readable, doubt = not polled and is_known, f"{who} knows nobody with the id"
    person.tell("", "  The owner may do everything, and is identified by a Telegram id.")
    if owner is None:
        person.tell(
            f"  Write anything to {who} in Telegram now, then press Enter here: setup reads your "
            "id from that message."
            if readable
            else f"  To see yours, write /whoami to {who} when it runs."
        )
    if is_known:
        find_name = partial(find_telegram_name, person.build(TelegramConfig, section))

    def find_writer() -> str | None:
        """Ask which of the people who wrote to the bot is the owner."""
        waiting = asyncio.run(find_contacts(person.build(TelegramConfig, section)))
        person.review(waiting.findings)
        if not waiting.people:
            person.tell("  No message has arrived yet.")
        people = waiting.people[:5]
        asked = (
            one
            for one in people
            if person.confirm(f"{one[1]}, id {one[0]}, wrote to it. Is that you?")
        )
        return next((number for number, _ in asked), None)

    owner = _ask_owner(
        person,
        "telegram.owner",
        default=owner or ("" if readable else LATER),
        unattended=owner or LATER,
        known=(owner,),
        parse=_parse_telegram_id,
        find_name=find_name,
        doubt=lambda answer: person.confirm(f"{doubt} {answer}. Use it anyway?"),
        find_id=find_writer,
    )
    look = ": `look` lists groups that just added it or wrote to it" if readable else ""
    person.tell("", f"  Private chats always work. Groups are optional{look}.")
    answer, rooms = "look", section.get("rooms") or []
    while answer == "look":
        default = " ".join(rooms) or NONE
        answer = person.ask("telegram.groups", default=default, parse=_parse_telegram_groups)
        if answer == "look":
            waiting = asyncio.run(find_contacts(person.build(TelegramConfig, section)))
            person.tell(*(f"  {number}  {title}" for number, title in waiting.groups))
            rooms = [number for number, _ in waiting.groups] or rooms
            if not waiting.groups:
                person.tell("  Setup saw no group. Add the bot to one, and write something there.")
    section = section | {"rooms": _rooms(answer)}
    if section["rooms"] and result.reads_whole_groups is False:
        person.tell("", "  In groups the bot sees only messages to it. If you want more:")
        person.tell(f"  {PRIVACY_FIX}.")
    address = (
        f" @{result.username}: https://t.me/{result.username}" if result.username else " the bot"
    )
    return ChannelAnswers(name, section, owner, [f"  Telegram  write to{address}"])


def _parse_telegram_token(words: str) -> str:
    words = words.strip()
    try:
        TelegramConfig.model_validate({"platform": "telegram", "token": words})
    except ValidationError:
        raise ValueError(
            "that is not a token; copy it from @BotFather, it looks like 123456:ABC-DEF"
        ) from None
    return words


def _parse_telegram_id(words: str) -> str:
    words = words.strip().lower()
    if words in {"", LATER} or re.fullmatch(r"[0-9]{1,20}", words):
        return words
    hints = {
        "@": "a @name can get another owner; an id is a number, and /whoami shows it when the bot "
        "runs",
        "-": "that is the id of a group; the id of a person is a number without a minus",
    }
    raise ValueError(hints.get(words[0], "an id is a number, e.g. 1234567"))


def _parse_telegram_groups(words: str) -> str:
    words = words.strip().lower()
    for one in split_words(words) if words not in {NONE, "look"} else ():
        if not re.fullmatch(r"-[0-9]{1,20}|\*", one):
            raise ValueError(
                f"{one} is not the id of a group: that is a number that begins with a minus"
            )
    return " ".join(split_words(words)) or NONE


_TLS_PORT: Final = 6697
"""RFC 7194."""
_PLAIN_PORT: Final = 6667
"""RFC 1459, 8.11.1."""
_REVIEWED_WARNINGS: Final = ("irc.nick",)
_YES, _NO = ("yes", "y", "on", "true"), ("no", "n", "off", "false")


def ask_irc(person: Respondent, name: str, section: Values, owner: str | None) -> ChannelAnswers:
    """Ask about an IRC account. `name`: empty: it is named after its host."""
    person.tell(
        "",
        "IRC",
        "  If the network has services, register the bot's nick with them first, as you did yours.",
        "  Many networks want to know who runs a bot. Ask in a room before you bring one.",
    )
    page = _IrcPage(person, name, dict(section))
    page.run()
    person.tell(
        "",
        "  The owner may do everything, and is identified by a services account, never by a nick.",
    )
    known = owner.removeprefix("account:") if owner else LATER
    while True:
        account = person.ask("irc.owner", default=known, parse=_parse_irc_account)
        same = account.lower() == str(value_of(page.section, "account")).lower()
        question = "That is the bot's own account. Is it also yours?"
        if account == LATER or not same or person.confirm(question, default=False):
            break
    nick, rooms = page.section["nick"], page.section["rooms"]
    farewell = [f"  IRC       /msg {nick} hello"]
    farewell += [f"            or in {room}:  {nick}: hello" for room in rooms[:1]]
    found = None if account == LATER else f"account:{account}"
    return ChannelAnswers(page.name, page.section, found, farewell)


def value_of(section: Values, key: str) -> object:
    """Return a value of the login of an IRC channel."""
    sasl = section.get("sasl")
    return sasl.get(key) if isinstance(sasl, dict) else None


class _IrcPage:
    """Questions about one IRC account. Each method changes `section`."""

    def __init__(self, person: Respondent, name: str, section: Values) -> None:
        self._person, self._name, self.section = person, name, section

    @property
    def name(self) -> str:
        """Name of the channel: `irc.libera` for irc.libera.chat."""
        host: str = self.section["host"].lower()
        if self._name or is_loopback_host(host) or re.fullmatch(r"[0-9.:]+", host):
            return self._name or ("irc.local" if is_loopback_host(host) else "irc.main")
        label = re.sub(r"[^a-z0-9-]", "", ("." + host).split(".")[-2] or host)
        return f"irc.{label or 'main'}"

    @property
    def _is_exposed(self) -> bool:
        """True if passwords would be readable on the way."""
        return self.section["tls"] is False and not is_loopback_host(self.section["host"])

    def run(self) -> None:
        self._ask_server()
        self._ask_password(optional=True)  # few servers have one: asked for when missed
        self._ask_nick()
        self._ask_account()
        self._log_in()
        self._ask_contact()
        self._ask_rooms()

    def _log_in(self) -> None:
        person, section = self._person, self.section
        while True:
            for one in (value_of(section, "password"), section.get("password")):
                if one and person.reveal(str(one)) is None:
                    person.review([unset("irc.login", str(one))])
                    return
            person.tell(f"  Logging in to {section['host']}:{section['port']} ...")
            findings = asyncio.run(probe_irc(self._build(rooms=[])))
            way = person.review(findings, also=_REVIEWED_WARNINGS)
            if way == GO_ON:
                return
            if way == CORRECT:
                self._correct(findings)

    def _correct(self, findings: list[Finding]) -> None:
        """Ask again what the findings are about; if that is not known, the server."""
        about: dict[str, Callable[[], None]] = {
            "irc.nick": self._ask_nick,
            "irc.sasl": self._ask_account,
            "irc.password": self._ask_password,
        }
        wrong = {
            one.code for one in findings if one.level == "bad" or one.code in _REVIEWED_WARNINGS
        }
        for ask in [about[code] for code in about if code in wrong] or [self._ask_server]:
            ask()

    def _build(self, **more: object) -> IrcConfig:
        host: str = self.section["host"]
        contact = self.section.get("contact") or (None if is_loopback_host(host) else "setup")
        return self._person.build(IrcConfig, self.section | {"contact": contact}, **more)

    def _ask_server(self) -> None:
        person, section, way = self._person, self.section, CORRECT
        while way == CORRECT:
            before = (section.get("host"), section.get("port", _TLS_PORT))
            default = f"{before[0]}:{before[1]}" if before[0] else "irc.libera.chat:6697"
            address = person.ask("irc.server", default=default, parse=_parse_irc_address)
            host, _, port = address.rpartition(":")
            section |= {"host": host, "port": int(port)}
            tls = section.get("tls", True)
            if before != (host, int(port)):
                tls = int(port) != _PLAIN_PORT and not is_loopback_host(host)
            file = tls.get("ca_file") if isinstance(tls, dict) else None
            answer = person.ask(
                "irc.tls",
                default=file or ("yes" if tls else "no"),
                optional=int(port) == _TLS_PORT and bool(tls) and not file,
            )
            if answer.lower() in _NO:
                section["tls"] = False
            elif answer.lower() not in _YES:
                section["tls"] = {"ca_file": answer}
            elif not isinstance(tls, dict):
                section["tls"] = True
            way = AGAIN
            while way == AGAIN:
                person.tell(f"  Connecting to {address} ...")
                config = self._build(nick="reverie", sasl=None, password=None, rooms=[])
                way = person.review(asyncio.run(probe_irc_server(config)))

    def _ask_nick(self) -> None:
        nick = self.section.get("nick", "reverie")
        self.section["nick"] = self._person.ask("irc.nick", default=nick, parse=_parse_irc_nick)

    def _ask_account(self) -> None:
        person, section = self._person, self.section
        if value_of(section, "mechanism") == "external":  # by a certificate
            return
        known = value_of(section, "account")
        if self._is_exposed:
            person.tell(
                "  Without TLS, the bot sends no password to another machine, so it has no account "
                "there."
            )
            section["sasl"] = None
            return
        # A private server mostly has no services, so the default there is no account.
        default = known or (NONE if is_loopback_host(section["host"]) else section["nick"])
        account = person.ask(
            "irc.account",
            default=str(default),
            unattended=str(known or NONE),
            parse=_parse_irc_account,
        )
        if account.lower() == NONE:
            section["sasl"] = None
            return
        known_password = value_of(section, "password") if account == known else None
        existing = str(known_password) if known_password else None
        password = person.ask_secret("irc.password", f"{self.name}.password", existing)
        login = {"mechanism": "plain", **(section.get("sasl") or {})}
        section["sasl"] = login | {"account": account, "password": password}

    def _ask_password(self, *, optional: bool = False) -> None:
        existing = self.section.get("password")
        self.section["password"] = None
        if self._is_exposed and existing:
            self._person.tell("  Without TLS, the bot sends no password: it is left out.")
        if not self._is_exposed:
            file = f"{self.name}.server-password"
            given = self._person.ask_secret(
                "irc.server.password", file, existing, optional=optional
            )
            self.section["password"] = given or None

    def _ask_contact(self) -> None:
        local = is_loopback_host(self.section["host"])  # then a contact may be left out
        self.section["contact"] = (
            self._person.ask(
                "irc.contact",
                default=self.section.get("contact") or ("" if local else None),
                parse=_parse_irc_contact,
                optional=local,
            )
            or None
        )

    def _ask_rooms(self) -> None:
        default = " ".join(self.section.get("rooms") or ()) or NONE
        self.section["rooms"] = _rooms(
            self._person.ask("irc.rooms", default=default, parse=_parse_irc_rooms)
        )


def _parse_irc_address(words: str) -> str:
    """Parse `host` or `host:port` to `host:port`; the default port is that of TLS."""
    words = words.strip()
    host, colon, port = words.rpartition(":")
    bare = ":" in host and not host.endswith("]")  # IPv6 without a port
    if not colon or bare or words.endswith("]"):
        host, port = words, str(_TLS_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:  # noqa: PLR2004 - of TCP
        raise ValueError("write host or host:port, e.g. irc.libera.chat:6697")
    _validate_irc(host=host)
    return f"{host}:{int(port)}"


def _parse_irc_nick(words: str) -> str:
    _validate_irc(nick=words.strip())
    return words.strip()


def _parse_irc_rooms(words: str) -> str:
    if words.strip().lower() == NONE:
        return NONE
    rooms = [f"#{room}" if room[0].isalnum() else room for room in split_words(words)]
    _validate_irc(rooms=rooms)
    return " ".join(rooms) or NONE


def _parse_irc_account(words: str) -> str:
    name = words.strip().removeprefix("account:")
    if not re.fullmatch(r"[^\s:!@*]+", name):
        raise ValueError(
            "that is not an account: write the name with which you log in to the services"
        )
    return LATER if name.lower() == LATER else name


def _parse_irc_contact(words: str) -> str:
    if not words.strip():
        raise ValueError("networks want a contact for every bot: a name, and an address or a nick")
    return words.strip()


def _validate_irc(**given: object) -> None:
    try:
        IrcConfig.model_validate({"host": "127.0.0.1", "nick": "reverie", "contact": "x"} | given)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
