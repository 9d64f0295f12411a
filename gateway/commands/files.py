"""`files`: bring back what the agent changed in its files of a conversation."""

from typing import Final

from gateway.access.approval_texts import inline_code
from gateway.commands.context import CommandCall, CommandContext, CommandReply, agent_of, find_visibility
from gateway.commands.definition import CommandDefinition, SubcommandDefinition
from gateway.core.facts import TurnId
from gateway.core.i18n import _
from gateway.core.tool import ToolContext, run_in_thread
from gateway.core.tool_spec import ToolCallRefused
from gateway.tools.undo import undo_files

MAX_NAMES: Final = 10


async def undo_turn(call: CommandCall, context: CommandContext) -> CommandReply:
    """Bring back what the newest turn changed in the files of this conversation."""
    agent, sight = agent_of(call, context), await find_visibility(call, context)
    turn = ToolContext(turn=TurnId(""), agent=agent, at=call.command.at, visibility=sight, autonomous=False)
    area, folder, now = (await context.files.view(turn)).own, context.files.undo_directory(agent), context.clock.now()
    try:
        done = await run_in_thread(lambda _: undo_files(folder, area, now))
    except (OSError, ToolCallRefused) as error:
        return CommandReply(text=_("The files cannot be read: {error}").format(error=inline_code(str(error))), ok=False)
    if done is None:
        return CommandReply(text=_("In the last day I changed no file of this conversation."), ok=False)
    lines = [
        f"{title} {', '.join(inline_code(area.name(parts)) for parts in found[:MAX_NAMES])}"
        + (_(" and {count} more").format(count=len(found) - MAX_NAMES) if len(found) > MAX_NAMES else "")
        for title, found in ((_("Brought back:"), done.restored), (_("Not brought back:"), done.failed))
        if found
    ]
    began = _("What I changed in my turn of {time:%Y-%m-%d %H:%M} UTC is undone.").format(time=done.began)
    return CommandReply(text="\n".join([began, *(lines or [_("No file has another content now.")])]))


COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    CommandDefinition(
        name="files",
        group="this conversation",
        summary="Bring back files that I changed or deleted here in the last day.",
        role="admin",
        allowed_in_own_chat=True,
        needs_gateway=True,
        default_sub="undo",
        subs=(
            SubcommandDefinition(
                name="undo",
                summary="Undo what my last turn did to the files here. Again: the turn before it.",
                handler=undo_turn,
            ),
        ),
    ),
)
"""The rows of this file."""
