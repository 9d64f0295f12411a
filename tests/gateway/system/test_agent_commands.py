"""The commands about what agents do by themselves, as people give them: a whole gateway, and its next process."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.core.events import Address, Command, EventId, RoomId, Sender, SenderId
from gateway.core.facts import DmnDirective, Judgement
from tests.kits.channels import story
from tests.kits.gateway import CONSOLE, Running, running

ACCESS: dict[str, Any] = {"access": {"dm": "open", "roles": {"owner": ["console:olga"], "admin": ["console:root"]}}}


class Person:
    """Somebody who says something and reads what is answered."""

    def __init__(self, gateway: Running, sender: str, room: str | None = "lobby") -> None:
        self._gateway, self._sender, self._room = gateway, sender, room

    async def __call__(self, text: str) -> str:
        """The answer."""
        count = len(self._gateway.screen.parts)
        await self._gateway.console.receive_message(text, sender=self._sender, room=self._room)
        await self._gateway.screen.until(count + 1)
        return self._gateway.screen.parts[-1].body


async def judged(gateway: Running) -> str:
    """Which rule decided about what came last."""
    facts = [one for one in await gateway.log("judged") if isinstance(one, Judgement)]
    return facts[-1].rule


@story
async def test_they_are_answered_and_what_they_change_holds_in_the_next_process(tmp_path: Path) -> None:
    async with running(tmp_path, **ACCESS) as gateway:
        root, olga = Person(gateway, "root"), Person(gateway, "olga", None)
        assert await root("!pending") == "I have read everything."
        assert await root("!remind") == "There are no reminders here."
        assert await root("!journal") == "My journal has nothing that I may show here."
        assert await olga("!memory") == "I keep no notes that I may show here."
        assert await root("!dmn pause") == "reverie is paused."
        assert "reverie is paused" in await root("!dmn")
        assert "urgent and above pass" in await root("!notify threshold console.room urgent")
        await gateway.console.receive_message("A FIRE DRILL!", sender="gus", room="lobby")
        assert await judged(gateway) == "notify threshold console.room is 3"
        assert (await root("!memory forget n1")).startswith("There is no note `n1`")
        assert (await root("!remind cancel K7Q2X9")).startswith("There is no reminder `K7Q2X9` here")
    async with running(tmp_path, **ACCESS) as gateway:
        root = Person(gateway, "root")
        assert "reverie is paused" in await root("!dmn status")
        answer = await root("!notify rule low console.room fire drill")
        assert answer.startswith("There is no `notify rule`. Did you mean `!notify rules`?")
        answer = await root("!notify unrule r1")
        assert answer.startswith("There is no `notify unrule`. Did you mean `!notify rules`?")
        assert "under `attention.rules` in the configuration file" in await root("!notify rules")
        await gateway.console.receive_message("A FIRE DRILL!", sender="gus", room="lobby")
        assert await judged(gateway) == "notify threshold console.room is 3"
        assert await root("!dmn wake") == "reverie is foraging."
        assert [one.what for one in await gateway.log("directed") if isinstance(one, DmnDirective)] == ["pause", "wake"]


@story
async def test_nobody_else_is_heard(tmp_path: Path) -> None:
    async with running(tmp_path, **ACCESS) as gateway:
        for said in ("!dmn off", "!notify threshold console urgent", "!pending", "!journal", "!memory show", "!remind"):
            await gateway.console.receive_message(said, sender="gus", room="lobby")
            assert "for admin" in await judged(gateway), said
        assert await gateway.log("directed", "threshold_set") == []
        assert all("needs the role" in part.body for part in gateway.screen.parts)
        gus = Person(gateway, "gus", None)  # alone with it, what is his own
        assert await gus("!remind") == "There are no reminders here."
        await gateway.console.receive_message("!dmn off", sender="gus")
        assert "for admin" in await judged(gateway)
        assert await gateway.log("directed") == []


@story
async def test_where_no_agent_is_bound_the_first_one_is_meant(tmp_path: Path) -> None:
    """A native command reaches us from a room that nobody listens to."""
    agents = [{"id": "reverie", "bindings": [{"match": {"channel": "elsewhere"}}]}]
    async with running(tmp_path, **ACCESS, agents=agents) as gateway:
        await gateway.console._up.wait()
        command = Command(
            id=EventId("n1"),
            at=Address(channel=CONSOLE, room=RoomId("lobby")),
            sender=Sender(id=SenderId("root"), name="root", verified=True),
            name="dmn",
            args="pause",
            sent=datetime.now(UTC),
            origin="native",
        )
        assert gateway.console._emit is not None
        await gateway.console._emit([command])
        await gateway.screen.until(1)
        assert gateway.screen.parts[0].body == "reverie is paused."
