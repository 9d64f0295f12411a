"""Images for models that see, descriptions for others, and voice notes transcribed by a command."""

import asyncio
import io
import json
import os
import re
import resource
import signal
import struct
import sys
import time
import zipfile
import zlib
from pathlib import Path

import docx
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

from agent.models.anthropic import AnthropicModel
from agent.models.base import MAX_IMAGE_BYTES, TextPart, ToolResult
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from gateway.core.clock import SystemClock
from gateway.core.events import Attachment
from gateway.core.media_types import (
    EXTRACT_PROGRAM,
    ExtractionError,
    TranscriptionError,
    describe_attachment,
    extract_text,
    identify_image,
    sound_suffix,
    transcribe,
)
from gateway.core.process import run_program
from gateway.core.tool_spec import Image
from gateway.stream.media import MediaStore
from reverie.testing.gateway import Gateway, running
from reverie.testing.servers.model_api import ModelApi
from reverie.testing.waiting import until
from tests.kits.scaling import assert_in_proportion
from tests.kits.settings import live_settings


def png(width: int = 2, height: int = 1, extra: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height)))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", rows)
        + chunk(b"tEXt", extra)
        + chunk(b"IEND", b"")
    )


def seeing(script: Script | None = None) -> ScriptedModel:
    return ScriptedModel(script, clock=SystemClock(), takes_images=True)


def shown(gateway: Gateway, number: int = -1) -> list[Image]:
    """Return every image of a request."""
    request = gateway.scripted.requests[number]
    return [part for said in request.conversation for part in said.parts if isinstance(part, Image)]


def heard(gateway: Gateway, number: int = -1) -> str:
    parts = gateway.scripted.requests[number].conversation[-1].parts
    return "".join(part.text for part in parts if isinstance(part, TextPart))


async def test_an_image_reaches_a_model_that_sees_now_and_in_later_prompts(tmp_path: Path) -> None:
    async with running(tmp_path, seeing()) as gateway:
        photo = gateway.console.add_attachment(
            png(64, 48), "image", name="../../etc/my photo].jpg", content_type="text/html"
        )
        await gateway.console.receive_message("look", sender="ann", attachments=(photo,))
        await gateway.screen.until(1)
        assert heard(gateway).endswith(
            f"ann (guest): look [image my photo .jpg, 64x48, {len(png(64, 48))} bytes]"
        )
        (image,) = shown(gateway)
        assert (image.media_type, image.data) == ("image/png", png(64, 48))
        await gateway.console.receive_message("and?", sender="ann")
        await gateway.screen.until(2)
    first, second = gateway.scripted.requests
    assert second.conversation[: len(first.conversation)] == first.conversation
    async with running(tmp_path, seeing()) as again:
        await again.console.receive_message("still?", sender="ann")
        await again.screen.until(1)
        (third,) = again.scripted.requests
    assert (
        third.conversation[: len(second.conversation)] == second.conversation
    )  # also over a restart
    (kept,) = (tmp_path / "media").iterdir()
    turn = (await again.turns())[0]
    assert kept.name == turn.media[0].sha256
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
    async with running(tmp_path, seeing()) as blind:
        await blind.console.receive_message("gone?", sender="ann")
        await blind.screen.until(1)
        assert not shown(blind)
        assert "[image my photo" in str(blind.scripted.requests[0].conversation[0].parts)


