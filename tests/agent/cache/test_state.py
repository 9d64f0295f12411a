"""Assumed content of a cache. `test_plan` compares it with the bills of a strict cache."""

from agent.cache.state import ROOT_DIGEST, CachedPrefix, CacheState, extend_digest

A = extend_digest(ROOT_DIGEST, b"a")
B = extend_digest(A, b"b")
C = extend_digest(B, b"c")
PATH = [A, B, C]


def test_a_place_has_its_bytes_and_all_in_front_of_it_for_a_name() -> None:
    assert extend_digest(ROOT_DIGEST, b"a") == A
    assert extend_digest(extend_digest(ROOT_DIGEST, b"ab"), b"c") != extend_digest(
        extend_digest(ROOT_DIGEST, b"a"), b"bc"
    )
    assert extend_digest(A, b"b") != extend_digest(C, b"b")


def test_each_segment_has_its_lifetime_and_needs_what_is_in_front_of_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "1h"), (2, "5m")], at_s=0.0)
    assert warmth.find(PATH, 299.0) == (CachedPrefix(0, "1h"), CachedPrefix(2, "5m"))
    assert warmth.expires_s(PATH, 299.0) == 300.0
    assert warmth.find(PATH, 300.0) == (CachedPrefix(0, "1h"),)
    assert warmth.find(PATH, 3_600.0) == ()
    assert warmth.expires_s(PATH, 3_600.0) is None
    late = CacheState()
    late.record_request(PATH, read=0, writes=[(0, "5m"), (2, "1h")], at_s=0.0)
    assert late.find(PATH, 300.0) == ()


def test_use_begins_a_lifetime_anew_and_makes_none_longer() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "1h"), (1, "5m")], at_s=0.0)
    warmth.record_request(PATH, read=2, writes=[(2, "1h")], at_s=200.0)
    assert warmth.find(PATH, 499.0)[-1] == CachedPrefix(2, "1h")
    assert warmth.find(PATH, 500.0) == (CachedPrefix(0, "1h"),)
    warmth.record_request(PATH[:1], read=1, writes=[], at_s=3_000.0)
    assert warmth.find(PATH, 6_599.0) == (CachedPrefix(0, "1h"),)


def test_what_was_written_anew_carries_again_what_still_lives_behind_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "5m"), (1, "1h")], at_s=0.0)
    warmth.record_request(PATH[:1], read=0, writes=[(0, "5m")], at_s=400.0)
    assert warmth.find(PATH, 401.0) == (CachedPrefix(0, "5m"), CachedPrefix(1, "1h"))


def test_what_was_found_missing_is_forgotten_with_all_behind_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "5m"), (1, "5m"), (2, "5m")], at_s=0.0)
    warmth.forget([B])
    assert warmth.find(PATH, 1.0) == (CachedPrefix(0, "5m"),)


def test_another_write_does_not_shorten_what_lives_longer() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(1, "1h")], at_s=0.0)
    warmth.record_request(PATH, read=0, writes=[(1, "5m")], at_s=1.0)
    assert warmth.find(PATH, 2_000.0) == (CachedPrefix(1, "1h"),)


def test_memory_is_bounded_and_the_last_used_stays() -> None:
    warmth = CacheState(capacity=100)
    warmth.record_request([A], read=0, writes=[(0, "1h")], at_s=0.0)
    for number in range(1_000):
        at_s = 1.0 + number / 10
        warmth.record_request([A, extend_digest(A, str(number).encode())], read=1, writes=[(1, "1h")], at_s=at_s)
        assert len(warmth) <= 101
    assert warmth.find([A], 200.0) == (CachedPrefix(0, "1h"),)
