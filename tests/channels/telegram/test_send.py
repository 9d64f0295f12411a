"""What we say on Telegram: as people see it, at which pace, and what comes of a refusal."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import (
    CanDownload,
    CanPreview,
    CanType,
    CommandSpec,
    OutgoingFile,
    Part,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
)
from channels.telegram.config import TelegramRateLimit
from channels.telegram.rate_limit import TelegramPacer
from channels.telegram.render import parse_body
from channels.text import safe_content_type, safe_file_name
from gateway.core.clock import ManualClock
from gateway.core.events import Address, Attachment, Message, MessageId, Post, PostFile, PostKey, ThreadId
from tests.channels.telegram.channel_kit import Running, at, running
from tests.kits.channels import story
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_methods import Flood as Limits
from tests.servers.bot_api_world import units


@story
async def test_a_message_looks_as_it_was_meant() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        forum, ann = api.group("forum", forum=True), api.person("Ann")
        topic = api.topic(forum, "news")
        asked = api.group_says(forum, ann, "hm?", thread=topic)
        await run.tell("see **[this](https://e.org/)**", at(forum, topic), reply_to=str(asked), style="notice")
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


@story
async def test_a_long_answer_arrives_whole_and_in_order() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        lounge = api.group("lounge")
        text = "\n\n".join(f"Абзац {number}: " + "слово 😀 " * 60 for number in range(25))
        ids = await run.tell(text, at(lounge))
        said = api.said(lounge)
        assert len(said) == len(ids) > 2
        assert "".join("".join(said).split()) == "".join(text.split())


@pytest.mark.parametrize("reply", ["button:77", "not a number", "99999999999999999999", "12345"])
@story
async def test_a_reply_to_what_is_not_there_is_no_reply(reply: str) -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
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
@story
async def test_what_telegram_dislikes_about_a_message_is_given_up_and_the_words_are_not(description: str) -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
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


@story
async def test_what_is_no_chat_or_no_text_is_refused_before_any_request() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        for room, thread in (("#room", None), ("1", "x")):
            to = replace(at(room), thread=ThreadId(thread) if thread else None)
            with pytest.raises(Rejected):
                await run.channel.send(Part(key="k", to=to, body="x"))
        for body in ("", " \n", json.dumps({"text": " ", "entities": []})):
            with pytest.raises(ValueError, match="text"):
                await run.channel.send(Part(key="k", to=at("1"), body=body))
        assert not api.asked("sendMessage")


@story
async def test_going_is_told_when_nothing_is_left_to_wait_for() -> None:
    async with BotApi() as api:
        clock = ManualClock()
        async with running(api, clock, flood={"per_chat_s": 10}) as run:
            await run.up()
            ann, went = api.person("Ann"), list[float]()
            api.private_says(ann, "hi")

            async def going() -> None:
                assert len(api.asked("sendMessage")) == len(went)
                went.append(clock.monotonic())

            parts = [part for number in range(3) for part in run.parts(str(number), at(ann))]
            sends = [asyncio.create_task(run.channel.send(part, going)) for part in parts]
            await run.until_advancing(clock, lambda: all(task.done() for task in sends))
            assert api.said(ann) == ["0", "1", "2"]
            assert [round(later - earlier) for earlier, later in pairwise(went)] == [10, 10]


@story
async def test_what_going_raises_comes_out_and_nothing_is_sent() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")

        async def going() -> None:
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await run.channel.send(run.parts("x", at(ann))[0], going)
        assert not api.asked("sendMessage")
        await run.tell("y", at(ann))


@story
async def test_telegrams_own_limits_are_kept() -> None:
    async with BotApi() as api, running(api, flood={}) as run:
        api.methods.flood = Limits()
        await run.up()
        people = [api.person(f"P{number}") for number in range(45)]
        for person in people:
            api.private_says(person, "hi")
        await asyncio.gather(*(run.tell("hello", at(person)) for person in people), run.tell("again", at(people[0])))
        assert sum(len(api.said(person)) for person in people) == 46
        assert not api.methods.flood.hits


def test_the_pace_by_chat_by_group_and_overall() -> None:
    pace = TelegramPacer(TelegramRateLimit(per_chat_s=1, group_per_min=3, overall_per_s=5))
    for at_s in (0.0, 1.0, 2.0):
        assert pace.wait_s(-1, at_s) == 0
        pace.start(-1, at_s)
        pace.finish(-1, at_s)
    assert pace.wait_s(-1, 3.0) == 57
    assert pace.wait_s(7, 3.0) == 0  # one chat's limit is no other's
    pace.start(7, 3.0)
    pace.finish(7, 3.0)
    assert pace.wait_s(7, 3.25) == pytest.approx(0.75)
    for chat in (11, 12, 13, 14):
        pace.start(chat, 3.5)
    assert pace.wait_s(15, 3.6) == pytest.approx(0.4)  # until the one of 3.0 is a second ago
    assert pace.wait_s(15, 4.6) == 0
    pace.start(15, 4.6)
    assert 0 < pace.wait_s(16, 4.6) < 0.1  # all are on their way: nobody knows when they will have arrived
    for chat in (11, 12, 13, 14, 15):
        pace.finish(chat, 5.0)
    assert pace.wait_s(16, 5.2) == pytest.approx(0.8)
    assert pace.wait_s(-1, 60.0) == 0
    pace.hold(20, 100.0)
    assert (pace.wait_s(20, 70.0), pace.wait_s(21, 70.0)) == (30, 0)
    assert pace.quiet_s(20, 70.0) == 30


@given(st.lists(st.tuples(st.sampled_from([-1, -2, 1, 2]), st.floats(0, 2), st.floats(0, 0.9)), max_size=60))
def test_no_window_is_ever_too_full(sends: list[tuple[int, float, float]]) -> None:
    flood = TelegramRateLimit(per_chat_s=1, group_per_min=4, overall_per_s=3)
    pace, now_s, arrived = TelegramPacer(flood), 0.0, list[tuple[float, int]]()
    for chat, pause_s, way_s in sends:
        now_s += pause_s
        while wait_s := pace.wait_s(chat, now_s):
            now_s += wait_s
        pace.start(chat, now_s)
        arrived.append((now_s + way_s / 2, chat))
        now_s += way_s
        pace.finish(chat, now_s)
    slack_s = 1e-6
    for at_s, chat in arrived:
        here = [when for when, other in arrived if other == chat]
        assert sum(at_s <= when < at_s + 1 - slack_s for when in here) <= 1
        assert chat > 0 or sum(at_s <= when < at_s + 60 - slack_s for when in here) <= flood.group_per_min
        assert sum(at_s <= when < at_s + 1 - slack_s for when, _ in arrived) <= flood.overall_per_s


def test_previews_take_only_what_is_spare_and_no_messages_place() -> None:
    pace = TelegramPacer(TelegramRateLimit(per_chat_s=1, group_per_min=6, overall_per_s=30))
    assert [pace.take_optional(-1, float(at_s)) for at_s in range(5)] == [True, True, True, False, False]
    assert pace.wait_s(-1, 5.0) == 0
    pace.hold(1, 9.0)
    assert (pace.take_optional(1, 8.0), pace.take_optional(1, 9.0)) == (False, True)


def test_quiet_chats_are_forgotten() -> None:
    pace = TelegramPacer(TelegramRateLimit())
    for chat in range(3000):
        pace.start(chat, float(chat))
        pace.finish(chat, float(chat))
    assert len(pace._chats) < 1200


@story
async def test_a_growing_answer_is_a_draft_in_private_and_gone_with_the_message() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        assert isinstance(run.channel, CanPreview)
        ann, lounge = api.person("Ann"), api.group("lounge")
        api.private_says(ann, "hi")
        assert await run.channel.preview(at(ann), "**He", None) is None
        assert await run.channel.preview(at(ann), "**Hello** wor", None) is None
        await run.tell("**Hello** world", at(ann))
        await run.channel.preview(at(ann), "Next", None)
        drafts = api.world.chats[ann.id].drafts
        assert [text for _, text in drafts] == ["**He", "Hello wor", "Next"]
        assert drafts[0][0] == drafts[1][0] != drafts[2][0]
        assert api.said(ann) == ["Hello world"]
        with pytest.raises(Rejected):
            await run.channel.preview(at(lounge), "x", None)


@story
async def test_a_growing_answer_in_a_group_is_edited_and_taken_away() -> None:
    async with BotApi() as api, running(api, preview="all", flood={"group_per_min": 8}) as run:
        await run.up()
        lounge = api.group("lounge")
        shown = await run.channel.preview(at(lounge), "one", None)
        assert shown is not None
        for text in ("one two", "one two", "one **two** three"):
            assert await run.channel.preview(at(lounge), text, shown) == shown
        assert api.said(lounge) == ["one two three"]
        with pytest.raises(RateLimited):
            await run.channel.preview(at(lounge), "more", shown)
        await run.tell("one two three four", at(lounge))  # a message's turn is not a preview's
        await run.channel.delete_preview(at(lounge), shown)
        await run.channel.delete_preview(at(lounge), shown)
        assert api.said(lounge) == ["one two three four"]


@story
async def test_typing_is_shown_where_it_is_wanted_and_breaks_nothing() -> None:
    async with BotApi() as api:
        forum = api.group("forum", forum=True)
        topic = api.topic(forum, "news")
        async with running(api) as run:
            await run.channel.typing(at(forum), active=True)  # not connected
            await run.up()
            assert isinstance(run.channel, CanType)
            await run.channel.typing(at(forum, topic), active=True)
            await run.channel.typing(at(forum, topic), active=False)
            call = await api.called("sendChatAction")
            assert (call["action"], call["message_thread_id"]) == ("typing", topic)
            api.faults.drop("sendChatAction")
            api.faults.say("sendChatAction", b"{}")
            api.faults.fail("sendChatAction", 403, "Forbidden: bot was kicked")
            for _ in range(3):
                await run.channel.typing(at(forum), active=True)
            await run.channel.typing(at("#no"), active=True)
            api.faults.fail("sendChatAction", 429, retry_after=60)
            calls = len(api.asked("sendChatAction"))
            await run.channel.typing(at(forum), active=True)
            await run.channel.typing(at(forum), active=True)  # told to be quiet
            assert len(api.asked("sendChatAction")) == calls + 1
        async with running(api, typing=False) as run:
            await run.up()
            calls = len(api.asked("sendChatAction"))
            await run.channel.typing(at(forum), active=True)
            assert len(api.asked("sendChatAction")) == calls


@story
async def test_files_are_fetched_within_the_limit() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        assert isinstance(run.channel, CanDownload)
        ann = api.person("Ann")
        api.sends(ann, ann, "document", b"0123456789" * 1000, media={"file_name": "a.txt"})
        message = await run.message()
        (file,) = message.attachments
        assert (file.name, file.size_bytes) == ("a.txt", 10000)
        assert await run.channel.download(message.at, file, limit_bytes=10000) == b"0123456789" * 1000
        untold = Attachment(id=file.id, form="file")
        assert len(await run.channel.download(message.at, untold, limit_bytes=10000)) == 10000
        for attachment in (file, untold, Attachment(id="none", form="file")):
            with pytest.raises(Rejected):
                await run.channel.download(message.at, attachment, limit_bytes=9999)


@pytest.mark.parametrize(
    ("path", "error"),
    [("/etc/hostname", Rejected), ("documents/none", Rejected), (None, Rejected), (7, SendError)],
)
@story
async def test_a_file_that_cannot_be_had_is_an_error_of_ours(path: Any, error: type[SendError]) -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        body = {"ok": True, "result": {"file_id": "x", "file_unique_id": "x", "file_path": path}}
        api.faults.say("getFile", json.dumps(body).encode())
        with pytest.raises(error):
            await run.channel.download(at("1"), Attachment(id="x", form="file"), limit_bytes=10)


@story
async def test_a_file_that_says_it_is_smaller_is_cut_off_at_the_limit() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann = api.person("Ann")
        api.sends(ann, ann, "document", b"x" * 300_000)
        message = await run.message()
        path = api.world.files[message.attachments[0].id][0]
        body = {"ok": True, "result": {"file_id": "x", "file_unique_id": "x", "file_size": 3, "file_path": path}}
        api.faults.say("getFile", json.dumps(body).encode())
        with pytest.raises(Rejected):
            await run.channel.download(message.at, Attachment(id="x", form="file"), limit_bytes=1000)


COMMANDS = (CommandSpec(name="why", summary="Say why"), CommandSpec(name="rest", summary="Rest"))


@story
async def test_the_command_menu_is_set_once() -> None:
    async with BotApi() as api:
        for _ in range(2):
            async with running(api, commands=COMMANDS) as run:
                await run.up()
                await api.called("getUpdates")
        rows = [{"command": "why", "description": "Say why"}, {"command": "rest", "description": "Rest"}]
        assert [(call.get("scope", {}).get("type"), call["commands"]) for call in api.asked("setMyCommands")] == [
            (scope, rows) for scope in ("default", "all_group_chats", "all_private_chats")
        ]
        api.faults.fail("setMyCommands", 500)
        async with running(api, commands=COMMANDS[:1]) as run:
            ann = api.person("Ann")
            api.private_says(ann, "still here")
            assert (await run.message()).text == "still here"


@story
async def test_before_and_after_a_run_nothing_can_be_sent() -> None:
    async with BotApi() as api:
        async with running(api) as run:
            with pytest.raises(Unreachable):
                await run.tell("x", at("1"))
            await run.up()
        for call in (
            run.tell("x", at("1")),
            run.channel.preview(at("1"), "x", None),
            run.channel.download(at("1"), Attachment(id="x", form="file"), limit_bytes=1),
        ):
            with pytest.raises(Unreachable):
                await call
        assert not run.all(Message)


@story
async def test_a_chat_that_must_be_quiet_for_long_says_so_instead_of_waiting() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        api.faults.fail("sendMessage", 429, retry_after=3600)
        for _ in range(2):
            with pytest.raises(RateLimited) as told:
                await run.tell("x", at(ann))
            assert 3590 < told.value.retry_after_s <= 3600
        assert len(api.asked("sendMessage")) == 1


@story
async def test_a_server_without_drafts_refuses_previews_and_nothing_else() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        api.faults.fail("sendMessageDraft", 404, "Not Found")
        with pytest.raises(Rejected):
            await run.channel.preview(at(ann), "x", None)
        await run.tell("x", at(ann))


DATA = bytes(range(256)) * 8


def parts(run: Running, text: str, to: Address, file: OutgoingFile) -> list[Part]:
    """As the outbox makes them."""
    along = PostFile(name=file.name, content_type=file.content_type, sha256="0" * 64, size_bytes=len(file.data))
    bodies = run.channel.split(Post(key=PostKey("k"), to=to, text=text, file=along))
    return [
        Part(key=f"k#{index}", to=to, body=body, file=file if index == 0 else None) for index, body in enumerate(bodies)
    ]


@story
async def test_a_file_is_a_document_with_a_caption() -> None:
    async with BotApi() as api, running(api) as run:
        forum, ann = api.group(forum=True), api.person("Ann")
        thread = api.topic(forum, "files")
        asked = api.group_says(forum, ann, "the file?", thread=thread)
        await run.up()
        to = at(forum, thread)
        file = OutgoingFile(name="a b.pdf", content_type="application/pdf", data=DATA)
        part = Part(
            key="k#0", to=to, body=run.channel.split(Post(key=PostKey("k"), to=to, text="**here**"))[0], file=file
        )
        receipt = await run.channel.send(part)
        replying = Part(key="k#1", to=to, body=part.body, file=file, reply_to=MessageId(str(asked)))
        await run.channel.send(replying)
        first, second = api.shown(forum)[-2:]
        assert receipt.ids == (str(first.id),)
        assert (first.text, first.body["document"]["file_name"]) == ("here", "a b.pdf")
        assert first.body["document"]["mime_type"] == "application/pdf"
        assert [one["type"] for one in first.body["caption_entities"]] == ["bold"]
        assert api.world.files[first.body["document"]["file_id"]][1] == DATA
        assert (first.thread, second.body["reply_to_message"]["message_id"]) == (thread, asked)


@story
async def test_a_long_text_leaves_the_file_a_caption_that_fits() -> None:
    async with BotApi() as api, running(api) as run:
        chat = api.group()
        await run.up()
        text = " ".join(f"word{number}👍" for number in range(1000))
        made = parts(run, text, at(chat), OutgoingFile(name="x.txt", content_type="text/plain", data=DATA))
        for part in made:
            await run.channel.send(part)
        said = api.said(chat)
        assert units(said[0]) <= 1024 < units(said[1]) <= 4096
        assert " ".join(said).split() == text.split()
        assert "document" in api.shown(chat)[0].body


@story
async def test_a_caption_is_edited_where_it_stands_and_a_file_deleted() -> None:
    async with BotApi() as api, running(api) as run:
        chat = api.group()
        await run.up()
        (part,) = parts(run, "old", at(chat), OutgoingFile(name="x.txt", content_type="text/plain", data=DATA))
        (number,) = (await run.channel.send(part)).ids
        for _ in range(2):
            await run.channel.edit(at(chat), number, "*new*")
        assert api.said(chat) == ["new"]
        with pytest.raises(Rejected, match="1024"):
            await run.channel.edit(at(chat), number, "x" * 1025)
        await run.channel.delete(at(chat), number)
        assert not api.shown(chat)


@story
async def test_what_is_too_large_or_empty_is_rejected() -> None:
    async with BotApi() as api, running(api) as run:
        chat = api.group()
        await run.up()
        most = run.channel.capabilities.max_file_bytes
        large = OutgoingFile(name="x", content_type="text/plain", data=bytes(most + 1))
        gone = []

        async def going() -> None:
            gone.append(True)

        with pytest.raises(Rejected, match=str(most)):
            await run.channel.send(Part(key="k", to=at(chat), body="x", file=large), going)
        assert not gone
        with pytest.raises(Rejected, match="non-empty"):
            await run.channel.send(
                Part(key="k", to=at(chat), body="x", file=OutgoingFile(name="x", content_type="", data=b""))
            )
        small = Part(key="k", to=at(chat), body="x", file=OutgoingFile(name="x", content_type="", data=b"x"))
        api.faults.fail("sendDocument", 413, "Request Entity Too Large")
        with pytest.raises(Rejected, match="Too Large"):
            await run.channel.send(small)
        api.faults.say("sendDocument", b"<html>413</html>", status=413, kind="text/html")
        with pytest.raises(Rejected, match="413"):
            await run.channel.send(small)
        assert not api.shown(chat)


@story
async def test_a_file_fares_as_a_message_does() -> None:
    async with BotApi() as api, running(api) as run:
        chat = api.group()
        await run.up()
        part = Part(key="k", to=at(chat), body="x", file=OutgoingFile(name="x", content_type="", data=DATA))
        api.faults.fail("sendDocument", 429, retry_after=3)
        with pytest.raises(RateLimited):
            await run.channel.send(part)
    async with BotApi() as api, running(api) as run:
        chat = api.group()
        await run.up()
        api.faults.drop("sendDocument", after=True)
        with pytest.raises(Uncertain):
            await run.channel.send(Part(key="k", to=at(chat), body="x", file=part.file))
        api.faults.fail("sendDocument", 400, "Bad Request: can't parse entities in message caption")
        (made,) = parts(run, "**bold**", at(chat), OutgoingFile(name="x", content_type="", data=DATA))
        await run.channel.send(made)
        assert parse_body(made.body).spans
        assert "caption_entities" not in api.asked("sendDocument")[-1].parameters


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


@story
async def test_no_name_becomes_a_header() -> None:
    async with BotApi() as api, running(api) as run:
        chat = api.group()
        await run.up()
        file = OutgoingFile(name='a"; name="chat_id"\r\n\r\n5.txt', content_type="text/plain\r\nX-Bad: 1", data=DATA)
        await run.channel.send(Part(key="k", to=at(chat), body="x", file=file))
        told = api.shown(chat)[-1].body["document"]
        assert told["mime_type"] == "application/octet-stream"
        assert api.asked("sendDocument")[-1].parameters.keys() == {"chat_id", "caption"}
