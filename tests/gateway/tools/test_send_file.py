"""`send_file`: what may be sent, durable before it is, and once."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from gateway.core.events import PostFile
from gateway.core.facts import PlatformAction, PostQueued
from gateway.core.tool_spec import ToolCallRefused
from tests.gateway.tools.platform_kit import OWN, ROOM, Deaf, Stage, Stagehands, at, stagehands
from tests.kits.channels import story
from tests.kits.store import turn

DATA = b"one,two\n"


async def send(kit: Stagehands, path: str = "out/table.csv", *, turn_id: str = "t", text: str = "") -> object:
    if not (kit.files / path).exists():
        kit.put(path, DATA)
    told = await kit.hand("send_file", at(ROOM, "mia", turn_id=turn_id), path=path, text=text)
    await kit.delivered()
    return told


def sent(kit: Stagehands) -> list[tuple[str, str, str, bytes]]:
    assert isinstance(kit.stage, Stage)
    return [(part.body, part.file.name, part.file.content_type, part.file.data) for part in kit.stage.sent if part.file]


@story
async def test_a_file_is_posted_with_its_name_and_text(tmp_path: Path) -> None:
    async with stagehands(tmp_path) as kit:
        assert await send(kit) == "It is posted."
        assert await send(kit, "a.unknown", text="the rest") == "It is posted."
        assert sent(kit) == [
            ("table.csv", "table.csv", "text/csv", DATA),
            ("the rest", "a.unknown", "application/octet-stream", DATA),
        ]
        (first, _) = [one for one in await kit.facts("post") if isinstance(one, PostQueued)]
        assert first.post.file == PostFile(
            name="table.csv", content_type="text/csv", sha256=hashlib.sha256(DATA).hexdigest(), size_bytes=len(DATA)
        )
        (acted, _) = [one for one in await kit.facts("acted") if isinstance(one, PlatformAction)]
        assert (acted.what, acted.state, acted.text) == ("file", "done", "table.csv")
        assert list((tmp_path / "outfiles").iterdir()) == []
        assert [line.split(": ", 1)[1] for line in await kit.read(at(ROOM))] == [
            "table.csv [file table.csv]",
            "the rest [file a.unknown]",
        ]


@story
async def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    async with stagehands(tmp_path) as kit:
        for path in ("../../etc/passwd", "a\x1b[2J\r\nX-Evil: 1.txt"):
            with pytest.raises(ToolCallRefused):
                await kit.hand("send_file", at(ROOM, "mia"), path=path)
        assert sent(kit) == []


@story
async def test_it_is_an_own_post_like_any_other(tmp_path: Path) -> None:
    async with stagehands(tmp_path) as kit:
        await send(kit, text="look")
        await kit.hand("edit_own", at(ROOM, "mia"), message="mine", text="see")
        assert isinstance(kit.stage, Stage)
        assert kit.stage.done == [("edit", "#room", "p1", "see")]


@pytest.mark.parametrize("name", ["a\\b\\c.txt", "  .txt", "e" * 250])
def test_a_name_is_one_line_and_no_path(tmp_path: Path, name: str) -> None:
    @story
    async def run() -> None:
        async with stagehands(tmp_path) as kit:
            await send(kit, f"out/{name}")
            ((_, told, _, _),) = sent(kit)
            assert told.isprintable()
            assert not set("/\\") & set(told)
            assert 0 < len(told) <= 100

    run()


@pytest.mark.parametrize(
    ("size", "why"),
    [(1_001, "That file has 1,001 bytes; 1,000 is the most"), (0, "is empty")],
)
def test_what_is_too_large_or_empty_is_refused(tmp_path: Path, size: int, why: str) -> None:
    @story
    async def run() -> None:
        async with stagehands(tmp_path) as kit:
            kit.put("x", b"x" * size)
            with pytest.raises(ToolCallRefused, match=why):
                await send(kit, "x")
            with pytest.raises(ToolCallRefused, match="no such file"):
                await kit.hand("send_file", at(ROOM, "mia"), path="y")
            assert await kit.facts("post", "acted") == []

    run()


@story
async def test_where_no_file_can_be_sent_it_is_refused(tmp_path: Path) -> None:
    async with stagehands(tmp_path, Deaf()) as kit:
        with pytest.raises(ToolCallRefused, match="No files can be sent here"):
            await send(kit)
        with pytest.raises(ToolCallRefused, match="by yourself"):
            await kit.hand("send_file", at(OWN), path="out/table.csv")


@story
async def test_a_turn_that_is_taken_again_after_a_crash_sends_it_once(tmp_path: Path) -> None:
    async with stagehands(tmp_path) as kit:
        await send(kit, turn_id="first")
    async with stagehands(tmp_path) as kit:
        told = await send(kit, turn_id="second")
        assert "not posted again" in str(told)
        assert await send(kit, turn_id="second", text="other words") == "It is posted."
        await kit.store.append([turn(ROOM.conversation, upto=1)])
        assert await send(kit, turn_id="third") == "It is posted."
        assert [body for body, *_ in sent(kit)] == ["other words", "table.csv"]


@story
async def test_what_was_queued_before_a_crash_is_delivered_by_the_next_process_once(tmp_path: Path) -> None:
    async with stagehands(tmp_path) as kit:
        kit.link(up=False)
        kit.put("a.png", DATA)
        await kit.hand("send_file", at(ROOM, "mia"), path="a.png")
    for _ in range(2):
        async with stagehands(tmp_path, stage := Stage()) as kit:
            await kit.delivered()
            if stage.sent:
                assert sent(kit) == [("a.png", "a.png", "image/png", DATA)]
                break
    async with stagehands(tmp_path, stage := Stage()) as kit:
        await kit.delivered()
        assert stage.sent == []
    assert list((tmp_path / "outfiles").iterdir()) == []


@story
async def test_cut_off_while_it_is_written_down_it_is_posted_all_the_same(tmp_path: Path) -> None:
    async with stagehands(tmp_path) as kit:
        kit.put("a.png", DATA)
        sending = asyncio.create_task(_send(kit))
        while not (tmp_path / "outfiles").exists():  # from here on it is being made durable
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await kit.delivered()
        assert [body for body, *_ in sent(kit)] == ["a.png"]


async def _send(kit: Stagehands) -> None:
    await kit.hand("send_file", at(ROOM, "mia"), path="a.png")
