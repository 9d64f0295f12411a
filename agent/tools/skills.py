"""Instructions for certain tasks: what a model is told of reading them. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool

MAX_SKILL_PATH_CHARS: Final = 400


class LoadSkillArgs(ToolArguments):
    """What `load_skill` takes."""

    name: Annotated[str, Field(min_length=1, max_length=64, description="As the catalogue of skills names it.")]
    file: Annotated[
        str,
        Field(max_length=MAX_SKILL_PATH_CHARS, description="Another file or folder of the skill, e.g. examples/a.md."),
    ] = ""


LOAD_SKILL = define_tool(
    "load_skill",
    "Read a skill: the instructions for a task, or another of its files.",
    LoadSkillArgs,
    parallel=True,
)
