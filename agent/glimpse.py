"""What of an unfinished answer may be shown. Pure."""

import re

_LEAKED_CALL = re.compile(
    r"""<[|/]?([a-z]+:)?(tool|function|invoke|parameter|think|arg_)   # <tool_call>, <function=, <|tool_calls|>
    |<[|\N{FULLWIDTH VERTICAL LINE}]                              # a special token
    |\[TOOL_CALLS\]|\[/?INST\]                                    # Mistral's
    |^[ \t]*\[\w*\(                                               # Llama 4's
    |```tool
    |\A\s*(\{|\[\s*\{)                                            # an answer that begins as JSON
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
"""What models write when a tool call leaks into their text. Too much is cut rather than too little: it is back
in the final text if it was meant."""
_UNFINISHED_CALL = re.compile(r"(<[|/]?[a-z_:]{0,16}|\[/?\w{0,64}|`{1,3}[a-z]{0,4})\Z", re.IGNORECASE)
"""The end of what may become one of these with the next piece."""


def presentable_text(text: str) -> str:
    """The beginning of `text` that is surely words: no tool call, begun or whole, and no half character."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    call = _LEAKED_CALL.search(whole)
    return (whole[: call.start()] if call else _UNFINISHED_CALL.sub("", whole)).strip()
