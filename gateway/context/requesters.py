"""Requesters: the people on whose behalf a turn may act, beside the authors of its new messages."""

import re
from collections.abc import Sequence
from typing import Final

from channels.text import fold_words
from gateway.access.policy import decide
from gateway.context.conversation import MAX_MESSAGES, find_alarm_role, is_addressed
from gateway.context.history import HistoryTurn
from gateway.core.events import Address, Alarm, ConversationId, MembershipChanged, Message, Sender
from gateway.core.facts import MESSAGE_KINDS, Seq, TurnRecord
from gateway.core.identity import AccessPolicy, author_role, identify, lowest_role
from gateway.core.labels import TRUSTED_LABEL, Label, label_of_role, rank_integrity
from gateway.core.tool import Requester
from gateway.store import StoreReader

LAST_FRESH_START: Final = "SELECT fresh FROM view WHERE conversation = $1"
MAX_TURNS: Final = 20
"""Longest series of turns that continue each other."""

BLOCKED_REASON: Final = "whoever asked for it is blocked"


async def find_inherited_requesters(
    reader: StoreReader,
    access_policy: AccessPolicy,
    turns: Sequence[HistoryTurn],
    *,
    continuing: bool,
) -> tuple[tuple[Requester, ...], str]:
    """Return the people on whose words of earlier turns a turn still acts, with their present
    roles, and `ToolContext.unasked_role` for these turns.

    These are the turns that were interrupted and not answered yet and, if the turn continues by
    itself, all back to the one that began the series. No turn before that counts: what somebody
    asked then is over. `turns`: oldest first.
    """
    found = list[TurnRecord]()
    for turn in reversed(turns[-MAX_TURNS:]):
        ended = turn.record
        if ended.within is not None or ended.cause == "compact":
            continue  # nobody wrote anything to it
        if not continuing and ended.outcome != "interrupted":
            break
        found.append(ended)
        continuing = ended.continued or ended.cause == "continued"
    requesters, others = list[Requester](), ["owner"]
    covered = [await reader.entry(seq) for ended in found[::-1] for seq in ended.covers]
    # What a digest showed was posted in a room, and not to this conversation.
    in_digests = {seq for ended in found if ended.cause == "digest" for seq in ended.covers}
    for one in covered:
        if one is None:
            continue
        if isinstance(one.fact, Alarm):
            others.append(await find_alarm_role(reader, access_policy, one.fact))
        elif isinstance(one.fact, Message | MembershipChanged):
            role = identify(access_policy, one.fact.at, one.fact.sender).role
            if is_addressed(one.fact) and one.seq not in in_digests:
                requesters.append(to_requester(one.fact.sender, role))
            else:
                others.append(role)
    return deduplicate_requesters(requesters), lowest_role(others)


async def label_alarm(
    reader: StoreReader, access_policy: AccessPolicy, alarm: Alarm, inner: ConversationId
) -> Label:
    """Return the label of an alarm in the inner conversation. Where nobody recorded who may read
    one that is not the agent's own alone, the agent may repeat it to itself only.
    """
    if alarm.attended or alarm.role == "":
        return TRUSTED_LABEL
    role = await find_alarm_role(reader, access_policy, alarm)
    readers = alarm.readers if alarm.role is not None else (inner,)
    return label_of_role(role, "a reminder") | Label(readers=readers)


def deduplicate_requesters(requesters: Sequence[Requester]) -> tuple[Requester, ...]:
    """Return each requester once, in order.

    A sender who is verified in some messages only counts twice: the other words may be someone
    else's.
    """
    found: dict[tuple[str, str, bool], Requester] = {}
    for one in requesters:
        found.setdefault((one.id, one.role, one.verified), one)
    return tuple(found.values())


def are_blocked(people: AccessPolicy, at: Address, requesters: Sequence[Requester]) -> bool:
    """Return whether a person asked there, and everyone who did is blocked by now. Pure."""
    return bool(requesters) and all(
        identify(people, at, one).role == "blocked" for one in requesters
    )


async def was_written_by_member(
    reader: StoreReader, access_policy: AccessPolicy, place: ConversationId, text: str
) -> bool:
    """Return whether a member or above wrote exactly this text in the place since its last fresh
    start, as whole words.

    Searches the newest messages there. Quoted and forwarded text does not count. Raises StoreError.
    """
    began = await reader.rows(LAST_FRESH_START, place)
    exact = re.compile(rf"(?<![\w.@-]){re.escape(text)}(?![\w@-]|\.\w)")
    newest = await reader.newest_entries(
        MAX_MESSAGES,
        after=began[0][0] if began else 0,
        kinds=MESSAGE_KINDS,
        conversation=place,
    )
    return any(
        isinstance(one.fact, Message)
        and exact.search(one.fact.text) is not None
        and text not in one.fact.carried
        and _is_by_member(access_policy, one.fact)
        for one in newest
    )


async def find_newest_lines(
    reader: StoreReader, place: ConversationId, requesters: Sequence[Requester]
) -> list[tuple[Seq, Message]]:
    """Return the newest message there of each of those who ask, the newest of all last. Raises
    StoreError.
    """
    newest = await reader.newest_entries(MAX_MESSAGES, kinds=MESSAGE_KINDS, conversation=place)
    asking = {one.id for one in requesters}
    last = {
        one.fact.sender.id: (one.seq, one.fact)
        for one in newest
        if isinstance(one.fact, Message) and one.fact.sender.id in asking
    }
    return sorted(last.values(), key=lambda one: one[0])


async def was_asked_for(
    reader: StoreReader,
    access_policy: AccessPolicy,
    place: ConversationId,
    requesters: Sequence[Requester],
    words: str,
) -> bool:
    """Return whether all these words stand in the newest message there of one of those who ask, a
    member or above. A room's name as `#it` has to stand there with its sign.

    Quoted and forwarded text does not count. Raises StoreError.
    """
    wanted, rooms = {*fold_words(words).split()}, re.findall(r"[#&]\S+", words.casefold())
    said = [
        one.text.replace(one.carried or "\0", " ").casefold()
        for _seq, one in await find_newest_lines(reader, place, requesters)
        if _is_by_member(access_policy, one)
    ]
    return bool(wanted) and any(
        wanted <= {*fold_words(text).split()} and all(room in text for room in rooms)
        for text in said
    )


def _is_by_member(access_policy: AccessPolicy, message: Message) -> bool:
    is_member = rank_integrity(author_role(access_policy, message)) >= rank_integrity("member")
    return is_member and decide(access_policy, message).allowed


def to_requester(sender: Sender, role: str) -> Requester:
    """Return the sender of a message as somebody who asks for something, in this role."""
    return Requester(
        id=sender.id,
        name=sender.name,
        role=role,
        account=sender.account,
        verified=sender.verified,
        ranks=sender.ranks,
        is_bot=sender.is_bot,
    )
