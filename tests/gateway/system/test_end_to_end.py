"""Through everything at once: console in, store, DMN, turn, outbox, console out."""

import asyncio
from pathlib import Path

import pytest

from agent.models.base import ModelUnusable, TextPart
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from channels.aio import cancel_and_wait
from channels.base import Emit
from channels.telegram.channel import TelegramChannel
from gateway import app
from gateway.core.clock import SystemClock
from gateway.core.events import DeliveryReport, Usage
from gateway.core.facts import Judgement, TurnRecord
from gateway.store import Store, rebuild
from tests.kits.channels import story
from tests.kits.gateway import Held, running
from tests.kits.platform_users import DISCORD, IRC, PLATFORMS, TELEGRAM
from tests.kits.three_platforms import town


def test_a_direct_message_is_answered_once_and_recorded(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
        assert len(gateway.screen.said("ann")) == 1
        assert gateway.screen.said("ann")[0].startswith("You said: [")
        (turn,) = await gateway.turns()
        assert (turn.outcome, turn.requests, turn.autonomous, len(turn.covers)) == ("replied", 1, False, 1)
        assert turn.text == gateway.screen.parts[0].body
        assert turn.usage != Usage()
        (delivery,) = await gateway.log("delivery")
        assert isinstance(delivery, DeliveryReport)
        assert (delivery.state, str(delivery.post)) == ("sent", str(turn.turn))

    asyncio.run(story())


def test_room_talk_is_context_and_a_mention_is_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as gateway:
            await gateway.console.receive_message("nice weather", sender="ann", room="lobby")
            await gateway.console.receive_message("is it?", sender="bob", room="lobby")
            await gateway.console.receive_message("reverie, is it?", sender="ann", room="lobby")
            await gateway.screen.until(1)
        (turn,) = await gateway.turns()
        assert len(turn.covers) == 3
        heard = turn.heard.splitlines()
        assert [" (overheard)" in line for line in heard] == [True, True, False]
        assert heard[2].endswith("ann (guest): reverie, is it?")

    asyncio.run(story())


def test_a_closed_room_costs_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, access={"dm": "disabled"}) as gateway:
            await gateway.console.receive_message("reverie!", sender="ann", room="cellar")
            await gateway.console.receive_message("psst", sender="ann")
            await gateway.console.receive_message("reverie!", sender="ann", room="lobby")
            await gateway.screen.until(1)
        assert len(await gateway.turns()) == 1
        fates = [fact.fate for fact in await gateway.log("judged") if isinstance(fact, Judgement)]
        assert fates == ["noted", "refused", "refused", "due"]  # the first is the link's

    asyncio.run(story())


def test_lines_within_the_window_are_answered_together(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, attention={"coalesce": 0.5}) as gateway:
            await asyncio.gather(
                *(gateway.console.receive_message(text, sender="ann") for text in ("one", "two", "three"))
            )
            await gateway.screen.until(1)
        (turn,) = await gateway.turns()
        assert len(turn.covers) == 3

    asyncio.run(story())


def test_the_reply_is_to_what_was_said_to_the_agent(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, attention={"coalesce": 0.5}) as gateway:
            asked, _ = await asyncio.gather(
                gateway.console.receive_message("reverie, is it?", sender="bob", room="lobby"),
                gateway.console.receive_message("nice weather", sender="ann", room="lobby"),
            )
            await gateway.screen.until(1)
        assert gateway.screen.parts[0].reply_to == asked.id

    asyncio.run(story())


def test_what_arrives_during_a_turn_is_answered_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        model = Held()
        async with running(tmp_path, model) as gateway:
            await gateway.console.receive_message("one", sender="ann")
            await gateway.asked(1)
            await gateway.console.receive_message("two", sender="ann")
            await gateway.console.receive_message("three", sender="ann")
            model.go.set()
            await gateway.screen.until(2)
        turns = await gateway.turns()
        assert [len(turn.covers) for turn in turns] == [1, 2]
        assert [part.to.room for part in gateway.screen.parts] == ["ann", "ann"]

    asyncio.run(story())


def test_conversations_do_not_wait_for_each_other_and_do_not_mix(tmp_path: Path) -> None:
    async def story() -> None:
        model = Held()
        async with running(tmp_path, model) as gateway:
            people = [f"p{number}" for number in range(8)]
            for person in people:
                await gateway.console.receive_message(f"I am {person}", sender=person)
            await gateway.asked(8)  # all at once
            model.go.set()
            await gateway.screen.until(8)
        for person in people:
            (answer,) = gateway.screen.said(person)
            assert answer.endswith(f"I am {person}")

    asyncio.run(story())


