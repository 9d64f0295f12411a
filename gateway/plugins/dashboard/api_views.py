"""Answers of the API: status, conversations with their last request, pages of the log, costs,
outbox and audit.

Each view takes the `ApiBackend` and its query and returns one model of `api_models`. `PAGES` and
`COMMANDS` list them. Every path needs the token.
"""

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python
from starlette.exceptions import HTTPException

from agent.cache.plan import PlannedRequest, PromptSegment
from agent.models.base import MessagePart, ModelRequest, TextPart
from gateway import __version__
from gateway.access.place_names import PlaceTitles
from gateway.cluster.status import describe_cluster
from gateway.commands.definition import format_arg
from gateway.commands.services import Services
from gateway.context.observer import RunningTurn
from gateway.core import api_models as models
from gateway.core.control_messages import (
    OPERATOR,
    OPERATOR_EVIDENCE,
    CommandRequest,
    ControlResponse,
    DmnStatus,
)
from gateway.core.events import (
    Address,
    CacheTtl,
    ChannelName,
    ConversationId,
    DeliveryReport,
    Message,
    Usage,
)
from gateway.core.facts import MESSAGE_KINDS, OPERATOR_CHANNEL, AuditRecord, PostQueued, is_inner
from gateway.core.identity import Role, person_key
from gateway.core.metrics import ChannelStats
from gateway.core.redaction import Redactor
from gateway.core.route import WAITING, RouteRefused, routes_of
from gateway.core.text_safety import one_line, shorten
from gateway.core.tool_spec import Image, ToolCall
from gateway.plugins.dashboard.config_editor import ConfigEditor
from gateway.plugins.http import Client
from gateway.store import SpendingKey, search_terms
from gateway.store.effects import EffectFact, build_effect_entries
from gateway.store.format import actor_name, describe_contents, hide_codes
from gateway.store.overview import (
    ConversationRow,
    NotificationRow,
    OverviewReader,
    SpokenRow,
    find_notifications,
)
from gateway.stream.handle import GatewayHandle
from gateway.stream.operator import OperatorChannel

logger = logging.getLogger("reverie.ops")


class ApiBackend:
    """What the API reads of a running gateway, and a connection of its own to the store, opened at
    the first use.
    """

    def __init__(self, gateway: GatewayHandle, services: Services) -> None:
        """Close it."""
        self.gateway, self.stats, self.turn_tracker = gateway, gateway.stats, services.tracker
        self.agents, self.processes = services.agents, services.processes
        self.dispatcher, self.plugins = services.dispatcher, services.plugins
        self.config = ConfigEditor(gateway.live, gateway.redactor)
        self._reader: OverviewReader | None = None
        self._opening = asyncio.Lock()

    async def open_reader(self) -> OverviewReader:
        """Return the reader of the store; open it at the first call. Raises StoreError."""
        async with self._opening:
            if self._reader is None:
                self._reader = await OverviewReader.open(self.gateway.store.location)
            return self._reader

    def list_turns(self) -> list[models.TurnSummary]:
        """Return the running turns of this process, oldest first."""
        return [build_running_turn(one, one.since) for one in self.turn_tracker.running]

    def find_prompt(self, conversation: ConversationId) -> models.PromptSnapshot | None:
        """Return the last request of a conversation that this process knows."""
        planned = self.agents.agent_for(conversation).last_request(conversation)
        return build_prompt_snapshot(planned) if planned is not None else None

    async def close(self) -> None:
        """Close the reader. May be called more than once."""
        async with self._opening:
            if self._reader is not None:
                reader, self._reader = self._reader, None
                await reader.close()


def build_running_turn(one: RunningTurn, at: datetime) -> models.TurnSummary:
    """Return a turn whose record is not in the log yet."""
    return models.TurnSummary(
        at=at,
        turn=one.turn,
        agent=one.agent,
        conversation=one.conversation,
        state="started",
        cause=one.cause,
        autonomous=one.autonomous,
        tools=tuple(one.tools.values()),
    )


def build_usage(
    requests: int, usage: Usage, cost_usd: float, *, key: str = "", at: datetime | None = None
) -> models.UsageSum:
    """Return the sum of some requests."""
    share = usage.read_share
    return models.UsageSum(
        key=key, at=at, requests=requests, read_share=share, **models.token_fields(usage, cost_usd)
    )


