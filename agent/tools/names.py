"""Names of all tools of agents, those of servers apart. Pure."""

from typing import Final

from agent.tools.evidence import FETCH_EVIDENCE
from agent.tools.files import FILE_TOOLS
from agent.tools.mind import AUTONOMY_TOOLS
from agent.tools.notes import FORGET, NOTE_TOOLS
from agent.tools.remind import CANCEL_REMINDER, LIST_REMINDERS, REMIND
from agent.tools.rooms import PLATFORM_TOOLS
from agent.tools.shell import SHELL_TOOLS
from agent.tools.skills import LOAD_SKILL
from agent.tools.web import WEB_TOOLS

ALL_TOOLS: Final = (
    FETCH_EVIDENCE,
    *FILE_TOOLS,
    *AUTONOMY_TOOLS,
    *NOTE_TOOLS,
    FORGET,
    REMIND,
    LIST_REMINDERS,
    CANCEL_REMINDER,
    *PLATFORM_TOOLS,
    *SHELL_TOOLS,
    LOAD_SKILL,
    *WEB_TOOLS,
)
"""Every tool but those that end a turn."""
TOOL_NAMES: Final = tuple(sorted(spec.name for spec in ALL_TOOLS))
"""Sorted. Those that end a turn are no tools that could be off."""
