"""Fetching from a site that means harm, or is only broken."""

import asyncio
import gzip
import ssl
import traceback
import tracemalloc
import zlib

import pytest

from gateway.config.tools import ToolsConfig, WebConfig
from gateway.core.addresses import parse_url
from gateway.core.clock import ManualClock
from gateway.core.tool_spec import ToolCallRefused
from gateway.tools.web import ContentDecoder, WebFetcher, WebRequest, is_own_address
from tests.gateway.tools.web_kit import LOOPBACK, Names, desk
from tests.kits.channels import story
from tests.kits.tools import live_tools
from tests.servers.ircd_tls import LOCALHOST, WRONG, server_context
from tests.servers.web_server import Page

TEXT = {"content-type": "text/plain; charset=utf-8"}
HTML = {"content-type": "text/html"}
SMALL = WebConfig(allow_private=LOOPBACK, max_bytes=10_000, max_redirects=3)
HASTY = WebConfig(allow_private=LOOPBACK, timeout=0.5)


@story
async def test_a_page_comes_as_text_behind_a_line_on_what_it_is() -> None:
    async with desk() as tools:
        tools.site.pages["/a?b=c"] = Page("<title>Über uns</title><p>Wir sind <a href=d>da</a>".encode(), HTML)
        url = tools.site.url("/a?b=c")
        page = await tools.fetch(url + "#part")
        there = tools.site.url("/d")
        assert page.text == f"200 OK, text/html: Über uns\n{url}\n\nWir sind [da]({there})"
        assert (page.is_untrusted, page.origin, page.kind) == (True, url, "page")
        assert tools.where.trust.foreign == "web_fetch"
        heard = tools.site.seen[0]
        assert (heard.method, heard.path, heard.headers["host"]) == ("GET", "/a?b=c", f"127.0.0.1:{tools.site.port}")
        assert not {"cookie", "authorization", "referer"} & set(heard.headers)
        assert (await tools.fetch(tools.site.url("/none"))).text.startswith("404 Not Found, text/plain\n")


@story
async def test_the_connection_goes_to_the_address_that_was_judged_and_names_are_looked_up_once() -> None:
    rebound = Names({"a.org": [["127.0.0.1"], ["127.0.0.2"], ["169.254.169.254"]]})
    async with desk(WebConfig(allow_private=("127.0.0.1",)), names=rebound) as tools:
        tools.site.pages["/"] = Page(b"here", TEXT)
        url = tools.site.url("/", "a.org")
        assert (await tools.fetch(url)).text.endswith("here")
        assert rebound.asked == ["a.org"]
        assert tools.site.seen[0].headers["host"] == f"a.org:{tools.site.port}"
        assert "no address on the public web" in await tools.refused(url)
        assert "no address on the public web" in await tools.refused(url)
        assert tools.site.connections == 1


@story
async def test_a_mixed_answer_is_refused_whole() -> None:
    mixed = Names({"a.org": [["93.184.216.34", "127.0.0.1"]], "b.org": [["127.0.0.1", "10.0.0.1"]]})
    async with desk(WebConfig(allow_private=("127.0.0.1",)), names=mixed) as tools:
        assert "public" in await tools.refused(tools.site.url("/", "b.org"))
    async with desk(WebConfig(), names=mixed) as tools:
        assert "public" in await tools.refused(tools.site.url("/", "a.org"))
        assert tools.site.connections == 0


