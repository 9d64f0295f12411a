"""A family's bot: a group on Telegram, and three who write to it alone. Mum runs it."""

from pathlib import Path

from tests.life.judge import (
    Rule,
    answered,
    guided,
    never,
    no_afterthought,
    nothing_twice,
    once,
    report,
    shown,
    silent,
    told,
    told_once,
)
from tests.life.world import Scene, Setting, live, moment, watching

SETTING = Setting(
    telegram=("family",),
    owners=("mum",),
    config=watching("Mum", sleep="22:00-07:00"),
    pages={"/tickets": [("00:00", "No tickets yet."), ("19:00", "The tickets are out.")]},
    until="+12:00",
)
SCENES = [
    Scene(*one)
    for one in (
        ("07:30", "alone", "mum", "the surprise party for dad is on saturday at three"),
        ("08:00", "alone", "tim", "remind me at 17:00 to feed the rabbit"),
        ("09:00", "family", "dad", "good morning all"),
        ("09:01", "family", "tim", "morning"),
        (
            "10:00",
            "alone",
            "mum",
            "please look at 20:00 whether the tickets are out on {site}/tickets",
        ),
        ("11:00", "family", "dad", "@ what happens on saturday?"),
        ("11:05", "alone", "dad", "is there a party on saturday?"),
        ("12:00", "family", "dad", "@ remind us at 18:00 that dinner is ready"),
        ("13:00", "family", "tim", "who took my bike?"),
        ("13:01", "family", "dad", "I did, it is in the shed"),
        ("15:30", "alone", "tim", "please tell mum that I am late, the bus is broken"),
        ("16:30", "alone", "mum", "what happened while I was away?"),
        ("16:31", "alone", "mum", "thanks"),
        ("22:40", "alone", "tim", "please tell mum that I sleep at Jan's"),
        ("+08:00", "alone", "mum", "what happened during the night?"),
    )
]
MUM, DAD, TIM = "alone:mum", "alone:dad", "alone:tim"
RULES: list[Rule] = [
    told(TIM, "rabbit", since=moment("17:00"), by=moment("17:06")),
    told_once(TIM, "rabbit"),
    told("family", "dinner", since=moment("18:00"), by=moment("18:06")),
    told_once("family", "dinner"),
    never("surprise", outside=(MUM, "inner")),
    never("the bus is broken", outside=(MUM, TIM, "inner")),
    never("Jan", outside=(MUM, TIM, "inner")),
    told(MUM, "late", "bus", since=moment("15:30"), by=moment("15:40")),
    told_once(MUM, "late"),
    told(MUM, "tickets are out", since=moment("20:00"), by=moment("20:06")),
    told_once(MUM, "tickets are out"),
    told(MUM, "Jan", since=moment("+07:00"), by=moment("+07:10")),
    told_once(MUM, "Jan"),
    silent(MUM, moment("22:00"), moment("+07:00"), "mum is asleep"),
    silent("family", moment("12:03"), moment("18:00"), "people answer it themselves"),
    shown(MUM, moment("16:30"), "late", "tim"),
    shown(MUM, moment("+08:00"), "Jan"),
    answered(),
    once(),
    no_afterthought(),
    nothing_twice(),
    guided(),
]


def test_a_day(tmp_path: Path) -> None:
    day = live(SETTING, SCENES, tmp_path, begin="07:00")
    print("\n".join(report("family", day, RULES)))
    assert not [rule.name for rule in RULES if rule.broken(day)]
