"""What of a server's words becomes a tool: names, schemas, descriptions, results."""

import importlib
import json
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.mcp.convert import (
    MAX_DESCRIPTION_CHARS,
    MAX_SERVER_TOOLS,
    McpBinary,
    build_tool_name,
    convert_schema,
    render_result,
    sanitize_text,
    select_tools,
)

JSONSCHEMA: Any = importlib.import_module(
    "jsonschema"
)  # it came with the protocol's library, without types
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


def offer(
    name: str, description: str = "", schema: dict[str, object] | None = None, title: str = ""
) -> types.Tool:
    return types.Tool(
        name=name, title=title, description=description, input_schema=schema or {"type": "object"}
    )


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("files", "read", "mcp_files_read"),
        ("files", "read-all_2", "mcp_files_read-all_2"),
        ("files", "read.all", "mcp_files_read_all_8fb73bbb"),
        ("files", "lire à", "mcp_files_lire___cccbe5cc"),
        ("files", "r" * 54, "mcp_files_" + "r" * 54),
        ("files", "r" * 55, "mcp_files_" + "r" * 45 + "_5130eaf0"),
        ("git", "hub_delete", "mcp_git_-hub_delete_2107bd05"),  # `mcp_git_hub_*` is another's
        ("git", "hub", "mcp_git_-hub_08d33503"),
        ("git", "hubs", "mcp_git_hubs"),
        ("git_hub", "delete", "mcp_git_hub_delete"),
    ],
)
def test_names(server: str, tool: str, name: str) -> None:
    assert build_tool_name(server, tool, ("files", "git", "git_hub")) == name


@given(tools=st.lists(st.text(max_size=80), unique=True, max_size=20))
def test_names_fit_everywhere_and_are_nobody_elses(tools: list[str]) -> None:
    servers = ("a", "a_b", "a_-b", "a_b-c")
    names = [build_tool_name(server, tool, servers) for server in servers for tool in tools]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.isascii()
        assert 0 < len(name) <= 64
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    for name in (build_tool_name("a", tool, servers) for tool in tools):
        assert not any(name.startswith(f"mcp_{other}_") for other in servers[1:])


def test_a_plain_schema_stays_as_it_is() -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where."},
            "kind": {"enum": ["file", "folder", None]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "either": {"anyOf": [{"type": "string"}, {"type": ["integer", "null"]}]},
        },
        "required": ["path"],
        "additionalProperties": False,
        "$defs": {"tag": {"type": "object", "properties": {"of": {"$ref": "#/$defs/tag"}}}},
    }
    made = convert_schema(
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": "T", **schema}
    )
    assert made == json.dumps(schema, sort_keys=True, separators=(",", ":"))


def test_what_not_every_provider_understands_is_left_out() -> None:
    told = {"type": "string", "pattern": "(a+)+$", "format": "x", "description": "x\u202ey\x07"}
    made = json.loads(convert_schema({"properties": {"a": told, "b": True}}))
    assert made == {
        "type": "object",
        "properties": {"a": {"type": "string", "description": "xy"}, "b": {}},
    }


DEEP: dict[str, object] = {"type": "string"}
for _ in range(5000):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"not a name!": {"type": "string"}}}, "the name of an argument"),
        ({"properties": {"a": {"type": "nonsense"}}}, "not valid"),
        ({"properties": {"a": {"anyOf": 3}}}, "not valid"),
        ({"properties": []}, "not valid"),
        (DEEP, "not valid"),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "plain object"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object"}}}, "plain object"),
        ({"type": "string"}, "plain object"),
        ({"properties": {"a": {"$ref": "http://elsewhere/x"}}}, "another document"),
        ({"properties": {"a": {"const": "x\u202ey"}}}, "invisible"),
        ({"properties": {"a": {"enum": [float("nan")]}}}, "not JSON compliant"),
        (
            {"properties": {f"a{number}": {"type": "string"} for number in range(2000)}},
            "larger than 8,192 bytes",
        ),
    ],
)
def test_a_tool_whose_schema_does_not_fit_is_left_out_with_the_reason(
    schema: dict[str, object], reason: str
) -> None:
    tools, (left,) = select_tools(
        "s", [offer("odd", schema=schema), offer("plain")], ("*",), ("s",)
    )
    assert list(tools) == ["mcp_s_plain"]
    assert left.startswith("odd: ")
    assert reason in left


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "$ref", "anyOf", "required", "enum", "$defs", "x"]
            ),
            inner,
        )
    ),
    max_leaves=30,
)


