"""Turns that are steered, interrupted or continued, and those of the inner conversation, on a real
store."""

import asyncio
import contextlib
import json
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.base import (
    MessagePart,
    ModelError,
    ModelMessage,
    ModelRequest,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    TextPart,
    ToolResult,
)
from agent.tokens.counter import count_heuristically
from agent.tools import CALL_CAPABILITY
from gateway.config.loader import parse_config
from gateway.context.digest import Digest
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Alarm,
    ConversationId,
    DeliveryReport,
    EventId,
    Message,
    MessageId,
    Post,
    PostKey,
    ReactionChanged,
    Sender,
    SenderId,
    ToolCallRecord,
    TurnStep,
    Usage,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    URGENT,
    PartSendEnded,
    PostQueued,
    Seq,
    TurnId,
    TurnRecord,
)
from gateway.core.identity import PlatformRoleRule
from gateway.core.labels import Label
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.plugins.evidence import EvidenceReader
from gateway.runtime.turn_handle import TurnHandle, TurnInterrupted
from gateway.runtime.turn_record import FAILURE_TEXTS, MAX_NOTE_CHARS, compose_note
from gateway.store import NewEntry, Store
from gateway.stream.routing import Bindings
from reverie.testing.channels import story
from reverie.testing.gateway import UNHURRIED, Gateway
from reverie.testing.servers.model_api import Answer, ModelApi, failure
from tests.kits.examples import examples
from tests.kits.handle import handle_of
from tests.kits.journal import sight_of
from tests.kits.places import privacy
from tests.kits.plugins import plugin_of
from tests.kits.scripted_turn import ACCOUNT, USAGE, Drawer, Played, Say
from tests.kits.turns import ANYWHERE, INNER, ROOM, WHEN, WHO, Desk, at_desk

LOOK = Say(text="Let me see.", calls=(("c", "look_up"),))


async def test_steps_are_written_down_and_repeated(tmp_path: Path) -> None:
    async with at_desk(tmp_path, LOOK) as desk:
        await desk.say("ann", "hello")
        report = await desk.take()
        await desk.say("ann", "and?")
        await desk.take()
        (first, second) = await desk.ended()
        assert (report.used_tools, first.cause, len(first.steps), second.steps) == (
            True,
            "addressed",
            1,
            (),
        )
        assert [post.post.text for post in desk.posts] == ["Done.", "Done."]
        desk.means.history._cached.clear()  # as after a restart
        await desk.say("ann", "once more")
        await desk.take()
        asked = [request.conversation for request in desk.model.requests]
        assert [said == old for said, old in zip(asked[2], asked[1], strict=False)] == [True] * len(
            asked[1]
        )
        assert asked[3][: len(asked[2])] == asked[2]


async def test_who_speaks_in_the_middle_is_told_at_the_next_boundary(tmp_path: Path) -> None:
    async with at_desk(tmp_path, LOOK, Say(calls=(("d", "jot"),))) as desk:

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
        assert desk.told(1).endswith(ended.steps[0].heard)
        (post,) = desk.posts
        assert post.post.reply_to == "m2"
        assert [[asker.name for asker in where.requesters] for where in desk.where] == [
            ["ann"],
            ["ann", "bob"],
        ]


async def test_who_is_queued_is_heard_by_the_next_turn(tmp_path: Path) -> None:
    async with at_desk(tmp_path, LOOK) as desk:

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


async def test_an_interrupted_turn_leaves_what_it_heard_to_the_next(tmp_path: Path) -> None:
    async with at_desk(tmp_path, Say(waits=True)) as desk:
        await desk.say("ann", "hello")
        turn = asyncio.ensure_future(desk.take())
        await desk.model.asked.wait()
        await desk.say("bob", "no, wait")
        desk.lane.interrupt()
        report = await turn
        assert (report.interrupted, report.failed, desk.posts) == (True, False, [])
        await desk.take()
        first, second = await desk.ended()
        assert (first.outcome, first.text, len(first.covers), first.requests) == (
            "interrupted",
            "",
            1,
            0,
        )
        assert (second.outcome, len(second.covers)) == ("replied", 1)
        assert "ann (guest): hello" in desk.told()
        assert "bob (guest): no, wait" in desk.told()
        old, new = desk.model.requests
        assert new.conversation[0].parts[:1] == old.conversation[0].parts


