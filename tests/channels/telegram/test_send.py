"""What we say on Telegram: as people see it, at which pace, and what is known of it where it went
wrong."""

import asyncio
import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import (
    CanPreview,
    CommandSpec,
    MayNotPost,
    OutgoingFile,
    PostPart,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    Unsettled,
)
from channels.telegram.config import TelegramRateLimit
from channels.telegram.rate_limit import TelegramPacer
from channels.text import safe_content_type, safe_file_name
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    Attachment,
    ConnectionChanged,
    Message,
    MessageId,
    Post,
    PostFile,
    PostKey,
    Receipt,
)
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_http import BAD_GATEWAY
from reverie.testing.servers.bot_api_methods import Flood as Limits
from reverie.testing.servers.bot_api_world import Chat, Person, units
from tests.channels.discord.faults_kit import Hasty
from tests.channels.telegram.channel_kit import Running, at, running
from tests.channels.telegram.test_receive import NEAR_NO_TIME, POLLS, Break


async def test_an_answer_in_a_private_chat_quotes_its_question_only_if_more_was_said_since(
    api: BotApi,
) -> None:
    ann, ben = api.person("Ann"), api.person("Ben")
    async with running(api) as run:
        await run.up()
        first = api.private_says(ann, "one?")
        await run.message()
        await run.tell("1", at(ann), reply_to=str(first))
        second, third = api.private_says(ann, "two?"), api.private_says(ann, "three?")
        api.private_says(ben, "elsewhere")
        said = await run.some(Message, 4)
        await run.tell("2", at(ann), reply_to=str(second))
        await run.tell("3", at(ann), reply_to=str(third))
    async with running(api, cursor=run.cursor) as again:  # what the log has is told to it
        for one in said:
            again.channel.learn(one.at, one.id, one.sent, own=False)
        await again.up()
        await again.tell("3", at(ann), reply_to=str(third))
    quoted = [
        (call.parameters.get("reply_parameters") or {}).get("message_id")
        for call in api.asked("sendMessage")
    ]
    assert quoted == [None, second, None, None]


async def test_a_message_looks_as_it_was_meant(api: BotApi, run: Running) -> None:
    forum, ann = api.group("forum", forum=True), api.person("Ann")
    topic = api.topic(forum, "news")
    asked = api.group_says(forum, ann, "hm?", thread=topic)
    await run.tell(
        "see **[this](https://e.org/)**", at(forum, topic), reply_to=str(asked), style="notice"
    )
    call = await api.called("sendMessage")
    assert call["text"] == "see this"
    assert [one["type"] for one in call["entities"]] == ["text_link", "bold"]
    assert call["message_thread_id"] == topic
    assert call["reply_parameters"] == {"message_id": asked, "allow_sending_without_reply": True}
    assert call["link_preview_options"] == {"is_disabled": True}
    assert call["disable_notification"] is True
    assert "parse_mode" not in call.parameters
    await run.tell("plain", at(forum))
    plain = await api.called("sendMessage", 2)
    assert plain.parameters.keys() == {"chat_id", "text", "link_preview_options"}


@pytest.mark.parametrize("gone", [False, True])
async def test_what_is_for_a_closed_or_deleted_topic_stands_in_the_main_chat(
    gone: bool, api: BotApi, run: Running
) -> None:
    forum, ann = api.group("forum", forum=True), api.person("Ann")
    topic = api.topic(forum, "news")
    asked = api.group_says(forum, ann, "hm?", thread=topic)
    if gone:
        del forum.topics[topic]
    else:
        forum.closed_topics.add(topic)
    await run.tell("tea at five", at(forum, topic), reply_to=str(asked))
    refused, call = api.asked("sendMessage")
    assert refused["message_thread_id"] == topic
    assert call.parameters.keys() == {"chat_id", "text", "link_preview_options"}
    assert api.said(forum) == ["tea at five"]


@pytest.mark.parametrize("reply", ["not a number", "99999999999999999999", "12345"])
async def test_a_reply_to_what_is_not_there_is_no_reply(
    reply: str, api: BotApi, run: Running
) -> None:
    ann = api.person("Ann")
    api.private_says(ann, "hi")
    await run.tell("yes", at(ann), reply_to=MessageId(reply))
    assert api.said(ann) == ["yes"]


