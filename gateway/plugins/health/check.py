"""Checks of the gateway process and of its packages.

The gateway is detected by its control socket, which is asked for nothing that it would do.
"""

from collections.abc import Iterable, Iterator, Sequence

from gateway.config.check_registry import CheckContext, check
from gateway.core.control_socket import HUNG_REMEDY
from gateway.core.findings import Finding, bad, ok, warning
from gateway.core.metrics import GatewaySnapshot
from gateway.core.name_clash import find_name_clashes


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
        one = running.get(name)
        if one is None:
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