# Whatever arrives in the middle of turns, in whatever mode: each line is told once, in order, and
# dealt with once.


BOUNDARIES = st.lists(
    st.tuples(
        st.lists(
            st.booleans(), max_size=3
        ),  # lines that arrive: said to the agent, or only near it
        st.sampled_from(["steer", "queue", "interrupt", "interrupt the answer"]),
    ),
    max_size=6,
)
LINE = re.compile(r"line(\d+)\.")


class Busy(Drawer):
    """Tools during which things happen."""

    def __init__(self, desk: Desk, boundaries: list[tuple[list[bool], str]]) -> None:
        super().__init__()
        self._desk = desk
        self._left = boundaries
        self.numbers = list[int]()

    async def line(self, *, spoken: bool) -> None:
        self.numbers.append(len(self.numbers))
        urgency, kind = (URGENT, "mention") if spoken else (AMBIENT, "room")
        await self._desk.say("ann", f"line{self.numbers[-1]}.", kind=kind, urgency=urgency)  # type: ignore[arg-type]

    async def call(self, call: ToolCall) -> ToolResult:
        lines, mode = self._left.pop(0)
        for spoken in lines:
            await self.line(spoken=spoken)
        if mode == "steer":
            self._desk.lane.steer()
        elif mode == "interrupt":
            self._desk.lane.interrupt()
            await asyncio.Event().wait()
        elif mode == "interrupt the answer":
            asyncio.get_running_loop().call_soon(self._desk.lane.interrupt)
        return await super().call(call)


def flat(conversation: tuple[ModelMessage, ...]) -> list[tuple[str, MessagePart]]:
    return [(said.role, part) for said in conversation for part in said.parts]


def told(request: ModelRequest) -> list[int]:
    texts = [part.text for _, part in flat(request.conversation) if isinstance(part, TextPart)]
    return [int(number) for text in texts for number in LINE.findall(text)]


@settings(max_examples=examples(30))
@given(BOUNDARIES)
def test_nothing_is_lost_or_told_twice_and_order_is_kept(
    boundaries: list[tuple[list[bool], str]],
) -> None:
    rounds = [
        Say(calls=(("call_0", "look_up"),), arguments=f'{{"q": {number}}}')
        for number in range(len(boundaries))
    ]

    async def story() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with at_desk(Path(folder), *rounds) as desk:
                desk.drawer = busy = Busy(desk, list(boundaries))
                while desk.model.answers or not busy.numbers or await desk.unread():
                    if not await desk.unread():
                        await busy.line(spoken=True)
                    await desk.take()
                ended = await desk.ended()
                covers = [seq for turn in ended for seq in turn.covers]
                assert len(covers) == len(set(covers)) == len(busy.numbers)
                assert covers == sorted(covers)
                assert [turn.upto for turn in ended] == sorted(turn.upto for turn in ended)
                assert len(desk.posts) == sum(turn.outcome == "replied" for turn in ended)
                await busy.line(spoken=True)
                desk.means.history._cached.clear()  # read from the log, as after a restart
                await desk.take()
                assert told(desk.model.requests[-1]) == busy.numbers
                for before, after in pairwise(desk.model.requests):
                    assert flat(after.conversation)[: len(flat(before.conversation))] == flat(
                        before.conversation
                    )

    asyncio.run(story())


# Turns whose request finds no room in the model's window: nobody hears of that, and its cost is
# told.


@pytest.mark.parametrize(
    "error", [PromptTooLong("the window is full"), RequestRefused("the image cannot be read")]
)
async def test_what_is_asked_again_is_paid_for_twice(tmp_path: Path, error: ModelError) -> None:
    error.accounts = (ACCOUNT,)

    async with at_desk(tmp_path, Say(text="H", error=error), Say(text="Hi.")) as desk:
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        if isinstance(error, PromptTooLong):
            assert (ended.outcome, ended.text) == ("replied", "Hi.")
            assert (ended.requests, ended.accounts, ended.usage) == (
                2,
                (ACCOUNT, ACCOUNT),
                USAGE + USAGE,
            )
        else:  # there are no images that could be left out
            assert (ended.outcome, ended.requests, ended.accounts) == ("failed", 1, (ACCOUNT,))


