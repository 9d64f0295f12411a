"""What is asked about a Telegram bot. Pure."""

import re
from dataclasses import dataclass, replace

from pydantic import SecretStr, ValidationError

from channels.telegram.config import TelegramConfig
from gateway.probes.telegram import PRIVACY_FIX, TelegramProbeResult
from gateway.probes.telegram_waiting import TelegramContacts
from gateway.setup.answers import SecretReference, TelegramAnswers
from gateway.setup.ask_bot import LATER, ask_owner, ask_token
from gateway.setup.dialog import (
    DialogFlow,
    ProbeRequest,
    SecretQuestion,
    SetupQuestion,
    WaitingProbeRequest,
    ask,
    confirm,
    request_probe,
    review_findings,
    split_words,
    tell,
)

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
        + (": `request_probe` lists those that it was just added to, or spoken to in." if findable else "."),
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
