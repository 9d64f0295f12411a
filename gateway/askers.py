"""Whose idea it may be what a turn does, beside those who speak in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway import access
from gateway.events import Alarm, ConversationId, Membership, Message
from gateway.hands import Asker, Whereabouts
from gateway.hearing import addressed
from gateway.labels import ANYBODY, CLEAN, rank
from gateway.past import PastTurn
from gateway.records import MESSAGES, Reminded, Seq, TurnEnded
from gateway.store import Reader, Stored
from gateway.tools.permits import standing, weakest

MOST_MESSAGES: Final = 500
"""Newest messages of a conversation that are looked through for a text."""
MOST_TURNS: Final = 20
"""As many as go on in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What a turn takes over from those that it goes on with: as the fields of `gateway.hands.Whereabouts`."""

    requesters: tuple[Asker, ...] = ()
    overheard_roles: frozenset[str] = frozenset()
    reminder_roles: frozenset[str] = frozenset()


async def behind(reader: Reader, who: access.Policy, turns: Sequence[PastTurn], *, continuing: bool) -> Behind:
    """Whose words a turn acts upon that were told to turns before it, with the roles that they have now.

    Those are the turns that were interrupted and got no answer yet; and, if it goes on by itself, all from the one on
    that began it, but no turn before that: what somebody asked then is over. Turns are oldest first.
    """
    found = list[TurnEnded]()
    for turn in reversed(turns[-MOST_TURNS:]):
        entry = await reader.entry(turn.seq)
        ended = entry.fact if entry is not None else None
        if not isinstance(ended, TurnEnded) or ended.within is not None or ended.cause == "compact":
            continue  # nobody said anything to it
        if not continuing and ended.outcome != "interrupted":
            break
        found.append(ended)
        continuing = ended.continued or ended.cause == "continued"
    return await _behind(reader, who, found[::-1])


async def _behind(reader: Reader, who: access.Policy, turns: Sequence[TurnEnded]) -> Behind:
    asking, overheard, reminded = list[Asker](), set[str](), set[str]()
    covered = [await reader.entry(seq) for ended in turns for seq in ended.covers]
    entries = [one for one in covered if one is not None]
    roles = await reminders(reader, entries)
    for one in entries:
        if one.seq in roles:
            reminded.add(roles[one.seq])
        elif isinstance(one.fact, Message) and addressed(one.fact) and not _elsewhere(one, turns):
            asking.append(_asker(who, one.fact))
        elif isinstance(one.fact, Message | Membership):
            overheard.add(access.role_of(who, one.fact.at, one.fact.sender))
    return Behind(
        requesters=apart(asking), overheard_roles=frozenset(overheard), reminder_roles=frozenset(reminded - {""})
    )


async def reminders(reader: Reader, some: Sequence[Stored]) -> Mapping[Seq, str]:
    """Of each reminder among these the least role of those whose idea it may be. Empty: the agent's own."""
    found = dict[Seq, str]()
    for one in some:
        if isinstance(one.fact, Alarm):
            set_ = await reader.entry_by_key(f"reminded:{one.fact.reminder}")
            fact = set_.fact if set_ is not None else None
            own = not one.fact.asked_by
            if isinstance(fact, Reminded):
                own = not fact.by and not fact.role
            found[one.seq] = "" if own else (fact.role if isinstance(fact, Reminded) and fact.role else ANYBODY)
    return found


def apart(askers: Sequence[Asker]) -> tuple[Asker, ...]:
    """Each once, as they came first. Whom the platform vouches for once only is two: their words need not be theirs."""
    found: dict[tuple[str, str, bool], Asker] = {}
    for one in askers:
        found.setdefault((one.id, one.role, one.verified), one)
    return tuple(found.values())


def least(where: Whereabouts) -> str:
    """The least role of those whose idea it may be what a turn does. Empty: it is the agent's own, by itself.

    Text from outside is anybody's.
    """
    label = where.trust.label
    seen = [ANYBODY] if label.foreign else [label.role] if label != CLEAN else []
    heard = where.overheard_roles if where.requesters else ()
    asking = [standing(asker.role, verified=asker.verified) for asker in where.requesters]
    return weakest([*asking, *heard, *where.reminder_roles, *seen] or [""])


async def wrote(reader: Reader, who: access.Policy, place: ConversationId, text: str) -> bool:
    """As `gateway.hands.Whereabouts.wrote`: among the newest messages there. What was only carried does not count."""
    since = await reader.last_fresh_start(place)
    for one in await reader.newest_entries(MOST_MESSAGES, after=since, kinds=MESSAGES, conversation=place):
        said = one.fact
        if isinstance(said, Message) and text in said.text and text not in said.carried:
            role = access.role_of(who, said.at, said.sender)
            if rank(role) >= rank("member") and access.decide(who, said).allowed:
                return True
    return False


def _asker(who: access.Policy, said: Message) -> Asker:
    sender = said.sender
    role = access.role_of(who, said.at, sender)
    return Asker(
        id=sender.id,
        name=sender.name,
        role=role,
        verified=sender.verified,
        ranks=sender.ranks,
        is_bot=sender.is_bot,
    )


def _elsewhere(one: Stored, turns: Sequence[TurnEnded]) -> bool:
    """It was said in a room that a digest told of: there, and not to this conversation."""
    return any(one.seq in ended.covers and ended.cause == "digest" for ended in turns)
