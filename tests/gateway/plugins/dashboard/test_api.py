"""The operator's API over a real socket: what it tells, what it takes, and who may."""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.models.scripted import Script, ScriptRule
from gateway.access.policy import decide
from gateway.commands.context import OPERATOR_PLACE, CommandCall
from gateway.commands.definition import command
from gateway.config.loader import ConfigError, parse_config
from gateway.config.models import Settings
from gateway.core.api_models import EVENT_MODELS
from gateway.core.control_messages import CommandRequest
from gateway.core.control_socket import send_control_request
from gateway.core.events import Address, Message, MessageId, RoomId, Sender, SenderId
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.identity import AccessPolicy
from gateway.core.process_files import socket_path
from gateway.core.redaction import Redactor
from gateway.core.route import route, routes_of
from gateway.plugin import Plugin
from gateway.plugins import use_plugins
from gateway.plugins.dashboard.api_views import Api
from gateway.plugins.dashboard.config_editor import find_secret
from gateway.plugins.dashboard.live_events import EVENTS_PATH
from reverie.testing.gateway import UNHURRIED, settings
from reverie.testing.servers.model_api import Answer, ModelApi
from reverie.testing.waiting import until
from tests.gateway.plugins.http.test_server import START
from tests.kits.ops import DEMO, TOKEN, Operated, configured_in, operated
from tests.kits.policies import bindings_of, policy_of

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
    for path, headers in itertools.product((*PAGES, EVENTS_PATH, *COMMANDS), wrong):
        async with httpx.AsyncClient(base_url=gateway.client.base_url, trust_env=False) as bare:
            answer = await bare.request(
                "POST" if path in COMMANDS else "GET", path, headers=headers, content=b"{}"
            )
        assert answer.status_code == 401, (path, headers)
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


# What waits for the operator, what is searched and summed, and what the panels of plugins do, over HTTP.

BEN = {"name": "ben", "role": "operate", "token": "the-token-of-ben-0123456789"}
OWNER = {"dm": "pairing", "roles": {"owner": ["demo:root"]}, "rates": UNHURRIED}
NOTE = (("remember", '{"text": "Ann likes tea"}'),)
REMIND = (("remind", '{"at": "in 90 minutes", "text": "Water the plants"}'),)


@pytest.fixture
async def owned(tmp_path: Path) -> AsyncIterator[Operated]:
    script = Script(
        rules=(
            ScriptRule(match="tea", calls=NOTE, reply="Noted."),
            ScriptRule(match="plants", calls=REMIND, reply="I will."),
        )
    )
    async with operated(tmp_path, script, access=OWNER) as made:
        yield made


async def act(owned: Operated, action: dict[str, Any], **changed: str) -> Any:
    """Do what a row, or what waits, offers."""
    if "path" in action:
        return await owned.client.post(action["path"], json=action["body"] | changed)
    order = {key: action[key] for key in ("words", "place", "agent") if action.get(key)}
    done = await owned.post("/api/orders", order)
    assert done["ok"], done
    return done


async def test_who_asks_to_be_let_in_waits_with_what_they_wrote(owned: Operated) -> None:
    for who, words in (("ann", "hello, may I?"), ("ben", "me too")):
        await owned.console.receive_message(words, sender=who)
    ann, ben = (await owned.get("/api/waiting"))["items"]
    assert (ann["kind"], ann["who"], ann["words"], ann["place"]) == (
        "pairing",
        "ann",
        "hello, may I?",
        "demo/ann",
    )
    assert ann["since"] < ann["until"]
    yes, no = ann["actions"][0], ben["actions"][1]
    assert (yes["style"], no["style"]) == ("yes", "no")
    await act(owned, yes)
    await act(owned, no)
    assert (await owned.get("/api/waiting"))["items"] == []
    done = [one["arguments"] for one in (await owned.get("/api/audit"))["items"]]
    assert len(done) == 2


