from datetime import UTC, datetime

from gateway.events import ConversationId, Usage
from gateway.past import PastTurn, View
from gateway.records import Seq, TurnEnded, TurnId
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
    assert past.take(place) is None
    past.keep(place, View(turns=(PastTurn.of(Seq(3), ended("Hi."), WHEN),)))
    view = past.take(place)
    assert view is not None
    (turn,) = view.turns
    assert (turn.seq, turn.exchange.reply, turn.tokens > 0) == (3, "Hi.", True)
    assert past.take(place) is None


def test_only_the_conversations_that_were_active_last_are_kept() -> None:
    past = Past()
    places = [ConversationId(f"irc.test/#{number}") for number in range(KEPT_CONVERSATIONS + 1)]
    for place in places[:-1]:
        past.keep(place, View())
    past.keep(places[0], View())  # active again
    past.keep(places[-1], View())
    assert past.take(places[1]) is None
    assert past.take(places[0]) == past.take(places[2]) == past.take(places[-1]) == View()
