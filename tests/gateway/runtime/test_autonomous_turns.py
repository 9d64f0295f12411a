"""Turns that nobody asked for: of the inner conversation, those that go on, and those that cannot
be afforded."""

from pathlib import Path

import pytest

from agent.prompt import NOTHING_NEW
from agent.prompts import load_prompt
from agent.turn import OVER_BUDGET_REASON
from gateway.context.digest import Digest
from gateway.core.events import Alarm, EventId, SenderId
from gateway.core.facts import NORMAL, Seq
from tests.kits.scripted_turn import Say
from tests.kits.tools import set_tools
from tests.kits.turns import INNER, ROOM, WHEN, Ana, at_desk

LOOK = Say(calls=(("c", "look_up"),))
DIGEST = Digest(
    text="## irc/#a\n[x] ann (guest): hello",
    covers=(Seq(1),),
    senders=(SenderId("ann"),),
    omitted=3,
    looked=((ROOM.conversation, Seq(7)),),
)


async def test_a_turn_that_goes_on_needs_nothing_new(tmp_path: Path) -> None:
    async with at_desk(tmp_path, Say(text="Hi."), LOOK) as desk:
        await desk.say("ann", "hello")
        await desk.take()
        await desk.take(autonomous=True)
        assert len(await desk.ended()) == 1
        report = await desk.take(autonomous=True, continuing=True)
        _, ended = await desk.ended()
        assert (ended.cause, ended.heard, ended.covers, ended.upto, report.autonomous) == (
            "continued",
            NOTHING_NEW,
            (),
            0,
            True,
        )
        first, *others = desk.model.requests[1:]
        working = load_prompt("working")
        assert first.now == working
        for request in others:
            assert request.now == working
        for request in desk.model.requests[1:]:
            assert [said.role for said in request.conversation][::2] == ["user"] * (
                len(request.conversation) // 2 + 1
            )
        await desk.take(autonomous=True, continuing=True)
        before, after = desk.model.requests[-2:]
        assert after.conversation[: len(before.conversation)] == before.conversation


async def test_what_is_pending_everywhere_is_told_to_the_inner_conversation(tmp_path: Path) -> None:
    async with at_desk(tmp_path, LOOK, Say(text="I see.")) as desk:
        await desk.take(INNER, autonomous=True)
        assert await desk.ended(INNER) == []
        desk.digest = DIGEST
        report = await desk.take(INNER, autonomous=True)
        (ended,) = await desk.ended(INNER)
        assert (ended.heard, ended.covers, ended.senders) == (
            DIGEST.text,
            DIGEST.covers,
            DIGEST.senders,
        )
        assert (ended.omitted, ended.looked, ended.cause, ended.upto) == (
            3,
            DIGEST.looked,
            "digest",
            0,
        )
        assert (ended.outcome, ended.text, desk.posts, report.used_tools) == (
            "replied",
            "I see.",
            [],
            True,
        )
        assert [(where.at.conversation, where.requesters) for where in desk.where] == [(INNER, ())]
        desk.digest = None
        await desk.take(INNER, autonomous=True, continuing=True)
        assert "I see." in str(desk.model.requests[-1].conversation)
        assert (await desk.ended(INNER))[-1].cause == "continued"


async def test_a_turn_that_nobody_asked_for_leaves_one_line(tmp_path: Path) -> None:
    rest = Say(calls=(("y", "yield_to_user"),), arguments='{"note": "Ann\\n waits."}')
    silent = Say(calls=(("s", "stay_silent"),), arguments='{"note": "Asked."}')
    async with at_desk(tmp_path, rest, Say(text="I see."), Say(text="Hi."), silent) as desk:
        for place in (INNER, INNER, ROOM.conversation):
            desk.digest = DIGEST
            await desk.take(place, autonomous=True, continuing=True)
        await desk.say("ann", "hello")
        await desk.take()
        (first, second), (third, asked) = await desk.ended(INNER), await desk.ended()
        assert [one.note for one in (first, second, third, asked)] == [
            "Ann waits.",
            "I see.",
            "",
            "",
        ]


