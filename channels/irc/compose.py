"""One part of a post as the lines that carry it. Pure.

Where the server takes messages of several lines (https://ircv3.net/specs/extensions/multiline), lines that belong
together go as one; elsewhere each is a message of its own.

A long text in pages, as people on IRC expect it: a screenful, and "more" for the rest. Pure.

How long our lines may be: what the server puts in front of them for others. Pure.

When to show that an answer is being written: https://ircv3.net/specs/client-tags/typing. Pure.

Not more often than every 3 s; after 6 s without news others take it that we have stopped.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from channels.irc.render import RenderedLine, render, split_line
from channels.irc.wire import IrcLine, Isupport, add_tags, format_line
from channels.split import split_text


class HostmaskTracker:
    """Our own `user@host` as others see it, learnt from echoes, JOIN, CHGHOST and 396."""

    def __init__(self) -> None:
        self._userhost = ""

    def feed(self, said: IrcLine, *, mine: bool) -> None:
        """Take in a line; `mine`: we are its source."""
        if said.command == "396":  # RPL_VISIBLEHOST: the host, on some servers user@host
            shown = said.param(1)
            self._userhost = shown if "@" in shown else self._userhost.partition("@")[0] + "@" + shown
        elif mine and said.command == "CHGHOST":
            self._userhost = f"{said.param(0)}@{said.param(1)}"
        elif mine and said.source.user and said.source.host:
            self._userhost = f"{said.source.user}@{said.source.host}"

    def max_body_bytes(self, target: str, nick_bytes: int, isupport: Isupport) -> int:
        """How much text fits a message to `target` once the server has put our mask in front.

        RFC 1459 section 2.3 counts the line as the receiver gets it. While the mask is unknown, the
        longest that it can be.
        """
        user, at, host = self._userhost.partition("@")
        known = len(self._userhost.encode()) if user and at and host else 0
        userhost = known or 1 + isupport.user_bytes + 1 + isupport.host_bytes
        frame = len(":! PRIVMSG  :\r\n") + nick_bytes + userhost + len(target.encode("utf-8", "replace"))
        return max(isupport.line_bytes - frame, 64)


_MAX_SHORTER_LINES = 4
"""Lines that a page may be shorter, so that it ends in a better place."""


@dataclass(frozen=True, slots=True)
class _PageLine:
    """What is sent as one message."""

    text: str
    is_code: bool
    starts_line: bool
    """A line begins here; False: it goes on."""
    after_blank: bool


def paginate(
    markdown: str, surely_bytes: int, body_bytes: int, page_lines: int, more: str = "more"
) -> tuple[tuple[str, ...], ...]:
    """The pages of a text; of one that fits a page in the room that there is, `body_bytes`, the only one.

    Pages are cut for `worst_case_body_bytes`, which does not depend on what we are called at the moment: nothing may
    slip between two of them. `more`: the words that bring the next one.
    """
    lines = render(markdown)
    (whole,) = paginate_lines(lines, body_bytes, 0)
    pages = paginate_lines(lines, surely_bytes, page_lines, more)
    return (whole,) if len(pages) == 1 or len(whole) <= page_lines + 1 else pages


def worst_case_body_bytes(nick: str, target: str) -> int:
    """Room for text in one message to `target` if the server shows the longest user and host with our nick."""
    return max(512 - len(f":{nick}!~@ PRIVMSG {target} :\r\n".encode()) - 10 - 63, 64)


def paginate_lines(
    lines: Sequence[RenderedLine], limit_bytes: int, page_lines: int, more: str = "more"
) -> tuple[tuple[str, ...], ...]:
    """The pages of `lines`, at least one, as messages of at most `limit_bytes`; together they are all of it.

    A page has at most `page_lines` messages (0: no limit), and one more that says that there are others. A
    page ends at a blank line if there is one among its last lines, else at the end of a line; where there is a choice,
    the last line of a block of code is not alone on the next page, nor its first alone on this one.
    """
    bodies = [
        _PageLine(piece, line.is_code, index == 0, line.after_blank and index == 0)
        for line in lines
        for index, piece in enumerate(split_line(line.text, limit_bytes))
    ]
    starts = [0]
    # One line left over stays: to say that there is more takes a line, too.
    while page_lines and len(bodies) - starts[-1] > page_lines + 1:
        starts.append(_page_end(bodies, starts[-1], page_lines))
    pages = [bodies[start:end] for start, end in zip(starts, [*starts[1:], len(bodies)], strict=True)]
    notes = (f'(page {number} of {len(pages)}; say "{more}")' for number in range(1, len(pages)))
    return tuple(
        tuple(body.text for body in page) + ((note,) if note else ())
        for page, note in itertools.zip_longest(pages, notes)
    )


def _page_end(bodies: Sequence[_PageLine], start: int, page_lines: int) -> int:
    """Where the page from `start` ends best: of equal places the last."""
    shortest = page_lines - min(_MAX_SHORTER_LINES, page_lines // 3)
    return max(range(start + shortest, start + page_lines + 1), key=lambda at: (_break_score(bodies, at), at))


def _break_score(bodies: Sequence[_PageLine], at: int) -> int:
    """How good it is to break before `bodies[at]`."""
    if bodies[at].after_blank and not (bodies[at].is_code and bodies[at - 1].is_code):
        return 4
    if not (bodies[at].is_code and bodies[at - 1].is_code):
        return 3 if bodies[at].starts_line else 1
    lonely = at < 2 or not bodies[at - 2].is_code or at + 1 == len(bodies) or not bodies[at + 1].is_code  # noqa: PLR2004 - two back
    return 0 if lonely or not bodies[at].starts_line else 2


TYPING_INTERVAL_S: Final = 3.0
_TYPING_EXPIRES_S: Final = 6.0
_MAX_TARGETS: Final = 256


class TypingState:
    """Where we are shown as writing. Targets are folded."""

    def __init__(self) -> None:
        self._sent_s: dict[str, float] = {}
        self.is_unsupported = False
        """The server has said that it knows no such thing."""

    def should_send(self, target: str, now_s: float, *, active: bool) -> bool:
        """Whether telling it would be news."""
        if self.is_unsupported:
            return False
        age_s = now_s - self._sent_s.get(target, float("-inf"))
        return age_s >= TYPING_INTERVAL_S if active else age_s < _TYPING_EXPIRES_S

    def mark_sent(self, target: str, now_s: float, *, active: bool) -> None:
        """It was told."""
        self._sent_s.pop(target, None)
        if active:
            self._sent_s[target] = now_s
            if len(self._sent_s) > _MAX_TARGETS:
                del self._sent_s[next(iter(self._sent_s))]

    def mark_stopped(self, target: str) -> None:
        """A message says that we have stopped, too."""
        self._sent_s.pop(target, None)


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
