"""Which places a command's answer may name to whoever asks."""

from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

from gateway.commands.world import Ask
from gateway.events import Address, ConversationId
from gateway.records import is_inner
from gateway.scopes import Sight
from gateway.titles import Titles
from gateway.tools.consent import PLACE_CHARS, code

MOST_SUGGESTED: Final = 25
SUGGESTED_CHARS: Final = 100
"""As `channels.base.Suggest` has it."""


class Homes(Protocol):
    """Who knows places: `gateway.places.Places`."""

    @property
    def titles(self) -> Titles:
        """What places are called."""

    async def scope(self, conversation: ConversationId) -> str:
        """Who may be told what is said there."""

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Sight:
        """What a turn there may see."""


def sees_all(ask: Ask) -> bool:
    """Whether it is an owner, alone with the agent."""
    return ask.command.direct and ask.global_role == "owner"


async def sight_of(ask: Ask, places: Homes) -> Sight:
    """What may be told where it is asked. A direct chat is private whatever was heard there before."""
    here, everything = ask.command.at.conversation, sees_all(ask)
    if ask.command.direct:
        return Sight(scope=here, is_private=True, sees_everything=everything)
    return await places.visibility(here, everything=everything)


async def hidden(ask: Ask, places: Homes, named: Iterable[ConversationId]) -> frozenset[ConversationId]:
    """Which of these conversations may not be named where it is asked, because others could read it there."""
    if sees_all(ask):
        return frozenset()
    sight = await sight_of(ask, places)
    others = [place for place in dict.fromkeys(named) if not is_inner(place)]
    return frozenset([place for place in others if not sight.can_see(await places.scope(place))])


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
