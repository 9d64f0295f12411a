"""What may change while the gateway runs."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from gateway.clock import ManualClock
from gateway.counting import Counting
from gateway.live import Live, Switches
from gateway.settings_load import load

CONFIG = """\
channels: {}
agents:
  - {id: ana, bindings: [{match: {room: garden}}], context_optimization: {prompt_cache: %s}}
  - {id: bob}
llm:
  providers: {s: {kind: scripted}}
  models: {main: {provider: s}}
  context_optimization: {prompt_cache: {enabled: %s}, workspace_cache: {enabled: false}}
ops: {port: %s}
"""


def write(directory: Path, *, own: str = "true", general: str = "true", port: str = "0") -> None:
    """As an editor does: a new file in the old one's place."""
    new = directory / "reverie.yaml.new"
    new.write_text(CONFIG % (own, general, port))
    new.replace(directory / "reverie.yaml")


def live(directory: Path) -> Live:
    return Live(load(directory, {}), directory, {})


def test_an_agents_own_word_counts_before_the_general_one(tmp_path: Path) -> None:
    write(tmp_path, own="true", general="false")
    now = live(tmp_path)
    assert now.switches("ana") == Switches(
        prompt_cache=True, compaction=False, token_counter=True, workspace_cache=False
    )
    assert not now.switches("bob").prompt_cache
    assert now.switches("nobody") == now.switches("bob")


def test_a_change_counts_from_the_next_look_on(tmp_path: Path) -> None:
    async def story() -> None:
        write(tmp_path)
        now = live(tmp_path)
        write(tmp_path, own="false")
        assert now.switches("ana").prompt_cache
        await now.refresh()
        assert (now.switches("ana").prompt_cache, now.switches("bob").prompt_cache) == (False, True)

    asyncio.run(story())


def test_a_broken_file_changes_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        write(tmp_path)
        now = live(tmp_path)
        write(tmp_path, own="perhaps")
        await now.refresh()
        await now.refresh()
        assert now.switches("ana").prompt_cache
        (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert "reverie.yaml:3" in said
        write(tmp_path, own="false")
        await now.refresh()
        assert not now.switches("ana").prompt_cache

    asyncio.run(story())


def test_what_needs_a_restart_is_named_and_the_rest_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        write(tmp_path)
        now = live(tmp_path)
        write(tmp_path, general="false", port="9100")
        await now.refresh()
        assert not now.switches("bob").prompt_cache
        assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
            "changed, but only after a restart: ops"
        ]

    asyncio.run(story())


def test_a_directory_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        directory = tmp_path / "config"
        directory.mkdir()
        write(directory)
        now = live(directory)
        directory.rename(tmp_path / "away")
        await now.refresh()
        assert now.switches("ana").prompt_cache
        (tmp_path / "away").rename(directory)
        await now.refresh()
        assert now.switches("ana").prompt_cache

    asyncio.run(story())


def test_a_knob_that_is_read_once_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        write(tmp_path)
        now = live(tmp_path)
        file = tmp_path / "reverie.yaml"
        file.write_text(file.read_text().replace("{enabled: false}", "{enabled: false, watch_debounce_ms: 5}"))
        await now.refresh()
        assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
            "changed, but only after a restart: llm.context_optimization.workspace_cache.watch_debounce_ms"
        ]

    asyncio.run(story())


def test_a_file_that_is_gone_while_it_is_read_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        write(tmp_path)
        now = live(tmp_path)
        os.mkfifo(tmp_path / "key")  # who reads it waits, and so does all that reads it
        text = (CONFIG % ("false", "true", "0")).replace("kind: scripted", 'kind: anthropic, api_key: "${file:key}"')
        (tmp_path / "reverie.yaml").write_text(text.replace("{provider: s}", "{provider: s, name: claude-sonnet-5-5}"))
        looking = asyncio.create_task(now.refresh())
        key = await asyncio.to_thread(os.open, tmp_path / "key", os.O_WRONLY)
        (tmp_path / "key").unlink()
        os.write(key, b"secret")
        os.close(key)
        async with asyncio.timeout(20):
            await looking
        assert now.switches("ana").prompt_cache

    asyncio.run(story())


def test_a_counter_that_is_switched_on_later_is_asked(tmp_path: Path) -> None:
    def counter(backend: str) -> None:
        text = (CONFIG % ("true", "true", "0")).replace("kind: scripted", "kind: anthropic, api_key: none")
        text = text.replace("{provider: s}", "{provider: s, name: claude-sonnet-5-5}")
        knobs = f"token_counter: {{backend: {backend}}}, workspace_cache: {{enabled"
        text = text.replace("workspace_cache: {enabled", knobs)
        (tmp_path / "reverie.yaml").write_text(text)

    async def story() -> None:
        counter("tiktoken")
        now = live(tmp_path)
        counting, llm = Counting(now, ManualClock()), load(tmp_path, {}).llm
        assert counting.endpoint("s", llm.providers["s"]) is None
        counter("auto")
        await now.refresh()
        assert counting.endpoint("s", llm.providers["s"]) is not None
        await counting.aclose()

    asyncio.run(story())
