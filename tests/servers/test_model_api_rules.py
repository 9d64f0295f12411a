"""The Messages API fake refuses what the real one refuses, in its words where they are known. No sockets.

Context editing: against platform.claude.com/docs/en/build-with-claude/context-editing.
"""

import base64
from typing import Any

import pytest

from tests.servers.messages_prompt import Json
from tests.servers.model_api_rules import BETA, PLACEHOLDER, check, edited

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
TOOL = {"name": "look_up", "description": "d", "input_schema": {"type": "object", "properties": {}}}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n rest").decode()
SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def text(words: str = "hi", **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def bot(*content: Json) -> Json:
    return {"role": "assistant", "content": list(content)}


def image(data: str = PNG, **more: Any) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}, **more}


def call(ident: str = "t1") -> Json:
    return {"type": "tool_use", "id": ident, "name": "look_up", "input": {}}


def result(ident: str = "t1", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": ident, "content": "found", **more}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
OPERATOR = {"role": "system", "content": "Answer briefly."}


def body(*messages: Json, **more: Any) -> Json:
    return {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": list(messages) or [user(text())], **more}


def asked(effort: str) -> Json:
    return {"output_config": {"effort": effort}}


ACCEPTED: dict[str, Json] = {
    "plain": body({"role": "user", "content": "hi"}, stream=True, system="You are Reverie."),
    "blocks": body(system=[text(cache_control=LONG)], tools=[TOOL | {"cache_control": LONG}], stream=False),
    "neighbours of one role": body(user(text()), user(text())),
    "a loop": body(user(text()), bot(text(), call(), call("t2")), user(result("t2"), result(is_error=True), text())),
    "results in two messages": body(user(text()), bot(call(), call("t2")), user(result()), user(result("t2"))),
    "a result without content": body(user(text()), bot(call()), user({"type": "tool_result", "tool_use_id": "t1"})),
    "a picture": body(user(text(), image(cache_control=SHORT))),
    "a picture in a result": body(user(text()), bot(call()), user(result(content=[text(), image()]))),
    "four marks": body(
        user(text(cache_control=SHORT), text(cache_control=SHORT)), system=[text(cache_control=LONG)] * 2
    ),
    "automatic": body(cache_control=SHORT),
    "automatic, marked alike": body(user(text(cache_control=SHORT)), cache_control=SHORT),
    "automatic as the fourth": body(system=[text(cache_control=LONG)] * 3, cache_control=LONG),
    "a word of the operator": body(user(text()), OPERATOR),
    "a word of the operator, later": body(user(text()), OPERATOR, bot(text()), user(text())),
    "a word of the operator after a result": body(user(text()), bot(call()), user(result()), OPERATOR),
    "warming": body(max_tokens=0),
    "adaptive": body(thinking={"type": "adaptive", "display": "summarized"}),
    "between tools": body(thinking={"type": "between_tools"}),
    "defaults": body(temperature=1, top_p=1, **asked("max")),
    "old sampling": body(model="claude-opus-4-5", temperature=0.2, top_k=5),
    "old prefill": body(user(text()), bot(text("Sure")), model="claude-haiku-4-5"),
    "old thinking": body(
        model="claude-sonnet-4-5", max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}
    ),
    "forced where it may be": body(model="claude-opus-4-8", tools=[TOOL], tool_choice={"type": "any"}),
    "thinking sent back": body(user(text()), bot(THOUGHT, call()), user(result())),
    "a document of the assistant's": body(
        user(text()), bot({"type": "document", "source": {"type": "text"}}, text()), user(text())
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_documented_is_accepted(name: str) -> None:
    assert check(ACCEPTED[name], HEADERS) is None


REFUSED: list[tuple[str, Json]] = [
    # the request
    ("metadata2: Extra inputs are not permitted", body(metadata2={})),
    ("speed: Extra inputs are not permitted", body(speed="fast")),
    ("model: Field required", body(model="")),
    ("messages: Field required", {"model": "m", "max_tokens": 1}),
    ("max_tokens: Field required", {"model": "m", "messages": [user(text())]}),
    ("max_tokens: Input should be a valid integer", body(max_tokens="1")),
    ("max_tokens: Input should be greater than or equal to 0", body(max_tokens=-1)),
    ("which is the maximum allowed number of output tokens for claude-sonnet-5-5", body(max_tokens=128_001)),
    ("max_tokens: 0 is not supported when `stream`", body(max_tokens=0, stream=True)),
    (
        'max_tokens: 0 is not supported with "thinking.type.enabled"',
        body(max_tokens=0, model="claude-opus-4-5", thinking={"type": "enabled", "budget_tokens": 1024}),
    ),
    (
        "max_tokens: 0 is not supported with `output_config.format`",
        body(max_tokens=0, output_config={"format": {"a": 1}}),
    ),
    (
        "max_tokens: 0 is not supported when `tool_choice`",
        body(max_tokens=0, model="claude-opus-5", tools=[TOOL], tool_choice={"type": "any"}),
    ),
    # cache_control
    (
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        body(user(text(cache_control=SHORT)), system=[text(cache_control=SHORT)] * 4),
    ),
    ("Found 5.", body(system=[text(cache_control=SHORT)] * 4, cache_control=SHORT)),
    ("already has a cache_control", body(user(text(cache_control=LONG)), cache_control=SHORT)),
    (
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'",
        body(user(text(cache_control=LONG)), system=[text(cache_control=SHORT)]),
    ),
    (
        "system.0.cache_control.ttl: a ttl='1h'",
        body(tools=[TOOL | {"cache_control": SHORT}], system=[text(cache_control=LONG)]),
    ),
    ("cache_control.ttl: a ttl='1h'", body(system=[text(cache_control=SHORT)], cache_control=LONG)),
    (
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        body(user(text()), bot(THOUGHT | {"cache_control": SHORT}, text()), user(text())),
    ),
    (
        "messages.0.content.0.text: cache_control cannot be set for empty text blocks",
        body(user(text("", cache_control=SHORT))),
    ),
    (
        "messages.2.content.0.tool_result.content.0.text.cache_control: Extra inputs are not permitted",
        body(user(text()), bot(call()), user(result(content=[text(cache_control=SHORT)]))),
    ),
    ("ephemeral.ttl: Input should be '5m' or '1h'", body(user(text(cache_control={"type": "ephemeral", "ttl": "2h"})))),
    ("Input tag 'forever'", body(user(text(cache_control={"type": "forever"})))),
    ("ephemeral.scope: Extra inputs", body(cache_control=SHORT | {"scope": "global"})),
    # blocks
    ("messages: at least one message is required", body() | {"messages": []}),
    ("messages.0: all messages must have non-empty content", body(user())),
    ("messages: text content blocks must be non-empty", body(user(text("")))),
    ("messages: text content blocks must contain non-whitespace text", body(user(text(" \n")))),
    ("system: text content blocks must contain non-whitespace text", body(system=[text(" ")])),
    ("system.0.type: Input should be 'text'", body(system=[image()])),
    ("messages.0.content.0: Input tag 'video'", body(user({"type": "video"}))),
    ("messages.0.content.0.text.name: Extra inputs are not permitted", body(user(text(name="ann")))),
    ("messages.0.name: Extra inputs are not permitted", body(user(text()) | {"name": "ann"})),
    ("messages.0.content: Input should be a valid list", body({"role": "user", "content": None})),
    (
        "messages.1.content.0.thinking.signature: Field required",
        body(user(text()), bot({"type": "thinking", "thinking": "x"})),
    ),
    (
        "messages.1: The final block in an assistant message cannot be `thinking`.",
        body(user(text()), bot(THOUGHT), user(text())),
    ),
    (
        "tool_use.input: Input should be a valid dictionary",
        body(user(text()), bot(call() | {"input": "{}"}), user(result())),
    ),
    ("String should match pattern", body(user(text()), bot(call("a b")), user(result("a b")))),
    ("image blocks are only permitted in user messages", body(user(text()), bot(image()), user(text()))),
    ("image: invalid base64 data", body(user(image("not base64")))),
    ("image does not match the provided media type", body(user(image(base64.b64encode(b"GIF8").decode())))),
    ("image exceeds 5 MB maximum", body(user(image(PNG + "A" * 5 * 1024 * 1024)))),
    (
        "source.type: Input should be 'base64'",
        body(user(image() | {"source": {"type": "url", "media_type": "", "data": ""}})),
    ),
    ("Too many images: 101 > 100", body(user(*[image()] * 101))),
    ("Input should be of the documented form", body(user("hi"))),  # type: ignore[arg-type]  # on purpose
    # roles
    ("messages.0.role: Input should be", body({"role": "tool", "content": "x"})),
    ('messages: first message must use the "user" role', body(bot(text()), user(text()))),
    ("messages.0: use the top-level 'system' parameter for the initial system prompt", body(OPERATOR, user(text()))),
    ("role 'system' must directly follow a user message", body(user(text()), bot(text()), OPERATOR)),
    ("role 'system' must directly follow a user message", body(user(text()), OPERATOR, user(text()))),
    ("role 'system' must directly follow a user message", body(user(text()), OPERATOR, OPERATOR)),
    ("image blocks are only permitted in user messages", body(user(text()), OPERATOR | {"content": [image()]})),
    ("messages.1.clear_at: Extra inputs", body(user(text()), OPERATOR | {"clear_at": "next_user_message"})),
    *(
        ("role 'system' is not supported on this model", body(user(text()), OPERATOR, model=model))
        for model in ("claude-sonnet-5", "claude-opus-4-7", "claude-haiku-4-5", "some-model")
    ),
    *(
        ("This model does not support assistant message prefill", body(user(text()), bot(text()), model=model))
        for model in ("claude-opus-5-5", "claude-sonnet-4-6", "claude-opus-4-6", "some-model")
    ),
    ("cannot end with trailing whitespace", body(user(text()), bot(text("a ")), model="claude-opus-4-5")),
    # tools
    (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1.",
        body(user(text()), bot(call()), user(text())),
    ),
    (
        "`tool_use` ids were found without `tool_result` blocks",
        body(user(text()), bot(call(), call("t2")), user(result())),
    ),
    ("`tool_use` ids were found without", body(user(text()), bot(call()), model="claude-opus-4-5")),
    ("unexpected `tool_use_id` found in `tool_result` blocks: t1", body(user(result()))),
    ("tool_result blocks must come first in content", body(user(text()), bot(call()), user(text(), result()))),
    ("each tool_use must have a single result", body(user(text()), bot(call()), user(result(), result()))),
    ("`tool_use` ids must be unique", body(user(text()), bot(call()), user(result()), bot(call()), user(result()))),
    ("tools: Tool names must be unique.", body(tools=[TOOL, TOOL])),
    ("tools.0.custom.input_schema.type", body(tools=[TOOL | {"input_schema": {}}])),
    ("tools.0.custom.parameters: Extra inputs are not permitted", body(tools=[TOOL | {"parameters": {}}])),
    ("tool_choice: may only be specified while providing tools", body(tool_choice={"type": "auto"})),
    *(
        (
            'tool_choice: type "tool" and "any" are not supported for this model.',
            body(model=model, tools=[TOOL], tool_choice=choice),
        )
        for model in ("claude-opus-5-5", "claude-sonnet-5-5", "claude-fable-5-1", "claude-mythos-5-1")
        for choice in ({"type": "any"}, {"type": "tool", "name": "look_up"})
    ),
    ("Tool 'x' not found", body(model="claude-opus-5", tools=[TOOL], tool_choice={"type": "tool", "name": "x"})),
    (
        "Thinking may not be enabled when tool_choice forces tool use.",
        body(
            model="claude-sonnet-4-5",
            max_tokens=2000,
            tools=[TOOL],
            tool_choice={"type": "any"},
            thinking={"type": "enabled", "budget_tokens": 1024},
        ),
    ),
    # sampling and effort
    *(
        (f"`{key}` is deprecated for this model.", body(**{key: value}))
        for key, value in {"temperature": 0, "top_p": 0.9, "top_k": 4}.items()
    ),
    ("temperature: range: 0..1", body(model="claude-opus-4-5", temperature=1.5)),
    ("output_config.effort: Input should be 'low'", body(**asked("huge"))),
    (
        "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium.",
        body(model="claude-opus-4-6", **asked("xhigh")),
    ),
    ("This model does not support the effort parameter.", body(model="claude-haiku-4-5", **asked("low"))),
    ("output_config.style: Extra inputs", body(output_config={"style": 1})),
]


@pytest.mark.parametrize(("said", "wrong"), REFUSED)
def test_what_is_refused(said: str, wrong: Json) -> None:
    complaint = check(wrong, HEADERS)
    assert complaint is not None
    assert said in complaint.message
    assert (complaint.status, complaint.kind) == (400, "invalid_request_error")


TYPES = ("adaptive", "between_tools", "disabled", "enabled")


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        ("claude-fable-5", "adaptive"),
        ("claude-mythos-5-1", "adaptive"),
        ("claude-opus-5-5", "adaptive"),
        ("claude-sonnet-5-5", "adaptive between_tools"),
        ("claude-haiku-5-5", "adaptive disabled"),
        ("claude-opus-5", "adaptive disabled"),
        ("claude-sonnet-5", "adaptive disabled"),
        ("claude-opus-4-8", "adaptive disabled"),
        ("claude-opus-4-7", "adaptive disabled"),
        ("claude-opus-4-6", "adaptive disabled enabled"),
        ("claude-sonnet-4-6", "adaptive disabled enabled"),
        ("claude-opus-4-5", "disabled enabled"),
        ("claude-sonnet-4-5", "disabled enabled"),
        ("claude-haiku-4-5-20251001", "disabled enabled"),
    ],
)
def test_which_model_takes_which_thinking(model: str, taken: str) -> None:
    """The table of build-with-claude/thinking-troubleshooting."""
    for kind in TYPES:
        thinking = {"type": kind} | ({"budget_tokens": 1024} if kind == "enabled" else {})
        complaint = check(body(model=model, max_tokens=2000, thinking=thinking), HEADERS)
        assert (complaint is None) is (kind in taken.split()), kind
        if complaint and kind == "adaptive":
            assert complaint.message == "adaptive thinking is not supported on this model"
        elif complaint:
            assert complaint.message.startswith(f'"thinking.type.{kind}" is not supported for this model.')


@pytest.mark.parametrize(
    ("model", "kind"),
    [("claude-sonnet-5-5", "between_tools"), ("claude-haiku-5-5", "disabled"), ("claude-opus-5", "disabled")],
)
def test_less_thinking_needs_at_most_high_effort(model: str, kind: str) -> None:
    for effort in ("low", "high", "xhigh", "max"):
        complaint = check(body(model=model, thinking={"type": kind}, **asked(effort)), HEADERS)
        assert (complaint is None) is (effort in {"low", "high"})


@pytest.mark.parametrize(
    ("said", "thinking"),
    [
        ("Input tag found using 'type'", {"type": "deep"}),
        ("thinking.adaptive.budget_tokens: Extra inputs", {"type": "adaptive", "budget_tokens": 1024}),
        ("thinking.adaptive.block_binding: Extra inputs", {"type": "adaptive", "block_binding": {}}),
        ("display: Input should be", {"type": "adaptive", "display": "loud"}),
        ("greater than or equal to 1024", {"type": "enabled", "budget_tokens": 10}),
        ("budget_tokens: Field required", {"type": "enabled"}),
        ("`max_tokens` must be greater than `thinking.budget_tokens`", {"type": "enabled", "budget_tokens": 2000}),
    ],
)
def test_malformed_thinking_is_refused(said: str, thinking: Json) -> None:
    complaint = check(body(model="claude-opus-4-6", max_tokens=2000, thinking=thinking), HEADERS)
    assert complaint is not None
    assert said in complaint.message


def test_headers() -> None:
    nobody = check(body(), {"anthropic-version": "2023-06-01"})
    assert nobody is not None
    assert (nobody.status, nobody.kind) == (401, "authentication_error")
    assert check(body(), {"authorization": "Bearer k", "anthropic-version": "2026-10-21"}) is None
    for version in ({}, {"anthropic-version": "2027-01-01"}):
        wrong = check(body(), {"x-api-key": "k"} | version)
        assert wrong is not None
        assert wrong.message.startswith("anthropic-version: ")
    assert check(body()) is None, "without headers these are not looked at"


def test_documents_of_the_assistant_ended_with_a_version() -> None:
    wrong = check(ACCEPTED["a document of the assistant's"], HEADERS | {"anthropic-version": "2026-10-21"})
    assert wrong is not None
    assert wrong.message == "messages.1.content.0: document blocks are only permitted in user messages"


def test_betas_open_what_they_name() -> None:
    def betas(*names: str) -> dict[str, str]:
        return HEADERS | {"anthropic-beta": ", ".join(names)}

    cleared = body(user(text()), OPERATOR | {"clear_at": "next_user_message"})
    assert check(cleared, betas("mid-conversation-system-clear-at-2026-08-21")) is None
    assert check(body(speed="fast"), betas("x", "fast-mode-2026-02-01")) is None
    bound = body(thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}})
    controls = betas("thinking-binding-controls-2026-08-01")
    assert check(bound, controls) is None
    bound["thinking"]["block_binding"]["prefix_mismatch_behavior"] = "ignore"
    assert check(bound, controls) is not None


