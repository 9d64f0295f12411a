"""Web tools, `web_fetch` and `web_search`.

The order of this file: requests and responses, `WebFetcher`, search services, then the tools.

A host is looked up once, its addresses are checked, and connections go to these addresses only.
There are no cookies, no logins, no proxies, and no redirects without a new check: httpcore has none
of them. Pages are asked for without compression. What comes as gzip all the same is unpacked up to
the limit of a page alone: a few kilobytes can unpack to gigabytes (CWE-409).

Search services: docs.searxng.org (dev/search_api), api-dashboard.search.brave.com
(api-reference/web/search/get), docs.tavily.com (api-reference/endpoint/search), html.duckduckgo.com
(the page for browsers without scripts).
"""

import asyncio
import contextlib
import html
import json
import re
import socket
import ssl
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import field
from datetime import date
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from channels.aio import with_timeout
from gateway.config.reload import LiveSettings
from gateway.config.tools import SearchConfig, WebConfig
from gateway.context.requesters import (
    find_newest_lines,
    was_asked_for,
    was_written_by_member,
)
from gateway.core import addresses
from gateway.core.addresses import AllowedHosts, FetchTarget, display_host
from gateway.core.events import ConversationId, ToolImage
from gateway.core.frozen import frozen
from gateway.core.labels import OUTSIDE_LABEL
from gateway.core.media_types import (
    IMAGE_TYPES,
    OFFICE_TYPES,
    is_text_type,
)
from gateway.core.permissions import ALLOW_MEMBERS, OUT, OWN, Effect
from gateway.core.ratelimit import LruDict
from gateway.core.scopes import EVERYBODY
from gateway.core.text_safety import to_single_line
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.core.tool_spec import Image, ToolCallRefused
from gateway.plugin import Plugin, PluginContext
from gateway.plugins.media import ExtractionError, extract_text
from gateway.stream.media import prepare_image

if TYPE_CHECKING:
    import httpcore


CALL_TIMEOUT_S: Final = 20.0
"""Time limit of one call, with all redirects."""
MAX_PAGE_BYTES: Final = 5_000_000


@frozen
class WebRequest:
    """Request to a server."""

    target: FetchTarget
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Names in lower case. May hold a key."""
    body: bytes | None = None
    """Sent by POST. None: a GET."""


@frozen
class WebResponse:
    """Response of a server."""

    target: FetchTarget
    """Final target, after all redirects."""
    status: int
    media_type: str
    """In lower case and without parameters. Empty: the server did not state it."""
    charset: str
    body: bytes
    """Empty if its kind is not wanted."""
    is_truncated: bool


CONNECT_TIMEOUT_S: Final = 5.0
"""Seconds for one address; then the next is tried."""
MAX_REDIRECTS: Final = 5
MAX_CONCURRENT_FETCHES: Final = 16
"""Fetches at once; more wait, within their time."""
MAX_CONCURRENT_LOOKUPS: Final = 2
"""Lookups at once. A lookup cannot be stopped, and a server that never answers blocks one for half
a minute."""

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a host for a TCP port. Empty, or OSError: it has none."""


