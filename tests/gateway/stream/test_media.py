"""Images for models that see, and descriptions for others."""

import os
import resource
import signal
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import MAX_IMAGE_BYTES
from gateway.core.clock import SystemClock
from gateway.core.events import Attachment
from gateway.core.media_types import describe_attachment, identify_image, sound_suffix
from gateway.stream.media import MediaStore
from reverie.testing.gateway import running
from reverie.testing.waiting import until
from tests.kits.media import heard, png, seeing, shown
from tests.kits.scaling import assert_in_proportion
from tests.kits.settings import live_settings


async def test_an_image_reaches_a_model_that_sees_now_and_in_later_prompts(tmp_path: Path) -> None:
    async with running(tmp_path, seeing()) as gateway:
        photo = gateway.console.add_attachment(
            png(64, 48), "image", name="../../etc/my photo].jpg", content_type="text/html"
        )
        await gateway.ask("look", sender="ann", attachments=(photo,))
        assert heard(gateway).endswith(
            f"ann (guest): look [image my photo .jpg, 64x48, {len(png(64, 48))} bytes]"
        )
        (image,) = shown(gateway)
        assert (image.media_type, image.data) == ("image/png", png(64, 48))
        await gateway.ask("and?", sender="ann")
    first, second = gateway.scripted.requests
    assert second.conversation[: len(first.conversation)] == first.conversation
    async with running(tmp_path, seeing()) as again:
        await again.ask("still?", sender="ann")
        (third,) = again.scripted.requests
    assert (
        third.conversation[: len(second.conversation)] == second.conversation
    )  # also over a restart
    (kept,) = (tmp_path / "media").iterdir()
    turn = (await again.turns())[0]
    assert kept.name == turn.media[0].sha256
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
    async with running(tmp_path, seeing()) as blind:
        await blind.ask("gone?", sender="ann")
        assert not shown(blind)
        assert "[image my photo" in str(blind.scripted.requests[0].conversation[0].parts)


async def test_a_model_that_does_not_see_reads_a_line(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        attached = (
            gateway.console.add_attachment(png(), "image"),
            gateway.console.add_attachment(b"x" * 1_200_000, "file", name="song.mid"),
            gateway.console.add_attachment(b"OggS", "audio", duration_s=12.2),
        )
        await gateway.ask("", sender="ann", attachments=attached)
        line = f"[image, {len(png())} bytes] [file song.mid, 1.2 MB] [voice note, 12 s]"
        assert heard(gateway).endswith(f"ann (guest): {line}")
    assert not (tmp_path / "media").exists()  # nothing was fetched


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"<svg>not what it says</svg>", "of a kind that cannot be shown]"),
        (png() + b"\0" * MAX_IMAGE_BYTES, "too large to be fetched]"),
        (png(9_000, 1), "9000x1, 9 KB, too large to be shown]"),
        (png(90, 90)[:-12], "damaged]"),
        (b"\xff\xd8\xff\xe0" + bytes(1_000) + b"\xff\xd9", "damaged]"),
        (None, "could not be fetched]"),
    ],
)
async def test_what_cannot_be_shown_says_why(tmp_path: Path, data: bytes | None, told: str) -> None:
    async with running(tmp_path, seeing()) as gateway:
        photo = gateway.console.add_attachment(
            data or png(), "image", name="x.png", content_type="image/png"
        )
        if data is None:
            photo = Attachment(id="elsewhere", form="image")
        await gateway.ask("look", sender="ann", attachments=(photo,))
        assert told.rsplit(" KB, ", maxsplit=1)[-1] in heard(gateway)
        assert not shown(gateway)
    (turn,) = await gateway.turns()
    assert turn.outcome == "replied"


async def test_what_does_not_fit_on_the_disk_leaves_no_half_file(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    before, old = (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, old[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            await MediaStore(live_settings(), folder, {}, SystemClock()).save(bytes(5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("marker", [b"\xff", b"\xff\xd0", b"\xff\xe0\0\2"])
def test_a_picture_of_nothing_but_markers_takes_no_time(marker: bytes) -> None:
    def identify(size: int) -> None:
        assert identify_image(b"\xff\xd8\xff" + marker * (size // len(marker))) == (
            "image/jpeg",
            0,
            0,
        )

    assert_in_proportion(identify, MAX_IMAGE_BYTES // 16, times=16, at_most=8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(640, 480), ("image/png", 640, 480)),
        (b"GIF89a" + struct.pack("<HH", 3, 5), ("image/gif", 3, 5)),
        (
            b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc4\x00\x02\xff\xc2\x00\x11\x08"
            + struct.pack(">HH", 48, 64)
            + b"\3",
            ("image/jpeg", 64, 48),
        ),
        (b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x0f\x00\x00\x07\x00\x00", ("image/webp", 16, 8)),
        (
            b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 9 | 4 << 14),
            ("image/webp", 10, 5),
        ),
        (b"RIFF\0\0\0\0WEBPVP8 " + b"\0" * 10 + struct.pack("<HH", 30, 20), ("image/webp", 30, 20)),
        (b"\xff\xd8\xff", ("image/jpeg", 0, 0)),
        (b"<svg/>", None),
        (b"RIFF\0\0\0\0WAVE", None),
    ],
)
def test_a_picture_is_known_by_its_bytes(
    data: bytes, expected: tuple[str, int, int] | None
) -> None:
    assert identify_image(data) == expected


@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\xff\xd8\xff", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF0000WEBPVP8"]),
)
def test_no_bytes_break_the_sniffing(data: bytes, head: bytes) -> None:
    identify_image(head + data)
    assert sound_suffix(data).startswith(".")


@given(st.text(), st.text())
def test_nothing_from_outside_closes_a_description(name: str, words: str) -> None:
    told = describe_attachment(Attachment(id="x", form="file", name=name), words=words)
    assert told.startswith("[file")
    assert (told.count("["), told.count("]"), told[-1]) == (1, 1, "]")
    assert "/" not in told.partition(":")[0]
    assert told.isprintable()
    assert len(told) < 2_200


async def test_what_is_not_shown_any_more_is_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    old, new, foreign = folder / ("a" * 64), folder / ("b" * 64), folder / "notes.txt"
    for file in (old, new, foreign):
        file.write_bytes(b"x")
    for file in (old, foreign):
        os.utime(file, (1, 1))
    async with running(tmp_path):
        await until(lambda: not old.exists())
    assert new.exists()
    assert foreign.exists()
