"""The shell, and what runs in the background, as a model is told of them. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool

MAX_COMMAND_BYTES: Final = 100_000
"""Linux takes arguments of 131,072 bytes at most (MAX_ARG_STRLEN, execve(2))."""
MAX_TAIL_LINES: Final = 10_000

_JobField = Annotated[str, Field(max_length=20, description="As `bash` named it, e.g. j1.")]


class BashArgs(ToolArguments):
    """What `bash` takes."""

    command: Annotated[str, Field(min_length=1, max_length=MAX_COMMAND_BYTES, description="For `bash -c`.")]
    timeout: Annotated[
        float | None, Field(gt=0, description="Seconds, if the usual time will not do; long work belongs in the back.")
    ] = None
    background: Annotated[bool, Field(description="Answer at once and let it run; you are told when it has ended.")] = (
        False
    )


class JobsArgs(ToolArguments):
    """What `jobs` takes: nothing."""


class JobOutputArgs(ToolArguments):
    """What `job_output` takes."""

    job: _JobField
    tail: Annotated[
        int | None, Field(ge=1, le=MAX_TAIL_LINES, description="Only so many of its last lines; left out: all.")
    ] = None


class JobKillArgs(ToolArguments):
    """What `job_kill` takes."""

    job: _JobField


BASH = define_tool(
    "bash",
    "Run a command in your files, and read its output and exit status. It has no input and no terminal; each command "
    "begins anew, and whatever it leaves running is ended with it.",
    BashArgs,
    task=True,
    polls=True,
)
JOBS = define_tool("jobs", "List what you run in the background here.", JobsArgs, parallel=True, polls=True)
JOB_OUTPUT = define_tool(
    "job_output", "Read what a background job has written so far.", JobOutputArgs, task=True, parallel=True, polls=True
)
JOB_KILL = define_tool("job_kill", "End a background job.", JobKillArgs, task=True)
SHELL_TOOLS: Final = (BASH, JOBS, JOB_OUTPUT, JOB_KILL)
