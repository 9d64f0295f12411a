"""Server-sent events out of bytes, cut anywhere.

Obeys the event stream format of the WHATWG HTML standard, section 9.2.6
(https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation).
No IO: bytes in, events out.
"""

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Of one event: far above any answer (128k output tokens are under 1 MB), far below our memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SseEvent:
    """One event that carries data. Comments and events without data never become one."""

    name: str
    """The `event:` field; empty if there was none."""
    data: str
    """The `data:` lines joined with LF. Bytes that are no UTF-8 read as U+FFFD."""
    id: str = ""
    """The `id:` field of this event; empty if it has none of its own."""


class SseEventTooLarge(Exception):
    """One event passed `MAX_EVENT_BYTES`: the other side is not what we think it is."""


class SseParser:
    """Feed it what arrives; what is left unfinished at the end of the stream was cut off."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._size_bytes = 0
        self._after_cr = False
        self._first = True
        self._name = self._id = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events completed by `data`. Raises TooLarge."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        self._size_bytes += len(data)
        *ended, rest = _LINE_END.split(data)
        events = []
        for piece in ended:
            self._line.append(piece)
            event = self._process_line(b"".join(self._line))
            self._line.clear()
            if event is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
        if events:
            self._size_bytes = len(rest)
        if self._size_bytes > MAX_EVENT_BYTES:
            raise SseEventTooLarge
        return events

    def _process_line(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            event = SseEvent(name=self._name, data="\n".join(self._data), id=self._id) if self._data else None
            self._name, self._id, self._data = "", "", []
            return event
        field, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if field == b"data":
            self._data.append(text)
        elif field == b"event":
            self._name = text
        elif field == b"id":
            self._id = "" if "\0" in text else text
        elif not field and not self._data:
            self._size_bytes = 0  # a comment: keep-alives of a slow prompt must not add up to the limit
        return None
