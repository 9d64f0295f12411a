"""Labels, multiline messages, typing, replies and reactions, on raw bytes."""

import asyncio
import re

import pytest

from channels.base import CanJoin, CanType, Rejected
from channels.irc.wire import BatchCollector, ReceivedLine, parse_line
from gateway.core.clock import ManualClock
from gateway.core.events import Address, Post, PostKey, ReactionChanged, RoomId
from tests.channels.irc.channel_kit import NAME, never_answered, part, running, sent_together, settled
from tests.kits.channels import story
from tests.servers.ircd import CAPS, MODERN, Ircd, Options

LABELS = f"{CAPS} labeled-response"
ROOM = Address(channel=NAME, room=RoomId("#room"))


@story
async def test_a_label_confirms_without_a_ping() -> None:
    async with Ircd(Options(caps=LABELS, muted={"#two": "404"})) as ircd, running(ircd, rooms=["#room", "#two"]) as run:
        await run.up()
        taken, refused = await sent_together(run, [part("a", key="a"), part("b", room="#two", key="b")])
        assert getattr(taken, "ids", ()) != ()
        assert isinstance(refused, Rejected)
        assert [line for line in ircd.lines if "PRIVMSG" in line] == [
            "@label=r1 PRIVMSG #room :a",
            "@label=r2 PRIVMSG #two :b",
        ]
        assert not any(line.startswith("PING") for line in ircd.lines)


@pytest.mark.parametrize("answer", [":irc.test ACK", ":irc.test 301 reverie #room :away"])
@story
async def test_an_answer_that_is_no_echo_confirms_too(answer: str) -> None:
    caps = LABELS.replace("echo-message ", "")
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.hold_labels = True
        sending = asyncio.create_task(run.channel.send(part("a")))
        await ircd.received("@label=r1 ")
        ircd.clients[0].raw(f"@label=r1 {answer}\r\n".encode())
        assert (await sending).ids == ()


@story
async def test_a_late_refusal_finds_its_line() -> None:
    async with Ircd(Options(caps=LABELS)) as ircd, running(ircd) as run:
        await run.up()
        ircd.faults.hold_labels = True
        sends = [asyncio.create_task(run.channel.send(part(body, key=body))) for body in ("one", "two")]
        await ircd.received("@label=r2 ")
        bot = ircd.clients[0]
        bot.raw(b"@label=r2 :reverie!r@h PRIVMSG #room :two\r\n")
        await sends[1]
        await settled(bot, "much later")
        assert not sends[0].done()
        bot.raw(
            b"@label=r1;x BATCH +l labeled-response\r\n@batch=l :far.test 404 reverie #room :Cannot\r\nBATCH -l\r\n"
        )
        with pytest.raises(Rejected, match="Cannot"):
            await sends[0]


@story
async def test_a_label_that_is_never_answered_is_uncertain() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=LABELS)) as ircd, running(ircd, clock) as run:
        await run.up()
        await never_answered(ircd, run, clock)
        assert run.links == [True]


@story
async def test_barriers_are_back_when_labels_are_taken_away() -> None:
    async with Ircd(Options(caps=LABELS)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].send(":irc.test CAP reverie DEL :labeled-response")
        await settled(ircd.clients[0], "told")
        await run.channel.send(part("a"))
        assert ircd.lines[-2:] == ["PRIVMSG #room :a", "PING reverie-1"]


LONG = "x" * 300 + " " + "y" * 300


@pytest.mark.parametrize("caps", [MODERN, MODERN.replace("labeled-response ", "")], ids=["labels", "barriers"])
@story
async def test_a_long_answer_is_one_message(caps: str) -> None:
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        post = Post(key=PostKey("p"), to=ROOM, text=f"one\n\n{LONG}\n\nthree")
        (body,) = run.channel.split(post)
        receipt = await run.channel.send(part(body, reply_to="m0"))
        assert len(receipt.ids) == 1
        said = [re.sub("label=r1;?|;label=r1", "", line) for line in ircd.lines if "BATCH" in line or "PRIVMSG" in line]
        limit = run.channel.max_body_bytes("#room")
        assert said == [
            "@+reply=m0;+draft/reply=m0 BATCH +b1 draft/multiline #room",
            "@batch=b1 PRIVMSG #room :one",
            f"@batch=b1 PRIVMSG #room :{LONG[:301]}",
            f"@batch=b1;draft/multiline-concat PRIVMSG #room :{LONG[301:]}",
            "@batch=b1 PRIVMSG #room :three",
            "BATCH -b1",
        ]
        assert limit < len(LONG)


