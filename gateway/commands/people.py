"""Commands about people: `pair`, `room`, `role`, `block`, `unblock` and `link`.

Their changes are facts. Notices, and joining and leaving of rooms, follow once those are durable
(`gateway.access.pairing`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from gateway.access import pairing
from gateway.access.linking import AccountClaim, AccountLinker
from gateway.access.pairing import AccessResult, AttemptLimiter, reject
from gateway.access.policy import is_room_allowed
from gateway.access.roles import RoleScope, block_person, clear_role, give_role, unblock_person
from gateway.access.roster import (
    ChannelStyle,
    PersonMatch,
    RequestKind,
    Roster,
    explain_role_refusal,
    find_person,
    format_open_rooms,
    format_paired_people,
    format_requests,
    format_roles,
    list_accounts_of,
    read_recent_senders,
)
from gateway.access.texts import (
    BEING_DECIDED_TEXT,
    TRY_LATER_TEXT,
    describe_verification,
    find_request,
    format_person,
    format_room,
    render_unknown_request,
)
from gateway.commands.context import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.core.clock import Clock
from gateway.core.events import Address
from gateway.core.facts import CodeIssued, RoomAccessChanged
from gateway.core.identity import ADMIN_ROLES, EMPTY_ROSTER, AccessPolicy, role_of
from gateway.store.effects import CommandEffect, EffectFact


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleContext:
    """Services and helpers of these commands."""

    roster: Roster
    policy: AccessPolicy
    linking: AccountLinker
    channel_names: ChannelStyle
    clock: Clock

    def build_reply(self, outcome: AccessResult) -> CommandReply:
        """Return the reply, with the facts to append. The caller must return it without awaiting anything."""
        if not outcome.facts:
            return CommandReply(text=outcome.text, ok=outcome.ok)
        settle = self.roster.reserve_request(outcome.request)
        if settle is None:
            return CommandReply(text=BEING_DECIDED_TEXT, ok=False)
        change = CommandEffect(answer=outcome.text, facts=outcome.facts, settle=settle)
        return CommandReply(text=outcome.text, effect=change, ok=outcome.ok)

    async def find_person(self, call: CommandCall, context: CommandContext) -> PersonMatch | AccessResult:
        """Return the person that the argument `who` means, or the reason why nobody."""
        at = call.command.at
        recent = await read_recent_senders(context.reader, at.conversation)
        known = dict.fromkeys([*self.policy.roles, *self.policy.grants], "")
        known |= {one.person: one.name for one in self.roster.pending_requests("pair", "room")}
        known |= {one.person: one.name for one in self.roster.roles}
        names = {one: sender.name for one, sender in recent.items()}
        found = find_person(call.arguments["who"], at, self.channel_names.platforms, names, known)
        if isinstance(found, str):
            return reject(found)
        sender = recent.get(found.person)
        return found if sender is None else found._replace(last_role=role_of(self.policy, at, sender))

    def find_scope(self, call: CommandCall) -> RoleScope | AccessResult:
        """Return the scope of the change. An admin of one place can act there only."""
        where, wide = call.arguments.get("where"), call.global_role in ADMIN_ROLES
        if where == "here" or (where is None and not wide):
            if call.command.direct:
                return reject("Say that in the room that you mean.")
            return RoleScope(call.command.at, call.role)
        if not wide:
            return reject(f"You are {call.role} here only. Say `here` behind it.")
        return RoleScope(None, call.global_role)


def room_address(at: Address) -> Address:
    """Return the room's address, without the thread."""
    return Address(channel=at.channel, room=at.room)


