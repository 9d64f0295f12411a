"""Tools offered by themselves, or through one tool and a catalogue."""

import contextlib
import json
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from agent.prompt import PromptInput
from agent.tools import CALL_CAPABILITY, offer_tools, render_entry, unwrap_call
from agent.turn_context import build_first_request
from gateway.core.tool_spec import (
    ToolArguments,
    ToolCall,
    ToolCallRefused,
    ToolSpec,
    define_tool,
    parse_arguments,
)
from gateway.plugins.memory import Memory
from gateway.plugins.recall import Recall
from tests.kits.scripted_turn import Played
from tests.kits.tools import specs_of

NOTE_TOOLS = (*specs_of(Memory)[:2], *specs_of(Recall)[:1])
"""journal, remember, recall."""

NEW = ToolSpec(
    name="zebra", description="Count stripes. Slowly.", schema='{"properties":{},"type":"object"}'
)
SHARED = PromptInput(persona="You are Ana.", card="", history=(), input_text="hi")


def call(**written: object) -> ToolCall:
    return ToolCall(id="a", name=CALL_CAPABILITY.name, arguments=json.dumps(written))


def test_a_call_of_a_capability_is_a_call_of_that_tool() -> None:
    inner = unwrap_call(call(capability="journal", args={"title": "é", "text": "x"}))
    assert inner == ToolCall(id="a", name="journal", arguments='{"text":"x","title":"é"}')
    assert unwrap_call(call(capability="jot")).arguments == "{}"
    assert unwrap_call(call(capability="jot", args='{"text": 1}')).arguments == '{"text": 1}'


def test_what_names_no_capability_stays_what_it_is() -> None:
    for odd in (
        call(),
        call(capability=""),
        call(capability=3),
        call(capability=CALL_CAPABILITY.name, args={}),
    ):
        assert unwrap_call(odd) == odd
    broken = ToolCall(id="a", name=CALL_CAPABILITY.name, arguments="{")
    assert unwrap_call(broken) == broken
    assert unwrap_call(ToolCall(id="a", name="journal", arguments="{}")).name == "journal"


@given(st.text(), st.text(max_size=300))
def test_anything_is_taken_for_something(name: str, arguments: str) -> None:
    unwrap_call(ToolCall(id="a", name=name, arguments=arguments))
    unwrap_call(ToolCall(id="a", name=CALL_CAPABILITY.name, arguments=arguments))


def test_a_tool_that_is_only_named_changes_no_byte_in_front_of_the_catalogue() -> None:
    before, after = (
        build_first_request(SHARED, Played(), specs, "ana")
        for specs in (NOTE_TOOLS, (*NOTE_TOOLS, NEW))
    )
    assert before.tools == after.tools
    assert {spec.name for spec in after.tools} == {
        "call_capability",
        "recall",
        "remember",
        "stay_silent",
    }
    assert before.blocks[0] == after.blocks[0]
    assert [block.name for block in after.blocks] == ["identity", "skills"]
    assert after.blocks[1].text == before.blocks[1].text + "\n- zebra(): Count stripes"


def test_the_catalogue_says_what_each_takes_with_what_may_be_left_out_last() -> None:
    (journal,) = offer_tools(NOTE_TOOLS)[1].splitlines()[2:]
    assert journal == "- journal(title, text): Write into your journal"
    note = define_tool("note", "Write it down. At once.", Note)
    assert render_entry(note) == "- note(text, scope?, title?, weight?): Write it down"
    assert offer_tools((NEW, note)) == offer_tools((note, NEW))
    assert offer_tools((replace(NEW, offer="unnamed"),))[1] == ""


class Nothing(ToolArguments):
    """Not told."""


class Note(ToolArguments):
    """Not told."""

    title: str = Field(default="", description="One line.")
    text: str = Field(description="What to keep.", min_length=1, max_length=10)
    scope: Literal["here", "anywhere"] = "here"
    weight: int | None = Field(default=None, description="0 to 9", ge=0)


def test_the_schema_is_canonical_and_without_titles() -> None:
    made = define_tool("note", "Write it down.", Note)
    assert (made.name, made.description) == ("note", "Write it down.")
    assert made.schema == json.dumps(json.loads(made.schema), sort_keys=True, separators=(",", ":"))
    assert json.loads(made.schema) == {
        "properties": {
            "scope": {"default": "here", "enum": ["here", "anywhere"], "type": "string"},
            "text": {"description": "What to keep.", "type": "string"},
            "title": {"description": "One line.", "type": "string"},
            "weight": {"description": "0 to 9", "type": "integer"},
        },
        "required": ["text"],
        "type": "object",
    }


def test_a_tool_without_arguments_still_names_them() -> None:
    assert define_tool("x", "y", Nothing).schema == '{"properties":{},"type":"object"}'


@pytest.mark.parametrize("written", ["", "  ", "{}"])
def test_no_arguments_at_all_are_none(written: str) -> None:
    assert parse_arguments(Nothing, written) == Nothing()


def test_arguments_are_read_leniently_where_the_meaning_is_plain() -> None:
    assert parse_arguments(Note, '{"text": 7, "weight": "3", "title": "t"}') == Note(
        text="7", weight=3, title="t"
    )
    assert parse_arguments(Note, '{"text": "a", "weight": null, "title": null}') == Note(text="a")
    assert parse_arguments(Note, '{"text": "a", "weight": "null", "txet": "y"}') == Note(text="a")
    assert parse_arguments(Note, '{"text": "null"}') == Note(text="null")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"title": "x"}', "text: Field required"),
        ('{"text": null}', "text: Field required"),
        ('{"txet": "y"}', "text: Field required; txet: Extra inputs are not permitted"),
        ('{"text": "x", "scope": "there"}', "scope: Input should be 'here' or 'anywhere'"),
        (
            '{"text": "", "weight": -1}',
            "text: String should have at least 1 character; weight: Input should be",
        ),
        ("[]", "arguments: Input should be an object"),
        ('{"text": "x"', "arguments: Invalid JSON"),
        ("\ud800", "arguments: Input should be a valid string"),
        (r'{"text": "\ud800"}', "arguments: Invalid JSON"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(written: str, said: str) -> None:
    with pytest.raises(ToolCallRefused) as refused:
        parse_arguments(Note, written)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@given(
    st.text() | st.dictionaries(st.text(), st.text() | st.integers() | st.none()).map(json.dumps)
)
def test_whatever_a_model_writes_is_read_or_refused(written: str) -> None:
    with contextlib.suppress(ToolCallRefused):
        assert isinstance(parse_arguments(Note, written), Note)
