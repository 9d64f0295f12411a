"""The commands by which admins say a word to calls of tools that wait for one."""

from gateway.changes import CommandEffect
from gateway.commands.world import CommandCall, CommandContext, CommandReply
from gateway.ops.report import format_duration
from gateway.records import ApprovalVerdict
from gateway.tools import consent
from gateway.tools.consent import Approver
from gateway.tools.deciding import ApprovalDecisions

MAX_ARGUMENTS_CHARS = 200
"""Of arguments, in the list: the notice shows them whole."""
NO_APPROVALS = "No tool waits for approvals."


async def handle_approve(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Let one go ahead, or tell what waits."""
    if world.approvals is None:
        return CommandReply(text=NO_APPROVALS)
    if "id" not in ask.arguments:
        return CommandReply(text=await _render_approvals(world.approvals, _build_approver(ask)))
    match ask.arguments.get("lasting"):
        case "session":
            return await _decide(world.approvals, ask, "session")
        case "always":
            return await _decide(world.approvals, ask, "always")
        case _:
            return await _decide(world.approvals, ask, "once")


async def handle_deny(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Refuse one."""
    return CommandReply(text=NO_APPROVALS) if world.approvals is None else await _decide(world.approvals, ask, "denied")


async def handle_revoke(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Take back what was approved for longer."""
    if world.approvals is None:
        return CommandReply(text=NO_APPROVALS)
    return _build_reply(await world.approvals.revoke(_build_approver(ask), ask.arguments["tool"]))


async def _decide(deciding: ApprovalDecisions, ask: CommandCall, verdict: ApprovalVerdict) -> CommandReply:
    return _build_reply(await deciding.decide(_build_approver(ask), ask.arguments["id"].strip("`").lower(), verdict))


def _build_reply(change: CommandEffect) -> CommandReply:
    return CommandReply(text=change.answer, effect=change)


def _build_approver(ask: CommandCall) -> Approver:
    command = ask.command
    return Approver(
        at=command.at, sender=command.sender.id, role=ask.role, is_direct=command.direct, global_role=ask.global_role
    )


async def _render_approvals(deciding: ApprovalDecisions, approver: Approver) -> str:
    waiting = [
        f"- `{one.request.approval}`: {consent.inline_code(one.request.tool)} in turn "
        f"{consent.inline_code(one.request.turn)}, "
        f"for {format_duration(one.remaining_s)} more: "
        f"{consent.inline_code(one.request.arguments, MAX_ARGUMENTS_CHARS)}"
        for one in deciding.list_waiting(approver)
    ]
    granted = [
        f"- {consent.inline_code(one.tool)} of {consent.inline_code(one.agent)} in "
        f"{consent.inline_code(one.conversation, consent.PLACE_CHARS)}, {lasting}"
        for one, lasting in (await deciding.list_grants(approver)).items()
    ]
    lines = ["Waiting here:", *waiting] if waiting else ["Nothing waits for an approval here."]
    if approver.global_role in consent.APPROVER_ROLES:
        for one in deciding.definitions.list_pending():
            lines += ["", one.describe(), f"`approve {one.code}` turns it on."]
    return "\n".join([*lines, *(["", "Approved for more than a call:", *granted] if granted else [])])
