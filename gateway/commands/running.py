"""The commands about what runs: connecting a channel anew, and reading the configuration again."""

from collections.abc import Mapping

from channels.text import single_line
from gateway.changes import CommandEffect
from gateway.commands.later import CommandFollowUp
from gateway.commands.parse import find_nearest
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import ChannelName
from gateway.live import LiveSettings
from gateway.ops.stats import GatewayStats
from gateway.reloading import ReloadResult
from gateway.runner import ChannelSupervisor, RestartResult
from gateway.store import AppendResult
from gateway.tools.consent import inline_code

MAX_REASON_CHARS = 300
MAX_KEYS = 40
MAX_PROBLEMS = 20


class OperationsCommands:
    """`restart` and `reload`."""

    def __init__(
        self, *, runner: ChannelSupervisor, stats: GatewayStats, live: LiveSettings, later: CommandFollowUp
    ) -> None:
        self._runner, self._stats, self._live, self._later = runner, stats, live, later

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of the table."""
        return {"restart": self.restart, "reload": self.reload}

    async def restart(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Cut a channel and connect it again; what came of it is told later if it is not up, or if nobody would see."""
        written = ask.arguments["channel"].strip("`")
        names = [one.channel for one in self._stats.snapshot().channels]
        found = [name for name in names if name.casefold() == written.casefold()]
        if not found:
            meant = " or ".join(map(inline_code, find_nearest(written, names) or names))
            return CommandReply(text=f"I have no channel {inline_code(written)}: there is {meant}.", ok=False)
        (name,) = found
        if self._runner.is_restarting(name):
            return CommandReply(text=f"{inline_code(name)} is being restarted already.", ok=False)
        words = f"I disconnect {inline_code(name)} and connect it again. If that does not work, I say so here."
        return CommandReply(
            text=words, effect=CommandEffect(answer=words, settle=lambda asked: self._begin_restart(ask, name, asked))
        )

    def _begin_restart(self, ask: CommandCall, name: ChannelName, asked: AppendResult | None) -> None:
        if asked is None or not asked.is_new:
            return

        async def told(came: RestartResult) -> None:
            if words := _render_restart(name, came):
                await self._later.send(ask.command, asked.seq, words, private=True)

        self._runner.start_restart(name, f"restarted by {ask.person}", told)

    async def reload(self, _ask: CommandCall, _world: CommandContext) -> CommandReply:
        """Read the configuration again, and tell what changed: keys and places, never values."""
        came = await self._live.reload()
        return CommandReply(text="\n".join(_render_reload(came)), ok=not (came.problems or came.read_error))


def _render_restart(name: ChannelName, came: RestartResult) -> str:
    reason = inline_code(came.reason, MAX_REASON_CHARS)
    match came.state:
        case "refused":
            return f"{inline_code(name)} is refused, and stays off: {reason}."
        case "down":
            return f"{inline_code(name)} is not connected yet: {reason}. It goes on trying."
        case _:
            return ""


def _render_reload(came: ReloadResult) -> list[str]:
    if came.read_error:
        return [
            f"I cannot read the configuration: {inline_code(came.read_error, MAX_REASON_CHARS)}. What I had goes on."
        ]
    if came.problems:
        shown = [
            f"- {inline_code(single_line(str(one), MAX_REASON_CHARS), MAX_REASON_CHARS)}"
            for one in came.problems[:MAX_PROBLEMS]
        ]
        more = len(came.problems) - len(shown)
        rest = [f"- and {more} more; `reverie check-config` shows all."] if more else []
        return ["The configuration is broken, so what I had goes on:", *shown, *rest]
    lines = [f"Changed from now on: {_format_keys(came.applied)}."] if came.applied else []
    lines += [f"Changed, but only after a restart: {_format_keys(came.after_restart)}."] if came.after_restart else []
    return lines or ["The configuration says what it said before."]


def _format_keys(keys: tuple[str, ...]) -> str:
    shown = ", ".join(inline_code(key, MAX_REASON_CHARS) for key in keys[:MAX_KEYS])
    return f"{shown} and {len(keys) - MAX_KEYS} more" if len(keys) > MAX_KEYS else shown
