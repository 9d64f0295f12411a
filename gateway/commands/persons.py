"""What the commands about people have in common."""

from dataclasses import dataclass

from gateway.changes import CommandEffect
from gateway.clock import Clock
from gateway.commands.world import CommandCall, CommandContext, CommandReply
from gateway.events import Address
from gateway.roster.finding import PersonMatch, find_person, read_recent_senders
from gateway.roster.linking import AccountLinker
from gateway.roster.manners import ChannelStyle
from gateway.roster.naming import RoleScope
from gateway.roster.pairing import AccessResult, reject
from gateway.roster.roster import Roster
from gateway.roster.words import BEING_DECIDED_TEXT
from gateway.standing import ADMIN_ROLES, AccessPolicy, role_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleContext:
    """What they look at."""

    roster: Roster
    policy: AccessPolicy
    linking: AccountLinker
    channel_names: ChannelStyle
    clock: Clock

    def build_reply(self, outcome: AccessResult) -> CommandReply:
        """Say it, and have its facts written down with that. Nothing may be waited for behind it."""
        if not outcome.facts:
            return CommandReply(text=outcome.text, ok=outcome.ok)
        settle = self.roster.reserve_request(outcome.request)
        if settle is None:
            return CommandReply(text=BEING_DECIDED_TEXT, ok=False)
        change = CommandEffect(answer=outcome.text, facts=outcome.facts, settle=settle)
        return CommandReply(text=outcome.text, effect=change, ok=outcome.ok)

    async def find_person(self, ask: CommandCall, world: CommandContext) -> PersonMatch | AccessResult:
        """Whom `who` means; else why nobody."""
        at = ask.command.at
        recent = await read_recent_senders(world.reader, at.conversation)
        known = dict.fromkeys([*self.policy.roles, *self.policy.grants], "")
        known |= {one.person: one.name for one in self.roster.pending_requests("pair", "room")}
        known |= {one.person: one.name for one in self.roster.roles}
        names = {one: sender.name for one, sender in recent.items()}
        found = find_person(ask.arguments["who"], at, self.channel_names.platforms, names, known)
        if isinstance(found, str):
            return reject(found)
        sender = recent.get(found.person)
        return found if sender is None else found._replace(last_role=role_of(self.policy, at, sender))

    def find_scope(self, ask: CommandCall) -> RoleScope | AccessResult:
        """Where it is to hold. Who is an admin in one place only, acts there only."""
        where, wide = ask.arguments.get("where"), ask.global_role in ADMIN_ROLES
        if where == "here" or (where is None and not wide):
            if ask.command.direct:
                return reject("Say that in the room that you mean.")
            return RoleScope(ask.command.at, ask.role)
        if not wide:
            return reject(f"You are {ask.role} here only. Say `here` behind it.")
        return RoleScope(None, ask.global_role)


def room_address(at: Address) -> Address:
    """Without the thread."""
    return Address(channel=at.channel, room=at.room)
