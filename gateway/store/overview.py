"""Queries of the dashboard and the console: pages of notifications, messages, turns and spending
without long bodies.

They use a connection of their own, so that no query of the gateway itself waits for them. Every
statement uses an index.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self

from agent.tools import CALL_CAPABILITY, unwrap_call
from gateway.core.clock import id_created_at
from gateway.core.events import Command, ConversationId, Usage
from gateway.core.facts import Fact, Judgement, Seq, fact_adapter, is_inner, load_fact
from gateway.core.frozen import frozen
from gateway.core.tool_spec import ToolCall
from gateway.store.queries import FIRST_ENTRY_SINCE, LAST, using
from gateway.store.reader import StoreReader, open_reading, to_log_time
from gateway.store.schema import StoreLocation
from gateway.store.spending import (
    DAILY_SPENDING,
    OverviewSpendingKey,
    SpendingSum,
    hourly_spending_sql,
)

if TYPE_CHECKING:
    from gateway.core.api_models import TurnSummary

MAX_CONVERSATIONS = 10_000
"""Conversations searched for the newest."""
MAX_TURNS = 20_000
"""Turns, and saved states, searched for one answer."""

_LATER_TURN = (
    "SELECT json_extract(body, '$.outcome') "  # noqa: S608 - constants only
    "|| CASE WHEN json_extract(body, '$.within') IS NULL THEN ' 0 ' ELSE ' 1 ' END || seq FROM log "
    f"AS later {using('log_turn')} WHERE later.kind = 'turn_ended' AND later.conversation = "
    "judged.conversation AND later.seq > dealt.seq AND json_extract(later.body, '$.outcome') <> "
    "'interrupted' AND (json_extract(later.body, '$.within') IS NULL OR "
    "json_array_length(later.body, '$.covers') > 0) ORDER BY later.seq LIMIT 1"
)
_TURN = (
    f"SELECT turn.seq FROM log AS turn {using('log_turn')} WHERE turn.kind = 'turn_ended' "  # noqa: S608 - constants only
    "AND turn.conversation = judged.conversation AND turn.seq > judged.seq "
    "AND CAST(json_extract(turn.body, '$.upto') AS bigint) >= event.seq ORDER BY turn.seq LIMIT 1"
)
_HANDLED = (
    f"SELECT decided.seq FROM log AS decided {using('log_conversation')} "  # noqa: S608 - constants only
    "WHERE decided.conversation = judged.conversation AND decided.seq > judged.seq AND decided.seq "
    f"< coalesce(({_TURN}), {LAST}) AND decided.kind = 'handled' AND "
    "CAST(json_extract(decided.body, '$.upto') AS bigint) >= event.seq ORDER BY decided.seq LIMIT 1"
)
_LOOKED = (
    f"SELECT 1 FROM log AS inner_ {using('log_kind')} WHERE inner_.kind = 'turn_ended' "  # noqa: S608 - constants only
    "AND json_extract(dealt.body, '$.cause') <> 'attended' AND inner_.seq > judged.seq AND "
    "inner_.seq < dealt.seq AND inner_.conversation > 'agent/' AND inner_.conversation < 'agent0' "
    "AND EXISTS (SELECT 1 FROM json_each(inner_.body, '$.looked') WHERE json_extract(value, "
    "'$[0]') = judged.conversation AND CAST(json_extract(value, '$[1]') AS bigint) >= event.seq)"
)
_EVENT = f"""
SELECT event.seq, event.at, event.body, event.conversation, judged.body, judged.conversation,
    unread.urgency,
    dealt.kind, dealt.seq, json_extract(dealt.body, '$.outcome'),
        json_extract(dealt.body, '$.within') IS NOT NULL,
    EXISTS (SELECT 1 FROM json_each(dealt.body, '$.covers')
        WHERE CAST(value AS bigint) = event.seq),
    dealt.kind = 'turn_ended' AND EXISTS ({_LOOKED}),
    CASE json_extract(dealt.body, '$.outcome') WHEN 'interrupted' THEN ({_LATER_TURN}) END
