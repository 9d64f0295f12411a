"""What happened since a time, told by room and person: by a tool and a command, and unasked to
owners who come back.

`render_recap` is pure. `Recap.build` reads what may be told in a place from
the log: sums and a bounded number of the newest turns, however long the time.

What is told unasked holds no words of strangers, so that it takes no authority from the turn that
reads it: the first one of an owner who comes back (`label_of_role` of a name would make all that
they ask for there a guest's). What is asked for quotes, and has the label of what it quotes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Final, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import Field, TypeAdapter

from agent.prompts import load_prompt
from channels.base import CommandCompletion
from gateway.commands.context import CommandCall, find_visibility
from gateway.commands.definition import command
from gateway.core.events import Address, ConversationId, Message, SenderId
from gateway.core.facts import (
    MESSAGE_KINDS,
    URGENT,
    CodeIssued,
    Judgement,
    OwnerTold,
    RoomAttended,
    Seq,
    TurnId,
    TurnRecord,
    inner_conversation,
    is_inner,
)
from gateway.core.format import format_moment, format_time
from gateway.core.i18n import _, ngettext
from gateway.core.labels import MEMORY_LABEL, TRUSTED_LABEL, Label, join, label_of_role, readers_of
from gateway.core.moments import InvalidTime, parse_past_moment
from gateway.core.permissions import OWN
from gateway.core.scopes import Visibility
from gateway.core.text_safety import escape_frame, escape_markdown, sanitize_name, to_single_line
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Part, Plugin, PluginContext, TurnView, hook
from gateway.plugins.approvals import ApprovalEnded, ApprovalRequested
from gateway.plugins.memory.memory_file import load_memory_change
from gateway.plugins.memory.search import quote_text
from gateway.store import LogEntry, StoreReader
from gateway.store.effects import CommandEffect, done, refuse
from gateway.store.queries import using
from gateway.stream.attention import describe_reason

MEANWHILE_HEADER: Final = "[MEANWHILE] Since your owner last wrote, at {time}:"
MEANWHILE_HINT: Final = "(`recap` tells more.)"
SHORT_LINES: Final = 5
"""Lines of a recap that is told unasked."""
LONG_LINES: Final = 15
"""Lines of a recap that was asked for."""
MAX_MESSAGES: Final = 5_000
MAX_TURNS: Final = 500
MAX_PLACES: Final = 100
COUNT_LINES = f"""
WITH judged AS (
    SELECT cause, json_extract(body, '$.role') AS role, json_extract(body, '$.fate') AS fate
    FROM log {using("log_kind")} WHERE kind = 'judged' AND seq > $1 ORDER BY seq DESC LIMIT $2
)
SELECT said.conversation, json_extract(said.body, '$.sender.name'), judged.role, count(*),
    count(*) FILTER (WHERE said.kind <> 'room'), min(said.seq), max(said.seq),
    (SELECT count(*) FROM judged)
FROM judged CROSS JOIN log AS said WHERE said.seq = judged.cause
    AND said.kind IN ('direct', 'mention', 'reply', 'room') AND judged.fate IN ('due', 'context')
