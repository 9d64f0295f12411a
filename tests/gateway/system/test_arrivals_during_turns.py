"""What is said while a turn runs, in all three modes: nothing is lost, nothing is answered twice,
the order is kept.

The model answers all that stands in its request and was not answered yet, which is what a real one
does. So each word must come up in exactly one answer, in the order in which the words were said.
"""

import itertools
import re
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.base import ModelRequest, StreamChunk, StreamEnd, TextPart
from gateway.config.models import Settings
from gateway.core.events import ConversationId, Message, Usage
from gateway.core.facts import PostQueued, TurnRecord
from gateway.store.overview import EventOutcome
from reverie.testing.gateway import IRC, TELEGRAM, Gateway, message, on_platforms
from reverie.testing.played_model import Ask, PlayedModel, Say
from reverie.testing.simulated_time import JumpingClock, simulate, simulated
from tests.gateway.system.crash.cut_kit import Steps, cutting, live
from tests.kits.examples import examples
from tests.kits.outcomes import compute_outcomes

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
