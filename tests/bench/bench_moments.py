"""How a model behaves in sixty room moments, through a whole gateway: `python tests/bench/bench_moments.py [--json]`.

Two models: the stand-in for a large one, which does by the letter what the request says
(`tests/kits/prompt_reader.py`), and the embedded one. To judge the prompt of an older checkout, copy this file,
`moments.yaml`, `tests/kits/moments.py`, `tests/kits/prompt_reader.py` and `tests/attacks/world.py` into it and run it
there.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.models.base import Model, ModelRequest
from agent.prompt import SHARED_BLOCKS
from agent.tokens.counter import load_tokenizer
from tests.kits.moments import KINDS, Verdict, load_moments, play
from tests.kits.prompt_reader import PromptReader

MODELS = ("reader", "embedded")


async def measure(model: Model | None, *, only: str = "") -> list[Verdict]:
    """Play the moments. `model` None: the embedded one."""
    moments = [one for one in load_moments() if only in one.name]
    with tempfile.TemporaryDirectory(prefix="reverie-bench-") as folder, pytest.MonkeyPatch.context() as patch:
        return await play(moments, model, Path(folder), patch, at_once=len(moments) if model is not None else 2)


def count(verdicts: Sequence[Verdict]) -> dict[str, tuple[int, int]]:
    """Return by kind how many were right, and how many there are."""
    of_kind = {kind: [one for one in verdicts if one.moment.expect.kind == kind] for kind in KINDS}
    return {kind: (sum(not one.wrong for one in some), len(some)) for kind, some in of_kind.items()}


def sizes(requests: Sequence[ModelRequest]) -> dict[str, float]:
    """Return tokens (cl100k) of what all conversations share, and of the median request with it."""
    encoding = load_tokenizer()

    def tokens(*texts: str) -> int:
        return sum(len(encoding.encode(text)) for text in texts)

    first = requests[0]
    shared = [block.text for block in first.blocks if block.name in SHARED_BLOCKS]
    tools = tokens(*(f"{one.name} {one.description} {one.schema}" for one in first.tools))
    said = [
        tokens(
            *(block.text for block in one.blocks if block.name not in SHARED_BLOCKS),
            *(getattr(part, "text", "") for message in one.conversation for part in message.parts),
            one.aside,
            one.now,
        )
        for one in requests
    ]
    prefix = tokens(*shared)
    return {"tools": tools, "identity and skills": prefix, "median request": tools + prefix + statistics.median(said)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, help="this one only")
    parser.add_argument("--only", default="", help="moments whose name has this in it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = (options.model,) if options.model else MODELS
    reader = PromptReader()
    found = {name: asyncio.run(measure(reader if name == "reader" else None, only=options.only)) for name in names}
    if options.json:
        print(json.dumps({name: count(verdicts) for name, verdicts in found.items()}))
        return 0
    if reader.requests:
        print("tokens: " + ", ".join(f"{what} {size:.0f}" for what, size in sizes(reader.requests).items()))
    for name, verdicts in found.items():
        counts = count(verdicts)
        right, all_of = (sum(one) for one in zip(*counts.values(), strict=True))
        print(
            f"{name}: {right} of {all_of} right; " + ", ".join(f"{kind} {a} of {b}" for kind, (a, b) in counts.items())
        )
        for one in verdicts:
            if one.wrong:
                calls = "".join(f" [{call} {given}]" for call, given in one.outcome.calls)
                print(f"  {one.moment.name}: {one.wrong}; posted {one.outcome.shown!r}{calls}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
