"""URLs and addresses that may be fetched."""

from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.config.tools import WebConfig
from gateway.core.addresses import (
    AllowedHosts,
    check_addresses,
    check_target,
    is_public,
    parse_url,
    resolve_redirect,
)
from gateway.core.tool_spec import ToolCallRefused
from tests.gateway.plugins.web.web_kit import Names, desk

NOTHING = AllowedHosts.parse(())
HOSTILE = (
    # other schemes
    *(
        "file:///etc/passwd",
        "ftp://a.org/",
        "gopher://a.org:70/_x",
        "data:text/html,x",
        "javascript:alert(1)",
        "//a.org/",
    ),
    *(
        "http:a.org",
        "http:/a.org",
        "http:///a.org",
        "example.org",
        "about:blank",
        "",
        "   ",
        "http://",
        "https://:443/",
    ),
    # loopback and unspecified, in all the ways to write them
    *(
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://LOCALHOST.:{port}/",
        "http://a.localhost:{port}/",
    ),
    *(
        "http://0.0.0.0:{port}/",
        "http://0:{port}/",
        "http://127.1:{port}/",
        "http://2130706433:{port}/",
    ),
    *(
        "http://0x7f000001:{port}/",
        "http://0x7f.0.0.1:{port}/",
        "http://0177.0.0.1:{port}/",
        "http://127.0.0.1.:{port}/",
    ),
    *(
        "http://017700000001:{port}/",
        "http://127.0.1:{port}/",
        "http://127.0.0.0x1:{port}/",
        "http://127.00.0.1:{port}/",
    ),
    *(
        "http://[::1]:{port}/",
        "http://[::]:{port}/",
        "http://[0:0:0:0:0:0:0:1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
    ),
    *(
        "http://[::ffff:7f00:1]:{port}/",
        "http://[::127.0.0.1]:{port}/",
        "http://[64:ff9b::7f00:1]:{port}/",
    ),
    *(
        "http://[2002:7f00:1::]:{port}/",
        "http://[2001:0:7f00:1::1]:{port}/",
        "http://[64:ff9b:1::7f00:1]:{port}/",
    ),
    *(
        "http://[2a00::5efe:7f00:1]:{port}/",
        "http://[2a00::200:5efe:127.0.0.1]:{port}/",
        "http://[fe80::1%25lo]:{port}/",
    ),
    *(
        "http://[fe80::1%lo]:{port}/",
        "http://[::1%251]:{port}/",
        "http://[v1.x]:{port}/",
        "http://[::1:{port}/",
    ),
    # other alphabets
    *(
        "http://①②⑦.⓪.⓪.①:{port}/",
        "http://127。0。0。1:{port}/",
        "http://１２７.0.0.1:{port}/",
        "http://ⓛocalhost:{port}/",
    ),
    *(
        "http://loc\u00adalhost:{port}/",
        "http://127.0.0.1\u3000:{port}/",
        "http://%31%32%37.0.0.1:{port}/",
    ),
    # somebody else in front
    *(
        "http://a.org@127.0.0.1:{port}/",
        "http://a.org:80@127.0.0.1:{port}/",
        "http://@127.0.0.1:{port}/",
    ),
    *(
        "http://127.0.0.1:{port}\\@a.org/",
        "http://a.org\\@127.0.0.1:{port}/",
        "http://127.0.0.1:{port}#@a.org/",
    ),
    *(
        "http://127.0.0.1\t:{port}/",
        "ht\ntp://127.0.0.1:{port}/",
        "http://a.org\r\nHost: 127.0.0.1/",
        "http://a.org/ x",
    ),
    # the network around, and clouds
    *(
        "http://169.254.169.254/latest/meta-data/",
        "http://metadata.google.internal/",
        "http://100.100.100.200/",
    ),
    *(
        "http://[fd00:ec2::254]/",
        "http://192.0.0.192/",
        "http://168.63.129.16/",
        "http://10.0.0.1/",
        "http://172.31.0.1/",
    ),
    *(
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://198.18.0.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
    ),
    *(
        "http://[fe80::1]/",
        "http://[fc00::1]/",
        "http://[ff02::1]/",
        "http://[2001:db8::1]/",
        "http://[100::1]/",
    ),
    *(
        "http://router/",
        "http://printer.local/",
        "http://git.corp/",
        "http://nas.home.arpa/",
        "http://x.onion/",
    ),
    *("http://intranet:{port}/", "http://1.0.0.127.in-addr.arpa/", "http://db.internal./"),
    # ports of others
    *(
        "http://a.org:22/",
        "http://a.org:25/",
        "http://a.org:6379/",
        "http://a.org:0/",
        "http://a.org:70000/",
    ),
    *(
        "http://a.org:8080:80/",
        "http://a.org:+80/",
        "http://a.org:８０/",
        "http://a.org:2375/",
        "http://a.org:999999/",
    ),
    # names that lead inside, and names that are none
    *(
        "http://rebound.org:{port}/",
        "http://a-b_c.rebound.org:{port}/x?y#z",
        "http://bücher.rebound.org:{port}/",
    ),
    *(
        "http://..:{port}/",
        "http://.a.org/",
        "http://a..org/",
        "http://-a.org/",
        "http://a b.org/",
        "http://a.org..:{port}/",
    ),
    *(
        "http://" + "a" * 64 + ".org/",
        "http://" + "a." * 140 + "org/",
        "http://a.org/" + "x" * 4_000,
        "http://*.org/",
    ),
)


