"""Pairing: strangers are shown a code, and an admin approves it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.access import pairing
from gateway.access.texts import MAX_PENDING_CODES
from gateway.core.events import Address, RoomId
from gateway.core.facts import CodeEnded, CodeIssued, PostQueued, RoleAssigned
from gateway.store import AppendFailed, StoreError
from tests.kits.access import (
    ADMIN,
    DC,
    EVE,
    IRC,
    MASK,
    MEMBER,
    OWNER,
    POLICY,
    TG,
    Town,
    alone,
    code,
    somebody,
    story,
    town,
)


@story
async def test_a_stranger_is_shown_one_code_and_let_in_with_it(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        assert (post.to, post.style, post.private) == (alone(TG, EVE), "notice", False)
        assert f"`/pair approve {code(post)}`" in post.text
        reminder = await it.hear(it.message(TG, EVE))
        assert reminder is not None
        assert "Send them the code that I showed you; it is valid until 2026-01-01 01:00:00 UTC." in reminder.text
        assert await it.hear(it.message(TG, EVE)) is None
        answer = await it.ask(DC, ADMIN, "pair approve", code=code(post).lower().replace("-", " "))
        assert answer.text == ("Let in: `telegram.main:666` (`Eve`). That is vouched for by Telegram.")
        assert it.role(TG, EVE) == "member"
        (letter,) = it.posted
        assert (letter.post.to, letter.post.text[:15]) == (alone(TG, EVE), "You are let in:")
        assert [one.seq for one in await it.store.undelivered_posts()][-1] == letter.seq
        assert not it.roster.pending_requests("pair")
        (again,) = [await it.ask(DC, ADMIN, "pair approve", code=code(post))]
        assert (again.ok, again.text[:12]) == (False, "No code or i")


@story
async def test_what_was_let_in_and_what_waits_is_known_to_the_next_process(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.paired(TG, EVE)
        waiting = await it.hear(it.message(DC, EVE))
        clock = it.clock
        known = it.roster.known
    assert waiting is not None
    async with town(tmp_path, clock=clock) as it:
        assert it.roster.known == known
        assert it.role(TG, EVE) == "member"
        assert await it.hear(it.message(DC, EVE))
        assert await it.hear(it.message(DC, EVE)) is None
        assert (await it.ask(TG, OWNER, "pair approve", code=code(waiting))).ok
    async with town(tmp_path, clock=clock) as it:
        assert it.role(DC, EVE) == "member"
        assert not (await it.ask(TG, OWNER, "pair approve", code=code(waiting))).ok
        assert [one.role for one in await it.facts("role_given") if isinstance(one, RoleAssigned)] == ["member"] * 2


@story
async def test_a_command_that_is_told_again_after_a_crash_lets_in_once(tmp_path: Path) -> None:
    """Killed after the answer was appended, before it was sent: the next process receives the command again."""
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        event = it.command(TG, OWNER, "pair approve")
        answer = await it.decided(event, "pair approve", code=code(post))
        await it.settled(event, answer.effect)
    async with town(tmp_path, clock=it.clock) as it:
        again = await it.decided(event, "pair approve", code=code(post))
        assert not again.ok
        await it.settled(event, again.effect)
        assert len(await it.facts("role_given")) == len(await it.facts("code_over")) == 1
        assert (
            len([one for one in await it.facts("post") if isinstance(one, PostQueued) and "let in:" in one.post.text])
            == 1
        )


@story
async def test_a_command_that_was_not_written_lets_in_nobody(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        answer = await it.decided(it.command(TG, OWNER, "pair approve"), "pair approve", code=code(post))
        assert answer.effect is not None
        busy = await it.ask(DC, ADMIN, "pair approve", code=code(post))
        assert (busy.ok, busy.text[:22]) == (False, "Somebody else is decid")
        answer.effect.settle(None)
        assert it.role(TG, EVE) == "guest"
        assert (await it.ask(DC, ADMIN, "pair approve", code=code(post))).ok


@story
async def test_the_same_event_twice_makes_one_code(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        event = it.message(TG, EVE)
        first, second = await it.hear(event), await it.hear(event)
        assert first is not None
        assert second is None
        assert len(await it.facts("code_given")) == 1
    async with town(tmp_path / "other") as it:  # told again before the first was written
        event = it.message(TG, EVE)
        for greeting in (it.greet(event), it.greet(event)):
            assert greeting is not None
            await it.write(event, greeting)
        assert len(await it.facts("code_given")) == 1
        (shown,) = [one for one in await it.facts("post") if isinstance(one, PostQueued)]
        assert (await it.ask(TG, OWNER, "pair approve", code=code(shown.post))).ok


@story
async def test_who_was_shown_nothing_because_of_the_disk_is_shown_a_code_later(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        greeting = it.greet(it.message(TG, EVE))
        assert greeting is not None
        assert greeting.change is not None
        assert await it.hear(it.message(TG, EVE)) is None
        greeting.change.settle(None)
        assert await it.hear(it.message(TG, EVE))


@story
async def test_names_of_codes_come_again_and_mean_the_new_one(tmp_path: Path) -> None:
    word = pairing._word
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pairing, "_word", lambda letters, chars: "aaaaa" if chars == pairing.REQUEST_CHARS else word(letters, chars)
        )
        async with town(tmp_path) as it:
            await it.paired(TG, EVE)
            await it.paired(TG, somebody("667"))
            assert not it.roster.pending_requests("pair")
            assert len(it.posted) == 2
            assert [one.request for one in await it.facts("code_over") if isinstance(one, CodeEnded)] == ["aaaaa"] * 2


@story
async def test_a_code_holds_for_an_hour_and_then_there_is_another(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        first = await it.hear(it.message(TG, EVE))
        it.clock.advance(3_599)
        assert await it.hear(it.message(TG, EVE))
        assert await it.hear(it.message(TG, EVE)) is None
        it.clock.advance(1)
        assert first is not None
        assert not (await it.ask(TG, OWNER, "pair approve", code=code(first))).ok
        second = await it.hear(it.message(TG, EVE))
        assert second is not None
        assert code(second) != code(first)
        assert [one.state for one in await it.facts("code_over") if isinstance(one, CodeEnded)] == ["expired"]
        assert len(await it.store.current_facts("code_given")) == 1


@story
async def test_nobody_keeps_others_out_by_asking(tmp_path: Path) -> None:
    """At most three codes of a person, twenty of a channel; one more replaces the oldest of the largest source."""
    async with town(tmp_path) as it:
        rooms = [Address(channel=TG, room=RoomId(f"-{number}")) for number in range(4)]
        assert all([await it.hear(it.message(TG, somebody("11"), room)) for room in rooms[:3]])
        assert await it.hear(it.message(TG, somebody("11"), rooms[3])) is None
        for number in range(12, 12 + MAX_PENDING_CODES - 3):
            assert await it.hear(it.message(TG, somebody(str(number))))
        assert len(it.roster.pending_requests("pair", "room")) == MAX_PENDING_CODES
        assert await it.hear(it.message(TG, EVE))
        waiting = it.roster.pending_requests("pair", "room")
        assert len(waiting) == MAX_PENDING_CODES
        assert f"{TG}:666" in [one.person for one in waiting]
        assert [one.room for one in waiting if one.room is not None] == rooms[1:3]
        assert await it.hear(it.message(TG, somebody("11"), rooms[0]))  # whose code was replaced gets another, once
        assert await it.hear(it.message(DC, EVE))


@story
async def test_a_stranger_who_asks_for_help_is_always_told(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.hear(it.message(TG, EVE))
        await it.hear(it.message(TG, EVE))
        assert await it.hear(it.message(TG, EVE)) is None
        for name in ("help", "start", "about"):
            told = await it.hear(it.command(TG, EVE, name))
            assert told is not None
            assert "after my operator has approved you" in told.text
        assert await it.hear(it.command(TG, EVE, "help")) is None, "three a minute"
        assert await it.hear(it.command(TG, EVE, "status")) is None
        (request,) = it.roster.pending_requests("pair")
        await it.ask(TG, OWNER, "pair revoke", who=request.request)
        it.clock.advance(60)
        told = await it.hear(it.command(TG, EVE, "help"))
        assert told is not None
        assert "the code" not in told.text


@pytest.mark.parametrize("form", ["code", "name", "NAME", "`person`"])
def test_what_the_list_shows_lets_in_exactly_whom_it_shows(tmp_path: Path, form: str) -> None:
    @story
    async def telling() -> None:
        async with town(tmp_path) as it:
            trickster = somebody("667", f"{TG}:666")
            other, post = await it.hear(it.message(TG, trickster)), await it.hear(it.message(TG, EVE))
            assert other is not None
            assert post is not None
            sly, request = it.roster.pending_requests("pair")
            listed = (await it.ask(DC, ADMIN, "pair list")).text
            assert f"`{request.request}`: `telegram.main:666` (`Eve`)" in listed
            assert f"`/pair approve {request.request}`" in listed
            assert f"`{sly.request}`: `telegram.main:667` (`telegram.main:666`)" in listed
            written = {"code": code(post), "name": request.request, "NAME": request.request.upper()}
            answer = await it.ask(DC, ADMIN, "pair approve", code=written.get(form, f"`{TG}:666`"))
            assert answer.text.startswith("Let in: `telegram.main:666` (`Eve`).")
            assert (it.role(TG, EVE), it.role(TG, trickster)) == ("member", "guest")
            named = await it.ask(DC, ADMIN, "pair approve", code="Eve")
            assert not named.ok, "a name that somebody gave themselves counts for nothing"

    telling()


@story
async def test_who_was_turned_away_is_not_shown_another_code_at_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        (request,) = it.roster.pending_requests("pair")
        listed = await it.ask(TG, OWNER, "pair list")
        assert (
            f"`{request.request}`: `telegram.main:666` (`Eve`), since 2026-01-01 00:00:00 UTC, until 2026-"
            in listed.text
        )
        assert post is not None
        assert code(post) not in listed.text
        gone = await it.ask(TG, OWNER, "pair revoke", who=request.request)
        assert gone.text == "The code of `telegram.main:666` (`Eve`) is good no more."
        assert not (await it.ask(TG, OWNER, "pair approve", code=code(post))).ok
        assert await it.hear(it.message(TG, EVE)) is None
        it.clock.advance(3_600)
        assert await it.hear(it.message(TG, EVE))


@story
async def test_who_is_let_in_no_more_is_a_stranger_again(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.paired(TG, EVE)
        assert (
            "`telegram.main:666` (`Eve`): member, `paired by telegram.main:1`"
            in (await it.ask(TG, OWNER, "pair list")).text
        )
        gone = await it.ask(TG, ADMIN, "pair revoke", who="666")
        assert gone.text == "Let in no more: `telegram.main:666` (`Eve`), who was member."
        assert it.role(TG, EVE) == "guest"
        assert not (await it.ask(TG, ADMIN, "pair revoke", who="666")).ok


@story
async def test_an_admin_takes_nothing_back_from_one_that_an_owner_made(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        assert (await it.ask(TG, OWNER, "role set", who="666", role="owner")).ok
        refused = await it.ask(TG, ADMIN, "pair revoke", who="666")
        assert (refused.ok, refused.text) == (False, "Only an owner changes what an admin or owner may do.")
        assert it.role(TG, EVE) == "owner"


@pytest.mark.parametrize("who", [EVE, MEMBER])
def test_nothing_is_said_where_nobody_may_ask(tmp_path: Path, who: object) -> None:
    @story
    async def telling() -> None:
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

    telling()


@story
async def test_bots_are_told_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        assert await it.hear(it.message(TG, replace(EVE, is_bot=True))) is None
        office = Address(channel=TG, room=RoomId("-1"))
        assert await it.hear(it.message(TG, replace(MEMBER, is_bot=True), office)) is None


@story
async def test_who_is_only_a_mask_is_told_once_how_to_be_known(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(IRC, MASK))
        assert post is not None
        assert "On `irc.libera` that takes an account" in post.text
        assert "/msg NickServ IDENTIFY" in post.text
        assert await it.hear(it.message(IRC, MASK)) is None
        assert not await it.facts("code_given")
        told = [await it.hear(it.message(IRC, somebody(f"mask:n{n}!e@h", verified=False))) for n in range(20)]
        assert sum(one is not None for one in told) == 9
        it.clock.advance(3_600)
        assert await it.hear(it.message(IRC, MASK))


@story
async def test_a_mask_is_let_in_only_where_the_operator_wants_that(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, allow_masks=True)) as it:
        post = await it.hear(it.message(IRC, MASK))
        assert post is not None
        answer = await it.ask(TG, OWNER, "pair approve", code=code(post))
        assert "a mask on IRC: tomorrow anybody may have it" in answer.text
        assert it.role(IRC, MASK) == "member"
        sly = somebody("mask:*!*@*", verified=False)
        said = await it.hear(it.message(IRC, sly))
        assert said is not None
        assert "takes an account" in said.text


@story
async def test_a_role_that_somebody_has_by_then_stays(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        assert (await it.ask(TG, OWNER, "role set", who=f"{TG}:666", role="admin")).ok
        answer = await it.ask(TG, OWNER, "pair approve", code=code(post))
        assert answer.text.startswith("`telegram.main:666` (`Eve`) is admin already.")
        assert it.role(TG, EVE) == "admin"


@story
async def test_who_was_blocked_after_asking_is_not_let_in(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        assert (await it.ask(TG, OWNER, "block", who=f"{TG}:666")).ok
        answer = await it.ask(TG, ADMIN, "pair approve", code=code(post))
        assert (answer.ok, answer.text[:44]) == (False, "`telegram.main:666` (`Eve`) is blocked alrea")
        assert it.role(TG, EVE) == "blocked"


@story
async def test_wrong_codes_are_few(tmp_path: Path) -> None:
    """Five wrong codes of a person in ten minutes, twenty in a channel; after them none is checked."""
    async with town(tmp_path) as it:
        post = await it.hear(it.message(DC, EVE))
        assert post is not None
        words = [(await it.ask(TG, ADMIN, "pair approve", code="AAAA-AAAA")).text for _ in range(6)]
        assert [one[:7] for one in words] == ["No code"] * 5 + ["Too man"]
        assert (await it.ask(TG, ADMIN, "pair approve", code=code(post))).text[:8] == "Too many"
        assert not await it.facts("role_given")
        it.clock.advance(599)
        assert not (await it.ask(TG, ADMIN, "pair approve", code=code(post))).ok
        it.clock.advance(1)
        assert (await it.ask(TG, ADMIN, "pair approve", code=code(post))).ok


@story
async def test_what_cannot_be_read_closes(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, dm_policy="open")) as it:
        fresh = Town(it.store, it.clock, replace(POLICY, dm_policy="open"))
        with pytest.raises(StoreError):
            fresh.role(TG, EVE)
    with pytest.raises(ValueError, match="closed"):
        await fresh.roster.load()
    with pytest.raises(StoreError):
        fresh.role(TG, OWNER)


@story
async def test_what_cannot_be_written_does_not_hold(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        event = it.command(TG, OWNER, "pair approve")
        answer = await it.decided(event, "pair approve", code=code(post))
        await it.store._writing.execute_fetchall("PRAGMA query_only = 1")
        with pytest.raises(AppendFailed):
            await it.settled(event, answer.effect)
        assert it.role(TG, EVE) == "guest"
        await it.store._writing.execute_fetchall("PRAGMA query_only = 0")
        assert (await it.ask(TG, OWNER, "pair approve", code=code(post))).ok


@story
async def test_two_admins_at_once_let_in_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        answers = await asyncio.gather(
            it.ask(TG, OWNER, "pair approve", code=code(post)), it.ask(DC, ADMIN, "pair approve", code=code(post))
        )
        assert sorted(one.ok for one in answers) == [False, True]
        assert len(await it.facts("role_given")) == 1


@story
async def test_the_shell_and_an_admin_at_once_let_in_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        await asyncio.gather(
            it.ask(TG, OWNER, "pair approve", code=code(post)), it.shell("pair approve", code=code(post))
        )
        assert len(await it.facts("role_given")) == len(it.posted) == 1


@story
async def test_that_nobody_can_approve_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with town(tmp_path, replace(POLICY, roles={})) as it:
        with caplog.at_level("INFO"):
            posts = [await it.hear(it.message(TG, somebody(str(n)))) for n in range(2)]
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert told == ["nobody is an owner or admin: only `reverie pair` can let people in and open rooms"]
        assert all(one is not None and code(one) not in caplog.text for one in posts)


@story
async def test_the_log_keeps_no_code_beside_its_post(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.message(TG, EVE))
        assert post is not None
        plain = code(post).replace("-", "")
        rows = await it.store.entry_rows()
        assert [row[2] for row in rows if plain in row[6].replace("-", "")] == ["post"]
        (given,) = await it.facts("code_given")
        assert isinstance(given, CodeIssued)
        assert len(given.salt) == 32
