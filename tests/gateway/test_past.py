from dataclasses import replace
from datetime import UTC, datetime

from gateway.events import Called, ConversationId, Shown, Step, Usage
from gateway.labels import UNKNOWN, Label
from gateway.past import PastTurn, View
from gateway.records import Folded, Seq, TurnEnded, TurnId
from gateway.views import KEPT_CONVERSATIONS, Past

WHEN = datetime(2026, 3, 1, tzinfo=UTC)


def ended(text: str) -> TurnEnded:
    return TurnEnded(
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
    past, place = Past(), ConversationId("irc.test/#room")
    assert past.pop(place) is None
    past.put(place, View(turns=(PastTurn.from_record(Seq(3), ended("Hi."), WHEN),)))
    view = past.pop(place)
    assert view is not None
    (turn,) = view.turns
    assert (turn.seq, turn.exchange.reply, turn.tokens > 0) == (3, "Hi.", True)
    assert past.pop(place) is None


def test_a_view_has_the_label_of_all_whose_words_are_in_it() -> None:
    olga = PastTurn.from_record(Seq(3), replace(ended("Hi."), least_role="owner"), WHEN)
    page = PastTurn.from_record(Seq(4), replace(ended("Hi."), least_role="owner", foreign="web_fetch"), WHEN)
    mia = PastTurn.from_record(Seq(5), replace(ended("Hi."), least_role="member"), WHEN)
    head = Folded(start=Seq(3), reason="", head="There was more.", least_role="guest", foreign="an attachment")
    assert View().label == View(turns=(olga,)).label == Label("owner", "")
    assert View(turns=(olga, page, mia)).label == Label("member", "web_fetch")
    assert View(fold=head).label == View(turns=(olga, page), fold=head).label == Label("guest", "an attachment")
    assert View(turns=(olga,), fold=replace(head, head="")).label == Label("owner", "")
    assert View(fold=replace(head, least_role="", foreign="")).label == UNKNOWN  # of an earlier version
    assert View(turns=(PastTurn.from_record(Seq(3), ended("Hi."), WHEN),)).label == UNKNOWN


def test_only_the_conversations_that_were_active_last_are_kept() -> None:
    past = Past()
    places = [ConversationId(f"irc.test/#{number}") for number in range(KEPT_CONVERSATIONS + 1)]
    for place in places[:-1]:
        past.put(place, View())
    past.put(places[0], View())  # active again
    past.put(places[-1], View())
    assert past.pop(places[1]) is None
    assert past.pop(places[0]) == past.pop(places[2]) == past.pop(places[-1]) == View()


def test_an_image_that_a_fold_takes_out_is_gone_as_it_is_after_a_restart() -> None:
    """The words beside it are so few that they stay, so nothing else of the turn changes."""
    looked = Called(
        id="1",
        name="view_image",
        arguments='{"path":"a.png"}',
        result="a.png is shown below.",
        images=(Shown(sha256="0" * 64, media_type="image/png", about="a.png", size_bytes=9),),
        untrusted=True,
    )
    turn = PastTurn.from_record(Seq(3), replace(ended("Red."), steps=(Step(text="", calls=(looked,)),)), WHEN)
    spares = Folded(start=Seq(0), reason="", head="", trimmed=Seq(9), spared=1)
    folded = View.build([turn], spares, Seq(5))
    assert folded.turns[0].tool_images
    takes = replace(spares, spared=0)
    again, anew = View.build(folded.turns, takes, Seq(6)), View.build([turn], takes, Seq(6))
    assert again.turns[0].tool_images == anew.turns[0].tool_images == ()
    assert again.digest == anew.digest
