"""Roster: granted roles, approved rooms, linked accounts and codes, read from the log; who may
change roles; lists for people.

`Roster` is built from the log at the start, and updated by everything that is appended later, by
any writer. What could not be appended does not hold.

`explain_role_refusal` decides who may give which role to whom (pure):

| who      | may give                 | to whom                                                 |
|----------|--------------------------|---------------------------------------------------------|
| an owner | everything               | everybody but themselves and the configuration's owners |
| an admin | member, blocked, nothing | whoever is neither admin nor owner anywhere             |
| others   | nothing                  |                                                         |

A mask is never made admin or owner. These rules cover all accounts of one person together. An owner
of one place has no say about an owner of all. Roles that a platform gives are known only for people
who wrote there lately.

`find_person` resolves what an admin wrote.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from channels.base import Capabilities
from gateway.access.texts import (
    format_person,
    format_room,
    group_linked_accounts,
    is_verifiable,
)
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConversationId,
    Message,
    Sender,
)
from gateway.core.facts import (
    MESSAGE_KINDS,
    CodeEnded,
    CodeIssued,
    Fact,
    IdentityLinked,
    RoleAssigned,
    RoomAccessChanged,
)
from gateway.core.i18n import N_, _
from gateway.core.identity import (
    ADMIN_ROLES,
    ROLE_ORDER,
    AccessPolicy,
    Role,
    RoleGrant,
    RosterState,
    is_bridged,
    person_key,
)
from gateway.core.text_safety import inline_code
from gateway.store import LogEntry, StoreError, StoreReader
from gateway.store.projections import current_fact_key

ROSTER_KINDS: Final = ("role_given", "room_opened", "identity_linked", "code_given")
ROSTER_FACTS: Final = (RoleAssigned, RoomAccessChanged, IdentityLinked, CodeIssued, CodeEnded)
RequestKind = Literal["pair", "room", "link", "confirm"]


class Roster:
    """Granted roles, approved rooms, links and pending codes of all channels and agents."""

    def __init__(self, reader: StoreReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._facts: dict[str, dict[str, Fact]] = {kind: {} for kind in ROSTER_KINDS}
        self.state: RosterState | None = None
        """As `known`. None: `load` is not done."""
        self._buffered: list[Fact] = []
        """Facts appended while the log is read for the first time; that reading may contain them or
        not."""

    async def load(self) -> None:
        """Read the current facts. Call it once. Raises StoreError: then nothing is known, and
        nobody is accepted.
        """
        for stored in [
            one for kind in ROSTER_KINDS for one in await self._reader.current_facts(kind)
        ]:
            self._apply(stored.fact)
        for fact in self._buffered:
            self._apply(fact)
        self._buffered.clear()
        self.state = self._build_known()

    @property
    def known(self) -> RosterState:
        """Current state; the same object until something changes.

        Raises StoreError before `load` is done: access is closed.
        """
        if self.state is None:
            raise StoreError("who may do what was not read from the log")
        return self.state

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Apply appended facts. Subscribes to `ROSTER_FACTS`."""
        facts = [entry.fact for entry in entries]
        if self.state is None:
            self._buffered += [fact for fact in facts if current_fact_key(fact) is not None]
        elif {self._apply(fact) for fact in facts} - {"", "code_given"}:
            self.state = self._build_known()

    def pending_requests(self, *what: RequestKind) -> list[CodeIssued]:
        """Return the codes of these kinds that are still valid, oldest first."""
        now = self._clock.now()
        return [one for one in self._codes if now < one.until and one.what in what]

    def expired_requests(self, channel: ChannelName) -> list[CodeIssued]:
        """Return the expired codes of that channel which have no `CodeEnded` yet."""
        now = self._clock.now()
        return [one for one in self._codes if now >= one.until and one.at.channel == channel]

    @property
    def roles(self) -> list[RoleAssigned]:
        """Roles that were granted and not taken back."""
        return [one for one in self._facts["role_given"].values() if isinstance(one, RoleAssigned)]

    @property
    def rooms(self) -> list[RoomAccessChanged]:
        """Rooms that were approved and not closed again."""
        return [
            one for one in self._facts["room_opened"].values() if isinstance(one, RoomAccessChanged)
        ]

    @property
    def links(self) -> list[IdentityLinked]:
        """Links between two accounts, oldest first."""
        return [
            one
            for one in self._facts["identity_linked"].values()
            if isinstance(one, IdentityLinked)
        ]

    def find_grant(self, person: str, scope: str = "") -> RoleAssigned | None:
        """Return the role that this person was given in exactly this scope."""
        found = self._facts["role_given"].get(f"{person}\n{scope}")
        return found if isinstance(found, RoleAssigned) else None

    @property
    def request_names(self) -> set[str]:
        """Names of the codes that have no `CodeEnded` yet."""
        return {one.request for one in self._codes}

    @property
    def _codes(self) -> list[CodeIssued]:
        return [one for one in self._facts["code_given"].values() if isinstance(one, CodeIssued)]

    def _apply(self, fact: Fact) -> str:
        """Apply a fact and return its kind; empty: it is of no kind that the roster keeps."""
        kind, key, is_current = current_fact_key(fact) or ("", "", False)
        if (held := self._facts.get(kind)) is None:
            return ""
        held.pop(key, None)  # the newest stands last
        if is_current:
            held[key] = fact
        return kind

    def _build_known(self) -> RosterState:
        grants: dict[str, list[RoleGrant]] = {}
        for one in self.roles:
            if one.role:
                grants.setdefault(one.person, []).append(
                    RoleGrant(one.role, one.scope, describe_grant(one))
                )
        rooms = frozenset(one.room.conversation for one in self.rooms)
        return RosterState(grants=grants, rooms=rooms, links=group_linked_accounts(self.links))


