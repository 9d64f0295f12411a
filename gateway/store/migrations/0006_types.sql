-- The types of notifications that were seen (gateway/store/registry.py says what a family is, and why it is bounded).
CREATE TABLE notification_type (
    family TEXT NOT NULL,           -- the type without its place; empty: it names none
    type TEXT NOT NULL,
    count INTEGER NOT NULL,
    first_at TEXT NOT NULL,
    last_at TEXT NOT NULL,
    PRIMARY KEY (family, type)
) STRICT, WITHOUT ROWID;

-- What this version would have counted, had it been there from the start.
WITH judged AS (
    SELECT
        seq, at, json_extract(body, '$.type') AS type,
        CASE WHEN instr(coalesce(conversation, ''), '/') = 0 THEN '' ELSE '.' || replace(replace(replace(
            substr(conversation, instr(conversation, '/') + 1), '/', '.'), '%2F', '/'), '%25', '%') END AS place
    FROM log WHERE kind = 'judged'
), told AS (
    SELECT
        seq, at, type,
        CASE WHEN length(place) > 1 AND substr(type, -length(place)) = place
            THEN substr(type, 1, length(type) - length(place)) ELSE '' END AS family
    FROM judged
), types AS (
    SELECT family, type, count(*) AS count, min(seq) AS first, max(seq) AS last FROM told GROUP BY family, type
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY family ORDER BY first) AS place FROM types
), counted AS (
    SELECT
        family,
        CASE WHEN place <= 200 THEN type WHEN family = '' THEN '*' ELSE family || '.*' END AS type,
        count, first, last
    FROM ranked
), summed AS (
    SELECT family, type, sum(count) AS count, min(first) AS first, max(last) AS last FROM counted GROUP BY family, type
)
INSERT INTO notification_type
SELECT
    family, type, count, (SELECT at FROM log WHERE seq = first), (SELECT at FROM log WHERE seq = last)
FROM summed;