async def test_nothing_inside_is_reached_however_it_is_written() -> None:
    assert len(set(HOSTILE)) >= 100
    inside = Names(default="127.0.0.1")
    async with desk(WebConfig(), names=inside) as tools:
        for url in HOSTILE:
            result = await tools.call("web_fetch", url=url.format(port=tools.site.port))
            assert result.is_error, url
            assert "No connection" not in result.text, url  # none was tried
            assert not result.is_untrusted
        assert tools.site.connections == 0
        assert not [name for name in inside.asked if "local" in name or "." not in name]


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["10.1.2.3", "93.184.216.34"],
        ["93.184.216.34", "::1"],
        ["fe80::1%eth0"],
        ["::ffff:10.0.0.1"],
        ["64:ff9b::a00:1"],
        ["not an address"],
        [],
    ],
)
def test_one_private_answer_is_enough_and_the_reason_does_not_tell_it_from_none(
    found: list[str],
) -> None:
    with pytest.raises(ToolCallRefused) as refused:
        check_addresses(parse_url("https://a.org/"), found, NOTHING)
    with pytest.raises(ToolCallRefused) as none:
        check_addresses(parse_url("https://a.org/"), [], NOTHING)
    assert str(refused.value) == str(none.value)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *[
            (one, True)
            for one in (
                "1.1.1.1",
                "9.255.255.255",
                "11.0.0.0",
                "100.63.255.255",
                "172.32.0.1",
                "223.255.255.255",
            )
        ],
        *[
            (one, True)
            for one in (
                "2606:4700::1111",
                "2a00:1450::1",
                "64:ff9b::101:101",
                "::ffff:1.1.1.1",
                "2001:4860::8",
            )
        ],
        *[
            (one, False)
            for one in ("0.0.0.0", "10.0.0.0", "100.127.255.255", "127.255.255.255", "169.254.0.0")
        ],
        *[
            (one, False)
            for one in (
                "172.16.0.0",
                "192.0.0.8",
                "192.0.2.1",
                "192.88.99.1",
                "198.19.255.255",
                "240.0.0.1",
            )
        ],
        *[
            (one, False)
            for one in (
                "::",
                "::1",
                "::1.1.1.1",
                "fc00::",
                "fdff::",
                "fe80::",
                "fec0::1",
                "ff00::",
                "100::",
            )
        ],
        *[
            (one, False)
            for one in (
                "2001::1",
                "2001:20::1",
                "2002:101:101::",
                "3fff::1",
                "5f00::1",
                "4000::1",
                "64:ff9b:1::",
            )
        ],
    ],
)
def test_which_addresses_are_public(address: str, expected: bool) -> None:
    assert is_public(ip_address(address)) is expected


@given(st.ip_addresses())
def test_what_the_standard_library_calls_private_is_not_public(address: object) -> None:
    one = ip_address(str(address))
    if is_public(one) and not str(one).startswith(("64:ff9b::", "::ffff:")):
        assert one.is_global
        assert not one.is_multicast


