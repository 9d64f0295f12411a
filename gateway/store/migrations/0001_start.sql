-- The log. Append-only: the triggers below are the law's teeth.
CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    at TEXT NOT NULL,           -- UTC, ISO 8601 with microseconds
    kind TEXT NOT NULL,
    conversation TEXT,
    key TEXT UNIQUE,
    cause INTEGER,              -- seq of the entry that led to this one
    body TEXT NOT NULL          -- the fact, as JSON
) STRICT;

CREATE INDEX log_conversation ON log (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX log_kind ON log (kind);
CREATE INDEX log_cause ON log (cause) WHERE cause IS NOT NULL;
CREATE INDEX log_turn ON log (conversation) WHERE kind = 'turn_ended';

CREATE TRIGGER log_no_update BEFORE UPDATE ON log
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

CREATE TRIGGER log_no_delete BEFORE DELETE ON log
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

-- REPLACE deletes without asking the trigger above (https://www.sqlite.org/lang_conflict.html).
CREATE TRIGGER log_no_replace BEFORE INSERT ON log
WHEN NEW.seq <= (SELECT max(seq) FROM log) OR EXISTS (SELECT 1 FROM log WHERE key = NEW.key)
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

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
    PRIMARY KEY (post, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE view (
    conversation TEXT PRIMARY KEY,
    start INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE cursor (
    channel TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dmn_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    state TEXT NOT NULL
) STRICT;

CREATE TABLE link (
    channel TEXT PRIMARY KEY,
    up INTEGER NOT NULL,
    reason TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What was said, searchable. The text itself stays in the log alone.
CREATE VIEW said (seq, text) AS
SELECT seq, json_extract(body, '$.text') FROM log
WHERE +kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended');

CREATE VIRTUAL TABLE search USING fts5 (
    text,
    content = 'said',
    content_rowid = 'seq',
    tokenize = 'unicode61 remove_diacritics 2'
);
