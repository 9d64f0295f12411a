"""`remind`, on a real store with running reminders."""

import asyncio
from pathlib import Path

from gateway.commands.agent import MAX_REMINDERS, suggest_reminders
from gateway.commands.context import CommandContext
from gateway.commands.suggestions import rank_suggestions
from gateway.core.events import Address
from gateway.core.facts import ReminderEnded, inner_conversation
from gateway.core.identity import Role
from gateway.stream.routing import BindingPattern, Bindings, ConversationBinding
from tests.gateway.commands.handler_kit import Counter, typing
from tests.gateway.context.test_reminders import HERE, Town, town
from tests.kits.channels import story
from tests.kits.commands import command_context
from tests.kits.places import privacy
from tests.kits.store import place

OTHER, ALONE, STRANGER = place("#b"), place("root"), place("stranger")


def context_of(it: Town) -> CommandContext:
    bound = ConversationBinding(listen="all", agent="reverie", private=False)
    places = privacy(it.store, Bindings([BindingPattern(channel="*", room="*", thread=None, binding=bound)]))
    for one in (ALONE, STRANGER, HERE, OTHER):
        places.record_direct(one.conversation, direct=one in (ALONE, STRANGER))
    return command_context(it.store, it.clock, reminders=it.reminders, places=places)


def at(it: Town, where: Address = HERE, role: Role = "admin", *, everywhere: Role | None = None) -> Counter:
    """Return the counter of a person there."""
    return Counter(it.store, it.clock, context_of(it), where, role, everywhere, direct=where in (ALONE, STRANGER))


async def ended(it: Town) -> list[ReminderEnded]:
    return [one.fact for one in await it.store.entries(kinds=["reminder_ended"]) if isinstance(one.fact, ReminderEnded)]