GROUP BY said.conversation, json_extract(said.body, '$.sender.name'), judged.role
ORDER BY max(said.seq) DESC
"""  # noqa: S608 - constants only
TURNS_SINCE = (
    "SELECT seq, conversation, json_extract(body, '$.turn'), json_extract(body, '$.agent'), "  # noqa: S608 - the same
    "json_extract(body, '$.cause'), json_extract(body, '$.outcome'), json_extract(body, "
    "'$.within') IS NOT NULL, substr(json_extract(body, '$.text'), 1, 400), coalesce("
    "json_extract(body, '$.note'), ''), json_extract(body, '$.label') FROM log "
    f"{using('log_kind')} WHERE kind = 'turn_ended' AND conversation IS NOT NULL AND seq > $1 AND "
    "NOT EXISTS (SELECT 1 FROM view_cut WHERE view_cut.conversation = log.conversation AND "
    "log.seq BETWEEN first AND last) ORDER BY seq DESC LIMIT $2"
)
_LABEL: Final = TypeAdapter(Label)
_MAX_WAITING: Final = 100
"""Newest approvals that are searched for those that wait."""
_MAX_JUDGED: Final = 10
"""Newest entries of a room that are searched for the reason why it was attended."""
_MAX_OWN_MESSAGES: Final = 200
"""Messages of a place that are searched for a person's last one."""
_MAX_PEOPLE: Final = 3
_MAX_DEEDS: Final = 3
"""Actions of the agent in one place that are told, the newest."""
_MAX_TITLE_CHARS: Final = 80
_MAX_QUOTE_CHARS: Final = 160
_HANDLE: Final = re.compile(r"[\w.-]{1,24}")
"""What is told of a name without quoting it: one word is no instruction."""


class Deed(NamedTuple):
    """Something that the agent did by itself."""

    seq: Seq
    text: str
    """In words, with quotations. On one line."""
    label: Label
    handle: str = ""
    """Handle of the whole text, for `fetch_evidence`. Empty: it has none."""
    plain: str = ""
    """The same in the gateway's own words, without quotations."""


@dataclass(slots=True, kw_only=True)
class PlaceNews:
    """What happened in one place."""

    title: str
    """As people call it. Safe inside of a line, as all texts here are."""
    lines: int = 0
    """Messages of people."""
    addressed: int = 0
    """Number of those to the agent."""
    people: Sequence[str] = ()
    """Who wrote them, those with the most first."""
    answered: int = 0
    failed: int = 0
    """Turns that answered people, and that could not."""
    deeds: list[Deed] = field(default_factory=list)
    newest: int = 0
    """Position of the newest message or turn."""
    label: Label = TRUSTED_LABEL
    """Of title and names."""

    @property
    def weight(self) -> tuple[bool, int, int, int]:
        """Sorts places, the most important last."""
        return bool(self.deeds), self.answered + self.failed, self.addressed, self.newest


def render_recap(
    places: Sequence[PlaceNews],
    waiting: Sequence[str] = (),
    *,
    most: int,
    handles: bool = False,
) -> tuple[list[str], list[PlaceNews]]:
    """Return at most `most` lines, the most important first, and the places that they name. No
    lines: nothing happened.

    `waiting`: what waits for the reader, in words; one line of its own.
    """
    told = sorted(
        (one for one in places if one.lines or one.answered or one.failed or one.deeds),
        key=lambda one: one.weight,
        reverse=True,
    )
    last = [_("Waits: {what}").format(what="; ".join(waiting))] if waiting else []
    room = most - len(last)
    shown = told if len(told) <= room else told[: room - 1]
    if rest := told[len(shown) :]:
        count, lines = len(rest), _format_lines(sum(one.lines for one in rest))
        more = ngettext(
            "and {count} more place: {lines}", "and {count} more places: {lines}", count
        )
        last.insert(0, more.format(count=count, lines=lines))
    return [*(_render_place(one, handles=handles) for one in shown), *last], list(shown)


def _render_place(news: PlaceNews, *, handles: bool) -> str:
    parts = [_render_people(news)] if news.lines else []
    if news.answered:
        text = ngettext("{count} answer", "{count} answers", news.answered)
        parts.append(text.format(count=news.answered))
    if news.failed:
        text = ngettext("{count} not answered", "{count} not answered", news.failed)
        parts.append(text.format(count=news.failed))
    deeds = sorted(news.deeds)
    parts += [
        f"{one.text} [{one.handle}]" if handles and one.handle else one.text
        for one in deeds[-_MAX_DEEDS:]
    ]
    if more := deeds[:-_MAX_DEEDS]:
        parts.append(_("before that {count} more").format(count=len(more)))
    return f"{news.title}: {'; '.join(parts)}"


