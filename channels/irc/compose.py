"""One part of a post as the lines that carry it. Pure.

Where the server takes messages of several lines (https://ircv3.net/specs/extensions/multiline), lines that belong
together go as one; elsewhere each is a message of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from channels.irc.isupport import Isupport
from channels.irc.render import split_line
from channels.irc.wire import add_tags, format_line
from channels.split import split_text

LOCAL_ID_PREFIX: Final = "local-"
"""How ids begin that we made ourselves, because the server has none: it cannot be asked about these."""
LINE_BREAK: Final = "\u2028"
"""Between the lines of one body. Rendering leaves none in a text, and no other break becomes a line."""
_MAX_DIGITS = 7


@dataclass(frozen=True, slots=True)
class MultilineLimits:
    """Of one multiline message."""

    max_bytes: int
    """Text, with one for each line break."""
    max_lines: int

    @classmethod
    def parse(cls, value: str) -> "MultilineLimits | None":
        """Of the capability's value; None: it does not say what is allowed, so nothing is."""
        keys = dict(item.partition("=")[::2] for item in value.split(","))
        most_bytes, most_lines = _parse_number(keys.get("max-bytes", "")), _parse_number(keys.get("max-lines", ""))
        return cls(most_bytes, most_lines or most_bytes) if most_bytes else None

    def allows(self, pieces: Sequence[str]) -> bool:
        """Whether these lines fit one message."""
        return len(pieces) <= self.max_lines and sum(len(p.encode()) + 1 for p in pieces) <= self.max_bytes


def _parse_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def pack_bodies(lines: Sequence[str], line_bytes: int, limits: MultilineLimits) -> tuple[str, ...]:
    """Rendered lines as bodies that each fit one multiline message, their lines parted by `LINE_BREAK`."""
    bodies: list[list[str]] = []
    sizes: list[str] = []
    for shown in (piece for one in lines for piece in _split_oversized(one, line_bytes, limits)):
        pieces = _split_exactly(shown, line_bytes)
        if bodies and limits.allows([*sizes, *pieces]):
            bodies[-1].append(shown)
            sizes += pieces
        else:
            bodies.append([shown])
            sizes = pieces
    return tuple(LINE_BREAK.join(body) for body in bodies)


def _split_oversized(shown: str, line_bytes: int, limits: MultilineLimits) -> tuple[str, ...]:
    """A line too long even for a whole message is cut as everywhere else."""
    return (shown,) if limits.allows(_split_exactly(shown, line_bytes)) else split_line(shown, line_bytes)


def _split_exactly(shown: str, line_bytes: int) -> list[str]:
    """Pieces that are `shown` when put together again, cut behind a space where there is one."""
    pieces, rest = [], shown
    while len(rest.encode()) > line_bytes:
        head = rest.encode()[:line_bytes].decode("utf-8", "ignore")
        head = (head[: head.rfind(" ") + 1].lstrip(" ") and head[: head.rfind(" ") + 1]) or head
        pieces.append(head)
        rest = rest[len(head) :]
    return [*pieces, rest]


@dataclass(frozen=True, slots=True)
class ComposedLines:
    """Lines to send; `whole` is the text of the multiline message that they are, or empty."""

    lines: list[str]
    multiline_text: str = ""


def compose_messages(command: str, target: str, body: str, line_bytes: int, tags: dict[str, str]) -> ComposedLines:
    """Each line as a message of its own. Raises ValueError for a target that is none."""
    lines = [format_line(command, target, trailing=piece) for piece in split_body(body, line_bytes)]
    return ComposedLines([add_tags(raw, {} if number else tags) for number, raw in enumerate(lines)])


def split_body(body: str, line_bytes: int) -> list[str]:
    """The texts of its lines. Usually one each: the room for text may have shrunk since the post was split."""
    shown = [one for one in body.split(LINE_BREAK) if one.strip()]
    return [piece for one in shown for piece in (split_line(one, line_bytes) or split_text(one, line_bytes))]


def compose_multiline(
    command: str,
    target: str,
    body: str,
    line_bytes: int,
    *,
    limits: MultilineLimits,
    reference: str,
    tags: dict[str, str],
) -> ComposedLines | None:
    """All lines as one message; None: they are one line, or do not fit. Raises ValueError like `compose_messages`."""
    groups = [_split_exactly(one, line_bytes) for one in body.split(LINE_BREAK) if one.strip()]
    flat = [piece for group in groups for piece in group]
    if len(flat) < 2 or not limits.allows(flat):  # noqa: PLR2004 - one line needs no batch
        return None
    lines = [add_tags(format_line("BATCH", f"+{reference}", "draft/multiline", target), tags)]
    for group in groups:
        for number, piece in enumerate(group):
            concat = {"draft/multiline-concat": ""} if number else {}
            lines.append(add_tags(format_line(command, target, trailing=piece), {"batch": reference} | concat))
    return ComposedLines([*lines, format_line("BATCH", f"-{reference}")], "\n".join("".join(group) for group in groups))


def reply_tags(reply_to: str | None, caps: set[str], isupport: Isupport) -> dict[str, str]:
    """How a reply is marked: https://ircv3.net/specs/client-tags/reply, for older clients also as the draft had it."""
    if not reply_to or reply_to.startswith(LOCAL_ID_PREFIX) or "message-tags" not in caps:
        return {}
    return {f"+{name}": reply_to for name in ("reply", "draft/reply") if isupport.relays_tag(name)}
