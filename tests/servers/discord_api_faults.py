"""What can be made to go wrong on the loopback Discord, and what its size limits are."""

import re
from dataclasses import dataclass, field
from typing import Literal

Action = Literal[
    "500 before",  # refused by a broken server: nothing happened
    "500 after",  # it happened, and the answer is an error
    "502 before",
    "502 after",
    "reset before",  # the connection is cut before the request was looked at
    "reset after",  # it happened, and the connection is cut instead of an answer
    "429",  # too fast, with `retry_after_s` and `scope`
    "banned",  # a 429 without a Via header, as Cloudflare answers
    "slow",  # the answer comes after `delay_s`
    "silent",  # it happened, and there is never an answer
]


Told = Literal["both", "body", "header", "nothing"]
"""Where a 429 says how long to wait."""


@dataclass(slots=True)
class Fault:
    """What becomes of the next `times` requests that match."""

    on: re.Pattern[str]
    """Matched against `POST /channels/1/messages`, from its start."""
    do: Action
    times: int
    retry_after_s: float
    scope: str
    delay_s: float
    told: Told


@dataclass(slots=True)
class Faults:
    """Set at any time."""

    rest: list[Fault] = field(default_factory=list)
    hold_acks: bool = False
    """Heartbeats are read and not acknowledged."""
    silent: bool = False
    """Connections are accepted, and nothing is ever said, not even HELLO."""
    no_sockets: bool = False
    """The WebSocket handshake is answered with 503."""
    close_after_hello: int | None = None
    """A close code; 0 cuts without one."""
    close_after_ready: int | None = None
    """The same, after READY or RESUMED."""
    invalid_sessions: int = 0
    """So many IDENTIFY and RESUME are answered with INVALID_SESSION."""
    resumable: bool = False
    """What that says of the session."""
    refused_resumes: int = 0
    """So many RESUME are answered by closing with `refusal`."""
    refusal: int = 4000
    """0 cuts without a code."""
    cut_replays: int = 0
    """So many RESUME are cut when the first half of what was missed is told."""
    closed_handshakes: int = 0
    """So many connections are closed with 4000 instead of HELLO."""
    unlisted_guilds: bool = False
    """READY names no guilds."""
    late_guilds: bool = False
    """No GUILD_CREATE comes by itself; see `DiscordApi.tell_guilds`."""

    def add(
        self,
        on: str,
        do: Action,
        *,
        times: int = 1,
        retry_after_s: float = 0.2,
        scope: str = "user",
        delay_s: float = 0.2,
        told: Told = "both",
    ) -> Fault:
        """A fault of the HTTP API; earlier ones go first."""
        self.rest.append(Fault(re.compile(on), do, times, retry_after_s, scope, delay_s, told))
        return self.rest[-1]

    def due(self, call: str) -> Fault | None:
        """What becomes of this request; None: nothing."""
        for fault in self.rest:
            if fault.times > 0 and fault.on.match(call):
                fault.times -= 1
                return fault
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the server is set up."""

    token: str = "MTk4.loop.back-secret"
    message_content: bool = True
    """Whether the operator has allowed the privileged intent."""
    members: bool = False
    """The same for the intent to list members."""
    heartbeat_s: float = 41.25
    heartbeat_grace_s: float | None = None
    """Longer than this without a heartbeat, and the connection is closed with 4009; None: three intervals."""
    compress: bool = True
    """Speak zlib-stream to who asks for it; else plain text, which clients accept too."""
    resume_url: str = ""
    """What READY tells as the address for resuming; empty: this server's."""
    identifies_per_day: int = 1000
    shards: int = 1
    """What is recommended."""
    max_concurrency: int = 1
    """IDENTIFY per five seconds; enforced where `strict_identify`."""
    strict_identify: bool = False
    limits: tuple[tuple[str, int, float], ...] = ((r".*", 50, 1.0),)
    """Pattern on `POST /channels/1/messages`, requests, per seconds; the first that matches makes the bucket."""
    json_type: str = "application/json"
    """What the HTTP API says of its answers; clients compare it as a whole."""
    nonce_s: float = 180.0
    """How long an enforced nonce is remembered (`the past few minutes`)."""
    interaction_s: float = 3.0
    """For the first answer to an interaction."""
