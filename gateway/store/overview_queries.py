"""The statements of `gateway.store.overview`. Every one uses an index; tests/store/test_plans.py holds it to that."""

from gateway.store.queries import LAST

MAX_CONVERSATIONS = 10_000
"""Conversations that are looked at for the newest."""
MAX_TURNS = 20_000
"""Turns, and saved states, that are looked at for one answer."""

_LATER_TURN = (
    "SELECT json_array(json_extract(body, '$.outcome'), json_extract(body, '$.within') IS NOT NULL, seq) "
    "FROM log AS later INDEXED BY log_turn WHERE later.kind = 'turn_ended' "
    "AND later.conversation = judged.conversation AND later.seq > dealt.seq "
    "AND json_extract(later.body, '$.outcome') <> 'interrupted' "
    "AND (json_extract(later.body, '$.within') IS NULL OR json_array_length(later.body, '$.covers')) "
    "ORDER BY later.seq LIMIT 1"
)
_TURN = (
    "SELECT turn.seq FROM log AS turn INDEXED BY log_turn WHERE turn.kind = 'turn_ended' "
    "AND turn.conversation = judged.conversation AND turn.seq > judged.seq "
    "AND json_extract(turn.body, '$.upto') >= event.seq ORDER BY turn.seq LIMIT 1"
)
_HANDLED = (
    "SELECT decided.seq FROM log AS decided INDEXED BY log_conversation "  # noqa: S608 - constants only
    "WHERE decided.conversation = judged.conversation "
    f"AND decided.seq > judged.seq AND decided.seq < coalesce(({_TURN}), {LAST}) AND decided.kind = 'handled' "
    "AND json_extract(decided.body, '$.upto') >= event.seq ORDER BY decided.seq LIMIT 1"
)
_LOOKED = (
    "SELECT 1 FROM log AS inner_ INDEXED BY log_kind WHERE inner_.kind = 'turn_ended' "
    "AND inner_.seq > judged.seq AND inner_.seq < dealt.seq AND inner_.conversation GLOB 'agent/*' AND EXISTS ("
    "SELECT 1 FROM json_each(inner_.body, '$.looked') WHERE json_extract(value, '$[0]') = judged.conversation "
    "AND json_extract(value, '$[1]') >= event.seq)"
)
_EVENT = f"""
SELECT event.seq, event.at, event.body, event.conversation, judged.body, judged.conversation, unread.urgency,
    dealt.kind, dealt.seq, json_extract(dealt.body, '$.outcome'), json_extract(dealt.body, '$.within') IS NOT NULL,
    EXISTS (SELECT 1 FROM json_each(dealt.body, '$.covers') WHERE value = event.seq),
    dealt.kind = 'turn_ended' AND EXISTS ({_LOOKED}),
    CASE json_extract(dealt.body, '$.outcome') WHEN 'interrupted' THEN ({_LATER_TURN}) END
"""  # noqa: S608 - constants only
_DEALT = (
    "LEFT JOIN unread ON unread.seq = event.seq LEFT JOIN log AS dealt ON dealt.seq = CASE "
    "WHEN unread.seq IS NULL AND json_extract(judged.body, '$.fate') IN ('due', 'context') "
    f"THEN coalesce(({_HANDLED}), ({_TURN})) END"
)


def _notifications_sql(where: str, order: str, *, index: str) -> str:
    return (
        f"{_EVENT} FROM log AS judged INDEXED BY {index} CROSS JOIN log AS event ON event.seq = judged.cause {_DEALT} "
        f"WHERE {where} AND judged.seq > ?1 AND judged.seq <= ?2 AND event.seq > ?1 AND event.seq < ?2 "
        f"ORDER BY judged.seq {order} LIMIT ?3"
    )


NOTIFICATIONS = {
    "newest": _notifications_sql("judged.kind = 'judged'", "DESC", index="log_kind"),
    "oldest": _notifications_sql("judged.kind = 'judged'", "ASC", index="log_kind"),
}
NOTIFICATIONS_IN = {
    "newest": _notifications_sql(
        "judged.conversation = ?4 AND judged.kind = 'judged'", "DESC", index="log_conversation"
    ),
    "oldest": _notifications_sql(
        "judged.conversation = ?4 AND judged.kind = 'judged'", "ASC", index="log_conversation"
    ),
}
"""Parameters: a position, another one, and how many between them at most; then the conversation. A judgement stands
behind its event and in front of the next one, so both have the same order."""
NOTIFICATIONS_AT = (
    f"{_EVENT} FROM json_each(?) AS asked CROSS JOIN log AS event ON event.seq = asked.value "
    "CROSS JOIN log AS judged INDEXED BY log_cause ON judged.cause = event.seq AND judged.kind = 'judged' "
    f"{_DEALT} ORDER BY event.seq"
)
"""Parameters: positions as a JSON array."""

