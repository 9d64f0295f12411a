"""Three scripted days of life, as `tests/life` judges them: `python -m tests.bench.bench_life
[DAY ...] [--transcript]`.

Prints which rules hold, what was said unasked, and what it costs. Nothing is asserted.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.life import test_community, test_developer, test_family
from tests.life.judge import Day, report
from tests.life.world import live

DAYS = {"community": test_community, "family": test_family, "developer": test_developer}


def transcript(day: Day) -> Iterator[str]:
    """What people saw, and between it what the model was asked and did."""
    said = [(one.at, f"{one}") for one in day.said]
    asked = [
        (one.at, f"    [{one.place}] {one.answer.text!r} {[call[1:] for call in one.answer.calls]}")
        for one in day.requests
    ]
    for _, line in sorted([*said, *asked], key=lambda one: one[0]):
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("days", nargs="*", choices=[*DAYS, []])
    parser.add_argument("--transcript", action="store_true")
    asked = parser.parse_args()
    for name in asked.days or DAYS:
        with tempfile.TemporaryDirectory() as folder:
            day = live(DAYS[name].SETTING, DAYS[name].SCENES, Path(folder), begin="07:00")
        if asked.transcript:
            print("\n".join(transcript(day)))
        print("\n".join(report(name, day, DAYS[name].RULES)))


if __name__ == "__main__":
    main()
