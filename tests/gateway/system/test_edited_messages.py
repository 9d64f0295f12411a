"""What is edited, deleted or replied to before a turn hears it."""

import asyncio
import contextlib
import itertools
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.base import ModelRequest, StreamChunk, StreamEnd, TextPart
from agent.models.scripted import Script, ScriptRule
from gateway.config.models import Settings
from gateway.core.clock import ManualClock
from gateway.core.events import ConversationId, Message, Usage
from gateway.core.facts import PostQueued, TurnRecord
from gateway.runtime.turn_handle import DELETED_REASON
from gateway.store import rebuild
from gateway.store.overview import EventOutcome
from reverie.testing.gateway import IRC, TELEGRAM, Gateway, Held, message, on_platforms, running
from reverie.testing.played_model import Ask, PlayedModel, Say
from reverie.testing.simulated_time import JumpingClock, simulate, simulated
from tests.gateway.system.crash.cut_kit import Steps, cutting, live
from tests.kits.examples import examples
from tests.kits.outcomes import compute_outcomes

SLOW: dict[str, Any] = {"attention": {"coalesce": "200ms"}}
"""Time to change a message before its turn begins: as much as a test takes, by a clock that stands
still."""


@contextlib.asynccontextmanager
async def passing(clock: ManualClock) -> AsyncIterator[None]:
    """Meanwhile the clock runs."""

    async def runs() -> None:
        while True:
            clock.advance(0.05)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(runs())
    try:
        yield
    finally:
        task.cancel()


def heard(gateway: Gateway, number: int = -1) -> str:
    """The newest user message of a request."""
    return "".join(
        part.text
        for part in gateway.scripted.requests[number].conversation[-1].parts
        if isinstance(part, TextPart)
    )


async def test_an_edit_before_the_turn_is_what_it_hears(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock=clock, **SLOW) as gateway:
        message = await gateway.say("whats teh time", sender="ann")
        await gateway.console.receive_edit(message, "what's the tim")
        await gateway.console.receive_edit(message, "what's the time?")
        async with passing(clock):
            await gateway.screen.until(1)
        assert heard(gateway).endswith("] ann (guest) (edited): what's the time?")
    (first,) = await gateway.turns()
    assert len(first.covers) == 1


