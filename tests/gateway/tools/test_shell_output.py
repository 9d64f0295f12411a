"""What is kept of an output, how it reads, and when a command has taken too much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.tools import BashConfig
from gateway.tools.sandbox import DISK_USE_FACTOR, MAX_NEW_FILES, CommandLimits, DiskSpace, ProcessUsage
from gateway.tools.shell import OutputBuffer, ShellResult, strip_terminal_codes

LIMITS = CommandLimits(BashConfig(), 60)


@pytest.mark.parametrize(
    ("output", "read"),
    [
        (b"plain\n\ttab \xc3\xbc\n", "plain\n\ttab \u00fc\n"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        (b"\x1bPq#0;2;0\x1b\\a\x1b^x\x1b\\b", "ab"),
        (b"\x1b(B\x1b=\x1b7\x1b[?25la", "a"),
        (b"10%\r50%\r100%\n", "100%\n"),
        (b"a\r\nb\r\r\nc\r", "a\nb\nc"),
        (b"a\x00b\x07c\x7fd\x08", "abcd"),
        (b"\xff\xfe\xed\xa0\x80", "\ufffd" * 5),
        ("\u009b31mx\u2028y\u0085z".encode(), "31mx\ny\nz"),
        (b"\x1b", ""),
        (b"\x1b[", ""),
        (b"\x1b]0;never ended", ""),
    ],
)
def test_an_output_reads_as_plain_lines(output: bytes, read: str) -> None:
    assert strip_terminal_codes(output) == read


@given(st.binary() | st.text(alphabet="\x1b[]0;mP\\\x07\r\na\u009b").map(str.encode))
def test_no_output_holds_what_a_terminal_would_obey(output: bytes) -> None:
    for letter in strip_terminal_codes(output):
        assert letter in "\n\t" or letter >= " "
        assert not "\x7f" <= letter <= "\x9f"


@pytest.mark.parametrize("output", [b"\x1b]" * 10**6, b"\x1b[" + b"0" * 10**6, b"\r" * 10**6, b"a" * 10**6])
def test_no_output_takes_long_to_read(output: bytes) -> None:
    assert len(strip_terminal_codes(output)) <= len(output)


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(min_value=2, max_value=60))
def test_the_beginning_and_the_end_are_kept_exactly(pieces: list[bytes], most: int) -> None:
    kept, whole = OutputBuffer(most), b"".join(pieces)
    for piece in pieces:
        kept.append(piece)
    assert kept.total_bytes == len(whole)
    assert kept.dropped_bytes == max(0, len(whole) - most)
    if not kept.dropped_bytes:
        assert kept.render() == strip_terminal_codes(whole)
        return
    head, tail = whole[: most - most // 2], whole[len(whole) - most // 2 :]
    assert kept.render() == (
        f"{strip_terminal_codes(head)}\n[... {kept.dropped_bytes} bytes are not kept ...]\n{strip_terminal_codes(tail)}"
    )


def test_much_takes_no_more_room_than_a_little() -> None:
    kept = OutputBuffer(10_000)
    for _ in range(10_000):
        kept.append(bytes(1_000))
    assert len(kept._head) + len(kept._tail) <= 15_000


@pytest.mark.parametrize(
    ("status", "why", "took_s", "line"),
    [
        (0, "", 0.2, "exit status 0"),
        (1, "", 12.4, "exit status 1 after 12 s"),
        (137, "", 0.2, "exit status 137 (SIGKILL)"),
        (153, "", 1, "exit status 153 (SIGXFSZ: a file became larger than it may be) after 1 s"),
        (255, "", 0, "exit status 255"),
        (137, "its 60 s were over", 60.2, "ended after 60 s: its 60 s were over"),
    ],
)
def test_the_end_is_one_line(status: int, why: str, took_s: float, line: str) -> None:
    assert ShellResult(status=status, end_reason=why, duration_s=took_s).render() == line


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (ProcessUsage(), ""),
        (ProcessUsage(processes=64, threads=1024, memory_bytes=1_073_741_824), ""),
        (ProcessUsage(processes=65), "it had more than 64 processes at once"),
        (ProcessUsage(processes=1, threads=1025), "it had more than 1024 threads at once"),
        (ProcessUsage(memory_bytes=1_073_741_825), "its processes took more than 1073 MB of memory together"),
    ],
)
def test_what_is_too_much(load: ProcessUsage, why: str) -> None:
    assert LIMITS.check_usage(load) == why


GB = 1_000_000_000
MOST = DISK_USE_FACTOR * LIMITS.config.disk_bytes


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ((100 * GB, 10**6), (100 * GB, 10**6), ""),
        ((100 * GB, 10**6), (100 * GB - MOST, 10**6 - MAX_NEW_FILES), ""),
        ((100 * GB, 10**6), (100 * GB - MOST - 1, 10**6), "the disk lost 1048 MB while it ran, and has 98951 MB left"),
        ((100 * GB, 10**6), (100 * GB, 10**6 - MAX_NEW_FILES - 1), "more than 100000 files were made while it ran"),
        ((100 * GB, 0), (100 * GB, 0), ""),  # a file system that does not count them
        ((90_000_000, 10**6), (90_000_000, 10**6), ""),  # full already: that is not its doing
        ((90_000_000, 10**6), (80_000_000, 10**6), ""),
        ((90_000_000, 10**6), (70_000_000, 10**6), "the disk lost 20 MB while it ran, and has 70 MB left"),
        ((0, 0), (GB, 10**6), ""),  # others make room
    ],
)
def test_when_the_disk_has_lost_too_much(before: tuple[int, int], now: tuple[int, int], why: str) -> None:
    spaces = [DiskSpace(free_bytes=free, free_files=files) for free, files in (before, now)]
    assert LIMITS.check_disk(*spaces) == why


def test_when_it_is_a_flood() -> None:
    assert LIMITS.check_output(20_000_000) == ""
    assert LIMITS.check_output(20_000_001) == "it printed more than 20 MB; put such output into a file"
