"""The picture of what holds: who was let in, who was given which role, which rooms are open, who is whom.

It is made of the log at the start, and of what is written afterwards, whoever writes it. What could not be written does
not hold.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from gateway.clock import Clock
from gateway.events import Address, ChannelName
from gateway.records import CodeIssued, Fact, IdentityLinked, RoleAssigned, RoomAccessChanged
from gateway.roster.codes import filter_unexpired
from gateway.roster.groups import group_linked_accounts
from gateway.standing import RoleGrant, RosterState
from gateway.store import AppendResult, LogEntry, NewEntry, StoreError
from gateway.store.holding import current_fact_key

ROSTER_KINDS: Final = ("role_given", "room_opened", "identity_linked", "code_given")
RequestKind = Literal["pair", "room", "link", "confirm"]


class CurrentFactReader(Protocol):
    """What is needed of the log: `gateway.store.Reader`."""

    async def current_facts(self, kind: str) -> list[LogEntry]:
        """Of facts whose newest word counts those that hold, oldest first."""


class Roster:
    """Of all channels and agents."""

    def __init__(self, reader: CurrentFactReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._facts: dict[str, dict[str, Fact]] = {kind: {} for kind in ROSTER_KINDS}
        self._known: RosterState | None = None
        self._buffered: list[Fact] = []
        """Written while the log is read for the first time, which may show it or not."""
        self._reserved = set[str]()
        """Codes that somebody decides about in this moment."""

    async def load(self) -> None:
        """Read what holds. Call it once. Raises StoreError: then nothing is known, and nobody may be heard."""
        for stored in [one for kind in ROSTER_KINDS for one in await self._reader.current_facts(kind)]:
            self._apply(stored.fact)
        for fact in self._buffered:
            self._apply(fact)
        self._buffered.clear()
        self._known = self._build_known()

    @property
    def known(self) -> RosterState:
        """As of now; the same object until something changes. Raises StoreError before the log was read: closed."""
        if self._known is None:
            raise StoreError("who may do what was not read from the log")
        return self._known

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """For `Store.hear`: take in what became durable."""
        facts = [entry.fact for entry, one in zip(entries, written, strict=True) if one.is_new]
        if self._known is None:
            self._buffered += [fact for fact in facts if current_fact_key(fact) is not None]
        elif {self._apply(fact) for fact in facts} - {"", "code_given"}:
            self._known = self._build_known()

    def reserve_request(self, request: str) -> Callable[[AppendResult | None], None] | None:
        """Until what is returned is called nobody else decides about this code. None: somebody else does."""
        if request in self._reserved:
            return None
        if request:
            self._reserved.add(request)
        return lambda _: self._reserved.discard(request)

    def pending_requests(self, *what: RequestKind) -> list[CodeIssued]:
        """Codes of these kinds that are still good, oldest first."""
        return [one for one in filter_unexpired(self._codes, self._clock.now()) if one.what in what]

    def expired_requests(self, channel: ChannelName) -> list[CodeIssued]:
        """Codes that were shown there and are good no more, and of which nobody has said so yet."""
        now = self._clock.now()
        return [one for one in self._codes if now >= one.until and one.at.channel == channel]

    @property
    def roles(self) -> list[RoleAssigned]:
        """Every role that was given and not taken back."""
        return [one for one in self._facts["role_given"].values() if isinstance(one, RoleAssigned)]

    @property
    def rooms(self) -> list[RoomAccessChanged]:
        """Every room that was approved and not closed again."""
        return [one for one in self._facts["room_opened"].values() if isinstance(one, RoomAccessChanged)]

    @property
    def links(self) -> list[IdentityLinked]:
        """Every link between two accounts, oldest first."""
        return [one for one in self._facts["identity_linked"].values() if isinstance(one, IdentityLinked)]

    def find_grant(self, person: str, scope: str = "") -> RoleAssigned | None:
        """The role that this person was given in exactly this scope."""
        found = self._facts["role_given"].get(f"{person}\n{scope}")
        return found if isinstance(found, RoleAssigned) else None

    def approved_rooms(self, channel: ChannelName) -> list[Address]:
        """Rooms of that channel that were approved: to be entered when its link comes up."""
        return [one.room for one in self.rooms if one.room.channel == channel]

    @property
    def request_names(self) -> set[str]:
        """Of the codes that nobody has said are over."""
        return {one.request for one in self._codes}

    @property
    def _codes(self) -> list[CodeIssued]:
        return [one for one in self._facts["code_given"].values() if isinstance(one, CodeIssued)]

    def _apply(self, fact: Fact) -> str:
        """Its kind, if it is about something here; else empty."""
        word = current_fact_key(fact)
        if word is None or word.kind not in self._facts:
            return ""
        held = self._facts[word.kind]
        held.pop(word.key, None)  # the newest word stands last
        if word.is_current:
            held[word.key] = fact
        return word.kind

    def _build_known(self) -> RosterState:
        grants: dict[str, list[RoleGrant]] = {}
        for one in self.roles:
            if one.role:
                grants.setdefault(one.person, []).append(RoleGrant(one.role, one.scope, describe_grant(one)))
        rooms = frozenset(one.room.conversation for one in self.rooms)
        return RosterState(grants=grants, rooms=rooms, links=group_linked_accounts(self.links))


def describe_grant(given: RoleAssigned) -> str:
    """Why somebody has that role, for people."""
    what = {"pairing": "paired", "role": f"made {given.role}", "block": "blocked", "seed": "let in"}[given.why]
    return f"{what} by {given.by}"