def _render_people(news: PlaceNews) -> str:
    names, more = ", ".join(news.people[:_MAX_PEOPLE]), len(news.people) - _MAX_PEOPLE
    if more > 0:
        names = _("{people} and {count} more").format(people=names, count=more)
    return _format_lines(news.lines) + f" ({names})" * bool(names)


def _format_lines(count: int) -> str:
    return ngettext("{count} line", "{count} lines", count).format(count=count)


class LineCount(NamedTuple):
    """Messages of one person in one place."""

    conversation: ConversationId
    name: str
    """Display name of the person. Untrusted."""
    role: str
    """Their role when they wrote."""
    lines: int
    addressed: int
    """Number of those to the agent."""
    oldest: Seq
    newest: Seq


class TurnEnd(NamedTuple):
    """What a turn did: fields of its `TurnRecord`, and their meaning."""

    seq: Seq
    conversation: ConversationId
    turn: TurnId
    agent: str
    cause: str
    outcome: str
    is_within: bool
    """True: it belongs to a turn of another conversation (`TurnRecord.within`)."""
    text: str
    """The beginning."""
    note: str
    label: Label


async def count_lines(
    reader: StoreReader, after: int, *, most: int
) -> tuple[list[LineCount], bool]:
    """Return the accepted messages after a position, counted by place and person, and whether
    older ones were left out. Reads the newest `most` judgements.
    """
    rows = await reader.rows(COUNT_LINES, after, most)
    return [LineCount(*row[:-1]) for row in rows], bool(rows) and rows[0][-1] >= most


async def find_turns(reader: StoreReader, after: int, *, most: int) -> list[TurnEnd]:
    """Return what the newest turns after a position did, oldest first, without those that were
    rewound.
    """
    rows = reversed(await reader.rows(TURNS_SINCE, after, most))
    return [TurnEnd._make([*row, _LABEL.validate_json(label)]) for *row, label in rows]


