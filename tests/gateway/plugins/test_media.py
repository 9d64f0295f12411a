"""Documents whose text is told, and voice notes transcribed by a command."""

import asyncio
import io
import json
import re
import sys
import time
import zipfile
from pathlib import Path

import openpyxl
import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.base import ToolResult
from agent.models.scripted import Script, ScriptRule
from gateway.core.events import Message
from gateway.core.facts import Seq
from gateway.core.process import run_program
from gateway.plugin import Plugin, PluginContext
from gateway.plugins import use_plugins
from gateway.plugins.media import (
    EXTRACT_PROGRAM,
    ExtractionError,
    TranscriptionError,
    extract_text,
    transcribe,
)
from gateway.stream.media import AttachmentReader, DescribedAttachment
from reverie.testing.gateway import running
from reverie.testing.servers.model_api import ModelApi
from reverie.testing.waiting import until
from tests.kits.media import heard, pdf, seeing, shown


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return file.getvalue()


WORD = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?><w:document
xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"
xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><w:body>
<w:p><w:pPr><w:tabs><w:tab w:val="left" w:pos="90"/></w:tabs></w:pPr><w:r><w:t>Fir</w:t></w:r><w:r><w:rPr><w:b/></w:rPr>
<w:t xml:space="preserve">st </w:t><w:tab/><w:t>tab</w:t><w:br/><w:t>e</w:t><w:noBreakHyphen/><w:t>mail</w:t></w:r>
<w:del><w:r><w:tab/><w:delText>gone</w:delText></w:r></w:del>
<w:moveFrom><w:r><w:t>Second</w:t></w:r></w:moveFrom><w:r><w:rPr><w:vanish/></w:rPr><w:t>Obey</w:t></w:r>
<w:r><w:rPr><w:vanish w:val="0"/></w:rPr><w:t>!</w:t></w:r></w:p>
<w:sdt><w:sdtContent><w:p><w:hyperlink><w:r><w:t>Second</w:t></w:r></w:hyperlink></w:p></w:sdtContent></w:sdt>
<w:tbl><w:tr><w:tc><w:p/></w:tc><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p><w:p><w:r><w:t>cell</w:t></w:r></w:p>
<w:tbl><w:tr><w:tc><w:p><w:r><w:t>within</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:tc></w:tr></w:tbl>
<w:p><mc:AlternateContent><mc:Choice><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent></mc:Choice>
<mc:Fallback><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent></mc:Fallback></mc:AlternateContent></w:p>
</w:body></w:document>"""
"""As Word and LibreOffice write it, in short."""
WORD_TITLE = b"""<c:coreProperties xmlns:c="http://schemas.openxmlformats.org/package/2006/metadata/core-properties"
xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The\nplan</dc:title></c:coreProperties>"""


def workbook() -> bytes:
    book, file = openpyxl.Workbook(), io.BytesIO()
    book.create_sheet("Sums").append(["name", 3, None, "x"])
    book.save(file)
    return file.getvalue()


async def test_a_short_pdf_is_shown_whole_beside_its_text_and_a_longer_one_by_its_text(
    tmp_path: Path,
) -> None:
    short, long = pdf("Plan", "Costs"), pdf("One", "Two", "Three")
    async with running(tmp_path, seeing(), media={"pdf_pages": 2}) as gateway:
        files = [
            gateway.console.add_attachment(data, "file", name=name, content_type="application/pdf")
            for name, data in (("short.pdf", short), ("long.pdf", long))
        ]
        await gateway.ask("read these", sender="ann", attachments=tuple(files))
        (shown_now,) = shown(gateway)
        assert (shown_now.media_type, shown_now.data, shown_now.pages) == (
            "application/pdf",
            short,
            2,
        )
        assert "[file short.pdf" in shown_now.description
        assert re.search(
            r"short.pdf.*\[page 2\]\s+Costs.*long.pdf.*\[page 3\]\s+Three",
            heard(gateway),
            re.DOTALL,
        )
        await gateway.ask("and?", sender="ann")
    first, second = gateway.scripted.requests
    assert second.conversation[: len(first.conversation)] == first.conversation
    async with running(tmp_path, seeing(), media={"pdf_pages": 0}) as again:
        await again.ask("still?", sender="ann")
        (third,) = again.scripted.requests
        assert third.conversation[: len(second.conversation)] == second.conversation
        new = again.console.add_attachment(
            pdf("Other"), "file", name="new.pdf", content_type="application/pdf"
        )
        await again.ask("by default?", sender="ann", attachments=(new,))
        assert len(shown(again)) == 1
        assert "Other" in heard(again)
    (turn, *_) = await again.turns()
    assert [(one.media_type, one.pages) for one in turn.media] == [("application/pdf", 2)]


async def test_a_pdf_that_the_provider_refuses_is_left_out_and_its_text_answered(
    tmp_path: Path,
) -> None:
    async with ModelApi() as api:
        model = AnthropicModel(name="main", model="m", api_key="k", base_url=api.url)
        async with running(tmp_path, model, media={"pdf_pages": 5}) as gateway:
            good, bad = pdf("Fine"), pdf("Fine") + b"/Encrypt"  # as the fake knows one
            for data in (good, bad):
                file = gateway.console.add_attachment(
                    data, "file", name="a.pdf", content_type="application/pdf"
                )
                await gateway.ask("read", sender="ann", attachments=(file,))
    assert [str(one.body["messages"]).count("'document'") for one in api.seen] == [1, 2, 1]
    assert [turn.outcome for turn in await gateway.turns()] == ["replied", "replied"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a,b\r\n1,2", "a,b\n1,2"),
        ("Grüße".encode("cp1252"), "Grüße"),
        (b"<!doctype html><title>T</title><p>Seen<p hidden>Not", "Seen"),
        (
            zipped(
                word__document_xml=WORD.encode(),
                word__footnotes_xml=b"<x><p><r><t>note</t></r></p></x>",
            ),
            "First \ttab\ne-mail!\nSecond\n\ta cell within\nbox\n\nnote",
        ),
        (workbook(), "[sheet Sheet]\n[sheet Sums]\nname\t3\t\tx"),
        (pdf("Hello", "World"), "[page 1]\nHello\n[page 2]\nWorld"),
        (pdf("Hello", password="x"), "locked with a password"),
        (b"%PDF-1.7 nothing else", "a broken PDF"),
        (b"PK\x03\x04 nothing else", "a broken archive"),
        (zipped(a_txt=b"x"), "an archive"),
        (zipped(word__document_xml=b" " * 200_000_001), "too large to be unpacked"),
        (zipped(word__document_xml=b"<a>"), "broken, or too much to be read"),
        (bytes(100), "no text"),
    ],
)
async def test_documents_are_known_by_their_bytes(data: bytes, text: str) -> None:
    try:
        found = (await extract_text(data)).text
    except ExtractionError as error:
        found = str(error)
    assert found == text


async def test_a_word_document_tells_its_title_and_an_entity_bomb_in_it_ends_its_reader_only() -> (
    None
):
    parts = {"word__document_xml": WORD.encode(), "docProps__core_xml": WORD_TITLE}
    assert (await extract_text(zipped(**parts))).title == "The plan"
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(12))
    parts["word__document_xml"] = (
        f'<!DOCTYPE x [<!ENTITY e0 "x">{entities}]><x><p><t>&e12;</t></p></x>'.encode()
    )
    with pytest.raises(ExtractionError, match="broken, or too much"):
        await extract_text(zipped(**parts))


async def test_a_document_of_one_long_paragraph_is_told_to_be_cut() -> None:
    long = b"<x><p><r><t>%s</t></r></p></x>" % (b"a" * 1_000_001)
    found = await extract_text(zipped(word__document_xml=long))
    assert (len(found.text), found.cut) == (1_000_000, True)


async def test_a_document_can_open_nothing_while_it_is_read() -> None:
    """The library is made to open a file in the middle of its work."""
    probe = (
        f"import sys; sys.path.insert(0, {str(EXTRACT_PROGRAM.parent)!r}); import extract, socket\n"
        "def read(body):\n"
        " for attempt in (lambda: open('/etc/passwd'), socket.socket):\n"
        "  try: attempt(); print('opened')\n"
        "  except OSError as error: print(error.strerror)\n"
        "extract._limit(); extract._extract_alone(read, b'')\n"
    )
    ran = await run_program((sys.executable, "-I", "-c", probe), env={}, time_s=20, max_bytes=1_000)
    assert ran.output.splitlines() == [b"Too many open files"] * 2


async def test_the_beginning_of_a_document_is_told_and_the_rest_is_read_by_handle(
    tmp_path: Path,
) -> None:
    log = "\n".join(f"line {number} of <<<it" for number in range(1, 1_001))
    async with running(tmp_path) as gateway:
        attached = (
            gateway.console.add_attachment(b"x", "image"),
            gateway.console.add_attachment(log.encode(), "file", name="a.log"),
            gateway.console.add_attachment(
                pdf("All of it"), "file", name="b.bin", content_type="application/pdf"
            ),
        )
        await gateway.ask("what is wrong?", sender="ann", attachments=attached)
        told = heard(gateway)
    start = re.search(
        r'\[file a.log, 18 KB, 4000 of \d+ characters follow, fetch_evidence\("(a\d+\.2)"\)', told
    )
    assert start is not None, told
    assert "<<<untrusted" in told
    assert "line 228 of" in told
    assert "line 229 of" not in told
    assert "[file b.bin, 628 bytes, 1 page, its text follows]" in told
    assert "All of it" in told
    wanted = {"handle": start[1], "find": "LINE 700 OF", "limit": 40}
    rules = (
        ScriptRule(match="seven", calls=(("fetch_evidence", json.dumps(wanted)),)),
        ScriptRule(match=".", reply="ok"),
    )
    async with running(
        tmp_path, seeing(Script(rules=rules))
    ) as again:  # the document is no longer on the platform
        await again.ask("and line seven hundred?", sender="ann")
        (result,) = [
            part
            for part in again.scripted.requests[-1].conversation[-1].parts
            if isinstance(part, ToolResult)
        ]
    assert "line 700 of <<<it\nline 701 of" in result.text
    assert "line 699" not in result.text
    assert "<<<untrusted" in result.text


def script(tmp_path: Path, body: str) -> list[str]:
    """Return a command that runs some Python with `{file}` as its argument."""
    file = tmp_path / "listen.py"
    file.write_text(
        f"import sys, time, os, subprocess\npath = sys.argv[1]\n{body}\n", encoding="utf-8"
    )
    return [sys.executable, str(file), "{file}"]


async def test_a_voice_note_is_written_out(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        "assert path.endswith('.ogg'); print('\"hello]', open(path, 'rb').read()[4:].decode())",
    )
    async with running(tmp_path, media={"transcribe": command}) as gateway:
        note = gateway.console.add_attachment(b"OggS from ann", "audio", duration_s=12)
        await gateway.ask("", sender="ann", attachments=(note,))
        assert heard(gateway).endswith('ann (guest): [voice note, 12 s: "\'hello from ann"]')
    assert not list((tmp_path / "media").iterdir())  # nothing is left of it


async def test_a_command_that_fails_is_told_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, media={"transcribe": script(tmp_path, "sys.exit(3)")}) as gateway:
        await gateway.ask(
            "?", sender="ann", attachments=(gateway.console.add_attachment(b"x", "audio"),)
        )
        assert heard(gateway).endswith("? [voice note, could not be written out]")


async def test_a_command_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    body = (
        f"child = subprocess.Popen(['sleep', '600']); open({str(marker)!r}, "
        "'w').write(str(child.pid)); time.sleep(600)"
    )
    with pytest.raises(TranscriptionError, match="longer than"):
        await transcribe(script(tmp_path, body), tmp_path / "a.ogg", timeout_s=1.5)
    task = asyncio.create_task(transcribe(script(tmp_path, body), tmp_path / "a.ogg", timeout_s=60))
    first = marker.read_text()
    await until(lambda: marker.read_text() not in ("", first))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for pid in (first, marker.read_text()):
        assert gone(int(pid))


def gone(pid: int) -> bool:
    """Return whether a process has ended, or only waits to be reaped."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


class Songs(Plugin):
    """Somebody else's plugin, which reads one kind of files."""

    name = "songs"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        context.media.readers.append(
            AttachmentReader(lambda _, one, __: (one.name or "").endswith(".mid"), 1, self._hear)
        )

    async def _hear(
        self, _seq: Seq, message: Message, place: int, _sees: bool
    ) -> DescribedAttachment:
        data = await self.context.media.fetch(message.at, message.shown_attachments[place])
        return DescribedAttachment(f"[a song of {1 // len(data)} bars]")


async def test_a_reader_of_a_plugin_tells_what_is_in_its_files_and_a_broken_one_breaks_no_turn(
    tmp_path: Path,
) -> None:
    with use_plugins(Songs):
        async with running(tmp_path) as gateway:
            for data, told in (
                (b"x", "[a song of 1 bars]"),
                (b"", "[file a.mid, 0 bytes, could not be read]"),
            ):
                files = (
                    gateway.console.add_attachment(data, "file", name="a.mid"),
                    gateway.console.add_attachment(b"a", "file", name="b.txt"),
                )
                await gateway.ask("listen", sender="ann", attachments=files)
                assert told in heard(gateway)
                assert "its text follows" in heard(gateway)