"""  # noqa: S608 - constants only
_DEALT = (
    "LEFT JOIN unread ON unread.seq = event.seq LEFT JOIN log AS dealt ON dealt.seq = CASE "
    "WHEN unread.seq IS NULL AND json_extract(judged.body, '$.fate') IN ('due', 'context') "
    f"THEN coalesce(({_HANDLED}), ({_TURN})) END"
)
_NOWHERE = Seq(0)


def _notifications_sql(where: str, order: str, *, index: str) -> str:
    return (
        f"{_EVENT} FROM log AS judged {using(index)} CROSS JOIN log AS event {_DEALT} "
        f"WHERE event.seq = judged.cause AND {where} AND judged.seq > $1 AND judged.seq <= $2 "
        f"AND event.seq > $1 AND event.seq < $2 ORDER BY judged.seq {order} LIMIT $3"
    )


NOTIFICATIONS = {
    "newest": _notifications_sql("judged.kind = 'judged'", "DESC", index="log_kind"),
    "oldest": _notifications_sql("judged.kind = 'judged'", "ASC", index="log_kind"),
}
NOTIFICATIONS_IN = {
    "newest": _notifications_sql(
        "judged.conversation = $4 AND judged.kind = 'judged'", "DESC", index="log_conversation"
    ),
    "oldest": _notifications_sql(
        "judged.conversation = $4 AND judged.kind = 'judged'", "ASC", index="log_conversation"
    ),
}
"""Parameters: lower and upper position, and the maximal number; then the conversation. A judgement
is after its event and before the next one, so both have the same order."""
NOTIFICATIONS_AT = (
    f"{_EVENT} FROM json_each($1) AS asked CROSS JOIN log AS event CROSS JOIN log AS judged "
    f"{using('log_cause')} {_DEALT} WHERE event.seq = CAST(asked.value AS bigint) AND judged.cause "
    "= event.seq AND judged.kind = 'judged' ORDER BY event.seq"
)
"""Parameters: positions as a JSON array."""

_SPOKEN_KINDS = "('direct', 'mention', 'reply', 'room', 'command', 'post')"
_DELIVERED = (
    "SELECT json_extract(ended.body, '$.state') FROM log AS ended WHERE ended.key = CASE said.kind "
    "WHEN 'post' THEN 'delivery:' || said.conversation || ':' || json_extract(said.body, "
    "'$.post.key') END"
)
SPOKEN_ENTRIES = (
    f"SELECT said.seq, said.at, said.body, ({_DELIVERED}) FROM log AS said "  # noqa: S608 - the same
    f"{using('log_conversation')} "
    f"WHERE said.conversation = $1 AND said.kind IN {_SPOKEN_KINDS} ORDER BY said.seq DESC LIMIT $2"
)
RECENT_CONVERSATIONS = f"""
WITH RECURSIVE place (name) AS (
    SELECT min(conversation) FROM log {using("log_conversation")} WHERE conversation IS NOT NULL
    UNION ALL
    SELECT (SELECT min(conversation) FROM log {using("log_conversation")}
        WHERE conversation > place.name)
    FROM place WHERE place.name IS NOT NULL
), newest (name, seq) AS (
    SELECT name, (SELECT max(seq) FROM log {using("log_conversation")} WHERE conversation = name)
    FROM (SELECT name FROM place WHERE name IS NOT NULL LIMIT {MAX_CONVERSATIONS}) AS found
        ORDER BY 2 DESC LIMIT $1
)
SELECT newest.name, newest.seq, log.at,
    (SELECT count(*) FROM unread {using("unread_conversation")}
        WHERE unread.conversation = newest.name),
    said.seq, said.at, said.body, ({_DELIVERED})
FROM newest CROSS JOIN log LEFT JOIN log AS said ON said.seq = (
    SELECT seq FROM log {using("log_conversation")} WHERE conversation = newest.name
        AND kind IN {_SPOKEN_KINDS}
    ORDER BY seq DESC LIMIT 1
) WHERE log.seq = newest.seq ORDER BY newest.seq DESC
"""  # noqa: S608 - the same
"""One look into an index for each conversation, however long that is."""

_TURN_COLUMNS = """
SELECT seq, at, conversation, json_extract(body, '$.turn'), json_extract(body, '$.agent'),
    json_extract(body, '$.cause'), json_extract(body, '$.outcome'), json_extract(body, '$.model'),
    CAST(json_extract(body, '$.requests') AS bigint), (
        SELECT json_group_array(CASE json_extract(call.value, '$.name')
            WHEN 'call_capability' THEN ':' || json_extract(call.value, '$.arguments')
            ELSE json_extract(call.value, '$.name') END)
        FROM json_each(body, '$.steps') AS step CROSS JOIN json_each(step.value, '$.calls') AS call
    ), json_extract(body, '$.usage'), (
        SELECT coalesce(sum(CAST(json_extract(value, '$.cost_usd') AS double precision)), 0.0)
        FROM json_each(body, '$.accounts')
    ), json_extract(body, '$.within') IS NOT NULL, json_extract(body, '$.autonomous')
