"""SQL of the store's queries. Every statement uses an index. Both engines take all but those in
`Dialect`.
"""

from collections.abc import Sequence

from gateway.core.frozen import frozen

LAST = 2**63 - 1
"""SQLite's largest integer (https://www.sqlite.org/datatype3.html)."""
COLUMNS = "seq, at, kind, conversation, key, cause, body"
_LOG_COLUMNS = ", ".join(f"log.{name}" for name in COLUMNS.split(", "))


def for_sqlite(text: str) -> str:
    """Return a part of a statement that is for SQLite alone.

    PostgreSQL nests comments, and so takes all of it for one
    (https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-COMMENTS).
    """
    return f"/* /* */ {text} -- */\n"


def using(index: str) -> str:
    """Return the index that a query has to use. PostgreSQL chooses by its statistics."""
    return for_sqlite(f"INDEXED BY {index}")


_OLDER = "(SELECT at FROM log WHERE seq >= (low + high) / 2 ORDER BY seq LIMIT 1) < $1"
FIRST_ENTRY_SINCE = f"""
WITH RECURSIVE half (low, high) AS (
    SELECT CAST(1 AS bigint), (SELECT coalesce(max(seq), 0) + 1 FROM log)
    UNION ALL
    SELECT CASE WHEN {_OLDER} THEN (low + high) / 2 + 1 ELSE low END,
        CASE WHEN {_OLDER} THEN high ELSE (low + high) / 2 END
    FROM half WHERE low < high
)
SELECT low FROM half WHERE low >= high LIMIT 1
"""  # noqa: S608 - constants only
"""Binary search of the log: the times of entries grow with their positions, as long as the clock
does."""
LAST_POSITION = "SELECT coalesce(max(seq), 0) FROM log"


_LEFT = (
    "SELECT coalesce(max(CAST(json_extract(body, '$.upto') AS bigint)), 0) FROM log WHERE kind = "
    "'archived'"
)


def _growth(size: str, unused: str) -> str:
    return f"""
SELECT coalesce(max(seq), 0), ({FIRST_ENTRY_SINCE}), ({_LEFT}),
    (SELECT at FROM log ORDER BY seq LIMIT 1), ({size}), ({unused})
FROM log
"""  # noqa: S608 - constants only


def _word_uses(match: str) -> str:
    """Return the statement for the uses of words.

    Parameters: queries as a JSON array, number of uses for each, and the position after which notes
    are returned.
    """
    return f"""
SELECT
    coalesce((SELECT max(seq) FROM log), 0),
        (SELECT json_group_array(seq) FROM log WHERE kind = 'noted' AND seq > $3)
UNION ALL SELECT * FROM (
    SELECT 0, (
        SELECT json_group_array(rowid) FROM (
            SELECT rowid FROM search WHERE {match}
                AND NOT EXISTS (SELECT 1 FROM forgotten WHERE forgotten.seq = search.rowid)
            ORDER BY rowid DESC LIMIT $2
        ) AS uses
    ) FROM json_each($1) AS asked ORDER BY asked.key
) AS by_term
"""  # noqa: S608 - constants only


@frozen
class Dialect:
    """What the engines say in different words."""

    match: str
    """Condition for the rows of `search` that a query in the syntax of FTS5 finds. `{}`: its
    placeholder."""
    word_uses: str
    growth: str
    unsearch: str
    """Takes the rows of the log in `leaving` out of the index of words."""
    searched: str
    """Positions whose texts are in the index of words."""
    temporary: str
    """Schema of temporary tables."""


SQLITE = Dialect(
    match="search MATCH {}",
    word_uses=_word_uses("search MATCH asked.value"),
    growth=_growth(
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
        "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size",
    ),
    unsearch="INSERT INTO search (search, rowid, text) SELECT 'delete', seq, text FROM said "
    "WHERE seq IN (SELECT seq FROM leaving)",
    searched="SELECT id FROM search_docsize",
    temporary="temp",
)
POSTGRESQL = Dialect(
    match="search.text @@ match_query({})",
    word_uses=_word_uses(
        "search.text @@ (SELECT match_query(asked.value))"
    ),  # once, not for each row
    growth=_growth(
        "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace",
        "0",
    ),
    unsearch="DELETE FROM search WHERE rowid IN (SELECT seq FROM leaving)",
    searched="SELECT rowid FROM search",
    temporary="pg_temp",
)

