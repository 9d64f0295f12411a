"""A channel that goes on where another one has ended, because its configuration has changed."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from unittest import mock

import pytest
from telegram.error import NetworkError

from channels.aio import BackpressureBuffer
from channels.base import CanJoin, Unreachable
from channels.discord.channel import DiscordChannel
from channels.discord.config import DiscordConfig
from channels.irc.channel import IrcChannel
from channels.telegram.api import TelegramApi
from channels.telegram.config import TelegramConfig
from channels.telegram.ids import TelegramCursor
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    Message,
    MessageId,
    Notification,
    RoomId,
    Sender,
    SenderId,
)
from reverie.testing.servers.ircd import Ircd
from reverie.testing.waiting import until
from tests.channels.irc.channel_kit import NAME, config

SENT = datetime(2026, 1, 1, tzinfo=UTC)


class Deaf:
    """Takes the link in, and nothing else before it may."""

    def __init__(self) -> None:
        self.may, self.taken = asyncio.Event(), list[Notification]()
        self.asked = asyncio.Event()

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        del cursor
        if not all(isinstance(event, ConnectionChanged) for event in batch):
            self.asked.set()
            await self.may.wait()
        self.taken += batch

    def texts(self) -> list[str]:
        return [event.text for event in self.taken if isinstance(event, Message)]


async def ended(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.wait([running])


async def test_irc_hands_over_what_was_heard_and_nobody_took() -> None:
    async with Ircd() as ircd:  # it keeps no history
        before, deaf = IrcChannel(NAME, config(ircd.port), SystemClock()), Deaf()
        running = asyncio.create_task(before.run(deaf))
        await ircd.joined("reverie", "#room")
        for number in range(5):
            await ircd.say("#room", f"line {number}", by="alice!a@host")
        await deaf.asked.wait()
        await ended(running)
        assert deaf.texts() == []
        after, heard = IrcChannel(NAME, config(ircd.port, page_lines=13), SystemClock()), Deaf()
        after.take_over(before)
        heard.may.set()
        running = asyncio.create_task(after.run(heard))
        await until(lambda: len(heard.texts()) >= 5)
        assert heard.texts() == [f"line {number}" for number in range(5)]
        await ended(running)


async def test_what_was_received_is_handed_over_at_the_end_also_to_a_slow_disk() -> None:
    buffer, deaf, loop = BackpressureBuffer[Notification](), Deaf(), asyncio.get_running_loop()

    async def pump() -> None:
        while True:
            await deaf(await buffer.get_batch(1))

    at = Address(channel=NAME, room=RoomId("#room"))
    sender = Sender(id=SenderId("al!a@h"), name="al")
    for text in ("one", "two"):
        buffer.put(
            Message(id=MessageId(text), at=at, sender=sender, text=text, sent=SENT, kind="mention")
        )
    running = asyncio.create_task(buffer.run_producer_consumer(asyncio.sleep(3600), pump()))
    await deaf.asked.wait()
    running.cancel()
    for _ in range(9):
        await asyncio.sleep(0)
    with mock.patch.object(loop, "time", return_value=loop.time() + 0.9):  # a write takes so long
        for _ in range(9):
            await asyncio.sleep(0)
    deaf.may.set()
    await asyncio.wait([running])
    assert deaf.texts() == ["one", "two"]


async def test_irc_takes_nothing_over_from_another_network() -> None:
    async with Ircd() as ircd:
        before, deaf = IrcChannel(NAME, config(ircd.port), SystemClock()), Deaf()
        running = asyncio.create_task(before.run(deaf))
        await ircd.joined("reverie", "#room")
        await ircd.say("#room", "secret", by="alice!a@host")
        await deaf.asked.wait()
        await ended(running)
    async with Ircd() as other:
        after, heard = IrcChannel(NAME, config(other.port), SystemClock()), Deaf()
        after.take_over(before)
        heard.may.set()
        running = asyncio.create_task(after.run(heard))
        await other.joined("reverie", "#room")
        await other.say("#room", "hello", by="alice!a@host")
        await until(heard.texts)
        assert heard.texts() == ["hello"]
        await ended(running)


async def test_a_room_that_was_left_is_entered_again_once_the_operator_names_it_anew() -> None:
    async with Ircd() as ircd:
        before, deaf = (
            IrcChannel(NAME, config(ircd.port, rooms=["#room", "#old"]), SystemClock()),
            Deaf(),
        )
        before._lasting.barred_rooms |= {"#old": "", "#new": ""}
        after = IrcChannel(NAME, config(ircd.port, rooms=["#room", "#old", "#new"]), SystemClock())
        after.take_over(before)
        assert isinstance(after, CanJoin)
        running = asyncio.create_task(after.run(deaf))
        await ircd.joined("reverie", "#new")
        await ircd.joined("reverie", "#room")
        assert "#old" not in ircd.rooms
        await ended(running)


@pytest.mark.parametrize(("token", "follows"), [("same", True), ("another", False)])
def test_discord_keeps_its_pace_for_one_bot(token: str, follows: bool) -> None:
    def channel(token: str) -> DiscordChannel:
        config = DiscordConfig.model_validate({"platform": "discord", "token": token})
        return DiscordChannel(ChannelName("discord.x"), config, ManualClock())

    before, after = channel("same"), channel(token)
    after.take_over(before)
    assert (after._directory is before._directory) is follows


def test_telegram_counts_the_updates_of_each_bot_by_themselves() -> None:
    old = TelegramCursor.parse(
        '{"offset": 7, "at": 1, "moved": {"-1": "-2"}}'
    )  # as it was written before
    mine = TelegramCursor.parse(old.for_bot("123").to_json())
    assert (mine.for_bot("123").offset, mine.for_bot("123").bot) == (7, "123")
    assert (mine.for_bot("456").offset, mine.for_bot("456").moved) == (None, {"-1": "-2"})


async def test_what_was_to_be_sent_as_telegram_was_let_go_was_surely_not_sent() -> None:
    said = {"platform": "telegram", "token": "1:a", "base_url": "http://127.0.0.1:9"}
    api = TelegramApi(TelegramConfig.model_validate(said))
    await api.bot.request.initialize()
    await api.close()
    with pytest.raises(NetworkError) as error:
        await api.bot.request.post("http://127.0.0.1:9/x")
    assert isinstance(api.to_send_error(error.value), Unreachable)
