"""Questions of the setup dialog, the answers they add up to, and who answers them."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from gateway.core.findings import Finding

T = TypeVar("T")
ProviderKind = Literal["anthropic", "openai", "llamacpp", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretReference:
    """A secret that the configuration refers to."""

    reference: str = field(repr=False)
    """Text in the configuration: `${NAME}`, `${file:PATH}`, or the secret itself where somebody
    wrote it there by hand.
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


@dataclass(frozen=True, slots=True)
class SetupQuestion:
    """A question. The answer is what `parse` makes of the text."""

    key: str
    """Key of the answer, also its flag (`--` in front, `-` for dots). Empty: no flag."""
    text: str
    _: KW_ONLY
    default: str | None = None
    """Answer for empty input. None: an answer is required."""
    noninteractive_default: str | None = None
    """Answer when unattended and without a flag. None: `default`."""
    secret_key: str = ""
    """Key of a secret: when unattended and the secret's flag is given, the answer is `yes`. Empty:
    none."""
    choices: tuple[str, ...] = ()
    """If not empty: one of these, its number from 1, or an unambiguous prefix."""
    allows_other: bool = False
    """With choices: any other word is an answer as well."""
    parse: Callable[[str], str] = str.strip
    """Raises ValueError with a hint on the correct form."""
    is_optional: bool = False
    """True: asked only through its flag; otherwise the default is the answer."""


@dataclass(frozen=True, slots=True)
class SecretQuestion:
    """A question with hidden input."""

    key: str
    """Key of the answer; its flags end in `-env` and `-file`."""
    text: str
    file: str
    """File of the secret, below the configuration directory."""
    _: KW_ONLY
    existing: SecretReference | None = None
    """Existing secret, the answer for empty input. None: an answer is required."""
    parse: Callable[[str], str] = str.strip
    is_optional: bool = False
    """True: asked only through its flags; otherwise the answer is `existing`, or a
    `SecretReference` without a reference.
    """


ProblemChoice = Literal["correct", "again", "go on", "skip"]
"""correct: answer the question again; again: probe again; go on: accept; skip: leave the platform
out."""


class PlatformSkipped(Exception):
    """The person leaves the platform out."""


class Respondent(Protocol):
    """Answers the questions of setup. Each method may raise `SetupAborted`."""

    directory: Path
    """Configuration directory, the base of relative paths."""

    def ask(self, question: SetupQuestion) -> str: ...

    def ask_secret(self, question: SecretQuestion) -> SecretReference: ...

    def confirm(self, text: str, *, default: bool = True) -> bool:
        """Return the answer to a yes or no question."""
        ...

    def probe(self, probing: Coroutine[None, None, T]) -> T:
        """Return the result of a probe, or of a search for what can be offered as an answer."""
        ...

    def tell(self, *lines: str) -> None: ...

    def show_findings(self, findings: Sequence[Finding]) -> None: ...

    def choose_remedy(
        self, choices: tuple[ProblemChoice, ...], findings: Sequence[Finding]
    ) -> ProblemChoice:
        """Return what to do about findings that are not ok. The first choice is the answer for
        empty input.
        """
        ...


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
    person: Respondent,
    findings: Iterable[Finding],
    *,
    skip: bool = True,
    also: tuple[str, ...] = (),
) -> ProblemChoice:
    """Show findings. Where something does not work, ask what to do about it. Raises
    PlatformSkipped.

    `also`: codes of warnings that are asked about, too.
    """
    found = tuple(findings)
    person.show_findings(found)
    wrong = [
        one for one in found if one.level == "bad" or (one.level == "warning" and one.code in also)
    ]
    if not wrong:
        return "go on"
    elsewhere = all(one.code.startswith(_RETRY_FIRST_CODES) for one in wrong)
    ways: tuple[ProblemChoice, ...] = (
        ("again", "correct", "go on") if elsewhere else ("correct", "again", "go on")
    )
    reply = person.choose_remedy((*ways, "skip") if skip else ways, wrong)
    if reply == "skip":
        raise PlatformSkipped
    return reply


def split_words(words: str) -> tuple[str, ...]:
    """Return the words of an answer that names several things."""
    return tuple(word for word in words.replace(",", " ").split() if word)
