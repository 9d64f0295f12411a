"""Turns that are steered, interrupted or continued, and those of the inner conversation, on a real store."""

import asyncio
from pathlib import Path

from agent.turn import CUT_OFF
from gateway.core.events import SenderId
from gateway.core.facts import AMBIENT
from tests.kits.scripted_turn import Say
from tests.kits.turns import Desk, at_desk

LOOK = Say(text="Let me see.", calls=(("c", "look_up"),))


def test_steps_are_written_down_and_repeated(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("ann", "hello")
        report = await desk.take()
        await desk.say("ann", "and?")
        await desk.take()
        (first, second) = await desk.ended()
        assert (report.used_tools, first.cause, len(first.steps), second.steps) == (True, "addressed", 1, ())
        assert [post.post.text for post in desk.posts] == ["Done.", "Done."]
        desk.means.history._cached.clear()  # as after a restart
        await desk.say("ann", "once more")
        await desk.take()
        asked = [request.conversation for request in desk.model.requests]
        assert [said == old for said, old in zip(asked[2], asked[1], strict=False)] == [True] * len(asked[1])
        assert asked[3][: len(asked[2])] == asked[2]

    at_desk(tmp_path, story, LOOK)


def test_who_speaks_in_the_middle_is_told_at_the_next_boundary(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async def meanwhile() -> None:
            await desk.say("bob", "wait")
            await desk.say("cat", "what is this?", kind="room", urgency=AMBIENT)
            desk.lane.steer()

        desk.drawer.meanwhile = meanwhile
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        assert "bob (guest): wait" in ended.steps[0].heard
        assert "cat (guest) (overheard)" in ended.steps[0].heard
        assert "bob" not in ended.heard
        assert ended.senders == (SenderId("ann"), SenderId("bob"), SenderId("cat"))
        assert (len(ended.covers), ended.upto, ended.omitted) == (3, ended.covers[-1], 0)
        assert await desk.unread() == []
        assert desk.told().endswith(ended.steps[0].heard)
        (post,) = desk.posts
        assert post.post.reply_to == "m2"
        assert [[asker.name for asker in where.requesters] for where in desk.where] == [["ann"], ["ann", "bob"]]

    at_desk(tmp_path, story, LOOK)


def test_who_takes_back_what_they_said_in_the_middle_is_not_told(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async def meanwhile() -> None:
            await desk.delete(await desk.say("bob", "oops"))
            desk.lane.steer()

        desk.drawer.meanwhile = meanwhile
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        assert (ended.steps[0].heard, len(ended.covers), ended.omitted) == ("", 1, 1)
        assert await desk.unread() == []

    at_desk(tmp_path, story, LOOK)


def test_who_is_queued_is_heard_by_the_next_turn(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async def meanwhile() -> None:
            await desk.say("bob", "wait")

        desk.drawer.meanwhile = meanwhile
        await desk.say("ann", "hello")
        await desk.take()
        assert len(await desk.unread()) == 1
        await desk.take()
        first, second = await desk.ended()
        assert (first.steps[0].heard, "bob (guest): wait" in second.heard) == ("", True)
        assert len(first.covers) == len(second.covers) == 1

    at_desk(tmp_path, story, LOOK)


def test_more_than_fits_in_the_middle_waits(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async def meanwhile() -> None:
            for number in range(60):
                await desk.say("bob", f"{number} " + "x" * 4_000)
            desk.lane.steer()

        desk.drawer.meanwhile = meanwhile
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        left = await desk.unread()
        assert len(ended.covers) + len(left) == 61
        assert 2 < len(ended.covers) < 40
        assert ended.upto == ended.covers[-1] < left[0]

    at_desk(tmp_path, story, LOOK)


def test_an_interrupted_turn_leaves_what_it_heard_to_the_next(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("ann", "hello")
        turn = asyncio.ensure_future(desk.take())
        await desk.model.asked.wait()
        await desk.say("bob", "no, wait")
        desk.lane.interrupt()
        report = await turn
        assert (report.was_interrupted, report.has_failed, desk.posts) == (True, False, [])
        await desk.take()
        first, second = await desk.ended()
        assert (first.outcome, first.text, len(first.covers), first.requests) == ("interrupted", "", 1, 0)
        assert (second.outcome, len(second.covers)) == ("replied", 1)
        assert "ann (guest): hello" in desk.told()
        assert "bob (guest): no, wait" in desk.told()
        old, new = desk.model.requests
        assert new.conversation[0].parts[:1] == old.conversation[0].parts

    at_desk(tmp_path, story, Say(waits=True))


def test_one_that_is_interrupted_in_its_tools_keeps_them(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async def meanwhile() -> None:
            desk.lane.interrupt()
            await asyncio.Event().wait()

        desk.drawer.meanwhile = meanwhile
        await desk.say("ann", "hello")
        report = await desk.take()
        assert (report.was_interrupted, report.used_tools) == (True, True)
        await desk.say("ann", "stop")
        await desk.take()
        first, _ = await desk.ended()
        assert first.steps[0].calls[0].result == CUT_OFF
        assert (first.model, first.requests, first.usage.input_tokens) == ("played-1", 1, 10)
        assert [said.role for said in desk.model.requests[-1].conversation] == ["user", "assistant", "user"]

    at_desk(tmp_path, story, LOOK)


def test_one_that_is_interrupted_before_it_asks_leaves_no_trace(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("ann", "hello")

        async def before() -> None:
            desk.lane.interrupt()
            await asyncio.Event().wait()

        desk.before = before
        report = await desk.take()
        assert report.was_interrupted
        assert await desk.ended() == []
        assert len(await desk.unread()) == 1

    at_desk(tmp_path, story)


def test_who_was_interrupted_is_answered_though_the_interrupter_takes_it_back(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("ann", "hello")
        turn = asyncio.ensure_future(desk.take())
        await desk.model.asked.wait()
        wrong = await desk.say("bob", "no, wait")
        desk.lane.interrupt()
        await turn
        await desk.delete(wrong)
        await desk.take()
        _, second = await desk.ended()
        assert (second.outcome, second.text, second.covers) == ("replied", "Done.", ())
        assert "hello" in desk.told()
        wrong = await desk.say("bob", "never mind")
        await desk.delete(wrong)
        await desk.take()
        assert (await desk.ended())[-1].requests == 0  # and not twice

    at_desk(tmp_path, story, Say(waits=True))


def test_one_that_has_its_answer_is_let_alone(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        def late() -> None:
            desk.lane.interrupt()

        desk.after = late
        await desk.say("ann", "hello")
        report = await desk.take()
        (ended,) = await desk.ended()
        assert (report.was_interrupted, ended.outcome, len(desk.posts)) == (False, "replied", 1)
        assert report.cost_usd == 0.25

    at_desk(tmp_path, story)
