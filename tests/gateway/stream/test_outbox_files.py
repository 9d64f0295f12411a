"""Files that go with posts: stored once until they are delivered, whatever happens in between."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.base import BeforeSend, OutgoingFile, Part, RateLimited, Uncertain, no_before_send
from gateway.core.clock import ManualClock
from gateway.core.events import Address, Post, PostFile, PostKey, Receipt, RoomId
from gateway.core.facts import PartSendStarted, PostQueued
from gateway.store import NewEntry, OutboxPost, Store
from gateway.stream.outbox import OutgoingFiles
from tests.gateway.stream.outbox_kit import NAME, Office, Postman, office, play

DATA = b"\x89PNG and so on"
SHA = hashlib.sha256(DATA).hexdigest()
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
"""Start time, as in the kit."""


class Carrier(Postman):
    """Takes files of a few bytes."""

    def __init__(self, *ends: RateLimited | Uncertain, window: int = 1, file_bytes: int = 100) -> None:
        super().__init__(*ends, window=window)
        self.capabilities = replace(self.capabilities, max_file_bytes=file_bytes)
        self.files: list[tuple[str, OutgoingFile | None]] = []

    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        receipt = await super().send(part, going)
        self.files.append((part.body, part.file))
        return receipt


def with_file(text: str, *, room: str = "#a", name: str = "cat.png") -> Post:
    to = Address(channel=NAME, room=RoomId(room))
    file = PostFile(name=name, content_type="image/png", sha256=SHA, size_bytes=len(DATA))
    return Post(key=PostKey(f"{room}:{text}"), to=to, text=text, file=file)


async def queue(store: Store, post: Post, now: datetime = BEGIN) -> OutboxPost:
    """Queue a post with a file as a tool does, in one step."""
    async with OutgoingFiles(store).store_file(DATA):
        (at,) = await store.append([NewEntry(fact=PostQueued(post=post), at=now, conversation=post.to.conversation)])
    return OutboxPost(seq=at.seq, at=now, post=post, parts=())


async def put(work: Office, post: Post) -> None:
    await queue(work.store, post, work.clock.now())


def kept(tmp: Path) -> list[str]:
    folder = tmp / "outfiles"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("window", [1, 2])
def test_the_first_part_has_it_and_then_it_is_gone(tmp_path: Path, window: int) -> None:
    carrier = Carrier(window=window)

    async def story() -> None:
        async with office(tmp_path, carrier) as work:
            await put(work, with_file("1\n2\n3"))
            assert kept(tmp_path) == [SHA]
            assert [delivery.state for delivery in await work.ended(1)] == ["sent"]
        assert carrier.files == [
            ("1", OutgoingFile(name="cat.png", content_type="image/png", data=DATA)),
            ("2", None),
            ("3", None),
        ]
        assert kept(tmp_path) == []

    play(story)


def test_what_waits_is_tried_again_with_it(tmp_path: Path) -> None:
    carrier = Carrier(RateLimited("slowly", retry_after_s=3))

    async def story() -> None:
        async with office(tmp_path, carrier) as work:
            await put(work, with_file("look"))
            assert [delivery.state for delivery in await work.ended(1)] == ["sent"]
        assert [(body, file.data) for body, file in carrier.files if file] == [("look", DATA)]

    play(story)


def test_the_next_process_sends_it_once(tmp_path: Path) -> None:
    carrier = Carrier()

    async def story() -> None:
        async with await Store.open(tmp_path / "s.db", ManualClock()) as store:
            await queue(store, with_file("look"))
        for _ in range(2):
            async with office(tmp_path, carrier) as work:
                assert [delivery.state for delivery in await work.ended(1)] == ["sent"]
        assert [body for body, _ in carrier.files] == ["look"]
        assert kept(tmp_path) == []

    play(story)


def test_what_may_have_been_seen_before_a_crash_is_uncertain_and_not_sent(tmp_path: Path) -> None:
    carrier = Carrier()

    async def story() -> None:
        async with await Store.open(tmp_path / "s.db", ManualClock()) as store:
            post = (await queue(store, with_file("look"))).post
            sending = PartSendStarted(post=post.key, part=0, bodies=("look",))
            await store.append([NewEntry(fact=sending, at=BEGIN, conversation=post.to.conversation)])
        async with office(tmp_path, carrier) as work:
            assert [delivery.state for delivery in await work.ended(1)] == ["uncertain"]
        assert carrier.attempts == []
        assert kept(tmp_path) == []

    play(story)


@pytest.mark.parametrize("how", ["gone", "changed", "grown", "a link"])
def test_a_post_without_its_file_is_not_sent(tmp_path: Path, how: str) -> None:
    carrier = Carrier(window=2)

    async def story() -> None:
        async with office(tmp_path, carrier, up=False) as work:
            await put(work, with_file("look\nhere"))
            path = tmp_path / "outfiles" / SHA
            match how:
                case "changed":
                    path.write_bytes(DATA[::-1])
                case "grown":
                    path.write_bytes(DATA + b"!")
                case "a link":
                    path.rename(tmp_path / "elsewhere")
                    path.symlink_to(tmp_path / "elsewhere")
                case _:
                    path.unlink()
            work.outbox.set_link_up(NAME, up=True)
            (delivery,) = await work.ended(1)
            assert (delivery.state, "the file that goes with it is gone" in delivery.reason) == ("failed", True)
        assert carrier.attempts == []
        assert kept(tmp_path) == []

    play(story)


@pytest.mark.parametrize("most", [0, len(DATA) - 1])
def test_a_channel_that_cannot_take_it_is_given_nothing(tmp_path: Path, most: int) -> None:
    carrier = Carrier(file_bytes=most)

    async def story() -> None:
        async with office(tmp_path, carrier) as work:
            await put(work, with_file("look"))
            (delivery,) = await work.ended(1)
            assert delivery.state == "failed"
            assert f"no files of more than {most} bytes" in delivery.reason
        assert carrier.attempts == []

    play(story)


def test_the_same_file_in_two_posts_stays_until_both_are_delivered(tmp_path: Path) -> None:
    carrier = Carrier()

    async def story() -> None:
        async with office(tmp_path, carrier) as work:
            work.outbox.set_link_up(NAME, up=False)
            await put(work, with_file("first"))
            await put(work, with_file("second"))
            await put(work, with_file("third", room="#b"))
            work.outbox.set_link_up(NAME, up=True)
            assert [delivery.state for delivery in await work.ended(3)] == ["sent"] * 3
        assert sorted(body for body, file in carrier.files if file and file.data == DATA) == [
            "first",
            "second",
            "third",
        ]
        assert kept(tmp_path) == []

    play(story)


def test_a_start_removes_what_no_post_needs_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with await Store.open(tmp_path / "s.db", ManualClock()) as store:
            await queue(store, with_file("look"))
        folder, orphan = tmp_path / "outfiles", hashlib.sha256(b"x").hexdigest()
        (folder / orphan).write_bytes(b"x")
        (folder / f".{orphan}.new").write_bytes(b"")
        (folder / "notes.txt").write_text("somebody's")
        async with office(tmp_path, Carrier(), up=False):
            assert kept(tmp_path) == sorted([SHA, "notes.txt"])
        assert (folder / SHA).stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700

    play(story)