@pytest.mark.parametrize(
    "description",
    [
        "Bad Request: can't parse entities: unsupported start tag",
        "Bad Request: ENTITY_BOUNDS_INVALID",
        "Bad Request: message to be replied not found",
    ],
)
async def test_what_telegram_dislikes_about_a_message_is_given_up_and_the_words_are_not(
    description: str, api: BotApi, run: Running
) -> None:
    ann = api.person("Ann")
    asked = api.private_says(ann, "hi")
    api.faults.fail("sendMessage", 400, description)
    went: list[int] = []

    async def going() -> None:
        went.append(1)

    (part,) = run.parts("**yes**", at(ann), reply_to=str(asked))
    await run.channel.send(part, going)
    assert api.said(ann) == ["yes"]
    assert went == [1]


async def test_telegrams_own_limits_are_kept(api: BotApi) -> None:
    async with running(api, flood={}) as run:
        api.methods.flood = Limits()
        await run.up()
        people = [api.person(f"P{number}") for number in range(45)]
        for person in people:
            api.private_says(person, "hi")
        await asyncio.gather(
            *(run.tell("hello", at(person)) for person in people), run.tell("again", at(people[0]))
        )
        assert sum(len(api.said(person)) for person in people) == 46
        assert not api.methods.flood.hits


def test_the_pace_by_chat_by_group_and_overall() -> None:
    pace = TelegramPacer(TelegramRateLimit(per_chat_s=1, group_per_min=3, overall_per_s=5))
    for at_s in (0.0, 1.0, 2.0):
        assert pace.wait_s(-1, at_s) == 0
        pace.start()
        pace.finish(at_s, -1)
    assert pace.wait_s(-1, 3.0) == 57
    assert pace.wait_s(7, 3.0) == 0  # one chat's limit is no other's
    pace.start()
    pace.finish(3.0, 7)
    assert pace.wait_s(7, 3.25) == pytest.approx(0.75)
    for _ in range(4):
        pace.start()
    assert pace.wait_s(15, 3.6) == pytest.approx(0.4)  # until the one of 3.0 is a second ago
    assert pace.wait_s(15, 4.6) == 0
    pace.start()
    # All are on their way: nobody knows when they will have arrived.
    assert 0 < pace.wait_s(16, 4.6) < 0.1
    for chat in (11, 12, 13, 14, 15):
        pace.finish(5.0, chat)
    assert pace.wait_s(16, 5.2) == pytest.approx(0.8)
    assert pace.wait_s(-1, 60.0) == 0
    pace.hold(20, 100.0)
    assert (pace.wait_s(20, 70.0), pace.wait_s(21, 70.0)) == (30, 0)
    assert pace.quiet_s(20, 70.0) == 30


@given(
    st.lists(
        st.tuples(st.sampled_from([-1, -2, 1, 2]), st.floats(0, 2), st.floats(0, 0.9)), max_size=60
    )
)
def test_no_window_is_ever_too_full(sends: list[tuple[int, float, float]]) -> None:
    flood = TelegramRateLimit(per_chat_s=1, group_per_min=4, overall_per_s=3)
    pace, now_s, arrived = TelegramPacer(flood), 0.0, list[tuple[float, int]]()
    for chat, pause_s, way_s in sends:
        now_s += pause_s
        while wait_s := pace.wait_s(chat, now_s):
            now_s += wait_s
        pace.start()
        arrived.append((now_s + way_s / 2, chat))
        now_s += way_s
        pace.finish(now_s, chat)
    slack_s = 1e-6
    for at_s, chat in arrived:
        here = [when for when, other in arrived if other == chat]
        assert sum(at_s <= when < at_s + 1 - slack_s for when in here) <= 1
        assert (
            chat > 0
            or sum(at_s <= when < at_s + 60 - slack_s for when in here) <= flood.group_per_min
        )
        assert sum(at_s <= when < at_s + 1 - slack_s for when, _ in arrived) <= flood.overall_per_s


