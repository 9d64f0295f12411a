"""What a model is told of the tools for its files."""

import json

import pytest

from agent.models.base import ToolSpec
from agent.tools.files import TOOLS, EditFile, Glob, Grep, ReadFile
from agent.tools.schema import Refused, read
from agent.view import estimate_tokens

BY_NAME = {spec.name: spec for spec in TOOLS}


def test_they_are_short() -> None:
    told = "".join(f"{spec.name}{spec.description}{spec.schema}" for spec in TOOLS)
    assert estimate_tokens(told) < 900
    assert all(len(spec.description) < 200 for spec in TOOLS)


@pytest.mark.parametrize("spec", TOOLS, ids=lambda spec: spec.name)
def test_what_only_looks_may_run_beside_others(spec: ToolSpec) -> None:
    assert spec.is_task
    assert spec.is_parallel == (spec.name not in {"write_file", "edit_file"})
    schema = json.loads(spec.schema)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) <= set(schema["properties"])


def test_what_is_left_out_is_what_most_want() -> None:
    assert read(ReadFile, '{"path":"a"}') == ReadFile(path="a", offset=1, limit=2_000)
    assert read(EditFile, '{"path":"a","old":"b","new":"","all":null}') == EditFile(path="a", old="b", new="")
    assert read(Grep, '{"pattern":"a"}') == Grep(pattern="a", path="", glob="", ignore_case=False, context=0)


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
    with pytest.raises(Refused):
        read(ReadFile, written)


def test_patterns_have_an_end() -> None:
    for takes in (Glob, Grep):
        with pytest.raises(Refused, match="pattern"):
            read(takes, json.dumps({"pattern": "a" * 501}))
