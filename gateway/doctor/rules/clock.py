"""Whether this machine's clock is right. Pure."""

from collections.abc import Mapping
from typing import Final, Literal

from gateway.probes.base import Finding

MAX_SKEW_S: Final = 60.0
"""Beyond that, signatures, certificates and reminders are off."""
KernelClock = Literal["synchronized", "unsynchronized", "unknown"]


def judge_clock(ahead_s: Mapping[str, float], kernel: KernelClock, *, keeps: bool) -> list[Finding]:
    """`ahead_s`: by server, how far our clock is ahead of its. Where any server agrees, the clock is right.

    `keeps`: this system sets its clock by itself, as containers and many virtual machines do not.
    """
    fix = "let the machine keep time: timedatectl set-ntp true, or install chrony (a container has its host's clock)"
    if ahead_s:
        host, off_s = min(ahead_s.items(), key=lambda one: abs(one[1]))
        if abs(off_s) <= MAX_SKEW_S:
            return [Finding(code="clock.skew", level="ok", what=f"the clock agrees with that of {host}")]
        way = "ahead of" if off_s > 0 else "behind"
        what = f"the clock is {abs(off_s):.0f} s {way} that of {host}"
        return [Finding(code="clock.skew", level="bad", what=what, fix=fix)]
    if kernel == "unsynchronized" and keeps:
        what = "no server told the time, and the system does not keep its clock by any"
        return [Finding(code="clock.unsynchronized", level="warning", what=what, fix=fix)]
    told = (
        "the system keeps its clock by a time server"
        if kernel == "synchronized"
        else "the clock was not compared with any"
    )
    return [Finding(code="clock.skew", level="ok", what=told)]