def is_own_address(address: str) -> bool:
    """Return True for an address of this machine: a connection to it comes from behind the
    firewall. Sends nothing.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return bool(ip_address(probe.getsockname()[0]) == ip_address(address))
        except OSError:  # there is no route
            return False


class WebFetcher:
    """HTTP client for pages.

    All methods raise ToolCallRefused, whose text has no address and nothing that a server sent.
    """

    def __init__(
        self,
        live: LiveSettings,
        *,
        resolve: Resolver | None = None,
        context: ssl.SSLContext | None = None,
        is_own: Callable[[str], bool] = is_own_address,
    ) -> None:
        """`resolve` None: the system's. `context` None: public certificates."""
        self._live = live
        self._lookups: ThreadPoolExecutor | None = None
        self._resolve = resolve or self._look_up
        self._context = context
        self._is_own = is_own
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    async def fetch(self, url: str, wants: Callable[[str], bool]) -> WebResponse:
        """Return the page at `url`, after redirects. `wants`: returns True for media types whose
        body is read.
        """
        target = addresses.parse_url(url)
        visited = {target.url}
        async with self._slots:
            while True:
                async with self._send(
                    WebRequest(target=target), await self._resolve_allowed(target)
                ) as response:
                    moved = _decode_headers(response.headers).get("location")
                    if moved is None or response.status not in {301, 302, 303, 307, 308}:
                        return await self._read_response(target, response, wants)
                if len(visited) > MAX_REDIRECTS:
                    raise ToolCallRefused(
                        f"It is redirected more often than is followed here ({MAX_REDIRECTS} "
                        "times)."
                    )
                target = addresses.resolve_redirect(target, moved)
                if target.url in visited:
                    raise ToolCallRefused(f"{display_host(target)} redirects in a circle.")
                visited.add(target.url)

    async def request(self, question: WebRequest) -> WebResponse:
        """Return the answer of a server that the operator chose: it may be anywhere. Redirects are
        not followed.
        """
        found = await self._resolve_target(question.target)
        async with self._slots, self._send(question, found) as response:
            return await self._read_response(question.target, response, lambda _: True)

    def close(self) -> None:
        """Cancel waiting lookups."""
        if self._lookups is not None:
            self._lookups.shutdown(wait=False, cancel_futures=True)

    async def _resolve_allowed(self, target: FetchTarget) -> list[str]:
        allowed = AllowedHosts.parse(self._live.settings.tools.web.allow_private)
        addresses.check_target(target, allowed)
        found = addresses.check_addresses(target, await self._resolve_target(target), allowed)
        if not allowed.allows_host(target):
            for one in found:
                if self._is_own(one) and not allowed.allows_address(ip_address(one), target.port):
                    return addresses.check_addresses(
                        target, [], allowed
                    )  # refused like other addresses
        return found

    async def _resolve_target(self, target: FetchTarget) -> list[str]:
        if target.address is not None:
            return [str(target.address)]
        try:
            return list(await self._resolve(target.host, target.port))
        except OSError:
            return []

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        """Look up on threads of its own: lookups that hang must not block the rest of the
        program.
        """
        if self._lookups is None:
            self._lookups = ThreadPoolExecutor(MAX_CONCURRENT_LOOKUPS, "web-lookup")
        found = await asyncio.get_running_loop().run_in_executor(
            self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    @asynccontextmanager
    async def _send(
        self, question: WebRequest, found: Sequence[str]
    ) -> "AsyncIterator[httpcore.Response]":
        import httpcore  # noqa: PLC0415 - most starts need none of it

        from gateway.plugins.web.pinned_connection import PinnedNetworkBackend  # noqa: PLC0415 - the same

        target = question.target
        headers = {
            "host": target.authority,
            "user-agent": "Mozilla/5.0 (compatible; Reverie)",
            "accept": "*/*",
            "accept-encoding": "identity",
            "connection": "close",
            **question.headers,
        }
        if question.body is not None:
            headers["content-length"] = str(len(question.body))
        url = httpcore.URL(
            scheme=target.scheme.encode(),
            host=target.host.encode(),
            port=target.port,
            target=target.path.encode(),
        )
        waits = dict.fromkeys(("connect", "read", "write", "pool"), CALL_TIMEOUT_S)
        try:
            context = self._tls_context() if target.scheme == "https" else None
            dialling = PinnedNetworkBackend(found[:4], CONNECT_TIMEOUT_S)
            async with (
                httpcore.AsyncConnectionPool(context, network_backend=dialling) as pool,
                pool.stream(
                    "GET" if question.body is None else "POST",
                    url,
                    headers=list(headers.items()),
                    content=question.body,
                    extensions={"timeout": waits},
                ) as response,
            ):
                yield response
        except (
            httpcore.NetworkError,
            httpcore.TimeoutException,
            httpcore.ProtocolError,
            UnicodeError,
        ) as error:
            raise ToolCallRefused(
                _explain_error(target, error)
            ) from None  # the cause may hold request headers

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            import httpx  # noqa: PLC0415 - the same; has the certificates that all other requests here trust

            self._context = httpx.create_ssl_context()
        return self._context

    async def _read_response(
        self, target: FetchTarget, response: "httpcore.Response", wants: Callable[[str], bool]
    ) -> WebResponse:
        headers = _decode_headers(response.headers)
        kind, _, parameters = headers.get("content-type", "").partition(";")
        kind = kind.strip().lower()
        body = bytearray()
        if wants(kind):
            encoding = headers.get("content-encoding", "").strip().lower().removeprefix("x-")
            if encoding not in ("", "identity", "gzip"):
                raise ToolCallRefused(
                    f"{display_host(target)} sent it packed, which was not asked for."
                )
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
            async for data in response.aiter_stream():
                try:
                    left = MAX_PAGE_BYTES + 1 - len(body)
                    body += data if unpacker is None else unpacker.decompress(data, left)
                except zlib.error:
                    raise ToolCallRefused(
                        f"{display_host(target)} sent it packed, and broken."
                    ) from None
                if len(body) > MAX_PAGE_BYTES:
                    break
        return WebResponse(
            target=target,
            status=response.status,
            media_type=kind,
            charset=_parse_charset(parameters),
            body=bytes(body[:MAX_PAGE_BYTES]),
            is_truncated=len(body) > MAX_PAGE_BYTES,
        )


def _decode_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("utf-8", "replace") for name, value in pairs
    }


