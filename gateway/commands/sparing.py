"""The commands that have a model asked: refused where somebody asks for more than they may."""

from collections.abc import Callable, Mapping

from gateway.commands import context
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import Address, Sender


class SparingCommands:
    """Stand in front of those that do it."""

    def __init__(self, over: Callable[[Address, Sender, str, str], str], agent_of: Callable[[Address], str]) -> None:
        """`over`: as `gateway.limits.limits.Limits.over`. `agent_of`: whose conversation it is."""
        self._over, self._agent_of = over, agent_of

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By the names of their commands."""
        return {"retry": self.retry, "compact": self.compact}

    async def retry(self, ask: Ask, world: World) -> Answer:
        """As `context.retry`."""
        return self._find_refusal(ask) or await context.retry(ask, world)

    async def compact(self, ask: Ask, world: World) -> Answer:
        """As `context.compact`."""
        return self._find_refusal(ask) or await context.compact(ask, world)

    def _find_refusal(self, ask: Ask) -> Answer | None:
        at = ask.command.at
        why = self._over(at, ask.command.sender, ask.role, self._agent_of(at))
        return Answer(text=why, ok=False) if why else None
