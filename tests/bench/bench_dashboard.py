"""The dashboard: how soon something is seen, and what looking on costs while events come fast.

`python tests/bench/bench_dashboard.py [--loads 9] [--seconds 10] [--rate 100] [--days 0.3]`. A real gateway on a
simulated stretch, a real Chromium. First paint is the browser's own entry (https://w3c.github.io/paint-timing/), on a
new page each time; `shown` is when every panel has been read. The live view: the same messages come in without a page
and with one, and the processor time of the gateway's thread is compared; `--rate` counts what the stream tells, and
twice as much is measured, too. Ends with an error if a promise is not kept.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession

from tests.kits.dashboard import IRC, House, Tab, chromium, house, tab

sys.path.insert(0, str(Path(__file__).parents[2]))

PAINT_MS = 300.0
CPU_SHARE = 0.02
PERIOD_S = 0.1
EVENTS_EACH = 2
"""That the stream tells of a message which is only overheard: the message, and its fate."""
ROUNDS = 3
MOST_ROWS = 502
"""And the button below."""


def paints(opened: Tab) -> tuple[float, float]:
    """First contentful paint, and when all was shown, in ms since the navigation began."""
    found = opened.page.evaluate(
        "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
        " performance.getEntriesByName('reverie-shown')[0].startTime]"
    )
    return float(found[0]), float(found[1])


async def traffic(made: House, rate: float, seconds: float) -> int:
    """Overheard talk, as evenly as a timer can: nothing of it asks the model. The number of messages."""
    town, begun, count = made.towns[IRC], time.monotonic(), 0
    batch = max(1, round(rate * PERIOD_S))
    while time.monotonic() - begun < seconds:
        await asyncio.gather(
            *(town.receive_message(f"talk {count + one}", sender=f"p{one}", room="#one") for one in range(batch))
        )
        count += batch
        await asyncio.sleep(max(0.0, count / rate - (time.monotonic() - begun)))
    return count


def measured(made: House, story: Coroutine[Any, Any, int]) -> tuple[float, float, int]:
    """Seconds of processor and of the clock that the gateway's thread took, and the number of messages."""

    async def timed() -> tuple[float, float, int]:
        cpu, wall = time.thread_time(), time.monotonic()
        count = await story
        return time.thread_time() - cpu, time.monotonic() - wall, count

    return made.run(timed())


def renderer_s(session: CDPSession) -> float:
    """Seconds of processor that the main thread of the page's process has taken, as `Performance.getMetrics` says."""
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def first_paint(made: House, loads: int) -> bool:
    """Prints how soon a page is seen, and whether that is soon enough."""
    found: list[tuple[float, float]] = []
    with chromium() as browser:
        for _ in range(loads + 1):
            with tab(browser) as opened:
                opened.open(made.address)
                found.append(paints(opened))
    cold, warm = found[0], found[1:]
    paint = statistics.median(one for one, _ in warm)
    shown = statistics.median(one for _, one in warm)
    print(f"first paint      {paint:6.0f} ms  (median of {loads} new pages; the browser's first {cold[0]:.0f} ms)")
    print(f"every panel read {shown:6.0f} ms  (the browser's first {cold[1]:.0f} ms)")
    return paint < PAINT_MS


def live_view(made: House, messages: float, seconds: float) -> float:
    """Prints what one open page costs while so many messages come in per second. The gateway's share of a core."""
    added, drawn, heard = list[float](), list[float](), list[float]()
    with chromium() as browser:
        for _ in range(ROUNDS):
            alone, wall, _count = measured(made, traffic(made, messages, seconds))
            with tab(browser) as opened:
                opened.open(made.address)
                opened.page.wait_for_timeout(1_500)
                session = opened.context.new_cdp_session(opened.page)
                session.send("Performance.enable", {"timeDomain": "threadTicks"})
                before = renderer_s(session)
                seen, wall_seen, count = measured(made, traffic(made, messages, seconds))
                drawn.append((renderer_s(session) - before) / wall_seen)
                assert opened.page.locator("#stream > li").count() <= MOST_ROWS
            added.append(seen / wall_seen - alone / wall)
            heard.append(count * EVENTS_EACH / wall_seen)
    figure = statistics.median(added)
    print(
        f"live view, {statistics.median(heard):3.0f} events/s: adds {figure:5.1%} of a core to the gateway"
        f" ({min(added):.1%} to {max(added):.1%}); the page's own process takes {statistics.median(drawn):5.1%}"
    )
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--days", type=float, default=0.3)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, house(Path(folder), days=said.days) as made:
        soon = first_paint(made, said.loads)
        measured(made, traffic(made, said.rate, 2.0))  # what is loaded once
        cheap = live_view(made, said.rate / EVENTS_EACH, said.seconds) < CPU_SHARE
        live_view(made, said.rate, said.seconds)
    return 0 if soon and cheap else 1


if __name__ == "__main__":
    sys.exit(main())
