"""A gateway with one IRC channel against the scripted server, and a scripted model."""

from pathlib import Path
from typing import Any

from agent.models.scripted import Script
from reverie.testing.gateway import Gateway, settings
from reverie.testing.servers.ircd import Ircd


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
