"""What the commands about people have in common."""

from dataclasses import dataclass

from gateway.changes import Change
from gateway.clock import Clock
from gateway.commands.world import Answer, Ask, World
from gateway.events import Address
from gateway.roster.finding import Found, find, heard
from gateway.roster.linking import Linking
from gateway.roster.manners import Manners
from gateway.roster.naming import Scope
from gateway.roster.pairing import Outcome, no
from gateway.roster.roster import Roster
from gateway.roster.words import UNDER_WAY
from gateway.standing import ADMINS, Policy, role_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Persons:
    """What they look at."""

    roster: Roster
    policy: Policy
    linking: Linking
    channel_names: Manners
    clock: Clock

    def build_reply(self, outcome: Outcome) -> Answer:
        """Say it, and have its facts written down with that. Nothing may be waited for behind it."""
        if not outcome.facts:
            return Answer(text=outcome.text, ok=outcome.ok)
        settle = self.roster.reserve_request(outcome.request)
        if settle is None:
            return Answer(text=UNDER_WAY, ok=False)
        change = Change(answer=outcome.text, facts=outcome.facts, settle=settle)
        return Answer(text=outcome.text, effect=change, ok=outcome.ok)

    async def find_person(self, ask: Ask, world: World) -> Found | Outcome:
        """Whom `who` means; else why nobody."""
        at = ask.command.at
        recent = await heard(world.reader, at.conversation)
        known = dict.fromkeys([*self.policy.roles, *self.policy.grants], "")
        known |= {one.person: one.name for one in self.roster.pending_requests("pair", "room")}
        known |= {one.person: one.name for one in self.roster.roles}
        names = {one: sender.name for one, sender in recent.items()}
        found = find(ask.arguments["who"], at, self.channel_names.platforms, names, known)
        if isinstance(found, str):
            return no(found)
        sender = recent.get(found.person)
        return found if sender is None else found._replace(last_role=role_of(self.policy, at, sender))

    def find_scope(self, ask: Ask) -> Scope | Outcome:
        """Where it is to hold. Who is an admin in one place only, acts there only."""
        where, wide = ask.arguments.get("where"), ask.global_role in ADMINS
        if where == "here" or (where is None and not wide):
            if ask.command.direct:
                return no("Say that in the room that you mean.")
            return Scope(ask.command.at, ask.role)
        if not wide:
            return no(f"You are {ask.role} here only. Say `here` behind it.")
        return Scope(None, ask.global_role)


def room_of(at: Address) -> Address:
    """Without the thread."""
    return Address(channel=at.channel, room=at.room)
