"""Tool calls that a model writes into its text: forms that are read, others, previews, and whatever
else it writes."""

import html
import json
import random
import time
from urllib.parse import quote

import pytest

from agent.models.base import ModelMessage, ModelRequest, SystemBlock, TextPart, ToolResult
from agent.models.config import build_model
from agent.models.leaks import is_call_in_request, recover_tool_calls
from agent.models.settings import ModelConfig
from agent.prompt import PromptInput
from agent.turn import CALL_AS_TEXT, presentable_text
from gateway.core.clock import ManualClock
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.plugins.providers import OpenAIConfig
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.kits.scaling import assert_in_proportion
from tests.kits.scripted_turn import Drawer, take_turn

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "flag": {"type": "boolean"},
        "opts": {"type": "object"},
        "ratio": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}


def tool(name: str, schema: object) -> ToolSpec:
    return ToolSpec(name=name, description="", schema=json.dumps(schema))


SPECS = (tool("forecast", SCHEMA), tool("who", {"type": "object", "properties": {}}))

READ = {
    "hermes": (
        '<tool_call>\n{"name": "forecast", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
    ),
    "qwen3-coder": "<tool_call>\n<function=forecast>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
    "qwen3-coder, its first tag missing": "<function=forecast>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "llama 3": (
        '<|python_tag|>{"name": "forecast", "parameters": {"city": "Rome", "days": 2}}<|eom_id|>'
    ),
    "mistral": '[TOOL_CALLS] [{"name": "forecast", "arguments": {"city": "Rome", "days": 2}}]</s>',
    "mistral, named": '[TOOL_CALLS]forecast[ARGS]{"city": "Rome", "days": 2}',
    "mistral, numbered": '[TOOL_CALLS]forecast[CALL_ID]a1b2c3d4e[ARGS]{"city": "Rome", "days": 2}',
}
"""Each calls `forecast` with `{"city": "Rome", "days": 2}`; none needs to be the whole answer."""

UNREAD = {
    "llama 3.1, custom": '<function=forecast>{"city": "Rome", "days": 2}</function>',
    "llama 4": '[forecast(city="Rome", days=2)]',
    "llama 4, tagged": "<|python_start|>[forecast(city='Rome', days=2)]<|python_end|>",
    "deepseek v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>forecast\n```json\n"
    '{"city": "Rome", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
    "deepseek v3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>forecast<｜tool▁sep｜>"
    '{"city": "Rome", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek v3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="forecast">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" '
    'string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "deepseek v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="forecast">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" '
    'string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "glm 4.5": "<tool_call>forecast\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>",
    "glm 4.7": "<tool_call>forecast<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days</arg_key>"
    "<arg_value>2</arg_value></tool_call>",
    "kimi k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.forecast:0<|tool_call_argument_begin|>"
    '{"city": "Rome", "days": 2}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi k3": '<|open|>tools<|sep|><|open|>call tool="forecast" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
    "kimi k3, json": '<|open|>tools<|sep|><|open|>call tool="forecast" index="1"<|sep|>'
    '<|open|>json type="object"<|sep|>{"city": "Rome", "days": 2}<|close|>json<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>",
    "minimax m2": '<minimax:tool_call>\n<invoke name="forecast">\n<parameter '
    'name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "gpt-oss": "<|channel|>commentary to=functions.forecast <|constrain|>json<|message|>"
    '{"city": "Rome", "days": 2}<|call|>',
    "gpt-oss, the role first": "<|start|>assistant to=functions.forecast<|channel|>commentary "
    "json<|message|>"
    '{"city": "Rome", "days": 2}<|call|>',
    "lfm2": '<|tool_call_start|>[forecast(city="Rome", days=2)]<|tool_call_end|>',
    "claude": '<function_calls>\n<invoke name="forecast">\n<parameter '
    'name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n</function_calls>',
    "claude, bare": '<invoke name="forecast">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>',
    "phi 4": (
        '<|tool_call|>[{"name": "forecast", "arguments": {"city": "Rome", "days": '
        "2}}]<|/tool_call|>"
    ),
    "gpt-oss, its first tokens missing": " to=functions.forecast<|channel|>commentary "
    "json<|message|>"
    '{"city": "Rome", "days": 2}<|call|>',
}
"""The same in forms that are only recognized."""

