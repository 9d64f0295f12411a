"""Tools by themselves, or one that calls all of them by the names of a catalogue."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.asked import request_of
from agent.brief import Brief
from agent.models.base import ToolCall, ToolSpec
from agent.tools.notes import NOTES
from agent.tools.surface import CALL_CAPABILITY, catalogue, meant, wired
from tests.agent.turn_kit import Played, brief

NEW = ToolSpec(name="zebra", description="Count stripes. Slowly.", schema='{"properties":{},"type":"object"}')
SHARED = Brief(persona="You are Ana.", card="", history=(), input_text="hi", tool_surface="capability")


def call(**written: object) -> ToolCall:
    return ToolCall(id="a", name=CALL_CAPABILITY.name, arguments=json.dumps(written))


def test_a_call_of_a_capability_is_a_call_of_that_tool() -> None:
    inner = meant(call(capability="journal", args={"title": "é", "text": "x"}, purpose="to know it"))
    assert inner == ToolCall(id="a", name="journal", arguments='{"text":"x","title":"é"}')
    assert meant(call(capability="jot")).arguments == "{}"
    assert meant(call(capability="jot", args='{"text": 1}')).arguments == '{"text": 1}'


def test_what_names_no_capability_stays_what_it_is() -> None:
    for odd in (call(), call(capability=""), call(capability=3), call(capability=CALL_CAPABILITY.name, args={})):
        assert meant(odd) == odd
    broken = ToolCall(id="a", name=CALL_CAPABILITY.name, arguments="{")
    assert meant(broken) == broken
    assert meant(ToolCall(id="a", name="journal", arguments="{}")).name == "journal"


@given(st.text(), st.text(max_size=300))
def test_anything_is_taken_for_something(name: str, arguments: str) -> None:
    meant(ToolCall(id="a", name=name, arguments=arguments))
    meant(ToolCall(id="a", name=CALL_CAPABILITY.name, arguments=arguments))


def test_a_new_capability_changes_no_byte_in_front_of_the_catalogue() -> None:
    model = Played()
    before, after = (request_of(SHARED, model, specs, "ana") for specs in (NOTES, (*NOTES, NEW)))
    assert before.tools == after.tools == (CALL_CAPABILITY,)
    assert before.blocks[0] == after.blocks[0]
    assert [block.name for block in after.blocks] == ["identity", "skills"]
    assert after.blocks[1].text == before.blocks[1].text + "\n- zebra(): Count stripes"


def test_the_catalogue_says_what_each_takes() -> None:
    assert catalogue(NOTES).splitlines()[2:4] == [
        (
            "- journal(text: string, title: string): Write an entry into your journal: what happened, what you found "
            "out, what you mean to do"
        ),
        "- recall(query: string): Search what was said before, and what you wrote down, for words",
    ]
    assert catalogue(reversed(NOTES)) == catalogue(NOTES)


def test_natively_each_is_told_by_itself_and_late_ones_can_be_called_all_the_same() -> None:
    assert wired(NOTES, "native") == NOTES
    assert wired(NOTES, "native", late=True) == (*NOTES, CALL_CAPABILITY)
    assert "capability" not in str(request_of(brief(), Played(), NOTES, "ana"))
