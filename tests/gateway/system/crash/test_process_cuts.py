"""The process is cut after any durable step: what comes of the story is the same as without (see
`cut_kit`)."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from gateway import app
from gateway.core.events import Alarm, DeliveryReport, Message
from gateway.core.facts import (
    MemoryConsolidated,
    NoteWritten,
    PostQueued,
    RoomAttended,
    is_inner,
)
from gateway.plugins.reminders import ReminderSet
from gateway.store import rebuild
from gateway.store.overview import EventOutcome
from reverie.testing.gateway import (
    DISCORD,
    IRC,
    TELEGRAM,
    UNBOUNDED,
    UNHURRIED,
    Gateway,
    message,
    on_platforms,
)
from reverie.testing.played_model import Ask, PlayedModel, Say
from reverie.testing.simulated_time import JumpingClock, simulate
from tests.gateway.system.crash.cut_kit import Script, Steps, cutting, live
from tests.kits.delivery_judge import DOUBT
from tests.kits.outcomes import compute_outcomes

END_S: Final = 3_000.0
LAST: Final = 60
"""Durable steps that are tried; the story has a few less."""
MEMORY: Final = "- ann likes tea\n"


def answer(ask: Ask) -> Say:
    """What the model does is decided by what it hears."""
    tools: list[tuple[str, dict[str, str]]] = []
    if "MEMORY.md" in ask.heard and "dream ended" not in ask.heard:
        return Say(text=MEMORY)
    if is_inner(ask.place):
        if "It is in your journal." in ask.results:
            tools += [("attend", {"room": f"{DISCORD}/#two", "reason": "there is an outage"})]
        elif ask.results:
            return Say(calls=(("yield_to_user", "{}"),))
        if "there is an outage" in ask.heard:
            tools += [("journal", {"title": "an outage", "text": "in #two"})]
        if "no outage here" in ask.heard:
            tools += [("attend", {"room": f"{DISCORD}/#three"})]
        if not tools:  # e.g. that links came back
            return Say(calls=(("yield_to_user", "{}"),))
    elif ask.results:
        return Say(text="It is done.")
    elif "there is an outage" in ask.heard:
        return Say(text="I am on it", takes_s=0.5)
    elif "no outage here" in ask.heard:
        return Say(calls=(("stay_silent", "{}"),), takes_s=0.5)
    elif "I like tea" in ask.heard:
        tools += [
            (
                "remember",
                {"text": "ann likes tea, and has done so since she was in Darjeeling in 2019"},
            )
        ]
    elif "remind me" in ask.heard:
        tools += [("remind", {"text": "stretch", "at": "in 2m"})]
    elif "stretch" in ask.heard:
        return Say(text="Time to stretch!")
    else:
        return Say(text="Hello.")
    return Say(calls=[(name, json.dumps(arguments)) for name, arguments in tools], takes_s=0.5)


def script(clock: JumpingClock) -> Script:
    return [
        (10, TELEGRAM, message(TELEGRAM, "ann", "I like tea", clock, id="m1")),
        (40, IRC, message(IRC, "bob", "nice weather", clock, room="#one", id="m2")),
        (45, IRC, message(IRC, "carl", "reverie, is it?", clock, room="#one", id="m3")),
        (70, TELEGRAM, message(TELEGRAM, "olga", "remind me to stretch", clock, id="m4")),
        (400, DISCORD, message(DISCORD, "dora", "there is an outage", clock, room="#two", id="m5")),
        (1_000, DISCORD, message(DISCORD, "dora", "no outage here", clock, room="#three", id="m6")),
    ]


@dataclass(frozen=True)
class Outcome:
    fates: dict[str, EventOutcome]
    shown: Counter[str]
    posts: Counter[str]
    uncertain: Counter[str]
    effects: Counter[str]
    alarms: int
    requests: int
    steps: int


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *lives: int) -> Outcome:
    """The whole story, in which each process but the last takes so many durable steps."""

    async def story(clock: JumpingClock) -> Outcome:
        steps = Steps([*lives])
        monkeypatch.setattr(app, "Store", cutting(steps))
        made = on_platforms(
            folder,
            # Of what others have it remember no dream is made.
            access={
                "dm": "open",
                "rates": UNHURRIED,
                "budgets": UNBOUNDED,
                "roles": {"owner": [f"{TELEGRAM}:{who}" for who in ("olga", "ann")]},
            },
            dmn={"resting": 60.0, "dream_tokens": 10},
            attention={
                "coalesce": 1.5,
                "rules": [{"type": "*.room.*", "keyword": "outage", "urgency": "normal"}],
            },
        )
        brain = PlayedModel(clock, answer)
        gateway = Gateway(made, brain, clock=clock)
        await live(gateway, clock, steps, script(clock), end_s=END_S)
        log = await gateway.entries()
        found = {one.seq: one.fact for one in log}
        facts = list(found.values())
        posts = {
            str(fact.post.key): fact.post.text for fact in facts if isinstance(fact, PostQueued)
        }
        became = {
            str(f.id): fate
            for seq, fate in compute_outcomes(log).items()
            if isinstance(f := found[seq], Message)
        }
        return Outcome(
            fates=became,
            shown=Counter(part.body for part in gateway.screen.parts),
            posts=Counter(posts.values()),
            uncertain=Counter(
                posts[str(fact.post)]
                for fact in facts
                if isinstance(fact, DeliveryReport) and fact.state == "uncertain"
            ),
            effects=Counter(
                f"{fact.kind} {getattr(fact, 'text', '')}{getattr(fact, 'reason', '')}"
                for fact in facts
                if isinstance(fact, NoteWritten | ReminderSet | RoomAttended | MemoryConsolidated)
            ),
            alarms=sum(isinstance(fact, Alarm) for fact in facts),
            requests=len(brain.asked),
            steps=steps.taken,
        )

    made = simulate(story)
    assert asyncio.run(rebuild(folder / "reverie.db")) == [], "every table matches the log"
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Without a cut."""
    with pytest.MonkeyPatch.context() as patch:
        return run(tmp_path_factory.mktemp("whole"), patch)


