"""Shell of an agent: commands, at once or in the background, in a sandbox unless the operator turns
it off.

`sandbox: off` limits the resources of a command and ends what it leaves running. It does not limit
what a command sees or does: that is everything that the gateway's own user may do, including
reading the configuration and killing the gateway.

The order of this file: output and result of a command, running one command, then the tools and
their background jobs. These end with the gateway; only their end is in the log, unless they were
killed.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from channels.aio import cancel_and_wait
from channels.text import clean_text
from gateway.config.tools import BashConfig
from gateway.context.requesters import are_blocked
from gateway.context.workspace_fs import FILES_PREFIX, FilesArea, FilesView
from gateway.core.clock import new_id
from gateway.core.events import Address, EventId, TaskFinished
from gateway.core.facts import RoleAssigned
from gateway.core.frozen import frozen
from gateway.core.labels import Label
from gateway.core.permissions import ALLOW_ADMINS, OUT, OWN, Effect
from gateway.core.process import (
    KILL_WAIT_S,
    READ_BYTES,
    ChildProcess,
    ProgramNotStarted,
    start_process,
)
from gateway.core.text_safety import to_single_line
from gateway.core.tool import Requester, ToolContext, ToolOutput, run_in_thread, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.files.undo import keep_files
from gateway.plugins.shell import warden
from gateway.plugins.shell.sandbox import (
    LIBRARY,
    MAX_PRINTED_BYTES,
    MB,
    NOBODY,
    OUTPUT_BYTES,
    PATH,
    SandboxMounts,
    build_environment,
    build_sandboxed_argv,
    build_unsandboxed_argv,
    filter_file,
    watch_disk,
)
from gateway.plugins.skills import Skills

logger = logging.getLogger("reverie.shell")

_SEQUENCE: Final = re.compile(
    r"\x1b(?:"
    r"\[[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"
    r"|[PX^_][^\x1b]{0,4096}(?:\x1b\\)?"
    r"|[ -/]{0,8}[0-~])"
)
"""Terminal control sequences (ECMA-48): CSI; OSC; other strings; the short ones."""


SIGNAL_STATUS_BASE: Final = 128
"""Shells add it to the number of the signal that ended a program."""
MIN_SHOWN_S: Final = 1.0
"""Seconds from which on a command's duration is shown."""


def describe_end(status: int, reason: str, took_s: float) -> str:
    """Describe the end of a command in a few words. `status`: its exit status, or 128 plus the
    signal that ended it. `reason`: why it was ended; empty: it ended by itself.
    """
    after = f" after {took_s:.0f} s" if took_s >= MIN_SHOWN_S else ""
    if reason:
        return f"ended{after}: {reason}"
    return f"exit status {status}{_format_signal(status - SIGNAL_STATUS_BASE)}{after}"


class OutputBuffer:
    """Beginning and end of an output, each half of what may be kept."""

    def __init__(self, most_bytes: int) -> None:
        self._head_bytes, self._tail_bytes = most_bytes - most_bytes // 2, most_bytes // 2
        self._head, self._tail = bytearray(), bytearray()
        self.total_bytes = 0
        """Bytes of the whole output, kept or not."""

    def append(self, piece: bytes) -> None:
        self.total_bytes += len(piece)
        room = self._head_bytes - len(self._head)
        self._head += piece[:room]
        self._tail += piece[room:]
        if (
            len(self._tail) > 2 * self._tail_bytes
        ):  # not at each piece: that would copy all of it each time
            del self._tail[: -self._tail_bytes]

    @property
    def dropped_bytes(self) -> int:
        """Number of bytes between the beginning and the end that are not kept."""
        return max(0, self.total_bytes - self._head_bytes - self._tail_bytes)

    def render(self) -> str:
        """Return the kept output as text, with a note where something is missing."""
        if not self.dropped_bytes:
            return strip_terminal_codes(bytes(self._head + self._tail))
        head, tail = (
            strip_terminal_codes(bytes(self._head)),
            strip_terminal_codes(bytes(self._tail[-self._tail_bytes :])),
        )
        return f"{head}\n[... {self.dropped_bytes} bytes are not kept ...]\n{tail}"


def _format_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return ""
    too_large = ": a file became larger than it may be" if number == signal.SIGXFSZ else ""
    return f" ({name}{too_large})"


def strip_terminal_codes(output: bytes) -> str:
    """Return what a terminal would finally show, in plain lines, without control sequences and
    overwritten text.
    """
    text = _SEQUENCE.sub("", output.decode("utf-8", "replace"))
    return clean_text("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")))


