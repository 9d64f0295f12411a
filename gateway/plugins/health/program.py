"""The command `reverie health`.

Exit codes: 0 the gateway does its work; 1 it does not; 2 the configuration cannot be read.
"""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Collection
from datetime import UTC, datetime

from gateway.command_line import (
    add_process_name,
    build_redactor,
    fill_command,
    load_settings,
)
from gateway.core.control_socket import HUNG_REMEDY, find_gateway_state
from gateway.core.events import ChannelName
from gateway.core.format import describe_problem
from gateway.store import Store, StoreError, StoreLocation, local_path, store_location


async def judge_gateway(
    location: StoreLocation, channels: Collection[ChannelName], now: datetime, name: str = ""
) -> tuple[bool, list[str]]:
    """Return whether the gateway that uses this store does its work, and one line each: what keeps
    it, else what is up; what it lacks. `channels`: those of the configuration.

    `name`: of one of its processes.
    """
    store = local_path(location)
    state = await find_gateway_state(store, name)
    bad, less = list[str](), list[str]()
    try:
        async with await Store.open_readonly(location) as reader:
            growth = await reader.growth(now)
        storage = growth.describe(now, shutil.disk_usage(store.parent).free)
        less.append(f"the store has {storage}")
    except StoreError as error:
        bad.append(str(error))
    if state.kind == "hangs":
        return False, [f"{state.reason}: {HUNG_REMEDY}"]
    if state.snapshot is None:
        whom = f"process named {name}" if name else "gateway"
        killed = ": the last one was killed or crashed" if state.kind == "died" else ""
        why = f" ({bad[0]})" if bad else ""
        return False, [f"no {whom} is running with the store {store}{killed}{why}"]
    known = {one.channel: one for one in state.snapshot.channels}
    for place, channel in enumerate(channels):
        if (one := known.get(channel)) is None or one.state == "connecting":
            bad.insert(place, f"{channel} has not connected yet")
        elif one.state != "up":
            bad.insert(place, f"{channel} is {one.state}: {one.reason}")
    problems = state.snapshot.problems
    bad = [*(describe_problem(one) for one in problems if not one.partial), *bad]
    less = [*(describe_problem(one) for one in problems if one.partial), *less]
    return not bad, [*(bad or [f"{one} is up" for one in channels]), *less]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie health`."""
    fill_command(parser, _run, where="config")
    add_process_name(parser, "one process of several (default: all on this host)")


def _run(args: argparse.Namespace) -> int:
    settings = load_settings(args.config)
    channels, location = [*map(ChannelName, settings.channels)], store_location(settings.store)
    is_well, findings = asyncio.run(judge_gateway(location, channels, datetime.now(UTC), args.name))
    redactor = build_redactor(args.config)
    sys.stdout.write("".join(f"{redactor(one)}\n" for one in findings))
    return 0 if is_well else 1
