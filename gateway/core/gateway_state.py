"""State of a gateway, asked from outside its process.

`reverie health` and other commands ask the running gateway for its `GatewaySnapshot` on its control
socket. No port is needed, and a process that hangs is detected: it does not answer.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from gateway.core.control_socket import (
    GatewayNotAnswering,
    GatewayNotRunning,
    ask_state,
    socket_path,
)
from gateway.core.events import ChannelName
from gateway.core.metrics import ChannelStats, GatewaySnapshot, GatewayState, HealthProblem
from gateway.core.process_files import list_process_paths, process_name, process_path

ANSWER_S = 5.0
"""Seconds in which a gateway answers on its control socket, longer than any pause of a healthy
process."""
HUNG_REMEDY: Final = "if it hangs, stop it (kill PID, after a minute kill -9) and start it again"


async def find_gateway_state(store: Path, name: str = "") -> GatewayState:
    """Ask the processes on this host that use the store for their state. `name`: one of them.

    Of several it is what those that answer say together.
    """
    paths = list_process_paths(process_path(store, name))
    states = dict(
        zip(
            (process_name(one, store) for one in paths),
            await asyncio.gather(*map(_ask, paths)),
            strict=True,
        )
    )
    alive = {name: one for name, one in states.items() if one.is_alive}
    if len(alive) <= 1:
        return next(iter(alive.values()), max(states.values(), key=lambda one: one.kind == "died"))
    running = {name: one.snapshot for name, one in alive.items() if one.snapshot is not None}
    if not running:
        return next(iter(alive.values()))
    hung = {name: one.reason for name, one in alive.items() if one.snapshot is None}
    return GatewayState(kind="running", snapshot=_merge_snapshots(running, hung))


async def _ask(process: Path) -> GatewayState:
    path = socket_path(process)
    try:
        if not path.is_socket():
            return GatewayState(kind="stopped")
        return GatewayState(kind="running", snapshot=await ask_state(path, ANSWER_S))
    except GatewayNotRunning:
        return GatewayState(kind="died")
    except OSError:  # the store's own check reports closed directories
        return GatewayState(kind="stopped")
    except GatewayNotAnswering as error:
        return GatewayState(kind="hangs", reason=str(error))


def _merge_snapshots(
    alive: Mapping[str, GatewaySnapshot], hung: Mapping[str, str]
) -> GatewaySnapshot:
    """Return what several processes say together. `hung`: what was seen of those that do not
    answer.

    What keeps some from their work, and not all, is a problem in part.
    """
    channels = dict[ChannelName, ChannelStats]()
    for name, snapshot in alive.items():
        for channel in snapshot.channels:
            if channel.holder is None:
                channels[channel.channel] = replace(channel, holder=name)
            else:
                channels.setdefault(channel.channel, channel)
    # As the gateway as a whole sees them: what nobody holds is a channel of its own that is down.
    channels = {
        name: one if one.holder else replace(one, holder=None) for name, one in channels.items()
    }
    is_working = any(
        all(problem.partial for problem in snapshot.problems) for snapshot in alive.values()
    )
    problems = [
        replace(
            problem,
            what=f"{name}:{problem.what}",
            reason=f"{name}: {problem.reason}",
            partial=problem.partial or is_working,
        )
        for name, snapshot in alive.items()
        for problem in snapshot.problems
    ]
    since = min(one.started for one in alive.values())
    problems += [
        HealthProblem(
            what=f"{name}:process", since=since, reason=f"{reason}: {HUNG_REMEDY}", partial=True
        )
        for name, reason in hung.items()
    ]
    return GatewaySnapshot(
        started=since,
        channels=tuple(channels.values()),
        read=min((one.read for one in alive.values() if one.read is not None), default=None),
        later=tuple(sorted({key for one in alive.values() for key in one.later})),
        broken=any(one.broken for one in alive.values()),
        problems=tuple(sorted(problems, key=lambda one: one.since)),
        is_shared=True,
    )
