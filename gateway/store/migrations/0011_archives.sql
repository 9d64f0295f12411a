-- Old entries leave the log for archives (gateway/store/retention.py). Only what stands in `leaving` may be deleted; it
-- is filled and emptied in the transaction that deletes.
CREATE TABLE leaving (seq INTEGER PRIMARY KEY) STRICT;

DROP TRIGGER log_no_delete;
CREATE TRIGGER log_no_delete BEFORE DELETE ON log
WHEN NOT EXISTS (SELECT 1 FROM leaving WHERE leaving.seq = OLD.seq)
BEGIN
    SELECT RAISE(ABORT, 'the log is append-only');
END;

-- The archives: how much of each file is valid, and how many entries that is.
CREATE TABLE archive (
    name TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL,
    entries INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A key counts for good: what a platform delivers again is known, though its entry has left.
CREATE TABLE archived_key (
    digest BLOB PRIMARY KEY,        -- of the key: BLAKE2b, 16 bytes
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
