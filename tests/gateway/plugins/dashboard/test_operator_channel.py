"""What the operator says and orders: the own channel, a turn that is ended, a tool that is ended,
all of it audited."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.access.policy import decide
from gateway.config.loader import ConfigError, parse_config
from gateway.config.models import Settings
from gateway.core.control_messages import CommandRequest
from gateway.core.control_socket import send_control_request
from gateway.core.events import Address, Message, MessageId, RoomId, Sender, SenderId
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.identity import AccessPolicy
from gateway.core.process_files import socket_path
from reverie.testing.gateway import settings
from reverie.testing.waiting import until
from tests.gateway.plugins.http.test_server import START
from tests.kits.ops import DEMO, TOKEN, Operated, operated
from tests.kits.policies import bindings_of, policy_of

PLACE = Address(channel=OPERATOR_CHANNEL, room=RoomId("operator"))
OPEN = {"bash": {"sandbox": "off"}}


def command(text: str) -> tuple[tuple[str, str], ...]:
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
            ScriptRule(match="work", calls=command("sleep 300 & echo $! > pid; wait")),
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
    calls = (*command("sleep 300"), ("job_output", '{"job": "j1"}'))
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
