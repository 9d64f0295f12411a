-- The log in parts of about a month, and its words in parts of the same positions: when all of a part is old, a small
-- one with what stays takes its place, and it is dropped (gateway/store/retention.py).
--
-- A part is for a range of positions, which grow with time. The last one, the reserve, has no end and is empty as a rule;
-- it gets an end when the part before it is half full. So there is a part for each append, even if nobody has begun one
-- for long.
--
-- `key` is unique within a part only, for a unique index of the whole log would have to hold the position. In the whole
-- log it is unique because those who append take turns (the lock of the store, or that of the log among several), and
-- look keys up first (`_find_known` in gateway/store/store.py).
DROP VIEW said;
ALTER TABLE log RENAME TO log_1;
ALTER TABLE search RENAME TO search_1;

CREATE TABLE log (
    seq bigint PRIMARY KEY,
    at text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    conversation text COLLATE "C",
    key text COLLATE "C",
    cause bigint,
    body text COLLATE "C" NOT NULL
) PARTITION BY RANGE (seq);
CREATE INDEX ON log (conversation, seq) WHERE conversation IS NOT NULL;
CREATE INDEX ON log (kind, seq);
CREATE INDEX ON log (cause, seq) WHERE cause IS NOT NULL;
CREATE INDEX ON log (conversation, seq) WHERE kind = 'turn_ended';
CREATE INDEX ON log (conversation, seq) WHERE kind = 'post';
CREATE INDEX ON log (conversation, seq) WHERE kind IN ('edited', 'deleted');
CREATE INDEX ON log (conversation, seq) WHERE kind = 'carded';
CREATE INDEX ON log (conversation, json_extract(body, '{ids,0}')) WHERE kind = 'part';
CREATE INDEX ON log (conversation, seq)
WHERE kind = 'membership' AND json_extract(body, '{change}') = 'topic';
CREATE INDEX ON log (conversation, json_extract(body, '{message}'), kind, seq)
WHERE kind IN ('edited', 'deleted');
CREATE TRIGGER log_no_update BEFORE UPDATE OR TRUNCATE ON log EXECUTE FUNCTION log_refuse();
CREATE TRIGGER log_no_delete AFTER DELETE ON log REFERENCING OLD TABLE AS gone EXECUTE FUNCTION log_check_delete();

CREATE TABLE search (rowid bigint PRIMARY KEY, text tsvector) PARTITION BY RANGE (rowid);
CREATE INDEX ON search USING gin (text);

-- What was there becomes the first part, with its indexes and triggers. No row is read for that.
ALTER TABLE log ATTACH PARTITION log_1 FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
ALTER TABLE search ATTACH PARTITION search_1 FOR VALUES FROM (MINVALUE) TO (MAXVALUE);

CREATE VIEW said (seq, text) AS
SELECT seq, text_words(CASE kind
    WHEN 'noted' THEN json_extract(body, '{title}') || chr(10) || json_extract(body, '{text}')
    ELSE json_extract(body, '{text}')
END) FROM log
WHERE kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');

CREATE SEQUENCE part_number START 2;

-- The parts `log_<number>`, with their positions: from `first` on, before `until` (null: the reserve).
CREATE VIEW part (number, first, until) AS
SELECT number::bigint, coalesce(bounds[1]::bigint, 1), bounds[2]::bigint
FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid,
    LATERAL substring(relname FROM '^log_([0-9]+)$') AS number,
    LATERAL regexp_match(
        pg_get_expr(relpartbound, pg_class.oid), 'FROM \((?:MINVALUE|''(-?\d+)'')\) TO \((?:MAXVALUE|''(-?\d+)'')\)'
    ) AS bounds
WHERE inhparent = 'log'::regclass;

