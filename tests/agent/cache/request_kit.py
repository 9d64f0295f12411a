"""Requests for the tests of the cache plan: as segments, and as bodies for `tests/servers/messages_cache.py`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from agent.cache.plan import CachePlan, CachePolicy, PromptSegment, plan_cache
from agent.cache.prices import Price
from agent.cache.state import ROOT_DIGEST, CachedPrefix, CacheState, GapOdds, extend_digest
from tests.servers.messages_cache import MessagesCache, Ticket

PRICE = Price(input_usd=2, output_usd=10, minimum_tokens=512)
SHARED = ("tools", "identity", "skills")


class Part(NamedTuple):
    name: str
    bytes_: str
    tokens: int
    positions: int = 1
    markable: bool = True


def units(parts: Sequence[Part]) -> list[PromptSegment]:
    made: list[PromptSegment] = []
    digest, said = ROOT_DIGEST, 0
    for number, part in enumerate(parts):
        digest = extend_digest(digest, part.bytes_.encode())
        history = part.name == "history"
        made.append(
            PromptSegment(
                name=part.name,
                behind="said" if history else "block",
                number=said if history else number,
                tokens=part.tokens,
                digest=digest,
                positions=part.positions,
                is_shared=part.name in SHARED,
                takes_breakpoint=part.markable,
            )
        )
        said += history
    return made


def tokens(words: str) -> int:
    return int(words.rsplit("|", 1)[1])


def body(parts: Sequence[Part], planned: CachePlan) -> dict[str, Any]:
    """Each part is as many content blocks as it has positions; the mark is on the last."""
    marks = {(mark.behind, mark.index): mark.lifetime for mark in planned.breakpoints}
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for unit, part in zip(units(parts), parts, strict=True):
        sizes = [part.tokens // part.positions] * (part.positions - 1)
        sizes.append(part.tokens - sum(sizes))
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": f"{part.bytes_} {i}|{size}"} for i, size in enumerate(sizes)
        ]
        if (lifetime := marks.pop((unit.behind, unit.number), None)) is not None:
            blocks[-1]["cache_control"] = {"type": "ephemeral", "ttl": lifetime}
        if unit.behind == "said":
            messages.append({"role": "assistant" if unit.number % 2 else "user", "content": blocks})
        else:
            system += blocks
    assert not marks
    return {"model": "claude-sonnet-5-5", "system": system, "messages": messages}


def odds(short: float, middle: float, *, remaining: float = 20.0) -> GapOdds:
    """The same after every gap, as if ten had been seen by a prefix of five times what a request adds."""
    share = (short, middle, 1.0 - short - middle)
    return GapOdds(
        next_gap=share,
        rows=(share, share, share),
        remaining_requests=remaining,
        gap_counts=(10 * share[0], 10 * share[1], 10 * share[2]),
        kept=50 * middle,
        written=10 * (short + middle) + 50 * share[2],
    )


def make(
    parts: Sequence[Part], *, own: GapOdds, shared: GapOdds | None = None, cached: Sequence[CachedPrefix] = ()
) -> CachePlan:
    return plan_cache(
        units(parts),
        price=PRICE,
        policy=CachePolicy(),
        shared=own if shared is None else shared,
        own=own,
        cached=cached,
    )


def ask(judge: MessagesCache, warmth: CacheState, parts: Sequence[Part], planned: CachePlan, *, at_s: float) -> Ticket:
    """Send a planned request, and believe what was predicted."""
    ticket = judge.begin(body(parts, planned), at_s=at_s)
    judge.began(ticket)
    path = [unit.digest for unit in units(parts)]
    warmth.record_request(path, read=planned.read_segments, writes=planned.writes, at_s=at_s)
    return ticket
