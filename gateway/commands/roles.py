"""`role`, `block` and `unblock`: who may do what."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from gateway.commands.persons import PeopleContext
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.roster import naming
from gateway.roster.finding import PersonMatch
from gateway.roster.lists import format_roles
from gateway.roster.naming import RoleScope
from gateway.roster.pairing import AccessResult
from gateway.standing import ADMIN_ROLES

_ASSIGNABLE_ROLES: Final[Mapping[str, Literal["owner", "admin", "member"]]] = {
    "owner": "owner",
    "admin": "admin",
    "member": "member",
}
"""What `role set` gives."""


class RoleCommands:
    """Answers them."""

    def __init__(self, persons: PeopleContext) -> None:
        self._people = persons

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By name and sub."""
        return {
            "role list": self._list,
            "role set": self._set,
            "role clear": self._clear,
            "block": self._block,
            "unblock": self._unblock,
        }

    async def _list(self, _ask: CommandCall, _world: CommandContext) -> str:
        return "\n".join(format_roles(self._people.policy, self._people.roster.roles))

    async def _set(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        policy, roster, wants = self._people.policy, self._people.roster, _ASSIGNABLE_ROLES[ask.arguments["role"]]
        return await self._change_role(
            ask, world, lambda whom, at: naming.give_role(policy, roster, whom, ask.person, at, wants=wants)
        )

    async def _clear(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        policy, roster = self._people.policy, self._people.roster
        return await self._change_role(
            ask, world, lambda whom, at: naming.clear_role(policy, roster, whom, ask.person, at)
        )

    async def _block(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        policy, roster = self._people.policy, self._people.roster
        return await self._change_role(
            ask, world, lambda whom, at: naming.block_person(policy, roster, whom, ask.person, at)
        )

    async def _unblock(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """Where it is not said: everywhere and here, as far as whoever asks may."""
        policy, roster = self._people.policy, self._people.roster
        both = "where" not in ask.arguments and ask.global_role in ADMIN_ROLES and not ask.command.direct
        also = [RoleScope(ask.command.at, ask.role)] if both else []
        return await self._change_role(
            ask, world, lambda whom, at: naming.unblock_person(policy, roster, whom, ask.person, [at, *also])
        )

    async def _change_role(
        self, ask: CommandCall, world: CommandContext, decide: Callable[[PersonMatch, RoleScope], AccessResult]
    ) -> CommandReply:
        whom, at = await self._people.find_person(ask, world), self._people.find_scope(ask)
        if isinstance(whom, AccessResult):
            return self._people.build_reply(whom)
        return self._people.build_reply(at if isinstance(at, AccessResult) else decide(whom, at))
