"""The commands by which admins say a word to calls of tools that wait for one."""

from gateway.changes import Change
from gateway.commands.world import Answer, Ask, World
from gateway.ops.report import span
from gateway.records import Verdict
from gateway.tools import consent
from gateway.tools.consent import Approver
from gateway.tools.deciding import Deciding

LISTED_CHARS = 200
"""Of arguments, in the list: the notice shows them whole."""
NONE = "No tool waits for approvals."


async def approve(ask: Ask, world: World) -> Answer:
    """Let one go ahead, or tell what waits."""
    if world.approvals is None:
        return Answer(text=NONE)
    if "id" not in ask.arguments:
        return Answer(text=await _listed(world.approvals, _approver(ask)))
    match ask.arguments.get("lasting"):
        case "session":
            return await _decide(world.approvals, ask, "session")
        case "always":
            return await _decide(world.approvals, ask, "always")
        case _:
            return await _decide(world.approvals, ask, "once")


async def deny(ask: Ask, world: World) -> Answer:
    """Refuse one."""
    return Answer(text=NONE) if world.approvals is None else await _decide(world.approvals, ask, "denied")


async def revoke(ask: Ask, world: World) -> Answer:
    """Take back what was approved for longer."""
    if world.approvals is None:
        return Answer(text=NONE)
    return _answer(await world.approvals.revoke(_approver(ask), ask.arguments["tool"]))


async def _decide(deciding: Deciding, ask: Ask, verdict: Verdict) -> Answer:
    return _answer(await deciding.decide(_approver(ask), ask.arguments["id"].strip("`").lower(), verdict))


def _answer(change: Change) -> Answer:
    return Answer(text=change.answer, effect=change)


def _approver(ask: Ask) -> Approver:
    command = ask.command
    return Approver(
        at=command.at, sender=command.sender.id, role=ask.role, is_direct=command.direct, global_role=ask.global_role
    )


async def _listed(deciding: Deciding, approver: Approver) -> str:
    waiting = [
        f"- `{one.request.approval}`: {consent.code(one.request.tool)} in turn {consent.code(one.request.turn)}, "
        f"for {span(one.remaining_s)} more: {consent.code(one.request.arguments, LISTED_CHARS)}"
        for one in deciding.list_waiting(approver)
    ]
    granted = [
        f"- {consent.code(one.tool)} of {consent.code(one.agent)} in "
        f"{consent.code(one.conversation, consent.PLACE_CHARS)}, {lasting}"
        for one, lasting in (await deciding.list_grants(approver)).items()
    ]
    lines = ["Waiting here:", *waiting] if waiting else ["Nothing waits for an approval here."]
    if approver.global_role in consent.APPROVERS:
        for one in deciding.definitions.list_pending():
            lines += ["", one.describe(), f"`approve {one.code}` turns it on."]
    return "\n".join([*lines, *(["", "Approved for more than a call:", *granted] if granted else [])])
