"""What goes out, and what is said when it does not: groups `send` and `fail`."""

import asyncio
from dataclasses import replace

import pytest

from channels.base import Denied, PostPart, RateLimited, Rejected, SendError, Uncertain, Unreachable
from gateway.core.events import ConnectionChanged, Post, PostKey
from reverie.testing.platforms.base import Bench

LONG = {
    "words": " ".join(f"word{number}" for number in range(1500)),
    "one word": "ab" * 4000,
    "Cyrillic": " ".join(f"слово{number}" for number in range(800)),
    "emoji": "👩‍👩‍👧 🇩🇪 👍🏽 " * 400,
    "paragraphs": "\n\n".join(f"Paragraph {number} " + "and so on " * 30 for number in range(20)),
}
CODE = [f"    if x[{number}] == '__main__' and a*b*c:  # **{number}**" for number in range(120)]


def _squeezed(text: str) -> str:
    return "".join(text.split())


async def said_once_with_a_receipt(bench: Bench) -> None:
    (receipt,) = await bench.tell("only once")
    await bench.tell("and another")
    assert [bench.kit.plain(seen) for seen in await bench.kit.seen("room", 2)] == [
        "only once",
        "and another",
    ]
    assert len(set(receipt.ids)) == len(receipt.ids)


async def a_long_text_is_split_and_nothing_is_lost(bench: Bench) -> None:
    before = 0
    for kind, text in LONG.items():
        told = await bench.tell(text)
        everything = await bench.kit.seen("room", before + len(told))
        seen, before = everything[before:], len(everything)
        assert len(seen) > 1, f"{kind} is one message"
        assert all(bench.kit.fits(one) for one in seen), f"{kind}: over the limit"
        assert _squeezed("".join(bench.kit.plain(one) for one in seen)) == _squeezed(text), kind
        assert not any("\ufffd" in one for one in seen), f"{kind}: a character is broken"


async def code_stays_code(bench: Bench) -> None:
    text = "Look:\n\n```python\n" + "\n".join(CODE) + "\n```\n\nThat is *all*."
    told = await bench.tell(text)
    seen = await bench.kit.seen("room", len(told))
    lines = "\n".join(seen).split("\n")
    shown = [line for line in lines if line.lstrip().startswith("if x[")]
    assert shown == CODE, "a line of code is not what it was"
    for one in seen:
        assert one.count("```") % 2 == 0, "a fence stays open"


async def no_text_becomes_a_command(bench: Bench) -> None:
    texts = (
        "one\r\nQUIT :gone",
        "two\rJOIN #0\0",
        "three\nPRIVMSG #other :pwned",
        "\x01VERSION\x01",
        "/quit",
        "\u2028four",
    )
    for text in texts:
        await bench.tell(text)
    await bench.tell("still here")
    seen = await bench.kit.seen("room", len(texts) + 1)
    assert bench.kit.plain(seen[-1]) == "still here"
    assert bench.ear.links == [True]
    assert not any(control in one for one in seen for control in "\r\0")
    assert not await bench.kit.seen("other", 0)


async def no_text_becomes_a_mass_mention(bench: Bench) -> None:
    await bench.tell("hello @everyone, @here and <@&1>")
    (seen,) = await bench.kit.seen("room")
    assert "everyone" in seen
    assert bench.kit.alarmed() == 0


async def a_reply_is_honoured_or_dropped_as_declared(bench: Bench) -> None:
    await bench.kit.say("a question")
    (question,) = await bench.ear.messages(1)
    (part,) = bench.parts(replace(bench.post("an answer"), reply_to=question.id))
    await bench.channel.send(part)
    assert [bench.kit.plain(seen) for seen in await bench.kit.seen("room")] == ["an answer"]
    assert bench.kit.replied("room") is bench.channel.capabilities.replies


async def blank_text_is_an_error_before_any_io(bench: Bench) -> None:
    with pytest.raises(ValueError, match="text"):
        Post(key=PostKey("blank"), to=bench.kit.address("room"), text=" \n ")
    for body in ("", " "):
        with pytest.raises(ValueError):  # noqa: PT011 - the contract names no words
            await bench.channel.send(PostPart(key="blank", to=bench.kit.address("room"), body=body))
    await bench.tell("seen")
    assert [bench.kit.plain(seen) for seen in await bench.kit.seen("room")] == ["seen"]


async def no_body_is_blank(bench: Bench) -> None:
    for text in (
        "```\n```",
        "**  **",
        "# ",
        "- ",
        "> ",
        "\u200b",
        "\x02\x03",
        "---",
        "[]()",
        "![]()",
        "||  ||",
    ):
        bodies = bench.channel.split(bench.post(text))
        assert bodies, text
        assert all(body.strip() for body in bodies), text


