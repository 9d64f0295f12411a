"""Typing and the growing answer: shown while a turn runs, and gone when it has ended."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.models.base import Model, ModelRequest, StreamChunk, StreamEnd, TextPart
from agent.models.scripted import Script, ScriptRule
from channels.base import (
    Announce,
    BeforeSend,
    PostPart,
    RateLimited,
    Rejected,
    SendError,
    Unreachable,
    no_announcement,
    no_before_send,
    provisional_id,
)
from channels.split import split_text
from gateway import app
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ConnectionChanged,
    EventId,
    MessageId,
    Post,
    Receipt,
    RoomId,
    Usage,
)
from gateway.core.facts import PreviewEnded, PreviewShown, TurnRecord
from gateway.core.tool import permits_of
from gateway.core.tool_spec import ToolCall
from gateway.plugins import find_plugins
from gateway.plugins.previews import _TOOL_STATUSES, Previews, describe_tool_call
from gateway.runtime.turn_record import SLOW_TEXT
from gateway.store import NewEntry, Store, rebuild
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, Gateway, Held, running
from reverie.testing.waiting import until
from tests.kits.handle import handle_of
from tests.kits.places import PlayedChannels
from tests.kits.plugins import plugins_of
from tests.kits.scripted_turn import Played

LONG = Script(
    rules=(ScriptRule(match="", reply="one two three four five six seven eight nine ten. " * 4),),
    pace_s=0.02,
)


SILENT = Script(
    rules=(
        ScriptRule(
            match="", reply="I might say something about it. " * 5, calls=(("stay_silent", "{}"),)
        ),
    ),
    pace_s=0.02,
)


class Showing(ConsoleChannel):
    """A console that types and previews. `seen` lists everything that was shown, in order."""

    typing_interval_s = 0.05
    preview_interval_s = 0.03

    def __init__(self, *, drafts: bool = False) -> None:
        super().__init__(CONSOLE, self._sent)
        self.seen: list[tuple[str, str]] = []
        self.standing: dict[MessageId, str] = {}
        self.drafts = drafts
        self.fails: SendError | Exception | None = None
        """Raised by the next preview, and by every later one."""
        self.full = 0
        """Number of previews to refuse with a rate limit of a tenth of a second."""
        self.stays: list[SendError] = []
        """Raised by the next attempts to delete a preview, one each."""
        self.hold: asyncio.Event | None = None
        """Previews wait for it before they are shown."""
        self._busy = False

    def _sent(self, part: PostPart) -> None:
        if part.finishes is not None:
            self.seen.append(("finished", part.finishes))
            self.standing.pop(part.finishes, None)
        self.seen.append(("sent", part.body))

    async def typing(self, at: Address, *, active: bool) -> None:  # noqa: ARG002 - one room at a time
        self.seen.append(("typing", str(active)))

    async def preview(
        self,
        at: Address,  # noqa: ARG002 - the same
        body: str,
        shown: MessageId | None,
        *,
        is_full: bool = False,
        reply_to: MessageId | None = None,  # noqa: ARG002 - no place is shown
        announce: Announce = no_announcement,
    ) -> MessageId | None:
        assert not self._busy
        self._busy = True
        try:
            await (self.hold.wait() if self.hold else asyncio.sleep(0.001))
            if self.fails is not None:
                raise self.fails
            if self.full:
                self.full -= 1
                raise RateLimited("no room", retry_after_s=0.1)
        finally:
            self._busy = False
        self.seen.append(("preview", body))
        if self.drafts and not is_full and shown is None:
            return None
        name = shown or MessageId(f"p{len(self.seen)}")
        if shown is None:
            await announce(provisional_id(name))
        self.standing[name] = body
        return name

    async def delete_preview(self, at: Address, shown: MessageId) -> None:  # noqa: ARG002 - the same
        if self.stays:
            raise self.stays.pop(0)
        self.seen.append(("unpreview", shown))
        self.standing.pop(shown, None)

    def of(self, kind: str) -> list[str]:
        return [what for name, what in self.seen if name == kind]


@asynccontextmanager
async def greeted(
    folder: Path, model: Script | Model, console: Showing, **more: Any
) -> AsyncIterator[Gateway]:
    """A gateway to which somebody has said hello."""
    async with running(folder, model, channels={CONSOLE: console}, **more) as gateway:
        await console.receive_message("hello", sender="ann")
        yield gateway


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.plugins.previews.FIRST_LOOK_S", 0.01)


@pytest.mark.parametrize(
    ("name", "arguments", "status"),
    [
        (
            "web_fetch",
            '{"url": "https://docs.Example.org:8080/a?b=c"}',
            "Reading docs.example.org…",
        ),
        ("web_fetch", '{"url": "http://10.0.0.1/"}', "Reading a page…"),
        ("web_fetch", '{"url": "https://wiki.internal/"}', "Reading a page…"),
        ("web_fetch", '{"url": "https://me:pw@example.org/"}', "Reading a page…"),
        ("web_fetch", "[]", "Reading a page…"),
        (
            "call_capability",
            '{"capability": "web_search", "args": {"query": "me"}}',
            "Searching the web…",
        ),
        ("mcp_github_list_issues", "{}", "Using the tool github_list_issues…"),
        ("journal", "{}", ""),
    ],
)
def test_a_tool_at_work_is_told_without_what_may_not_be_for_the_room(
    name: str, arguments: str, status: str
) -> None:
    assert describe_tool_call(ToolCall(id="c", name=name, arguments=arguments)) == status


def test_each_status_is_of_a_tool_that_there_is() -> None:
    assert set(permits_of(*find_plugins().classes)) >= set(_TOOL_STATUSES)


async def test_no_beginning_of_a_secret_is_seen_growing(tmp_path: Path) -> None:
    console, key = Showing(), "sk-ant-api03-" + "a1b2c3d4" * 40
    script = Script(
        rules=(ScriptRule(match="", reply=f"one two three {key} four five six. " + "seven " * 20),),
        pace_s=0.01,
    )
    async with greeted(tmp_path, script, console):
        await until(lambda: bool(console.of("sent")))
    assert len(console.of("preview")) > 2
    assert not [text for text in console.of("preview") if "sk-" in text]
    assert "three [redacted] four" in console.of("sent")[0]


async def test_typing_lasts_as_long_as_the_turn(tmp_path: Path) -> None:
    console, model = Showing(), Held()
    async with greeted(tmp_path, model, console) as gateway:
        await until(
            lambda: console.of("typing").count("True") >= 3
        )  # for as long as the model takes
        model.go.set()
        await gateway.took(1)
        await until(lambda: console.of("typing")[-1:] == ["False"])
    assert console.of("typing").count("False") == 1
    assert console.of("typing")[-1] == "False"


async def test_an_answer_is_seen_growing_and_then_stands_once(tmp_path: Path) -> None:
    console = Showing()
    async with greeted(tmp_path, LONG, console) as gateway:
        await until(lambda: bool(console.of("sent")))
        (turn,) = await gateway.turns()
        grown = console.of("preview")
        assert len(grown) >= 2
        assert all(turn.text.startswith(text) for text in grown)
        assert [len(text) for text in grown] == sorted(len(text) for text in grown)
        kinds = [kind for kind, _ in console.seen if kind != "typing"]
        assert kinds == ["preview"] * len(grown) + [
            "finished",
            "sent",
        ]  # half of it never stands beside the whole
        facts = await gateway.facts("previewed", "preview_ended")
        assert [type(fact) for fact in facts] == [
            PreviewShown,
            PreviewShown,
            PreviewEnded,
            PreviewEnded,
        ]
    assert not console.standing
    assert await rebuild(tmp_path / "reverie.db") == []


class Short(Showing):
    """One whose messages hold 60 characters."""

    def split(self, post: Post) -> tuple[str, ...]:
        return split_text(post.text, 60)


@pytest.mark.parametrize("drafts", [False, True])
async def test_an_answer_that_fills_a_message_goes_on_in_the_next_one_at_once(
    tmp_path: Path, drafts: bool
) -> None:
    console = Short(drafts=drafts)
    async with greeted(tmp_path, LONG, console) as gateway:
        await until(lambda: len(console.of("sent")) == 4)
        (turn,) = await gateway.turns()
        parts = split_text(turn.text, 60)
        grown = console.of("preview")
        assert all(any(part.startswith(text) for part in parts) for text in grown)
        for part in parts[:-1]:
            assert grown.count(part) in (
                1,
                2,
            )  # 2: a draft that is full before more is known becomes a message
        assert console.of("sent") == list(parts)
        # A draft is not there any more, nor was the last part shown before if it came at once.
        assert len(console.of("finished")) in (len(parts) - 1, len(parts) - drafts)
    assert (console.standing, console.of("unpreview")) == ({}, [])
    assert await rebuild(tmp_path / "reverie.db") == []


async def test_an_answer_shorter_than_what_was_shown_leaves_no_message_of_it(
    tmp_path: Path,
) -> None:
    console, before = Short(), "Let me look something up first. " * 6
    steps = (
        ScriptRule(match="hello", reply=before, calls=(("glob", '{"pattern": "*"}'),)),
        ScriptRule(match="", reply="There is nothing."),
    )
    async with greeted(tmp_path, Script(rules=steps, pace_s=0.05), console) as gateway:
        await until(lambda: bool(console.of("sent")))
        assert len(set(console.of("preview"))) > 3
        assert console.of("sent") == ["There is nothing."]
        await until(lambda: not console.standing)
        await gateway.took(1)
    async with await Store.open_readonly(tmp_path / "reverie.db") as reader:
        assert await reader.open_previews() == []


async def test_an_answer_of_which_somebody_deletes_a_message_is_posted_whole(
    tmp_path: Path,
) -> None:
    class Deleted(Short):
        async def preview(
            self, at: Address, body: str, shown: MessageId | None, **more: Any
        ) -> MessageId | None:
            if shown is not None and len(self.standing) > 1:
                raise Rejected("there is no such message")
            return await super().preview(at, body, shown, **more)

    console = Deleted()
    async with greeted(tmp_path, LONG, console):
        await until(lambda: len(console.of("sent")) == 4)
    assert (console.standing, console.of("finished")) == ({}, [])


@pytest.mark.parametrize(("taken", "ends"), [(0, False), (1, False), (1, True)])
async def test_nothing_stands_of_an_answer_that_is_refused_but_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, ends: bool
) -> None:
    """Also if the process `ends` before it is deleted."""
    monkeypatch.setattr("gateway.plugins.previews.TAKE_OVER_S", 0.0)

    class Moderated(Short):
        async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
            if part.finishes is not None and len(self.of("finished")) >= taken:
                raise Rejected("blocked by a filter of words")
            return await super().send(part, before_send)

    console = Moderated()
    console.stays.extend([Unreachable("no network")] * 100 * ends)
    async with greeted(tmp_path, LONG, console):
        await until(lambda: "filter" in " ".join(console.of("sent")))  # the notice
        await until(lambda: ends or not console.standing)
    console.stays = []
    async with running(tmp_path, LONG, channels={CONSOLE: console}):
        await until(lambda: not console.standing)
    finished, deleted = console.of("finished"), console.of("unpreview")
    assert (len(finished), len(deleted) > 1) == (taken, True)
    assert not {*finished} & {*deleted}
    assert await rebuild(tmp_path / "reverie.db") == []


async def test_a_reminder_is_posted_as_a_whole_for_an_edit_notifies_nobody(tmp_path: Path) -> None:
    asked = ScriptRule(
        match="remind me of the tea", calls=(("remind", '{"text":"the tea","at":"in 1 s"}'),)
    )
    script = Script(rules=(asked, *LONG.rules), pace_s=LONG.pace_s)
    console = Showing()
    async with running(
        tmp_path, script, channels={CONSOLE: console}, access={"dm": "open"}, dmn={"dream_every": 0}
    ):
        await console.receive_message("remind me of the tea", sender="ann")
        await until(lambda: len(console.of("sent")) == 1)
        answered = len(console.seen)
        await until(lambda: len(console.of("sent")) == 2)
    assert {kind for kind, _ in console.seen[answered:]} - {"typing"} == {"sent"}


async def test_drafts_need_no_record(tmp_path: Path) -> None:
    console = Showing(drafts=True)
    async with greeted(tmp_path, LONG, console) as gateway:
        await until(lambda: bool(console.of("sent")))
        assert console.of("preview")
        assert not await gateway.facts("previewed", "preview_ended")
    assert not console.of("unpreview")


async def test_a_turn_that_ends_in_silence_leaves_no_preview(tmp_path: Path) -> None:
    console = Showing()
    async with greeted(tmp_path, SILENT, console) as gateway:
        await gateway.took(1)
        await until(lambda: bool(console.of("unpreview")))
    assert (console.standing, console.of("sent")) == ({}, [])


@pytest.mark.parametrize("error", [Rejected("no"), Unreachable("down"), RuntimeError("bug")])
async def test_a_preview_that_fails_ends_previews_and_nothing_else(
    tmp_path: Path, error: Exception
) -> None:
    console = Showing()
    console.fails = error
    async with greeted(tmp_path, LONG, console) as gateway:
        await gateway.took(1)
        await until(lambda: bool(console.of("sent")))
    assert not console.of("preview")


@pytest.mark.parametrize(("kind", "count"), [(Showing, 1), (Short, 2)])
async def test_the_next_start_goes_on_in_what_a_cut_turn_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Showing], count: int
) -> None:
    monkeypatch.setattr(app, "TURN_GRACE_S", 0.05)
    console = kind()
    async with greeted(tmp_path, Script(rules=LONG.rules, pace_s=0.5), console) as gateway:
        await until(lambda: len(console.standing) == count)
        await until(lambda: gateway.facts("previewed"))
        first, *others = console.standing
    again = kind()
    async with running(tmp_path, Script(), channels={CONSOLE: again}) as gateway:
        await gateway.took(1)
        await until(
            lambda: (
                bool(again.of("sent")) and console.of("unpreview") + again.of("unpreview") == others
            )
        )
        assert again.of("finished") == [first]
    async with await Store.open_readonly(tmp_path / "reverie.db") as reader:
        assert await reader.open_previews() == []


async def test_a_preview_whose_channel_was_gone_is_deleted_once_it_is_back(store: Store) -> None:
    clock, console, channels = ManualClock(), Showing(), PlayedChannels()
    plugins = plugins_of(Previews, gateway=handle_of(store, clock, channels=channels))
    previews, at = plugins.get(Previews), Address(channel=CONSOLE, room=RoomId("ann"))
    assert previews is not None
    await previews.record(PreviewShown(at=at, message=MessageId("p1")))
    previews.clear_later(at, MessageId("p1"))  # there is no channel
    await asyncio.sleep(0)
    channels[CONSOLE] = console
    up = ConnectionChanged(id=EventId("u"), channel=CONSOLE, up=True, reason="", sent=clock.now())
    await store.append([NewEntry(fact=up, at=clock.now())])

    async def is_gone() -> bool:
        clock.advance(1.0)
        return await store.open_previews() == []

    await until(is_gone)
    assert console.of("unpreview") == ["p1"]
    await plugins.stop()


async def test_nothing_of_a_tool_call_is_shown(tmp_path: Path) -> None:
    console = Showing()
    reply = (
        'Let me look it up. <tool_call>{"name": "look", "arguments": {}}</tool_call> '
        + "and so on " * 10
    )
    async with running(
        tmp_path,
        Script(rules=(ScriptRule(match="", reply=reply),), pace_s=0.02),
        channels={CONSOLE: console},
    ) as gateway:
        await console.receive_message("hello", sender="ann")
        await gateway.took(1)
        await until(lambda: bool(console.of("sent")))
    assert console.of("preview")
    assert all("Let me look it up.".startswith(text) for text in console.of("preview"))


async def test_a_call_that_hangs_holds_no_answer_up_and_its_message_goes_when_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.plugins.previews.SETTLE_S", 0.02)
    console = Showing()
    console.hold = asyncio.Event()
    async with running(tmp_path, LONG, channels={CONSOLE: console}) as gateway:
        assert console.hold is not None
        await console.receive_message("hello", sender="ann")
        await until(lambda: bool(console.of("sent")))
        console.hold.set()
        await until(lambda: bool(console.of("unpreview")))
        await until(lambda: gateway.facts("preview_ended"))
    assert [kind for kind, _ in console.seen if kind != "typing"] == [
        "sent",
        "preview",
        "unpreview",
    ]


async def test_a_preview_of_an_answer_that_is_interrupted_becomes_the_next_one(
    tmp_path: Path,
) -> None:
    console, ended = Showing(), list[TurnRecord]()
    agents = [{"id": "reverie", "bindings": [{"match": {"channel": "*"}, "arrivals": "interrupt"}]}]
    async with greeted(tmp_path, LONG, console, agents=agents) as gateway:
        await until(lambda: bool(console.standing))
        await console.receive_message("no, wait", sender="ann")
        await until(lambda: bool(console.of("sent")))
        ended.extend(await gateway.turns())
    assert [(turn.outcome, len(turn.covers)) for turn in ended] == [
        ("interrupted", 1),
        ("replied", 1),
    ]
    assert (len(console.of("sent")), console.standing) == (1, {})
    assert (len(console.of("finished")), console.of("unpreview")) == (1, [])


async def _asked_held(console: ConsoleChannel, model: Held) -> None:
    """Somebody asks; the model, which says nothing yet, has been asked."""
    await console.receive_message("hello", sender="ann")
    await until(lambda: len(model.requests) == 1)


async def test_a_slow_model_is_told_of_in_the_preview_which_the_answer_replaces(
    tmp_path: Path,
) -> None:
    console, clock, model = Showing(), ManualClock(), Held()
    async with running(tmp_path, model, channels={CONSOLE: console}, clock=clock):
        await _asked_held(console, model)
        while not console.of("preview"):
            clock.advance(0.5)
            await asyncio.sleep(0.005)
        assert clock.monotonic() >= 20
        assert console.of("preview") == [SLOW_TEXT]
        model.go.set()
        await until(lambda: console.of("sent"))
        assert not console.standing
        assert console.of("sent")[0].startswith("You said")
    assert len(console.of("sent")) == 1


async def test_a_slow_model_is_told_of_in_one_line_where_there_are_no_previews(
    tmp_path: Path,
) -> None:
    clock, model = ManualClock(), Held()
    async with running(tmp_path, model, clock=clock) as gateway:
        await _asked_held(gateway.console, model)
        while not gateway.screen.parts:
            clock.advance(0.5)
            await asyncio.sleep(0.005)
        assert clock.monotonic() >= 20
        for _ in range(10):
            clock.advance(30)
            await asyncio.sleep(0.005)
        model.go.set()
        await gateway.screen.until(2)
        await gateway.ask("and now?", sender="ann")
        slow, *answers = gateway.screen.parts
        assert (slow.body, slow.style) == (SLOW_TEXT, "notice")
        assert all(one.body.startswith("You said") for one in answers)
        assert SLOW_TEXT not in str(model.requests[-1].conversation)  # it is not the agent's word


class Stalled(Played):
    """It says its first words, and no more until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        yield TextPart(text="Once upon a time ")
        self.begun.set()
        await self.go.wait()
        yield TextPart(text="there was an end.")
        yield StreamEnd(stop_reason="end", usage=Usage(), model="stalled")


