"""Text of a web page. A program of its own, started by `gateway.tools.web.extract_page`.

Hostile HTML is not parsed in C++ beside secrets: this process has none, and limits of memory and time. Standard input:
one line of JSON (`kind`, `charset`, `url`, `cut`), then the page. Standard output: JSON (`title`, `text`). It imports
nothing of ours, so that it starts fast and can be run by its path.
"""

import json
import re
import resource
import sys
from collections.abc import Sequence
from typing import Final
from urllib.parse import urljoin
from xml.etree import ElementTree as ET

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5
from resiliparse.parse.html import DocumentNode, ElementNode, HTMLTree

MEMORY_BYTES: Final = 1024**3
CPU_S: Final = 8
MAX_TEXT_CHARS: Final = 1_000_000
"""Characters of the text, as for the result of any tool."""
MAX_TITLE_CHARS: Final = 300
MAX_HREF_CHARS: Final = 2_000
SHORT_TEXT_CHARS: Final = 250
"""Characters: for a shorter text, the rest of the page is searched for more."""
MAX_ENTRIES: Final = 200
"""Entries of a feed."""
MAX_MARKS: Final = 20_000
"""Links, headings of a level and pieces of code that are marked; more become plain text."""
HIDDEN_SELECTORS: Final = (
    *("[hidden]", '[style*="display:none"]', '[style*="display: none"]'),
    *('[style*="visibility:hidden"]', '[style*="visibility: hidden"]', "template", "dialog:not([open])"),
)
"""Selectors of invisible elements, where instructions to models are often hidden."""
BOILERPLATE_SELECTORS: Final = (
    *("nav", "footer", "aside", "[role=navigation]", "[role=banner]", "[role=contentinfo]", "[role=search]"),
    *(".nav", ".navbar", ".menu", ".sidebar", ".breadcrumb", ".breadcrumbs", ".cookie-banner", ".skip-link"),
)
MAIN_SELECTORS: Final = ("main", "[role=main]", "article", "#content", "#main")
STATEFUL_ENCODINGS: Final = ("utf-16", "iso2022")
"""Beginnings of the mapped names of encodings whose bytes can look like UTF-8."""
_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Marks around a link's text until all is text: noncharacters (Unicode, 23.7), which the page cannot have."""
_OPENED, _CLOSED = re.compile(f"{_OPEN}\\s*"), re.compile(f"\\s*{_CLOSE}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BLANK = re.compile(r"\n\s*\n\s*\n+")


def decode_body(body: bytes, charset: str, *, html: bool, cut: bool) -> str:
    """Decode by the byte order mark, else as UTF-8 if it is valid, else by the label, else by detection.

    Labels are often wrong; other encodings hardly ever are valid UTF-8 (RFC 3629, 1).
    """
    for mark, encoding in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    label = (map_encoding_to_html5(charset, fallback_utf8=False) or "") if charset else ""
    if not label.lower().startswith(STATEFUL_ENCODINGS):
        try:
            return body.decode("utf-8")
        except UnicodeDecodeError as error:
            if cut and error.start >= len(body) - 3:  # in the middle of a character
                return body[: error.start].decode("utf-8")
    encoding = label or detect_encoding(body, from_html_meta=html) or "utf-8"
    try:
        return body.decode(encoding, "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def extract_html(html: str, url: str) -> tuple[str, str]:
    """Return the title and text of a page, with its links and headings as Markdown."""
    tree = HTMLTree.parse(html.replace(_OPEN, "").replace(_CLOSE, ""))
    document = tree.document
    if document is None:
        return "", ""
    base = document.query_selector("base[href]")
    described = document.query_selector("meta[name=description]")
    about = clean_text(_attribute(described, "content"))
    _insert_markdown(tree, document, _join_url(url, _attribute(base, "href")))
    text = _main_text(tree, document)
    if len(text) < SHORT_TEXT_CHARS and about and about not in text:
        text = f"{about}\n\n{text}".strip()
    return flatten_title(tree.title or ""), text


def extract_feed(body: bytes) -> tuple[str, str] | None:
    """Return the title and entries of a feed. None: not a feed, or broken."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - this process has no secrets, and limits
    except (ET.ParseError, ValueError, LookupError):
        return None
    kind = _local_name(root)
    if kind not in ("rss", "RDF", "feed"):
        return None
    top = next((one for one in root if _local_name(one) == "channel"), root)
    entries = [one for one in root.iter() if _local_name(one) in ("item", "entry")]
    rendered = [_render_entry(one) for one in entries[:MAX_ENTRIES]]
    if len(entries) > MAX_ENTRIES:
        rendered.append(f"(and {len(entries) - MAX_ENTRIES} more)")
    return flatten_title(_child_text(top, "title")), "\n\n".join(rendered)


def clean_text(text: str) -> str:
    """Remove control characters and runs of blank lines."""
    lines = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
    return _BLANK.sub("\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")


def flatten_title(text: str) -> str:
    """Return a title on one line."""
    return " ".join(_CONTROL.sub(" ", text).split())[:MAX_TITLE_CHARS]


def extract_document(head: dict[str, str], body: bytes) -> tuple[str, str]:
    """Return the title and text of a document of any kind."""
    kind = head["kind"]
    html = kind in ("text/html", "application/xhtml+xml")
    if kind in ("application/xml", "text/xml") or (kind.endswith("+xml") and not html):
        found = extract_feed(body)
        if found is not None:
            return found
    text = decode_body(body, head["charset"], html=html, cut=head["cut"] == "yes")
    start = text[:1000].lstrip().lower()
    if html or (not kind and start.startswith(("<!doctype html", "<html"))):
        return extract_html(text, head["url"])
    return "", clean_text(text)


def _main_text(tree: HTMLTree, document: DocumentNode) -> str:
    """Return the main part of the page if it can be found, else all of its text."""
    text = _plain_text(tree)
    for selector in MAIN_SELECTORS:
        found = document.query_selector_all(selector).values()
        if len(found) == 1:
            inner = _plain_text(HTMLTree.parse(found[0].html))
            if len(inner) >= min(SHORT_TEXT_CHARS, len(text) // 2):
                return inner
    if len(text) < SHORT_TEXT_CHARS:
        everything = _visible_text(tree, HIDDEN_SELECTORS)
        return everything if len(everything) > 2 * len(text) else text
    return text


def _insert_markdown(tree: HTMLTree, document: DocumentNode, base_url: str) -> None:
    """Insert links, headings and code into the text, as Markdown."""
    page = base_url.partition("#")[0]
    for link in document.query_selector_all("a[href]").values()[:MAX_MARKS]:
        href = _join_url(base_url, _attribute(link, "href").strip())
        leads = href.startswith(("http://", "https://", "mailto:")) and href.partition("#")[0] != page
        if leads and ((link.text or "").strip() or link.query_selector("img[alt]") is not None):
            _wrap_children(tree, link, _OPEN, f"{_CLOSE}({href})")
    for level in range(1, 7):
        for heading in document.get_elements_by_tag_name(f"h{level}").values()[:MAX_MARKS]:
            _wrap_children(tree, heading, "#" * level + " ", "")
    for code in document.get_elements_by_tag_name("pre").values()[:MAX_MARKS]:
        _wrap_children(tree, code, "```\n", "\n```")


def _wrap_children(tree: HTMLTree, element: ElementNode, before: str, after: str) -> None:
    first, last = tree.create_text_node(before), tree.create_text_node(after)
    if first is not None and last is not None:
        element.prepend(first)
        element.append(last)


def _attribute(element: ElementNode | None, name: str) -> str:
    return (element.getattr(name) or "") if element is not None else ""


def _plain_text(tree: HTMLTree) -> str:
    return _visible_text(tree, BOILERPLATE_SELECTORS + HIDDEN_SELECTORS)


def _visible_text(tree: HTMLTree, without: Sequence[str]) -> str:
    text = extract_plain_text(tree, skip_elements=without)
    return clean_text(_CLOSED.sub("]", _OPENED.sub("[", text)))


def _join_url(base: str, href: str) -> str:
    if len(href) > MAX_HREF_CHARS:
        return ""
    try:
        return urljoin(base, href).replace(" ", "%20")
    except ValueError:
        return ""


def _render_entry(entry: ET.Element) -> str:
    link = _child_text(entry, "link")
    for one in entry:
        if not link and _local_name(one) == "link" and one.get("rel", "alternate") == "alternate":
            link = one.get("href", "")
    date = next(
        (found for name in ("pubDate", "published", "updated", "date") if (found := _child_text(entry, name))), ""
    )
    summary = next(
        (found for name in ("description", "summary", "content", "encoded") if (found := _child_text(entry, name))), ""
    )
    head = " · ".join(flatten_title(one) for one in (_child_text(entry, "title"), date, link) if one.strip())
    return "\n".join(one for one in (head, clean_text(extract_plain_text(summary)) if summary else "") if one)


def _child_text(element: ET.Element, name: str) -> str:
    found = next((one for one in element if _local_name(one) == name), None)
    return "".join(found.itertext()).strip() if found is not None else ""


def _local_name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _limit() -> None:
    for what, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)  # only root may raise it
        resource.setrlimit(what, (least, least))


def main() -> None:
    """Read the page, extract its text, write the result."""
    _limit()
    head = json.loads(sys.stdin.buffer.readline())
    title, text = extract_document(head, sys.stdin.buffer.read())
    sys.stdout.write(json.dumps({"title": title, "text": text[:MAX_TEXT_CHARS], "cut": len(text) > MAX_TEXT_CHARS}))


if __name__ == "__main__":
    main()
