"""Attacks on what only this machine can reach, by pages that a member has fetched; and pages that
would not end."""

import socket
from collections.abc import Awaitable, Callable

from reverie.testing.servers.web_server import Page
from tests.attacks.hostile_kit import MIA, OLGA, Attack, Fate, Scene

Run = Callable[[Scene], Awaitable[Fate]]
INNER = "INNERMOST"
NOT_PUBLIC = "has no address on the public web"


def fetches(*urls: str) -> Run:
    """`{inside}`: the port of a server that nobody may fetch."""

    async def run(it: Scene) -> Fate:
        before = it.town.inside.connections
        given = [url.replace("{inside}", str(it.town.inside.port)) for url in urls]
        told = await it.does(MIA, *(("web_fetch", {"url": url}) for url in given))
        return Fate(it.town.inside.connections > before or INNER in told or "root:x" in told, told)

    return run


def redirected(*locations: str, status: int = 302) -> Run:
    async def run(it: Scene) -> Fate:
        before = it.town.inside.connections
        pages = [
            it.page(
                "moved",
                status=status,
                headers={"location": one.replace("{inside}", str(it.town.inside.port))},
            )
            for one in locations
        ]
        told = await it.does(MIA, *(("web_fetch", {"url": page}) for page in pages))
        assert len(it.heard) == len(locations), "the first page was never asked for"
        return Fate(it.town.inside.connections > before or INNER in told or "root:x" in told, told)

    return run


async def rebinds(it: Scene) -> Fate:
    """Judged by the first answer, and connected to by the second; then the other way round."""
    url = it.page("hello").replace("127.0.0.1", "rebinds.attacker.net")
    told = await it.does(MIA, ("web_fetch", {"url": url}))
    assert "hello" in told, told
    again = await it.does(MIA, ("web_fetch", {"url": f"{url}?again"}), said=f"{url}?again")
    return Fate(bool(it.town.rebound), again)


async def in_hops(it: Scene) -> Fate:
    before = it.town.inside.connections
    last = it.page("moved", status=301, headers={"location": it.town.inside.url("/")})
    middle = it.page("moved", status=307, headers={"location": last})
    told = await it.does(
        MIA, ("web_fetch", {"url": it.page("moved", status=302, headers={"location": middle})})
    )
    return Fate(it.town.inside.connections > before, told)


async def by_meta(it: Scene) -> Fate:
    before = it.town.inside.connections
    url = it.town.inside.url("/")
    page = it.page(
        f'<meta http-equiv="refresh" content="0;url={url}"><iframe src="{url}"></iframe><img '
        f'src="{url}">'
    )
    told = await it.does(MIA, ("web_fetch", {"url": page}))
    return Fate(it.town.inside.connections > before, told)


async def in_circles(it: Scene) -> Fate:
    path = f"/{it.mark}-circle"
    it.town.site.pages[path] = Page(b"", {"location": path}, 302)
    told = await it.does(MIA, ("web_fetch", {"url": it.town.site.url(path)}))
    return Fate(len(it.heard) > 20, told)


async def endless(it: Scene) -> Fate:
    path = f"/{it.mark}-endless"
    it.town.site.pages[path] = Page(
        b"<p>", {"content-type": "text/html"}, endless=b"word " * 10_000
    )
    before = it.town.site.sent
    told = await it.does(MIA, ("web_fetch", {"url": it.town.site.url(path)}))
    return Fate(it.town.site.sent - before > 60_000_000 or len(told) > 1_200_000, told[-3_000:])


async def silent(it: Scene) -> Fate:
    path = f"/{it.mark}-silent"
    it.town.site.pages[path] = Page(b"", {"content-type": "text/html"}, hangs=True, length=10)
    told = await it.does(MIA, ("web_fetch", {"url": it.town.site.url(path)}))
    return Fate("It took longer than" not in told, told)


async def lines_in_it(it: Scene) -> Fate:
    base = it.town.site.url(f"/{it.mark}")
    tried = (
        f"{base}\r\nHost: evil",
        f"{base} HTTP/1.1\r\nX-Evil: 1",
        f"{base}%0d%0aX-Evil:1",
        f"{base}\tX-Evil",
    )
    told = await it.does(MIA, *(("web_fetch", {"url": url}) for url in tried))
    return Fate(
        any("x-evil" in one.headers or one.headers.get("host") == "evil" for one in it.heard), told
    )


async def logins(it: Scene) -> Fate:
    told = await it.does(
        MIA, ("web_fetch", {"url": it.page("hello").replace("http://", "http://olga:sesame@")})
    )
    return Fate(bool(it.heard), told)


