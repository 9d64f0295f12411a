-- The log. Append-only: the triggers below are the law's teeth.
CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    at TEXT NOT NULL,               -- UTC, ISO 8601 with microseconds
    kind TEXT NOT NULL,
    conversation TEXT,
    key TEXT UNIQUE,
    cause INTEGER,                  -- seq of the entry that led to this one
    body TEXT NOT NULL              -- the fact, as JSON
) STRICT;

CREATE INDEX log_conversation ON log (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX log_kind ON log (kind);
CREATE INDEX log_cause ON log (cause) WHERE cause IS NOT NULL;
CREATE INDEX log_turn ON log (conversation) WHERE kind = 'turn_ended';
-- What was said last in a conversation: the next page of it may be asked for.
CREATE INDEX log_post ON log (conversation) WHERE kind = 'post';
-- What became of messages before they were heard, and of one message.
CREATE INDEX log_changed ON log (conversation) WHERE kind IN ('edited', 'deleted');
CREATE INDEX log_reworded ON log (conversation, json_extract(body, '$.message'), kind)
WHERE kind IN ('edited', 'deleted');
-- Which of our posts somebody replies to.
CREATE INDEX log_ours ON log (conversation, json_extract(body, '$.ids[0]')) WHERE kind = 'part';
-- The card that is pinned to a conversation, and what it would say of the topic today.
CREATE INDEX log_carded ON log (conversation) WHERE kind = 'carded';
CREATE INDEX log_topic ON log (conversation) WHERE kind = 'membership' AND json_extract(body, '$.change') = 'topic';

CREATE TRIGGER log_no_update BEFORE UPDATE ON log
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

-- REPLACE deletes without asking a trigger for deletions (https://www.sqlite.org/lang_conflict.html).
CREATE TRIGGER log_no_replace BEFORE INSERT ON log
WHEN NEW.seq <= (SELECT max(seq) FROM log) OR EXISTS (SELECT 1 FROM log WHERE key = NEW.key)
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

-- Old entries leave the log (gateway/store/retention.py). Only what stands in `leaving` may be deleted; it is filled and
-- emptied in the transaction that deletes.
CREATE TABLE leaving (seq INTEGER PRIMARY KEY) STRICT;

CREATE TRIGGER log_no_delete BEFORE DELETE ON log
WHEN NOT EXISTS (SELECT 1 FROM leaving WHERE leaving.seq = OLD.seq)
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

-- A key counts for good: what a platform delivers again is known, though its entry has left.
CREATE TABLE archived_key (
    digest BLOB PRIMARY KEY,        -- of the key: BLAKE2b, 16 bytes
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The projections: folds of the log, made only by gateway/store/projections.py.
CREATE TABLE unread (
    seq INTEGER PRIMARY KEY,
    conversation TEXT NOT NULL,
    urgency INTEGER NOT NULL
) STRICT;

CREATE INDEX unread_conversation ON unread (conversation);
CREATE INDEX unread_due ON unread (conversation, urgency) WHERE urgency >= 1;

CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY,
    post TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE outbox_part (
    post TEXT NOT NULL,
    part INTEGER NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    first_at TEXT,                  -- since when it may have been seen
    PRIMARY KEY (post, part)
) STRICT, WITHOUT ROWID;

-- Messages that show an answer while it grows, and must be taken away.
CREATE TABLE preview (
    conversation TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (conversation, message)
) STRICT, WITHOUT ROWID;

CREATE TABLE cursor (
    channel TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE link (
    channel TEXT PRIMARY KEY,
    up INTEGER NOT NULL,
    reason TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE view (
    conversation TEXT PRIMARY KEY,
    start INTEGER NOT NULL,
    fold INTEGER NOT NULL DEFAULT 0,    -- seq of its newest fold: it says how the view shows what it shows
    fresh INTEGER NOT NULL DEFAULT 0    -- seq of its newest fold that was asked for as a fresh beginning; 0: none
) STRICT, WITHOUT ROWID;

-- Turns that were taken back: they are in the log, and in no view.
CREATE TABLE view_cut (
    conversation TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (conversation, first, last)
) STRICT, WITHOUT ROWID;

-- What those turns were told as new, or were to be told, if no later one is to be told of it again.
CREATE TABLE taken_back (seq INTEGER PRIMARY KEY) STRICT;

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

-- What was spent: a day's sums for each place, agent, model and person (gateway/store/spending.py says who bears what).
CREATE TABLE spending (
    day TEXT NOT NULL,              -- UTC, YYYY-MM-DD
    conversation TEXT NOT NULL,
    agent TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    sender TEXT NOT NULL,           -- empty: nobody's
    requests INTEGER NOT NULL,
    unpriced INTEGER NOT NULL,      -- of these, without a known price
    input INTEGER NOT NULL,         -- tokens neither read from a cache nor written to one
    read INTEGER NOT NULL,
    written INTEGER NOT NULL,
    written_1h INTEGER NOT NULL,    -- of these, for an hour
    output INTEGER NOT NULL,
    cost_nano_usd INTEGER NOT NULL,
    PRIMARY KEY (day, conversation, agent, provider, model, sender)
) STRICT, WITHOUT ROWID;

-- The types of notifications that were seen (gateway/store/registry.py says what a family is, and why it is bounded).
CREATE TABLE notification_type (
    type TEXT PRIMARY KEY,          -- without its place
    count INTEGER NOT NULL,
    first_at TEXT NOT NULL,
    last_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dmn_state (
    agent TEXT PRIMARY KEY,
    state TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What each agent did unasked on each day, and what that cost: its budgets are kept by this.
CREATE TABLE autonomous (
    agent TEXT NOT NULL,
    day TEXT NOT NULL,              -- UTC, YYYY-MM-DD
    turns INTEGER NOT NULL,
    cost_nano_usd INTEGER NOT NULL,
    PRIMARY KEY (agent, day)
) STRICT, WITHOUT ROWID;

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

-- Notes that are to be forgotten: they are in the log, and told to nobody.
CREATE TABLE forgotten (seq INTEGER PRIMARY KEY) STRICT;

-- What holds by the newest word on it: by kind of fact and by what it is about, the entry of the log that says so.
CREATE TABLE holds (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

-- What was said and written down, searchable. The text itself stays in the log alone.
CREATE VIEW said (seq, text) AS
SELECT seq, CASE kind
    WHEN 'noted' THEN json_extract(body, '$.title') || char(10) || json_extract(body, '$.text')
    ELSE json_extract(body, '$.text')
END FROM log
WHERE +kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');

CREATE VIRTUAL TABLE search USING fts5 (
    text,
    content = 'said',
    content_rowid = 'seq',
    tokenize = 'unicode61 remove_diacritics 2'
);