MAX_ARGS_CHARS: Final = 200
"""Longest input, and longest result, in an audit record."""
MAX_MODES = 2_000
"""Most mode changes of one answer; the newest are kept."""


async def get_status(backend: ApiBackend, _query: models.ApiQuery) -> models.GatewayStatus:
    """Return the state of the gateway."""
    now, snapshot = backend.gateway.clock.now().astimezone(UTC), backend.stats.snapshot()
    reader = await backend.open_reader()
    spent, growth = (
        await reader.spending_sums("all", since=now.date().isoformat()),
        await reader.growth(now),
    )
    usage = sum((one.usage for one in spent), Usage())
    lag = backend.processes.lag if backend.processes is not None else None
    return models.GatewayStatus(
        version=__version__,
        started=snapshot.started,
        now=now,
        ready=snapshot.is_ready,
        model=backend.agents.model_labels,
        agents=tuple(backend.agents.dmn_status()),
        today=build_usage(
            sum(one.requests for one in spent), usage, sum(one.cost_usd for one in spent)
        ),
        store=models.StoreSize(
            size_bytes=growth.size_bytes,
            bytes_per_day=growth.bytes_per_day,
            full_on=growth.full_on(now, shutil.disk_usage(backend.gateway.store.path.parent).free),
        ),
        activity=tuple(sorted(backend.list_turns(), key=lambda one: one.at)),
        processes=describe_cluster(backend.gateway.channels.cluster, lag),
    )


async def list_channels(backend: ApiBackend, _query: models.ApiQuery) -> models.Page[ChannelStats]:
    """Return the connections of all accounts."""
    return models.Page(items=backend.stats.snapshot().channels)


async def list_minds(backend: ApiBackend, _query: models.ApiQuery) -> models.Page[DmnStatus]:
    """Return the DMN status of all agents."""
    return models.Page(items=tuple(backend.agents.dmn_status()))


async def get_dmn_history(
    backend: ApiBackend, query: models.HoursQuery
) -> models.Page[models.DmnModeChange]:
    """Return the changes of DMN modes, oldest first."""
    since = backend.gateway.clock.now() - timedelta(hours=query.hours)
    modes, states = dict[str, str](), list[models.DmnModeChange]()
    for at, agent, mode in await (await backend.open_reader()).dmn_modes(since):
        if modes.get(agent) != mode:
            states.append(models.DmnModeChange(at=at, agent=agent, mode=mode))
        modes[agent] = mode
    return models.Page(items=tuple(states[-MAX_MODES:]))


NOW_BLOCK: Final = "now"


def build_prompt_snapshot(planned: PlannedRequest) -> models.PromptSnapshot:
    """Return the request as it was sent to the model. Images are replaced by their description."""
    request, account = planned.request, planned.account
    return models.PromptSnapshot(
        at=datetime.fromtimestamp(planned.sent_at_s, UTC),
        model=account.model if account is not None else "",
        blocks=tuple(_build_blocks(planned)),
        tools=tuple(spec.name for spec in request.tools),
        marks=len(request.breakpoints),
        bill=None
        if account is None
        else models.BilledTokens(**models.token_fields(account.usage, account.cost_usd or 0.0)),
        missed=account.missed if account is not None else "",
    )


def _build_blocks(planned: PlannedRequest) -> Iterator[models.PromptBlock]:
    marks = {(mark.behind, mark.index): mark.lifetime for mark in planned.request.breakpoints}
    marked: list[CacheTtl | None] = [
        marks.get((unit.behind, unit.number)) if unit.takes_breakpoint else None
        for unit in planned.segments
    ]
    numbered = list(enumerate(planned.segments))
    for name, group in groupby(numbered, key=lambda one: one[1].name):
        units = list(group)
        while units:
            upto = next(
                (place for place, (index, _) in enumerate(units) if marked[index] is not None),
                len(units) - 1,
            )
            part, units = units[: upto + 1], units[upto + 1 :]
            yield _build_block(planned, name, part, marked[part[-1][0]])
    last = "\n\n".join(filter(str.strip, [planned.request.aside, planned.request.now]))
    if last:
        tokens = planned.estimate.correct(planned.estimate.size.now)
        yield models.PromptBlock(
            name=NOW_BLOCK,
            lifetime=None,
            marked=False,
            tokens=tokens,
            read_tokens=0,
            written_tokens=0,
            text=last,
        )


