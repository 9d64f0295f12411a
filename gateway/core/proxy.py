"""Proxies: which one, if any, leads to a server.

The `proxy` key of a channel or provider counts first. Without one, the variables of the environment
that most programs obey: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, in either case
(curl's manual, ENVIRONMENT); IRC has no variable of its own, so `ALL_PROXY` counts there. They lead
to no server on this machine.
"""

import urllib.request
from collections.abc import Collection
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr

from gateway.core.addresses import is_loopback_host

_KINDS: Final = {"http": 80, "socks5": 1080, "socks5h": 1080}
"""Schemes, and the port where none is named."""
_HTTP_KINDS: Final = {**_KINDS, "https": 443}
"""The same where httpx connects: to an HTTP API."""
_FIX: Final = (
    "write http://, socks5:// or socks5h://, a name and password with : and @ if it "
    "wants them, and host:port"
)


class ProxyFailed(OSError):
    """The connection through a proxy failed; the message names the proxy."""


def _check_proxy(proxy: SecretStr) -> SecretStr:
    if proxy.get_secret_value() != "none":
        check_proxy(proxy.get_secret_value())
    return proxy


ProxySetting = Annotated[SecretStr, AfterValidator(_check_proxy)]
"""A URL, as in `find_proxy`, or `none`: no proxy, whatever the environment says."""


def check_proxy(url: str, kinds: Collection[str] = _KINDS) -> str:
    """Return the URL of a proxy. Raises ValueError, which does not quote it: it may hold a
    password.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme in kinds and parts.hostname and parts.port != 0 and parts.path in ("", "/"):
            return url
    except ValueError:  # of the port
        pass
    raise ValueError(f"not the URL of a proxy: {_FIX}")


def find_proxy(setting: SecretStr | None, url: str) -> str:
    """Return the URL of the proxy to the server of this URL. Empty: it is connected directly.

    To a server of `http://` or `https://` the environment's may be an `https://` one. Raises
    ValueError if the environment names one that is no URL.
    """
    if setting is not None:
        return "" if setting.get_secret_value() == "none" else setting.get_secret_value()
    parts = urlsplit(url)
    host, named = parts.hostname or "", urllib.request.getproxies_environment()
    proxy = named.get(parts.scheme.replace("ws", "http")) or named.get("all", "")
    if not proxy or is_loopback_host(host) or urllib.request.proxy_bypass(host):
        return ""
    try:
        kinds = _HTTP_KINDS if parts.scheme in ("http", "https") else _KINDS
        return check_proxy(proxy if "://" in proxy else f"http://{proxy}", kinds)
    except ValueError:
        raise ValueError(
            f"the environment names a proxy that is no URL (ALL_PROXY, HTTPS_PROXY): {_FIX}"
        ) from None


def through(proxy: str) -> str:
    """Return ` through the proxy HOST:PORT`, for reasons. Empty for none."""
    if not proxy:
        return ""
    parts = urlsplit(proxy)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f" through the proxy {host}:{parts.port or _HTTP_KINDS[parts.scheme]}"
