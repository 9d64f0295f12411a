"""What the embedded model need not read again: real llama.cpp, real weights, an identity of some 600 tokens.

    .venv/bin/python tests/bench/bench_local.py [--repeat 9] [--json]

- A second conversation's first request: tokens read from the cache, of those that it shares with the first.
- Time to first token of the next message after the reply's warm-up, as a ratio to the same message where everything
  in front of it has just been evaluated by a request of its own: no warm-up can do better.
- The same where the message itself was read in before it was asked, as a gateway can while it waits for more of it,
  as a ratio to a prompt that was asked a moment ago, word for word.

Medians over the repetitions. Times are of this machine, just now: what else runs on it counts.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

from agent.models.base import ModelMessage, ModelRequest, StreamEnd, SystemBlock, TextPart
from agent.models.llamacpp import LlamaCppModel
from agent.models.local import LocalModel
from gateway.core.events import Usage

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

IDENTITY = "You are Reverie, a quiet companion in chat rooms.\n\n" + "\n".join(
    f"{number}. When somebody talks about {what}, {how}."
    for number, (what, how) in enumerate(
        itertools.product(
            ("the weather", "bread", "old computers", "music", "a long journey", "mathematics", "a garden", "the news"),
            ("listen first and answer in one sentence", "ask what they have tried", "say so if you do not know"),
        ),
        start=1,
    )
)
"""Realistic in size and form, not in wisdom."""
GREETING = "Hello there, how are you?"
MESSAGES = (
    ("What did you do today?", "Where can we go now?"),
    ("Tell me one thing about bread.", "Give us two facts on music."),
    ("And why is that?", "But how was it?"),
)
"""Each with another of as many tokens, which begins otherwise."""


def request(place: str, *said: ModelMessage, tokens: int = 12) -> ModelRequest:
    blocks = (
        SystemBlock(name="identity", text=IDENTITY, ttl="long"),
        SystemBlock(name="channel", text=f"# Where you are\nPlace: the room {place}", ttl="short"),
    )
    return ModelRequest(
        blocks=blocks, conversation=said, max_output_tokens=tokens, shared_key="reverie", conversation_id=place
    )


def user(text: str) -> ModelMessage:
    return ModelMessage(role="user", parts=(TextPart(text=text),))


async def ask(model: LocalModel, asked: ModelRequest) -> tuple[float, str, Usage]:
    """Return seconds to the first words, the words, and the usage."""
    begun, first, words, usage = time.monotonic(), 0.0, "", Usage()
    async for chunk in model.stream(asked):
        if isinstance(chunk, TextPart):
            first = first or time.monotonic() - begun
            words += chunk.text
        elif isinstance(chunk, StreamEnd):
            usage = chunk.usage
    return first, words.strip() or "Well.", usage


def client(model: LocalModel) -> LlamaCppModel:
    assert model._client is not None
    return model._client


async def settled(model: LocalModel) -> None:
    """Wait for the warm-up behind a reply: people take longer to write."""
    while client(model)._preloader._task is not None:
        await asyncio.sleep(0.005)


async def tokens(model: LocalModel, asked: ModelRequest) -> list[object]:
    service = client(model)._service
    prompt = await service._post("/apply-template", {"messages": client(model)._chat.build_body(asked)["messages"]})
    written = {"content": prompt["prompt"], "add_special": True, "parse_special": True}
    return cast("list[object]", (await service._post("/tokenize", written))["tokens"])


async def shared_tokens(model: LocalModel, one: ModelRequest, other: ModelRequest) -> int:
    pairs = zip(await tokens(model, one), await tokens(model, other), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


async def measure(repeat: int) -> dict[str, float]:
    model = LocalModel(timeout_s=600)
    shares: list[float] = []
    shared = 0
    seconds: dict[str, list[float]] = {name: [] for name in ("warmed", "ideal", "read in", "repeated")}
    try:
        await model.start()
        begun = time.monotonic()
        await ask(model, replace(request(""), blocks=request("").blocks[:1], max_output_tokens=0))
        cold_s = time.monotonic() - begun
        await settled(model)
        first = request("#first", user(GREETING))
        await ask(model, first)
        await settled(model)
        for number in range(repeat):
            place = f"#room{number}"
            said: tuple[ModelMessage, ...] = (user(GREETING),)
            shared = await shared_tokens(model, first, request(place, *said))
            _, words, usage = await ask(model, request(place, *said))
            shares.append(usage.cache_read_tokens / shared)
            await settled(model)
            for message, twin in MESSAGES:
                said = (*said, ModelMessage(role="assistant", parts=(TextPart(text=words),)))
                sizes = [
                    await client(model).count_tokens(request(place, *said, user(text))) for text in (message, twin)
                ]
                assert sizes[0] == sizes[1], (message, twin)
                warmed_s, _, _ = await ask(model, request(place, *said, user(message)))
                ideal_s, _, _ = await ask(model, request(place, *said, user(twin)))
                unasked = request(place, *said, user(GREETING))
                await ask(model, replace(unasked, max_output_tokens=0))
                read_in_s, _, _ = await ask(model, unasked)
                repeated_s, _, _ = await ask(model, unasked)
                for name, taken in zip(seconds, (warmed_s, ideal_s, read_in_s, repeated_s), strict=True):
                    seconds[name].append(taken)
                said = (*said, user(message))
                _, words, _ = await ask(model, request(place, *said))  # the reply that the next warm-up is for
                await settled(model)
    finally:
        await model.aclose()
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "shared_tokens": shared,
        "cold_s": cold_s,
        "share_read": statistics.median(shares),
        "least_share_read": min(shares),
        **{f"{name.replace(' ', '_')}_ms": taken * 1e3 for name, taken in middle.items()},
        "warmed_to_ideal": middle["warmed"] / middle["ideal"],
        "read_in_to_repeated": middle["read in"] / middle["repeated"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    told = asyncio.run(measure(arguments.repeat))
    if arguments.json:
        print(json.dumps(told))
        return
    print(f"{told['shared_tokens']} tokens shared by all rooms, read in once in {told['cold_s']:.1f} s")
    print(f"first request of another room: {told['share_read']:.1%} of them from the cache (promised: 90 %)")
    print(
        f"next message after warm-up: {told['warmed_ms']:.0f} ms to first token, {told['warmed_to_ideal']:.2f} x the "
        f"{told['ideal_ms']:.0f} ms with all in front of it just evaluated (promised: 1.3)"
    )
    print(
        f"read in before it was asked: {told['read_in_ms']:.0f} ms, {told['read_in_to_repeated']:.2f} x the "
        f"{told['repeated_ms']:.0f} ms of a prompt that was asked a moment ago"
    )


if __name__ == "__main__":
    main()