class Recap(Plugin):
    """Tells what happened, for all agents."""

    name = "recap"
    summary = "tells what happened since a time, and to owners who come back unasked"
    requires = ("memory",)
    family = "itself"
    parts_for = "owner"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._places, self._redactor = gateway.store, gateway.places, gateway.redactor
        self._clock, self._live = gateway.clock, gateway.live

    @hook
    async def parts(self, turn: TurnView) -> Iterable[Part]:
        """Return what happened while the owner was away, for their first turn since. No words of
        strangers stand in it. Nothing: they were not away, or nothing happened. Raises StoreError.
        """
        context, back = turn.context, self.context.attention.presence.last_return
        if back is None or context.autonomous or not turn.unread:
            return []
        is_told = any(
            one.seq > back.seq and not one.record.autonomous and one.record.outcome != "interrupted"
            for one in turn.past
        )
        first = turn.unread[0]
        since_s = (first.at - back.at).total_seconds()
        is_recent = since_s < self._live.settings.attention.presence.idle
        if is_told or not (first.seq <= back.seq or is_recent):
            return []
        text, label = await self.build(
            context.agent,
            context.at.conversation,
            context.visibility,
            back.gone_since,
            most=SHORT_LINES,
            quotes=False,
        )
        if not text:
            return []
        text = f"{MEANWHILE_HEADER.format(time=format_time(back.gone_since))}\n{text}"
        return [
            Part(block="recall", text=f"{text}\n{MEANWHILE_HINT}", label=label),
            Part(block="now", text=load_prompt("returned"), label=TRUSTED_LABEL),
        ]

    @tool(
        "See what happened since a time. Who wrote where, what you did by yourself, what waits.",
        effect=OWN,
        parallel=True,
        polls=True,
    )
    async def recap(
        self,
        context: ToolContext,
        *,
        since: Annotated[
            str,
            Field(description="E.g. 2h, 08:00, yesterday. Default: since they last wrote."),
        ] = "",
    ) -> ToolOutput:
        """Return it in words, with handles. Raises StoreError, ToolCallRefused for another time."""
        here = context.at.conversation
        person = context.requesters[-1].id if context.requesters else None
        try:
            begin = await self.since(since, here, person)
        except InvalidTime as error:
            raise ToolCallRefused(str(error)) from error
        text, label = await self.build(context.agent, here, context.visibility, begin, handles=True)
        what = text or "Nothing happened that may be told here."
        return ToolOutput(
            text=f"Since {format_time(begin)}:\n{what}",
            kind="recap",
            is_untrusted=True,
            label=label,
        )

    async def _suggest_since(self, _typed: CommandCompletion) -> list[str]:
        return ["1h", "8h", "08:00", "yesterday", "7d"]

    @command(
        "recap",
        "Tell what happened since a time: who wrote where, and what I did by myself.",
        group="this conversation",
    )
    async def recap_command(
        self,
        call: CommandCall,
        *,
        since: Annotated[str, "E.g. 2h, 08:00, yesterday or 2026-03-04.", _suggest_since] = "",
    ) -> CommandEffect:
        """Tell what may be known here; to an owner in a direct chat, all. Without a time: since
        that person last wrote here before the present talk, or of a day.
        """
        here, sender = call.command.at.conversation, call.command.sender
        try:
            begin = await self.since(since, here, sender.id)
        except InvalidTime:
            return refuse(_("Write since when: 2h, 3d, 08:00, yesterday, or 2026-03-04T07:00."))
        sight = await find_visibility(call, self._places)
        told, _label = await self.build(call.agent, here, sight, begin)
        now = self._live.to_local(self._clock.now())
        if not told:
            text = _("Nothing has happened since {time} that I may tell here.")
            return done(text.format(time=format_moment(begin, now)))
        head = _("Since {time}:").format(time=format_moment(begin, now))
        lines = [f"- {escape_markdown(line, len(line))}" for line in told.splitlines()]
        return done("\n".join([head, *lines]))

    async def since(self, written: str, here: ConversationId, person: SenderId | None) -> datetime:
        """Return the time that is meant by these words; without any, when that person last wrote
        here before the present talk, or a day ago. What no model answered does not count: they
        could learn nothing then.

        Raises InvalidTime and StoreError.
        """
        now, settings = self._clock.now(), self._live.settings
        if written.strip():
            return parse_past_moment(written, now, ZoneInfo(settings.dmn.timezone))
        later = now
        turns = await self._store.newest_turns(here, before=None, newest=_MAX_OWN_MESSAGES)
        ended = [(one.at, one.fact.outcome) for one in turns if isinstance(one.fact, TurnRecord)]
        for one in reversed(
            await self._store.newest_entries(
                _MAX_OWN_MESSAGES, kinds=MESSAGE_KINDS, conversation=here
            )
        ):
            if isinstance(one.fact, Message) and one.fact.sender.id == person:
                is_away = (later - one.at).total_seconds() >= settings.attention.presence.idle
                outcomes = [outcome for at, outcome in ended if one.at <= at < later]
                settled = [outcome for outcome in outcomes if outcome != "interrupted"]
                if is_away and (not outcomes or settled[:1] not in ([], ["failed"])):
                    return one.at
                later = one.at
        return now - timedelta(days=1)

    async def build(
        self,
        agent: str,
        here: ConversationId,
        sight: Visibility,
        since: datetime,
        *,
        most: int = LONG_LINES,
        handles: bool = False,
        quotes: bool = True,
    ) -> tuple[str, Label]:
        """Return the recap in at most `most` lines, with its label. Empty: nothing happened that
        may be told here.

        `sight`: what may be shown here. `quotes` False: only what owners and the agent itself wrote
        on their word alone is quoted, places have trusted titles or addresses, and people one
        word; then its integrity is an owner's. Raises StoreError.
        """
        after = await self._store.first_entry_since(since) - 1
        counts, is_cut = await count_lines(self._store, after, most=MAX_MESSAGES)
        turns = await find_turns(self._store, after, most=MAX_TURNS)
        attended = await self._store.newest_entries(MAX_TURNS, after=after, kinds=["attended"])
        inner = inner_conversation(agent)
        own = [one for one in turns if one.agent in ("", agent)]
        visible = await self._find_visible(here, sight, _find_oldest(counts, own, attended))
        news = {
            place: await self._describe_place(place, scope, quotes=quotes)
            for place, scope in visible.items()
        }
        _add_lines(news, counts, quotes=quotes)
        _add_turns(news, own, sight)
        why = {} if quotes else await self._find_reasons(news, attended)
        _add_attended(news, attended, inner, sight, why)
        reasons = {one.fact.turn for one in attended if isinstance(one.fact, RoomAttended)}
        by_itself = PlaceNews(title=_("By itself"))
        if not quotes:
            told = await self._store.newest_entries(MAX_TURNS, after=after, kinds=["told"])
            reasons |= self._add_told(by_itself, told, agent, here)
        # The notes of inner turns, without those turns of which a place tells.
        by_itself.deeds += [
            _quote_deed(one, "{text}", one.note, _("left a note"))
            for one in own
            if one.conversation == inner
            and one.note
            and one.turn not in reasons
            and sight.can_read(one.label.readers)
        ]
        if sight.sees_everything:
            by_itself.deeds += await self._find_dream(agent, since)
        waiting, label = list[str](), list[Label]()
        if sight.sees_everything:
            waiting, label = await self._find_waiting(here, quotes=quotes)
        if not quotes:
            for place in (*news.values(), by_itself):
                place.deeds = _without_quotations(place.deeds)
        lines, shown = render_recap(
            [*news.values(), by_itself], waiting, most=most, handles=handles
        )
        if lines and is_cut:
            text = _("(Only the newest {count} messages were counted.)")
            lines.append(text.format(count=MAX_MESSAGES))
        deeds = [one.label for place in shown for one in sorted(place.deeds)[-_MAX_DEEDS:]]
        joined = join([*(one.label for one in shown), *deeds, *label])
        return (
            self._redactor("\n".join(lines)),
            joined if quotes else Label(readers=joined.readers),
        )

    def _add_told(
        self, news: PlaceNews, told: Sequence[LogEntry], agent: str, here: ConversationId
    ) -> set[TurnId]:
        """Add when the owner was told something here; return the turns that told it."""
        now, turns = self._live.to_local(self._clock.now()), set[TurnId]()
        for one in told:
            fact = one.fact
            if not isinstance(fact, OwnerTold) or fact.state != "posted" or fact.agent != agent:
                continue
            if fact.to.conversation == here:
                turns.add(fact.turn)
                text = _("told you at {time}").format(time=format_moment(one.at, now))
                news.deeds.append(Deed(one.seq, text, TRUSTED_LABEL))
        return turns

    async def _find_reasons(
        self, news: Mapping[ConversationId, PlaceNews], attended: Sequence[LogEntry]
    ) -> dict[ConversationId, str]:
        """Return why something was due in the rooms that it attended, as the digest says it."""
        found = dict[ConversationId, str]()
        for one in attended:
            if isinstance(one.fact, RoomAttended) and (at := one.fact.at.conversation) in news:
                judged = await self._store.newest_entries(
                    _MAX_JUDGED, before=one.seq, kinds=["judged"], conversation=at
                )
                for entry in judged:
                    if isinstance(entry.fact, Judgement) and entry.fact.urgency:
                        found[at] = describe_reason(entry.fact.rule)
        return found

    async def _find_visible(
        self, here: ConversationId, sight: Visibility, oldest: Mapping[ConversationId, Seq]
    ) -> dict[ConversationId, str]:
        """Return the places that may be told of here, each with its scope. What was said in a
        direct chat stands above in it.
        """
        skipped = {here} if await self._places.is_direct(here) else set()
        places = [one for one in oldest if not is_inner(one) and one not in skipped][:MAX_PLACES]
        scopes = {one: await self._places.scope(one, oldest[one]) for one in places}
        sight = await self._places.with_memberships(sight, scopes.values())
        return {one: scope for one, scope in scopes.items() if sight.can_see(scope, oldest[one])}

    async def _find_dream(self, agent: str, since: datetime) -> list[Deed]:
        found = await load_memory_change(self._store, agent, most=1)
        if found is None or found[0].at < since:
            return []
        dream, changes = found
        changed = to_single_line(" ".join(changes), _MAX_QUOTE_CHARS)
        return [
            Deed(
                seq=dream.fact.upto,
                text=_("dreamt; in MEMORY.md: {changes}").format(changes=changed),
                label=MEMORY_LABEL,
            )
        ]

    async def _describe_place(
        self, place: ConversationId, scope: str, *, quotes: bool
    ) -> PlaceNews:
        title = await self._find_title(place, quotes=quotes)
        label = Label(readers=readers_of(scope))
        if not self._places.titles.has_trusted_names(Address.parse(place)):
            label |= label_of_role("guest", "the name of a place")
        return PlaceNews(title=to_single_line(title, _MAX_TITLE_CHARS), label=label)

    async def _find_title(self, place: ConversationId, *, quotes: bool) -> str:
        titles = self._places.titles
        await titles.load([place])
        is_named = quotes or titles.has_trusted_names(Address.parse(place))
        return escape_frame(titles.title(place) if is_named else place, '[]"')

    async def _find_waiting(
        self, here: ConversationId, *, quotes: bool
    ) -> tuple[list[str], list[Label]]:
        now, labels = self._clock.now(), list[Label]()
        entries = await self._store.newest_entries(
            _MAX_WAITING, kinds=["approval_asked", "approval_ended"]
        )
        ended = {one.fact.approval for one in entries if isinstance(one.fact, ApprovalEnded)}
        asked = [one.fact for one in entries if isinstance(one.fact, ApprovalRequested)]
        open_ = [one for one in asked if one.until > now and one.approval not in ended]
        waiting = list[str]()
        if open_:
            named = ", ".join(f"{sanitize_name(one.tool)} {one.approval}" for one in open_)
            text = ngettext("{count} approval ({named})", "{count} approvals ({named})", len(open_))
            waiting.append(text.format(count=len(open_), named=named))
            labels += [one.label for one in open_]
        codes = [one.fact for one in await self._store.current_facts("code_given")]
        people = [
            _show_name(one.name, quotes=quotes)
            for one in codes
            if isinstance(one, CodeIssued) and one.what in ("pair", "room") and one.until > now
        ]
        if people:
            text = ngettext("{count} code, of {people}", "{count} codes, of {people}", len(people))
            waiting.append(
                text.format(count=len(people), people=_list_names(people)),
            )
            labels.append(label_of_role("guest", "a name"))
        due = [place for place, _urgency in await self._store.due_conversations(URGENT)]
        titles = [
            await self._find_title(one, quotes=quotes)
            for one in due
            if one != here and not is_inner(one)
        ]
        if titles:
            waiting.append(_("an answer in {places}").format(places=_list_names(titles)))
            labels.append(label_of_role("guest", "the name of a place"))
        return waiting, labels


