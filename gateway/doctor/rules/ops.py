"""What is so about the operator's HTTP port. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gateway.credentials import looks_random
from gateway.probes.base import Finding

PortHolder = Literal["nobody", "ours", "another gateway", "another program"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortObservation:
    """As it was found."""

    host: str
    port: int
    """0: any free one; then nothing was looked at."""
    holder: PortHolder
    bind_problem: str = ""
    """Why nobody could listen there; empty: somebody could, or does."""
    is_gateway_running: bool
    """A gateway runs with this store."""


def judge_port(seen: PortObservation) -> Iterator[Finding]:
    """Whether the server can listen, or does."""
    place = f"{seen.host}:{seen.port}"
    if not seen.port:
        yield Finding(code="ops.port", level="ok", what="any free port is taken (ops.port: 0)")
    elif seen.holder in ("another program", "another gateway"):
        yield Finding(
            code="ops.port",
            level="warning",
            what=f"{place} is taken by {seen.holder}: there is no dashboard, and there are no metrics",
            fix="set ops.port to a free one, or 0 for any, or end that program",
            where="ops.port",
        )
    elif seen.bind_problem:
        yield Finding(
            code="ops.unbound",
            level="warning",
            what=f"nobody can listen at {place}: {seen.bind_problem}",
            fix="set ops.host to an address of this machine (127.0.0.1) and ops.port to one above 1023",
            where="ops.host",
        )
    elif seen.is_gateway_running and seen.holder == "nobody":
        yield Finding(
            code="ops.silent",
            level="warning",
            what=f"the gateway runs, and nobody listens at {place}",
            fix="see the gateway's log for why it could not listen, then restart it",
            where="ops.port",
        )
    else:
        told = "is held by our own gateway" if seen.holder == "ours" else "is free"
        yield Finding(code="ops.port", level="ok", what=f"{place} {told}")


def judge_token(host: str, token: str | None, *, loopback: bool) -> Iterator[Finding]:
    """Whether a stranger could get in."""
    if token is None:
        what = "there is no ops.token: the dashboard and the console are off"
        yield Finding(code="ops.token", level="ok", what=what, where="ops.token")
    elif not loopback and not looks_random(token):
        yield Finding(
            code="ops.token",
            level="warning",
            what=f"the token reads like words, which can be guessed, and {host} can be reached over the network",
            fix="write one by chance (openssl rand -hex 24), or set ops.host: 127.0.0.1",
            where="ops.token",
        )
    else:
        yield Finding(code="ops.token", level="ok", what="the dashboard asks for a token", where="ops.token")