async def test_a_model_that_does_not_see_reads_a_line(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        attached = (
            gateway.console.add_attachment(png(), "image"),
            gateway.console.add_attachment(b"x" * 1_200_000, "file", name="song.mid"),
            gateway.console.add_attachment(b"OggS", "audio", duration_s=12.2),
        )
        await gateway.console.receive_message("", sender="ann", attachments=attached)
        await gateway.screen.until(1)
        line = f"[image, {len(png())} bytes] [file song.mid, 1.2 MB] [voice note, 12 s]"
        assert heard(gateway).endswith(f"ann (guest): {line}")
    assert not (tmp_path / "media").exists()  # nothing was fetched


def word_file(*paragraphs: str) -> bytes:
    document, file = docx.Document(), io.BytesIO()
    document.core_properties.title = "Plan"
    for one in paragraphs:
        document.add_paragraph(one)
    document.add_table(1, 2).cell(0, 1).text = "a\ncell"
    document.save(file)
    return file.getvalue()


def workbook() -> bytes:
    book, file = openpyxl.Workbook(), io.BytesIO()
    book.create_sheet("Sums").append(["name", 3, None, "x"])
    book.save(file)
    return file.getvalue()


def pdf(*pages: str, password: str = "") -> bytes:
    """Return a PDF with one line on each page."""
    writer, file = PdfWriter(), io.BytesIO()
    for line in pages:
        page = writer.add_blank_page(200, 200)
        stream = StreamObject()
        stream.set_data(f"BT /F1 12 Tf 10 100 Td ({line}) Tj ET".encode())
        font = DictionaryObject(
            {NameObject("/" + key): NameObject("/" + value) for key, value in FONT.items()}
        )
        page[NameObject("/Contents")] = writer._add_object(stream)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(file)
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
        await gateway.console.receive_message("read these", sender="ann", attachments=tuple(files))
        await gateway.screen.until(1)
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
        await gateway.console.receive_message("and?", sender="ann")
        await gateway.screen.until(2)
    first, second = gateway.scripted.requests
    assert second.conversation[: len(first.conversation)] == first.conversation
    async with running(tmp_path, seeing(), media={"pdf_pages": 0}) as again:
        await again.console.receive_message("still?", sender="ann")
        await again.screen.until(1)
        (third,) = again.scripted.requests
        assert third.conversation[: len(second.conversation)] == second.conversation
        new = again.console.add_attachment(
            pdf("Other"), "file", name="new.pdf", content_type="application/pdf"
        )
        await again.console.receive_message("by default?", sender="ann", attachments=(new,))
        await again.screen.until(2)
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
            for number, data in enumerate((good, bad)):
                file = gateway.console.add_attachment(
                    data, "file", name="a.pdf", content_type="application/pdf"
                )
                await gateway.console.receive_message("read", sender="ann", attachments=(file,))
                await gateway.screen.until(number + 1)
    assert [str(one.body["messages"]).count("'document'") for one in api.seen] == [1, 2, 1]
    assert [turn.outcome for turn in await gateway.turns()] == ["replied", "replied"]


FONT = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica"}


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a,b\r\n1,2", "a,b\n1,2"),
        ("Grüße".encode("cp1252"), "Grüße"),
        (b"<!doctype html><title>T</title><p>Seen<p hidden>Not", "Seen"),
        (word_file("First", "Second"), "First\nSecond\n\ta cell"),
        (workbook(), "[sheet Sheet]\n[sheet Sums]\nname\t3\t\tx"),
        (pdf("Hello", "World"), "[page 1]\nHello\n[page 2]\nWorld"),
        (pdf("Hello", password="x"), "locked with a password"),
        (b"%PDF-1.7 nothing else", "a broken PDF"),
        (b"PK\x03\x04 nothing else", "a broken archive"),
        (zipped(a_txt=b"x"), "an archive"),
        (zipped(word__document_xml=b" " * 200_000_001), "too large to be unpacked"),
        (zipped(word__document_xml=b"<a/>"), "broken, or too much to be read"),
        (bytes(100), "no text"),
    ],
)
async def test_documents_are_known_by_their_bytes(data: bytes, text: str) -> None:
    try:
        found = (await extract_text(data)).text
    except ExtractionError as error:
        found = str(error)
    assert found == text


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
        await gateway.console.receive_message("what is wrong?", sender="ann", attachments=attached)
        await gateway.screen.until(1)
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
        await again.console.receive_message("and line seven hundred?", sender="ann")
        await again.screen.until(1)
        (result,) = [
            part
            for part in again.scripted.requests[-1].conversation[-1].parts
            if isinstance(part, ToolResult)
        ]
    assert "line 700 of <<<it\nline 701 of" in result.text
    assert "line 699" not in result.text
    assert "<<<untrusted" in result.text


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"<svg>not what it says</svg>", "of a kind that cannot be shown]"),
        (png() + b"\0" * MAX_IMAGE_BYTES, "too large to be fetched]"),
        (png(9_000, 1), "9000x1, 9 KB, too large to be shown]"),
        (None, "could not be fetched]"),
    ],
)
async def test_what_cannot_be_shown_says_why(tmp_path: Path, data: bytes | None, told: str) -> None:
    async with running(tmp_path, seeing()) as gateway:
        photo = gateway.console.add_attachment(
            data or png(), "image", name="x.png", content_type="image/png"
        )
        if data is None:
            photo = Attachment(id="elsewhere", form="image")
        await gateway.console.receive_message("look", sender="ann", attachments=(photo,))
        await gateway.screen.until(1)
        assert told.rsplit(" KB, ", maxsplit=1)[-1] in heard(gateway)
        assert not shown(gateway)
    (turn,) = await gateway.turns()
    assert turn.outcome == "replied"


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
        await gateway.console.receive_message("", sender="ann", attachments=(note,))
        await gateway.screen.until(1)
        assert heard(gateway).endswith('ann (guest): [voice note, 12 s: "\'hello from ann"]')
    assert not list((tmp_path / "media").iterdir())  # nothing is left of it