def _parse_charset(parameters: str) -> str:
    for one in parameters.split(";"):
        name, _, value = one.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")[:40]
    return ""


def _explain_error(target: FetchTarget, error: Exception) -> str:
    import httpcore  # noqa: PLC0415 - it is imported by now

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


SEARCH_BASE_URLS: Final = {
    "duckduckgo": "https://html.duckduckgo.com",
    "brave": "https://api.search.brave.com",
    "tavily": "https://api.tavily.com",
}
SEARCH_PATHS: Final = {
    "duckduckgo": "/html/",
    "searxng": "/search",
    "brave": "/res/v1/web/search",
    "tavily": "/search",
}
KEYLESS_PROVIDERS: Final = frozenset({"duckduckgo", "searxng"})
DUCKDUCKGO_INTERVAL_S: Final = 2.0
"""Seconds from one search to the next: its page is made for people."""
DUCKDUCKGO_PAUSE_S: Final = 600.0
"""Seconds in which it is asked for nothing after it took us for a robot."""
ROBOT_REFUSED_TEXT: Final = (
    "duckduckgo takes no more searches from here for now; try again in ten minutes. The operator "
    "can choose a service with a key, or their own, in tools.web.search.provider."
)
MAX_TITLE_CHARS: Final = 200
MAX_HIT_URL_CHARS: Final = 1_000
MAX_SNIPPET_CHARS: Final = 600
_MARKUP = re.compile(r"</?[a-z][^<>]{0,100}>", re.IGNORECASE)


class _WebSearchHit(BaseModel):
    model_config = ConfigDict(extra="ignore")

    title: str | None = None
    url: str | None = None
    content: str | None = None
    """By SearXNG and Tavily."""
    description: str | None = None
    """By Brave."""


class _WebSearchResponse(BaseModel):
    model_config = ConfigDict(extra="ignore")

    results: list[_WebSearchHit] = []
    web: "_WebSearchResponse | None" = None
    """By Brave; missing if nothing is found."""


def build_search_request(config: SearchConfig, query: str, count: int) -> WebRequest:
    """Build the request for the configured service. Raises ToolCallRefused; no reason holds the
    key.
    """
    provider = config.provider
    if provider == "none":
        raise ToolCallRefused(
            "No search provider is set; the operator can choose one in tools.web.search.provider."
        )
    base, key = config.base_url or SEARCH_BASE_URLS.get(provider, ""), ""
    if config.api_key is not None:
        key = config.api_key.get_secret_value()
    if not key and provider not in KEYLESS_PROVIDERS:
        raise ToolCallRefused(
            f"Searching with {provider} needs a key; the operator can set it in "
            "tools.web.search.api_key."
        )
    if not (key.isascii() and key.isprintable()):
        raise ToolCallRefused(
            "The key in tools.web.search.api_key holds characters that cannot be sent."
        )
    url = (
        base.strip().rstrip("/").removesuffix(SEARCH_PATHS[provider].rstrip("/"))
        + SEARCH_PATHS[provider]
    )
    headers, body = {"accept": "application/json"}, None
    if provider == "tavily":
        headers |= {"authorization": f"Bearer {key}", "content-type": "application/json"}
        body = json.dumps({"query": query, "max_results": count}).encode()
    elif provider == "duckduckgo":
        headers = {"accept": "text/html", "content-type": "application/x-www-form-urlencoded"}
        body = urlencode({"q": query}, errors="replace").encode()
    elif provider == "brave":
        headers["x-subscription-token"] = key
        url += "?" + urlencode(
            {"q": query, "count": count, "text_decorations": "false"}, errors="replace"
        )
    else:
        if key:
            headers["authorization"] = (
                f"Bearer {key}"  # for a proxy in front of it: SearXNG itself has no keys
            )
        url += "?" + urlencode({"q": query, "format": "json"}, errors="replace")
    try:
        target = addresses.parse_url(url)
    except ToolCallRefused:
        raise ToolCallRefused(
            "tools.web.search.base_url is no server's address; the operator can correct it."
        ) from None
    return WebRequest(target=target, headers=headers, body=body)


