"""Media that people send, and what a model was shown and told of them."""

import io
import struct
import zlib

from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

from agent.models.base import TextPart
from agent.models.scripted import Script, ScriptedModel
from gateway.core.clock import SystemClock
from gateway.core.tool_spec import Image
from reverie.testing.gateway import Gateway


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
    request = gateway.scripted.requests[number]
    return [part for said in request.conversation for part in said.parts if isinstance(part, Image)]


def heard(gateway: Gateway, number: int = -1) -> str:
    parts = gateway.scripted.requests[number].conversation[-1].parts
    return "".join(part.text for part in parts if isinstance(part, TextPart))


FONT = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica"}


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
