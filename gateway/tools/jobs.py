"""What an agent's shell does in the background. It ends with the gateway, and nothing of it is in the log."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from agent.journal import to_single_line
from agent.tools.schema import ToolCallRefused
from gateway.clock import Clock
from gateway.events import Address
from gateway.hands import Requester, ToolContext
from gateway.process import ProgramNotStarted
from gateway.tools.output import OutputBuffer, ShellResult

logger = logging.getLogger("reverie.tools.jobs")

MAX_ENDED_JOBS: Final = 8
"""So many that have ended may still be read."""
MAX_COMMAND_CHARS: Final = 100
"""Of a command, where it is named."""

RUNNING: Final = "running"

JobFinishedListener = Callable[[str, Address, str, bool], Awaitable[None]]
"""Is told of a job's end: whose it was, where it belongs, what came of it in one line, and whether it went well."""


@dataclass(slots=True, kw_only=True)
class BackgroundJob:
    """One command that runs, or ran, beside the turns."""

    name: str
    command: str
    agent: str
    at: Address
    began_s: float
    """`Clock.monotonic`."""
    output: OutputBuffer
    requesters: tuple[Requester, ...] = ()
    """Who asked for it."""
    state: str = RUNNING
    """In a few words."""

    def render(self) -> str:
        return f"{self.name}: {self.state}: {to_single_line(self.command[: 4 * MAX_COMMAND_CHARS], MAX_COMMAND_CHARS)}"


class BackgroundJobs:
    """All of an agent's. A job belongs to the conversation that it was started in: elsewhere there is no such job."""

    def __init__(self, most: int, clock: Clock, finished: JobFinishedListener | None = None) -> None:
        """`most`: at once. `finished`: not called for those that were killed."""
        self.max_running = most
        """May be another from some moment on."""
        self._clock = clock
        self._on_finished = finished
        self._jobs: dict[str, BackgroundJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Of those that run, or whose end is being told."""
        self._count = 0
        self._closed = False

    def start(
        self,
        command: str,
        run: Callable[[OutputBuffer], Awaitable[ShellResult]],
        kept: OutputBuffer,
        where: ToolContext,
    ) -> BackgroundJob:
        """Let a command run on. Raises Refused."""
        if self._closed or not self.max_running:
            raise ToolCallRefused("Nothing can run in the background here; run it without `background`.")
        running = [job for job in self._jobs.values() if job.state == RUNNING]
        if len(running) >= self.max_running:
            raise ToolCallRefused(
                f"There are {len(running)} jobs already, and no more may be: wait for one, or job_kill it."
            )
        ended = [name for name, job in self._jobs.items() if job.state != RUNNING]
        for name in ended[: max(0, len(ended) - MAX_ENDED_JOBS)]:
            del self._jobs[name]
        self._count += 1
        job = BackgroundJob(
            name=f"j{self._count}",
            command=command,
            agent=where.agent,
            at=where.at,
            began_s=self._clock.monotonic(),
            output=kept,
            requesters=where.requesters,
        )
        self._jobs[job.name] = job
        task = self._tasks[job.name] = asyncio.create_task(self._run(job, run))
        task.add_done_callback(lambda _: self._on_done(job))
        return job

    def list_visible(self, where: ToolContext) -> list[tuple[BackgroundJob, float]]:
        """Those that may be told of there, and how many seconds ago they began, oldest first."""
        now = self._clock.monotonic()
        return [(job, now - job.began_s) for job in self._jobs.values() if _is_visible(job, where)]

    def find(self, name: str, where: ToolContext) -> BackgroundJob:
        """Raises Refused."""
        job = self._jobs.get(name.strip())
        if job is None or not _is_visible(job, where):
            raise ToolCallRefused("There is no such job here; `jobs` names them.")
        return job

    async def kill(self, job: BackgroundJob) -> bool:
        """End it. Returns whether it was still running."""
        if job.state != RUNNING:
            return False
        task = self._tasks[job.name]
        task.cancel()
        await asyncio.wait((task,))
        return True

    async def kill_matching(self, theirs: Callable[[BackgroundJob], bool]) -> None:
        """End all of somebody's. None is reported."""
        for job in [one for one in self._jobs.values() if theirs(one)]:
            await self.kill(job)

    async def aclose(self) -> None:
        """End all of them. None is reported."""
        self._closed = True
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, job: BackgroundJob, run: Callable[[OutputBuffer], Awaitable[ShellResult]]) -> None:
        well = False
        try:
            ended = await run(job.output)
            job.state, well = ended.render(), not (ended.status or ended.end_reason)
        except ProgramNotStarted as reason:
            job.state = str(reason)
        except Exception:
            logger.exception("job %s of %s broke", job.name, job.agent)
            job.state = "broke (internal error)"
        await self._report(job, well)

    def _on_done(self, job: BackgroundJob) -> None:
        """Also of one that was cancelled before it began."""
        del self._tasks[job.name]
        if job.state == RUNNING:
            job.state = "killed"

    async def _report(self, job: BackgroundJob, well: bool) -> None:
        if self._on_finished is None:
            return
        try:
            await self._on_finished(job.agent, job.at, f"Background job {job.render()}", well)
        except Exception:  # whoever is told may break: the shell goes on
            logger.exception("the end of job %s of %s cannot be told", job.name, job.agent)


def _is_visible(job: BackgroundJob, where: ToolContext) -> bool:
    return where.visibility.sees_everything or job.at.conversation == where.at.conversation