"""
RECENT_TURNS = (
    f"{_TURN_COLUMNS} FROM log {using('log_kind')} WHERE kind = 'turn_ended' AND conversation IS "
    "NOT NULL AND seq > $1 AND seq < $2 ORDER BY seq DESC LIMIT $3"
)
RECENT_TURNS_IN = (
    f"{_TURN_COLUMNS} FROM log {using('log_turn')} WHERE kind = 'turn_ended' AND conversation = $4 "
    "AND seq > $1 AND seq < $2 ORDER BY seq DESC LIMIT $3"
)

HOURLY_SPENDING = {
    key: hourly_spending_sql(key, FIRST_ENTRY_SINCE, MAX_TURNS) for key in DAILY_SPENDING
}

DMN_MODES = f"""
SELECT at, agent, mode FROM (
    SELECT seq, at, json_extract(body, '$.agent') AS agent,
        json_extract(json_extract(body, '$.state'), '$.mode') AS mode
    FROM log {using("log_kind")} WHERE kind = 'dmn' AND seq >= ({FIRST_ENTRY_SINCE})
        ORDER BY seq DESC LIMIT {MAX_TURNS}
) AS saved WHERE mode IS NOT NULL ORDER BY seq
"""  # noqa: S608 - the same


class EventOutcome(StrEnum):
    """Outcome of an event. The first four are not final."""

    WAITING = "waiting"
    """Due for a turn, and none has ended there yet."""
    OVERHEARD = "overheard"
    """Context for the next turn in its conversation, and none has ended there yet."""
    LOOKED_AT = "looked at"
    """Seen by a turn of the agent's inner conversation that did nothing: context for the next turn
    there."""
    INTERRUPTED = "interrupted"
    """Shown to a turn that was interrupted; the next turn there answers it."""
    REFUSED = "refused"
    """Refused by access: never shown to the model."""
    NOTED = "noted"
    """Recorded only: it needs no turn."""
    COMMAND = "command"
    """Answered without the model."""
    CONTEXT = "context"
    """Shown to a turn that was about something else."""
    COUNTED = "counted"
    """Only counted for a turn: newer events filled its prompt."""
    ANSWERED = "answered"
    SILENT = "silent"
    YIELDED = "yielded"
    FAILED = "failed"
    """`ANSWERED` to `FAILED`: result of the turn that was shown the event."""
    TAKEN_UP = "taken up"
    """Shown to the agent in its inner conversation; that turn shows what the agent did."""
    ANSWERED_ELSEWHERE = "answered elsewhere"
    """Answered by the agent from its inner conversation."""
    HANDLED = "handled"
    """Dismissed by the agent: nothing is to be done."""


_TURN_OUTCOMES = {
    "replied": EventOutcome.ANSWERED,
    "silent": EventOutcome.SILENT,
    "yielded": EventOutcome.YIELDED,
    "failed": EventOutcome.FAILED,
    "interrupted": EventOutcome.INTERRUPTED,
}


def _find_turn_outcome(conversation: ConversationId, outcome: str, *, within: bool) -> EventOutcome:
    """Return what a turn there made of the events that it was about. `within`: a turn elsewhere
    spoke there.
    """
    ended = _TURN_OUTCOMES[outcome]
    if ended is EventOutcome.ANSWERED and is_inner(conversation):
        return EventOutcome.TAKEN_UP
    return EventOutcome.ANSWERED_ELSEWHERE if ended is EventOutcome.ANSWERED and within else ended


@frozen
class NotificationRow:
    """A notification, the decision about it, and the entry that dealt with it.

    It follows `gateway.store.projections`: a turn or a dismissal handles the events that it removes
    from the table of unread ones.
    """

    seq: Seq
    at: datetime
    fact: Fact
    conversation: ConversationId | None
    judged: Judgement
    place: ConversationId | None
    """Conversation where it is unread, if it is due."""
    unread: int | None
    """Urgency if it is still unread. None: it is not."""
    dealt: Literal["", "turn_ended", "handled"] = ""
    """Kind of the entry that dealt with it. Empty: none has."""
    dealt_seq: Seq = _NOWHERE
    outcome: str = ""
    within: bool = False
    """True if that turn records the action of another turn there."""
    shown: bool = False
    looked: bool = False
    """True if a turn of an inner conversation had looked at it before, and did not have the room
    attended."""
    after: str = ""
    """Outcome of the next turn there, if that turn was interrupted. Empty: there is none."""
    after_within: bool = False
    """True if that next turn records the action of another turn there."""
    after_seq: Seq = _NOWHERE

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of a row of `NOTIFICATIONS`."""
        (
            seq,
            at,
            body,
            conversation,
            judged,
            place,
            unread,
            dealt,
            dealt_seq,
            outcome,
            within,
            shown,
            looked,
            then,
        ) = row
        after, after_within, after_seq = then.split() if then is not None else ("", "0", "0")
        judgement = load_fact("judged", judged)
        assert isinstance(judgement, Judgement)
        return cls(
            seq=Seq(seq),
            at=datetime.fromisoformat(at),
            fact=fact_adapter().validate_json(body),
            conversation=conversation,
            judged=judgement,
            place=place,
            unread=unread,
            dealt=dealt or "",
            dealt_seq=Seq(dealt_seq or 0),
            outcome=outcome or "",
            within=bool(within),
            shown=bool(shown),
            looked=bool(looked),
            after=after,
            after_within=after_within == "1",
            after_seq=Seq(int(after_seq)),
        )

    @property
    def fate(self) -> EventOutcome:
        """What became of it so far."""
        judged = self.judged.fate
        if judged == "refused":
            return EventOutcome.REFUSED
        if judged == "noted" or self.place is None:
            return EventOutcome.COMMAND if isinstance(self.fact, Command) else EventOutcome.NOTED
        if not self.dealt:
            if judged != "due":
                return EventOutcome.OVERHEARD
            was_looked_at = self.unread is not None and self.unread < self.judged.urgency
            return EventOutcome.LOOKED_AT if was_looked_at else EventOutcome.WAITING
        if self.dealt == "handled":
            return EventOutcome.HANDLED
        if not self.shown:
            return EventOutcome.COUNTED
        if judged != "due" or self.looked:
            return EventOutcome.CONTEXT
        if self.outcome != "interrupted":
            return _find_turn_outcome(self.place, self.outcome, within=self.within)
        if not self.after:
            return EventOutcome.INTERRUPTED
        return _find_turn_outcome(self.place, self.after, within=self.after_within)


