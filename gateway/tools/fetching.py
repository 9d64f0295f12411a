"""Getting one page from the web: looked up once, judged, connected to as judged, and read within limits.

No cookies, no logins, no proxies and no redirects that were not judged again: httpcore has none of them.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from agent.tools.schema import ToolCallRefused
from gateway.settings_tools import WebConfig
from gateway.tools import addresses
from gateway.tools.addresses import AllowedHosts, FetchTarget, display_host
from gateway.tools.unpacking import ACCEPTED_ENCODINGS, ContentDecodeError, ContentDecoder
from gateway.tools.webtypes import WebRequest, WebResponse

if TYPE_CHECKING:
    import httpcore


CONNECT_TIMEOUT_S: Final = 5.0
"""For one address; then the next is tried."""
MAX_ADDRESSES: Final = 4
"""Of one host that are tried."""
MAX_CONCURRENT_FETCHES: Final = 16
"""Fetches under way; more wait, within their time."""
MAX_CONCURRENT_LOOKUPS: Final = 2
"""At once. A lookup cannot be stopped, and a server that never answers holds one for half a minute."""
MAX_LENGTH_DIGITS: Final = 18
"""Of a length that a server states."""
USER_AGENT: Final = "Mozilla/5.0 (compatible; Reverie)"
REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""All addresses of a host for a TCP port. Empty, or OSError: it has none."""


