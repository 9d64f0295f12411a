"""How somebody shows that two accounts are theirs.

Each account is shown a code, and hands in the one of the other: so who is talked into writing one code links nobody,
and is told who it would be before the second. Only accounts that a platform vouches for, and nobody who is blocked.
"""

from typing import Final, Literal, NamedTuple

from gateway.changes import Made
from gateway.clock import Clock
from gateway.events import Address, Sender, SenderId
from gateway.records import CodeGiven, IdentityLinked
from gateway.roster import words
from gateway.roster.codes import LIFE, matching
from gateway.roster.groups import MOST_LINKED, groups, pair
from gateway.roster.letters import letter
from gateway.roster.manners import Manners
from gateway.roster.minting import Minted, mint
from gateway.roster.pairing import Outcome, expired, no, over
from gateway.roster.rights import blocked_anywhere
from gateway.roster.roster import Roster
from gateway.roster.tries import Tries
from gateway.roster.words import named
from gateway.standing import Policy, Role, standing
from gateway.tools.consent import code

MOST_WAITING: Final = 20
"""Codes for links that wait on one channel."""
_UNSURE: Final = "Nobody vouches for who you are here, so I cannot link you. Log in to the network's services first."


class Claim(NamedTuple):
    """Who says it."""

    person: str
    name: str
    """For display. Untrusted."""
    at: Address
    """The direct chat with them."""
    verified: bool
    role: Role


