"""What a page says, as text. Run as a program of its own; see `extracting`.

Reading hostile HTML in C++ is nothing to do beside secrets: this runs without any, within limits of memory and time.
Standard input: one line of JSON (`kind`, `charset`, `url`, `cut`), then the page. Standard output: JSON (`title`,
`text`). It imports nothing of ours, so that it starts fast and can be run by its path.
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
"""As much as of any tool's result."""
MAX_TITLE_CHARS: Final = 300
MAX_HREF_CHARS: Final = 2_000
SHORT_CHARS: Final = 250
"""A text that is shorter is doubted: there may be more of it elsewhere."""
MOST_ENTRIES: Final = 200
"""Of a feed."""
MOST_MARKS: Final = 20_000
"""Links, headings of a level and pieces of code that are marked; more are told as plain text."""
HIDDEN: Final = (
    *("[hidden]", '[style*="display:none"]', '[style*="display: none"]'),
    *('[style*="visibility:hidden"]', '[style*="visibility: hidden"]', "template", "dialog:not([open])"),
)
"""What nobody sees is where instructions to models are put."""
AROUND: Final = (
    *("nav", "footer", "aside", "[role=navigation]", "[role=banner]", "[role=contentinfo]", "[role=search]"),
    *(".nav", ".navbar", ".menu", ".sidebar", ".breadcrumb", ".breadcrumbs", ".cookie-banner", ".skip-link"),
)
MAIN: Final = ("main", "[role=main]", "article", "#content", "#main")
STATEFUL: Final = ("utf-16", "iso2022")
"""Encodings whose bytes can look like UTF-8, as they begin once mapped."""
_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Around a link's text until all is text: they stand for no characters (Unicode, 23.7), so no page has them."""
_OPENED, _CLOSED = re.compile(f"{_OPEN}\\s*"), re.compile(f"\\s*{_CLOSE}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BLANK = re.compile(r"\n\s*\n\s*\n+")


def decoded(body: bytes, charset: str, *, html: bool, cut: bool) -> str:
    """The text of it: by its mark, else as UTF-8 if it is that, else as it is labelled, else as it looks.

    Labels are often wrong; what is not UTF-8 hardly ever reads as UTF-8 (RFC 3629, 1).
    """
    for mark, encoding in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    label = (map_encoding_to_html5(charset, fallback_utf8=False) or "") if charset else ""
    if not label.lower().startswith(STATEFUL):
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


def page(html: str, url: str) -> tuple[str, str]:
    """Title and text of a page, with its links and headings as in Markdown."""
    tree = HTMLTree.parse(html.replace(_OPEN, "").replace(_CLOSE, ""))
    document = tree.document
    if document is None:
        return "", ""
    base = document.query_selector("base[href]")
    described = document.query_selector("meta[name=description]")
    about = clean(_attribute(described, "content"))
    _mark(tree, document, _joined(url, _attribute(base, "href")))
    text = _main(tree, document)
    if len(text) < SHORT_CHARS and about and about not in text:
        text = f"{about}\n\n{text}".strip()
    return flat(tree.title or ""), text


def feed(body: bytes) -> tuple[str, str] | None:
    """Title and entries of a feed. None: it is something else, or broken."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - this process has nothing to lose, and limits
    except (ET.ParseError, ValueError, LookupError):
        return None
    kind = _local(root)
    if kind not in ("rss", "RDF", "feed"):
        return None
    top = next((one for one in root if _local(one) == "channel"), root)
    entries = [one for one in root.iter() if _local(one) in ("item", "entry")]
    told = [_entry(one) for one in entries[:MOST_ENTRIES]]
    if len(entries) > MOST_ENTRIES:
        told.append(f"(and {len(entries) - MOST_ENTRIES} more)")
    return flat(_child(top, "title")), "\n\n".join(told)


def clean(text: str) -> str:
    """Without control characters and gaps."""
    lines = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
    return _BLANK.sub("\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")


def flat(text: str) -> str:
    """A title, on one line."""
    return " ".join(_CONTROL.sub(" ", text).split())[:MAX_TITLE_CHARS]


def said(head: dict[str, str], body: bytes) -> tuple[str, str]:
    """Title and text of whatever it is."""
    kind = head["kind"]
    html = kind in ("text/html", "application/xhtml+xml")
    if kind in ("application/xml", "text/xml") or (kind.endswith("+xml") and not html):
        found = feed(body)
        if found is not None:
            return found
    text = decoded(body, head["charset"], html=html, cut=head["cut"] == "yes")
    start = text[:1000].lstrip().lower()
    if html or (not kind and start.startswith(("<!doctype html", "<html"))):
        return page(text, head["url"])
    return "", clean(text)


def _main(tree: HTMLTree, document: DocumentNode) -> str:
    """What the page is about, as far as that can be seen; else all of it."""
    text = _plain(tree)
    for selector in MAIN:
        found = document.query_selector_all(selector).values()
        if len(found) == 1:
            inner = _plain(HTMLTree.parse(found[0].html))
            if len(inner) >= min(SHORT_CHARS, len(text) // 2):
                return inner
    if len(text) < SHORT_CHARS:
        everything = _text(tree, HIDDEN)
        return everything if len(everything) > 2 * len(text) else text
    return text


def _mark(tree: HTMLTree, document: DocumentNode, here: str) -> None:
    """Write links, headings and code into the text, as in Markdown."""
    page = here.partition("#")[0]
    for link in document.query_selector_all("a[href]").values()[:MOST_MARKS]:
        href = _joined(here, _attribute(link, "href").strip())
        leads = href.startswith(("http://", "https://", "mailto:")) and href.partition("#")[0] != page
        if leads and ((link.text or "").strip() or link.query_selector("img[alt]") is not None):
            _put(tree, link, _OPEN, f"{_CLOSE}({href})")
    for level in range(1, 7):
        for heading in document.get_elements_by_tag_name(f"h{level}").values()[:MOST_MARKS]:
            _put(tree, heading, "#" * level + " ", "")
    for code in document.get_elements_by_tag_name("pre").values()[:MOST_MARKS]:
        _put(tree, code, "```\n", "\n```")


def _put(tree: HTMLTree, element: ElementNode, before: str, after: str) -> None:
    first, last = tree.create_text_node(before), tree.create_text_node(after)
    if first is not None and last is not None:
        element.prepend(first)
        element.append(last)


def _attribute(element: ElementNode | None, name: str) -> str:
    return (element.getattr(name) or "") if element is not None else ""


def _plain(tree: HTMLTree) -> str:
    return _text(tree, AROUND + HIDDEN)


def _text(tree: HTMLTree, without: Sequence[str]) -> str:
    text = extract_plain_text(tree, skip_elements=without)
    return clean(_CLOSED.sub("]", _OPENED.sub("[", text)))


def _joined(base: str, href: str) -> str:
    if len(href) > MAX_HREF_CHARS:
        return ""
    try:
        return urljoin(base, href).replace(" ", "%20")
    except ValueError:
        return ""


def _entry(entry: ET.Element) -> str:
    link = _child(entry, "link")
    for one in entry:
        if not link and _local(one) == "link" and one.get("rel", "alternate") == "alternate":
            link = one.get("href", "")
    date = next((found for name in ("pubDate", "published", "updated", "date") if (found := _child(entry, name))), "")
    words = next(
        (found for name in ("description", "summary", "content", "encoded") if (found := _child(entry, name))), ""
    )
    head = " · ".join(flat(one) for one in (_child(entry, "title"), date, link) if one.strip())
    return "\n".join(one for one in (head, clean(extract_plain_text(words)) if words else "") if one)


def _child(element: ET.Element, name: str) -> str:
    found = next((one for one in element if _local(one) == name), None)
    return "".join(found.itertext()).strip() if found is not None else ""


def _local(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)  # only root may raise it
        resource.setrlimit(what, (least, least))


def main() -> None:
    """Read, extract, write."""
    _limit()
    head = json.loads(sys.stdin.buffer.readline())
    title, text = said(head, sys.stdin.buffer.read())
    sys.stdout.write(json.dumps({"title": title, "text": text[:MAX_TEXT_CHARS], "cut": len(text) > MAX_TEXT_CHARS}))


if __name__ == "__main__":
    main()
