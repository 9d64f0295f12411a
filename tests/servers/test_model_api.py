"""The Messages API fake: streams, usage, cache, thinking bound to its prompt, and what it refuses
in its own words."""

import base64
from typing import Any

import pytest

from reverie.testing.servers.messages_cache import LIFETIME_S, MessagesCache, Usage
from reverie.testing.servers.messages_prompt import Json, verify
from reverie.testing.servers.model_api import Answer, message
from reverie.testing.servers.model_api_rules import check

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
SHORT = {"type": "ephemeral"}


LOOK_UP = {"name": "look_up", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "name": "look_up", "input": {}}
THINKING = {"type": "thinking", "thinking": "hm"}
HIDDEN = {"type": "redacted_thinking"}


def thoughtful(model: str = "claude-opus-5-5") -> Json:
    return {
        "model": model,
        "max_tokens": 100,
        "system": "You are Reverie.",
        "tools": [LOOK_UP],
        "thinking": {"type": "adaptive"},
        "messages": [{"role": "user", "content": "hi"}],
    }


def answered(body: Json, *content: Json, result: str = "found") -> Json:
    """Let the model answer with `content`, and go on with a tool's result, or with words where
    there was no called."""
    said = message(Answer(content=content), body, {}, "msg_1")["content"]
    calls = [block["id"] for block in said if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": ident, "content": result} for ident in calls]
    content_next = results or [{"type": "text", "text": "go on"}]
    turns = [{"role": "assistant", "content": said}, {"role": "user", "content": content_next}]
    return {**body, "messages": [*body["messages"], *turns]}


def called(ident: str) -> Json:
    return CALL | {"id": ident}


def loop(model: str = "claude-opus-5-5") -> Json:
    """Two rounds, with thinking before and between the calls."""
    first = answered(
        thoughtful(model),
        THINKING,
        {"type": "text", "text": "Let me see."},
        called("a"),
        HIDDEN,
        called("b"),
    )
    return answered(first, {"type": "thinking", "thinking": "so"}, called("c"))


def changed(body: Json, place: int, index: int, **change: Any) -> Json:
    messages = [dict(m) for m in body["messages"]]
    content = [dict(b) for b in messages[place]["content"]]
    content[index] |= change
    messages[place]["content"] = content
    return body | {"messages": messages}


def without(body: Json, *places: tuple[int, int]) -> Json:
    messages = [
        m
        if isinstance(m["content"], str)
        else m | {"content": [b for j, b in enumerate(m["content"]) if (i, j) not in places]}
        for i, m in enumerate(body["messages"])
    ]
    return body | {"messages": messages}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (
            "marks move",
            loop()
            | {
                "system": [
                    {"type": "text", "text": "You are Reverie.", "cache_control": {"type": "x"}}
                ]
            },
        ),
        ("marks come", changed(loop(), 2, 0, cache_control={"type": "ephemeral"})),
        ("another effort", loop() | {"output_config": {"effort": "low"}}),
        ("the oldest thinking is gone", without(loop(), (1, 0))),
        ("the two oldest are gone", without(loop(), (1, 0), (1, 3))),
        ("all of it is gone", without(loop(), (1, 0), (1, 3), (3, 0))),
        (
            "more is said",
            loop() | {"messages": [*loop()["messages"], {"role": "user", "content": "more"}]},
        ),
    ],
)
def test_what_keeps_thinking_valid(name: str, body: Json) -> None:
    assert verify(body) is None, name


EDITED = [
    ("The `system` prompt differs", 1, loop() | {"system": "You are Reverie!"}),
    ("The `tools` differ", 1, loop() | {"tools": [LOOK_UP, LOOK_UP | {"name": "more"}]}),
    ("The `tools` differ", 1, loop() | {"tools": []}),
    (
        "An earlier message differs",
        1,
        loop() | {"messages": [{"role": "user", "content": "ho"}, *loop()["messages"][1:]]},
    ),
    (
        "An earlier message differs",
        1,
        changed(loop(), 1, 1, text="Let me look."),
    ),  # its own thinking is in front
    ("An earlier message differs", 3, changed(loop(), 2, 0, content="stubbed")),
    ("An earlier message differs", 3, without(loop(), (1, 3))),  # out of the middle of the run
]


