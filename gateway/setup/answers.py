"""What was answered, in the configuration's own terms. Pure."""

from dataclasses import dataclass, field
from typing import Literal

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
