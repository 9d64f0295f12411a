"""`why` and `usage`: what they may tell of other places than the one where they are asked."""

from collections.abc import Mapping

from gateway.commands import handlers
from gateway.commands.log import SAVED_STATE_KINDS, find_entry_places
from gateway.commands.sight import ConversationPrivacy, find_hidden, sees_everything
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import ConversationId
from gateway.standing import ADMIN_ROLES


class CrossRoomCommands:
    """Stand in front of those that do it. Of other places they tell who administers everywhere, alone with the agent.

    Of private ones only owners.
    """

    def __init__(self, places: ConversationPrivacy) -> None:
        self._places = places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of their commands."""
        return {"why": self.why, "usage": self.usage}

    async def why(self, ask: CommandCall, world: CommandContext) -> str | CommandReply:
        """As `handlers.why_`, of an entry that may be shown."""
        number = int(ask.arguments["entry"])
        entry = await world.reader.entry(number)
        if entry is None or not ask.command.direct or entry.conversation == ask.command.at.conversation:
            return await handlers.handle_why(ask, world)
        names_all = entry.kind in SAVED_STATE_KINDS and not sees_everything(ask)
        if (
            ask.global_role not in ADMIN_ROLES
            or names_all
            or await find_hidden(ask, self._places, find_entry_places(entry))
        ):
            return CommandReply(text=f"Entry {number} is of a conversation that you may not see.", ok=False)
        return await handlers.render_trace(world, number)

    async def usage(self, ask: CommandCall, world: CommandContext) -> str:
        """As `handlers.usage`, without the names of private conversations."""

        async def named(places: list[ConversationId]) -> list[ConversationId]:
            unseen = await find_hidden(ask, self._places, places)
            return [place for place in places if place not in unseen]

        return await handlers.handle_usage(ask, world, named)
