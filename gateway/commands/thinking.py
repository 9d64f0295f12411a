"""The commands about what the agent thinks with, and that have it leave off: `/stop` and `/model`."""

from collections.abc import Mapping

from gateway.choice import ConfiguredModel, ModelChoiceRequest
from gateway.choosing import ModelSelector
from gateway.commands.parse import find_nearest
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import MessageId
from gateway.stopping import NOTHING_RUNNING, TurnStopper

MAX_NAME_CHARS = 60
"""Of a name that is not there, which are shown."""
MAX_SUGGESTED_NAMES = 3
"""Names that are shown where none is near."""


class ModelCommands:
    """The handlers."""

    def __init__(self, stopping: TurnStopper, choosing: ModelSelector) -> None:
        self._canceller = stopping
        self._model_choice = choosing

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the command's name, and its sub."""
        return {
            "stop": self.stop,
            "model list": self.list_models,
            "model switch": self.switch,
            "model reset": self.reset,
        }

    async def stop(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Leave off what is done here."""
        change = await self._canceller.plan_stop(ask.command.at, ask.person)
        return CommandReply(text=change.answer, effect=change, ok=change.answer != NOTHING_RUNNING)

    async def list_models(self, _ask: CommandCall, _world: CommandContext) -> str:
        """Every model that is configured."""
        return "\n".join(f"- {_format_model(one)}" for one in self._model_choice.list_models())

    async def switch(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Think with another one."""
        name, known = ask.arguments["name"].strip(), {one.name: one for one in self._model_choice.list_models()}
        if name not in known:
            meant = find_nearest(name, list(known)) or list(known)[:MAX_SUGGESTED_NAMES]
            there = " or ".join(f"`{_escape_code(one)}`" for one in meant)
            text = (
                f"There is no model `{_escape_code(name[:MAX_NAME_CHARS])}`. Did you mean {there}? `model "
                "list` shows all."
            )
            return CommandReply(text=text, ok=False)
        return self._choose(ask, name)

    async def reset(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Think with what the configuration says."""
        return self._choose(ask, "")

    def _choose(self, ask: CommandCall, name: str) -> CommandReply:
        command, before = (
            ask.command,
            self._model_choice.wanted_model(self._model_choice.agent_id_for(ask.command.at.conversation)),
        )
        wish = ModelChoiceRequest(
            name=name,
            at=command.at,
            by=ask.person,
            reply_to=MessageId(command.id) if command.origin == "text" else None,
        )
        change = self._model_choice.choose(wish)
        known = {one.name: one for one in self._model_choice.list_models()}
        more = ""
        if change.facts and name in known and known[name].context_tokens < known[before].context_tokens:
            more = f" Its window is smaller, {known[name].context_tokens:,} tokens: what does not fit is folded."
        return CommandReply(text=change.answer + more, effect=change)


def _format_model(one: ConfiguredModel) -> str:
    called = f" `{_escape_code(one.model_name)}`" if one.model_name else ""
    told = [
        f"`{_escape_code(one.name)}`: {one.kind}{called}",
        f"a window of {one.context_tokens:,} tokens, answers up to {one.max_output_tokens:,}",
        "price known" if one.has_price else "price not known",
    ]
    if one.takes_images:
        told.append("sees images")
    if one.fallbacks:
        told.append(f"falls back to {', '.join(f'`{_escape_code(name)}`' for name in one.fallbacks)}")
    if one.used_by:
        told.append(f"in use by {', '.join(f'`{_escape_code(agent)}`' for agent in one.used_by)}")
    return "; ".join(told)


def _escape_code(text: str) -> str:
    """Text that cannot end the code it stands in."""
    return " ".join(text.split()).replace("`", "'")
