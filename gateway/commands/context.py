"""The commands that change what the agent sees of a conversation."""

from gateway.commands.world import CommandCall, CommandContext, CommandReply
from gateway.events import MessageId
from gateway.rewinding import MOST_EXCHANGES, TURN_RUNNING, RewindAction, parse_count
from gateway.rewinds import RewindRequest


async def handle_new(ask: CommandCall, world: CommandContext) -> CommandReply:
    """Nothing of what was said there until now is in view any more."""
    answer = await _change_view("new", ask, world)
    if world.approvals is not None and answer.text != TURN_RUNNING:
        world.approvals.reset_conversation(ask.command.at.conversation)
    return answer


async def handle_retry(ask: CommandCall, world: CommandContext) -> CommandReply:
    """What was answered last is answered again."""
    return await _change_view("retry", ask, world)


async def handle_rewind(ask: CommandCall, world: CommandContext) -> CommandReply:
    """The newest exchanges there are taken back."""
    count = parse_count(ask.arguments.get("n", ""))
    if count is None:
        return CommandReply(text=f"Write how many exchanges I am to take back: a number from 1 to {MOST_EXCHANGES}.")
    return await _change_view("rewind", ask, world, count)


async def handle_compact(ask: CommandCall, world: CommandContext) -> CommandReply:
    """The view there is made smaller; what came of it is told in a post of its own."""
    return await _change_view("compact", ask, world)


async def _change_view(what: RewindAction, ask: CommandCall, world: CommandContext, count: int = 1) -> CommandReply:
    command = ask.command
    wish = RewindRequest(
        action=what,
        at=command.at,
        by=f"{command.at.channel}:{command.sender.id}",
        count=count,
        is_direct=command.direct,
        is_trusted=ask.role in ("owner", "admin"),
        reply_to=MessageId(command.id) if command.origin == "text" else None,
    )
    change = await world.rewinds.plan(wish)
    return CommandReply(text=change.answer, effect=change)
