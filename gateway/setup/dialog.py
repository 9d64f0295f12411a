"""What an interview asks for, step by step, and the questions that are the same everywhere. Pure.

A `DialogFlow` yields steps and is sent one reply for each: a text for `SetupQuestion`, a `SecretReference` for
`SecretQuestion`, True or False for `ConfirmQuestion`, what was seen for `ProbeRequest`, None for `SetupNotice`.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from agent.models.config import ModelConfig, ProviderConfig
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.probes.base import Finding
from gateway.probes.discord import DiscordProbeResult
from gateway.probes.irc import IrcProbeResult
from gateway.probes.model import ModelProbeResult
from gateway.probes.model_list import ModelListing
from gateway.probes.telegram import TelegramProbeResult
from gateway.probes.telegram_waiting import TelegramContacts
from gateway.setup.answers import SecretReference

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupQuestion:
    """One question. The reply is what `read` makes of the words."""

    key: str
    """Also the name of its flag, `--` in front and `-` for dots. Empty: it has none."""
    text: str
    default: str | None = None
    """What an empty answer means. None: it must be answered."""
    noninteractive_default: str | None = None
    """What is taken where nobody can be asked and no flag is given. None: the default."""
    secret_key: str = ""
    """The key of a secret: where nobody can be asked and its flag is given, the answer is `yes`. Empty: not so."""
    choices: tuple[str, ...] = ()
    """If not empty: these, a number counted from 1, or the beginning of just one."""
    allows_other: bool = False
    """With choices: any other word is an answer as well."""
    parse: Callable[[str], str] = str.strip
    """Raises ValueError, whose text says how to write it."""
    is_optional: bool = False
    """A flag may answer it; else it is not asked, and its default is the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretQuestion:
    """A question whose answer is not shown. The reply is a `SecretReference`."""

    key: str
    """Its flags end in `-env` and `-file`."""
    text: str
    file: str
    """Where it is kept, below the configuration directory."""
    existing: SecretReference | None = None
    """What is there already, and what an empty answer means. None: it must be answered."""
    parse: Callable[[str], str] = str.strip
    is_optional: bool = False
    """A flag may answer it; else it is not asked, and the answer is `before`, or a `SecretReference` without a
    reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmQuestion:
    """Yes or no."""

    text: str
    default: bool = True


@dataclass(frozen=True, slots=True)
class SetupNotice:
    """Words for the person."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetupFindings:
    """What a look found, for the person."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemQuestion:
    """Something does not work: what is to be done? The reply is one of `ProblemChoice`, from `ways`."""

    choices: tuple["ProblemChoice", ...]
    """The first is what an empty answer means."""
    findings: tuple[Finding, ...]


ProblemChoice = Literal["correct", "again", "go on", "skip"]
"""Answer the question anew; look again; leave it as it is; leave the whole platform out."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A question to the world."""

    target: (
        "TelegramConfig | DiscordConfig | IrcConfig | ProviderConfig | "
        "WaitingProbeRequest | ModelProbeRequest | PersonProbeRequest"
    )


@dataclass(frozen=True, slots=True)
class WaitingProbeRequest:
    """Who has written to a Telegram bot and was not answered yet."""

    config: TelegramConfig


@dataclass(frozen=True, slots=True)
class PersonProbeRequest:
    """Who has this id. The reply is the name, or an empty text."""

    config: TelegramConfig | DiscordConfig
    id: str


@dataclass(frozen=True, slots=True)
class ModelProbeRequest:
    """Whether it answers."""

    config: ModelConfig
    provider: ProviderConfig


ProbeReply = (
    TelegramProbeResult | DiscordProbeResult | IrcProbeResult | ModelProbeResult | ModelListing | TelegramContacts
)
DialogStep = (
    SetupQuestion | SecretQuestion | ConfirmQuestion | SetupNotice | SetupFindings | ProblemQuestion | ProbeRequest
)
DialogReply = str | bool | SecretReference | ProbeReply | None
DialogFlow = Generator[DialogStep, DialogReply, T]


class PlatformSkipped(Exception):
    """The person leaves the platform out."""


def ask(question: SetupQuestion) -> DialogFlow[str]:
    """The answer."""
    reply = yield question
    assert isinstance(reply, str)
    return reply


def ask_secret(question: SecretQuestion) -> DialogFlow[SecretReference]:
    """The secret."""
    reply = yield question
    assert isinstance(reply, SecretReference)
    return reply


def confirm(text: str, *, default: bool = True) -> DialogFlow[bool]:
    """Whether they agree."""
    reply = yield ConfirmQuestion(text=text, default=default)
    return reply is True


def tell(*lines: str) -> DialogFlow[None]:
    """Say it."""
    yield SetupNotice(lines)


def request_probe(at: ProbeRequest, kind: type[T]) -> DialogFlow[T]:
    """What is there."""
    reply = yield at
    assert isinstance(reply, kind)
    return reply


_RETRY_FIRST_CODES = (
    "discord.intents",
    "model.busy",
    "model.credit",
    "net.lost",
    "net.proxy",
    "net.route",
    "net.timeout",
    "telegram.poller",
)
"""What is mended elsewhere, so that it is looked at again first of all."""


def review_findings(
    findings: Iterable[Finding], *, skip: bool = True, also: tuple[str, ...] = ()
) -> DialogFlow[ProblemChoice]:
    """Show what was found; where something does not work, what to do about it. Raises Skipped.

    `also`: codes of warnings that are worth asking about.
    """
    found = tuple(findings)
    yield SetupFindings(found)
    wrong = [one for one in found if one.level == "bad" or (one.level == "warning" and one.code in also)]
    if not wrong:
        return "go on"
    elsewhere = all(one.code.startswith(_RETRY_FIRST_CODES) for one in wrong)
    ways: tuple[ProblemChoice, ...] = ("again", "correct", "go on") if elsewhere else ("correct", "again", "go on")
    reply = yield ProblemQuestion(choices=(*ways, "skip") if skip else ways, findings=tuple(wrong))
    if reply == "skip":
        raise PlatformSkipped
    assert reply in {"again", "correct", "go on"}
    return "again" if reply == "again" else "correct" if reply == "correct" else "go on"


def split_words(words: str) -> tuple[str, ...]:
    """The words of an answer that names several things."""
    return tuple(word for word in words.replace(",", " ").split() if word)
