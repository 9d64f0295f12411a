"""Broken channels, continued: those that lie in what they show one person and nobody else.

Each is put only before adapters that have the ability.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from channels.base import CommandCompleter, CommandCompletion
from gateway.core.events import RoomId, Sender, SenderId
from tests.channels.conformance.broken_channels import Twin

Offered = Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]


class SuggestsNothing(Twin):
    def set_completer(self, suggest: CommandCompleter) -> None:
        del suggest


class ChangesWhatIsTyped(Twin):
    def changed(self, typed: CommandCompletion) -> CommandCompletion:
        raise NotImplementedError

    def set_completer(self, suggest: CommandCompleter) -> None:
        async def asked(typed: CommandCompletion) -> Sequence[str]:
            return await suggest(self.changed(typed))

        self._real.set_completer(asked)  # type: ignore[attr-defined] # it can, or has no twin


class ForgetsWhatIsBegun(ChangesWhatIsTyped):
    def changed(self, typed: CommandCompletion) -> CommandCompletion:
        return replace(typed, prefix="")


class TakesTypistsForAnother(ChangesWhatIsTyped):
    def changed(self, typed: CommandCompletion) -> CommandCompletion:
        return replace(typed, sender=replace(typed.sender, id=SenderId("somebody")))


class SuggestsAsInARoom(ChangesWhatIsTyped):
    def changed(self, typed: CommandCompletion) -> CommandCompletion:
        return replace(typed, direct=False)


class GivesUpAfterTrouble(Twin):
    """The trouble of one goes on to all that come behind it."""

    def set_completer(self, suggest: CommandCompleter) -> None:
        broken = False

        async def asked(typed: CommandCompletion) -> Sequence[str]:
            nonlocal broken
            if broken:
                return []
            try:
                return await suggest(typed)
            except LookupError:
                broken = True
                raise

        self._real.set_completer(asked)  # type: ignore[attr-defined] # the same


class OffersNothing(Twin):
    async def set_command_menus(self, to: Offered) -> None:
        del to


class OffersAllToEverybody(Twin):
    async def set_command_menus(self, to: Offered) -> None:
        await self._real.set_command_menus([(sender, "owner") for sender, _ in to])  # type: ignore[attr-defined] # the same


class NeverTakesBack(Twin):
    _offered: Offered = ()

    async def set_command_menus(self, to: Offered) -> None:
        self._offered = [*to, *self._offered]
        await self._real.set_command_menus(self._offered)  # type: ignore[attr-defined] # the same


class WhispersAloud(Twin):
    def direct_room(self, sender: Sender) -> RoomId:
        del sender
        return RoomId("#other")


class WhispersToAnother(Twin):
    def direct_room(self, sender: Sender) -> RoomId:
        del sender
        return RoomId("bob!bob@test.host")


class WhispersToWhoeverHasTheNick(Twin):
    def direct_room(self, sender: Sender) -> RoomId:
        return RoomId(sender.name)


class ForgetsAccounts(Twin):
    def direct_room(self, sender: Sender) -> RoomId:
        return RoomId(f"{sender.name}!{sender.name}@test.host")


ASIDES: Mapping[type[Twin], str] = {
    SuggestsNothing: "it_completes",
    ForgetsWhatIsBegun: "it_completes",
    TakesTypistsForAnother: "it_completes",
    SuggestsAsInARoom: "it_completes",
    GivesUpAfterTrouble: "it_completes",
    OffersNothing: "it_offers",
    OffersAllToEverybody: "it_offers",
    NeverTakesBack: "it_offers",
    WhispersAloud: "it_whispers",
    WhispersToAnother: "it_whispers",
    WhispersToWhoeverHasTheNick: "it_whispers",
    ForgetsAccounts: "it_whispers",
}
"""Each with the check that finds it out."""