def test_previews_take_only_what_is_spare_and_no_messages_place() -> None:
    pace = TelegramPacer(TelegramRateLimit(per_chat_s=1, group_per_min=6, overall_per_s=30))
    assert [pace.take_optional(-1, float(at_s)) for at_s in range(5)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert pace.wait_s(-1, 5.0) == 0
    pace.hold(1, 9.0)
    assert (pace.take_optional(1, 8.0), pace.take_optional(1, 9.0)) == (False, True)


async def test_a_growing_answer_is_a_draft_in_private_and_gone_with_the_message(
    api: BotApi, run: Running
) -> None:
    assert isinstance(run.channel, CanPreview)
    ann, lounge = api.person("Ann"), api.group("lounge")
    api.private_says(ann, "hi")
    for grown in ("**He", "**Hello** wor"):
        (part,) = run.parts(grown, at(ann))
        assert await run.channel.preview(at(ann), part.body, None) is None
    await run.tell("**Hello** world", at(ann))
    await run.channel.preview(at(ann), "Next", None)
    drafts = api.world.chats[ann.id].drafts
    assert [text for _, text in drafts] == ["**He", "Hello wor", "Next"]
    assert drafts[0][0] == drafts[1][0] != drafts[2][0]
    assert api.said(ann) == ["Hello world"]
    with pytest.raises(Rejected):
        await run.channel.preview(at(lounge), "x", None)


@pytest.mark.channel(preview="all", flood={"group_per_min": 8})
async def test_a_growing_answer_in_a_group_is_edited_and_taken_away(
    api: BotApi, run: Running
) -> None:
    lounge = api.group("lounge")
    api.mentions(lounge, api.person("Ann"), "well?")
    await run.message()
    shown = await run.channel.preview(at(lounge), "one", None)
    assert shown is not None
    for text in ("one two", "one two", "one **two** three"):
        (part,) = run.parts(text, at(lounge))
        assert await run.channel.preview(at(lounge), part.body, shown) == shown
    assert api.said(lounge) == ["one two three"]
    with pytest.raises(RateLimited):
        await run.channel.preview(at(lounge), "more", shown)
    await run.tell("one two three four", at(lounge))  # a message's turn is not a preview's
    await run.channel.delete_preview(at(lounge), shown)
    await run.channel.delete_preview(at(lounge), shown)
    assert api.said(lounge) == ["one two three four"]


async def test_a_growing_answer_in_a_group_becomes_the_answer_by_an_edit_that_may_be_repeated(
    api: BotApi,
) -> None:
    async with running(api, Hasty(100), preview="all") as run:
        await run.up()
        lounge, ann = api.group("lounge"), api.person("Ann")
        api.mentions(lounge, ann, "well?")
        asked = await run.message()
        shown = await run.channel.preview(at(lounge), "one", None, reply_to=asked.id)
        (part,) = run.parts("one **two**", at(lounge), reply_to=asked.id, finishes=shown)
        api.faults.say("editMessageText", BAD_GATEWAY, status=502, after=True)
        with pytest.raises(Unsettled):
            await run.channel.send(part)
        again = replace(part, maybe_sent_after="")
        for _ in range(2):
            assert (await run.channel.send(again)).ids == (shown,)
        assert api.said(lounge) == ["one two"]
        assert api.shown(lounge)[-1].body["reply_to_message"]["message_id"] == int(asked.id)
        assert shown is not None
        await run.channel.delete_preview(at(lounge), shown)
        await run.channel.send(part)
        assert api.said(lounge) == ["one two"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("end", ["answer", "nothing"])
async def test_a_preview_whose_answer_got_lost_is_found_and_becomes_the_answer_or_goes(
    after: bool, end: str, api: BotApi
) -> None:
    announced = list[MessageId]()

    async def announce(provisional: MessageId) -> None:
        announced.append(provisional)

    async with running(api, Hasty(100), preview="all") as run:
        await run.up()
        lounge = api.group("lounge")
        api.mentions(lounge, api.person("Ann"), "well?")
        await run.message()
        api.faults.drop("sendMessage", after=after)
        with pytest.raises(Uncertain):
            await run.channel.preview(at(lounge), "one", None, announce=announce)
        api.mentions(lounge, api.person("Ben"), "meanwhile")
        if end == "answer":
            (part,) = run.parts("one **two**", at(lounge), finishes=announced[0])
            await run.channel.send(part)
        else:
            await run.channel.delete_preview(at(lounge), announced[0])
        assert api.said(lounge) == (["one two"] if end == "answer" else [])


@pytest.mark.parametrize(
    ("path", "error"),
    [("/etc/hostname", Rejected), ("documents/none", Rejected), (None, Rejected), (7, SendError)],
)
async def test_a_file_that_cannot_be_had_is_an_error_of_ours(
    path: Any, error: type[SendError], api: BotApi, run: Running
) -> None:
    body = {"ok": True, "result": {"file_id": "x", "file_unique_id": "x", "file_path": path}}
    api.faults.say("getFile", json.dumps(body).encode())
    with pytest.raises(error):
        await run.channel.download(at("1"), Attachment(id="x", form="file"), limit_bytes=10)


async def test_a_file_that_says_it_is_smaller_is_cut_off_at_the_limit(
    api: BotApi, run: Running
) -> None:
    ann = api.person("Ann")
    api.sends(ann, ann, "document", b"x" * 300_000)
    message = await run.message()
    path = api.world.files[message.attachments[0].id][0]
    body = {
        "ok": True,
        "result": {"file_id": "x", "file_unique_id": "x", "file_size": 3, "file_path": path},
    }
    api.faults.say("getFile", json.dumps(body).encode())
    with pytest.raises(Rejected):
        await run.channel.download(message.at, Attachment(id="x", form="file"), limit_bytes=1000)


DATA = bytes(range(256)) * 8


def parts(run: Running, text: str, to: Address, file: OutgoingFile) -> list[PostPart]:
    """As the outbox makes them."""
    along = PostFile(
        name=file.name, content_type=file.content_type, sha256="0" * 64, size_bytes=len(file.data)
    )
    bodies = run.channel.split(Post(key=PostKey("k"), to=to, text=text, file=along))
    return [
        PostPart(key=f"k#{index}", to=to, body=body, file=file if index == 0 else None)
        for index, body in enumerate(bodies)
    ]


async def test_a_file_is_a_document_with_a_caption(api: BotApi) -> None:
    async with running(api) as run:
        forum, ann = api.group(forum=True), api.person("Ann")
        thread = api.topic(forum, "files")
        asked = api.group_says(forum, ann, "the file?", thread=thread)
        await run.up()
        to = at(forum, thread)
        file = OutgoingFile(name="a b.pdf", content_type="application/pdf", data=DATA)
        part = PostPart(
            key="k#0",
            to=to,
            body=run.channel.split(Post(key=PostKey("k"), to=to, text="**here**"))[0],
            file=file,
        )
        receipt = await run.channel.send(part)
        replying = PostPart(
            key="k#1", to=to, body=part.body, file=file, reply_to=MessageId(str(asked))
        )
        await run.channel.send(replying)
        first, second = api.shown(forum)[-2:]
        assert receipt.ids == (str(first.id),)
        assert (first.text, first.body["document"]["file_name"]) == ("here", "a b.pdf")
        assert first.body["document"]["mime_type"] == "application/pdf"
        assert [one["type"] for one in first.body["caption_entities"]] == ["bold"]
        assert api.world.files[first.body["document"]["file_id"]][1] == DATA
        assert (first.thread, second.body["reply_to_message"]["message_id"]) == (thread, asked)


async def test_a_long_text_leaves_the_file_a_caption_that_fits(api: BotApi, run: Running) -> None:
    chat = api.group()
    text = " ".join(f"word{number}👍" for number in range(1000))
    made = parts(
        run, text, at(chat), OutgoingFile(name="x.txt", content_type="text/plain", data=DATA)
    )
    for part in made:
        await run.channel.send(part)
    said = api.said(chat)
    assert units(said[0]) <= 1024 < units(said[1]) <= 4096
    assert " ".join(said).split() == text.split()
    assert "document" in api.shown(chat)[0].body


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.txt", "a.txt"),
        ("a\r\nContent-Type: x\0.txt", "aContent-Type_ x.txt"),
        ("photo\u202egpj.exe", "photogpj.exe"),
        ("..", "file"),
        ('a"; name="b', "a__ name=_b"),
        ("", "file"),
        ("  .hidden ", "hidden"),
        ("dir/", "file"),
        ("Überblick 1.md", "Überblick 1.md"),
        ("a\u2028b\ud800.txt", "ab.txt"),
        ("x" * 300 + ".tar", "x" * 96 + ".tar"),
        ("x" * 300, "x" * 100),
    ],
)
def test_a_name_is_harmless(told: str, shown: str) -> None:
    assert safe_file_name(told) == shown
    assert safe_file_name(shown) == shown


