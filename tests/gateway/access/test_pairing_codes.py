"""Codes are accepted in any spelling, wrong ones never; a comparison takes the same time for every code."""

import hmac
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.pairing import (
    ATTEMPT_WINDOW_S,
    MAX_ATTEMPTS_PER_CHANNEL,
    MAX_ATTEMPTS_PER_PERSON,
    REQUEST_CHARS,
    REQUEST_LETTERS,
    AttemptLimiter,
    GeneratedCode,
    generate_code,
)
from gateway.access.texts import (
    CODE_ALPHABET,
    CODE_CHARS,
    MAX_LINKED_ACCOUNTS,
    filter_unexpired,
    find_by_code,
    format_code,
    group_linked_accounts,
    hash_code,
    normalize_code,
    sort_pair,
)
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.facts import CodeIssued, IdentityLinked
from gateway.core.redaction import Redactor

NOW = datetime(2026, 1, 1, tzinfo=UTC)
codes = st.text(alphabet=CODE_ALPHABET, min_size=CODE_CHARS, max_size=CODE_CHARS)
between = st.text(alphabet=" -\t–—_.`'\u00a0", max_size=3)


def shown(minted: GeneratedCode) -> CodeIssued:
    return CodeIssued(
        request=minted.request,
        what="pair",
        person="x:1",
        name="",
        at=Address(channel=ChannelName("x"), room=RoomId("1")),
        salt=minted.salt,
        digest=minted.digest,
        until=NOW + timedelta(hours=1),
    )


@given(codes, st.lists(between, min_size=CODE_CHARS + 1, max_size=CODE_CHARS + 1), st.booleans(), st.booleans())
def test_any_spelling_of_a_code_is_that_code(code: str, parts: list[str], lower: bool, wide: bool) -> None:
    written = "".join(gap + char for gap, char in zip(parts, code, strict=False)) + parts[-1]
    written = written.lower() if lower else written
    if wide:
        written = "".join(chr(ord(char) + 0xFEE0) if char.isascii() and char.isalnum() else char for char in written)
    one = shown(GeneratedCode(code=code, request="r", salt="s", digest=hash_code("s", code)))
    assert find_by_code([one], written) is one
    assert find_by_code([one], format_code(code)) is one


@given(codes, st.one_of(codes, st.text()))
def test_nothing_else_is(code: str, written: str) -> None:
    one = shown(GeneratedCode(code=code, request="r", salt="s", digest=hash_code("s", code)))
    assert (find_by_code([one], written) is one) == (normalize_code(written) == code)


@given(st.text(max_size=300))
def test_whatever_is_written_breaks_nothing(written: str) -> None:
    assert find_by_code([shown(generate_code(()))], written) is None


def test_new_codes_are_of_an_alphabet_without_twins_and_differ() -> None:
    minted = [generate_code(()) for _ in range(500)]
    assert all(re.fullmatch(f"[{CODE_ALPHABET}]{{8}}", one.code) for one in minted)
    assert len({one.code for one in minted}) == len({one.salt for one in minted}) == 500
    assert len(CODE_ALPHABET) >= 20
    assert all(len(set(twins) & set(CODE_ALPHABET)) <= 1 for twins in ("0OQ", "1IL", "2Z", "5S", "6G", "8B", "UV"))
    assert all(one.code not in repr(one) and one.salt not in one.code for one in minted)


def test_names_of_codes_that_are_in_use_are_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter("AAAAAAAA" + "ccccc" + "ccccc" + "eeeee")
    monkeypatch.setattr("secrets.choice", lambda _: next(drawn))
    assert generate_code({"ccccc"}).request == "eeeee"


def test_each_comparison_is_with_all_codes_and_by_compare_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant time: the duration shows neither which code matches nor how much of it."""
    compared: list[str] = []

    def counting(one: str, other: str) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", counting)
    minted = [generate_code(()) for _ in range(3)]
    given_ = [shown(one) for one in minted]
    for written in (minted[0].code, minted[2].code, "nothing"):
        compared.clear()
        find_by_code(given_, written)
        assert compared == [one.digest for one in given_]


def test_a_code_is_good_until_its_end() -> None:
    one = shown(generate_code(()))
    assert filter_unexpired([one], one.until - timedelta(microseconds=1)) == [one]
    assert filter_unexpired([one], one.until) == []


def test_wrong_tries_are_counted_by_person_and_by_channel_for_ten_minutes() -> None:
    tries = AttemptLimiter()
    for number in range(MAX_ATTEMPTS_PER_PERSON):
        assert tries.is_allowed("x:1", "x", float(number))
        tries.record_failure("x:1", "x", float(number))
    assert not tries.is_allowed("x:1", "x", 5.0)
    assert tries.is_allowed("x:2", "x", 5.0)
    for number in range(MAX_ATTEMPTS_PER_PERSON, MAX_ATTEMPTS_PER_CHANNEL):
        tries.record_failure(f"x:{number}", "x", 5.0)
    assert not tries.is_allowed("x:2", "x", 6.0)
    assert tries.is_allowed("y:2", "y", 6.0)
    assert not tries.is_allowed("x:1", "x", ATTEMPT_WINDOW_S - 0.1)
    assert tries.is_allowed("x:1", "x", ATTEMPT_WINDOW_S)
    assert tries.is_allowed("x:2", "x", ATTEMPT_WINDOW_S + 5.0)


people = st.sampled_from([f"x:{number}" for number in range(12)] + ["x:mask:a!b@c"])
links = st.lists(st.tuples(people, people).filter(lambda two: two[0] != two[1]), max_size=30)


@given(links)
def test_groups_are_the_same_seen_from_each_of_them_and_never_too_large(pairs: list[tuple[str, str]]) -> None:
    made = group_linked_accounts(
        IdentityLinked(one=one, other=other, joined=True, by="") for one, other in (sort_pair(*two) for two in pairs)
    )
    for one, others in made.items():
        assert one not in others
        assert 1 <= len(others) < MAX_LINKED_ACCOUNTS
        assert all(made[other] == (others | {one}) - {other} for other in others)
        assert "mask:" not in one


def test_links_reach_on() -> None:
    made = group_linked_accounts(
        [IdentityLinked(one=f"x:{n}", other=f"x:{n + 1}", joined=True, by="") for n in range(3)]
    )
    assert made["x:0"] == {"x:1", "x:2", "x:3"}


@given(st.text(REQUEST_LETTERS, min_size=REQUEST_CHARS, max_size=REQUEST_CHARS))
def test_no_name_of_a_request_has_who_asked_taken_for_a_secret(request_: str) -> None:
    told = f"{request_}: irc.main:account:nora for irc.main/#den"
    assert Redactor()(told) == told


def test_no_name_of_a_request_can_hold_the_name_of_a_secret() -> None:
    assert Redactor()("gpwd4: irc.main:account:nora") != "gpwd4: irc.main:account:nora"
    assert not [name for name in ("pwd", "key", "pass", "token", "secret") if set(name) <= set(REQUEST_LETTERS)]