def test_counting_takes_what_makes_the_prompt_and_nothing_else() -> None:
    prompt = body(system="s", tools=[TOOL], thinking={"type": "adaptive"}, cache_control=SHORT, **asked("low"))
    del prompt["max_tokens"]
    assert check(prompt, HEADERS, counting=True) is None
    for more in ({"max_tokens": 1}, {"stream": False}, {"temperature": 1}):
        assert check(prompt | more, HEADERS, counting=True) is not None
    forced = check(prompt | {"tool_choice": {"type": "any"}}, HEADERS, counting=True)
    assert forced is not None
    assert forced.message.startswith("tool_choice")


MANAGED = HEADERS | {"anthropic-beta": BETA}
TOOLS = "clear_tool_uses_20250919"
THOUGHTS = {"type": "clear_thinking_20251015"}


def clear(**more: Any) -> Json:
    return {"type": TOOLS, **more}


def amount(kind: str, value: object) -> Json:
    return {"type": kind, "value": value}


def managed(*edits: Json, **more: Any) -> Json:
    return body(user(text()), context_management={"edits": list(edits)}, **more)


ADAPTIVE = {"thinking": {"type": "adaptive"}}
FULL = clear(
    trigger=amount("input_tokens", 30_000),
    keep=amount("tool_uses", 3),
    clear_at_least=amount("input_tokens", 5_000),
    exclude_tools=["web_search"],
    clear_tool_inputs=False,
)


