"""The judge can fail: days made by hand, with what is wrong in them planted."""

from collections.abc import Sequence

import pytest

from agent.prompts import load_prompt
from reverie.testing.servers.model_api import Answer
from tests.life.judge import (
    Day,
    Line,
    Request,
    Rule,
    answered,
    guided,
    idle,
    never,
    no_afterthought,
    nothing_twice,
    once,
    shown,
    silent,
    told,
    told_once,
)
from tests.life.world import moment

OLGA = "alone:olga"


def line(at: str, place: str, who: str, text: str, *, to_bot: bool = False) -> Line:
    return Line(moment(at), place, who, text, to_bot)


def request(at: str, place: str, text: str, now: str = "") -> Request:
    messages = [{"role": "user", "content": text}, {"role": "system", "content": now}]
    return Request(moment(at), place, {"system": "You are here.", "messages": messages}, Answer())


CHAT_COMMANDS = line("10:00", OLGA, "olga", "what happened?", to_bot=True)
TELLS = line("10:00", OLGA, "reverie", "the disk is full")
AGAIN = line("12:00", OLGA, "reverie", "the disk is full")
SECRET = line("09:00", "family", "reverie", "a surprise party!")
CASES: Sequence[tuple[Rule, Day, Day]] = [
    (
        told(OLGA, "disk", since=moment("09:55"), by=moment("10:05")),
        Day(said=[TELLS]),
        Day(said=[AGAIN]),
    ),
    (told_once(OLGA, "disk"), Day(said=[CHAT_COMMANDS, TELLS, AGAIN]), Day(said=[TELLS, AGAIN])),
    (nothing_twice(), Day(said=[TELLS]), Day(said=[TELLS, AGAIN])),
    (never("surprise", outside=(OLGA,)), Day(said=[TELLS]), Day(said=[SECRET])),
    (
        never("surprise", outside=(OLGA,)),
        Day(said=[], requests=[request("09:00", OLGA, "the surprise")]),
        Day(said=[], requests=[request("09:00", "family", "the surprise")]),
    ),
    (
        silent(OLGA, moment("11:00"), moment("13:00"), "why"),
        Day(said=[TELLS]),
        Day(said=[TELLS, AGAIN]),
    ),
    (answered(), Day(said=[CHAT_COMMANDS, TELLS]), Day(said=[CHAT_COMMANDS, AGAIN])),
    (
        once(),
        Day(said=[CHAT_COMMANDS, TELLS]),
        Day(said=[CHAT_COMMANDS, TELLS, line("10:01", OLGA, "reverie", "as I said")]),
    ),
    (
        shown(OLGA, moment("10:00"), "disk"),
        Day(said=[], requests=[request("10:00", OLGA, "what?", now="the disk")]),
        Day(said=[], requests=[request("10:00", "#dev", "the disk"), request("10:00", OLGA, "?")]),
    ),
    (
        no_afterthought(),
        Day(said=[CHAT_COMMANDS, TELLS], requests=[request("10:00", OLGA, "what happened?")]),
        Day(said=[CHAT_COMMANDS, TELLS], requests=[request("10:01", OLGA, "(nothing new)")]),
    ),
    (
        guided(),
        Day(said=[], requests=[request("10:00", "inner", "", now=load_prompt("resting"))]),
        Day(said=[], requests=[request("10:00", "inner", "")]),
    ),
    (
        idle(moment("00:00"), moment("+00:00")),
        Day(said=[]),
        Day(said=[], requests=[request("10:00", "inner", "")]),
    ),
]


@pytest.mark.parametrize(("rule", "right", "wrong"), CASES, ids=[rule.name for rule, *_ in CASES])
def test_a_rule_finds_what_is_planted(rule: Rule, right: Day, wrong: Day) -> None:
    assert rule.broken(right) == []
    assert rule.broken(wrong) != []
