"""Specifications of the built-in tools, as the model receives them."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.tokens.counter import estimate_tokens
from gateway.config.tools import TOOL_NAMES
from gateway.core.clock import SystemClock
from gateway.core.tool import Tool, specs_of, tools_of
from gateway.core.tool_spec import ToolCall, ToolCallRefused, ToolSpec
from gateway.stream.media import MediaStore
from gateway.tools.files import FileTools
from gateway.tools.registry import built_in_specs
from tests.gateway.tools.files_kit import agent_files
from tests.kits.settings import live_settings

FILE_TOOLS = specs_of(FileTools)


@pytest.fixture
def by_name(tmp_path: Path) -> dict[str, Tool]:
    return {
        tool.spec.name: tool
        for tool in tools_of(FileTools(agent_files(tmp_path), MediaStore(live_settings(), tmp_path, {}, SystemClock())))
    }


def parse(tool: Tool, written: str) -> dict[str, Any]:
    return tool.parse(ToolCall(id="1", name=tool.spec.name, arguments=written))


def test_the_settings_know_the_names_of_all() -> None:
    assert tuple(sorted(spec.name for spec in built_in_specs())) == TOOL_NAMES


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


def test_what_is_left_out_is_what_most_want(by_name: dict[str, Tool]) -> None:
    assert parse(by_name["read_file"], '{"path":"a"}') == {"path": "a", "offset": 1, "limit": 2_000}
    assert parse(by_name["edit_file"], '{"path":"a","old":"b","new":"","all":null}') == {
        "path": "a",
        "old": "b",
        "new": "",
        "all": False,
    }
    assert parse(by_name["grep"], '{"pattern":"a"}') == {
        "pattern": "a",
        "path": "",
        "glob": "",
        "ignore_case": False,
        "context": 0,
    }


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
def test_what_cannot_be_meant_is_refused(written: str, by_name: dict[str, Tool]) -> None:
    with pytest.raises(ToolCallRefused):
        parse(by_name["read_file"], written)


@pytest.mark.parametrize("name", ["glob", "grep"])
def test_patterns_have_an_end(name: str, by_name: dict[str, Tool]) -> None:
    with pytest.raises(ToolCallRefused, match="pattern"):
        parse(by_name[name], json.dumps({"pattern": "a" * 501}))
