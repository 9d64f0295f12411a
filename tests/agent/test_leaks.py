"""Tool calls that a model writes into its text, in every format that is known of."""

import json
import random

import pytest

from agent.models.base import Text, ToolCall
from agent.models.leaks import MAX_CALLS, TOO_MANY, Leaks, recover
from tests.agent.leaks_kit import FORMATS, SPECS, WHOLE, cut, in_pieces, tool

ROME = ("forecast", {"city": "Rome", "days": 2})
WHO = '<tool_call>{"name": "who", "arguments": {}}</tool_call>'


def called(text: str) -> list[tuple[str, object]]:
    found = recover(text, SPECS)
    assert not found.problems
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


def untouched(text: str) -> bool:
    found = recover(text, SPECS)
    return found.text == text and not found.calls and not found.problems


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_read_with_text_around_it_and_several_times(form: str) -> None:
    text = FORMATS[form]
    assert called(text) == [ROME]
    assert recover(text, SPECS).text == ""
    found = recover(f"Let me see.\n\n{text}\n\nI will tell you.", SPECS)
    assert found.text == "Let me see.\n\n\n\nI will tell you."
    assert [call.id for call in found.calls] == ["leak_1"]
    assert called(f"{text}\n{text}") == [ROME, ROME]
    assert [call.id for call in recover(f"{text}\n{text}", SPECS).calls] == ["leak_1", "leak_2"]


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_is_found_however_a_text_is_cut(form: str) -> None:
    code = FORMATS[form].replace("```", "")
    text = f"Well `x`,\n{FORMATS[form]}\n- then `{code}` and\n```\n{code}\n```\n{WHO} so"
    whole = recover(text, SPECS)
    assert [call.name for call in whole.calls] == ["forecast", "who"]
    assert in_pieces(text, list(text)) == whole
    for at in range(len(text)):
        assert in_pieces(text, [text[:at], text[at:]]) == whole
    chance = random.Random(form)
    for _ in range(20):
        assert in_pieces(text, cut(text, chance)) == whole


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_json_counts_where_it_is_the_whole_answer(text: str) -> None:
    assert called(f"\n{text}\n") == [ROME]
    assert untouched(f"So: {text}")
    assert untouched(f"{text} is how it is called.")
    assert in_pieces(text, list(text)) == recover(text, SPECS)


def test_an_answer_of_gpt_oss_may_begin_with_whom_it_is_to() -> None:
    text = ' to=functions.forecast<|channel|>commentary json<|message|>{"city": "Rome", "days": 2}<|call|>'
    assert called(text) == [ROME]
    assert recover(f"{text} and", SPECS).text == "  and"
    assert in_pieces(text, list(text)) == recover(text, SPECS)
    assert untouched(f"It is{text[:30]}")
    assert untouched("to=functions. is how it begins")
    assert untouched("to=functions.nobody<|channel|>commentary json<|message|>{}")


def test_a_value_may_be_about_calls() -> None:
    about = "<tool_call><function=who></function></tool_call> or <function=who></function>"
    assert called(f"<function=forecast><parameter=city>so `{about}`</parameter></function>") == [
        ("forecast", {"city": f"so `{about}`"})
    ]


def test_several_objects_are_the_whole_answer_too() -> None:
    both = (
        '{"name": "who", "parameters": {}}; {"name": "forecast", "parameters": {"city": "Rome", "days": 2}}<|eot_id|>'
    )
    assert called(both) == [("who", {}), ROME]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "who"}',
        '{"name": "nobody", "arguments": {}}',
        '[{"name": "who", "arguments": {}}, 1]',
        '{"answer": {"name": "who", "arguments": {}}}',
        "[1, 2]",
        "{}",
        "{who",
        '{"name": "who',
    ],
)
def test_json_that_is_no_call_stays(text: str) -> None:
    assert untouched(text)


@pytest.mark.parametrize("form", FORMATS)
def test_what_no_tool_is_called_stays_as_it_is(form: str) -> None:
    assert untouched(f"So {FORMATS[form].replace('forecast', 'forecasts')} there")
    found = recover(FORMATS[form], ())
    assert (found.text, found.calls, found.problems) == (FORMATS[form], (), ())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "around",
    [
        "```\n{}\n```",
        "It goes like this:\n```json\n{}",
        "~~~~ x\n~~~\n{}\n~~~\n",
        "   ```\n{}",
        "```\n    ```\n{}\n```",
        "````\n```\n{}\n````",
        "- ```\n  {}\n  ```",
        "`{}`",
        "so ``{} ` `` is it",
        "a\n\n    {}\n",
        "\t{}",
        "\\{}",
    ],
)
def test_code_is_never_carried_out(form: str, around: str) -> None:
    text = around.format(FORMATS[form].replace("```", "").replace("\n", " "))
    assert untouched(text)


