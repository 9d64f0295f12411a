"""Tool results in a turn: the part that the model receives, and the part that is archived."""

import asyncio
import re
from collections.abc import AsyncGenerator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.models.base import ModelRequest, StreamChunk, ToolResult
from agent.prompt import CALL_TOKENS, fence_text, render_partial_result, render_steps
from agent.tokens.counter import estimate_tokens, measure_prompt
from agent.turn import CUT_OFF
from agent.turn_context import (
    RESULT_FRAME_TOKENS,
    ContextWindow,
    TurnOutcome,
    TurnProgress,
    share_budget,
)
from gateway.core.events import EvidenceRef, ToolCallRecord, TurnStep
from gateway.core.text_safety import reveal_hidden
from gateway.core.tool_spec import ResultExcerpt, ToolCall
from tests.kits.evidence import Bring, Desk, calls, source
from tests.kits.examples import examples
from tests.kits.scripted_turn import (
    Played,
    Say,
    brief,
    kept,
    take_turn,
)

LOOK = ("l", "look_up")
ARGUMENTS = [f'{{"q": {number}}}' for number in range(8)]


def run(
    tools: Bring,
    *answers: Say,
    desk: Desk | None = None,
    model: Played | None = None,
    rounds: int = 8,
) -> tuple[TurnOutcome, Played]:
    model = model or Played()
    model.answers = list(answers)

    async def story() -> TurnOutcome:
        async with asyncio.timeout(120):
            return await take_turn(
                brief(), model, tools, key="ana", evidence=desk, max_tool_rounds=rounds
            )

    return asyncio.run(story()), model


def looks(times: int) -> list[Say]:
    """As many answers that look something up, each something else."""
    return [Say(calls=(LOOK,), arguments=one) for one in ARGUMENTS[:times]]


def told(request: ModelRequest) -> list[str]:
    """What the newest results say."""
    return [part.text for part in request.conversation[-1].parts if isinstance(part, ToolResult)]


def test_what_fits_is_told_whole() -> None:
    desk, text = Desk(), "x" * 60_000
    ended, model = run(Bring(text), Say(calls=(LOOK,)), desk=desk)
    assert told(model.requests[1]) == [text]
    assert calls(ended) == [ToolCallRecord(id="l", name="look_up", arguments="{}", result=text)]
    assert (desk.kept, desk.cuts) == ({}, 0)


def test_what_does_not_fit_is_kept_and_told_by_its_beginning() -> None:
    desk, text = Desk(budget_tokens=1_000), "".join(f"line {n}\n" for n in range(1_000))
    ended, model = run(
        Bring(ToolResult(id="", text=text, kind="page", origin="https://a")),
        Say(calls=(LOOK,)),
        desk=desk,
    )
    (called,) = calls(ended)
    assert desk.kept == {"e1": text}
    assert called.source == source("e1", text, origin="https://a")
    assert called.origin == "https://a"
    assert told(model.requests[1]) == [called.result]
    frame, _, excerpt = called.result.partition(" characters:\n")
    assert text.startswith(excerpt)
    assert 400 < estimate_tokens(excerpt) <= 500
    assert frame.splitlines() == [
        "[TOOL RESULT SUMMARY]",
        f"look_up: text, {len(text)} characters, from https://a",
        (
            f"To read it word for word: fetch_evidence with handle e1, offset {len(excerpt)} for what "
            "follows."
        ),
        f"Its first {len(excerpt)}",
    ]
    assert desk.cuts == 0


@pytest.mark.parametrize(
    ("origin", "is_told"),
    [("notes.md", False), ('look_up {"path": "notes.md"}', False), ("b.md", True)],
)
def test_a_call_is_not_repeated_behind_it(origin: str, is_told: bool) -> None:
    written = '{"path": "notes.md"}'
    text = render_partial_result(
        source("e1", "x" * 900, origin=origin), "look_up", "x", call="c", arguments=written
    )
    assert ("notes.md" in text, origin in text) == (False, is_told)


