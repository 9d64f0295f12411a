"""Which places a command's answer may name to whoever asks."""

from collections.abc import Iterable
from itertools import islice
from typing import Final, Protocol

from gateway.commands.world import CommandCall
from gateway.events import Address, ConversationId
from gateway.records import is_inner
from gateway.scopes import Visibility
from gateway.titles import PlaceTitles
from gateway.tools.consent import PLACE_CHARS, inline_code

MAX_SUGGESTIONS: Final = 25
MAX_SUGGESTION_CHARS: Final = 100
"""As `channels.base.CommandCompleter` has it."""


class ConversationPrivacy(Protocol):
    """Who knows places: `gateway.places.PrivacyCache`."""

    @property
    def titles(self) -> PlaceTitles:
        """What places are called."""

    async def scope(self, conversation: ConversationId) -> str:
        """Who may be told what is said there."""

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Visibility:
        """What a turn there may see."""


def sees_everything(ask: CommandCall) -> bool:
    """Whether it is an owner, alone with the agent."""
    return ask.command.direct and ask.global_role == "owner"


async def find_visibility(ask: CommandCall, places: ConversationPrivacy) -> Visibility:
    """What may be told where it is asked. A direct chat is private whatever was heard there before."""
    here, everything = ask.command.at.conversation, sees_everything(ask)
    if ask.command.direct:
        return Visibility(scope=here, is_private=True, sees_everything=everything)
    return await places.visibility(here, everything=everything)


async def find_hidden(
    ask: CommandCall, places: ConversationPrivacy, named: Iterable[ConversationId]
) -> frozenset[ConversationId]:
    """Which of these conversations may not be named where it is asked, because others could read it there."""
    if sees_everything(ask):
        return frozenset()
    sight = await find_visibility(ask, places)
    others = [place for place in dict.fromkeys(named) if not is_inner(place)]
    return frozenset([place for place in others if not sight.can_see(await places.scope(place))])


def format_place(conversation: ConversationId) -> str:
    """For people."""
    if is_inner(conversation):
        return f"{inline_code(Address.parse(conversation).room)} by itself"
    return inline_code(conversation, PLACE_CHARS)


def match_suggestions(found: Iterable[str], begun: str) -> list[str]:
    """What may be meant by what somebody has begun to write, as suggestions."""
    meant = begun.strip(" `").casefold()
    return list(
        islice((one for one in found if meant in one.casefold() and len(one) <= MAX_SUGGESTION_CHARS), MAX_SUGGESTIONS)
    )
