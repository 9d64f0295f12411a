"""Check of the sandbox of the shell."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.core.findings import Finding, ok, warning
from gateway.core.process import ProgramNotStarted, run_program
from gateway.tools.dispatch import is_off
from gateway.tools.sandbox import PATH

_NAMESPACES_FIX = "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
_CONTAINER_OPTIONS = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
_APPARMOR_FIX = (
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap an "
    "AppArmor profile of its own"
)


TRIAL_TIMEOUT_S: Final = 5.0
_TRIAL_ARGUMENTS: Final = (
    "--ro-bind",
    "/",
    "/",
    "--unshare-all",
    "--unshare-user",
    "--die-with-parent",
    "true",
)
_SANDBOX_KEY: Final = "tools.bash.sandbox"


@check("sandbox")
async def check_sandbox(context: CheckContext) -> Sequence[Finding]:
    """Check whether bubblewrap is installed and the kernel lets it work, by starting an empty
    sandbox.
    """
    tools, env, root, where = (
        context.settings.tools,
        context.environment.env,
        context.environment.root,
        _SANDBOX_KEY,
    )
    if is_off("bash", tools.off):
        return [ok("sandbox.off", "no agent has a shell (tools.off)")]
    if tools.bash.sandbox != "bubblewrap":
        what = (
            "commands run as the gateway's own user, who can read the configuration and all its "
            "secrets"
        )
        fix = "install bubblewrap and set tools.bash.sandbox: bubblewrap, or add bash* to tools.off"
        return [warning("sandbox.off", what, fix, where)]
    program = shutil.which("bwrap", path=env.get("PATH", os.defpath))
    if program is None:
        what = "bubblewrap is not installed: agents cannot run commands"
        fix = "apt-get install bubblewrap (or dnf, apk add), or add bash* to tools.off"
        return [warning("sandbox.missing", what, fix, where)]
    if trouble := await _find_sandbox_trouble(program):
        what = f"bubblewrap cannot create a sandbox here: {trouble}"
        return [warning("sandbox.namespaces", what, _find_sandbox_fix(root), where)]
    return [ok("sandbox.works", f"bubblewrap works ({program})")]


def _find_sandbox_fix(root: Path) -> str:
    kernel = root / "proc/sys/kernel"
    namespaces = (kernel / "unprivileged_userns_clone", root / "proc/sys/user/max_user_namespaces")
    if any(_read_text(one).strip() == "0" for one in namespaces):
        return f"{_NAMESPACES_FIX} (as root, and in /etc/sysctl.d to keep it)"
    if _read_text(kernel / "apparmor_restrict_unprivileged_userns").strip() == "1":
        return _APPARMOR_FIX
    return (
        f"allow unprivileged user namespaces (see bwrap(1); in a container: {_CONTAINER_OPTIONS}), "
        "or add bash* to tools.off"
    )


async def _find_sandbox_trouble(program: str) -> str:
    """Return why no sandbox can be created; empty: one was created."""
    script = f'"$0" {" ".join(_TRIAL_ARGUMENTS)} 2>&1'  # its complaints are on standard error
    try:
        ran = await run_program(
            ("/bin/sh", "-c", script, program),
            env={"PATH": PATH},
            time_s=TRIAL_TIMEOUT_S,
            max_bytes=2_000,
        )
    except ProgramNotStarted as error:
        return str(error)
    if ran.end_reason == "late":
        return "it does not end"
    words = " ".join(ran.output.decode(errors="replace").split())[:200]
    return (words or f"it ended with {ran.status}") if ran.status else ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
