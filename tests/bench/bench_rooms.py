"""How long people wait when many rooms ask at once: `python -m tests.bench.bench_rooms [--rooms N]`.

A gateway in this process, over a loopback model API whose answers take 1 s. Printed are the median and
the longest wait, for a provider that takes all requests and for one that takes 8 at the same time and
refuses the others (429).
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from gateway.config.loader import parse_config
from reverie.testing.gateway import IRC, UNBOUNDED, UNHURRIED, Gateway
from reverie.testing.servers.model_api import Answer, Json, ModelApi, failure
from tests.bench.gateway_kit import Figure, show

ANSWER, ANSWER_S = "Yes.", 1.0


class Provider:
    """Answers of a provider that takes so many requests at the same time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.refused = 0
        self._ends_s: list[float] = []

    def __call__(self, _: Json) -> Answer:
        now_s = time.monotonic()
        self._ends_s = [end_s for end_s in self._ends_s if end_s > now_s]
        if len(self._ends_s) >= self.most:
            self.refused += 1
            return failure(429, "rate_limit_error")
        self._ends_s.append(now_s + ANSWER_S)
        return Answer(text=ANSWER, delay_s=ANSWER_S)


async def waits(rooms: int, provider: Provider, folder: Path) -> list[float]:
    """The seconds that each room has waited, shortest first."""
    names = [f"#room{number}" for number in range(rooms)]
    async with ModelApi() as api:
        api.default = provider
        given = {
            "channels": {IRC: {"platform": "console", "rooms": names}},
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"p": {"kind": "anthropic", "base_url": api.url, "api_key": "k"}},
                "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
                "context_optimization": {"token_counter": {"enabled": False}},
            },
            "access": {"dm": "open", "rates": UNHURRIED, "budgets": UNBOUNDED},
            "attention": {"coalesce": 0},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        }
        async with Gateway(parse_config(given, folder)) as gateway:
            await gateway.ask("reverie, hello", sender="ann", room=names[0])  # fills the cache
            first, began_s, took_s = (
                len(gateway.screen.parts),
                dict[str, float](),
                dict[str, float](),
            )
            for room in names:
                began_s[room] = time.monotonic()
                await gateway.say("reverie, hello", sender=f"of {room}", room=room)
            while len(took_s) < rooms:
                await asyncio.sleep(0.005)
                for part in gateway.screen.parts[first:]:
                    if part.body == ANSWER:
                        took_s.setdefault(part.to.room, time.monotonic() - began_s[part.to.room])
            return sorted(took_s.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", type=int, default=100)
    rooms = parser.parse_args().rooms
    figures = list[Figure]()
    for most in (rooms, 8):
        provider = Provider(most)
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(waits(rooms, provider, Path(folder)))
        takes = f"a provider that takes {most}"
        figures += [
            Figure(f"{takes}: half wait", median(found), "s", "<= 1.5" if most == rooms else ""),
            Figure(f"{takes}: the last", found[-1], "s"),
            Figure(f"{takes}: refused", provider.refused, "requests"),
        ]
    show(figures)


if __name__ == "__main__":
    main()
