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
    if world.deciding is None:
        return Answer(text=NONE)
    if "id" not in ask.given:
        return Answer(text=await _listed(world.deciding, _approver(ask)))
    match ask.given.get("lasting"):
        case "session":
            return await _decide(world.deciding, ask, "session")
        case "always":
            return await _decide(world.deciding, ask, "always")
        case _:
            return await _decide(world.deciding, ask, "once")


async def deny(ask: Ask, world: World) -> Answer:
    """Refuse one."""
    return Answer(text=NONE) if world.deciding is None else await _decide(world.deciding, ask, "denied")


async def revoke(ask: Ask, world: World) -> Answer:
    """Take back what was approved for longer."""
    if world.deciding is None:
        return Answer(text=NONE)
    return _answer(await world.deciding.revoke(_approver(ask), ask.given["tool"]))


async def _decide(deciding: Deciding, ask: Ask, verdict: Verdict) -> Answer:
    return _answer(await deciding.decide(_approver(ask), ask.given["id"].strip("`").lower(), verdict))


def _answer(change: Change) -> Answer:
    return Answer(text=change.words, change=change)


def _approver(ask: Ask) -> Approver:
    command = ask.command
    return Approver(
        at=command.at, sender=command.sender.id, role=ask.role, direct=command.direct, everywhere=ask.everywhere
    )


async def _listed(deciding: Deciding, approver: Approver) -> str:
    waiting = [
        f"- `{one.asked.approval}`: {consent.code(one.asked.tool)} in turn {consent.code(one.asked.turn)}, "
        f"for {span(one.left_s)} more: {consent.code(one.asked.arguments, LISTED_CHARS)}"
        for one in deciding.waiting(approver)
    ]
    granted = [
        f"- {consent.code(one.tool)} of {consent.code(one.agent)} in "
        f"{consent.code(one.conversation, consent.PLACE_CHARS)}, {lasting}"
        for one, lasting in (await deciding.granted(approver)).items()
    ]
    lines = ["Waiting here:", *waiting] if waiting else ["Nothing waits for an approval here."]
    if approver.everywhere in consent.APPROVERS:
        for one in deciding.definitions.waiting():
            lines += ["", one.describe(), f"`approve {one.code}` turns it on."]
    return "\n".join([*lines, *(["", "Approved for more than a call:", *granted] if granted else [])])
