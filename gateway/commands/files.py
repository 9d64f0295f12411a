"""`files`: bring back what the agent changed in its files of a conversation."""

from typing import Final

from gateway.access.approval_texts import inline_code
from gateway.commands.context import CommandCall, CommandContext, agent_of, find_visibility
from gateway.commands.definition import command
from gateway.core.facts import TurnId
from gateway.core.i18n import _
from gateway.core.tool import ToolContext, run_in_thread
from gateway.core.tool_spec import ToolCallRefused
from gateway.store.effects import CommandEffect, done, refuse
from gateway.tools.undo import undo_files

MAX_NAMES: Final = 10


command(
    "files",
    "Bring back files that I changed or deleted here in the last day.",
    group="this conversation",
    role="admin",
    allowed_in_own_chat=True,
    needs_gateway=True,
    default_sub="undo",
).declare()


@command("files undo", "Undo what my last turn did to the files here. Again: the turn before it.")
async def undo_turn(call: CommandCall, context: CommandContext) -> CommandEffect:
    agent, sight = agent_of(call, context), await find_visibility(call, context)
    turn = ToolContext(
        turn=TurnId(""), agent=agent, at=call.command.at, visibility=sight, autonomous=False
    )
    area, folder, now = (
        (await context.files.view(turn)).own,
        context.files.undo_directory(agent),
        context.clock.now(),
    )
    try:
        undone = await run_in_thread(lambda _: undo_files(folder, area, now))
    except (OSError, ToolCallRefused) as error:
        return refuse(_("The files cannot be read: {error}").format(error=inline_code(str(error))))
    if undone is None:
        return refuse(_("In the last day I changed no file of this conversation."))
    lines = [
        f"{title} {', '.join(inline_code(area.name(parts)) for parts in found[:MAX_NAMES])}"
        + (
            _(" and {count} more").format(count=len(found) - MAX_NAMES)
            if len(found) > MAX_NAMES
            else ""
        )
        for title, found in (
            (_("Brought back:"), undone.restored),
            (_("Not brought back:"), undone.failed),
        )
        if found
    ]
    began = _("What I changed in my turn of {time:%Y-%m-%d %H:%M} UTC is undone.").format(
        time=undone.began
    )
    return done("\n".join([began, *(lines or [_("No file has another content now.")])]))
