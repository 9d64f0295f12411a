"""Searching, with services as their documentation describes them, on loopback."""

import json
import logging
from typing import Literal

import pytest
from pydantic import SecretStr

from gateway.config.tools import SearchConfig, WebConfig
from gateway.core.tool_spec import ToolCallRefused
from gateway.tools.web import build_search_request
from tests.gateway.tools.web_kit import Desk, desk
from tests.kits.channels import story
from tests.kits.tools import set_tools
from tests.servers.web_server import Page, WebServer

Provider = Literal["searxng", "brave", "tavily"]
KEY = "tvly-very-secret"
JSON = {"content-type": "application/json"}
PATHS = {
    "searxng": "/search?q=r%C3%A4tsel+%26+co&format=json",
    "brave": "/res/v1/web/search?q=r%C3%A4tsel+%26+co&count=2&text_decorations=false",
    "tavily": "/search",
}
FOUND: list[dict[str, object]] = [
    {"title": "One &amp; <strong>only</strong>", "url": "https://a.org/1", "content": "First\nthing", "score": 1.5},
    {"title": "No address", "content": "x"},
    {"title": "Runs", "url": "javascript:alert(1)"},
    {"title": "", "url": "https://a.org/2", "content": None},
    {"title": "Three", "url": "https://a.org/3"},
]
TOLD = "1. One & only\nhttps://a.org/1\nFirst thing\n\n2. https://a.org/2\nhttps://a.org/2"


def answer(provider: str, found: list[dict[str, object]]) -> bytes:
    if provider != "brave":
        return json.dumps({"query": "x", "results": found, "answers": []}).encode()
    renamed = [{"description" if name == "content" else name: one[name] for name in one} for one in found]
    return json.dumps({"type": "search", "web": {"type": "search", "results": renamed}}).encode()


def chosen(site: WebServer, provider: Provider, base: str = "") -> SearchConfig:
    return SearchConfig(provider=provider, base_url=site.url(base), api_key=SecretStr(KEY))


def choose(tools: Desk, search: SearchConfig) -> None:
    set_tools(tools.web._live, web=WebConfig().model_copy(update={"search": search}))


async def refused(tools: Desk) -> str:
    result = await tools.call("web_search", query="x")
    assert result.is_error, result.text
    return result.text


@pytest.mark.parametrize("provider", ["searxng", "brave", "tavily"])
def test_results_are_told_with_title_address_and_extract(provider: Provider) -> None:
    @story
    async def told() -> None:
        async with desk(WebConfig()) as tools:  # no allowance: the operator's own service may be anywhere
            choose(tools, chosen(tools.site, provider))
            tools.site.pages[PATHS[provider]] = Page(answer(provider, FOUND), JSON)
            result = await tools.call("web_search", query="rätsel & co", count=2)
            assert (result.text, result.is_error) == (TOLD, False)
            assert (result.is_untrusted, result.origin, result.kind) == (True, provider, "search")
            assert tools.where.trust.foreign == "web_search"
            heard = tools.site.seen[0]
            if provider == "tavily":
                assert heard.method == "POST"
                assert json.loads(heard.body) == {"query": "rätsel & co", "max_results": 2}
                assert heard.headers["authorization"] == f"Bearer {KEY}"
            if provider == "brave":
                assert heard.headers["x-subscription-token"] == KEY
            assert heard.headers["accept"] == "application/json"

    told()


@story
async def test_a_service_may_live_under_a_path_and_find_nothing() -> None:
    async with desk(WebConfig()) as tools:
        choose(tools, chosen(tools.site, "searxng", "/sx/"))
        tools.site.pages["/sx/search?q=x&format=json"] = Page(answer("searxng", []), JSON)
        assert (await tools.call("web_search", query="x")).text == "Nothing was found."
        choose(tools, chosen(tools.site, "brave"))
        path = "/res/v1/web/search?q=x&count=5&text_decorations=false"
        tools.site.pages[path] = Page(b'{"type": "search", "query": {}}', JSON)
        assert (await tools.call("web_search", query="x")).text == "Nothing was found."


@story
async def test_without_a_service_the_setting_is_named() -> None:
    async with desk(WebConfig()) as tools:
        assert "tools.web.search.provider" in await refused(tools)
        for search, part in (
            (SearchConfig.model_construct(provider="brave"), "tools.web.search.api_key"),
            (SearchConfig.model_construct(provider="searxng"), "base_url"),
            (SearchConfig(provider="searxng", base_url="http://u:p@a.org"), "base_url"),
            (SearchConfig(provider="tavily", api_key=SecretStr(KEY + "\n")), "characters that cannot be sent"),
        ):
            choose(tools, search)
            reason = await refused(tools)
            assert part in reason
            assert KEY not in reason


@pytest.mark.parametrize("provider", ["searxng", "brave", "tavily"])
def test_failures_are_told_without_the_key_or_what_the_server_says(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @story
    async def told() -> None:
        async with desk(WebConfig()) as tools:
            choose(tools, chosen(tools.site, provider))
            echo = f"your key is {KEY}".encode()
            path = PATHS[provider].replace("r%C3%A4tsel+%26+co", "x").replace("count=2", "count=5")
            for page, part in (
                (Page(echo, JSON, 401), "refuses us"),
                (Page(echo, JSON, 403), "refuses us"),
                (Page(echo, JSON, 429), "no more searches"),
                (Page(echo, JSON, 500), "status 500"),
                (Page(b"", {"location": "http://127.0.0.1:1/"}, 302), "status 302"),
                (Page(echo, JSON), "did not answer as it should"),
                (Page(b"[]", JSON), "did not answer as it should"),
                (Page(b'{"results": "x"}', JSON), "did not answer as it should"),
                (Page(b"\xff\0", JSON), "did not answer as it should"),
                (Page(raw=echo), "cut the connection"),
            ):
                tools.site.pages[path] = page
                reason = await refused(tools)
                assert part in reason
                assert KEY not in reason
            assert tools.site.connections == 10

    told()
    assert KEY not in caplog.text


def test_the_providers_own_addresses_are_known_and_no_key_is_shown() -> None:
    brave = build_search_request(SearchConfig(provider="brave", api_key=SecretStr(KEY)), "a\ud800", 3)
    assert brave.target.url == "https://api.search.brave.com/res/v1/web/search?q=a%3F&count=3&text_decorations=false"
    tavily = build_search_request(SearchConfig(provider="tavily", api_key=SecretStr(KEY)), "a", 3)
    assert tavily.target.url == "https://api.tavily.com/search"
    assert KEY not in repr(brave) + repr(tavily)
    with pytest.raises(ToolCallRefused):
        build_search_request(SearchConfig(), "a", 3)