@frozen
class ShellCommand:
    """Command that is ready to start."""

    argv: tuple[str, ...]
    """The warden, and what it runs."""
    env: Mapping[str, str]
    directory: Path
    """Working directory, to which it writes."""
    config: BashConfig
    time_s: float


async def run_command(command: ShellCommand, kept: OutputBuffer) -> tuple[str, bool]:
    """Run a command to its end, or until it exceeds a limit. Its output goes to `kept` as it comes.
    Returns how it ended, in a few words, and whether it went well.

    However this ends, also when cancelled, everything that the command started has ended. Raises
    ProgramNotStarted.
    """
    async with contextlib.AsyncExitStack() as running:
        started = start_process(
            command.argv, env=command.env, cwd=command.directory, listens=True, stderr="join"
        )
        starting = asyncio.ensure_future(running.enter_async_context(started))
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(ProgramNotStarted):
                await _kill_all(await starting)  # by the warden, which knows all that has begun
            raise
        began = time.monotonic()
        exiting = asyncio.ensure_future(child.wait())
        reading = asyncio.ensure_future(_read_output(child, kept))
        watching = asyncio.ensure_future(watch_disk(command.config, command.directory))
        tasks = (exiting, reading, watching)
        try:
            await asyncio.wait(tasks, timeout=command.time_s, return_when=asyncio.FIRST_COMPLETED)
            over = next((one for one in (watching, reading) if one.done()), None)
            why = over.result() if over else f"its {command.time_s:g} s were over"
            why = "" if exiting.done() else why
            await _kill_all(child)
            await reading  # the last output
            status = child.status or 0
            why = why or ("it killed what watches over it" if status < 0 else "")
            return describe_end(status, why, time.monotonic() - began), not (status or why)
        finally:
            await _kill_all(child)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read_output(child: ChildProcess, kept: OutputBuffer) -> str:
    """Read the output. Return the reason to end the command, if it printed too much; else empty,
    after its end.
    """
    assert child.stdout is not None
    while piece := await child.stdout.read(READ_BYTES):
        kept.append(piece)
        if kept.total_bytes > MAX_PRINTED_BYTES:
            return f"it printed more than {MAX_PRINTED_BYTES // MB} MB; put such output into a file"
    await child.wait()
    return ""


async def _kill_all(child: ChildProcess) -> None:
    try:
        if child.status is None and child.stdin is not None:
            child.stdin.close()  # the warden knows all processes
            await asyncio.wait((asyncio.ensure_future(child.wait()),), timeout=KILL_WAIT_S)
    finally:
        if child.status is None:  # the warden hangs
            child.kill()
    await child.wait()


MAX_JOBS: Final = 4
"""Background jobs of an agent at once."""
MAX_ENDED_JOBS: Final = 8
"""Jobs that have ended and can still be read."""
MAX_COMMAND_CHARS: Final = 100
"""Characters of a command, where it is named."""

RUNNING: Final = "running"


@dataclass(slots=True, kw_only=True, eq=False)
class BackgroundJob:
    """Command that runs, or ran, beside the turns.

    It belongs to the conversation where it was started, and is invisible elsewhere; an owner alone
    sees all. There, too, it is invisible to those who may not read all that it could read.
    """

    name: str
    command: str
    agent: str
    at: Address
    began_s: float
    """Start on `Clock.monotonic`, in seconds."""
    output: OutputBuffer
    requesters: tuple[Requester, ...] = ()
    label: Label
    state: str = RUNNING
    task: asyncio.Task[None] = field(init=False)
    """Runs it, and reports its end."""

    def end(self, state: str = "killed") -> None:
        """Record how it ended, unless that is known."""
        if self.state == RUNNING:
            self.state = state

    def render(self) -> str:
        return (
            f"{self.name}: {self.state}: "
            f"{to_single_line(self.command[: 4 * MAX_COMMAND_CHARS], MAX_COMMAND_CHARS)}"
        )


MAX_COMMAND_BYTES: Final = 100_000
"""Limit of a command. Linux allows arguments of 131,072 bytes (MAX_ARG_STRLEN, execve(2))."""
END_GRACE_S: Final = 30.0
"""Seconds of a call beyond its command's time, until everything has ended."""
PROBE_TIMEOUT_S: Final = 10.0
MAX_ORIGIN_CHARS: Final = 200
SANDBOX_FIX: Final = (
    "the operator can install bubblewrap 0.7 or newer, allow user namespaces (sysctl "
    "user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), or set "
    "tools.bash.sandbox to off"
)