def _build_block(
    planned: PlannedRequest,
    name: str,
    part: Sequence[tuple[int, PromptSegment]],
    mark: CacheTtl | None,
) -> models.PromptBlock:
    tokens, read, written = 0, 0, 0
    writes = max([index for index, _ in planned.plan.writes], default=-1)
    for index, unit in part:
        size = planned.estimate.correct(unit.tokens)
        tokens += size
        if index < planned.plan.read_segments:
            read += size
        elif index <= writes:
            written += size
    return models.PromptBlock(
        name=name,
        lifetime=mark,
        marked=mark is not None,
        tokens=tokens,
        read_tokens=read,
        written_tokens=written,
        text=_render_units(planned.request, planned.segments, [index for index, _ in part]),
    )


def _render_units(
    request: ModelRequest, segments: Sequence[PromptSegment], part: Sequence[int]
) -> str:
    first = segments[part[0]]
    if first.behind == "tools":
        tools = [
            {"name": one.name, "description": one.description, "schema": one.schema}
            for one in request.tools
        ]
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
    while first > 0 and (segments[first - 1].behind, segments[first - 1].number) == (
        "said",
        segments[index].number,
    ):
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
            return (
                f"[result of {result.id}{', an error' if result.is_error else ''}]\n{result.text}"
            )


MAX_LAST_TEXT_CHARS = 300
"""Longest text of the last message in a list of conversations."""


async def list_conversations(
    backend: ApiBackend, query: models.LimitQuery
) -> models.Page[models.ConversationSummary]:
    """Return the most recently active conversations."""
    found = await (await backend.open_reader()).recent_conversations(query.limit)
    running = {one.conversation for one in backend.list_turns()}
    return models.Page(items=tuple(_build_summary(backend, one, running) for one in found))


def _build_summary(
    backend: ApiBackend, one: ConversationRow, running: set[str]
) -> models.ConversationSummary:
    place, last = Address.parse(one.conversation), one.last
    channel = backend.gateway.channels.get(ChannelName(place.channel))
    return models.ConversationSummary(
        conversation=one.conversation,
        agent=find_agent(backend, one.conversation),
        platform=channel.capabilities.platform if channel is not None else "",
        last_at=last.at if last is not None else one.at,
        last_seq=last.seq if last is not None else one.seq,
        last_text=shorten(
            backend.gateway.redactor(describe_contents(last.fact)), MAX_LAST_TEXT_CHARS
        )
        if last is not None
        else "",
        last_who=actor_name(last.fact) if last is not None else "",
        unread=one.unread,
        running=one.conversation in running,
    )


def find_agent(backend: ApiBackend, conversation: ConversationId) -> str:
    """Return the agent of a conversation."""
    place = Address.parse(conversation)
    return place.room if is_inner(conversation) else backend.agents.agent_for(conversation).id


def parse_conversation(text: str) -> ConversationId:
    """Parse a conversation of a query. Raises HTTPException."""
    try:
        found = Address.parse(text).conversation
    except ValueError:
        found = None
    if found is None or "\0" in found:  # PostgreSQL takes none
        raise HTTPException(
            400, "that is no conversation: write channel/room or channel/room/thread"
        )
    return found


async def get_conversation(
    backend: ApiBackend, query: models.ConversationQuery
) -> models.ConversationDetail:
    """Return one conversation with its last request."""
    conversation = parse_conversation(query.id)
    reader = await backend.open_reader()
    entries = await reader.spoken_entries(conversation, query.limit)
    events = {
        event.seq: event for event in await find_notifications(reader, [one.seq for one in entries])
    }
    agent = find_agent(backend, conversation)
    return models.ConversationDetail(
        conversation=conversation,
        agent=agent,
        messages=tuple(
            _build_message(
                one,
                events[one.seq].fate.value if one.seq in events else one.delivered or "waiting",
            )
            for one in entries
        ),
        prompt=backend.find_prompt(conversation),
    )


