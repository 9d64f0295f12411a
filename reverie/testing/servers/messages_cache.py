"""The prompt cache of the Messages API. Pure: no sockets; times are handed in, as seconds of any
one clock.

    cache = MessagesCache(tokens)
    ticket = cache.begin(body, at_s=0.0)     # the request arrives: what it reads and what it pays to write
    cache.began(ticket)                      # its answer begins: what it wrote can be read from now on
    ticket.usage.cache_read_input_tokens

The rules (platform.claude.com/docs/en/build-with-claude/prompt-caching):

- Order: tools, system, messages. Each tool, system block and content block is a position. A prefix
  is its exact bytes; marks (`cache_control`) are no part of it, neither is how a text is written
  (string or one block).
- Only a marked position is written, if the prompt up to it has the model's minimum. A mark reads
  the longest live entry among its own position and the 19 before it.
- A = the longest hit, B = the last 1h mark behind it, C = the last mark: A is read, B-A written for
  1h, C-B for 5m.
- A lifetime counts from the start of the request, and anew with each use. Nothing can be read
  before the answer that writes it begins, so parallel cold requests all pay.
- `tool_choice`, images that come or go, `thinking` and effort cost the messages.
- Each workspace and model has a cache of its own.

Where the documentation is silent this errs to the caller's disadvantage: an entry is the segment
behind the cached position before it, kept for the lifetime that was paid; it can be read only while
every segment in front of it lives; reading never makes 1h of 5m; and nothing is written at a mark
in front of what was read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from reverie.testing.servers.messages_prompt import (
    Json,
    canonical,
    positions,
    profile,
    undated,
)

Tokens = Callable[[str], int]
"""How many tokens a text has. Pure; asked once for each distinct block behind the same prefix."""

LIFETIME_S = {"5m": 300.0, "1h": 3600.0}
LOOK_BACK = 20
"""Positions that a mark looks at, its own first."""
IMAGE_TOKENS = 1_600
"""About the most that one picture costs: width x height / 750, after it was made smaller
(build-with-claude/vision)."""


@dataclass(slots=True)
class _Segment:
    """What was written at a position: everything behind `behind`."""

    behind: "Prefix | None"
    lifetime: str
    used_s: float

    @property
    def until_s(self) -> float:
        return self.used_s + LIFETIME_S[self.lifetime]


@dataclass(slots=True, eq=False, repr=False)
class Prefix:
    """A prompt up to and including one position. The same bytes are the same object, as long as the
    cache lives.
    """

    parent: "Prefix | None"
    tokens: int
    """Of the whole prefix."""
    level: str
    """tools, system or messages."""
    _next: dict[object, "Prefix"] = field(default_factory=dict)
    _segment: _Segment | None = None


class Usage(NamedTuple):
    """What is billed for a prompt, in the API's own words."""

    input_tokens: int
    """Neither read nor written."""
    cache_read_input_tokens: int
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int

    @property
    def cache_creation_input_tokens(self) -> int:
        return self.ephemeral_5m_input_tokens + self.ephemeral_1h_input_tokens

    @property
    def total(self) -> int:
        return self.input_tokens + self.cache_read_input_tokens + self.cache_creation_input_tokens

    def wire(self, output_tokens: int = 0) -> Json:
        """Return it as the API writes it."""
        created = self._asdict()
        kinds = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
        return {
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": self.cache_creation_input_tokens,
            "cache_read_input_tokens": self.cache_read_input_tokens,
            "cache_creation": {kind: created[kind] for kind in kinds},
            "output_tokens": output_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One request in the cache's eyes."""

    at_s: float
    model: str
    usage: Usage
    path: tuple[Prefix, ...]
    """Its positions."""
    read: int
    """How many of these were read."""
    writes: tuple[tuple[int, Literal["5m", "1h"]], ...]
    """The positions (0 is the first) that it writes, ascending; each from the write or the read
    before it."""


class MessagesCache:
    """See the top of the file. Never refuses: a body that the API would not accept is for
    `model_api_rules` to find.
    """

    def __init__(self, tokens: Tokens, *, minimum: int | None = None) -> None:
        """`minimum`: in place of each model's own."""
        self.tokens = tokens
        self._minimum = minimum
        self._roots: dict[tuple[str, str], Prefix] = {}

    def begin(self, body: Json, *, at_s: float, workspace: str = "") -> Ticket:
        """Take a request in: a body that the API would accept. What it uses lives on from
        `at_s`.
        """
        path, marks = self._walk(body, workspace)
        read = 0
        for mark, _ in marks:
            for place in range(mark, max(-1, mark - LOOK_BACK), -1):
                if _alive(path[place], at_s):
                    _use(path[place], at_s)
                    read = max(read, place + 1)
                    break
        minimum = profile(body["model"]).minimum if self._minimum is None else self._minimum
        writes = [
            (mark, ttl) for mark, ttl in marks if mark >= read and path[mark].tokens >= minimum
        ]
        written = {"5m": 0, "1h": 0}
        reached = first = path[read - 1].tokens if read else 0
        for mark, ttl in writes:
            written[ttl] += path[mark].tokens - reached
            reached = path[mark].tokens
        total = path[-1].tokens if path else 0
        usage = Usage(total - reached, first, written["5m"], written["1h"])
        return Ticket(
            at_s=at_s,
            model=undated(body["model"]),
            usage=usage,
            path=path,
            read=read,
            writes=tuple(writes),
        )

    def began(self, ticket: Ticket) -> None:
        """Its answer has begun: what it wrote can be read from now on."""
        behind = ticket.path[ticket.read - 1] if ticket.read else None
        for place, ttl in ticket.writes:
            prefix = ticket.path[place]
            new = _Segment(behind, ttl, ticket.at_s)
            old = prefix._segment
            if old is None or not _alive(prefix, ticket.at_s) or old.until_s <= new.until_s:
                prefix._segment = new
            behind = prefix

    def count(self, body: Json, *, workspace: str = "") -> int:
        """Return how many tokens the prompt has."""
        path, _ = self._walk(body, workspace)
        return path[-1].tokens if path else 0

    def _walk(
        self, body: Json, workspace: str
    ) -> tuple[tuple[Prefix, ...], list[tuple[int, Literal["5m", "1h"]]]]:
        """Return the positions of a request and its marks in their order."""
        key = (workspace, undated(body["model"]))
        prefix = self._roots.get(key) or self._roots.setdefault(key, Prefix(None, 0, "tools"))
        path: list[Prefix] = []
        marks: list[tuple[int, Literal["5m", "1h"]]] = []
        for level, role, block in positions(body):
            if block is None:
                prefix = _step(prefix, ("", "", level, role), 0, level)
                continue
            text = block.get("text")
            if text is not None and len(block) == 2 + ("cache_control" in block):
                part: tuple[str, ...] = (role, text)
            else:
                part = (role, "", canonical(block))
            found = prefix._next.get(part)
            prefix = found or _step(prefix, part, self._weigh(block, part[-1]), level)
            if "cache_control" in block:
                marks.append((len(path), block["cache_control"].get("ttl", "5m")))
            path.append(prefix)
        return tuple(path), sorted(marks)

    def _weigh(self, block: Json, text: str) -> int:
        if block.get("type") == "image":
            return IMAGE_TOKENS
        return max(1, self.tokens(text))


def _step(prefix: Prefix, key: object, tokens: int, level: str) -> Prefix:
    found = prefix._next.get(key)
    if found is None:
        found = prefix._next[key] = Prefix(prefix, prefix.tokens + tokens, level)
    return found


def _chain(prefix: Prefix) -> Iterator[_Segment | None]:
    """Yield the segments that this entry rests on, its own first; None where one was never
    written.
    """
    at: Prefix | None = prefix
    while at is not None:
        yield at._segment
        at = at._segment.behind if at._segment else None


def _alive(prefix: Prefix, at_s: float) -> bool:
    if prefix._segment is None:
        return False
    return all(segment is not None and at_s < segment.until_s for segment in _chain(prefix))


def _use(prefix: Prefix, at_s: float) -> None:
    for segment in _chain(prefix):
        if segment is not None:
            segment.used_s = max(segment.used_s, at_s)