def test_several_lines_of_code_are_code() -> None:
    for form in FORMATS.values():
        assert untouched(f"~~~xml\n{form}\n~~~\nLike that.")


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_quoted_is_never_carried_out(form: str) -> None:
    text = FORMATS[form].replace("\n", " ")
    assert untouched(f"You wrote:\n> {text}\n > {text}")


@pytest.mark.parametrize(
    "text",
    [
        "a ` tick\n{}",
        "a `` b ` c\n\n{}",
        "```\ncode\n```\n{}",
        "~~~\n```\n~~~\n{}",
        "``` not a fence ``` {}",
        "> quoted `\n{}",
        "a\n    {}",
        "\\` {} \\`",
        "- item\n- {}",
        "``` `\n{}",
    ],
)
def test_what_only_looks_like_code_hides_nothing(text: str) -> None:
    assert called(text.format(WHO)) == [("who", {})]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('<tool_call>{"name": "forecast", "arguments": {"city": "a\n"b"}}', None),
        ('<tool_call>{"name": "forecast", "arguments": {"city": "a\n\tb"}}', {"city": "a\n\tb"}),
        ("<tool_call>{'name': 'forecast', 'arguments': {'city': \"it's\", 'flag': True,}}",
         {"city": "it's", "flag": True}),
        ('<tool_call>{"arguments": "{\\"city\\": \\"x\\"}", "name": "functions.forecast"}', {"city": "x"}),
        ('<tool_call>{"name": "forecast", "arguments": {"city": "</tool_call> {x"}}</tool_call>',
         {"city": "</tool_call> {x"}),
        ('<tool_call>\n\n<tool_call> {"name":"forecast","parameters":{"city":"x"}} </tool_call>', {"city": "x"}),
        ('<tool_call>{"name": "forecast", "arguments": {"city": "x"}}}</tool_call>', {"city": "x"}),
        ('<tool_call>forecast\n{"city": "x"}</tool_call>', {"city": "x"}),
        ("<function=forecast><parameter=city>\nx\n<parameter=days>\n3\n</function></tool_call>",
         {"city": "x", "days": 3}),
        ("<function=forecast>\n<parameter=city>\nx\n</parameter>\n</tool_call>", {"city": "x"}),
        ("<function=forecast>\n<parameter=city>\nx\n</parameter>", {"city": "x"}),
        ("<function=forecast><parameter=city>\n\n x\n\n</parameter></function>", {"city": "\n x\n"}),
        ("<function=forecast><parameter=city>a</function> b</parameter></function>", {"city": "a</function> b"}),
        ('<function name="forecast"><param name="city">a < b && `c`</param></function>', {"city": "a < b && `c`"}),
        ("<tool_call>forecast<arg_key>city</arg_key><arg_value>x<arg_key>days</arg_key><arg_value>3</tool_call>",
         {"city": "x", "days": 3}),
        ('<|tool_call_begin|>forecast<|tool_sep|>{"city": "x"}<|tool_call_end|>', {"city": "x"}),
        ('<|python_tag|>forecast.call(city="x")', {"city": "x"}),
        (FORMATS["kimi k3"].replace("Rome", "a < b"), {"city": "a < b", "days": 2}),
        ("[forecast(city='a]\\'\\n', days=-1, ratio=1.5, tags=['x', \"y\"], opts={'k': None})]",
         {"city": "a]'\n", "days": -1, "ratio": 1.5, "tags": ["x", "y"], "opts": {"k": None}}),
    ],
)  # fmt: skip
def test_what_is_nearly_a_format_is_read_where_its_meaning_is_plain(text: str, given: object) -> None:
    found = recover(text, SPECS)
    assert found.text == ""
    assert in_pieces(text, list(text)) == found
    if given is None:
        assert [bad.name for bad in found.problems] == ["forecast"]
    else:
        assert called(text) == [("forecast", given)]


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("city", "5", "5"),
        ("days", " 5 ", 5),
        ("days", "5.0", 5),
        ("days", "many", "many"),
        ("days", "true", "true"),
        ("ratio", "1e3", 1000.0),
        ("flag", "True", True),
        ("flag", "1", "1"),
        ("opts", "{'a': 1}", {"a": 1}),
        ("opts", "[1]", "[1]"),
        ("tags", '["x"]', ["x"]),
        ("other", "5", "5"),
    ],
)
def test_plain_text_becomes_what_the_tool_declares(key: str, raw: str, value: object) -> None:
    text = f'<invoke name="forecast"><parameter name="{key}">{raw}</parameter></invoke>'
    assert called(text) == [("forecast", {key: value})]


