"""Files that are sent along: whole, with a harmless name, and once."""

import pytest

from channels.base import OutgoingFile, Part, RateLimited, Rejected, Uncertain
from channels.telegram.render import parse_body
from channels.text import safe_content_type, safe_file_name
from gateway.core.events import Address, MessageId, Post, PostFile, PostKey
from tests.channels.telegram.channel_kit import Running, at, running
from tests.kits.channels import story
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_text import units

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
