"""Answers of the API: status, conversations with their last request, pages of the log, costs,
outbox and audit.

Each path is a method of `Api`, declared by `@route` as plugins declare theirs. Every path needs a
token. The page's files contain no data, so they need none; their content security policy allows
nothing from other addresses, and no script or style in the markup.
"""

import asyncio
import contextlib
import gzip
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from inspect import signature
from itertools import groupby
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, TypeAdapter
from pydantic_core import to_jsonable_python
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent.cache.plan import PlannedRequest
from agent.cache.state import PromptSegment
from agent.models.base import MessagePart, ModelRequest, TextPart
from gateway import __version__
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
    ConversationId,
    DeliveryReport,
    Message,
    Usage,
)
from gateway.core.facts import MESSAGE_KINDS, OPERATOR_CHANNEL, AuditRecord, PostQueued, is_inner
from gateway.core.identity import Role, person_key
from gateway.core.metrics import ChannelStats
from gateway.core.route import WAITING, ClientRole, Route, RouteRefused, route, routes_of
from gateway.core.text_safety import one_line, shorten
from gateway.core.tool_spec import Image, ToolCall
from gateway.plugins.dashboard.config_editor import ConfigEditor
from gateway.plugins.http import Client, HttpRoute
from gateway.plugins.http.site import JSON_TYPE, read_input
from gateway.store import LogEntry, SpendingKey, search_terms
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

PLUGINS_PATH: Final = "/api/plugins"
RESPONSE_TIMEOUT_S: Final = 20.0
"""Seconds for the gateway to build a response. Orders wait until they are carried out."""
ASSET_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSET_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
MAX_ARGS_CHARS: Final = 200
"""Longest input, and longest result, in an audit record."""
MAX_MODES: Final = 2_000
"""Most mode changes of one answer; the newest are kept."""
MAX_HOURLY_BUCKETS: Final = 72
"""Hours up to which buckets are hours; beyond, buckets are days."""
PLUGIN_TIMEOUT_S: Final = 2.0
"""Seconds for a plugin to tell what waits there; its failure keeps back nothing of others."""
MAX_TEXT_CHARS: Final = 16_000
"""Longest text of an answer, except prompts."""
MAX_PROMPT_CHARS: Final = 2_000_000
"""Longest text of a prompt block: more than any context window."""
_ROLES: Final[dict[ClientRole, Role]] = {"read": "guest", "operate": "admin", "own": "owner"}
"""Role in which a client's orders are carried out, by the role of its token."""
_WAITING: Final = TypeAdapter(list[models.WaitingItem])
RowT = TypeVar(
    "RowT", models.LogRow, models.NotificationRecord, models.TurnSummary, models.AuditEntry
)