def _build_message(one: SpokenRow, became: str) -> models.ConversationMessage:
    return models.ConversationMessage(
        seq=one.seq,
        at=one.at,
        who=actor_name(one.fact),
        ours=isinstance(one.fact, PostQueued),
        text=describe_contents(one.fact),
        kind=one.fact.kind,
        fate=became,
    )


MAX_HOURLY_BUCKETS = 72
"""Hours up to which buckets are hours; beyond, buckets are days."""
MAX_WAITING = 200
MAX_DELIVERIES = 100


async def list_notifications(
    backend: ApiBackend, query: models.PageQuery
) -> models.Page[models.NotificationRecord]:
    """Return a page of notifications with their outcomes."""
    found = await (await backend.open_reader()).notifications(
        query.limit,
        before=query.before,
        after=query.after or 0,
        conversation=_parse_filter(query),
        oldest=query.after is not None,
    )
    return _build_page(query, [build_notification(one) for one in found])


def build_notification(event: NotificationRow) -> models.NotificationRecord:
    """Convert a stored notification."""
    return models.NotificationRecord(
        seq=event.seq,
        at=event.at,
        type=event.judged.type,
        kind=event.fact.kind,
        conversation=event.conversation,
        who=actor_name(event.fact),
        text=describe_contents(event.fact),
        urgency=event.judged.urgency,
        fate=event.fate.value,
        rule=event.judged.rule,
    )


async def list_turns(
    backend: ApiBackend, query: models.PageQuery
) -> models.Page[models.TurnSummary]:
    """Return a page of turns."""
    found = await (await backend.open_reader()).recent_turns(
        query.limit, before=query.before, after=query.after or 0, conversation=_parse_filter(query)
    )
    return _build_page(query, found)


class _Logged(Protocol):
    @property
    def seq(self) -> int: ...


LoggedT = TypeVar("LoggedT", bound=_Logged)


def _build_page(query: models.PageQuery, items: Sequence[LoggedT]) -> models.Page[LoggedT]:
    """Return a page of the log. It is the last one if it is not full."""
    return models.Page(
        items=tuple(items), next=items[-1].seq if len(items) == query.limit else None
    )


def _parse_filter(query: models.PageQuery) -> ConversationId | None:
    """Return the conversation that is asked about. None: all. Raises HTTPException."""
    return parse_conversation(query.conversation) if query.conversation is not None else None


async def get_cache_report(backend: ApiBackend, query: models.SpendingQuery) -> models.CacheReport:
    """Return usage and cost, by hour or by day, and the share read from the cache."""
    since, daily = (
        backend.gateway.clock.now() - timedelta(hours=query.hours),
        query.hours > MAX_HOURLY_BUCKETS,
    )
    found = await (await backend.open_reader()).spending_over_time(query.by, since, daily=daily)
    sums = dict[str, tuple[int, Usage, float]]()
    for one in found:
        requests, usage, cost = sums.get(one.key, (0, Usage(), 0.0))
        sums[one.key] = requests + one.requests, usage + one.usage, cost + one.cost_usd
    order = sorted(sums.items(), key=lambda item: (-item[1][2], -item[1][1].prompt_tokens, item[0]))
    return models.CacheReport(
        by=query.by,
        buckets=tuple(
            build_usage(one.requests, one.usage, one.cost_usd, key=one.key, at=one.at)
            for one in found
        ),
        totals=tuple(
            build_usage(requests, usage, cost, key=key) for key, (requests, usage, cost) in order
        ),
    )


NAMES_READ = 1_000
"""Newest messages in which the names of people are looked for."""


async def get_spending(
    backend: ApiBackend, query: models.SumsQuery
) -> models.Page[models.UsageSum]:
    """Return what was spent since the day on which the period begins: by day the newest first, else
    the highest cost first.
    """
    since = (backend.gateway.clock.now() - timedelta(hours=query.hours)).date().isoformat()
    reader, titles = await backend.open_reader(), backend.gateway.places.titles
    key: SpendingKey = "sender" if query.by == "person" else query.by
    found, names = await reader.spending_sums(key, since=since), dict[str, str]()
    if query.by == "person":
        names = {one.person: one.name for one in backend.gateway.roster.roles}
        for entry in await reader.newest_entries(NAMES_READ, kinds=MESSAGE_KINDS):
            if isinstance(entry.fact, Message):
                sender = entry.fact.sender
                names[person_key(entry.fact.at.channel, sender.id)] = sender.name
    elif query.by == "conversation":
        await titles.load([ConversationId(one.key) for one in found if one.key])
        names = {one.key: titles.title(ConversationId(one.key)) for one in found}
    sums = [
        build_usage(one.requests, one.usage, one.cost_usd, key=one.key).model_copy(
            update={"label": names.get(one.key, "")}
        )
        for one in found
    ]
    if query.by == "day":
        return models.Page(items=tuple(reversed(sums)))
    return models.Page(items=tuple(sorted(sums, key=lambda one: -one.cost_usd)))


