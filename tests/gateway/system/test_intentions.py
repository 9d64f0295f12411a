"""Intentions through the whole gateway: asked for by an owner, promised in an answer, and made by
the agent itself; each is done where it was made."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.events import Address, Alarm, ConversationId, SenderId, ThreadId
from gateway.core.facts import inner_conversation, is_inner
from gateway.core.identity import AccessPolicy
from gateway.plugins.reminders import (
    ReminderEnded,
    Reminders,
    ReminderSet,
    awaits,
    find_pending,
)
from gateway.store import Store
from reverie.testing.gateway import IRC, TELEGRAM, UNHURRIED, Gateway, message, on_platforms
from reverie.testing.played_model import REST, Ask, PlayedModel, Say
from reverie.testing.simulated_time import BEGIN, JumpingClock, simulated
from tests.kits.handle import handle_of
from tests.kits.internal import PlayedInternal
from tests.kits.plugins import subscribed_plugin

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
async def test_a_reminder_that_somebody_asked_for_rings_while_it_is_quiet(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    brain = PlayedModel(
        clock,
        by_words(
            ("pills\\?", call("remind", text="take them", at="in 2h")),
            ("Reminder .* is set for", Say(text="I will.")),
            ("hush", call("go_quiet", time="in 3h")),
            ("(?i)quiet until", Say(text="...")),
            ("reminder that olga asked for", Say(text="The pills!")),
        ),
    )
    async with Gateway(on_platforms(tmp_path), brain, clock=clock) as gateway:
        for text in ("my pills?", "hush"):
            await gateway.say(text, sender="olga", on=TELEGRAM)
            await clock.sleep(60)
        await clock.sleep(2 * 3600)
        assert gateway.sent("olga") == ["I will.", "...", "The pills!"]
        assert "do your work without a word" not in str(brain.asked[-1].request)


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
async def test_a_promise_ends_the_rest_of_an_agent(clock: JumpingClock, *, tmp_path: Path) -> None:
    rest = call("rest_until", time="in 8h")
    brain = PlayedModel(
        clock,
        by_words(
            ("do now what you intended", Say(text="The water boils.")),
            ("tell me", call("intend", what="say that the water boils", when="in 2h")),
            ("go to sleep", rest),
        ),
    )
    async with Gateway(on_platforms(tmp_path), brain, clock=clock) as gateway:
        await gateway.say("tell me when the water boils", sender="olga", on=TELEGRAM)
        await clock.sleep(60)
        await gateway.say("go to sleep", sender="olga", on=TELEGRAM)
        await clock.sleep(7_300)
        assert gateway.sent() == ["The water boils."]


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


@simulated
async def test_nothing_of_a_private_promise_stands_in_a_digest_or_another_room(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    rules = [{"type": "irc.libera.room", "keyword": "look", "urgency": "normal"}]
    secret = call("intend", what="ask about the surprise party", when="in 1h")
    brain = PlayedModel(clock, by_words(("party", secret), ("list", call("intentions"))))
    settings = on_platforms(tmp_path, attention={"rules": rules})
    async with Gateway(settings, brain, clock=clock) as gateway:
        await gateway.say("remember the party", sender="olga", on=TELEGRAM)
        await clock.sleep(60)
        told = len(brain.asked)
        await gateway.say("look here", sender="bob", room="#one")
        await gateway.say("reverie: list", sender="bob", room="#two")
        await clock.sleep(400)
        others = brain.asked[told:]
        assert {is_inner(ask.place) for ask in others} == {True, False}
        assert "surprise" not in repr([(ask.heard, ask.results, ask.request) for ask in others])
        await gateway.say("!intentions", sender="bob", room="#two")
        await gateway.say("!intentions", sender="olga", on=TELEGRAM)
        await clock.sleep(5)
        assert gateway.sent("#two")[-1] == ("There is nothing that I intend here, and no reminder.")
        assert "surprise party" in gateway.sent("olga")[-1]


@simulated
async def test_a_room_is_watched_as_long_as_everybody_in_the_place_may_read_it(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    brain = PlayedModel(
        clock,
        by_words(
            ("watch \\S*#one", lambda ask: call("intend", what="tell", on=ask.heard.split()[-1])),
            ("is set|You hear no room", lambda ask: Say(text=ask.results[0])),
            ("do now what you intended", Say(text="There is news.")),
        ),
    )
    closed = [{"match": {"channel": "irc.libera", "room": "#one"}, "private": True}]
    opened = [{"match": {"channel": "*"}, "private": False}]
    begin = on_platforms(tmp_path, bindings=[*closed, *opened])
    async with Gateway(begin, brain, clock=clock) as gateway:
        await gateway.say("hello", sender="bob", room="#one")
        await gateway.say("reverie: watch #one", sender="bob", room="#two")
        await gateway.say("watch irc.libera/#one", sender="olga", on=TELEGRAM)
        await clock.sleep(60)
        [refused] = gateway.sent("#two")
        assert refused == "You hear no room of that name that everybody here may read."
        assert gateway.sent("olga")[0].startswith("Intention ")
        await gateway.say("anything", sender="bob", room="#one")
        await clock.sleep(60)
        assert gateway.sent("olga")[1:] == ["There is news."]
    no_owner = on_platforms(
        tmp_path, bindings=[*closed, *opened], access={"dm": "open", "rates": UNHURRIED}
    )
    async with Gateway(no_owner, brain, clock=clock) as gateway:
        await gateway.say("anything more", sender="bob", room="#one")
        await clock.sleep(600)
        assert gateway.sent() == []


@pytest.mark.parametrize(
    ("on", "word", "is_meant"),
    [
        ("irc.libera/#one", "", True),
        ("irc.libera/#one", "FAIL", True),
        ("irc.libera/#one", "Bob", True),
        ("irc.libera/#one", "passed", False),
        ("irc.libera/#on", "", False),
        ("irc.libera/#one/thread", "", False),
        ("irc.other/#one", "", False),
        ("", "", False),
    ],
)
def test_which_line_an_intention_waits_for(on: str, word: str, *, is_meant: bool) -> None:
    fact = ReminderSet(
        reminder="7H2K4Q",
        agent="reverie",
        at=None,
        text="look",
        by=SenderId(""),
        asked_by="",
        schedule="",
        due=BEGIN,
        intended=True,
        on=on,
        word=word,
    )
    line = message(IRC, "bob", "Build failed", JumpingClock(BEGIN), room="#one", id="1")
    in_thread = replace(line, at=replace(line.at, thread=ThreadId("7")))
    assert awaits(fact, line) == awaits(fact, in_thread) == is_meant


@simulated
async def test_one_without_a_time_is_open_for_thirty_days(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    brain = PlayedModel(clock, by_words(("tidy", call("intend", what="tidy the files"))))
    async with Gateway(on_platforms(tmp_path), brain, clock=clock) as gateway:
        await gateway.say("tidy the files some day", sender="ann", on=TELEGRAM)
        await clock.sleep(60)
        [said] = [ask.results[0] for ask in brain.asked if ask.results]
        assert re.search(r": open until Wed 2026-04-01 06:00 \(UTC\)\. Finish it", said)
    async with await Store.open(gateway.path, clock) as store:
        reminders = subscribed_plugin(
            Reminders,
            gateway=handle_of(
                store, clock, people=AccessPolicy(dm_policy="open", roles={}, open_rooms={})
            ),
            internal=PlayedInternal(nothing_fires),
        )
        place = Address.parse(ConversationId("telegram.main/ann")).conversation
        [plan] = await reminders.plans("reverie", place)
        assert plan.is_open
        assert not await reminders.plans("eve", place)
        assert not await reminders.plans("reverie", inner_conversation("reverie"))
        running = asyncio.create_task(reminders.run())
        await clock.sleep(31 * 86_400)
        [ended] = [one.fact for one in await store.entries(kinds=["reminder_ended"])]
        assert isinstance(ended, ReminderEnded)
        assert (ended.outcome, await find_pending(store)) == ("expired", [])
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def nothing_fires(_: Alarm) -> None:
    raise AssertionError("it has no time")


@simulated
async def test_work_without_a_time_goes_on_by_itself_until_it_is_finished(
    clock: JumpingClock, *, tmp_path: Path
) -> None:
    notes = list[str]()

    def write(ask: Ask) -> Say:
        if ask.results:
            return Say(text="one more") if len(notes) < 3 else Say(text="all three are written")
        notes.append(f"note {len(notes)}")
        kept = ("journal", json.dumps({"title": notes[-1], "text": "as asked"}))
        name = re.search(r"Intention (\w{6})", "\n".join(said))
        done = json.dumps({"action": "finish", "id": name[1] if name else ""})
        return Say(calls=(kept, ("intentions", done)) if len(notes) == 3 else (kept,))

    said = list[str]()

    def answer(ask: Ask) -> Say:
        said.extend(ask.results)
        if "write three notes" in ask.heard:
            return call("intend", what="write three notes")
        return Say(text="I begin") if "is set: open" in "".join(ask.results) else write(ask)

    brain = PlayedModel(clock, answer)
    async with Gateway(on_platforms(tmp_path), brain, clock=clock) as gateway:
        await gateway.say("write three notes", sender="olga", on=TELEGRAM)
        await clock.sleep(60)
        assert len(notes) == 3
        assert gateway.sent() == ["I begin", "one more", "one more", "all three are written"]
        asked = len(brain.asked)
        await clock.sleep(7_200)
        assert len(brain.asked) == asked