@story
async def test_every_hop_of_a_redirect_is_judged_anew() -> None:
    names = Names({"a.org": [["127.0.0.1"]], "inside.org": [["127.0.0.3"]]})
    async with desk(WebConfig(allow_private=("a.org",)), names=names) as tools:
        site = tools.site
        site.pages["/ok"] = Page(b"arrived", TEXT)
        for number, location in enumerate(
            (
                site.url("/ok"),
                site.url("/ok", "inside.org"),
                site.url("/ok", "localhost"),
                site.url("/ok", "[::1]"),
                site.url("/ok", "2130706433"),
                "http://169.254.169.254/latest/meta-data/",
                "file:///etc/passwd",
                f"http://u:p@a.org:{site.port}/ok",
                "http://a.org:22/",
                "http://[::1",
            )
        ):
            site.pages[f"/{number}"] = Page(b"", {"location": location}, 302)
            assert await tools.refused(site.url(f"/{number}", "a.org")), location
        assert [heard.path for heard in site.seen] == [f"/{number}" for number in range(10)]
        site.pages["/moved"] = Page(b"", {"location": "/moved/b"}, 301)
        site.pages["/moved/b"] = Page(b"", {"location": "../ok#x", "set-cookie": "a=b"}, 307)
        page = await tools.fetch(site.url("/moved", "a.org"))
        assert page.text == f"200 OK, text/plain\n{site.url('/ok', 'a.org')}\n\narrived"
        assert page.origin == site.url("/ok", "a.org")
        assert "cookie" not in site.seen[-1].headers


@story
async def test_redirects_end() -> None:
    async with desk(SMALL) as tools:
        pages = tools.site.pages
        for number in range(9):
            pages[f"/{number}"] = Page(b"", {"location": f"/{number + 1}"}, 308)
        assert "more often than is followed here (3 times)" in await tools.refused(tools.site.url("/0"))
        assert tools.site.connections == 4
        pages["/x"], pages["/y"] = Page(b"", {"location": "/y"}, 302), Page(b"", {"location": "/x"}, 302)
        assert "in a circle" in await tools.refused(tools.site.url("/x"))
        pages["/nowhere"] = Page(b"it says", TEXT, 302)
        assert "302 Found" in (await tools.fetch(tools.site.url("/nowhere"))).text
        pages["/meta"] = Page(b'<meta http-equiv=refresh content="0;url=/0"><p>still', HTML)
        assert (await tools.fetch(tools.site.url("/meta"))).text.endswith("still")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
def test_a_bomb_is_unpacked_up_to_the_limit_only(encoding: str) -> None:
    zeros = b"0" * 200_000_000
    packed = gzip.compress(zeros, 9) if encoding == "gzip" else zlib.compress(zeros, 9)[2 if encoding == "raw" else 0 :]

    @story
    async def told() -> None:
        async with desk(SMALL) as tools:
            headers = {**TEXT, "content-encoding": "gzip" if encoding == "gzip" else "deflate"}
            tools.site.pages["/"] = Page(packed, headers)
            page = await tools.fetch(tools.site.url("/"))
            assert page.text.count("0") - tools.site.url("/").count("0") - 2 == 10_000
            assert page.text.endswith("(There is more of it than is read of one page.)")

    told()