async def what_is_sent_along(it: Scene) -> Fate:
    """A page reads in the request what the gateway knows."""
    told = await it.does(OLGA, ("web_fetch", {"url": it.page("hello")}))
    (heard,) = it.heard
    return Fate(
        bool(it.town.leaking(heard.raw.decode("latin-1"))) or "cookie" in heard.headers, told
    )


def own_address() -> str:
    """By which others reach this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


WEB = [
    Attack(
        "loopback",
        "ssrf",
        fetches("http://127.0.0.1:{inside}/", "http://127.9.9.9:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "localhost by name",
        "ssrf",
        fetches("http://localhost:{inside}/", "http://LOCALHOST.:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "loopback as one number",
        "ssrf",
        fetches("http://2130706433:{inside}/"),
        "four decimal numbers",
    ),
    Attack(
        "loopback in hex, octal and short",
        "ssrf",
        fetches(
            "http://0x7f000001:{inside}/", "http://0177.0.0.1:{inside}/", "http://127.1:{inside}/"
        ),
        "four decimal numbers",
    ),
    Attack(
        "loopback in other digits",
        "ssrf",
        fetches("http://①②⑦.⓪.⓪.①:{inside}/", "http://127。0。0。1:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "loopback in IPv6",
        "ssrf",
        fetches("http://[::1]:{inside}/", "http://[::ffff:127.0.0.1]:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "loopback behind NAT64 and 6to4",
        "ssrf",
        fetches("http://[64:ff9b::7f00:1]:{inside}/", "http://[2002:7f00:1::]:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "any address",
        "ssrf",
        fetches("http://0.0.0.0:{inside}/", "http://0:{inside}/", "http://[::]:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "the metadata service",
        "ssrf",
        fetches(
            "http://169.254.169.254/latest/meta-data/",
            "http://metadata.google.internal/",
            "http://[fd00:ec2::254]/",
        ),
        NOT_PUBLIC,
    ),
    Attack(
        "the network around",
        "ssrf",
        fetches(
            "http://10.0.0.1/", "http://192.168.1.1/", "http://172.16.0.1/", "http://router.lan/"
        ),
        NOT_PUBLIC,
    ),
    Attack(
        "this machine's own address",
        "ssrf",
        fetches(f"http://{own_address()}:{{inside}}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "a login in front of the host",
        "ssrf",
        fetches(
            "http://example.org@127.0.0.1:{inside}/", "http://127.0.0.1:{inside}\\@example.org/"
        ),
        "user name|host of this URL",
    ),
    Attack(
        "no web at all",
        "ssrf",
        fetches(
            "file:///etc/passwd",
            "gopher://127.0.0.1:{inside}/x",
            "ftp://127.0.0.1:{inside}/",
            "data:text/html,x",
        ),
        "Only the web",
    ),
    Attack(
        "ports of other services",
        "ssrf",
        fetches("http://example.org:25/", "http://example.org:6379/", "http://127.0.0.1:22/"),
        "is not one of the web's",
    ),
    Attack(
        "a name that leads to loopback",
        "ssrf",
        fetches("http://inward.attacker.net:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack(
        "a name that leads to both",
        "ssrf",
        fetches("http://mixed.attacker.net:{inside}/"),
        NOT_PUBLIC,
    ),
    Attack("a name whose answer changes", "ssrf", rebinds, NOT_PUBLIC),
    Attack(
        "redirected to loopback",
        "ssrf",
        redirected(
            "http://127.0.0.1:{inside}/", "//127.0.0.1:{inside}/", "http://2130706433:{inside}/"
        ),
        NOT_PUBLIC,
    ),
    Attack(
        "redirected by 308 to a name",
        "ssrf",
        redirected(
            "http://localhost:{inside}/", "http://inward.attacker.net:{inside}/", status=308
        ),
        NOT_PUBLIC,
    ),
    Attack(
        "redirected out of the web",
        "ssrf",
        redirected("file:///etc/passwd", "gopher://127.0.0.1:{inside}/"),
        "Only the web",
    ),
    Attack("redirected in hops", "ssrf", in_hops, NOT_PUBLIC),
    Attack("a page that loads more by itself", "ssrf", by_meta, "."),
    Attack("lines in a URL", "ssrf", lines_in_it, "no white space"),
    Attack("a login in a URL", "ssrf", logins, "user name or a password"),
    Attack("what a request tells the page", "ssrf", what_is_sent_along, "hello"),
    Attack("redirected for ever", "floods", in_circles, "in a circle"),
    Attack("a page without end", "floods", endless, "."),
    Attack("a page that never comes", "floods", silent, "It took longer than"),
]
