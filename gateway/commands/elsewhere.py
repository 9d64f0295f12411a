"""`why` and `usage`: what they may tell of other places than the one where they are asked."""

from collections.abc import Mapping

from gateway.commands import handlers
from gateway.commands.log import ASIDE, about
from gateway.commands.sight import Homes, hidden, sees_all
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import ConversationId
from gateway.standing import ADMINS


class ElsewhereCommands:
    """Stand in front of those that do it. Of other places they tell who administers everywhere, alone with the agent.

    Of private ones only owners.
    """

    def __init__(self, places: Homes) -> None:
        self._places = places

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By the names of their commands."""
        return {"why": self.why, "usage": self.usage}

    async def why(self, ask: Ask, world: World) -> str | Answer:
        """As `handlers.why_`, of an entry that may be shown."""
        number = int(ask.arguments["entry"])
        entry = await world.reader.entry(number)
        if entry is None or not ask.command.direct or entry.conversation == ask.command.at.conversation:
            return await handlers.why_(ask, world)
        names_all = entry.kind in ASIDE and not sees_all(ask)
        if ask.global_role not in ADMINS or names_all or await hidden(ask, self._places, about(entry)):
            return Answer(text=f"Entry {number} is of a conversation that you may not see.", ok=False)
        return await handlers.story(world, number)

    async def usage(self, ask: Ask, world: World) -> str:
        """As `handlers.usage`, without the names of private conversations."""

        async def named(places: list[ConversationId]) -> list[ConversationId]:
            unseen = await hidden(ask, self._places, places)
            return [place for place in places if place not in unseen]

        return await handlers.usage(ask, world, named)