ENTRY = f"SELECT {COLUMNS} FROM log WHERE seq = $1"  # noqa: S608 - constants only
ENTRY_BY_KEY = f"SELECT {COLUMNS} FROM log WHERE key = $1"  # noqa: S608 - constants only
CAUSED_BY = f"SELECT {COLUMNS} FROM log WHERE cause = $1 ORDER BY seq"  # noqa: S608 - constants only
_COVERS_EVENT = (
    "conversation = $1 AND seq > $2 AND CAST(json_extract(body, '$.upto') AS bigint) "
    ">= $3 ORDER BY seq LIMIT 1"
)
HANDLED_BY = (
    f"SELECT * FROM (SELECT {COLUMNS} FROM log WHERE kind = 'turn_ended' AND {_COVERS_EVENT}) AS "  # noqa: S608 - constants only
    f"by_turn UNION ALL SELECT * FROM (SELECT {COLUMNS} FROM log {using('log_kind')} WHERE kind = "
    f"'handled' AND {_COVERS_EVENT}) AS by_decision ORDER BY 1 LIMIT 1"
)
"""Parameters: a conversation, the position of the judgement, and the position of the event."""
DUE_CONVERSATIONS = (
    "SELECT conversation, max(urgency) FROM unread WHERE urgency >= 1 AND urgency >= $1 "
    "GROUP BY conversation ORDER BY conversation"
)
DUE_OR_AMBIENT_CONVERSATIONS = (
    "SELECT conversation, max(urgency) FROM unread GROUP BY conversation ORDER BY conversation"
)

UNREAD_URGENCY = (
    "SELECT coalesce(max(urgency), 0) FROM unread WHERE urgency >= 1 AND conversation = $1"
)
DUE_REASONS = f"""
SELECT json_extract(judged.body, '$.rule'), max(due.urgency), count(*) FROM (
    SELECT seq, urgency FROM unread {using("unread_due")}
    WHERE conversation = $1 AND urgency >= 1 ORDER BY urgency DESC, seq DESC LIMIT $2
) AS due CROSS JOIN log AS judged
WHERE judged.cause = due.seq AND judged.kind = 'judged'
GROUP BY 1 ORDER BY 2 DESC, max(due.seq) DESC
"""  # noqa: S608 - constants only
UNREAD_ROWS = (
    f"SELECT unread.urgency, {_LOG_COLUMNS} FROM unread {using('unread_conversation')} "  # noqa: S608 - constants only
    "LEFT JOIN log ON log.seq = unread.seq WHERE unread.conversation = $1 ORDER BY unread.seq "
    "LIMIT $2"
)
_SPOKEN = "'direct', 'mention', 'reply', 'alarm'"
UNREAD_ENTRIES = f"""
WITH spoken AS (
    SELECT unread.seq FROM unread {using("unread_due")} CROSS JOIN log
    WHERE log.seq = unread.seq AND unread.conversation = $1 AND unread.seq > $3
        AND unread.urgency >= 1
        AND log.kind IN ({_SPOKEN})
    ORDER BY unread.seq LIMIT $2 + 1
), edge AS (
    SELECT CASE WHEN count(*) > $2 THEN coalesce((SELECT seq FROM spoken ORDER BY seq
        LIMIT 1 OFFSET max(0, $2 - 1)), 0)
    ELSE {LAST} END AS seq FROM spoken
), loud AS (
    SELECT unread.seq FROM unread {using("unread_due")} CROSS JOIN log
    WHERE log.seq = unread.seq AND unread.conversation = $1 AND unread.seq > $3
        AND unread.urgency >= 1
        AND log.kind NOT IN ({_SPOKEN})
        AND (unread.urgency > 1 OR log.kind <> 'reacted') AND unread.seq < (SELECT seq FROM edge)
    ORDER BY unread.urgency < 2, unread.seq DESC LIMIT max(0, $2 - (SELECT count(*) FROM spoken))
), reacted AS (
    SELECT unread.seq FROM unread {using("unread_due")} CROSS JOIN log
    WHERE log.seq = unread.seq AND unread.conversation = $1
        AND unread.urgency >= 1 AND unread.urgency = 1 -- the first is the index's own term
        AND unread.seq > $3 AND unread.seq < (SELECT seq FROM edge)
        AND log.kind = 'reacted' ORDER BY unread.seq DESC
    LIMIT max(0, min($2 / 5, $2 - (SELECT count(*) FROM spoken) - (SELECT count(*) FROM loud)))
), quiet AS (
    SELECT seq FROM unread {using("unread_conversation")}
    WHERE conversation = $1 AND seq > $3 AND urgency < 1 AND seq < (SELECT seq FROM edge)
        ORDER BY seq DESC
    LIMIT max(0, $2 - (SELECT count(*)
        FROM (SELECT 1 FROM spoken UNION ALL SELECT 1 FROM loud UNION ALL
        SELECT 1 FROM reacted) AS louder))
), chosen AS (
    SELECT seq FROM spoken WHERE seq <= (SELECT seq FROM edge)
    UNION ALL SELECT seq FROM loud UNION ALL SELECT seq FROM reacted UNION ALL SELECT seq FROM quiet
), whole AS (
    SELECT count(*) AS rows, coalesce(max(seq), 0) AS upto, min(seq) AS since
    FROM unread {using("unread_conversation")} WHERE conversation = $1 AND seq > $3
        AND seq <= (SELECT seq FROM edge)
)
SELECT whole.rows, whole.upto, EXISTS (
    SELECT 1 FROM log {using("log_changed")}
    WHERE kind IN ('edited', 'deleted') AND conversation = $1 AND seq > whole.since
), {_LOG_COLUMNS}
FROM whole LEFT JOIN chosen ON true LEFT JOIN log ON log.seq = chosen.seq ORDER BY log.seq
"""  # noqa: S608 - constants only
"""One statement, hence one snapshot. Parameters: conversation, maximal number, and the position
after which it reads.

`spoken` holds the messages addressed to the agent, from the oldest on; if there are more than the
maximum, `edge` is the last that is returned, and everything after it stays unread. Overheard
messages and events fill the remaining room: first those of urgency normal or urgent, then low, then
low reactions, which are at most a fifth of all, then the rest, each the newest first.
"""

