"""Whatever a model writes: nothing is raised, nothing undeclared is called, and it takes no longer than it should."""

import json
import random
import time

import pytest

from agent.models.base import ModelMessage, ModelRequest, SystemBlock, TextPart
from agent.models.leaks import is_call_in_request, recover_tool_calls
from gateway.core.tool_spec import ToolCall, ToolSpec
from tests.agent.models.leak_formats_kit import FORMATS, SPECS, scribbled

NAMES = {spec.name for spec in SPECS}


def fuzz(count: int, seed: int) -> dict[str, float]:
    chance, calls, bad, size, took = random.Random(seed), 0, 0, 0, 0.0
    for _ in range(count):
        text = scribbled(chance)
        begun = time.perf_counter()
        found = recover_tool_calls(text, SPECS)
        took += time.perf_counter() - begun
        assert {one.name for one in found} <= NAMES
        good = [one for one in found if not one.problem]
        assert all(isinstance(json.loads(one.arguments), dict) for one in good)
        calls, bad, size = calls + len(good), bad + len(found) - len(good), size + len(text)
    return {"texts": count, "calls": calls, "bad": bad, "texts/s": count / took, "MB/s": size / took / 1e6}


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_thousands_of_scribbles(count: int) -> None:
    seen = fuzz(count, 7)
    print(seen)
    assert seen["calls"] > count // 4_000
    assert seen["bad"] > count // 400


def took_s(text: str) -> float:
    begun = time.process_time()
    recover_tool_calls(text, SPECS)
    return time.process_time() - begun


HARD = {
    "openers": "<tool_call>",
    "objects": '<tool_call>{"',
    "open objects": "<tool_call>{",
    "open strings": '<tool_call>{"a": "',
    "named": '<tool_call>{"name": "who", "arguments": {',
    "functions": "<function=who>",
    "parameters": "<function=who><parameter=a>",
    "one value": "<parameter=a></function>",
    "keys": "<tool_call>who<arg_key>",
    "kimi": '<|open|>call tool="who"<|sep|><|open|>argument key="a"<|sep|>',
    "headers": "<|start|><|channel|>",
    "harmony": "<|channel|>to=who<|message|>{",
    "brackets": "[[",
    "python": "\n[who(a=[",
    "mistral": "[TOOL_CALLS]who{",
    "less": "<",
    "spaces": "<tool_call>      ",
    "ticks": "` `` ``` ```` ",
    "more ticks": "a `` b ` ",
    "escapes": "\\<\\[\\`",
    "escaped openers": "\\<tool_call>{",
    "fences": "```\n``\n",
    "indents": "    x\n\n",
    "lines": "\n",
    "bullets": "- - - ",
    "quotes": "> <tool_call>\n",
    "attributes": '<invoke name="who" a="b" ',
    "calls": '<tool_call>{"name": "who", "arguments": {}}</tool_call>',
    "bad calls": '<tool_call>{"name": "who", "arguments": 1}</tool_call>',
}


@pytest.mark.parametrize("hard", HARD.values(), ids=HARD)
@pytest.mark.parametrize(
    "begin",
    [
        *("", "<function=who><parameter=a>", "`"),
        *(pytest.param(one, marks=pytest.mark.system) for one in ("{", '{"', "[", "<tool_call>who(")),
    ],
)
def test_time_grows_with_the_length_and_no_faster(hard: str, begin: str) -> None:
    """Generously: each takes a tenth of a second, and what is quadratic many seconds."""
    assert took_s(begin + hard * (30_000 // len(hard))) < 2


def test_a_request_full_of_names_and_values_is_searched_once() -> None:
    call = ToolCall(id="a", name="who", arguments='{"a": "of value", "b": "1"}')
    text = "who of value 1 " * 20_000
    said = (ModelMessage(role="user", parts=(TextPart(text=text),)),)
    block = SystemBlock(name="identity", text=text, ttl="long")
    begun = time.process_time()
    assert not is_call_in_request(
        call, ModelRequest(blocks=(block,), conversation=said, max_output_tokens=1, shared_key="a")
    )
    assert time.process_time() - begun < 10


def test_schemas_of_foreign_servers_may_be_anything() -> None:
    for schema in (
        "",
        "[]",
        "{",
        '{"properties": 1}',
        '{"properties": {"city": {"type": {}, "anyOf": 3}}}',
        "9" * 5_000,
    ):
        spec = ToolSpec(name="forecast", description="", schema=schema)
        for text in FORMATS.values():
            assert [call.name for call in recover_tool_calls(text, [spec])] == ["forecast"]
