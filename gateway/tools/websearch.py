"""Asking a search service, and reading its answer. Pure.

Sources: docs.searxng.org (dev/search_api), api-dashboard.search.brave.com (api-reference/web/search/get),
docs.tavily.com (api-reference/endpoint/search).
"""

import html
import json
import re
from typing import Final
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.journal import to_single_line
from agent.tools.schema import ToolCallRefused
from gateway.settings_tools import SearchConfig
from gateway.tools import addresses
from gateway.tools.webtypes import WebRequest, WebResponse

SEARCH_BASE_URLS: Final = {"brave": "https://api.search.brave.com", "tavily": "https://api.tavily.com"}
SEARCH_PATHS: Final = {"searxng": "/search", "brave": "/res/v1/web/search", "tavily": "/search"}
MAX_TITLE_CHARS: Final = 200
MAX_URL_CHARS: Final = 1_000
MAX_SNIPPET_CHARS: Final = 600
_MARKUP = re.compile(r"</?[a-z][^<>]{0,100}>", re.IGNORECASE)


class _WebSearchHit(BaseModel):
    model_config = ConfigDict(extra="ignore")

    title: str | None = None
    url: str | None = None
    content: str | None = None
    """SearXNG and Tavily."""
    description: str | None = None
    """Brave."""


class _WebSearchHits(BaseModel):
    model_config = ConfigDict(extra="ignore")

    results: list[_WebSearchHit] = []


class _WebSearchResponse(_WebSearchHits):
    web: _WebSearchHits | None = None
    """Brave. Left out by it where nothing is found."""


def build_search_request(config: SearchConfig, query: str, count: int) -> WebRequest:
    """What to ask the service that the operator chose. Raises Refused; no reason holds the key."""
    provider = config.provider
    if provider == "none":
        raise ToolCallRefused(
            "Nothing is set up to search with; the operator can choose it in tools.web.search.provider."
        )
    base, key = config.base_url or SEARCH_BASE_URLS.get(provider, ""), ""
    if config.api_key is not None:
        key = config.api_key.get_secret_value()
    if not key and provider != "searxng":
        raise ToolCallRefused(
            f"Searching with {provider} needs a key; the operator can set it in tools.web.search.api_key."
        )
    if not (key.isascii() and key.isprintable()):
        raise ToolCallRefused("The key in tools.web.search.api_key holds characters that cannot be sent.")
    url = base.strip().rstrip("/").removesuffix(SEARCH_PATHS[provider]) + SEARCH_PATHS[provider]
    headers, body = {"accept": "application/json"}, None
    if provider == "tavily":
        headers |= {"authorization": f"Bearer {key}", "content-type": "application/json"}
        body = json.dumps({"query": query, "max_results": count}).encode()
    elif provider == "brave":
        headers["x-subscription-token"] = key
        url += "?" + urlencode({"q": query, "count": count, "text_decorations": "false"}, errors="replace")
    else:
        if key:
            headers["authorization"] = f"Bearer {key}"  # of a proxy in front of it: SearXNG itself has no keys
        url += "?" + urlencode({"q": query, "format": "json"}, errors="replace")
    try:
        target = addresses.parse_url(url)
    except ToolCallRefused:
        raise ToolCallRefused(
            "tools.web.search.base_url is no server's address; the operator can correct it."
        ) from None
    method = "GET" if body is None else "POST"
    return WebRequest(target=target, method=method, headers=tuple(headers.items()), body=body)


def render_search_results(config: SearchConfig, answer: WebResponse, count: int) -> str:
    """The results, for the model. Raises Refused."""
    provider = config.provider
    if answer.status in (401, 403):
        hint = " (its settings may not allow the format json)" if provider == "searxng" else ""
        raise ToolCallRefused(f"{provider} refuses us{hint}; the operator can look at tools.web.search.")
    if answer.status in (429, 432, 433):
        raise ToolCallRefused(f"{provider} takes no more searches for now; try again later.")
    if answer.status != 200:  # noqa: PLR2004 - HTTP's own number
        raise ToolCallRefused(
            f"{provider} answered with the status {answer.status}; try again later, or in other words."
        )
    try:
        answered = _WebSearchResponse.model_validate_json(answer.body)
    except ValidationError:
        raise ToolCallRefused(
            f"{provider} did not answer as it should; the operator can look at tools.web.search."
        ) from None
    found = answered.web.results if answered.web is not None else answered.results
    lines = [
        _render_hit(number, one) for number, one in enumerate(filter(_is_complete_hit, found), 1) if number <= count
    ]
    return "\n\n".join(lines) or "Nothing was found."


def _is_complete_hit(one: _WebSearchHit) -> bool:
    return one.url is not None and one.url.startswith(("http://", "https://")) and len(one.url) <= MAX_URL_CHARS


def _render_hit(number: int, one: _WebSearchHit) -> str:
    title, snippet = (
        _strip_markup(one.title, MAX_TITLE_CHARS),
        _strip_markup(one.content or one.description, MAX_SNIPPET_CHARS),
    )
    url = to_single_line(one.url or "", MAX_URL_CHARS)
    return "\n".join(part for part in (f"{number}. {title or url}", url, snippet) if part)


def _strip_markup(text: str | None, most: int) -> str:
    return to_single_line(html.unescape(_MARKUP.sub("", text or "")), most)
