"""What a configuration that is read again changes: what counts at once, and what only after a restart. Pure.

Everything counts from the next message on but what stands in `RESTART`. Keys are named, never what they say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

from gateway.fields import Section
from gateway.records import OPERATOR
from gateway.settings import Settings
from gateway.settings_source import Problem

T = TypeVar("T")
Pattern = tuple[str, ...]

RESTART: Final[Mapping[str, str]] = {
    "store": "the log is open, and everything that goes on is written there",
    "ops": "whoever watches the gateway would lose sight of it",
    "agents.*.workspace": "what an agent has written down lies beside it, and is taken up at a start",
    "agents.*.files": "what runs in an agent's shell runs there",
    "tools.mcp": "these are programs that run, and turns under way have been told of their tools",
}
"""Keys, `*` for any name, with why they cannot be changed meanwhile. Nor can agents come or go: each has a state of its
own, which is read from the log at a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """What came of reading the configuration again: keys and places, never values."""

    applied: tuple[str, ...] = ()
    """What counts from now on."""
    after_restart: tuple[str, ...] = ()
    """What is written and counts after a restart only."""
    problems: tuple[Problem, ...] = ()
    """Everything to mend; until then what was read before goes on."""
    read_error: str = ""
    """Why it could not be read. Empty: it could."""

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        if self.read_error:
            return (f"The configuration cannot be read: {self.read_error}. What there was goes on.",)
        if self.problems:
            return ("The configuration is broken, and what there was goes on:", *map(str, self.problems))
        told = [f"Changed from now on: {', '.join(self.applied)}."] if self.applied else []
        told += [f"Changed, but only after a restart: {', '.join(self.after_restart)}."] if self.after_restart else []
        return tuple(told) or ("The configuration says what it said before.",)

    def __str__(self) -> str:
        """In a line, for the log."""
        if self.read_error:
            return f"the configuration cannot be read just now, and goes on as it was: {self.read_error}"
        if self.problems:
            return "the configuration is broken, and goes on as it was: " + "; ".join(map(str, self.problems))
        told = [f"from now on: {', '.join(self.applied)}"] if self.applied else []
        told += [f"only after a restart: {', '.join(self.after_restart)}"] if self.after_restart else []
        return f"the configuration was read again; {'; '.join(told) or 'it says what it said before'}"


def in_force(running: Settings, read: Settings) -> Settings:
    """What counts once `read` is taken: all of it but what needs a restart, which stays as it runs."""
    there = {agent.id: agent for agent in running.agents}
    agents = [
        _kept(there[agent.id], agent, _below(_PATTERNS, "agents", "*")) for agent in read.agents if agent.id in there
    ]
    gone = [agent for agent in running.agents if agent.id not in {one.id for one in read.agents}]
    return _kept(running, read, _PATTERNS).model_copy(update={"agents": (*agents, *gone)})


def compared(running: Settings, read: Settings) -> Reloaded:
    """What taking `read` means."""
    now = in_force(running, read)
    return Reloaded(applied=_differing(running, now), after_restart=_differing(now, read))


def unfit(running: Settings, read: Settings) -> tuple[Problem, ...]:
    """What of `read` cannot be beside what stays as it runs."""
    found = [
        Problem(
            "", 0, "llm.models", f"the agent {agent.id} runs until a restart and thinks with {agent.model}; keep that"
        )
        for agent in in_force(running, read).agents
        if agent.model not in read.llm.models
    ]
    if running.ops.token is not None and OPERATOR in read.channels:  # whoever speaks there is an owner
        told = "until a restart the operator's own channel has that name; write another one, or start anew"
        found.append(Problem("", 0, f"channels.{OPERATOR}", told))
    return tuple(found)


def placed(problem: Problem, lines: Mapping[str, tuple[str, int]]) -> Problem:
    """With the file and line of its key, or of the nearest above that is written."""
    key = problem.key
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    file, line = lines.get(key, ("", 0))
    return problem if problem.file else replace(problem, file=file, line=line)


def _kept(old: T, new: T, patterns: Sequence[Pattern]) -> T:
    """`new`, with what needs a restart as in `old`."""
    if () in patterns:
        return old
    names = {pattern[0] for pattern in patterns}
    if isinstance(old, Section) and isinstance(new, Section):
        update = {
            name: _kept(getattr(old, name), getattr(new, name), _below(patterns, name))
            for name in names & type(new).model_fields.keys() & type(old).model_fields.keys()
        }
        return cast("T", new.model_copy(update=update))
    return new


def _below(patterns: Sequence[Pattern], *names: str) -> list[Pattern]:
    return [pattern[len(names) :] for pattern in patterns if pattern[: len(names)] == names]


_PATTERNS: Final[Sequence[Pattern]] = [tuple(key.split(".")) for key in RESTART]


def _told(settings: Settings) -> dict[str, object]:
    """By key; agents by their ids."""
    dumped = settings.model_dump()
    return dumped | {"agents": {agent["id"]: agent for agent in dumped["agents"]}}


def _differing(old: Settings, new: Settings) -> tuple[str, ...]:
    """The keys under which they say something else, as an operator would write them."""
    found = tuple(_differences(_told(old), _told(new)))
    both = [
        [one.id for one in some.agents if one.id in {other.id for other in more.agents}]
        for some, more in ((old, new), (new, old))
    ]
    return found if both[0] == both[1] else (*found, "agents")


def _differences(old: object, new: object, at: str = "") -> Iterator[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield at
        return
    for key in sorted(old.keys() | new.keys(), key=str):
        yield from _differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))
