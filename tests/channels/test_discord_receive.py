"""What Discord tells arrives as notifications, each once."""

import asyncio

from gateway.events import Deleted, Edited, Reacted
from tests.channels.discord_kit import both, place, running, story
from tests.servers.discord_api import DiscordApi


@story
async def test_a_message_arrives_with_its_place_its_sender_and_its_time() -> None:
    async with both() as (api, run):
        said = api.says(api.room, api.ann, "hello")
        message = await run.message()
        assert (message.id, message.at, message.text, message.kind) == (said, place(api.room), "hello", "room")
        assert (message.sender.id, message.sender.name, message.sender.verified) == (api.ann, "ann", True)
        assert message.sent.tzinfo is not None
        assert not api.offences
