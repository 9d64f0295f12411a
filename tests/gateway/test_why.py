"""Every event's story, as `reverie log why` tells it."""

import asyncio
from pathlib import Path

from agent.models.base import Unusable
from agent.models.scripted import Rule, Script
from gateway.events import Message
from gateway.store import Store
from gateway.why import why
from tests.gateway.kit import running


async def stories(path: Path) -> dict[str, list[str]]:
    """By what was said."""
    told = {}
    async with await Store.open_readonly(path) as reader:
        for entry in await reader.entries(kinds=["direct", "mention", "room"]):
            assert isinstance(entry.fact, Message)
            told[entry.fact.text] = (await why(reader, entry.seq) or [])[1:]
    return told


def test_each_fate_is_told_with_its_rule(tmp_path: Path) -> None:
    bindings = [{"match": {"room": "lobby"}, "listen": "ambient"}, {"match": {"channel": "*"}, "listen": "mention"}]

    async def story() -> None:
        script = Script(rules=(Rule(match="quiet", calls=(("stay_silent", "{}"),)),), errors=(Unusable("no credit"),))
        async with running(tmp_path, script, agents=[{"id": "reverie", "bindings": bindings}]) as gateway:
            say = gateway.console.say
            await say("reverie: first", sender="ann", room="lobby")
            await gateway.screen.until(1)
            await say("by the way", sender="bob", room="lobby")
            await say("reverie: second", sender="ann", room="lobby")
            await gateway.screen.until(2)
            await say("quiet, please", sender="ann")
            await gateway.took(3)
            await say("reverie: let me in", sender="ann", room="cellar")
            await say("later", sender="bob", room="lobby")
        told = await stories(gateway.path)
        assert told["reverie: first"][1] == "due for a turn: a mention is urgent"
        assert told["reverie: first"][2].endswith("which failed: no credit")
        assert told["by the way"][1] == "context for the next turn: room talk is ambient"
        assert told["by the way"][2].startswith("shown to the model in turn ")
        assert told["reverie: second"][2].endswith("which replied")
        assert " is sent (entry " in told["reverie: second"][3]
        assert told["quiet, please"][2:] == [told["quiet, please"][2]]
        assert told["quiet, please"][2].endswith("which stayed silent")
        assert told["reverie: let me in"][1] == ("refused, and never shown to the model: not in channels.console.rooms")
        assert told["later"][2] == "no turn has ended there since"
        async with await Store.open_readonly(gateway.path) as reader:
            assert await why(reader, 10_000) is None
            (link, *_) = await reader.entries(kinds=["link"])
            assert (await why(reader, link.seq) or [])[2] == "noted; it needs no turn: link is low"
            (turn, *_) = await reader.entries(kinds=["turn_ended"])
            assert (await why(reader, turn.seq) or [])[1] == "not an event from outside: nothing was decided about it"

    asyncio.run(story())
