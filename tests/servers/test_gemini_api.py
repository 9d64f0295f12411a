"""The fake of the Gemini API refuses what the real one refuses; the SDK of Google
(google-genai 3.6.1) was run against it by hand."""

from typing import Any

import pytest

from reverie.testing.servers.gemini_api import UNSIGNED, check, sign

MODEL = "gemini-3.8-flash"
HI = {"role": "user", "parts": [{"text": "hi"}]}
BARE = {"functionCall": {"id": "a", "name": "look_up", "args": {}}}
CALL = BARE | {"thoughtSignature": sign(MODEL, BARE)}
RESULT = {"functionResponse": {"id": "a", "name": "look_up", "response": {"output": "found"}}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def loop(call: dict[str, Any], *results: dict[str, Any]) -> dict[str, Any]:
    answer = {"role": "model", "parts": [call]}
    return {"contents": [HI, answer, {"role": "user", "parts": list(results)}]}


def declared(**more: Any) -> dict[str, Any]:
    return {"contents": [HI], "tools": [{"functionDeclarations": [{"name": "look_up"} | more]}]}


def user(part: dict[str, Any]) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [part]}]}


@pytest.mark.parametrize(
    "body",
    [
        {"contents": [HI]},
        loop(CALL, RESULT),
        loop(BARE | {"thoughtSignature": UNSIGNED}, RESULT, {"text": "and now"}),
        loop(BARE, RESULT) | {"contents": [*loop(BARE, RESULT)["contents"], HI]},
        declared(parametersJsonSchema=SCHEMA),
        {"contents": [HI], "generationConfig": {"thinkingConfig": {"thinkingLevel": "low"}}},
    ],
)
def test_good_requests_are_taken(body: dict[str, Any]) -> None:
    if len(body["contents"]) == 4:  # an earlier turn, and the two contents of one side
        body["contents"].insert(3, {"role": "model", "parts": [{"text": "It is there."}]})
    assert check(body, MODEL) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "contents is not specified"),
        ({"contents": [HI], "cache_control": {}}, 'Unknown name "cache_control"'),
        ({"contents": [{"role": "assistant", "parts": [{"text": "hi"}]}]}, "valid role"),
        ({"contents": [{"role": "user", "parts": []}]}, "must not be empty"),
        (user({"text": ""}), "required oneof field 'data'"),
        (user({"text": "a", "inlineData": {}}), "required oneof field 'data'"),
        (user({"inlineData": {"mimeType": "image/gif", "data": "R0lG"}}), "Unsupported MIME type"),
        (user({"inlineData": {"mimeType": "image/png", "data": "R0lG"}}), "process input image"),
        (user({"inlineData": {"mimeType": "image/png", "data": "?"}}), "Base64"),
        (user(CALL), "wrong role"),
        (loop(CALL), "must not be empty"),
        (loop(CALL, {"text": "no"}), "number of function response parts"),
        (loop(CALL, RESULT, RESULT), "number of function response parts"),
        (loop({"text": "no"}, RESULT), "immediately after a function call"),
        ({"contents": loop(CALL, RESULT)["contents"][1:]}, "immediately after a user turn"),
        ({"contents": loop(CALL, RESULT)["contents"][:2]}, "end with a user role"),
        (loop(BARE, RESULT), "missing a thought_signature"),
        (loop(CALL | {"thoughtSignature": "b3RoZXI="}, RESULT), "Corrupted thought signature"),
        (loop({"text": "no", "thoughtSignature": CALL["thoughtSignature"]}, {"text": "x"}), "Corr"),
        (declared(name="1st"), "Invalid function name"),
        (declared(parameters=SCHEMA), "non-empty for OBJECT"),
        (declared(parameters={"type": "object", "$ref": "#"}), 'Unknown name "$ref"'),
        (declared(parameters={}, parametersJsonSchema=SCHEMA), "only one of"),
        ({"contents": [HI], "toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}, "without"),
        ({"contents": [HI], "generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens"),
        (
            {
                "contents": [HI],
                "generationConfig": {
                    "thinkingConfig": {"thinkingLevel": "LOW", "thinkingBudget": 1}
                },
            },
            "only set one",
        ),
    ],
)
def test_bad_requests_are_refused(body: dict[str, Any], words: str) -> None:
    assert words in (check(body, MODEL) or "")


def test_only_later_models_demand_signatures_and_take_levels() -> None:
    older = "gemini-2.5-pro"
    assert check(loop(BARE, RESULT), older) is None
    for thinking, words in (
        ({"thinkingLevel": "LOW"}, "level"),
        ({"thinkingBudget": 0}, "Budget 0"),
    ):
        options = {"contents": [HI], "generationConfig": {"thinkingConfig": thinking}}
        assert words in (check(options, older) or "")
