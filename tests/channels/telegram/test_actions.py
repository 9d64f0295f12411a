"""Reactions, edits, deletions, topics and who is there: as Telegram allows them, and what is said
where it does not."""

import asyncio
import contextlib
from typing import Any

import pytest
from telegram.constants import ReactionEmoji

from channels.aio import AnswerCache
from channels.base import (
    CanSetCommandMenus,
    CommandSpec,
    RateLimited,
    Rejected,
)
from channels.telegram.channel import Role, build_menu
from gateway.core.clock import ManualClock
from gateway.core.events import Command, Message, MessageId, PostButton, Sender, SenderId
from gateway.core.i18n import languages
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, Person
from tests.channels.telegram.channel_kit import Running, at, running
from tests.kits.commands import TABLE

SUNNY = "☀"


async def said(run: Running, chat: Chat, text: str = "hello") -> MessageId:
    (number,) = await run.tell(text, at(chat))
    return MessageId(number)


def reactions(api: BotApi, chat: Chat) -> list[str]:
    return [one["emoji"] for one in api.shown(chat)[-1].reaction]


async def test_all_that_telegram_takes_is_put_on_and_taken_off(api: BotApi) -> None:
    async with running(api) as run:
        chat, ann = api.group(), api.person("Ann")
        number = MessageId(str(api.group_says(chat, ann, "look")))
        await run.up()
        for emoji in [*(one.value for one in ReactionEmoji), "❤️", "☃️", "✍️", " 👍 "]:
            await run.channel.react(at(chat), number, emoji, add=True)
            assert reactions(api, chat) == [
                emoji.strip().replace("\ufe0f", "")
            ] or emoji in reactions(api, chat)
            await run.channel.react(at(chat), number, emoji, add=False)
            assert reactions(api, chat) == []
            await run.channel.react(at(chat), number, emoji, add=False)


async def test_a_reaction_that_is_not_taken_is_rejected_with_some_that_are(
    api: BotApi, run: Running
) -> None:
    chat = api.group()
    number = await said(run, chat)
    for emoji in (SUNNY, "5368324170671202286", "hello", "👍👍"):
        with pytest.raises(Rejected, match="such as 👍"):
            await run.channel.react(at(chat), number, emoji, add=True)
    with pytest.raises(Rejected, match="an emoji"):
        await run.channel.react(at(chat), number, " \n", add=True)
    chat.reactions = frozenset("🔥")
    with pytest.raises(Rejected, match="such as"):
        await run.channel.react(at(chat), number, "👍", add=True)
    with pytest.raises(Rejected, match="not found"):
        await run.channel.react(at(chat), MessageId("999"), "🔥", add=True)
    await run.channel.react(at(chat), MessageId("999"), "🔥", add=False)
    for odd in ("button:5", "-1001:5", "x", "", "-5"):
        with pytest.raises(Rejected, match="no such message"):
            await run.channel.react(at(chat), MessageId(odd), "🔥", add=True)


async def test_a_group_is_described_and_a_topic_named(api: BotApi) -> None:
    async with running(api) as run:
        chat, forum, ann = api.group(), api.group("forum", forum=True), api.person("Ann")
        thread = api.topic(forum, "old")
        api.private_says(ann, "hi")
        await run.up()
        for _ in range(2):
            await run.channel.set_topic(at(chat), "all about\ncats")
            await run.channel.set_topic(at(forum, thread), "dogs")
        assert (chat.description, forum.topics[thread]) == ("all about cats", "dogs")
        await run.channel.set_topic(at(chat), "")
        assert not chat.description
        for where, topic, why in (
            (at(chat), "x" * 256, "255"),
            (at(forum, thread), "x" * 129, "128"),
            (at(forum, thread), "", "needs a name"),
            (at(ann), "us", "private"),
        ):
            with pytest.raises(Rejected, match=why):
                await run.channel.set_topic(where, topic)
        chat.admin = forum.admin = False
        for where in (at(chat), at(forum, thread)):
            with pytest.raises(Rejected, match="ot enough rights"):
                await run.channel.set_topic(where, "more")


@pytest.mark.channel(preview="all")
async def test_being_told_to_wait_with_signs_delays_no_message(api: BotApi, run: Running) -> None:
    ann, lounge = api.person("Ann"), api.group("lounge")
    api.private_says(ann, "hi")
    api.mentions(lounge, ann, "hi")
    await run.some(Message, 2)
    api.faults.fail("sendChatAction", 429, retry_after=600)
    await run.channel.typing(at(ann), active=True)
    api.faults.fail("sendMessage", 429, retry_after=600)
    with pytest.raises(RateLimited):
        await run.channel.preview(at(lounge), "x", None)
    for chat in (ann, lounge):  # and nothing but signs waits
        with pytest.raises(RateLimited):
            await run.channel.preview(at(chat), "x", None)
        await run.tell("the answer", at(chat))
        assert api.said(chat) == ["the answer"]


def somebody(person: Person | str) -> Sender:
    number = person if isinstance(person, str) else str(person.id)
    return Sender(id=SenderId(number), name="x", verified=True)


def shown(api: BotApi, scope: str) -> list[str] | None:
    rows = api.methods.commands.get(f"{scope}/")
    return None if rows is None else [row["command"] for row in rows]


def names(role: Role, *, direct: bool) -> list[str]:
    """As the gateway's own table says who may use what, without the adapter."""
    return [
        row.name
        for row in TABLE.rows
        if row.is_allowed_for(role, direct=direct) and (direct or not row.direct_only)
    ]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("role", ["owner", "admin", "member", "guest"])
