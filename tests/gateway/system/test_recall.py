"""What comes to mind in a whole gateway: beside the new messages, not in front of them, and never
out of its place."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.models.base import ModelRequest
from agent.models.scripted import Script, ScriptRule
from gateway.plugins.recall import RECALL_HEADER
from reverie.testing.channels import story
from reverie.testing.gateway import Gateway, running

SCRIPT = Script(
    rules=(
        ScriptRule(
            match="note this",
            calls=(("journal", '{"title":"Cake","text":"Ann bakes with marzipan"}'),),
        ),
        ScriptRule(match="", reply="Done."),
    )
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn waits for what comes to mind, however busy the machine is."""
    monkeypatch.setattr("gateway.plugins.recall.DEADLINE_S", 60.0)


@asynccontextmanager
async def gateway(tmp: Path, **more: Any) -> AsyncIterator[Gateway]:
    async with running(tmp, SCRIPT, rooms=("lobby", "attic"), **more) as one:
        yield one


async def ask(
    one: Gateway, text: str, *, sender: str = "bob", room: str | None = "lobby"
) -> ModelRequest:
    """The first that the model was asked because of it, once the turn has ended."""
    before, turns = len(one.scripted.requests), len(await one.turns())
    await one.say(text if room is None else f"reverie, {text}", sender=sender, room=room)
    await one.took(turns + 1)
    return one.scripted.requests[before]


@story
async def test_a_note_comes_to_mind_once_beside_what_is_new(tmp_path: Path) -> None:
    async with gateway(tmp_path, access={"roles": {"admin": ["console:bob"]}, "dm": "open"}) as one:
        assert (await ask(one, "note this")).aside == ""
        asked = await ask(one, "who likes marzipan?", room="attic")
        header, line = asked.aside.split("\n")
        assert header == RECALL_HEADER
        assert line.endswith(' your journal (public): "Cake: Ann bakes with marzipan"')
        assert "bakes" not in repr(asked.conversation) + repr(asked.blocks) + asked.now
        again = await ask(one, "more marzipan!", room="attic")
        assert again.aside == "", "it was told already"
        assert "bakes" not in repr(again.conversation), "and leaves no trace"
        (turn,) = [turn for turn in await one.turns() if turn.recalled]
        assert turn.recalled[0].startswith("s")