def render_search_results(config: SearchConfig, answer: WebResponse, count: int) -> str:
    """Render the results for the model. Raises ToolCallRefused."""
    provider = config.provider
    if answer.status in (401, 403):
        hint = " (its settings may not allow the format json)" if provider == "searxng" else ""
        raise ToolCallRefused(
            f"{provider} refuses us{hint}; the operator can look at tools.web.search."
        )
    if answer.status in (429, 432, 433):
        raise ToolCallRefused(f"{provider} takes no more searches for now; try again later.")
    if answer.status != 200:  # noqa: PLR2004 - HTTP's own number
        raise ToolCallRefused(
            f"{provider} answered with the status {answer.status}; try again later, or in other "
            "words."
        )
    return render_search_hits(provider, answer.body, count)


def render_search_hits(provider: str, body: str | bytes, count: int) -> str:
    """Render the results in a JSON text for the model. Raises ToolCallRefused."""
    try:
        answered = _WebSearchResponse.model_validate_json(body)
    except ValidationError:
        raise ToolCallRefused(
            f"{provider} did not answer as it should; the operator can look at tools.web.search."
        ) from None
    found = answered.web.results if answered.web is not None else answered.results
    usable = [
        one
        for one in found
        if (one.url or "").startswith(("http://", "https://"))
        and len(one.url or "") <= MAX_HIT_URL_CHARS
    ]
    lines = [_render_hit(number, one) for number, one in enumerate(usable[:count], 1)]
    return "\n\n".join(lines) or "Nothing was found."


def _render_hit(number: int, one: _WebSearchHit) -> str:
    title, snippet = (
        _strip_markup(one.title, MAX_TITLE_CHARS),
        _strip_markup(one.content or one.description, MAX_SNIPPET_CHARS),
    )
    url = to_single_line(one.url or "", MAX_HIT_URL_CHARS)
    return "\n".join(part for part in (f"{number}. {title or url}", url, snippet) if part)


def _strip_markup(text: str | None, most: int) -> str:
    return to_single_line(html.unescape(_MARKUP.sub("", text or "")), most)


MAX_QUERY_CHARS: Final = 400
"""Limit of a query: that of Brave (api-dashboard.search.brave.com, api-reference/web/search)."""
MAX_RESULTS: Final = 20
"""Limit of results: that of Brave and Tavily."""
CALL_GRACE_S: Final = 10.0
"""Seconds after a call's own time until it is cancelled as hanging."""
_SCHEME: Final = re.compile(r"\Ahttps?://", re.IGNORECASE)
_LINK: Final = re.compile(r"https?://[^\s<>\"'()\[\]]+", re.IGNORECASE)
MAX_LINKS: Final = 100
"""Links of one site that are known in a conversation: those of the page read last, then of earlier
ones."""
MAX_LINK_SITES: Final = 1_000
"""Sites whose links are known, for all conversations together."""
MAX_FREE_LINKS: Final = 2
"""Links of one site that are followed unasked with private text in view, for each line of those who
ask and each day. By its choice of two out of a hundred a page tells its site about 13 bits: a
number of four digits."""
MAX_CONCURRENT_EXTRACTIONS: Final = 2
"""Pages at once. Each takes a processor, and up to a gigabyte of memory if it is hostile."""
WebResultT = TypeVar("WebResultT")