def test_a_type_of_content_is_one_or_says_nothing() -> None:
    assert safe_content_type("image/svg+xml") == "image/svg+xml"
    for odd in ("", "text", "text/plain\r\nX: y", "text/html; charset=utf-8", "a/b/c", "é/x"):
        assert safe_content_type(odd) == "application/octet-stream"


async def test_no_name_becomes_a_header(api: BotApi, run: Running) -> None:
    chat = api.group()
    file = OutgoingFile(
        name='a"; name="chat_id"\r\n\r\n5.txt', content_type="text/plain\r\nX-Bad: 1", data=DATA
    )
    await run.channel.send(PostPart(key="k", to=at(chat), body="x", file=file))
    told = api.shown(chat)[-1].body["document"]
    assert told["mime_type"] == "application/octet-stream"
    assert api.asked("sendDocument")[-1].parameters.keys() == {"chat_id", "caption"}


ODD_TIME = (
    b'{"ok":true,"result":{"message_id":7,"date":1795272909000,"chat":{"id":1},"from":{"id":"x"}}}'
)
SENDS: dict[str, tuple[Break, type[SendError] | None, int]] = {
    "429": (lambda api: api.faults.fail("sendMessage", 429, retry_after=7), RateLimited, 0),
    "400": (
        lambda api: api.faults.fail("sendMessage", 400, "Bad Request: CHAT_RESTRICTED"),
        MayNotPost,
        0,
    ),
    "403": (
        lambda api: api.faults.fail("sendMessage", 403, "Forbidden: bot was blocked by the user"),
        MayNotPost,
        0,
    ),
    "413 as a page": (
        lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=413),
        Rejected,
        0,
    ),
    "401": (lambda api: api.faults.fail("sendMessage", 401), Unreachable, 0),
    "404 as a page": (
        lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=404),
        Unreachable,
        0,
    ),
    "500": (lambda api: api.faults.fail("sendMessage", 500), Unreachable, 0),
    "500 after": (lambda api: api.faults.fail("sendMessage", 500, after=True), None, 1),
    "502 as a page": (
        lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=502),
        Unreachable,
        0,
    ),
    "502 as a page, after": (
        lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=502, after=True),
        None,
        1,
    ),
    "504 as a page": (
        lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=504),
        Unreachable,
        0,
    ),
    "504 as a page, after": (
        lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=504, after=True),
        None,
        1,
    ),
    "no JSON": (lambda api: api.faults.say("sendMessage", b"{nope", after=True), None, 1),
    "half a result": (
        lambda api: api.faults.say("sendMessage", b'{"ok":true}', after=True),
        None,
        1,
    ),
    "dropped before": (lambda api: api.faults.drop("sendMessage"), Unreachable, 0),
    "dropped after": (lambda api: api.faults.drop("sendMessage", after=True), None, 1),
    "cut": (
        lambda api: api.faults.drop("sendMessage", after=True, begun=b"HTTP/1.1 200 X\r\n"),
        None,
        1,
    ),
    "silent before": (lambda api: api.faults.stall("sendMessage"), Unreachable, 0),
    "silent after": (lambda api: api.faults.stall("sendMessage", after=True), None, 1),
    "odd fields": (lambda api: api.faults.say("sendMessage", ODD_TIME, after=True), None, 1),
    "one byte at a time": (lambda api: api.faults.slow("sendMessage"), None, 1),
    "hung up": (lambda api: api.faults.hang_up("sendMessage"), None, 1),
}


