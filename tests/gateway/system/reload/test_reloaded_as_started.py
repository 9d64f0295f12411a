"""A gateway that has read its configuration again is like one that was started with it, key by
key."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway import app
from gateway.config.loader import ConfigFiles, read_config
from gateway.config.models import Settings
from gateway.config.reload import RESTART_KEYS, LiveSettings, ReloadResult
from gateway.config.secrets import collect_secrets
from gateway.core.clock import ManualClock
from gateway.core.redaction import Redactor
from gateway.runtime.models import open_model_services
from gateway.store import Store
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE
from tests.gateway.system.reload.config_pairs import document, held, leaves, said
from tests.kits.commands import TABLE
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
            "_unsubscribe",
        ),
        *("process", "_process", "_control"),
        # what came of the reading, and what it has set going
        *("_warned", "_later", "_read", "_trace", "_save_task", "_reported_level", "presence"),
        # follows the settings at its next use
        "_buckets",
        # what was secret once stays so
        *("redactor", "_redactor", "secret_listeners", "(redactor)", "_encoded", "_known"),
    }
)
ADAPTERS = "channels.*."
"""Channels that come, go and change have tests of their own; here is one that is given, and its
rooms."""


def settings(directory: Path, *, second: bool, everything: bool = False) -> Settings:
    """`everything`: the second one also has other values for what needs a restart."""
    first, said = document(False), document(second)
    for key in () if everything else RESTART_KEYS:
        _copy(first, said, *key.split("."))
    (directory / "reverie.yaml").write_text(json.dumps(said))
    (directory / "reverie.yaml").chmod(0o600)
    return read_config(directory, {}).settings


def _copy(source: Any, target: Any, name: str, *below: str) -> None:
    if name == "*":
        for one, other in zip(source, target, strict=True):
            _copy(one, other, *below)
    elif below:
        _copy(source[name], target[name], *below)
    elif name in source:
        target[name] = source[name]


@contextlib.asynccontextmanager
async def gateway(live: LiveSettings, path: Path) -> AsyncIterator[app.GatewayServices]:
    """Wired, and not begun."""
    clock = ManualClock()
    async with (
        open_model_services(live, clock, model=None) as equipment,
        await Store.open(path, clock) as store,
    ):
        yield app.GatewayServices(
            commands=TABLE,
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


async def twins(folder: Path) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Where one that reloaded does not hold what one does that was started so."""
    first = settings(folder, second=False)
    live = LiveSettings(first, ConfigFiles(folder, {}))
    async with gateway(live, folder / "a.db") as one:
        second = settings(folder, second=True)
        assert (await live.reload()).applied
        reloaded = held(one, leave=LEAVE)
    async with gateway(LiveSettings(second, ConfigFiles(folder, {})), folder / "b.db") as other:
        started = held(other, leave=LEAVE)
    assert len(started) > 1_000
    wrong = [
        path for path in reloaded.keys() | started.keys() if reloaded.get(path) != started.get(path)
    ]
    return {path: reloaded.get(path) for path in wrong}, {path: started.get(path) for path in wrong}


def test_a_gateway_that_reloaded_holds_what_one_holds_that_was_started_so(tmp_path: Path) -> None:
    reloaded, started = asyncio.run(twins(tmp_path))
    assert reloaded == started == {}


def test_the_two_differ_in_every_key(tmp_path: Path) -> None:
    """A new key has to be written into `reload_twins.document`, and is held to all of this then."""
    first, second = (
        said(settings(tmp_path, second=second, everything=True)) for second in (False, True)
    )
    spoken: dict[str, tuple[list[object], list[object]]] = {}
    for place, some in enumerate((first, second)):
        for key, value in some:
            spoken.setdefault(key, ([], []))[place].append(value)
    keys = {key for key in leaves() if not key.startswith(ADAPTERS)} | {"channels.*.rooms"}
    assert {key for key, (one, other) in spoken.items() if one != other} == keys - {"agents.*.id"}


@pytest.mark.parametrize("pattern", RESTART_KEYS)
def test_each_key_that_needs_a_restart_is_one_and_makes_all_wait(
    pattern: str, tmp_path: Path
) -> None:
    first = settings(tmp_path, second=False)
    live, said = LiveSettings(first, ConfigFiles(tmp_path, {})), document(False)
    _copy(document(True), said, *pattern.split("."))
    (tmp_path / "reverie.yaml").write_text(json.dumps(said | {"commands": {"prefix": "?"}}))
    came = asyncio.run(live.reload())
    assert came == ReloadResult(after_restart=came.after_restart)
    assert came.after_restart
    assert live.settings is first
    assert RESTART_KEYS[pattern].strip()