def test_types_are_found_through_references_and_choices() -> None:
    schema = {
        "$defs": {"Size": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}},
        "properties": {
            "size": {"$ref": "#/$defs/Size"},
            "some": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "loop": {"$ref": "#/$defs/Loop"},
            "kind": {"enum": ["a", "b"]},
            "many": {"type": ["array", "null"]},
        },
    }
    raw = {"size": "3", "some": "null", "loop": "3", "kind": "a", "many": "[1]"}
    pairs = "".join(f"<parameter={key}>{value}</parameter>" for key, value in raw.items())
    [call] = recover(f"<function=t>{pairs}</function>", [tool("t", schema)]).calls
    assert json.loads(call.arguments) == {"size": 3, "some": None, "loop": "3", "kind": "a", "many": [1]}


@pytest.mark.parametrize("form", FORMATS)
def test_a_call_that_is_cut_off_is_never_carried_out_with_less(form: str) -> None:
    text = FORMATS[form]
    for at in range(len(text)):
        found = recover(text[:at], SPECS)
        assert not found.calls or json.loads(found.calls[0].arguments) in (ROME[1], {"city": "Rome"})
        if "Rome" not in text[:at]:
            assert not found.calls
        assert found.calls or found.problems or found.text == text[:at]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "forecast", "arguments": {"city": "x', "it is cut off"),
        ('{"name": "forecast", "arguments": {"city": "x', "it is cut off"),
        ('<tool_call>{"name": "forecast", "arguments": [1]}</tool_call>', "its arguments are not one JSON object"),
        ('<tool_call>{"name": "forecast", "arguments": {"city": x}}</tool_call>', "is neither a number nor in quotes"),
        ('<tool_call>{"name": "forecast", "arguments": {"days": 1e999}}</tool_call>', "a number in it is too large"),
        ('<tool_call>{"name": "forecast", "arguments": {"days": NaN}}</tool_call>', "neither a number nor in quotes"),
        ("[forecast(1)]", "a word is missing"),
        ("<function=forecast>\nwell\n</function>", "there is text between its arguments"),
        ("<function=forecast><parameter=city>x", "it is cut off"),
        ("<function=forecast>", "it is cut off"),
        ("<function=forecast><parameter=days>1</parameter>", "it is cut off"),
        (f"<tool_call>forecast{'{' * 65}", "nested deeper than 64"),
        ("[TOOL_CALLS]forecast[ARGS]{]", "closes what is not open"),
    ],
)
def test_a_bad_call_is_told_to_the_model_and_not_posted(text: str, why: str) -> None:
    found = recover(text, SPECS)
    assert not found.calls
    [bad] = found.problems
    assert bad.name == "forecast"
    assert why in bad.said
    assert "Nothing was done. Call forecast as the tool that it is" in bad.said
    assert text not in found.text


def test_a_bad_call_takes_no_good_one_with_it() -> None:
    found = recover(f'<tool_call>{{"name": "forecast", "arguments": {{"city": "x}}}}</tool_call> and {WHO}', SPECS)
    assert [bad.name for bad in found.problems] == ["forecast"]
    assert [call.name for call in found.calls] == ["who"]


def test_words_are_told_as_soon_as_they_are_sure() -> None:
    leaks = Leaks(SPECS)
    assert leaks.feed("Let me ") == [Text(text="Let me ")]
    assert leaks.feed("look. <") == [Text(text="look. ")]
    assert leaks.feed("b>bold") == [Text(text="<b>bold")]
    assert leaks.feed(" `co") == [Text(text=" `co")]
    assert leaks.feed("de` [x] <tool") == [Text(text="de` [x] ")]
    assert leaks.feed('_call>{"name": "who"') == []
    assert leaks.feed(', "arguments": {}}</tool_call>') == []
    assert leaks.feed(" done") == [
        ToolCall(id="leak_1", name="who", arguments="{}"),
        Text(text=" done"),
    ]
    assert leaks.text == "Let me look. <b>bold `code` [x]  done"
    assert leaks.feed("\n```\n<tool_call>") == [Text(text="\n```\n<tool_call>")]
    assert leaks.end() == []


def test_too_many_calls_are_told_once_and_left_out() -> None:
    found = recover("\n".join([WHO] * (MAX_CALLS + 9)), SPECS)
    assert len(found.calls) == MAX_CALLS
    assert [bad.said for bad in found.problems] == [TOO_MANY]
    assert WHO not in found.text


def test_a_long_answer_is_told_whole() -> None:
    text = ("words `code` and more\n" * 400 + "x" * 9_000 + "\n" + WHO + "\n") * 3
    assert in_pieces(text, [text[at : at + 7] for at in range(0, len(text), 7)]) == recover(text, SPECS)
    assert len(recover(text, SPECS).calls) == 3