@pytest.mark.parametrize(("why", "place", "body"), EDITED)
def test_editing_what_came_before_invalidates_thinking(why: str, place: int, body: Json) -> None:
    wrong = verify(body)
    assert wrong is not None
    index = 3 if "look." in str(body["messages"][1]["content"]) else 0
    kind = body["messages"][place]["content"][index]["type"]
    assert wrong.startswith(
        f"messages.{place}.content.{index}: Invalid `signature` in `{kind}` block. The block is "
        "bound to a different conversation. Remove the block."
    )
    assert why in wrong


MODEL = "claude-sonnet-5-5"


def block(text: str, ttl: str = "", **more: Any) -> Json:
    mark = {"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else {}
    return {"type": "text", "text": text, **more, **mark}


def said(*content: Json, role: str = "user") -> Json:
    return {"role": role, "content": list(content)}


def prompt(*content: Json, system: tuple[Json, ...] = (), **more: Any) -> Json:
    """Make a request of one message; a text's tokens are its characters."""
    return {
        "model": MODEL,
        "max_tokens": 1,
        "system": list(system),
        "messages": [said(*content)],
        **more,
    }


def fresh(minimum: int | None = 0) -> MessagesCache:
    return MessagesCache(len, minimum=minimum)


def send(cache: MessagesCache, asked: Json, at_s: float = 0.0, workspace: str = "") -> Usage:
    ticket = cache.begin(asked, at_s=at_s, workspace=workspace)
    cache.began(ticket)
    return ticket.usage


@pytest.mark.parametrize(("added", "read"), [(19, 10), (20, 0)])
def test_a_mark_looks_back_twenty_positions_its_own_first(added: int, read: int) -> None:
    cache = fresh()
    send(cache, prompt(block("a" * 10, "5m")))
    more = [block(f"{i:02}") for i in range(added - 1)]
    assert (
        send(cache, prompt(block("a" * 10), *more, block("zz", "5m"))).cache_read_input_tokens
        == read
    )


@pytest.mark.parametrize(
    ("model", "minimum"),
    [
        ("claude-opus-5-5", 512),
        ("claude-haiku-5-5", 512),
        ("claude-fable-5-1", 512),
        ("claude-fable-5-2", 1024),
        ("claude-sonnet-5", 1024),
        ("claude-opus-4-8", 1024),
        ("claude-sonnet-4-5-20250929", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-mythos-preview", 2048),
        ("claude-opus-4-5", 4096),
        ("claude-haiku-4-5", 4096),
        ("some-model", 1024),
    ],
)
def test_a_prefix_below_the_minimum_is_silently_not_cached(model: str, minimum: int) -> None:
    cache = MessagesCache(len)
    short = prompt(block("now"), system=(block("x" * (minimum - 1), "5m"),), model=model)
    assert [send(cache, short), send(cache, short)] == [Usage(minimum + 2, 0, 0, 0)] * 2
    enough = prompt(block("now"), system=(block("x" * minimum, "5m"),), model=model)
    assert [send(cache, enough), send(cache, enough)] == [
        Usage(3, 0, minimum, 0),
        Usage(3, minimum, 0, 0),
    ]


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_a_lifetime_counts_from_the_start_of_the_last_use(ttl: str) -> None:
    cache, lifetime = fresh(), LIFETIME_S[ttl]
    asked = prompt(block("a" * 10, ttl))
    written = send(cache, asked)
    assert written.cache_creation_input_tokens == 10
    assert send(cache, asked, lifetime - 1).cache_read_input_tokens == 10
    assert send(cache, asked, 2 * lifetime - 2).cache_read_input_tokens == 10
    assert send(cache, asked, 3 * lifetime - 2).cache_read_input_tokens == 0


@pytest.mark.parametrize(
    ("marks", "read", "expected"),
    [
        (("1h", "5m", "5m"), 0, Usage(0, 0, 20, 10)),
        (("1h", "1h", "5m"), 0, Usage(0, 0, 10, 20)),
        (("", "1h", ""), 0, Usage(10, 0, 0, 20)),
        (("1h", "1h", "5m"), 1, Usage(0, 10, 10, 10)),
        (("1h", "1h", "5m"), 2, Usage(0, 20, 10, 0)),
        (("1h", "1h", "5m"), 3, Usage(0, 30, 0, 0)),
    ],
)
def test_mixed_lifetimes_are_billed_by_a_b_and_c(
    marks: tuple[str, ...], read: int, expected: Usage
) -> None:
    cache = fresh()
    if read:
        send(
            cache,
            prompt(
                *(block(c * 10, "1h" if i == read - 1 else "") for i, c in enumerate("abc"[:read]))
            ),
        )
    assert (
        send(cache, prompt(*(block(c * 10, ttl) for c, ttl in zip("abc", marks, strict=True))))
        == expected
    )


BASE = prompt(
    block("c" * 10, "5m"),
    system=(block("b" * 10, "5m"),),
    tools=[
        {"name": "t", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
    ],
)
TOOLS_TOKENS = len('{"input_schema":{"type":"object"},"name":"t"}')
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({}, TOOLS_TOKENS + 20),
        ({"model": "claude-opus-5-5"}, 0),
        ({"tools": [BASE["tools"][0] | {"name": "u"}]}, 0),
        ({"system": [block("B" * 10, "5m")]}, TOOLS_TOKENS),
        ({"tool_choice": {"type": "none"}}, TOOLS_TOKENS + 10),
        ({"tool_choice": {"type": "auto"}}, TOOLS_TOKENS + 20),
        ({"thinking": {"type": "between_tools"}}, TOOLS_TOKENS + 10),
        ({"output_config": {"effort": "low"}}, TOOLS_TOKENS + 10),
        ({"output_config": {"effort": "high"}}, TOOLS_TOKENS + 20),  # the default
        ({"messages": [said(block("c" * 10, "5m"), PICTURE)]}, TOOLS_TOKENS + 10),
        ({"messages": [said(block("C" * 10, "5m"))]}, TOOLS_TOKENS + 10),
        ({"system": "b" * 10}, TOOLS_TOKENS + 20),  # a string is one block
        ({"messages": [said(block("c" * 10, "1h"))]}, TOOLS_TOKENS + 20),
    ],
)
def test_what_invalidates_what(change: Json, read: int) -> None:
    cache = fresh()
    send(cache, BASE)
    assert send(cache, BASE | change).cache_read_input_tokens == read


# What holds for any sequence of requests.


TOOL = {"name": "look_up", "description": "d", "input_schema": {"type": "object", "properties": {}}}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n rest").decode()
SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def text(words: str = "hi", **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def bot(*content: Json) -> Json:
    return {"role": "assistant", "content": list(content)}


def document(data: bytes = b"%PDF-1.7", kind: str = "application/pdf", **more: Any) -> Json:
    source = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source, **more}


def image(data: str = PNG, **more: Any) -> Json:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
        **more,
    }