@pytest.mark.parametrize("what", SENDS)
async def test_what_went_wrong_with_a_message_is_told_as_what_it_is(what: str, api: BotApi) -> None:
    fault, expected, shown = SENDS[what]
    async with running(api, Hasty(100), **NEAR_NO_TIME) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        await run.message()
        fault(api)
        gone: list[str] = []

        async def going() -> None:
            gone.append("gone")

        (part,) = run.parts("hello", at(ann))
        told: Receipt | SendError
        try:
            told = await run.channel.send(part, going)
        except SendError as error:
            told = error
        if isinstance(told, SendError):
            assert type(told) is expected
            assert api.token not in told.reason
            assert told.__cause__ is None
        else:
            assert expected is None
            assert told.ids
        if isinstance(told, RateLimited):
            assert told.retry_after_s == 7
        assert gone == ["gone"]
        assert len(api.said(ann)) == shown
        assert len(api.asked("sendMessage")) == 1, "never tried again by itself"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("group", [False, True])
async def test_what_a_failing_server_did_is_found_out_amid_others_and_said_once(
    after: bool, group: bool, api: BotApi
) -> None:
    """Before and after it others speak, there and elsewhere; and the server stays away for a
    while."""
    async with running(api, Hasty(100), rooms=["*"], preview="off") as run:
        await run.up()
        ann, ben = api.person("Ann"), api.person("Ben")
        room: Chat | Person = api.group("Team") if group else ann

        async def heard() -> None:
            before = len(run.messages)
            if group:
                api.mentions(room, ann, "in the group")
            else:
                api.private_says(ann, "in private")
            api.private_says(ben, "elsewhere")
            await run.until(lambda: len(run.messages) == before + 2)

        await heard()
        await run.tell("the first", at(room))
        await heard()
        api.faults.say(
            "sendMessage",
            BAD_GATEWAY,
            status=502,
            after=after,
            where=lambda call: call["text"] == "the second",
        )
        api.faults.say("getMe", BAD_GATEWAY, status=502, times=3)
        sending = asyncio.create_task(run.tell("the second", at(room)))
        await api.until(lambda: len(api.asked("getMe")) > 1)
        await heard()
        try:
            await sending
        except Unreachable:
            assert not after
            await run.tell("the second", at(room))
        assert api.said(room) == ["the first", "the second"]