TURNS_IN_VIEW = (
    f"SELECT {COLUMNS} FROM log WHERE kind = 'turn_ended' AND conversation = $1 "  # noqa: S608 - constants only
    "AND seq >= coalesce((SELECT start FROM view WHERE conversation = $1), 0) AND NOT EXISTS "
    "(SELECT 1 FROM view_cut WHERE view_cut.conversation = $1 AND first BETWEEN coalesce((SELECT "
    "start FROM view WHERE conversation = $1), 0) AND log.seq AND last >= log.seq) ORDER BY seq"
)
"""A turn is in view when it is rewound, and no view begins inside a rewound range: so older ranges
need no check."""
NEWEST_FOLD = (
    f"SELECT {_LOG_COLUMNS} FROM view CROSS JOIN log WHERE log.seq = view.fold AND "  # noqa: S608 - the same
    "view.conversation = $1"
)
NEWEST_TURNS = (
    f"SELECT {COLUMNS} FROM log WHERE kind = 'turn_ended' AND conversation = $1 AND seq < $2 "  # noqa: S608 - the same
    "ORDER BY seq DESC LIMIT $3"
)

ENTRY_LOCATIONS = """
SELECT log.seq, log.at, log.kind, log.conversation, unread.urgency, CASE log.kind
    WHEN 'noted' THEN json_extract(log.body, '$.agent') END, CASE log.kind
    WHEN 'noted' THEN json_extract(log.body, '$.scope') END, CASE log.kind
    WHEN 'turn_ended' THEN EXISTS (
        SELECT 1 FROM view_cut WHERE view_cut.conversation = log.conversation
            AND log.seq BETWEEN first AND last)
    WHEN 'noted' THEN EXISTS (SELECT 1 FROM forgotten WHERE forgotten.seq = log.seq)
    ELSE EXISTS (SELECT 1 FROM taken_back WHERE taken_back.seq = log.seq) END, EXISTS (
    SELECT 1 FROM view WHERE view.conversation = log.conversation AND view.fresh > log.seq)
FROM json_each($1) AS asked CROSS JOIN log LEFT JOIN unread ON unread.seq = log.seq
WHERE log.seq = CAST(asked.value AS bigint)
"""

FORGOTTEN_NOTES = (
    "SELECT seq FROM forgotten WHERE seq IN (SELECT CAST(value AS bigint) FROM json_each($1))"
)

PINNED_CARD = (
    f"SELECT {COLUMNS} FROM log {using('log_carded')} "  # noqa: S608 - constants only
    "WHERE kind = 'carded' AND conversation = $1 ORDER BY seq DESC LIMIT 1"
)
LAST_TOPIC_CHANGE = (
    f"SELECT {COLUMNS} FROM log {using('log_topic')} "  # noqa: S608 - constants only
    "WHERE kind = 'membership' AND json_extract(body, '$.change') = 'topic' AND conversation = $1 "
    "ORDER BY seq DESC LIMIT 1"
)

