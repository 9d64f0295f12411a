"""Instructions for certain tasks: what a model is told of reading them. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import Arguments, spec

MAX_FILE_CHARS: Final = 400


class LoadSkill(Arguments):
    """What `load_skill` takes."""

    name: Annotated[str, Field(min_length=1, max_length=64, description="As the catalogue of skills names it.")]
    file: Annotated[
        str,
        Field(max_length=MAX_FILE_CHARS, description="Another file or folder of the skill, e.g. examples/a.md."),
    ] = ""


LOAD_SKILL = spec(
    "load_skill",
    "Read a skill: the instructions for a task, or another of its files.",
    LoadSkill,
    parallel=True,
)