async def a_notice_arrives(bench: Bench) -> None:
    (part,) = bench.parts(bench.post("only a notice"))
    await bench.channel.send(replace(part, style="notice"))
    assert [bench.kit.plain(seen) for seen in await bench.kit.seen("room")] == ["only a notice"]


async def order_holds_in_each_room(bench: Bench) -> None:
    texts = [f"number {number}" for number in range(8)]

    async def speak(where: str) -> None:
        at = bench.kit.address("room" if where == "room" else "other")
        for text in texts:
            await bench.tell(f"{where} {text}", at)

    await asyncio.gather(speak("room"), speak("other"))
    assert [bench.kit.plain(one) for one in await bench.kit.seen("room", 8)] == [
        f"room {text}" for text in texts
    ]
    assert [bench.kit.plain(one) for one in await bench.kit.seen("other", 8)] == [
        f"other {text}" for text in texts
    ]


async def going_is_awaited_once_and_first(bench: Bench) -> None:
    went = []

    async def going() -> None:
        went.append(len(await bench.kit.seen("room", 0)))

    async def refused() -> None:
        raise LookupError("the log is gone")

    (part,) = bench.parts(bench.post("first"))
    await bench.channel.send(part, going)
    assert went == [0]
    with pytest.raises(LookupError):
        await bench.channel.send(replace(part, key="k2"), refused)
    await bench.tell("last")
    assert [bench.kit.plain(one) for one in await bench.kit.seen("room", 2)] == ["first", "last"]


async def a_rate_limit_says_how_long(bench: Bench) -> None:
    await bench.kit.limit(1.0)  # not more: some libraries wait it out a few times themselves
    (part,) = bench.parts(bench.post("too early"))
    with pytest.raises(RateLimited) as caught:
        await bench.channel.send(part)
    assert 1.0 <= caught.value.retry_after_s <= 10.0
    assert not await bench.kit.seen("room", 0)


async def a_refusal_is_rejected_and_nothing_else_is(bench: Bench) -> None:
    await bench.kit.refuse()
    (part,) = bench.parts(bench.post("unwanted", bench.kit.address("other")))
    with pytest.raises(Rejected) as caught:
        await bench.channel.send(part)
    assert caught.value.reason.strip()
    await bench.tell("wanted")
    assert [bench.kit.plain(seen) for seen in await bench.kit.seen("room")] == ["wanted"]


async def a_cut_mid_send_is_uncertain(bench: Bench) -> None:
    await bench.kit.cut_send()
    (part,) = bench.parts(bench.post("was it said?"))
    with pytest.raises(SendError) as caught:
        await bench.channel.send(part)
    assert isinstance(caught.value, Uncertain), f"it may have been seen: {caught.value!r}"


async def without_a_link_nothing_was_sent(bench: Bench) -> None:
    await bench.kit.away()
    await bench.ear.until(lambda: bench.ear.links[-1] is False, "the link is not down")
    (part,) = bench.parts(bench.post("into the void"))
    went = []

    async def going() -> None:
        went.append(True)

    with pytest.raises(Unreachable):
        await bench.channel.send(part, going)
    await bench.kit.back()
    await bench.up(2)
    await bench.channel.send(part)
    assert [bench.kit.plain(seen) for seen in await bench.kit.seen("room")] == ["into the void"]


async def refused_credentials_are_denied(bench: Bench) -> None:
    await bench.kit.bad_login()
    await bench.kit.cut()
    done, _ = await asyncio.wait({bench.run}, timeout=bench.kit.patience_s)
    assert done, "run goes on"
    with pytest.raises(Denied) as caught:
        bench.run.result()
    assert caught.value.reason.strip()
    last = bench.ear.all(ConnectionChanged)[-1]
    assert not last.up
    assert last.reason.strip()


SEND = (
    said_once_with_a_receipt,
    a_long_text_is_split_and_nothing_is_lost,
    code_stays_code,
    no_text_becomes_a_command,
    no_text_becomes_a_mass_mention,
    a_reply_is_honoured_or_dropped_as_declared,
    blank_text_is_an_error_before_any_io,
    no_body_is_blank,
    a_notice_arrives,
    order_holds_in_each_room,
    going_is_awaited_once_and_first,
)
FAIL = (
    a_rate_limit_says_how_long,
    a_refusal_is_rejected_and_nothing_else_is,
    a_cut_mid_send_is_uncertain,
    without_a_link_nothing_was_sent,
    refused_credentials_are_denied,
)
