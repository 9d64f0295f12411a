"""The agent's shell: commands in its files, at once or in the background, in a sandbox unless the operator says no.

`sandbox: off` bounds what a command takes and ends what it leaves running. It does not bound what a command sees or
does: that is all that the gateway's own user may, also to read the configuration, and to kill the gateway.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from agent.journal import to_single_line
from agent.tools.schema import ToolCallRefused
from agent.tools.shell import (
    BASH,
    JOB_KILL,
    JOB_OUTPUT,
    JOBS,
    MAX_COMMAND_BYTES,
    BashArgs,
    JobKillArgs,
    JobOutputArgs,
    JobsArgs,
)
from gateway.clock import Clock
from gateway.hands import Tool, ToolContext, ToolOutput
from gateway.process import ProgramNotStarted
from gateway.settings_tools import BashConfig
from gateway.tools.command import ShellCommand, run_command
from gateway.tools.jobs import BackgroundJob, BackgroundJobs, JobFinishedListener
from gateway.tools.limits import CommandLimits
from gateway.tools.output import OutputBuffer, ShellResult
from gateway.tools.permits import ALLOW_ADMINS, ToolPermit
from gateway.tools.sandbox import (
    BWRAP_PROCESSES,
    NOBODY,
    PATH,
    SandboxMounts,
    build_environment,
    build_sandboxed_argv,
    build_unsandboxed_argv,
)
from gateway.tools.seccomp import LIBRARY, filter_file

logger = logging.getLogger("reverie.tools.shell")

SHELL_PERMIT: Final = ToolPermit(role="admin", approval="untrusted")
END_GRACE_S: Final = 30.0
"""What a call may take beyond its command's time, until all has ended."""
PROBE_TIMEOUT_S: Final = 10.0
MAX_ORIGIN_CHARS: Final = 200
SANDBOX_FIX: Final = (
    "the operator can install bubblewrap 0.7 or newer, allow user namespaces (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), or set tools.bash.sandbox to off"
)