@story
async def test_those_of_the_conversation_are_listed_and_one_is_called_off(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        tea = await it.remind("tea `@everyone`", at="18:30")
        cake = await it.remind("cake", every="2h")
        await it.remind("secret", "#b", at="18:30")
        assert (await at(it).says("remind list")).splitlines() == [
            f"- `{cake.id}`: Sat 2026-11-21 11:00 (Europe/Zurich), every 2h, asked for by `Ann`: `cake`",
            (
                f"- `{tea.id}`: Sat 2026-11-21 18:30 (Europe/Zurich), once, asked for by `Ann`: "
                "`tea \\u0060@everyone\\u0060`"
            ),
        ]
        answer = await at(it)("remind cancel", id=f" `{tea.id.lower()}`")
        assert (answer.ok, answer.text) == (True, f"Reminder `{tea.id}` is cancelled.")
        (fact,) = await ended(it)
        assert (fact.reminder, fact.reason) == (tea.id, "cancelled by irc.test:root")
        assert tea.id not in await at(it).says("remind list")
        again = await at(it)("remind cancel", id=tea.id)
        assert (again.ok, again.text) == (False, f"There is no reminder `{tea.id}` here.")
    async with town(tmp_path) as it:
        assert [one.text for one in await it.store.pending_reminders()] == ["cake", "secret"]


@story
async def test_one_that_is_called_off_is_not_told(tmp_path: Path) -> None:
    """Though it was the next one, and was waited for."""
    async with town(tmp_path) as it:
        tea = await it.remind("tea", at="in 10m")
        await it.remind("cake", at="in 20m")
        await it.clock.asleep()
        await at(it)("remind cancel", id=tea.id)
        await asyncio.sleep(0)
        for _ in range(20):
            await it.clock.passes(minutes=1)
        assert await it.until(1) == ["cake"]


@story
async def test_nobody_waits_for_one_that_is_called_off(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        tea = await it.remind("tea", at="in 10m")
        await it.clock.asleep()
        await at(it)("remind cancel", id=tea.id)
        await it.clock.passes(minutes=1)
        for _ in range(50):  # turns of the event loop, in which it would begin to wait again
            await asyncio.sleep(0)
        assert len(it.clock.sleeps) == 1


@story
async def test_the_same_event_twice_is_done_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        tea = await it.remind("tea", at="18:30")
        await at(it).give("remind cancel", {"id": tea.id}, id="n1")
        await at(it).give("remind cancel", {"id": tea.id}, id="n1")
        assert len(await ended(it)) == 1


@story
async def test_what_cannot_be_written_goes_on(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        tea = await it.remind("tea", at="18:30")
        await at(it).give("remind cancel", {"id": tea.id}, kept=False)
        assert tea.id in await at(it).says("remind list")


@story
async def test_nothing_is_there(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        assert await at(it).says("remind list") == "There are no reminders here."
        answer = await at(it)("remind cancel", id="`<@everyone>\n# x")
        assert (answer.ok, answer.text) == (False, "There is no reminder `\\u0060<@everyone>\\n# x` here.")


@story
async def test_others_are_told_to_admins_alone_with_the_agent_and_private_ones_to_an_owner(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        mine = await it.remind("mine", "root", at="18:30")
        room = await it.remind("room", "#b", at="18:31")
        theirs = await it.remind("theirs", "stranger", at="18:32")
        own = await it.own("own", at="18:33")
        public = {mine.id, room.id, own.id}

        async def seen(counter: Counter) -> set[str]:
            told = await counter.says("remind list")
            return {one.id for one in (mine, room, theirs, own) if one.id in told}

        assert await seen(at(it, HERE, "owner")) == set()
        assert await seen(at(it, OTHER)) == {room.id}
        assert await seen(at(it, ALONE, "guest")) == {mine.id}
        assert await seen(at(it, ALONE, "admin", everywhere="member")) == {mine.id}
        assert await seen(at(it, ALONE, "admin")) == public
        assert await seen(at(it, ALONE, "owner")) == {*public, theirs.id}
        told = (await at(it, ALONE, "admin").says("remind list")).splitlines()
        assert told[1:3] == ["", "Elsewhere:"]
        assert told[3].endswith("`room`, in `irc.test/#b`")
        assert told[4].endswith("`own`, in `reverie` by itself")
        assert told[5:] == ["- 1 in private conversations"]
        for counter, one in (
            (at(it, HERE, "owner"), room),
            (at(it, ALONE, "guest"), room),
            (at(it, ALONE, "admin"), theirs),
        ):
            assert not (await counter("remind cancel", id=one.id)).ok
        assert await ended(it) == []
        assert (await at(it, ALONE, "guest")("remind cancel", id=mine.id)).ok
        assert (await at(it, ALONE, "admin")("remind cancel", id=own.id)).ok
        assert (await at(it, ALONE, "owner")("remind cancel", id=theirs.id)).ok
        entries = await it.store.entries(kinds=["reminder_ended"])
        assert [one.conversation for one in entries] == [
            ALONE.conversation,
            inner_conversation("reverie"),
            STRANGER.conversation,
        ]
        assert [one.id for one in await it.store.pending_reminders()] == [room.id]


@story
async def test_of_many_the_later_ones_are_counted(tmp_path: Path) -> None:
    async with town(tmp_path, most=100) as it:
        for number in range(MAX_REMINDERS + 3):
            await it.remind(f"tea {number}", at=f"2026-11-22T{number:02}:00")
        lines = (await at(it).says("remind list")).splitlines()
        assert len(lines) == MAX_REMINDERS + 1
        assert lines[-1] == "(and 3 later ones)"


@story
async def test_those_of_that_place_are_suggested(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        later = await it.remind("tea", at="18:30")
        sooner = await it.remind("tea", at="17:30")
        await it.remind("tea", "#b", at="18:30")
        found = await suggest_reminders(typing(HERE, "remind", "cancel", "id"), context_of(it))
        assert found == [sooner.id, later.id]
        assert rank_suggestions(found, later.id[:4].lower()) == [later.id]
