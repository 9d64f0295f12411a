"""Tools offered by themselves, or through one tool and a catalogue."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.prompt import PromptInput
from agent.tools import CALL_CAPABILITY, render_catalogue, specs_on_wire, unwrap_call
from agent.turn_context import build_first_request
from gateway.core.tool import specs_of
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.tools.memory import MemoryTools
from tests.kits.scripted_turn import Played, brief

NOTE_TOOLS = tuple(specs_of(MemoryTools)[:3])
"""journal, remember, recall."""

NEW = ToolSpec(name="zebra", description="Count stripes. Slowly.", schema='{"properties":{},"type":"object"}')
SHARED = PromptInput(persona="You are Ana.", card="", history=(), input_text="hi", tool_surface="capability")


def call(**written: object) -> ToolCall:
    return ToolCall(id="a", name=CALL_CAPABILITY.name, arguments=json.dumps(written))


def test_a_call_of_a_capability_is_a_call_of_that_tool() -> None:
    inner = unwrap_call(call(capability="journal", args={"title": "é", "text": "x"}, purpose="to know it"))
    assert inner == ToolCall(id="a", name="journal", arguments='{"text":"x","title":"é"}')
    assert unwrap_call(call(capability="jot")).arguments == "{}"
    assert unwrap_call(call(capability="jot", args='{"text": 1}')).arguments == '{"text": 1}'


def test_what_names_no_capability_stays_what_it_is() -> None:
    for odd in (call(), call(capability=""), call(capability=3), call(capability=CALL_CAPABILITY.name, args={})):
        assert unwrap_call(odd) == odd
    broken = ToolCall(id="a", name=CALL_CAPABILITY.name, arguments="{")
    assert unwrap_call(broken) == broken
    assert unwrap_call(ToolCall(id="a", name="journal", arguments="{}")).name == "journal"


@given(st.text(), st.text(max_size=300))
def test_anything_is_taken_for_something(name: str, arguments: str) -> None:
    unwrap_call(ToolCall(id="a", name=name, arguments=arguments))
    unwrap_call(ToolCall(id="a", name=CALL_CAPABILITY.name, arguments=arguments))


def test_a_new_capability_changes_no_byte_in_front_of_the_catalogue() -> None:
    model = Played()
    before, after = (build_first_request(SHARED, model, specs, "ana") for specs in (NOTE_TOOLS, (*NOTE_TOOLS, NEW)))
    assert before.tools == after.tools == (CALL_CAPABILITY,)
    assert before.blocks[0] == after.blocks[0]
    assert [block.name for block in after.blocks] == ["identity", "skills"]
    assert after.blocks[1].text == before.blocks[1].text + "\n- zebra(): Count stripes"


def test_the_catalogue_says_what_each_takes() -> None:
    assert render_catalogue(NOTE_TOOLS).splitlines()[2:4] == [
        (
            "- journal(text: string, title: string): Write an entry into your journal: what happened, what you found "
            "out, what you mean to do"
        ),
        "- recall(query: string): Search what was said before, and what you wrote down, for words",
    ]
    assert render_catalogue(reversed(NOTE_TOOLS)) == render_catalogue(NOTE_TOOLS)


def test_natively_each_is_told_by_itself_and_late_ones_can_be_called_all_the_same() -> None:
    assert specs_on_wire(NOTE_TOOLS, "native") == NOTE_TOOLS
    assert specs_on_wire(NOTE_TOOLS, "native", late=True) == (*NOTE_TOOLS, CALL_CAPABILITY)
    assert "capability" not in str(build_first_request(brief(), Played(), NOTE_TOOLS, "ana"))
