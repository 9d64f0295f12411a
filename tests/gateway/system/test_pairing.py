"""A whole gateway: strangers are let in, rooms opened and roles given by words alone, and the model is not asked."""

import asyncio
from pathlib import Path

from agent.models.scripted import Script
from tests.kits.access import CODE, SAID
from tests.kits.channels import story
from tests.kits.gateway import Running, running

ACCESS = {"dm": "pairing", "roles": {"owner": ["console:olga"], "admin": ["console:root"]}}


async def say(gateway: Running, text: str, sender: str, room: str | None = None) -> str:
    """What is answered."""
    before = len(gateway.screen.parts)
    await gateway.console.receive_message(text, sender=sender, room=room)
    await gateway.screen.until(before + 1)
    return gateway.screen.parts[before].body


def code(text: str) -> str:
    match = CODE.search(text) or SAID.search(text)
    assert match, text
    return match[1]


@story
async def test_a_stranger_is_let_in_and_answered_then(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        shown = await say(gateway, "hi there", "eve")
        assert "`!pair approve " in shown
        assert "after my operator has approved you" in await say(gateway, "are you there?", "eve")
        await gateway.console.receive_message("are you there?", sender="eve")
        assert not gateway.scripted.requests
        await gateway.console.receive_message(f"!pair approve {code(shown).lower()}", sender="olga")
        await gateway.screen.until(4)
        assert {part.to.room: part.body[:17] for part in gateway.screen.parts[2:]} == {
            "olga": "Approved: `consol",
            "eve": "You are approved.",
        }
        assert (await say(gateway, "hi again", "eve")).startswith("You said: ")
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        assert (await say(gateway, "and now?", "eve")).startswith("You said: ")
        assert (await say(gateway, f"!pair approve {code(shown)}", "root")).startswith("I do not know the code or id")


@story
async def test_a_room_is_opened_and_closed_in_it(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        shown = await say(gateway, "reverie: hello", "eve", "office")
        assert "I may not talk in this room yet" in shown
        await gateway.console.receive_message("reverie: hello?", sender="eve", room="office")
        assert not gateway.scripted.requests
        await gateway.console.receive_message(f"!room approve {code(shown)}", sender="root")
        await gateway.screen.until(3)
        assert {part.to.room: part.body[:22] for part in gateway.screen.parts[1:]} == {
            "root": "Approved: `console/off",
            "office": "I may talk in this roo",
        }
        assert (await say(gateway, "reverie: hello", "eve", "office")).startswith("You said: ")
        assert (await say(gateway, "!room revoke", "olga", "office")).startswith("I took back the approval")
        await gateway.console.receive_message("reverie: hello?", sender="eve", room="office")
        audited = await gateway.log("audited")
        assert len(audited) == 2
        assert code(shown) not in repr(audited)
        assert len(gateway.scripted.requests) == 1


@story
async def test_a_block_holds_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        assert (await say(gateway, "reverie: hello", "eve", "lobby")).startswith("You said: ")
        assert (await say(gateway, "!block eve", "root", "lobby")).startswith("Blocked: `console:eve`")
        await gateway.console.receive_message("reverie: hello", sender="eve", room="lobby")
        assert (await say(gateway, "!unblock eve here", "root", "lobby")).endswith("is not blocked in `console/lobby`.")
        assert (await say(gateway, "!unblock eve", "root", "lobby")).startswith("Not blocked any more")
        assert (await say(gateway, "reverie: hello", "eve", "lobby")).startswith("You said: ")
        assert len(gateway.scripted.requests) == 2


@story
async def test_two_strangers_at_once_have_a_code_each(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        await asyncio.gather(*(gateway.console.receive_message("hi", sender=f"eve{number}") for number in range(5)))
        await gateway.screen.until(5)
        codes = {code(part.body) for part in gateway.screen.parts}
        assert len(codes) == 5
        assert len(await gateway.log("code_given")) == 5
        assert "`console:eve" in await say(gateway, "!pair list", "olga")
