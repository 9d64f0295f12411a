"""Pages of the log: what was noticed, the turns, what they cost, what is delivered, who administered what."""

from datetime import timedelta

from gateway.events import Delivery, Usage
from gateway.ids import moment_of
from gateway.ledger import prompt_tokens, read_share
from gateway.ops.api.asks import Back, BackThere, Either, Query, Spent
from gateway.ops.api.now import tokens
from gateway.ops.api.places import conversation_of
from gateway.ops.api.reading import Desk
from gateway.ops.api.shapes import (
    Act,
    Audit,
    Bucket,
    Cache,
    Delivered,
    Noticed,
    Notifications,
    Outbox,
    Total,
    Turn,
    Turns,
    Waiting,
    WaitingPart,
)
from gateway.ops.api.wording import fate, text, who
from gateway.records import Audited
from gateway.store.lines import uncoded
from gateway.store.overview_rows import Event, TurnSeen

HOURLY_MOST = 72
"""Hours that are told hour by hour; of more, days are."""
MOST_WAITING = 200
MOST_DELIVERIES = 100


async def notifications(desk: Desk, query: Either) -> Notifications:
    """What was noticed, and what became of it."""
    there = conversation_of(query.conversation) if query.conversation is not None else None
    found = await (await desk.open_reader()).notifications(
        query.limit,
        before=query.before,
        after=query.after or 0,
        conversation=there,
        oldest=query.after is not None,
    )
    return Notifications(
        notifications=tuple(noticed(one) for one in found),
        next=found[-1].seq if len(found) == query.limit else None,
    )


def noticed(event: Event) -> Noticed:
    """One notification."""
    return Noticed(
        seq=event.seq,
        at=event.at,
        type=event.judged.type,
        kind=event.fact.kind,
        conversation=event.conversation,
        who=who(event.fact),
        text=text(event.fact),
        urgency=event.judged.urgency,
        fate=fate(event).value,
        rule=event.judged.rule,
    )


async def turns(desk: Desk, query: BackThere) -> Turns:
    """The turns that were taken."""
    there = conversation_of(query.conversation) if query.conversation is not None else None
    found = await (await desk.open_reader()).recent_turns(query.limit, before=query.before, conversation=there)
    return Turns(turns=tuple(_turn(one) for one in found), next=found[-1].seq if len(found) == query.limit else None)


def _turn(one: TurnSeen) -> Turn:
    began = None if one.within else moment_of(one.turn)
    return Turn(
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
        **tokens(one.usage, one.cost_usd),
    )


async def cache(desk: Desk, query: Spent) -> Cache:
    """What was spent, hour by hour or day by day, and what came from the cache."""
    since, daily = desk.services.clock.now() - timedelta(hours=query.hours), query.hours > HOURLY_MOST
    found = await (await desk.open_reader()).spending_over_time(query.by, since, daily=daily)
    sums = dict[str, tuple[int, Usage, float]]()
    for one in found:
        requests, usage, cost = sums.get(one.key, (0, Usage(), 0.0))
        sums[one.key] = requests + one.requests, usage + one.usage, cost + one.cost_usd
    order = sorted(sums.items(), key=lambda item: (-item[1][2], -prompt_tokens(item[1][1]), item[0]))
    return Cache(
        by=query.by,
        buckets=tuple(
            Bucket(at=one.at, key=one.key, read_share=read_share(one.usage), **tokens(one.usage, one.cost_usd))
            for one in found
        ),
        totals=tuple(
            Total(key=key, requests=requests, read_share=read_share(usage), **tokens(usage, cost))
            for key, (requests, usage, cost) in order
        ),
    )


async def outbox(desk: Desk, _query: Query) -> Outbox:
    """What is to be delivered, and how the newest deliveries ended."""
    reader = await desk.open_reader()
    waiting = await reader.undelivered_posts()
    ended = await reader.newest_entries(MOST_DELIVERIES, kinds=["delivery"])
    return Outbox(
        waiting=tuple(
            Waiting(
                seq=one.seq,
                at=one.at,
                to=one.post.to.conversation,
                text=uncoded(one.post.text),
                parts=tuple(
                    WaitingPart(index=part.index, state=part.state, attempts=part.attempts, reason=part.reason)
                    for part in one.parts
                ),
            )
            for one in waiting[:MOST_WAITING]
        ),
        deliveries=tuple(
            Delivered(
                seq=one.seq, at=one.at, to=one.fact.at.conversation, outcome=one.fact.state, reason=one.fact.reason
            )
            for one in reversed(ended)
            if isinstance(one.fact, Delivery)
        ),
    )


async def audit(desk: Desk, query: Back) -> Audit:
    """Acts of administration."""
    found = await (await desk.open_reader()).newest_entries(query.limit, before=query.before, kinds=["audited"])
    return Audit(
        audit=tuple(
            Act(
                seq=one.seq,
                at=one.at,
                actor=f"{one.fact.by} ({one.fact.name})" if one.fact.name else one.fact.by,
                place=one.fact.at.conversation if one.fact.at is not None else "",
                command=one.fact.what,
                arguments=uncoded(one.fact.args),
                result=uncoded(one.fact.result),
                ok=one.fact.ok,
            )
            for one in reversed(found)
            if isinstance(one.fact, Audited)
        ),
        next=found[0].seq if len(found) == query.limit else None,
    )
