"""Tool calls in every format in which models write them as text, and texts made of their pieces."""

import json
import random

from gateway.core.tool_spec import ToolSpec

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

FORMATS = {
    "hermes": '<tool_call>\n{"name": "forecast", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>',
    "qwen3-coder": "<tool_call>\n<function=forecast>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
    "llama 3": '<|python_tag|>{"name": "forecast", "parameters": {"city": "Rome", "days": 2}}<|eom_id|>',
    "llama 3.1, custom": '<function=forecast>{"city": "Rome", "days": 2}</function>',
    "llama 4": '[forecast(city="Rome", days=2)]',
    "llama 4, tagged": "<|python_start|>[forecast(city='Rome', days=2)]<|python_end|>",
    "mistral": '[TOOL_CALLS] [{"name": "forecast", "arguments": {"city": "Rome", "days": 2}}]</s>',
    "mistral, named": '[TOOL_CALLS]forecast[ARGS]{"city": "Rome", "days": 2}',
    "mistral, numbered": '[TOOL_CALLS]forecast[CALL_ID]a1b2c3d4e[ARGS]{"city": "Rome", "days": 2}',
    "deepseek v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>forecast\n```json\n"
    '{"city": "Rome", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
    "deepseek v3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>forecast<｜tool▁sep｜>"
    '{"city": "Rome", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek v3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="forecast">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "deepseek v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="forecast">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
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
    "minimax m2": '<minimax:tool_call>\n<invoke name="forecast">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "gpt-oss": "<|channel|>commentary to=functions.forecast <|constrain|>json<|message|>"
    '{"city": "Rome", "days": 2}<|call|>',
    "gpt-oss, the role first": "<|start|>assistant to=functions.forecast<|channel|>commentary json<|message|>"
    '{"city": "Rome", "days": 2}<|call|>',
    "lfm2": '<|tool_call_start|>[forecast(city="Rome", days=2)]<|tool_call_end|>',
    "claude": '<function_calls>\n<invoke name="forecast">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n</function_calls>',
    "claude, bare": '<invoke name="forecast">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>',
    "phi 4": '<|tool_call|>[{"name": "forecast", "arguments": {"city": "Rome", "days": 2}}]<|/tool_call|>',
}
"""Each calls `forecast` with `{"city": "Rome", "days": 2}`; none needs to be the whole answer."""

WHOLE = {
    "llama 3": '{"name": "forecast", "parameters": {"city": "Rome", "days": 2}}',
    "listed": '[{"name": "forecast", "arguments": {"city": "Rome", "days": 2}}]',
    "openai": '{"type": "function", "function": {"name": "forecast", "arguments": "{\\"city\\": \\"Rome\\", '
    '\\"days\\": 2}"}}',
}
"""The same, as the whole answer only."""


_MARKS = sorted(
    {
        piece
        for whole in (*FORMATS.values(), *WHOLE.values())
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
    "who", "forecast", "nobody", '{"name": "', '", "arguments": {', "}}", "functions.", "null", "True", "\ud800",
    "é", "\u2028", "1e999", "words ", "<tool_call>", "</tool_call>", "<function=who>", "</function>", "[who()]",
    '{"name": "who", "arguments": {}}',
)  # fmt: skip


def scribbled(chance: random.Random) -> str:
    """A text of pieces of all formats, perhaps with a whole call among them."""
    pieces = [chance.choice(_MARKS if chance.random() < 0.6 else _OTHER) for _ in range(chance.randrange(1, 24))]
    if chance.random() < 0.3:
        whole = chance.choice(list(FORMATS.values()))
        pieces.insert(chance.randrange(len(pieces) + 1), whole[: chance.randrange(1, len(whole) + 1)])
    return "".join(pieces)
