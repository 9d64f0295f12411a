"""The operator's API over a real socket: every answer is what its model says; nobody gets one
without the token."""

import itertools
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest
from pydantic import TypeAdapter

from agent.models.scripted import Script, ScriptRule
from gateway.commands.context import OPERATOR_PLACE
from gateway.config.loader import ConfigError
from gateway.core.api_models import EVENT_MODELS
from gateway.core.route import routes_of
from gateway.plugins.dashboard.api_views import Api
from gateway.plugins.dashboard.live_events import EVENTS_PATH
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.kits.ops import TOKEN, Operated, configured_in, operated

ROUTES = routes_of(object.__new__(Api))
PAGES = [one.path for one in ROUTES if one.method == "GET"]
COMMANDS = [one.path for one in ROUTES if one.method == "POST"]
ANSWERS = {one.path: TypeAdapter(get_type_hints(one.answer.func)["return"]) for one in ROUTES}  # type: ignore[attr-defined] # bound by `partial`


async def talked(gateway: Operated) -> None:
    """Somebody asks in a room, and the operator in private."""
    await gateway.console.receive_message(
        "reverie: how is the weather?", sender="ann", room="lobby"
    )
    await gateway.screen.until(1)
    await gateway.post("/api/say", {"text": "hello"})
    await gateway.post("/api/say", {"text": "/status"})


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Operated]:
    async with operated(tmp_path) as made:
        yield made


async def test_every_path_answers_with_its_model(gateway: Operated) -> None:
    async with gateway.listening() as told:
        await talked(gateway)
        await told.until(
            lambda told: len([one for one in told.named("turn") if one["state"] == "ended"]) == 2
        )
        needed = {"/api/conversation": {"id": "demo/lobby"}, "/api/search": {"text": "weather"}}
        for path in PAGES:
            body = await gateway.get(path, **needed.get(path, {}))
            ANSWERS[path].validate_json(json.dumps(body))
            assert (await gateway.client.request("PUT", path)).status_code == 405
        for path, sent in {
            "/api/say": {"text": "more"},
            "/api/orders": {"words": ["dmn", "status"], "by": "test"},
        }.items():
            answer = await gateway.post(path, sent)
            ANSWERS[path].validate_json(json.dumps(answer))
        assert (await gateway.client.get("/api/other")).status_code == 404
        await told.until(lambda told: told.named("delivery"))
        for event in told.events:
            TypeAdapter(EVENT_MODELS[event.name]).validate_json(json.dumps(event.data))
        assert {"notification", "turn", "post", "delivery", "dmn", "text"} <= {
            one.name for one in told.events
        }


async def test_what_is_said_comes_out_as_it_happened(gateway: Operated) -> None:
    async with gateway.listening() as told:
        await talked(gateway)
        await told.until(lambda told: len(told.named("delivery")) == 3)
        status = await gateway.get("/api/status")
        assert (status["ready"], status["today"]["requests"], status["activity"]) == (True, 2, [])
        assert [one["agent"] for one in status["agents"]] == ["reverie"]
        (channel,) = (await gateway.get("/api/channels"))["items"]
        assert (channel["channel"], channel["state"], channel["events"]["mention"]) == (
            "demo",
            "up",
            1,
        )
        places = (await gateway.get("/api/conversations"))["items"]
        assert [one["conversation"] for one in places][:2] == ["console/operator", "demo/lobby"]
        assert (places[1]["last_who"], places[1]["platform"], places[1]["unread"]) == (
            "",
            "console",
            0,
        )
        there = await gateway.get("/api/conversation", id="demo/lobby")
        asked, answered = there["messages"]
        assert (asked["who"], asked["ours"], asked["fate"]) == ("ann", False, "answered")
        assert (answered["ours"], answered["kind"], answered["fate"]) == (True, "post", "sent")
        noticed = (await gateway.get("/api/notifications", conversation="demo/lobby"))["items"]
        assert [(one["kind"], one["type"], one["urgency"], one["fate"]) for one in noticed] == [
            ("mention", "demo.mention.lobby", 3, "answered")
        ]
        turns = (await gateway.get("/api/turns"))["items"]
        assert {one["conversation"] for one in turns} == {"console/operator", "demo/lobby"}
        assert all(one["outcome"] == "replied" and one["seconds"] >= 0 for one in turns)
        outbox = await gateway.get("/api/outbox")
        assert (outbox["waiting"], {one["outcome"] for one in outbox["deliveries"]}) == (
            [],
            {"sent"},
        )
        cache = await gateway.get("/api/cache", by="channel")
        assert {one["key"] for one in cache["totals"]} == {"console", "demo"}
        days = await gateway.get("/api/cache", by="channel", hours=200)
        assert {(one["key"], one["input_tokens"]) for one in days["totals"]} == {
            (one["key"], one["input_tokens"]) for one in cache["totals"]
        }
        today = datetime.now(UTC).date().isoformat()
        assert all(one["at"].startswith(today) for one in days["buckets"])