def test_what_does_not_fit_on_the_disk_leaves_no_half_file(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    before, old = (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, old[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            MediaStore(live_settings(), folder, {}, SystemClock())._save(bytes(5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("marker", [b"\xff", b"\xff\xd0", b"\xff\xe0\0\2"])
def test_a_picture_of_nothing_but_markers_takes_no_time(marker: bytes) -> None:
    def identify(size: int) -> None:
        assert identify_image(b"\xff\xd8\xff" + marker * (size // len(marker))) == (
            "image/jpeg",
            0,
            0,
        )

    assert_in_proportion(identify, MAX_IMAGE_BYTES // 16, times=16, at_most=8)


async def test_a_command_that_fails_is_told_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, media={"transcribe": script(tmp_path, "sys.exit(3)")}) as gateway:
        await gateway.console.receive_message(
            "?", sender="ann", attachments=(gateway.console.add_attachment(b"x", "audio"),)
        )
        await gateway.screen.until(1)
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(640, 480), ("image/png", 640, 480)),
        (b"GIF89a" + struct.pack("<HH", 3, 5), ("image/gif", 3, 5)),
        (
            b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc4\x00\x02\xff\xc2\x00\x11\x08"
            + struct.pack(">HH", 48, 64)
            + b"\3",
            ("image/jpeg", 64, 48),
        ),
        (b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x0f\x00\x00\x07\x00\x00", ("image/webp", 16, 8)),
        (
            b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 9 | 4 << 14),
            ("image/webp", 10, 5),
        ),
        (b"RIFF\0\0\0\0WEBPVP8 " + b"\0" * 10 + struct.pack("<HH", 30, 20), ("image/webp", 30, 20)),
        (b"\xff\xd8\xff", ("image/jpeg", 0, 0)),
        (b"<svg/>", None),
        (b"RIFF\0\0\0\0WAVE", None),
    ],
)
def test_a_picture_is_known_by_its_bytes(
    data: bytes, expected: tuple[str, int, int] | None
) -> None:
    assert identify_image(data) == expected


@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\xff\xd8\xff", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF0000WEBPVP8"]),
)
def test_no_bytes_break_the_sniffing(data: bytes, head: bytes) -> None:
    identify_image(head + data)
    assert sound_suffix(data).startswith(".")


@given(st.text(), st.text())
def test_nothing_from_outside_closes_a_description(name: str, words: str) -> None:
    told = describe_attachment(Attachment(id="x", form="file", name=name), words=words)
    assert told.startswith("[file")
    assert (told.count("["), told.count("]"), told[-1]) == (1, 1, "]")
    assert "/" not in told.partition(":")[0]
    assert told.isprintable()
    assert len(told) < 2_200


async def test_what_is_not_shown_any_more_is_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    old, new, foreign = folder / ("a" * 64), folder / ("b" * 64), folder / "notes.txt"
    for file in (old, new, foreign):
        file.write_bytes(b"x")
    for file in (old, foreign):
        os.utime(file, (1, 1))
    async with running(tmp_path):
        await until(lambda: not old.exists())
    assert new.exists()
    assert foreign.exists()
