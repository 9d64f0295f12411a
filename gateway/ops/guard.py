"""Who may ask the operator's HTTP server. Pure.

A browser lets any page that somebody looks at send requests to this machine, under any name that its owner has made
mean this machine (DNS rebinding). So only names count that are known to be ours, and data is given to nobody without
the token, which no browser sends by itself.
"""

import hmac
import re
from collections.abc import Collection
from http import HTTPStatus
from ipaddress import ip_address

from gateway.ops.http import HttpRequestHead, HttpResponse, problem_response

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
_BEARER = re.compile(r"bearer +(?P<token>\S.*)", re.IGNORECASE)
CHALLENGE = (("WWW-Authenticate", 'Bearer realm="reverie"'),)
OPS_DISABLED_HINT = "there is no API without a token: set ops.token, at least 16 characters, and start the gateway anew"


def is_loopback(host: str) -> bool:
    """Whether whatever listens there is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_known_host(said: str, host: str, names: Collection[str]) -> bool:
    """Whether a `Host` header names us: by a loopback name, by the address that we listen on, or one of the names.

    `host`: what we listen on. An address as such was made by nobody's name server, so it counts where we listen on one
    that others reach.
    """
    found = _HOST.fullmatch(said)
    if found is None:
        return False
    name = found["name"].strip("[]").rstrip(".").lower()
    if name == host.strip("[]").lower() or name in names or name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(host)


def reject_unknown_host(head: HttpRequestHead, host: str, names: Collection[str]) -> HttpResponse | None:
    """The answer to a request for another host. None: it is for us."""
    if is_known_host(head.headers.get("host", ""), host, names):
        return None
    return problem_response(
        HTTPStatus.FORBIDDEN, "that host name is not known here: use 127.0.0.1, or add it to ops.hosts"
    )


def has_token(head: HttpRequestHead, token: str) -> bool:
    """Whether a request comes with the token. Takes as long for every wrong one."""
    said = _BEARER.fullmatch(head.headers.get("authorization", ""))
    given = said["token"].strip() if said is not None else ""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()) and bool(given)


def unauthorized_response() -> HttpResponse:
    """The answer to whoever does not bear it."""
    return problem_response(
        HTTPStatus.UNAUTHORIZED, "send `Authorization: Bearer TOKEN` with the value of ops.token", headers=CHALLENGE
    )


def missing_token_response() -> HttpResponse:
    """The answer where there is none."""
    return problem_response(HTTPStatus.FORBIDDEN, OPS_DISABLED_HINT)
