"""What is asked about every bot that has a token: the token, who it is, and whose it is. Pure."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from channels.discord.config import DiscordConfig
from channels.telegram.config import TelegramConfig
from gateway.probes.discord import DiscordSeen
from gateway.probes.telegram import TelegramSeen
from gateway.setup.answers import Secret
from gateway.setup.dialog import Ask, AskSecret, Flow, Look, LookPerson, ask, ask_secret, confirm, look, settle, tell

LATER = "later"


S = TypeVar("S", TelegramSeen, DiscordSeen)


def ask_token(
    question: AskSecret,
    platform: str,
    unseen: S,
    *,
    config: Callable[[Secret], TelegramConfig | DiscordConfig],
    name: Callable[[S], str],
    later: str,
) -> Flow[tuple[Secret, S]]:
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
        seen = yield from _looked(platform, type(unseen), config(token), name, later)
        if seen is not None:
            return token, seen


def _looked(
    platform: str,
    kind: type[S],
    config: TelegramConfig | DiscordConfig,
    name: Callable[[S], str],
    later: str,
) -> Flow[S | None]:
    """None: another token is to be asked for."""
    while True:
        yield from tell(f"  Asking {platform} ...")
        seen = yield from look(Look(config), kind)
        way = yield from settle(one for one in seen.findings if one.code != later)
        if way == "correct":
            return None
        if way == "again":
            continue
        if name(seen) and not (yield from confirm(f"Is {name(seen)} the one?")):
            return None
        return seen


def ask_owner(
    question: Ask,
    config: TelegramConfig | DiscordConfig | None,
    unknown: Callable[[str], Flow[bool]],
    *,
    known: tuple[str | None, ...],
    found: Callable[[], Flow[str | None]] | None = None,
) -> Flow[str | None]:
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
        if who := (yield Look(LookPerson(config, answer))):
            yield from tell(f"  That is {who}.")
            return answer
        if (yield from unknown(answer)):
            return answer
