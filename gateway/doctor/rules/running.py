"""What is so about the gateway itself, as it runs or does not. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gateway.probes.base import Finding

STARTING_S: Final = 60.0
"""So long after it took its store a gateway may not have given a sign of life yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """Whether a gateway uses the store just now."""

    kind: Literal["running", "starting", "hangs", "died", "stopped"]
    """hangs: it holds its store and gives no sign of life; died: it left things behind that it takes along else."""
    pid: int | None = None
    """None: not known."""
    silent_s: float = 0.0
    """Since the last sign of life; 0 if there is none."""
    started: str = ""
    """When that process began, as it says; empty if it does not."""

    @property
    def is_alive(self) -> bool:
        """Some process may be at work with this store."""
        return self.kind in ("running", "starting", "hangs")


def infer_gateway_state(
    *, sign_age_s: float | None, stale_s: float, held: bool, held_for_s: float | None, pid: int | None, left: bool
) -> GatewayState:
    """Tell from signs. `sign_age_s`: of the last sign of life, None: there is none. `held`: somebody holds the lock.

    `left`: a socket or a sign of life stands beside the store.
    """
    if sign_age_s is not None and sign_age_s <= stale_s:
        return GatewayState(kind="running", pid=pid, silent_s=sign_age_s)
    if held:
        young = sign_age_s is None and held_for_s is not None and held_for_s < STARTING_S
        return GatewayState(kind="starting" if young else "hangs", pid=pid, silent_s=sign_age_s or 0.0)
    return GatewayState(kind="died" if left else "stopped", silent_s=sign_age_s or 0.0)


def judge_gateway_state(state: GatewayState, store: str) -> list[Finding]:
    """Whether it runs."""
    process = f"process {state.pid}" if state.pid else "a process"
    match state.kind:
        case "running":
            return [Finding(code="gateway.running", level="ok", what=f"the gateway runs ({process})")]
        case "starting":
            return [Finding(code="gateway.running", level="ok", what=f"the gateway is just starting ({process})")]
        case "hangs":
            told = f"no sign of life for {state.silent_s:.0f} s" if state.silent_s else "no sign of life"
            return [
                Finding(
                    code="gateway.hangs",
                    level="bad",
                    what=f"{process} holds the store, and there is {told}: the gateway hangs",
                    fix=f"end it (kill {state.pid or 'PID'}, after a minute kill -9) and start it again; "
                    "what was durable is taken up",
                    where=store,
                )
            ]
        case "died":
            return [
                Finding(
                    code="gateway.died",
                    level="warning",
                    what="no gateway runs, and the last one ended without a goodbye (it was killed, or it crashed)",
                    fix="look at the end of its log for the reason, then start it; it goes on where it stopped",
                    where=store,
                )
            ]
        case "stopped":
            return [Finding(code="gateway.running", level="ok", what="the gateway is stopped")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChannel:
    """One channel of the running gateway."""

    state: str
    reason: str


def judge_running_channels(wanted: Collection[str], seen: Mapping[str, RunningChannel]) -> list[Finding]:
    """How the running gateway's channels are. `wanted`: those of the configuration."""
    found = []
    for name in wanted:
        one = seen.get(name)
        if one is None:
            fix = "restart it, or `/reload`, if the channel was added since it started"
            what = "the running gateway does not have this channel"
        elif one.state == "up":
            continue
        elif one.state == "refused":
            fix = "mend what the platform complains of (see the findings of this channel), then restart it"
            what = f"its platform refuses it: {one.reason or 'no reason is known'}"
        else:
            fix = "see the findings of this channel and of the network; it goes on trying by itself"
            what = f"it is {one.state}: {one.reason or 'no reason is known'}"
        level: Literal["bad", "warning"] = "warning" if one is not None and one.state == "connecting" else "bad"
        found.append(Finding(code="gateway.channel", level=level, what=what, fix=fix, where=name))
    return found or [Finding(code="gateway.channel", level="ok", what="all channels of the running gateway are up")]


def judge_running_version(running: str, installed: str) -> list[Finding]:
    """Whether the process is the program that is installed."""
    if running == installed:
        return [Finding(code="gateway.version", level="ok", what=f"the running gateway is version {running}")]
    return [
        Finding(
            code="gateway.version",
            level="warning",
            what=f"the running gateway is version {running}, and {installed} is installed",
            fix="restart the gateway, so that the installed version runs",
        )
    ]


def judge_config_freshness(
    *, later: Collection[str], broken: bool, unseen: Collection[str], where: str
) -> list[Finding]:
    """Whether the running gateway goes by what is written. Here it could be read.

    `later`: keys that wait for a restart; `broken`: the gateway could not take what is written; `unseen`: files that
    were written since it read them, and long enough ago for it to have noticed.
    """
    if broken:
        what = "the running gateway could not take what is written by now, and goes on with what it read before"
        fix = "see its log for why: most often its environment lacks a variable that you have (then restart it)"
    elif unseen:
        what = f"{', '.join(sorted(unseen))} was written after the running gateway read its configuration"
        fix = "/reload has it read again, or send it SIGHUP"
    elif later:
        keys = ", ".join(sorted(later))
        what, fix = f"{keys} changed, which counts after a restart only", "restart the gateway when it suits"
        return [Finding(code="gateway.restart", level="warning", what=what, fix=fix, where=where)]
    else:
        return [Finding(code="gateway.config", level="ok", what="the running gateway goes by what is written")]
    return [Finding(code="gateway.config_newer", level="warning", what=what, fix=fix, where=where)]