async def search(backend: ApiBackend, query: models.SearchQuery) -> models.Page[models.FoundText]:
    """Return the entries of the whole log whose texts hold all the words, the newest first."""
    place = parse_conversation(query.conversation) if query.conversation else None
    if not (match := search_terms(query.text)):
        return models.Page(items=())
    found = await (await backend.open_reader()).newest_entries(
        query.limit, before=query.before, conversation=place, match=match
    )
    items = tuple(
        models.FoundText(
            position=one.seq,
            at=one.at,
            conversation=one.conversation or "",
            who=actor_name(one.fact),
            text=describe_contents(one.fact),
            kind=one.fact.kind,
        )
        for one in reversed(found)
    )
    is_full = len(items) == query.limit
    return models.Page(items=items, next=items[-1].position if is_full else None)


_WAITING: Final = TypeAdapter(list[models.WaitingItem])
PLUGIN_TIMEOUT_S = 2.0
"""Seconds for a plugin to tell what waits there; its failure keeps back nothing of others."""


async def list_waiting(
    backend: ApiBackend, _query: models.ApiQuery
) -> models.Page[models.WaitingItem]:
    """Return what waits for a person, as the plugins tell it by their route `waiting`, the oldest
    first.
    """
    items, titles = list[models.WaitingItem](), backend.gateway.places.titles
    for plugin in backend.plugins.all:
        for declared in routes_of(plugin):
            if declared.path == WAITING:
                with backend.plugins.guard(plugin.name, WAITING):
                    async with asyncio.timeout(PLUGIN_TIMEOUT_S):
                        found = await declared.answer()
                    items += _WAITING.validate_python(found, from_attributes=True)
    await titles.load([ConversationId(one.place) for one in items if one.place])
    titled = [
        one.model_copy(update={"place_title": titles.title(ConversationId(one.place))})
        if one.place and not one.place_title
        else one
        for one in items
    ]
    oldest = sorted(
        titled, key=lambda one: (one.since is None, one.since or backend.gateway.clock.now())
    )
    return models.Page(items=tuple(oldest))


async def list_commands(
    backend: ApiBackend, _query: models.ApiQuery, client: Client
) -> models.Page[models.CommandEntry]:
    """Return the commands that this client may order, with their subcommands."""
    role, found = _role_of(client), list[models.CommandEntry]()
    for row in dict.fromkeys(backend.dispatcher.operator_commands.values()):
        if row.is_allowed_for(role, direct=True, everywhere=role):
            subs = [(f"{row.name} {one.name}", one) for one in row.subs]
            found += [
                models.CommandEntry(
                    name=name,
                    usage=" ".join([name, *map(format_arg, one.args)]),
                    help=one.summary,
                    role=row.role,
                )
                for name, one in (
                    subs if row.subs and row.handler is None else [(row.name, row), *subs]
                )
            ]
    return models.Page(items=tuple(found))


async def get_config(backend: ApiBackend, _query: models.ApiQuery) -> models.ConfigReport:
    """Return the files of the configuration, with secrets masked."""
    return await backend.config.read()


async def check_config(backend: ApiBackend, draft: models.ConfigDraft) -> models.ConfigChange:
    """Return what is wrong with a new text of a file, and what it changes."""
    return await backend.config.check(draft)


async def save_config(
    backend: ApiBackend, draft: models.ConfigDraft, client: Client
) -> models.ConfigChange:
    """Write a new text of a file, unless something is wrong with it."""
    what, given = "/api/config/save", {"name": draft.name}
    try:
        change = await backend.config.save(draft)
    except RouteRefused as refused:
        await audit(backend, client, what, given, str(refused), ok=False)
        raise
    why = "" if change.saved else "something is wrong with it"
    await audit(backend, client, what, given, why, ok=change.saved)
    return change


