"""Typing and previews take nothing from messages: no time, no pace, no connection."""

import asyncio

import pytest

from channels.base import RateLimited, SendError
from channels.telegram.config import TelegramRateLimit
from channels.telegram.rate_limit import TelegramPacer
from tests.channels.telegram.channel_kit import at, running
from tests.kits.channels import story
from tests.servers.bot_api import BotApi


@story
async def test_being_told_to_wait_with_signs_delays_no_message() -> None:
    async with BotApi() as api, running(api, preview="all") as run:
        await run.up()
        ann, lounge = api.person("Ann"), api.group("lounge")
        api.private_says(ann, "hi")
        api.faults.fail("sendChatAction", 429, retry_after=600)
        await run.channel.typing(at(ann), active=True)
        api.faults.fail("sendMessage", 429, retry_after=600)
        with pytest.raises(RateLimited):
            await run.channel.preview(at(lounge), "x", None)
        for chat in (ann, lounge):  # and nothing but signs waits
            with pytest.raises(RateLimited):
                await run.channel.preview(at(chat), "x", None)
            await run.tell("the answer", at(chat))
            assert api.said(chat) == ["the answer"]


@story
async def test_signs_that_hang_leave_connections_for_messages() -> None:
    async with BotApi() as api, running(api, request_timeout=20) as run:
        await run.up()
        people = [api.person(f"P{number}") for number in range(40)]
        for person in people:
            api.private_says(person, "hi")
        api.faults.stall("sendChatAction", times=None)
        typing = [asyncio.create_task(run.channel.typing(at(person), active=True)) for person in people]
        await api.called("sendChatAction", 8)
        async with asyncio.timeout(4):  # the pool's own time is five seconds
            await asyncio.gather(*(run.tell("x", at(person)) for person in people))
            with pytest.raises(RateLimited):
                await run.channel.preview(at(people[0]), "x", None)
        assert len(api.asked("sendChatAction")) == 8
        api.faults.clear()
        await asyncio.gather(*typing)


@story
async def test_a_draft_that_hangs_is_given_up_soon() -> None:
    async with BotApi() as api, running(api, request_timeout=20) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        api.faults.stall("sendMessageDraft")
        async with asyncio.timeout(3):
            with pytest.raises(SendError):
                await run.channel.preview(at(ann), "x", None)


def test_a_hushed_chat_may_be_told_something() -> None:
    pace = TelegramPacer(TelegramRateLimit())
    pace.hold_optional(1, 9.0)
    assert (pace.wait_s(1, 8.0), pace.quiet_s(1, 8.0), pace.take_optional(1, 8.0)) == (0, 1, False)
    assert (pace.quiet_s(1, 9.0), pace.take_optional(1, 9.0)) == (0, True)
    pace.hold(1, 20.0)
    assert (pace.wait_s(1, 12.0), pace.quiet_s(1, 12.0)) == (8.0, 8.0)