async def test_it_is_durable_before_the_model_is_told() -> None:
    desk = Desk(budget_tokens=0, waits=asyncio.Event(), kept={"e0": ""})
    model = Played(Say(calls=(LOOK,)))
    turn = asyncio.ensure_future(
        take_turn(brief(), model, Bring("x" * 9_000), key="ana", evidence=desk)
    )
    async with asyncio.timeout(120):
        await desk.keeping.wait()
        assert (len(desk.kept), len(model.requests)) == (1, 1)
        assert desk.waits is not None
        desk.waits.set()
        assert (await turn).outcome == "replied"
    assert (len(desk.kept), len(model.requests)) == (2, 2)


def test_the_budget_is_of_the_whole_turn_and_short_results_are_always_told() -> None:
    desk = Desk(budget_tokens=3_000)
    long, short = "x" * 7_000, "Noted."
    ended, _ = run(Bring(long, long, long, short), *looks(4), desk=desk)
    sizes = [estimate_tokens(called.result) for called in calls(ended)]
    assert sizes[0] == estimate_tokens(long)
    assert sizes[0] + sizes[1] + sizes[2] <= 3_000 + 2 * RESULT_FRAME_TOKENS
    assert sizes[1] > sizes[2] > RESULT_FRAME_TOKENS / 2
    assert calls(ended)[3].result == short
    assert len(desk.kept) == 2


def fetched(text: str, offset: int, whole: str) -> ToolResult:
    head = f"[e7; {offset}]\n"
    part = ResultExcerpt(source=source("e7", whole), offset=offset - len(head))
    return ToolResult(id="", text=head + text, excerpt=part)


def test_what_is_a_part_already_is_not_kept_again_and_says_where_it_goes_on() -> None:
    whole = "".join(f"{n:07}\n" for n in range(10_000))
    desk = Desk(budget_tokens=500)
    results = [
        fetched(whole[4_000:4_400], 4_000, whole),
        fetched(whole[4_400:12_000], 4_400, whole),
    ]
    ended, _ = run(Bring(*results), Say(calls=(LOOK,)), Say(calls=(LOOK,)), desk=desk)
    first, second = calls(ended)
    assert first.result == results[0].text
    head, _, rest = second.result.partition("\n")
    text, _, note = rest.rpartition("\n")
    assert head == "[e7; 4400]"
    assert note == (
        "[cut here, for want of room in this turn: what follows begins at offset "
        f"{4_400 + len(text)}]"
    )
    assert whole[4_400:].startswith(text)
    assert text
    assert first.source == second.source == source("e7", whole)
    assert desk.kept == {}


def test_a_huge_result_is_bounded_also_where_nothing_keeps_it() -> None:
    text = "語\ud83d" * 1_000_000
    ended, model = run(Bring(text), Say(calls=(LOOK,)))
    (called,) = calls(ended)
    assert called.result.encode()
    assert called.result.endswith(" more characters]")
    assert estimate_tokens(told(model.requests[1])[0]) < model.context_tokens
    desk = Desk()
    ended, _ = run(Bring(text), Say(calls=(LOOK,)), desk=desk)
    assert desk.kept == {"e1": "語\ufffd" * 1_000_000}
    assert estimate_tokens(calls(ended)[0].result) < 10_000


class Small(Played):
    """With a window of 8k, that is never passed."""

    context_tokens = 8_000
    max_output_tokens = 1_000

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        size = measure_prompt(request)
        assert size.total <= self.context_tokens - self.max_output_tokens
        async for chunk in super().stream(request):
            yield chunk


