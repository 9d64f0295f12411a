"""Which of the operator's bindings is for which conversation. Pure: the first match wins."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.signals import ArrivalPolicy
from gateway.attention import ListenMode
from gateway.events import Address, ChannelName


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationBinding:
    """Which agent lives in a conversation, and how it behaves there."""

    listen: ListenMode
    agent: str = ""
    """Whose conversation it is."""
    prompt: str = ""
    language: str | None = None
    private: bool | None = None
    """True: what is said there is told nowhere else. False: everybody may be told. None: as the platform says."""
    arrivals: ArrivalPolicy = "steer"
    """What becomes of a running turn when somebody speaks to the agent there."""
    skills: tuple[str, ...] | None = None
    """Those that are for there. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingPattern:
    """Which conversations: globs over the parts of an address. None for `thread`: any and none."""

    channel: str
    room: str
    thread: str | None
    binding: ConversationBinding


UNBOUND = ConversationBinding(listen="off")


class Bindings:
    """All bindings of all agents, in the operator's order."""

    def __init__(self, patterns: Sequence[BindingPattern]) -> None:
        self._patterns = tuple(patterns)

    def update(self, other: "Bindings") -> None:
        """Be those from now on. Returns at once."""
        self._patterns = other._patterns  # noqa: SLF001 - its own kind

    def snapshot(self) -> "Bindings":
        """As they are, and stay."""
        return Bindings(self._patterns)

    def find(self, place: Address) -> ConversationBinding:
        """The first that matches; nothing is listened to where none does."""
        for pattern in self._patterns:
            if (
                _matches(place.channel, pattern.channel)
                and _matches(place.room, pattern.room)
                and (pattern.thread is None or _matches(place.thread or "", pattern.thread))
            ):
                return pattern.binding
        return UNBOUND

    def find_agent(self, channel: ChannelName) -> str:
        """Whose account that is: the agent of the first pattern for that channel, whatever its rooms. "": nobody's."""
        found = (pattern.binding.agent for pattern in self._patterns if _matches(channel, pattern.channel))
        return next(found, "")


def _matches(name: str, pattern: str) -> bool:
    # A name may hold what a glob gives a meaning: `#[foo]` is a room.
    return name == pattern or fnmatchcase(name, pattern)