async def test_the_whole_log_is_searched_by_words(owned: Operated) -> None:
    for number in range(5):
        await owned.console.receive_message(f"apple pie {number}", sender="root")
    await owned.console.receive_message('cherry "pie" OR', sender="root")
    query: dict[str, Any] = {"text": "apple pie", "limit": 2}
    seen = list[str]()
    while True:
        page = await owned.get("/api/search", **query)
        seen += [one["text"] for one in page["items"]]
        if page["next"] is None:
            break
        query["before"] = page["next"]
    mine = [one for one in seen if one.startswith("apple")]
    assert mine == [f"apple pie {number}" for number in reversed(range(5))]
    page = await owned.get("/api/search", text='"pie" OR', conversation="demo/root")
    (found,) = [one for one in page["items"] if one["kind"] == "direct"]
    assert (found["who"], found["conversation"]) == ("root", "demo/root")
    assert (await owned.get("/api/search", text="apple", conversation="demo/lobby"))["items"] == []
    assert (await owned.get("/api/search", text="\0"))["items"] == []
    nul = {"text": "a", "conversation": "demo/\0"}
    for wrong in ({"text": " "}, {"text": "a", "conversation": "nowhere"}, nul, {}):
        assert (await owned.client.get("/api/search", params=wrong)).status_code == 400


async def test_costs_are_summed_by_what_is_asked_for(owned: Operated) -> None:
    await owned.console.receive_message("hello", sender="root")
    await owned.took(1)
    keys = {"person": "demo:root", "conversation": "demo/root", "agent": "reverie"}
    for by, key in keys.items():
        (spent,) = (await owned.get("/api/spending", by=by, hours=24))["items"]
        assert (spent["key"], spent["requests"]) == (key, 1)
    (person,) = (await owned.get("/api/spending", by="person"))["items"]
    assert person["label"] == "root"


async def test_commands_are_listed_for_whom_they_are(owned: Operated) -> None:
    listed = {one["name"]: one for one in (await owned.get("/api/commands"))["items"]}
    assert {"status", "pair approve", "memory forget", "dmn quiet"} <= listed.keys()
    assert "<" in listed["pair approve"]["usage"]


async def test_rows_of_panels_are_forgotten_changed_and_cancelled(owned: Operated) -> None:
    for words in ("Ann likes tea", "remind me of the plants"):
        await owned.ask(words, sender="root")
    panels: dict[str, str] = {}
    for plugin in (await owned.get("/api/plugins"))["items"]:
        panels |= plugin["panels"]
    (note,) = await owned.get(panels["Journal"])
    assert note["note"].endswith("Ann likes tea")
    await act(owned, note["_actions"][0])
    assert await owned.get(panels["Journal"]) == []
    (reminder,) = await owned.get(panels["Reminders"])
    assert reminder["text"] == "Water the plants"
    await act(owned, reminder["_actions"][0])
    assert await owned.get(panels["Reminders"]) == []
    assert isinstance(await owned.get(panels["Skills"]), list)
    assert await owned.get(panels["Memory"]) == []


