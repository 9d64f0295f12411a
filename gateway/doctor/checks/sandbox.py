"""Tries whether the agents' shell could run: an empty sandbox, in which nothing happens."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.tools.shell import BASH
from gateway.doctor.base import DoctorContext
from gateway.doctor.checks.machine import find_container
from gateway.doctor.rules.sandbox import SandboxObservation, judge_sandbox
from gateway.probes.base import Finding
from gateway.process import ProgramNotStarted, run_program
from gateway.tools.dispatch import is_off
from gateway.tools.sandbox import PATH

TRIAL_TIMEOUT_S: Final = 5.0
_TRIAL_ARGUMENTS: Final = ("--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "--die-with-parent", "true")
_KERNEL_SETTINGS: Final = {
    "clone": "proc/sys/kernel/unprivileged_userns_clone",
    "namespaces": "proc/sys/user/max_user_namespaces",
    "apparmor": "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
}


async def check_sandbox(subject: DoctorContext) -> Sequence[Finding]:
    """Whether bubblewrap is there, and the kernel lets it work."""
    said, env, root = subject.settings.tools, subject.environment.env, subject.environment.root
    search = env.get("PATH", os.defpath)
    seen = SandboxObservation(
        is_wanted=not is_off(BASH.name, said.off),
        is_sandboxed=said.bash.sandbox == "bubblewrap",
        program=shutil.which("bwrap", path=search),
        container=bool(find_container(root, env)),
        **{name: _read_kernel_setting(root / path) for name, path in _KERNEL_SETTINGS.items()},
    )
    if seen.is_wanted and seen.is_sandboxed and seen.program is not None:
        seen = replace(seen, trouble=await _find_sandbox_trouble(seen.program))
    return judge_sandbox(seen)


async def _find_sandbox_trouble(program: str) -> str:
    """Why no sandbox can be made; empty: one could."""
    script = f'"$0" {" ".join(_TRIAL_ARGUMENTS)} 2>&1'  # what it complains of is on its standard error
    try:
        ran = await run_program(
            ("/bin/sh", "-c", script, program), env={"PATH": PATH}, time_s=TRIAL_TIMEOUT_S, max_bytes=2_000
        )
    except ProgramNotStarted as error:
        return str(error)
    if ran.end_reason == "late":
        return "it does not come to an end"
    words = " ".join(ran.output.decode(errors="replace").split())[:200]
    return (words or f"it ended with {ran.status}") if ran.status else ""


def _read_kernel_setting(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