async def test_pages_go_back_to_the_beginning_and_forward_again(tmp_path: Path) -> None:
    async with operated(
        tmp_path, agents=[{"id": "reverie", "bindings": [{"listen": "off"}]}]
    ) as gateway:
        for number in range(7):
            await gateway.console.receive_message(f"word {number}", sender="ann", room="lobby")
        query: dict[str, int] = {"limit": 3}
        seen: list[str] = []
        while True:
            page = await gateway.get("/api/notifications", **query, conversation="demo/lobby")
            seen += [one["text"] for one in page["items"]]
            if page["next"] is None:
                break
            query["before"] = page["next"]
        assert seen == [f"word {number}" for number in reversed(range(7))]
        first = await gateway.get("/api/notifications", after=0, limit=4, conversation="demo/lobby")
        rest = await gateway.get(
            "/api/notifications", after=first["next"], limit=4, conversation="demo/lobby"
        )
        texts = [one["text"] for one in (*first["items"], *rest["items"])]
        assert texts == [f"word {number}" for number in range(7)]


async def test_nobody_gets_anything_without_the_token(
    gateway: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.plugins.http.site.DENIAL_DELAY_S", 0.01)
    wrong = (
        {},
        *({"Authorization": one} for one in ("Bearer x", f"Bearer {TOKEN}x", TOKEN, "Basic eDp4")),
    )
    for path, given in itertools.product((*PAGES, EVENTS_PATH, *COMMANDS), wrong):
        async with httpx.AsyncClient(base_url=gateway.client.base_url, trust_env=False) as bare:
            answer = await bare.request(
                "POST" if path in COMMANDS else "GET", path, headers=given, content=b"{}"
            )
        assert answer.status_code == 401, (path, given)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
        assert "ops.token" in answer.json()["detail"]
        assert TOKEN not in answer.text
    assert (
        await gateway.client.get("/api/dmn", headers={"Authorization": f"bearer {TOKEN}"})
    ).status_code == 200


async def test_without_a_token_there_is_no_api_and_no_channel_of_the_operators(
    tmp_path: Path,
) -> None:
    async with operated(tmp_path, ops={"token": None}) as gateway:
        for path in (*PAGES, EVENTS_PATH):
            answer = await gateway.client.get(path)
            assert (answer.status_code, "set ops.token" in answer.json()["detail"]) == (403, True)
        assert (await gateway.client.post("/api/say", json={"text": "hello"})).status_code == 403
        assert (await gateway.client.get("/")).status_code == 200
        assert (await gateway.client.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("path", "query", "told"),
    [
        ("/api/turns", {"limit": "0"}, "limit"),
        ("/api/turns", {"limit": "1000"}, "limit"),
        ("/api/turns", {"before": "-1"}, "before"),
        ("/api/turns", {"before": "99999999999999999999"}, "before"),
        ("/api/turns", {"beforee": "3"}, "beforee"),
        ("/api/turns", {"conversation": "nowhere"}, "channel/room"),
        ("/api/conversation", {}, "id"),
        ("/api/conversation", {"id": "/"}, "channel/room"),
        ("/api/cache", {"hours": "x"}, "hours"),
        ("/api/cache", {"by": "sender"}, "by"),
    ],
)
async def test_what_cannot_be_understood_is_told_without_what_was_sent(
    path: str, query: dict[str, str], told: str, gateway: Operated
) -> None:
    answer = await gateway.client.get(path, params={**query})
    assert (answer.status_code, told in answer.json()["detail"]) == (400, True), answer.text


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"text": ""}', "application/json", 400),
        (b'{"text": 3}', "application/json", 400),
        (b'{"text": "x", "sender": "ann"}', "application/json", 400),
        (b'{"text": "' + b"x" * 17_000 + b'"}', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"text": "hello"}', "text/plain", 415),
        (b"text=hello", "application/x-www-form-urlencoded", 415),
        (b'{"text": "hello"}', "", 415),
        (b"x" * 100_000, "application/json", 413),
    ],
)
async def test_bodies_are_checked(
    content: bytes, media: str, status: int, gateway: Operated
) -> None:
    before = await gateway.get("/api/notifications", conversation="console/operator")
    answer = await gateway.client.post("/api/say", content=content, headers={"Content-Type": media})
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert b"xxxx" not in answer.content
    assert await gateway.get("/api/notifications", conversation="console/operator") == before


