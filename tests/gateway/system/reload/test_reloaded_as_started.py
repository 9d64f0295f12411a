"""A gateway that has read its configuration again is like one that was started with it, key by
key."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.console import ConsoleChannel
from gateway import app
from gateway.config.loader import read_config
from gateway.config.models import Settings
from gateway.config.reload import RESTART_KEYS, LiveSettings, compare_settings, effective_settings
from gateway.config.secrets import collect_secrets
from gateway.core.clock import ManualClock
from gateway.core.redaction import Redactor
from gateway.runtime.models import open_model_services
from gateway.store import Store
from tests.gateway.system.reload.config_pairs import document, held, leaves, said
from tests.kits.gateway import CONSOLE
from tests.kits.tasks import LooseTasks

LEAVE = frozenset(
    {
        # not of the settings: the clock, tasks, the store, files of the process beside it
        *(
            "clock",
            "_clock",
            "tasks",
            "_tasks",
            "store",
            "_store",
            "_store_path",
            "reader",
            "_reader",
        ),
        *("process", "_process", "_control"),
        # what came of the reading, and what it has set going
        *("_warned", "_later", "_read", "_trace", "_save_task", "_reported_level", "presence"),
        # follows the settings at its next use
        "_buckets",
        # what was secret once stays so
        *("redactor", "_redactor", "_secret_listeners", "(redactor)"),
    }
)
ADAPTERS = "channels.*."
"""Channels that come, go and change have tests of their own; here is one that is given, and its
rooms."""


def settings(directory: Path, *, second: bool) -> Settings:
    (directory / "reverie.yaml").write_text(json.dumps(document(second)))
    (directory / "reverie.yaml").chmod(0o600)
    return read_config(directory, {}).settings


@contextlib.asynccontextmanager
async def gateway(live: LiveSettings, path: Path) -> AsyncIterator[app._Gateway]:
    """Wired, and not begun."""
    clock = ManualClock()
    async with (
        open_model_services(live, clock, model=None) as equipment,
        await Store.open(path, clock) as store,
    ):
        yield app._Gateway(
            store=store,
            clock=clock,
            channels={CONSOLE: ConsoleChannel(CONSOLE, lambda _: None, now=clock.now)},
            make=None,
            model_services=equipment,
            states={},
            chosen={},
            redactor=Redactor(collect_secrets(live.settings)),
            tasks=LooseTasks(),
        )


async def twins(
    folder: Path, deaf: int | None = None
) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Where one that reloaded does not hold what one does that was started so. `deaf`: a taker that
    is not told."""
    first = settings(folder, second=False)
    live = LiveSettings(first, folder, {})
    async with gateway(live, folder / "a.db") as one:
        if deaf is not None:
            del live._listeners[deaf]
        second = settings(folder, second=True)
        assert await live.reload() == compare_settings(first, second)
        reloaded = held(one, leave=LEAVE)
    async with gateway(
        LiveSettings(effective_settings(first, second), folder, {}), folder / "b.db"
    ) as other:
        started = held(other, leave=LEAVE)
    assert len(started) > 1_000
    wrong = [
        path for path in reloaded.keys() | started.keys() if reloaded.get(path) != started.get(path)
    ]
    return {path: reloaded.get(path) for path in wrong}, {path: started.get(path) for path in wrong}


def test_a_gateway_that_reloaded_holds_what_one_holds_that_was_started_so(tmp_path: Path) -> None:
    reloaded, started = asyncio.run(twins(tmp_path))
    assert reloaded == started == {}


def test_whoever_is_not_told_is_found_out(tmp_path: Path) -> None:
    async def story() -> list[bool]:
        live = LiveSettings(settings(tmp_path, second=False), tmp_path, {})
        async with gateway(live, tmp_path / "count.db"):
            count = len(live._listeners)
        return [(await twins(tmp_path, deaf))[0] != {} for deaf in range(count)]

    found = asyncio.run(story())
    assert len(found) >= 3
    assert all(found)


def test_the_two_differ_in_every_key(tmp_path: Path) -> None:
    """A new key has to be written into `reload_twins.document`, and is held to all of this then."""
    first, second = (said(settings(tmp_path, second=second)) for second in (False, True))
    spoken: dict[str, tuple[list[object], list[object]]] = {}
    for place, some in enumerate((first, second)):
        for key, value in some:
            spoken.setdefault(key, ([], []))[place].append(value)
    keys = {key for key in leaves() if not key.startswith(ADAPTERS)} | {"channels.*.rooms"}
    assert {key for key, (one, other) in spoken.items() if one != other} == keys - {"agents.*.id"}


def test_every_key_counts_at_once_or_after_a_restart_and_says_which(tmp_path: Path) -> None:
    first, second = settings(tmp_path, second=False), settings(tmp_path, second=True)
    now = dict_of(effective_settings(first, second))
    for key, values in dict_of(second).items():
        waits = any(fits(key, pattern) for pattern in RESTART_KEYS)
        assert now[key] == (dict_of(first)[key] if waits else values), key
    came = compare_settings(first, second)
    assert all(any(fits(key, pattern) for pattern in RESTART_KEYS) for key in came.after_restart)
    assert not any(any(fits(key, pattern) for pattern in RESTART_KEYS) for key in came.applied)


@pytest.mark.parametrize("pattern", RESTART_KEYS)
def test_each_key_that_needs_a_restart_is_one_and_has_a_reason(pattern: str) -> None:
    assert any(fits(key, pattern) for key in leaves())
    assert RESTART_KEYS[pattern].strip()


def dict_of(made: Settings) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for key, value in said(made):
        found.setdefault(key, []).append(value)
    return found


def fits(key: str, pattern: str) -> bool:
    parts, wanted = key.split("."), pattern.split(".")
    same = all(part in (one, "*") or one == "*" for one, part in zip(wanted, parts, strict=False))
    return same and len(parts) >= len(wanted)
