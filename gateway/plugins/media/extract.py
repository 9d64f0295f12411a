"""Text of a web page or document. A program of its own, started by
`gateway.plugins.media.extract_text`.

Hostile files are not parsed beside secrets: this process has none, it has limits of memory and
time, and for documents it can open neither files nor sockets. Standard input: one line of JSON
(`kind`, `charset`, `url`, `cut`), then the file. Standard output: JSON (`title`, `text`, `parts`,
`cut`). Status `UNREADABLE_STATUS`: it is no text. The program imports nothing of ours, so that it
starts fast and can be run by its path.
"""

import contextlib
import encodings
import importlib
import io
import json
import pkgutil
import re
import resource
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import IO, Final, NamedTuple
from urllib.parse import parse_qs, urljoin, urlsplit
from xml.etree import ElementTree as ET

from turbohtml import Document, Element, Markdown, Node, Text, parse

DOCUMENT_CPU_S: Final = 5
"""Seconds after which no further page or row of a document is read."""
MAX_TEXT_CHARS: Final = 1_000_000
"""Characters of the text, as for the result of any tool."""
MAX_TITLE_CHARS: Final = 300
UNREADABLE_STATUS: Final = 3
MAX_UNPACKED_BYTES: Final = 200_000_000
"""Bytes of all members of a packed document, as its directory declares them and zipfile
enforces."""
MAX_HREF_CHARS: Final = 2_000
SHORT_TEXT_CHARS: Final = 250
"""Characters: for a shorter text, the rest of the page is searched for more."""
MAX_HITS: Final = 50
SEARCH_KIND: Final = "search/duckduckgo"
"""Stands for a media type: a page of results of that service."""
MAX_ENTRIES: Final = 200
"""Entries of a feed."""
MAX_MARKS: Final = 20_000
"""Links and cells of tables that are marked; more become plain text."""
HIDDEN: Final = (
    '[hidden], [style*="display:none" i], [style*="display: none" i], '
    '[style*="visibility:hidden" i], [style*="visibility: hidden" i], template, dialog:not([open])'
)
"""Selectors of invisible elements, where instructions to models are often hidden."""
WITHOUT_TEXT: Final = (
    "script, style, noscript, svg, iframe, object, canvas, audio, video, "
    "textarea, select, button, datalist"
)
BOILERPLATE: Final = (
    "nav, footer, aside, [role=navigation], [role=banner], [role=contentinfo], [role=search], "
    ".nav, .navbar, .menu, .sidebar, .breadcrumb, .breadcrumbs, .cookie-banner, .skip-link"
)
SMALL_CELLS: Final = ":is(td, th):not(:last-child, :has(table, p, div, ul, ol, pre, blockquote))"
"""Cells that are parted from the next one by a sign. Others, often of tables that only lay out a
page, become paragraphs."""
STATEFUL_LABELS: Final = ("utf-16", "iso-2022", "csiso2022")
"""Beginnings of the labels of encodings whose bytes can look like UTF-8."""
_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_MARKDOWN: Final = Markdown(
    inline=Markdown.Inline(ignore_emphasis=True),
    links=Markdown.Links(autolink=False),
    images=Markdown.Images(mode="alt"),
    tables=Markdown.Tables(mode="strip"),
    escaping=Markdown.Escaping(mode="none", asterisks=False, underscores=False),
)
_HREF_SIGNS: Final = str.maketrans({sign: f"%{ord(sign):X}" for sign in " ()<>\\"})
"""What an address in Markdown would need signs of escape for (RFC 3986, 2.1)."""
_PDF_HEAD_BYTES = 1024
"""A PDF's header may stand anywhere in these (ISO 32000-1, annex H, 3.4.1)."""
_DOCX_UNSEEN: Final = ("pPr", "Fallback", "del", "moveFrom")
"""Properties have stops of tabs, which are named `tab`. `Fallback` has the same text again, for
older programs."""
_DOCX_SIGNS: Final = {
    "p": "\n",
    "tc": "\n",
    "br": "\n",
    "cr": "\n",
    "tab": "\t",
    "ptab": "\t",
    "noBreakHyphen": "-",
}
"""Text of elements that stand for a sign in a Word document."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BLANK = re.compile(r"\n\s*\n\s*\n+")


def decode_body(body: bytes, charset: str, *, cut: bool) -> str:
    """Decode by the byte order mark, else as UTF-8 if it is valid, else by the label, else by
    detection.

    Labels are often wrong; other encodings hardly ever are valid UTF-8 (RFC 3629, 1).
    """
    for mark, encoding in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    if not charset.lower().startswith(STATEFUL_LABELS):
        try:
            return body.decode("utf-8")
        except UnicodeDecodeError as error:
            if cut and error.start >= len(body) - 3:  # in the middle of a character
                return body[: error.start].decode("utf-8")
    from turbohtml.detect import detect  # noqa: PLC0415 - takes 10 ms, and most pages are in UTF-8

    try:  # its codecs, which know the labels that browsers know
        return body.decode(f"whatwg-{charset}", "replace")
    except (LookupError, ValueError):
        return body.decode(detect(body).codec or "utf-8", "replace")


def extract_html(html: str, url: str) -> tuple[str, str]:
    """Return the title and text of a page, as Markdown."""
    document = _parse_visible(html)
    title, base = document.select_one("title"), document.select_one("base[href]")
    about = clean_text(_attribute(document.select_one("meta[name=description]"), "content"))
    _mark_links(document, _join_url(url, _attribute(base, "href")))
    text = _main_text(document)
    if len(text) < SHORT_TEXT_CHARS and about and about not in text:
        text = f"{about}\n\n{text}".strip()
    return flatten_title(title.text if title is not None else ""), text


def extract_search_hits(html: str) -> str:
    """Return the results on a page of html.duckduckgo.com as JSON, without advertisements.

    Raises Unreadable if it is no page of results. Links to results go through a redirect that names
    them in `uddg`.
    """
    document = parse(html)
    if document.select_one(".result") is None:
        raise Unreadable("no page of results")
    hits = list[dict[str, str]]()
    for one in document.select(".result:not(.result--ad)")[:MAX_HITS]:
        link, about = one.select_one("a.result__a"), one.select_one(".result__snippet")
        with contextlib.suppress(ValueError):  # an address that is none
            to = urlsplit(urljoin("https://duckduckgo.com/", _attribute(link, "href")))
            url = parse_qs(to.query).get("uddg", [to.geturl()])[0]
            if link is not None and not f".{urlsplit(url).hostname}".endswith(".duckduckgo.com"):
                content = flatten_title(about.text if about is not None else "")
                hits.append({"title": flatten_title(link.text), "url": url, "content": content})
    return json.dumps({"results": hits})


def extract_feed(body: bytes) -> tuple[str, str] | None:
    """Return the title and entries of a feed. None: not a feed, or broken."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - this process has no secrets, and limits
    except (ET.ParseError, ValueError, LookupError):
        return None
    if _local_name(root) not in ("rss", "RDF", "feed"):
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


