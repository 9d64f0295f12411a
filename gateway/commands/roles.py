"""`role`, `block` and `unblock`: who may do what."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from gateway.commands.persons import Persons
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.roster import naming
from gateway.roster.finding import Found
from gateway.roster.lists import roles
from gateway.roster.naming import Scope
from gateway.roster.pairing import Outcome
from gateway.standing import ADMINS

_WANTED: Final[Mapping[str, Literal["owner", "admin", "member"]]] = {
    "owner": "owner",
    "admin": "admin",
    "member": "member",
}
"""What `role set` gives."""


class RoleCommands:
    """Answers them."""

    def __init__(self, persons: Persons) -> None:
        self._people = persons

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name and sub."""
        return {
            "role list": self._list,
            "role set": self._set,
            "role clear": self._clear,
            "block": self._block,
            "unblock": self._unblock,
        }

    async def _list(self, _ask: Ask, _world: World) -> str:
        return "\n".join(roles(self._people.policy, self._people.roster.roles))

    async def _set(self, ask: Ask, world: World) -> Answer:
        policy, roster, wants = self._people.policy, self._people.roster, _WANTED[ask.arguments["role"]]
        return await self._change_role(
            ask, world, lambda whom, at: naming.given(policy, roster, whom, ask.person, at, wants=wants)
        )

    async def _clear(self, ask: Ask, world: World) -> Answer:
        policy, roster = self._people.policy, self._people.roster
        return await self._change_role(
            ask, world, lambda whom, at: naming.cleared(policy, roster, whom, ask.person, at)
        )

    async def _block(self, ask: Ask, world: World) -> Answer:
        policy, roster = self._people.policy, self._people.roster
        return await self._change_role(
            ask, world, lambda whom, at: naming.blocked(policy, roster, whom, ask.person, at)
        )

    async def _unblock(self, ask: Ask, world: World) -> Answer:
        """Where it is not said: everywhere and here, as far as whoever asks may."""
        policy, roster = self._people.policy, self._people.roster
        both = "where" not in ask.arguments and ask.global_role in ADMINS and not ask.command.direct
        also = [Scope(ask.command.at, ask.role)] if both else []
        return await self._change_role(
            ask, world, lambda whom, at: naming.unblocked(policy, roster, whom, ask.person, [at, *also])
        )

    async def _change_role(self, ask: Ask, world: World, decide: Callable[[Found, Scope], Outcome]) -> Answer:
        whom, at = await self._people.find_person(ask, world), self._people.find_scope(ask)
        if isinstance(whom, Outcome):
            return self._people.build_reply(whom)
        return self._people.build_reply(at if isinstance(at, Outcome) else decide(whom, at))
