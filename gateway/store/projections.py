"""Projections: rows of the derived tables, computed from log entries. Pure; the writer and the
rebuild use it.

No statement reads another table but the log before its own entry, so statements for different
tables may be reordered; those for one table keep their order. The search index is filled
separately, from the view `said`.

Current facts (`holds`): of some kinds of facts only the newest one about each key counts.

Notification types: a table counts each type without its place, `irc.libera.room`, with its first
and last time. Rooms and people are parts of a type, and a server can invent any number of them.

Spending: each message shown in a turn bears an equal share of the turn's whole cost. Shares are
whole tokens and billionths of a dollar, so that they add up to exactly what was billed.

Tables of plugins (`Table`) are made when a store is opened for writing
(`gateway.store.rebuild.prepare_tables`), and the statements of an entry are executed in the
transaction that appends it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from typing import Final, NamedTuple

from gateway.core.events import (
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    Message,
    PlaceRenamed,
)
from gateway.core.facts import (
    URGENT,
    AttentionThresholdSet,
    AudienceReported,
    CodeEnded,
    CodeIssued,
    CompactionLocked,
    CompactionSummary,
    ConversationRewound,
    CursorMoved,
    DmnStateSaved,
    Fact,
    IdentityLinked,
    Judgement,
    ModelSelected,
    NoteForgotten,
    PartSendEnded,
    PartSendStarted,
    PluginFact,
    PostQueued,
    PreviewEnded,
    PreviewShown,
    RoleAssigned,
    RoomAccessChanged,
    RoomAssigned,
    Seq,
    TurnRecord,
    UnreadDismissed,
    ViewFolded,
    fact_kinds,
)
from gateway.core.frozen import frozen
from gateway.store.queries import using
from gateway.store.spending import (
    ADD_AUTONOMOUS,
    ADD_SPENDING,
    MAX_NUMBER,
    spending_shares,
    to_nano_usd,
)
from gateway.store.types import LogEntry

logger = logging.getLogger("reverie.store")

PROJECTED_TABLES = (
    "unread",
    "outbox",
    "outbox_part",
    "view",
    "view_cut",
    "taken_back",
    "compactions_v1",
    "compaction_locks_v1",
    "cursor",
    "dmn_state",
    "link",
    "preview",
    "spending",
    "notification_type",
    "autonomous",
    "forgotten",
    "holds",
)
"""Every table that `project_fact` writes."""
SEARCHABLE_KINDS = frozenset(
    {"direct", "mention", "reply", "room", "edited", "turn_ended", "noted"}
)
"""Kinds with text to search for; the view `said` names the same."""
SqlValue = str | int | None
Params = tuple[SqlValue, ...]


def current_fact_key(fact: Fact) -> tuple[str, str, bool] | None:
    """Return the kind of facts of which only the newest one about a subject counts, the subject,
    and whether this one counts: False if it only ends the one before. None: of its kind all count.
    """
    match fact:
        case CodeIssued() | CodeEnded():
            return "code_given", fact.request, isinstance(fact, CodeIssued)
        case RoleAssigned():
            return fact.kind, f"{fact.person}\n{fact.scope}", bool(fact.role)
        case RoomAccessChanged():
            return fact.kind, fact.room.conversation, fact.open
        case AudienceReported() | PlaceRenamed():
            return fact.kind, fact.at.conversation, True
        case IdentityLinked():
            return fact.kind, f"{fact.one}\n{fact.other}", fact.joined
        case AttentionThresholdSet():
            return fact.kind, fact.type, fact.value is not None
        case ModelSelected():
            return fact.kind, fact.agent, bool(fact.model)
        case RoomAssigned():
            return fact.kind, fact.room.conversation, bool(fact.agent or fact.model)
        case PluginFact():
            found = fact.current_key()
            return (fact.kind, *found) if found is not None else None
        case _:
            return None


def counted_type(dotted: str, conversation: ConversationId | None) -> str:
    """Return the type under which a notification of that conversation is counted: without its
    place.
    """
    channel = f"{(conversation or '').partition('/')[0]}."
    if not dotted.startswith(channel):
        return dotted
    return channel + dotted.removeprefix(channel).partition(".")[0]


class Statement(NamedTuple):
    """One change to one table. Inserts have `VALUES {}`, so that many can become one
    (`Log.write`).
    """

    table: str
    sql: str
    params: Params


_UNREAD = (
    "INSERT INTO unread (seq, conversation, urgency) VALUES {} "
    "ON CONFLICT (seq) DO UPDATE SET conversation = excluded.conversation, urgency = "
    "excluded.urgency"
)
_READ = "DELETE FROM unread WHERE conversation = $1 AND seq <= $2"
_LOOKED_AT = "UPDATE unread SET urgency = 0 WHERE conversation = $1 AND urgency >= 1 AND seq <= $2"
_VIEW = (
    "INSERT INTO view (conversation, start, fold, fresh) SELECT $1, $2, $3, $4 WHERE true "
    "ON CONFLICT (conversation) DO UPDATE SET start = excluded.start, fold = excluded.fold, "
    "fresh = max(view.fresh, excluded.fresh)"
)
"""`WHERE true`: otherwise ON would be parsed as part of a join
(https://www.sqlite.org/lang_upsert.html#parsing_ambiguity)."""
_CUT_OUT = "INSERT INTO view_cut (conversation, first, last) VALUES {} ON CONFLICT DO NOTHING"
_TAKEN_BACK = (
    "INSERT INTO taken_back (seq) SELECT CAST(told.value AS bigint) "  # noqa: S608 - constants only
    f"FROM log {using('log_turn')} CROSS JOIN json_each(log.body, '$.covers') AS told WHERE "
    "log.kind = 'turn_ended' AND log.conversation = $1 AND log.seq BETWEEN $2 AND $3 AND log.seq < "
    "$4 ON CONFLICT DO NOTHING"
)
_MISSED = (
    "INSERT INTO taken_back (seq) SELECT said.seq "  # noqa: S608 - constants only
    f"FROM log AS turn {using('log_turn')} CROSS JOIN log AS said {using('log_conversation')} "
    "WHERE turn.kind = 'turn_ended' AND turn.conversation = $1 AND turn.seq BETWEEN $2 AND $3 AND "
    "turn.seq < $4 AND json_extract(turn.body, '$.outcome') = 'failed' AND "
    "json_array_length(turn.body, '$.covers') = 0 AND said.conversation = $1 AND said.seq < "
    "turn.seq AND said.seq <= CAST(json_extract(turn.body, '$.upto') AS bigint) AND said.kind IN "
    "('direct', 'mention', 'reply', 'room') AND said.seq > coalesce((SELECT max(upto) FROM (SELECT "
    f"CAST(json_extract(body, '$.upto') AS bigint) AS upto FROM log {using('log_turn')} WHERE kind "
    "= 'turn_ended' AND conversation = $1 AND seq < turn.seq ORDER BY seq DESC LIMIT 20) AS "
    "earlier), 0) ON CONFLICT DO NOTHING"
)
"""Messages for a turn that failed before it showed them: all those after the ones that earlier
turns dealt with."""
_COMPACTED = (
    "INSERT INTO compactions_v1 (id, session_id, compacted_at, turns, tokens_before, tokens_after, "
    "tries, took_ms, model, input_tokens, output_tokens, cost_nano_usd, summary) VALUES {} ON "
    "CONFLICT DO NOTHING"
)
_LOCKED = (
    "INSERT INTO compaction_locks_v1 (session_id, holder, acquired_at, expires_at) SELECT $1, $2, "
    "$3, $4 WHERE true ON CONFLICT (session_id) DO UPDATE SET holder = excluded.holder, "
    "acquired_at = excluded.acquired_at, expires_at = excluded.expires_at WHERE "
    "compaction_locks_v1.expires_at <= excluded.acquired_at OR compaction_locks_v1.holder = "
    "excluded.holder"
)
_CUT = (
    "INSERT INTO outbox_part (post, part, body, state, reason, attempts) VALUES {} ON CONFLICT "
    "DO NOTHING"
)
_SENDING = (
    "UPDATE outbox_part SET state = 'sending', reason = '', attempts = attempts + 1, first_at = "
    "coalesce(first_at, $1) "
    "WHERE post = $2 AND part = $3"
)
_PART = "UPDATE outbox_part SET state = $1, reason = $2 WHERE post = $3 AND part = $4"
_NOT_SEEN = (
    "UPDATE outbox_part SET state = $1, reason = $2, first_at = NULL WHERE post = $3 AND part = $4"
)
_DELIVERED = "DELETE FROM outbox WHERE post = $1"
_CURSOR = (
    "INSERT INTO cursor (channel, value) VALUES {} ON CONFLICT (channel) DO UPDATE SET value = "
    "excluded.value"
)
_DMN = (
    "INSERT INTO dmn_state (agent, state) VALUES {} ON CONFLICT (agent) DO UPDATE SET state = "
    "excluded.state"
)
_LINK = (
    "INSERT INTO link (channel, up, reason, at) VALUES {} "
    "ON CONFLICT (channel) DO UPDATE SET up = excluded.up, reason = excluded.reason, at = "
    "excluded.at"
)
_PREVIEWED = "INSERT INTO preview (conversation, message) VALUES {} ON CONFLICT DO NOTHING"
_HOLDS = (
    "INSERT INTO holds (kind, key, seq) VALUES {} ON CONFLICT (kind, key) DO UPDATE SET seq = "
    "excluded.seq"
)
_COUNTED = (
    "INSERT INTO notification_type (type, count, first_at, last_at) VALUES {} ON CONFLICT (type) "
    "DO UPDATE SET count = notification_type.count + excluded.count, last_at = excluded.last_at"
)
_FORGOTTEN = "INSERT INTO forgotten (seq) VALUES {} ON CONFLICT DO NOTHING"
_KEY_WIDTHS: Final = {_UNREAD: 1, _CURSOR: 1, _DMN: 1, _LINK: 1, _HOLDS: 2}
"""Number of key columns, the first ones, of statements whose rows take the place of others."""


def project_fact(  # noqa: C901, PLR0912 - a decision table reads best in one piece
    seq: Seq, at: str, conversation: ConversationId | None, cause: Seq | None, fact: Fact
) -> Iterator[Statement]:
    """Yield the changes that one entry makes in the derived tables.

    An entry is judged once, in the append that added it; a `Judgement` without a cause or a
    conversation makes nothing unread. A post is split into parts once: a later split of the same
    post changes nothing.
    """
    match fact:
        case Message():
            return  # most of a log
        case Judgement():
            counted = counted_type(fact.type, conversation)
            yield Statement("notification_type", _COUNTED, (counted, 1, at, at))
            if fact.fate in ("due", "context") and cause is not None and conversation is not None:
                yield Statement("unread", _UNREAD, (cause, conversation, fact.urgency))
        case TurnRecord() if conversation is not None:
            yield from _turn_statements(at, conversation, fact)
        case UnreadDismissed() if conversation is not None:
            yield Statement("unread", _READ, (conversation, fact.upto))
        case ViewFolded() if conversation is not None:
            yield Statement(
                "view", _VIEW, (conversation, fact.start, seq, seq if "new" in fact.kinds else 0)
            )
            if fact.summary is not None:
                yield Statement(
                    "compactions_v1",
                    _COMPACTED,
                    (seq, conversation, at, *_compaction_values(fact.summary)),
                )
        case CompactionLocked() if conversation is not None:
            yield Statement(
                "compaction_locks_v1",
                _LOCKED,
                (
                    conversation,
                    fact.holder,
                    at,
                    fact.until.astimezone(UTC).isoformat(timespec="microseconds"),
                ),
            )
        case ConversationRewound() if conversation is not None:
            yield from _rewind_statements(seq, conversation, fact)
        case PostQueued():
            yield Statement(
                "outbox",
                "INSERT INTO outbox (seq, post) VALUES {} ON CONFLICT DO NOTHING",
                (seq, fact.post.key),
            )
        case PartSendStarted():
            for part, body in enumerate(fact.bodies or ()):
                yield Statement("outbox_part", _CUT, (fact.post, part, body, "pending", "", 0))
            yield Statement("outbox_part", _SENDING, (at, fact.post, fact.part))
        case PartSendEnded():
            state = "pending" if fact.state == "waiting" else fact.state
            again = fact.state == "waiting" and not fact.maybe_seen
            yield Statement(
                "outbox_part",
                _NOT_SEEN if again else _PART,
                (state, fact.reason, fact.post, fact.part),
            )
        case DeliveryReport():
            yield Statement("outbox", _DELIVERED, (fact.post,))
            yield Statement("outbox_part", "DELETE FROM outbox_part WHERE post = $1", (fact.post,))
        case PreviewShown() if conversation is not None:
            yield Statement("preview", _PREVIEWED, (conversation, fact.message))
        case PreviewEnded() if conversation is not None:
            yield Statement(
                "preview",
                "DELETE FROM preview WHERE conversation = $1 AND message = $2",
                (conversation, fact.message),
            )
        case CursorMoved():
            yield Statement("cursor", _CURSOR, (fact.channel, fact.value))
        case DmnStateSaved():
            yield Statement("dmn_state", _DMN, (fact.agent, fact.state))
        case ConnectionChanged():
            yield Statement("link", _LINK, (fact.channel, int(fact.up), fact.reason, at))
        case NoteForgotten():
            yield Statement("forgotten", _FORGOTTEN, (fact.note,))
        case _:
            if (found := current_fact_key(fact)) is not None:
                kind, key, is_current = found
                yield (
                    Statement("holds", _HOLDS, (kind, key, seq))
                    if is_current
                    else Statement(
                        "holds", "DELETE FROM holds WHERE kind = $1 AND key = $2", (kind, key)
                    )
                )


def _turn_statements(
    at: str, conversation: ConversationId, turn: TurnRecord
) -> Iterator[Statement]:
    yield Statement("unread", _READ, (conversation, turn.upto))
    for place, upto in turn.looked:  # no longer wakes the agent, and stays context there
        yield Statement("unread", _LOOKED_AT, (place, upto))
    shares = spending_shares(turn)
    for share in shares:
        yield Statement("spending", ADD_SPENDING, (at[:10], conversation, *share))
    if turn.autonomous and turn.within is None:
        cost = min(sum(share.cost_nano_usd for share in shares), MAX_NUMBER)
        yield Statement("autonomous", ADD_AUTONOMOUS, (turn.agent, at[:10], cost))


def _rewind_statements(
    seq: Seq, conversation: ConversationId, back: ConversationRewound
) -> Iterator[Statement]:
    yield Statement("view_cut", _CUT_OUT, (conversation, back.first, back.last))
    yield Statement("taken_back", _TAKEN_BACK, (conversation, back.first, back.last, seq))
    yield Statement("taken_back", _MISSED, (conversation, back.first, back.last, seq))
    for message in back.again:
        yield Statement("taken_back", "DELETE FROM taken_back WHERE seq = $1", (message,))
        yield Statement("unread", _UNREAD, (message, conversation, URGENT))


def _compaction_values(summary: CompactionSummary) -> tuple[SqlValue, ...]:
    cost = None if summary.cost_usd is None else to_nano_usd(summary.cost_usd)
    usage, sizes = (
        summary.usage,
        (summary.turns, summary.tokens_before, summary.tokens_after, summary.tries),
    )
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return (
        *sizes,
        int(min(max(summary.took_s * 1_000, 0.0), MAX_NUMBER)),
        summary.model,
        read,
        usage.output_tokens,
        cost,
        summary.text,
    )


def group_statements(
    statements: Iterable[Statement],
) -> Iterator[tuple[str, list[tuple[SqlValue, ...]]]]:
    """Yield runs of one SQL text with all their parameters, table by table, in order within each
    table.
    """
    tables: dict[str, list[tuple[str, list[tuple[SqlValue, ...]]]]] = {}
    for table, sql, params in statements:
        runs = tables.setdefault(table, [])
        if runs and runs[-1][0] == sql:
            runs[-1][1].append(params)
        else:
            runs.append((sql, [params]))
    for runs in tables.values():
        for sql, rows in runs:
            yield sql, _merge_rows(sql, rows)


def _merge_rows(sql: str, rows: list[Params]) -> list[Params]:
    """Merge rows about the same: PostgreSQL changes no row twice in one statement."""
    if (width := _KEY_WIDTHS.get(sql)) is not None:
        return list({row[:width]: row for row in rows}.values())
    if sql != _COUNTED:
        return rows
    counts = Counter(row[0] for row in rows)
    first, last = {row[0]: row[2] for row in reversed(rows)}, {row[0]: row[3] for row in rows}
    return [(name, count, first[name], last[name]) for name, count in counts.items()]


@frozen
class Table:
    """A table that a plugin derives from the log. Its rows are read with `StoreReader.rows`."""

    name: str
    """Name of the plugin, or that name, `_` and a word."""
    columns: str
    """SQL of its columns and constraints, as between the brackets of CREATE TABLE: what both SQLite
    and PostgreSQL understand. If they change, the table is made anew from the log."""
    kinds: frozenset[str]
    """Kinds of entries that change its rows. If they change, the table is made anew, too."""
    fold: Callable[[LogEntry], Iterable[tuple[str, Params]]]
    """Returns the statements of one entry, each with a tuple of its parameters (`$1` and so on):
    texts, integers and None; in order.

    Pure: the same entries always give the same rows. It changes this table alone, and reads no
    other one. An insert with `VALUES {}`, which has to end in ON CONFLICT DO NOTHING, is executed
    for many entries at once. An entry at which it raises is left out, and that is logged. A table
    for which the database refuses a statement is left as it is until the store is opened again."""

    @property
    def definition(self) -> str:
        """Text that changes when the table has to be made anew."""
        return f"{self.columns}\n{' '.join(sorted(self.kinds))}"


_TABLES: Final[dict[str, Table]] = {}


def register_tables(tables: Iterable[Table]) -> None:
    """Let stores have these tables, and no other ones of plugins."""
    _TABLES.clear()
    _TABLES.update({table.name: table for table in tables})


def stop_following(tables: Iterable[str], why: str) -> None:
    """Leave these tables as they are: entries change them no more in this process."""
    for name in tables:
        if _TABLES.pop(name, None) is not None:
            logger.error("the table %s of a plugin follows the log no more: %s", name, why)


def plugin_tables() -> tuple[Table, ...]:
    """Return the tables of the plugins of this environment."""
    fact_kinds()  # the plugins are found now
    return tuple(_TABLES.values())


def fold_entry(entry: LogEntry) -> Iterator[Statement]:
    """Yield the changes that one entry makes in the tables of plugins."""
    for table in _TABLES.values():
        if entry.kind in table.kinds:
            try:
                statements = [Statement(table.name, sql, row) for sql, row in table.fold(entry)]
            except Exception:
                logger.exception("entry %s is left out of the table %s", entry.seq, table.name)
            else:
                yield from statements