async def test_a_body_without_a_length_is_bounded_too(gateway: Operated) -> None:

    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 4_096

    headers = {"Content-Type": "application/json"}
    answer = await gateway.client.post("/api/say", content=endless(), headers=headers)
    assert answer.status_code == 413


def asking(
    api: ModelApi, kind: str = "anthropic", name: str = "claude-haiku-5-5"
) -> dict[str, object]:
    """The part of a configuration that asks that server."""
    return {
        "providers": {"a": {"kind": kind, "api_key": "sk-test-key-of-nobody", "base_url": api.url}},
        "models": {"main": {"provider": "a", "name": name}},
    }


async def test_the_exact_blocks_of_the_last_request_are_shown(tmp_path: Path) -> None:
    async with (
        ModelApi() as api,
        operated(tmp_path, configured=True, llm=asking(api)) as gateway,
        gateway.listening() as told,
    ):
        there = await gateway.get("/api/conversation", id="demo/ann")
        assert there["prompt"] is None  # nothing was asked since the start
        await gateway.console.receive_message("the words that are looked for", sender="ann")
        await told.until(lambda told: told.named("delivery"))
        prompt = (await gateway.get("/api/conversation", id="demo/ann"))["prompt"]
        blocks, (asked,) = (
            prompt["blocks"],
            [one for one in api.seen if one.path.endswith("/messages")],
        )
        names = [one["name"] for one in blocks]
        assert names[0] == "tools"
        assert names.index("identity") < names.index("channel") < names.index("history")
        texts = [block["text"] for block in asked.body["system"]]
        for one in blocks:
            if one["name"] not in ("tools", "history", "now"):
                assert one["text"] in texts
        history = "".join(one["text"] for one in blocks if one["name"] == "history")
        assert "the words that are looked for" in history
        assert prompt["tools"] == [tool["name"] for tool in asked.body["tools"]]
        marks = json.dumps(asked.body).count('"cache_control"')
        assert prompt["marks"] == marks == len([one for one in blocks if one["marked"]])
        assert {one["lifetime"] for one in blocks if one["marked"]} <= {"5m", "1h"}
        assert prompt["bill"]["output_tokens"] > 0
        assert prompt["model"].startswith("claude-haiku-5-5")


@pytest.mark.parametrize(("kind", "name"), [("anthropic", "some-model"), ("openai", "some-model")])
async def test_what_a_model_thinks_and_says_is_told_as_it_grows(
    tmp_path: Path, kind: str, name: str
) -> None:
    async with (
        ModelApi() as api,
        operated(tmp_path, configured=True, llm=asking(api, kind, name)) as gateway,
        gateway.listening() as told,
    ):
        api.then(
            Answer(
                text="It is seven o'clock, and all is well.",
                thinking="What time is it? I look at it.",
            )
        )
        await gateway.console.receive_message("what time is it?", sender="ann")
        await told.until(lambda told: told.named("post"))
        thoughts = "".join(one["delta"] for one in told.named("thinking"))
        assert thoughts == "What time is it? I look at it."
        said = told.named("text")
        assert said[0]["begins"]
        assert "".join(one["delta"] for one in said) == "It is seven o'clock, and all is well."
        order = [one.name for one in told.events if one.name in ("thinking", "text", "post")]
        assert (order[0], order[-1]) == ("thinking", "post")


