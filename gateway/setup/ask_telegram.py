"""What is asked about a Telegram bot. Pure."""

import re
from dataclasses import dataclass, replace

from pydantic import SecretStr, ValidationError

from channels.telegram.config import TelegramConfig
from gateway.probes.telegram import PRIVACY_FIX, TelegramSeen
from gateway.probes.telegram_waiting import Waiting
from gateway.setup.answers import Secret, Telegram
from gateway.setup.ask_bot import LATER, ask_owner, ask_token
from gateway.setup.dialog import (
    Ask,
    AskSecret,
    Flow,
    Look,
    LookWaiting,
    ask,
    confirm,
    look,
    settle,
    several,
    tell,
)

_HOW = (
    "",
    "Telegram",
    "  A bot is made by talking to @BotFather: send /newbot, choose a name, copy the token.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came out."""

    channel: Telegram
    owner: str | None
    """The owner's id. None: not told."""


def ask_telegram(
    before: Telegram | None, owner: str | None, channel: str, *, polled: bool, url: str | None = None
) -> Flow[Told]:
    """Raises Skipped. `polled`: a gateway of ours runs with this bot, so its messages are not to be asked for.

    `url`: of another Bot API server.
    """
    yield from tell(*_HOW)
    base = url or (before.base_url if before else None)
    made = replace(before or Telegram(channel=channel, token=Secret(reference="")), base_url=base)
    question = AskSecret(
        key="telegram.token",
        text="Token",
        file=f"{channel}.token",
        existing=before.token if before else None,
        parse=_token,
    )
    token, seen = yield from ask_token(
        question,
        "Telegram",
        TelegramSeen(),
        config=lambda token: config_of(replace(made, token=token, rooms=())),
        name=lambda seen: f"@{seen.username}" if seen.username else "",
        later="telegram.commands",
    )
    made = replace(made, token=token, username=seen.username)
    told = yield from _owner(made, owner, polled=polled)
    rooms = yield from _rooms(made, polled=polled)
    made = replace(made, rooms=rooms)
    if rooms and seen.reads_whole_groups is False:
        yield from _privacy(made)
    return Told(channel=made, owner=told)


def _owner(made: Telegram, before: str | None, *, polled: bool) -> Flow[str | None]:
    name = f"@{made.username}" if made.username else "the bot"
    lines = ["", "  The owner may do everything, and is known by an id of Telegram's."]
    if before is None and not polled and made.token.value is not None:
        lines.append(f"  Write anything to {name} in Telegram now, then press Enter here: the id is read from it.")
    elif before is None:
        lines.append(f"  To see yours, say /whoami to {name} once it runs.")
    yield from tell(*lines)
    readable = before is None and not polled and made.token.value is not None
    default = before or ("" if readable else LATER)
    question = Ask(
        key="telegram.owner",
        text=f"Your id, or `{LATER}`" + (", or Enter once you have written" if default == "" else ""),
        default=default,
        noninteractive_default=before or LATER,
        parse=_person,
    )
    return (
        yield from ask_owner(
            question,
            config_of(made) if made.token.value is not None else None,
            lambda answer: confirm(f"{name} has never met anybody with the id {answer}. Take it all the same?"),
            known=(before,),
            found=lambda: _written(made),
        )
    )


def _written(made: Telegram) -> Flow[str | None]:
    """Who has written to the bot; None: nobody, or not the owner."""
    waiting = yield from look(Look(LookWaiting(config_of(made))), Waiting)
    yield from settle(waiting.findings)
    if not waiting.people:
        yield from tell("  Nothing has come yet.")
    for number, name in waiting.people[:5]:
        if (yield from confirm(f"{name}, id {number}, wrote to it. Is that you?")):
            return number
    return None


def _rooms(made: Telegram, *, polled: bool) -> Flow[tuple[str, ...]]:
    findable = made.token.value is not None and not polled
    yield from tell(
        "",
        "  Private chats always work. Groups are optional"
        + (": `look` lists those that it was just added to, or spoken to in." if findable else "."),
    )
    while True:
        answer = yield from ask(
            Ask(
                key="telegram.groups",
                text="Groups where it may act: ids, `*`, `none`",
                default=" ".join(made.rooms) or "none",
                parse=_groups,
            )
        )
        if answer != "look":
            return () if answer == "none" else several(answer)
        waiting = yield from look(Look(LookWaiting(config_of(made))), Waiting)
        lines = [f"  {number}  {title}" for number, title in waiting.groups]
        yield from tell(*(lines or ["  No group was seen. Add the bot to one, and say something to it there."]))
        if waiting.groups:
            made = replace(made, rooms=tuple(number for number, _ in waiting.groups))


def _privacy(made: Telegram) -> Flow[None]:
    """Privacy mode hides from it what is not said to it: that may be meant so."""
    while True:
        yield from tell("", f"  In groups it is shown only what is said to it. That may be meant so; {PRIVACY_FIX}.")
        answer = yield from ask(
            Ask(
                key="",
                text="Press Enter to look again, or `go on` as it is",
                default="",
                noninteractive_default="go on",
            )
        )
        if answer:
            return
        seen = yield from look(Look(config_of(made)), TelegramSeen)
        yield from settle(one for one in seen.findings if one.code in {"telegram.privacy", "telegram.rooms"})
        if seen.reads_whole_groups is not False:
            return


def config_of(made: Telegram) -> TelegramConfig:
    """As the configuration will have it."""
    more = {"base_url": made.base_url} if made.base_url else {}
    token = SecretStr(made.token.value or "")
    return TelegramConfig.model_validate({"platform": "telegram", "token": token, "rooms": made.rooms} | more)


def _token(words: str) -> str:
    words = words.strip()
    try:
        config_of(Telegram(channel="x", token=Secret(reference="", value=words)))
    except ValidationError:
        raise ValueError("that is no token; copy it from @BotFather, it reads like 123456:ABC-DEF") from None
    return words


def _person(words: str) -> str:
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


def _groups(words: str) -> str:
    words = words.strip().lower()
    if words in {"", "none", "look", "*"}:
        return words or "none"
    for one in several(words):
        if not re.fullmatch(r"-[0-9]{1,20}", one) and one != "*":
            raise ValueError(f"{one} is not a group's id: these are numbers that begin with a minus")
    return " ".join(several(words))
