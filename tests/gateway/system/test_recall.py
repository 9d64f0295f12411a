"""What comes to mind in a whole gateway: beside the new messages, not in front of them, and once."""

from pathlib import Path

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.plugins.recall import RECALL_HEADER
from reverie.testing.gateway import running

NOTE = ("journal", '{"title":"Cake","text":"Ann bakes with marzipan"}')


async def test_a_note_comes_to_mind_once_beside_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.plugins.recall.DEADLINE_S", 60.0)
    rules = (ScriptRule(match="note this", calls=(NOTE,)), ScriptRule(match="", reply="Done."))
    access = {"roles": {"admin": ["console:bob"]}, "dm": "open"}
    rooms = ("lobby", "attic")
    async with running(tmp_path, Script(rules=rules), rooms=rooms, access=access) as one:
        await one.ask("reverie, note this", sender="bob", room="lobby")
        for text in ("reverie, who likes marzipan?", "reverie, more marzipan!"):
            await one.ask(text, sender="bob", room="attic")
        first, *_, asked, again = one.scripted.requests
        header, line = asked.aside.split("\n")
        assert (first.aside, header) == ("", RECALL_HEADER)
        assert line.endswith(' your journal (public): "Cake: Ann bakes with marzipan"')
        assert "bakes" not in repr(asked.conversation) + repr(asked.blocks) + asked.now
        assert again.aside == "", "it was told already"
        assert "bakes" not in repr(again.conversation), "and leaves no trace"