@pytest.mark.parametrize("after", [False, True])
async def test_many_messages_whose_answers_got_lost_at_once_are_each_there_once(
    after: bool, api: BotApi
) -> None:
    """All private chats share one sequence of ids, so each of these lies somewhere among the
    others."""
    async with running(api, Hasty(100), rooms=["*"]) as run:
        await run.up()
        people = [api.person(f"p{number}") for number in range(25)]
        for person in people:
            api.private_says(person, "hi")
        await run.until(lambda: len(run.messages) == len(people))
        api.faults.drop("sendMessage", after=after, times=len(people))

        async def tell(person: Person) -> None:
            try:
                await run.tell("hello", at(person))
            except Unreachable:
                assert not after
                await run.tell("hello", at(person))

        await asyncio.gather(*map(tell, people))
        assert [api.said(person) for person in people] == [["hello"]] * len(people)


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("sent", [False, True])
async def test_what_the_end_of_a_process_cut_off_is_looked_for_by_the_next(
    sent: bool, group: bool, api: BotApi
) -> None:
    ann = api.person("Ann")
    room: Chat | Person = api.group("Team") if group else ann
    async with running(api, rooms=["*"]) as run:
        await run.up()
        if group:
            api.mentions(room, ann, "hi")
        else:
            api.private_says(ann, "hi")
        await run.message()
        position = run.channel.position(at(room))
        (part,) = run.parts("hello", at(room))
        if sent:
            await run.channel.send(part)
    api.private_says(api.person("Ben"), "meanwhile")
    if group:
        api.mentions(room, ann, "are you there?")
    else:
        api.private_says(ann, "are you there?")
    async with running(api, Hasty(100), rooms=["*"]) as run:
        await run.up()
        receipt = await run.channel.send(replace(part, maybe_sent_after=position))
    assert receipt.ids == tuple(str(shown.id) for shown in api.shown(room) if shown.by_bot)
    assert api.said(room) == ["hello"]


@pytest.mark.parametrize("bot", ["same", "another"])
async def test_a_new_process_knows_the_positions_that_stand_in_the_log(
    bot: str, api: BotApi
) -> None:
    """Of all private chats together and of each supergroup; one where a message may be unknown is
    not known."""
    cursor = json.dumps({"bot": api.token.partition(":")[0] if bot == "same" else "77"})
    async with running(api, cursor=cursor, preview="off") as run:
        await run.up()
        channel, group, now = run.channel, "-1000000000009", datetime.now(UTC)
        for place, number, own in (
            ("1", "30", False),
            (group, "7", True),
            ("2", "41", True),
            ("1", "k1", True),
        ):
            channel.learn(at(place), MessageId(number), now, own=own)
        channel.learn(at("1"), MessageId("button:5"), now, own=False)
        places = ("1", "2", "3", group, "-1000000000010")
        positions = [channel.position(at(place)) for place in places]
        known = ["0:41", "0:41", "0:41", f"{group}:7", ""]
        assert positions == (known if bot == "same" else [""] * 5)
        channel.learn(at("1"), None, now, own=True)
        assert channel.position(at("1")) == ""
        channel.learn(at("2"), MessageId("45"), now + timedelta(hours=1), own=False)
        assert channel.position(at("1")) == ("0:45" if bot == "same" else "")