class Extracted(NamedTuple):
    """Text of a file."""

    title: str
    """One line. Empty: it has none."""
    text: str
    parts: str = ""
    """Number of its pages or sheets, e.g. `14 pages`. Empty: it has none."""
    cut: bool = False


class Unreadable(Exception):
    """A file that is no text, or is locked. The message says which."""


def extract_document(head: dict[str, str], body: bytes) -> Extracted:
    """Return the title and text of a file: PDF, docx and xlsx are known by their bytes. Raises
    Unreadable.
    """
    if b"%PDF-" in body[:_PDF_HEAD_BYTES]:
        import pypdf  # noqa: PLC0415 - only for such a file

        _import_modules(pypdf)  # it imports some in the middle of a page
        _import_modules(encodings)
        return _extract_alone(_extract_pdf, body)
    if body.startswith(b"PK\x03\x04"):
        return _extract_alone(_choose_office_reader(body), body)
    if (
        not head["kind"]
        and b"\0" in body[:1000]
        and not body.startswith(tuple(mark for mark, _ in _BOMS))
    ):
        raise Unreadable("no text")
    return Extracted(*_extract_markup(head, body))


def _extract_markup(head: dict[str, str], body: bytes) -> tuple[str, str]:
    kind = head["kind"]
    if kind == SEARCH_KIND:
        return "", extract_search_hits(decode_body(body, head["charset"], cut=False))
    html = kind in ("text/html", "application/xhtml+xml")
    if kind in ("application/xml", "text/xml") or (kind.endswith("+xml") and not html):
        found = extract_feed(body)
        if found is not None:
            return found
    text = decode_body(body, head["charset"], cut=head["cut"] == "yes")
    if html or (not kind and text[:1000].lstrip().lower().startswith(("<!doctype html", "<html"))):
        return extract_html(text, head["url"])
    return "", clean_text(text)