@pytest.mark.parametrize("members", [1, 50])
def test_no_more_than_the_limit_is_ever_held(members: int) -> None:
    packed = gzip.compress(b"0" * (100_000_000 // members), 9) * members
    tracemalloc.start()
    try:
        unpacker = ContentDecoder("gzip", 3_000_000)
        unpacker.feed(packed)
        assert unpacker.is_full
        assert len(unpacker.body) == 3_000_000
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


@story
async def test_what_is_packed_wrongly_is_refused_and_what_is_packed_in_parts_is_not() -> None:
    async with desk(SMALL) as tools:
        pages, url = tools.site.pages, tools.site.url("/")
        pages["/"] = Page(b"not packed at all", {**TEXT, "content-encoding": "gzip"})
        assert "packed, and broken" in await tools.refused(url)
        for encoding in ("br", "gzip, gzip", "zstd", "x"):
            pages["/"] = Page(b"x", {**TEXT, "content-encoding": encoding})
            assert "not asked for" in await tools.refused(url)
        pages["/"] = Page(gzip.compress(b"one ") + gzip.compress(b"two"), {**TEXT, "content-encoding": "gzip"})
        assert (await tools.fetch(url)).text.endswith("one two")
        pages["/"] = Page(b"", {**TEXT, "content-encoding": "gzip"})
        assert (await tools.fetch(url)).text.endswith("It is empty.")


@story
async def test_what_never_ends_is_read_up_to_the_limit_and_let_go() -> None:
    async with desk(SMALL) as tools:
        for headers, piece in ((TEXT, b"x" * 5_000), ({**TEXT, "transfer-encoding": "chunked"}, b"5\r\nxxxxx\r\n")):
            tools.site.gone.clear()
            tools.site.pages["/"] = Page(b"", headers, endless=piece)
            page = await tools.fetch(tools.site.url("/"))
            assert page.text.count("x") == 10_001  # and that of text/plain
            await asyncio.wait_for(tools.site.gone.wait(), 10)


@story
async def test_a_drip_and_a_silence_end_with_the_time() -> None:
    async with desk(HASTY) as tools:
        tools.site.pages["/drip"] = Page(b"", TEXT, endless=b"x", every_s=0.02)
        tools.site.pages["/headers"] = Page(raw=b"HTTP/1.1 200 OK\r\n", endless=b"x: y\r\n", every_s=0.02)
        tools.site.pages["/later"] = Page(raw=b"", endless=b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0.02)
        for path in ("/drip", "/headers", "/later"):
            tools.site.gone.clear()
            assert "longer than 0.5 s" in await tools.refused(tools.site.url(path))
            await asyncio.wait_for(tools.site.gone.wait(), 10)


@story
async def test_the_time_is_that_of_the_whole_call_and_nothing_stays_behind() -> None:
    clock = ManualClock()
    async with desk(clock=clock) as tools:
        tools.site.pages["/0"] = Page(b"", {"location": "/1"}, 302)
        tools.site.pages["/1"] = Page(b"a beginning", TEXT, hangs=True, length=100)
        fetching = asyncio.ensure_future(tools.refused(tools.site.url("/0")))
        while len(tools.site.seen) < 2:
            await asyncio.sleep(0.01)
        clock.advance(20)
        assert "longer than 20 s" in await fetching
        await asyncio.wait_for(tools.site.gone.wait(), 10)


@story
async def test_a_call_that_is_cancelled_closes_its_connection() -> None:
    async with desk() as tools:
        tools.site.pages["/"] = Page(b"a beginning", TEXT, hangs=True, length=100)
        fetching = asyncio.ensure_future(tools.fetch(tools.site.url("/")))
        await tools.site.asked.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await asyncio.wait_for(tools.site.gone.wait(), 10)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2 secret\r\n",
        b"220 mail secret\r\n",
        b"HTTP/1.1 200 OK\r\nx: secret" + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\ncontent-type: text/plain\r\n\r\nsecret",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nsecret",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nsecret",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nsecret",
        b"HTTP/1.1 200 OK\r\nx secret\r\n\r\n",
        b"HTTP/1.1 999999 secret\r\n\r\n",
    ],
)
def test_what_speaks_no_http_is_refused_and_not_quoted(raw: bytes) -> None:
    @story
    async def told() -> None:
        async with desk() as tools:
            tools.site.pages["/"] = Page(raw=raw)
            reason = await tools.refused(tools.site.url("/"))
            assert "secret" not in reason
            assert "cut the connection" in reason

    told()


@story
async def test_lengths_that_lie_and_odd_statuses_do_no_harm() -> None:
    async with desk(SMALL) as tools:
        pages, url = tools.site.pages, tools.site.url("/")
        pages["/"] = Page(b"ten letters", TEXT, length=3)
        assert (await tools.fetch(url)).text.endswith("\n\nten")
        pages["/"] = Page(b"until the end", TEXT, length=-1)
        assert (await tools.fetch(url)).text.endswith("until the end")
        pages["/"] = Page(b"odd", {"content-type": 'text/plain;charset="klingon";;=;'}, 599)
        assert (await tools.fetch(url)).text == f"599, text/plain\n{url}\n\nodd"
        pages["/"] = Page(b"", {"content-length": "9" * 20, "content-type": "image/png"}, length=-1)
        assert "image/png; its content" in (await tools.fetch(url)).text