def test_older_results_give_way_in_a_small_window_and_every_handle_is_whole() -> None:
    desk = Desk()
    texts = [f"{n}" * 6_000 for n in range(8)]
    ended, model = run(Bring(*texts), *looks(8), desk=desk, model=Small())
    assert (ended.outcome, len(model.requests)) == ("replied", 9)
    assert len(desk.kept) >= 6
    for called, text in zip(calls(ended), texts, strict=True):
        assert called.result == text or (
            called.source is not None and desk.kept[called.source.handle] == text
        )
    assert sorted(desk.kept.values()) == sorted(set(desk.kept.values()))  # each once
    assert any(len(result) > 500 for result in told(model.requests[-1]))
    again = brief("[x] ann (guest): more?", kept(brief().input_text, ended.text, ended.steps))
    later = Played()
    asyncio.run(take_turn(again, later, Bring(), key="ana"))
    sent = model.requests[-1].conversation
    assert later.requests[0].conversation[: len(sent)] == sent


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.integers(0, 40_000), min_size=1, max_size=3), max_size=6),
    st.integers(0, 20_000),
    st.integers(0, 6_000),
    st.sampled_from([Played, Small]),
)
def test_budgets_hold(rounds: list[list[int]], budget: int, most: int, kind: type[Played]) -> None:
    desk = Desk(budget_tokens=budget, max_result_tokens=most)
    texts = ["x" * chars for chars in [chars for sizes in rounds for chars in sizes]]
    says = [
        Say(
            calls=tuple(
                (f"c{place}", ("look_up", "jot", "glance")[place]) for place in range(len(sizes))
            ),
            arguments=one,
        )
        for one, sizes in zip(ARGUMENTS, rounds, strict=False)
    ]
    ended, model = run(Bring(*texts), *says, desk=desk, model=kind())
    assert (ended.outcome, len(model.requests)) == ("replied", len(rounds) + 1)
    sizes = [estimate_tokens(called.result) for called in calls(ended)]
    assert sum(sizes) <= budget + sum(
        RESULT_FRAME_TOKENS
        if called.source is None
        else estimate_tokens(render_partial_result(called.source, called.name, "")) + 40
        for called in calls(ended)
    )
    for called, text in zip(calls(ended), texts, strict=True):
        assert called.result == text or (
            called.source is not None and desk.kept[called.source.handle] == text
        )


async def test_a_store_that_fails_ends_the_turn() -> None:
    desk, progress = Desk(budget_tokens=0, fails=OSError("full")), TurnProgress()
    turn = take_turn(
        brief(),
        Played(Say(calls=(LOOK,))),
        Bring("x" * 9_000),
        key="ana",
        evidence=desk,
        progress=progress,
    )
    with pytest.raises(OSError, match="full"):
        await turn
    assert len(progress.current.steps) == 1


class Slow(Desk):
    """Each of its steps takes a moment."""

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef:
        await asyncio.sleep(0)
        kept = await super().keep(call, result)
        await asyncio.sleep(0)
        return kept


@pytest.mark.parametrize("moments", range(40))
async def test_cut_off_at_any_moment_a_turn_says_what_was_done(moments: int) -> None:
    desk, progress = Slow(budget_tokens=2_000), TurnProgress()
    texts = ["a" * 9_000, "b" * 9_000, "c" * 60, "d" * 20_000, "e" * 20_000]
    says = [Say(calls=(LOOK, ("m", "look_up"), ("n", "jot"))), *looks(2), Say(waits=True)]
    model = Small(*says)
    turn = asyncio.ensure_future(
        take_turn(brief(), model, Bring(*texts), key="ana", evidence=desk, progress=progress)
    )
    for _ in range(moments):
        await asyncio.sleep(0)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    done = [called for step in progress.current.steps for called in step.calls]
    assert len(done) <= len(texts)
    for called, text in zip(done, texts, strict=False):
        if called.source is not None:
            assert desk.kept[called.source.handle] == text
        else:
            assert called.result in (text, CUT_OFF) or called.result.endswith(" more characters]")
    read = (
        [part for said in model.requests[-1].conversation for part in said.parts]
        if model.requests
        else []
    )
    assert [part.text for part in read if isinstance(part, ToolResult)] == [
        called.result for called in done
    ][: sum(isinstance(part, ToolResult) for part in read)]


# Budget for tool results: never exceeded, and always used if there is anything to show.


TEXTS = st.lists(
    st.tuples(st.sampled_from(["a", "ab\n", "é", "語", "👩‍👩‍👧"]), st.integers(0, 6_000)).map(
        lambda pair: pair[0] * pair[1]
    ),
    max_size=6,
)
TOKENS = st.integers(0, 8_000)


