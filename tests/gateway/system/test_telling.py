"""An owner is told, unasked, in their own chat: at once, together with what can wait, never twice;
and what they answer reaches the place that it came from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.core.clock import ManualClock
from gateway.core.events import Address, RoomId
from gateway.core.facts import (
    DmnStateSaved,
    Judgement,
    OwnerTold,
    PartSendEnded,
    Seq,
    TurnId,
    TurnRecord,
    is_inner,
)
from gateway.core.labels import TRUSTED_LABEL
from gateway.plugins.messaging import is_relayed
from gateway.plugins.telling import Told, find_same
from gateway.plugins.trace import explain_event
from gateway.store import NewEntry, Store
from reverie.testing.gateway import TELEGRAM, Gateway, on_platforms
from reverie.testing.played_model import REST, Ask, PlayedModel, Say
from reverie.testing.simulated_time import BEGIN, JumpingClock, simulated

NOTICED = [{"type": "*", "urgency": "normal", "keyword": "failed"}]
"""What is worth a look."""
NAMED = '"#{0}" (irc.libera/#{0})'
"""A room, as a digest names it."""
OLGA_CHAT = f"{TELEGRAM}/olga"


def tell(text: str, **more: str) -> tuple[str, str]:
    return ("tell", json.dumps({"text": text, **more}))


TWO: Final = [
    {"id": "reverie", "bindings": [{"match": {"channel": TELEGRAM}, "private": False}]},
    {"id": "ana", "bindings": [{"match": {"channel": "*"}, "private": False}]},
]
"""The owner's chat is with the first agent, the rooms on IRC belong to the other."""


class Mind:
    """Does what is written down for the words that it hears; else it greets, and rests by
    itself."""

    def __init__(self, *rules: tuple[str, Say]) -> None:
        self.rules = list(rules)
        self.results = list[str]()
        """Of the tools that it called."""

    def __call__(self, ask: Ask) -> Say:
        self.results += ask.results
        for words, say in () if ask.results else self.rules:
            if words in ask.heard:
                return say
        return REST if is_inner(ask.place) else Say(text="Yes.")


def gateway(tmp: Path, clock: ManualClock, mind: Callable[[Ask], Say], **more: Any) -> Gateway:
    made = on_platforms(tmp, attention={"rules": NOTICED, **more.pop("attention", {})}, **more)
    return Gateway(made, PlayedModel(clock, mind), clock=clock)


async def greets(it: Gateway, who: str = "olga") -> None:
    await it.say("hello", sender=who, on=TELEGRAM)
    await it.clock.sleep(10)


WITH_ADMIN = {
    "dm": "open",
    "roles": {"owner": [f"{TELEGRAM}:olga"], "admin": ["irc.libera:adam"]},
}


async def has_told(it: Gateway, text: str, *, who: str = "ann", room: str | None = "#two") -> None:
    await it.say(f"reverie: {text}", sender=who, room=room, on="irc.libera")
    await it.clock.sleep(20)


def asked_to(*texts: str, **more: str) -> tuple[tuple[str, Say], ...]:
    return tuple((text, Say(calls=(tell(text, **more),))) for text in texts)


def told(it: Gateway, room: str = "olga") -> list[str]:
    """What the owner was told, without the answers."""
    return [text for text in it.sent(room) if text != "Yes."]


async def told_facts(it: Gateway, state: str = "posted") -> list[OwnerTold]:
    found = [one for one in await it.facts("told") if isinstance(one, OwnerTold)]
    return [one for one in found if one.state == state]


