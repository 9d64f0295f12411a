"""Ways to end a turn that are not a reply."""

from agent.models.base import ToolSpec

STAY_SILENT = ToolSpec(
    name="stay_silent",
    description="End this turn without posting anything, because nothing needs to be said.",
    schema='{"additionalProperties":false,"properties":{},"type":"object"}',
    is_task=False,
)
YIELD_TO_USER = ToolSpec(
    name="yield_to_user",
    description="End this turn and rest until somebody speaks to you. Text written beside this call is posted.",
    schema='{"additionalProperties":false,"properties":{},"type":"object"}',
    is_task=False,
)
ENDING_TOOLS = (STAY_SILENT, YIELD_TO_USER)