MESSAGE_CHANGES = (
    f"SELECT {COLUMNS} FROM log {using('log_changed')} "  # noqa: S608 - constants only
    "WHERE kind IN ('edited', 'deleted') AND conversation = $1 AND seq > $2 ORDER BY seq DESC "
    "LIMIT $3"
)
_CHANGED = (
    "kind IN ('edited', 'deleted') AND conversation = $1 AND json_extract(body, "
    "'$.message') = $2 AND seq > $3"
)
LATEST_MESSAGE_CHANGE = f"""
SELECT * FROM (
    SELECT {COLUMNS} FROM log {using("log_reworded")} WHERE {_CHANGED} AND kind = 'deleted'
        ORDER BY seq DESC LIMIT 1
) AS deleted UNION ALL SELECT * FROM (
    SELECT {COLUMNS} FROM log {using("log_reworded")}
    WHERE {_CHANGED} AND kind = 'edited' AND json_extract(body, '$.sender.id') = $4 AND NOT EXISTS (
        SELECT 1 FROM log AS judged {using("log_cause")}
        WHERE judged.cause = log.seq AND judged.kind = 'judged'
            AND json_extract(judged.body, '$.fate') = 'refused')
    ORDER BY seq DESC LIMIT 1
) AS edited ORDER BY 3 LIMIT 1
"""  # noqa: S608 - constants only
"""Parameters: a conversation, a message's id, its position, and its author. `deleted` comes before
`edited`."""

OWN_POST = f"""
SELECT {", ".join(f"post.{name}" for name in COLUMNS.split(", "))}
FROM log AS part {using("log_ours")} CROSS JOIN log AS post
WHERE post.key = 'post:' || json_extract(part.body, '$.post')
    AND part.kind = 'part' AND part.conversation = $1 AND json_extract(part.body, '$.ids[0]') = $2
        LIMIT 1
"""  # noqa: S608 - constants only

OPEN_PREVIEWS = "SELECT conversation, message FROM preview ORDER BY conversation, message"

UNDELIVERED_POSTS = """
SELECT outbox.seq, log.at, log.body, part.part, part.body, part.state, part.reason, part.attempts,
    part.first_at
FROM outbox CROSS JOIN log LEFT JOIN outbox_part AS part ON part.post = outbox.post
WHERE log.seq = outbox.seq
ORDER BY outbox.seq, part.part
"""


CONNECTION_STATES = "SELECT channel, up, reason, at FROM link ORDER BY channel"
SAVED_CURSOR = "SELECT value FROM cursor WHERE channel = $1"
DMN_STATE = "SELECT state FROM dmn_state WHERE agent = $1"
CURRENT_FACTS = (
    f"SELECT {', '.join(f'log.{name}' for name in COLUMNS.split(', '))} FROM holds JOIN log USING "  # noqa: S608
    "(seq) "
    "WHERE holds.kind = $1 ORDER BY log.seq"
)


def browse(
    dialect: Dialect,
    *,
    after: int,
    before: int | None = None,
    kinds: Sequence[str] | None,
    conversation: str | None = None,
    match: str | None = None,
    limit: int,
    newest: bool = False,
) -> tuple[str, list[str | int]]:
    """Return the statement and its parameters for a range of the log; `newest` reads it from its
    end.

    Each kind is its own ordered, limited read of an index, so that a rare kind is found without
    reading the entries between, and a frequent one without sorting the entries before.
    """
    params = list[str | int]()

    def param(value: str | int) -> str:
        params.append(value)
        return f"${len(params)}"

    order = "DESC" if newest else "ASC"
    by_kind = match is None and conversation is None and kinds is not None
    source, column = (
        ("log", "log.seq") if match is None else ("search CROSS JOIN log", "search.rowid")
    )
    plus = "" if by_kind else for_sqlite("+")  # keeps SQLite from using an index
    parts = []
    for group in [[kind] for kind in dict.fromkeys(kinds or ())] if by_kind else [kinds]:
        terms = [f"{column} > {param(after)}"]
        if before is not None:
            terms.append(f"{column} < {param(before)}")
        if match is not None:
            terms.append(f"log.seq = search.rowid AND {dialect.match.format(param(match))}")
            terms.append("NOT EXISTS (SELECT 1 FROM forgotten WHERE forgotten.seq = search.rowid)")
        if group is not None:
            terms.append(f"{plus}log.kind IN ({', '.join(map(param, group)) or 'NULL'})")
        if conversation is not None:
            terms.append(
                f"{plus if match is not None else ''}log.conversation = {param(conversation)}"
            )
        parts.append(
            f"SELECT * FROM (SELECT {_LOG_COLUMNS} FROM {source} "  # noqa: S608 - constants only
            f"WHERE {' AND '.join(terms)} ORDER BY {column} {order} LIMIT {param(limit)}) AS part"
        )
    inner = " UNION ALL ".join(parts) or f"SELECT {COLUMNS} FROM log WHERE seq < 0"  # noqa: S608 - the same
    page = f"SELECT * FROM ({inner} ORDER BY 1 {order} LIMIT {param(limit)}) AS page ORDER BY 1"  # noqa: S608 - the same
    return page, params
