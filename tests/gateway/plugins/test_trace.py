"""Exactly one outcome for every event, and the explanations that `reverie why` shows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.models.scripted import Script, ScriptRule
from gateway.core.events import (
    Alarm,
    Command,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    EventId,
    Message,
    MessageEdited,
    MessageId,
    Notification,
    PostKey,
    ReactionChanged,
    Sender,
    SenderId,
    TaskFinished,
    ToolCallRecord,
    TurnStep,
)
from gateway.core.facts import (
    Judgement,
    PartSendEnded,
    PartSendStarted,
    PostQueued,
    Seq,
    ToolRefused,
    TurnCause,
    TurnId,
    TurnRecord,
    UnreadDismissed,
    dedup_key,
    inner_conversation,
    is_inner,
)
from gateway.plugins.reminders import ReminderSet
from gateway.plugins.trace import explain_event, load_trail
from gateway.store import LogEntry, NewEntry, Store
from gateway.store.overview import EventOutcome
from reverie.testing.gateway import running
from reverie.testing.waiting import until
from tests.kits.examples import examples
from tests.kits.outcomes import compute_outcomes
from tests.kits.store import NOW, delivered, judged, opened, place, post, run, said, turn

# Explanations of events, as `reverie why` shows them

A, ANA = place("#a").conversation, inner_conversation("ana")
ULLA = Sender(id=SenderId("u"), name="Ulla")


async def stories(path: Path) -> dict[str, list[str]]:
    """Return explanations by the text of the message."""
    told = {}
    async with await Store.open_readonly(path) as reader:
        for entry in await reader.entries(kinds=["direct", "mention", "room"]):
            assert isinstance(entry.fact, Message)
            told[entry.fact.text] = (await explain_event(reader, entry.seq) or [])[1:]
    return told


async def test_each_fate_is_told_with_its_rule(tmp_path: Path) -> None:
    bindings = [
        {"match": {"room": "lobby"}, "listen": "ambient"},
        {"match": {"channel": "*"}, "listen": "mention"},
    ]
    async with running(
        tmp_path, Script(), agents=[{"id": "reverie", "bindings": bindings}]
    ) as gateway:
        await gateway.console.receive_message("by the way", sender="bob", room="lobby")
        await gateway.console.receive_message("reverie: let me in", sender="ann", room="cellar")
        await gateway.ask("reverie: hello", sender="ann", room="lobby")
    told = await stories(gateway.path)
    assert told["by the way"][1] == "context for the next turn: room talk is ambient"
    assert told["by the way"][2].startswith("shown to the model in turn ")
    assert told["reverie: hello"][1] == "due for a turn: a mention is urgent"
    assert told["reverie: hello"][3].startswith("the least trusted words in view: guest, in m")
    assert told["reverie: let me in"][1] == (
        "refused, and never shown to the model: not in channels.console.rooms"
    )
    async with await Store.open_readonly(gateway.path) as reader:
        assert await explain_event(reader, 10_000) is None
        (link, *_) = await reader.entries(kinds=["link"])
        assert (await explain_event(reader, link.seq) or [])[
            2
        ] == "noted; it needs no turn: nothing had changed"


def event(fact: Notification, where: ConversationId, fate: str = "due") -> list[NewEntry]:
    own = getattr(fact, "at", None)
    noticed = NewEntry(
        fact=fact, at=NOW, conversation=own.conversation if own else None, key=dedup_key(fact)
    )
    verdict = Judgement(type=f"x.{fact.kind}", urgency=2, fate=fate, rule="a rule", role="nobody")  # type: ignore[arg-type]
    return [noticed, NewEntry(fact=verdict, at=NOW, conversation=where, cause=noticed)]


def ended(name: str, where: ConversationId, *covers: int, **fields: Any) -> NewEntry:
    return turn(where, *covers, key=f"turn:{name}", turn=TurnId(name), **fields)


def queued(record: NewEntry, key: str = "p") -> NewEntry:
    return NewEntry(
        fact=PostQueued(post=post(key)), at=NOW, conversation=A, key=f"post:{key}", cause=record
    )


async def story_of(tmp_path: Path, *entries: NewEntry, seq: int = 1) -> list[str]:
    """Return the explanation of an entry, without its own line and its type."""
    async with await opened(tmp_path / "s.db") as store:
        await store.append(entries)
        return (await explain_event(store, seq) or [])[1:]


def line(urgency: int = 2) -> list[NewEntry]:
    message = said(1)
    return [message, judged(message, urgency, "due")]  # type: ignore[arg-type]


LOOK = ended("i1", ANA, looked=((A, Seq(1)),), cause="digest")


@pytest.mark.parametrize(
    ("role", "words"), [("owner", "from an owner"), ("member", "from a member")]
)
async def test_who_said_it(tmp_path: Path, role: Any, words: str) -> None:
    message, verdict = line()
    assert isinstance(verdict.fact, Judgement)
    verdict = replace(verdict, fact=replace(verdict.fact, role=role))
    assert (await story_of(tmp_path, message, verdict))[0].endswith(
        f"{words} (type irc.test.room.#a)"
    )


def replied(name: str, *covers: int, **fields: Any) -> list[NewEntry]:
    """A turn with its reply."""
    record = ended(name, A, *covers, **fields)
    return [record, queued(record)]


def attempt(state: Any, reason: str = "") -> list[NewEntry]:
    """A hand-over of the reply's only part, and its end."""
    end = PartSendEnded(post=PostKey("p"), part=0, state=state, reason=reason)
    begun = PartSendStarted(post=PostKey("p"), part=0, bodies=("x",))
    return [NewEntry(fact=fact, at=NOW, conversation=A) for fact in (begun, end)]


