"""Pairing: strangers are shown a code, and an admin approves it; the codes; rooms that an admin
opens."""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.policy import decide
from gateway.access.texts import (
    CODE_ALPHABET,
    CODE_CHARS,
    MAX_LINKED_ACCOUNTS,
    format_code,
    group_linked_accounts,
)
from gateway.core.events import (
    Address,
    ChannelName,
    RoomId,
    ThreadId,
)
from gateway.core.facts import (
    CodeEnded,
    CodeIssued,
    IdentityLinked,
    PostQueued,
    RoleAssigned,
    RoomAccessChanged,
)
from gateway.core.i18n import use_language
from gateway.core.redaction import Redactor
from gateway.hooks import find_hooks
from gateway.plugin import Plugin, hook
from gateway.plugins.pairing import (
    HELP_PER_MINUTE,
    LOGIN_NOTICES_PER_MINUTE,
    ROOMS_PER_DAY,
    Pairing,
)
from gateway.plugins.pairing.codes import (
    MAX_ATTEMPTS,
    MAX_LISTED_REQUESTS,
    MAX_PENDING_CODES,
    REQUEST_LETTERS,
    find_by_code,
    hash_code,
    issue_code,
    normalize_code,
)
from gateway.store import AppendFailed, NewEntry, StoreError
from gateway.store.effects import Decision
from tests.kits.access import (
    ADMIN,
    DC,
    EVE,
    IRC,
    LOBBY,
    MASK,
    MEMBER,
    OWNER,
    POLICY,
    TG,
    Town,
    alone,
    code,
    somebody,
    town,
)
from tests.kits.store import in_writer

# Pairing: strangers are shown a code, and an admin approves it


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path) as made:
        yield made


class Doorman(Plugin):
    name = "doorman"
    judged_fates = ("refused",)

    @hook
    async def judge(self) -> Decision | None:
        return None


def test_strangers_are_greeted_after_all_other_plugins_have_judged() -> None:
    judges = find_hooks((Pairing, Doorman))["judge"]
    assert [one.plugin.name for one in judges] == ["doorman", "pairing"]


async def test_a_stranger_is_shown_one_code_and_let_in_with_it(it: Town) -> None:
    post = await it.shown(it.message(TG, EVE))
    assert (post.to, post.style, post.private) == (alone(TG, EVE), "notice", False)
    assert f"`/pair approve {code(post)}`" in post.text
    assert await it.hear(it.message(TG, EVE)) is None
    (waits,) = it.roster.pending_requests("pair")
    answer = await it.ask(DC, ADMIN, "pair approve", code=code(post).lower().replace("-", " "))
    assert answer.answer == ("Approved: `telegram.main:666` (`Eve`). Telegram confirms this id.")
    assert it.role(TG, EVE) == "member"
    (letter,) = it.posted
    assert (letter.post.to, letter.post.text[:17]) == (alone(TG, EVE), "You are approved.")
    assert [one.seq for one in await it.store.undelivered_posts()][-1] == letter.seq
    assert not it.roster.pending_requests("pair")
    (again,) = [await it.ask(DC, ADMIN, "pair approve", code=code(post))]
    assert (again.ok, again.answer[:12]) == (False, "I do not kno")
    for late in (  # by the buttons of the notice
        await it.ask(TG, OWNER, "pair approve", code=waits.request),
        await it.ask(TG, OWNER, "pair revoke", who=waits.request),
    ):
        assert (late.ok, late.answer[:38]) == (False, "That is decided already: **Approved** ")


