"""Buttons under messages of Telegram: as they are shown, tapped, answered and taken away."""

import asyncio
import contextlib

import pytest

from channels.base import Rejected
from gateway.core.events import Command, MessageId, PostButton
from reverie.testing.servers.bot_api import BotApi
from tests.channels.telegram.channel_kit import Running, at

BUTTONS = (
    PostButton(label="Approve once", command="approve 7kq2"),
    PostButton(label="Deny", command="deny 7kq2"),
)
KEYBOARD = {
    "inline_keyboard": [
        [{"text": "Approve once", "callback_data": "approve 7kq2"}],
        [{"text": "Deny", "callback_data": "deny 7kq2"}],
    ]
}


async def test_buttons_stand_under_the_message_until_it_is_replaced(
    api: BotApi, run: Running
) -> None:
    lounge = api.group("lounge")
    (number,) = await run.tell("May I?", at(lounge), buttons=BUTTONS)
    (shown,) = api.shown(lounge)
    assert (shown.text, shown.buttons) == ("May I?", KEYBOARD)
    for _ in range(2):  # again, as after an attempt without an answer
        assert await run.tell("May I? **No.**", at(lounge), replaces=MessageId(number)) == [number]
    (shown,) = api.shown(lounge)
    assert (shown.text, shown.buttons, shown.edits) == ("May I? No.", None, 1)
    with pytest.raises(Rejected, match="not found"):
        await run.tell("May I? No.", at(lounge), replaces=MessageId("999"))


@pytest.mark.parametrize(("style", "alert"), [("notice", False), ("message", True)])
async def test_a_tap_is_a_command_and_is_answered_to_who_tapped(
    style: str, alert: bool, api: BotApi, run: Running
) -> None:
    lounge, ben = api.group("lounge"), api.person("Ben")
    (number,) = await run.tell("May I?", at(lounge), buttons=BUTTONS)
    query = api.presses(lounge, ben, int(number), "approve 7kq2")
    (command,) = await run.some(Command)
    assert (command.name, command.args, command.origin, command.direct) == (
        "approve",
        "7kq2",
        "button",
        False,
    )
    assert (command.at, command.sender.id, command.sender.verified) == (
        at(lounge),
        str(ben.id),
        True,
    )
    assert (
        await run.tell("Approved: `bash`.", command.at, reply_to=MessageId(command.id), style=style)
        == []
    )
    answered = await api.called("answerCallbackQuery")
    assert (answered["callback_query_id"], answered["text"]) == (query, "Approved: bash.")
    assert (answered.parameters.get("show_alert", False), len(api.shown(lounge))) == (alert, 1)
    with pytest.raises(Rejected, match="Query is too old"):
        await run.tell("Again.", command.at, reply_to=MessageId(command.id))


@pytest.mark.channel(flood={"per_chat_s": 3600})
async def test_a_tap_is_answered_while_the_chat_waits_for_its_flood_limit(
    api: BotApi, run: Running
) -> None:
    ann = api.person("Ann")
    api.private_says(ann, "hi")
    (number,) = await run.tell("May I?", at(ann), buttons=BUTTONS)
    waiting = asyncio.create_task(run.tell("later", at(ann)))
    api.presses(ann, ann, int(number), "deny 7kq2")
    (command,) = await run.some(Command)
    await run.tell("Denied.", command.at, reply_to=MessageId(command.id))
    await api.called("answerCallbackQuery")
    waiting.cancel()


async def test_the_answer_to_a_tap_that_is_too_old_is_a_message_in_private(
    api: BotApi, run: Running
) -> None:
    ann, lounge = api.person("Ann"), api.group("lounge")
    api.private_says(ann, "hi")
    for there, shown in ((ann, ["Denied."]), (lounge, [])):
        (number,) = await run.tell("May I?", at(there), buttons=BUTTONS)
        query = api.presses(there, ann, int(number), "deny 7kq2")
        command = (await run.some(Command, 1 + (there is lounge)))[-1]
        del api.world.callbacks[query]
        with contextlib.nullcontext() if shown else pytest.raises(Rejected, match="too old"):
            await run.tell("Denied.", command.at, reply_to=MessageId(command.id))
        assert api.said(there) == ["May I?", *shown]
