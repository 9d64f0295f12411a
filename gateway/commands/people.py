"""The commands about people: who is let in, where I may speak, who may do what, who is whom.

What they change are facts. Who is to be told of it, and what is to be entered and left, follows when those are written
(`gateway.roster.letters`).
"""

from collections.abc import Mapping

from gateway.commands.letting import PairingCommands
from gateway.commands.persons import PeopleContext
from gateway.commands.roles import RoleCommands
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.roster.linking import AccountClaim


class PeopleCommands:
    """Answers all of them."""

    def __init__(self, persons: PeopleContext) -> None:
        self._people = persons
        self._others = (*PairingCommands(persons).handlers.items(), *RoleCommands(persons).handlers.items())

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name, and by name and sub: `pair list`."""
        return {
            **dict(self._others),
            "link start": self._link_start,
            "link code": self._link_code,
            "link list": self._link_list,
            "link remove": self._link_remove,
        }

    async def _link_start(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.start_link(_build_claim(ask)))

    async def _link_code(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.submit_code(_build_claim(ask), ask.arguments["code"]))

    async def _link_list(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.list_accounts(_build_claim(ask)))

    async def _link_remove(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.unlink(_build_claim(ask), ask.arguments["account"]))


def _build_claim(ask: CommandCall) -> AccountClaim:
    sender = ask.command.sender
    return AccountClaim(ask.person, sender.name, ask.command.at, sender.verified, ask.role)