async def test_what_was_let_in_and_what_waits_is_known_to_the_next_process(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.paired(TG, EVE)
        waiting = await it.shown(it.message(DC, EVE))
        clock = it.clock
        known = it.roster.known
    async with town(tmp_path, clock=clock) as it:
        assert it.roster.known == known
        assert it.role(TG, EVE) == "member"
        assert await it.hear(it.message(DC, EVE)) is None
        assert (await it.ask(TG, OWNER, "pair approve", code=code(waiting))).ok
    async with town(tmp_path, clock=clock) as it:
        assert it.role(DC, EVE) == "member"
        assert not (await it.ask(TG, OWNER, "pair approve", code=code(waiting))).ok
        assert [
            one.role for one in await it.facts("role_given") if isinstance(one, RoleAssigned)
        ] == ["member"] * 2


async def test_a_command_that_is_told_again_after_a_crash_lets_in_once(tmp_path: Path) -> None:
    """Killed after the answer was appended, before it was sent: the next process receives the
    command again."""
    async with town(tmp_path) as it:
        post = await it.shown(it.message(TG, EVE))
        event = it.command(TG, OWNER, "pair approve")
        answer = await it.decided(event, "pair approve", code=code(post))
        await it.settled(event, answer)
    async with town(tmp_path, clock=it.clock) as it:
        again = await it.decided(event, "pair approve", code=code(post))
        assert not again.ok
        await it.settled(event, again)
        assert len(await it.facts("role_given")) == len(await it.facts("code_over")) == 1
        assert (
            len(
                [
                    one
                    for one in await it.facts("post")
                    if isinstance(one, PostQueued) and "approved" in one.post.text
                ]
            )
            == 1
        )


async def test_a_command_that_was_not_written_lets_in_nobody(it: Town) -> None:
    post = await it.shown(it.message(TG, EVE))
    answer = await it.decided(
        it.command(TG, OWNER, "pair approve"), "pair approve", code=code(post)
    )
    busy = await it.ask(DC, ADMIN, "pair approve", code=code(post))
    assert (busy.ok, busy.answer[:22]) == (False, "Somebody else is decid")
    answer.settle(None)
    assert it.role(TG, EVE) == "guest"
    assert (await it.ask(DC, ADMIN, "pair approve", code=code(post))).ok


async def test_the_same_event_twice_makes_one_code(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        event = it.message(TG, EVE)
        first, second = await it.hear(event), await it.hear(event)
        assert first is not None
        assert second is None
        assert len(await it.facts("code_given")) == 1
    async with town(tmp_path / "other") as it:  # told again before the first was written
        event = it.message(TG, EVE)
        for greeting in (await it.greet(event), await it.greet(event)):
            assert greeting is not None
            await it.write(event, greeting)
        assert len(await it.facts("code_given")) == 1
        (shown,) = [one for one in await it.facts("post") if isinstance(one, PostQueued)]
        assert (await it.ask(TG, OWNER, "pair approve", code=code(shown.post))).ok


async def test_who_was_shown_nothing_because_of_the_disk_is_shown_a_code_later(it: Town) -> None:
    greeting = await it.greet(it.message(TG, EVE))
    assert greeting is not None
    assert greeting.effect is not None
    assert await it.hear(it.message(TG, EVE)) is None
    greeting.effect.settle(None)
    assert await it.hear(it.message(TG, EVE))


async def test_a_code_holds_for_an_hour_and_then_there_is_another(it: Town) -> None:
    first = await it.shown(it.message(TG, EVE))
    it.clock.advance(3_599)
    assert await it.hear(it.message(TG, EVE)) is None
    it.clock.advance(1)
    assert not (await it.ask(TG, OWNER, "pair approve", code=code(first))).ok
    assert code(await it.shown(it.message(TG, EVE))) != code(first)
    assert [one.state for one in await it.facts("code_over") if isinstance(one, CodeEnded)] == [
        "expired"
    ]
    assert len(await it.store.current_facts("code_given")) == 1


async def test_nobody_keeps_others_out_by_asking(it: Town) -> None:
    """At most 10 rooms and 500 codes of a channel; one more replaces the oldest of the largest
    source."""
    rooms = [Address(channel=TG, room=RoomId(f"-{number}")) for number in range(ROOMS_PER_DAY + 1)]
    assert all([await it.hear(it.message(TG, somebody("11"), room)) for room in rooms[:-1]])
    assert await it.hear(it.message(TG, somebody("11"), rooms[-1])) is None
    for number in range(1_000, 1_000 + MAX_PENDING_CODES - ROOMS_PER_DAY):
        assert await it.hear(it.message(TG, somebody(str(number))))
    assert len(it.roster.pending_requests("pair", "room")) == MAX_PENDING_CODES
    assert await it.hear(it.message(TG, EVE))
    waiting = it.roster.pending_requests("pair", "room")
    assert len(waiting) == MAX_PENDING_CODES
    assert f"{TG}:666" in [one.person for one in waiting]
    assert [one.room for one in waiting if one.room is not None] == rooms[1:-1]
    assert await it.hear(it.message(DC, EVE))


async def test_strangers_have_the_notice_posted_in_few_rooms_a_day(it: Town) -> None:
    async def notices(first: int) -> int:
        events = [
            it.invite(TG, somebody(f"66{first + one}"), f"-{first + one}") for one in range(12)
        ]
        return sum([await it.hear(event) is not None for event in events])

    assert await notices(100) == ROOMS_PER_DAY
    assert await notices(200) == 0
    assert await it.hear(it.invite(TG, ADMIN, "-300")) is not None
    assert await it.hear(it.invite(IRC, somebody("account:zoe"), "#office")) is not None
    it.clock.advance(86_401)
    assert await notices(400) == ROOMS_PER_DAY


async def test_hundreds_of_strangers_shut_the_door_to_nobody(it: Town) -> None:
    """Neither to who asked before them, nor to who asks after them; and owners find the newest in
    the list."""
    crowd = [somebody(str(number), f"Bot {number}") for number in range(1_000, 1_300)]
    early = await it.shown(it.message(TG, EVE))
    for one in crowd:
        assert await it.hear(it.message(TG, one))
        for _ in range(MAX_ATTEMPTS):
            await it.hear(it.command(TG, one, "link", args="AAAA-AAAA"))
    late = await it.shown(it.message(TG, somebody("667", "Fay")))
    listed = (await it.ask(TG, OWNER, "pair list")).answer
    assert listed.count("`: `telegram.main:") == MAX_LISTED_REQUESTS
    assert "`telegram.main:667` (`Fay`)" in listed
    assert f"and {302 - MAX_LISTED_REQUESTS} earlier ones" in listed
    for post, who in ((late, somebody("667")), (early, EVE)):
        assert (await it.ask(DC, ADMIN, "pair approve", code=code(post))).ok
        assert it.role(TG, who) == "member"


async def test_a_stranger_who_asks_for_help_is_always_told(it: Town) -> None:
    await it.hear(it.message(TG, EVE))
    assert await it.hear(it.message(TG, EVE)) is None
    for name in ("help", "start", "about"):
        told = await it.shown(it.command(TG, EVE, name))
        assert told.text.endswith(
            "Send them the code that I showed you; it is valid until 01:00 UTC."
        )
    assert await it.hear(it.command(TG, EVE, "whoami")) is None, "three a minute"
    assert await it.hear(it.command(TG, EVE, "status")) is None
    (request,) = it.roster.pending_requests("pair")
    await it.ask(TG, OWNER, "pair revoke", who=request.request)
    it.clock.advance(60)
    told = await it.shown(it.command(TG, EVE, "help"))
    assert "the code" not in told.text


async def test_a_stranger_is_told_their_id_for_the_one_who_sets_it_up(it: Town) -> None:
    mine = f"You are `{TG}:{EVE.id}`, which the platform confirms. "
    first = await it.shown(it.command(TG, EVE, "whoami"))
    again = await it.shown(it.command(TG, EVE, "whoami"))
    assert first.text.startswith(f"{mine}Hi, I'm a bot.")
    assert again.text.startswith(f"{mine}I'm a bot, and I can answer you only")
    assert it.role(TG, EVE) == "guest"


@pytest.mark.parametrize("form", ["code", "name", "NAME", "`person`"])
async def test_what_the_list_shows_lets_in_exactly_whom_it_shows(form: str, it: Town) -> None:
    trickster = somebody("667", f"{TG}:666")
    assert await it.hear(it.message(TG, trickster))
    post = await it.shown(it.message(TG, EVE))
    sly, request = it.roster.pending_requests("pair")
    listed = (await it.ask(DC, ADMIN, "pair list")).answer
    assert f"`{request.request}`: `telegram.main:666` (`Eve`)" in listed
    assert f"`/pair approve {request.request}`" in listed
    assert f"`{sly.request}`: `telegram.main:667` (`telegram.main:666`)" in listed
    written = {"code": code(post), "name": request.request, "NAME": request.request.upper()}
    answer = await it.ask(DC, ADMIN, "pair approve", code=written.get(form, f"`{TG}:666`"))
    assert answer.answer.startswith("Approved: `telegram.main:666` (`Eve`).")
    assert (it.role(TG, EVE), it.role(TG, trickster)) == ("member", "guest")
    named = await it.ask(DC, ADMIN, "pair approve", code="Eve")
    assert not named.ok, "a name that somebody gave themselves counts for nothing"


async def test_who_was_turned_away_is_not_shown_another_code_at_once(it: Town) -> None:
    post = await it.shown(it.message(TG, EVE))
    (request,) = it.roster.pending_requests("pair")
    listed = await it.ask(TG, OWNER, "pair list")
    waits = f"`{request.request}`: `telegram.main:666` (`Eve`), until 01:00 UTC: "
    assert waits in listed.answer
    assert code(post) not in listed.answer
    gone = await it.ask(TG, OWNER, "pair revoke", who=request.request)
    assert gone.answer == "Refused: the code of `telegram.main:666` (`Eve`) is not valid any more."
    assert not (await it.ask(TG, OWNER, "pair approve", code=code(post))).ok
    assert await it.hear(it.message(TG, EVE)) is None
    it.clock.advance(3_600)
    assert await it.hear(it.message(TG, EVE))


async def test_who_is_let_in_no_more_is_a_stranger_again(it: Town) -> None:
    await it.paired(TG, EVE)
    assert (
        "`telegram.main:666` (`Eve`): member, `paired by telegram.main:1`"
        in (await it.ask(TG, OWNER, "pair list")).answer
    )
    gone = await it.ask(TG, ADMIN, "pair revoke", who="666")
    assert (
        gone.answer
        == "I took back the approval of `telegram.main:666` (`Eve`). Their role was member."
    )
    assert it.role(TG, EVE) == "guest"
    assert not (await it.ask(TG, ADMIN, "pair revoke", who="666")).ok


async def test_an_admin_takes_nothing_back_from_one_that_an_owner_made(it: Town) -> None:
    assert (await it.ask(TG, OWNER, "role set", who="666", role="owner")).ok
    refused = await it.ask(TG, ADMIN, "pair revoke", who="666")
    assert (refused.ok, refused.answer) == (
        False,
        "Only an owner can change the role of an admin or owner.",
    )
    assert it.role(TG, EVE) == "owner"


@pytest.mark.parametrize("who", [EVE, MEMBER])
async def test_nothing_is_said_where_nobody_may_ask(tmp_path: Path, who: object) -> None:
    for number, policy in enumerate(
        (
            replace(POLICY, dm_policy="allowlist"),
            replace(POLICY, dm_policy="disabled"),
            replace(POLICY, dm_policy="open"),
            replace(POLICY, roles={f"{TG}:666": "blocked", f"{TG}:3": "member"}),
        )
    ):
        async with town(tmp_path / str(number), policy) as it:
            assert await it.hear(it.message(TG, EVE if who is EVE else MEMBER)) is None


async def test_bots_are_told_nothing(it: Town) -> None:
    assert await it.hear(it.message(TG, replace(EVE, is_bot=True))) is None
    office = Address(channel=TG, room=RoomId("-1"))
    assert await it.hear(it.message(TG, replace(MEMBER, is_bot=True), office)) is None


async def test_the_result_has_the_language_of_whoever_was_shown_the_code(it: Town) -> None:
    with use_language("es"):
        post = await it.shown(it.message(TG, EVE))
    with use_language("de"):
        answer = await it.ask(DC, ADMIN, "pair approve", code=code(post))
    assert answer.answer.startswith("Zugelassen: ")
    (letter,) = it.posted
    assert letter.post.text.startswith("Tienes la aprobación.")


async def test_who_is_only_a_mask_is_told_once_how_to_be_known(it: Town) -> None:
    post = await it.shown(it.message(IRC, MASK))
    assert "people with an account on `irc.libera`" in post.text
    assert "/msg NickServ IDENTIFY" in post.text
    assert await it.hear(it.message(IRC, MASK)) is None
    assert not await it.facts("code_given")
    told = [
        await it.hear(it.message(IRC, somebody(f"mask:n{n}!e@h", verified=False)))
        for n in range(20)
    ]
    assert sum(one is not None for one in told) == HELP_PER_MINUTE, "of one host"
    told = [
        await it.hear(it.message(IRC, somebody(f"mask:n!e@h{n}", verified=False)))
        for n in range(20)
    ]
    assert sum(one is not None for one in told) == LOGIN_NOTICES_PER_MINUTE - 1 - HELP_PER_MINUTE
    assert await it.hear(it.message(IRC, somebody("mask:n!e@late", verified=False))) is None
    it.clock.advance(60)
    assert await it.hear(it.message(IRC, somebody("mask:n!e@late", verified=False))), (
        "others wait a minute"
    )
    assert await it.hear(it.message(IRC, MASK)) is None
    it.clock.advance(3_540)
    assert await it.hear(it.message(IRC, MASK))


async def test_a_mask_is_let_in_only_where_the_operator_wants_that(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, allow_masks=True)) as it:
        post = await it.shown(it.message(IRC, MASK))
        answer = await it.ask(TG, OWNER, "pair approve", code=code(post))
        assert (
            "This is a mask, which IRC does not confirm: tomorrow somebody else may have it."
            in answer.answer
        )
        assert it.role(IRC, MASK) == "member"
        said = await it.shown(it.message(IRC, somebody("mask:*!*@*", verified=False)))
        assert "people with an account" in said.text


@pytest.mark.parametrize(
    ("role", "then", "ok"),
    [("admin", "is already admin.", True), ("blocked", "is already blocked.", False)],
)
async def test_a_role_that_somebody_has_by_then_stays(
    it: Town, role: str, then: str, *, ok: bool
) -> None:
    post = await it.shown(it.message(TG, EVE))
    how = "block" if role == "blocked" else "role set"
    assert (await it.ask(TG, OWNER, how, who=f"{TG}:666", role=role)).ok
    answer = await it.ask(TG, OWNER, "pair approve", code=code(post))
    assert (answer.ok, answer.answer.startswith(f"`telegram.main:666` (`Eve`) {then}")) == (
        ok,
        True,
    )
    assert it.role(TG, EVE) == role


async def test_wrong_codes_are_few(it: Town) -> None:
    """Five wrong codes of a person in ten minutes; after them none is checked."""
    post = await it.shown(it.message(DC, EVE))
    words = [(await it.ask(TG, ADMIN, "pair approve", code="AAAA-AAAA")).answer for _ in range(6)]
    assert [one[:7] for one in words] == ["I do no"] * 5 + ["Too man"]
    assert (await it.ask(TG, ADMIN, "pair approve", code=code(post))).answer[:8] == "Too many"
    assert not await it.facts("role_given")
    it.clock.advance(599)
    assert not (await it.ask(TG, ADMIN, "pair approve", code=code(post))).ok
    it.clock.advance(1)
    assert (await it.ask(TG, ADMIN, "pair approve", code=code(post))).ok


async def test_what_cannot_be_read_closes(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, dm_policy="open")) as it:
        fresh = Town(it.store, it.clock, replace(POLICY, dm_policy="open"))
        with pytest.raises(StoreError):
            fresh.role(TG, EVE)
    with pytest.raises(ValueError, match="closed"):
        await fresh.roster.load()
    with pytest.raises(StoreError):
        fresh.role(TG, OWNER)


