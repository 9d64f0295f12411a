"""Somebody who has never seen the bot, on each platform: let in, answered, and let in no more; and
a room the same."""

import asyncio
import re
import sys
from asyncio import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.core.facts import Judgement
from gateway.core.redaction import Redactor
from gateway.store.format import format_entry
from reverie.testing.channels import story
from reverie.testing.waiting import until
from tests.kits.gateway_process import CHECKOUT, MAIN
from tests.kits.platform_users import DISCORD, IRC, PLATFORMS, TELEGRAM, IrcClient, OnIrc, Seat
from tests.kits.three_platforms import DEN, Town, town

CODE = "(?P<code>[A-Z0-9]{4}-[A-Z0-9]{4})"
ANSWER = r"answer \d+: so much for that"
OWNERS = {TELEGRAM: DISCORD, DISCORD: IRC, IRC: TELEGRAM}
"""Where the owner is while somebody comes to a platform."""


async def shown(it: Town, act: Callable[[], object], says: str, read: Seat) -> re.Match[str]:
    """Somebody does something, and somebody is shown that."""
    since = len(read.shown())
    act()
    return await it.heard(read, since, says)


async def writes(it: Town, seat: Seat, text: str, says: str) -> re.Match[str]:
    """They write to the bot, and are shown that."""
    return await shown(it, lambda: seat.say(text, to_bot=True), says, seat)


async def uses(it: Town, seat: Seat, command: str, says: str, **given: str) -> re.Match[str]:
    """They use a command, and are shown that."""
    name, _, sub = command.partition(" ")
    return await shown(it, lambda: seat.give(name, sub, given), says, seat)


async def in_vain(it: Town, seat: Seat, text: str) -> None:
    """They write to the bot, and are shown nothing: nobody asks the model."""

    async def refused() -> int:
        found = [one for one in await it.facts("judged") if isinstance(one, Judgement)]
        return sum(one.fate == "refused" for one in found)

    async def is_refused() -> bool:
        return await refused() > before

    asked, since, before = len(it.model.seen), len(seat.shown()), await refused()
    seat.say(text, to_bot=True)
    await until(is_refused)
    await it.delivered()
    await seat.settled()
    assert seat.shown()[since:] == []
    assert len(it.model.seen) == asked


async def restart(it: Town) -> None:
    await it.end()
    await it.begin()


async def comes(it: Town, platform: str, *, by_program: bool = False) -> list[str]:
    """Somebody writes to the bot alone; the codes that were shown. `by_program`: the operator lets
    them in from the command line."""
    nora, olga = it.seat(platform, "nora", "alone"), it.seat(OWNERS[platform], "olga", "alone")
    await writes(it, olga, "good morning", ANSWER)
    asked, known = len(it.model.seen), len(olga.shown())
    first = await writes(it, nora, "hello, who are you?", f"I'm a bot.*pair approve {CODE}")
    request = await it.heard(olga, known, f"in private: (\\w+): {it.id(platform, 'nora')}")
    await in_vain(it, nora, "are you there?")
    assert len(it.model.seen) == asked
    known = len(nora.shown())
    if by_program:
        command = [sys.executable, "-c", MAIN, "pair", "approve", request[1]]
        process = await asyncio.create_subprocess_exec(
            *command, "--config", str(it.directory), stdout=subprocess.PIPE, cwd=CHECKOUT
        )
        assert b"Approved" in (await process.communicate())[0]
    else:
        await uses(it, olga, "pair approve", "Approved", code=first["code"])
    await it.heard(nora, known, f"You are approved.*{ANSWER}")
    assert "are you there?" in repr(it.model.seen[-1])
    await writes(it, nora, "what is the time?", ANSWER)
    assert len(it.model.seen) == asked + 2
    await restart(it)
    await writes(it, nora, "and now?", ANSWER)
    await uses(it, olga, "pair revoke", "I took back the approval", who=it.id(platform, "nora"))
    again = await writes(it, nora, "and now?", f"pair approve {CODE}")  # as at the beginning
    assert len(it.model.seen) == asked + 3
    return [first["code"], again["code"]]


async def has_it_in_a_room(it: Town, platform: str) -> str:
    """Somebody wants the bot in a room that is not open; the code that was shown."""
    nora, olga = it.seat(platform, "nora", "den"), it.seat(OWNERS[platform], "olga", "alone")
    reads, was_there = it.seat(IRC, "nora", "alone") if platform == IRC else nora, platform != IRC
    asked, known, joined = len(it.model.seen), len(olga.shown()), it.joins(DEN)
    may_not = f"may not (?:talk|enter).*yet.*room approve {CODE}"
    code = (await shown(it, nora.asks_in, may_not, reads))["code"]
    place = it.room(platform, "den")
    request = await it.heard(olga, known, f"in a room: (\\w+): {it.id(platform, 'nora')}.*{place}")
    if platform == TELEGRAM:
        assert "den" in request.string
    if was_there:
        await in_vain(it, nora, "hello?")
    assert len(it.model.seen) == asked
    known = len(reads.shown())
    given = request[1] if platform == TELEGRAM else code
    await uses(it, olga, "room approve", "Approved", code=given)
    if was_there:
        await it.heard(nora, known, f"I may talk.*{ANSWER}")
        assert "hello?" in repr(it.model.seen[-1])
    else:
        await it.heard(reads, known, "I may talk")
        await it.so(lambda: it.joins(DEN) > joined, "the room")
    await writes(it, nora, "good evening", ANSWER)
    joined = it.joins(DEN)
    await restart(it)
    if platform == IRC:
        await it.so(lambda: it.joins(DEN) > joined, "the room")
    await writes(it, nora, "are you still here?", ANSWER)
    assert len(it.model.seen) == asked + 2 + was_there
    took = "I took back the approval"
    await uses(it, olga, "room revoke", took, room=f"{platform}/{place}")
    if platform == DISCORD:  # there rooms are not left
        await writes(it, nora, "and now?", f"room approve {CODE}")
    elif platform == TELEGRAM:
        await it.so(lambda: it.den.left, "it leaves the group")
    else:
        left = rf":reverie!\S+ PART :?{DEN}"
        await it.so(lambda: it.clients["nora"].saw(left) > 0, "it leaves the room")
    return code


async def nobody_knows_who_it_is(it: Town, port: int) -> None:
    """Somebody on IRC without an account."""
    kim = IrcClient("kim", port)
    await kim.begin()
    try:
        await writes(it, OnIrc(kim), "hello", "Log in to your account")
        await in_vain(it, OnIrc(kim), "let me in")
    finally:
        await kim.end()


@pytest.mark.parametrize("platform", PLATFORMS)
@story
async def test_a_newcomer_is_let_in_and_a_room_opened(platform: str, tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.begin()
        if platform == IRC:
            await nobody_knows_who_it_is(it, it.config["channels"][IRC]["port"])
        codes = await comes(it, platform, by_program=platform == DISCORD)
        codes.append(await has_it_in_a_room(it, platform))
        assert it.reader is not None
        log = await it.reader.entries(limit=10_000)
        told = [format_entry(entry, Redactor()) for entry in log]
        told += [str(one.body) for one in it.model.seen]
        assert not [code for code in codes if any(code in one for one in told)]
