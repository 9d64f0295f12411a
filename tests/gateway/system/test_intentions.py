"""Intentions through the whole gateway: asked for by an owner, promised in an answer, and made by
the agent itself; each is done where it was made."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from gateway.core.events import Alarm
from gateway.core.facts import ReminderEnded, ReminderSet, is_inner
from tests.kits.gateway import TELEGRAM, Gateway, on_platforms
from tests.kits.played_model import REST, Ask, PlayedModel, Say
from tests.kits.simulated_time import JumpingClock, simulated

WATCHES = '{"what": "tell me if the build breaks", "on": "irc.libera/#one: failed"}'
SILENT = Say(calls=(("stay_silent", "{}"),))


def call(name: str, **arguments: str) -> Say:
    return Say(calls=((name, json.dumps(arguments)),))


def by_words(*rules: tuple[str, Say | Callable[[Ask], Say]]) -> Callable[[Ask], Say]:
    """Answers by the first words that stand in what is new, or in what a tool said."""

    def answer(ask: Ask) -> Say:
        words = "\n".join([ask.heard, *ask.results])
        for pattern, say in rules:
            if re.search(pattern, words):
                return say if isinstance(say, Say) else say(ask)
        return REST if is_inner(ask.place) else SILENT

    return answer


WATCHING = (
    ("keep an eye", Say(calls=(("intend", WATCHES),))),
    ("is set: on irc", Say(text="I keep an eye on it.")),
    (r"do now what you intended as \w{6}, asked for by olga", Say(text="The build broke.")),
)


async def id_of(gateway: Gateway) -> str:
    [one] = await gateway.facts("reminded")
    assert isinstance(one, ReminderSet)
    return one.reminder


@simulated
async def test_an_owner_has_a_room_watched_and_is_told_in_their_chat(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    names = list[str]()
    drop = ("drop it", lambda _: call("intentions", action="finish", id=names[0]))
    brain = PlayedModel(clock, by_words(*WATCHING, drop))
    async with Gateway(on_platforms(tmp_path), brain, clock=clock) as gateway:
        await gateway.say("keep an eye on #one", sender="olga", on=TELEGRAM)
        await clock.sleep(60)
        name = await id_of(gateway)
        names.append(name)
        [told] = [ask.results[0] for ask in brain.asked if ask.results]
        assert told.startswith(
            f"Intention {name} is set: on irc.libera/#one with 'failed' until Wed"
        )
        await gateway.say("all is well", sender="bob", room="#one")
        await gateway.say("build failed", sender="bob", room="#two")
        await clock.sleep(60)
        assert gateway.sent() == ["I keep an eye on it."]
        await gateway.say("build FAILED again", sender="bob", room="#one")
        await clock.sleep(60)
        assert gateway.sent("olga") == ["I keep an eye on it.", "The build broke."]
        assert brain.asked[-1].heard.endswith(
            f'(do now what you intended as {name}, asked for by olga: "tell me if the build '
            'breaks"; bob wrote in "irc.libera/#one": "build FAILED again")'
        )
        # Within five minutes it is one.
        await gateway.say("failed", sender="bob", room="#one")
        await clock.sleep(60)
        assert len(gateway.sent()) == 2
        await clock.sleep(240)
        await gateway.say("failed", sender="bob", room="#one")
        await clock.sleep(60)
        assert gateway.sent() == ["I keep an eye on it.", *["The build broke."] * 2]
        await gateway.say("drop it", sender="olga", on=TELEGRAM)
        await clock.sleep(400)
        await gateway.say("failed", sender="bob", room="#one")
        await clock.sleep(60)
        assert len(gateway.sent()) == 3
        [ended] = await gateway.facts("reminder_ended")
        assert isinstance(ended, ReminderEnded)
        assert (ended.reminder, ended.outcome) == (name, "done")


@simulated
async def test_a_promise_is_kept_where_it_was_made_also_after_a_kill(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    promise = call("intend", what="look whether the tickets are out", when="in 2h")
    brain = PlayedModel(
        clock,
        by_words(
            ("tickets\\?", promise),
            ("Intention .* is set for", Say(text="I look at ten.")),
            ("do now what you intended", Say(text="The tickets are out.")),
        ),
    )
    async with Gateway(on_platforms(tmp_path), brain, clock=clock) as gateway:
        await gateway.say("reverie, are there tickets?", sender="ann", room="#two")
        await clock.sleep(60)
        assert gateway.sent("#two") == ["I look at ten."]
        await gateway.kill()
        gateway.start()
        await clock.sleep(7_200)
        assert gateway.sent() == ["I look at ten.", "The tickets are out."]
        await gateway.kill()
        gateway.start()
        await clock.sleep(7_200)
        assert len(gateway.sent()) == 2
        [alarm] = await gateway.facts("alarm")
        assert isinstance(alarm, Alarm)
        assert (alarm.intended, alarm.asked_by, alarm.at is not None) == (True, "ann", True)


@simulated
async def test_what_it_means_to_do_by_itself_stands_in_its_digest(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    rules = [{"type": "irc.libera.room", "keyword": "release", "urgency": "normal"}]
    mind = call("intend", what="see whether the release goes well", on="irc.libera/#one")
    brain = PlayedModel(clock, by_words(("You intend:|is set", REST), ("the release", mind)))
    settings = on_platforms(tmp_path, attention={"rules": rules})
    async with Gateway(settings, brain, clock=clock) as gateway:
        await gateway.say("the release begins", sender="bob", room="#one")
        await clock.sleep(400)
        name = await id_of(gateway)
        asked = len(brain.asked)
        await clock.sleep(3_600)
        assert len(brain.asked) == asked  # nothing new, no request
        await gateway.say("hm, odd", sender="bob", room="#one")
        await clock.sleep(400)
        [last] = brain.asked[asked:]
        assert is_inner(last.place)
        assert "hm, odd" in last.heard
        assert f"## You\nYou intend:\n- {name}, on irc.libera/#one until " in last.heard
        line = next(
            one for one in await gateway.entries() if getattr(one.fact, "text", "") == "hm, odd"
        )
        judged = [one.fact for one in await gateway.entries("judged") if one.cause == line.seq]
        assert [getattr(one, "rule", "") for one in judged] == [f"intention {name}"]