class Dripping(Played):
    """It says a word whenever `more` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.more = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        for number in range(12):
            yield TextPart(text=f"word{number} ")
            await self.more.wait()
            self.more.clear()
        yield StreamEnd(stop_reason="end", usage=Usage(), model="dripping")


async def test_an_answer_that_grows_slowly_is_told_of_where_nobody_sees_it_grow(
    tmp_path: Path,
) -> None:
    clock, model = ManualClock(), Dripping()
    async with running(tmp_path, model, clock=clock) as gateway:
        await gateway.console.receive_message("hello", sender="ann")
        for _ in range(12):
            await until(lambda: not model.more.is_set())
            if clock.monotonic() < 50:
                assert not gateway.screen.parts
            for _ in range(10):
                clock.advance(1)
                await asyncio.sleep(0.005)
            model.more.set()
        await gateway.screen.until(2)
        assert [SLOW_TEXT in one.body for one in gateway.screen.parts] == [True, False]


@pytest.mark.parametrize("previews", [True, False])
async def test_an_answer_that_stalls_in_the_middle_is_told_of_as_soon_as_one_that_does_not_begin(
    tmp_path: Path, *, previews: bool
) -> None:
    clock, model, console = ManualClock(), Stalled(), Showing()
    async with running(
        tmp_path, model, clock=clock, channels={CONSOLE: console} if previews else {}
    ) as gateway:

        def told() -> list[str]:
            seen = (
                console.of("preview") if previews else [part.body for part in gateway.screen.parts]
            )
            return [text for text in seen if SLOW_TEXT in text]

        await (console if previews else gateway.console).receive_message("hello", sender="ann")
        while not model.begun.is_set():
            clock.advance(0.5)
            await asyncio.sleep(0.005)
        began_s = clock.monotonic()
        while not told() and clock.monotonic() - began_s < 23.5:
            clock.advance(0.5)
            await asyncio.sleep(0.005)
        await until(told)  # on a busy machine the clock is ahead of who waits for it
        assert clock.monotonic() - began_s >= 19
        assert not previews or "Once upon a time" in told()[0]
        model.go.set()
        if previews:
            await until(lambda: console.of("sent"))
        else:
            await gateway.screen.until(2)
