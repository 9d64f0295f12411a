"""A whole gateway: strangers are let in, rooms opened and roles given by words alone, and the model
is not asked."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.models.scripted import Script
from gateway import app
from gateway.core.control_messages import CommandRequest
from gateway.core.events import Message
from gateway.core.facts import CodeIssued, Judgement
from gateway.plugins.pairing import MAX_LATER_LINES
from gateway.store import Store
from reverie.testing.channels import story
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, Gateway, Screen, running, settings
from tests.kits.access import CODE, SAID

ACCESS = {"dm": "pairing", "roles": {"owner": ["console:olga"], "admin": ["console:root"]}}


async def say(gateway: Gateway, text: str, sender: str, room: str | None = None) -> str:
    before = len(gateway.screen.parts)
    await gateway.say(text, sender=sender, room=room)
    await gateway.screen.until(before + 1)
    return gateway.screen.parts[before].body


def code(text: str) -> str:
    match = CODE.search(text) or SAID.search(text)
    assert match, text
    return match[1]


async def let_in(gateway: Gateway) -> Sequence[tuple[str, str]]:
    """The fate and text of the lines that entered with an approval."""
    async with await Store.open_readonly(gateway.path) as reader:
        entries = await reader.entries()
    judged = {one.cause: one.fact.fate for one in entries if isinstance(one.fact, Judgement)}
    lines = [one for one in entries if (one.key or "").startswith("let_in:")]
    return [(judged[one.seq], one.fact.text) for one in lines if isinstance(one.fact, Message)]


@story
async def test_what_a_stranger_asked_last_is_answered_with_their_earlier_lines_in_view_and_once(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        shown = await say(gateway, "my name is Eve", "eve")
        gone = await gateway.say("forget this", sender="eve")
        last = await gateway.say("do you know sailing?", sender="eve")
        await gateway.console.receive_edit(last, "do you know my name?")
        await gateway.console.receive_delete(gone)
        approve = f"!pair approve {code(shown)}"
        await asyncio.gather(*(gateway.say(approve, sender=one) for one in ("olga", "root")))
        await gateway.took(1)
        assert await let_in(gateway) == [
            ("context", "my name is Eve"),
            ("due", "do you know my name?"),
        ]
        asked = str(gateway.scripted.requests[0].conversation)
        assert "my name is Eve" in asked
        assert "forget this" not in asked
        assert asked.index("my name is Eve") < asked.index("do you know my name?")
        (turn,) = await gateway.turns()
        assert turn.label is not None
        assert turn.label.integrity == "guest"
        await say(gateway, "!pair revoke eve", "olga")
        shown = await say(gateway, "!help", "eve")
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        await say(gateway, "hello again", "eve")
        assert len(await let_in(gateway)) == 2
        assert not gateway.scripted.requests


@story
async def test_what_was_asked_before_an_approval_is_answered_by_the_next_process(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        await say(gateway, "anybody there?", "eve")
        (issued,) = await gateway.facts("code_given")
    assert isinstance(issued, CodeIssued)
    order = CommandRequest(words=("pair", "approve", issued.request))
    assert (await app.carry_out_stopped(settings(tmp_path, access=ACCESS), order)).ok
    for requests in (1, 0):
        async with running(tmp_path, Script(), access=ACCESS) as gateway:
            await gateway.took(1)
            await say(gateway, "!whoami", "olga")
            assert len(gateway.scripted.requests) == requests
    assert await let_in(gateway) == [("due", "anybody there?")]


@story
async def test_in_an_opened_room_who_asked_is_answered_and_others_are_not(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        await gateway.say("the weather is fine", sender="eve", room="office")
        shown = await say(gateway, "reverie: do you sail?", "eve", "office")
        await gateway.say("reverie: and I?", sender="mallory", room="office")
        await gateway.say("well", sender="eve", room="office")
        await say(gateway, f"!room approve {code(shown)}", "root", "office")
        await gateway.took(1)
        assert await let_in(gateway) == [
            ("context", "the weather is fine"),
            ("due", "reverie: do you sail?"),
        ]


@story
async def test_a_room_that_has_gone_on_is_opened_without_an_answer(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        shown = await say(gateway, "reverie: do you sail?", "eve", "office")
        for number in range(MAX_LATER_LINES + 1):
            await gateway.say(f"line {number}", sender="mallory", room="office")
        await say(gateway, f"!room approve {code(shown)}", "root", "office")
        await say(gateway, "!whoami", "olga")
        assert await let_in(gateway) == []
        assert not gateway.scripted.requests


@story
@pytest.mark.parametrize("order", ["!block console:eve", "!pair revoke console:eve"])
async def test_what_somebody_asked_who_was_blocked_or_refused_is_not_answered(
    tmp_path: Path, order: str
) -> None:
    async with running(tmp_path, Script(), access=ACCESS) as gateway:
        shown = await say(gateway, "reverie: hello", "eve", "office")
        (issued,) = await gateway.facts("code_given")
        assert isinstance(issued, CodeIssued)
        blocked = order.startswith("!block")
        await say(gateway, order if blocked else f"!pair revoke {issued.request}", "olga")
        await say(gateway, f"!room approve {code(shown)}", "root", "office")
        await say(gateway, "!whoami", "olga")
        assert await let_in(gateway) == []
        assert not gateway.scripted.requests


@story
async def test_what_was_asked_more_than_a_day_ago_is_not_answered(tmp_path: Path) -> None:
    screen, ago = Screen(), [timedelta(hours=25)]
    console = ConsoleChannel(CONSOLE, screen.show, now=lambda: datetime.now(UTC) - ago[0])
    async with running(tmp_path, Script(), access=ACCESS, channels={CONSOLE: console}) as gateway:
        await console.receive_message("hi there", sender="eve")
        await screen.until(1)
        ago[0] = timedelta()
        await console.receive_message(f"!pair approve {code(screen.parts[0].body)}", sender="olga")
        await screen.until(3)
        await console.receive_message("!whoami", sender="olga")
        await screen.until(4)
        assert await let_in(gateway) == []
        assert not gateway.scripted.requests
