"""What the tools are called that agents have, but those of servers. Pure."""

from itertools import chain
from typing import Final

from agent.models.base import ToolSpec
from agent.tools import evidence, files, mind, notes, remind, rooms, shell, skills, web

TOOL_NAMES: Final = tuple(
    sorted(
        value.name
        for value in chain.from_iterable(
            vars(family).values() for family in (evidence, files, mind, notes, remind, rooms, shell, skills, web)
        )
        if isinstance(value, ToolSpec)
    )
)
"""Sorted. Those that end a turn are no tools that could be off."""