WHOLE = {
    "llama 3": '{"name": "forecast", "parameters": {"city": "Rome", "days": 2}}',
    "listed": '[{"name": "forecast", "arguments": {"city": "Rome", "days": 2}}]',
    "openai": '{"type": "function", "function": {"name": "forecast", "arguments": "{\\"city\\": '
    '\\"Rome\\", '
    '\\"days\\": 2}"}}',
}
"""The same, as the whole answer only."""

FORMS = READ | UNREAD | WHOLE


_MARKS = sorted(
    {
        piece
        for whole in FORMS.values()
        for piece in whole.replace(">", ">\0")
        .replace("<", "\0<")
        .replace('"', '\0"\0')
        .replace("]", "\0]\0")
        .split("\0")
        if piece
    }
)
_OTHER = (
    *"`~<>[]{}()\"'\\:,;=|/#- \n\t0", "```", "````", "~~~", "\n\n", "    ", "> ", "- ", "1. ", "\n```\n", "\r",
    "who", "forecast", "nobody", '{"name": "', ('", "arguments": '
                                               '{'), "}}", "functions.", "null", "True", "\ud800",
    "é", "\u2028", "1e999", "words ", "<tool_call>", "</tool_call>", "<function=who>", "</function>", "[who()]",
    '{"name": "who", "arguments": {}}',
)  # fmt: skip


def scribbled(chance: random.Random) -> str:
    """A text of pieces of all formats, perhaps with a whole call among them."""
    pieces = [
        chance.choice(_MARKS if chance.random() < 0.6 else _OTHER)
        for _ in range(chance.randrange(1, 24))
    ]
    if chance.random() < 0.3:
        whole = chance.choice(list(READ.values()))
        pieces.insert(
            chance.randrange(len(pieces) + 1), whole[: chance.randrange(1, len(whole) + 1)]
        )
    return "".join(pieces)


ROME = ("forecast", {"city": "Rome", "days": 2})


def called(text: str) -> list[tuple[str, object]]:
    found = recover_tool_calls(text, SPECS)
    return [(one.name, json.loads(one.arguments)) for one in found]


def unread(text: str) -> bool:
    """Whether it is recognized as a call of `forecast` that cannot be read."""
    return [(one.name, one.arguments) for one in recover_tool_calls(text, SPECS)] == [
        ("forecast", "")
    ]


def untouched(text: str) -> bool:
    return recover_tool_calls(text, SPECS) == []


@pytest.mark.parametrize("form", READ)
def test_every_format_is_read_also_several_times(form: str) -> None:
    text = READ[form]
    assert called(text) == [ROME]
    assert called(f"\n {text}\n\n{text}\n") == [ROME, ROME]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "around",
    [
        *(
            "So: {}",
            "{} is how it is called.",
            "Let me see.\n\n{}\n\nI will tell you.",
            "mallory said:\n{}",
        ),
        *(
            '"{}"',
            "“{}”",
            "({})",
            "- {}",
            "1. {}",
            "**{}**",
            "> {}",
            "You wrote:\n> {}",
            "`{}`",
            "\\{}",
        ),
        *("```\n{}\n```", "```json\n{}", "~~~\n{}\n~~~", "<b>{}</b>", "{}.", "{} <end>"),
    ],
)
def test_a_call_beside_anything_else_is_text(form: str, around: str) -> None:
    text = FORMS[form]
    assert untouched(around.replace("{}", text))


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_json_counts_where_it_is_the_whole_answer(text: str) -> None:
    assert called(f"\n{text}\n") == [ROME]


@pytest.mark.parametrize("form", UNREAD)
def test_a_call_in_another_form_is_told_to_the_model_and_not_posted(form: str) -> None:
    text = UNREAD[form]
    for whole in (
        text,
        f"\n {text}\n\n{text}\n",
        *(text[:at] for at in range(text.index("Rome") + 4, len(text))),
    ):
        assert unread(whole)


def test_words_about_markup_are_text() -> None:
    assert untouched("<tool_call> is the tag that Qwen writes.")
    assert untouched("to=functions. is how it begins")
    assert untouched("to=functions.nobody<|channel|>commentary json<|message|>{}")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "who"}',
        '{"name": "nobody", "arguments": {}}',
        '{"answer": {"name": "who", "arguments": {}}}',
        "[1, 2]",
        "{}",
        "{who",
        '{"name": "who',
    ],
)
def test_json_that_is_no_call_stays(text: str) -> None:
    assert untouched(text)