def call(ident: str = "t1") -> Json:
    return {"type": "tool_use", "id": ident, "name": "look_up", "input": {}}


def result(ident: str = "t1", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": ident, "content": "found", **more}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
OPERATOR = {"role": "system", "content": "Answer briefly."}


def body(*messages: Json, **more: Any) -> Json:
    return {
        "model": "claude-sonnet-5-5",
        "max_tokens": 100,
        "messages": list(messages) or [user(text())],
        **more,
    }


def asked(effort: str) -> Json:
    return {"output_config": {"effort": effort}}


ACCEPTED: dict[str, Json] = {
    "plain": body({"role": "user", "content": "hi"}, stream=True, system="You are Reverie."),
    "blocks": body(
        system=[text(cache_control=LONG)], tools=[TOOL | {"cache_control": LONG}], stream=False
    ),
    "neighbours of one role": body(user(text()), user(text())),
    "a loop": body(
        user(text()),
        bot(text(), call(), call("t2")),
        user(result("t2"), result(is_error=True), text()),
    ),
    "results in two messages": body(
        user(text()), bot(call(), call("t2")), user(result()), user(result("t2"))
    ),
    "a result without content": body(
        user(text()), bot(call()), user({"type": "tool_result", "tool_use_id": "t1"})
    ),
    "a document": body(user(text(), document(title="plan", cache_control=SHORT))),
    "a picture": body(user(text(), image(cache_control=SHORT))),
    "four marks": body(
        user(text(cache_control=SHORT), text(cache_control=SHORT)),
        system=[text(cache_control=LONG)] * 2,
    ),
    "a word of the operator": body(user(text()), OPERATOR),
    "a word of the operator, later": body(user(text()), OPERATOR, bot(text()), user(text())),
    "a word of the operator after a result": body(
        user(text()), bot(call()), user(result()), OPERATOR
    ),
    "warming": body(max_tokens=0),
    "between tools": body(thinking={"type": "between_tools"}),
    "the highest effort": body(**asked("max")),
    "thinking sent back": body(user(text()), bot(THOUGHT, call()), user(result())),
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
    (
        "which is the maximum allowed number of output tokens for claude-sonnet-5-5",
        body(max_tokens=128_001),
    ),
    ("max_tokens: 0 is not supported when `stream`", body(max_tokens=0, stream=True)),
    # cache_control
    (
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        body(user(text(cache_control=SHORT)), system=[text(cache_control=SHORT)] * 4),
    ),
    (
        (
            "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come "
            "after a ttl='5m'"
        ),
        body(user(text(cache_control=LONG)), system=[text(cache_control=SHORT)]),
    ),
    (
        "system.0.cache_control.ttl: a ttl='1h'",
        body(tools=[TOOL | {"cache_control": SHORT}], system=[text(cache_control=LONG)]),
    ),
    (
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        body(user(text()), bot(THOUGHT | {"cache_control": SHORT}, text()), user(text())),
    ),
    (
        "messages.0.content.0.text: cache_control cannot be set for empty text blocks",
        body(user(text("", cache_control=SHORT))),
    ),
    (
        "messages.2.content.0.tool_result.content: Input should be a valid string",
        body(user(text()), bot(call()), user(result(content=[text()]))),
    ),
    (
        "ephemeral.ttl: Input should be '5m' or '1h'",
        body(user(text(cache_control={"type": "ephemeral", "ttl": "2h"}))),
    ),
    ("Input tag 'forever'", body(user(text(cache_control={"type": "forever"})))),
    ("ephemeral.scope: Extra inputs", body(user(text(cache_control=SHORT | {"scope": "global"})))),
    ("cache_control: Extra inputs", body(cache_control=SHORT)),
    # blocks
    ("messages: at least one message is required", body() | {"messages": []}),
    ("messages.0: all messages must have non-empty content", body(user())),
    ("messages: text content blocks must be non-empty", body(user(text("")))),
    ("messages: text content blocks must contain non-whitespace text", body(user(text(" \n")))),
    ("system: text content blocks must contain non-whitespace text", body(system=[text(" ")])),
    ("system.0.type: Input should be 'text'", body(system=[image()])),
    ("messages.0.content.0: Input tag 'video'", body(user({"type": "video"}))),
    (
        "messages.0.content.0.text.name: Extra inputs are not permitted",
        body(user(text(name="ann"))),
    ),
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
    ("document.source.base64.media_type: Input should be", body(user(document(kind="text/plain")))),
    ("The PDF specified was not valid", body(user(document(b"%PDF-1.7 /Encrypt 3 0 R")))),
    ("The PDF specified was not valid", body(user(document(b"hi")))),
    ("A maximum of 100 PDF pages", body(user(document(b"%PDF-1.7" + b"/Type /Page " * 101)))),
    (
        "document: invalid base64 data",
        body(user(document() | {"source": document()["source"] | {"data": "not base64"}})),
    ),
    (
        "document.source: strict: expected a base64",
        body(user(document() | {"source": {"type": "url", "url": "http://a"}})),
    ),
    (
        "image blocks are only permitted in user messages",
        body(user(text()), bot(image()), user(text())),
    ),
    ("image: invalid base64 data", body(user(image("not base64")))),
    (
        "image does not match the provided media type",
        body(user(image(base64.b64encode(b"GIF8").decode()))),
    ),
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
    (
        "messages.0: use the top-level 'system' parameter for the initial system prompt",
        body(OPERATOR, user(text())),
    ),
    (
        "role 'system' must directly follow a user message",
        body(user(text()), bot(text()), OPERATOR),
    ),
    (
        "role 'system' must directly follow a user message",
        body(user(text()), OPERATOR, user(text())),
    ),
    ("role 'system' must directly follow a user message", body(user(text()), OPERATOR, OPERATOR)),
    (
        "image blocks are only permitted in user messages",
        body(user(text()), OPERATOR | {"content": [image()]}),
    ),
    (
        "messages.1.clear_at: Extra inputs",
        body(user(text()), OPERATOR | {"clear_at": "next_user_message"}),
    ),
    *(
        ("role 'system' is not supported on this model", body(user(text()), OPERATOR, model=model))
        for model in ("claude-sonnet-5", "claude-opus-4-7", "claude-haiku-4-5", "some-model")
    ),
    *(
        (
            "This model does not support assistant message prefill",
            body(user(text()), bot(text()), model=model),
        )
        for model in ("claude-opus-5-5", "claude-sonnet-4-6", "claude-opus-4-6", "some-model")
    ),
    # tools
    (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1.",
        body(user(text()), bot(call()), user(text())),
    ),
    (
        "`tool_use` ids were found without `tool_result` blocks",
        body(user(text()), bot(call(), call("t2")), user(result())),
    ),
    ("unexpected `tool_use_id` found in `tool_result` blocks: t1", body(user(result()))),
    (
        "tool_result blocks must come first in content",
        body(user(text()), bot(call()), user(text(), result())),
    ),
    (
        "each tool_use must have a single result",
        body(user(text()), bot(call()), user(result(), result())),
    ),
    (
        "`tool_use` ids must be unique",
        body(user(text()), bot(call()), user(result()), bot(call()), user(result())),
    ),
    ("tools: Tool names must be unique.", body(tools=[TOOL, TOOL])),
    ("tools.0.custom.input_schema.type", body(tools=[TOOL | {"input_schema": {}}])),
    (
        "tools.0.custom.parameters: Extra inputs are not permitted",
        body(tools=[TOOL | {"parameters": {}}]),
    ),
    (
        "tool_choice: may only be specified while providing tools",
        body(tool_choice={"type": "auto"}),
    ),
    ("tool_choice: Input tag found", body(tools=[TOOL], tool_choice={"type": "any"})),
    # sampling and effort
    ("temperature: Extra inputs are not permitted", body(temperature=0)),
    ("output_config.effort: Input should be 'low'", body(**asked("huge"))),
    (
        (
            "This model does not support effort level 'xhigh'. Supported levels: high, low, max, "
            "medium."
        ),
        body(model="claude-opus-4-6", **asked("xhigh")),
    ),
    (
        "This model does not support the effort parameter.",
        body(model="claude-haiku-4-5", **asked("low")),
    ),
    ("output_config.style: Extra inputs", body(output_config={"style": 1})),
]


@pytest.mark.parametrize(("said", "wrong"), REFUSED)
def test_what_is_refused(said: str, wrong: Json) -> None:
    complaint = check(wrong, HEADERS)
    assert complaint is not None
    assert said in complaint.message
    assert (complaint.status, complaint.kind) == (400, "invalid_request_error")


TYPES = ("adaptive", "between_tools", "disabled")


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
        ("claude-opus-4-6", "adaptive disabled"),
        ("claude-sonnet-4-6", "adaptive disabled"),
        ("claude-opus-4-5", "disabled"),
        ("claude-sonnet-4-5", "disabled"),
        ("claude-haiku-4-5-20251001", "disabled"),
    ],
)
def test_which_model_takes_which_thinking(model: str, taken: str) -> None:
    """The table of build-with-claude/thinking-troubleshooting."""
    for kind in TYPES:
        complaint = check(body(model=model, thinking={"type": kind}), HEADERS)
        assert (complaint is None) is (kind in taken.split()), kind
        if complaint and kind == "adaptive":
            assert complaint.message == "adaptive thinking is not supported on this model"
        elif complaint:
            assert complaint.message.startswith(
                f'"thinking.type.{kind}" is not supported for this model.'
            )