class Linking:
    """For all channels."""

    def __init__(self, roster: Roster, policy: Policy, clock: Clock, manners: Manners) -> None:
        self._roster = roster
        self._policy = policy
        self._clock = clock
        self._channel_style = manners
        self._attempts = Tries()

    def start_link(self, claim: Claim) -> Outcome:
        """Show the first code. An earlier one of the same account is good no more."""
        if not claim.verified:
            return no(_UNSURE)
        waiting = self._roster.pending_requests("link", "confirm")
        mine = [one for one in waiting if one.what == "link" and one.person == claim.person]
        if sum(one.at.channel == claim.at.channel for one in waiting) - len(mine) >= MOST_WAITING:
            return no("Too many people are linking accounts here. Try again in an hour.")
        minted = mint(self._roster.request_names)
        facts = (
            *expired(self._roster.expired_requests(claim.at.channel)),
            *(over(one, "revoked", claim.person) for one in mine),
            self._build_code_fact(minted, claim, "link"),
        )
        return Outcome(words.linking(minted.code, self._channel_style.command_prefix(claim.at.channel)), facts)

    def submit_code(self, claim: Claim, written: str) -> Outcome:
        """Somebody hands in a code: of their other account, or the one that this account was shown for it."""
        if not claim.verified:
            return no(_UNSURE)
        now_s = self._clock.monotonic()
        if not self._attempts.is_allowed(claim.person, claim.at.channel, now_s):
            return no(words.TRY_LATER)
        request = matching(self._roster.pending_requests("link", "confirm"), written)
        refusal = self._explain_refusal(request, claim)
        if request is None or refusal:
            self._attempts.record_failure(claim.person, claim.at.channel, now_s)
            return no(refusal)
        return (
            self._request_confirmation(request, claim)
            if request.what == "link"
            else self._link_accounts(request, claim)
        )

    def list_accounts(self, claim: Claim) -> Outcome:
        """The accounts that are this person."""
        linked = sorted(self._roster.known.links.get(claim.person, ())) if claim.verified else []
        prefix = self._channel_style.command_prefix(claim.at.channel)
        if not linked:
            return Outcome(
                f"I know you by this account only, {named(claim.person)}. `{prefix}link` shows how to change it."
            )
        lines = [f"- {named(one)}" for one in linked]
        return Outcome("\n".join([f"You are also, with `{prefix}link remove` to take one back:", *lines]))

    def unlink(self, claim: Claim, account: str) -> Outcome:
        """One of the accounts is linked with nobody any more; any of them may say so, unless that undid a block."""
        written = account.strip("` ")
        same = {claim.person, *(self._roster.known.links.get(claim.person, ()) if claim.verified else ())}
        short = {one for one in same if written.lower() in (one.lower(), one.partition(":")[2].lower())}
        if len(short) != 1 or len(same) == 1:
            return no(f"{code(written)} is no account that is linked with this one. Write it as `link list` has it.")
        (gone,) = short
        if blocked_anywhere(self._policy, gone):
            return no("One of these accounts is blocked, and all the others with it: they stay one person until then.")
        through = [link for link in self._roster.links if gone in (link.one, link.other)]
        left = groups(link for link in self._roster.links if link not in through).get(claim.person, frozenset())
        told = f"{named(gone)} is an account of its own again, and has its own roles only."
        if claim.person != gone and (others := same - left - {gone, claim.person}):
            told += f" So {'is' if len(others) == 1 else 'are'} {', '.join(map(named, sorted(others)))}, linked by it."
        facts = (IdentityLinked(one=one.one, other=one.other, joined=False, by=claim.person) for one in through)
        return Outcome(told, tuple(map(Made, facts)))

    def _explain_refusal(self, request: CodeGiven | None, claim: Claim) -> str:
        """Why it links nobody; empty: it does."""
        if request is not None and request.person == claim.person:
            where = "your other account" if request.what == "link" else named(request.other)
            return f"That one I showed you to hand it in as {where}, not here."
        if request is None or (request.what == "confirm" and request.other != claim.person):
            return words.NO_CODE
        links = self._roster.known.links
        if claim.person in links.get(request.person, ()):
            return "These two are linked already."
        both = {request.person, claim.person} | set(links.get(request.person, ())) | set(links.get(claim.person, ()))
        if len(both) > MOST_LINKED:
            return f"Nobody has more than {MOST_LINKED} accounts."
        other = Sender(id=SenderId(request.person.partition(":")[2]), name=request.name, verified=True)
        blocked = "blocked" in (claim.role, standing(self._policy, request.at, other).role)
        return words.NO_CODE if blocked else ""

    def _request_confirmation(self, request: CodeGiven, claim: Claim) -> Outcome:
        minted = mint(self._roster.request_names)
        confirm = self._build_code_fact(minted, claim, "confirm", other=request.person, key=f"confirm:{request.salt}")
        told = (
            f"{named(claim.person, claim.name)} handed in your code, and was shown a second one. If that is you, hand "
            f"that in here: then both are one person to me, and whoever uses that account may do what you may do. If "
            "it is not you, hand in nothing, and nothing happens."
        )
        facts = (over(request, "used", claim.person), confirm, letter(request, told))
        other = named(request.person, request.name)
        said = words.confirming(minted.code, self._channel_style.command_prefix(request.at.channel), other, claim.role)
        return Outcome(said, facts, request=request.request)

    def _link_accounts(self, request: CodeGiven, claim: Claim) -> Outcome:
        one, other = pair(request.person, claim.person)
        linked = IdentityLinked(one=one, other=other, joined=True, by=claim.person)
        undo = f"`{self._channel_style.command_prefix(claim.at.channel)}link remove` takes it back."
        told = f"{named(claim.person, claim.name)} and you are one person to me from now on. {undo}"
        facts = (
            Made(linked, None, f"linked:{request.salt}"),
            over(request, "used", claim.person),
            letter(request, told),
        )
        said = (
            f"{named(request.person, request.name)} and you are one person to me from now on, with the roles of both."
        )
        return Outcome(f"{said} {undo}", facts, request=request.request)

    def _build_code_fact(
        self, minted: Minted, claim: Claim, what: Literal["link", "confirm"], *, other: str = "", key: str = ""
    ) -> Made:
        given = CodeGiven(
            request=minted.request,
            what=what,
            person=claim.person,
            name=claim.name,
            at=claim.at,
            other=other,
            salt=minted.salt,
            digest=minted.digest,
            until=self._clock.now() + LIFE,
        )
        return Made(given, claim.at.conversation, key)
