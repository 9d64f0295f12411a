"""Answers of the API: status, conversations with their last request, pages of the log, costs, outbox and audit.

Each view takes the `ApiBackend` and its query and returns one model of `api_schemas`. `ROUTES` in `api` lists them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import groupby
from typing import Final

from agent.cache.plan import PlannedRequest, PromptSegment
from agent.models.base import MessagePart, ModelRequest, TextPart
from gateway.core.clock import id_created_at
from gateway.core.events import Address, CacheTtl, ChannelName, ConversationId, DeliveryReport, Usage
from gateway.core.facts import AuditRecord, PostQueued, is_inner
from gateway.core.text_safety import shorten
from gateway.core.tool_spec import Image, ToolCall
from gateway.ops.api_schemas import (
    ApiBackend,
    ApiQuery,
    AuditEntry,
    AuditPage,
    CacheReport,
    ChannelList,
    ChannelStatus,
    ConversationDetail,
    ConversationList,
    ConversationMessage,
    ConversationPageQuery,
    ConversationQuery,
    ConversationSummary,
    DeliveryRecord,
    DmnHistory,
    DmnModeChange,
    DmnStatusList,
    GatewayStatus,
    HoursQuery,
    LimitQuery,
    NotificationPage,
    NotificationQuery,
    NotificationRecord,
    OutboxStatus,
    PageQuery,
    PendingPart,
    PendingPost,
    PromptBlock,
    PromptSnapshot,
    RequestBill,
    SpendingQuery,
    TurnInProgress,
    TurnPage,
    TurnSummary,
    UsageBucket,
    UsageTotal,
    UsageTotals,
    find_actor,
    find_outcome,
    render_fact_text,
)
from gateway.ops.http import HttpProblem, problem_response
from gateway.store.format import hide_codes
from gateway.store.ledger import prompt_tokens, read_share
from gateway.store.overview import ConversationRow, NotificationRow, SpokenRow, TurnRow

MAX_MODES = 2_000
"""Most mode changes of one answer; the newest are kept."""


def token_fields(usage: Usage, cost_usd: float) -> dict[str, float]:
    """Return the fields of `BilledTokens`."""
    return {
        "input_tokens": usage.input_tokens,
        "read_tokens": usage.cache_read_tokens,
        "written_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": cost_usd,
    }


async def get_status(backend: ApiBackend, _query: ApiQuery) -> GatewayStatus:
    """Return the state of the gateway."""
    services, now = backend.services, backend.services.clock.now().astimezone(UTC)
    snapshot = services.stats.snapshot()
    spent = await (await backend.open_reader()).spending_sums("all", since=now.date().isoformat())
    usage = sum((one.usage for one in spent), Usage())
    return GatewayStatus(
        version=services.version,
        started=snapshot.started,
        now=now,
        ready=snapshot.is_ready,
        model=services.describe_model(),
        agents=tuple(services.list_minds()),
        today=UsageTotals(
            requests=sum(one.requests for one in spent),
            read_share=read_share(usage),
            **token_fields(usage, sum(one.cost_usd for one in spent)),
        ),
        activity=tuple(
            TurnInProgress(
                turn=one.turn,
                agent=one.agent,
                conversation=one.conversation,
                since=one.since,
                tool=next(reversed(one.tools.values()), ""),
            )
            for one in services.turn_tracker.running
        ),
    )


async def list_channels(backend: ApiBackend, _query: ApiQuery) -> ChannelList:
    """Return the connections of all accounts."""
    return ChannelList(
        channels=tuple(ChannelStatus(**asdict(one)) for one in backend.services.stats.snapshot().channels)
    )


async def list_minds(backend: ApiBackend, _query: ApiQuery) -> DmnStatusList:
    """Return the DMN status of all agents."""
    return DmnStatusList(agents=tuple(backend.services.list_minds()))


async def get_dmn_history(backend: ApiBackend, query: HoursQuery) -> DmnHistory:
    """Return the changes of DMN modes, oldest first."""
    since = backend.services.clock.now() - timedelta(hours=query.hours)
    modes, states = dict[str, str](), list[DmnModeChange]()
    for at, agent, mode in await (await backend.open_reader()).dmn_modes(since):
        if modes.get(agent) != mode:
            states.append(DmnModeChange(at=at, agent=agent, mode=mode))
        modes[agent] = mode
    return DmnHistory(states=tuple(states[-MAX_MODES:]))


NOW_BLOCK: Final = "now"


def build_prompt_snapshot(planned: PlannedRequest) -> PromptSnapshot:
    """Return the request as it was sent to the model. Images are replaced by their description."""
    request, account = planned.request, planned.account
    return PromptSnapshot(
        at=datetime.fromtimestamp(planned.sent_at_s, UTC),
        model=account.model if account is not None else "",
        blocks=tuple(_build_blocks(planned)),
        tools=tuple(spec.name for spec in request.tools),
        marks=len(request.breakpoints),
        bill=None
        if account is None
        else RequestBill(
            input_tokens=account.usage.input_tokens,
            read_tokens=account.usage.cache_read_tokens,
            written_tokens=account.usage.cache_write_tokens,
            output_tokens=account.usage.output_tokens,
            cost_usd=account.cost_usd or 0.0,
            missed=account.missed,
        ),
    )


def _build_blocks(planned: PlannedRequest) -> Iterator[PromptBlock]:
    marks = {(mark.behind, mark.index): mark.lifetime for mark in planned.request.breakpoints}
    marked: list[CacheTtl | None] = [
        marks.get((unit.behind, unit.number)) if unit.takes_breakpoint else None for unit in planned.segments
    ]
    numbered = list(enumerate(planned.segments))
    for name, group in groupby(numbered, key=lambda one: one[1].name):
        units = list(group)
        while units:
            upto = next((place for place, (index, _) in enumerate(units) if marked[index] is not None), len(units) - 1)
            part, units = units[: upto + 1], units[upto + 1 :]
            yield _build_block(planned, name, part, marked[part[-1][0]])
    last = "\n\n".join(filter(str.strip, [planned.request.aside, planned.request.now]))
    if last:
        tokens = planned.estimate.correct(planned.estimate.size.now)
        yield PromptBlock(
            name=NOW_BLOCK, lifetime=None, marked=False, tokens=tokens, read_tokens=0, written_tokens=0, text=last
        )


def _build_block(
    planned: PlannedRequest, name: str, part: Sequence[tuple[int, PromptSegment]], mark: CacheTtl | None
) -> PromptBlock:
    tokens, read, written = 0, 0, 0
    writes = max([index for index, _ in planned.plan.writes], default=-1)
    for index, unit in part:
        size = planned.estimate.correct(unit.tokens)
        tokens += size
        if index < planned.plan.read_segments:
            read += size
        elif index <= writes:
            written += size
    return PromptBlock(
        name=name,
        lifetime=mark,
        marked=mark is not None,
        tokens=tokens,
        read_tokens=read,
        written_tokens=written,
        text=_render_units(planned.request, planned.segments, [index for index, _ in part]),
    )


def _render_units(request: ModelRequest, segments: Sequence[PromptSegment], part: Sequence[int]) -> str:
    first = segments[part[0]]
    if first.behind == "tools":
        tools = [{"name": one.name, "description": one.description, "schema": one.schema} for one in request.tools]
        return json.dumps(tools, ensure_ascii=False, indent=1)
    if first.behind == "block":
        return "\n\n".join(request.blocks[segments[index].number].text for index in part)
    lines = list[str]()
    for index in part:
        unit = segments[index]
        message, place = request.conversation[unit.number], _find_piece_index(segments, index)
        if place == 0:
            lines.append(f"[{message.role}]")
        lines.append(_render_piece(message.parts[place]) if place < len(message.parts) else "")
    return "\n".join(lines)


def _find_piece_index(segments: Sequence[PromptSegment], index: int) -> int:
    """Return the index of the message part that a segment stands for."""
    first = index
    while first > 0 and (segments[first - 1].behind, segments[first - 1].number) == ("said", segments[index].number):
        first -= 1
    return index - first


def _render_piece(piece: MessagePart) -> str:
    match piece:
        case TextPart():
            return piece.text
        case Image():
            return f"[image: {piece.description}]"
        case ToolCall():
            return f"[call {piece.id}: {piece.name} {piece.arguments}]"
        case result:
            return f"[result of {result.id}{', an error' if result.is_error else ''}]\n{result.text}"


MAX_LAST_TEXT_CHARS = 300
"""Longest text of the last message in a list of conversations."""


async def list_conversations(backend: ApiBackend, query: LimitQuery) -> ConversationList:
    """Return the most recently active conversations."""
    found = await (await backend.open_reader()).recent_conversations(query.limit)
    running = {one.conversation for one in backend.services.turn_tracker.running}
    return ConversationList(conversations=tuple(_build_summary(backend, one, running) for one in found))


def _build_summary(backend: ApiBackend, one: ConversationRow, running: set[ConversationId]) -> ConversationSummary:
    place, last = Address.parse(one.conversation), one.last
    redact = backend.services.redact
    return ConversationSummary(
        conversation=one.conversation,
        agent=find_agent(backend, one.conversation),
        platform=backend.services.list_platforms().get(ChannelName(place.channel), ""),
        last_at=last.at if last is not None else one.at,
        last_seq=last.seq if last is not None else one.seq,
        last_text=shorten(redact(render_fact_text(last.fact)), MAX_LAST_TEXT_CHARS) if last is not None else "",
        last_who=find_actor(last.fact) if last is not None else "",
        unread=one.unread,
        running=one.conversation in running,
    )


def find_agent(backend: ApiBackend, conversation: ConversationId) -> str:
    """Return the agent of a conversation."""
    place = Address.parse(conversation)
    return place.room if is_inner(conversation) else backend.services.find_agent(place)


def parse_conversation(text: str) -> ConversationId:
    """Parse a conversation of a query. Raises HttpProblem."""
    try:
        return Address.parse(text).conversation
    except ValueError:
        raise HttpProblem(
            problem_response(
                HTTPStatus.BAD_REQUEST, "that is no conversation: write channel/room or channel/room/thread"
            )
        ) from None


async def get_conversation(backend: ApiBackend, query: ConversationQuery) -> ConversationDetail:
    """Return one conversation with its last request."""
    conversation = parse_conversation(query.id)
    reader = await backend.open_reader()
    entries = await reader.spoken_entries(conversation, query.limit)
    events = {event.seq: event for event in await reader.notifications_at([one.seq for one in entries])}
    agent = find_agent(backend, conversation)
    planned = backend.services.find_last_request(conversation)
    return ConversationDetail(
        conversation=conversation,
        agent=agent,
        messages=tuple(
            _build_message(
                one, find_outcome(events[one.seq]).value if one.seq in events else one.delivered or "waiting"
            )
            for one in entries
        ),
        prompt=build_prompt_snapshot(planned) if planned is not None else None,
    )


def _build_message(one: SpokenRow, became: str) -> ConversationMessage:
    return ConversationMessage(
        seq=one.seq,
        at=one.at,
        who=find_actor(one.fact),
        ours=isinstance(one.fact, PostQueued),
        text=render_fact_text(one.fact),
        kind=one.fact.kind,
        fate=became,
    )


MAX_HOURLY_BUCKETS = 72
"""Hours up to which buckets are hours; beyond, buckets are days."""
MAX_WAITING = 200
MAX_DELIVERIES = 100


async def list_notifications(backend: ApiBackend, query: NotificationQuery) -> NotificationPage:
    """Return a page of notifications with their outcomes."""
    conversation = parse_conversation(query.conversation) if query.conversation is not None else None
    found = await (await backend.open_reader()).notifications(
        query.limit,
        before=query.before,
        after=query.after or 0,
        conversation=conversation,
        oldest=query.after is not None,
    )
    return NotificationPage(
        notifications=tuple(build_notification(one) for one in found),
        next=found[-1].seq if len(found) == query.limit else None,
    )


def build_notification(event: NotificationRow) -> NotificationRecord:
    """Convert a stored notification."""
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


async def list_turns(backend: ApiBackend, query: ConversationPageQuery) -> TurnPage:
    """Return a page of turns."""
    conversation = parse_conversation(query.conversation) if query.conversation is not None else None
    found = await (await backend.open_reader()).recent_turns(
        query.limit, before=query.before, conversation=conversation
    )
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


async def get_cache_report(backend: ApiBackend, query: SpendingQuery) -> CacheReport:
    """Return usage and cost, by hour or by day, and the share read from the cache."""
    since, daily = backend.services.clock.now() - timedelta(hours=query.hours), query.hours > MAX_HOURLY_BUCKETS
    found = await (await backend.open_reader()).spending_over_time(query.by, since, daily=daily)
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


async def get_outbox(backend: ApiBackend, _query: ApiQuery) -> OutboxStatus:
    """Return the posts that wait for delivery, and the newest deliveries."""
    reader = await backend.open_reader()
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


async def list_audit(backend: ApiBackend, query: PageQuery) -> AuditPage:
    """Return a page of the audit log."""
    found = await (await backend.open_reader()).newest_entries(query.limit, before=query.before, kinds=["audited"])
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
