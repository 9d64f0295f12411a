"""How a channel lives and ends, and whether it is what it says: groups `live` and `honest`."""

import asyncio
import contextlib

import pytest

from channels.base import (
    CanApplyConfig,
    CanCompleteCommands,
    CanDelete,
    CanDirectMessage,
    CanDownload,
    CanEdit,
    CanJoin,
    CanLeave,
    CanListMembers,
    CanOpenDirect,
    CanPage,
    CanPreview,
    CanReact,
    CanSetCommandMenus,
    CanSetTopic,
    CanType,
    Rejected,
    Unreachable,
)
from gateway.core.events import Address, ConnectionChanged, MembershipChanged, Message
from reverie.testing.platforms.base import Bench
from reverie.testing.stopwatch import Stopwatch

ABILITIES = {
    "type": CanType,
    "preview": CanPreview,
    "download": CanDownload,
    "page": CanPage,
    "join": CanJoin,
    "leave": CanLeave,
    "adapt": CanApplyConfig,
    "react": CanReact,
    "edit": CanEdit,
    "delete": CanDelete,
    "set_topic": CanSetTopic,
    "list": CanListMembers,
    "complete": CanCompleteCommands,
    "offer": CanSetCommandMenus,
    "whisper": CanDirectMessage,
    "confide": CanOpenDirect,
}
"""Every ability of `channels.base`, whose check is called `it_<name>s`; a test holds the two to
each other."""


async def cancel_ends_it_within_a_second(bench: Bench) -> None:
    with Stopwatch() as watch:
        bench.run.cancel()
        done, _ = await asyncio.wait({bench.run}, timeout=120)
    assert done
    assert watch.seconds < 1.0
    assert bench.run.cancelled()
    await bench.kit.gone()


async def no_task_is_left(bench: Bench) -> None:
    await bench.tell("hello")
    bench.run.cancel()
    await asyncio.wait({bench.run}, timeout=120)
    await bench.kit.gone()
    left = {
        task
        for task in asyncio.all_tasks()
        if task is not asyncio.current_task() and not bench.kit.owns(task)
    }
    assert not left - bench.before


async def a_cut_is_told_and_mended(bench: Bench) -> None:
    await bench.kit.cut()
    await bench.up(2)
    assert bench.ear.links == [True, False, True]
    assert bench.ear.all(ConnectionChanged)[1].reason.strip()
    await bench.kit.say("back again")
    await bench.ear.message("back again")
    await bench.tell("so am I")
    assert bench.kit.plain((await bench.kit.seen("room"))[-1]) == "so am I"


async def what_was_said_meanwhile_arrives(bench: Bench) -> None:
    await bench.kit.say("before")
    await bench.ear.message("before")
    await bench.kit.away()
    await bench.ear.until(lambda: bench.ear.links[-1] is False, "the link is not down")
    await bench.kit.say("while you were out")
    await bench.kit.say("and more")
    await bench.kit.back()
    await bench.up(2)
    await bench.kit.say("welcome back")
    await bench.ear.message("welcome back")
    texts = list({message.id: message.text for message in bench.ear.all(Message)}.values())
    assert texts == ["before", "while you were out", "and more", "welcome back"]


async def a_restart_goes_on_from_the_cursor(bench: Bench) -> None:
    await bench.kit.say("known")
    await bench.ear.message("known")
    await bench.ear.until(lambda: bench.ear.cursor is not None, "no cursor")
    await bench.end()
    await bench.kit.gone()
    await bench.kit.say("said to nobody")
    again = Bench(bench.kit, bench.kit.make(bench.ear.cursor))
    try:
        await again.up()
        await bench.kit.say("said to you")
        await again.ear.message("said to you")
        known = {message.id for message in bench.ear.all(Message)}
        fresh = {
            message.id: message.text
            for message in again.ear.all(Message)
            if message.id not in known
        }
        assert list(fresh.values()) == ["said to nobody", "said to you"]
    finally:
        await again.end()


async def ended_it_can_run_again(bench: Bench) -> None:
    """With the same object: somebody restarts the channel."""
    await bench.end()
    await bench.kit.gone()
    begun = Bench(bench.kit, bench.channel)
    bench.run, bench.ear, begun.ear.seen = begun.run, begun.ear, [*bench.ear.seen]
    await bench.up(2)
    await bench.kit.say("are you back?")
    await bench.ear.message("are you back?")
    await bench.tell("I am")
    assert bench.ear.links == [True] * 2
    assert {message.text for message in bench.ear.all(Message)} == {"are you back?"}
    assert [bench.kit.plain(one) for one in await bench.kit.seen("room")] == ["I am"]


async def what_was_not_taken_comes_in_the_next_run(bench: Bench) -> None:
    """Nothing is lost that was heard and not written down when it ended."""
    await bench.kit.say("known")
    await bench.ear.message("known")
    before = bench.ear.asked
    bench.ear.open.clear()
    for number in range(3):
        await bench.kit.say(f"too late {number}")
    await bench.ear.until(lambda: bench.ear.asked > before, "nothing is emitted")
    await bench.end()
    await bench.kit.gone()
    again = Bench(bench.kit, bench.channel)
    bench.run = again.run
    await again.up()
    await bench.kit.say("and on")
    await again.ear.message("and on")
    known = {message.id for message in bench.ear.all(Message)}
    fresh = {
        message.id: message.text for message in again.ear.all(Message) if message.id not in known
    }
    assert list(fresh.values()) == [*(f"too late {number}" for number in range(3)), "and on"]


