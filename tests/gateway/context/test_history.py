import asyncio
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.context.history import MAX_CACHED_VIEWS, HistoryStore, HistoryTurn, HistoryView
from gateway.core.clock import ManualClock
from gateway.core.events import ConversationId, ToolCallRecord, ToolImage, TurnStep, Usage
from gateway.core.facts import (
    ConversationRewound,
    Fact,
    Seq,
    TurnId,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
)
from gateway.core.labels import OUTSIDE_LABEL, Label
from gateway.store import NewEntry, Store
from gateway.stream.media import MediaStore
from reverie.testing.channels import story
from tests.kits.examples import examples
from tests.kits.settings import live_settings
from tests.kits.strategies import texts

WHEN = datetime(2026, 3, 1, tzinfo=UTC)


def ended(text: str, label: Label = OUTSIDE_LABEL) -> TurnRecord:
    return TurnRecord(
        turn=TurnId("T"),
        covers=(),
        omitted=0,
        heard="[2026-01-01 00:00] ann (guest): hello",
        upto=Seq(1),
        outcome="replied",
        text=text,
        reason="",
        model="scripted",
        usage=Usage(),
        requests=1,
        autonomous=False,
        label=label,
    )


def test_a_view_has_the_label_of_all_whose_words_are_in_it() -> None:
    olga = HistoryTurn.from_record(Seq(3), ended("Hi.", Label("owner")), WHEN)
    page = HistoryTurn.from_record(Seq(4), ended("Hi.", Label("outside", source="web_fetch")), WHEN)
    mia = HistoryTurn.from_record(Seq(5), ended("Hi.", Label("member")), WHEN)
    head = ViewFolded(
        start=Seq(3),
        reason="",
        head="There was more.",
        label=Label("outside", source="an attachment"),
    )
    assert HistoryView().label == HistoryView(turns=(olga,)).label == Label("owner")
    assert HistoryView(turns=(olga, page, mia)).label == Label("outside", source="web_fetch")
    assert (
        HistoryView(fold=head).label
        == HistoryView(turns=(olga, page), fold=head).label
        == Label("outside", source="an attachment")
    )
    assert HistoryView(turns=(olga,), fold=replace(head, head="")).label == Label("owner")


def test_an_image_that_a_fold_takes_out_is_gone_as_it_is_after_a_restart() -> None:
    """The words beside it are so few that they stay, so nothing else of the turn changes."""
    looked = ToolCallRecord(
        id="1",
        name="view_image",
        arguments='{"path":"a.png"}',
        result="a.png is shown below.",
        images=(ToolImage(sha256="0" * 64, media_type="image/png", about="a.png", size_bytes=9),),
        untrusted=True,
    )
    turn = HistoryTurn.from_record(
        Seq(3), replace(ended("Red."), steps=(TurnStep(text="", calls=(looked,)),)), WHEN
    )
    spares = ViewFolded(start=Seq(0), reason="", head="", trimmed=Seq(9), spared=1)
    folded = HistoryView.build([turn], spares, Seq(5))
    assert folded.turns[0].tool_images
    takes = replace(spares, spared=0)
    again, anew = (
        HistoryView.build(folded.turns, takes, Seq(6)),
        HistoryView.build([turn], takes, Seq(6)),
    )
    assert again.turns[0].tool_images == anew.turns[0].tool_images == ()
    assert again.turns[0].exchange.messages == anew.turns[0].exchange.messages


PLACES = [ConversationId("irc.test/#a"), ConversationId("irc.test/#b")]
_near = st.integers(1, 30).map(Seq)
_entries = st.builds(
    NewEntry,
    fact=st.one_of(
        st.builds(ended, texts, st.sampled_from([Label("owner"), Label("guest"), OUTSIDE_LABEL])),
        st.builds(
            ViewFolded,
            start=_near,
            reason=st.just(""),
            head=texts,
            trimmed=_near,
            summed=_near,
            spared=_near,
        ),
        st.builds(ConversationRewound, first=_near, last=st.just(Seq(0)), by=st.just("")),
        st.builds(UnreadDismissed, upto=_near),
    ),
    at=st.just(WHEN),
    conversation=st.sampled_from(PLACES),
)


def _as_of(fact: Fact, last: Seq, rewound: list[ConversationRewound]) -> Fact:
    """Only the past is rewound and folded, and no view begins inside what was rewound there."""
    if isinstance(fact, ConversationRewound):
        rewound.append(replace(fact, last=last))
        return rewound[-1]
    if isinstance(fact, ViewFolded):
        marks = {
            mark: min(getattr(fact, mark), last + 1) for mark in ("start", "trimmed", "summed")
        }
        begun = [one.first for one in rewound if one.first < marks["start"] <= one.last]
        return replace(fact, **marks | {"start": min((marks["start"], *begun))})
    return fact


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(_entries, st.sets(st.sampled_from(PLACES)), st.booleans()), max_size=14))
def test_a_kept_view_is_the_one_that_the_log_gives(
    steps: list[tuple[NewEntry, set[ConversationId], bool]],
) -> None:
    """Views are asked for while the log grows, by models with tools and without."""

    async def play(path: Path) -> None:
        async with await Store.open(path, ManualClock(WHEN)) as store:
            kept = history_of(store)
            rewound = dict[ConversationId, list[ConversationRewound]](
                (place, []) for place in PLACES
            )
            for number, (planned, places, simple) in enumerate(steps):
                assert planned.conversation is not None
                fact = _as_of(planned.fact, Seq(number), rewound[planned.conversation])
                entry = replace(planned, fact=fact)
                await asyncio.gather(
                    store.append([entry]), *[kept.view(place, simple=simple) for place in places]
                )
                for place in PLACES:
                    found, anew = [
                        await one.view(place, simple=simple) for one in (kept, history_of(store))
                    ]
                    assert found == anew

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder) / "s.db"))


@story
async def test_only_the_views_of_the_last_conversations_are_kept_and_cost_no_read(
    tmp_path: Path,
) -> None:
    async with await Store.open(tmp_path / "s.db", ManualClock(WHEN)) as store:
        history = history_of(store)
        places = [ConversationId(f"irc.test/#{number}") for number in range(MAX_CACHED_VIEWS + 1)]
        for place in (*places[:-1], places[0], places[-1]):
            await history.view(place)
        await store._reading.aclose()
        told = NewEntry(fact=ended("Hi."), at=WHEN, conversation=places[0])
        await store.append([told, told])
        assert [turn.record.text for turn in (await history.view(places[0])).turns] == [
            "Hi.",
            "Hi.",
        ]
        with pytest.raises(ValueError, match="losed"):
            await history.view(places[1])


def history_of(store: Store) -> HistoryStore:
    clock = ManualClock(WHEN)
    return HistoryStore(store, clock, MediaStore(live_settings(), Path("/nonexistent"), {}, clock))