@pytest.mark.parametrize("accepted", [managed(), managed(clear()), managed(FULL), managed(THOUGHTS, FULL, **ADAPTIVE)])
def test_what_is_documented_is_accepted_with_the_beta_and_only_then(accepted: Json) -> None:
    assert check(accepted, MANAGED) is None
    assert check(accepted, HEADERS) is not None


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("must be first", managed(clear(), THOUGHTS, **ADAPTIVE)),
        ("requires `thinking`", managed(THOUGHTS)),
        ("duplicate", managed(clear(), clear())),
        ("does not match any", managed({"type": "clear_everything"})),
        ("Extra inputs", managed(clear(placeholder="x"))),
        ("Extra inputs", body(user(text()), context_management={"edits": [], "keep": "all"})),
        ("trigger.type", managed(clear(trigger=amount("messages", 5)))),
        ("of the documented form", managed(clear(trigger=5))),
        ("trigger.value", managed(clear(trigger=amount("input_tokens", "many")))),
        ("keep.type", managed(clear(keep=amount("input_tokens", 5)))),
        ("keep.value", managed(clear(keep=amount("tool_uses", 0)))),
        ("clear_at_least.type", managed(clear(clear_at_least=amount("tool_uses", 5)))),
        ("exclude_tools", managed(clear(exclude_tools=[5]))),
        ("clear_tool_inputs", managed(clear(clear_tool_inputs="all"))),
        ("keep.type", managed({**THOUGHTS, "keep": amount("tool_uses", 1)}, **ADAPTIVE)),
        ("not support context management", {**managed(clear()), "model": "m-1"}),
    ],
)
def test_what_editing_is_refused(said: str, wrong: Json) -> None:
    complaint = check(wrong, MANAGED)
    assert complaint is not None
    assert said in complaint.message