class Api:
    """Paths of the API. It has a connection of its own to the store, opened at the first use."""

    def __init__(self, gateway: GatewayHandle, services: Services) -> None:
        """Close it."""
        self.gateway, self.stats, self.turn_tracker = gateway, gateway.stats, services.tracker
        self.agents, self.plugins = services.agents, services.plugins
        self._processes, self._dispatcher = services.processes, services.dispatcher
        self._config = ConfigEditor(gateway.live, gateway.redactor)
        self._reader: OverviewReader | None = None
        self._opening = asyncio.Lock()

    async def open_reader(self) -> OverviewReader:
        """Return the reader of the store; open it at the first call. Raises StoreError."""
        async with self._opening:
            if self._reader is None:
                self._reader = await OverviewReader.open(self.gateway.store.location)
            return self._reader

    async def close(self) -> None:
        """Close the reader. May be called more than once."""
        async with self._opening:
            if self._reader is not None:
                reader, self._reader = self._reader, None
                await reader.close()

    @route("GET", "/api/me")
    async def get_me(self, client: Client) -> dict[str, str]:
        return client._asdict()

    @route("GET", "/api/status")
    async def get_status(self) -> models.GatewayStatus:
        now, snapshot = self.gateway.clock.now().astimezone(UTC), self.stats.snapshot()
        reader = await self.open_reader()
        spent = await reader.spending_sums("all", since=now.date().isoformat())
        growth = await reader.growth(now)
        processes = self.gateway.channels.cluster.describe()
        if processes is not None and self._processes is not None:
            processes = processes.model_copy(update={"log_lag": self._processes.lag})
        return models.GatewayStatus(
            version=__version__,
            started=snapshot.started,
            now=now,
            ready=snapshot.is_ready,
            model=self.agents.model_labels,
            agents=tuple(self.agents.dmn_status()),
            today=build_usage(
                sum(one.requests for one in spent),
                sum((one.usage for one in spent), Usage()),
                sum(one.cost_usd for one in spent),
            ),
            store=models.StoreSize(
                size_bytes=growth.size_bytes,
                bytes_per_day=growth.bytes_per_day,
                full_on=growth.full_on(now, shutil.disk_usage(self.gateway.store.path.parent).free),
            ),
            activity=tuple(
                build_running_turn(one, one.since)
                for one in sorted(self.turn_tracker.running, key=lambda one: one.since)
            ),
            processes=processes,
        )

    @route("GET", "/api/channels")
    async def list_channels(self) -> models.Page[ChannelStats]:
        return models.Page(items=self.stats.snapshot().channels)

    @route("GET", "/api/dmn")
    async def list_dmn_status(self) -> models.Page[DmnStatus]:
        return models.Page(items=tuple(self.agents.dmn_status()))

    @route("GET", "/api/dmn/history")
    async def get_dmn_history(
        self, *, hours: models.Hours = 24
    ) -> models.Page[models.DmnModeChange]:
        """Return the changes of DMN modes, oldest first."""
        since = self.gateway.clock.now() - timedelta(hours=hours)
        modes, states = dict[str, str](), list[models.DmnModeChange]()
        for at, agent, mode in await (await self.open_reader()).dmn_modes(since):
            if modes.get(agent) != mode:
                states.append(models.DmnModeChange(at=at, agent=agent, mode=mode))
            modes[agent] = mode
        return models.Page(items=tuple(states[-MAX_MODES:]))

    @route("GET", "/api/conversations")
    async def list_conversations(
        self, *, limit: models.Limit = 50
    ) -> models.Page[models.ConversationSummary]:
        """Return the most recently active conversations."""
        found = await (await self.open_reader()).recent_conversations(limit)
        return models.Page(items=tuple(map(self._build_summary, found)))

    def _build_summary(self, one: ConversationRow) -> models.ConversationSummary:
        last = one.last
        channel = self.gateway.channels.get(Address.parse(one.conversation).channel)
        text = self.gateway.redactor(describe_contents(last.fact)) if last is not None else ""
        return models.ConversationSummary(
            conversation=one.conversation,
            agent=self._find_agent(one.conversation),
            platform=channel.capabilities.platform if channel is not None else "",
            last_at=last.at if last is not None else one.at,
            last_seq=last.seq if last is not None else one.seq,
            last_text=shorten(text, 300),
            last_who=actor_name(last.fact) if last is not None else "",
            unread=one.unread,
            running=any(
                turn.conversation == one.conversation for turn in self.turn_tracker.running
            ),
        )

    def _find_agent(self, conversation: ConversationId) -> str:
        place = Address.parse(conversation)
        return place.room if is_inner(conversation) else self.agents.agent_for(conversation).id

    @route("GET", "/api/conversation")
    async def get_conversation(
        self,
        *,
        id: models.ConversationParam,  # noqa: A002 - the name in the query
        limit: models.Limit = 50,
    ) -> models.ConversationDetail:
        """Return one conversation with its last request, as far as this process knows it."""
        conversation = parse_conversation(id)
        reader = await self.open_reader()
        entries = await reader.spoken_entries(conversation, limit)
        events = await find_notifications(reader, [one.seq for one in entries])
        fates = {one.seq: one.fate.value for one in events}
        planned = self.agents.agent_for(conversation).last_request(conversation)
        return models.ConversationDetail(
            conversation=conversation,
            agent=self._find_agent(conversation),
            messages=tuple(
                models.ConversationMessage(
                    **_row_fields(one),
                    ours=isinstance(one.fact, PostQueued),
                    fate=fates.get(one.seq) or one.delivered or "waiting",
                )
                for one in entries
            ),
            prompt=build_prompt_snapshot(planned) if planned is not None else None,
        )

    @route("GET", "/api/notifications")
    async def list_notifications(
        self,
        *,
        limit: models.Limit = 50,
        before: models.Position | None = None,
        after: models.Position | None = None,
        conversation: models.ConversationParam | None = None,
    ) -> models.Page[models.NotificationRecord]:
        """Return a page of notifications with their outcomes; with `after`, the oldest first."""
        found = await (await self.open_reader()).notifications(
            limit,
            before=before,
            after=after or 0,
            conversation=_parse_filter(conversation),
            oldest=after is not None,
        )
        return _build_page(limit, [build_notification(one) for one in found])

    @route("GET", "/api/turns")
    async def list_turns(
        self,
        *,
        limit: models.Limit = 50,
        before: models.Position | None = None,
        after: models.Position = 0,
        conversation: models.ConversationParam | None = None,
    ) -> models.Page[models.TurnSummary]:
        place = _parse_filter(conversation)
        found = await (await self.open_reader()).recent_turns(
            limit, before=before, after=after, conversation=place
        )
        return _build_page(limit, found)

    @route("GET", "/api/search")
    async def search(
        self,
        *,
        text: Annotated[str, Field(pattern=r"\S", max_length=500)],
        limit: models.Limit = 50,
        before: models.Position | None = None,
        conversation: models.ConversationParam | None = None,
    ) -> models.Page[models.LogRow]:
        """Return the entries of the whole log whose texts hold all the words, the newest first."""
        place = _parse_filter(conversation)
        if not (match := search_terms(text)):
            return models.Page(items=())
        found = await (await self.open_reader()).newest_entries(
            limit, before=before, conversation=place, match=match
        )
        rows = [
            models.LogRow(**_row_fields(one), conversation=one.conversation)
            for one in reversed(found)
        ]
        return _build_page(limit, rows)

    @route("GET", "/api/audit")
    async def list_audit(
        self,
        *,
        limit: models.Limit = 50,
        before: models.Position | None = None,
        after: models.Position = 0,
        conversation: models.ConversationParam | None = None,
    ) -> models.Page[models.AuditEntry]:
        found = await (await self.open_reader()).newest_entries(
            limit,
            before=before,
            after=after,
            conversation=_parse_filter(conversation),
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
        return _build_page(limit, acts)

    @route("GET", "/api/cache")
    async def get_cache_report(
        self,
        *,
        by: Literal["channel", "conversation", "agent", "model"] = "channel",
        hours: models.Hours = 24,
    ) -> models.CacheReport:
        """Return usage and cost, by hour or by day, and the share read from the cache."""
        since = self.gateway.clock.now() - timedelta(hours=hours)
        reader, daily = await self.open_reader(), hours > MAX_HOURLY_BUCKETS
        found = await reader.spending_over_time(by, since, daily=daily)
        sums = dict[str, tuple[int, Usage, float]]()
        for one in found:
            requests, usage, cost = sums.get(one.key, (0, Usage(), 0.0))
            sums[one.key] = requests + one.requests, usage + one.usage, cost + one.cost_usd
        order = sorted(
            sums.items(), key=lambda item: (-item[1][2], -item[1][1].prompt_tokens, item[0])
        )
        return models.CacheReport(
            by=by,
            buckets=tuple(
                build_usage(one.requests, one.usage, one.cost_usd, key=one.key, at=one.at)
                for one in found
            ),
            totals=tuple(build_usage(*sum_, key=key) for key, sum_ in order),
        )

    @route("GET", "/api/spending")
    async def get_spending(
        self,
        *,
        by: Literal["person", "model", "day", "conversation", "agent"] = "day",
        hours: models.Hours = 24,
    ) -> models.Page[models.UsageSum]:
        """Return what was spent since the day on which the period begins: by day the newest first,
        else the highest cost first.
        """
        since = (self.gateway.clock.now() - timedelta(hours=hours)).date().isoformat()
        reader, titles = await self.open_reader(), self.gateway.places.titles
        key: SpendingKey = "sender" if by == "person" else by
        found, names = await reader.spending_sums(key, since=since), dict[str, str]()
        if by == "person":
            names = {one.person: one.name for one in self.gateway.roster.roles}
            for entry in await reader.newest_entries(1_000, kinds=MESSAGE_KINDS):
                if isinstance(entry.fact, Message):
                    sender = entry.fact.sender
                    names[person_key(entry.fact.at.channel, sender.id)] = sender.name
        elif by == "conversation":
            await titles.load([ConversationId(one.key) for one in found if one.key])
            names = {one.key: titles.title(ConversationId(one.key)) for one in found}
        sums = [
            build_usage(
                one.requests, one.usage, one.cost_usd, key=one.key, label=names.get(one.key, "")
            )
            for one in found
        ]
        if by == "day":
            return models.Page(items=tuple(reversed(sums)))
        return models.Page(items=tuple(sorted(sums, key=lambda one: -one.cost_usd)))

    @route("GET", "/api/outbox")
    async def get_outbox(self) -> models.OutboxStatus:
        """Return the posts that wait for delivery, and the newest deliveries."""
        reader = await self.open_reader()
        waiting = await reader.undelivered_posts()
        ended = await reader.newest_entries(100, kinds=["delivery"])
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
                for one in waiting[:200]
            ),
            deliveries=tuple(
                build_delivery(one, one.fact)
                for one in reversed(ended)
                if isinstance(one.fact, DeliveryReport)
            ),
        )

    @route("GET", "/api/waiting")
    async def list_waiting(self) -> models.Page[models.WaitingItem]:
        """Return what waits for a person, as the plugins tell it by their route `waiting`, the
        oldest first.
        """
        items, titles = list[models.WaitingItem](), self.gateway.places.titles
        for plugin in self.plugins.all:
            for declared in routes_of(plugin):
                if declared.path == WAITING:
                    with self.plugins.guard(plugin.name, WAITING):
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
        now = self.gateway.clock.now()
        titled.sort(key=lambda one: (one.since is None, one.since or now))
        return models.Page(items=tuple(titled))

    @route("GET", "/api/plugins")
    async def list_plugins(self) -> models.Page[models.PluginEntry]:
        """List the plugins in use, in their order."""
        return models.Page(
            items=tuple(
                models.PluginEntry(
                    name=one.name,
                    summary=one.summary,
                    problem=str(self.plugins.problems.get(one.name, "")),
                    panels={
                        declared.panel: f"{PLUGINS_PATH}/{one.name}/{declared.path}"
                        for declared in routes_of(one)
                        if declared.panel
                    },
                )
                for one in self.plugins.all
            )
        )

    @route("GET", "/api/models")
    async def list_models(self) -> models.Page[models.ModelEntry]:
        """List the configured models, in their order."""
        used = [(one.agent_model.name, one.id) for one in self.agents.agents]
        return models.Page(
            items=tuple(
                models.ModelEntry(
                    name=key, agents=tuple(agent for name, agent in used if name == key)
                )
                for key in self.gateway.live.settings.llm.models
            )
        )

    @route("GET", "/api/commands")
    async def list_commands(self, client: Client) -> models.Page[models.CommandEntry]:
        """Return the commands that this client may order, with their subcommands."""
        role, found = _ROLES[client.role], list[models.CommandEntry]()
        for row in dict.fromkeys(self._dispatcher.operator_commands.values()):
            if row.is_allowed_for(role, direct=True, everywhere=role):
                subs = [(f"{row.name} {one.name}", one) for one in row.subs]
                has_own = row.handler is not None or not row.subs
                found += [
                    models.CommandEntry(
                        name=name,
                        usage=" ".join([name, *map(format_arg, one.args)]),
                        help=one.summary,
                        role=row.role,
                    )
                    for name, one in ([(row.name, row)] if has_own else []) + subs
                ]
        return models.Page(items=tuple(found))

    @route("POST", "/api/orders", arguments=CommandRequest)
    async def carry_out(self, client: Client, **order: Any) -> ControlResponse:  # noqa: ANN401 - fields of CommandRequest
        """Carry out a command of the command table: `words`, as `reverie ctl` takes them. The audit
        has the name of the token; `by` counts only where that is the operator's.
        """
        if client.name != OPERATOR:
            order["by"] = client.name
        return await self._dispatcher.carry_out(CommandRequest(**order), role=_ROLES[client.role])

    @route("POST", "/api/say")
    async def say(
        self, client: Client, *, text: Annotated[str, Field(min_length=1, max_length=16_000)]
    ) -> models.SayReceipt:
        """Say a text to the agent in the operator's own conversation."""
        operator = self.gateway.channels.get(OPERATOR_CHANNEL)
        if not isinstance(operator, OperatorChannel):
            raise RouteRefused("the operator's own channel needs ops.token")
        seq = await operator.receive(text, self.gateway.store, client.name, client.role)
        return models.SayReceipt(seq=seq)

    @route("GET", "/api/config", role="own")
    async def get_config(self) -> models.ConfigReport:
        return await self._config.read()

    @route("POST", "/api/config/check", role="own")
    async def check_config(
        self,
        *,
        name: models.FileName,
        text: str,
        sha256: str = "",  # noqa: ARG002 - as in `save_config`
    ) -> models.ConfigChange:
        return await self._config.check(name, text)

    @route("POST", "/api/config/save", role="own")
    async def save_config(
        self, client: Client, *, name: models.FileName, text: str, sha256: str = ""
    ) -> models.ConfigChange:
        what, given = "/api/config/save", {"name": name}
        try:
            change = await self._config.save(name, text, sha256)
        except RouteRefused as refused:
            await self.audit(client, what, given, str(refused), ok=False)
            raise
        why = "" if change.saved else "something is wrong with it"
        await self.audit(client, what, given, why, ok=change.saved)
        return change

    async def audit(
        self, client: Client, what: str, given: object, why_not: str, *, ok: bool
    ) -> None:
        """Record an act that is no command. `why_not`: empty if it was done. Raises StoreError."""
        redactor = self.gateway.redactor
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
            (EffectFact(fact),), [None], at=self.gateway.clock.now(), place=None
        )
        await self.gateway.store.append(entries)

    async def serialize(self, answer: object) -> bytes:
        """Serialize an answer to JSON in UTF-8, with titles, redacted and cut."""
        tree = to_jsonable_python(answer)
        await self.gateway.places.titles.load(
            [ConversationId(named) for _, named in find_untitled(tree)]
        )
        long = models.ConversationDetail | models.ConfigReport | models.ConfigChange
        chars = MAX_PROMPT_CHARS if isinstance(answer, long) else MAX_TEXT_CHARS
        return self.dump(tree, chars).encode("utf-8", "replace")

    def dump(self, tree: object, chars: int) -> str:
        """Return a dumped answer as JSON on one line, with the titles of conversations that are
        loaded, redacted, and each text cut at `chars`.
        """
        for part, conversation in find_untitled(tree):
            part["title"] = self.gateway.places.titles.title(ConversationId(conversation))
        return json.dumps(self._redact(tree, chars), ensure_ascii=False, separators=(",", ":"))

    def _redact(self, tree: object, chars: int) -> object:
        """Return the tree with its texts redacted and cut. Keys of mappings are not changed."""
        if isinstance(tree, str):
            return shorten(self.gateway.redactor(tree), chars) if tree else tree
        if isinstance(tree, dict):
            return {key: self._redact(value, chars) for key, value in tree.items()}
        return [self._redact(value, chars) for value in tree] if isinstance(tree, list) else tree


