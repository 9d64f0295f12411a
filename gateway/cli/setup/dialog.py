"""Steps of the setup dialog and their replies, the answers they add up to, and the questions that all parts share.

Pure.

A `DialogFlow` is a generator that yields steps and is sent one reply for each: a text for `SetupQuestion`, a
`SecretReference` for `SecretQuestion`, True or False for `ConfirmQuestion`, the result for `ProbeRequest`, None for
`SetupNotice`.
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
    """A secret that the configuration refers to."""

    reference: str = field(repr=False)
    """Text in the configuration: `${NAME}`, `${file:PATH}`, or the secret itself where somebody wrote it there by hand.
    """
    value: str | None = field(default=None, repr=False)
    """The secret. None: not known here, e.g. because the variable is not set."""
    is_new: bool = False
    """True if `value` is to be written to the file of `reference`."""

    @property
    def path(self) -> str:
        """Path of the file; empty: the secret is in a variable."""
        return self.reference[7:-1].strip() if self.reference.startswith("${file:") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramAnswers:
    """A Telegram bot."""

    channel: str
    token: SecretReference
    rooms: tuple[str, ...] = ()
    base_url: str | None = None
    """Base URL of the Bot API. None: Telegram's own."""
    username: str = ""
    """Username without `@`, for the farewell. Empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordAnswers:
    """A Discord bot."""

    channel: str
    token: SecretReference
    rooms: tuple[str, ...] = ()
    api_url: str | None = None
    """URL of the HTTP API. None: Discord's own."""
    gateway_url: str | None = None
    """URL of the gateway. None: Discord's own."""
    name: str = ""
    """Name of the bot, for the farewell. Empty: not known."""
    invitation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcAnswers:
    """An account on an IRC network."""

    channel: str
    host: str
    port: int = 6697
    tls: bool = True
    ca_file: str | None = None
    """File with the root certificate of a private server, with `tls`. None: the system's roots."""
    nick: str
    account: str | None = None
    """Account with the network's services. None: no login."""
    account_password: SecretReference | None = None
    mechanism: str = "plain"
    """SASL mechanism. `external`: by a certificate, so nothing is asked."""
    server_password: SecretReference | None = None
    contact: str | None = None
    rooms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswers:
    """The model of the agents."""

    model_key: str = "main"
    """Key of the model in the configuration."""
    provider: str
    """Key of the provider in the configuration."""
    kind: ProviderKind
    base_url: str | None = None
    """Address of the provider. None: the default of its kind."""
    api_key: SecretReference | None = None
    """None: no key is needed."""
    name: str | None = None
    """Name of the model at the provider. None: the provider has only one."""
    context_tokens: int | None = None
    """Context window. None: the default of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupAnswers:
    """All answers. Fields that are None or empty were not asked for and stay unchanged."""

    telegram: TelegramAnswers | None = None
    discord: DiscordAnswers | None = None
    irc: IrcAnswers | None = None
    model: ModelAnswers | None = None
    owners: tuple[str, ...] = ()
    """`<channel>:<id>` of all owners."""
    agent_id: str = "reverie"
    """Id of the agent."""
    workspace: str | None = None
    """Directory of the persona. None: the one that comes with the product."""
    identity: str | None = None
    """New text of IDENTITY.md there. None: unchanged."""
    ops_token: SecretReference | None = None

    @property
    def secrets(self) -> tuple[SecretReference, ...]:
        """All secrets in the answers."""
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
    """A question. The reply is what `parse` makes of the text."""

    key: str
    """Key of the answer, also its flag (`--` in front, `-` for dots). Empty: no flag."""
    text: str
    default: str | None = None
    """Answer for empty input. None: an answer is required."""
    noninteractive_default: str | None = None
    """Answer when unattended and without a flag. None: `default`."""
    secret_key: str = ""
    """Key of a secret: when unattended and the secret's flag is given, the answer is `yes`. Empty: none."""
    choices: tuple[str, ...] = ()
    """If not empty: one of these, its number from 1, or an unambiguous prefix."""
    allows_other: bool = False
    """With choices: any other word is an answer as well."""
    parse: Callable[[str], str] = str.strip
    """Raises ValueError with a hint on the correct form."""
    is_optional: bool = False
    """True: asked only through its flag; otherwise the default is the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretQuestion:
    """A question with hidden input. The reply is a `SecretReference`."""

    key: str
    """Key of the answer; its flags end in `-env` and `-file`."""
    text: str
    file: str
    """File of the secret, below the configuration directory."""
    existing: SecretReference | None = None
    """Existing secret, the answer for empty input. None: an answer is required."""
    parse: Callable[[str], str] = str.strip
    is_optional: bool = False
    """True: asked only through its flags; otherwise the answer is `existing`, or a `SecretReference` without a
    reference.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmQuestion:
    """A yes or no question."""

    text: str
    default: bool = True


@dataclass(frozen=True, slots=True)
class SetupNotice:
    """Text for the person."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetupFindings:
    """Findings of a probe, for the person."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemQuestion:
    """A question about something that does not work. The reply is one of `choices`."""

    choices: tuple["ProblemChoice", ...]
    """Offered choices; the first is the answer for empty input."""
    findings: tuple[Finding, ...]


ProblemChoice = Literal["correct", "again", "go on", "skip"]
"""correct: answer the question again; again: probe again; go on: accept; skip: leave the platform out."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request to run a probe."""

    target: "_ProbeTarget"


@dataclass(frozen=True, slots=True)
class WaitingProbeRequest:
    """Request for the people and groups whose messages wait for a Telegram bot."""

    config: TelegramConfig


@dataclass(frozen=True, slots=True)
class PersonProbeRequest:
    """Request for the name of the person with this id. The reply is the name, or an empty text."""

    config: TelegramConfig | DiscordConfig
    id: str


@dataclass(frozen=True, slots=True)
class ModelProbeRequest:
    """Request to test a model."""

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
"""Target of a probe: an account, a provider, or one of the requests above."""


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
    """Yield a question and return the answer."""
    reply = yield question
    assert isinstance(reply, str)
    return reply


def ask_secret(question: SecretQuestion) -> DialogFlow[SecretReference]:
    """Yield a question for a secret and return it."""
    reply = yield question
    assert isinstance(reply, SecretReference)
    return reply


def confirm(text: str, *, default: bool = True) -> DialogFlow[bool]:
    """Yield a yes or no question and return whether the person agrees."""
    reply = yield ConfirmQuestion(text=text, default=default)
    return reply is True


def tell(*lines: str) -> DialogFlow[None]:
    """Yield lines for the person."""
    yield SetupNotice(lines)


def request_probe(request: ProbeRequest, kind: type[T]) -> DialogFlow[T]:
    """Yield a request for a probe and return its result."""
    reply = yield request
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
"""Codes of problems that are solved elsewhere, so that probing again is the first choice."""


def review_findings(
    findings: Iterable[Finding], *, skip: bool = True, also: tuple[str, ...] = ()
) -> DialogFlow[ProblemChoice]:
    """Show findings. Where something does not work, ask what to do about it. Raises PlatformSkipped.

    `also`: codes of warnings that are asked about, too.
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
    """Return the words of an answer that names several things."""
    return tuple(word for word in words.replace(",", " ").split() if word)
