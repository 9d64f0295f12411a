-- Where the newest fold of each conversation stands: it holds how the view shows what it shows.
ALTER TABLE view ADD COLUMN fold INTEGER NOT NULL DEFAULT 0;
UPDATE view SET fold = coalesce((SELECT max(seq) FROM log WHERE kind = 'folded' AND conversation = view.conversation), 0);

-- Where its newest fold that was asked for as a fresh beginning stands; 0: nobody asked for one.
ALTER TABLE view ADD COLUMN fresh INTEGER NOT NULL DEFAULT 0;

-- Turns that were taken back: they are in the log, and in no view.
CREATE TABLE view_cut (
    conversation TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (conversation, first, last)
) STRICT, WITHOUT ROWID;

-- What those turns were told as new, or were to be told, if no later one is to be told of it again.
CREATE TABLE taken_back (seq INTEGER PRIMARY KEY) STRICT;

-- What became of one message: edits and deletions of it.
CREATE INDEX log_reworded ON log (conversation, json_extract(body, '$.message'), kind)
WHERE kind IN ('edited', 'deleted');

-- Every summary that was made, for people: SELECT * FROM compactions_v1 WHERE session_id = ? ORDER BY compacted_at DESC
CREATE TABLE compactions_v1 (
    id INTEGER PRIMARY KEY,         -- where the fold stands in the log
    session_id TEXT NOT NULL,       -- the conversation
    compacted_at TEXT NOT NULL,     -- UTC, ISO 8601 with microseconds
    turns INTEGER NOT NULL,
    tokens_before INTEGER NOT NULL,
    tokens_after INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    took_ms INTEGER NOT NULL,
    model TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,  -- read from the cache, written to it, and neither
    output_tokens INTEGER NOT NULL,
    cost_nano_usd INTEGER,          -- NULL: no price is known
    summary TEXT NOT NULL
) STRICT;

CREATE INDEX compaction_session ON compactions_v1 (session_id, compacted_at);

-- Who makes a summary of a conversation just now. A lock that has expired is nobody's.
CREATE TABLE compaction_locks_v1 (
    session_id TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    acquired_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What agents wrote down is searched as what was said is.
DROP VIEW said;
CREATE VIEW said (seq, text) AS
SELECT seq, CASE kind
    WHEN 'noted' THEN json_extract(body, '$.title') || char(10) || json_extract(body, '$.text')
    ELSE json_extract(body, '$.text')
END FROM log
WHERE +kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');

INSERT INTO search (rowid, text) SELECT seq, text FROM said WHERE seq IN (SELECT seq FROM log WHERE kind = 'noted');