def find_untitled(tree: object) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each part of a dumped answer that has a conversation and an empty title, with that
    conversation.
    """
    if isinstance(tree, dict):
        named = tree.get("conversation") or tree.get("place")
        if isinstance(named, str) and tree.get("title") == "":
            yield tree, named
        tree = list(tree.values())
    for value in tree if isinstance(tree, list) else ():
        yield from find_untitled(value)


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


def _parse_filter(conversation: str | None) -> ConversationId | None:
    """Return the conversation that is asked about. None: all. Raises HTTPException."""
    return parse_conversation(conversation) if conversation is not None else None


def _build_page(limit: int, items: Sequence[RowT]) -> models.Page[RowT]:
    """Return a page of the log. It is the last one if it is not full."""
    return models.Page(items=tuple(items), next=items[-1].seq if len(items) == limit else None)


def _row_fields(one: LogEntry | SpokenRow | NotificationRow) -> dict[str, Any]:
    return {
        "seq": one.seq,
        "at": one.at,
        "who": actor_name(one.fact),
        "text": describe_contents(one.fact),
        "kind": one.fact.kind,
    }


def build_notification(event: NotificationRow) -> models.NotificationRecord:
    """Convert a stored notification."""
    return models.NotificationRecord(
        **_row_fields(event),
        conversation=event.conversation,
        type=event.judged.type,
        urgency=event.judged.urgency,
        fate=event.fate.value,
        rule=event.judged.rule,
    )


def build_delivery(entry: LogEntry, report: DeliveryReport) -> models.DeliveryRecord:
    """Convert a stored delivery."""
    return models.DeliveryRecord(
        seq=entry.seq,
        at=entry.at,
        conversation=report.at.conversation,
        outcome=report.state,
        reason=report.reason,
    )


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
    requests: int,
    usage: Usage,
    cost_usd: float,
    *,
    key: str = "",
    label: str = "",
    at: datetime | None = None,
) -> models.UsageSum:
    """Return the sum of some requests."""
    fields = models.token_fields(usage, cost_usd)
    share = usage.read_share
    return models.UsageSum(
        key=key, label=label, at=at, requests=requests, read_share=share, **fields
    )


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
    """Yield the blocks of a request. One with a mark in it is parted behind that."""
    marks = {(mark.behind, mark.index): mark.lifetime for mark in planned.request.breakpoints}
    marked: list[CacheTtl | None] = [
        marks.get((unit.behind, unit.number)) if unit.takes_breakpoint else None
        for unit in planned.segments
    ]
    for name, group in groupby(range(len(marked)), key=lambda at: planned.segments[at].name):
        indexes = list(group)
        while indexes:
            ends = (place for place, at in enumerate(indexes, 1) if marked[at] is not None)
            upto = next(ends, len(indexes))
            part, indexes = indexes[:upto], indexes[upto:]
            yield _build_block(planned, name, part, marked[part[-1]])
    last = "\n\n".join(filter(str.strip, [planned.request.aside, planned.request.now]))
    if last:
        yield models.PromptBlock(
            name="now",
            lifetime=None,
            marked=False,
            tokens=planned.estimate.correct(planned.estimate.size.now),
            read_tokens=0,
            written_tokens=0,
            text=last,
        )


def _build_block(
    planned: PlannedRequest, name: str, part: Sequence[int], mark: CacheTtl | None
) -> models.PromptBlock:
    read_upto = planned.plan.read_segments
    written_upto = 1 + max([index for index, _ in planned.plan.writes], default=-1)
    sizes = {at: planned.estimate.correct(planned.segments[at].tokens) for at in part}
    return models.PromptBlock(
        name=name,
        lifetime=mark,
        marked=mark is not None,
        tokens=sum(sizes.values()),
        read_tokens=sum(size for at, size in sizes.items() if at < read_upto),
        written_tokens=sum(size for at, size in sizes.items() if read_upto <= at < written_upto),
        text=_render_segments(planned.request, planned.segments, part),
    )


def _render_segments(
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
        number = segments[index].number
        message = request.conversation[number]
        place = sum((one.behind, one.number) == ("said", number) for one in segments[:index])
        if place == 0:
            lines.append(f"[{message.role}]")
        lines.append(_render_piece(message.parts[place]) if place < len(message.parts) else "")
    return "\n".join(lines)


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


def list_routes(api: Api) -> Iterator[HttpRoute]:
    """Yield the paths of the page's files, of the API, and of the plugins."""

    async def send_asset(request: Request) -> Response:
        plain, packed = load_assets()[request.url.path]
        return packed if "gzip" in request.headers.get("accept-encoding", "") else plain

    for path in load_assets():
        yield HttpRoute(path, send_asset, "page")
    for declared in routes_of(api):
        yield _build_route(api, declared.path, declared)
    for plugin in api.plugins.all:
        for declared in routes_of(plugin):
            path = f"{PLUGINS_PATH}/{plugin.name}/{declared.path}"
            yield _build_route(api, path, declared, plugin.name)


