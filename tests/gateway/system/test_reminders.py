"""A reminder from the words that asked for it to the words that tell it, through the whole
gateway."""

from pathlib import Path
from typing import Any

from agent.models.scripted import Script, ScriptRule
from gateway.core.events import Alarm
from gateway.plugins.reminders import ReminderSet
from reverie.testing.gateway import running

OPEN: dict[str, Any] = {"access": {"dm": "open"}, "dmn": {"dream_every": 0}}


def script(when: str) -> Script:
    asked = ScriptRule(
        match="remind me of the tea", calls=(("remind", f'{{"text":"the tea","at":"{when}"}}'),)
    )
    told = ScriptRule(match="Reminder [0-9A-Z]{6} is set for .*", reply="I will.")
    return Script(rules=(asked, told, ScriptRule(match='"the tea"', reply="Your tea is ready.")))


async def test_it_is_told_where_it_was_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path, script("in 1 s"), **OPEN) as gateway:
        await gateway.say("remind me of the tea", sender="ann")
        await gateway.screen.until(2)
        await gateway.took(2)
    assert [part.body for part in gateway.screen.parts] == ["I will.", "Your tea is ready."]
    assert {part.to.room for part in gateway.screen.parts} == {gateway.screen.parts[0].to.room}
    assert [[person.name for person in part.notify] for part in gateway.screen.parts] == [
        ["ann"],
        ["ann"],
    ]
    [asked] = [one for one in await gateway.facts("reminded") if isinstance(one, ReminderSet)]
    [alarm] = [one for one in await gateway.facts("alarm") if isinstance(one, Alarm)]
    assert (asked.asked_by, alarm.asked_by, alarm.at) == ("ann", "ann", asked.at)
    first, second = await gateway.turns()
    assert (first.cause, first.autonomous) == ("addressed", False)
    assert (second.cause, second.autonomous) == ("alarm", True)
