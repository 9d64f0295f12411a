"""What was answered, in the configuration's own terms. Pure."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["anthropic", "openai", "llamacpp", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
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
class Telegram:
    """One bot."""

    channel: str
    token: Secret
    rooms: tuple[str, ...] = ()
    base_url: str | None = None
    """None: Telegram's own."""
    username: str = ""
    """Without `@`; for the last words. Empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discord:
    """One bot."""

    channel: str
    token: Secret
    rooms: tuple[str, ...] = ()
    api_url: str | None = None
    """None: Discord's own; as the next."""
    gateway_url: str | None = None
    name: str = ""
    """For the last words, as the next; empty: not known."""
    invitation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Irc:
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
    account_password: Secret | None = None
    mechanism: str = "plain"
    """How it logs in. `external`: by a certificate, so nothing is asked."""
    server_password: Secret | None = None
    contact: str | None = None
    rooms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """What it thinks with."""

    model_key: str = "main"
    """The model's key in the configuration."""
    provider: str
    """The provider's."""
    kind: Kind
    base_url: str | None = None
    """None: the default of its kind."""
    api_key: Secret | None = None
    """None: none is needed."""
    name: str | None = None
    """As the provider calls the model. None: it has one only."""
    context_tokens: int | None = None
    """None: the default of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """All of it. What is None or empty was not asked for and stays as it is."""

    telegram: Telegram | None = None
    discord: Discord | None = None
    irc: Irc | None = None
    model: Thinking | None = None
    owners: tuple[str, ...] = ()
    """`<channel>:<id>`, all that there are to be."""
    agent_id: str = "reverie"
    """The agent's id."""
    workspace: str | None = None
    """Where its persona is. None: the one that comes with the product."""
    identity: str | None = None
    """The text of IDENTITY.md there, if it is to be written."""
    ops_token: Secret | None = None

    @property
    def secrets(self) -> tuple[Secret, ...]:
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