_Job = Annotated[str, Field(max_length=20, description="E.g. j1.")]


class Shell(Plugin):
    """Runs commands. After `stop` nothing of it runs."""

    name = "shell"
    summary = "runs commands in a sandbox, by the tool bash"
    requires = ("files",)
    watches = (RoleAssigned,)
    checks = "gateway.plugins.shell.check"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._clock, self._files = context.gateway.clock, context.files
        self._jobs = list[BackgroundJob]()
        self._counts = Counter[str]()
        """Jobs that were ever started, by agent."""
        self._closed = False
        context.gateway.live.on_change(lambda _: self.on_facts)
        self._works = False
        self._sandbox_error = ""
        """Reason why none works; empty: one does, or none was tried yet."""
        self._probe_lock = asyncio.Lock()

    @property
    def settings(self) -> BashConfig:
        """The section `tools.bash`. Running commands go on as they began; each call reads this
        once.
        """
        return self.context.gateway.live.settings.tools.bash

    @hook
    def on_facts(self) -> None:
        """Kill the jobs of people who are blocked now."""
        people = self.context.gateway.people
        for job in self._jobs:
            if job.state == RUNNING and are_blocked(people, job.at, job.requesters):
                job.task.cancel()

    async def stop(self) -> None:
        """Kill all jobs. None is reported."""
        self._closed = True
        await cancel_and_wait(*(job.task for job in self._jobs))

    def states(self) -> list[str]:
        return [f"bash: {self.describe()}"]

    def describe(self) -> str:
        """Describe in one sentence how commands run, for agents and people: the same for all of
        them.
        """
        config = self.settings
        if self._sandbox_error:
            return f"No command can be run here ({self._sandbox_error})."
        if config.sandbox == "off":
            place = "No sandbox"
        else:
            network = "with network" if config.network else "no network"
            place = f"Sandbox, {network}, /workspace writable, /files and /skills readable"
        return f"{place}, {config.timeout:g} s (at most {config.max_timeout:g} s)."

    def _describe_for_model(self) -> str | None:
        return None if self._sandbox_error else self.describe()

    def _max_call_s(self) -> float:
        return self.settings.max_timeout + END_GRACE_S

    async def _effect(self, _: ToolContext, **__: object) -> Effect:
        is_closed = self.settings.sandbox != "off" and not self.settings.network
        return (
            OWN if is_closed else OUT._replace(what="a command with network or without a sandbox")
        )

    @tool(
        "Run a shell command in your files (expensive). It has no input and no terminal; what it "
        "leaves running is ended with it.",
        ALLOW_ADMINS,
        effect=_effect,
        timeout_s=_max_call_s,
        polls=True,
        note=_describe_for_model,
    )
    async def bash(
        self,
        context: ToolContext,
        *,
        command: Annotated[
            str,
            Field(min_length=1, max_length=MAX_COMMAND_BYTES),
        ],
        timeout: Annotated[  # noqa: ASYNC109 - the model's word
            float | None,
            Field(gt=0, description="Seconds."),
        ] = None,
        background: Annotated[
            bool, Field(description="For long work: you are told when it has ended.")
        ] = False,
    ) -> str | ToolOutput:
        if len(command.encode()) > MAX_COMMAND_BYTES or "\0" in command:
            raise ToolCallRefused(
                "The command is too long, or holds a NUL: write it into a file and run that file."
            )
        config = self.settings
        time_s = (
            config.max_timeout if background else min(timeout or config.timeout, config.max_timeout)
        )
        view = await self._files.view(context)
        label = context.request.label | view.label
        kept = OutputBuffer(OUTPUT_BYTES)
        ready = await self._build_command(command, view, config, time_s)
        undo = self._files.undo_directory(context.agent)
        await run_in_thread(lambda _: keep_files(undo, context.turn, view.own))
        if background:
            job = self._start_job(command, ready, kept, context, label)
            return (
                f"Job {job.name} runs, for {time_s:g} s at most. You are told when it has ended; "
                "job_output reads it, jobs lists all, job_kill ends one."
            )
        try:
            state, _well = await run_command(ready, kept)
        except ProgramNotStarted as error:
            raise ToolCallRefused(f"{error}.") from None
        return self._build_output(state, kept.render(), command, label)

    def _build_output(self, state: str, text: str, command: str, label: Label) -> ToolOutput:
        origin = to_single_line(command[: 4 * MAX_ORIGIN_CHARS], MAX_ORIGIN_CHARS)
        if not text:  # nobody's words
            label = Label(readers=label.readers)
        text = f"[{state}]\n{text}" if text else f"[{state}, no output]"
        return ToolOutput(text=text, kind="command", origin=origin, is_untrusted=True, label=label)

    def _start_job(
        self,
        text: str,
        command: ShellCommand,
        kept: OutputBuffer,
        context: ToolContext,
        label: Label,
    ) -> BackgroundJob:
        """Start a command in the background. `text`: as the model wrote it. Raises
        ToolCallRefused.
        """
        if self._closed:
            raise ToolCallRefused(
                "Nothing can run in the background here; run it without `background`."
            )
        own = [job for job in self._jobs if job.agent == context.agent]
        running = sum(job.state == RUNNING for job in own)
        if running >= MAX_JOBS:
            raise ToolCallRefused(
                f"There are {running} jobs already, which is the limit: wait for one, or job_kill "
                "it."
            )
        ended = [job for job in own if job.task.done()]
        for job in ended[: max(0, len(ended) - MAX_ENDED_JOBS)]:
            self._jobs.remove(job)
        self._counts[context.agent] += 1
        job = BackgroundJob(
            name=f"j{self._counts[context.agent]}",
            command=text,
            agent=context.agent,
            at=context.at,
            began_s=self._clock.monotonic(),
            output=kept,
            requesters=context.requesters,
            label=label,
        )
        self._jobs.append(job)
        job.task = asyncio.create_task(self._run_job(job, command))
        job.task.add_done_callback(lambda _: job.end())  # also where it has not begun
        return job

    async def _run_job(self, job: BackgroundJob, command: ShellCommand) -> None:
        state, well = "broke (internal error)", False
        try:
            state, well = await run_command(command, job.output)
        except ProgramNotStarted as reason:
            state = str(reason)
        except Exception:
            logger.exception("job %s of %s broke", job.name, job.agent)
        job.end(state)
        now, text = self._clock.now(), f"Background job {job.render()}"
        event = TaskFinished(
            id=EventId(new_id(now)),
            what="job",
            ok=well,
            text=text,
            sent=now,
            agent=job.agent,
            at=job.at,
            integrity=job.label.integrity,
            readers=job.label.readers,
        )
        try:
            await self.context.internal.submit(event)
        except Exception:  # the log may fail: the shell goes on
            logger.exception("the end of job %s of %s cannot be told", job.name, job.agent)

    async def _list_visible(self, context: ToolContext) -> list[BackgroundJob]:
        """Return the jobs that may be shown there, oldest first."""
        return [one for one in [*self._jobs] if await self._is_visible(one, context)]

    async def _is_visible(self, job: BackgroundJob, context: ToolContext) -> bool:
        here, is_here = context.visibility, job.at.conversation == context.at.conversation
        if job.agent != context.agent or not (here.sees_everything or is_here):
            return False
        here = await self.context.gateway.places.with_memberships(here, job.label.readers)
        return here.can_read(job.label.readers)

    async def _find_job(self, name: str, context: ToolContext) -> BackgroundJob:
        """Return a visible job. Raises ToolCallRefused if there is none."""
        for job in await self._list_visible(context):
            if job.name == name.strip():
                return job
        raise ToolCallRefused("There is no such job here; `jobs` names them.")

    @tool(
        "List background jobs here.",
        ALLOW_ADMINS,
        effect=OWN,
        offer="unnamed",
        parallel=True,
        polls=True,
    )
    async def jobs(self, context: ToolContext) -> str:
        now_s = self._clock.monotonic()
        lines = [
            f"{job.render()} (begun {now_s - job.began_s:.0f} s ago)"
            for job in await self._list_visible(context)
        ]
        return "\n".join(lines) or "No jobs."

    @tool(
        "Read what a job has printed so far.",
        ALLOW_ADMINS,
        effect=OWN,
        offer="unnamed",
        parallel=True,
        polls=True,
    )
    async def job_output(
        self,
        context: ToolContext,
        *,
        job: _Job,
        tail: Annotated[
            int | None,
            Field(ge=1, le=10_000, description="Only so many last lines."),
        ] = None,
    ) -> ToolOutput:
        found = await self._find_job(job, context)
        text = found.output.render()
        if tail is not None:
            text = "\n".join(text.rstrip("\n").split("\n")[-tail:])
        return self._build_output(found.state, text, found.command, found.label)

    @tool("End a background job.", ALLOW_ADMINS, effect=OWN, offer="unnamed")
    async def job_kill(self, context: ToolContext, *, job: _Job) -> str:
        found = await self._find_job(job, context)
        if found.state != RUNNING:
            return f"{found.name} had ended already: {found.state}."
        found.task.cancel()
        await asyncio.wait((found.task,))
        return f"{found.name} is ended."

    async def _build_command(
        self, command: str, view: FilesView, config: BashConfig, time_s: float
    ) -> ShellCommand:
        areas = (view.own, *view.others)
        for area in areas:
            with area.root.open_directory(()):  # it exists then
                pass
            if os.geteuid() == 0:
                await asyncio.to_thread(_chown_to_nobody, area)
        root = view.own.root.path.absolute().resolve()
        if config.sandbox == "off":
            argv = build_unsandboxed_argv(command, config, root=os.geteuid() == 0, outer=WARDEN)
            env = build_environment(str(root))
            return ShellCommand(argv=argv, env=env, directory=root, config=config, time_s=time_s)
        shown = {
            "/".join((FILES_PREFIX, *area.directory)): area.root.path.absolute().resolve()
            for area in areas
        }
        async with self._probe_lock:
            if not self._works:
                self._sandbox_error = await self._probe_sandbox(root, config)
                self._works = not self._sandbox_error
        if self._sandbox_error:
            logger.warning("no command can be run: %s; %s", self._sandbox_error, SANDBOX_FIX)
            raise ToolCallRefused(
                f"No command can be run here ({self._sandbox_error}): {SANDBOX_FIX}."
            )
        skills = self.context.plugins.get(Skills.name)
        paths = await skills.paths(view.agent) if isinstance(skills, Skills) else ()
        return self._build_sandboxed(command, root, config, time_s, shown=shown, skills=paths)

    def _build_sandboxed(
        self,
        command: str,
        root: Path,
        config: BashConfig,
        time_s: float,
        *,
        shown: Mapping[str, Path] = MappingProxyType({}),
        skills: Sequence[Path] = (),
    ) -> ShellCommand:
        box = SandboxMounts(
            root=root,
            shown=shown,
            skills=tuple(path.resolve() for path in skills),
            hidden=tuple(
                dict.fromkeys(
                    path.resolve() for path in self._files.hidden_directories() if path.is_dir()
                )
            ),
        )
        # Only an owner sees all, and only owners see what is made there.
        # bwrap's own environment can be read inside, in /proc/1/environ.
        argv = build_sandboxed_argv(
            command,
            box,
            config,
            bwrap=_find_bwrap() or "bwrap",
            filter_file=filter_file(is_read_elsewhere=FILES_PREFIX not in shown),
            root=os.geteuid() == 0,
            outer=WARDEN,
        )
        return ShellCommand(
            argv=argv, env={"PATH": PATH}, directory=root, config=config, time_s=time_s
        )

    async def _probe_sandbox(self, root: Path, config: BashConfig) -> str:
        """Return why no sandbox works; empty: it does. A failed probe is repeated at the next
        command.
        """
        if _find_bwrap() is None:
            return "bubblewrap (bwrap) is not installed"
        try:
            filter_file(is_read_elsewhere=True)
        except OSError as error:
            return f"no seccomp filter can be built: {error}; {LIBRARY} has to be installed"
        kept = OutputBuffer(OUTPUT_BYTES)
        probe = self._build_sandboxed("true", root, config, PROBE_TIMEOUT_S)
        try:
            state, well = await run_command(probe, kept)
        except ProgramNotStarted as error:
            return str(error)
        why = to_single_line(kept.render(), MAX_ORIGIN_CHARS) or state
        return "" if well else f"the sandbox does not work: {why}"


WARDEN: Final = (
    sys.executable,
    "-I",
    "-S",
    warden.__file__,
    *((warden.OWN_USERS,) if os.geteuid() == 0 else ()),
)
"""Program and arguments before a command. Of a gateway that runs as root: in a user namespace of
its own."""


def _chown_to_nobody(area: FilesArea) -> None:
    """Give the files of an area to `nobody`, as whom commands of a gateway that runs as root run.

    Links are not followed, and files of other users stay theirs.
    """
    path = area.root.path
    for one in path.parents[: len(area.directory)]:
        os.chown(one, NOBODY, NOBODY)
    for _, _, files, folder in os.fwalk(path, follow_symlinks=False):
        for name in (".", *files):
            with contextlib.suppress(
                FileNotFoundError
            ):  # a command that runs beside this one has removed it
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == 0:
                    os.chown(name, NOBODY, NOBODY, dir_fd=folder, follow_symlinks=False)


def _find_bwrap() -> str | None:
    return shutil.which("bwrap", path=PATH) or shutil.which("bwrap")