def explain_role_refusal(
    policy: AccessPolicy,
    *,
    by: str,
    role: Role,
    whom: str,
    wants: Role | Literal[""],
    last_role: Role = "guest",
) -> str:
    """Return why somebody with `role` in that scope may not make this change; empty: they may.

    `last_role`: role of the person concerned at their last message in that scope.
    """
    if role not in ADMIN_ROLES:
        return _("Only owners and admins can do that.")
    if by in list_accounts_of(policy, whom):
        return _("You cannot change your own role.")
    if wants not in {"", "blocked"} and is_bridged(whom):
        return _(BRIDGED_NO_ROLE_TEXT)
    if wants in ADMIN_ROLES and not is_verifiable(whom):
        return _(MASK_NOT_ADMIN_TEXT)
    if any("owner" in given for given in _iter_configured_roles(policy, whom)):
        return _("The configuration makes them an owner. Only the operator can change that there.")
    if role == "owner":
        lesser = is_global_owner(policy, whom) and not is_global_owner(policy, by)
        return (
            _("They are an owner everywhere. Only another owner everywhere can change their role.")
            if lesser
            else ""
        )
    if last_role in ADMIN_ROLES or not _collect_roles(policy, whom).isdisjoint(ADMIN_ROLES):
        return _("Only an owner can change the role of an admin or owner.")
    return _("Only an owner can make somebody admin or owner.") if wants in ADMIN_ROLES else ""


def list_accounts_of(policy: AccessPolicy, person: str) -> tuple[str, ...]:
    """Return all accounts of a person."""
    return (person, *sorted(policy.roster_state().links.get(person, ())))


def is_global_owner(policy: AccessPolicy, person: str) -> bool:
    """Return whether they are an owner in all places."""
    known, accounts = policy.roster_state().grants, list_accounts_of(policy, person)
    given = (grant for one in accounts for grant in known.get(one, ()) if not grant.scope)
    return any(policy.roles.get(one) == "owner" for one in accounts) or any(
        one.role == "owner" for one in given
    )


def is_blocked_anywhere(policy: AccessPolicy, person: str) -> bool:
    """Return whether one of their accounts is blocked anywhere."""
    return "blocked" in _collect_roles(policy, person)


def _collect_roles(policy: AccessPolicy, person: str) -> set[Role]:
    known = policy.roster_state().grants
    given = {role for roles in _iter_configured_roles(policy, person) for role in roles}
    return given | {
        grant.role for one in list_accounts_of(policy, person) for grant in known.get(one, ())
    }


def _iter_configured_roles(policy: AccessPolicy, person: str) -> Iterator[Sequence[Role]]:
    for one in list_accounts_of(policy, person):
        if one in policy.roles:
            yield (policy.roles[one],)
        yield tuple(grant.role for grant in policy.grants.get(one, ()))


def describe_grant(given: RoleAssigned) -> str:
    """Return why somebody has that role, for people."""
    what = {
        "pairing": "paired",
        "role": f"made {given.role}",
        "block": "blocked",
        "seed": "approved",
    }[given.why]
    return f"{what} by {given.by}"


BRIDGED_NO_ROLE_TEXT: Final = N_(
    "Who is behind a bridge is always a guest, because any of them can take any name."
)
MASK_NOT_ADMIN_TEXT: Final = N_(
    "A mask can never be admin or owner, because the server does not confirm it."
)


