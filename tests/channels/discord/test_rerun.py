"""Discord, run again with the same object: what an account keeps from one run to the next."""

from channels.base import CommandSpec
from gateway.core.events import Command, Message
from tests.channels.discord.channel_kit import Running, both, part
from tests.channels.discord.faults_kit import Hurried
from tests.kits.channels import story

COMMANDS = (CommandSpec(name="log", summary="Show the log", private=True),)


@story
async def test_a_command_of_the_run_before_is_answered_to_whoever_gave_it() -> None:
    async with both(clock=Hurried(50), commands=COMMANDS) as (api, run):
        asked = api.slash(api.room, api.ann, "log")
        told = await run.one(Command)
        await run.end()
        again = Running(run.channel)
        try:
            await again.up()
            await again.channel.send(part("here it is", api.room, reply_to=told.id, private=True))
            assert api.told(asked) == ["here it is"]
            assert not api.offences
        finally:
            await again.end()


@story
async def test_a_command_that_was_not_written_down_when_it_ended_is_told_in_the_next_run() -> None:
    async with both(clock=Hurried(50), commands=COMMANDS) as (api, run):
        run.open.clear()
        asked = api.slash(api.room, api.ann, "log")
        api.says(api.room, api.ann, "and this")
        await api.until(lambda: bool(api.made(r"POST /interactions/.*")))
        await run.end()
        again = Running(run.channel)
        try:
            told = await again.one(Command)
            await again.until(lambda: bool(again.all(Message)))
            assert [message.text for message in again.messages] == ["and this"]
            await again.channel.send(part("late, but here", api.room, reply_to=told.id, private=True))
            assert api.told(asked) == ["late, but here"]
        finally:
            await again.end()


@story
async def test_sessions_are_begun_no_faster_than_discord_allows() -> None:
    async with both(clock=Hurried(50)) as (api, run):
        for _ in range(3):
            await run.end()
            run = Running(run.channel)  # noqa: PLW2901 - the same channel
            await run.up()
        await run.end()
        assert len(api.sessions) == 4
        assert not api.offences
