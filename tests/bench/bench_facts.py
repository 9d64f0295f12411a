"""By which ways facts are found after three compactions: `python -m tests.bench.bench_facts [--local]`.

They are planted early by people, files, the journal and the agent itself
(`tests/gateway/system/long_run/planted_facts.py`).
The summariser is scripted and keeps every other fact. With `--local` the embedded model summarises a little talk in
its place, and is asked for each fact with what the gateway would tell it: a demonstration, printed only.
"""

import argparse
import asyncio
import tempfile
from contextlib import aclosing
from pathlib import Path

from agent.models.base import Model, ModelMessage, ModelRequest, SystemBlock, TextPart
from agent.models.local import LocalModel
from tests.gateway.system.long_run.planted_facts import FACTS, Kept, keep


async def scripted() -> Kept:
    """The whole story."""
    with tempfile.TemporaryDirectory() as folder:
        return await keep(Path(folder))


async def say(model: Model, system: str, text: str, tokens: int) -> str:
    """One answer."""
    request = ModelRequest(
        blocks=(SystemBlock(name="identity", text=system, ttl="long"),),
        conversation=(ModelMessage(role="user", parts=(TextPart(text=text),)),),
        max_output_tokens=tokens,
        shared_key="facts",
        conversation_id="facts",
    )
    said = list[str]()
    async with aclosing(model.stream(request)) as chunks:
        async for chunk in chunks:
            said += [chunk.text] if isinstance(chunk, TextPart) else []
    return "".join(said).strip()


async def demonstrated(kept: Kept) -> str:
    """What the embedded model makes of it."""
    model = LocalModel(name="local", context_tokens=4_096, max_output_tokens=300, timeout_s=300)
    try:
        await model.start()
        talk = "\n".join(f"ann: {fact.told}." for fact in FACTS)
        summary = await say(model, "You summarise talk.", f"{talk}\n\nSummarise this, with all names and numbers.", 300)
        lines = [f"\nthe embedded model, {model.label}; of {len(FACTS)} facts its own summary keeps"]
        lines[0] += f" {sum(fact.value in summary for fact in FACTS)}"
        for fact in FACTS:
            told = kept.found[fact.value][-3_000:]
            answer = await say(model, "Answer in a few words from what you are told.", f"{told}\n\n{fact.asked}", 40)
            lines.append(f"{fact.asked:44}{'right' if fact.value in answer else 'wrong':7}{answer[:60]!r}")
        return "\n".join(lines)
    finally:
        await model.aclose()


async def run(*, local: bool) -> None:
    kept = await scripted()
    print(f"{kept.compactions} compactions in {kept.turns + len(FACTS)} turns\n{kept.table()}")
    if local:
        print(await demonstrated(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local", action="store_true")
    asyncio.run(run(local=parser.parse_args().local))


if __name__ == "__main__":
    main()
