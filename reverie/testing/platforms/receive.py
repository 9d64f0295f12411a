"""What comes in: groups `receive`. Each check gets a bench with a channel that is up."""

from datetime import UTC, datetime, timedelta

from gateway.core.events import (
    NOTIFICATION,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    ReactionChanged,
)
from gateway.core.facts import dedup_key
from reverie.testing.platforms.base import Bench

ODD = "näïve Ωμέγα 你好 עברית 👩‍👩‍👧 e\u0301 <b>&amp; %s {0} \\n $HOME `; rm"


async def text_room_and_sender_arrive(bench: Bench) -> None:
    await bench.kit.say("hello there", by="alice")
    await bench.kit.say("and from me", by="bob", where="other")
    first, second = await bench.ear.message("hello there"), await bench.ear.message("and from me")
    assert (first.text, first.at, first.sender.name) == (
        "hello there",
        bench.kit.address("room"),
        "alice",
    )
    assert (second.text, second.at, second.sender.name) == (
        "and from me",
        bench.kit.address("other"),
        "bob",
    )
    assert first.at.channel == bench.channel.name


async def senders_keep_their_ids(bench: Bench) -> None:
    await bench.kit.say("one", by="alice")
    await bench.kit.say("two", by="bob")
    await bench.kit.say("three", by="alice", where="other")
    one, two, three = [await bench.ear.message(text) for text in ("one", "two", "three")]
    assert one.sender.id == three.sender.id != two.sender.id
    assert not any(message.sender.is_bot for message in (one, two, three))


async def a_repeat_has_the_same_id(bench: Bench) -> None:
    await bench.kit.say("again")
    await bench.ear.messages(1)
    await bench.kit.again()
    await bench.kit.say("another")
    await bench.ear.message("another")
    said = [message for message in bench.ear.all(Message) if message.text == "again"]
    assert len({dedup_key(message) for message in said}) == 1
    assert said[0].id != bench.ear.all(Message)[-1].id


async def a_mention_is_told_from_talk(bench: Bench) -> None:
    await bench.kit.say("just talking")
    await bench.kit.mention("are you there?")
    talk, mention = await bench.ear.messages(2)
    assert (talk.kind, mention.kind) == ("room", "mention")
    assert mention.text.endswith("are you there?")


async def a_direct_message_is_direct(bench: Bench) -> None:
    await bench.kit.say("between us", where="direct")
    await bench.kit.say("in the open")
    private, public = await bench.ear.messages(2)
    assert (private.kind, private.text, public.kind) == ("direct", "between us", "room")
    assert private.at != public.at
    await bench.tell("to you alone", private.at)
    assert [bench.kit.plain(seen) for seen in await bench.kit.seen("direct")] == ["to you alone"]


async def own_messages_never_come_in(bench: Bench) -> None:
    await bench.tell("my own words")
    await bench.kit.seen("room")
    await bench.kit.echo("mine too, from elsewhere")
    await bench.kit.say("yours")
    await bench.ear.message("yours")
    assert [message.text for message in bench.ear.all(Message)] == ["yours"]


async def order_within_a_room_holds(bench: Bench) -> None:
    expected = [f"line {number}" for number in range(100)]
    for text in expected:
        await bench.kit.say(text)
    assert [message.text for message in await bench.ear.messages(100)] == expected


async def unknown_events_are_dropped_quietly(bench: Bench) -> None:
    await bench.kit.say("before")
    await bench.ear.message("before")
    await bench.kit.noise()
    await bench.kit.say("after")
    await bench.ear.message("after")
    assert bench.ear.links == [True]
    assert not bench.run.done()
    known = {"before", "after"}
    assert all(message.text in known for message in bench.ear.all(Message))


async def times_are_aware_and_utc(bench: Bench) -> None:
    await bench.kit.say("what time is it?")
    (message,) = await bench.ear.messages(1)
    for event in bench.ear.seen:
        assert event.sent.tzinfo is not None
        assert event.sent.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - message.sent) < timedelta(minutes=2)


async def formatting_comes_out_as_markdown(bench: Bench) -> None:
    expected = await bench.kit.formatted()
    (message,) = await bench.ear.messages(1)
    assert message.text == expected


async def odd_text_arrives_as_it_was(bench: Bench) -> None:
    await bench.kit.say(ODD)
    (message,) = await bench.ear.messages(1)
    assert message.text == ODD


async def everything_can_be_written_as_json(bench: Bench) -> None:
    await bench.kit.say(ODD)
    await bench.kit.mention("and you?")
    await bench.kit.say("psst", where="direct")
    await bench.ear.messages(3)
    for event in bench.ear.seen:
        try:
            again = NOTIFICATION.validate_json(NOTIFICATION.dump_json(event))
        except ValueError as error:
            raise AssertionError(f"{event} cannot be read back") from error
        assert again == event
        if isinstance(
            event, Message | MessageEdited | MessageDeleted | ReactionChanged | MembershipChanged
        ):
            assert {type(part) for part in (event.id, event.at.room)} == {str}, (
                "an SDK's type came through"
            )


CHECKS = (
    text_room_and_sender_arrive,
    senders_keep_their_ids,
    a_repeat_has_the_same_id,
    a_mention_is_told_from_talk,
    a_direct_message_is_direct,
    own_messages_never_come_in,
    order_within_a_room_holds,
    unknown_events_are_dropped_quietly,
    times_are_aware_and_utc,
    formatting_comes_out_as_markdown,
    odd_text_arrives_as_it_was,
    everything_can_be_written_as_json,
)
