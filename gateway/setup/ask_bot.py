"""What is asked about every bot that has a token: the token, who it is, and whose it is. Pure."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from channels.discord.config import DiscordConfig
from channels.telegram.config import TelegramConfig
from gateway.probes.discord import DiscordProbeResult
from gateway.probes.telegram import TelegramProbeResult
from gateway.setup.answers import SecretReference
from gateway.setup.dialog import (
    DialogFlow,
    PersonProbeRequest,
    ProbeRequest,
    SecretQuestion,
    SetupQuestion,
    ask,
    ask_secret,
    confirm,
    request_probe,
    review_findings,
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
