"""What is done besides speaking, on platforms that have it: group `acts`."""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from channels.base import (
    CanDelete,
    CanEdit,
    CanListMembers,
    CanReact,
    CanSetTopic,
    FindsSent,
    OutgoingFile,
    PostPart,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
)
from gateway.core.events import (
    Address,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    PostFile,
    ReactionChanged,
    RoomId,
)
from reverie.testing.platforms.base import Bench

DATA = bytes(range(256)) * 16


async def _alice(bench: Bench, text: str) -> Message:
    await bench.kit.say(text)
    return await bench.ear.message(text)


async def _ours(bench: Bench, text: str) -> MessageId:
    ((number,),) = [receipt.ids for receipt in await bench.tell(text)]
    await bench.kit.seen("room")
    return number


async def _nothing_came_back(bench: Bench) -> None:
    await _alice(bench, "and now?")
    ours = [
        event
        for event in bench.ear.seen
        if isinstance(event, MessageEdited | MessageDeleted | ReactionChanged)
    ]
    topics = [
        event
        for event in bench.ear.all(MembershipChanged)
        if event.change == "topic" and event.news
    ]
    assert not ours + topics, "what we did was told to us"


async def it_reacts(bench: Bench) -> None:
    channel = bench.channel
    assert isinstance(channel, CanReact)
    message = await _alice(bench, "look at this")
    for add in (True, True, False, False):
        await channel.react(message.at, message.id, "👍", add=add)
        assert await bench.kit.reactions() == (["👍"] if add else [])
    for reaction in ("", " ", "\r\n"):
        with pytest.raises(Rejected):
            await channel.react(message.at, message.id, reaction, add=True)
    await _nothing_came_back(bench)


async def it_edits(bench: Bench) -> None:
    channel, at = bench.channel, bench.kit.address("room")
    assert isinstance(channel, CanEdit)
    message, number = await _alice(bench, "mine"), await _ours(bench, "ours")
    for _ in range(2):
        await channel.edit(at, number, "ours, and *better*")
        assert [bench.kit.plain(one).replace("*", "") for one in await bench.kit.seen("room")] == [
            "ours, and better"
        ]
    refused = (
        (message.id, "stolen"),
        (number, "word " * 2000),
        (number, " \n"),
        (MessageId("77777"), "x"),
    )
    for which, text in (*refused, (MessageId("odd"), "x")):
        with pytest.raises(Rejected) as caught:
            await channel.edit(at, which, text)
        assert caught.value.reason.strip()
    assert len(await bench.kit.seen("room")) == 1
    assert await bench.kit.theirs() == ["mine"]
    await _nothing_came_back(bench)


async def it_deletes(bench: Bench) -> None:
    channel, at = bench.channel, bench.kit.address("room")
    assert isinstance(channel, CanDelete)
    message, number = await _alice(bench, "mine"), await _ours(bench, "ours")
    await bench.tell("and this stays")
    with pytest.raises(Rejected):
        await channel.delete(at, message.id)
    for _ in range(2):
        await channel.delete(at, number)
    assert [bench.kit.plain(one) for one in await bench.kit.seen("room")] == ["and this stays"]
    assert await bench.kit.theirs() == ["mine"]
    await _nothing_came_back(bench)


async def it_set_topics(bench: Bench) -> None:
    channel, at = bench.channel, bench.kit.address("room")
    assert isinstance(channel, CanSetTopic)
    await bench.kit.appoint()
    for _ in range(2):
        await channel.set_topic(at, "all about\r\nQUIT \x02cats\0")
        assert await bench.kit.topic() == "all about QUIT cats"
    for where, topic in (
        (at, "x" * 5000),
        (Address(channel=at.channel, room=bench.kit.nowhere), "cats"),
    ):
        with pytest.raises(Rejected) as caught:
            await channel.set_topic(where, topic)
        assert caught.value.reason.strip()
    assert await bench.kit.topic() == "all about QUIT cats"
    await _nothing_came_back(bench)


async def it_lists(bench: Bench) -> None:
    channel, at = bench.channel, bench.kit.address("room")
    assert isinstance(channel, CanListMembers)
    await bench.kit.appoint()
    message = await _alice(bench, "here I am")
    told = await channel.list_members(at, most=50)
    names = {one.name for one in told.members}
    assert {"alice", "bob"} <= names
    assert "reverie" not in map(str.casefold, names), "we know that we are there"
    assert replace(message.sender, ranks=()) in told.members, (
        "people are called what they are called when they speak"
    )
    assert told.total is None or told.total >= len(told.members)
    for most in (0, 1):
        assert len((await channel.list_members(at, most=most)).members) == most
    with pytest.raises(Rejected):
        await channel.list_members(Address(channel=at.channel, room=bench.kit.nowhere), most=5)