async def test_one_that_never_fits_fails_and_says_so(tmp_path: Path) -> None:
    async with at_desk(tmp_path, *[Say(error=PromptTooLong("the window is full"))] * 3) as desk:
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        assert (ended.outcome, ended.reason, len(desk.model.requests)) == (
            "failed",
            "the window is full",
            3,
        )


# Whose rights a turn has that acts upon words told to turns before it, or upon a reminder.


LOOK_AROUND = Say(calls=(("c", "look_up"),))
ALARM = Alarm(
    id=EventId("r1:1"),
    text="Tidy up.",
    sent=WHEN,
    at=ROOM,
    agent="ana",
    reminder="r1",
    asked_by="gus",
    due=WHEN,
)


FETCHED = Label("outside", source="web_fetch")


async def who(
    desk: Desk, place: ConversationId = ROOM.conversation, **more: bool
) -> tuple[list[str], str]:
    """Take a turn by itself. Return who asks in it, and the lowest role among the authors of what
    is new."""
    desk.model.answers.insert(0, LOOK_AROUND)
    await desk.take(place, autonomous=True, **more)
    where = desk.where[-1]
    return [asker.id for asker in where.requesters], where.unasked_role


async def reminder(desk: Desk, role: str, *, by: str = "gus", alarm: Alarm = ALARM) -> None:
    fired = replace(alarm, asked_by=by, by=SenderId(by), role=role)
    await desk.tell(fired, ROOM.conversation, NORMAL)


async def test_what_goes_on_after_a_reminder_is_not_what_somebody_asked_for_before_it(
    tmp_path: Path,
) -> None:
    async with at_desk(tmp_path, Say(text="Hi.")) as desk:
        await desk.say("olga", "hello")
        await desk.take()
        await reminder(desk, "guest")
        assert await who(desk) == ([], "guest")
        assert await who(desk, continuing=True) == ([], "guest")
        await desk.say("mia", "well", kind="room", urgency=NORMAL)
        assert await who(desk) == ([], "guest")
        assert await who(desk, continuing=True) == ([], "guest")


BY_RANK = replace(
    WHO,
    roles={f"{ROOM.channel}:olga": "owner"},
    platform_roles=(
        PlatformRoleRule(ROOM.channel, "*", "role:7", "admin", "access.platform_roles[0]"),
    ),
)


@pytest.mark.parametrize(
    ("by", "then", "now"),
    [
        ("olga", "owner", "owner"),
        ("olga", "member", "member"),
        ("gus", "admin", "guest"),
        ("mod", "admin", "admin"),
        ("once", "admin", "guest"),
    ],
)
async def test_a_reminder_has_the_lower_of_its_setters_roles_then_and_now(
    tmp_path: Path, by: str, then: str, now: str
) -> None:
    """A platform's rank is the one of their newest message there."""

    async with at_desk(tmp_path, Say(text="Hi."), who=BY_RANK) as desk:
        for name, ranks in (("once", ("role:7",)), ("mod", ("role:7",)), ("once", ())):
            desk.said += 1
            sender = Sender(id=SenderId(name), name=name, verified=True, ranks=ranks)
            said = Message(
                id=MessageId(f"m{desk.said}"),
                at=ROOM,
                sender=sender,
                text="hm",
                sent=WHEN,
                kind="mention",
            )
            await desk.tell(said, ROOM.conversation, URGENT)
        await desk.take()
        await reminder(desk, then, by=by)
        assert await who(desk) == ([], now)
        assert await who(desk, continuing=True) == ([], now)


