"""What counting tokens costs: memory, the event loop's time, and each new and known text."""

import asyncio
import sys
import time
from pathlib import Path

from agent.models.base import ModelMessage, ModelRequest
from agent.tokens.counter import OfflineCounter, TokenMeter
from tests.agent.tokens.memory_probe import resident_mb
from tests.kits.models import assistant, request, user

sys.path.insert(0, str(Path(__file__).parents[2]))

MESSAGES = 3_000
"""As many as fill the share of a 200,000 token window that the past may take."""
ROUNDS = 200


def past() -> list[ModelMessage]:
    line = "does anybody know how this works, and why it does not when it rains?"
    pairs = (
        (user(f"[12:{n % 60:02}] alice: {n}: {line}"), assistant(f"{n}: It depends.")) for n in range(MESSAGES // 2)
    )
    return [said for pair in pairs for said in pair]


async def load(counter: OfflineCounter) -> tuple[float, float]:
    """Seconds until the ranks are there, and the longest that the loop stood still meanwhile."""
    begun = last = time.perf_counter()
    worst = 0.0
    while counter.method == "heuristic":
        counter.count("x")
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        worst, last = max(worst, now - last), now
    return last - begun, worst


def timed(meter: TokenMeter, asked: ModelRequest) -> float:
    begun = time.perf_counter()
    meter.estimate("m-1", asked)
    return time.perf_counter() - begun


def main() -> None:
    before = resident_mb()
    counter = OfflineCounter(load_after_s=0)
    took, worst = asyncio.run(load(counter))
    print(f"loading: {took * 1000:.0f} ms in a thread, of which the loop stands still {worst * 1000:.0f} ms")
    print(f"memory: {resident_mb() - before:+.1f} MB, from {before:.1f} MB")
    meter, told = TokenMeter(counter), past()
    first = timed(meter, request(*told, user("?")))
    again = sorted(timed(meter, request(*told, assistant(f"new {n}"), user(f"newer {n}"))) for n in range(ROUNDS))
    tokens = meter.estimate("m-1", request(*told, user("?"))).tokens
    print(f"a request of {MESSAGES} messages, {tokens} tokens: first {first * 1000:.1f} ms,")
    print(f"  with two more each time p50 {again[ROUNDS // 2] * 1000:.2f} ms, p99 {again[-3] * 1000:.2f} ms")
    for name, text in (("of prose", "The quick brown fox. " * 50_000), ("of one letter", "a" * 1_000_000)):
        begun = time.perf_counter()
        counter.count(text)
        print(f"a megabyte {name}: {(time.perf_counter() - begun) * 1000:.1f} ms")
    counter.close()


if __name__ == "__main__":
    main()