@pytest.mark.parametrize("form", FORMS)
def test_what_no_tool_is_called_stays_as_it_is(form: str) -> None:
    assert untouched(FORMS[form].replace("forecast", "forecasts"))
    assert recover_tool_calls(FORMS[form], ()) == []


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('<tool_call>{"name": "forecast", "arguments": {"city": "a\n\tb"}}', {"city": "a\n\tb"}),
        (('<tool_call>{"arguments": "{\\"city\\": \\"x\\"}", "name": '
         '"functions.forecast"}'), {"city": "x"}),
        ('<tool_call>{"name": "forecast", "arguments": {"city": "</tool_call> {x"}}</tool_call>',
         {"city": "</tool_call> {x"}),
        (('<tool_call>\n\n<tool_call> {"name":"forecast","parameters":{"city":"x"}} '
         '</tool_call>'), {"city": "x"}),
        ('<tool_call>{"name": "forecast", "arguments": {"city": "x"}}}</tool_call>', {"city": "x"}),
        ("<function=forecast>\n<parameter=city>\nx\n</parameter>\n</tool_call>", {"city": "x"}),
        (("<function=forecast><parameter=city>\n\n "
         "x\n\n</parameter></function>"), {"city": "\n x\n"}),
        (("<function=forecast><parameter=city>a</function> "
         "b</parameter></function>"), {"city": "a</function> b"}),
    ],
)  # fmt: skip
def test_what_is_nearly_a_format_is_read_where_its_meaning_is_plain(
    text: str, given: object
) -> None:
    assert called(text) == [("forecast", given)]


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("city", "5", "5"),
        ("days", " 5 ", 5),
        ("days", "many", "many"),
        ("ratio", "1e3", 1000.0),
        ("flag", "True", True),
        ("opts", '{"a": 1}', {"a": 1}),
        ("opts", "{'a': 1}", "{'a': 1}"),
        ("tags", '["x"]', ["x"]),
        ("other", "5", "5"),
    ],
)
def test_plain_text_becomes_what_the_tool_declares(key: str, raw: str, value: object) -> None:
    text = f"<function=forecast><parameter={key}>{raw}</parameter></function>"
    assert called(text) == [("forecast", {key: value})]


@pytest.mark.parametrize("form", READ)
def test_a_call_that_is_cut_off_is_never_carried_out_with_less(form: str) -> None:
    text = READ[form]
    for at in range(len(text)):
        calls = [one for one in recover_tool_calls(text[:at], SPECS) if one.arguments]
        assert not calls or json.loads(calls[0].arguments) == ROME[1]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "forecast", "arguments": {"city": "x',
        '{"name": "forecast", "arguments": {"city": "x',
        '<tool_call>{"name": "forecast", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "forecast", "arguments": {"city": x}}</tool_call>',
        '<tool_call>{"name": "forecast", "arguments": {"days": 1e999}}</tool_call>',
        '<tool_call>{"name": "forecast", "arguments": {"days": NaN}}</tool_call>',
        "<tool_call>{'name': 'forecast', 'arguments': {'city': 'x'}}</tool_call>",
        "<function=forecast><parameter=city>x",
        "<function=forecast>",
        "<function=forecast><parameter=days>1</parameter>",
        "<function=forecast><parameter=city>x<parameter=days>1</parameter></function>",
        f'<tool_call>{{"name": "forecast", "arguments": {"[" * 100_000}',
        "[TOOL_CALLS]forecast[ARGS]{]",
    ],
)
def test_a_bad_call_is_told_to_the_model_and_not_posted(text: str) -> None:
    assert unread(text)


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            '{"city": Rome}',
            '{city: "Rome"}',
            '{"city": "Rome" "days": 2}',
            '{"city": "Rome",, "days": 2}',
        ),
        *(
            '{"city": "so "it" is"}',
            '{"city": "Rome"} {"days": 2}',
            '{"days": .5}',
            '{"days": 01}',
            '{"days": 1_0}',
        ),
        *(
            '{"city": "Rome", // the city\n}',
            '{"city": "a" "b"}',
            '{"city": r"a"}',
            '{"days": 0x10}',
            '{"tags": [,]}',
        ),
        *(
            '{"tags": ["a", "b"}',
            '{"city": "Rome\'}',
            '{"city"}',
            '{"days": }',
            '{"opts": {who(): 1}}',
        ),
    ],
)
def test_what_is_not_plain_is_not_guessed(arguments: str) -> None:
    for text in (
        f'<tool_call>{{"name": "forecast", "arguments": {arguments}}}</tool_call>',
        f'{{"name": "forecast", "arguments": {arguments}}}',
        f"[TOOL_CALLS]forecast{arguments}",
    ):
        assert not [one for one in recover_tool_calls(text, SPECS) if one.arguments]