@pytest.mark.parametrize("caps", [MODERN, MODERN.replace("labeled-response ", "")], ids=["labels", "barriers"])
@story
async def test_a_multiline_message_that_is_refused_is_said_line_by_line(caps: str) -> None:
    async with Ircd(Options(caps=caps, multiline_fails="MULTILINE_MAX_LINES 1")) as ircd, running(ircd) as run:
        await run.up()
        (body,) = run.channel.split(Post(key=PostKey("p"), to=ROOM, text="- one\n- two"))
        receipt = await run.channel.send(part(body))
        assert len(receipt.ids) == 2
        assert sum("PRIVMSG #room" in line and "batch" not in line for line in ircd.lines) == 2


@story
async def test_a_multiline_message_to_a_room_that_takes_none_is_rejected() -> None:
    async with Ircd(Options(caps=MODERN, muted={"#room": "404"})) as ircd, running(ircd) as run:
        await run.up()
        (body,) = run.channel.split(Post(key=PostKey("p"), to=ROOM, text="- one\n- two"))
        with pytest.raises(Rejected, match="404"):
            await run.channel.send(part(body))


@story
async def test_more_than_fits_one_message_is_several_and_without_the_server_lines() -> None:
    caps = MODERN.replace("max-lines=24", "max-lines=2")
    async with Ircd(Options(caps=caps)) as ircd, running(ircd) as run:
        await run.up()
        post = Post(key=PostKey("p"), to=ROOM, text="- one\n- two\n- three")
        bodies = run.channel.split(post)
        assert len(bodies) == 2
        ircd.clients[0].send(":irc.test CAP reverie DEL :draft/multiline")
        await settled(ircd.clients[0], "told")
        assert len(run.channel.split(post)) == 3
        assert len((await run.channel.send(part(bodies[0]))).ids) == 2, "made for a server that took several lines"


@story
async def test_a_multiline_message_comes_in_as_one() -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(
            b"@msgid=big;account=al :al!a@h BATCH +m draft/multiline #room\r\n"
            b"@batch=m :al!a@h PRIVMSG #room :reverie: one\r\n"
            b"@batch=m :al!a@h PRIVMSG #room :two\r\n"
            b"@batch=m;draft/multiline-concat :al!a@h PRIVMSG #room : and a half\r\n"
            b"BATCH -m\r\n"
        )
        message = await run.message()
        assert (message.id, message.text, message.kind) == ("big", "reverie: one\ntwo and a half", "mention")
        assert message.sender.id == "account:al"


def test_unfinished_batches_come_out_and_never_pile_up() -> None:
    batches, out = BatchCollector(), 0
    for number in range(1000):
        for raw in (f"BATCH +{number} draft/multiline #r", f"@batch={number} :a!b@c PRIVMSG #r :{number}"):
            line = parse_line(raw)
            assert line is not None
            out += sum(isinstance(heard, ReceivedLine) for heard in batches.feed(line))
    assert len(batches._open) == 32
    assert out == 1000 - 32
    endless = parse_line("@batch=999 :a!b@c PRIVMSG #r :x")
    assert endless is not None
    assert sum(len(batches.feed(endless)) for _ in range(10_000)) >= 8_000


@story
async def test_unknown_nested_and_unopened_batches_are_plain_lines() -> None:
    async with Ircd(Options(caps=MODERN)) as ircd, running(ircd) as run:
        await run.up()
        ircd.clients[0].raw(
            b"BATCH +o vendor/odd x\r\n@batch=o BATCH +i vendor/inner\r\n"
            b"@batch=i :al!a@h PRIVMSG #room :nested\r\n@batch=never :al!a@h PRIVMSG #room :unopened\r\n"
            b"BATCH -i\r\nBATCH -o\r\nBATCH -o\r\nBATCH\r\nBATCH +\r\nBATCH -\r\n"
            b"@batch=o :al!a@h PRIVMSG #room :closed\r\n"
        )
        await run.message(3)
        assert [message.text for message in run.messages] == ["nested", "unopened", "closed"]


