"""A gateway with one IRC channel against the scripted server, and a scripted model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from agent.models.scripted import Script, ScriptedModel
from gateway import app
from gateway.config.loader import parse_config
from gateway.core.clock import SystemClock
from tests.servers.ircd import Ircd


@contextlib.asynccontextmanager
async def gateway(
    folder: Path,
    ircd: Ircd,
    script: Script | None = None,
    *,
    bridges: Sequence[str] = (),
    **access: Any,
) -> AsyncIterator[None]:
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
                    "bridges": list(bridges),
                }
            },
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "access": {"roles": {"owner": ["irc.test:account:olga"]}, **access},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        folder,
    )
    stop = asyncio.Event()
    model = ScriptedModel(script or Script(), clock=SystemClock())
    task = asyncio.create_task(app.run(made, stop, model=model))
    try:
        yield
    finally:
        stop.set()
        await task
