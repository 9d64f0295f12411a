"""`web_fetch` and `web_search`, carried out."""

import asyncio
import re
import ssl
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final, TypeVar

from agent.tools.schema import ToolCallRefused
from agent.tools.web import WEB_FETCH, WEB_SEARCH, WebFetchArgs, WebSearchArgs
from channels.tasks import with_timeout
from gateway.clock import Clock
from gateway.hands import Tool, ToolContext, ToolOutput
from gateway.labels import role_rank
from gateway.scopes import PUBLIC
from gateway.settings_tools import WebConfig
from gateway.tools import websearch
from gateway.tools.extracting import extract_page, is_text_type
from gateway.tools.fetching import Resolver, WebFetcher
from gateway.tools.permits import ALLOW_MEMBERS
from gateway.tools.webtypes import WebResponse

CALL_GRACE_S: Final = 10.0
"""After a call's own time is over, and before it is cancelled as hanging."""
_SCHEME: Final = re.compile(r"\Ahttps?://", re.IGNORECASE)
MAX_CONCURRENT_EXTRACTIONS: Final = 2
"""Pages. Each takes a processor, and up to a gigabyte of memory if it is made for that."""
WebResultT = TypeVar("WebResultT")


class WebTools:
    """Both fetch what anybody may have written, so all that they give is untrusted and foreign."""

    def __init__(
        self,
        config: WebConfig,
        clock: Clock,
        *,
        resolve: Resolver | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`resolve`, `context`: as in Fetcher. Raises ValueError for settings that cannot be read."""
        self._config = config
        self._clock = clock
        self._fetcher = WebFetcher(config, resolve=resolve, context=context)
        self._extraction_slots = asyncio.Semaphore(MAX_CONCURRENT_EXTRACTIONS)

    def reconfigure(self, config: WebConfig) -> None:
        """Calls that begin from now on go by that. Returns at once. Raises ValueError as at the start."""
        self._fetcher.reconfigure(config)
        self._config = config

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All of them."""
        time_s = self._config.timeout + CALL_GRACE_S
        return (
            Tool.create(
                WEB_FETCH, WebFetchArgs, self.fetch, ALLOW_MEMBERS, time_s=time_s, cost="cheap", risks=exfiltration_risk
            ),
            Tool.create(WEB_SEARCH, WebSearchArgs, self.search, ALLOW_MEMBERS, time_s=time_s, cost="dear"),
        )

    async def fetch(self, asked: WebFetchArgs, _: ToolContext) -> ToolOutput:
        """What a page says, behind a line on what it is. Raises Refused."""
        return await self._within_timeout(self._fetch_page(asked.url))

    async def search(self, asked: WebSearchArgs, _: ToolContext) -> ToolOutput:
        """What a search service finds. Raises Refused."""
        return await self._within_timeout(self._search_web(asked))

    async def aclose(self) -> None:
        """Calls under way are the caller's to cancel."""
        self._fetcher.close()

    async def _fetch_page(self, url: str) -> ToolOutput:
        answer = await self._fetcher.fetch(url, is_text_type)
        head, text = _describe_status(answer), ""
        if not is_text_type(answer.media_type) or (not answer.media_type and b"\0" in answer.body[:1000]):
            size = f", {answer.declared_bytes} bytes" if answer.declared_bytes is not None else ""
            what = answer.media_type or "of an unknown kind"
            text = f"This is no text but {what}{size}; its content cannot be read here."
        elif answer.body:
            async with self._extraction_slots:
                page = await extract_page(
                    answer.body,
                    kind=answer.media_type,
                    charset=answer.charset,
                    url=answer.target.url,
                    cut=answer.is_truncated,
                )
            head += f": {page.title}" if page.title else ""
            text = page.text or "It has no text; perhaps scripts would write it, and those are not run."
            if answer.is_truncated or page.cut:
                text += "\n\n(There is more of it than is read of one page.)"
        return ToolOutput(
            text=f"{head}\n{answer.target.url}\n\n{text or 'It is empty.'}",
            kind="page",
            origin=answer.target.url,
            is_untrusted=True,
            is_foreign=True,
        )

    async def _search_web(self, asked: WebSearchArgs) -> ToolOutput:
        config = self._config.search
        answer = await self._fetcher.request(websearch.build_search_request(config, asked.query, asked.count))
        text = websearch.render_search_results(config, answer, asked.count)
        return ToolOutput(text=text, kind="search", origin=config.provider, is_untrusted=True, is_foreign=True)

    async def _within_timeout(self, work: Coroutine[Any, Any, WebResultT]) -> WebResultT:
        time_s = self._config.timeout
        try:
            return await with_timeout(self._clock, time_s, work)
        except TimeoutError:
            raise ToolCallRefused(f"It took longer than {time_s:g} s, which is the most for one call.") from None


async def exfiltration_risk(asked: WebFetchArgs, where: ToolContext) -> str:
    """Why this address may carry private words to whoever wrote what is in view; empty: it does not.

    An address is a message to its host. Where nothing private is in the request, or nobody but those who may use the
    agent wrote any of it, that tells nothing. Neither does an address that one of them wrote.
    """
    seen = where.trust.label
    others = f"text from outside, by {seen.foreign}, is" if seen.foreign else ""
    if not others and where.visibility.sees_everything and role_rank(seen.role) < role_rank("admin"):
        others = f"words of a {seen.role} are"
    private = where.visibility.sees_everything or where.visibility.scope != PUBLIC
    if not (others and private) or await where.was_user_written(_SCHEME.sub("", asked.url.strip()).rstrip("/")):
        return ""
    return (
        f"no member wrote this address here, {others} in view, and private words could leave in it, so web_fetch "
        "has to be approved"
    )


def _describe_status(answer: WebResponse) -> str:
    """In our words: what the server says there is anybody's."""
    try:
        phrase = f" {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = ""
    return f"{answer.status}{phrase}, {answer.media_type[:100] or 'of no stated kind'}"
