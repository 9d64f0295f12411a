"""How the scripted IRC server is, and what goes wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CERTIFIED = "certified"
CAPS = (
    "account-notify account-tag batch chghost echo-message extended-join message-tags multi-prefix "
    "server-time setname userhost-in-names"
)
MODERN = (
    f"{CAPS} away-notify draft/chathistory draft/event-playback draft/message-redaction "
    "draft/multiline=max-bytes=4096,max-lines=24 invite-notify labeled-response standard-replies"
)
"""As a server offers them that knows all that we do."""


@dataclass
class Options:
    """How the server is."""

    caps: str | None = CAPS
    """What CAP LS offers; None: a server without CAP (421)."""
    cap_lines: int = 1
    """Over how many lines CAP LS is spread."""
    nak: frozenset[str] = frozenset()
    """Capabilities that are offered, but refused when asked for."""
    nak_names: Literal["all", "refused", "none"] = "all"
    """Which of the capabilities asked for the refusal repeats; the specification says all."""
    cap_endless: bool = False
    """The last line of CAP LS says that there is more to come; none does."""
    cap_deaf: frozenset[str] = frozenset()
    """A request for any of these capabilities is not answered."""
    sasl: Mapping[str, str] = field(default_factory=dict)
    """Account -> password, for SASL. Who shows a client certificate is `CERTIFIED` in SASL EXTERNAL."""
    sasl_fails: str = ""
    """Numeric with which every SASL login is refused."""
    scram_proof: Literal["true", "false", "none", "error"] = "true"
    """Whether the server proves that it knows the password, too."""
    isupport: tuple[str, ...] = (
        "NETWORK=Fakenet",
        "CASEMAPPING=rfc1459",
        "CHANTYPES=#&",
        "STATUSMSG=@+",
        "PREFIX=(ov)@+",
    )
    taken: set[str] = field(default_factory=set)
    """Nicks that somebody else has."""
    reserved: set[str] = field(default_factory=set)
    """Nicks that the services hold (432)."""
    nick_length: int = 99
    """A longer nick is refused (432)."""
    modes: Mapping[str, str] | None = None
    """Room -> modes, as MODE tells them; others are not there (403). None: MODE is not known (421)."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Room -> numeric with which JOIN is refused."""
    muted: Mapping[str, str] = field(default_factory=dict)
    """Target -> numeric with which PRIVMSG is refused."""
    opless: frozenset[str] = frozenset()
    """Rooms whose topic only operators may set (482)."""
    redact_fails: str = ""
    """Code of the FAIL that answers every REDACT."""
    tagless: Literal["", "421", "FAIL"] = ""
    """How every TAGMSG is refused; empty: it is not."""
    muted_reason: str = "Cannot send"
    muted_texts: frozenset[str] = frozenset()
    """Texts that are refused wherever they are said (404)."""
    deaf: frozenset[str] = frozenset()
    """Rooms whose JOIN is not answered."""
    host: str = "test.host"
    """What others see as every client's host."""
    greeting: bytes = b""
    """Said as soon as somebody connects."""
    banned: bool = False
    password: str | None = None
    motd: bool = True
    history: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    """What CHATHISTORY knows: room or nick, tags (`time`, `msgid`, ...), line; oldest first."""
    history_fails: str = ""
    """Code of the FAIL that answers every CHATHISTORY."""
    history_deaf: bool = False
    """CHATHISTORY is not answered."""
    multiline_fails: str = ""
    """Code of the FAIL that answers every multiline batch."""
    accounts: Mapping[str, str] = field(default_factory=dict)
    """Nick -> account, for WHO with WHOX fields."""
    whois: Literal["", "421", "deaf"] = ""
    """How every WHOIS is refused; empty: it is answered."""
    joins_timed: bool = True
    """False: what people say carries a time, and no JOIN does, so there is no telling how this server's clock goes."""
    pong_token: bool = True
    """False: PONG without the token, as jaraco's server does."""


@dataclass
class Faults:
    """What goes wrong; may be changed at any time."""

    drop_after: int | None = None
    drop_on: str | None = None
    drop_again: bool = False
    hold_pongs: bool = False
    silent: bool = False
    hold_labels: bool = False
    """Answers to labelled commands are late (until `release_labels()`)."""
