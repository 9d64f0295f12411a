"""The commands that change what the agent sees of a conversation."""

from gateway.commands.world import Answer, Ask, World
from gateway.events import MessageId
from gateway.rewinding import BUSY, MOST_EXCHANGES, What, counted
from gateway.rewinds import Wish


async def new(ask: Ask, world: World) -> Answer:
    """Nothing of what was said there until now is in view any more."""
    answer = await _change("new", ask, world)
    if world.approvals is not None and answer.text != BUSY:
        world.approvals.reset_conversation(ask.command.at.conversation)
    return answer


async def retry(ask: Ask, world: World) -> Answer:
    """What was answered last is answered again."""
    return await _change("retry", ask, world)


async def rewind(ask: Ask, world: World) -> Answer:
    """The newest exchanges there are taken back."""
    count = counted(ask.arguments.get("n", ""))
    if count is None:
        return Answer(text=f"Write how many exchanges I am to take back: a number from 1 to {MOST_EXCHANGES}.")
    return await _change("rewind", ask, world, count)


async def compact(ask: Ask, world: World) -> Answer:
    """The view there is made smaller; what came of it is told in a post of its own."""
    return await _change("compact", ask, world)


async def _change(what: What, ask: Ask, world: World, count: int = 1) -> Answer:
    command = ask.command
    wish = Wish(
        action=what,
        at=command.at,
        by=f"{command.at.channel}:{command.sender.id}",
        count=count,
        is_direct=command.direct,
        is_trusted=ask.role in ("owner", "admin"),
        reply_to=MessageId(command.id) if command.origin == "text" else None,
    )
    change = await world.rewinds.plan(wish)
    return Answer(text=change.answer, effect=change)