def test_the_story_has_one_of_everything(whole: Outcome) -> None:
    assert whole.fates == {
        "m1": EventOutcome.ANSWERED,
        "m2": EventOutcome.CONTEXT,
        "m3": EventOutcome.ANSWERED,
        "m4": EventOutcome.ANSWERED,
        "m5": EventOutcome.ANSWERED,
        "m6": EventOutcome.SILENT,
    }
    said = ["It is done.", "It is done.", "Hello.", "Time to stretch!", "I am on it"]
    assert whole.shown == whole.posts == Counter(said)
    assert (sorted(whole.effects.values()), whole.alarms, whole.uncertain) == (
        [1] * 6,
        3,
        Counter(),
    )


def the_same(cut: Outcome, whole: Outcome, cuts: int) -> None:
    """Nothing is lost, and nothing is done twice. Of what may have been seen it is said so, and it
    is not repeated."""
    assert cut.fates == whole.fates
    assert cut.effects == whole.effects
    assert cut.alarms == whole.alarms
    notices = Counter({text: count for text, count in cut.posts.items() if DOUBT in text})
    assert cut.posts - notices == whole.posts
    assert cut.shown <= cut.posts
    assert cut.posts - cut.shown <= cut.uncertain
    assert cut.uncertain.total() <= cuts
    assert notices.total() <= cut.uncertain.total(), (
        "one for each answer in doubt, and once more for one in doubt itself"
    )


def steps_of(*, every: int) -> list[object]:
    """Up to where the story ends; those in between are slow."""
    marks = [pytest.mark.system]
    return [
        pytest.param(step, marks=() if step % every == 0 else marks) for step in range(1, LAST + 1)
    ]


@pytest.mark.parametrize("step", steps_of(every=14))
def test_after_a_cut_all_is_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Outcome, step: int
) -> None:
    the_same(run(tmp_path, monkeypatch, step), whole, 1)


@pytest.mark.system
@pytest.mark.parametrize("seed", range(40))
def test_after_several_cuts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Outcome, seed: int
) -> None:
    rng = random.Random(seed)
    lives = [rng.randint(1, 25) for _ in range(rng.randint(2, 5))]
    the_same(run(tmp_path, monkeypatch, *lives), whole, len(lives))


def test_no_step_is_left_out(whole: Outcome) -> None:
    assert whole.steps <= LAST