class PairingCommands:
    """Handlers of `pair` and `room`."""

    def __init__(self, persons: PeopleContext) -> None:
        self._people = persons
        self._attempts = AttemptLimiter()

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name and subcommand."""
        return {
            "pair list": self._pair_list,
            "pair approve": self._pair_approve,
            "pair revoke": self._pair_revoke,
            "room list": self._room_list,
            "room approve": self._room_approve,
            "room revoke": self._room_revoke,
        }

    async def _pair_list(self, call: CommandCall, _context: CommandContext) -> str:
        roster, prefix = self._people.roster, self._prefix(call)
        return "\n".join(
            [
                *format_requests(roster.pending_requests("pair"), "to speak to me alone", prefix),
                *format_paired_people(roster.roles),
            ]
        )

    async def _pair_approve(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        request = self._find_request(call, "pair")
        if isinstance(request, AccessResult):
            return self._people.build_reply(request)
        outcome = pairing.approve_pairing(request, call.person, existing=self._people.roster.find_grant(request.person))
        sure = describe_verification(request.person, self._people.channel_names.platforms)
        return self._people.build_reply(outcome._replace(text=f"{outcome.text} That is {sure}."))

    async def _pair_revoke(self, call: CommandCall, context: CommandContext) -> CommandReply:
        roster, name = self._people.roster, call.arguments["who"].strip("` ").lower()
        for request in roster.pending_requests("pair", "room"):
            if request.request == name:
                return self._people.build_reply(pairing.revoke_code(request, call.person))
        whom = await self._people.find_person(call, context)
        if isinstance(whom, AccessResult):
            return self._people.build_reply(whom)
        policy, by = self._people.policy, call.person
        if why := explain_role_refusal(
            policy, by=by, role=call.global_role, whom=whom.person, wants="", last_role=whom.last_role
        ):
            return self._people.build_reply(reject(why))
        outcome = pairing.revoke_pairing(whom.person, roster.find_grant(whom.person), call.person)
        if outcome.ok and (others := list_accounts_of(self._people.policy, whom.person)[1:]):
            accounts = ", ".join(map(format_person, others))
            outcome = outcome._replace(text=f"{outcome.text} What they have as {accounts} they have still.")
        return self._people.build_reply(outcome)

    async def _room_list(self, call: CommandCall, _context: CommandContext) -> str:
        roster = self._people.roster
        waiting = format_requests(roster.pending_requests("room"), "to have me in a room", self._prefix(call))
        return "\n".join([*waiting, *format_open_rooms(roster.rooms, self._people.policy)])

    async def _room_approve(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        if call.arguments.get("code"):
            request = self._find_request(call, "room")
            if isinstance(request, AccessResult):
                return self._people.build_reply(request)
            assert request.room is not None
            return self._people.build_reply(pairing.approve_room(request, request.room, call.person))
        if call.command.direct:
            return self._people.build_reply(reject("Say it in the room, or with the code that I showed there."))
        return self._people.build_reply(self._open_here(call.person, room_address(call.command.at)))

    def _open_here(self, by: str, room: Address) -> AccessResult:
        """Open the room in which the command was given. A code that was shown for it is used up."""
        if is_room_allowed(self._people.policy, room):
            return reject("This room is open for me already.")
        for request in self._people.roster.pending_requests("room"):
            if request.room == room:
                return pairing.approve_room(request, room, by)
        opened = RoomAccessChanged(room=room, open=True, by=by)
        return AccessResult(f"Open: {format_room(room.conversation)}.", (EffectFact(opened, room.conversation),))

    async def _room_revoke(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        at, written = call.command.at, call.arguments.get("room", "").strip("` ")
        if not written and call.command.direct:
            return self._people.build_reply(reject("Write which room, as `room list` has it."))
        wanted = written.casefold() or room_address(at).conversation.casefold()
        for one in self._people.roster.rooms:
            own = one.room.room.casefold() if one.room.channel == at.channel else ""
            if wanted in (one.room.conversation.casefold(), own):
                return self._people.build_reply(self._close_room(one, call.person))
        shown = format_room(written or room_address(at).conversation)
        return self._people.build_reply(
            reject(f"{shown} was not approved. What the configuration opens is closed only there.")
        )

    def _close_room(self, one: RoomAccessChanged, by: str) -> AccessResult:
        closed = RoomAccessChanged(room=one.room, open=False, by=by, about=one.about)
        configured = is_room_allowed(replace(self._people.policy, roster_state=lambda: EMPTY_ROSTER), one.room)
        more = "The configuration opens it all the same." if configured else "I leave it, where I can by myself."
        text = f"Not approved any more: {format_room(one.room.conversation, one.about)}. {more}"
        return AccessResult(text, (EffectFact(closed, one.room.conversation),))

    def _find_request(self, call: CommandCall, what: RequestKind) -> CodeIssued | AccessResult:
        """Return the request that an admin means: by its code, its name, or its person or room."""
        channel, now_s = call.command.at.channel, self._people.clock.monotonic()
        if not self._attempts.is_allowed(call.person, channel, now_s):
            return reject(TRY_LATER_TEXT)
        request = find_request(self._people.roster.pending_requests(what), call.arguments["code"])
        if request is None:
            self._attempts.record_failure(call.person, channel, now_s)
            return reject(render_unknown_request(call.arguments["code"], self._prefix(call), what))
        return request

    def _prefix(self, call: CommandCall) -> str:
        return self._people.channel_names.command_prefix(call.command.at.channel)


_ASSIGNABLE_ROLES: Final[Mapping[str, Literal["owner", "admin", "member"]]] = {
    "owner": "owner",
    "admin": "admin",
    "member": "member",
}
"""Roles that `role set` can give."""


class RoleCommands:
    """Handlers of `role`, `block` and `unblock`."""

    def __init__(self, persons: PeopleContext) -> None:
        self._people = persons

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name and subcommand."""
        return {
            "role list": self._list,
            "role set": self._set,
            "role clear": self._clear,
            "block": self._block,
            "unblock": self._unblock,
        }

    async def _list(self, _call: CommandCall, _context: CommandContext) -> str:
        return "\n".join(format_roles(self._people.policy, self._people.roster.roles))

    async def _set(self, call: CommandCall, context: CommandContext) -> CommandReply:
        policy, roster, wants = self._people.policy, self._people.roster, _ASSIGNABLE_ROLES[call.arguments["role"]]
        return await self._change_role(
            call, context, lambda whom, at: give_role(policy, roster, whom, call.person, at, wants=wants)
        )

    async def _clear(self, call: CommandCall, context: CommandContext) -> CommandReply:
        policy, roster = self._people.policy, self._people.roster
        return await self._change_role(
            call, context, lambda whom, at: clear_role(policy, roster, whom, call.person, at)
        )

    async def _block(self, call: CommandCall, context: CommandContext) -> CommandReply:
        policy, roster = self._people.policy, self._people.roster
        return await self._change_role(
            call, context, lambda whom, at: block_person(policy, roster, whom, call.person, at)
        )

    async def _unblock(self, call: CommandCall, context: CommandContext) -> CommandReply:
        """Unblock somebody; without a scope everywhere and here, as far as the sender may."""
        policy, roster = self._people.policy, self._people.roster
        both = "where" not in call.arguments and call.global_role in ADMIN_ROLES and not call.command.direct
        also = [RoleScope(call.command.at, call.role)] if both else []
        return await self._change_role(
            call, context, lambda whom, at: unblock_person(policy, roster, whom, call.person, [at, *also])
        )

    async def _change_role(
        self, call: CommandCall, context: CommandContext, decide: Callable[[PersonMatch, RoleScope], AccessResult]
    ) -> CommandReply:
        whom, at = await self._people.find_person(call, context), self._people.find_scope(call)
        if isinstance(whom, AccessResult):
            return self._people.build_reply(whom)
        return self._people.build_reply(at if isinstance(at, AccessResult) else decide(whom, at))


class PeopleCommands:
    """Handlers of all commands about people."""

    def __init__(self, persons: PeopleContext) -> None:
        self._people = persons
        self._others = (*PairingCommands(persons).handlers.items(), *RoleCommands(persons).handlers.items())

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by name, or by name and subcommand: `pair list`."""
        return {
            **dict(self._others),
            "link start": self._link_start,
            "link code": self._link_code,
            "link list": self._link_list,
            "link remove": self._link_remove,
        }

    async def _link_start(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.start_link(_build_claim(call)))

    async def _link_code(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.submit_code(_build_claim(call), call.arguments["code"]))

    async def _link_list(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.list_accounts(_build_claim(call)))

    async def _link_remove(self, call: CommandCall, _context: CommandContext) -> CommandReply:
        return self._people.build_reply(self._people.linking.unlink(_build_claim(call), call.arguments["account"]))


def _build_claim(call: CommandCall) -> AccountClaim:
    sender = call.command.sender
    return AccountClaim(call.person, sender.name, call.command.at, sender.verified, call.role)
