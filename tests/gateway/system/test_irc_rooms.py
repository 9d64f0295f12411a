"""What rooms on IRC are shown: each line is a message there, and nothing marks whom it answers."""

import asyncio
from pathlib import Path

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.store import Store
from reverie.testing.channels import story
from reverie.testing.servers.ircd import MODERN, Ircd, Options
from tests.gateway.system.irc_kit import gateway


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
