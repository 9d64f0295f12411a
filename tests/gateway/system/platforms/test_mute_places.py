"""Places where the bot may not post, on three platforms: told to owners and askers, no model is
asked, all is answered.

Also answers that are refused for what they say, and sends that fail without a word of why.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from gateway.cli.main import main
from gateway.core.events import Message
from reverie.testing.channels import story
from tests.kits.platform_users import DISCORD, IRC, NICK, TELEGRAM, Seat
from tests.kits.three_platforms import ROOM, Town, town

PLATFORMS: Final = (TELEGRAM, DISCORD, IRC)
REASONS: Final = {
    TELEGRAM: "it needs the right to send messages there",
    DISCORD: (
        "give it the permissions View Channel and Send Messages, and end its timeout if it has one"
    ),
    IRC: "let it in, give it voice (+v), or lift its ban",
}


def mute(it: Town, platform: str, *, on: bool = True) -> None:
    """The bot loses the right to post in the room, or gets it back, and the platform says what it
    says then."""
    if platform == TELEGRAM:
        it.telegram.mutes(it.lounge, it.persons["olga"], again=on)
    elif platform == DISCORD:
        (it.discord.world.muted.add if on else it.discord.world.muted.discard)(it.discord.room)
        it.discord.dispatch("CHANNEL_UPDATE", it.discord.world.channels[it.discord.room])
    else:
        assert it.ircd is not None
        it.ircd.options.voiceless = {NICK} if on else set()
        for member in it.ircd.rooms[ROOM]:
            member.send(f":olga!olga@test.host MODE {ROOM} {'+' if on else '-'}m")


async def waits(it: Town, seat: Seat, says: str, times: int = 1) -> None:
    await it.so(
        lambda: sum(says in text for text in seat.shown()) >= times,
        f"{seat.name}: {says}: {seat.shown()}",
    )


def counted(seat: Seat, says: str) -> int:
    return sum(says in text for text in seat.shown())


async def shows_health(
    it: Town, capsys: pytest.CaptureFixture[str], says: str, *, is_there: bool
) -> None:
    """Return once `reverie health` says this, or not any more."""
    async with asyncio.timeout(60):
        while True:
            capsys.readouterr()
            await asyncio.to_thread(main, ["health", "--config", str(it.directory)])
            if (says in capsys.readouterr().out) is is_there:
                return
            await asyncio.sleep(0.2)


@story
@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_place_where_it_may_not_post_is_told_once_costs_no_model_and_is_answered_once_well(
    tmp_path: Path, platform: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with town(tmp_path, dm="open") as it:
        await it.begin()
        told = it.seat(TELEGRAM, "olga", "alone")
        told.say("hello")
        await waits(it, told, "so much for that")
        gus, nora = it.seat(platform, "gus", "room"), it.seat(platform, "nora", "room")
        alone = it.seat(platform, "gus", "alone")
        if platform == TELEGRAM:  # a bot can write to nobody first there
            alone.say("hello")
            await waits(it, alone, "so much for that")
        mute(it, platform)
        before = len(it.model.seen)
        gus.say("anybody there?", to_bot=True)
        await waits(it, told, "I cannot post in")
        await waits(it, alone, "I cannot post in")
        assert REASONS[platform] in told.shown()[-1].replace("\\", "")
        gus.say("and now?", to_bot=True)
        nora.say("what about me?", to_bot=True)
        await heard(it, 3)
        assert len(it.model.seen) == before + 1

        await it.kill()  # the log knows it
        await it.begin()
        await shows_health(it, capsys, "cannot post in", is_there=True)
        gus.say("still not?", to_bot=True)
        await heard(it, 4)
        assert len(it.model.seen) == before + 1
        mute(it, platform, on=False)
        await waits(it, gus, "so much for that", 2)
        await waits(it, told, "I can post in")
        await shows_health(it, capsys, "cannot post in", is_there=False)
        await it.delivered()
        assert [counted(one, "I cannot post in") for one in (told, alone, gus)] == [1, 1, 0]
        assert counted(told, "I can post in") == 1
        assert counted(gus, "so much for that") == 2
        assert len(it.model.seen) == before + 2


async def heard(it: Town, count: int) -> None:
    """Return once the log has so many questions of the room."""
    async with asyncio.timeout(60):
        while len([one for one in await it.facts("mention") if isinstance(one, Message)]) < count:
            await asyncio.sleep(0.01)


@story
async def test_an_answer_that_is_refused_for_what_it_says_is_told_once_where_it_was_asked(
    tmp_path: Path,
) -> None:
    async with town(tmp_path, dm="open") as it:
        await it.begin()
        told, gus = it.seat(TELEGRAM, "olga", "alone"), it.seat(DISCORD, "gus", "room")
        told.say("hello")
        await waits(it, told, "so much for that")
        it.discord.world.banned_words.add("so much")
        gus.say("anybody there?", to_bot=True)
        await waits(it, gus, "My answer cannot be shown here")
        await waits(it, told, "was refused")
        it.discord.world.banned_words.clear()
        gus.say("and now?", to_bot=True)
        await waits(it, gus, "so much for that")
        await it.delivered()
        assert counted(gus, "blocked by automatic moderation") == counted(told, "was refused") == 1
