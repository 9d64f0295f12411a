"""Reminders, as a model is told of them. Pure."""

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool


class RemindArgs(ToolArguments):
    """What is to come back, and when."""

    text: str = Field(description="What to be reminded of, in one line of at most 500 characters.")
    at: str = Field(
        default="",
        description="When: 2026-11-22T09:00 (with or without an offset), 18:30, tomorrow 9:00, or in 2h30m.",
    )
    every: str = Field(
        default="", description="To repeat: how long between two times, e.g. 90 min or 1 day. The first time is `at`."
    )
    cron: str = Field(
        default="",
        description="To repeat by the calendar, without `at` and `every`: minute, hour, day of the month, month and "
        "day of the week, e.g. 0 9 * * 1-5.",
    )
    timezone: str = Field(default="", description="Of `at` or `cron`, e.g. Europe/Zurich; left out: the operator's.")


class ListRemindersArgs(ToolArguments):
    """Those of this place."""


class CancelReminderArgs(ToolArguments):
    """Which one."""

    id: str = Field(description="As list_reminders and remind name it.")


REMIND = define_tool(
    "remind",
    "Set a reminder: when its time comes, you are told its text here and can act on it. Give `at`, `every` or `cron`.",
    RemindArgs,
)
LIST_REMINDERS = define_tool(
    "list_reminders",
    "List the reminders of this conversation that are still to come.",
    ListRemindersArgs,
    parallel=True,
)
CANCEL_REMINDER = define_tool("cancel_reminder", "Cancel a reminder of this conversation.", CancelReminderArgs)