def used(number: int, name: str = "look_up") -> list[Json]:
    call = {"type": "tool_use", "id": f"t{number}", "name": name, "input": {"n": number}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "found " * 100}
    thought = {"type": "thinking", "thinking": "hmm", "signature": "s"}
    return [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]


def size(whole: Json) -> int:
    return len(str(whole["messages"]))


def contents(whole: Json) -> list[str]:
    blocks = [block for message in whole["messages"] for block in message["content"] if isinstance(block, dict)]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


MANY_RESULTS = [user(text()), *used(0), *used(1, "note"), *used(2), *used(3)]


@pytest.mark.parametrize(
    ("edit", "gone"),
    [
        (clear(trigger=amount("input_tokens", 1)), [0]),
        (clear(trigger=amount("input_tokens", 1), keep=amount("tool_uses", 1)), [0, 1, 2]),
        (clear(trigger=amount("tool_uses", 3), keep=amount("tool_uses", 2)), [0, 1]),
        (clear(trigger=amount("tool_uses", 4), keep=amount("tool_uses", 2)), []),
        (clear(keep=amount("tool_uses", 1)), []),
        (clear(trigger=amount("input_tokens", 1), keep=amount("tool_uses", 1), exclude_tools=["note"]), [0, 2]),
        (clear(trigger=amount("input_tokens", 1), clear_at_least=amount("input_tokens", 500)), [0]),
        (clear(trigger=amount("input_tokens", 1), clear_at_least=amount("input_tokens", 5_000)), []),
    ],
)
def test_which_results_are_left_out(edit: Json, gone: list[int]) -> None:
    whole = body(*MANY_RESULTS, context_management={"edits": [edit]})
    read, applied = edited(whole, size)
    assert [place for place, content in enumerate(contents(read)) if content == PLACEHOLDER] == gone
    assert PLACEHOLDER not in contents(whole)
    saved = size(whole) - size(read)
    assert applied == ([{"type": TOOLS, "cleared_tool_uses": len(gone), "cleared_input_tokens": saved}] if gone else [])


def test_inputs_and_thinking_are_left_out_where_that_is_asked() -> None:
    inputs = clear(trigger=amount("input_tokens", 1), keep=amount("tool_uses", 3), clear_tool_inputs=True)
    edits = [{**THOUGHTS, "keep": amount("thinking_turns", 1)}, inputs]
    read, applied = edited(body(*MANY_RESULTS, context_management={"edits": edits}), size)
    kinds = [[block["type"] for block in message["content"]] for message in read["messages"][1::2]]
    assert kinds == [["tool_use"], ["tool_use"], ["tool_use"], ["thinking", "tool_use"]]
    assert [message["content"][-1]["input"] for message in read["messages"][1::2]] == [{}, {"n": 1}, {"n": 2}, {"n": 3}]
    assert [one.get("cleared_thinking_turns", one.get("cleared_tool_uses")) for one in applied] == [3, 1]
    same, nothing = edited(body(*MANY_RESULTS, context_management={"edits": [THOUGHTS]}), size)
    assert nothing == []
    assert same["messages"] == body(*MANY_RESULTS)["messages"]