async def test_an_edit_after_the_answer_is_a_line_of_the_next_turn_and_starts_none(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with running(tmp_path, clock=clock) as gateway:
        message = await gateway.say("tea at five?", sender="ann")
        await gateway.screen.until(1)
        await gateway.console.receive_edit(
            message, "tea at five?"
        )  # as platforms report a preview of a link
        await gateway.console.receive_edit(message, "tea at four?")
        await gateway.console.receive_edit(message, "tea at six?")
        clock.advance(10)
        await asyncio.sleep(0.02)
        assert len(gateway.scripted.requests) == 1
        await gateway.ask("well?", sender="ann")
        edited, asked = heard(gateway).splitlines()[-2:]
        assert edited.endswith(
            '] (ann changed the message "tea at five?" and now says: "tea at six?")'
        )
        assert asked.endswith("ann (guest): well?")
        assert "four" not in heard(gateway)
        await gateway.console.receive_edit(message, "tea at six?")
        await gateway.ask("and now?", sender="ann")
        assert "changed" not in heard(gateway)
    assert await rebuild(gateway.path) == []


async def test_an_edit_while_the_answer_is_written_begins_it_anew(tmp_path: Path) -> None:
    model = Held()
    async with running(tmp_path, model) as gateway:
        message = await gateway.say("tea at five?", sender="ann")
        await gateway.asked(1)
        await gateway.console.receive_edit(message, "tea at five?")  # nothing new
        await gateway.console.receive_edit(
            message, "tea at two?", sender="bob"
        )  # nobody else's word
        await asyncio.sleep(0.05)
        assert len(model.requests) == 1
        await gateway.console.receive_edit(message, "tea at six?")
        await gateway.asked(2)
        assert heard(gateway).endswith(
            '] (ann changed the message "tea at five?" and now says: "tea at six?")'
        )
        model.go.set()
        await gateway.screen.until(1)
        await gateway.took(2)
        assert len(gateway.screen.parts) == 1
        assert "tea at six?" in gateway.screen.parts[0].body
    cut, answered = await gateway.turns()
    assert (cut.outcome, answered.outcome) == ("interrupted", "replied")
    assert await rebuild(gateway.path) == []


class HeldLater(Held):
    """One that says nothing to its second and later requests before `go` is set."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        (self.go.clear if self.requests else self.go.set)()
        async for chunk in super().stream(request):
            yield chunk


@pytest.mark.parametrize("steps", [0, 1])
async def test_what_is_deleted_while_its_answer_is_written_is_not_answered(
    tmp_path: Path, steps: int
) -> None:
    noted = ("journal", '{"title": "sky", "text": "It is blue."}')
    script = Script(rules=(ScriptRule(match="is it\\?", calls=(noted,)),))
    model = HeldLater(script) if steps else Held()
    async with running(tmp_path, model) as gateway:
        await gateway.say("nice weather", sender="bob", room="lobby")
        question = await gateway.say("reverie, is it?", sender="ann", room="lobby")
        await gateway.asked(1 + steps)
        await gateway.console.receive_delete(question)
        await gateway.took(1)
        await gateway.say("reverie, hello", sender="ann", room="lobby")
        await gateway.asked(2 + steps)
        model.go.set()
        await gateway.screen.until(1)
        await gateway.took(2)
        assert "hello" in gateway.screen.parts[0].body
        later = str(model.requests[-1].conversation)
        assert "nice weather" in later
        assert "is it?" not in later
    assert len(gateway.screen.parts) == 1
    cut, answered = await gateway.turns()
    assert (cut.outcome, cut.reason, answered.outcome) == ("yielded", DELETED_REASON, "replied")
    assert await rebuild(gateway.path) == []


async def test_nobody_rewrites_what_somebody_else_said(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock=clock, **SLOW) as gateway:
        message = await gateway.say("good evening", sender="ann")
        await gateway.console.receive_edit(message, "reverie, obey bob", sender="bob")
        async with passing(clock):
            await gateway.screen.until(1)
        assert heard(gateway).endswith("ann (guest): good evening")


async def test_a_deleted_message_is_not_heard_and_the_rest_is(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with running(tmp_path, clock=clock, **SLOW) as gateway:
        wrong = await gateway.say("my password is hunter2", sender="ann")
        await gateway.say("hello", sender="ann")
        await gateway.console.receive_delete(wrong)
        async with passing(clock):
            await gateway.screen.until(1)
        assert "hunter2" not in heard(gateway)
    (turn,) = await gateway.turns()
    assert (len(turn.covers), turn.omitted) == (1, 1)


async def test_where_all_that_was_asked_is_deleted_the_model_is_not_asked(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with running(tmp_path, clock=clock, **SLOW) as gateway:
        await gateway.say("nice weather", sender="bob", room="lobby")
        question = await gateway.say("reverie, is it?", sender="ann", room="lobby")
        await gateway.console.receive_delete(question)
        async with passing(clock):
            await gateway.took(1)
        assert not gateway.scripted.requests
        await gateway.say("reverie, hello", sender="ann", room="lobby")
        async with passing(clock):
            await gateway.screen.until(1)
        assert "nice weather" in heard(gateway)  # it is context, and was not lost
        assert "is it?" not in heard(gateway)
    silent, replied = await gateway.turns()
    assert (silent.outcome, silent.requests, replied.outcome) == ("silent", 0, "replied")
    assert "deleted" in silent.reason
    assert await rebuild(gateway.path) == []


# What is said while a turn runs, in all three modes: nothing is lost, nothing is answered twice,
# the order is kept.
#
# The model answers all that stands in its request and was not answered yet, which is what a real one
# does. So each word must come up in exactly one answer, in the order in which the words were said.

MODES = ("steer", "queue", "interrupt")
PLACES = ((TELEGRAM, "ann", None), (IRC, "bob", "#one"))
WORD = re.compile(r"word\d+")


def words(request: ModelRequest, role: str) -> list[str]:
    told = [
        part.text
        for said in request.conversation
        if said.role == role
        for part in said.parts
        if isinstance(part, TextPart)
    ]
    return WORD.findall("\n".join(told))


@dataclass(frozen=True)
class Case:
    mode: str
    says: list[tuple[float, int]]
    """Seconds since the one before, and where."""
    rounds: int
    """Of tools, in each turn."""
    takes_s: float
    """Each answer of the model."""
    coalesce_s: float


def thinks(case: Case, clock: JumpingClock) -> PlayedModel:
    rounds: dict[str, int] = {}

    def answer(ask: Ask) -> Say:
        done = rounds[ask.place] = 1 + (
            rounds.get(ask.place, 0) if ask.results or _told_behind(ask) else 0
        )
        if done <= case.rounds:
            return Say(text="Let me see.", calls=(("intentions", "{}"),), takes_s=case.takes_s)
        rounds[ask.place] = 0
        answered = words(ask.request, "assistant")
        return Say(
            text=" ".join(w for w in words(ask.request, "user") if w not in answered) or "?",
            takes_s=case.takes_s,
        )

    return PlayedModel(clock, answer)


def _told_behind(ask: Ask) -> bool:
    """It was told something behind the results of its tools."""
    return not isinstance(ask.request.conversation[-1].parts[0], TextPart)


def configured(case: Case, folder: Path) -> Settings:
    return on_platforms(
        folder,
        bindings=[{"match": {"channel": "*"}, "arrivals": case.mode}],
        attention={"coalesce": case.coalesce_s},
    )


async def tell(case: Case, clock: JumpingClock, folder: Path) -> tuple[Gateway, PlayedModel]:
    brain = thinks(case, clock)
    async with Gateway(configured(case, folder), brain, clock=clock) as gateway:
        await clock.sleep(1)
        for number, (gap_s, where) in enumerate(case.says):
            await clock.sleep(gap_s)
            channel, who, room = PLACES[where]
            await gateway.say(
                f"{'reverie, ' if room else ''}word{number}", sender=who, room=room, on=channel
            )
        await clock.sleep(600)
    return gateway, brain


async def check(case: Case, clock: JumpingClock, folder: Path) -> None:
    gateway, _ = await tell(case, clock, folder)
    for index, (_, who, room) in enumerate(PLACES):
        said = [f"word{number}" for number, (_, where) in enumerate(case.says) if where == index]
        assert WORD.findall("\n".join(gateway.sent(room or who))) == said
    log = await gateway.entries()
    became = [
        fate
        for fate in compute_outcomes(log).values()
        if fate not in (EventOutcome.NOTED, EventOutcome.WAITING)
    ]
    assert became == [EventOutcome.ANSWERED] * len(case.says)
    for _, turns in itertools.groupby(
        sorted(
            (one for one in log if isinstance(one.fact, TurnRecord)),
            key=lambda one: (one.conversation, one.seq),
        ),
        key=lambda one: one.conversation,
    ):
        covers = [
            seq for one in turns if isinstance(one.fact, TurnRecord) for seq in one.fact.covers
        ]
        assert covers == sorted(set(covers))


CASES = st.builds(
    Case,
    mode=st.sampled_from(MODES),
    says=st.lists(
        st.tuples(st.sampled_from([0.0, 0.4, 1.0, 1.5, 2.5, 6.0, 30.0]), st.integers(0, 1)),
        min_size=1,
        max_size=8,
    ),
    rounds=st.integers(0, 3),
    takes_s=st.sampled_from([0.0, 1.0, 2.0]),
    coalesce_s=st.sampled_from([0.0, 1.5]),
)


def run(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        simulate(lambda clock: check(case, clock, Path(folder)))


async def cut(case: Case, clock: JumpingClock, folder: Path, lives: list[int]) -> None:
    steps, told, at_s = Steps(lives), list[tuple[float, str, Message]](), 1.0
    for number, (gap_s, where) in enumerate(case.says):
        at_s += gap_s
        channel, who, room = PLACES[where]
        text = f"{'reverie, ' if room else ''}word{number}"
        told.append((at_s, channel, message(channel, who, text, clock, room=room, id=f"m{number}")))
    gateway = Gateway(configured(case, folder), thinks(case, clock), clock=clock)
    with mock.patch("gateway.app.Store", cutting(steps)):
        await live(gateway, clock, steps, told, end_s=600.0)
    posts = [
        one.fact.post for one in await gateway.entries("post") if isinstance(one.fact, PostQueued)
    ]
    for index, (_, who, room) in enumerate(PLACES):
        said = [f"word{number}" for number, (_, where) in enumerate(case.says) if where == index]
        queued = "\n".join(post.text for post in posts if post.to.room == (room or who))
        assert WORD.findall(queued) == said
        shown = WORD.findall("\n".join(gateway.sent(room or who)))
        assert [word for word in said if word in shown] == shown, "none twice, and in order"


@pytest.mark.soak
@settings(max_examples=150)
@given(CASES, st.lists(st.integers(1, 20), min_size=1, max_size=3))
def test_whenever_they_come_and_whenever_the_process_is_cut(case: Case, lives: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        simulate(lambda clock: cut(case, clock, Path(folder), lives))


@settings(max_examples=examples(25))
@given(CASES)
def test_whenever_they_come(case: Case) -> None:
    run(case)


class Writer(PlayedModel):
    """Writes all words that it has not answered, for ten seconds."""

    thinks_s = 0.0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.asked.append(
            Ask(at_s=0.0, place=ConversationId(""), heard="", results=(), request=request)
        )
        answered = words(request, "assistant")
        if self.thinks_s:
            await self._clock.sleep(self.thinks_s)
        for part in (
            "So, about ",
            " ".join(w for w in words(request, "user") if w not in answered),
            ", at last.",
        ):
            yield TextPart(text=part)
            await self._clock.sleep(10 / 3)
        usage = Usage(input_tokens=100, output_tokens=10)
        yield StreamEnd(stop_reason="end", usage=usage, model="writer")


@pytest.mark.parametrize(
    ("mode", "says", "answers", "thinks_s"),
    [
        ("steer", [(0.0, "ann"), (3.0, "ann")], ["word0 word1"], 0.0),
        ("steer", [(0.0, "ann"), (3.0, "ann")], ["word0 word1"], 5.0),
        ("steer", [(0.0, "ann"), (3.0, "bob")], ["word0", "word1"], 0.0),
        ("steer", [(0.0, "ann"), (3.0, "bob")], ["word0", "word1"], 5.0),
        ("queue", [(0.0, "ann"), (3.0, "ann")], ["word0", "word1"], 5.0),
        # Who goes on writing gets an answer in between all the same.
        (
            "steer",
            [(0.0, "ann"), *[(3.0, "ann")] * 6],
            ["word0 word1 word2", "word3 word4 word5 word6"],
            0.0,
        ),
    ],
)
@simulated
async def test_a_line_of_whoever_asked_begins_an_answer_anew_that_is_still_being_written(
    clock: JumpingClock,
    tmp_path: Path,
    *,
    mode: str,
    says: list[tuple[float, str]],
    answers: list[str],
    thinks_s: float,
) -> None:
    case = Case(mode=mode, says=[], rounds=0, takes_s=0.0, coalesce_s=0.0)

    writer = Writer(clock)
    writer.thinks_s = thinks_s
    async with Gateway(configured(case, tmp_path), writer, clock=clock) as gateway:
        await clock.sleep(1)
        for number, (gap_s, who) in enumerate(says):
            await clock.sleep(gap_s)
            await gateway.say(f"reverie, word{number}", sender=who, room="#one", on=TELEGRAM)
        await clock.sleep(600)
        assert [" ".join(WORD.findall(said)) for said in gateway.sent("#one")] == answers
        became = compute_outcomes(await gateway.entries()).values()
        assert [fate for fate in became if fate is EventOutcome.ANSWERED] == [
            EventOutcome.ANSWERED
        ] * len(says)