def format_roles(policy: AccessPolicy, given: Iterable[RoleAssigned]) -> list[str]:
    """Return everybody with a role, strongest first, and why: roles of the configuration before
    later ones.
    """
    lines = [
        (
            ROLE_ORDER.index(role),
            _("- {person}: {role}, by the configuration").format(
                person=format_person(one), role=role
            ),
        )
        for one, role in policy.roles.items()
    ]
    lines += [
        (
            ROLE_ORDER.index(grant.role),
            _("- {person}: {role} in {room}, by the configuration").format(
                person=format_person(one), role=grant.role, room=format_room(grant.scope)
            ),
        )
        for one, grants in policy.grants.items()
        for grant in grants
    ]
    lines += [
        (
            ROLE_ORDER.index(rule_.role),
            _("- {person}: {role} in {room}, by the configuration").format(
                person=inline_code(rule_.platform_role),
                role=rule_.role,
                room=format_room(f"{rule_.channel}/{rule_.room}"),
            ),
        )
        for rule_ in policy.platform_roles
    ]
    lines += [(ROLE_ORDER.index(one.role), format_grant(one)) for one in given if one.role]
    return [line for __, line in sorted(lines, key=lambda one: -one[0])] or [
        _("Nobody has a role.")
    ]


def format_grant(one: RoleAssigned) -> str:
    """Return a role that was given at run time, as a line."""
    text = (
        _("- {person}: {role} in {room}, {reason}")
        if one.scope
        else _("- {person}: {role}, {reason}")
    )
    return text.format(
        person=format_person(one.person, one.name),
        role=one.role,
        room=format_room(one.scope) if one.scope else "",
        reason=inline_code(describe_grant(one), 200),
    )


RECENT_LINES: Final = 200
"""Newest messages in a place that are searched for a name."""
_MENTION: Final = re.compile(r"(?:<@!?|@user-)(\d+)>?")
"""https://discord.com/developers/docs/reference#message-formatting; or without a handle."""


class PersonMatch(NamedTuple):
    """A person whom an admin named."""

    person: str
    name: str
    """Name that they used last, if known. Untrusted."""
    is_by_name: bool = False
    """True if found by that name, not by id."""
    last_role: Role = "guest"
    """Role at their last message there."""

    @property
    def label(self) -> str:
        """Id and name, for people."""
        return format_person(self.person, self.name)


async def read_recent_senders(reader: StoreReader, place: ConversationId) -> dict[str, Sender]:
    """Return the recent senders of messages and commands there by id, as they were last; refused
    ones too.
    """
    entries = await reader.newest_entries(
        RECENT_LINES, kinds=(*MESSAGE_KINDS, "command"), conversation=place
    )
    senders = [
        (entry.fact.at, entry.fact.sender)
        for entry in entries
        if isinstance(entry.fact, Message | Command)
    ]
    return {person_key(at.channel, sender.id): sender for at, sender in senders}


def find_person(
    written: str,
    at: Address,
    platforms: Mapping[ChannelName, Capabilities],
    recent: Mapping[str, str],
    known: Mapping[str, str],
) -> PersonMatch | str:
    """Return the person that this means there, or the reason why nobody, in words. Pure.

    `platforms`: of all channels. `recent`: recent senders there;
    `known`: other known people; both by id, with names. A name counts only if a recent sender has
    it and nobody else does: anybody can take any name.
    """
    mention = _MENTION.fullmatch(written.strip())
    word = mention[1] if mention else written.strip("` ").removeprefix("@")
    channel, __, sender_id = word.partition(":")
    if sender_id and channel in platforms:
        whom = person_key(ChannelName(channel), sender_id)
        wrong = explain_invalid_id(word, platforms[ChannelName(channel)])
        if wrong and whom not in recent and whom not in known:
            return wrong
        return PersonMatch(whom, recent.get(whom) or known.get(whom, ""))
    own = person_key(at.channel, word)
    # a name in the form of an id never stands for its bearer
    if re.fullmatch(r"\d+|(?:account|mask|bridge):.+", word):
        known = {own: "", **known}
    found = {one: name for one, name in recent.items() if _fold_name(name) == _fold_name(word)}
    meant = {one: name for one, name in {**known, **recent}.items() if one == own}
    if len(found | meant) > 1:
        lines = [
            f"- {format_person(one, name)}" for one, name in list((found | meant).items())[:10]
        ]
        head = _("Several people have the name {name}. Write the id of the one you mean:")
        return "\n".join([head.format(name=inline_code(word)), *lines])
    for one, name in (found | meant).items():
        return PersonMatch(one, name, one not in meant)
    text = _(
        "Nobody with the name {name} has written here lately. Write their id, as `whoami` shows it "
        "to them."
    )
    return text.format(name=inline_code(word))


def explain_invalid_id(written: str, platform: Capabilities) -> str:
    """Return why `channel:id` cannot be anybody on such a platform, in words; empty: it can. A role
    for a nick would hold for nobody.
    """
    channel, __, sender_id = written.partition(":")
    if re.fullmatch(platform.sender_ids, sender_id, re.DOTALL):
        return ""
    text = _(
        "{id} is not the id of a person. Write it as `whoami` shows it to them, for example "
        "`{example}`."
    )
    return text.format(id=inline_code(written), example=f"{channel}:{platform.sender_id_example}")


def _fold_name(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip()
