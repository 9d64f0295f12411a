"""Files that are sent along: whole, with a harmless name, and once."""

import asyncio

import pytest

from channels.base import CommandSpec, OutgoingFile, Part, RateLimited, Rejected, Uncertain
from gateway.core.events import Address, MessageId
from tests.channels.discord.channel_kit import both, part, place, running
from tests.kits.channels import story
from tests.servers.discord_api import DiscordApi

DATA = bytes(range(256)) * 8
FILE = OutgoingFile(name="a b.pdf", content_type="application/pdf", data=DATA)
SAY = r"POST /channels/\d+/messages"


@story
async def test_a_file_is_sent_with_its_text_and_the_nonce() -> None:
    async with both() as (api, run):
        asked = api.says(api.room, api.ann, "the file?")
        sent = part("**here** @everyone", api.room, file=FILE, reply_to=asked)
        receipts = [await run.channel.send(sent) for _ in range(2)]
        (shown,) = api.visible(api.room)
        (told,) = shown["attachments"]
        assert [receipt.ids for receipt in receipts] == [(shown["id"],)] * 2
        assert (shown["content"], shown["message_reference"]["message_id"]) == ("**here** @everyone", asked)
        assert (told["filename"], told["content_type"], told["size"]) == ("a b.pdf", "application/pdf", len(DATA))
        assert api.world.files[told["url"].partition("/cdn/")[2]][0] == DATA
        assert not api.offences


@story
async def test_a_large_file_is_whole_also_the_second_time() -> None:
    data = bytes(range(256)) * 4 * 1024 * 9
    async with both() as (api, run):
        api.faults.add(SAY, "500 before")
        await run.channel.send(part("x", api.room, file=OutgoingFile(name="x", content_type="", data=data)))
        (shown,) = api.visible(api.room)
        assert api.world.files[shown["attachments"][0]["url"].partition("/cdn/")[2]] == (
            data,
            "application/octet-stream",
        )


@story
async def test_what_is_too_large_is_rejected() -> None:
    async with both() as (api, run):
        most = run.channel.capabilities.max_file_bytes
        gone = []

        async def going() -> None:
            gone.append(True)

        large = OutgoingFile(name="x", content_type="text/plain", data=bytes(most + 1))
        with pytest.raises(Rejected, match=str(most)):
            await run.channel.send(part("x", api.room, file=large), going)
        assert not gone
        assert not api.made(SAY)
        api.faults.add(SAY, "413 before")  # type: ignore[arg-type] # by what stands before Discord
        with pytest.raises(Rejected, match="413"):
            await run.channel.send(part("x", api.room, file=FILE))


@story
async def test_a_file_fares_as_a_message_does() -> None:
    async with both() as (api, run):
        api.faults.add(SAY, "banned", retry_after_s=40)
        with pytest.raises(RateLimited):
            await run.channel.send(part("x", api.room, file=FILE))
        api.faults.add(SAY, "reset after", times=9)
        with pytest.raises(Uncertain):
            await run.channel.send(part("x", api.room, file=FILE))


@story
async def test_no_name_becomes_a_header() -> None:
    async with both() as (api, run):
        odd = OutgoingFile(
            name='a"; name="payload_json"\r\n\r\n{}.txt', content_type="text/plain\r\nX-Bad: 1", data=DATA
        )
        await run.channel.send(part("x", api.room, file=odd))
        (shown,) = api.visible(api.room)
        assert shown["content"] == "x"
        assert shown["attachments"][0]["content_type"] == "application/octet-stream"
        assert "\r" not in shown["attachments"][0]["filename"]


@story
async def test_an_answer_to_a_command_takes_a_file_too() -> None:
    commands = (CommandSpec(name="log", summary="Show the log", private=True),)
    async with DiscordApi() as api, running(api, commands=commands) as run:
        await run.up()
        given = api.slash(api.room, api.ann, "log")
        command = await run.command()
        at = Address(channel=command.at.channel, room=command.at.room)
        await run.channel.send(
            Part(key="k#0", to=at, body="here", reply_to=MessageId(command.id), private=True, file=FILE)
        )
        message = api.world.messages[api.room][given.messages[0]]
        assert (message["content"], message["attachments"][0]["filename"]) == ("here", "a b.pdf")


@story
async def test_cancelled_in_the_middle_it_leaves_nothing_behind() -> None:
    async with both() as (api, run):
        api.faults.add(SAY, "silent")
        sending = asyncio.create_task(run.channel.send(part("x", api.room, file=FILE)))
        await api.until(lambda: bool(api.made(SAY)))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await run.channel.send(part("next", place(api.room).room, key="k2"))
        assert api.texts(api.room) == ["x", "next"]
