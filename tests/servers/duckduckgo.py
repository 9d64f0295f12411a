"""DuckDuckGo's page for browsers without scripts, on loopback: it takes its own form and nothing
else.

    async with DuckDuckGo() as search:
        search.found = [Found("A title", "https://a.org/", "What it says")]
        search.url("")          # base_url
        search.queries          # what was searched for
        search.suspects = True  # from now on it shows a puzzle that only people solve

The form of its pages is that of html.duckduckgo.com/html/: results lead through a redirect that has
the address in `uddg`, advertisements through another one, and whoever is taken for a robot is
answered with the status 202.
"""

import ssl
from dataclasses import dataclass
from html import escape
from urllib.parse import parse_qs, quote

from reverie.testing.servers.web_server import Heard, Page, WebServer

HTML = {"content-type": "text/html; charset=UTF-8"}


@dataclass(frozen=True, slots=True)
class Found:
    """A result, its words as a site says them."""

    title: str
    url: str
    snippet: str = ""
    is_ad: bool = False


class DuckDuckGo(WebServer):
    """See the top of the file."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(context)
        self.found: list[Found] = []
        self.queries: list[str] = []
        self.suspects = False
        self.puzzle_status = 202

    def find_page(self, heard: Heard) -> Page:
        if (heard.method, heard.path) != ("POST", "/html/"):
            return Page(b"<h1>404 Not Found</h1>", HTML, 404)
        if heard.headers.get("content-type") != "application/x-www-form-urlencoded":
            return Page(b"<h1>415 Unsupported Media Type</h1>", HTML, 415)
        form = parse_qs(heard.body.decode("ascii"), strict_parsing=True, errors="strict")
        if form.keys() != {"q"} or "Reverie" not in heard.headers["user-agent"]:
            return Page(b"<h1>400 Bad Request</h1>", HTML, 400)
        if self.suspects:
            return Page(_PUZZLE.encode(), HTML, self.puzzle_status)
        (query,) = form["q"]
        self.queries.append(query)
        rows = "".join(map(_render, self.found)) or _NOTHING
        return Page(_PAGE.format(query=escape(query), rows=rows).encode(), HTML)


def _render(one: Found) -> str:
    link = f"//duckduckgo.com/l/?uddg={quote(one.url, safe='')}&rut=0123456789abcdef"
    if one.is_ad:
        link = f"https://duckduckgo.com/y.js?ad_domain=shop.example&u3={quote(one.url, safe='')}"
    kind, href = "results_links--ad result--ad" if one.is_ad else "web-result", escape(link)
    return f"""
<div class="result results_links results_links_deep {kind}">
 <div class="links_main links_deep result__body">
  <h2 class="result__title"><a rel="nofollow" class="result__a" href="{href}">{escape(one.title)}</a></h2>
  <div class="result__extras"><div class="result__extras__url">
   <a class="result__url" href="{href}">{escape(one.url)}</a>
  </div></div>
  <a class="result__snippet" href="{href}"><b>{escape(one.snippet[:5])}</b>{escape(one.snippet[5:])}</a>
  <div class="clear"></div>
 </div>
</div>"""


_NOTHING = """
<div class="result results_links results_links_deep result--no-result">
 <div class="links_main links_deep result__body"><div class="no-results">No results.</div></div>
</div>"""
_PAGE = """<!DOCTYPE html>
<html><head><title>{query} at DuckDuckGo</title></head><body class="body--html">
<form class="header__form" action="/html/" method="post"><input class="search__input" name="q" value="{query}"></form>
<div><div class="serp__results"><div id="links" class="results">{rows}</div></div></div>
</body></html>"""
_PUZZLE = """<!DOCTYPE html>
<html><head><title>DuckDuckGo</title></head><body class="body--html">
<form id="challenge-form" action="//duckduckgo.com/anomaly.js" method="POST">
<div class="anomaly-modal__mask"><div class="anomaly-modal__title">Unfortunately, bots use DuckDuckGo too.</div></div>
</form></body></html>"""