def test_a_url_is_read_as_it_will_be_asked_for() -> None:
    target = parse_url(" HTTPS://Bücher.Example.ORG.:8443/a b%20c/ü?q=[ä]&r#top".replace(" b", "b"))
    assert target.url == "https://xn--bcher-kva.example.org:8443/ab%20c/%C3%BC?q=%5B%C3%A4%5D&r"
    assert parse_url("http://a.org:80").url == "http://a.org/"
    assert parse_url("https://[2606:4700::1111]:443/").authority == "[2606:4700::1111]"
    assert resolve_redirect(target, "//b.org/x").url == "https://b.org/x"
    assert resolve_redirect(target, "../y?z").url == "https://xn--bcher-kva.example.org:8443/y?z"
    for location in (
        "file:///etc/passwd",
        "http://u:p@b.org/",
        "javascript:1",
        "http://[::1",
        "\\\\b.org\\x\x00",
    ):
        with pytest.raises(ToolCallRefused):
            resolve_redirect(target, location)


def test_a_login_in_a_url_is_named_as_what_is_wrong() -> None:
    with pytest.raises(ToolCallRefused, match="user name or a password"):
        parse_url("https://ann:secret@a.org/")


def test_what_the_operator_allows() -> None:
    allowed = AllowedHosts.parse(
        (
            "wiki.lan",
            "Git.lan:3000",
            "10.1.0.0/16",
            "127.0.0.1:8080",
            "[fd00::1]:25",
            "fd01::/32",
            "::1",
        )
    )
    for url, found in (
        ("http://wiki.lan/", ["192.168.0.1"]),
        ("http://wiki.lan:8000/", ["192.168.0.1"]),
        ("http://git.lan:3000/", ["127.0.0.1"]),
        ("http://a.org/", ["10.1.2.3", "1.1.1.1"]),
        ("http://127.0.0.1:8080/", ["127.0.0.1"]),
        ("http://[::ffff:10.1.0.1]/", ["::ffff:10.1.0.1"]),
        ("http://[fd00::1]:25/", ["fd00::1"]),
        ("http://[::1]/", ["::1"]),
    ):
        assert passes(url, found, allowed)
    for url, found in (
        ("http://git.lan/", ["127.0.0.1"]),
        ("http://other.lan/", ["1.1.1.1"]),
        ("http://127.0.0.1:8081/", ["127.0.0.1"]),
        ("http://a.org/", ["10.2.0.1"]),
        ("http://a.org:25/", ["fd00::1"]),
        ("http://wiki.lan:22/", ["1.1.1.1"]),
    ):
        assert not passes(url, found, allowed)


@pytest.mark.parametrize(
    "entry", ["10.0.0.0/33", "http://a.lan", "a.lan/24", "", "a b", "a@b", "1.2.3", "[::1", "a:b"]
)
def test_an_allowance_that_cannot_be_read_is_an_error(entry: str) -> None:
    with pytest.raises(ValueError, match="network"):
        AllowedHosts.parse((entry,))
    with pytest.raises(ValidationError, match="network"):
        WebConfig(allow_private=(entry,))


def passes(url: str, found: list[str], allowed: AllowedHosts) -> bool:
    target = parse_url(url)
    try:
        check_target(target, allowed)
        return check_addresses(target, found, allowed) == found
    except ToolCallRefused:
        return False


urls = st.text() | st.builds(
    "{}{}{}".format,
    st.sampled_from(("http://", "https://", "http://[", "http:", "//", "")),
    st.text(alphabet="aA01.:@[]/\\%?#-_x \t\n\u00ad\u3002\uff11ßü\u0130\ud800", max_size=30),
    st.text(max_size=10),
)


@given(urls, urls)
@example("http://a\u2100.org/", "http://[")
@example("http://a.org/\ud800", "\ud800")
@example("http://a.org:" + "9" * 5_000, "")
def test_reading_raises_nothing_but_refusals(url: str, location: str) -> None:
    try:
        target = parse_url(url)
        assert target.url.isascii()
        assert parse_url(target.url) == target
        check_target(target, NOTHING)
        resolve_redirect(target, location)
    except ToolCallRefused:
        pass