@story
async def test_typing_is_shown_seldom_and_never_before_a_message() -> None:
    clock = ManualClock()
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd, clock, flood={"burst": 3, "per_s": 0.1}) as run:
        await run.up()
        channel = run.channel
        assert isinstance(channel, CanType)
        assert isinstance(channel, CanJoin)
        clock.advance(40)
        for _ in range(5):
            await channel.typing(ROOM, active=True)
        await channel.typing(Address(channel=NAME, room=RoomId("a b")), active=True)
        await ircd.received("@.typing=active TAGMSG #room")
        clock.advance(3)
        await channel.typing(ROOM, active=True)
        clock.advance(3)
        await channel.typing(ROOM, active=True)  # one token is left, for words
        await settled(ircd.clients[0], "t")
        assert [line for line in ircd.lines if "TAGMSG" in line] == ["@+typing=active TAGMSG #room"] * 2
        clock.advance(40)
        await channel.typing(ROOM, active=True)
        await channel.typing(ROOM, active=False)
        await channel.typing(ROOM, active=False)
        await ircd.received("@.typing=done TAGMSG #room")
        await settled(ircd.clients[0], "u")
        assert sum("TAGMSG" in line for line in ircd.lines) == 4


@pytest.mark.parametrize(
    ("caps", "token"), [("multi-prefix", "X"), (CAPS, "CLIENTTAGDENY=*"), (CAPS, "CLIENTTAGDENY=*,-other,typing")]
)
@story
async def test_typing_is_not_shown_to_servers_that_do_not_pass_it_on(caps: str, token: str) -> None:
    async with Ircd(Options(caps=caps, isupport=("CHANTYPES=#", token))) as ircd, running(ircd) as run:
        await run.up()
        await run.channel.typing(ROOM, active=True)
        await run.channel.send(part("hi", reply_to="m"))
        assert not any("TAGMSG" in line or line.startswith("@") for line in ircd.lines)


@story
async def test_replies_and_reactions_come_in() -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        await run.up()
        (ours,) = (await run.channel.send(part("hello"))).ids
        bot = ircd.clients[0]
        for tag, message in (("+reply", ours), ("+draft/reply", ours), ("+reply", "other")):
            bot.send(f"@{tag}={message} :al!a@h PRIVMSG #room :yes")
        await run.message(3)
        assert [(m.kind, m.reply_to) for m in run.messages] == [("reply", ours), ("reply", ours), ("room", "other")]
        bot.send(f"@+draft/react=👍;+draft/reply={ours};msgid=r1 :al!a@h TAGMSG #room")
        bot.send(f"@+draft/unreact=👍;+reply={ours};msgid=r2 :al!a@h TAGMSG #room")
        bot.send(f"@+draft/react=👍;+draft/reply={ours};msgid=r3 :al!a@h TAGMSG reverie")
        bot.send("@+typing=active :al!a@h TAGMSG #room")
        await run.until(lambda: sum(isinstance(event, ReactionChanged) for event in run.seen) == 3)
        told = [event for event in run.seen if isinstance(event, ReactionChanged)]
        assert [(e.id, e.message, e.reaction, e.added, e.direct) for e in told] == [
            ("r1", ours, "👍", True, False),
            ("r2", ours, "👍", False, False),
            ("r3", ours, "👍", True, True),
        ]


@story
async def test_a_reply_is_marked_unless_the_message_has_no_name_of_the_servers() -> None:
    async with Ircd(Options(caps=CAPS)) as ircd, running(ircd) as run:
        await run.up()
        await run.channel.send(part("yes", reply_to="m; 1"))
        ircd.clients[0].send(":al!a@h PRIVMSG #room :without an id")
        message = await run.message()
        await run.channel.send(part("no", reply_to=message.id))
        said = [line for line in ircd.lines if "PRIVMSG" in line]
        assert said == [r"@+reply=m\:\s1;+draft/reply=m\:\s1 PRIVMSG #room :yes", "PRIVMSG #room :no"]
