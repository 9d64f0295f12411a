"""A recorded hour: six rooms and eight direct chats on three platforms, played through the whole gateway
against a strict fake of the Messages API that bills caches: `python -m tests.bench.bench_hour`.

`hour.tsv` has what people said. Time is simulated; the persona and the tools are those that a new agent has.
"""

import asyncio
import csv
import tempfile
from pathlib import Path
from typing import NamedTuple

from agent.tokens.counter import load_tokenizer
from gateway.core.clock import ManualClock
from reverie.testing.gateway import PLATFORMS, Gateway, on_platforms
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.bench.bench_cache import BEGIN, MODEL, Sent, asked, best, cost_of, sent, until
from tests.bench.gateway_kit import Figure, show

HOUR = Path(__file__).with_name("hour.tsv")
ANSWERS = (
    "Yes, that works.",
    "It takes about forty minutes; look at it after thirty, and turn it once.",
    "I would begin with the second one: it is shorter, and the first builds on it.",
)


class Hour(NamedTuple):
    addressed: int
    answered: int
    input_tokens: int
    read_tokens: int
    units: float
    """Input tokens, each weighed by what it cost: 1 is one that was neither read nor written."""
    bound: float
    """Fewest units for which the same requests could have been had, with all of them known."""
    prefix_tokens: int
    """What all conversations share."""


async def play(folder: Path) -> Hour:
    clock, encoding = ManualClock(BEGIN), load_tokenizer()
    cache = MessagesCache(lambda text: len(encoding.encode_ordinary(text)))
    async with ModelApi(cache=cache, clock=clock.monotonic) as api:
        api.default = lambda body: Answer(text=ANSWERS[len(str(body)) % len(ANSWERS)])
        llm = {
            "providers": {"anthropic": {"kind": "anthropic", "base_url": api.url, "api_key": "k"}},
            "models": {"main": {"provider": "anthropic", "name": MODEL}},
        }
        rows = _rows()
        rooms = {name: sorted({row["room"] for row in rows} - {""}) for name in PLATFORMS}
        channels = {name: {"platform": "console", "rooms": rooms[name]} for name in PLATFORMS}
        settings = on_platforms(folder, channels=channels, llm=llm, attention={"coalesce": 0})
        addressed = 0
        async with Gateway(settings, clock=clock) as gateway:
            for row in rows:
                await until(clock, float(row["second"]), step_s=1e9)
                is_to_us = not row["room"] or row["text"].startswith("reverie")
                addressed += is_to_us
                say = gateway.ask if is_to_us else gateway.say
                await say(
                    row["text"], sender=row["who"], room=row["room"] or None, on=row["channel"]
                )
            answered = len(gateway.screen.parts)
        return _judge(asked(sent(api)), addressed, answered)


def _rows() -> list[dict[str, str]]:
    with HOUR.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def _judge(requests: list[Sent], addressed: int, answered: int) -> Hour:
    cost, units, read, total = cost_of(MODEL), 0.0, 0, 0
    for usage in (one.ticket.usage for one in requests):
        units += usage.input_tokens + usage.cache_read_input_tokens * cost.read
        units += usage.ephemeral_5m_input_tokens * cost.write_5m
        units += usage.ephemeral_1h_input_tokens * cost.write_1h
        read, total = read + usage.cache_read_input_tokens, total + usage.total
    shared = [prefix for prefix in requests[0].ticket.path if prefix in requests[-1].ticket.path]
    bound, prefix = best(requests, cost), shared[-1].tokens
    return Hour(addressed, answered, total, read, units, bound, prefix)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        hour = asyncio.run(play(Path(folder)))
    show(
        [
            Figure(
                "addressed messages that were answered", hour.answered / hour.addressed, "", "1"
            ),
            Figure(
                "input read from the cache", hour.read_tokens / hour.input_tokens, "", ">= 0.96"
            ),
            Figure("cost over the bound", hour.units / hour.bound, "", "<= 1.05"),
            Figure(
                "input tokens for each addressed message", hour.input_tokens / hour.addressed, ""
            ),
            Figure("units for each answer", hour.units / hour.answered, "units", "<= 380"),
            Figure("prefix of all conversations", hour.prefix_tokens, "tokens", "<= 1,800"),
        ]
    )


if __name__ == "__main__":
    main()