def _import_modules(package: ModuleType) -> None:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)


def _extract_alone(reader: Callable[[bytes], Extracted], body: bytes) -> Extracted:
    """Read a document while the process can open neither a file nor a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        return reader(body)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _choose_office_reader(body: bytes) -> Callable[[bytes], Extracted]:
    """Return the reader for an Office Open XML document (ECMA-376, part 2). Raises Unreadable."""
    try:
        members = zipfile.ZipFile(io.BytesIO(body)).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise Unreadable("a broken archive") from None
    if sum(one.file_size for one in members) > MAX_UNPACKED_BYTES:
        raise Unreadable("too large to be unpacked")
    names = {one.filename for one in members}
    if "word/document.xml" in names:
        return _extract_docx
    if "xl/workbook.xml" in names:
        import openpyxl  # noqa: PLC0415, F401 - only for such a file

        return _extract_xlsx
    raise Unreadable("an archive")


def _extract_pdf(body: bytes) -> Extracted:
    from pypdf import PdfReader  # noqa: PLC0415 - only for such a file
    from pypdf.errors import DependencyError, PyPdfError  # noqa: PLC0415

    try:
        reader = PdfReader(io.BytesIO(body))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("locked with a password")
        text, cut = _join_pieces(
            f"[page {number}]\n{page.extract_text()}" for number, page in enumerate(reader.pages, 1)
        )
        title = (reader.metadata.title if reader.metadata else None) or ""
        return Extracted(flatten_title(str(title)), text, _count(len(reader.pages), "page"), cut)
    except DependencyError:
        raise Unreadable("locked with a password") from None
    except PyPdfError:
        raise Unreadable("a broken PDF") from None


def _extract_docx(body: bytes) -> Extracted:
    archive = zipfile.ZipFile(io.BytesIO(body))
    present = [
        archive.open(name)
        for name in ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml")
        if name in archive.namelist()
    ]
    text, cut = _join_pieces(line for part in present for line in _read_docx_lines(part))
    title = ""
    with contextlib.suppress(KeyError, ET.ParseError):  # a document may have no properties
        core = ET.fromstring(archive.read("docProps/core.xml"))  # noqa: S314 - as for feeds
        title = _child_text(core, "title")
    return Extracted(flatten_title(title), text, cut=cut)


def _read_docx_lines(document: IO[bytes]) -> Iterator[str]:
    """Yield paragraphs and rows of tables (ECMA-376, part 1, 17.3 and 17.4), as they are shown
    once all changes are accepted. A table in a cell is part of its text.
    """
    depth = 0
    for event, node in ET.iterparse(document, ("start", "end")):  # noqa: S314 - as for feeds
        name = _local_name(node)
        if name in ("tbl", "Fallback"):
            depth += 1 if event == "start" else -1
        if event == "start":
            continue
        if name == "tc":
            cell = _flatten(_join_runs(node))
            node.clear()
            node.text = cell
        elif name == "tr" and depth == 1:
            yield "\t".join(one.text or "" for one in node.iter() if _local_name(one) == "tc")
            node.clear()
        elif name == "p" and not depth:
            yield _join_runs(node).strip("\n")
            node.clear()
        elif name in _DOCX_UNSEEN or (name == "r" and _is_hidden(node)):
            node.clear()


def _is_hidden(run: ET.Element) -> bool:
    """Return whether the text is hidden (ECMA-376, part 1, 17.3.2.41)."""
    hidden = run.find("{*}rPr/{*}vanish")
    return hidden is not None and not {"0", "false", "off"} & {*hidden.attrib.values()}


def _join_runs(node: ET.Element) -> str:
    names = ((_local_name(one), one) for one in node.iter())
    return "".join(
        _DOCX_SIGNS.get(name, "") + ((one.text or "") if name in ("t", "tc") else "")
        for name, one in names
    )


def _extract_xlsx(body: bytes) -> Extracted:
    import openpyxl  # noqa: PLC0415 - only for such a file

    book = openpyxl.load_workbook(io.BytesIO(body), read_only=True, data_only=True)

    def read_rows() -> Iterator[str]:
        for sheet in book.worksheets:
            yield f"[sheet {flatten_title(sheet.title)}]"
            for row in sheet.iter_rows(values_only=True, max_col=100):
                cells = ["" if value is None else _flatten(str(value)) for value in row]
                if any(cells):
                    yield "\t".join(cells).rstrip("\t")

    text, cut = _join_pieces(read_rows())
    return Extracted("", text, _count(len(book.worksheets), "sheet"), cut)


def _join_pieces(pieces: Iterator[str]) -> tuple[str, bool]:
    """Join pieces, each on lines of its own, as long as text and time last. True: there is more."""
    taken, chars = list[str](), 0
    for piece in pieces:
        taken.append(piece)
        chars += len(piece) + 1
        if chars > MAX_TEXT_CHARS or time.process_time() > DOCUMENT_CPU_S:
            return clean_text("\n".join(taken)), next(pieces, None) is not None
    return clean_text("\n".join(taken)), False


def _flatten(text: str) -> str:
    return " ".join(text.split())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _parse_visible(html: str) -> Document:
    return parse(html).remove(f"{HIDDEN}, {WITHOUT_TEXT}")


def _main_text(document: Document) -> str:
    """Return the main part of the page if it can be found, else all of its text."""
    everything = _render(document)
    text = _render(document.remove(BOILERPLATE))
    for selector in ("main", "[role=main]", "article", "#content", "#main"):
        found = document.select(selector)
        if len(found) == 1:
            inner = _render(found[0])
            if len(inner) >= min(SHORT_TEXT_CHARS, len(text) // 2):
                return inner
    return everything if len(text) < SHORT_TEXT_CHARS and len(everything) > 2 * len(text) else text


def _mark_links(document: Document, base_url: str) -> None:
    """Leave only links that lead to another page, with their whole address, and part cells."""
    page = base_url.partition("#")[0]
    for number, link in enumerate(document.select("a[href]")):
        written = _attribute(link, "href").strip() if number < MAX_MARKS else ""
        href = _join_url(base_url, written) if written else ""
        leads = (
            href.startswith(("http://", "https://", "mailto:")) and href.partition("#")[0] != page
        )
        if leads and (next(link.stripped_strings, "") or link.select_one("img[alt]") is not None):
            link.attrs["href"] = href.translate(_HREF_SIGNS)
            link.attrs.pop("title", None)  # would stand behind the address
        else:
            del link.attrs["href"]
    for cell in document.select(SMALL_CELLS)[:MAX_MARKS]:
        cell.append(Text(" |"))


def _attribute(element: Element | None, name: str) -> str:
    return (element.attr(name) or "") if element is not None else ""


def _render(node: Node) -> str:
    return clean_text(node.to_markdown(_MARKDOWN))


def _join_url(base: str, href: str) -> str:
    if len(href) > MAX_HREF_CHARS:
        return ""
    try:
        return urljoin(base, href)
    except ValueError:
        return ""


def _render_entry(entry: ET.Element) -> str:
    link = _child_text(entry, "link")
    for one in entry:
        if not link and _local_name(one) == "link" and one.get("rel", "alternate") == "alternate":
            link = one.get("href", "")
    date = _child_text(entry, "pubDate", "published", "updated", "date")
    summary = _child_text(entry, "description", "summary", "content", "encoded")
    head = " · ".join(
        flatten_title(one) for one in (_child_text(entry, "title"), date, link) if one.strip()
    )
    return "\n".join(
        one for one in (head, _render(_parse_visible(summary)) if summary else "") if one
    )


def _child_text(element: ET.Element, *names: str) -> str:
    """Return the text of the first child with one of these names that has any. Empty: none."""
    found = {_local_name(one): "".join(one.itertext()).strip() for one in reversed(element)}
    return next(filter(None, map(found.get, names)), "")


def _local_name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _limit() -> None:
    for what, limit in (
        (resource.RLIMIT_AS, 1024**3),
        (resource.RLIMIT_CPU, 8),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = (
            limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        )  # only root may raise it
        resource.setrlimit(what, (least, least))


def main() -> None:
    """Read the file, extract its text, write the result."""
    _limit()
    head = json.loads(sys.stdin.buffer.readline())
    try:
        found = extract_document(head, sys.stdin.buffer.read())
    except Unreadable as reason:
        sys.stdout.write(str(reason))
        sys.exit(UNREADABLE_STATUS)
    text, cut = found.text[:MAX_TEXT_CHARS], found.cut or len(found.text) > MAX_TEXT_CHARS
    sys.stdout.write(json.dumps(found._replace(text=text, cut=cut)._asdict()))


if __name__ == "__main__":
    main()
