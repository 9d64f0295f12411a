"""Write the table of characters that look alike again, from the system's ICU: `python -m
tests.checks.confusables`.

ICU has the table of Unicode Technical Standard 39 (confusables.txt), and tells what it makes of
each character. Kept is what it makes of characters that are their own canonical decomposition and
are seen: the others follow from these.
"""

import ctypes.util
import gzip
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parents[2] / "gateway" / "core" / "confusables.gz"
_ROOM = 400
"""Bytes; the longest of all is 66."""


def _skeletons() -> Iterator[tuple[str, str]]:
    found = ctypes.util.find_library("icui18n")
    version = re.search(r"\.so\.(\d+)", found or "")
    if found is None or version is None:
        raise SystemExit("ICU is not installed (Debian: libicu72)")
    icu, suffix, status = ctypes.CDLL(found), version[1], ctypes.c_int(0)
    opened, told = (
        getattr(icu, f"uspoof_open_{suffix}"),
        getattr(icu, f"uspoof_getSkeletonUTF8_{suffix}"),
    )
    opened.restype = ctypes.c_void_p
    checker = ctypes.c_void_p(opened(ctypes.byref(status)))
    room = ctypes.create_string_buffer(_ROOM)
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if (
            unicodedata.category(char) in ("Cs", "Cn", "Co", "Cf")
            or unicodedata.normalize("NFD", char) != char
        ):
            continue
        raw = char.encode()
        size = told(checker, 0, raw, len(raw), room, _ROOM, ctypes.byref(status))
        if status.value > 0 or size > _ROOM:
            raise SystemExit(f"ICU fails at U+{code:04X}: {status.value}")
        if (skeleton := room.raw[:size].decode()) != char and "\n" not in skeleton:
            yield char, skeleton


if __name__ == "__main__":
    table = "\n".join(char + skeleton for char, skeleton in _skeletons())
    FILE.write_bytes(gzip.compress(table.encode(), 9, mtime=0))
    print(f"{FILE}: {table.count(chr(10)) + 1} characters, {FILE.stat().st_size} bytes")
