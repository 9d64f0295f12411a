"""The command `reverie health`, and the checks of `reverie doctor` of the gateway process and of
its packages.

The gateway is detected by its control socket, which is asked for nothing that it would do.
"""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from gateway.command_line import (
    add_process_name,
    build_redactor,
    fill_command,
    load_settings,
)
from gateway.config.check_registry import CheckContext, check
from gateway.core.control_socket import HUNG_REMEDY, find_gateway_state
from gateway.core.events import ChannelName
from gateway.core.findings import Finding, bad, ok, warning
from gateway.core.format import describe_problem
from gateway.core.metrics import GatewaySnapshot
from gateway.core.name_clash import find_name_clashes
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
    wrong, less = list[str](), list[str]()
    try:
        async with await Store.open_readonly(location) as reader:
            growth = await reader.growth(now)
        less.append(f"the store has {growth.describe(now, shutil.disk_usage(store.parent).free)}")
    except StoreError as error:
        wrong.append(str(error))
    if state.kind == "hangs":
        return False, [f"{state.reason}: {HUNG_REMEDY}"]
    if state.snapshot is None:
        whom = f"process named {name}" if name else "gateway"
        killed = ": the last one was killed or crashed" if state.kind == "died" else ""
        why = f" ({wrong[0]})" if wrong else ""
        return False, [f"no {whom} is running with the store {store}{killed}{why}"]
    known = {one.channel: one for one in state.snapshot.channels}
    for place, channel in enumerate(channels):
        if (one := known.get(channel)) is None or one.state == "connecting":
            wrong.insert(place, f"{channel} has not connected yet")
        elif one.state != "up":
            wrong.insert(place, f"{channel} is {one.state}: {one.reason}")
    problems = state.snapshot.problems
    wrong = [*(describe_problem(one) for one in problems if not one.partial), *wrong]
    less = [*(describe_problem(one) for one in problems if one.partial), *less]
    return not wrong, [*(wrong or [f"{one} is up" for one in channels]), *less]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie health`. Exit codes: 0 the gateway does its work; 1 it does not; 2 the
    configuration cannot be read.
    """
    fill_command(parser, _run, where="config")
    add_process_name(parser, "one process of several (default: that on this host which works best)")


def _run(args: argparse.Namespace) -> int:
    settings = load_settings(args.config)
    channels, location = [*map(ChannelName, settings.channels)], store_location(settings.store)
    is_well, findings = asyncio.run(judge_gateway(location, channels, datetime.now(UTC), args.name))
    redactor = build_redactor(args.config)
    sys.stdout.write("".join(f"{redactor(one)}\n" for one in findings))
    return 0 if is_well else 1


@check("packages", timed=False)
def check_packages(_: CheckContext) -> Iterator[Finding]:
    """Check whether other packages have the names of ours."""
    for what, fix in (clashes := find_name_clashes()):
        yield bad("versions.clash", what, fix)
    if not clashes:
        yield ok("versions.clash", "no other distribution has packages of our names")


@check("gateway")
async def check_running(context: CheckContext) -> Sequence[Finding]:
    """Check whether the gateway runs and its channels are up."""
    state, where = context.gateway_state, str(context.settings.store.path)
    match state.kind:
        case "running":
            found = [ok("gateway.running", "the gateway runs")]
            if state.snapshot is not None:
                found += _judge_channels(context.settings.channels, state.snapshot)
                found += _judge_snapshot(state.snapshot, str(context.environment.directory))
            return found
        case "hangs":
            return [
                bad(
                    "gateway.hangs",
                    state.reason,
                    f"{HUNG_REMEDY}; nothing that was saved is lost",
                    where,
                )
            ]
        case "died":
            what = "the gateway does not run, and the last one was killed or crashed"
            fix = (
                "find the reason at the end of its log, then start it; it goes on where it stopped"
            )
            return [warning("gateway.died", what, fix, where)]
        case "stopped":
            return [ok("gateway.running", "the gateway is stopped")]


def _judge_snapshot(snapshot: GatewaySnapshot, where: str) -> Iterator[Finding]:
    if snapshot.broken:
        what = (
            "the running gateway could not use the changed configuration, and goes on with the "
            "earlier one"
        )
        fix = (
            "its log says why; most often, its environment lacks a variable that you have (then "
            "restart it)"
        )
        yield warning("gateway.config_newer", what, fix, where)
    elif snapshot.later:
        what = (
            f"{', '.join(sorted(snapshot.later))} changed, which takes effect only after a restart"
        )
        yield warning("gateway.restart", what, "restart the gateway when convenient", where)


def _judge_channels(wanted: Iterable[str], snapshot: GatewaySnapshot) -> list[Finding]:
    """Judge the channels of the running gateway. `wanted`: channels of the configuration."""
    running, found = {str(one.channel): one for one in snapshot.channels}, []
    for name in wanted:
        if (one := running.get(name)) is None:
            fix = "restart it, or `/reload`, if the channel was added since it started"
            found.append(
                bad("gateway.channel", "the running gateway does not have this channel", fix, name)
            )
        elif one.state == "refused":
            fix = (
                "correct what the platform complains about (see the findings of this channel), "
                "then restart it"
            )
            what = f"its platform refuses it: {one.reason or 'no reason is known'}"
            found.append(bad("gateway.channel", what, fix, name))
        elif one.state != "up":
            fix = "see the findings of this channel and of the network; the gateway keeps trying"
            judge = warning if one.state == "connecting" else bad
            what = f"it is {one.state}: {one.reason or 'no reason is known'}"
            found.append(judge("gateway.channel", what, fix, name))
    return found or [ok("gateway.channel", "all channels of the running gateway are connected")]
