from dataclasses import replace
from datetime import UTC, datetime

from gateway.context.history import MAX_CACHED_VIEWS, HistoryCache, HistoryTurn, HistoryView
from gateway.core.events import ConversationId, ToolCallRecord, ToolImage, TurnStep, Usage
from gateway.core.facts import Seq, TurnId, TurnRecord, ViewFolded
from gateway.core.trust import UNKNOWN_LABEL, TrustLabel

WHEN = datetime(2026, 3, 1, tzinfo=UTC)


def ended(text: str) -> TurnRecord:
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
    )


def test_a_view_that_is_taken_and_not_kept_again_must_be_read_from_the_log() -> None:
    past, place = HistoryCache(), ConversationId("irc.test/#room")
    assert past.pop(place) is None
    past.put(place, HistoryView(turns=(HistoryTurn.from_record(Seq(3), ended("Hi."), WHEN),)))
    view = past.pop(place)
    assert view is not None
    (turn,) = view.turns
    assert (turn.seq, turn.exchange.reply, turn.tokens > 0) == (3, "Hi.", True)
    assert past.pop(place) is None


def test_a_view_has_the_label_of_all_whose_words_are_in_it() -> None:
    olga = HistoryTurn.from_record(Seq(3), replace(ended("Hi."), least_role="owner"), WHEN)
    page = HistoryTurn.from_record(Seq(4), replace(ended("Hi."), least_role="owner", foreign="web_fetch"), WHEN)
    mia = HistoryTurn.from_record(Seq(5), replace(ended("Hi."), least_role="member"), WHEN)
    head = ViewFolded(start=Seq(3), reason="", head="There was more.", least_role="guest", foreign="an attachment")
    assert HistoryView().label == HistoryView(turns=(olga,)).label == TrustLabel("owner", "")
    assert HistoryView(turns=(olga, page, mia)).label == TrustLabel("member", "web_fetch")
    assert (
        HistoryView(fold=head).label
        == HistoryView(turns=(olga, page), fold=head).label
        == TrustLabel("guest", "an attachment")
    )
    assert HistoryView(turns=(olga,), fold=replace(head, head="")).label == TrustLabel("owner", "")
    assert HistoryView(fold=replace(head, least_role="", foreign="")).label == UNKNOWN_LABEL  # of an earlier version
    assert HistoryView(turns=(HistoryTurn.from_record(Seq(3), ended("Hi."), WHEN),)).label == UNKNOWN_LABEL


def test_only_the_conversations_that_were_active_last_are_kept() -> None:
    past = HistoryCache()
    places = [ConversationId(f"irc.test/#{number}") for number in range(MAX_CACHED_VIEWS + 1)]
    for place in places[:-1]:
        past.put(place, HistoryView())
    past.put(places[0], HistoryView())  # active again
    past.put(places[-1], HistoryView())
    assert past.pop(places[1]) is None
    assert past.pop(places[0]) == past.pop(places[2]) == past.pop(places[-1]) == HistoryView()


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
    turn = HistoryTurn.from_record(Seq(3), replace(ended("Red."), steps=(TurnStep(text="", calls=(looked,)),)), WHEN)
    spares = ViewFolded(start=Seq(0), reason="", head="", trimmed=Seq(9), spared=1)
    folded = HistoryView.build([turn], spares, Seq(5))
    assert folded.turns[0].tool_images
    takes = replace(spares, spared=0)
    again, anew = HistoryView.build(folded.turns, takes, Seq(6)), HistoryView.build([turn], takes, Seq(6))
    assert again.turns[0].tool_images == anew.turns[0].tool_images == ()
    assert again.digest == anew.digest