async def list_models(
    backend: ApiBackend, _query: models.ApiQuery
) -> models.Page[models.ModelEntry]:
    """List the configured models, in their order."""
    used = [(one.agent_model.name, one.id) for one in backend.agents.agents]
    return models.Page(
        items=tuple(
            models.ModelEntry(name=key, agents=tuple(agent for name, agent in used if name == key))
            for key in backend.gateway.live.settings.llm.models
        )
    )


async def get_outbox(backend: ApiBackend, _query: models.ApiQuery) -> models.OutboxStatus:
    """Return the posts that wait for delivery, and the newest deliveries."""
    reader = await backend.open_reader()
    waiting = await reader.undelivered_posts()
    ended = await reader.newest_entries(MAX_DELIVERIES, kinds=["delivery"])
    return models.OutboxStatus(
        waiting=tuple(
            models.PostRecord(
                seq=one.seq,
                at=one.at,
                conversation=one.post.to.conversation,
                text=hide_codes(one.post.text),
                parts=tuple(
                    models.PendingPart(
                        index=part.index,
                        state=part.state,
                        attempts=part.attempts,
                        reason=part.reason,
                    )
                    for part in one.parts
                ),
            )
            for one in waiting[:MAX_WAITING]
        ),
        deliveries=tuple(
            models.DeliveryRecord(
                seq=one.seq,
                at=one.at,
                conversation=one.fact.at.conversation,
                outcome=one.fact.state,
                reason=one.fact.reason,
            )
            for one in reversed(ended)
            if isinstance(one.fact, DeliveryReport)
        ),
    )


async def list_audit(
    backend: ApiBackend, query: models.PageQuery
) -> models.Page[models.AuditEntry]:
    """Return a page of the audit log."""
    found = await (await backend.open_reader()).newest_entries(
        query.limit,
        before=query.before,
        after=query.after or 0,
        conversation=_parse_filter(query),
        kinds=["audited"],
    )
    acts = [
        models.AuditEntry(
            seq=one.seq,
            at=one.at,
            actor=actor_name(one.fact),
            place=one.fact.at.conversation if one.fact.at is not None else "",
            command=one.fact.what,
            arguments=hide_codes(one.fact.args),
            result=hide_codes(one.fact.result),
            ok=one.fact.ok,
        )
        for one in reversed(found)
        if isinstance(one.fact, AuditRecord)
    ]
    return _build_page(query, acts)


async def get_me(
    _backend: ApiBackend, _query: models.ApiQuery, client: Client
) -> models.ClientEntry:
    """Return who asks."""
    return models.ClientEntry(name=client.name, role=client.role)


def _role_of(client: Client) -> Role:
    """Return the role in which a client's orders are carried out."""
    roles: dict[str, Role] = {"read": "guest", "operate": "admin", "own": "owner"}
    return roles[client.role]


async def carry_out(
    backend: ApiBackend, request: CommandRequest, client: Client
) -> ControlResponse:
    """Carry out a command of the command table: `words`, as `reverie ctl` takes them. The audit has
    the name of the token; `by` counts only where that is the operator's.
    """
    if client.name != OPERATOR:
        request = request.model_copy(update={"by": client.name})
    return await backend.dispatcher.carry_out(request, role=_role_of(client))


async def audit(
    backend: ApiBackend, client: Client, what: str, given: object, why_not: str, *, ok: bool
) -> None:
    """Record an act that is no command. `why_not`: empty if it was done. Raises StoreError."""
    redactor = backend.gateway.redactor
    fact = AuditRecord(
        what=what,
        by=OPERATOR,
        name=client.name,
        evidence=OPERATOR_EVIDENCE,
        role=OPERATOR,
        rule=f"a token with the role {client.role}",
        at=None,
        args=one_line(redactor(json.dumps(to_jsonable_python(given))), MAX_ARGS_CHARS),
        ok=ok,
        result=one_line(redactor(why_not or "done"), MAX_ARGS_CHARS),
    )
    entries = build_effect_entries(
        (EffectFact(fact),), [None], at=backend.gateway.clock.now(), place=None
    )
    await backend.gateway.store.append(entries)


