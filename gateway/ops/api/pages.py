"""Pages of the log: what was noticed, the turns, what they cost, what is delivered, who administered what."""

from datetime import timedelta

from gateway.events import DeliveryReport, Usage
from gateway.ids import id_created_at
from gateway.ledger import prompt_tokens, read_share
from gateway.ops.api.asks import ApiQuery, ConversationPageQuery, NotificationQuery, PageQuery, SpendingQuery
from gateway.ops.api.now import token_fields
from gateway.ops.api.places import parse_conversation
from gateway.ops.api.reading import ApiBackend
from gateway.ops.api.shapes import (
    AuditEntry,
    AuditPage,
    CacheReport,
    DeliveryRecord,
    NotificationPage,
    NotificationRecord,
    OutboxStatus,
    PendingPart,
    PendingPost,
    TurnPage,
    TurnSummary,
    UsageBucket,
    UsageTotal,
)
from gateway.ops.api.wording import find_actor, find_outcome, render_fact_text
from gateway.records import AuditRecord
from gateway.store.lines import hide_codes
from gateway.store.overview_rows import NotificationRow, TurnRow

MAX_HOURLY_BUCKETS = 72
"""Hours that are told hour by hour; of more, days are."""
MAX_WAITING = 200
MAX_DELIVERIES = 100


async def list_notifications(desk: ApiBackend, query: NotificationQuery) -> NotificationPage:
    """What was noticed, and what became of it."""
    there = parse_conversation(query.conversation) if query.conversation is not None else None
    found = await (await desk.open_reader()).notifications(
        query.limit,
        before=query.before,
        after=query.after or 0,
        conversation=there,
        oldest=query.after is not None,
    )
    return NotificationPage(
        notifications=tuple(build_notification(one) for one in found),
        next=found[-1].seq if len(found) == query.limit else None,
    )


def build_notification(event: NotificationRow) -> NotificationRecord:
    """One notification."""
    return NotificationRecord(
        seq=event.seq,
        at=event.at,
        type=event.judged.type,
        kind=event.fact.kind,
        conversation=event.conversation,
        who=find_actor(event.fact),
        text=render_fact_text(event.fact),
        urgency=event.judged.urgency,
        fate=find_outcome(event).value,
        rule=event.judged.rule,
    )


async def list_turns(desk: ApiBackend, query: ConversationPageQuery) -> TurnPage:
    """The turns that were taken."""
    there = parse_conversation(query.conversation) if query.conversation is not None else None
    found = await (await desk.open_reader()).recent_turns(query.limit, before=query.before, conversation=there)
    return TurnPage(
        turns=tuple(_build_turn(one) for one in found), next=found[-1].seq if len(found) == query.limit else None
    )


def _build_turn(one: TurnRow) -> TurnSummary:
    began = None if one.within else id_created_at(one.turn)
    return TurnSummary(
        seq=one.seq,
        at=one.at,
        turn=one.turn,
        agent=one.agent,
        conversation=one.conversation,
        cause=one.cause,
        outcome=one.outcome,
        model=one.model,
        requests=one.requests,
        tools=one.tools,
        seconds=None if began is None else max(0.0, (one.at - began).total_seconds()),
        **token_fields(one.usage, one.cost_usd),
    )


async def get_cache_report(desk: ApiBackend, query: SpendingQuery) -> CacheReport:
    """What was spent, hour by hour or day by day, and what came from the cache."""
    since, daily = desk.services.clock.now() - timedelta(hours=query.hours), query.hours > MAX_HOURLY_BUCKETS
    found = await (await desk.open_reader()).spending_over_time(query.by, since, daily=daily)
    sums = dict[str, tuple[int, Usage, float]]()
    for one in found:
        requests, usage, cost = sums.get(one.key, (0, Usage(), 0.0))
        sums[one.key] = requests + one.requests, usage + one.usage, cost + one.cost_usd
    order = sorted(sums.items(), key=lambda item: (-item[1][2], -prompt_tokens(item[1][1]), item[0]))
    return CacheReport(
        by=query.by,
        buckets=tuple(
            UsageBucket(
                at=one.at, key=one.key, read_share=read_share(one.usage), **token_fields(one.usage, one.cost_usd)
            )
            for one in found
        ),
        totals=tuple(
            UsageTotal(key=key, requests=requests, read_share=read_share(usage), **token_fields(usage, cost))
            for key, (requests, usage, cost) in order
        ),
    )


async def get_outbox(desk: ApiBackend, _query: ApiQuery) -> OutboxStatus:
    """What is to be delivered, and how the newest deliveries ended."""
    reader = await desk.open_reader()
    waiting = await reader.undelivered_posts()
    ended = await reader.newest_entries(MAX_DELIVERIES, kinds=["delivery"])
    return OutboxStatus(
        waiting=tuple(
            PendingPost(
                seq=one.seq,
                at=one.at,
                to=one.post.to.conversation,
                text=hide_codes(one.post.text),
                parts=tuple(
                    PendingPart(index=part.index, state=part.state, attempts=part.attempts, reason=part.reason)
                    for part in one.parts
                ),
            )
            for one in waiting[:MAX_WAITING]
        ),
        deliveries=tuple(
            DeliveryRecord(
                seq=one.seq, at=one.at, to=one.fact.at.conversation, outcome=one.fact.state, reason=one.fact.reason
            )
            for one in reversed(ended)
            if isinstance(one.fact, DeliveryReport)
        ),
    )


async def list_audit(desk: ApiBackend, query: PageQuery) -> AuditPage:
    """Acts of administration."""
    found = await (await desk.open_reader()).newest_entries(query.limit, before=query.before, kinds=["audited"])
    return AuditPage(
        audit=tuple(
            AuditEntry(
                seq=one.seq,
                at=one.at,
                actor=f"{one.fact.by} ({one.fact.name})" if one.fact.name else one.fact.by,
                place=one.fact.at.conversation if one.fact.at is not None else "",
                command=one.fact.what,
                arguments=hide_codes(one.fact.args),
                result=hide_codes(one.fact.result),
                ok=one.fact.ok,
            )
            for one in reversed(found)
            if isinstance(one.fact, AuditRecord)
        ),
        next=found[0].seq if len(found) == query.limit else None,
    )