async def test_text_from_outside_stays_for_as_long_as_it_is_in_view(tmp_path: Path) -> None:
    async with at_desk(
        tmp_path, LOOK_AROUND, Say(text="Hi."), Say(text="So."), Say(text="Yes.")
    ) as desk:

        async def fetch() -> None:
            desk.where[-1].request.label |= Label("outside", source="web_fetch")

        desk.drawer.meanwhile = fetch
        await desk.say("olga", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        assert ended.label == FETCHED
        await desk.take(autonomous=True, continuing=True)
        await desk.say("olga", "thanks")
        await desk.take()
        assert [one.label for one in await desk.ended()] == [FETCHED] * 3


async def test_a_digest_tells_whose_words_it_holds(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        said = await desk.say("gus", "tidy up", kind="room", urgency=NORMAL)
        (seq,) = await desk.unread()
        desk.digest = Digest(
            text=said.text, covers=(Seq(seq),), senders=(SenderId("gus"),), label=Label("guest")
        )
        assert await who(desk, INNER) == ([], "guest")
        desk.digest = None
        assert await who(desk, INNER, continuing=True) == ([], "guest")


# Large results and prompts that become too long, in whole turns on a real store: also for the turns
# after them.


PAGE = "".join(f"line {number}: é\n" for number in range(20_000))


@dataclass
class Brings(Drawer):
    """Each call brings the next of these."""

    texts: list[str] = field(default_factory=list)

    async def call(self, call: ToolCall) -> ToolResult:
        self.used.append(call)
        return ToolResult(id=call.id, text=self.texts.pop(0), kind="page", origin="https://a")


class Refuses(Played):
    """Says of these requests, counted from 0, that they are too long."""

    def __init__(self, *answers: Say) -> None:
        super().__init__(*answers)
        self.refused: set[int] = set()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if len(self.requests) in self.refused:
            self.requests.append(request)
            raise PromptTooLong("prompt is too long")
        async for chunk in super().stream(request):
            yield chunk


def opens(desk: Desk) -> EvidenceReader:
    places = privacy(desk.store, Bindings((ANYWHERE,)))
    return plugin_of(
        EvidenceReader,
        plugins={},
        gateway=handle_of(desk.store, desk.clock, places=places),
        media=desk.means.history.media,
    )


HERE = ToolContext(
    turn=TurnId("later"),
    agent="ana",
    at=ROOM,
    visibility=Visibility(scope=PUBLIC),
    autonomous=False,
)


def called(ended: TurnRecord) -> list[ToolCallRecord]:
    return [one for step in ended.steps for one in step.calls]


async def test_a_large_result_is_whole_in_the_log_and_in_part_in_every_prompt(
    tmp_path: Path,
) -> None:
    async with at_desk(tmp_path, LOOK_AROUND) as desk:
        desk.drawer = Brings(texts=[PAGE])
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        (one,) = called(ended)
        assert one.source is not None
        assert desk.compacted == ["tool_result_truncated"]
        assert (await opens(desk).find(one.source.handle, *sight_of(HERE))).text == PAGE
        (evidence,) = await desk.store.newest_entries(9, kinds=["evidence"])
        (turn,) = await desk.store.newest_entries(9, kinds=["turn_ended"])
        assert evidence.seq < turn.seq
        assert (await opens(desk).find(f"t{turn.seq}.1", *sight_of(HERE))).text == PAGE
        desk.means.history._cached.clear()  # as after a restart
        await desk.say("ann", "and?")
        await desk.take()
        first, second, third = [request.conversation for request in desk.model.requests]
        assert third[: len(second)] == second
        assert second[: len(first)] == first


async def test_a_turn_that_has_become_too_long_is_folded_in_its_middle(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as other:
        model = Refuses()
        desk = Desk(other.store, model)
        for number in range(6):
            await desk.say("ann", f"{number}: " + "a long story " * 200)
            await desk.take()
        model.answers = [
            replace(LOOK_AROUND, arguments=f'{{"q": {number}}}') for number in range(3)
        ]
        model.refused = {len(model.requests) + 2}
        desk.drawer = Brings(texts=[f"{number}" * 4_000 for number in range(3)])
        await desk.say("ann", "now look")
        assert not (await desk.take()).failed
        ended = (await desk.ended())[-1]
        assert ended.outcome == "replied"
        refused, again, last = [request.conversation for request in model.requests[-3:]]
        assert len(again) < len(refused)
        (fold,) = await desk.store.newest_entries(9, kinds=["folded"])
        assert fold.seq < (await desk.store.newest_entries(1, kinds=["turn_ended"]))[0].seq
        first, second, third = called(ended)
        assert first.source is not None
        assert (await opens(desk).find(first.source.handle, *sight_of(HERE))).text == "0" * 4_000
        assert [second.result, third.result] == ["1" * 4_000, "2" * 4_000]
        for _ in range(2):  # the second time as after a restart
            desk.means.history._cached.clear()
            await desk.say("ann", "and?")
            await desk.take()
            assert model.requests[-1].conversation[: len(last)] == last
            last = model.requests[-1].conversation


# Turns that are told of what nobody said, on a real store.


PLACE = ROOM.conversation
TEA = Alarm(
    id=EventId("a"), text="water the beans", sent=WHEN, at=ROOM, agent="ana", asked_by="cat"
)
ANN = Sender(id=SenderId("ann"), name="ann")
REACTED = ReactionChanged(
    id=EventId("r"),
    at=ROOM,
    sender=ANN,
    message=MessageId("ours"),
    reaction="+",
    added=True,
    sent=WHEN,
)


async def posted(desk: Desk) -> None:
    """The answer that a turn gave is shown by the platform."""
    (turn,) = await desk.store.entries(kinds=["turn_ended"])
    post = Post(key=PostKey("p"), to=ROOM, text="Dig first.")
    part = PartSendEnded(post=post.key, part=0, state="sent", reason="", ids=(MessageId("ours"),))
    queued = NewEntry(
        fact=PostQueued(post=post), at=WHEN, conversation=PLACE, key="post:p", cause=turn.seq
    )
    await desk.store.append([queued, NewEntry(fact=part, at=WHEN, conversation=PLACE)])


async def test_a_reminder_makes_a_turn_in_its_place_that_nobody_asked_for(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.tell(replace(TEA, by=SenderId("cat")), PLACE, NORMAL)
        await desk.take(autonomous=True)
        (ended,) = await desk.ended()
        assert (ended.cause, ended.senders, ended.outcome) == ("alarm", ("cat",), "replied")
        assert ended.heard == '[2026-11-21 12:00] (reminder that cat asked for: "water the beans")'
        (post,) = desk.posts
        assert (post.post.reply_to, [one.name for one in post.post.notify]) == (None, ["cat"])
        assert await desk.unread() == []


async def test_what_only_reports_costs_no_request_and_is_told_with_the_next_words(
    tmp_path: Path,
) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.say("ann", "how?")
        await desk.take()
        await posted(desk)
        failed = DeliveryReport(
            id=EventId("p"), at=ROOM, post=PostKey("p"), state="uncertain", reason="cut", sent=WHEN
        )
        await desk.tell(REACTED, PLACE, LOW)
        await desk.tell(failed, PLACE, LOW)
        await desk.take(autonomous=True)
        assert len(desk.model.requests) == 1
        await desk.tell(replace(REACTED, id=EventId("r2"), reaction="-"), PLACE, LOW)
        await desk.say("ann", "thanks")
        await desk.take()
        _, reports, last = await desk.ended()
        assert (reports.outcome, reports.requests, len(reports.covers)) == ("silent", 0, 2)
        assert desk.told().splitlines() == [
            '[2026-11-21 12:00] (ann reacted with + to your message: "Dig first.")',
            (
                '[2026-11-21 12:00] (your message "Dig first." may or may not have been delivered '
                '(whoever waited for it may say "again" to see it once more; do not repeat it '
                'unasked): "cut")'
            ),
            '[2026-11-21 12:00] (ann reacted with - to your message: "Dig first.")',
            "[2026-11-21 12:00] ann (guest): thanks",
        ]
        assert last.senders == ("", "ann")


# What people are told where there is no answer: why, and whether to ask again. No model ever reads
# it.


IRC = "irc.libera"


@contextlib.asynccontextmanager
async def gateway(tmp: Path, url: str, kind: str = "anthropic") -> AsyncIterator[Gateway]:
    settings = parse_config(
        {
            "channels": {IRC: {"platform": "console", "rooms": ["#garden"]}},
            "agents": [{"id": "ana"}],
            "llm": {
                "providers": {"p": {"kind": kind, "base_url": url, "api_key": "k"}},
                "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
                "overload_wait": 0,
            },
            "attention": {"coalesce": 0},
            "access": {"dm": "open", "rates": UNHURRIED},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        tmp,
    )
    async with asyncio.timeout(60), Gateway(settings, clock=ManualClock()) as made:
        yield made


async def told_text(made: Gateway, text: str) -> str:
    """What somebody is answered, however long that takes."""
    count = len(made.screen.parts)
    await made.say(f"reverie, {text}", room="#garden")
    await made.until(lambda: len(made.screen.parts) > count, step_s=0.5)
    return " ".join(made.sent()[-1].split())


def said(message: str, kind: str = "invalid_request_error", status: int = 400) -> Answer:
    return Answer(
        status=status,
        body=json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode(),
    )


CAUSES = {
    "overloaded": failure(529, "overloaded_error"),
    "misconfigured": failure(401, "authentication_error"),
    "budget": said("Your credit balance is too low to access the Anthropic API."),
    "too_long": said("prompt is too long: 200001 tokens > 200000 maximum"),
    "refused": said("messages.0: this is against our policy"),
    "nothing": Answer(text=""),
    "cut": Answer(thinking="Hm.", stop="max_tokens"),
}


@pytest.mark.parametrize("cause", CAUSES)
async def test_the_cause_is_told_in_words_and_never_read_by_the_model(
    tmp_path: Path, cause: str
) -> None:
    async with ModelApi() as api, gateway(tmp_path, api.url) as made:
        api.default = lambda _: CAUSES[cause]
        words = await told_text(made, "hello there")
        assert words.endswith(FAILURE_TEXTS[cause])  # type: ignore[index]
        assert "01M" not in words
        assert "reference" not in words
        api.default = lambda _: Answer(text="Here I am.")
        assert (await told_text(made, "and now?")).endswith("Here I am.")
        messages = json.dumps(api.seen[-1].body)
        assert "hello there" in messages
        assert FAILURE_TEXTS[cause] not in messages  # type: ignore[index]
        assert not api.violations


# Small windows and odd tokenizers: a strict server refuses what does not fit, and nobody is told of
# it.


class Strict(Played):
    """Counts a prompt its own way, and takes none that leaves no room for the answer that was asked
    for."""

    def __init__(self, window: int, output: int, scale: float, rounds: int = 0) -> None:
        super().__init__()
        self.context_tokens, self.max_output_tokens = window, output
        self.refused = 0
        self._scale = scale
        self._rounds = rounds

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        told = [part for said in request.conversation for part in said.parts]
        words = [
            part.text for part in told if not isinstance(part, ToolCall) and hasattr(part, "text")
        ]
        fixed = [block.text for block in request.blocks] + [
            tool.description + tool.schema for tool in request.tools
        ]
        real = int(
            sum(count_heuristically(text) + 4 for text in (*words, *fixed, request.now))
            * self._scale
        )
        if real + request.max_output_tokens > self.context_tokens:
            self.refused += 1
            raise PromptTooLong(f"{real} + {request.max_output_tokens} > {self.context_tokens}")
        if len(self.requests) <= self._rounds:
            page = len(self.requests)
            yield ToolCall(id=f"c{page}", name="look_up", arguments=f'{{"page": {page}}}')
        else:
            yield TextPart(text="As you say. " * 30)
        yield StreamEnd(
            stop_reason="end", usage=Usage(input_tokens=real, output_tokens=90), model="strict"
        )


async def test_what_arrives_in_the_middle_is_told_as_far_as_there_is_room(tmp_path: Path) -> None:
    model = Strict(8_192, 1_024, 1.0, rounds=7)
    async with await Store.open(tmp_path / "r.db", ManualClock(WHEN)) as store:
        desk = Desk(store, model)

        async def crowd() -> None:
            for number in range(40):
                await desk.say("bob", f"{number} " + "hear me " * 25, kind="room", urgency=AMBIENT)
            await desk.say("cat", "and answer me " * 20)
            desk.lane.steer()
            desk.drawer.meanwhile = crowd

        desk.drawer.meanwhile = crowd
        await desk.say("ann", "look it up")
        report = await desk.take()
        assert not report.failed
        assert model.refused == 0
        desk.drawer.meanwhile = None
        for _ in range(20):
            if not await desk.unread():
                break
            await desk.take()
        spoken = {
            one.seq
            for one in await store.entries(kinds=["mention"], conversation=ROOM.conversation)
        }
        covered = {seq for turn in await desk.ended() for seq in turn.covers}
        assert spoken <= covered  # what was said to it is told, now or later


# A turn can be told of news and be ended from outside, whenever that comes.

T = TypeVar("T")


async def run(lane: TurnHandle, work: Coroutine[Any, Any, T]) -> T:
    """What a turn does, so that it can be interrupted."""
    try:
        with lane.interruptible():
            return await work
    finally:
        work.close()


async def _answer() -> str:
    await asyncio.sleep(0)
    return "answer"


@story
async def test_an_interrupted_turn_has_ended_when_that_is_told() -> None:
    lane, ended, begun = TurnHandle(), asyncio.Event(), asyncio.Event()

    async def long() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # closing takes a moment
            ended.set()

    running = asyncio.create_task(run(lane, long()))
    await begun.wait()
    lane.interrupt()
    with pytest.raises(TurnInterrupted):
        await running
    assert ended.is_set()


@story
async def test_interrupted_and_cancelled_from_above_it_is_cancelled() -> None:
    lane, begun = TurnHandle(), asyncio.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(lane, long()))
    await begun.wait()
    lane.interrupt()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_news_are_told_once() -> None:
    lane = TurnHandle()
    assert not lane.take_news()
    lane.steer()
    lane.steer()
    assert lane.take_news()
    assert not lane.take_news()


# The one line of an autonomous turn.


def tools_called(name: str, arguments: str = "{}", *, error: bool = False) -> TurnStep:
    call = ToolCallRecord(id="c", name=name, arguments=arguments, result="", error=error)
    return TurnStep(text="", calls=(call,))


ATTEND = tools_called("attend", '{"room": "#dev", "reason": "nobody\\nanswers Tom"}')


@pytest.mark.parametrize(
    ("steps", "text", "note"),
    [
        ((), "", ""),
        ((tools_called("read_room"),), "", ""),
        ((tools_called("yield_to_user", '{"note": "  I looked at\\n#dev. "}'),), "", "I looked at #dev."),
        ((ATTEND, tools_called("yield_to_user", '{"note": "Tom waits."}')), "", "Tom waits."),
        ((ATTEND, tools_called("yield_to_user")), "", "attended #dev: nobody answers Tom"),
        ((ATTEND, tools_called("remind", '{"text": "look again"}')), "I see.",
            "attended #dev: nobody answers Tom; set a reminder: look again"),
        ((tools_called("attend", '{"room": "#dev"}', error=True),), "Nothing to do.", "Nothing to do."),
        ((tools_called("tell", '["no object"]'), tools_called("tell", "no JSON")), "", "told; told"),
        ((tools_called("stay_silent", '{"note": 7}'),), "", "7"),
        ((tools_called(CALL_CAPABILITY.name, '{"capability": "stay_silent", "args": {"note": "no"}}'),),
            "", "no"),
        ((tools_called("yield_to_user", '{"note": "' + "x" * 900 + '"}'),), "", "x" * MAX_NOTE_CHARS),
    ],
)  # fmt: skip
def test_the_line_of_a_turn_is_its_own_or_made_of_what_it_did(
    steps: tuple[TurnStep, ...], text: str, note: str
) -> None:
    assert compose_note(steps, text) == note