LOST = {"the position is not known": "", "the room counts anew": "-1009:3", "no position": "x"}


@pytest.mark.parametrize("position", LOST.values(), ids=LOST)
async def test_what_cannot_be_found_is_uncertain(position: str, api: BotApi) -> None:
    async with running(api, Hasty(100), rooms=["*"]) as run:
        await run.up()
        chat = api.group("Team")
        (part,) = run.parts("**hello**", at(chat))
        with pytest.raises(Uncertain) as told:
            await run.channel.send(replace(part, maybe_sent_after=position))
        assert type(told.value) is Uncertain
        assert api.said(chat) == []


@pytest.mark.parametrize("sent", [False, True])
async def test_what_may_be_in_a_chat_that_the_bot_was_thrown_out_of_is_looked_for_later(
    sent: bool, api: BotApi
) -> None:
    async with running(api, Hasty(100), rooms=["*"]) as run:
        await run.up()
        chat = api.group("Team")
        api.mentions(chat, api.person("Ann"), "hi")
        await run.message()
        position = run.channel.position(at(chat))
        (part,) = run.parts("hello", at(chat))
        if sent:
            await run.channel.send(part)
    chat.closed = True
    async with running(api, Hasty(100), rooms=["*"]) as run:
        await run.up()
        for _ in range(2):
            with pytest.raises(Unsettled):
                await run.channel.send(replace(part, maybe_sent_after=position))
        chat.closed = False
        await run.channel.send(replace(part, maybe_sent_after=position))
        assert api.said(chat) == ["hello"]


async def test_a_look_that_is_asked_to_wait_or_meets_failures_goes_on(api: BotApi) -> None:
    async with running(api, Hasty(100)) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        await run.message()
        api.faults.drop("sendMessage", after=True)
        api.faults.fail("editMessageReplyMarkup", 429, retry_after=3)
        api.faults.fail("editMessageReplyMarkup", 500)
        api.faults.drop("editMessageReplyMarkup")
        assert await run.tell("hello", at(ann))
        assert api.said(ann) == ["hello"]


async def test_a_chat_that_must_be_quiet_delays_no_other(api: BotApi) -> None:
    clock = ManualClock()
    ann, ben = api.person("Ann"), api.person("Ben")
    api.private_says(ann, "hi")
    api.private_says(ben, "hi")
    async with running(api, clock) as run:
        await run.until_advancing(clock, lambda: len(run.all(Message)) == 2)
        api.faults.fail(
            "sendMessage", 429, retry_after=3600, where=lambda call: call["chat_id"] == ann.id
        )
        for _ in range(2):
            with pytest.raises(RateLimited) as told:
                await run.tell("hello", at(ann))
            assert told.value.retry_after_s == 3600
        assert len(api.asked("sendMessage")) == 1
        before_s = clock.monotonic()
        await run.tell("hello", at(ben))
        assert clock.monotonic() == before_s
        assert (api.said(ann), api.said(ben)) == ([], ["hello"])


async def test_the_token_is_in_no_log_line_and_no_reason(
    caplog: pytest.LogCaptureFixture, api: BotApi
) -> None:
    for name in ("", "httpx", "httpcore", "telegram", "reverie", "asyncio", "aiohttp"):
        caplog.set_level(logging.DEBUG, logger=name or None)
    clock, ann = ManualClock(), api.person("Ann")
    api.private_says(ann, "hi")
    for name in (
        "502 as a page",
        "no JSON",
        "dropped before",
        "409",
        "429",
        "who we are, dropped",
    ):
        POLLS[name](api)
    async with running(api, clock) as run:
        await run.until_advancing(clock, lambda: bool(run.all(Message)))
        for fault, _, _ in (SENDS[name] for name in ("400", "401", "429")):
            fault(api)
            with pytest.raises(SendError) as told:
                await run.tell("hello", at(ann))
            clock.advance(10)
            assert api.token not in told.value.reason
        await api.stop()
        await run.until_advancing(clock, lambda: run.links[-1] is False)
        await api.start()
        reasons = [link.reason for link in run.all(ConnectionChanged)]
    secret = api.token.partition(":")[2]
    assert caplog.records
    assert not [record for record in caplog.records if secret in logging.Formatter().format(record)]
    assert not [reason for reason in reasons if secret in reason]


