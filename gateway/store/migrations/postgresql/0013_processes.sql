-- The processes that share the store (gateway/cluster/database.py). These tables are no contents of the store: they are
-- not copied, and not backed up. Ages are told by the clock of the server alone.
CREATE TABLE process (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    role text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    version text NOT NULL,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    ready boolean NOT NULL DEFAULT false, -- it takes leases
    draining boolean NOT NULL DEFAULT false,
    commits bigint NOT NULL DEFAULT 0 -- counted by each transaction of the store: none is possible without this row
);

-- Beside `process`, whose row is locked while the store commits.
CREATE TABLE heartbeat (
    number bigint PRIMARY KEY REFERENCES process ON DELETE CASCADE,
    seen timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE lease (
    name text PRIMARY KEY,
    number bigint REFERENCES process ON DELETE SET NULL, -- its holder
    since timestamptz, -- of its holder; null: it never had one
    previous text NOT NULL DEFAULT '', -- name of the holder before
    lost_at timestamptz, -- last sign of life of the holder before, or its release
    gap_s double precision, -- from `lost_at` to `since`
    free_since timestamptz DEFAULT clock_timestamp() -- null: it has a holder
);

-- Messages on their way from one process to another. A crash of the server empties it: they are sent again.
CREATE UNLOGGED TABLE call (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    to_number bigint NOT NULL,
    from_number bigint NOT NULL,
    id text NOT NULL,
    kind text NOT NULL,
    body text NOT NULL, -- JSON
    timeout_s double precision, -- of a request: seconds after `at` in which it is carried out
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE call ALTER COLUMN body SET STORAGE EXTERNAL; -- to compress files would take longer than to write them
CREATE INDEX call_to ON call (to_number, position);
