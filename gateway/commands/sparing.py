"""The commands that have a model asked: refused where somebody asks for more than they may."""

from collections.abc import Callable, Mapping

from gateway.commands import context
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import Address, Sender


class LimitedModelCommands:
    """Stand in front of those that do it."""

    def __init__(self, over: Callable[[Address, Sender, str, str], str], agent_of: Callable[[Address], str]) -> None:
        """`over`: as `gateway.limits.limits.UsageLimiter.over`. `agent_of`: whose conversation it is."""
        self._over, self._agent_of = over, agent_of

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of their commands."""
        return {"retry": self.retry, "compact": self.compact}

    async def retry(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """As `context.retry`."""
        return self._find_refusal(ask) or await context.handle_retry(ask, world)

    async def compact(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """As `context.compact`."""
        return self._find_refusal(ask) or await context.handle_compact(ask, world)

    def _find_refusal(self, ask: CommandCall) -> CommandReply | None:
        at = ask.command.at
        why = self._over(at, ask.command.sender, ask.role, self._agent_of(at))
        return CommandReply(text=why, ok=False) if why else None