async def test_what_cannot_be_written_does_not_hold(it: Town) -> None:
    post = await it.shown(it.message(TG, EVE))
    event = it.command(TG, OWNER, "pair approve")
    answer = await it.decided(event, "pair approve", code=code(post))
    await in_writer(it.store, "PRAGMA query_only = 1")
    with pytest.raises(AppendFailed):
        await it.settled(event, answer)
    assert it.role(TG, EVE) == "guest"
    await in_writer(it.store, "PRAGMA query_only = 0")
    assert (await it.ask(TG, OWNER, "pair approve", code=code(post))).ok


async def test_the_shell_and_an_admin_at_once_let_in_once(it: Town) -> None:
    post = await it.shown(it.message(TG, EVE))
    await asyncio.gather(
        it.ask(TG, OWNER, "pair approve", code=code(post)),
        it.shell("pair approve", code=code(post)),
    )
    assert len(await it.facts("role_given")) == len(it.posted) == 1


async def test_the_log_keeps_no_code_beside_its_post(it: Town) -> None:
    post = await it.shown(it.message(TG, EVE))
    plain = code(post).replace("-", "")
    rows = await it.store.entry_rows()
    assert [row[2] for row in rows if plain in row[6].replace("-", "")] == ["post"]
    (given,) = await it.facts("code_given")
    assert isinstance(given, CodeIssued)
    assert len(given.salt) == 32