CREATE FUNCTION guard_part(number bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER log_no_update BEFORE UPDATE OR TRUNCATE ON log_%s EXECUTE FUNCTION log_refuse()', number);
    EXECUTE format('CREATE TRIGGER log_no_delete AFTER DELETE ON log_%s REFERENCING OLD TABLE AS gone '
        'EXECUTE FUNCTION log_check_delete()', number);
END $$;

-- Attach the tables of a part, or let them get other ones.
CREATE FUNCTION bound_part(number bigint, first text, until text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE log ATTACH PARTITION log_%s FOR VALUES FROM (%s) TO (%s)', number, first, until);
    EXECUTE format('ALTER TABLE search ATTACH PARTITION search_%s FOR VALUES FROM (%s) TO (%s)', number, first, until);
END $$;
CREATE FUNCTION unbind_part(number bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE log DETACH PARTITION log_%s', number);
    EXECUTE format('ALTER TABLE search DETACH PARTITION search_%s', number);
END $$;

-- Make the tables of a part, and return its number.
CREATE FUNCTION make_part() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number CONSTANT bigint := nextval('part_number');
BEGIN
    EXECUTE format('CREATE TABLE log_%s (LIKE log INCLUDING ALL, UNIQUE (key))', number);
    EXECUTE format('CREATE TABLE search_%s (LIKE search INCLUDING ALL)', number);
    PERFORM guard_part(number);
    RETURN number;
END $$;

-- Begin parts for so many positions until the last one before the reserve is not half full, and return their number.
CREATE FUNCTION begin_parts(span bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    reserve part;
    before part;
    last bigint;
    cut bigint;
    begun bigint := 0;
BEGIN
    LOOP
        SELECT coalesce(max(seq), 0) INTO last FROM log;
        SELECT * INTO reserve FROM part WHERE until IS NULL;
        SELECT * INTO before FROM part WHERE until = reserve.first AND reserve.first > 1;
        IF last < (before.first + before.until) / 2 THEN
            RETURN begun;
        END IF;
        IF begun = 0 THEN -- nobody appends from now on, so that `last` holds
            LOCK TABLE ONLY log, ONLY search IN ACCESS EXCLUSIVE MODE;
            begun := 1;
            CONTINUE;
        END IF;
        cut := greatest(reserve.first + span, last + 1);
        PERFORM unbind_part(reserve.number);
        PERFORM bound_part(
            reserve.number, CASE reserve.first WHEN 1 THEN 'MINVALUE' ELSE quote_literal(reserve.first) END, quote_literal(cut)
        );
        PERFORM bound_part(make_part(), quote_literal(cut), 'MAXVALUE');
        begun := begun + 1;
    END LOOP;
END $$;

-- Copy what is not in the temporary table `leaving_part` to a new part, which is not attached yet. Nobody waits.
CREATE FUNCTION copy_part(number bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    made CONSTANT bigint := make_part();
BEGIN
    EXECUTE format('INSERT INTO log_%s SELECT * FROM log_%s AS old '
        'WHERE NOT EXISTS (SELECT 1 FROM leaving_part WHERE leaving_part.seq = old.seq)', made, number);
    EXECUTE format('INSERT INTO search_%s SELECT * FROM search_%s AS old '
        'WHERE NOT EXISTS (SELECT 1 FROM leaving_part WHERE leaving_part.seq = old.rowid)', made, number);
    RETURN made;
END $$;

-- Put a copy in the place of a part. To a transaction that began before the copy was made it would look empty.
CREATE FUNCTION replace_part(number bigint, copy bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    old part;
BEGIN
    IF EXISTS (
        SELECT 1 FROM pg_stat_activity, pg_class
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND datname = current_database()
            AND pg_class.oid = to_regclass(format('log_%s', copy)) AND age(backend_xmin) >= age(pg_class.xmin)
    ) THEN
        RAISE EXCEPTION 'an older transaction reads the log' USING ERRCODE = 'lock_not_available';
    END IF;
    LOCK TABLE ONLY log, ONLY search IN ACCESS EXCLUSIVE MODE;
    SELECT * INTO STRICT old FROM part WHERE part.number = replace_part.number AND until IS NOT NULL;
    PERFORM unbind_part(number);
    PERFORM bound_part(copy, CASE old.first WHEN 1 THEN 'MINVALUE' ELSE quote_literal(old.first) END, quote_literal(old.until));
END $$;

-- Drop what was replaced, and copies that were left by a kill.
CREATE FUNCTION drop_parts() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT relname FROM pg_class WHERE relkind = 'r' AND NOT relispartition AND relname ~ '^(log|search)_[0-9]+$'
            AND relnamespace = current_schema()::regnamespace
    LOOP
        EXECUTE format('DROP TABLE %I', name);
    END LOOP;
END $$;

-- The log so far gets an end, for which it is read once.
SELECT begin_parts(10000) WHERE EXISTS (SELECT 1 FROM log);