async def test_a_tool_is_told_as_it_runs(tmp_path: Path) -> None:
    script = Script(
        rules=(
            ScriptRule(match="go on", calls=(("jobs", "{}"),)),
            ScriptRule(match=".", reply="done"),
        )
    )
    async with operated(tmp_path, script) as gateway, gateway.listening() as told:
        await gateway.ask("go on", sender="ann")
        await told.until(lambda told: len(told.named("tool")) == 2)
        began, ended = told.named("tool")
        assert (began["state"], began["name"]) == ("started", "jobs")
        assert began["call"] == ended["call"] != ""
        assert (ended["state"], json.loads(ended["arguments"])) == ("ended", {})
        turns = (await gateway.get("/api/turns"))["items"]
        assert turns[0]["tools"] == ["jobs"]


TOKENS = [
    {"name": "ann", "role": "read", "token": "the-token-of-ann-0123456789"},
    {"name": "ben", "role": "operate", "token": "the-token-of-ben-0123456789"},
    {"name": "eve", "role": "own", "token": "the-token-of-eve-0123456789"},
]


async def test_tokens_do_what_their_roles_allow_and_the_audit_names_them(tmp_path: Path) -> None:
    async with operated(tmp_path, ops={"tokens": TOKENS}) as gateway:

        async def order(name: str, *words: str) -> httpx.Response:
            (token,) = [one["token"] for one in TOKENS if one["name"] == name]
            bearer = {"Authorization": f"Bearer {token}"}
            me = (await gateway.client.get("/api/me", headers=bearer)).json()
            assert me["name"] == name
            body = {"words": words, "by": "somebody else"}
            return await gateway.client.post("/api/orders", json=body, headers=bearer)

        refused = await order("ann", "dmn", "quiet")
        assert refused.status_code == 403
        assert "operate" in refused.json()["detail"]
        assert (await order("ben", "dmn", "quiet")).json()["ok"]
        no = (await order("ben", "role", "set", "demo:carl", "owner")).json()
        assert not no["ok"]
        assert "owner" in no["lines"][0]
        assert (await order("eve", "role", "set", "demo:carl", "owner")).json()["ok"]
        acts = (await gateway.get("/api/audit"))["items"]
        assert [(one["actor"], one["command"], one["ok"]) for one in acts] == [
            ("operator (eve)", "role", True),
            ("operator (ben)", "role", False),
            ("operator (ben)", "dmn", True),
        ]
        assert (await gateway.get("/api/me")) == {"name": "operator", "role": "own"}


async def test_what_a_token_of_an_admin_says_is_an_admins(tmp_path: Path) -> None:
    async with operated(tmp_path, ops={"tokens": TOKENS}) as gateway:
        for one, role in zip(TOKENS[1:], ("admin", "owner"), strict=True):
            bearer = {"Authorization": f"Bearer {one['token']}"}
            said = await gateway.client.post("/api/say", json={"text": "/whoami"}, headers=bearer)
            here = await gateway.get("/api/conversation", id=OPERATOR_PLACE.conversation)
            asked, answer = here["messages"][-2:]
            assert (asked["seq"], asked["who"]) == (said.json()["seq"], one["name"])
            assert f"Your role: {role}" in answer["text"]


@pytest.mark.parametrize(
    "tokens",
    [
        [{**TOKENS[0], "name": "operator"}],
        [TOKENS[0], {**TOKENS[1], "name": "ann"}],
        [TOKENS[0], {**TOKENS[1], "token": TOKENS[0]["token"]}],
        [{**TOKENS[0], "token": "short"}],
        [{**TOKENS[0], "role": "root"}],
        TOKENS,
    ],
)
def test_tokens_have_names_and_values_of_their_own(
    tokens: list[dict[str, str]], tmp_path: Path
) -> None:
    token = None if tokens == TOKENS else TOKEN
    with pytest.raises(ConfigError) as error:
        configured_in(tmp_path, (), {"tokens": tokens, "token": token}, {})
    assert "ops.tokens" in str(error.value)
    assert TOKENS[0]["token"] not in str(error.value)
