"""What rooms on IRC are shown: each line is a message there, and nothing marks whom it answers."""

import asyncio
import re
from pathlib import Path

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.store import Store
from tests.gateway.system.irc_kit import gateway
from tests.kits.channels import story
from tests.servers.ircd import MODERN, Ircd, Options

OPTIONAL_TAGS = r"(?:@\S+ )?"


def said_in(ircd: Ircd, target: str) -> list[str]:
    found = (
        re.match(rf"{OPTIONAL_TAGS}(?:PRIVMSG|NOTICE) {target} :(.*)", line) for line in ircd.lines
    )
    return [match[1] for match in found if match]


@story
async def test_long_answers_of_commands_go_to_whoever_asked(tmp_path: Path) -> None:
    script = Script(
        rules=(ScriptRule(match="count", reply="\n".join(f"- line {n}" for n in range(1, 31))),)
    )
    async with Ircd() as ircd, gateway(tmp_path, ircd, script):
        await ircd.joined("reverie", "#lobby")
        ircd.people["olga"] = "olga!o@h", "olga"
        await ircd.say("#lobby", "!help", by="olga!o@h", account="olga")
        await ircd.received(OPTIONAL_TAGS + r"NOTICE olga :.*shows how to use one command")
        await ircd.say("#lobby", "!version", by="gus!g@h", account="gus")
        await ircd.received(OPTIONAL_TAGS + r"PRIVMSG #lobby :Reverie \d")
        assert len(said_in(ircd, "#lobby")) == 1
        await ircd.say("#lobby", "reverie: count", by="gus!g@h", account="gus")
        await ircd.received(OPTIONAL_TAGS + r"PRIVMSG #lobby :\(page 1 of 3; ")
        await ircd.say("#lobby", "more", by="gus!g@h", account="gus")
        await ircd.received(OPTIONAL_TAGS + r"PRIVMSG #lobby :\(page 2 of 3; ")


@story
async def test_people_behind_a_bridge_are_answered_by_name_and_are_guests(tmp_path: Path) -> None:
    script = Script(rules=(ScriptRule(match=".*", reply="Yes."),))
    roles = {"owner": ["irc.test:account:olga", "irc.test:account:relay"]}
    async with Ircd() as ircd, gateway(tmp_path, ircd, script, bridges=["relay"], roles=roles):
        await ircd.joined("reverie", "#lobby")

        async def relayed(text: str, answer: str) -> None:
            await ircd.say("#lobby", text, by="relay!r@h", account="relay", bot="")
            await ircd.received(OPTIONAL_TAGS + rf"(?:PRIVMSG|NOTICE) #lobby :{answer}")

        await relayed("\x0305<ka\u200bi>\x0f reverie: is it so?", "kai: Yes")
        await relayed("[tg] <lea> reverie: and now?", "lea: Yes")
        await relayed("<olga> !whoami", r".*bridge:relay:olga.*guest")
        await ircd.say(
            "#lobby", "<olga> !role set irc.test:account:eve admin", by="relay!r@h", account="relay"
        )
        await ircd.say(
            "#lobby", "!role set irc.test:account:eve admin", by="relay!r@h", account="relay"
        )
        await ircd.say("#lobby", "<olga> reverie: am I the owner?", by="eve!e@h", account="eve")
        await ircd.say("#lobby", "olga joined", by="relay!r@h", account="relay")
        await ircd.say("#lobby", "!whoami", by="eve!e@h", account="eve")
        await ircd.received(OPTIONAL_TAGS + r"PRIVMSG #lobby :.*account:eve.*guest")
        await relayed("<olga> !help", r".*!")
        assert not [
            line for line in ircd.lines if "NOTICE bridge:" in line or "NOTICE relay" in line
        ]
        assert len([line for line in said_in(ircd, "#lobby") if line.endswith("Yes.")]) == 2


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
