-- One Default Mode Network for each agent. What was saved before belongs to the first: its agent is empty.
ALTER TABLE dmn_state RENAME TO dmn_state_of_all;
CREATE TABLE dmn_state (
    agent TEXT PRIMARY KEY,
    state TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO dmn_state SELECT '', state FROM dmn_state_of_all;
DROP TABLE dmn_state_of_all;

-- What each agent did unasked on each day, and what that cost: its budgets are kept by this.
CREATE TABLE autonomous (
    agent TEXT NOT NULL,
    day TEXT NOT NULL,              -- UTC, YYYY-MM-DD
    turns INTEGER NOT NULL,
    cost_nano_usd INTEGER NOT NULL,
    PRIMARY KEY (agent, day)
) STRICT, WITHOUT ROWID;

INSERT INTO autonomous
SELECT
    coalesce(json_extract(body, '$.agent'), ''), substr(at, 1, 10), count(*),
    sum(coalesce((
        SELECT sum(CAST(min(max(json_extract(account.value, '$.cost_usd') * 1e9, 0.0), 1125899906842624) + 0.5 AS INTEGER))
        FROM json_each(log.body, '$.accounts') AS account
    ), 0))
FROM log WHERE kind = 'turn_ended' AND json_extract(body, '$.autonomous')
GROUP BY 1, 2;

-- The reminders that are still to come.
CREATE TABLE reminder (
    id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    conversation TEXT NOT NULL,     -- empty: it is told to the agent itself
    due TEXT NOT NULL,              -- UTC, ISO 8601 with microseconds
    schedule TEXT NOT NULL,
    text TEXT NOT NULL,
    sender TEXT NOT NULL,           -- who asked for it; empty: the agent itself
    asked_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX reminder_due ON reminder (due);
