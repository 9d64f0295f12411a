"""Check of the sandbox of the shell."""

import os
import shutil
from collections.abc import Sequence
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.core.findings import Finding, ok, warning
from gateway.core.process import ProgramNotStarted, run_program
from gateway.plugins.shell.sandbox import PATH
from gateway.tools.dispatch import is_off

_FIX: Final = (
    "allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; see bwrap(1); "
    "in a container: --security-opt seccomp=unconfined --security-opt apparmor=unconfined), or add "
    "bash* to tools.off"
)
_TRIAL_ARGUMENTS: Final = (
    "--ro-bind",
    "/",
    "/",
    "--unshare-all",
    "--unshare-user",
    "--die-with-parent",
    "true",
)


@check("sandbox")
async def check_sandbox(context: CheckContext) -> Sequence[Finding]:
    """Check whether bubblewrap is installed and the kernel lets it work, by starting an empty
    sandbox.
    """
    tools, env, where = context.settings.tools, context.environment.env, "tools.bash.sandbox"
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
        return [warning("sandbox.namespaces", what, _FIX, where)]
    return [ok("sandbox.works", f"bubblewrap works ({program})")]


async def _find_sandbox_trouble(program: str) -> str:
    script = f'"$0" {" ".join(_TRIAL_ARGUMENTS)} 2>&1'  # its complaints are on standard error
    try:
        ran = await run_program(
            ("/bin/sh", "-c", script, program),
            env={"PATH": PATH},
            time_s=5.0,
            max_bytes=2_000,
        )
    except ProgramNotStarted as error:
        return str(error)
    if ran.end_reason == "late":
        return "it does not end"
    words = " ".join(ran.output.decode(errors="replace").split())[:200]
    return (words or f"it ended with {ran.status}") if ran.status else ""
