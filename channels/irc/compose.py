"""One part of a post as the lines that carry it. Pure.

Where the server takes messages of several lines (https://ircv3.net/specs/extensions/multiline), lines that belong
together go as one; elsewhere each is a message of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from channels.irc.isupport import Isupport
from channels.irc.render import cut
from channels.irc.wire import line, tagged
from channels.split import split

LOCAL: Final = "local-"
"""How ids begin that we made ourselves, because the server has none: it cannot be asked about these."""
LINE_BREAK: Final = "\u2028"
"""Between the lines of one body. Rendering leaves none in a text, and no other break becomes a line."""
_LONGEST_DIGITS = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one multiline message."""

    max_bytes: int
    """Text, with one for each line break."""
    max_lines: int

    @classmethod
    def parse(cls, value: str) -> "Limits | None":
        """Of the capability's value; None: it does not say what is allowed, so nothing is."""
        keys = dict(item.partition("=")[::2] for item in value.split(","))
        most_bytes, most_lines = _number(keys.get("max-bytes", "")), _number(keys.get("max-lines", ""))
        return cls(most_bytes, most_lines or most_bytes) if most_bytes else None

    def allows(self, pieces: Sequence[str]) -> bool:
        """Whether these lines fit one message."""
        return len(pieces) <= self.max_lines and sum(len(p.encode()) + 1 for p in pieces) <= self.max_bytes


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_DIGITS else 0


def gathered(lines: Sequence[str], line_bytes: int, limits: Limits) -> tuple[str, ...]:
    """Rendered lines as bodies that each fit one multiline message, their lines parted by `LINE_BREAK`."""
    bodies: list[list[str]] = []
    sizes: list[str] = []
    for shown in (piece for one in lines for piece in _fitting(one, line_bytes, limits)):
        pieces = _exactly(shown, line_bytes)
        if bodies and limits.allows([*sizes, *pieces]):
            bodies[-1].append(shown)
            sizes += pieces
        else:
            bodies.append([shown])
            sizes = pieces
    return tuple(LINE_BREAK.join(body) for body in bodies)


def _fitting(shown: str, line_bytes: int, limits: Limits) -> tuple[str, ...]:
    """A line too long even for a whole message is cut as everywhere else."""
    return (shown,) if limits.allows(_exactly(shown, line_bytes)) else cut(shown, line_bytes)


def _exactly(shown: str, line_bytes: int) -> list[str]:
    """Pieces that are `shown` when put together again, cut behind a space where there is one."""
    pieces, rest = [], shown
    while len(rest.encode()) > line_bytes:
        head = rest.encode()[:line_bytes].decode("utf-8", "ignore")
        head = (head[: head.rfind(" ") + 1].lstrip(" ") and head[: head.rfind(" ") + 1]) or head
        pieces.append(head)
        rest = rest[len(head) :]
    return [*pieces, rest]


@dataclass(frozen=True, slots=True)
class Said:
    """Lines to send; `whole` is the text of the multiline message that they are, or empty."""

    lines: list[str]
    multiline_text: str = ""


def singly(command: str, target: str, body: str, line_bytes: int, tags: dict[str, str]) -> Said:
    """Each line as a message of its own. Raises ValueError for a target that is none."""
    lines = [line(command, target, trailing=piece) for piece in pieces(body, line_bytes)]
    return Said([tagged(raw, {} if number else tags) for number, raw in enumerate(lines)])


def pieces(body: str, line_bytes: int) -> list[str]:
    """The texts of its lines. Usually one each: the room for text may have shrunk since the post was split."""
    shown = [one for one in body.split(LINE_BREAK) if one.strip()]
    return [piece for one in shown for piece in (cut(one, line_bytes) or split(one, line_bytes))]


def together(
    command: str, target: str, body: str, line_bytes: int, *, limits: Limits, reference: str, tags: dict[str, str]
) -> Said | None:
    """All lines as one message; None: they are one line, or do not fit. Raises ValueError like `singly`."""
    groups = [_exactly(one, line_bytes) for one in body.split(LINE_BREAK) if one.strip()]
    flat = [piece for group in groups for piece in group]
    if len(flat) < 2 or not limits.allows(flat):  # noqa: PLR2004 - one line needs no batch
        return None
    lines = [tagged(line("BATCH", f"+{reference}", "draft/multiline", target), tags)]
    for group in groups:
        for number, piece in enumerate(group):
            concat = {"draft/multiline-concat": ""} if number else {}
            lines.append(tagged(line(command, target, trailing=piece), {"batch": reference} | concat))
    return Said([*lines, line("BATCH", f"-{reference}")], "\n".join("".join(group) for group in groups))


def reply_tags(reply_to: str | None, caps: set[str], isupport: Isupport) -> dict[str, str]:
    """How a reply is marked: https://ircv3.net/specs/client-tags/reply, for older clients also as the draft had it."""
    if not reply_to or reply_to.startswith(LOCAL) or "message-tags" not in caps:
        return {}
    return {f"+{name}": reply_to for name in ("reply", "draft/reply") if isupport.relays_tag(name)}
