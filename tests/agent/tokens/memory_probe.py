"""Memory, modules and sockets that counting uses in a process of its own."""

import sys
from pathlib import Path


def run() -> dict[str, object]:
    """Count once, and tell what happened."""
    network: list[str] = []
    sys.addaudithook(
        lambda event, _: network.append(event) if event.startswith(("socket.", "urllib.")) else None
    )
    resident = []
    from agent.tokens.counter import OfflineCounter  # noqa: PLC0415 - watched from here on

    resident.append(resident_mb())
    counter = OfflineCounter(load_after_s=0)
    resident.append(resident_mb())
    counter.choose()
    counter.wait_loaded()
    count = counter.choose()("hello world")
    resident.append(resident_mb())
    counter.close()
    return {
        "network": network,
        "imported": [
            name for name in ("tiktoken", "requests", "regex", "httpx") if name in sys.modules
        ],
        "count": count,
        "resident_mb": resident,
    }


def resident_mb() -> float:
    line = next(
        one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024
