"""Undoing what a server packed, without ever holding more than is wanted. Pure.

A few kilobytes can unpack to gigabytes (CWE-409), so the limit holds while it is unpacked, not afterwards.
"""

import zlib
from typing import Final

ACCEPTED_ENCODINGS: Final = "gzip, deflate"
"""For Accept-Encoding."""


class ContentDecodeError(Exception):
    """It is packed in a way that was not asked for, or is broken."""


class ContentDecoder:
    """The bytes of one body, at most `most` of them. Feed it until `full`."""

    def __init__(self, encoding: str, most: int) -> None:
        """`encoding`: the header Content-Encoding. Raises Unreadable."""
        self._encoding = encoding.strip().lower().removeprefix("x-")
        if self._encoding not in ("", "identity", "gzip", "deflate"):
            raise ContentDecodeError("packed in a way that was not asked for")
        self._max_bytes = most
        self._decompressor: zlib._Decompress | None = None
        self._body = bytearray()
        self.is_full = False
        """There was more."""

    @property
    def body(self) -> bytes:
        """All so far."""
        return bytes(self._body)

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises Unreadable."""
        if self._encoding in ("", "identity"):
            self._append(data)
            return
        while data and not self.is_full:
            data = self._inflate(data)

    def _inflate(self, data: bytes) -> bytes:
        """What is left of `data`: another member of the same gzip file (RFC 1952, 2.2)."""
        if self._decompressor is None:
            self._decompressor = zlib.decompressobj(self._window_bits(data))
        try:
            self._append(self._decompressor.decompress(data, self._max_bytes - len(self._body) + 1))
        except zlib.error:
            raise ContentDecodeError("packed, and broken") from None
        if not self._decompressor.eof:
            return b""
        left, self._decompressor = self._decompressor.unused_data, None
        return left if self._encoding == "gzip" and left.startswith(b"\x1f\x8b") else b""

    def _window_bits(self, data: bytes) -> int:
        """Deflate means zlib's format (RFC 9110, 8.4.1.2), but some servers send the bare one."""
        if self._encoding == "gzip":
            return 16 + zlib.MAX_WBITS
        return zlib.MAX_WBITS if data[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS

    def _append(self, data: bytes) -> None:
        left = self._max_bytes - len(self._body)
        self._body += data[:left]
        self.is_full = self.is_full or len(data) > left