@given(
    schema=st.dictionaries(
        st.sampled_from(["properties", "required", "$defs", "anyOf", "items"]), JSON
    )
)
def test_whatever_stands_there_a_valid_schema_or_a_reason_comes_of_it(
    schema: dict[str, Any],
) -> None:
    try:
        read = json.loads(convert_schema(schema))
    except ValueError:
        return
    JSONSCHEMA.Draft202012Validator.check_schema(read)
    assert read["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf"} & read.keys()


def test_tools_are_chosen_by_globs_and_sorted() -> None:
    offered = [offer("b"), offer("a"), offer("secret"), offer("a"), offer("")]
    tools, left = select_tools("s", offered, ("a", "b"), ("s",))
    assert list(tools) == ["mcp_s_a", "mcp_s_b"]
    assert len(left) == 1


def test_of_thousands_of_tools_the_same_few_are_taken() -> None:
    offered = [offer(f"tool{number:04}") for number in range(3000)]
    tools, left = select_tools("s", reversed(offered), ("*",), ("s",))
    assert (len(tools), len(left)) == (MAX_SERVER_TOOLS, 3000 - MAX_SERVER_TOOLS)
    assert tools == select_tools("s", offered, ("*",), ("s",))[0]


def test_descriptions_are_made_harmless() -> None:
    tools, _ = select_tools(
        "s",
        [offer("a", "Does\u202e a.\x1b[31m\r\n\u2066More.\U000e0041"), offer("b", "x" * 5000)],
        ("*",),
        ("s",),
    )
    assert tools["mcp_s_a"][1].description == "Does a.[31m\nMore."
    assert len(tools["mcp_s_b"][1].description) == MAX_DESCRIPTION_CHARS
    tools, _ = select_tools("s", [offer("a", "\u200b"), offer("b", title="B!")], ("*",), ("s",))
    assert [spec.description for _, spec in tools.values()] == ["A tool of the MCP server s.", "B!"]


def test_results_as_text() -> None:
    image, other = (
        McpBinary(kind="image", media_type="image/png", data=PNG),
        McpBinary(kind="file", media_type="x\ny", data=b""),
    )
    parts: list[str | McpBinary] = ["one", image, other]
    assert render_result(parts, [image], structured={"b": 1, "a": "é"}) == (
        "one\n[image, image/png, 24 bytes: shown]\n[file, x y, 0 bytes: it cannot be shown "
        'here]\n{"a": "é", "b": 1}'
    )
    assert render_result(['{"a": 1}'], structured={"a": 1}) == '{"a": 1}'
    assert render_result(["x"], structured={"result": "x"}) == "x"
    assert render_result(["x", "2"], structured={"result": ["x", 2]}) == "x\n2"
    assert render_result(["ok"], structured={"result": 1}) == 'ok\n{"result": 1}'
    assert render_result([]).startswith("It was done")
    assert render_result(["no"], is_error=True).endswith("says:\nno")
    assert render_result(["x"] * 2000).endswith("[1000 more parts are left out]")


@given(words=st.text(max_size=200), most=st.integers(min_value=1, max_value=50))
def test_harmless_texts_keep_within_their_length(words: str, most: int) -> None:
    made = sanitize_text(words, most)
    assert len(made) <= most
    assert sanitize_text(made, most) == made