_SAID = "('direct', 'mention', 'reply', 'room', 'command', 'post')"
_DELIVERED = (
    "SELECT json_extract(ended.body, '$.state') FROM log AS ended WHERE ended.key = CASE said.kind WHEN 'post' "
    "THEN 'delivery:' || said.conversation || ':' || json_extract(said.body, '$.post.key') END"
)
SPOKEN = (
    f"SELECT said.seq, said.at, said.body, ({_DELIVERED}) FROM log AS said INDEXED BY log_conversation "  # noqa: S608 - the same
    f"WHERE said.conversation = ? AND said.kind IN {_SAID} ORDER BY said.seq DESC LIMIT ?"
)
PLACES = f"""
WITH RECURSIVE place (name) AS (
    SELECT min(conversation) FROM log INDEXED BY log_conversation WHERE conversation IS NOT NULL
    UNION ALL
    SELECT (SELECT min(conversation) FROM log INDEXED BY log_conversation WHERE conversation > place.name)
    FROM place WHERE place.name IS NOT NULL LIMIT {MAX_CONVERSATIONS}
), newest (name, seq) AS (
    SELECT name, (SELECT max(seq) FROM log INDEXED BY log_conversation WHERE conversation = name)
    FROM place WHERE name IS NOT NULL ORDER BY 2 DESC LIMIT ?1
)
SELECT newest.name, newest.seq, log.at,
    (SELECT count(*) FROM unread INDEXED BY unread_conversation WHERE unread.conversation = newest.name),
    said.seq, said.at, said.body, ({_DELIVERED})
FROM newest CROSS JOIN log ON log.seq = newest.seq LEFT JOIN log AS said ON said.seq = (
    SELECT seq FROM log INDEXED BY log_conversation WHERE conversation = newest.name AND kind IN {_SAID}
    ORDER BY seq DESC LIMIT 1
) ORDER BY newest.seq DESC
"""  # noqa: S608 - the same
"""One look into an index for each conversation, however long it is."""

_TURN_SEEN = """
SELECT seq, at, conversation, json_extract(body, '$.turn'), json_extract(body, '$.agent'),
    json_extract(body, '$.cause'), json_extract(body, '$.outcome'), json_extract(body, '$.model'),
    json_extract(body, '$.requests'), (
        SELECT json_group_array(json_extract(call.value, '$.name'))
        FROM json_each(body, '$.steps') AS step CROSS JOIN json_each(step.value, '$.calls') AS call
    ), json_extract(body, '$.usage'), (
        SELECT coalesce(sum(json_extract(value, '$.cost_usd')), 0.0) FROM json_each(body, '$.accounts')
    ), json_extract(body, '$.within') IS NOT NULL, json_extract(body, '$.autonomous')
"""
TURNS = (
    f"{_TURN_SEEN} FROM log INDEXED BY log_kind WHERE kind = 'turn_ended' AND conversation IS NOT NULL "
    "AND seq > ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3"
)
TURNS_IN = (
    f"{_TURN_SEEN} FROM log INDEXED BY log_turn WHERE kind = 'turn_ended' AND conversation = ?4 "
    "AND seq > ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3"
)

_OLDER = "(SELECT at FROM log WHERE seq >= (low + high) / 2 ORDER BY seq LIMIT 1) < ?1"
SINCE = f"""
WITH RECURSIVE half (low, high) AS (
    SELECT 1, (SELECT coalesce(max(seq), 0) + 1 FROM log)
    UNION ALL
    SELECT CASE WHEN {_OLDER} THEN (low + high) / 2 + 1 ELSE low END,
        CASE WHEN {_OLDER} THEN high ELSE (low + high) / 2 END
    FROM half WHERE low < high
)
SELECT low FROM half WHERE low >= high LIMIT 1
"""  # noqa: S608 - the same
"""Halves the log until it is found: the times of entries grow with their positions, as long as the clock does."""

_KEYS = {
    "channel": "substr(conversation, 1, instr(conversation, '/') - 1)",
    "conversation": "conversation",
    "agent": "{}agent{}",
    "model": "{}model{}",
}


def _spending_sql(key: str) -> str:
    return f"""
SELECT substr(at, 1, 13) || ':00:00', {_KEYS[key].format("json_extract(body, '$.", "')")},
    sum(json_extract(body, '$.requests')), sum(json_extract(body, '$.usage.input_tokens')),
    sum(json_extract(body, '$.usage.cache_read_tokens')), sum(json_extract(body, '$.usage.cache_write_tokens')),
    sum(coalesce(json_extract(body, '$.usage.cache_write_1h_tokens'), 0)),
    sum(json_extract(body, '$.usage.output_tokens')),
    sum((SELECT coalesce(sum(json_extract(value, '$.cost_usd')), 0.0) FROM json_each(body, '$.accounts')))
FROM (
    SELECT at, conversation, body FROM log INDEXED BY log_kind
    WHERE kind = 'turn_ended' AND seq >= ({SINCE}) ORDER BY seq DESC LIMIT {MAX_TURNS}
) WHERE at >= ?1 AND json_extract(body, '$.requests') > 0 GROUP BY 1, 2 ORDER BY 1, 2
"""  # noqa: S608 - the same


SPENT_BY = {key: _spending_sql(key) for key in _KEYS}
DAYS_BY = {
    key: f"SELECT day, {named.format('', '')}, sum(requests), sum(input), sum(read), "  # noqa: S608 - the same
    "sum(written), sum(written_1h), sum(output), sum(cost_nano_usd) / 1e9 FROM spending WHERE day >= ? "
    "GROUP BY 1, 2 ORDER BY 1, 2"
    for key, named in _KEYS.items()
}

LIVE_EVENT_KINDS = "('judged', 'turn_ended', 'post', 'delivery')"
MISSED = f"""
SELECT count(*) FROM (SELECT 1 FROM log INDEXED BY log_kind WHERE kind IN {LIVE_EVENT_KINDS}
    AND seq > ? AND seq <= ? LIMIT {MAX_TURNS})
"""  # noqa: S608 - the same

MODES = f"""
SELECT at, agent, mode FROM (
    SELECT seq, at, json_extract(body, '$.agent') AS agent,
        json_extract(json_extract(body, '$.state'), '$.mode') AS mode
    FROM log INDEXED BY log_kind WHERE kind = 'dmn' AND seq >= ({SINCE}) ORDER BY seq DESC LIMIT {MAX_TURNS}
) WHERE mode IS NOT NULL ORDER BY seq
"""  # noqa: S608 - the same