async def it_sends_files(bench: Bench) -> None:
    channel, most = bench.channel, bench.channel.capabilities.max_file_bytes
    file = OutgoingFile(name="../notes.txt", content_type="text/plain", data=DATA)
    along = PostFile(
        name=file.name, content_type=file.content_type, sha256="0" * 64, size_bytes=len(DATA)
    )
    text = " ".join(f"word{number}" for number in range(700))
    for part in _with(bench, text, along, file):
        await channel.send(part)
    assert len(bench.kit.files()) == 1
    ((name, caption, data),) = bench.kit.files()
    seen = [bench.kit.plain(one) for one in await bench.kit.seen("room")]
    assert (name, data) == ("notes.txt", DATA)
    assert caption.strip() == seen[0]
    assert " ".join(seen).split() == text.split()
    (large,) = _with(
        bench, "large", along, OutgoingFile(name="x", content_type="", data=bytes(most + 1))
    )
    with pytest.raises(Rejected):
        await channel.send(large)
    await bench.kit.cut_send()
    (part,) = _with(bench, "was it sent?", along, file)
    if isinstance(channel, FindsSent):
        await channel.send(part)
        assert len(bench.kit.files()) == 2
        return
    with pytest.raises(SendError) as caught:
        await channel.send(part)
    assert isinstance(caught.value, Uncertain), f"it may have been seen: {caught.value!r}"


def _with(bench: Bench, text: str, along: PostFile, file: OutgoingFile) -> list[PostPart]:
    """As the outbox makes them: the file goes with the first."""
    first, *more = bench.parts(replace(bench.post(text), file=along))
    return [replace(first, file=file), *more]


async def it_acts_only_while_it_is_connected(bench: Bench) -> None:
    channel, at, message = bench.channel, bench.kit.address("room"), MessageId("77")
    await bench.end()
    acts: list[Coroutine[Any, Any, object]] = [
        *([channel.react(at, message, "👍", add=True)] if isinstance(channel, CanReact) else []),
        *([channel.edit(at, message, "x")] if isinstance(channel, CanEdit) else []),
        *([channel.delete(at, message)] if isinstance(channel, CanDelete) else []),
        *([channel.set_topic(at, "x")] if isinstance(channel, CanSetTopic) else []),
        *([channel.list_members(at, most=1)] if isinstance(channel, CanListMembers) else []),
    ]
    for ended in await asyncio.gather(*acts, return_exceptions=True):
        assert isinstance(ended, Unreachable), ended


async def it_bears_odd_words(bench: Bench) -> None:
    """Whatever is asked for, what comes out is done or a `SendError`, and all goes on."""
    channel, at = bench.channel, bench.kit.address("room")
    message = await _alice(bench, "look at this")
    odd = (
        "\0",
        "\ud800",
        "\r\nQUIT :x",
        "🏴\U000e0067" * 9,
        "%s {0} \\",
        "::",
        "a:1",
        "../..",
        "x" * 70_000,
        "é" * 3_000,
        "\u202e",
    )
    for words in odd:
        which = MessageId(words)
        acts: list[Coroutine[Any, Any, object]] = [
            *(
                [channel.react(at, message.id, words, add=True)]
                if isinstance(channel, CanReact)
                else []
            ),
            *([channel.react(at, which, "👍", add=False)] if isinstance(channel, CanReact) else []),
            *([channel.edit(at, which, words)] if isinstance(channel, CanEdit) else []),
            *([channel.delete(at, which)] if isinstance(channel, CanDelete) else []),
            *([channel.set_topic(at, words)] if isinstance(channel, CanSetTopic) else []),
        ]
        nowhere = Address(channel=at.channel, room=RoomId(words))
        if isinstance(channel, CanSetTopic):
            acts.append(channel.set_topic(nowhere, "x"))
        if isinstance(channel, CanListMembers):
            acts.append(channel.list_members(nowhere, most=-1))
        for act in acts:
            with contextlib.suppress(SendError):
                await act
    await bench.tell("still here")
    assert bench.kit.plain((await bench.kit.seen("room"))[-1]) == "still here"
    assert bench.ear.links == [True]


CHECKS = (
    it_reacts,
    it_edits,
    it_deletes,
    it_set_topics,
    it_lists,
    it_sends_files,
    it_acts_only_while_it_is_connected,
    it_bears_odd_words,
)