WHY = (CommandSpec(name="why", summary="Say why"),)


def body(**more: Any) -> bytes:
    return json.dumps({"ok": False, "description": "Odd"} | more).encode()


ODD = {
    "no result": ("*", 200, b'{"ok":true}'),
    "a method it does not know": (
        "setMyCommands",
        404,
        body(error_code=404, description="Not Found"),
    ),
    "no success with 200": ("setMyCommands", 200, body(error_code=404)),
    "a webhook in few words": (
        "getWebhookInfo",
        200,
        body(ok=True, result={"url": "https://elsewhere.example"}),
    ),
    "parameters that are none": ("getUpdates", 400, body(error_code=400, parameters="odd")),
    "a time that is none": (
        "getUpdates",
        500,
        body(error_code=500, parameters={"retry_after": "soon"}),
    ),
    "a redirection": ("getUpdates", 301, BAD_GATEWAY),
    "a conflict with 200": ("getUpdates", 200, body(error_code=409, description="Conflict")),
}


@pytest.mark.parametrize("what", ODD)
async def test_an_odd_answer_costs_one_call(what: str, api: BotApi) -> None:
    method, status, answer = ODD[what]
    clock, ann = ManualClock(), api.person("Ann")
    if method == "getWebhookInfo":
        api.faults.fail(
            "getUpdates", 409, "Conflict: can't use getUpdates method while webhook is active"
        )
    for one in ("getMe", "setMyCommands", "getUpdates") if method == "*" else (method,):
        api.faults.say(one, answer, status=status)
    api.private_says(ann, "hi")
    async with running(api, clock, commands=WHY) as run:
        await run.until_advancing(clock, lambda: bool(run.all(Message)) or run.task.done())
        assert not run.task.done() or run.task.result()


REFUSED: dict[str, tuple[int, bytes, type[SendError]]] = {
    "no success with 200": (
        200,
        body(error_code=400, description="Bad Request: chat not found"),
        Rejected,
    ),
    "no success with 200, unexplained": (200, body(), Unreachable),
    "a flood with 200": (200, body(error_code=429, parameters={"retry_after": 3}), RateLimited),
    "a flood beyond all numbers": (429, body(parameters={"retry_after": 10**400}), RateLimited),
    "a flood without an end": (
        429,
        b'{"ok":false,"parameters":{"retry_after":Infinity}}',
        RateLimited,
    ),
    "a flood without a time": (429, BAD_GATEWAY, RateLimited),
    "a refusal with a time": (400, body(parameters={"retry_after": 5}), Rejected),
    "a refusal with odd parameters": (400, body(parameters="odd"), Rejected),
    "a proxy's refusal": (403, BAD_GATEWAY, Rejected),
    "a redirection": (301, BAD_GATEWAY, Rejected),
    "a token or method that is not known": (404, body(), Unreachable),
    "a proxy that does not know us": (404, BAD_GATEWAY, Unreachable),
    "a failure with odd parameters": (500, body(parameters=[1]), Unreachable),
    "a page in place of an answer": (200, BAD_GATEWAY, Unreachable),
    "nothing in particular": (200, b'{"ok":true}', Unreachable),
    "a message without an id": (200, b'{"ok":true,"result":{}}', Unreachable),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_an_odd_answer_to_a_message_means_what_it_can(what: str, api: BotApi) -> None:
    status, answer, error = REFUSED[what]
    async with running(api, Hasty(100)) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        await run.message()
        api.faults.say("sendMessage", answer, status=status)
        with pytest.raises(error) as told:
            await run.tell("x", at(ann))
        if isinstance(told.value, RateLimited):
            assert 0 < told.value.retry_after_s <= 86_400
