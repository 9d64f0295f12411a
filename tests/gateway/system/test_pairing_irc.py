"""On IRC nobody is in a room that invites: who does is shown a code alone, and the agent comes once
it is opened.

And owners are told of it only while their nick is known to be theirs.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from gateway.core.events import ChannelName, ConversationId
from gateway.plugins.health.program import judge_gateway
from gateway.plugins.trace import explain_event
from gateway.store import Store
from reverie.testing.channels import story
from reverie.testing.servers.ircd import Ircd
from tests.gateway.system.irc_kit import gateway

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