async def a_blocked_emit_loses_nothing(bench: Bench) -> None:
    bench.ear.open.clear()
    for number in range(100):
        await bench.kit.say(f"line {number}")
    await bench.ear.until(lambda: bench.ear.asked > 1, "nothing is emitted")
    for number in range(100, 300):
        await bench.kit.say(f"line {number}")
    await asyncio.sleep(0.2)  # time for a careless adapter to be careless
    assert not bench.ear.all(Message)
    bench.ear.open.set()
    heard = await bench.ear.messages(300)
    assert [message.text for message in heard] == [f"line {number}" for number in range(300)]
    await bench.kit.say("and on")
    await bench.ear.message("and on")


async def a_broken_emit_comes_out(bench: Bench) -> None:
    bench.ear.broken = LookupError("the log is gone")
    await bench.kit.say("lost?")
    done, _ = await asyncio.wait({bench.run}, timeout=bench.kit.patience_s)
    assert done, "run goes on without a log"
    with pytest.raises(LookupError):
        bench.run.result()


async def it_is_what_it_says(bench: Bench) -> None:
    able = bench.channel.capabilities
    assert able == bench.channel.capabilities
    assert able.platform.strip()
    assert able.formatting.strip().endswith(".")
    assert able.max_in_flight >= 1
    assert able.resend_window_s >= 0
    assert able.max_file_bytes >= 0
    assert bench.channel.name == bench.kit.name


async def it_types(bench: Bench) -> None:
    channel = bench.channel
    assert isinstance(channel, CanType)
    assert 1.0 <= channel.typing_interval_s <= 30.0
    await channel.typing(bench.kit.address("room"), active=True)
    await bench.kit.typing_seen()
    await channel.typing(bench.kit.address("room"), active=False)
    await channel.typing(Address(channel=bench.kit.name, room=bench.kit.nowhere), active=True)


async def it_previews(bench: Bench) -> None:
    channel = bench.channel
    assert isinstance(channel, CanPreview)
    assert channel.preview_interval_s >= 0.5
    await bench.kit.say("tell me", where="direct")
    (asked,) = await bench.ear.messages(1)
    shown = await channel.preview(asked.at, "Once upon", None)
    shown = await channel.preview(asked.at, "Once upon a time, there", shown)
    if shown is not None:
        await channel.delete_preview(asked.at, shown)
        await channel.delete_preview(asked.at, shown)
    await bench.tell("Once upon a time, there was a bot.", asked.at)
    assert [bench.kit.plain(one) for one in await bench.kit.seen("direct")] == [
        "Once upon a time, there was a bot."
    ]


async def it_downloads(bench: Bench) -> None:
    channel, data = bench.channel, bytes(range(256)) * 40
    assert isinstance(channel, CanDownload)
    await bench.kit.attach(data)
    await bench.ear.until(
        lambda: any(one.attachments for one in bench.ear.all(Message)), "no attachment"
    )
    message = next(one for one in bench.ear.all(Message) if one.attachments)
    (attachment,) = message.attachments
    assert await channel.download(message.at, attachment, limit_bytes=len(data)) == data
    with pytest.raises(Rejected):
        await channel.download(message.at, attachment, limit_bytes=len(data) - 1)


async def it_pages(bench: Bench) -> None:
    channel = bench.channel
    assert isinstance(channel, CanPage)
    assert channel.page_count(bench.post("short")) == 1
    assert (
        channel.page_count(bench.post("\n\n".join(f"Line {number}." for number in range(1000)))) > 1
    )


async def it_joins(bench: Bench) -> None:
    channel = bench.channel
    assert isinstance(channel, CanJoin)
    await channel.join(bench.kit.address("room"))
    at = await bench.kit.invited()
    await channel.join(at)
    await bench.kit.joined(at)


async def it_adapts(bench: Bench) -> None:
    channel, at = bench.channel, await bench.kit.invited()
    assert isinstance(channel, CanApplyConfig)
    assert channel.apply_config(bench.kit.moved(at))
    await bench.kit.joined(at)
    await bench.kit.left(bench.kit.address("other"))
    await bench.kit.say("is it you still?")
    await bench.ear.message("is it you still?")
    await bench.tell("it is")
    assert bench.ear.links == [True]


async def it_leaves(bench: Bench) -> None:
    channel = bench.channel
    assert isinstance(channel, CanLeave)
    at = await bench.kit.leavable()
    for _ in range(2):
        await channel.leave(at)
        await bench.kit.left(at)
    with contextlib.suppress(Rejected):
        await channel.leave(Address(channel=at.channel, room=bench.kit.nowhere))
    await bench.kit.say("the others stay")
    await bench.ear.message("the others stay")
    await bench.tell("so do I")
    assert not [
        event for event in bench.ear.all(MembershipChanged) if event.sender.name == "reverie"
    ], "we know that we left"
    assert bench.ear.links == [True]
    await bench.end()
    with pytest.raises(Unreachable):
        await channel.leave(at)


LIVE = (
    cancel_ends_it_within_a_second,
    no_task_is_left,
    a_cut_is_told_and_mended,
    what_was_said_meanwhile_arrives,
    a_restart_goes_on_from_the_cursor,
    ended_it_can_run_again,
    what_was_not_taken_comes_in_the_next_run,
    a_blocked_emit_loses_nothing,
    a_broken_emit_comes_out,
)
HONEST = (
    it_is_what_it_says,
    it_types,
    it_previews,
    it_downloads,
    it_pages,
    it_joins,
    it_leaves,
    it_adapts,
)
