"""Processor time of one plain message, by package and by function: `make profile`, or
`python -m tests.tools.profiler [CHECKOUT]`. Nothing is limited.

`cProfile` in the event loop's thread, while messages are said one at a time. It makes each call
dearer, and sees nothing of the database's thread.
"""

import asyncio
import collections
import cProfile
import pstats
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.tools.watched import ROOT, run_child, watched

WARM_UP = 20
MESSAGES = 300
FUNCTIONS = 40
"""Functions that are listed."""
OURS: Final = ("gateway/", "channels/", "agent/")


def run_profiled(checkout: Path) -> None:
    """Run the gateway of a checkout in this process, and profile it while it is told to."""
    sys.path.insert(0, str(checkout))
    profile = cProfile.Profile(time.thread_time)

    def end() -> object:
        profile.disable()
        stats: Any = pstats.Stats(profile)
        return [
            (file.removeprefix(f"{checkout}/"), name, own_s, whole_s)
            for (file, _, name), (_, _, own_s, whole_s, _) in stats.stats.items()
        ]

    run_child(profile.enable, end)


def package_of(file: str) -> str:
    """Return the package of a function: two levels of ours, one of others'."""
    if file.startswith(OURS):
        return "/".join(Path(file).with_suffix("").parts[:2])
    found = re.search(r".*/(?:site-packages|python3\.\d+)/([^/.]+)", file)
    return found[1] if found else "(built in)"


async def profile(checkout: Path) -> None:
    """Say the messages, and print what each of them took."""
    async with watched("tests.tools.profiler", checkout) as gateway:
        for number in range(WARM_UP):
            await gateway.ask("how is the build?", f"alice{number}")
        await gateway.begin()
        for number in range(MESSAGES):
            await gateway.ask(f"how is build {number}?", f"alice{number % 50}")
        found = await gateway.end()
    packages = collections.Counter[str]()
    for file, _, own_s, _ in found:
        packages[package_of(file)] += own_s
    print(f"ms of each message, of {MESSAGES}\n{'package':64}    own")
    for name, own_s in (*packages.most_common(30), ("all", packages.total())):
        print(f"{name:64}{own_s * 1000 / MESSAGES:7.2f}")
    ours = [one for one in found if one[0].startswith(OURS)]
    print(f"\n{'function of ours':64}    own   with what it calls")
    for file, name, own_s, whole_s in sorted(ours, key=lambda one: -one[3])[:FUNCTIONS]:
        print(
            f"{f'{file} {name}':64}{own_s * 1000 / MESSAGES:7.2f}{whole_s * 1000 / MESSAGES:7.2f}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_profiled(Path(sys.argv[2]))
    else:
        asyncio.run(profile(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT))