@simulated
async def test_what_it_notices_by_itself_it_tells_at_once_with_room_and_person(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(("deploy of 15:00 failed", Say(calls=(tell("The deploy of 15:00 failed."),))))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        await it.say("the deploy of 15:00 failed", sender="bob", room="#one", on="irc.libera")
        await clock.sleep(600)
        assert told(it) == [
            "From `#one`, after words of `bob` (guest):\n> The deploy of 15:00 failed."
        ]
        (fact,) = await told_facts(it)
        assert (fact.who, fact.about, fact.people) == ("olga", fact.about, ("irc.libera:bob",))
        record = (await it.turns())[-2:]
        assert OLGA_CHAT in {one.conversation for one in await it.entries("turn_ended")}
        assert all(one.label.integrity == "guest" for one in record)
        (said,) = [one for one in await it.entries("room") if "deploy" in str(one.fact)]
        async with await Store.open_readonly(it.path) as reader:
            lines = await explain_event(reader, said.seq)
        assert f"that turn had an owner told (entry {(await it.entries('told'))[0].seq})" in (
            lines or ()
        )


@simulated
async def test_people_of_one_host_are_named_each_and_counted_as_one(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(("deploy failed", Say(calls=(tell("The deploy failed."),))))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        ewa, tom = (f"mask:{nick}!web@gateway.example" for nick in ("ewa", "tom"))
        await it.say("the deploy failed", sender=ewa, room="#one", on="irc.libera")
        await it.say("ouch", sender=tom, room="#one", on="irc.libera")
        await clock.sleep(600)
        assert told(it) == [
            f"From `#one`, after words of `{ewa}` (guest), `{tom}` (guest):\n> The deploy failed."
        ]
        (fact,) = await told_facts(it)
        assert fact.people == ("irc.libera:mask:*!*@gateway.example",)


ANN, BOB = (f"From `#two`, after words of `{who}` (guest)" for who in ("ann", "bob"))


@simulated
async def test_what_can_wait_is_told_together_when_the_owner_writes(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(*asked_to("lunch is at noon", "the printer is back", urgency="digest"))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        await has_told(it, "lunch is at noon")
        await has_told(it, "the printer is back", who="bob")
        await clock.sleep(3600)
        assert (told(it), set(mind.results)) == ([], {"olga is told with what else can wait."})
        await it.say("what is new?", sender="olga", on=TELEGRAM)
        await clock.sleep(20)
        assert it.sent("olga")[1:] == [
            f"{ANN}, 06:00:\n> lunch is at noon\n\n{BOB}, 06:00:\n> the printer is back",
            "Yes.",
        ]
        assert "lunch is at noon" in str(it.model.asked[-1].request.conversation)  # type: ignore[union-attr]


@simulated
async def test_what_waits_is_told_after_four_hours_and_survives_a_kill(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(*asked_to("lunch is at noon", urgency="digest"))
    it = gateway(tmp_path, clock, mind)
    it.start()
    await greets(it)
    await has_told(it, "lunch is at noon")
    await it.kill()
    async with it:
        await clock.sleep(3 * 3600)
        assert told(it) == []
        await it.kill()
        it.start()
        await clock.sleep(2 * 3600)
        assert told(it) == [f"{ANN}, 06:00:\n> lunch is at noon"]
        await it.kill()
        it.start()
        await clock.sleep(24 * 3600)
        assert len(told(it)) == 1


@pytest.mark.parametrize("cut_off", [False, True])
@simulated
async def test_it_is_told_behind_a_turn_of_that_chat_and_once_after_a_kill_in_it(
    tmp_path: Path, clock: JumpingClock, *, cut_off: bool
) -> None:
    mind = Mind(*asked_to("the disk is full"), ("think", Say(text="Done.", takes_s=100.0)))
    it = gateway(tmp_path, clock, mind)
    it.start()
    await greets(it)
    await it.say("think", sender="olga", on=TELEGRAM)
    await clock.sleep(5)
    await has_told(it, "the disk is full")
    assert len(await told_facts(it, "held")) == 1
    assert f"{ANN}:\n> the disk is full" not in told(it)
    if cut_off:
        await it.kill()
        it.start()
    await clock.sleep(300)
    assert (told(it)[-1], told(it).count(f"{ANN}:\n> the disk is full")) == (
        "Done." if cut_off else f"{ANN}:\n> the disk is full",
        1,
    )
    assert len(await told_facts(it)) == 1
    await it.end()


@simulated
async def test_the_seventh_of_a_day_is_told_with_what_can_wait(
    tmp_path: Path, clock: JumpingClock
) -> None:
    texts = [f"job {number} has stopped" for number in range(1, 9)]
    mind = Mind(*asked_to(*texts))
    async with gateway(tmp_path, clock, mind, access=WITH_ADMIN) as it:
        await greets(it)
        for text in texts:
            await has_told(it, text, who="adam")
        assert len(told(it)) == 6
        assert mind.results[-1] == "olga is told with what else can wait."
        await clock.sleep(4 * 3600)
        assert len(told(it)) == 7
        assert all(text in told(it)[-1] for text in texts[-2:])
        await clock.sleep(24 * 3600)
        await greets(it)  # or nobody knows that she is there
        mind.rules = [*asked_to("a new day")]
        await has_told(it, "a new day")
        assert mind.results[-1] == "olga is told now."


@simulated
async def test_many_strangers_cannot_have_an_owner_told_without_end(
    tmp_path: Path, clock: JumpingClock
) -> None:
    texts = [f"stranger {number} wants something" for number in range(30)]
    mind = Mind(
        *((f"{text}!", Say(calls=(tell(text),))) for text in texts), *asked_to("the disk is full")
    )
    async with gateway(tmp_path, clock, mind, access=WITH_ADMIN) as it:
        await greets(it)
        for number, text in enumerate(texts):
            await has_told(it, f"{text}!", who=f"mallory{number}")
        assert len(told(it)) == 3
        assert mind.results[-17:] == ["Too many things wait to be told already."] * 17
        await has_told(it, "the disk is full", who="adam")
        assert told(it)[-1].endswith("> the disk is full")
        await clock.sleep(86400)
        assert len(told(it)) == 5
        assert told(it)[-1].count("\n> ") == 10


@simulated
async def test_nothing_is_told_while_people_sleep_or_it_is_quiet(
    tmp_path: Path, clock: JumpingClock
) -> None:
    presence = {"sleep": "22:00-06:00", "timezone": "UTC"}
    mind = Mind(*asked_to("the disk is full", "the disk is well again"))
    async with gateway(tmp_path, clock, mind, attention={"presence": presence}) as it:
        await greets(it)
        await clock.sleep(17 * 3600)
        await has_told(it, "the disk is full")
        assert mind.results == ["olga is not to be disturbed now, and is told later."]
        await clock.sleep(6 * 3600)
        assert told(it) == []
        await clock.sleep(3600)
        assert told(it) == [f"{ANN}, 2026-03-02 23:00:\n> the disk is full"]
        await it.say("!dmn quiet 2h", sender="olga", on=TELEGRAM)
        await clock.sleep(10)
        await has_told(it, "the disk is well again")
        await it.say("hello", sender="olga", on=TELEGRAM)
        await clock.sleep(3600)
        assert not any("well again" in text for text in told(it))
        await clock.sleep(2 * 3600)
        assert told(it)[-1].endswith("> the disk is well again")


@simulated
async def test_nothing_is_told_twice(tmp_path: Path, clock: JumpingClock) -> None:
    mind = Mind(("look", Say(calls=(tell("The disk is full!"), tell("the disk IS full")))))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        for _ in range(2):
            await has_told(it, "look")
        assert told(it) == [f"{ANN}:\n> The disk is full!"]
        assert mind.results[1].startswith("You told that at 06:00.")
        for days, more in ((6, 0), (2, 1)):
            await it.end()
            clock.advance(days * 86400)  # while no process runs, which costs no time
            it.start()
            await greets(it)
            await has_told(it, "look")
            assert len(told(it)) == 1 + more


@simulated
async def test_a_person_can_have_two_things_told_a_day_and_an_admin_more(
    tmp_path: Path, clock: JumpingClock
) -> None:
    texts = ["one has stopped", "two have stopped", "three have stopped"]
    mind = Mind(*asked_to(*texts))
    async with gateway(tmp_path, clock, mind, access=WITH_ADMIN) as it:
        await greets(it)
        for text in texts:
            await has_told(it, text)
        assert (len(told(it)), "is the limit" in mind.results[-1]) == (2, True)
        for room in ("#one", "#three", None):  # everywhere
            await has_told(it, texts[2], room=room)
        assert len(told(it)) == 2
        mind.rules = [*asked_to("four", "five", "six")]
        for text in ("four", "five", "six"):
            await has_told(it, text, who="adam", room=None)
        assert told(it)[2:] == [
            f"From `adam` (admin), in private:\n> {text}" for text in ("four", "five", "six")
        ]


@simulated
async def test_only_owners_who_have_a_chat_are_told_each_by_name(
    tmp_path: Path, clock: JumpingClock
) -> None:
    owners = [f"{TELEGRAM}:olga", f"{TELEGRAM}:omar", f"{TELEGRAM}:otto"]
    access = {"dm": "open", "roles": {"owner": owners}}
    mind = Mind(*asked_to("one", who="Omar"), *asked_to("two", who="otto"))
    async with gateway(tmp_path, clock, mind, access=access) as it:
        await has_told(it, "one")
        assert mind.results[-1].startswith("No owner has a chat with you")
        await greets(it, "omar")
        await greets(it)
        await has_told(it, "two")
        assert mind.results[-1] == "No owner is called so. You may tell: olga, omar."
        await has_told(it, "one")
        assert (told(it), told(it, "omar")) == ([], [f"{ANN}:\n> one"])
        mind.rules = [*asked_to("three")]
        await it.say("three", sender="olga", on=TELEGRAM)
        await clock.sleep(10)
        assert mind.results[-1] == "You are in that chat now: your answer is posted there."


@simulated
async def test_an_owner_is_told_in_the_chat_with_another_agent_once_over_a_restart(
    tmp_path: Path, clock: JumpingClock
) -> None:
    """Whoever is an owner of that agent alone is not told."""
    mind = Mind(*asked_to("one"), *asked_to("two", who="omar"))
    role = {"who": f"{TELEGRAM}:omar", "role": "owner", "agent": "reverie"}
    access = {"dm": "open", "roles": {"owner": [f"{TELEGRAM}:olga"]}, "grants": [role]}
    async with gateway(tmp_path, clock, mind, agents=TWO, access=access) as it:
        await greets(it)
        await greets(it, "omar")
        await has_told(it, "one")
        await has_told(it, "two")
        assert (told(it), told(it, "omar")) == ([f"{ANN}:\n> one"], [])
        turns = [one for one in await it.facts("turn_ended") if isinstance(one, TurnRecord)]
        assert {one.agent for one in turns if one.text.endswith("> one")} == {"reverie"}
    async with gateway(tmp_path, clock, mind, agents=TWO, access=access) as it:
        await clock.sleep(5 * 3600)
        assert told(it) == []


@simulated
async def test_by_itself_it_says_of_which_room_it_tells_where_it_was_shown_several(
    tmp_path: Path, clock: JumpingClock
) -> None:
    vague, named = tell("It failed."), tell("It failed.", about="#two")
    wrong = tell("It failed.", about="#three")
    clear = tell("That failed in the night, for the third time.", who="owner")
    mind = Mind((NAMED.format("one"), Say(calls=(vague, wrong, named, clear))))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        await it.say("this failed", sender="ann", room="#one", on="irc.libera")
        await it.say("that failed in the night", sender="bob", room="#two", on="irc.libera")
        await clock.sleep(600)
        rooms = f"{NAMED.format('one')}, {NAMED.format('two')}"
        asked = f"Name in `about` the room that it is about: {rooms}."
        assert mind.results[:2] == [asked, asked]
        head = "From `#two`, after words of `bob` (guest) and others:\n> "
        both = ["It failed.", "That failed in the night, for the third time."]
        assert "\n\n".join(told(it)) == "\n\n".join(head + text for text in both)


@simulated
async def test_of_a_private_chat_the_person_is_named_and_the_answer_reaches_them(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(*asked_to("i am ill"))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        await has_told(it, "i am ill", room=None)
        assert told(it) == ["From `ann` (guest), in private:\n> i am ill"]
        answer = ("send_message", json.dumps({"address": "ann", "text": "Olga says get well soon"}))
        mind.rules = [("get well", Say(calls=(answer, ("yield_to_user", "{}"))))]
        await it.say("tell her: get well soon!", sender="olga", on=TELEGRAM)
        await clock.sleep(20)
        assert it.sent("ann")[-1] == "Olga says get well soon"
        assert not await it.facts("approval_asked")


def answers(text: str, room: str = "#two") -> Say:
    call = ("send_message", json.dumps({"address": room, "text": text}))
    return Say(calls=(call, ("yield_to_user", "{}")))


@simulated
async def test_a_line_that_names_an_owner_who_is_not_there_is_looked_at_and_told(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(("should know", Say(calls=(tell("The deploy failed."),))))
    model = PlayedModel(clock, mind)
    async with Gateway(on_platforms(tmp_path), model, clock=clock) as it:
        await greets(it)
        for words, room in (("a solga, and what she saw", "#one"), ("the folga", "#two")):
            await it.say(words, sender="bob", room=room, on="irc.libera")
        await clock.sleep(600)
        assert len(model.asked) == 1  # words that hold her name are not her name
        await it.say(
            "Olga, should know: the deploy failed", sender="bob", room="#one", on="discord.main"
        )
        await clock.sleep(600)
        assert len(told(it)) == 1
        judged = [one for one in await it.facts("judged") if isinstance(one, Judgement)]
        assert judged[-1].rule == "it names an owner"
    async with Gateway(on_platforms(tmp_path), model, clock=clock) as it:
        await it.say("I am here", sender="olga", room="#two", on=TELEGRAM)
        await it.say("Olga should know of the disk", sender="bob", room="#two", on=TELEGRAM)
        asked = len(model.asked)
        await clock.sleep(600)
        assert len(model.asked) == asked  # she reads it herself
        await clock.sleep(1_800)
        await it.say("Olga should know of the disk", sender="bob", room="#two", on=TELEGRAM)
        await clock.sleep(600)
        assert len(model.asked) > asked


@pytest.mark.parametrize(
    ("how", "agents"),
    [
        ("right behind it", TWO[1:]),
        ("by a reply", TWO[1:]),
        ("right behind it", TWO),
        ("by a reply", TWO),
    ],
)
@simulated
async def test_what_an_owner_answers_reaches_the_room_without_a_tap(
    tmp_path: Path, clock: JumpingClock, how: str, agents: object
) -> None:
    mind = Mind(*asked_to("the disk is full"))
    async with gateway(tmp_path, clock, mind, agents=agents) as it:
        await greets(it)
        await has_told(it, "the disk is full")
        reply_to = None
        if how == "by a reply":
            await it.say("what is the time?", sender="olga", on=TELEGRAM)
            await clock.sleep(20)
            (key,) = {one.post for one in await told_facts(it)}
            sent = [one for one in await it.facts("part") if isinstance(one, PartSendEnded)]
            (reply_to,) = [one.ids[0] for one in sent if one.post == key]
        mind.rules = [("Ben looks", answers("Olga says: Ben looks at the disk at 6"))]
        await it.say(
            "tell them Ben looks at it at 6", sender="olga", on=TELEGRAM, reply_to=reply_to
        )
        await clock.sleep(20)
        assert "From `#two`" in it.model.asked[-1].heard or how != "by a reply"  # type: ignore[union-attr]
        assert it.sent("#two")[-1] == "Olga says: Ben looks at the disk at 6"
        assert not await it.facts("approval_asked")


@pytest.mark.parametrize(
    ("text", "room", "behind"),
    [
        ("Ben looks at it, the code is 4711", "#two", True),  # of her chat
        ("Ben looks at it", "irc.libera/#three", True),  # another room
        ("Ben looks at it", "irc.libera/#two", False),  # it answers something else
    ],
)
@simulated
async def test_what_says_more_or_goes_elsewhere_is_asked_about(
    tmp_path: Path, clock: JumpingClock, text: str, room: str, *, behind: bool
) -> None:
    mind = Mind(*asked_to("the disk is full"))
    async with gateway(tmp_path, clock, mind) as it:
        await it.say("the code is 4711", sender="olga", on=TELEGRAM)
        await clock.sleep(20)
        await has_told(it, "the disk is full")
        if not behind:
            await greets(it)
        mind.rules = [("Ben looks", answers(text, room))]
        await it.say("tell them Ben looks at it", sender="olga", on=TELEGRAM)
        await clock.sleep(20)
        assert len(await it.facts("approval_asked")) == 1
        assert text not in it.sent(room)


@simulated
async def test_what_an_owner_says_and_where_is_posted_unasked_whatever_they_were_told(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(*asked_to("the disk is full"))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        await has_told(it, "the disk is full")
        await greets(it)
        mind.rules = [("we deploy", answers("We deploy at 5!", "irc.libera/#three"))]
        await it.say("write in #three that we deploy at 5", sender="olga", on=TELEGRAM)
        await clock.sleep(20)
        assert it.sent("#three") == ["We deploy at 5!"]
        assert not await it.facts("approval_asked")


@pytest.mark.parametrize(
    ("before", "after", "same_place", "is_same"),
    [
        ("The disk is full.", "the DISK is full", False, True),
        ("disk full is the", "the disk is full", False, True),
        ("the disk is full", "the disk of ci is nearly full", False, False),
        ("the deploy of 15:00 failed", "the deploy of 16:00 failed", True, False),
        ("the deploy of 15:00 failed", "the deploy of 15:00 has failed", True, True),
        ("the deploy failed", "nora: the deploy failed", True, True),
        ("the deploy failed", "nora: the deploy failed", False, False),
        ("nora: the deploy failed", "nora: the backup failed", True, False),
        ("Ann waits for an answer", "Bob has built a new shelf", True, False),
        ("!!!", "???", True, False),
        ("!!!", "!!!", True, True),
        ("磁盘已满", "磁盘已满。", False, True),
    ],
)
def test_the_same_is_told_in_nearly_the_same_words(
    before: str, after: str, *, same_place: bool, is_same: bool
) -> None:
    chat, here, there = (Address(channel=TELEGRAM, room=RoomId(one)) for one in ("o", "a", "b"))
    fact = OwnerTold(
        tell="x",
        agent="reverie",
        to=chat,
        who="olga",
        text=before,
        about=here,
        people=(),
        names=(),
        others=False,
        urgency="now",
        turn=TurnId("t"),
        label=TRUSTED_LABEL,
        state="posted",
    )
    told = [Told(Seq(1), BEGIN, fact)]
    assert (find_same(after, here if same_place else there, told, to=chat) is not None) is is_same
    assert find_same(after, here, told, to=here) is None  # another owner


BEN: Final = "tell them Ben looks at it"


@pytest.mark.parametrize(
    ("text", "said", "is_relayed_"),
    [
        ("Ben looks at it", BEN, True),
        ("Olga says: Ben looks at the deploy", BEN, True),
        ("Olga sagt: \u201eBen looks at it\u201c", BEN, True),
        ("**Olga** \u2014 Ben looks at it\u2026", BEN, True),
        ("The deploy on the api: the api is up", "tell them the api is up", True),
        (
            "Olga\uff1aBen\u516d\u70b9\u770b\u3002",
            "\u544a\u8bc9\u4ed6\u4eecBen\u516d\u70b9\u770b",
            True,
        ),
        ("Ben looks at it tomorrow", BEN, False),
        ("Ben looks at it. " * 20, BEN, False),  # their number could say something
        ("Olga says: 4 7 1 1", BEN, False),  # words that they offered could say anything
        ("it at looks Ben", BEN, False),  # so could their order
        ("Ben looks at it \u2683\u2680", BEN, False),  # and signs that are no words
        ("Ben looks at it" + "!?;" * 5, BEN, False),  # and many that are plain
        ("Ben" + " " * 20 + "looks at it", BEN, False),
    ],
)
def test_an_answer_says_what_the_owner_says_and_what_they_know(
    text: str, said: str, *, is_relayed_: bool
) -> None:
    told = ["the deploy on the api", "1 2 4 7"]
    assert is_relayed(text, said, told, ["olga"]) is is_relayed_


@simulated
async def test_a_state_of_another_version_keeps_nothing_from_being_told(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(("tell olga", Say(calls=(tell("The disk is full."),))))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
    async with await Store.open(it.path, clock) as store:
        unknown = DmnStateSaved(state='{"mode": "of another version"}', agent="reverie")
        await store.append([NewEntry(fact=unknown, at=clock.now())])
    async with gateway(tmp_path, clock, mind) as it:
        await it.say("reverie: tell olga that the disk is full", sender="ann", room="#two")
        await clock.sleep(60)
        assert told(it) == ["From `#two`, after words of `ann` (guest):\n> The disk is full."]