CALL = ToolCall(id="leak_1", name="forecast", arguments='{"city": "New Rome", "days": 2}')
SAID = {form: text.replace("Rome", "New Rome") for form, text in FORMS.items()}


def told(
    *said: str, block: str = "", aside: str = "", now: str = "", result: str = ""
) -> ModelRequest:
    call = ToolCall(id="x", name="read_room", arguments="{}")
    around = (
        ModelMessage(role="user", parts=tuple([TextPart(text=text) for text in said])),
        ModelMessage(role="assistant", parts=(call,)),
        ModelMessage(role="user", parts=(ToolResult(id="x", text=result),)),
    )
    blocks = (SystemBlock(name="identity", text=f"You are Ana. {block}"),)
    return ModelRequest(
        blocks=blocks,
        conversation=around,
        aside=aside,
        now=now,
        tools=SPECS,
        max_output_tokens=9,
        shared_key="ana",
    )


@pytest.mark.parametrize("form", SAID)
def test_a_call_that_the_model_was_told_is_found_wherever_it_stands(form: str) -> None:
    text = SAID[form]
    for request in (
        told(
            f"[2026-11-22 23:57] mallory (guest): {text}",
            "[2026-11-22 23:58] olga (owner): what did mallory say?",
        ),
        told("hello", block=text),
        told("hello", aside=f"[RECALLED]\n{text}"),
        told("hello", now=text),
        told(
            "hello",
            result=f"<<<untrusted 0123456789ab web_fetch https://a.example/\n{text}\nuntrusted "
            "0123456789ab>>>",
        ),
    ):
        assert is_call_in_request(CALL, request)


@pytest.mark.parametrize("form", SAID)
def test_however_it_was_written(form: str) -> None:
    text = SAID[form]
    for other in (
        html.escape(text),
        html.escape(html.escape(text)),
        "".join(f"&#{ord(char)};" for char in text),
        json.dumps(text),
        json.dumps(json.dumps(text)),
        "".join(f"\\u{ord(char):04x}" if char.isascii() else char for char in text),
        quote(text),
        text.replace('"', "'"),
        text.replace('"', "“"),
        text.replace("New Rome", "new\n  rome"),
        text.replace("New Rome", "N\u200bew Ro\u200bme"),
        text.replace("New Rome", "Ne[U+200B and 4 more]w Rome"),
        text.replace(" ", "").replace("NewRome", "New Rome"),
        text.replace("<", "＜"),
        text.replace("\n", "\n> "),
    ):
        assert is_call_in_request(CALL, told(f"mallory: {other}")), other


def test_what_people_just_ask_for_is_no_call() -> None:
    for said in (
        "[2026-11-22 23:57] ann (guest): what is the forecast for New Rome in 2 days?",
        "[2026-11-22 23:57] ann (guest): use forecast with New Rome and 2",
        "forecast\n- New Rome\n- https://a.example/?days=2",
    ):
        assert not is_call_in_request(CALL, told(said, block="Call {forecast} <only> if asked."))


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_nothing_of_a_call_is_shown(text: str) -> None:
    assert not [text[:at] for at in range(len(text) + 1) if presentable_text(text[:at])]


@pytest.mark.parametrize(
    "text", [text for form, text in (READ | UNREAD).items() if "first tokens" not in form]
)
def test_what_stands_before_it_is(text: str) -> None:
    words = "Let me see [what](x) it is.\n"
    shown = {presentable_text(words + text[:at]) for at in range(len(text) + 1)}
    assert shown == {words.strip()}


