"""Whether the agents' shell can run. Pure."""

from dataclasses import dataclass

from gateway.probes.base import Finding

_NAMESPACES_FIX = "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
_CONTAINER_OPTIONS = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
_APPARMOR_FIX = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap an AppArmor profile of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxObservation:
    """As it was found."""

    is_wanted: bool
    """The shell is not among `tools.off`."""
    is_sandboxed: bool
    """`tools.bash.sandbox` is bubblewrap."""
    program: str | None
    """Where bwrap is. None: it is not installed."""
    trouble: str = ""
    """Why it cannot make a sandbox; empty: it can, or was not tried."""
    clone: str = ""
    namespaces: str = ""
    apparmor: str = ""
    """What the kernel says: unprivileged_userns_clone, max_user_namespaces, apparmor_restrict_unprivileged_userns."""
    container: bool = False


def judge_sandbox(seen: SandboxObservation) -> list[Finding]:
    """One finding."""
    where = "tools.bash.sandbox"
    if not seen.is_wanted:
        return [Finding(code="sandbox.off", level="ok", what="no agent has a shell (tools.off)")]
    if not seen.is_sandboxed:
        return [
            Finding(
                code="sandbox.off",
                level="warning",
                what="commands run as the gateway's own user, who can read the configuration and all its secrets",
                fix="install bubblewrap and set tools.bash.sandbox: bubblewrap, or add bash* to tools.off",
                where=where,
            )
        ]
    if seen.program is None:
        return [
            Finding(
                code="sandbox.missing",
                level="warning",
                what="bubblewrap is not installed: no command of an agent's can run",
                fix="apt-get install bubblewrap (or dnf, apk add), or add bash* to tools.off",
                where=where,
            )
        ]
    if seen.trouble:
        return [
            Finding(
                code="sandbox.namespaces",
                level="warning",
                what=f"bubblewrap cannot make a sandbox here: {seen.trouble}",
                fix=_find_sandbox_fix(seen),
                where=where,
            )
        ]
    return [Finding(code="sandbox.works", level="ok", what=f"bubblewrap works ({seen.program})")]


def _find_sandbox_fix(seen: SandboxObservation) -> str:
    if seen.clone == "0" or seen.namespaces == "0":
        return f"{_NAMESPACES_FIX} (as root, and in /etc/sysctl.d to keep it)"
    if seen.apparmor == "1":
        return _APPARMOR_FIX
    if seen.container:
        return f"start the container with {_CONTAINER_OPTIONS}, or add bash* to tools.off"
    return "allow unprivileged user namespaces (see bwrap(1)), or add bash* to tools.off"