class Web(Plugin):
    """Reads pages, and searches. Anybody may have written what is found: it is untrusted and
    foreign.
    """

    name = "web"
    summary = "reads pages and searches, by the tools web_fetch and web_search"
    checks = "gateway.plugins.web.check"

    def __init__(
        self,
        context: PluginContext,
        *,
        resolve: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(context)
        self._clock = context.gateway.clock
        self._fetcher = WebFetcher(context.gateway.live, resolve=resolve, context=tls)
        self._links = LruDict[tuple[ConversationId, _Site], tuple[str, ...]](MAX_LINK_SITES)
        """Links to their own site in the pages that were read in a conversation, normalised.
        Forgotten at a restart."""
        self._followed = LruDict[tuple[ConversationId, int, date, _Site], list[str]](MAX_LINK_SITES)
        """What was read unasked since the newest line of those who ask, on that day: a turn and an
        address that a member wrote, once, and an empty text for each link or repetition. Turns that
        go on by themselves, and reminders, share the links."""
        self._extraction_slots = asyncio.Semaphore(MAX_CONCURRENT_EXTRACTIONS)
        self._next_search_s = 0.0
        """Time of the clock's `monotonic` before which duckduckgo is not asked again."""

    @property
    def settings(self) -> WebConfig:
        return self.context.gateway.live.settings.tools.web

    async def stop(self) -> None:
        self._fetcher.close()

    def _max_call_s(self) -> float:
        return CALL_TIMEOUT_S + CALL_GRACE_S

    async def _effect(
        self, context: ToolContext, *, url: str = "", query: str = "", **_: object
    ) -> Effect:
        """Return `out` for what the model composed while private text is in view.

        It did not compose an address that a member wrote here, once a turn; a few links to its own
        site in a page that was read here; and a search in words of the newest message of somebody
        who asks.
        """
        place, target = context.at.conversation, addresses.parse_url(url) if url else None
        store, people = self.context.gateway.store, self.context.gateway.people
        if EVERYBODY.can_read(context.request.label.readers):
            return OWN
        if target is None:
            is_asked = await was_asked_for(store, people, place, context.requesters, query)
            return OWN if is_asked else OUT._replace(what="words of a search that nobody asked for")
        written = _SCHEME.sub("", url.strip()).removesuffix("/")
        is_written = await was_written_by_member(store, people, place, written)
        what = f"an address at {display_host(target)}"
        if not is_written and target.url not in self._links.get((place, _site(target)), ()):
            return OUT._replace(what=f"{what} that no member wrote here")
        said = await find_newest_lines(store, place, context.requesters)
        line = said[-1][0] if said else 0
        key = (place, line, self._clock.now().date(), _site(target))
        followed, once = self._followed.get(key, []), f"{context.turn} {written}"
        is_free = is_written and once not in followed
        if not is_free and followed.count("") >= MAX_FREE_LINKS:
            return OUT._replace(
                what=f"{what}, of which {MAX_FREE_LINKS} links were followed already,"
            )
        self._followed.put(key, [*followed, once if is_free else ""])
        return OWN

    @tool(
        "Read a public web page or picture, without scripts or logins (expensive).",
        ALLOW_MEMBERS,
        effect=_effect,
        timeout_s=_max_call_s,
        parallel=True,
        offer="described",
    )
    async def web_fetch(
        self,
        context: ToolContext,
        *,
        url: Annotated[
            str,
            Field(
                min_length=1,
                max_length=addresses.MAX_URL_CHARS,
            ),
        ],
    ) -> ToolOutput:
        return await self._within_timeout(self._fetch_page(url, context.at.conversation))

    @tool(
        "Search the web (expensive). Returns titles, addresses and short extracts; web_fetch reads "
        "a page.",
        ALLOW_MEMBERS,
        effect=_effect,
        timeout_s=_max_call_s,
        parallel=True,
    )
    async def web_search(
        self,
        _: ToolContext,
        *,
        query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)],
        count: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 5,
    ) -> ToolOutput:
        return await self._within_timeout(self._search_web(query, count))

    async def _fetch_page(self, url: str, place: ConversationId) -> ToolOutput:
        answer = await self._fetcher.fetch(
            url, lambda kind: kind in IMAGE_TYPES or _is_readable(kind)
        )
        head, text = _describe_status(answer), ""
        images: tuple[tuple[ToolImage, Image], ...] = ()
        if answer.media_type in IMAGE_TYPES and not answer.is_truncated:
            name = addresses.parse_url(url).path.partition("?")[0].rpartition("/")[2]
            images = (await prepare_image(self.context.media, answer.body, name or "this"),)
            text = f"{images[0][0].about} is shown below."
        elif not _is_readable(answer.media_type) or (
            not answer.media_type and b"\0" in answer.body[:1000]
        ):
            text = (
                f"This is no text but {answer.media_type or 'of an unknown kind'}; its content "
                "cannot be read here."
            )
        elif answer.body:
            async with self._extraction_slots:
                try:
                    page = await extract_text(
                        answer.body,
                        kind=answer.media_type,
                        charset=answer.charset,
                        url=answer.target.url,
                        cut=answer.is_truncated,
                    )
                except ExtractionError as error:
                    raise ToolCallRefused(f"This page cannot be read: {error}.") from None
            head += f": {page.title}" if page.title else ""
            if _site(answer.target) == _site(
                addresses.parse_url(url)
            ):  # a page elsewhere was the server's choice
                self._keep_links(place, answer.target, page.text)
            text = page.text or "The page has no text. Scripts may write it, and they are not run."
            if answer.is_truncated or page.cut:
                text += "\n\n(There is more of it than is read of one page.)"
        moved = f"\n{answer.target.url}" if answer.target.url != url else ""
        return ToolOutput(
            text=f"{head}{moved}\n\n{text or 'It is empty.'}",
            kind="page",
            origin=answer.target.url,
            is_untrusted=True,
            label=OUTSIDE_LABEL,
            images=images,
        )

    def _keep_links(self, place: ConversationId, page: FetchTarget, text: str) -> None:
        key, found = (place, _site(page)), list[str]()
        for link in _LINK.findall(text):
            with contextlib.suppress(ToolCallRefused):
                target = addresses.parse_url(link)
                found += [target.url] if _site(target) == _site(page) else []
        self._links.put(key, tuple(dict.fromkeys([*found, *self._links.get(key, ())]))[:MAX_LINKS])

    async def _search_web(self, query: str, count: int) -> ToolOutput:
        config = self.settings.search
        request = build_search_request(config, query, count)
        if config.provider == "duckduckgo":
            text = await self._search_duckduckgo(request, count)
        else:
            text = render_search_results(config, await self._fetcher.request(request), count)
        return ToolOutput(
            text=text, kind="search", origin=config.provider, is_untrusted=True, label=OUTSIDE_LABEL
        )

    async def _search_duckduckgo(self, request: WebRequest, count: int) -> str:
        """Return the results of the page for browsers without scripts. Raises ToolCallRefused.

        Whoever it takes for a robot gets a page with a puzzle (status 202 or 403), or one that has
        no results.
        """
        now_s = self._clock.monotonic()
        wait_s = max(self._next_search_s - now_s, 0.0)
        if wait_s >= CALL_TIMEOUT_S:
            raise ToolCallRefused(ROBOT_REFUSED_TEXT)
        self._next_search_s = now_s + wait_s + DUCKDUCKGO_INTERVAL_S
        await self._clock.sleep(wait_s)
        answer = await self._fetcher.request(request)
        if answer.status not in (200, 202, 403, 429):
            raise ToolCallRefused(
                f"duckduckgo answered with the status {answer.status}; try again later."
            )
        if answer.status == HTTPStatus.OK:
            with contextlib.suppress(ExtractionError):
                async with self._extraction_slots:
                    page = await extract_text(
                        answer.body, kind="search/duckduckgo", charset=answer.charset
                    )
                return render_search_hits("duckduckgo", page.text, count)
        self._next_search_s = self._clock.monotonic() + DUCKDUCKGO_PAUSE_S
        raise ToolCallRefused(ROBOT_REFUSED_TEXT)

    async def _within_timeout(self, work: Coroutine[Any, Any, WebResultT]) -> WebResultT:
        try:
            return await with_timeout(self._clock, CALL_TIMEOUT_S, work)
        except TimeoutError:
            raise ToolCallRefused(
                f"It took longer than {CALL_TIMEOUT_S:g} s, the limit of one call."
            ) from None


def _is_readable(kind: str) -> bool:
    return is_text_type(kind) or kind in OFFICE_TYPES


_Site = tuple[str, str, int]


def _site(target: FetchTarget) -> _Site:
    return target.scheme, target.host, target.port


def _describe_status(answer: WebResponse) -> str:
    """Describe status and type in our words: the server's own phrase is untrusted."""
    try:
        phrase = f" {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = ""
    return f"{answer.status}{phrase}, {answer.media_type[:100] or 'of no stated kind'}"
