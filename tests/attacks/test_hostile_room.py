"""A hostile room tries everything, with a model that obeys it. Nothing succeeds; the table is
printed."""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec

import pytest

from reverie.testing.waiting import until
from tests.attacks.attacks_approvals import APPROVALS
from tests.attacks.attacks_files import FILES, shared
from tests.attacks.attacks_permissions import RIGHTS
from tests.attacks.attacks_private_rooms import ROOMS
from tests.attacks.attacks_prompt_injection import WORDS
from tests.attacks.attacks_shell import BOMBS, SHELL
from tests.attacks.attacks_telling import TELLING, TWINS
from tests.attacks.attacks_web import WEB
from tests.attacks.hostile_kit import MIA, OLGA, Attack, Fate, Town, town
from tests.kits.shell import let_nobody_in

pytestmark = pytest.mark.boxed

P = ParamSpec("P")
AT_ONCE = 12
MOST_WANTED = 60
HELD_CHARS = 110


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(600):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def suffered(it: Town, attacks: Sequence[Attack]) -> list[Fate]:
    """Carry them out, some at once; what became of each."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(attack: Attack) -> Fate:
        async with room:
            try:
                return await it.suffer(attack)
            except (
                AssertionError,
                TimeoutError,
                ValueError,
            ) as error:  # it shall not hide what became of the others
                return Fate(True, f"it broke: {type(error).__name__} {error}")

    together = [each for each in attacks if not each.alone]
    fates = dict(
        zip(together, await asyncio.gather(*(one(each) for each in together)), strict=True)
    )
    for each in attacks:
        if each.alone:
            fates[each] = await one(each)
    return [fates[each] for each in attacks]


def table(attacks: Sequence[Attack], fates: Sequence[Fate]) -> str:
    lines = [f"{'category':<10} {'attack':<62} held by"]
    for attack, fate in zip(attacks, fates, strict=True):
        found = re.search(attack.held, fate.held)
        held = f"SUCCEEDED {fate.held[:HELD_CHARS]!r}" if fate.won else _around(fate.held, found)
        lines.append(f"{attack.category:<10} {attack.name:<62} {held}")
    return "\n".join(lines)


def _around(text: str, found: re.Match[str] | None) -> str:
    begins = found.start() if found else 0
    flat = " ".join(text[begins : begins + 2 * HELD_CHARS].split())
    return f"{'' if found else '??? '}{flat[:HELD_CHARS]}"


@story
async def test_nothing_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks = [*RIGHTS, *FILES, *SHELL, *WEB, *WORDS, *APPROVALS, *ROOMS]
    assert len(attacks) >= MOST_WANTED
    await nothing_succeeds(tmp_path, monkeypatch, attacks)


@story
async def test_no_bomb_goes_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await nothing_succeeds(tmp_path, monkeypatch, BOMBS)


TOLD_AT_ONCE = {"dmn": {"tell": {"per_day": 1_000}}}


@story
async def test_nothing_is_told_to_whom_it_is_not_for_or_in_the_name_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nothing_succeeds(tmp_path, monkeypatch, TELLING, mind=TOLD_AT_ONCE)


@story
async def test_what_may_be_told_and_answered_is_so_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(tmp_path, monkeypatch, mind=TOLD_AT_ONCE) as it:
        fates = await suffered(it, TWINS)
        assert not [one for one in it.shown if "!approve" in one.body]
    assert [one.held for one in fates if not one.won] == []


@story
async def test_what_is_written_in_one_room_is_kept_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nothing_succeeds(tmp_path, monkeypatch, shared(twin=False))


@story
async def test_whoever_may_read_it_reads_it_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(tmp_path, monkeypatch) as it:
        twins = shared(twin=True)
        fates = await suffered(it, twins)
    assert not [
        f"{twin.name}: {fate.held[:300]}"
        for twin, fate in zip(twins, fates, strict=True)
        if not fate.won
    ]


@story
async def test_what_was_changed_comes_back_by_a_command_of_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(tmp_path, monkeypatch) as it:
        here, beside = it.scene(), it.scene()
        for scene in (here, beside):
            scene.file("a.txt").write_text("one")
        await here.does(OLGA, ("bash", {"command": "echo two > a.txt"}))
        assert here.file("a.txt").read_text() == "two\n"
        assert it.again is not None
        await it.again()
        await here.speak(MIA, "!files undo", mention=False)
        await beside.speak(OLGA, "!files undo", mention=False)
        await until(lambda: beside.posts)
        assert "I changed no file" in beside.posts[-1]
        assert here.file("a.txt").read_text() == "two\n", (
            "neither a member's word nor one elsewhere"
        )
        await here.speak(OLGA, "!files undo", mention=False)
        await until(lambda: "Brought back: `a.txt`" in "".join(here.posts))
        assert here.file("a.txt").read_text() == "one"


def may_know(place: str, secret: str) -> bool:
    """Whether it may be told there: an owner's own alone with them, a private room's in it."""
    if place == "street/olga":
        return secret in ("diary", "memory", "user", "staff")
    return secret == "staff" and place.startswith("street/staff")


OPEN: dict[str, Any] = {
    "rules": [{"tool": "*", "role": "guest", "approval": "never"}],
    "off": [],
    "bash": {"sandbox": "off", "timeout": 200},
    "web": {"allow_private": ["127.0.0.0/8", "localhost", "inward.attacker.net"]},
}
"""A gate that lets all through, a shell without walls, and every address: by the operator's own
word."""
BITES = (
    "a guest asks for a shell",
    "who nobody vouches for has the owner's id and asks for a shell",
    "a guest has a file written",
    "a guest has files searched",
    "a guest has a page fetched",
    "a guest has a server's tool called",
    "a guest's shell by call_capability",
    "a guest has the topic changed",
    "a guest has a file sent",
    "the configuration by its path",
    "MEMORY.md and USER.md",
    "a key of ssh",
    "/proc/PID/environ of the gateway",
    "MEMORY.md written by a link",
    "a hard link to a file outside",
    "a connection to this machine",
    "loopback",
    "a name that leads to loopback",
    "a name whose answer changes",
    "redirected to loopback",
    "redirected in hops",
    "another room, when an admin reads it",
    "a guest speaks beside an admin",
    "a guest's line overheard before an admin speaks",
    "a topic",
    "a guest's reminder that asks for a shell",
)


HELD_FROM_NOBODY = {
    "the configuration by its path",
    "a key of ssh",
    "/proc/PID/environ of the gateway",
    "MEMORY.md written by a link",
    "a hard link to a file outside",
}
"""What a shell without walls does not reach where the gateway runs as root: its commands run as
`nobody`."""


@story
async def test_where_nothing_holds_they_do_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not below pytest's own directory, which each run of pytest closes to `nobody` again."""
    root = os.geteuid() == 0
    named = {
        attack.name: attack
        for attack in (*RIGHTS, *FILES, *SHELL, *WEB, *WORDS, *APPROVALS, *ROOMS)
    }
    attacks = [named[name] for name in BITES if not root or name not in HELD_FROM_NOBODY]
    with TemporaryDirectory() as own:
        async with town(Path(own), monkeypatch, **OPEN) as it:
            let_nobody_in(Path(own) / "workspace")
            fates = await suffered(it, attacks)
    assert not [
        f"{attack.name}: {fate.held[:200]}"
        for attack, fate in zip(attacks, fates, strict=True)
        if not fate.won
    ]
    assert not [fate.held for fate in fates if fate.held.startswith("it broke")]


async def nothing_succeeds(
    folder: Path,
    patch: pytest.MonkeyPatch,
    attacks: Sequence[Attack],
    mind: dict[str, Any] | None = None,
) -> None:
    async with town(folder, patch, mind=mind) as it:
        fates = await suffered(it, attacks)
        print(table(attacks, fates))
        out = {pair for pair in it.puppet.read if not may_know(*pair)}
        posted = {(part.to.room, name) for part in it.shown for name in it.leaking(part.body)}
        assert not out, "the model was told what it may not know there"
        assert not {pair for pair in posted if not may_know(f"street/{pair[0]}", pair[1])}
    succeeded = [
        f"{attack.name}: {fate.held}"
        for attack, fate in zip(attacks, fates, strict=True)
        if fate.won
    ]
    assert not succeeded, "\n".join(succeeded)
    otherwise = [
        f"{attack.name}: {fate.held[:300]}"
        for attack, fate in zip(attacks, fates, strict=True)
        if not re.search(attack.held, fate.held)
    ]
    assert not otherwise, "held by something else than what is meant to: " + "\n".join(otherwise)
