"""Gates that show only over time: repeats, delays, and what an admin may make of whom.

Each scene gives what is wrong, in words; nothing, if all is as it should be.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from gateway.core.events import Notification
from gateway.core.facts import RoleAssigned
from gateway.store import StoreError
from tests.gateway.system.permission_matrix.matrix_kit import BETWEEN_S, House, Seen, house
from tests.gateway.system.permission_matrix.people import PEOPLE, Place
from tests.gateway.system.permission_matrix.platform_payloads import (
    FOREIGN,
    Irc,
    Telegram,
    _tg_command,
)

Wrongs = AsyncIterator[str]
Scene = Callable[[Path], Wrongs]
NUMBER: Final = {person.name: number for number, person in enumerate(PEOPLE)}
TARGET: Final = f"telegram.main:{FOREIGN}"


def says(home: House, name: str, place: Place, text: str) -> list[Notification]:
    """Somebody of Telegram says that."""
    reader = home.readers["telegram"]
    assert isinstance(reader, Telegram)
    number = NUMBER[name]
    way = "mention" if place != "direct" and not text.startswith("/") else "say"
    update = reader.update(number, PEOPLE[number], place, way)
    if text.startswith("/"):
        update["message"] |= _tg_command(text[1:])
    return list(reader.heard(update))


async def said(home: House, name: str, place: Place, text: str) -> Seen:
    return await home.take(*says(home, name, place, text))


async def replay(folder: Path) -> Wrongs:
    """What the platform tells twice happens once, in one batch or two, before and after a
    restart."""
    async with house(folder) as home:
        home.clock.advance(BETWEEN_S)
        events = says(home, "owner", "direct", f"/role set {TARGET} member")
        stranger = [
            *says(home, "stranger", "direct", "hello"),
            *says(home, "owner", "listed", "hello"),
        ]
        first = await home.take(*events, *stranger)
        if sum(isinstance(fact, RoleAssigned) for fact in first.facts) != 1:
            yield "the owner's act is not done"
        again = await home.take(*events, *stranger)
        if again.facts or again.arrivals:
            yield "a repeat does something"
    async with house(folder) as home:
        again = await home.take(*events, *stranger)
        if again.facts or again.arrivals:
            yield "a repeat does something after a restart"


async def late(folder: Path) -> Wrongs:
    """A command that acts and is heard more than a minute after it was given is not carried out."""
    async with house(folder) as home:
        for waits_s, right in ((59.0, True), (61.0, False)):
            home.clock.advance(BETWEEN_S)
            events = says(home, "owner", "direct", f"/role set {TARGET} member")
            home.clock.advance(waits_s)
            seen = await home.take(*events)
            if any(isinstance(fact, RoleAssigned) for fact in seen.facts) != right:
                yield f"heard after {waits_s} s: done is {not right}"
            if seen.outcome.said != "answer":
                yield f"heard after {waits_s} s: {seen.outcome}"
            await home.write(
                RoleAssigned(person=TARGET, role="", scope="", by="operator", why="role")
            )


async def rights(folder: Path) -> Wrongs:
    """What an admin may make of whom."""
    tries = (
        ("admin", "direct", f"/role set {TARGET} owner"),
        ("admin", "direct", f"/role set {TARGET} admin"),
        ("admin", "direct", f"/block telegram.main:{1000 + NUMBER['owner']}"),
        ("admin", "direct", f"/block telegram.main:{1000 + NUMBER['admin at run time']}"),
        ("owner at run time", "direct", f"/block telegram.main:{1000 + NUMBER['owner']}"),
        (
            "admin at run time",
            "direct",
            f"/role set telegram.main:{1000 + NUMBER['admin at run time']} owner",
        ),
        ("owner", "direct", f"/role set irc.net:mask:*!*@{FOREIGN} admin"),
        ("owner", "direct", f"/role set irc.net:mask:a!b@{FOREIGN} member"),
        ("admin here", "listed", f"/block {TARGET} everywhere"),
        ("admin here", "listed", f"/role set {TARGET} member here"),
        ("member", "direct", f"/block {TARGET}"),
        ("member", "direct", f"/role set {TARGET} member"),
    )
    async with house(folder) as home:
        for who, place, line in tries:
            home.clock.advance(BETWEEN_S)
            seen = await said(home, who, place, line)  # type: ignore[arg-type]
            if done := [fact for fact in seen.facts if isinstance(fact, RoleAssigned)]:
                yield f"{who}: {line}: {done}"
        home.clock.advance(BETWEEN_S)
        if not (await said(home, "owner", "direct", f"/role set {TARGET} admin")).outcome.acts:
            yield "an owner makes no admin"
    async with house(folder / "masks", masks=True) as home:
        if (
            await said(home, "owner", "direct", f"/role set irc.net:mask:a!b@{FOREIGN} admin")
        ).outcome.acts:
            yield "a mask is made an admin"


async def spelled(folder: Path) -> Wrongs:
    """An account is the same in any case: also one that is blocked."""
    async with house(folder) as home:
        for name, right in (("blocked", "refused"), ("owner", "heard")):
            number = NUMBER[name]
            line = f"@account=P{number} :p{number}!u@h PRIVMSG #listed :reverie: hello"
            if (fate := (await home.take(*Irc(home.clock).heard(line))).outcome.fate) != right:
                yield f"{name}, in capitals: {fate}"


async def closed(folder: Path) -> Wrongs:
    """Before the log was read nobody is let in, though the configuration says who is who."""
    async with house(folder, begun=False) as home:
        try:
            seen = await said(home, "owner", "direct", "hello")
        except StoreError:
            return
        yield f"heard without a store: {seen.facts}"


async def scopes(folder: Path) -> Wrongs:
    """A role in a room of that name elsewhere is none here."""
    who, room = f"irc.net:account:{FOREIGN}", "telegram.main/#listed"
    async with house(folder) as home:
        await home.write(
            RoleAssigned(person=who, role="admin", scope=room, by="operator", why="role")
        )
        line = f"@account={FOREIGN} :eve!e@x PRIVMSG #listed :!cache"
        if (outcome := (await home.take(*home.irc.heard(line))).outcome).fate != "refused":
            yield f"{outcome}"


SCENES: Final[dict[str, Scene]] = {
    scene.__name__: scene
    for scene in (
        replay,
        late,
        rights,
        spelled,
        closed,
        scopes,
    )
}


async def wrongs(scene: Scene, folder: Path, **_: Any) -> list[str]:
    return [f"{scene.__name__}: {wrong}" async for wrong in scene(folder)]