UNSURE = delivered("p", "uncertain")
PERHAPS = replace(queued(UNSURE, "d"), fact=PostQueued(post=replace(post("d"), text="perhaps")))
PUT_AWAY = NewEntry(fact=UnreadDismissed(upto=Seq(1)), at=NOW, conversation=A)
CUT = ended("c", A, 1, outcome="interrupted")
STORIES: dict[str, tuple[list[NewEntry], list[str]]] = {
    "what a digest showed is context until something comes of it": (
        [*line(), LOOK],
        [
            "looked at in turn i1 of the inner conversation (entry 3)",
            "context for the next turn there",
            "outcome: looked at",
        ],
    ),
    "a later turn folds it in": (
        [*line(), LOOK, *replied("k", 1), delivered("p")],
        [
            "looked at in turn i1 of the inner conversation (entry 3)",
            "told as context in turn k (entry 4), which replied",
            "the reply (entry 5) is sent (entry 6)",
            "outcome: context",
        ],
    ),
    "the inner turn answered it": (
        [*line(), *replied("w", 1, within=TurnId("i1")), delivered("p", "uncertain"), LOOK],
        [
            (
                "in turn i1 of the inner conversation (entry 6) the agent spoke here (entry 3), and "
                "replied"
            ),
            "the reply (entry 4) is uncertain (entry 5)",
            "outcome: answered elsewhere",
        ],
    ),
    "a reply is sent at once": (
        [*line(), *replied("w", 1), *attempt("sent"), delivered("p", "sent")],
        [
            "shown to the model in turn w (entry 3), which replied",
            "the reply (entry 4) is sent (entry 7)",
            "outcome: answered",
        ],
    ),
    "nobody knows whether a reply is sent": (
        [*line(), *replied("w", 1), *attempt("uncertain", "no answer"), UNSURE, PERHAPS],
        [
            "shown to the model in turn w (entry 3), which replied",
            "the reply (entry 4) is uncertain (entry 7); the person was told so (entry 8)",
            "outcome: answered",
        ],
    ),
    "what was put away needs no turn": (
        [*line(), PUT_AWAY],
        [
            "it needs no turn: it was deleted, or the view was begun afresh (entry 3)",
            "outcome: handled",
        ],
    ),
    "an interrupted turn leaves it to the next one": (
        [*line(3), CUT],
        [
            "heard in turn c (entry 3), which was interrupted; no turn has ended there since",
            "outcome: interrupted",
        ],
    ),
    "the next turn answers what an interrupted one heard": (
        [*line(3), CUT, *replied("n")],
        [
            (
                "heard in turn c (entry 3), which was interrupted; the next turn there, turn n (entry "
                "4), replied"
            ),
            "the reply (entry 5) is still to be delivered",
            "outcome: answered",
        ],
    ),
    "what was only counted": (
        [*line(), ended("t", A, upto=Seq(1), outcome="failed", reason="no credit")],
        [
            (
                "only counted, for newer lines filled the prompt, in turn t (entry 3), which failed: no "
                "credit"
            ),
            "outcome: counted",
        ],
    ),
}