# Codes are accepted in any spelling, wrong ones never; a comparison takes the same time for every
# code

NOW = datetime(2026, 1, 1, tzinfo=UTC)
codes = st.text(alphabet=CODE_ALPHABET, min_size=CODE_CHARS, max_size=CODE_CHARS)
between = st.text(alphabet=" -\t–—_.`'\u00a0", max_size=3)


def issued(*taken: str) -> tuple[str, CodeIssued]:
    at = Address(channel=ChannelName("x"), room=RoomId("1"))
    return issue_code("pair", taken, NOW, person="x:1", name="", at=at)


def issued_as(code: str) -> CodeIssued:
    return replace(issued()[1], salt="s", digest=hash_code("s", code))


@given(
    codes,
    st.lists(between, min_size=CODE_CHARS + 1, max_size=CODE_CHARS + 1),
    st.booleans(),
    st.booleans(),
)
def test_any_spelling_of_a_code_is_that_code(
    code: str, parts: list[str], lower: bool, wide: bool
) -> None:
    written = "".join(gap + char for gap, char in zip(parts, code, strict=False)) + parts[-1]
    written = written.lower() if lower else written
    if wide:
        written = "".join(
            chr(ord(char) + 0xFEE0) if char.isascii() and char.isalnum() else char
            for char in written
        )
    one = issued_as(code)
    assert find_by_code([one], written) is one
    assert find_by_code([one], format_code(code)) is one