@story
async def test_what_is_no_text_is_named_and_not_read() -> None:
    async with desk() as tools:
        pages, url = tools.site.pages, tools.site.url("/")
        pages["/"] = Page(b"%PDF-1.7", {"content-type": "application/pdf"}, endless=b"\0" * 100_000)
        assert "no text but application/pdf; its" in (await tools.fetch(url)).text
        pages["/"] = Page(b"\x89PNG\r\n" + b"\0" * 994, {"content-type": "image/png"})
        assert "no text but image/png, 1000 bytes; its" in (await tools.fetch(url)).text
        pages["/"] = Page(b"\x7fELF\0\0")
        assert "of an unknown kind" in (await tools.fetch(url)).text


@story
async def test_tls_asks_for_the_name_and_believes_no_other_certificate() -> None:
    names = Names({"localhost": [["127.0.0.1"]], "a.org": [["127.0.0.1"]]})
    trusts = ssl.create_default_context(cafile=LOCALHOST)
    config = WebConfig(allow_private=("localhost", "127.0.0.1"))
    async with desk(config, names=names, server=server_context(), trusts=trusts) as tools:
        tools.site.pages["/"] = Page(b"safe", TEXT)
        assert (await tools.fetch(tools.site.url("/", "localhost"))).text.endswith("safe")
        assert "certificate of a.org is not valid" in await tools.refused(tools.site.url("/", "a.org"))
        assert tools.site.names == ["localhost", "a.org"]
        assert len(tools.site.seen) == 1
    async with desk(config, names=names, server=server_context(WRONG)) as tools:
        assert "certificate of localhost is not valid" in await tools.refused(tools.site.url("/", "localhost"))
        assert "cut the connection" in await tools.refused(tools.site.url("/", "localhost").replace("https", "http"))


@story
async def test_an_address_that_does_not_answer_is_passed_over() -> None:
    names = Names({"a.org": [["127.0.0.9", "127.0.0.1"]], "b.org": [["127.0.0.9"]]})
    async with desk(names=names) as tools:
        tools.site.pages["/"] = Page(b"here", TEXT)
        assert (await tools.fetch(tools.site.url("/", "a.org"))).text.endswith("here")
        assert "No connection to b.org" in await tools.refused(tools.site.url("/", "b.org"))


@story
async def test_proxies_of_the_environment_are_not_used() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")
        async with desk() as tools:
            tools.site.pages["/"] = Page(b"direct", TEXT)
            assert (await tools.fetch(tools.site.url("/"))).text.endswith("direct")


@story
async def test_what_cannot_be_sent_is_not_quoted() -> None:
    async with desk() as tools:
        fetcher, target = WebFetcher(live_tools(), resolve=tools.names), parse_url(tools.site.url("/"))
        question = WebRequest(target=target, headers=(("authorization", "very\nsecret"),))
        with pytest.raises(ToolCallRefused) as refused:
            await fetcher.request(question)
        assert "secret" not in "".join(traceback.format_exception(refused.value))


@story
async def test_the_real_resolver() -> None:
    fetcher = WebFetcher(live_tools())
    try:
        assert "127.0.0.1" in await fetcher._look_up("localhost", 80)
        assert await fetcher._resolve_target(parse_url("http://nothing.invalid/")) == []
    finally:
        fetcher.close()


def test_an_address_of_this_machine_is_known() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("1.1.1.1")


@story
async def test_a_public_address_of_this_machine_is_not_fetched_unless_allowed() -> None:
    """From outside a firewall may stand in front of it; from here there is none."""
    names = Names({"a.org": [["192.0.0.1", "1.1.1.1"]]})
    for config, target in (
        (WebConfig(), "http://1.1.1.1/"),
        (WebConfig(allow_private=("192.0.0.1",)), "http://a.org/"),
    ):
        fetcher = WebFetcher(
            live_tools(ToolsConfig(web=config)), resolve=names, is_own=lambda address: address == "1.1.1.1"
        )
        with pytest.raises(ToolCallRefused, match="no address on the public web"):
            await fetcher.fetch(target, bool)
    async with desk(names=Names({"a.org": [["127.0.0.1"]]})) as tools:  # it is this machine's, and allowed
        tools.site.pages["/"] = Page(b"here", TEXT)
        assert (await tools.fetch(tools.site.url("/", "a.org"))).text.endswith("here")
