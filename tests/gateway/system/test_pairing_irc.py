"""On IRC nobody is in a room that invites: who does is shown a code alone, and the agent comes once it is opened."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from agent.models.scripted import Script, ScriptedModel
from gateway import app
from gateway.config.loader import parse_config
from gateway.core.clock import SystemClock
from tests.kits.channels import story
from tests.servers.ircd import Ircd

NOTICE = r"(?:@\S+ )?NOTICE %s :(.*)"


@contextlib.asynccontextmanager
async def gateway(folder: Path, ircd: Ircd) -> AsyncIterator[None]:
    made = parse_config(
        {
            "channels": {
                "irc.test": {
                    "platform": "irc",
                    "host": "127.0.0.1",
                    "port": ircd.port,
                    "tls": False,
                    "nick": "reverie",
                    "rooms": ["#lobby"],
                }
            },
            "agents": [{"id": "reverie"}],
            "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
            "access": {"roles": {"owner": ["irc.test:account:olga"]}},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        folder,
    )
    stop = asyncio.Event()
    model = ScriptedModel(Script(), clock=SystemClock())
    task = asyncio.create_task(app.run(made, stop, model=model))
    try:
        yield
    finally:
        stop.set()
        await task


@story
async def test_an_invitation_of_a_stranger_waits_for_an_admin(tmp_path: Path) -> None:
    async with Ircd() as ircd:
        async with gateway(tmp_path, ircd):
            client = await ircd.joined("reverie", "#lobby")
            ircd.people["zoe"] = "zoe!z@h", "zoe"
            client.send("@account=zoe :zoe!z@h INVITE reverie #office")
            asked = await ircd.received(NOTICE % "zoe")
            assert "#office" in asked[1]
            code = await ircd.received(r"(?:@\S+ )?NOTICE zoe :.*room approve ([A-Z0-9]{4}-[A-Z0-9]{4})")
            await ircd.say("reverie", f"!room approve {code[1]}", by="mal!m@h", account="mal")
            await ircd.received(r"(?:@\S+ )?NOTICE mal :.*pair approve")
            assert not ircd.rooms.get("#office")
            await ircd.say("reverie", f"!room approve {code[1]}", by="olga!o@h", account="olga")
            await ircd.received(r"(?:@\S+ )?PRIVMSG olga :.*Open: ")
            await ircd.joined("reverie", "#office")
            await ircd.received(r"(?:@\S+ )?NOTICE zoe :.*is open for me now")
            await ircd.say("#office", "reverie: hello", by="zoe!z@h", account="zoe")
            await ircd.received(r"(?:@\S+ )?PRIVMSG #office :.*You said")
        async with gateway(tmp_path, ircd):
            await ircd.joined("reverie", "#office")
            await ircd.say("reverie", "!room revoke #office", by="olga!o@h", account="olga")
            await ircd.received("PART #office")
