"""All three platforms at once, connected and idle: `python tests/bench/bench_platforms.py
[--json]`.

`reverie run` in a fresh process each time, on the fake servers of the tests, over loopback; the
figures are medians. Nothing is asserted: a busy machine gives other figures (the load is printed
with them).
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.discord_api import DiscordApi
from tests.bench.gateway_kit import NICK, ROOM, FastModel, Figure, Wire, running, show, write_config

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

IDLE_S = 5.0


class Platforms:
    """The fake servers, and a gateway on some of them."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._runs = 0
        self.wire, self.model, self.telegram, self.discord = (
            Wire(),
            FastModel(),
            BotApi(),
            DiscordApi(),
        )

    def beside(self) -> dict[str, dict[str, object]]:
        """Configuration of the two beside IRC."""
        return {
            "telegram.bench": {
                "platform": "telegram",
                "token": self.telegram.token,
                "base_url": self.telegram.url,
                "rooms": ["*"],
            },
            "discord.bench": {
                "platform": "discord",
                "token": self.discord.token,
                "api_url": self.discord.api_url,
                "gateway_url": self.discord.gateway_url,
                "rooms": ["*"],
            },
        }

    async def measure(self, names: tuple[str, ...], *, remote: bool) -> tuple[float, float]:
        """One run on IRC and `names`: seconds from the launch until all links are up; megabytes
        some seconds later."""
        self._runs += 1
        folder = self._base / f"run{self._runs}"
        beside = {name: config for name, config in self.beside().items() if name in names}
        url = self.model.url if remote else None
        write_config(
            folder,
            irc_port=self.wire.port,
            model_url=url,
            store=folder / "reverie.db",
            beside=beside,
        )
        async with running(self.wire, folder, links=1 + len(beside)) as gateway:
            if remote:
                already = len(self.wire.lines)
                gateway.bot.raw(
                    f":alice!a@host PRIVMSG {ROOM} :{NICK}: how is the build?\r\n".encode()
                )
                await self.wire.said_s("PRIVMSG", after=already)
            await asyncio.sleep(IDLE_S)
            return gateway.up_s - gateway.launched_s, gateway.resident_mb()


async def measure(runs: int) -> list[Figure]:
    """All figures, in the order of the table."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder:
        platforms = Platforms(Path(folder))
        async with AsyncExitStack() as stack:
            for server in (platforms.wire, platforms.model, platforms.telegram, platforms.discord):
                await stack.enter_async_context(server)
            every = tuple(platforms.beside())
            await platforms.measure(
                every, remote=True
            )  # compiles what has changed since the last start
            for kind, names in (
                ("IRC", ()),
                ("IRC and Telegram", every[:1]),
                ("IRC and Discord", every[1:]),
                ("all", every),
            ):
                taken = [await platforms.measure(names, remote=False) for _ in range(runs)]
                promise = (
                    ("<= 0.9", "<= 95")
                    if names == every
                    else ("<= 0.45", "<= 60")
                    if not names
                    else ("", "")
                )
                up_s, resident_mb = (
                    statistics.median(column) for column in zip(*taken, strict=True)
                )
                figures.append(Figure(f"launch -> connected, {kind}", up_s, "s", promise[0]))
                figures.append(Figure(f"resident, idle, {kind}", resident_mb, "MB", promise[1]))
            taken = [await platforms.measure(every, remote=True) for _ in range(runs)]
            after_mb = statistics.median(resident_mb for _, resident_mb in taken)
            figures.append(Figure("resident, after a request, all", after_mb, "MB"))
    return figures


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5, help="launches of each kind")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    begun_s, load = time.monotonic(), os.getloadavg()[0]
    figures = asyncio.run(measure(options.runs))
    if options.json:
        print(json.dumps({f"{name} ({unit})": round(value, 3) for name, value, unit, _ in figures}))
        return 0
    show(figures)
    print(
        f"load average {load:.2f} before, {os.getloadavg()[0]:.2f} after; "
        f"{time.monotonic() - begun_s:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