@pytest.mark.parametrize("what", STORIES)
async def test_what_became_of_a_message_is_told_with_its_outcome(what: str, tmp_path: Path) -> None:
    entries, lines = STORIES[what]
    assert (await story_of(tmp_path, *entries))[2:] == lines


def step(*results: str, name: str = "shell") -> TurnStep:
    return TurnStep(
        text="",
        calls=tuple(
            ToolCallRecord(id="c", name=name, arguments="{}", result=one) for one in results
        ),
    )


LATE = replace(said(1), at=NOW + timedelta(minutes=7))
LOST_END = ended(
    "i1", ANA, looked=((A, Seq(1)),), outcome="yielded", reason="the log has lost its end"
)
REFUSED = ToolRefused(
    turn=TurnId("w"), agent="ana", tool="shell", role="guest", rule="shell is for admins"
)
EDITED = MessageEdited(
    id=EventId("e"), at=place(), sender=ULLA, message=MessageId("1"), text="new", sent=NOW
)
LINK_DOWN = ConnectionChanged(
    id=EventId("l"),
    channel=place().channel,
    up=False,
    reason="its adapter raised KeyError; again in 2 s",
    sent=NOW,
)
FAILURES: dict[str, tuple[list[NewEntry], str]] = {
    "the disk was full, the log locked, or the store away": (
        [LATE, judged(LATE, 2, "due")],
        (
            "taken in 7 min after it was said: until then the gateway was away, not connected, or "
            "could not write its log"
        ),
    ),
    "the log was rolled back": (
        [*line(), LOST_END],
        (
            "looked at in turn i1 of the inner conversation (entry 3), which yielded: the log has "
            "lost its end"
        ),
    ),
    "a fallback answers": (
        [
            ended("o", A, model="first"),
            *line(),
            ended("w", A, 2, model="second", instead_of="first: HTTP 529"),
        ],
        "second answered as a fallback, because others did not (first: HTTP 529)",
    ),
    "the provider is overloaded": (
        [
            *line(),
            ended(
                "o", A, upto=Seq(0), outcome="interrupted", failure="overloaded", reason="HTTP 529"
            ),
        ],
        "no model answered in turn o (entry 3) (overloaded: HTTP 529); it waits for one",
    ),
    "answered when it is back": (
        [
            *line(),
            ended(
                "o", A, upto=Seq(0), outcome="interrupted", failure="overloaded", reason="HTTP 529"
            ),
            ended("w", A, 1),
        ],
        "no model answered in turn o (entry 3) (overloaded: HTTP 529); it waited for one",
    ),
    "edited": (
        [*line(), *event(EDITED, A, "context"), ended("w", A, 1)],
        "it was edited later (entry 3)",
    ),
    "tools": (
        [*line(), ended("w", A, 1, steps=(step("a", "b"), step("c", name="web")))],
        "it called tools 3 times in 2 steps (shell 2, web 1)",
    ),
    "a refused call": (
        [*line(), NewEntry(fact=REFUSED, at=NOW, conversation=A), ended("w", A, 1)],
        "its call of shell was refused (entry 3): shell is for admins",
    ),
    "no model can be used": (
        [*line(), ended("w", A, 1, outcome="failed", failure="key", reason="HTTP 401")],
        "shown to the model in turn w (entry 3), which failed: HTTP 401",
    ),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_what_went_wrong_with_a_message_is_one_line(what: str, tmp_path: Path) -> None:
    entries, says = FAILURES[what]
    seq = next(number for number, one in enumerate(entries, 1) if isinstance(one.fact, Message))
    assert says in await story_of(tmp_path, *entries, seq=seq)


async def test_why_a_channel_was_down_stands_in_its_own_line(tmp_path: Path) -> None:
    async with await opened(tmp_path / "s.db") as store:
        await store.append(event(LINK_DOWN, ANA, "noted"))
        story = await explain_event(store, 1) or []
    assert story[0].endswith("irc.test down: its adapter raised KeyError; again in 2 s")
    assert story[2:] == ["noted; it needs no turn: a rule", "outcome: noted"]


async def test_an_alarm_names_its_reminder(tmp_path: Path) -> None:
    reminded = ReminderSet(
        reminder="r1",
        agent="ana",
        at=None,
        text="tea",
        by=ULLA.id,
        asked_by="Ulla",
        schedule="x",
        due=NOW,
    )
    alarm = Alarm(
        id=EventId("a"),
        text="tea",
        sent=NOW,
        agent="ana",
        reminder="r1",
        missed=2,
        next=NOW + timedelta(days=1),
    )
    set_ = NewEntry(fact=reminded, at=NOW, key="reminded:r1")
    told = await story_of(
        tmp_path, set_, *event(alarm, ANA), ended("i", ANA, 2, cause="alarm"), seq=2
    )
    missed = "2 before it passed while nobody could tell"
    assert told == [
        "to be looked at soon, from a nobody (type x.alarm)",
        (
            f"one time of reminder r1 (set in entry 1); {missed}; it comes again at 2026-03-05 "
            "05:06:07 UTC"
        ),
        "due for a turn: a rule",
        "shown to the model in turn i of the inner conversation (entry 4), which ended",
        "outcome: taken up",
    ]


async def test_other_events_have_their_story_too(tmp_path: Path) -> None:
    link = ConnectionChanged(
        id=EventId("l"), channel=place().channel, up=False, reason="cut", sent=NOW
    )
    done = TaskFinished(id=EventId("f"), what="dream", ok=True, text="done", sent=NOW, agent="ana")
    reacted = ReactionChanged(
        id=EventId("r"),
        at=place(),
        sender=ULLA,
        message=MessageId("1"),
        reaction="+1",
        added=True,
        sent=NOW,
    )
    facts: list[tuple[Notification, ConversationId]] = [(link, ANA), (done, ANA), (reacted, A)]
    for number, (fact, where) in enumerate(facts):
        told = await story_of(
            tmp_path / str(number), *event(fact, where), ended("t", where, 1, outcome="yielded")
        )
        inside = " of the inner conversation" if where == ANA else ""
        assert told[1:] == [
            "due for a turn: a rule",
            f"shown to the model in turn t{inside} (entry 3), which yielded",
            "outcome: yielded",
        ]


async def test_what_the_gateway_did_by_itself_is_told_by_what_it_belongs_to(tmp_path: Path) -> None:
    record = ended("t", A, *range(1, 31), cause="noticed")
    fact = DeliveryReport(
        id=EventId("p"),
        at=place(),
        post=PostKey("p"),
        state="failed",
        reason="no such room",
        sent=NOW,
    )
    whole = [
        record,
        queued(record),
        NewEntry(fact=fact, at=NOW, conversation=A, key=dedup_key(fact)),
    ]
    head = "not an event from outside: nothing was decided about it"
    failed = "the {} (entry 2) is failed (entry 3): no such room"
    assert await story_of(tmp_path / "1", *whole) == [
        head,
        (
            "a turn because of something there that was worth a look, which was shown entries 10 more "
            "and "
        )
        + ", ".join(map(str, range(11, 31))),
        failed.format("reply"),
    ]
    assert await story_of(tmp_path / "2", *whole, seq=2) == [
        head,
        "it follows from entry 1",
        failed.format("post"),
    ]
    assert await story_of(tmp_path / "3", *whole, seq=3) == [head, "how the post of entry 2 ended"]
    assert (await story_of(tmp_path / "4", *whole[:2], seq=2))[2:] == [
        "the post (entry 2) is still to be delivered"
    ]


async def test_of_other_entries_no_word_is_told(tmp_path: Path) -> None:
    other = said(2, text="a secret")
    record = ended("k", A, 1, 3, heard="a secret", text="a secret")
    told = await story_of(
        tmp_path, *line(), other, judged(other, 2, "due"), LOOK, record, queued(record)
    )
    assert not any("secret" in one for one in told)


LOBBY = "console/lobby"
QUICK: dict[str, Any] = {
    "dmn": {"resting": 0.05, "foraging": 0.05, "working": 0.05, "engaged": 0.05, "dream_every": 0},
    "attention": {
        "coalesce": 0,
        "rules": [{"type": "*.room.*", "keyword": "outage", "urgency": "normal"}],
    },
}


@pytest.mark.parametrize(
    ("does", "told", "fate"),
    [
        ((), "looked at in turn", EventOutcome.LOOKED_AT),
        ((("attend", {"room": LOBBY, "reason": "of help"}),), "attended by", EventOutcome.ANSWERED),
    ],
)
async def test_a_gateway_that_is_by_itself_leaves_such_stories(
    tmp_path: Path, does: tuple[tuple[str, dict[str, str]], ...], told: str, fate: EventOutcome
) -> None:
    calls = (*((name, json.dumps(arguments)) for name, arguments in does), ("yield_to_user", "{}"))
    rules = (ScriptRule(match="hello", reply="hi"), ScriptRule(match="## .*console", calls=calls))
    script = Script(rules=(*rules, ScriptRule(match="outage", reply="oh")))

    async with running(tmp_path, script, **QUICK) as gateway:
        await gateway.console.receive_message("by the way", sender="ann", room="lobby")
        await gateway.console.receive_message("an outage", sender="bob", room="lobby")

        async def digested() -> bool:
            causes = {turn.cause for turn in await gateway.turns()}
            return causes >= ({"digest", "attended"} if does else {"digest"})

        await until(digested)
        if fate is EventOutcome.LOOKED_AT:
            await gateway.ask("reverie: hello", sender="ann", room="lobby")
    async with await Store.open_readonly(gateway.path) as reader:
        (_, line, *_) = await reader.entries(kinds=["room"])
        counted = compute_outcomes(await reader.entries(limit=1_000))
        story = await explain_event(reader, line.seq) or []
        assert counted[line.seq] is (
            EventOutcome.CONTEXT if fate is EventOutcome.LOOKED_AT else fate
        )
        assert story[-1] == f"outcome: {counted[line.seq]}"
        assert any(told in one and "of the inner conversation (entry " in one for one in story)
        assert any("of help" in one for one in story) == bool(does)  # the room was told it
        events = [
            one.seq
            for one in await reader.entries(kinds=["direct", "mention", "room", "link", "alarm"])
        ]
        assert set(events) == set(counted)


# Exactly one outcome for every event, from the whole log and from the explanation of one event

ROOM, B, AGENT, BOB = (
    place("#a").conversation,
    place("#b").conversation,
    inner_conversation("ana"),
    inner_conversation("bob"),
)


@dataclass(frozen=True)
class Said:
    """An event and its judgement; `where`: conversation in which it is unread."""

    where: ConversationId
    fate: str
    command: bool = False


@dataclass(frozen=True)
class Turn:
    """A turn that is shown the newest `most` events there, or everywhere, and handles all but the
    newest."""

    where: ConversationId
    outcome: str
    within: bool
    most: int
    behind: int
    cause: TurnCause = "addressed"


@dataclass(frozen=True)
class Decided:
    where: ConversationId
    behind: int


Step = Said | Turn | Decided


def entries(step: Step, number: int, seen: Sequence[LogEntry]) -> list[NewEntry]:
    last = seen[-1].seq if seen else 0
    if isinstance(step, Said):
        event = said(number, room="#a" if step.where == ROOM else "#b")
        fact: Notification = event.fact  # type: ignore[assignment]
        if step.command:
            assert isinstance(fact, Message)
            fact = Command(
                id=EventId(fact.id),
                at=fact.at,
                sender=fact.sender,
                name="x",
                args="",
                sent=NOW,
                origin="text",
            )
        elif is_inner(step.where):
            fact = ConnectionChanged(
                id=EventId(str(number)), channel=place().channel, up=True, reason="", sent=NOW
            )
        event = NewEntry(fact=fact, at=NOW, conversation=event.conversation, key=dedup_key(fact))
        verdict = judged(event, 2 if step.fate == "due" else 0, step.fate)  # type: ignore[arg-type]
        return [event, NewEntry(fact=verdict.fact, at=NOW, conversation=step.where, cause=event)]
    if isinstance(step, Decided):
        fact_ = UnreadDismissed(upto=Seq(max(0, last - step.behind)))
        return [NewEntry(fact=fact_, at=NOW, conversation=step.where)]
    everywhere = is_inner(step.where)
    there = [
        one.cause
        for one in seen
        if isinstance(one.fact, Judgement) and (everywhere or one.conversation == step.where)
    ]
    covers = tuple(seq for seq in there if seq is not None)[-step.most :] if step.most else ()
    made = turn(step.where, *covers)
    everyone = dict.fromkeys(
        one.conversation for one in seen if isinstance(one.fact, Judgement) and one.conversation
    )
    looked = tuple(
        (there, Seq(max(0, last - step.behind)))
        for there in everyone
        if everywhere and there != step.where
    )
    assert isinstance(made.fact, TurnRecord)
    fields: dict[str, Any] = {
        "upto": max(0, last - step.behind),
        "outcome": step.outcome,
        "turn": TurnId(f"t{number}"),
        "looked": looked,
        "within": TurnId("in") if step.within else None,
        "cause": step.cause,
    }
    return [replace(made, fact=replace(made.fact, **fields))]


async def wrote(store: Store, steps: Sequence[Step]) -> list[LogEntry]:
    for number, step in enumerate(steps):
        await store.append(entries(step, number, await store.entries()))
    return await store.entries()


def steps(*found: Step) -> list[Step]:
    return list(found)


def heard(where: ConversationId = ROOM, fate: str = "due") -> Said:
    return Said(where, fate)


def took(
    outcome: str = "replied", where: ConversationId = ROOM, *, within: bool = False, most: int = 9
) -> Turn:
    return Turn(where, outcome, within, most, 0)


def attended(outcome: str = "replied") -> Turn:
    return Turn(ROOM, outcome, within=False, most=9, behind=0, cause="attended")


TABLE = [
    (steps(heard(fate="refused")), EventOutcome.REFUSED),
    (steps(heard(fate="noted")), EventOutcome.NOTED),
    (steps(Said(ROOM, "noted", command=True)), EventOutcome.COMMAND),
    (steps(Said(ROOM, "refused", command=True)), EventOutcome.REFUSED),
    (steps(heard()), EventOutcome.WAITING),
    (steps(heard(fate="context")), EventOutcome.OVERHEARD),
    (steps(heard(), took(where=B)), EventOutcome.WAITING),
    (steps(heard(), Turn(ROOM, "replied", within=False, most=9, behind=2)), EventOutcome.WAITING),
    (steps(heard(), took()), EventOutcome.ANSWERED),
    (steps(heard(fate="context"), took()), EventOutcome.CONTEXT),
    (steps(heard(), took("silent")), EventOutcome.SILENT),
    (steps(heard(), took("yielded")), EventOutcome.YIELDED),
    (steps(heard(), took("failed")), EventOutcome.FAILED),
    (steps(heard(), took(most=0)), EventOutcome.COUNTED),
    (steps(heard(), took("interrupted")), EventOutcome.INTERRUPTED),
    (steps(heard(fate="context"), took("interrupted")), EventOutcome.CONTEXT),
    (steps(heard(), took("interrupted", most=0), took()), EventOutcome.COUNTED),
    (steps(heard(), took("interrupted"), took("interrupted"), took("silent")), EventOutcome.SILENT),
    (steps(heard(), took("interrupted"), Decided(ROOM, 0)), EventOutcome.INTERRUPTED),
    (steps(heard(), Decided(ROOM, 0)), EventOutcome.HANDLED),
    (steps(heard(), Decided(B, 0)), EventOutcome.WAITING),
    (steps(heard(), took(where=AGENT)), EventOutcome.LOOKED_AT),
    (steps(heard(), took("failed", AGENT), took()), EventOutcome.CONTEXT),
    (steps(heard(), took(where=AGENT), took("interrupted")), EventOutcome.CONTEXT),
    (steps(heard(), took(where=AGENT), Decided(ROOM, 0)), EventOutcome.HANDLED),
    (steps(heard(), took(within=True), took(where=AGENT)), EventOutcome.ANSWERED_ELSEWHERE),
    (steps(heard(), took(where=AGENT), took(within=True)), EventOutcome.CONTEXT),
    (steps(heard(), took(where=AGENT), attended()), EventOutcome.ANSWERED),
    (
        steps(heard(), took(where=AGENT), attended("interrupted"), took("silent")),
        EventOutcome.SILENT,
    ),
    (steps(heard(fate="context"), took(where=AGENT), attended()), EventOutcome.CONTEXT),
    (steps(heard(AGENT), took(where=AGENT)), EventOutcome.TAKEN_UP),
    (steps(heard(AGENT), took(where=BOB)), EventOutcome.LOOKED_AT),
    (steps(heard(AGENT), took("interrupted", AGENT), took("yielded", AGENT)), EventOutcome.YIELDED),
]


@pytest.mark.parametrize(("told", "fate"), TABLE)
async def test_what_becomes_of_the_first_event(
    told: list[Step], fate: EventOutcome, store: Store
) -> None:
    log = await wrote(store, told)
    assert compute_outcomes(log)[Seq(1)] is fate
    found = await load_trail(store, log[0])
    assert found is not None
    assert found.row.fate is fate
    assert (await explain_event(store, 1) or [])[-1] == f"outcome: {fate}"


def test_every_fate_is_in_the_table() -> None:
    assert {fate for _, fate in TABLE} == set(EventOutcome)


places = st.sampled_from([ROOM, ROOM, B, AGENT, BOB])
logs = st.lists(
    st.builds(
        Said, places, st.sampled_from(["due", "due", "context", "refused", "noted"]), st.booleans()
    )
    | st.builds(
        Turn,
        places,
        st.sampled_from(["replied", "silent", "yielded", "failed", "interrupted", "interrupted"]),
        st.booleans(),
        st.integers(0, 4),
        st.integers(0, 5),
    )
    | st.builds(Decided, places, st.integers(0, 4)),
    max_size=14,
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(told=logs)
def test_counting_and_telling_agree_with_each_other_and_with_what_is_unread(
    told: list[Step],
) -> None:
    async def story(path: Path) -> None:
        async with await opened(path) as store:
            log = await wrote(store, told)
            counted = compute_outcomes(log)
            events = [one.cause for one in log if isinstance(one.fact, Judgement)]
            assert sorted(counted) == sorted(seq for seq in events if seq is not None)
            for entry in log:
                found = await load_trail(store, entry)
                assert (found.row.fate if found else None) == counted.get(entry.seq)
            unread = set()
            for conversation in (ROOM, B, AGENT, BOB):
                unread |= {
                    one.seq for one in (await store.unread_entries(conversation, most=99)).messages
                }
            waiting = (EventOutcome.WAITING, EventOutcome.OVERHEARD, EventOutcome.LOOKED_AT)
            assert {seq for seq, fate in counted.items() if fate in waiting} == unread
            urgent = {place for place, _ in await store.due_conversations(1)}
            due = {
                one.conversation
                for one in log
                if isinstance(one.fact, Judgement)
                and one.cause is not None
                and counted[one.cause] is EventOutcome.WAITING
            }
            assert due == urgent

    with TemporaryDirectory() as folder:
        run(story(Path(folder) / "s.db"))
