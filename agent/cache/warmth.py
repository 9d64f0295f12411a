"""What is believed to be in a provider's cache, from what was sent. Pure: times are handed in.

A provider keeps what stood in front of a mark, as a segment behind the cached place before it, for as long as
was paid. A place can be read while its own segment and all in front of it live. Each use begins their lifetimes
anew, at the start of the request, and makes none longer. Where the documentation
(platform.claude.com/docs/en/build-with-claude/prompt-caching) is silent this believes the worse.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from gateway.events import CacheTtl

LIFETIME_S: dict[CacheTtl, float] = {"5m": 300.0, "1h": 3_600.0}

Digest = bytes
"""Names all bytes of a request up to a place."""

ROOT_DIGEST: Digest = b""
"""In front of everything."""


def extend_digest(before: Digest, piece: bytes) -> Digest:
    """Name what `before` names with `piece` behind it."""
    return blake2b(piece, digest_size=16, key=before).digest()


class _CacheSegment(NamedTuple):
    behind: Digest | None
    """The place that it was written behind; None: it begins the request."""
    lifetime: CacheTtl
    expires_s: float


class CachedPrefix(NamedTuple):
    """A place in a request up to which it is believed to be cached."""

    segment: int
    """The one that ends there, by its number in the request."""
    lifetime: CacheTtl
    """Of the segment that ends there."""


class CachedUntil(NamedTuple):
    """The same, and for how long."""

    prefix: CachedPrefix
    expires_s: float


class CacheState:
    """The beliefs about one cache: one provider, one model."""

    def __init__(self, *, kept: int = 8_192) -> None:
        """`kept`: places remembered, the last used ones."""
        self._capacity = kept
        self._segments: dict[Digest, _CacheSegment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, path: Sequence[Digest], at_s: float) -> tuple[CachedPrefix, ...]:
        """Return the places of a request that could be read at this time, in its order."""
        return tuple([one.prefix for one in self.find_with_expiry(path, at_s)])

    def find_with_expiry(self, path: Sequence[Digest], at_s: float) -> tuple[CachedUntil, ...]:
        """Return the same, each with when it can be read no more unless it is used until then."""
        ends: dict[Digest | None, float] = {None: inf}
        found: list[CachedUntil] = []
        for index, digest in enumerate(path):
            segment = self._segments.get(digest)
            if segment is not None and at_s < segment.expires_s and segment.behind in ends:
                ends[digest] = until_s = min(segment.expires_s, ends[segment.behind])
                found.append(CachedUntil(CachedPrefix(index, segment.lifetime), until_s))
        return tuple(found)

    def record_request(
        self, path: Sequence[Digest], *, read: int, writes: Iterable[tuple[int, CacheTtl]], at_s: float
    ) -> None:
        """Take in a request that was sent at `at_s` and has begun to be answered.

        It read its first `read` units and wrote up to these. One that was not answered wrote nothing.
        """
        behind = path[read - 1] if read else None
        self._touch(behind, at_s)
        for index, lifetime in writes:
            digest, until_s = path[index], at_s + LIFETIME_S[lifetime]
            old = self._segments.pop(digest, None)
            if old is not None and old.expires_s > until_s:
                self._segments[digest] = old  # somebody else wrote it meanwhile, for longer
            else:
                self._segments[digest] = _CacheSegment(behind, lifetime, until_s)
            behind = digest
        if len(self._segments) > self._capacity:
            self._trim(at_s)

    def forget(self, path: Iterable[Digest]) -> None:
        """These places were found not to be cached."""
        for digest in path:
            self._segments.pop(digest, None)

    def expires_s(self, path: Sequence[Digest], at_s: float) -> float | None:
        """When the longest cached beginning of a request will be gone; None: nothing of it is cached."""
        found = self.find_with_expiry(path, at_s)
        return found[-1].expires_s if found else None

    def _segment_chain(self, digest: Digest | None) -> list[tuple[Digest, _CacheSegment]]:
        found: list[tuple[Digest, _CacheSegment]] = []
        while digest is not None and (segment := self._segments.get(digest)) is not None:
            found.append((digest, segment))
            digest = segment.behind
        return found

    def _touch(self, digest: Digest | None, at_s: float) -> None:
        for place, segment in reversed(self._segment_chain(digest)):
            del self._segments[place]  # what is used moves to the end, so the front is what may go
            until_s = max(segment.expires_s, at_s + LIFETIME_S[segment.lifetime])
            self._segments[place] = segment._replace(expires_s=until_s)

    def _trim(self, at_s: float) -> None:
        alive = {digest: segment for digest, segment in self._segments.items() if at_s < segment.expires_s}
        excess = max(0, len(alive) - self._capacity * 3 // 4)
        self._segments = dict(list(alive.items())[excess:])