@pytest.mark.parametrize(
    ("family", "window", "rounds", "done"),
    [
        ("llamacpp", 16_384, None, 1),
        ("llamacpp", 16_384, 2, 2),
        ("llamacpp", 32_768, None, 2),
        ("openai", 16_384, None, 2),
    ],
)
async def test_a_small_model_takes_one_step_a_turn_and_goes_on(
    tmp_path: Path, family: str, window: int, rounds: int | None, done: int
) -> None:
    step = Say(text="One step.", calls=(("c", "jot"),))

    async with at_desk(tmp_path, step, step) as desk:
        desk.model.family, desk.model.context_tokens = family, window
        if rounds is not None:
            set_tools(desk.live, max_rounds=rounds)
        await desk.say("ann", "do it")
        report = await desk.take()
        assert (report.open_work, len(desk.drawer.used)) == (done == 1, done)
        assert [one.post.text for one in desk.posts] == ["One step." if done == 1 else "Done."]
        assert not (await desk.take(continuing=True)).open_work


async def test_a_broken_inner_turn_is_not_tried_for_ever(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.digest = DIGEST

        async def before() -> None:
            raise ZeroDivisionError

        assert isinstance(desk.means.prompts, Ana)
        desk.means.prompts.before = before
        with pytest.raises(ZeroDivisionError):
            await desk.take(INNER, autonomous=True)
        report = await desk.turns.give_up(desk.means, INNER, "it broke", autonomous=True)
        (ended,) = await desk.ended(INNER)
        assert (ended.outcome, ended.looked, ended.text, desk.posts) == (
            "failed",
            DIGEST.looked,
            "",
            [],
        )
        assert report.failed


@pytest.mark.parametrize("requests", [0, 1])
async def test_what_cannot_be_afforded_ends_a_turn_that_nobody_asked_for(
    tmp_path: Path, requests: int
) -> None:
    async with at_desk(tmp_path, *[LOOK] * requests) as desk:
        desk.ceilings.extend([0.1] * requests + [2.5])
        await desk.say("ann", "hello", kind="room", urgency=NORMAL)
        report = await desk.take(autonomous=True)
        assert (desk.agent.state.spent_up, report.failed, len(desk.model.requests), desk.posts) == (
            True,
            False,
            requests,
            [],
        )
        ended = [(one.outcome, one.reason, len(one.steps)) for one in await desk.ended()]
        assert ended == [("silent", OVER_BUDGET_REASON, 1)] * requests
        assert len(await desk.unread()) == 1 - requests
        await desk.say("ann", "ana?")
        await desk.take()
        assert len(desk.posts) == 1  # a person is answered


@pytest.mark.parametrize(
    ("autonomous", "alarm", "cause"),
    [(False, False, "addressed"), (True, True, "alarm"), (True, False, "noticed")],
)
async def test_why_a_turn_is_taken_and_who_is_told_that_it_failed(
    tmp_path: Path, *, autonomous: bool, alarm: bool, cause: str
) -> None:
    async with at_desk(tmp_path, Say(refused=True, text="I")) as desk:
        await desk.say("ann", "hello", kind="room", urgency=NORMAL)
        if alarm:
            ring = Alarm(id=EventId("a"), text="Tea.", sent=WHEN, at=ROOM, agent="ana")
            await desk.tell(ring, ROOM.conversation, NORMAL)
        report = await desk.take(autonomous=autonomous)
        (ended,) = await desk.ended()
        assert (report.failed, ended.cause, ended.autonomous) == (True, cause, autonomous)
        assert len(desk.posts) == (cause != "noticed")
        assert bool(ended.text) == (cause != "noticed")


async def test_what_somebody_says_meanwhile_makes_it_an_addressed_one(tmp_path: Path) -> None:
    async with at_desk(
        tmp_path,
        Say(calls=(("a", "look_up"),)),
        Say(calls=(("b", "yield_to_user"),)),
        Say(text="Four."),
    ) as desk:

        async def meanwhile() -> None:
            await desk.say("ann", "two plus two?")
            desk.lane.steer()

        desk.drawer.meanwhile = meanwhile
        report = await desk.take(autonomous=True, continuing=True)
        (ended,) = await desk.ended()
        assert (ended.cause, ended.autonomous, ended.continued, ended.text) == (
            "addressed",
            False,
            True,
            "Four.",
        )
        assert not report.autonomous
