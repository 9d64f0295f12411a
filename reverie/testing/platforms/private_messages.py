"""What one person is shown and nobody else, on platforms that have it: group `asides`."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from channels.base import (
    CanCompleteCommands,
    CanDirectMessage,
    CanOpenDirect,
    CanSetCommandMenus,
    CommandCompletion,
    RecipientAway,
)
from gateway.core.events import Address, Command, SenderId
from reverie.testing.platforms.base import COMMANDS, Bench, Where

Who = Literal["alice", "bob"]
_PEOPLE: Final[tuple[Who, ...]] = ("alice", "bob")
_ROLES: Final = ("guest", "member", "admin", "owner")


def _usable(role: str, where: Where) -> list[str]:
    """What somebody is to find in the menu there."""
    able = [spec for spec in COMMANDS if _ROLES.index(spec.role) <= _ROLES.index(role)]
    return [spec.name for spec in able if where == "direct" or not spec.direct_only]


async def it_completes(bench: Bench) -> None:
    channel, asked = bench.channel, list[CommandCompletion]()
    assert isinstance(channel, CanCompleteCommands)
    assert await bench.kit.suggested("room", "an") == [], "nobody is asked yet"

    async def suggest(typed: CommandCompletion) -> Sequence[str]:
        asked.append(typed)
        if typed.prefix == "broken":
            raise LookupError(typed.prefix)
        if typed.prefix == "slow":
            await asyncio.Event().wait()
        return [f"{typed.prefix}{number}" for number in range(25 if typed.prefix == "many" else 2)]

    channel.set_completer(suggest)
    places: tuple[Where, ...] = ("room", "direct")
    for where in places:
        await bench.kit.say(f"by the way, {where}", where=where)
        spoken = await bench.ear.message(f"by the way, {where}")
        assert await bench.kit.suggested(where, "an") == ["an0", "an1"]
        assert len(asked) == 1
        typed = asked.pop()
        assert (typed.name, typed.sub, typed.arg, typed.prefix) == ("greet", "", "whom", "an")
        assert (typed.at, typed.direct) == (spoken.at, where == "direct")
        assert replace(typed.sender, ranks=()) == replace(spoken.sender, ranks=()), (
            "who types is who speaks"
        )
    assert await bench.kit.suggested("room", "many") == [f"many{number}" for number in range(25)]
    for trouble in ("broken", "slow"):
        assert await bench.kit.suggested("room", trouble) == []
    assert await bench.kit.suggested("room", "") == ["0", "1"]
    assert not bench.ear.all(Command), "what is still written was taken for given"
    assert bench.ear.links == [True]


async def it_offers(bench: Bench) -> None:
    channel = bench.channel
    assert isinstance(channel, CanSetCommandMenus)
    for name in _PEOPLE:
        await bench.kit.say(f"{name} here", where="direct", by=name)
    alice, bob = [(await bench.ear.message(f"{name} here")).sender for name in _PEOPLE]
    gone, odd = (replace(bob, id=SenderId(number)) for number in ("77", "no such id"))
    assert await _menus(bench) == ["guest", "guest", "guest"]
    for _ in range(2):
        await channel.set_command_menus(
            [(gone, "owner"), (odd, "owner"), (alice, "owner"), (bob, "member")]
        )
        assert await _menus(bench) == ["owner", "member", "guest"]
    await channel.set_command_menus([(bob, "admin")])
    assert await _menus(bench) == ["guest", "admin", "guest"]
    await channel.set_command_menus([])
    assert await _menus(bench) == ["guest", "guest", "guest"]
    await bench.tell("still here")
    assert bench.ear.links == [True]
    await bench.end()
    await channel.set_command_menus([(alice, "owner")])


async def _menus(bench: Bench) -> list[str]:
    """Whose menu alice is shown alone with the bot, and bob, and alice in the room."""
    places: tuple[tuple[Where, Literal["alice", "bob"]], ...] = (
        ("direct", "alice"),
        ("direct", "bob"),
        ("room", "alice"),
    )
    shown = [(await bench.kit.menu(where, by), where) for where, by in places]
    return [
        next((role for role in _ROLES if _usable(role, where) == names), str(names))
        for names, where in shown
    ]


async def it_whispers(bench: Bench) -> None:
    chats = [await _whispered(bench, account) for account in (None, "alice")]
    channel, at = bench.channel, await _direct(bench, "and me?", "bob")
    assert isinstance(channel, CanDirectMessage)
    bob = (await bench.ear.message("and me?")).sender
    assert channel.direct_room(bob) == at.room
    assert at not in chats


async def _whispered(bench: Bench, account: str | None) -> Address:
    """The chat in which alice, known by this account or by none, was told something alone."""
    channel = bench.channel
    assert isinstance(channel, CanDirectMessage)
    await bench.kit.known(account)
    await bench.kit.say(f"it is {account}")
    heard = await bench.ear.message(f"it is {account}")
    room = channel.direct_room(heard.sender)
    assert room is not None
    alone = replace(heard.at, room=room, thread=None)
    assert alone.room != heard.at.room
    before = len(await bench.kit.seen("direct", 0))
    try:
        await bench.tell(f"a secret of {account}", alone)
    except RecipientAway as away:
        raise AssertionError("she is there, and is told nothing") from away
    seen = await bench.kit.seen("direct", before + 1)
    assert [bench.kit.plain(one) for one in seen[before:]] == [f"a secret of {account}"]
    assert not [one for one in await bench.kit.overheard() if "secret" in one]
    assert await _direct(bench, f"of {account}?", "alice") == alone, "she answers in another chat"
    return alone


async def _direct(bench: Bench, text: str, by: Who) -> Address:
    await bench.kit.say(text, where="direct", by=by)
    return (await bench.ear.message(text)).at


async def it_confides(bench: Bench) -> None:
    """Who writes in a room is answered in the direct chat in which they write."""
    at = await _direct(bench, "just me", "alice")
    await bench.kit.say("in front of all")
    channel, heard = bench.channel, await bench.ear.message("in front of all")
    assert isinstance(channel, CanOpenDirect)
    assert await channel.open_direct(heard.sender) == at.room != heard.at.room


CHECKS = (it_completes, it_offers, it_whispers, it_confides)
