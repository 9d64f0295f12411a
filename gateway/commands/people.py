"""The commands about people: who is let in, where I may speak, who may do what, who is whom.

What they change are facts. Who is to be told of it, and what is to be entered and left, follows when those are written
(`gateway.roster.letters`).
"""

from collections.abc import Mapping

from gateway.commands.letting import LettingCommands
from gateway.commands.persons import Persons
from gateway.commands.roles import RoleCommands
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.roster.linking import Claim

__all__ = ["PeopleCommands", "Persons"]


class PeopleCommands:
    """Answers all of them."""

    def __init__(self, persons: Persons) -> None:
        self._people = persons
        self._others = (*LettingCommands(persons).handlers.items(), *RoleCommands(persons).handlers.items())

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name, and by name and sub: `pair list`."""
        return {
            **dict(self._others),
            "link start": self._link_start,
            "link code": self._link_code,
            "link list": self._link_list,
            "link remove": self._link_remove,
        }

    async def _link_start(self, ask: Ask, _world: World) -> Answer:
        return self._people.build_reply(self._people.linking.start_link(_claim(ask)))

    async def _link_code(self, ask: Ask, _world: World) -> Answer:
        return self._people.build_reply(self._people.linking.submit_code(_claim(ask), ask.arguments["code"]))

    async def _link_list(self, ask: Ask, _world: World) -> Answer:
        return self._people.build_reply(self._people.linking.list_accounts(_claim(ask)))

    async def _link_remove(self, ask: Ask, _world: World) -> Answer:
        return self._people.build_reply(self._people.linking.unlink(_claim(ask), ask.arguments["account"]))


def _claim(ask: Ask) -> Claim:
    sender = ask.command.sender
    return Claim(ask.person, sender.name, ask.command.at, sender.verified, ask.role)
