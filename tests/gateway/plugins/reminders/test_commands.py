"""The command `intentions`, on a real store with running reminders."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.dmn import dump_state
from agent.signals import DmnMode, DmnState
from gateway.access.policy import ConversationBinding
from gateway.commands.context import CommandContext
from gateway.commands.dispatcher import rank_suggestions
from gateway.commands.parser import ParsedArguments, parse_arguments
from gateway.core.events import Address
from gateway.core.facts import DmnStateSaved, inner_conversation
from gateway.core.identity import Role
from gateway.plugins.reminders import ReminderEnded, Reminders, find_pending
from gateway.store import NewEntry
from gateway.stream.routing import BindingPattern, Bindings
from tests.gateway.commands.commands_kit import Counter, typing
from tests.gateway.plugins.reminders.test_reminders import Town, town
from tests.kits.commands import TABLE, command_context, parts_of
from tests.kits.places import privacy
from tests.kits.plugins import plugins_of
from tests.kits.settings import live_settings
from tests.kits.store import place

HERE, OTHER = place("#a"), place("#b")
ALONE, STRANGER = place("root"), place("stranger")


def context_of(it: Town) -> CommandContext:
    bound = ConversationBinding(listen="all", agent="reverie", private=False)
    places = privacy(
        it.store, Bindings([BindingPattern(channel="*", room="*", thread=None, binding=bound)])
    )
    for one in (ALONE, STRANGER, HERE, OTHER):
        places.direct.put(one.conversation, one in (ALONE, STRANGER))
    live = live_settings(dmn=parts_of(timezone="Europe/Zurich"))
    context = command_context(it.store, it.clock, places=places, live=live)
    return replace(context, plugins=plugins_of(Reminders, gateway=context.gateway))


def at(
    it: Town, where: Address = HERE, role: Role = "admin", *, everywhere: Role | None = None
) -> Counter:
    return Counter(
        it.store,
        it.clock,
        context_of(it),
        where,
        role,
        everywhere,
        direct=where in (ALONE, STRANGER),
    )


async def ended(it: Town) -> list[ReminderEnded]:
    return [
        one.fact
        for one in await it.store.entries(kinds=["reminder_ended"])
        if isinstance(one.fact, ReminderEnded)
    ]


async def test_those_of_the_conversation_are_listed_and_one_is_called_off(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        tea = await it.remind("tea `@everyone`", at="18:30")
        cake = await it.remind("cake", every="2h")
        await it.remind("secret", "#b", at="18:30")
        assert (await at(it).says("intentions list")).splitlines() == [
            f"- `{cake.reminder}`: Sat 2026-11-21 11:00 (Europe/Zurich), every 2h, for `Ann`: `cake`",
            (
                f"- `{tea.reminder}`: Sat 2026-11-21 18:30 (Europe/Zurich), for `Ann`: `tea "
                "\\u0060@everyone\\u0060`"
            ),
        ]
        answer = await at(it)("intentions drop", id=f" `{tea.reminder.lower()}`")
        assert (answer.ok, answer.answer) == (True, f"`{tea.reminder}` is dropped.")
        (fact,) = await ended(it)
        assert (fact.reminder, fact.reason) == (tea.reminder, "cancelled by irc.test:root")
        assert tea.reminder not in await at(it).says("intentions list")
        again = await at(it)("intentions drop", id=tea.reminder)
        assert (again.ok, again.answer) == (False, f"There is no `{tea.reminder}` here.")
    async with town(tmp_path) as it:
        assert [one.text for one in await find_pending(it.store)] == ["cake", "secret"]


@pytest.fixture
async def reminders(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path) as made:
        yield made


async def test_one_that_is_set_is_listed_and_told(reminders: Town) -> None:
    answer = await at(reminders, role="guest")("intentions add", what="me in 5s to drink tea")
    (tea,) = await find_pending(reminders.store)
    assert (answer.ok, tea.reminder in answer.answer, tea.role) == (True, True, "guest")
    assert tea.reminder in await at(reminders).says("intentions list")
    await reminders.clock.asleep()
    await reminders.clock.passes(seconds=5)
    assert await reminders.until(1) == ["drink tea"]


@pytest.mark.parametrize("mode", [DmnMode.PAUSED, DmnMode.OFF, DmnMode.RESTING])
async def test_who_sets_one_is_told_that_none_comes_before_the_agent_is_woken(
    reminders: Town, mode: DmnMode
) -> None:
    asked = at(reminders)
    agent = asked.context.agent_at(HERE)
    saved = DmnStateSaved(state=dump_state(DmnState(mode=mode)), agent=agent)
    await reminders.store.append([NewEntry(fact=saved, at=reminders.clock.now())])
    answer = await asked("intentions add", what="10m tea")
    assert ("dmn wake" in answer.answer) is (mode is not DmnMode.RESTING)


@pytest.mark.parametrize(
    "what",
    [
        "tea",
        "5m",
        "every minute tea",
        "5m " + "x" * 600,
    ],
)
async def test_what_cannot_be_set_is_refused(reminders: Town, what: str) -> None:
    answer = await at(reminders, role="guest")("intentions add", what=what)
    assert (answer.ok, await find_pending(reminders.store)) == (False, [])


def test_remind_without_a_subcommand_sets_one() -> None:
    parsed = parse_arguments(TABLE.people["remind"], "5s tea")
    assert isinstance(parsed, ParsedArguments)
    assert parsed.sub is not None
    assert (parsed.sub.name, parsed.arguments) == ("add", {"what": "5s tea"})


async def test_one_that_is_called_off_is_not_told(reminders: Town) -> None:
    """Though it was the next one, and was waited for."""
    tea = await reminders.remind("tea", at="in 10m")
    await reminders.remind("cake", at="in 20m")
    await reminders.clock.asleep()
    await at(reminders)("intentions drop", id=tea.reminder)
    await asyncio.sleep(0)
    for _ in range(20):
        await reminders.clock.passes(minutes=1)
    assert await reminders.until(1) == ["cake"]


async def test_nobody_waits_for_one_that_is_called_off(reminders: Town) -> None:
    tea = await reminders.remind("tea", at="in 10m")
    await reminders.clock.asleep()
    await at(reminders)("intentions drop", id=tea.reminder)
    await reminders.clock.passes(minutes=1)
    for _ in range(50):  # turns of the event loop, in which it would begin to wait again
        await asyncio.sleep(0)
    assert len(reminders.clock.sleeps) == 1


async def test_nothing_is_there(reminders: Town) -> None:
    assert await at(reminders).says("intentions list") == (
        "There is nothing that I intend here, and no reminder."
    )
    answer = await at(reminders)("intentions drop", id="`<@everyone>\n# x")
    assert (answer.ok, answer.answer) == (
        False,
        "There is no `\\u0060<@everyone>\\n# x` here.",
    )


async def test_others_are_told_to_admins_alone_with_the_agent_and_private_ones_to_an_owner(
    reminders: Town,
) -> None:
    mine = await reminders.remind("mine", "root", at="18:30")
    room = await reminders.remind("room", "#b", at="18:31")
    theirs = await reminders.remind("theirs", "stranger", at="18:32")
    own = await reminders.own("own", at="18:33")
    public = {mine.reminder, room.reminder, own.reminder}

    async def seen(counter: Counter) -> set[str]:
        told = await counter.says("intentions list")
        return {one.reminder for one in (mine, room, theirs, own) if one.reminder in told}

    assert await seen(at(reminders, HERE, "owner")) == set()
    assert await seen(at(reminders, OTHER)) == {room.reminder}
    assert await seen(at(reminders, ALONE, "guest")) == {mine.reminder}
    assert await seen(at(reminders, ALONE, "admin", everywhere="member")) == {mine.reminder}
    assert await seen(at(reminders, ALONE, "admin")) == public
    assert await seen(at(reminders, ALONE, "owner")) == {*public, theirs.reminder}
    told = (await at(reminders, ALONE, "admin").says("intentions list")).splitlines()
    assert told[1:3] == ["", "In other rooms:"]
    assert told[3].endswith("`room`, in `irc.test/#b`")
    assert told[4].endswith("`own`, in `reverie` on its own")
    assert told[5:] == ["- 1 in private conversations"]
    for counter, one in (
        (at(reminders, HERE, "owner"), room),
        (at(reminders, ALONE, "guest"), room),
        (at(reminders, ALONE, "admin"), theirs),
    ):
        assert not (await counter("intentions drop", id=one.reminder)).ok
    assert await ended(reminders) == []
    assert (await at(reminders, ALONE, "guest")("intentions drop", id=mine.reminder)).ok
    assert (await at(reminders, ALONE, "admin")("intentions drop", id=own.reminder)).ok
    assert (await at(reminders, ALONE, "owner")("intentions drop", id=theirs.reminder)).ok
    entries = await reminders.store.entries(kinds=["reminder_ended"])
    assert [one.conversation for one in entries] == [
        ALONE.conversation,
        inner_conversation("reverie"),
        STRANGER.conversation,
    ]
    assert [one.reminder for one in await find_pending(reminders.store)] == [room.reminder]


async def test_those_of_that_place_are_suggested(reminders: Town) -> None:
    later = await reminders.remind("tea", at="18:30")
    sooner = await reminders.remind("tea", at="17:30")
    await reminders.remind("tea", "#b", at="18:30")
    found = await reminders.reminders.suggest_ids(typing(HERE, "intentions", "drop", "id"))
    assert found == [sooner.reminder, later.reminder]
    assert rank_suggestions(found, later.reminder[:4].lower()) == [later.reminder]
