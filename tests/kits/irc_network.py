"""A real IRC network where all of the play have accounts."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.platform_users import ACCOUNTS, IrcClient
from tests.servers.ports import free_port
from tests.servers.real_ircd import inspircd, link, services


@contextlib.contextmanager
def network(directory: Path) -> Iterator[int]:
    """InspIRCd with Atheme's services."""
    linked = free_port()
    try:
        with inspircd(directory, more=link(linked)) as port, services(linked):
            yield port
    except FileNotFoundError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


async def registered(port: int) -> None:
    """All of them have accounts with the services."""
    for name, password in ACCOUNTS.items():
        client = IrcClient(name, port)
        await client.begin()
        client.send(f"PRIVMSG NickServ :REGISTER {password} {name}@example.org")
        await client.until(rf":NickServ\S* NOTICE {name} :.*(registered|REGISTERED)")
        await client.end()