class ShellTools:
    """`bash`, `jobs`, `job_output` and `job_kill` for one agent. `aclose` it: then nothing of it runs."""

    def __init__(
        self,
        root: Path,
        config: BashConfig,
        clock: Clock,
        skills: Callable[[], Awaitable[Sequence[Path]]] | None = None,
        *,
        hidden: Sequence[Path] = (),
        finished: JobFinishedListener | None = None,
    ) -> None:
        """`root`: the agent's files; made if it is not there. `skills`: asked for each command; None: there are none.

        `hidden`: as in `sandbox.Box`.
        """
        self._root = root.absolute()
        self._config = config
        self._skills, self._hidden = skills, tuple(hidden)
        self._jobs = BackgroundJobs(config.jobs, clock, finished)
        self._strict: bool | None = None
        """Which sandbox works here; None: none that we know of."""
        self._sandbox_error = ""
        """Why none works; empty: one does, or none was tried yet."""
        self._probe_lock = asyncio.Lock()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All of them, as the configuration is by now."""
        time_s = self._config.max_timeout + END_GRACE_S
        return (
            Tool.create(BASH, BashArgs, self._bash, SHELL_PERMIT, time_s=time_s, cost="cheap"),
            Tool.create(JOBS, JobsArgs, self._list_jobs, ALLOW_ADMINS),
            Tool.create(JOB_OUTPUT, JobOutputArgs, self._job_output, ALLOW_ADMINS),
            Tool.create(JOB_KILL, JobKillArgs, self._kill_job, ALLOW_ADMINS),
        )

    def reconfigure(self, config: BashConfig) -> None:
        """Commands that begin from now on run so; those that run go on as they began. Returns at once."""
        self._config = config
        self._jobs.max_running = config.jobs

    def describe(self) -> str:
        """How commands run, in one line for the agent."""
        config = self._config
        if self._sandbox_error:
            return f"bash: no command can be run here ({self._sandbox_error})"
        if config.sandbox == "off":
            where = f"no sandbox, in {self._root}"
        else:
            network = "with network" if config.network else "no network"
            skills = ", /skills readable" if self._skills else ""
            where = f"bubblewrap sandbox, {network}, /workspace writable{skills}"
        return f"bash: {where}, {config.timeout:g} s (at most {config.max_timeout:g} s)"

    async def check(self) -> str:
        """Return why no command can run here, for the operator. Empty: they can."""
        try:
            await self._build_command("true", self._config)
        except ToolCallRefused as reason:
            return str(reason)
        return ""

    async def kill_jobs(self, theirs: Callable[[BackgroundJob], bool]) -> None:
        """End somebody's background jobs."""
        await self._jobs.kill_matching(theirs)

    async def aclose(self) -> None:
        """End all jobs. Commands of turns end with these."""
        await self._jobs.aclose()

    async def _bash(self, args: BashArgs, where: ToolContext) -> str | ToolOutput:
        if len(args.command.encode()) > MAX_COMMAND_BYTES or "\0" in args.command:
            raise ToolCallRefused("The command is too long, or holds a NUL: write it into a file and run that.")
        config = self._config
        command = await self._build_command(args.command, config)
        kept = OutputBuffer(config.output_bytes)
        if args.background:
            run = _command_runner(command, config, config.max_timeout)
            job = self._jobs.start(args.command, run, kept, where)
            most = f"{config.max_timeout:g} s"
            return f"Job {job.name} runs, for {most} at most. You are told when it has ended; job_output reads it."
        time_s = min(args.timeout or config.timeout, config.max_timeout)
        try:
            ended = await _command_runner(command, config, time_s)(kept)
        except ProgramNotStarted as reason:
            raise ToolCallRefused(f"{reason}.") from None
        return self._build_output(ended.render(), kept.render(), args.command)

    def _build_output(self, state: str, text: str, command: str) -> ToolOutput:
        origin = to_single_line(command[: 4 * MAX_ORIGIN_CHARS], MAX_ORIGIN_CHARS)
        text = f"[{state}]\n{text}" if text else f"[{state}, no output]"
        return ToolOutput(text=text, kind="command", origin=origin, is_untrusted=True, is_foreign=self._config.network)

    async def _list_jobs(self, _: JobsArgs, where: ToolContext) -> str:
        return (
            "\n".join(f"{job.render()} (begun {age:.0f} s ago)" for job, age in self._jobs.list_visible(where))
            or "No jobs."
        )

    async def _job_output(self, args: JobOutputArgs, where: ToolContext) -> ToolOutput:
        job = self._jobs.find(args.job, where)
        text = job.output.render()
        if args.tail is not None:
            text = "\n".join(text.rstrip("\n").split("\n")[-args.tail :])
        return self._build_output(job.state, text, job.command)

    async def _kill_job(self, args: JobKillArgs, where: ToolContext) -> str:
        job = self._jobs.find(args.job, where)
        return f"{job.name} is ended." if await self._jobs.kill(job) else f"{job.name} had ended already: {job.state}."

    async def _build_command(self, command: str, config: BashConfig) -> ShellCommand:
        """Raises Refused."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            root = self._root.resolve()
        except OSError as error:
            raise ToolCallRefused(f"The directory of your files cannot be used ({error.strerror}).") from None
        if os.geteuid() == 0:
            await asyncio.to_thread(_chown_to_nobody, root)
        if config.sandbox == "off":
            argv = build_unsandboxed_argv(command, config, root=os.geteuid() == 0)
            return ShellCommand(argv=argv, env=build_environment(str(root)), directory=root)
        async with self._probe_lock:
            if self._strict is None:
                self._sandbox_error, self._strict = await self._probe_sandbox(root, config)
            strict = self._strict
        if strict is None:
            logger.warning("no command can be run: %s; %s", self._sandbox_error, SANDBOX_FIX)
            raise ToolCallRefused(f"No command can be run here ({self._sandbox_error}): {SANDBOX_FIX}.")
        skills = await self._skills() if self._skills is not None else ()
        return self._build_sandboxed(command, root, skills, config, strict=strict)

    def _build_sandboxed(
        self, command: str, root: Path, skills: Sequence[Path], config: BashConfig, *, strict: bool
    ) -> ShellCommand:
        box = SandboxMounts(
            root=root,
            skills=tuple(path.resolve() for path in skills),
            hidden=tuple(dict.fromkeys(path.resolve() for path in self._hidden if path.is_dir())),
        )
        # bwrap's own environment can be read inside, in /proc/1/environ.
        argv = build_sandboxed_argv(
            command,
            box,
            config,
            bwrap=_find_bwrap() or "bwrap",
            strict=strict,
            filter_file=filter_file(),
            root=os.geteuid() == 0,
        )
        return ShellCommand(argv=argv, env={"PATH": PATH}, directory=root, helper_processes=BWRAP_PROCESSES)

    async def _probe_sandbox(self, root: Path, config: BashConfig) -> tuple[str, bool | None]:
        """Return why no sandbox works, or whether the strict one does. What does not work is tried anew each time."""
        if _find_bwrap() is None:
            return "bubblewrap (bwrap) is not installed", None
        try:
            filter_file()
        except OSError as error:
            return f"no seccomp filter can be built: {error}; {LIBRARY} has to be installed", None
        reason = ""
        for strict in (True, False):
            kept = OutputBuffer(config.output_bytes)
            try:
                boxed_true = self._build_sandboxed("true", root, (), config, strict=strict)
                ended = await _command_runner(boxed_true, config, PROBE_TIMEOUT_S)(kept)
            except ProgramNotStarted as error:
                return str(error), None
            if not ended.status and not ended.end_reason:
                return "", strict
            reason = to_single_line(kept.render(), MAX_ORIGIN_CHARS) or ended.render()
        return f"the sandbox does not work: {reason}", None


def _command_runner(
    command: ShellCommand, config: BashConfig, time_s: float
) -> Callable[[OutputBuffer], Awaitable[ShellResult]]:
    limits = CommandLimits.from_config(config, time_s)
    return lambda kept: run_command(command, limits, kept)


def _chown_to_nobody(root: Path) -> None:
    """Let commands of a gateway that runs as root, which run as `nobody`, write what root has made in there.

    Links are not followed, and what another user owns stays theirs.
    """
    for _, _, files, folder in os.fwalk(root, follow_symlinks=False):
        for name in (".", *files):
            with contextlib.suppress(FileNotFoundError):  # a command that runs beside this one has removed it
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == 0:
                    os.chown(name, NOBODY, NOBODY, dir_fd=folder, follow_symlinks=False)


def _find_bwrap() -> str | None:
    return shutil.which("bwrap", path=PATH) or shutil.which("bwrap")