@cache
def load_assets() -> Mapping[str, tuple[Response, Response]]:
    """Return the dashboard's files by path (`/` and `/page/...`), each also compressed."""
    found = dict[str, tuple[Response, Response]]()
    plain = {"Content-Security-Policy": ASSET_CSP}
    packed = {**plain, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    for file in files("gateway.plugins.dashboard").joinpath("page").iterdir():
        if (kind := ASSET_TYPES.get(file.name[file.name.rfind(".") :])) is not None:
            data = file.read_bytes()
            found["/" if file.name == "index.html" else f"/page/{file.name}"] = (
                Response(data, media_type=kind, headers=plain),
                Response(gzip.compress(data), media_type=kind, headers=packed),
            )
    return found


def _build_route(api: Api, path: str, declared: Route, plugin: str = "") -> HttpRoute:
    """Return the HTTP route of a declared one. `plugin`: whose it is; what it raises is recorded as
    that plugin's problem, and its POSTs are audited here.
    """
    arguments = TypeAdapter(declared.arguments)
    takes_client = "client" in signature(declared.answer).parameters

    async def answer(request: Request) -> Response:
        given, text, why = dict(await read_input(request, arguments)), b"", ""
        client = {"client": request.state.client} if takes_client else {}
        with api.plugins.guard(plugin, path) if plugin else contextlib.nullcontext():
            try:
                async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                    text = await api.serialize(await declared.answer(**given, **client))
            except RouteRefused as refused:
                why = str(refused)
        if plugin and declared.method == "POST":
            done = why or ("" if text else "it has failed")
            await api.audit(request.state.client, path, given, done, ok=bool(text))
        if why:
            raise HTTPException(409, why)
        if not text:
            raise HTTPException(500, f"the plugin {plugin} has failed; the log says more")
        return Response(text, media_type=JSON_TYPE)

    return HttpRoute(path, answer, declared.role, declared.method)
