"""Specifications of the file tools, as the model receives them."""

import json

import pytest

from agent.tools.specs import FILE_TOOLS, EditFileArgs, GlobArgs, GrepArgs, ReadFileArgs
from agent.view import estimate_tokens
from gateway.core.tool_spec import ToolCallRefused, ToolSpec, parse_arguments

BY_NAME = {spec.name: spec for spec in FILE_TOOLS}


def test_they_are_short() -> None:
    told = "".join(f"{spec.name}{spec.description}{spec.schema}" for spec in FILE_TOOLS)
    assert estimate_tokens(told) < 900
    assert all(len(spec.description) < 200 for spec in FILE_TOOLS)


@pytest.mark.parametrize("spec", FILE_TOOLS, ids=lambda spec: spec.name)
def test_what_only_looks_may_run_beside_others(spec: ToolSpec) -> None:
    assert spec.is_task
    assert spec.is_parallel == (spec.name not in {"write_file", "edit_file"})
    schema = json.loads(spec.schema)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) <= set(schema["properties"])


def test_what_is_left_out_is_what_most_want() -> None:
    assert parse_arguments(ReadFileArgs, '{"path":"a"}') == ReadFileArgs(path="a", offset=1, limit=2_000)
    assert parse_arguments(EditFileArgs, '{"path":"a","old":"b","new":"","all":null}') == EditFileArgs(
        path="a", old="b", new=""
    )
    assert parse_arguments(GrepArgs, '{"pattern":"a"}') == GrepArgs(
        pattern="a", path="", glob="", ignore_case=False, context=0
    )


@pytest.mark.parametrize(
    "written",
    [
        '{"path":"a","offset":0}',
        '{"path":"a","limit":0}',
        '{"path":"a","limit":10001}',
        '{"path":[]}',
        '{"offset":1}',
    ],
)
def test_what_cannot_be_meant_is_refused(written: str) -> None:
    with pytest.raises(ToolCallRefused):
        parse_arguments(ReadFileArgs, written)


def test_patterns_have_an_end() -> None:
    for takes in (GlobArgs, GrepArgs):
        with pytest.raises(ToolCallRefused, match="pattern"):
            parse_arguments(takes, json.dumps({"pattern": "a" * 501}))
