"""Tries whether the agents' shell could run: an empty sandbox, in which nothing happens."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.tools.shell import BASH
from gateway.doctor.base import Subject
from gateway.doctor.checks.machine import container
from gateway.doctor.rules.sandbox import SandboxSeen, of_sandbox
from gateway.probes.base import Finding
from gateway.process import NotStarted, run
from gateway.tools.dispatch import is_off
from gateway.tools.sandbox import PATH

TRY_S: Final = 5.0
_TRY: Final = ("--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "--die-with-parent", "true")
_KERNEL: Final = {
    "clone": "proc/sys/kernel/unprivileged_userns_clone",
    "namespaces": "proc/sys/user/max_user_namespaces",
    "apparmor": "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
}


async def check_sandbox(subject: Subject) -> Sequence[Finding]:
    """Whether bubblewrap is there, and the kernel lets it work."""
    said, env, root = subject.settings.tools, subject.environment.env, subject.environment.root
    search = env.get("PATH", os.defpath)
    seen = SandboxSeen(
        is_wanted=not is_off(BASH.name, said.off),
        is_sandboxed=said.bash.sandbox == "bubblewrap",
        program=shutil.which("bwrap", path=search),
        container=bool(container(root, env)),
        **{name: _said(root / path) for name, path in _KERNEL.items()},
    )
    if seen.is_wanted and seen.is_sandboxed and seen.program is not None:
        seen = replace(seen, trouble=await _trouble(seen.program))
    return of_sandbox(seen)


async def _trouble(program: str) -> str:
    """Why no sandbox can be made; empty: one could."""
    script = f'"$0" {" ".join(_TRY)} 2>&1'  # what it complains of is on its standard error
    try:
        ran = await run(("/bin/sh", "-c", script, program), env={"PATH": PATH}, time_s=TRY_S, max_bytes=2_000)
    except NotStarted as error:
        return str(error)
    if ran.end_reason == "late":
        return "it does not come to an end"
    words = " ".join(ran.output.decode(errors="replace").split())[:200]
    return (words or f"it ended with {ran.status}") if ran.status else ""


def _said(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
