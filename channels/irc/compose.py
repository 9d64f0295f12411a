"""Text of a post as lines: their length, pages, multiline messages, reply tags; and the state of
the typing indicator.

Pure.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from channels.irc.render import RenderedLine, guard_command, render, split_line
from channels.irc.tls import parse_numbers
from channels.irc.wire import IrcLine, Isupport, add_tags, format_line
from channels.split import split_text
from gateway.core.i18n import _
from gateway.core.ratelimit import LruDict


class HostmaskTracker:
    """Our own `user@host` as others see it, learnt from echoes, JOIN, CHGHOST and 396."""

    def __init__(self) -> None:
        self._userhost = ""

    def feed(self, line: IrcLine, *, mine: bool) -> None:
        """Process a line; `mine`: we are its source."""
        if line.command == "396":  # RPL_VISIBLEHOST: the host, on some servers user@host
            host = line.param(1)
            self._userhost = host if "@" in host else self._userhost.partition("@")[0] + "@" + host
        elif mine and line.command == "CHGHOST":
            self._userhost = f"{line.param(0)}@{line.param(1)}"
        elif mine and line.source.user and line.source.host:
            self._userhost = line.source.userhost

    def max_body_bytes(self, target: str, nick_bytes: int, isupport: Isupport) -> int:
        """Return the text limit of a message to `target` after the server has put our mask in
        front.

        RFC 1459 section 2.3 counts the line as the receiver gets it. While the mask is unknown, its
        longest possible form counts.
        """
        user, at, host = self._userhost.partition("@")
        known_bytes = len(self._userhost.encode()) if user and at and host else 0
        userhost = known_bytes or 1 + isupport.user_bytes + 1 + isupport.host_bytes
        frame = (
            len(":! PRIVMSG  :\r\n")
            + nick_bytes
            + userhost
            + len(target.encode("utf-8", "replace"))
        )
        return max(isupport.line_bytes - frame, 64)


_MAX_SHORTER_LINES = 4
"""Lines that a page may be shorter, to end at a better place."""


def paginate(
    markdown: str, page_bytes: int, body_bytes: int, page_lines: int, more: str = "more"
) -> tuple[tuple[str, ...], ...]:
    """Return the pages of a text; one that fits a page with `body_bytes` is that page alone.

    Pages are cut for `page_bytes` (`worst_case_body_bytes`), which does not depend on our current
    nick: no text may be lost between two pages. `more`: the words that request the next page.
    """
    lines = render(markdown)
    (single_page,) = paginate_lines(lines, body_bytes, 0)
    pages = paginate_lines(lines, page_bytes, page_lines, more)
    return (single_page,) if len(pages) == 1 or len(single_page) <= page_lines + 1 else pages


def worst_case_body_bytes(nick: str, target: str) -> int:
    """Return the text limit of a message to `target` if the server shows the longest user and host
    with our nick.
    """
    return max(512 - len(f":{nick}!~@ PRIVMSG {target} :\r\n".encode()) - 10 - 63, 64)


def paginate_lines(
    lines: Sequence[RenderedLine], limit_bytes: int, page_lines: int, more: str = "more"
) -> tuple[tuple[str, ...], ...]:
    """Return the pages of `lines`, at least one, as lines of at most `limit_bytes`; together they
    are all of it.

    A page has at most `page_lines` lines (0: no limit), plus one that announces the next page. It
    ends at a blank line if there is one among its last lines, else at the end of a line; where
    there is a choice, neither the last nor the first line of a code block is alone on a page. A
    blank line where a page ends is left out.
    """
    bodies = [
        replace(
            line, text=piece, starts_line=index == 0, after_blank=line.after_blank and index == 0
        )
        for line in lines
        for index, piece in enumerate(split_line(line.text, limit_bytes))
    ]
    starts = [0]
    # A single remaining line stays: the announcement of a next page would take a line, too.
    while page_lines and len(bodies) - starts[-1] > page_lines + 1:
        end = _page_end(bodies, starts[-1], page_lines)
        starts.append(
            next(index for index in range(end, len(bodies)) if not bodies[index].is_blank)
        )
    pages = [
        bodies[start:end] for start, end in zip(starts, [*starts[1:], len(bodies)], strict=True)
    ]
    for page in pages:
        while page[-1].is_blank:
            del page[-1]
    note = _('(page {page} of {pages}; write "{more}")')
    notes = (
        note.format(page=number, pages=len(pages), more=more) for number in range(1, len(pages))
    )
    return tuple(
        tuple(body.text for body in page) + ((announcement,) if announcement else ())
        for page, announcement in itertools.zip_longest(pages, notes)
    )


def _page_end(bodies: Sequence[RenderedLine], start: int, page_lines: int) -> int:
    """Return the best end of the page from `start`: of equally good ones the last."""
    shortest = page_lines - min(_MAX_SHORTER_LINES, page_lines // 3)
    return max(
        range(start + shortest, start + page_lines + 1),
        key=lambda at: (_break_score(bodies, at), at),
    )


def _break_score(bodies: Sequence[RenderedLine], at: int) -> int:
    """Return how good a page break before `bodies[at]` is; higher is better."""
    if bodies[at].after_blank and not (bodies[at].is_code and bodies[at - 1].is_code):
        return 4
    if not (bodies[at].is_code and bodies[at - 1].is_code):
        return 3 if bodies[at].starts_line else 1
    lonely = (
        at < 2 or not bodies[at - 2].is_code or at + 1 == len(bodies) or not bodies[at + 1].is_code  # noqa: PLR2004 - two back
    )
    if lonely or not bodies[at].starts_line:
        return 0
    return 3 if bodies[at].is_blank else 2


TYPING_INTERVAL_S: Final = 3.0
_TYPING_EXPIRES_S: Final = 6.0
_MAX_TARGETS: Final = 256


class TypingState:
    """Targets where we are shown as writing; folded.

    https://ircv3.net/specs/client-tags/typing: sent at most every 3 s; after 6 s without news
    clients assume that we have stopped.
    """

    def __init__(self) -> None:
        self._sent_s = LruDict[str, float](_MAX_TARGETS)
        self.is_unsupported = False
        """The server has rejected the indicator."""

    def should_send(self, target: str, now_s: float, *, active: bool) -> bool:
        """Return whether sending it would change what clients show."""
        age_s = now_s - self._sent_s.get(target, float("-inf"))
        return not self.is_unsupported and (
            age_s >= TYPING_INTERVAL_S if active else age_s < _TYPING_EXPIRES_S
        )

    def mark_active(self, target: str, now_s: float) -> None:
        self._sent_s.put(target, now_s)

    def mark_stopped(self, target: str) -> None:
        """Record that the indicator was ended, by us or by a message."""
        self._sent_s.pop(target, None)


LOCAL_ID_PREFIX: Final = "local-"
"""Prefix of ids that we generated because the server has none: the server does not know these."""
LINE_BREAK: Final = "\u2028"
"""Separator of the lines of one body. Rendering leaves none in a text, and no other break becomes a
line."""


@dataclass(frozen=True, slots=True)
class MultilineLimits:
    """Limits of one multiline message (https://ircv3.net/specs/extensions/multiline)."""

    max_bytes: int
    """Text, plus one for each line break."""
    max_lines: int

    @classmethod
    def parse(cls, value: str) -> "MultilineLimits | None":
        """Parse the capability's value; None: it has no limits, so multiline messages are not
        used.
        """
        limits = parse_numbers(value)
        max_bytes = limits.get("max-bytes", 0)
        return cls(max_bytes, limits.get("max-lines") or max_bytes) if max_bytes else None

    def allows(self, pieces: Sequence[str]) -> bool:
        """Return whether these lines fit one message."""
        return (
            len(pieces) <= self.max_lines
            and sum(len(p.encode()) + 1 for p in pieces) <= self.max_bytes
        )


def pack_bodies(lines: Sequence[str], line_bytes: int, limits: MultilineLimits) -> tuple[str, ...]:
    """Return rendered lines as bodies that each fit one multiline message, with `LINE_BREAK`
    between their lines.
    """
    bodies: list[list[str]] = []
    sizes: list[str] = []
    for text in (piece for line in lines for piece in _split_oversized(line, line_bytes, limits)):
        pieces = _split_exactly(text, line_bytes)
        if bodies and limits.allows([*sizes, *pieces]):
            bodies[-1].append(text)
            sizes += pieces
        else:
            bodies.append([text])
            sizes = pieces
    return tuple(LINE_BREAK.join(body) for body in bodies)


def _split_oversized(line: str, line_bytes: int, limits: MultilineLimits) -> tuple[str, ...]:
    """Return the line; one too long even for a whole message is cut like any other."""
    return (
        (line,) if limits.allows(_split_exactly(line, line_bytes)) else split_line(line, line_bytes)
    )


def _split_exactly(line: str, line_bytes: int) -> list[str]:
    """Return pieces that give `line` when joined, cut after a space where there is one."""
    pieces, rest = [], line
    while len(rest.encode()) > line_bytes:
        head = rest.encode()[:line_bytes].decode("utf-8", "ignore")
        head = (head[: head.rfind(" ") + 1].lstrip(" ") and head[: head.rfind(" ") + 1]) or head
        while len(head) > 1 and guard_command(rest[len(head) :]) != rest[len(head) :]:
            head = head[:-1]  # a client without multiline messages sees the next piece as a line
        pieces.append(head)
        rest = rest[len(head) :]
    return [*pieces, rest]


def compose_messages(
    command: str, target: str, body: str, line_bytes: int, tags: Mapping[str, str]
) -> list[str]:
    """Return each line as a message of its own. Raises ValueError for an invalid target."""
    lines = [format_line(command, target, trailing=piece) for piece in split_body(body, line_bytes)]
    return [add_tags(raw, {} if number else tags) for number, raw in enumerate(lines)]


def retarget(raw: str, target: str, line_bytes: int) -> list[str]:
    """Return a message of ours for another nick; as several if its text is too long there."""
    head, colon, text = raw.partition(" :")
    tags, bare = (
        (head.split(" ", 1)[0] + " ", head.split(" ", 1)[1]) if head.startswith("@") else ("", head)
    )
    command, _, *middles = bare.split(" ")
    bare = format_line(command, target, *middles)
    if not colon:
        return [tags + bare]
    return [
        f"{'' if number else tags}{bare} :{piece}"
        for number, piece in enumerate(split_body(text, line_bytes))
    ]


def split_body(body: str, line_bytes: int) -> list[str]:
    """Return the texts of a body's lines. Usually one each: the limit may have shrunk since the
    post was split.
    """
    lines = [line for line in body.split(LINE_BREAK) if line.strip()]
    return [
        piece
        for line in lines
        for piece in (split_line(line, line_bytes) or split_text(line, line_bytes))
    ]


def compose_multiline(
    command: str,
    target: str,
    body: str,
    line_bytes: int,
    *,
    limits: MultilineLimits,
    reference: str,
    tags: Mapping[str, str],
) -> tuple[list[str], str] | None:
    """Return all lines as one message, and its text; None: there is one line, or they do not fit.

    Raises ValueError like `compose_messages`.
    """
    groups = [_split_exactly(line, line_bytes) for line in body.split(LINE_BREAK) if line.strip()]
    flat = [piece for group in groups for piece in group]
    if len(flat) < 2 or not limits.allows(flat):  # noqa: PLR2004 - one line needs no batch
        return None
    lines = [add_tags(format_line("BATCH", f"+{reference}", "draft/multiline", target), tags)]
    for group in groups:
        for number, piece in enumerate(group):
            concat = {"draft/multiline-concat": ""} if number else {}
            lines.append(
                add_tags(
                    format_line(command, target, trailing=piece), {"batch": reference} | concat
                )
            )
    return [*lines, format_line("BATCH", f"-{reference}")], "\n".join(map("".join, groups))


def reply_tags(reply_to: str | None, caps: set[str], isupport: Isupport) -> dict[str, str]:
    """Return the tags of a reply: https://ircv3.net/specs/client-tags/reply.

    For older clients also under the draft's name.
    """
    if not reply_to or reply_to.startswith(LOCAL_ID_PREFIX) or "message-tags" not in caps:
        return {}
    return {f"+{name}": reply_to for name in ("reply", "draft/reply") if isupport.relays_tag(name)}
