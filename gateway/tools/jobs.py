"""What an agent's shell does in the background. It ends with the gateway, and nothing of it is in the log."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from agent.journal import flat
from agent.tools.schema import Refused
from gateway.clock import Clock
from gateway.events import Address
from gateway.hands import Asker, Whereabouts
from gateway.process import NotStarted
from gateway.tools.output import Ended, Kept

logger = logging.getLogger("reverie.tools.jobs")

MOST_ENDED: Final = 8
"""So many that have ended may still be read."""
MAX_COMMAND_CHARS: Final = 100
"""Of a command, where it is named."""

RUNNING: Final = "running"

Finished = Callable[[str, Address, str, bool], Awaitable[None]]
"""Is told of a job's end: whose it was, where it belongs, what came of it in one line, and whether it went well."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One command that runs, or ran, beside the turns."""

    name: str
    command: str
    agent: str
    at: Address
    began_s: float
    """`Clock.monotonic`."""
    output: Kept
    requesters: tuple[Asker, ...] = ()
    """Who asked for it."""
    state: str = RUNNING
    """In a few words."""

    def render(self) -> str:
        return f"{self.name}: {self.state}: {flat(self.command[: 4 * MAX_COMMAND_CHARS], MAX_COMMAND_CHARS)}"


class Jobs:
    """All of an agent's. A job belongs to the conversation that it was started in: elsewhere there is no such job."""

    def __init__(self, most: int, clock: Clock, finished: Finished | None = None) -> None:
        """`most`: at once. `finished`: not called for those that were killed."""
        self.max_running = most
        """May be another from some moment on."""
        self._clock = clock
        self._on_finished = finished
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Of those that run, or whose end is being told."""
        self._count = 0
        self._closed = False

    def start(self, command: str, run: Callable[[Kept], Awaitable[Ended]], kept: Kept, where: Whereabouts) -> Job:
        """Let a command run on. Raises Refused."""
        if self._closed or not self.max_running:
            raise Refused("Nothing can run in the background here; run it without `background`.")
        running = [job for job in self._jobs.values() if job.state == RUNNING]
        if len(running) >= self.max_running:
            raise Refused(f"There are {len(running)} jobs already, and no more may be: wait for one, or job_kill it.")
        ended = [name for name, job in self._jobs.items() if job.state != RUNNING]
        for name in ended[: max(0, len(ended) - MOST_ENDED)]:
            del self._jobs[name]
        self._count += 1
        job = Job(
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

    def list_visible(self, where: Whereabouts) -> list[tuple[Job, float]]:
        """Those that may be told of there, and how many seconds ago they began, oldest first."""
        now = self._clock.monotonic()
        return [(job, now - job.began_s) for job in self._jobs.values() if _theirs(job, where)]

    def find(self, name: str, where: Whereabouts) -> Job:
        """Raises Refused."""
        job = self._jobs.get(name.strip())
        if job is None or not _theirs(job, where):
            raise Refused("There is no such job here; `jobs` names them.")
        return job

    async def kill(self, job: Job) -> bool:
        """End it. Returns whether it was still running."""
        if job.state != RUNNING:
            return False
        task = self._tasks[job.name]
        task.cancel()
        await asyncio.wait((task,))
        return True

    async def kill_matching(self, theirs: Callable[[Job], bool]) -> None:
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

    async def _run(self, job: Job, run: Callable[[Kept], Awaitable[Ended]]) -> None:
        well = False
        try:
            ended = await run(job.output)
            job.state, well = ended.render(), not (ended.status or ended.end_reason)
        except NotStarted as reason:
            job.state = str(reason)
        except Exception:
            logger.exception("job %s of %s broke", job.name, job.agent)
            job.state = "broke (internal error)"
        await self._report(job, well)

    def _on_done(self, job: Job) -> None:
        """Also of one that was cancelled before it began."""
        del self._tasks[job.name]
        if job.state == RUNNING:
            job.state = "killed"

    async def _report(self, job: Job, well: bool) -> None:
        if self._on_finished is None:
            return
        try:
            await self._on_finished(job.agent, job.at, f"Background job {job.render()}", well)
        except Exception:  # whoever is told may break: the shell goes on
            logger.exception("the end of job %s of %s cannot be told", job.name, job.agent)


def _theirs(job: Job, where: Whereabouts) -> bool:
    return where.visibility.sees_everything or job.at.conversation == where.at.conversation