@frozen
class SpokenRow:
    """A message in a conversation."""

    seq: Seq
    at: datetime
    fact: Fact
    delivered: str
    """Result of the delivery of a post of ours. Empty: not ended, or no post."""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Make it of a row of `SPOKEN_ENTRIES`."""
        seq, at, body, delivered = row
        fact = fact_adapter().validate_json(body)
        return cls(
            seq=Seq(seq), at=datetime.fromisoformat(at), fact=fact, delivered=delivered or ""
        )


@frozen
class ConversationRow:
    """A conversation with an entry in the log."""

    conversation: ConversationId
    last: SpokenRow | None
    """Last message there. None: none lately."""
    seq: Seq
    at: datetime
    unread: int


def _tool_of_call(written: str) -> str:
    """Return the tool of a call. `written`: its name; of `call_capability`, a colon and the
    arguments.
    """
    if not written.startswith(":"):
        return written
    return unwrap_call(ToolCall(id="", name=CALL_CAPABILITY.name, arguments=written[1:])).name


def _turn_of_row(row: Iterable[Any]) -> "TurnSummary":
    """Make it of a row of `RECENT_TURNS`. A turn that records the action of another one has no
    duration.
    """
    from gateway.core.api_models import TurnSummary, token_fields  # noqa: PLC0415 - pages alone ask

    (
        seq,
        at,
        place,
        turn,
        agent,
        cause,
        outcome,
        model,
        requests,
        tools,
        usage,
        cost,
        within,
        autonomous,
    ) = row
    ended, began = datetime.fromisoformat(at), None if within else id_created_at(turn)
    return TurnSummary(
        seq=seq,
        at=ended,
        conversation=place,
        turn=turn,
        agent=agent or "",
        cause=cause or "addressed",
        outcome=outcome,
        model=model,
        requests=requests,
        tools=tuple(map(_tool_of_call, json.loads(tools))),
        seconds=None if began is None else max(0.0, (ended - began).total_seconds()),
        autonomous=autonomous in (1, "true"),  # as SQLite and PostgreSQL read JSON
        **token_fields(Usage(**json.loads(usage)), cost),
    )


async def find_notifications(reader: StoreReader, seqs: Sequence[int]) -> list[NotificationRow]:
    """Return the notifications at these positions, in their order; other entries are left out.
    Raises StoreError.
    """
    rows = await reader.rows(NOTIFICATIONS_AT, json.dumps(sorted(set(seqs))))
    return [NotificationRow.from_row(row) for row in rows]


class OverviewReader(StoreReader):
    """Further queries. As in a `StoreReader`, each method is one statement; all are bounded."""

    @classmethod
    async def open(cls, path: StoreLocation) -> Self:
        """Open for reading beside a running gateway. Raises StoreMissing, StoreTooNew or
        StoreUnreadable.
        """
        return cls(path, await open_reading(path))

    async def notifications(
        self,
        limit: int,
        *,
        before: int | None = None,
        after: int = 0,
        conversation: ConversationId | None = None,
        oldest: bool = False,
    ) -> list[NotificationRow]:
        """Return notifications with `after` < seq < `before` and their fates, the newest or the
        oldest first.
        """
        sql = NOTIFICATIONS_IN if conversation is not None else NOTIFICATIONS
        params = [] if conversation is None else [conversation]
        end = LAST if before is None else before
        rows = await self.rows(sql["oldest" if oldest else "newest"], after, end, limit, *params)
        return [NotificationRow.from_row(row) for row in rows]

    async def spoken_entries(self, conversation: ConversationId, limit: int) -> list[SpokenRow]:
        """Return the last messages there, the oldest first."""
        return [
            SpokenRow.from_row(row)
            for row in reversed(await self.rows(SPOKEN_ENTRIES, conversation, limit))
        ]

    async def recent_conversations(self, limit: int) -> list[ConversationRow]:
        """Return the conversations with the newest entries, the newest first."""
        return [
            ConversationRow(
                conversation=ConversationId(place),
                last=SpokenRow.from_row(last) if last[0] is not None else None,
                seq=Seq(seq),
                at=datetime.fromisoformat(at),
                unread=unread,
            )
            for place, seq, at, unread, *last in await self.rows(RECENT_CONVERSATIONS, limit)
        ]

    async def recent_turns(
        self,
        limit: int,
        *,
        before: int | None = None,
        after: int = 0,
        conversation: ConversationId | None = None,
    ) -> "list[TurnSummary]":
        """Return the newest turns with `after` < seq < `before`, the newest first."""
        end = LAST if before is None else before
        if conversation is None:
            rows = await self.rows(RECENT_TURNS, after, end, limit)
        else:
            rows = await self.rows(RECENT_TURNS_IN, after, end, limit, conversation)
        return [_turn_of_row(row) for row in rows]

    async def spending_over_time(
        self, by: OverviewSpendingKey, since: datetime, *, daily: bool
    ) -> list[SpendingSum]:
        """Return the spending from then on, by hour or by day (UTC), and by the key. By the hour
        nothing is told of prices that are not known.
        """
        first = since.date().isoformat() if daily else to_log_time(since)
        rows = await self.rows((DAILY_SPENDING if daily else HOURLY_SPENDING)[by], first)
        return [SpendingSum.from_row(row, at) for at, *row in rows]

    async def dmn_modes(self, since: datetime) -> list[tuple[datetime, str, str]]:
        """Return each saved state of an agent from then on, oldest first: time, agent, and mode."""
        return [
            (datetime.fromisoformat(at), agent, mode)
            for at, agent, mode in await self.rows(DMN_MODES, to_log_time(since))
        ]