async def test_an_owner_changes_and_removes_entries_of_the_memory_file(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    file = workspace / "MEMORY.md"
    file.write_text("# Known\n\n- Ann likes tea\n  in the morning\n- Ben likes coffee\n")
    agents = [{"id": "reverie", "workspace": str(workspace)}]
    tokens = [BEN]
    async with operated(tmp_path, agents=agents, ops={"tokens": tokens}) as owned:
        rows = await owned.get("/api/plugins/memory/entries")
        texts = ["# Known", "- Ann likes tea\n  in the morning", "- Ben likes coffee"]
        assert [one["entry"] for one in rows] == texts
        edit, _ = rows[1]["_actions"]
        forget = rows[2]["_actions"][1]
        bearer = {"Authorization": f"Bearer {tokens[0]['token']}"}
        refused = await owned.client.post(edit["path"], json=edit["body"], headers=bearer)
        assert refused.status_code == 403
        assert (await act(owned, edit, after="- Ann likes mate")).is_success
        late = await act(owned, edit, after="- Ann likes water")
        assert (late.status_code, late.headers["content-type"]) == (409, "application/problem+json")
        assert (await act(owned, forget)).is_success
        assert file.read_text() == "# Known\n\n- Ann likes mate\n"
        acts = (await owned.get("/api/audit"))["items"]
        assert [(one["command"], one["ok"]) for one in acts] == [
            (edit["path"], True),
            (edit["path"], False),
            (edit["path"], True),
        ]


@pytest.mark.parametrize("words", ["pair seed demo:eve owner", "pair revoke demo:root"])
async def test_a_token_of_an_admin_has_no_power_of_an_owner(words: str, tmp_path: Path) -> None:
    tokens = [BEN]
    async with operated(tmp_path, ops={"tokens": tokens}) as owned:
        await owned.post("/api/orders", {"words": ["pair", "seed", "demo:root", "owner"]})
        owned.client.headers["Authorization"] = f"Bearer {tokens[0]['token']}"
        assert not (await owned.post("/api/orders", {"words": words.split()}))["ok"]
        newest, _ = (await owned.get("/api/audit"))["items"]
        assert (newest["command"], newest["ok"]) == ("pair", False)
        assert "ben" in newest["actor"]
        seed = {"words": ["pair", "seed", "demo:ann"]}
        assert (await owned.post("/api/orders", seed))["ok"]


async def test_a_token_of_an_admin_undoes_no_change_of_memory(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "MEMORY.md").write_text("- Ann likes tea\n")
    agents = [{"id": "reverie", "workspace": str(workspace)}]
    tokens = [BEN]
    async with operated(tmp_path, agents=agents, ops={"tokens": tokens}) as owned:
        (row,) = await owned.get("/api/plugins/memory/entries")
        await act(owned, row["_actions"][0], after="- Ann likes mate")
        bearer = {"Authorization": f"Bearer {tokens[0]['token']}"}
        undo = {"words": ["memory", "undo"]}
        refused = await owned.client.post("/api/orders", json=undo, headers=bearer)
        assert not refused.json()["ok"]
        assert (workspace / "MEMORY.md").read_text() == "- Ann likes mate\n"
        assert (await owned.post("/api/orders", undo))["ok"]
        assert (workspace / "MEMORY.md").read_text() == "- Ann likes tea\n"


class Keys(Plugin):
    name = "keys"

    @command("keys", "Show the keys.", role="owner")
    async def show_keys(self, _call: CommandCall) -> str:
        return "the keys"

    @route("GET", "waiting")
    async def list_waiting(self) -> list[dict[str, object]]:
        return [
            {"id": "1", "kind": "key", "who": "", "place": "nowhere", "what": "", "actions": []}
        ]


class Stuck(Plugin):
    name = "stuck"

    @route("GET", "waiting")
    async def list_waiting(self) -> list[dict[str, object]]:
        await asyncio.Event().wait()
        return []


async def test_a_refused_order_is_audited(tmp_path: Path) -> None:
    with use_plugins(Keys):
        async with operated(tmp_path, ops={"tokens": [BEN]}) as owned:
            owned.client.headers["Authorization"] = f"Bearer {BEN['token']}"
            order = {"words": ["keys"]}
            assert not (await owned.post("/api/orders", order))["ok"]
            (act,) = (await owned.get("/api/audit"))["items"]
            assert (act["command"], act["ok"]) == ("keys", False)
            assert not (await owned.post("/api/orders", {"words": ["approve", "zzzz"]}))["ok"]
            owned.client.headers["Authorization"] = f"Bearer {TOKEN}"
            assert (await owned.post("/api/orders", order))["lines"] == ["the keys"]


async def test_what_waits_is_listed_without_a_plugin_that_is_stuck(
    tmp_path: Path,
) -> None:
    with use_plugins(Keys, Stuck):
        async with operated(tmp_path, access=OWNER) as owned:
            await owned.console.receive_message("may I?", sender="ann")
            found = {one["kind"] for one in (await owned.get("/api/waiting"))["items"]}
            assert found == {"pairing", "key"}


async def test_entries_of_a_memory_file_that_is_too_long_are_listed_in_part_and_forgotten(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    lines = [f"- {number} {'x' * 20}" for number in range(600)]
    file = workspace / "MEMORY.md"
    file.write_text("\n".join(lines))
    async with operated(tmp_path, agents=[{"id": "reverie", "workspace": str(workspace)}]) as owned:
        rows = await owned.get("/api/plugins/memory/entries")
        assert len(rows) == 501
        assert "100" in rows[-1]["entry"]
        edit, forget = rows[0]["_actions"]
        assert (await act(owned, edit, after=f"{lines[0]}x")).status_code == 409
        assert (await act(owned, forget)).is_success
        assert file.read_text() == "\n".join(lines[1:]) + "\n"


# What the operator says and orders: the own channel, a turn that is ended, a tool that is ended, all of it audited.

PLACE = Address(channel=OPERATOR_CHANNEL, room=RoomId("operator"))
OPEN = {"bash": {"sandbox": "off"}}


def bash(text: str) -> tuple[tuple[str, str], ...]:
    return (("bash", json.dumps({"command": text})),)


def with_token(tmp_path: Path, **more: Any) -> Settings:
    return settings(
        tmp_path,
        channels={"demo": {"platform": "console"}},
        ops={"port": 0, "token": TOKEN},
        **more,
    )


def said(room: str = "operator", sender: str = "operator", *, bot: bool = False) -> Message:
    return Message(
        id=MessageId("m"),
        at=Address(channel=OPERATOR_CHANNEL, room=RoomId(room)),
        sender=Sender(id=SenderId(sender), name=sender, is_bot=bot),
        text="hi",
        sent=START,
        kind="direct",
    )


@pytest.mark.parametrize("dm", ["pairing", "allowlist", "open", "disabled"])
def test_whoever_speaks_there_is_an_owner_whatever_else_is_said(tmp_path: Path, dm: str) -> None:
    found = decide(policy_of(with_token(tmp_path, access={"dm": dm})), said())
    assert (found.allowed, found.role, found.global_role) == (True, "owner", "owner")
    blocked = AccessPolicy(
        dm_policy="open",
        roles={"console:operator": "blocked"},
        open_rooms={},
        operator_channel=OPERATOR_CHANNEL,
    )
    assert decide(blocked, said()).role == "owner"


def test_without_a_token_nobody_there_is_anybody(tmp_path: Path) -> None:
    found = decide(policy_of(settings(tmp_path, access={"dm": "allowlist"})), said())
    assert (found.allowed, found.role) == (False, "guest")


def test_what_no_binding_wants_is_the_first_agents_and_private(tmp_path: Path) -> None:
    agents = [
        {"id": "one", "bindings": [{"match": {"channel": "demo"}}]},
        {"id": "two", "bindings": [{"match": {"channel": "other"}}]},
    ]
    bound = bindings_of(with_token(tmp_path, agents=agents)).find(PLACE)
    assert (bound.agent, bound.listen, bound.private) == ("one", "all", True)
    own = [
        *agents,
        {"id": "three", "bindings": [{"match": {"channel": "console"}, "listen": "mention"}]},
    ]
    assert bindings_of(with_token(tmp_path, agents=own)).find(PLACE).agent == "three"
    assert bindings_of(settings(tmp_path, agents=agents)).find(PLACE).listen == "off"


@pytest.mark.parametrize(
    ("more", "key", "told"),
    [
        ({"channels": {"console": {"platform": "console"}}}, "channels.console", "console.local"),
        (
            {"access": {"roles": {"member": ["console:operator"]}}},
            "access.roles.member[0]",
            "remove this",
        ),
        ({"ops": {"token": ""}}, "ops.token", ""),
        ({"ops": {"token": "fifteen-letters"}}, "ops.token", "at least 16 characters"),
        ({"ops": {"hosts": ["http://x"]}}, "ops.hosts", ""),
    ],
)
def test_what_the_configuration_may_not_say(
    tmp_path: Path, more: dict[str, Any], key: str, told: str
) -> None:
    made: dict[str, Any] = {
        "channels": {"demo": {"platform": "console"}},
        "agents": [{"id": "reverie"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "ops": {"token": TOKEN},
    }
    with pytest.raises(ConfigError) as caught:
        parse_config({**made, **more}, tmp_path)
    assert key in str(caught.value)
    assert told in str(caught.value)
    assert TOKEN not in str(caught.value)


async def test_a_message_goes_in_and_its_answer_comes_out(tmp_path: Path) -> None:
    async with (
        operated(tmp_path, access={"dm": "disabled"}) as gateway,
        gateway.listening() as told,
    ):
        heard = await gateway.post("/api/say", {"text": "are you there?"})
        await told.until(lambda told: told.named("post"))
        (noticed,) = [one for one in told.named("notification") if one["kind"] == "direct"]
        assert (noticed["seq"], noticed["conversation"]) == (heard["seq"], "console/operator")
        (post,) = told.named("post")
        assert post["conversation"] == "console/operator"
        assert "operator (owner): are you there?" in post["text"]
        assert gateway.screen.parts == []


async def test_commands_are_given_there_with_a_slash_and_only_there(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway, gateway.listening() as told:
        await gateway.post("/api/say", {"text": "/status"})
        await told.until(lambda told: told.named("post"))
        assert "- demo: " in told.named("post")[0]["text"]
        await gateway.post("/api/say", {"text": "/dmn pause"})
        await told.until(lambda told: len(told.named("post")) == 2)
        (agent,) = (await gateway.get("/api/dmn"))["items"]
        assert agent["mode"] == "paused"
        (act,) = (await gateway.get("/api/audit"))["items"]
        assert (act["actor"], act["command"], act["place"], act["ok"]) == (
            "console:operator (operator)",
            "dmn",
            "console/operator",
            True,
        )
        await gateway.post("/api/say", {"text": "/help"})
        await told.until(lambda told: len(told.named("post")) == 3)
        assert "/status" in told.named("post")[2]["text"]
        assert "!status" not in told.named("post")[2]["text"]


async def test_the_operators_channel_is_not_told_among_the_channels(tmp_path: Path) -> None:
    async with operated(tmp_path) as gateway:
        ready = (await gateway.client.get("/ready")).json()
        assert OPERATOR_CHANNEL not in ready["channels"]
        assert (
            f'channel_up{{channel="{OPERATOR_CHANNEL}"}}'
            not in (await gateway.client.get("/metrics")).text
        )


async def tool_runs(gateway: Operated) -> None:
    async def found() -> bool:
        return any(one["tools"] for one in (await gateway.get("/api/status"))["activity"])

    await until(found)


def alive(folder: Path) -> bool:
    """Whether what wrote its number into a file `pid` among the agent's files is there."""
    try:
        os.kill(int(next(folder.rglob("files/**/pid")).read_text()), 0)
    except (ProcessLookupError, ValueError, StopIteration):
        return False
    return True


@pytest.mark.parametrize("way", ["http", "socket"])
async def test_a_tool_is_ended_with_all_its_processes_and_the_turn_goes_on(
    tmp_path: Path, way: str
) -> None:
    script = Script(
        rules=(
            ScriptRule(match="work", calls=bash("sleep 300 & echo $! > pid; wait")),
            ScriptRule(match="ended it", reply="Then I leave that."),
            ScriptRule(match=".", reply="What?"),
        )
    )
    async with operated(tmp_path, script, tools=OPEN) as gateway, gateway.listening() as told:
        await gateway.post("/api/say", {"text": "work"})
        await tool_runs(gateway)
        await until(lambda: alive(tmp_path))
        (running,) = (await gateway.get("/api/status"))["activity"]
        assert (running["tools"], running["conversation"]) == (["bash"], "console/operator")
        order = CommandRequest(words=("kill",), place=PLACE.conversation)
        if way == "http":
            answer = await gateway.post("/api/orders", order.model_dump(mode="json"))
        else:
            answer = (await send_control_request(socket_path(gateway.path), order)).model_dump()
        assert (answer["ok"], list(answer["lines"])) == (
            True,
            ["I ended bash. My answer continues."],
        )
        await told.until(lambda told: told.named("post"))
        assert told.named("post")[0]["text"].startswith("Then I leave that.")
        assert not alive(tmp_path)
        ended = told.named("tool")[-1]
        assert (ended["state"], ended["error"]) == ("ended", True)
        assert ended["result"].startswith("The operator ended it")
        (act,) = (await gateway.get("/api/audit"))["items"]
        assert (act["actor"], act["command"], act["place"], act["ok"]) == (
            "operator",
            "kill",
            "console/operator",
            True,
        )
        idle = await gateway.post("/api/orders", {"words": ["kill"], "place": PLACE.conversation})
        assert (idle["ok"], idle["lines"]) == (False, ["No tool runs there."])


async def test_two_tools_of_one_answer_are_both_ended(tmp_path: Path) -> None:
    calls = (*bash("sleep 300"), ("job_output", '{"job": "j1"}'))
    script = Script(
        rules=(ScriptRule(match="work", calls=calls), ScriptRule(match=".", reply="Done."))
    )
    async with operated(tmp_path, script, tools=OPEN) as gateway, gateway.listening() as told:
        await gateway.console.receive_message("nothing", sender="ann")
        await gateway.post("/api/say", {"text": "work"})
        await tool_runs(gateway)
        elsewhere = await gateway.post("/api/orders", {"words": ["kill"], "place": f"{DEMO}/ann"})
        assert elsewhere["ok"] is False
        await gateway.post("/api/orders", {"words": ["kill"], "place": PLACE.conversation})
        await told.until(
            lambda told: "console/operator" in [one["conversation"] for one in told.named("post")]
        )


async def test_what_came_of_reading_the_configuration_again_is_told(tmp_path: Path) -> None:
    """It is read when it is written, and when somebody asks: either may come first."""
    async with operated(tmp_path) as gateway, gateway.listening() as told:
        file = tmp_path / "reverie.yaml"
        said = json.loads(file.read_text())
        said["commands"] = {"contact": "me"}
        file.write_text(json.dumps(said))
        assert (await gateway.post("/api/orders", {"words": ["reload"]}))["ok"]
        await told.until(lambda told: any(one["taken"] for one in told.named("reloaded")))
        file.write_text(json.dumps({**said, "ops": {**said["ops"], "port": 1}}))
        assert (await gateway.post("/api/orders", {"words": ["reload"]}))["ok"]
        await told.until(lambda told: any(one["later"] for one in told.named("reloaded")))
        file.write_text(json.dumps({**said, "agents": []}))
        assert (await gateway.post("/api/orders", {"words": ["reload"]}))["ok"] is False
        await told.until(lambda told: told.named("reloaded")[-1]["problems"])
        told_of = [(one["taken"], one["later"]) for one in told.named("reloaded")]
        assert (["commands.contact"], []) in told_of
        assert ([], ["ops.port"]) in told_of
        broken = told.named("reloaded")[-1]
        assert (broken["taken"], len(broken["problems"])) == ([], 1)
        assert "agents" in broken["problems"][0]


# The configuration over HTTP: read, checked and saved by an owner, and no secret leaves.


@pytest.fixture
async def editable(tmp_path: Path) -> AsyncIterator[Operated]:
    file = tmp_path / "reverie.yaml"
    async with operated(tmp_path, Script(), ops={"tokens": [BEN]}) as made:
        text = file.read_text(encoding="utf-8")
        for name, token in (("own", TOKEN), ("ben", BEN["token"])):
            (tmp_path / name).write_text(token, encoding="utf-8")
            text = text.replace(token, f"${{file:{name}}}")
        file.write_text(text, encoding="utf-8")
        yield made


async def test_the_configuration_is_read_and_saved_without_its_secrets(
    editable: Operated, tmp_path: Path
) -> None:
    file = tmp_path / "reverie.yaml"
    before = file.read_text(encoding="utf-8")
    answer = await editable.client.get("/api/config")
    assert TOKEN not in answer.text
    assert BEN["token"] not in answer.text
    (shown,) = answer.json()["files"]
    draft = {**shown, "text": shown["text"].replace('"coalesce": 0', '"coalesce": 0.5')}
    draft.pop("writable")
    checked = await editable.post("/api/config/check", draft)
    assert (checked["problems"], checked["saved"]) == ([], False)
    assert "+" in checked["diff"]
    assert file.read_text(encoding="utf-8") == before
    saved = await editable.post("/api/config/save", draft)
    assert (saved["saved"], saved["needs_restart"]) == (True, [])
    assert file.read_text(encoding="utf-8") == before.replace('"coalesce": 0', '"coalesce": 0.5')
    live = editable.live
    assert live is not None
    await editable.until(lambda: live.settings.attention.coalesce == 0.5)
    late = await editable.client.post("/api/config/save", json=draft)
    assert late.status_code == 409
    acts = (await editable.get("/api/audit"))["items"]
    assert [(one["command"], one["ok"]) for one in acts] == [
        ("/api/config/save", False),
        ("/api/config/save", True),
    ]


async def test_mistakes_are_told_by_line_and_key_and_nothing_is_written(
    editable: Operated, tmp_path: Path
) -> None:
    file = tmp_path / "reverie.yaml"
    before = file.read_text(encoding="utf-8")
    (shown,) = (await editable.get("/api/config"))["files"]
    draft = {"name": shown["name"], "sha256": shown["sha256"]}
    wrong = {**draft, "text": shown["text"].replace('"coalesce"', '\n"coalesse"')}
    (mistake,) = (await editable.post("/api/config/check", wrong))["problems"]
    assert (mistake["line"], mistake["key"]) == (2, "attention.coalesse")
    assert not (await editable.post("/api/config/save", wrong))["saved"]
    (mistake,) = (await editable.post("/api/config/check", {**draft, "text": "a: [\n"}))["problems"]
    assert mistake["line"] == 2
    later = {**draft, "text": shown["text"].replace('"port": 0', '"port": 1')}
    assert (await editable.post("/api/config/check", later))["needs_restart"] == ["ops.port"]
    for name in ("../reverie.yaml", "/etc/passwd", "other.yaml", ""):
        answer = await editable.client.post(
            "/api/config/save", json={**draft, "name": name, "text": ""}
        )
        assert answer.status_code == 409
    assert file.read_text(encoding="utf-8") == before


async def test_only_an_owner_sees_the_configuration(editable: Operated) -> None:
    editable.client.headers["Authorization"] = f"Bearer {BEN['token']}"
    draft = {"name": "reverie.yaml", "text": "", "sha256": ""}
    for answer in (
        await editable.client.get("/api/config"),
        await editable.client.post("/api/config/check", json=draft),
        await editable.client.post("/api/config/save", json=draft),
    ):
        assert answer.status_code == 403
        assert "own" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ("", ""),
        ("channels: {irc.x: {password: hunter2}}", "channels.irc.x.password"),
        ("a: {api_key: &key 'sk-one, two'}\nb: {api_key: *key}", "a.api_key"),
        ("a:\n  token: |\n    first line\n    second line", "a.token"),
        ('irc: {keys: {"#garden": abc}}', "irc.keys.#garden"),
        ("irc: {on_connect: [OPER me def]}", "irc.on_connect[0]"),
        ("irc: {env: {KEY: ghi}}", "irc.env.KEY"),
        ("headers: {X-Key: jkl}", "headers.X-Key"),
        ("a: {credentials: mno}", "a.credentials"),
        ("a: {bot_tokens: stu}", "a.bot_tokens"),
        ("a: {token: 123456}", "a.token"),
        ('a: {api_key: "${KEY:-pqr}"}', "a.api_key"),
    ],
)
def test_a_secret_that_is_no_reference_is_found(changed: str, key: str) -> None:
    """Before the editable has read them it does not know them."""
    fine = """\
channels: {irc.y: {sasl: {password: "${IRC}"}}}
headers: ["Bearer ${TOKEN}", none]
llm: {api_key: "${file:secrets/key}", token: null, first_token: 60s}
models: {main: {context_tokens: 200000, max_output_tokens: 16_384}}
"""
    found = find_secret(f"{fine}{changed}\n", Redactor())
    assert (key in found, bool(found)) == (True, bool(key))
    assert not key or found.startswith("line ")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1))
def test_any_password_is_found(password: str) -> None:
    written = "'" + password.replace("'", "''") + "'"
    found = find_secret(f"a:\n  password: {written} # it\n  b: 1\n", Redactor())
    plain = password.strip().lower()
    assert found or not plain or plain in {"none", "null", "~"} or "${" in password


async def test_a_file_with_a_secret_is_neither_shown_nor_written(
    editable: Operated, tmp_path: Path
) -> None:
    file = tmp_path / "reverie.yaml"
    whole = file.read_text(encoding="utf-8")
    (shown,) = (await editable.get("/api/config"))["files"]
    literal = whole.replace("${file:ben}", BEN["token"])
    draft = {"name": shown["name"], "text": literal, "sha256": shown["sha256"]}
    for path in ("check", "save"):
        answer = await editable.client.post(f"/api/config/{path}", json=draft)
        assert (answer.status_code, "ops.tokens[0].token" in answer.text) == (409, True)
    file.write_text(literal, encoding="utf-8")
    answer = await editable.client.get("/api/config")
    assert BEN["token"] not in answer.text
    assert not answer.json()["files"][0]["writable"]
    answer = await editable.client.post("/api/config/check", json={**draft, "text": whole})
    assert (answer.status_code, BEN["token"] in answer.text) == (409, False)


async def test_a_mistake_in_another_file_is_told_with_its_name(
    editable: Operated, tmp_path: Path
) -> None:
    (shown,) = (await editable.get("/api/config"))["files"]
    (tmp_path / "zoo.yaml").write_text("\n\nzoo: 1\n", encoding="utf-8")
    draft = {"name": shown["name"], "text": shown["text"]}
    (mistake,) = (await editable.post("/api/config/check", draft))["problems"]
    assert (mistake["line"], mistake["key"]) == (0, "zoo")
    assert "zoo.yaml" in mistake["message"]


async def test_a_file_that_cannot_be_written_is_refused_and_audited(
    editable: Operated, tmp_path: Path
) -> None:
    (shown,) = (await editable.get("/api/config"))["files"]
    file = tmp_path / shown["name"]
    steps = Path(*["x" * 200] * 12)
    (tmp_path / steps).mkdir(parents=True)
    (tmp_path / "half").symlink_to(steps)
    (tmp_path / "half" / steps).mkdir(parents=True)
    file.rename(tmp_path / "half" / steps / "a.yaml")  # below a path longer than PATH_MAX
    file.symlink_to(tmp_path / "half" / steps / "a.yaml")
    draft = {"name": shown["name"], "text": shown["text"], "sha256": shown["sha256"]}
    answer = await editable.client.post("/api/config/save", json=draft)
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    (act,) = (await editable.get("/api/audit"))["items"]
    assert (act["command"], act["ok"]) == ("/api/config/save", False)
