"""Notes, recall and MEMORY.md in a whole gateway: the model uses its tools, and people ask from everywhere."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.journal import parse
from agent.models.base import Request, Text, ToolResult
from agent.models.scripted import Rule, Script
from gateway.records import Noted
from gateway.scopes import PUBLIC, Sight
from tests.channels.kit import story
from tests.gateway.kit import Running, running

SECRET = "marzipan"
SCRIPT = Script(
    rules=(
        Rule(match=r"note: \w+", calls=(("journal", '{"title":"Cake","text":"Ann bakes with marzipan"}'),)),
        Rule(match=r"keep: \w+", calls=(("remember", '{"text":"Ann likes marzipan"}'),)),
        Rule(match="what do you know", calls=(("recall", '{"query":"Ann"}'),)),
        Rule(match="You are dreaming", reply="- Ann: marzipan (private, of console/ann)"),
        Rule(match="", reply="Done."),
    )
)
OWNER = {"roles": {"owner": ["console:olga"]}, "dm": "open"}


@asynccontextmanager
async def gateway(tmp: Path, pace: Mapping[str, object] = {}) -> AsyncIterator[Running]:
    async with running(tmp, SCRIPT, access=OWNER, dmn=pace) as one:
        await one.console._up.wait()
        yield one


async def ask(one: Running, text: str, *, sender: str, room: str | None = None) -> list[Request]:
    """What the model was asked until it had answered."""
    before, turns = len(one.scripted.requests), len(await one.turns())
    await one.console.say(text, sender=sender, room=room)
    await one.took(turns + 1)
    return list(one.scripted.requests)[before:]


def results(requests: list[Request]) -> str:
    """What the tools said in the last of them."""
    last = requests[-1].conversation[-1]
    return "\n".join(part.text for part in last.parts if isinstance(part, ToolResult))


def told(requests: list[Request]) -> str:
    """All of it that is text."""
    blocks = [block.text for request in requests for block in request.blocks]
    said = [
        part.text
        for request in requests
        for one in request.conversation
        for part in one.parts
        if isinstance(part, Text | ToolResult)
    ]
    return "\n".join((*blocks, *said, *(request.now for request in requests)))


def lines(requests: list[Request]) -> str:
    """What was found, without the words that were asked for."""
    return results(requests).split("\n", 1)[1]


@story
async def test_what_is_noted_in_private_is_found_there_and_by_the_owner_alone(tmp_path: Path) -> None:
    async with gateway(tmp_path) as one:
        assert "in your journal" in results(await ask(one, "note: this", sender="ann"))
        assert "remember it" in results(await ask(one, "keep: this", sender="ann"))
        first, second = [fact for fact in await one.log("noted") if isinstance(fact, Noted)]
        assert (first.scope, first.title, second.lasting) == ("console/ann", "Cake", True)
        journal = tmp_path / "mind" / "reverie" / "journal.md"
        assert [entry.scope for entry in parse(journal.read_text())] == ["console/ann"] * 2

        assert lines(await ask(one, "what do you know", sender="ann")).count(SECRET) == 2
        elsewhere = await ask(one, "reverie, what do you know", sender="ann", room="lobby")
        elsewhere += await ask(one, "what do you know", sender="bob")
        assert "Nothing was found" in results(elsewhere)
        assert SECRET not in told(elsewhere)
        assert lines(await ask(one, "what do you know", sender="olga")).count(SECRET) == 2
        public = await ask(one, "reverie, what do you know", sender="olga", room="lobby")
        assert SECRET not in told(public), "others listen there"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sight, "sees", lambda *_: True)
            assert SECRET in told(await ask(one, "what do you know", sender="bob")), "it is the filter that kept it"


@story
async def test_what_an_owner_has_noted_in_a_public_room_is_public(tmp_path: Path) -> None:
    async with gateway(tmp_path) as one:
        await ask(one, "reverie, note: this", sender="olga", room="lobby")
        (noted,) = [fact for fact in await one.log("noted") if isinstance(fact, Noted)]
        assert (noted.scope, noted.role, noted.foreign) == (PUBLIC, "owner", False)
        assert SECRET in results(await ask(one, "what do you know", sender="bob"))


@story
async def test_what_a_guest_has_noted_stays_in_its_room(tmp_path: Path) -> None:
    async with gateway(tmp_path) as one:
        await ask(one, "reverie, note: this", sender="ann", room="lobby")
        (noted,) = [fact for fact in await one.log("noted") if isinstance(fact, Noted)]
        assert (noted.scope, noted.role) == ("console/lobby", "guest")
        assert SECRET not in results(await ask(one, "what do you know", sender="bob"))
        assert SECRET in results(await ask(one, "reverie, what do you know", sender="bob", room="lobby"))


@story
async def test_memory_beside_the_store_is_told_to_the_owner_alone(tmp_path: Path) -> None:
    memory = tmp_path / "mind" / "reverie" / "MEMORY.md"
    memory.parent.mkdir(parents=True)
    memory.write_text(f"- Ann likes {SECRET}\n")
    async with gateway(tmp_path) as one:
        for sender, room in (("ann", None), ("olga", "lobby"), ("ann", "lobby")):
            assert SECRET not in told(await ask(one, "reverie, hello", sender=sender, room=room))
        assert f"# MEMORY.md\n\n- Ann likes {SECRET}" in told(await ask(one, "hello", sender="olga"))
        identities = {request.blocks[0].text for request in one.scripted.requests}
        assert len(identities) == 1, "what all conversations share is the same for everybody"
        memory.write_text("- Ann likes tea now\n")
        assert "tea now" in told(await ask(one, "hello", sender="olga"))


PACE = {"engaged": "10ms", "working": "10ms", "foraging": "10ms", "resting": "10ms", "dream_tokens": 1}


@story
async def test_an_agent_that_rests_dreams_of_what_it_noted_and_tells_the_owner_alone(tmp_path: Path) -> None:
    memory = tmp_path / "mind" / "reverie" / "MEMORY.md"
    async with gateway(tmp_path, PACE) as one:
        await ask(one, "keep: this", sender="ann")
        while not await one.log("dreamed"):
            await asyncio.sleep(0.01)
        while not (ended := [turn for turn in await one.turns() if turn.cause == "dream"]):
            await asyncio.sleep(0.01)
        assert memory.read_text() == "- Ann: marzipan (private, of console/ann)\n"
        (turn,) = ended
        assert (turn.outcome, turn.requests, turn.autonomous) == ("silent", 1, True)
        assert SECRET not in repr((turn, await one.log("finished"))), "its record stands in a public conversation"
        (request,) = [each for each in one.scripted.requests if "You are dreaming" in told([each])]
        asked = await ask(one, "reverie, hello", sender="ann", room="lobby")
        assert SECRET not in told(asked)
        assert (request.tools, request.blocks[0]) == (asked[0].tools, asked[0].blocks[0]), "one prefix for all"
        assert "# MEMORY.md\n\n- Ann: marzipan" in told(await ask(one, "hello", sender="olga"))
        assert len(await one.log("dreamed")) == 1, "not again before dmn.dream_every"
