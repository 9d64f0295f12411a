"""Whatever a model writes: nothing is raised, nothing undeclared is called, and how it is cut changes nothing."""

import json
import random
import time

import pytest

from agent.models.base import ToolSpec
from agent.models.leaks import MAX_CALLS, Leaks, Recovered, recover
from tests.agent.leaks_kit import FORMATS, SPECS, cut, in_pieces, scribbled

NAMES = {spec.name for spec in SPECS}


def sound(text: str, found: Recovered) -> None:
    assert {call.name for call in found.calls} | {bad.name for bad in found.problems} <= NAMES
    assert len(found.calls) + len(found.problems) <= MAX_CALLS + 1
    for call in found.calls:
        assert isinstance(json.loads(call.arguments), dict)
    if not found.calls and not found.problems:
        assert found.text == text
    assert left_out(found.text, text)


def left_out(less: str, text: str) -> bool:
    """Whether the first is the second without some of its characters."""
    rest = iter(text)
    return all(one in rest for one in less)


def fuzz(count: int, seed: int, *, pieces: bool) -> dict[str, float]:
    chance, calls, bad, size, took = random.Random(seed), 0, 0, 0, 0.0
    for _ in range(count):
        text = scribbled(chance)
        begun = time.perf_counter()
        found = recover(text, SPECS)
        took += time.perf_counter() - begun
        sound(text, found)
        if pieces:
            assert in_pieces(text, cut(text, chance)) == found
        calls, bad, size = calls + len(found.calls), bad + len(found.problems), size + len(text)
    return {
        "texts": count,
        "calls": calls,
        "bad": bad,
        "chars": size,
        "texts/s": count / took,
        "MB/s": size / took / 1e6,
    }


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_thousands_of_scribbles_however_they_are_cut(count: int) -> None:
    seen = fuzz(count, 7, pieces=True)
    assert seen["calls"] > count // 40
    assert seen["bad"] > count // 40


@pytest.mark.slow
def test_a_million_scribbles() -> None:
    print(fuzz(1_000_000, 11, pieces=False))


def feed(text: str, piece: int) -> float:
    leaks, begun = Leaks(SPECS), time.process_time()
    for at in range(0, len(text), piece):
        leaks.feed(text[at : at + piece])
    leaks.end()
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
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("{", '{"', "[", "<tool_call>who(")),
    ],
)
def test_time_grows_with_the_length_and_no_faster(hard: str, begin: str) -> None:
    """Generously: each takes a tenth of a second, and what is quadratic many seconds."""
    text = begin + hard * (30_000 // len(hard))
    assert feed(text, len(text)) < 2
    assert feed(text, 13) < 2


def test_runs_of_backticks_of_all_lengths_are_looked_for_once() -> None:
    text = " ".join("`" * length for length in range(1, 450))
    assert feed(text * 2, 10**6) < 2.5


def test_a_long_call_in_small_pieces_is_not_copied_at_each() -> None:
    text = '<tool_call>{"name": "who", "arguments": {"a": "' + "x" * 400_000 + '"}}</tool_call>'
    assert feed(text, 3) < 5
    assert len(recover(text, SPECS).calls) == 1


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
            assert [call.name for call in recover(text, [spec]).calls] == ["forecast"]
