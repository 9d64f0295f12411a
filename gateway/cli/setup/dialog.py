"""What an interview asks for, step by step, and the questions that are the same everywhere. Pure.

A `DialogFlow` yields steps and is sent one reply for each: a text for `SetupQuestion`, a `SecretReference` for
`SecretQuestion`, True or False for `ConfirmQuestion`, what was seen for `ProbeRequest`, None for `SetupNotice`.

What was answered, in the configuration's own terms. Pure.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from agent.models.config import ModelConfig, ProviderConfig
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.cli.probes.base import Finding
from gateway.cli.probes.discord import DiscordProbeResult
from gateway.cli.probes.irc import IrcProbeResult
from gateway.cli.probes.model import ModelListing, ModelProbeResult
from gateway.cli.probes.telegram import TelegramContacts, TelegramProbeResult

ProviderKind = Literal["anthropic", "openai", "llamacpp", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretReference:
    """A value that never stands in the configuration itself."""

    reference: str = field(repr=False)
    """As the configuration has it: `${NAME}` or `${file:PATH}`; or itself, where somebody wrote it there by hand."""
    value: str | None = field(default=None, repr=False)
    """What it stands for. None: not known here, e.g. because the variable is not set."""
    is_new: bool = False
    """The file that `reference` names is to be written with `value`."""

    @property
    def path(self) -> str:
        """Of the file; empty: it is a variable's."""
        return self.reference[7:-1].strip() if self.reference.startswith("${file:") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramAnswers:
    """One bot."""

    channel: str
    token: SecretReference
    rooms: tuple[str, ...] = ()
    base_url: str | None = None
    """None: Telegram's own."""
    username: str = ""
    """Without `@`; for the last words. Empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordAnswers:
    """One bot."""

    channel: str
    token: SecretReference
    rooms: tuple[str, ...] = ()
    api_url: str | None = None
    """None: Discord's own; as the next."""
    gateway_url: str | None = None
    name: str = ""
    """For the last words, as the next; empty: not known."""
    invitation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcAnswers:
    """One account on one network."""

    channel: str
    host: str
    port: int = 6697
    tls: bool = True
    ca_file: str | None = None
    """Of a server of one's own, with `tls`. None: the system's roots."""
    nick: str
    account: str | None = None
    """Of the network's services. None: no login."""
    account_password: SecretReference | None = None
    mechanism: str = "plain"
    """How it logs in. `external`: by a certificate, so nothing is asked."""
    server_password: SecretReference | None = None
    contact: str | None = None
    rooms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswers:
    """What it thinks with."""

    model_key: str = "main"
    """The model's key in the configuration."""
    provider: str
    """The provider's."""
    kind: ProviderKind
    base_url: str | None = None
    """None: the default of its kind."""
    api_key: SecretReference | None = None
    """None: none is needed."""
    name: str | None = None
    """As the provider calls the model. None: it has one only."""
    context_tokens: int | None = None
    """None: the default of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupAnswers:
    """All of it. What is None or empty was not asked for and stays as it is."""

    telegram: TelegramAnswers | None = None
    discord: DiscordAnswers | None = None
    irc: IrcAnswers | None = None
    model: ModelAnswers | None = None
    owners: tuple[str, ...] = ()
    """`<channel>:<id>`, all that there are to be."""
    agent_id: str = "reverie"
    """The agent's id."""
    workspace: str | None = None
    """Where its persona is. None: the one that comes with the product."""
    identity: str | None = None
    """The text of IDENTITY.md there, if it is to be written."""
    ops_token: SecretReference | None = None

    @property
    def secrets(self) -> tuple[SecretReference, ...]:
        """All that are named."""
        irc, thinking = self.irc, self.model
        found = (
            self.telegram.token if self.telegram else None,
            self.discord.token if self.discord else None,
            irc.account_password if irc else None,
            irc.server_password if irc else None,
            thinking.api_key if thinking else None,
            self.ops_token,
        )
        return tuple(secret for secret in found if secret is not None)


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

    target: "_ProbeTarget"


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


_ProbeTarget = (
    TelegramConfig
    | DiscordConfig
    | IrcConfig
    | ProviderConfig
    | WaitingProbeRequest
    | ModelProbeRequest
    | PersonProbeRequest
)
"""What is probed: an account, a provider, or one of the requests above."""


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