async def say(backend: ApiBackend, request: models.SayRequest, client: Client) -> models.SayReceipt:
    """Say a text to the agent in the operator's own conversation."""
    operator = backend.gateway.channels.get(OPERATOR_CHANNEL)
    if not isinstance(operator, OperatorChannel):
        raise HTTPException(409, "the operator's own channel needs ops.token")
    seq = await operator.receive(request.text, backend.gateway.store, client.name, client.role)
    return models.SayReceipt(seq=seq)


PLUGINS_PATH: Final = "/api/plugins"


async def list_plugins(
    backend: ApiBackend, _query: models.ApiModel
) -> models.Page[models.PluginEntry]:
    """List the plugins in use, in their order."""
    return models.Page(
        items=tuple(
            models.PluginEntry(
                name=one.name,
                summary=one.summary,
                problem=str(backend.plugins.problems.get(one.name, "")),
                panels={
                    declared.panel: f"{PLUGINS_PATH}/{one.name}/{declared.path}"
                    for declared in routes_of(one)
                    if declared.panel
                },
            )
            for one in backend.plugins.all
        )
    )


View = Callable[..., Awaitable[BaseModel]]
"""Takes the backend and its input; where it has a parameter `client`, also who asks."""
PAGES: Final[Mapping[str, View]] = {
    "/api/me": get_me,
    "/api/status": get_status,
    "/api/channels": list_channels,
    "/api/conversations": list_conversations,
    "/api/conversation": get_conversation,
    "/api/notifications": list_notifications,
    "/api/turns": list_turns,
    "/api/cache": get_cache_report,
    "/api/dmn": list_minds,
    "/api/dmn/history": get_dmn_history,
    "/api/outbox": get_outbox,
    "/api/config": get_config,
    "/api/search": search,
    "/api/spending": get_spending,
    "/api/waiting": list_waiting,
    "/api/commands": list_commands,
    "/api/models": list_models,
    "/api/audit": list_audit,
    PLUGINS_PATH: list_plugins,
}
"""Views of `GET`, whose input is the query."""
COMMANDS: Final[Mapping[str, View]] = {
    "/api/orders": carry_out,
    "/api/say": say,
    "/api/config/check": check_config,
    "/api/config/save": save_config,
}
"""Views of `POST`, whose input is the body."""


MAX_TEXT_CHARS: Final = 16_000
"""Longest text of an answer, except prompts."""
MAX_PROMPT_CHARS: Final = 2_000_000
"""Longest text of a prompt block: more than any context window."""
_CONVERSATION_KEYS: Final = ("conversation", "place")


async def serialize_answer(backend: ApiBackend, answer: object) -> bytes:
    """Serialize an answer to JSON in UTF-8, with titles, redacted and cut."""
    tree, titles = to_jsonable_python(answer), backend.gateway.places.titles
    await titles.load([ConversationId(named) for _, named in find_untitled(tree)])
    add_titles(tree, titles)
    long = models.ConversationDetail | models.ConfigReport | models.ConfigChange
    chars = MAX_PROMPT_CHARS if isinstance(answer, long) else MAX_TEXT_CHARS
    redacted = redact_tree(tree, backend.gateway.redactor, chars)
    return json.dumps(redacted, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def find_untitled(tree: object) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each part of a dumped answer that has a conversation and an empty title, with that
    conversation.
    """
    if isinstance(tree, dict):
        named = next((tree[key] for key in _CONVERSATION_KEYS if tree.get(key)), None)
        if isinstance(named, str) and tree.get("title") == "":
            yield tree, named
        for value in tree.values():
            yield from find_untitled(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from find_untitled(value)


def add_titles(tree: object, titles: PlaceTitles) -> None:
    """Fill in the display title of each conversation."""
    for part, conversation in find_untitled(tree):
        part["title"] = titles.title(conversation)


def redact_tree(tree: object, redactor: Redactor, chars: int = MAX_TEXT_CHARS) -> object:
    """Return the tree with its texts redacted and cut. Keys of mappings are not changed."""
    if isinstance(tree, str):
        return shorten(redactor(tree), chars) if tree else tree
    if isinstance(tree, dict):
        return {key: redact_tree(value, redactor, chars) for key, value in tree.items()}
    if isinstance(tree, list):
        return [redact_tree(value, redactor, chars) for value in tree]
    return tree