def test_history_grows_by_appending(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as gateway:
            for number in range(1, 4):
                await gateway.console.receive_message(f"line {number}", sender="ann")
                await gateway.screen.until(number)
            first, second, third = gateway.scripted.requests
        assert second.conversation[: len(first.conversation)] == first.conversation
        assert third.conversation[: len(second.conversation)] == second.conversation
        async with running(tmp_path) as again:
            await again.console.receive_message("line 4", sender="ann")
            await again.screen.until(1)
            (fourth,) = again.scripted.requests
        assert fourth.conversation[: len(third.conversation)] == third.conversation  # also over a restart
        assert fourth.blocks == first.blocks

    asyncio.run(story())


def test_a_small_window_folds_and_says_so_in_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        small = ScriptedModel(
            Script(rules=(ScriptRule(match="", reply="word " * 100),)), clock=SystemClock(), context_tokens=5_000
        )
        async with running(tmp_path, small) as gateway:
            for number in range(1, 21):
                await gateway.console.receive_message(f"line {number} " + "x" * 200, sender="ann")
                await gateway.screen.until(number)
        folds = await gateway.log("folded")
        assert 1 <= len(folds) < 10  # of 20 turns
        sizes = [
            len("".join(p.text for s in r.conversation for p in s.parts if isinstance(p, TextPart)))
            for r in small.requests
        ]
        assert max(sizes) < 3_000 * 3.5  # what the persona and the tools leave of it

    asyncio.run(story())


def test_people_are_told_once_and_in_plain_words_why_there_is_no_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, Script(errors=(ModelUnusable("no credit"),))) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
            await gateway.console.receive_message("and now?", sender="ann")
            await gateway.screen.until(2)
        failed, replied = await gateway.turns()
        assert (failed.outcome, failed.reason, replied.outcome) == ("failed", "no credit", "replied")
        told, answered = (part.body for part in gateway.screen.parts)
        assert "not set up correctly" in told
        assert "My operator must correct it" in told
        assert failed.turn not in told  # which means nothing to them
        assert "no credit" not in told  # the server's own words are for the operator
        assert "set up" not in answered

    asyncio.run(story())


@pytest.mark.parametrize(
    ("call", "text", "outcome", "shown"),
    [
        ("stay_silent", "", "silent", 0),
        ("stay_silent", "thinking aloud", "silent", 0),
        ("yield_to_user", "", "yielded", 0),
        ("yield_to_user", "Good night.", "replied", 1),
    ],
)
def test_ways_to_end_a_turn(tmp_path: Path, call: str, text: str, outcome: str, shown: int) -> None:
    async def story() -> None:
        script = Script(rules=(ScriptRule(match="quiet", reply=text, calls=((call, "{}"),)),))
        async with running(tmp_path, script) as gateway:
            await gateway.console.receive_message("quiet please", sender="ann")
            await gateway.console.receive_message("bye", sender="bob")
            await gateway.screen.until(1 + shown)
            await gateway.took(2)
        assert len(gateway.screen.said("ann")) == shown
        assert outcome in [turn.outcome for turn in await gateway.turns()]

    asyncio.run(story())


def test_a_tool_that_is_not_there_is_an_error_the_model_can_answer(tmp_path: Path) -> None:
    async def story() -> None:
        script = Script(
            rules=(ScriptRule(match="time", calls=(("clock", "{}"),)), ScriptRule(match="", reply="I cannot tell."))
        )
        async with running(tmp_path, script) as gateway:
            await gateway.console.receive_message("what time is it?", sender="ann")
            await gateway.screen.until(1)
        (turn,) = await gateway.turns()
        assert (turn.text, turn.requests) == ("I cannot tell.", 2)

    asyncio.run(story())


def test_an_empty_answer_gets_one_nudge(tmp_path: Path) -> None:
    async def story() -> None:
        script = Script(
            rules=(ScriptRule(match="answered with nothing", reply="Sorry, here."), ScriptRule(match="", reply="  "))
        )
        async with running(tmp_path, script) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
        (turn,) = await gateway.turns()
        assert (turn.text, turn.requests) == ("Sorry, here.", 2)
        assert "answered with nothing" not in turn.heard  # it leaves no trace

    asyncio.run(story())


def test_half_a_character_from_a_model_does_no_harm(tmp_path: Path) -> None:
    async def story() -> None:
        script = Script(
            rules=(ScriptRule(match="", reply="x" * 15 + "\ud83d\ude00 and \ud83d."),)
        )  # cut after 16 characters
        async with running(tmp_path, script) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
        (turn,) = await gateway.turns()
        assert turn.text == "x" * 15 + "\N{GRINNING FACE} and \N{REPLACEMENT CHARACTER}."

    asyncio.run(story())


