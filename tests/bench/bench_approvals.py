"""How often an admin is asked in an ordinary day, on a whole gateway: `python
tests/bench/bench_approvals.py [--json]`.

The day is a script: an owner alone, a member and a guest alone, a closed room of the staff, and a
square where anybody speaks, with what such people ask of an agent that has all its tools. The model
does what it is asked for. Each approval that is asked for is given once. All tools run, in the
sandbox if there is one; nothing leaves this machine.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.core.facts import ToolRefused, TurnRecord
from gateway.plugins.approvals import ApprovalRequested
from tests.attacks.hostile_kit import ADAM, GUS, MIA, NOTICE, OLGA, Person, Scene, Town, town

TIMES: Final = 3
"""Morning, noon and evening: the same is said again, with all that was said before in view."""
ALONE: Final = "an owner alone"
READING: Final = "an owner who has pages read"
ROOMS: Final = {
    ALONE: ("study", True),
    READING: ("library", True),
    "a member alone": ("kitchen", True),
    "a guest alone": ("street", True),
    "a closed room of the staff": ("staff", False),
    "a square with guests": ("square", False),
}
"""By what they are called in the table: the room, and whether it is a direct chat."""


class Say(NamedTuple):
    """Somebody speaks to the agent."""

    room: str
    who: Person
    text: str
    calls: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """Tools that the model uses for it. `PAGE` in an argument or the text: the address of a
    page."""


class Aside(NamedTuple):
    """Somebody speaks to others in the room."""

    room: str
    who: Person
    text: str


_, _, MEMBER, GUEST, STAFF, SQUARE = ROOMS
NOTE: Final = {"path": "plan.md", "text": "1. sow\n2. water\n"}
DAY: Final[tuple[Say | Aside, ...]] = (
    Say(ALONE, OLGA, "Good morning! What is on today?", (("recall", {"query": "today"}),)),
    Say(ALONE, OLGA, "Write the plan for the garden into plan.md.", (("write_file", NOTE),)),
    Say(ALONE, OLGA, "Which files do you have?", (("bash", {"command": "ls -l"}),)),
    Say(
        ALONE,
        OLGA,
        "Remind me to water the beans.",
        (("remind", {"text": "water the beans", "when": "in 3 hours"}),),
    ),
    Say(ALONE, OLGA, "Read the plan to me.", (("read_file", {"path": "plan.md"}),)),
    Say(ALONE, OLGA, "Count its lines.", (("bash", {"command": "wc -l plan.md"}),)),
    Say(
        ALONE,
        OLGA,
        "Remember that the beans are by the wall.",
        (("remember", {"text": "The beans are by the wall."}),),
    ),
    Say(
        ALONE,
        OLGA,
        "Tell the staff that I come at ten.",
        (("send_message", {"address": "STAFF", "text": "Olga comes at ten."}),),
    ),
    Say(ALONE, OLGA, "Thank you, that is all."),
    Say(READING, OLGA, "What does PAGE say?", (("web_fetch", {"url": "PAGE"}),)),
    Say(
        READING,
        OLGA,
        "Note that in water.md.",
        (("write_file", {"path": "water.md", "text": "In the evening."}),),
    ),
    Say(
        READING,
        OLGA,
        "Read PAGE, and write what it says into more.md.",
        (
            ("web_fetch", {"url": "PAGE"}),
            ("write_file", {"path": "more.md", "text": "In the evening."}),
        ),
    ),
    Say(READING, OLGA, "Which files are there now?", (("bash", {"command": "ls"}),)),
    Say(
        READING,
        OLGA,
        "Tell the staff.",
        (("send_message", {"address": "STAFF", "text": "Water in the evening."}),),
    ),
    Say(MEMBER, MIA, "Hello! How do I keep slugs away?"),
    Say(MEMBER, MIA, "Look at PAGE please.", (("web_fetch", {"url": "PAGE"}),)),
    Say(
        MEMBER,
        MIA,
        "Remember that I have Mondays off.",
        (("remember", {"text": "Mia has Mondays off."}),),
    ),
    Say(
        MEMBER,
        MIA,
        "And remind me of the compost.",
        (("remind", {"text": "the compost", "when": "in 4 hours"}),),
    ),
    Say(GUEST, GUS, "Hi, who are you?"),
    Say(GUEST, GUS, "When is the garden open?"),
    Say(
        GUEST,
        GUS,
        "Remind me of that please.",
        (("remind", {"text": "the garden", "when": "in 5 hours"}),),
    ),
    Aside(STAFF, MIA, "morning all, the hose leaks again"),
    Aside(STAFF, ADAM, "I will look at it"),
    Say(STAFF, ADAM, "Note that the hose leaks.", (("remember", {"text": "The hose leaks."}),)),
    Say(STAFF, MIA, "What did we say about the hose?", (("recall", {"query": "hose"}),)),
    Say(
        STAFF,
        OLGA,
        "Put that into hose.md.",
        (("write_file", {"path": "hose.md", "text": "It leaks."}),),
    ),
    Say(STAFF, ADAM, "Show me the newest files.", (("bash", {"command": "ls -t"}),)),
    Say(STAFF, MIA, "Who is here?", (("who", {}),)),
    Say(STAFF, ADAM, "What does PAGE say about hoses?", (("web_fetch", {"url": "PAGE"}),)),
    Say(STAFF, OLGA, "Good. Is there room on the disk?", (("bash", {"command": "df -h ."}),)),
    Aside(SQUARE, GUS, "is it going to rain?"),
    Aside(SQUARE, MIA, "I hope so"),
    Say(SQUARE, GUS, "what do you think?"),
    Say(SQUARE, OLGA, "What was said here while I was away?", (("read_room", {}),)),
    Say(SQUARE, MIA, "What does PAGE say?", (("web_fetch", {"url": "PAGE"}),)),
    Aside(SQUARE, GUS, "thanks!"),
    Say(
        SQUARE,
        OLGA,
        "Put the times of today into times.md.",
        (("write_file", {"path": "times.md", "text": "10 to 4"}),),
    ),
    Say(SQUARE, ADAM, "Run the count of visitors.", (("bash", {"command": "echo 12"}),)),
    Say(
        SQUARE, GUS, "Remind me at four.", (("remind", {"text": "go home", "when": "in 6 hours"}),)
    ),
    Say(SQUARE, OLGA, "Set the topic to the times.", (("set_topic", {"topic": "open 10 to 4"}),)),
    Say(SQUARE, GUS, "Bye!"),
)


class Figures(NamedTuple):
    """What one room took."""

    turns: int
    calls: int
    approvals: tuple[str, ...]
    """Tools."""
    refusals: tuple[str, ...]
    """Rules."""
    requests: int


async def play(it: Town, day: Sequence[Say | Aside]) -> dict[str, Figures]:
    scenes = {name: it.scene(room) for name, (room, _) in ROOMS.items()}
    approving = asyncio.create_task(_approve(it, scenes))
    it.puppet.obeys_results = False
    for one in day:
        scene, (_, direct) = scenes[one.room], ROOMS[one.room]
        if isinstance(one, Aside):
            await scene.speak(one.who, one.text, mention=False)
            continue
        page = scene.page("Water in the evening.")
        calls = [(name, _fill(given, page, scenes[STAFF].place)) for name, given in one.calls]
        text = one.text.replace("PAGE", page)
        it.puppet.orders.clear()  # who asks is new, and what was asked before is done
        before = len(await _turns(scene))
        await scene.speak(
            one.who, f"{text} {scene.order(*calls)}" if calls else text, direct=direct
        )
        while len(await _turns(scene)) == before:
            await asyncio.sleep(0.01)
    approving.cancel()
    await asyncio.gather(approving, return_exceptions=True)
    return {name: await _count(scene) for name, scene in scenes.items()}


def _fill(given: Mapping[str, object], page: str, staff: str) -> dict[str, object]:
    return {
        name: {"PAGE": page, "STAFF": staff}.get(str(value), value) for name, value in given.items()
    }


async def _approve(it: Town, scenes: Mapping[str, Scene]) -> None:
    """The owner approves each call that is asked about, once, where it is asked."""
    done = set[str]()
    while True:
        for scene in scenes.values():
            for part in [part for part in it.shown if part.to.room == scene.room]:
                found = NOTICE.search(part.body)
                if found is not None and found[1] not in done:
                    done.add(found[1])
                    await scene.speak(OLGA, f"!approve {found[1]}", mention=False)
        await asyncio.sleep(0.02)


async def _turns(scene: Scene) -> list[TurnRecord]:
    return [one for one in await scene.facts(TurnRecord, "turn_ended") if one.cause == "addressed"]


async def _count(scene: Scene) -> Figures:
    turns = await _turns(scene)
    calls = [
        call.name
        for one in turns
        for step in one.steps
        for call in step.calls
        if call.name != "yield_to_user"
    ]
    return Figures(
        len(turns),
        len(calls),
        tuple(one.tool for one in await scene.facts(ApprovalRequested, "approval_asked")),
        tuple(one.rule for one in await scene.facts(ToolRefused, "tool_refused")),
        sum(one.requests for one in turns),
    )


async def measure(times: int = TIMES, rooms: Sequence[str] = tuple(ROOMS)) -> dict[str, Figures]:
    """Return the figures of each room after the day."""
    day = [one for one in DAY * times if one.room in rooms]
    with (
        tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        async with town(Path(folder), patch, approvals={"timeout": 30}) as it:
            return await play(it, day)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--times",
        type=int,
        default=TIMES,
        help="how often the script is played, one after the other",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.times))
    if options.json:
        print(json.dumps({name: one._asdict() for name, one in found.items()}))
        return 0
    print(f"{'where':28} turns calls requests approvals refused")
    for name, one in found.items():
        asked, refused = len(one.approvals), len(one.refusals)
        print(f"{name:28} {one.turns:5} {one.calls:5} {one.requests:8} {asked:9} {refused:7}")
    turns = sum(one.turns for one in found.values())
    shares = {
        "approvals asked": sum(len(one.approvals) for one in found.values()),
        "requests": sum(one.requests for one in found.values()),
    }
    print(
        "per 100 turns: "
        + ", ".join(f"{100 * count / turns:.1f} {what}" for what, count in shares.items())
    )
    print(
        "asked about: "
        f"{dict(Counter(tool for one in found.values() for tool in one.approvals)) or 'nothing'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