def test_a_menu_is_what_somebody_may_use(role: Role, direct: bool) -> None:
    rows = build_menu(TABLE.specs(), role, direct=direct)
    assert [row.command for row in rows] == names(role, direct=direct)
    told = {row.name: row.summary for row in TABLE.rows}
    assert all(row.description == told[row.command] for row in rows)
    assert len(rows) <= 100


def test_the_menu_is_within_what_telegram_takes() -> None:
    many = [CommandSpec(name=f"c{n}", summary="x" * 300 if n else "") for n in range(120)]
    rows = build_menu(many, "guest", direct=True)
    assert len(rows) == 100
    assert {len(row.description) for row in rows} == {len("c0"), 256}


@pytest.mark.channel(commands=TABLE.specs())
async def test_who_may_more_sees_more_in_their_own_chat_and_only_as_long(
    api: BotApi, run: Running
) -> None:
    assert isinstance(run.channel, CanSetCommandMenus)
    ann, ben = api.person("Ann"), api.person("Ben")
    for person in (ann, ben):
        api.private_says(person, "hi")
    offered: Any = [
        (somebody(ann), "owner"),
        (somebody(ben), "member"),
        (somebody("77"), "admin"),
    ]
    await run.channel.set_command_menus(
        [*offered, (somebody("account:x"), "admin"), (somebody(ben), "member")]
    )
    assert shown(api, f"chat/{ann.id}") == names("owner", direct=True)
    assert shown(api, f"chat/{ben.id}") == names("member", direct=True)
    german = api.methods.commands[f"chat/{ben.id}/de"]
    assert {"command": "whoami", "description": "Zeigt deine ID und deine Rolle."} in german
    api.calls.clear()
    await run.channel.set_command_menus(offered)
    scopes = [call["scope"] for call in api.asked("setMyCommands")]
    assert {one["chat_id"] for one in scopes if one["type"] == "chat"} == {77}
    await run.channel.set_command_menus([(somebody(ann), "member")])
    assert shown(api, f"chat/{ann.id}") == names("member", direct=True)
    assert shown(api, f"chat/{ben.id}") is None
    await run.channel.set_command_menus([])
    assert shown(api, f"chat/{ann.id}") is None
    assert len(api.asked("deleteMyCommands")) == 2 * (1 + len(languages()))


async def test_who_is_a_member_is_asked_once_and_again_after_each_change(api: BotApi) -> None:
    clock = ManualClock()
    async with running(api, clock) as run:
        ann, group, other = api.person("Ann"), api.group("team"), api.group("other")
        group.history_visible = True

        async def reads(chat: Chat | Person | str = group, person: str = str(ann.id)) -> str | None:
            return await run.channel.membership(at(chat), SenderId(person))

        def asked() -> int:
            return len(api.asked("getChatMember"))

        async def is_told(chat: Chat) -> None:
            """An update after the last one, so that those before are read."""
            number = len(run.all(Message))
            api.group_says(chat, api.person("Ben"), "hi")
            await run.message(number + 1)

        assert await reads() is None, "not connected"
        await run.up()
        assert await reads() is None, "never there"
        api.joins(group, ann)
        await is_told(group)
        assert [await reads(), await reads()] == ["reads_all", "reads_all"]
        assert asked() == 2, "once for each state"
        for odd in (str(ann.id + 1000), "²", "-5", "", "account:ann"):
            assert await reads(person=odd) is None, odd
        assert await reads(other) is None, "a sibling"
        assert await reads(ann) is None, "a private chat has no members"
        assert await reads("lounge") is None
        for status, reading in (
            ("creator", "reads_all"),
            ("administrator", "reads_all"),
            ("restricted", "reads_all"),
            ("out", None),
            ("left", None),
            ("kicked", None),
        ):
            clock.advance(121)
            group.statuses[ann.id] = status
            assert await reads() == reading, status
        clock.advance(121)
        group.statuses[ann.id] = "member"
        group.history_visible = False
        assert await reads() == "reads_new"
        for told in (True, False):  # a message, or what administrators are sent
            api.removes(group, api.person("Cat"), ann, told=told)
            await is_told(group)
            assert await reads() is None, "removed a moment ago"
            api.joins(group, ann)
            await is_told(group)
            assert await reads() == "reads_new"
        clock.advance(121)
        group.admin = False
        assert await reads() is None, "Telegram does not tell"


async def test_nobody_is_a_member_while_telegram_fails_or_their_membership_changes(
    api: BotApi,
) -> None:
    clock = ManualClock()
    async with running(api, clock) as run:
        await run.up()
        ann, group = api.person("Ann"), api.group("team")
        group.history_visible = True
        group.statuses[ann.id] = "member"

        async def reads() -> str | None:
            clock.advance(0.001)
            return await run.channel.membership(at(group), SenderId(str(ann.id)))

        for body in (
            b'{"ok":false,"error_code":500,"description":"no"}',
            b'{"ok":true,"result":{"status":"member"}}',
        ):
            api.faults.say("getChatMember", body)
            assert await reads() is None
        api.faults.drop("getChatMember")
        assert await reads() is None
        api.faults.stall("getChatMember")
        asked = asyncio.create_task(reads())
        while not asked.done():
            clock.advance(1)
            await asyncio.sleep(0)
        assert asked.result() is None, "no answer in time"
        api.faults.release()
        api.faults.say("getChat", b'{"ok":false,"error_code":500,"description":"no"}')
        assert await reads() == "reads_new", "nobody says that it can be read"
        assert await reads() == "reads_all"
        cache = AnswerCache[int, bool](clock, 1e9)

        async def kicked_meanwhile() -> bool:
            cache.forget(1)
            return True

        assert await cache.get(1, kicked_meanwhile) is None


# Buttons under messages of Telegram: as they are shown, tapped, answered and taken away.

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
