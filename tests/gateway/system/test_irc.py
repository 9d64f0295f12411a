"""A whole gateway on IRC, where a nick is nobody: a call counts, and an owner is told, only while the
account is known."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.core.events import ChannelName, ConversationId
from gateway.plugins.health.program import judge_gateway
from gateway.plugins.trace import explain_event
from gateway.store import Store
from reverie.testing.channels import story
from reverie.testing.gateway import Gateway, settings
from reverie.testing.servers.ircd import MODERN, Ircd, Options


def gateway(folder: Path, ircd: Ircd, script: Script | None = None, **access: Any) -> Gateway:
    channel = {
        "platform": "irc",
        "host": "127.0.0.1",
        "port": ircd.port,
        "tls": False,
        "nick": "reverie",
        "rooms": ["#lobby"],
    }
    roles = {"owner": ["irc.test:account:olga"]}
    made = settings(
        folder,
        channels={"irc.test": channel},
        agents=[{"id": "reverie"}],
        attention={},
        access={"roles": roles, **access},
    )
    return Gateway(made, script or Script())


@story
@pytest.mark.parametrize(
    ("where", "account", "is_refused"),
    [
        ("reverie", "olga", False),
        ("reverie", "mal", True),
        ("#lobby", "olga", False),
        ("#lobby", "", True),
    ],
)
async def test_a_call_counts_for_nobody_whose_account_was_lost_since_the_question(
    tmp_path: Path, where: str, account: str, is_refused: bool
) -> None:
    rule = ScriptRule(match="make it", calls=(("write_file", '{"path": "a.txt", "text": "x"}'),))
    script = Script(rules=(rule, ScriptRule(match="", reply="Well.")))
    async with Ircd(Options(caps=MODERN)) as ircd, gateway(tmp_path, ircd, script):
        await ircd.joined("reverie", "#lobby")
        ircd.people["olga"] = "olga!o@h", account
        ircd.relay(where, f":olga!o@h PRIVMSG {where} :reverie: make it", {"account": "olga"})
        async with (
            await Store.open_readonly(tmp_path / "reverie.db") as reader,
            asyncio.timeout(60),
        ):
            while not await reader.entries(kinds=["turn_ended"]):
                await asyncio.sleep(0.02)
            refused = await reader.entries(kinds=["tool_refused"])
        assert bool(refused) is is_refused
        assert bool(list(tmp_path.rglob("a.txt"))) is not is_refused


NOTICE = r"(?:@\S+ )?NOTICE %s :(.*)"


@story
async def test_an_owner_is_told_under_their_account_only_and_what_waits_is_shown(
    tmp_path: Path,
) -> None:
    """`access.tell` names a nick alone, which somebody else has when a stranger asks to be let
    in."""
    store, names = tmp_path / "reverie.db", [ChannelName("irc.test")]
    async with Ircd() as ircd, gateway(tmp_path, ircd, tell="irc.test/olga"):
        client = await ircd.joined("reverie", "#lobby")
        ircd.people["olga"] = "olga!thief@h", ""
        await ircd.say("reverie", "hello?", by="zoe!z@h", account="zoe")
        await ircd.received(NOTICE % "zoe")
        await ircd.received("WHOIS olga")
        async with asyncio.timeout(20):
            while True:
                is_well, findings = await judge_gateway(store, names, datetime.now(UTC))
                if "irc.test: posts wait until 1 person is online there" in "\n".join(findings):
                    break
                await asyncio.sleep(0.02)
        assert is_well, "a person who is away is no fault"
        async with await Store.open_readonly(store) as reader:
            (queued,) = await reader.entries(
                kinds=["post"], conversation=ConversationId("irc.test/olga")
            )
            assert "olga is not there, or not logged in as olga; it waits" in str(
                await explain_event(reader, queued.seq)
            )
        assert not [line for line in ircd.lines if "NOTICE olga" in line]
        ircd.people["olga"] = "olga!o@h", "olga"
        client.send("@account=olga :olga!o@h PRIVMSG reverie :!whoami")
        told = await ircd.received(
            r"(?:@\S+ )?NOTICE olga :Somebody asks to talk to me in private: (.*)"
        )
        assert "irc.test:account:zoe" in told[1]