def _show_name(name: str, *, quotes: bool) -> str:
    if quotes:
        return sanitize_name(name)
    found = _HANDLE.search(name)
    return found[0] if found else _("somebody")


def _without_quotations(deeds: Sequence[Deed]) -> list[Deed]:
    """Return them with quotations of owners alone; others of one kind together."""
    kept = [one for one in deeds if one.label.integrity == TRUSTED_LABEL.integrity]
    rest = dict[str, list[Deed]]()
    for one in sorted(set(deeds).difference(kept)):
        rest.setdefault(one.plain, []).append(one)
    for plain, same in rest.items():
        text = _("{what} ({count} times)").format(what=plain, count=len(same))
        text = text if len(same) > 1 else plain
        kept.append(Deed(same[-1].seq, text, join(one.label for one in same)))
    return kept


def _list_names(names: Sequence[str]) -> str:
    shown, more = ", ".join(names[:_MAX_PEOPLE]), len(names) - _MAX_PEOPLE
    return _("{people} and {count} more").format(people=shown, count=more) if more > 0 else shown


def _find_oldest(
    counts: Sequence[LineCount], turns: Sequence[TurnEnd], attended: Sequence[LogEntry]
) -> dict[ConversationId, Seq]:
    """Return each place with its oldest entry: what may be told of that may be told of all."""
    found = dict[ConversationId, Seq]()
    for place, seq in (
        *((one.conversation, one.oldest) for one in counts),
        *((one.conversation, one.seq) for one in reversed(turns)),
        *(
            (one.fact.at.conversation, one.seq)
            for one in attended
            if isinstance(one.fact, RoomAttended)
        ),
    ):
        found[place] = min(seq, found.get(place, seq))
    return found


