"""Somebody who has never seen the bot, on each platform: let in, answered, and let in no more; and
a room the same.

`pytest -s tests/gateway/system/test_newcomers.py` prints what people wrote and saw.
"""

from pathlib import Path

import pytest

from gateway.core.redaction import Redactor
from gateway.store.format import format_entry
from tests.gateway.system.newcomers_kit import PLATFORM, Scene
from tests.kits.channels import story
from tests.kits.platform_users import DISCORD, IRC, PLATFORMS, TELEGRAM, IrcClient, OnIrc
from tests.kits.three_platforms import DEN, town

CODE = "(?P<code>[A-Z0-9]{4}-[A-Z0-9]{4})"
ANSWER = r"answer \d+: so much for that"
OWNERS = {TELEGRAM: DISCORD, DISCORD: IRC, IRC: TELEGRAM}
"""Where the owner is while somebody comes to a platform."""


async def comes(scene: Scene, platform: str, *, by_program: bool = False) -> None:
    """Somebody writes to the bot alone. `by_program`: the operator lets them in from the command
    line."""
    it = scene.it
    nora, olga = it.seat(platform, "nora", "alone"), it.seat(OWNERS[platform], "olga", "alone")
    await scene.writes(olga, "good morning", ANSWER)
    asked, known = len(it.model.seen), len(olga.shown())
    code = (await scene.writes(nora, "hello, who are you?", f"I'm a bot.*pair approve {CODE}"))[
        "code"
    ]
    request = await scene.told(olga, known, f"in private: (\\w+): {it.id(platform, 'nora')}")
    await scene.in_vain(nora, "are you there?")
    assert len(it.model.seen) == asked
    known = len(nora.shown())
    if by_program:
        assert "Approved" in await scene.program("pair", "approve", request[1])
    else:
        await scene.uses(olga, "pair approve", "Approved", code=code)
    await scene.told(nora, known, "You are approved")
    await scene.told(nora, known, ANSWER)
    assert "are you there?" in repr(it.model.seen[-1])
    await scene.writes(nora, "what is the time?", ANSWER)
    assert len(it.model.seen) == asked + 2
    await scene.again()
    await scene.writes(nora, "and now?", ANSWER)
    await scene.uses(olga, "pair revoke", "I took back the approval", who=it.id(platform, "nora"))
    await scene.writes(nora, "and now?", f"pair approve {CODE}")  # as strange as at the beginning
    assert len(it.model.seen) == asked + 3


async def has_it_in_a_room(scene: Scene, platform: str) -> None:
    """Somebody wants the bot in a room that is not open."""
    it = scene.it
    nora, olga = it.seat(platform, "nora", "den"), it.seat(OWNERS[platform], "olga", "alone")
    asked, known, joined = len(it.model.seen), len(olga.shown()), it.joins(DEN)
    code = (await scene.asks_in(nora, f"may not (?:talk|enter).*yet.*room approve {CODE}"))["code"]
    request = await scene.told(
        olga, known, f"in a room: (\\w+): {it.id(platform, 'nora')}.*{it.room(platform, 'den')}"
    )
    if platform == TELEGRAM:
        assert "den" in request.string
    if platform != IRC:  # there it does not come
        await scene.in_vain(nora, "hello?")
    assert len(it.model.seen) == asked
    reads = it.seat(IRC, "nora", "alone") if platform == IRC else nora
    known, was_there = len(reads.shown()), platform != IRC
    await scene.uses(
        olga, "room approve", "Approved", code=request[1] if platform == TELEGRAM else code
    )
    await scene.told(reads, known, "I may talk")
    if was_there:
        await scene.told(nora, known, ANSWER)
        assert "hello?" in repr(it.model.seen[-1])
    else:
        await it.so(lambda: it.joins(DEN) > joined, "the room")
    await scene.writes(nora, "good evening", ANSWER)
    joined = it.joins(DEN)
    await scene.again()
    if platform == IRC:
        await it.so(lambda: it.joins(DEN) > joined, "the room")
    await scene.writes(nora, "are you still here?", ANSWER)
    assert len(it.model.seen) == asked + 2 + was_there
    await scene.uses(
        olga,
        "room revoke",
        "I took back the approval",
        room=f"{platform}/{it.room(platform, 'den')}",
    )
    if platform == DISCORD:  # there rooms are not left
        await scene.writes(nora, "and now?", f"room approve {CODE}")
    elif platform == TELEGRAM:
        await it.so(lambda: it.den.left, "it leaves the group")
    else:
        await it.so(
            lambda: it.clients["nora"].saw(rf":reverie!\S+ PART :?{DEN}") > 0, "it leaves the room"
        )


async def nobody_knows_who_it_is(scene: Scene, port: int) -> None:
    """Somebody on IRC without an account."""
    kim = IrcClient("kim", port)
    await kim.begin()
    try:
        await scene.writes(OnIrc(kim), "hello", "Log in to your account")
        await scene.in_vain(OnIrc(kim), "let me in")
    finally:
        await kim.end()


@pytest.mark.parametrize("platform", PLATFORMS)
@story
async def test_a_newcomer_is_let_in_and_a_room_opened(platform: str, tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.begin()
        scene = Scene(it, PLATFORM[platform])
        if platform == IRC:
            await nobody_knows_who_it_is(scene, it.config["channels"][IRC]["port"])
        await comes(scene, platform, by_program=platform == DISCORD)
        await has_it_in_a_room(scene, platform)
        assert len(scene.codes) >= 3
        assert it.reader is not None
        told = "".join(
            [
                *(
                    format_entry(entry, Redactor())
                    for entry in await it.reader.entries(limit=10_000)
                ),
                *(str(one.body) for one in it.model.seen),
            ]
        )
        assert not [code for code in scene.codes if code in told]
