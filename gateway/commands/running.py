"""The commands about what runs: connecting a channel anew, and reading the configuration again."""

from collections.abc import Mapping

from channels.text import line
from gateway.changes import Change
from gateway.commands.later import Later
from gateway.commands.parse import nearest
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import ChannelName
from gateway.live import Live, Reloaded
from gateway.ops.stats import Stats
from gateway.runner import Restarted, Runner
from gateway.store import Appended
from gateway.tools.consent import code

REASON_CHARS = 300
MOST_KEYS = 40
MOST_PROBLEMS = 20


class RunningCommands:
    """`restart` and `reload`."""

    def __init__(self, *, runner: Runner, stats: Stats, live: Live, later: Later) -> None:
        self._runner, self._stats, self._live, self._later = runner, stats, live, later

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By the names of the table."""
        return {"restart": self.restart, "reload": self.reload}

    async def restart(self, ask: Ask, _world: World) -> Answer:
        """Cut a channel and connect it again; what came of it is told later if it is not up, or if nobody would see."""
        written = ask.arguments["channel"].strip("`")
        names = [one.channel for one in self._stats.snapshot().channels]
        found = [name for name in names if name.casefold() == written.casefold()]
        if not found:
            meant = " or ".join(map(code, nearest(written, names) or names))
            return Answer(text=f"I have no channel {code(written)}: there is {meant}.", ok=False)
        (name,) = found
        if self._runner.is_restarting(name):
            return Answer(text=f"{code(name)} is being restarted already.", ok=False)
        words = f"I disconnect {code(name)} and connect it again. If that does not work, I say so here."
        return Answer(
            text=words, effect=Change(answer=words, settle=lambda asked: self._begin_restart(ask, name, asked))
        )

    def _begin_restart(self, ask: Ask, name: ChannelName, asked: Appended | None) -> None:
        if asked is None or not asked.is_new:
            return

        async def told(came: Restarted) -> None:
            if words := _words(name, came):
                await self._later.send(ask.command, asked.seq, words, private=True)

        self._runner.start_restart(name, f"restarted by {ask.person}", told)

    async def reload(self, _ask: Ask, _world: World) -> Answer:
        """Read the configuration again, and tell what changed: keys and places, never values."""
        came = await self._live.reload()
        return Answer(text="\n".join(_told(came)), ok=not (came.problems or came.read_error))


def _words(name: ChannelName, came: Restarted) -> str:
    reason = code(came.reason, REASON_CHARS)
    match came.state:
        case "refused":
            return f"{code(name)} is refused, and stays off: {reason}."
        case "down":
            return f"{code(name)} is not connected yet: {reason}. It goes on trying."
        case _:
            return ""


def _told(came: Reloaded) -> list[str]:
    if came.read_error:
        return [f"I cannot read the configuration: {code(came.read_error, REASON_CHARS)}. What I had goes on."]
    if came.problems:
        shown = [f"- {code(line(str(one), REASON_CHARS), REASON_CHARS)}" for one in came.problems[:MOST_PROBLEMS]]
        more = len(came.problems) - len(shown)
        rest = [f"- and {more} more; `reverie check-config` shows all."] if more else []
        return ["The configuration is broken, so what I had goes on:", *shown, *rest]
    lines = [f"Changed from now on: {_keys(came.applied)}."] if came.applied else []
    lines += [f"Changed, but only after a restart: {_keys(came.after_restart)}."] if came.after_restart else []
    return lines or ["The configuration says what it said before."]


def _keys(keys: tuple[str, ...]) -> str:
    shown = ", ".join(code(key, REASON_CHARS) for key in keys[:MOST_KEYS])
    return f"{shown} and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else shown
