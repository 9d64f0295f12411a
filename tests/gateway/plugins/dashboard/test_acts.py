"""What waits for the operator, what is searched and summed, and what the panels of plugins do, over
HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.commands.context import CommandCall
from gateway.commands.definition import command
from gateway.core.route import route
from gateway.plugin import Plugin
from gateway.plugins import use_plugins
from reverie.testing.gateway import UNHURRIED
from tests.kits.ops import TOKEN, Operated, operated

BEN = {"name": "ben", "role": "operate", "token": "the-token-of-ben-0123456789"}
OWNER = {"dm": "pairing", "roles": {"owner": ["demo:root"]}, "rates": UNHURRIED}
NOTE = (("remember", '{"text": "Ann likes tea"}'),)
REMIND = (("remind", '{"at": "in 90 minutes", "text": "Water the plants"}'),)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Operated]:
    script = Script(
        rules=(
            ScriptRule(match="tea", calls=NOTE, reply="Noted."),
            ScriptRule(match="plants", calls=REMIND, reply="I will."),
        )
    )
    async with operated(tmp_path, script, access=OWNER) as made:
        yield made


async def act(gateway: Operated, action: dict[str, Any], **changed: str) -> Any:
    """Do what a row, or what waits, offers."""
    if "path" in action:
        return await gateway.client.post(action["path"], json=action["body"] | changed)
    order = {key: action[key] for key in ("words", "place", "agent") if action.get(key)}
    done = await gateway.post("/api/orders", order)
    assert done["ok"], done
    return done


async def test_who_asks_to_be_let_in_waits_with_what_they_wrote(gateway: Operated) -> None:
    for who, words in (("ann", "hello, may I?"), ("ben", "me too")):
        await gateway.console.receive_message(words, sender=who)
    ann, ben = (await gateway.get("/api/waiting"))["items"]
    assert (ann["kind"], ann["who"], ann["words"], ann["place"]) == (
        "pairing",
        "ann",
        "hello, may I?",
        "demo/ann",
    )
    assert ann["since"] < ann["until"]
    yes, no = ann["actions"][0], ben["actions"][1]
    assert (yes["style"], no["style"]) == ("yes", "no")
    await act(gateway, yes)
    await act(gateway, no)
    assert (await gateway.get("/api/waiting"))["items"] == []
    done = [one["arguments"] for one in (await gateway.get("/api/audit"))["items"]]
    assert len(done) == 2


async def test_a_call_that_waits_is_approved_by_a_token_of_an_admin(tmp_path: Path) -> None:
    rules = [{"tool": "remember", "approval": "always"}]
    script = Script(
        rules=(ScriptRule(match="tea", calls=NOTE), ScriptRule(match="", reply="Done."))
    )
    token, tokens = BEN["token"], [BEN]
    more: dict[str, Any] = {"access": OWNER, "tools": {"rules": rules}}
    async with operated(tmp_path, script, ops={"tokens": tokens}, **more) as gateway:
        gateway.client.headers["Authorization"] = f"Bearer {token}"
        await gateway.say("Ann likes tea", sender="root")

        async def waits() -> bool:
            return bool((await gateway.get("/api/waiting"))["items"])

        await gateway.until(waits)
        (item,) = (await gateway.get("/api/waiting"))["items"]
        assert (item["kind"], item["who"], item["place"]) == ("approval", "root", "demo/root")
        assert "Ann likes tea" in item["words"]
        await act(gateway, item["actions"][0])
        await gateway.took(1)
        assert (await gateway.get("/api/waiting"))["items"] == []
        (note,) = await gateway.get("/api/plugins/memory/journal")
        assert note["note"] == "Ann likes tea"


async def test_the_whole_log_is_searched_by_words(gateway: Operated) -> None:
    for number in range(5):
        await gateway.console.receive_message(f"apple pie {number}", sender="root")
    await gateway.console.receive_message('cherry "pie" OR', sender="root")
    query: dict[str, Any] = {"text": "apple pie", "limit": 2}
    seen = list[str]()
    while True:
        page = await gateway.get("/api/search", **query)
        seen += [one["text"] for one in page["items"]]
        if page["next"] is None:
            break
        query["before"] = page["next"]
    mine = [one for one in seen if one.startswith("apple")]
    assert mine == [f"apple pie {number}" for number in reversed(range(5))]
    page = await gateway.get("/api/search", text='"pie" OR', conversation="demo/root")
    (found,) = [one for one in page["items"] if one["kind"] == "direct"]
    assert (found["who"], found["conversation"]) == ("root", "demo/root")
    assert (await gateway.get("/api/search", text="apple", conversation="demo/lobby"))[
        "items"
    ] == []
    assert (await gateway.get("/api/search", text="\0"))["items"] == []
    nul = {"text": "a", "conversation": "demo/\0"}
    for wrong in ({"text": " "}, {"text": "a", "conversation": "nowhere"}, nul, {}):
        assert (await gateway.client.get("/api/search", params=wrong)).status_code == 400


async def test_costs_are_summed_by_what_is_asked_for(gateway: Operated) -> None:
    await gateway.console.receive_message("hello", sender="root")
    await gateway.took(1)
    keys = {"person": "demo:root", "conversation": "demo/root", "agent": "reverie"}
    for by, key in keys.items():
        (spent,) = (await gateway.get("/api/spending", by=by, hours=24))["items"]
        assert (spent["key"], spent["requests"]) == (key, 1)
    (person,) = (await gateway.get("/api/spending", by="person"))["items"]
    assert person["label"] == "root"


async def test_commands_are_listed_for_whom_they_are(gateway: Operated) -> None:
    listed = {one["name"]: one for one in (await gateway.get("/api/commands"))["items"]}
    assert {"status", "pair approve", "memory forget", "dmn quiet"} <= listed.keys()
    assert "<" in listed["pair approve"]["usage"]


async def test_rows_of_panels_are_forgotten_changed_and_cancelled(gateway: Operated) -> None:
    for words in ("Ann likes tea", "remind me of the plants"):
        await gateway.ask(words, sender="root")
    panels: dict[str, str] = {}
    for plugin in (await gateway.get("/api/plugins"))["items"]:
        panels |= plugin["panels"]
    (note,) = await gateway.get(panels["Journal"])
    assert note["note"].endswith("Ann likes tea")
    await act(gateway, note["_actions"][0])
    assert await gateway.get(panels["Journal"]) == []
    (reminder,) = await gateway.get(panels["Reminders"])
    assert reminder["text"] == "Water the plants"
    await act(gateway, reminder["_actions"][0])
    assert await gateway.get(panels["Reminders"]) == []
    assert isinstance(await gateway.get(panels["Skills"]), list)
    assert await gateway.get(panels["Memory"]) == []


async def test_an_owner_changes_and_removes_entries_of_the_memory_file(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    file = workspace / "MEMORY.md"
    file.write_text("# Known\n\n- Ann likes tea\n  in the morning\n- Ben likes coffee\n")
    agents = [{"id": "reverie", "workspace": str(workspace)}]
    tokens = [BEN]
    async with operated(tmp_path, agents=agents, ops={"tokens": tokens}) as gateway:
        rows = await gateway.get("/api/plugins/memory/entries")
        texts = ["# Known", "- Ann likes tea\n  in the morning", "- Ben likes coffee"]
        assert [one["entry"] for one in rows] == texts
        edit, _ = rows[1]["_actions"]
        forget = rows[2]["_actions"][1]
        bearer = {"Authorization": f"Bearer {tokens[0]['token']}"}
        refused = await gateway.client.post(edit["path"], json=edit["body"], headers=bearer)
        assert refused.status_code == 403
        assert (await act(gateway, edit, after="- Ann likes mate")).is_success
        late = await act(gateway, edit, after="- Ann likes water")
        assert (late.status_code, late.headers["content-type"]) == (409, "application/problem+json")
        assert (await act(gateway, forget)).is_success
        assert file.read_text() == "# Known\n\n- Ann likes mate\n"
        acts = (await gateway.get("/api/audit"))["items"]
        assert [(one["command"], one["ok"]) for one in acts] == [
            (edit["path"], True),
            (edit["path"], False),
            (edit["path"], True),
        ]


@pytest.mark.parametrize("words", ["pair seed demo:eve owner", "pair revoke demo:root"])
async def test_a_token_of_an_admin_has_no_power_of_an_owner(words: str, tmp_path: Path) -> None:
    tokens = [BEN]
    async with operated(tmp_path, ops={"tokens": tokens}) as gateway:
        await gateway.post("/api/orders", {"words": ["pair", "seed", "demo:root", "owner"]})
        gateway.client.headers["Authorization"] = f"Bearer {tokens[0]['token']}"
        assert not (await gateway.post("/api/orders", {"words": words.split()}))["ok"]
        newest, _ = (await gateway.get("/api/audit"))["items"]
        assert (newest["command"], newest["ok"]) == ("pair", False)
        assert "ben" in newest["actor"]
        seed = {"words": ["pair", "seed", "demo:ann"]}
        assert (await gateway.post("/api/orders", seed))["ok"]


async def test_a_token_of_an_admin_undoes_no_change_of_memory(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "MEMORY.md").write_text("- Ann likes tea\n")
    agents = [{"id": "reverie", "workspace": str(workspace)}]
    tokens = [BEN]
    async with operated(tmp_path, agents=agents, ops={"tokens": tokens}) as gateway:
        (row,) = await gateway.get("/api/plugins/memory/entries")
        await act(gateway, row["_actions"][0], after="- Ann likes mate")
        bearer = {"Authorization": f"Bearer {tokens[0]['token']}"}
        undo = {"words": ["memory", "undo"]}
        refused = await gateway.client.post("/api/orders", json=undo, headers=bearer)
        assert not refused.json()["ok"]
        assert (workspace / "MEMORY.md").read_text() == "- Ann likes mate\n"
        assert (await gateway.post("/api/orders", undo))["ok"]
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
        async with operated(tmp_path, ops={"tokens": [BEN]}) as gateway:
            gateway.client.headers["Authorization"] = f"Bearer {BEN['token']}"
            order = {"words": ["keys"]}
            assert not (await gateway.post("/api/orders", order))["ok"]
            (act,) = (await gateway.get("/api/audit"))["items"]
            assert (act["command"], act["ok"]) == ("keys", False)
            assert not (await gateway.post("/api/orders", {"words": ["approve", "zzzz"]}))["ok"]
            gateway.client.headers["Authorization"] = f"Bearer {TOKEN}"
            assert (await gateway.post("/api/orders", order))["lines"] == ["the keys"]


async def test_what_waits_is_listed_without_a_plugin_that_is_stuck(
    tmp_path: Path,
) -> None:
    with use_plugins(Keys, Stuck):
        async with operated(tmp_path, access=OWNER) as gateway:
            await gateway.console.receive_message("may I?", sender="ann")
            found = {one["kind"] for one in (await gateway.get("/api/waiting"))["items"]}
            assert found == {"pairing", "key"}


async def test_entries_of_a_memory_file_that_is_too_long_are_listed_in_part_and_forgotten(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    lines = [f"- {number} {'x' * 20}" for number in range(600)]
    file = workspace / "MEMORY.md"
    file.write_text("\n".join(lines))
    async with operated(
        tmp_path, agents=[{"id": "reverie", "workspace": str(workspace)}]
    ) as gateway:
        rows = await gateway.get("/api/plugins/memory/entries")
        assert len(rows) == 501
        assert "100" in rows[-1]["entry"]
        edit, forget = rows[0]["_actions"]
        assert (await act(gateway, edit, after=f"{lines[0]}x")).status_code == 409
        assert (await act(gateway, forget)).is_success
        assert file.read_text() == "\n".join(lines[1:]) + "\n"