def is_own_address(address: str) -> bool:
    """Whether it is this machine's: then a connection would come from inside of its firewall. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return bool(ip_address(probe.getsockname()[0]) == ip_address(address))
        except OSError:  # there is no way there
            return False


class WebFetcher:
    """Everything raises Refused, whose text names no address and holds nothing that the server said."""

    def __init__(
        self,
        config: WebConfig,
        *,
        resolve: Resolver | None = None,
        context: ssl.SSLContext | None = None,
        own: Callable[[str], bool] = is_own_address,
    ) -> None:
        """`resolve`: None, the system's. `context`: None, public certificates. Raises ValueError for the settings."""
        self._config = config
        self._allowed = AllowedHosts.parse(config.allow_private)
        self._lookups: ThreadPoolExecutor | None = None
        self._resolve = resolve or self._look_up
        self._context = context
        self._is_own = own
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    def reconfigure(self, config: WebConfig) -> None:
        """Go by that from now on. Returns at once. Raises ValueError as at the start."""
        self._allowed, self._config = AllowedHosts.parse(config.allow_private), config

    async def fetch(self, url: str, wants: Callable[[str], bool]) -> WebResponse:
        """The page at `url`, wherever it has moved to. `wants`: whether a body of that kind is read."""
        target = addresses.parse_url(url)
        seen = {target.url}
        async with self._slots:
            while True:
                async with self._send(WebRequest(target=target), await self._resolve_allowed(target)) as response:
                    moved = _redirect_location(response)
                    if moved is None:
                        return await self._read_response(target, response, wants)
                if len(seen) > self._config.max_redirects:
                    raise ToolCallRefused(
                        f"It is redirected more often than is followed here ({self._config.max_redirects} times)."
                    )
                target = addresses.resolve_redirect(target, moved)
                if target.url in seen:
                    raise ToolCallRefused(f"{display_host(target)} redirects in a circle.")
                seen.add(target.url)

    async def request(self, question: WebRequest) -> WebResponse:
        """What a server of the operator's choice answers: it may be anywhere. Redirects are not followed."""
        found = await self._resolve_target(question.target)
        async with self._slots, self._send(question, found) as response:
            return await self._read_response(question.target, response, lambda _: True)

    def close(self) -> None:
        """End what waits to be looked up."""
        if self._lookups is not None:
            self._lookups.shutdown(wait=False, cancel_futures=True)

    async def _resolve_allowed(self, target: FetchTarget) -> list[str]:
        """The addresses to connect to."""
        addresses.check_target(target, self._allowed)
        found = addresses.check_addresses(target, await self._resolve_target(target), self._allowed)
        if not self._allowed.allows_host(target):
            for one in found:
                if self._is_own(one) and not self._allowed.allows_address(ip_address(one), target.port):
                    return addresses.check_addresses(target, [], self._allowed)  # a reason like any other
        return found

    async def _resolve_target(self, target: FetchTarget) -> list[str]:
        if target.address is not None:
            return [str(target.address)]
        try:
            return list(await self._resolve(target.host, target.port))
        except OSError:
            return []

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        """On threads of its own: lookups that hang must not hold up the rest of the program."""
        if self._lookups is None:
            self._lookups = ThreadPoolExecutor(MAX_CONCURRENT_LOOKUPS, "web-lookup")
        found = await asyncio.get_running_loop().run_in_executor(
            self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    @asynccontextmanager
    async def _send(self, question: WebRequest, found: Sequence[str]) -> "AsyncIterator[httpcore.Response]":
        import httpcore  # noqa: PLC0415 - most starts need none of it

        from gateway.tools.dialling import PinnedNetworkBackend  # noqa: PLC0415 - the same

        target, headers = (
            question.target,
            {"host": question.target.authority, "user-agent": USER_AGENT, "accept": "*/*"},
        )
        headers |= {"accept-encoding": ACCEPTED_ENCODINGS, "connection": "close", **dict(question.headers)}
        if question.body is not None:
            headers["content-length"] = str(len(question.body))
        url = httpcore.URL(
            scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
        )
        waits = dict.fromkeys(("connect", "read", "write", "pool"), self._config.timeout)
        try:
            context = self._tls_context() if target.scheme == "https" else None
            dialling = PinnedNetworkBackend(found[:MAX_ADDRESSES], CONNECT_TIMEOUT_S)
            async with (
                httpcore.AsyncConnectionPool(context, network_backend=dialling) as pool,
                pool.stream(
                    question.method,
                    url,
                    headers=list(headers.items()),
                    content=question.body,
                    extensions={"timeout": waits},
                ) as response,
            ):
                yield response
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, UnicodeError) as error:
            raise ToolCallRefused(_explain_error(target, error)) from None  # the cause may hold request headers

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            import httpx  # noqa: PLC0415 - the same; brings the certificates that all other requests here trust

            self._context = httpx.create_ssl_context()
        return self._context

    async def _read_response(
        self, target: FetchTarget, response: "httpcore.Response", wants: Callable[[str], bool]
    ) -> WebResponse:
        headers = _decode_headers(response.headers)
        kind, _, parameters = headers.get("content-type", "").partition(";")
        kind = kind.strip().lower()
        length = headers.get("content-length", "")
        body, cut = b"", False
        if wants(kind):
            try:
                unpacker = ContentDecoder(headers.get("content-encoding", ""), self._config.max_bytes)
                async for data in response.aiter_stream():
                    unpacker.feed(data)
                    if unpacker.is_full:
                        break
            except ContentDecodeError as error:
                raise ToolCallRefused(f"What {display_host(target)} sent is {error}.") from None
            body, cut = unpacker.body, unpacker.is_full
        return WebResponse(
            target=target,
            status=response.status,
            media_type=kind,
            charset=_parse_charset(parameters),
            declared_bytes=int(length)
            if length.isascii() and length.isdigit() and len(length) <= MAX_LENGTH_DIGITS
            else None,
            body=body,
            is_truncated=cut,
        )


def _redirect_location(response: "httpcore.Response") -> str | None:
    if response.status not in REDIRECT_STATUSES:
        return None
    return _decode_headers(response.headers).get("location")


def _decode_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("utf-8", "replace") for name, value in pairs}


def _parse_charset(parameters: str) -> str:
    for one in parameters.split(";"):
        name, _, value = one.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")[:40]
    return ""


def _explain_error(target: FetchTarget, error: Exception) -> str:
    import httpcore  # noqa: PLC0415 - it is there by now

    host = display_host(target)
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"The certificate of {host} is not valid, so nothing was asked of it."
    if isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout):
        return f"No connection to {host} came about; it may be down, or not at this port."
    if isinstance(error, httpcore.TimeoutException):
        return f"{host} was silent for too long."
    if isinstance(error, httpcore.LocalProtocolError | UnicodeError):
        return f"{host} cannot be asked for this; the operator can look at tools.web."
    return f"{host} cut the connection, or does not speak HTTP."