def test_stopping_parks_a_turn_and_the_next_start_takes_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "TURN_GRACE_S", 0.05)  # the grace is for real models; here it is certain to run out

    async def story() -> None:
        async with running(tmp_path, Script(delay_s=60)) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.asked(1)
        assert not gateway.screen.parts
        assert not await gateway.turns()
        async with running(tmp_path) as again:
            await again.screen.until(1)
        assert again.screen.said("ann")[0].endswith("hello")

    asyncio.run(story())


def test_a_start_fires_nothing_by_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as gateway:
            await gateway.console.receive_message("hello", sender="ann")
            await gateway.screen.until(1)
        async with running(
            tmp_path, dmn={"engaged": "10ms", "working": "10ms", "foraging": "10ms", "resting": "10ms"}
        ) as again:
            await asyncio.sleep(0.3)  # some thirty ticks
        assert not again.scripted.requests
        assert not again.screen.parts

    asyncio.run(story())


def test_a_normal_notice_is_taken_up_by_the_next_tick(tmp_path: Path) -> None:
    async def story() -> None:
        rules = [{"type": "console.room.lobby", "urgency": "normal"}]
        async with running(tmp_path, attention={"coalesce": 0, "rules": rules}, dmn={"resting": "50ms"}) as gateway:
            await gateway.console.receive_message("anybody?", sender="ann", room="lobby")
            await gateway.took(1)
            assert gateway.screen.parts == []  # in a room that is no reason to speak: the agent looks at it by itself
            await gateway.console.receive_message("reverie?", sender="ann", room="lobby")
            await gateway.screen.until(1)
        looked, answered = await gateway.turns()
        assert (looked.autonomous, looked.cause, len(looked.looked)) == (True, "digest", 1)
        assert (answered.autonomous, "anybody?" in answered.heard) == (False, True)

    asyncio.run(story())


def test_every_table_is_what_the_log_says(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as gateway:
            for number in range(5):
                await gateway.console.receive_message(f"hello {number}", sender=f"p{number % 2}")
            while sum(len(turn.covers) for turn in await gateway.turns()) < 5:
                await asyncio.sleep(0.005)
        assert await rebuild(tmp_path / "reverie.db") == []
        async with await Store.open_readonly(tmp_path / "reverie.db") as reader:
            assert await reader.undelivered_posts() == []

    asyncio.run(story())


@pytest.mark.parametrize("tokens", [200_000, 4_000])
def test_a_burst_of_questions_is_told_whole_and_in_order_over_several_turns(tmp_path: Path, tokens: int) -> None:
    """By number of lines in a large window, by their size in a small one."""
    questions = [f"question {number:03d}" + " and so on" * 5 for number in range(120)]

    async def story() -> None:
        model = ScriptedModel(context_tokens=tokens, clock=SystemClock())
        async with running(tmp_path, model, attention={"coalesce": 0.5}) as gateway:
            for text in questions:
                await gateway.console.receive_message(text)
            turns: list[TurnRecord] = []
            async with asyncio.timeout(120):
                while sum(len(turn.covers) for turn in turns) < len(questions):
                    turns = await gateway.turns()
                    await asyncio.sleep(0.005)
        told = [seq for turn in turns for seq in turn.covers]
        assert told == sorted(set(told))
        assert len(told) == len(questions)
        assert not sum(turn.omitted for turn in turns)
        heard = "\n".join(turn.heard for turn in turns)
        assert [heard.count(text) for text in questions] == [1] * len(questions)
        assert "not shown" not in heard
        assert 2 < len(turns) < 60

    asyncio.run(story())


@story
async def test_an_adapter_that_breaks_begins_anew_and_the_other_channels_never_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks, sound = asyncio.Event(), TelegramChannel.run

    async def run(channel: TelegramChannel, emit: Emit) -> None:
        tasks = [asyncio.ensure_future(sound(channel, emit)), asyncio.ensure_future(breaks.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*tasks)
        breaks.clear()
        raise KeyError("a bug")

    monkeypatch.setattr(TelegramChannel, "run", run)
    async with town(tmp_path, dm="open") as it:
        await it.begin()
        olga = it.seat(DISCORD, "olga", "alone")
        olga.say("good morning", to_bot=True)
        await it.heard(olga, 0, "answer 1")
        breaks.set()
        await it.heard(olga, 0, r"telegram\S* stopped because of an error \(internal error: KeyError\)")
        seats = [it.seat(platform, "gus", "room") for platform in PLATFORMS]
        for seat in seats:
            seat.say("are you there?", to_bot=True)
        for seat in seats:
            await it.heard(seat, 0, "answer")
        await it.heard(olga, 0, r"telegram\S* works again\. It lasted")
        assert [await it.ups(platform) for platform in (TELEGRAM, DISCORD, IRC)] == [2, 1, 1]
        assert len(it.model.seen) == 1 + len(seats)
        await it.end()
