"""Linking: two accounts are one person once each has submitted the code of the other."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.access.texts import MAX_LINKED_ACCOUNTS
from gateway.core.events import Sender
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
    alone,
    code,
    somebody,
    story,
    town,
)

OPEN = replace(POLICY, dm_policy="open")
MIA = somebody("77", "mia")
ACCOUNT = somebody("account:eve", "eve")


@story
async def test_both_ends_hand_in_the_code_of_the_other(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        first = await it.ask(TG, MEMBER, "link start")
        assert "Give neither to anybody" in first.text
        second = await it.ask(DC, MIA, "link code", code=code(first).lower())
        assert "`telegram.main:3` (`n3`) would be the same person as you" in second.text
        assert "(you are guest)" in second.text
        (letter,) = it.posted
        assert letter.post.to == alone(TG, MEMBER)
        assert letter.post.text.startswith("`discord.main:77` (`mia`) handed in your code")
        assert not it.roster.known.links
        last = await it.ask(TG, MEMBER, "link code", code=code(second))
        assert last.text.startswith("`discord.main:77` (`mia`) and you are one person to me")
        assert it.role(DC, MIA) == "member"
        assert it.posted[1].post.to == alone(DC, MIA)
        assert (await it.ask(DC, MIA, "link list")).text.endswith("- `telegram.main:3`")
        for used in (first, second):
            assert not (await it.ask(DC, MIA, "link code", code=code(used))).ok
    async with town(tmp_path, OPEN, clock=it.clock) as it:
        assert it.role(DC, MIA) == "member"


@story
async def test_who_is_talked_into_writing_one_code_links_nobody(tmp_path: Path) -> None:
    """Eve has an admin submit her code. He sees who she is, and the second code is shown to him alone."""
    async with town(tmp_path, OPEN) as it:
        first = await it.ask(TG, EVE, "link start")
        second = await it.ask(DC, ADMIN, "link code", code=code(first))
        assert "`telegram.main:666` (`Eve`) would be the same person as you" in second.text
        assert "(you are admin)" in second.text
        assert "wants to be you: then stop here" in second.text
        assert it.role(TG, EVE) == "guest"
        it.clock.advance(3_600)
        assert not (await it.ask(TG, EVE, "link code", code=code(second))).ok
        assert not await it.facts("identity_linked")


@story
async def test_a_second_code_is_good_only_from_whom_it_is_about(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        first = await it.ask(TG, MEMBER, "link start")
        second = await it.ask(DC, MIA, "link code", code=code(first))
        assert (await it.ask(TG, EVE, "link code", code=code(second))).text.startswith("No code like that")
        own = await it.ask(DC, MIA, "link code", code=code(second))
        assert own.text == "That one I showed you to hand it in as `telegram.main:3`, not here."
        assert not it.roster.known.links
        assert (await it.ask(TG, MEMBER, "link code", code=code(second))).ok


@story
async def test_ones_own_code_is_handed_in_elsewhere(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        first = await it.ask(TG, MEMBER, "link start")
        own = await it.ask(TG, MEMBER, "link code", code=code(first))
        assert own.text == "That one I showed you to hand it in as your other account, not here."
        again = await it.ask(TG, MEMBER, "link start")
        assert not (await it.ask(DC, MIA, "link code", code=code(first))).ok
        assert (await it.ask(DC, MIA, "link code", code=code(again))).ok


@story
async def test_a_stranger_hands_in_a_code_before_being_let_in(tmp_path: Path) -> None:
    """Where strangers are paired: somebody known elsewhere needs no admin."""
    async with town(tmp_path) as it:
        first = await it.ask(TG, MEMBER, "link start")
        wrong = await it.hear(it.command(DC, MIA, "link", args="AAAA-AAAA"))
        assert wrong is not None
        assert wrong.text.startswith("No code like that")
        second = await it.hear(it.command(DC, MIA, "link", args=f"code {code(first)}"))
        assert second is not None
        assert second.to == alone(DC, MIA)
        assert (await it.ask(TG, MEMBER, "link code", code=code(second))).ok
        assert it.role(DC, MIA) == "member"
        other = somebody("88")
        start = await it.hear(it.command(DC, other, "link", args="start"))
        assert start is not None
        assert "pair approve" in start.text
        told = [await it.hear(it.command(DC, EVE, "link", args="AAAA-AAAA")) for _ in range(7)]
        assert [one is not None for one in told] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("who", [MASK, replace(OWNER, verified=False)])
def test_whom_nobody_vouches_for_is_not_linked(tmp_path: Path, who: Sender) -> None:
    @story
    async def telling() -> None:
        async with town(tmp_path, OPEN) as it:
            first = await it.ask(TG, MEMBER, "link start")
            for line in ("link start", "link code"):
                answer = await it.ask(IRC, who, line, code=code(first))
                assert (answer.ok, answer.text[:14]) == (False, "Nobody vouches")
            assert (await it.ask(IRC, who, "link list")).ok

    telling()


@story
async def test_who_is_blocked_meanwhile_is_not_linked(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        first = await it.ask(TG, EVE, "link start")
        second = await it.ask(DC, MIA, "link code", code=code(first))
        assert (await it.ask(TG, OWNER, "block", who="discord.main:77")).ok
        answer = await it.ask(TG, EVE, "link code", code=code(second))
        assert (answer.ok, answer.text[:12]) == (False, "No code like")
        third = await it.ask(TG, EVE, "link start")
        assert (await it.ask(TG, OWNER, "block", who="666")).ok
        assert not (await it.ask(DC, ADMIN, "link code", code=code(third))).ok
        assert not it.roster.known.links


@story
async def test_who_is_blocked_is_blocked_by_all_their_accounts(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        await it.linked((TG, EVE), (DC, MIA))
        answer = await it.ask(TG, OWNER, "block", who="discord.main:77")
        assert "With them goes who is linked: `telegram.main:666`." in answer.text
        assert it.role(TG, EVE) == it.role(DC, MIA) == "blocked"


@story
async def test_links_reach_on_and_nobody_has_too_many(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        accounts = [somebody(f"account:a{number}") for number in range(MAX_LINKED_ACCOUNTS)]
        for one, other in itertools.pairwise(accounts):
            await it.linked((IRC, one), (IRC, other))
            it.clock.advance(1)
        assert len(it.roster.known.links["irc.libera:account:a0"]) == MAX_LINKED_ACCOUNTS - 1
        first = await it.ask(TG, MEMBER, "link start")
        answer = await it.ask(IRC, accounts[3], "link code", code=code(first))
        assert answer.text == "Nobody has more than 8 accounts."
        first = await it.ask(IRC, accounts[0], "link start")
        answer = await it.ask(IRC, accounts[-1], "link code", code=code(first))
        assert answer.text == "These two are linked already."


@story
async def test_any_end_takes_a_link_back_at_once(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        await it.linked((TG, MEMBER), (DC, MIA))
        await it.linked((DC, MIA), (IRC, somebody("account:mia")))
        assert it.role(IRC, somebody("account:mia")) == "member"
        answer = await it.ask(IRC, somebody("account:mia"), "link remove", account="telegram.main:3")
        assert answer.text == "`telegram.main:3` is an account of its own again, and has its own roles only."
        assert it.role(DC, MIA) == it.role(IRC, somebody("account:mia")) == "guest"
        assert it.roster.known.links["discord.main:77"] == {"irc.libera:account:mia"}
        assert (await it.ask(DC, MIA, "link remove", account="77")).ok
        assert not it.roster.known.links
        assert not (await it.ask(DC, MIA, "link remove", account="telegram.main:3")).ok


@story
async def test_who_is_let_in_no_more_is_let_in_by_what_else_they_are(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.paired(DC, MIA)
        await it.linked((TG, MEMBER), (DC, MIA))
        answer = await it.ask(TG, OWNER, "pair revoke", who="discord.main:77")
        assert answer.text.endswith("who was member. What they have as `telegram.main:3` they have still.")
        assert it.role(DC, MIA) == "member"


@story
async def test_one_takes_back_only_ones_own_links(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        await it.linked((TG, MEMBER), (DC, MIA))
        for account in ("telegram.main:3", "666"):
            assert not (await it.ask(TG, EVE, "link remove", account=account)).ok
        assert it.roster.known.links


@story
async def test_few_codes_for_links_wait_on_a_channel(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        answers = [await it.ask(TG, somebody(str(number)), "link start") for number in range(100, 121)]
        assert [one.ok for one in answers] == [True] * 20 + [False]
        assert (await it.ask(TG, somebody("100"), "link start")).ok
        it.clock.advance(3_600)
        assert (await it.ask(TG, somebody("300"), "link start")).ok
        assert len(await it.store.current_facts("code_given")) == 1


@story
async def test_who_is_blocked_in_one_room_does_not_undo_it_by_taking_a_link_back(tmp_path: Path) -> None:
    boss = somebody("account:boss")
    async with town(tmp_path, replace(OPEN, roles={"irc.libera:account:boss": "admin"})) as it:
        await it.linked((TG, EVE), (IRC, ACCOUNT))
        answer = await it.ask(IRC, boss, "block", at=LOBBY, who="irc.libera:account:eve", where="here")
        assert answer.text.endswith("any more. With them goes who is linked: 1 more account.")
        assert it.role(IRC, ACCOUNT, LOBBY) == "blocked"
        for account in ("telegram.main:666", "irc.libera:account:eve"):
            answer = await it.ask(IRC, ACCOUNT, "link remove", account=account)
            assert (answer.ok, answer.text[:37]) == (False, "One of these accounts is blocked, and")
        assert it.role(IRC, ACCOUNT, LOBBY) == "blocked"
        assert (await it.ask(IRC, boss, "unblock", at=LOBBY, who="irc.libera:account:eve", where="here")).ok
        assert (await it.ask(IRC, ACCOUNT, "link remove", account="telegram.main:666")).ok


@story
async def test_what_goes_with_an_account_between_is_told(tmp_path: Path) -> None:
    async with town(tmp_path, OPEN) as it:
        await it.linked((TG, EVE), (DC, MIA))
        await it.linked((DC, MIA), (IRC, ACCOUNT))
        answer = await it.ask(TG, EVE, "link remove", account="discord.main:77")
        assert answer.text.endswith("has its own roles only. So is `irc.libera:account:eve`, linked by it.")
        assert not it.roster.known.links


@story
async def test_nobody_is_answered_for_ever_about_codes(tmp_path: Path) -> None:
    """A stranger may submit anything, but each answer delays those of others."""
    async with town(tmp_path) as it:
        told = [await it.hear(it.command(IRC, MASK, "link", args=f"AAAA-AA{number:02}")) for number in range(9)]
        assert [one is not None for one in told] == [True] + [False] * 8
        first = await it.ask(TG, MEMBER, "link start")
        said = [await it.ask(TG, MEMBER, "link code", code=code(first)) for _ in range(7)]
        assert [one.text.partition(" ")[0] for one in said] == ["That"] * 5 + ["Too"] * 2
