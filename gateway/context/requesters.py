"""Whose idea it may be what a turn does, beside those who speak in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.access.policy import decide
from gateway.context.conversation import is_addressed
from gateway.context.history import HistoryTurn
from gateway.core.events import Alarm, ConversationId, MembershipChanged, Message
from gateway.core.facts import MESSAGE_KINDS, ReminderSet, Seq, TurnRecord
from gateway.core.identity import AccessPolicy, role_of
from gateway.core.permissions import lowest_role, proven_role
from gateway.core.tool import Requester, ToolContext
from gateway.core.trust import ANYBODY_ROLE, TRUSTED_LABEL, role_rank
from gateway.store import LogEntry, StoreReader

MAX_MESSAGES: Final = 500
"""Newest messages of a conversation that are looked through for a text."""
MAX_TURNS: Final = 20
"""As many as go on in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritedRequesters:
    """What a turn takes over from those that it goes on with: as the fields of `gateway.core.tool.ToolContext`."""

    requesters: tuple[Requester, ...] = ()
    overheard_roles: frozenset[str] = frozenset()
    reminder_roles: frozenset[str] = frozenset()


async def find_inherited_requesters(
    reader: StoreReader, who: AccessPolicy, turns: Sequence[HistoryTurn], *, continuing: bool
) -> InheritedRequesters:
    """Whose words a turn acts upon that were told to turns before it, with the roles that they have now.

    Those are the turns that were interrupted and got no answer yet; and, if it goes on by itself, all from the one on
    that began it, but no turn before that: what somebody asked then is over. Turns are oldest first.
    """
    found = list[TurnRecord]()
    for turn in reversed(turns[-MAX_TURNS:]):
        entry = await reader.entry(turn.seq)
        ended = entry.fact if entry is not None else None
        if not isinstance(ended, TurnRecord) or ended.within is not None or ended.cause == "compact":
            continue  # nobody said anything to it
        if not continuing and ended.outcome != "interrupted":
            break
        found.append(ended)
        continuing = ended.continued or ended.cause == "continued"
    return await _collect_requesters(reader, who, found[::-1])


async def _collect_requesters(
    reader: StoreReader, who: AccessPolicy, turns: Sequence[TurnRecord]
) -> InheritedRequesters:
    asking, overheard, reminded = list[Requester](), set[str](), set[str]()
    covered = [await reader.entry(seq) for ended in turns for seq in ended.covers]
    entries = [one for one in covered if one is not None]
    roles = await find_reminder_roles(reader, entries)
    for one in entries:
        if one.seq in roles:
            reminded.add(roles[one.seq])
        elif isinstance(one.fact, Message) and is_addressed(one.fact) and not _was_in_digest(one, turns):
            asking.append(_to_requester(who, one.fact))
        elif isinstance(one.fact, Message | MembershipChanged):
            overheard.add(role_of(who, one.fact.at, one.fact.sender))
    return InheritedRequesters(
        requesters=deduplicate_requesters(asking),
        overheard_roles=frozenset(overheard),
        reminder_roles=frozenset(reminded - {""}),
    )


async def find_reminder_roles(reader: StoreReader, some: Sequence[LogEntry]) -> Mapping[Seq, str]:
    """Of each reminder among these the least role of those whose idea it may be. Empty: the agent's own."""
    found = dict[Seq, str]()
    for one in some:
        if isinstance(one.fact, Alarm):
            set_ = await reader.entry_by_key(f"reminded:{one.fact.reminder}")
            fact = set_.fact if set_ is not None else None
            own = not one.fact.asked_by
            if isinstance(fact, ReminderSet):
                own = not fact.by and not fact.role
            found[one.seq] = "" if own else (fact.role if isinstance(fact, ReminderSet) and fact.role else ANYBODY_ROLE)
    return found


def deduplicate_requesters(askers: Sequence[Requester]) -> tuple[Requester, ...]:
    """Each once, as they came first. Whom the platform vouches for once only is two: their words need not be theirs."""
    found: dict[tuple[str, str, bool], Requester] = {}
    for one in askers:
        found.setdefault((one.id, one.role, one.verified), one)
    return tuple(found.values())


def find_least_role(where: ToolContext) -> str:
    """The least role of those whose idea it may be what a turn does. Empty: it is the agent's own, by itself.

    Text from outside is anybody's.
    """
    label = where.trust.label
    seen = [ANYBODY_ROLE] if label.foreign else [label.role] if label != TRUSTED_LABEL else []
    heard = where.overheard_roles if where.requesters else ()
    asking = [proven_role(asker.role, verified=asker.verified) for asker in where.requesters]
    return lowest_role([*asking, *heard, *where.reminder_roles, *seen] or [""])


async def was_written_by_member(reader: StoreReader, who: AccessPolicy, place: ConversationId, text: str) -> bool:
    """As `gateway.core.tool.ToolContext.wrote`.

    Among the newest messages there. What was only carried does not count.
    """
    since = await reader.last_fresh_start(place)
    for one in await reader.newest_entries(MAX_MESSAGES, after=since, kinds=MESSAGE_KINDS, conversation=place):
        said = one.fact
        if isinstance(said, Message) and text in said.text and text not in said.carried:
            role = role_of(who, said.at, said.sender)
            if role_rank(role) >= role_rank("member") and decide(who, said).allowed:
                return True
    return False


def _to_requester(who: AccessPolicy, said: Message) -> Requester:
    sender = said.sender
    role = role_of(who, said.at, sender)
    return Requester(
        id=sender.id,
        name=sender.name,
        role=role,
        verified=sender.verified,
        ranks=sender.ranks,
        is_bot=sender.is_bot,
    )


def _was_in_digest(one: LogEntry, turns: Sequence[TurnRecord]) -> bool:
    """It was said in a room that a digest told of: there, and not to this conversation."""
    return any(one.seq in ended.covers and ended.cause == "digest" for ended in turns)
