"""A long text in pages, as people on IRC expect it: a screenful, and "more" for the rest. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from channels.irc.render import RenderedLine, render, split_line

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
