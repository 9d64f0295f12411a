"""Reloads at random under traffic on three platforms: `python tests/bench/bench_reload.py [--reloads N] [--json]`.

Prints what was changed, how many lines were said (each must be answered exactly once), how long the slowest waited, and
what the gateway's process held after the first hundred reloads and at the end.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.gateway.system.reload.reload_kit import play

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--reloads", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="for programs")
    said = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        told = asyncio.run(play(Path(directory), said.reloads, said.seed))
    if said.json:
        held = {"before": told.before, "after": told.after}
        print(json.dumps({"reloads": told.reloads, "lines": told.lines, "slowest_s": told.slowest_s} | held))
    else:
        print(told)
        print(f"in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
