"""What the console costs: full panes, a hundred events a second. Prints figures; fails beyond its promises.

`python tests/bench/bench_console.py [SECONDS]`
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from agent.models.http import SseParser
from gateway.cli.console.app import ConsoleApp
from gateway.cli.console.client import GatewayApiClient, parse_event
from gateway.cli.console.pane import MAX_LINES, safe_lines
from tests.kits.console import OWN, event, mind, turn

sys.path.insert(0, str(Path(__file__).parents[2]))

SIZE = (200, 60)
PER_S = 100
CPU_PROMISE = 0.25
"""Of one core, while a hundred events a second come and all panes are full."""
FRAME_PROMISE_MS = 30.0
"""From a key to the next frame."""


def traffic() -> Iterator[bytes]:
    """What a busy gateway tells."""
    for number in itertools.count(1):
        words = f"something that is said, number {number}, with words enough for more than one row " * (number % 3 + 1)
        key = f"t{number // 50}"
        told = {"turn": key, "agent": "reverie", "conversation": OWN, "autonomous": number % 2 == 0}
        match number % 10:
            case 0:
                yield event("tool", **told, call=f"c{number}", name="shell", state="started", arguments='{"a": "b"}')
            case 1:
                result = "\n".join(words for _ in range(5))
                yield event("tool", **told, call=f"c{number - 1}", name="shell", state="ended", result=result)
            case 2:
                yield event("post", number, conversation=OWN, text=words)
            case 3 | 4:
                yield event("notification", number, kind="direct", conversation=OWN, who="ann", text=words, urgency=2)
            case 5:
                yield event("dmn", **mind("foraging" if number % 20 == 5 else "resting"))
            case 6:
                yield event("turn", **turn("ended" if number % 50 == 46 else "started", key=key, autonomous=True))
            case _:
                yield event(
                    "thinking" if number % 10 < 9 else "text", **told, delta=words[:40] + "\n" * (number % 4 == 0)
                )


def fill(app: ConsoleApp) -> float:
    """Ten thousand lines in each pane; seconds per event."""
    source, parser, events, begun = traffic(), SseParser(), 0, time.process_time()
    panes = (app.model.autonomous_pane, app.model.conversation_pane, app.model.tools_pane)
    while any(len(pane.lines) < MAX_LINES for pane in panes):
        for found in parser.feed(next(source)):
            seen = parse_event(found.name, found.data)
            assert seen is not None
            app.model.apply_event(seen)
            events += 1
    return (time.process_time() - begun) / events


async def flow(app: ConsoleApp, seconds: float) -> float:
    """A hundred events a second, ten at once; the share of a core that this took."""
    source, parser, begun, cpu = traffic(), SseParser(), time.perf_counter(), time.process_time()
    for batch in range(int(seconds * 10)):
        data = b"".join(itertools.islice(source, PER_S // 10))
        app.handle_events(
            [seen for found in parser.feed(data) if (seen := parse_event(found.name, found.data)) is not None]
        )
        await asyncio.sleep(max(0.0, begun + (batch + 1) / 10 - time.perf_counter()))
    return (time.process_time() - cpu) / (time.perf_counter() - begun)


async def bench(seconds: float) -> bool:
    begun = time.process_time()
    api = GatewayApiClient("http://127.0.0.1:1", "none is needed")
    app = ConsoleApp(api, "bench")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        start_s = time.process_time() - begun
        per_event = fill(app)
        app.schedule_draw()
        await pilot.pause(0.2)
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds / 2)
        idle = (time.process_time() - cpu) / (time.perf_counter() - wall)
        busy = await flow(app, seconds)
        keys = []
        for key in ("pageup", "pageup", "pagedown", "home", "end") * 4:
            begun = time.process_time()
            await pilot.press(key)
            keys.append(time.process_time() - begun)
        panes = (app.model.autonomous_pane, app.model.conversation_pane, app.model.tools_pane)
        begun = time.process_time()
        for pane in panes:
            pane.resize(61, 20)
        resized = time.process_time() - begun
        begun = time.process_time()
        app.model.autonomous_pane.hide("thinking", hidden=True)
        hidden = time.process_time() - begun
        sizes = [(len(pane.lines), pane.row_count) for pane in panes]
    await api.close()
    safe = time.process_time()
    count = sum(len(safe_lines("wörds and 日本語 " * 10)) for _ in range(2_000))
    safe = (time.process_time() - safe) / count
    median = sorted(keys)[len(keys) // 2]
    figures = {
        "start_cpu_s": round(start_s, 2),
        "panes_lines_rows": sizes,
        "apply_us_per_event": round(per_event * 1e6, 1),
        "idle_cpu": round(idle, 4),
        "cpu_at_100_events_per_s": round(busy, 4),
        "key_to_frame_ms_median": round(median * 1e3, 1),
        "resize_all_panes_ms": round(resized * 1e3, 1),
        "toggle_reasoning_ms": round(hidden * 1e3, 1),
        "safe_line_us": round(safe * 1e6, 1),
    }
    print(json.dumps(figures, indent=2))
    return busy <= CPU_PROMISE and median * 1e3 <= FRAME_PROMISE_MS


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(bench(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)) else 1)