def _add_lines(
    news: Mapping[ConversationId, PlaceNews], counts: Sequence[LineCount], *, quotes: bool
) -> None:
    people = dict[ConversationId, Counter[str]]()
    roles = dict[tuple[ConversationId, str], Label]()
    for one in counts:
        if (place := news.get(one.conversation)) is None:
            continue
        name = _show_name(one.name, quotes=quotes)
        people.setdefault(one.conversation, Counter())[name] += one.lines
        key = one.conversation, name
        roles[key] = roles.get(key, TRUSTED_LABEL) | label_of_role(one.role, "a name")
        place.lines += one.lines
        place.addressed += one.addressed
        place.newest = max(place.newest, one.newest)
    for where, counted in people.items():
        names = [name for name, _count in counted.most_common()]
        news[where].people = names if names != [news[where].title] else ()
        news[where].label |= join(roles[where, name] for name in names[:_MAX_PEOPLE])


def _add_turns(
    news: Mapping[ConversationId, PlaceNews], turns: Sequence[TurnEnd], sight: Visibility
) -> None:
    for one in turns:
        if (place := news.get(one.conversation)) is None:
            continue
        place.newest = max(place.newest, one.seq)
        if one.cause == "addressed":
            place.answered += one.outcome == "replied"
            place.failed += one.outcome == "failed"
        elif one.text and one.outcome == "replied":
            verb, plain = (
                (_("reminded: {text}"), _("reminded"))
                if one.cause == "alarm"
                else (_("wrote: {text}"), _("posted a message"))
            )
            place.deeds.append(_quote_deed(one, verb, one.text, plain))
        elif one.note and sight.can_read(one.label.readers):
            place.deeds.append(_quote_deed(one, _("noted: {text}"), one.note, _("left a note")))


def _add_attended(
    news: Mapping[ConversationId, PlaceNews],
    attended: Sequence[LogEntry],
    inner: ConversationId,
    sight: Visibility,
    why: Mapping[ConversationId, str],
) -> None:
    for one in attended:
        fact = one.fact
        if not isinstance(fact, RoomAttended) or one.conversation != inner:
            continue
        if (place := news.get(fact.at.conversation)) is None:
            continue
        place.newest = max(place.newest, one.seq)
        if fact.reason and sight.can_read(fact.label.readers):
            quoted = quote_text(fact.reason, (), _MAX_QUOTE_CHARS)
            text = _("attended, because {reason}").format(reason=quoted)
            reason = why.get(fact.at.conversation)
            plain = _("attended, because of {reason}").format(reason=reason) if reason else ""
            place.deeds.append(Deed(one.seq, text, fact.label, plain=plain or _("attended")))
        else:
            place.deeds.append(Deed(one.seq, _("attended"), TRUSTED_LABEL))


def _quote_deed(turn: TurnEnd, words: str, quoted: str, plain: str) -> Deed:
    text = words.format(text=quote_text(quoted, (), _MAX_QUOTE_CHARS))
    return Deed(turn.seq, text, turn.label, f"m{turn.seq}", plain)
