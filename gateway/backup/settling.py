"""What a restored store is told of the time since its backup: that nobody knows what was said in it.

The gateway that the backup was taken from may have gone on. What waited then may have been sent, what was unread may
have been answered, and what a platform's history tells may have been heard. To do any of it again could show people
something twice; so it is recorded as uncertain, or becomes context, and the operator is told how much there was.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.clock import Clock
from gateway.events import ChannelName, ConversationId, DeliveryReport, EventId, Usage
from gateway.ids import new_id
from gateway.pairs import CLI_EVIDENCE
from gateway.records import (
    LOW,
    AuditRecord,
    CursorMoved,
    Fact,
    Seq,
    TurnId,
    TurnRecord,
    dedup_key,
    inner_conversation,
    is_inner,
)
from gateway.roster.deskless import OPERATOR
from gateway.settings import Settings
from gateway.store import NewEntry, Store

HISTORY_PLATFORMS: Final = frozenset({"irc", "discord"})
"""Platforms whose history is read from where the cursor stands. Telegram hands over only what nobody has confirmed."""
_MAX_TURNS: Final = 50
"""Turns that are looked at for one that was interrupted: as `gateway.minds` does at a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """How much there was."""

    uncertain_posts: int
    """They waited, and are uncertain now."""
    unread_conversations: int
    """Conversations in which something was due; it is context now."""
    reset_channels: tuple[str, ...]
    """Channels that begin anew where the restore was."""


async def reconcile_restored(
    path: Path, settings: Settings, clock: Clock, *, made: datetime, by: str, exact: bool
) -> ReconcileReport:
    """Write it into the restored store at `path`, in one transaction. `exact`: no gateway went on, so nothing changed.

    `made`: when the backup was. `by`: who restores it, for people. Raises StoreError.
    """
    async with await Store.open(path, clock) as store:
        now, why = clock.now(), f"restored from a backup of {made:%Y-%m-%d %H:%M:%S} UTC"
        posts = () if exact else await store.undelivered_posts()
        due = () if exact else [place for place, _ in await store.due_conversations(LOW)]
        owed = () if exact else await _find_interrupted(store)
        cursors = () if exact else [name for name in _channels_with_history(settings) if await store.saved_cursor(name)]
        last = Seq(max([one.seq for one in await store.newest_entries(1)], default=0))
        told = f"{why}: it may have been answered since"
        entries = [_audit_entry(now, by, why, exact=exact)]
        for item in posts:
            ended = DeliveryReport(
                id=EventId(item.post.key),
                at=item.post.to,
                post=item.post.key,
                state="uncertain",
                reason=f"{why}: it may have been sent since",
                sent=now,
            )
            entries.append(NewEntry(fact=ended, at=now, conversation=item.post.to.conversation, key=dedup_key(ended)))
        if due:
            looked = tuple((place, last) for place in due)
            entries.append(
                _closing_turn_entry(
                    now, inner_conversation(settings.agents[0].id), told, agent=settings.agents[0].id, looked=looked
                )
            )
        entries += [_closing_turn_entry(now, place, told) for place in owed]
        entries += [NewEntry(fact=CursorMoved(channel=name, value=""), at=now) for name in cursors]
        await store.append(entries)
    return ReconcileReport(
        uncertain_posts=len(posts), unread_conversations=len({*due, *owed}), reset_channels=tuple(cursors)
    )


def _channels_with_history(settings: Settings) -> list[ChannelName]:
    return [ChannelName(name) for name, channel in settings.channels.items() if channel.platform in HISTORY_PLATFORMS]


async def _find_interrupted(store: Store) -> list[ConversationId]:
    """Where the last turn was interrupted: what it heard would be answered at the next start."""
    last = dict[ConversationId, Fact]()
    for one in await store.newest_entries(_MAX_TURNS, kinds=["turn_ended"]):
        compacted = isinstance(one.fact, TurnRecord) and one.fact.cause == "compact"
        if one.conversation is not None and not is_inner(one.conversation) and not compacted:
            last[one.conversation] = one.fact
    return [place for place, fact in last.items() if isinstance(fact, TurnRecord) and fact.outcome == "interrupted"]


def _closing_turn_entry(
    now: datetime,
    place: ConversationId,
    reason: str,
    *,
    agent: str = "",
    looked: tuple[tuple[ConversationId, Seq], ...] = (),
) -> NewEntry:
    """A turn in which nothing happened but that what was due is due no more. It deals with nothing that is unread."""
    turn = TurnId(new_id(now))
    fact = TurnRecord(
        turn=turn,
        covers=(),
        omitted=0,
        heard="",
        upto=Seq(0),
        outcome="yielded",
        text="",
        reason=reason,
        model="",
        usage=Usage(),
        requests=0,
        autonomous=False,
        agent=agent,
        looked=looked,
    )
    return NewEntry(fact=fact, at=now, conversation=place, key=f"turn:{turn}")


def _audit_entry(now: datetime, by: str, why: str, *, exact: bool) -> NewEntry:
    fact = AuditRecord(
        what="restore",
        by=OPERATOR,
        name=by,
        evidence=CLI_EVIDENCE,
        role=OPERATOR,
        rule="the command line",
        at=None,
        args="--nothing-since" if exact else "",
        ok=True,
        result=why,
    )
    return NewEntry(fact=fact, at=now)