@given(codes, st.one_of(codes, st.text()))
def test_nothing_else_is(code: str, written: str) -> None:
    one = issued_as(code)
    assert (find_by_code([one], written) is one) == (normalize_code(written) == code)


def test_new_codes_are_of_an_alphabet_without_twins_and_differ() -> None:
    minted = [issued() for _ in range(500)]
    assert all(
        re.fullmatch(f"[{CODE_ALPHABET}]{{4}}-[{CODE_ALPHABET}]{{4}}", one) for one, _ in minted
    )
    assert len({one for one, _ in minted}) == len({one.salt for _, one in minted}) == 500
    assert len(CODE_ALPHABET) >= 20
    assert all(
        len(set(twins) & set(CODE_ALPHABET)) <= 1
        for twins in ("0OQ", "1IL", "2Z", "5S", "6G", "8B", "UV")
    )
    assert all(code not in repr(one) for code, one in minted)


def test_names_of_codes_that_are_in_use_are_not_given_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = iter("AAAAAAAA" + "ccccc" + "ccccc" + "eeeee")
    monkeypatch.setattr("secrets.choice", lambda _: next(drawn))
    assert issued("ccccc")[1].request == "eeeee"


def test_each_comparison_is_with_all_codes_and_by_compare_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Constant time: the duration shows neither which code matches nor how much of it."""
    compared: list[str] = []

    def counting(one: str, other: str) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", counting)
    written_codes, given_ = zip(*(issued() for _ in range(3)), strict=True)
    for written in (written_codes[0], written_codes[2], "nothing"):
        compared.clear()
        find_by_code(given_, written)
        assert compared == [one.digest for one in given_]


people = st.sampled_from([f"x:{number}" for number in range(12)] + ["x:mask:a!b@c"])
links = st.lists(st.tuples(people, people).filter(lambda two: two[0] != two[1]), max_size=30)


@given(links)
def test_groups_are_the_same_seen_from_each_of_them_and_never_too_large(
    pairs: list[tuple[str, str]],
) -> None:
    made = group_linked_accounts(
        IdentityLinked(one=one, other=other, joined=True, by="")
        for one, other in map(sorted, pairs)
    )
    for one, others in made.items():
        assert one not in others
        assert 1 <= len(others) < MAX_LINKED_ACCOUNTS
        assert all(made[other] == (others | {one}) - {other} for other in others)
        assert "mask:" not in one


def test_no_name_of_a_request_can_hold_the_name_of_a_secret() -> None:
    assert Redactor()("gpwd4: irc.main:account:nora") != "gpwd4: irc.main:account:nora"
    assert not [
        name
        for name in ("pwd", "key", "pass", "token", "secret")
        if set(name) <= set(REQUEST_LETTERS)
    ]


# Rooms are opened by an admin, whoever asked for them

OFFICE = Address(channel=IRC, room=RoomId("#office"))
GROUP = Address(channel=TG, room=RoomId("-100"))


def heard(it: Town, at: Address) -> bool:
    return decide(it.policy, it.message(at.channel, somebody("account:zoe"), at)).allowed


async def test_who_speaks_to_the_agent_in_another_room_is_told_how_it_is_opened(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as it:
        event = it.message(TG, EVE, GROUP)
        post = await it.shown(event)
        assert (post.to, post.reply_to, post.style) == (GROUP, event.id, "notice")
        assert "`Eve` asked for it" in post.text
        assert f"`/room approve {code(post)}`" in post.text
        assert await it.hear(it.message(TG, somebody("5"), GROUP)) is None
        assert await it.hear(it.message(TG, EVE, GROUP, kind="room")) is None
        assert not heard(it, GROUP)
        listed = (await it.ask(DC, ADMIN, "room list")).answer
        assert "`telegram.main:666` (`Eve`) for `telegram.main/-100`, until 01:00 UTC: " in listed
        assert code(post) not in listed
        answer = await it.ask(DC, ADMIN, "room approve", code=code(post))
        assert (
            answer.answer
            == "Approved: `telegram.main/-100`. `telegram.main:666` (`Eve`) had asked for it."
        )
        assert heard(it, GROUP)
        assert heard(it, replace(GROUP, thread=ThreadId("7")))
        assert [(one.post.to, one.post.text) for one in it.posted] == [
            (GROUP, "I may talk in this room now.")
        ]
        assert [one.room for one in it.roster.rooms] == [GROUP]
        assert it.joined == [GROUP]
    async with town(tmp_path, clock=it.clock) as it:
        assert heard(it, GROUP)
        assert [one.room for one in it.roster.rooms] == [GROUP]


async def test_who_invites_where_we_are_not_is_told_alone(it: Town) -> None:
    zoe = somebody("account:zoe", "zoe")
    post = await it.shown(it.invite(IRC, zoe, "#office"))
    assert (post.to, post.reply_to) == (alone(IRC, zoe), None)
    assert "I may not enter `#office` yet" in post.text
    assert f"`!room approve {code(post)}`" in post.text
    assert await it.hear(it.invite(IRC, MASK, "#office")) is None
    answer = await it.ask(TG, OWNER, "room approve", code=code(post))
    assert (
        answer.answer
        == "Approved: `irc.libera/#office`. `irc.libera:account:zoe` had asked for it."
    )
    assert it.joined == [OFFICE]
    (letter,) = it.posted
    assert (letter.post.to, letter.post.text) == (
        alone(IRC, zoe),
        "I may talk in `irc.libera/#office` now.",
    )


async def test_an_invitation_into_a_room_where_we_are_is_answered_there_with_its_title(
    it: Town,
) -> None:
    post = await it.shown(it.invite(TG, EVE, "-100", "Cats `and` dogs"))
    assert (post.to, post.reply_to) == (GROUP, None)
    (given,) = await it.facts("code_given")
    assert isinstance(given, CodeIssued)
    assert (given.about, given.person, given.room) == (
        "Cats `and` dogs",
        "telegram.main:666",
        GROUP,
    )
    answer = await it.ask(TG, OWNER, "room approve", code=code(post))
    assert "`Cats \\u0060and\\u0060 dogs` (`telegram.main/-100`)" in answer.answer
    listed = (await it.ask(TG, OWNER, "room list")).answer
    assert (
        "`Cats \\u0060and\\u0060 dogs` (`telegram.main/-100`), approved by `telegram.main:1`"
        in listed
    )
    assert "`irc.libera/#lobby`, by the configuration" in listed


async def test_an_admin_opens_the_room_where_they_say_it(it: Town) -> None:
    asked = await it.shown(it.message(TG, EVE, GROUP))
    answer = await it.ask(TG, ADMIN, "room approve", at=replace(GROUP, thread=ThreadId("4")))
    assert answer.ok
    assert heard(it, GROUP)
    assert not it.roster.pending_requests("room")
    assert not (await it.ask(TG, ADMIN, "room approve", code=code(asked))).ok
    again = await it.ask(TG, ADMIN, "room approve", at=GROUP)
    assert (again.ok, again.answer) == (False, "This room is already approved.")
    alone_ = await it.ask(TG, ADMIN, "room approve")
    assert (alone_.ok, alone_.answer[:22]) == (False, "Write that in the room")
    unasked = replace(GROUP, room=RoomId("-7"))
    assert (
        await it.ask(TG, ADMIN, "room approve", at=unasked)
    ).answer == "Approved: `telegram.main/-7`."


async def test_a_code_of_a_room_lets_in_nobody_and_one_of_a_person_opens_nothing(it: Town) -> None:
    room, person = await it.shown(it.message(TG, EVE, GROUP)), await it.shown(it.message(TG, EVE))
    assert not (await it.ask(TG, OWNER, "pair approve", code=code(room))).ok
    assert not (await it.ask(TG, OWNER, "room approve", code=code(person))).ok
    assert not await it.facts("role_given", "room_opened")


async def test_a_room_that_is_closed_is_left(it: Town) -> None:
    await it.ask(TG, OWNER, "room approve", at=GROUP)
    answer = await it.ask(TG, OWNER, "room revoke", at=GROUP)
    assert (
        answer.answer
        == "I took back the approval of `telegram.main/-100`. I leave it, if the platform lets me."
    )
    assert it.left == [GROUP]
    assert it.roster.rooms == []
    assert not (await it.ask(TG, OWNER, "room revoke", room="-100")).ok


async def test_a_room_is_closed_from_elsewhere_by_its_id(it: Town) -> None:
    for written in ("irc.libera/#office", "IRC.libera/#OFFICE"):
        post = await it.hear(it.invite(IRC, EVE, "#office"))
        it.clock.advance(3_600)
        post = post or await it.hear(it.invite(IRC, EVE, "#office"))
        post = await it.hear(it.invite(IRC, EVE, "#office")) or post
        assert post is not None
        assert (await it.ask(TG, OWNER, "room approve", code=code(post))).ok
        assert (await it.ask(TG, OWNER, "room revoke", room=written)).ok
    assert it.left == [OFFICE, OFFICE]
    missing = await it.ask(TG, OWNER, "room revoke", room="#lobby")
    assert missing.answer.startswith("`#lobby` was not approved by a command.")
    assert not (await it.ask(TG, OWNER, "room revoke")).ok


async def test_what_the_configuration_opens_is_not_left(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, open_rooms={})) as it:
        opened = RoomAccessChanged(room=LOBBY, open=True, by="x")
        await it.store.append([NewEntry(fact=opened, at=it.clock.now())])
    async with town(tmp_path, clock=it.clock) as it:
        answer = await it.ask(TG, OWNER, "room revoke", room=LOBBY.conversation)
        assert answer.answer.endswith("The configuration still opens it.")
        assert it.left == []


async def test_where_rooms_are_listed_only_nobody_is_told_anything(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, room_policy="listed")) as it:
        assert await it.hear(it.message(TG, EVE, GROUP)) is None
        assert await it.hear(it.invite(IRC, EVE, "#office")) is None