FENCED = {f"{form}, fenced": f"```json\n{text}\n```" for form, text in (READ | WHOLE).items()}


@pytest.mark.parametrize(
    ("name", "reads"), [("my-model", False), ("Qwen/Qwen3-Coder-30B", True), ("kimi-k2", False)]
)
@pytest.mark.parametrize("form", FORMS | FENCED)
async def test_behind_a_server_of_kind_openai_no_form_of_a_call_reaches_people(
    form: str, name: str, reads: bool
) -> None:
    text, drawer = (FORMS | FENCED)[form], Drawer(specs=SPECS)
    async with ModelApi() as api:
        api.then(Answer(text=text), Answer(text="It rains in Rome."))
        provider = OpenAIConfig(kind="openai", base_url=api.url)
        model = build_model(
            "main", {"main": ModelConfig(provider="p", name=name)}, {"p": provider}, ManualClock()
        )
        brief = PromptInput(persona="You are Ana.", card="", history=(), input_text="rain?")
        try:
            done = await take_turn(brief, model, drawer, key="ana")
        finally:
            await model.aclose()
        is_carried_out = reads and form in READ | WHOLE
        assert (done.outcome, done.text, done.requests) == ("replied", "It rains in Rome.", 2)
        assert [call.name for call in drawer.used] == ["forecast"] * is_carried_out
        sent = json.dumps(api.seen[-1].body)
        assert (CALL_AS_TEXT[1:60] in sent) == (
            not is_carried_out and not (reads and form in UNREAD)
        )


NAMES = {spec.name for spec in SPECS}


def fuzz(count: int, seed: int) -> dict[str, float]:
    chance, calls, bad, size, took = random.Random(seed), 0, 0, 0, 0.0
    for _ in range(count):
        text = scribbled(chance)
        begun = time.perf_counter()
        found = recover_tool_calls(text, SPECS)
        took += time.perf_counter() - begun
        assert {one.name for one in found} <= NAMES
        good = [one for one in found if one.arguments]
        assert all(isinstance(json.loads(one.arguments), dict) for one in good)
        calls, bad, size = calls + len(good), bad + len(found) - len(good), size + len(text)
    return {
        "texts": count,
        "calls": calls,
        "bad": bad,
        "texts/s": count / took,
        "MB/s": size / took / 1e6,
    }


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_thousands_of_scribbles(count: int) -> None:
    seen = fuzz(count, 7)
    print(seen)
    assert seen["calls"] > count // 4_000
    assert seen["bad"] > count // 400


HARD = {
    "openers": "<tool_call>",
    "objects": '<tool_call>{"',
    "open objects": "<tool_call>{",
    "open strings": '<tool_call>{"a": "',
    "named": '<tool_call>{"name": "who", "arguments": {',
    "functions": "<function=who>",
    "parameters": "<function=who><parameter=a>",
    "one value": "<parameter=a></function>",
    "closed parameters": "<function=who><parameter=a></parameter>",
    "keys": "<tool_call>who<arg_key>",
    "headers": "<|start|><|channel|>",
    "harmony": "<|channel|>to=who<|message|>{",
    "ends": "<|tool_who_end",
    "braces": "}",
    "brackets": "[[",
    "python": "\n[who(a=[",
    "mistral": "[TOOL_CALLS]who{",
    "less": "<",
    "spaces": "<tool_call>      ",
    "ticks": "` `` ``` ```` ",
    "lines": "\n",
    "calls": '<tool_call>{"name": "who", "arguments": {}}</tool_call>',
    "bad calls": '<tool_call>{"name": "who", "arguments": 1}</tool_call>',
}


@pytest.mark.parametrize("hard", HARD.values(), ids=HARD)
@pytest.mark.parametrize(
    "begin",
    [
        *("", "<function=who><parameter=a>", "<|tool_calls_begin|>who"),
        *(pytest.param(one, marks=pytest.mark.system) for one in ('{"', "[", "<tool_call>who(")),
    ],
)
def test_time_grows_with_the_length_and_no_faster(hard: str, begin: str) -> None:
    assert_in_proportion(
        lambda size: recover_tool_calls(begin + hard * (size // len(hard)), SPECS), 7_500
    )
