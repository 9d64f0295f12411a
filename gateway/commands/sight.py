"""Which places a command's answer may name to whoever asks."""

from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

from gateway.commands.world import Ask
from gateway.events import Address, ConversationId
from gateway.records import is_inner
from gateway.tools.consent import PLACE_CHARS, code

MOST_SUGGESTED: Final = 25
SUGGESTED_CHARS: Final = 100
"""As `channels.base.Suggest` has it."""


class Homes(Protocol):
    """Who knows places: `gateway.places.Places`."""

    async def private(self, conversation: ConversationId) -> bool:
        """Whether what is said there is told nowhere else."""


def sees_all(ask: Ask) -> bool:
    """Whether it is an owner, alone with the agent."""
    return ask.command.direct and ask.everywhere == "owner"


async def hidden(ask: Ask, places: Homes, named: Iterable[ConversationId]) -> frozenset[ConversationId]:
    """Which of these conversations are private, and may not be named to whoever asks."""
    if sees_all(ask):
        return frozenset()
    here = ask.command.at.conversation
    return frozenset([place for place in dict.fromkeys(named) if place != here and await places.private(place)])


def place_of(conversation: ConversationId) -> str:
    """For people."""
    if is_inner(conversation):
        return f"{code(Address.parse(conversation).room)} by itself"
    return code(conversation, PLACE_CHARS)


def matching(found: Iterable[str], begun: str) -> list[str]:
    """What may be meant by what somebody has begun to write, as suggestions."""
    meant = begun.strip(" `").casefold()
    return list(
        islice((one for one in found if meant in one.casefold() and len(one) <= SUGGESTED_CHARS), MOST_SUGGESTED)
    )
