"""Schemas of tool arguments, and parsing of the arguments that a model writes."""

import contextlib
import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from agent.tools import STAY_SILENT
from gateway.core.tool_spec import ToolArguments, ToolCallRefused, define_tool, parse_arguments


class Nothing(ToolArguments):
    """Not told."""


class Note(ToolArguments):
    """Not told."""

    title: str = Field(default="", description="One line.")
    text: str = Field(description="What to keep.", min_length=1, max_length=10)
    scope: Literal["here", "anywhere"] = "here"
    weight: int | None = Field(default=None, description="0 to 9", ge=0)


def test_the_schema_is_canonical_and_without_titles() -> None:
    made = define_tool("note", "Write it down.", Note, task=True)
    assert (made.name, made.description, made.is_task) == ("note", "Write it down.", True)
    assert made.schema == json.dumps(json.loads(made.schema), sort_keys=True, separators=(",", ":"))
    assert json.loads(made.schema) == {
        "additionalProperties": False,
        "properties": {
            "scope": {"default": "here", "enum": ["here", "anywhere"], "type": "string"},
            "text": {"description": "What to keep.", "maxLength": 10, "minLength": 1, "type": "string"},
            "title": {"default": "", "description": "One line.", "type": "string"},
            "weight": {"description": "0 to 9", "minimum": 0, "type": "integer"},
        },
        "required": ["text"],
        "type": "object",
    }


def test_a_tool_without_arguments_reads_like_the_handwritten_ones() -> None:
    assert define_tool("x", "y", Nothing).schema == STAY_SILENT.schema
    assert define_tool("x", "y", Nothing).is_task is False


@pytest.mark.parametrize("written", ["", "  ", "{}"])
def test_no_arguments_at_all_are_none(written: str) -> None:
    assert parse_arguments(Nothing, written) == Nothing()


def test_arguments_are_read_leniently_where_the_meaning_is_plain() -> None:
    assert parse_arguments(Note, '{"text": 7, "weight": "3", "title": "t"}') == Note(text="7", weight=3, title="t")
    assert parse_arguments(Note, '{"text": "a", "weight": null, "title": null}') == Note(text="a")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"title": "x"}', "text: Field required"),
        ('{"text": null}', "text: Field required"),
        ('{"text": "x", "txet": "y"}', "txet: Extra inputs are not permitted"),
        ('{"text": "x", "scope": "there"}', "scope: Input should be 'here' or 'anywhere'"),
        ('{"text": "", "weight": -1}', "text: String should have at least 1 character; weight: Input should be"),
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


@given(st.text() | st.dictionaries(st.text(), st.text() | st.integers() | st.none()).map(json.dumps))
def test_whatever_a_model_writes_is_read_or_refused(written: str) -> None:
    with contextlib.suppress(ToolCallRefused):
        assert isinstance(parse_arguments(Note, written), Note)
