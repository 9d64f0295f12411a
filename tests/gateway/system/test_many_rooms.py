"""Many rooms ask at once: so many turns at a time, the others in their order, and told that they
wait."""

import asyncio
from pathlib import Path

import pytest

from gateway.config.loader import parse_config
from gateway.core.clock import ManualClock
from gateway.runtime.agent import LANES, LANES_OF_OWN_MODEL, build_dmn_policy
from gateway.runtime.turn_record import QUEUED_TEXT
from reverie.testing.gateway import Gateway, Held, running
from reverie.testing.waiting import until

ROOMS = [f"room{number}" for number in range(6)]
ANSWER = "You said: "


@pytest.mark.parametrize(
    ("kind", "dmn", "lanes"),
    [
        ("anthropic", {}, LANES),
        ("local", {}, LANES_OF_OWN_MODEL),
        ("local", {"parallel_turns": 3}, 3),
    ],
)
def test_a_model_that_refuses_nothing_is_asked_by_few_at_a_time(
    tmp_path: Path, kind: str, dmn: dict[str, int], lanes: int
) -> None:
    llm = {
        "providers": {"p": {"kind": kind}},
        "models": {"main": {"provider": "p", "name": "m"}},
    }
    given = {"agents": [{"id": "ana"}], "llm": llm, "store": {"path": "r.db"}, "dmn": dmn}
    assert build_dmn_policy(parse_config(given, tmp_path), "ana").lanes == lanes


async def asked(gateway: Gateway, room: str, text: str = "hello?") -> None:
    await gateway.say(f"reverie, {text}", sender="ann", room=room)


async def test_a_hundred_rooms_are_answered_side_by_side(tmp_path: Path) -> None:
    rooms, model = [f"room{number}" for number in range(99)], Held()
    async with running(tmp_path, model, rooms=rooms) as gateway:
        for room in rooms:
            await asked(gateway, room)
        await gateway.asked(99)  # all of them, before any is answered
        model.go.set()
        await gateway.screen.until(99)
    assert sorted(part.to.room for part in gateway.screen.parts) == sorted(rooms)


async def test_who_has_to_wait_for_others_is_told_once_and_answered_in_turn(tmp_path: Path) -> None:
    clock, model = ManualClock(), Held()
    async with running(
        tmp_path, model, rooms=ROOMS, clock=clock, dmn={"parallel_turns": 3}
    ) as gateway:
        for room in ROOMS[:4]:  # one of the three is for direct chats alone
            await asked(gateway, room)
            await asyncio.sleep(0.02)
        await asked(gateway, ROOMS[0], "and again?")
        await gateway.asked(2)
        clock.advance(14)
        await asyncio.sleep(0.02)
        assert gateway.screen.parts == []
        while len(gateway.screen.parts) < 2:
            clock.advance(0.5)
            await asyncio.sleep(0.005)
        assert clock.monotonic() >= 15
        assert [(part.to.room, part.body, part.style) for part in gateway.screen.parts] == [
            (room, QUEUED_TEXT, "notice") for room in ROOMS[2:4]
        ]
        model.go.set()
        await until(
            lambda: len([one for one in gateway.screen.parts if one.body.startswith(ANSWER)]) >= 5
        )
        taken_up = [one.conversation_id for one in model.requests][:5]
        assert len(set(taken_up[:4])) == 4, "nobody is taken up twice before all are once"
        assert taken_up[4] == taken_up[0]
        queued = [part for part in gateway.screen.parts if part.body == QUEUED_TEXT]
        assert len(queued) == 2
        assert QUEUED_TEXT not in str(model.requests[-1].conversation)