@given(TEXTS, TOKENS, TOKENS, st.integers(-500, 8_000), st.booleans())
@example(["a" * 40_000, "a" * 400, "a" * 40_000], 18_000, 36_000, 100_000, False)
def test_no_more_is_told_than_there_is(
    texts: list[str], left: int, most: int, room: int, asked: bool
) -> None:
    shares, rest = share_budget(texts, left, most, room, is_excerpt=[asked] * len(texts))
    told = [text[:chars] for text, chars in zip(texts, shares, strict=True)]
    sizes = [estimate_tokens(text) if text else 0 for text in told]
    assert sum(sizes) <= left - rest + RESULT_FRAME_TOKENS * len(texts)
    assert 0 <= rest <= left
    for chars, size, text in zip(shares, sizes, texts, strict=True):
        assert size <= max(most, RESULT_FRAME_TOKENS)
        # The summary of a shorter one would be as long.
        assert chars is None or (chars < len(text) and estimate_tokens(text) > RESULT_FRAME_TOKENS)
    framed = sum(sizes) + sum(
        CALL_TOKENS + (RESULT_FRAME_TOKENS if chars is not None else 0) for chars in shares
    )
    assert framed <= max(0, room) + (2 * RESULT_FRAME_TOKENS + CALL_TOKENS) * len(texts)


def test_a_bill_corrects_what_was_thought_of_a_prompt() -> None:
    window = ContextWindow(16_000, 1_000)
    window.estimated_tokens = 7_000
    assert window.remaining_tokens() == 7_000
    window.record_bill(0)  # some servers tell nothing
    window.record_bill(10)
    assert window.remaining_tokens() == 7_000
    window.record_bill(14_000)
    assert window.remaining_tokens() == 0
    window.estimated_tokens = 3_500
    assert window.remaining_tokens() == 3_500
    window.record_bill(3_500)
    assert window.remaining_tokens() > 10_000


def test_a_prompt_that_is_refused_was_larger_than_the_window() -> None:
    window = ContextWindow(16_000, 1_000)
    window.estimated_tokens = 7_000
    window.record_refusal()
    assert -2_500 < window.remaining_tokens() < -1_500
    window.estimated_tokens = 4_000
    assert window.remaining_tokens() > 0
    window.record_bill(100_000)
    room = window.remaining_tokens()
    window.record_refusal()  # the bill says more
    assert window.remaining_tokens() == room < -3_000


# Untrusted text behind a fence that it cannot forge.


_FENCE = re.compile(r"<<<untrusted ([0-9a-f]{12}) ([^\n]*)\n(.*)\nuntrusted \1>>>", re.DOTALL)


@given(st.text(), st.text(max_size=400), st.text(max_size=20))
def test_it_opens_and_closes_once_whatever_is_in_it(text: str, about: str, key: str) -> None:
    made = fence_text(text, about=about, key=key)
    found = _FENCE.fullmatch(made)
    assert found is not None
    assert found[3] == reveal_hidden(text)
    assert found[1] not in text
    assert made == fence_text(text, about=about, key=key)


def test_results_are_fenced_where_they_are_repeated_and_written_down_as_they_are() -> None:
    one = ToolCallRecord(
        id="a", name="web_fetch", arguments="{}", result="Buy!", origin="http://x/", untrusted=True
    )
    own = ToolCallRecord(id="b", name="jot", arguments="{}", result="It is written.")
    told = render_steps((TurnStep(text="", calls=(one, own)),))[1].parts
    assert isinstance(told[0], ToolResult)
    found = _FENCE.fullmatch(told[0].text)
    assert found is not None
    assert (found[2], found[3]) == ("web_fetch http://x/", "Buy!")
    assert told[1] == ToolResult(id="b", text="It is written.")


@pytest.mark.parametrize(
    ("arguments", "is_named"),
    [
        ('{"url": "http://x/"}', False),
        (r'{"url": "http:\/\/x\/"}', False),
        ('{"capability": "web_fetch", "args": {"url": "http://x/"}}', False),
        ('{"url": "http://x/out?to=http://x/"}', True),  # a redirect's target
        ('{"url": "http://y/?\\"http://x/"}', True),
        ("http://x/ and no JSON", True),
        ("[" * 100_000, True),
    ],
)
def test_an_origin_is_named_unless_an_argument_is_just_that(arguments: str, is_named: bool) -> None:
    record = ToolCallRecord(
        id="a",
        name="web_fetch",
        arguments=arguments,
        result="Buy!",
        origin="http://x/",
        untrusted=True,
    )
    (result,) = render_steps((TurnStep(text="", calls=(record,)),))[1].parts
    assert isinstance(result, ToolResult)
    assert ("http://x/" in result.text) == is_named
