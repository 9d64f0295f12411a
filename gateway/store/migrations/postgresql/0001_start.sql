-- The store in PostgreSQL: the tables of `../0001_start.sql`, whose comments explain them, and functions with which the
-- same statements run here (gateway/store/postgres_log.py has those that differ).
-- Text compares by its bytes, as in SQLite.
CREATE TABLE schema_version (version bigint NOT NULL);

-- JSON, as SQLite has it (https://www.sqlite.org/json1.html). A NUL character, which PostgreSQL cannot hold, is shown as
-- the symbol for it. A path is as SQLite has it: '$', '$.usage.input_tokens', '$.ids[0]'. Functions that are not STRICT are put into a query
-- as their bodies: so a constant path is read once, and an index on what it leads to is used.
CREATE FUNCTION json_path(path text) RETURNS text[]
IMMUTABLE STRICT PARALLEL SAFE
RETURN string_to_array(ltrim(translate(path, '.[$]', ',,'), ','), ',');

CREATE FUNCTION json_at(body text, path text[]) RETURNS json
IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN strpos(body, '\u0000') > 0 THEN replace(body, '\u0000', '\u2400') ELSE body END::json #> path;

CREATE FUNCTION json_text(body text, path text[]) RETURNS text
IMMUTABLE STRICT PARALLEL SAFE
RETURN json_at(body, path) #>> '{}';

CREATE FUNCTION json_extract(body text, path text) RETURNS text
IMMUTABLE PARALLEL SAFE
RETURN json_text(body, json_path(path));

CREATE FUNCTION json_array_length(body text, path text) RETURNS bigint
IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.json_array_length(json_at(body, json_path(path)))::bigint;

CREATE FUNCTION json_each(body text, path text DEFAULT '$') RETURNS TABLE (key bigint, value text)
IMMUTABLE PARALLEL SAFE ROWS 10
BEGIN ATOMIC
    SELECT one.place - 1, one.value #>> '{}'
    FROM json_array_elements(json_at(body, json_path(path))) WITH ORDINALITY AS one (value, place);
END;

CREATE FUNCTION json_of(found anycompatiblearray) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT pg_catalog.array_to_json(found)::text $$;
CREATE AGGREGATE json_group_array(bigint) (SFUNC = array_append, STYPE = bigint[], INITCOND = '{}', FINALFUNC = json_of);
CREATE AGGREGATE json_group_array(text) (SFUNC = array_append, STYPE = text[], INITCOND = '{}', FINALFUNC = json_of);

CREATE FUNCTION max(one bigint, other bigint) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE
RETURN greatest(one, other);
CREATE FUNCTION min(one bigint, other bigint) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE
RETURN least(one, other);
CREATE FUNCTION instr(whole text, part text) RETURNS integer
IMMUTABLE STRICT PARALLEL SAFE
RETURN strpos(whole, part);

-- The log.
CREATE TABLE log (
    seq bigint PRIMARY KEY,
    at text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    conversation text COLLATE "C",
    key text COLLATE "C" UNIQUE,
    cause bigint,
    body text COLLATE "C" NOT NULL
);
CREATE INDEX log_conversation ON log (conversation, seq) WHERE conversation IS NOT NULL;
CREATE INDEX log_kind ON log (kind, seq);
CREATE INDEX log_cause ON log (cause, seq) WHERE cause IS NOT NULL;
CREATE INDEX log_turn ON log (conversation, seq) WHERE kind = 'turn_ended';
CREATE INDEX log_post ON log (conversation, seq) WHERE kind = 'post';
CREATE INDEX log_changed ON log (conversation, seq) WHERE kind IN ('edited', 'deleted');
CREATE INDEX log_carded ON log (conversation, seq) WHERE kind = 'carded';
CREATE INDEX log_ours ON log (conversation, json_extract(body, '$.ids[0]')) WHERE kind = 'part';
CREATE INDEX log_topic ON log (conversation, seq)
WHERE kind = 'membership' AND json_extract(body, '$.change') = 'topic';
CREATE INDEX log_reworded ON log (conversation, json_extract(body, '$.message'), kind, seq)
WHERE kind IN ('edited', 'deleted');

-- Old entries leave the log (gateway/store/retention.py).
CREATE TABLE leaving (seq bigint PRIMARY KEY);

CREATE FUNCTION log_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log is append-only' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE FUNCTION log_check_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM gone WHERE NOT EXISTS (SELECT 1 FROM leaving WHERE leaving.seq = gone.seq)) THEN
        RAISE EXCEPTION 'the log is append-only' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER log_no_update BEFORE UPDATE OR TRUNCATE ON log EXECUTE FUNCTION log_refuse();
CREATE TRIGGER log_no_delete AFTER DELETE ON log REFERENCING OLD TABLE AS gone EXECUTE FUNCTION log_check_delete();

CREATE TABLE archived_key (digest bytea PRIMARY KEY, seq bigint NOT NULL);

-- The projections.
CREATE TABLE unread (seq bigint PRIMARY KEY, conversation text COLLATE "C" NOT NULL, urgency bigint NOT NULL);
CREATE INDEX unread_conversation ON unread (conversation, seq);
CREATE INDEX unread_due ON unread (conversation, urgency, seq) WHERE urgency >= 1;

CREATE TABLE outbox (seq bigint PRIMARY KEY, post text COLLATE "C" NOT NULL UNIQUE);
CREATE TABLE outbox_part (
    post text COLLATE "C" NOT NULL,
    part bigint NOT NULL,
    body text NOT NULL,
    state text NOT NULL,
    reason text NOT NULL,
    attempts bigint NOT NULL,
    first_at text,
    PRIMARY KEY (post, part)
);
CREATE TABLE view (
    conversation text COLLATE "C" PRIMARY KEY,
    start bigint NOT NULL,
    fold bigint NOT NULL DEFAULT 0,
    fresh bigint NOT NULL DEFAULT 0
);
CREATE TABLE view_cut (
    conversation text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    PRIMARY KEY (conversation, first, last)
);
CREATE TABLE taken_back (seq bigint PRIMARY KEY);
CREATE TABLE compactions_v1 (
    id bigint PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    compacted_at text COLLATE "C" NOT NULL,
    turns bigint NOT NULL,
    tokens_before bigint NOT NULL,
    tokens_after bigint NOT NULL,
    tries bigint NOT NULL,
    took_ms bigint NOT NULL,
    model text NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_nano_usd bigint,
    summary text NOT NULL
);
CREATE INDEX compaction_session ON compactions_v1 (session_id, compacted_at);
CREATE TABLE compaction_locks_v1 (
    session_id text COLLATE "C" PRIMARY KEY,
    holder text NOT NULL,
    acquired_at text COLLATE "C" NOT NULL,
    expires_at text COLLATE "C" NOT NULL
);
CREATE TABLE cursor (channel text COLLATE "C" PRIMARY KEY, value text NOT NULL);
CREATE TABLE dmn_state (agent text COLLATE "C" PRIMARY KEY, state text NOT NULL);
CREATE TABLE link (channel text COLLATE "C" PRIMARY KEY, up bigint NOT NULL, reason text NOT NULL, at text NOT NULL);
CREATE TABLE preview (
    conversation text COLLATE "C" NOT NULL,
    message text COLLATE "C" NOT NULL,
    PRIMARY KEY (conversation, message)
);
CREATE TABLE spending (
    day text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    provider text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    sender text COLLATE "C" NOT NULL,
    requests bigint NOT NULL,
    unpriced bigint NOT NULL,
    input bigint NOT NULL,
    read bigint NOT NULL,
    written bigint NOT NULL,
    written_1h bigint NOT NULL,
    output bigint NOT NULL,
    cost_nano_usd bigint NOT NULL,
    PRIMARY KEY (day, conversation, agent, provider, model, sender)
);
CREATE TABLE notification_type (
    type text COLLATE "C" PRIMARY KEY,
    count bigint NOT NULL,
    first_at text COLLATE "C" NOT NULL,
    last_at text COLLATE "C" NOT NULL
);
CREATE TABLE autonomous (
    agent text COLLATE "C" NOT NULL,
    day text COLLATE "C" NOT NULL,
    turns bigint NOT NULL,
    cost_nano_usd bigint NOT NULL,
    PRIMARY KEY (agent, day)
);
CREATE TABLE reminder (
    id text COLLATE "C" PRIMARY KEY,
    agent text NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    due text COLLATE "C" NOT NULL,
    schedule text NOT NULL,
    text text NOT NULL,
    sender text NOT NULL,
    asked_by text NOT NULL
);
CREATE INDEX reminder_due ON reminder (due);
CREATE TABLE forgotten (seq bigint PRIMARY KEY);
CREATE TABLE holds (
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (kind, key)
);

-- Search. Words are runs of letters and digits, without case and accents, as FTS5's `unicode61` makes them.
CREATE FUNCTION fold_words(words text) RETURNS text
IMMUTABLE STRICT PARALLEL SAFE
RETURN regexp_replace(
    regexp_replace(normalize(lower(words COLLATE "und-x-icu"), NFD), '[\u0300-\u036f]', '', 'g') COLLATE "und-x-icu",
    '[^[:alnum:]]+', ' ', 'g'
);

-- Of a long text the first 100,000 characters: more would not fit into a tsvector, which holds 1 MB.
CREATE FUNCTION text_words(words text) RETURNS tsvector
IMMUTABLE STRICT PARALLEL SAFE
RETURN to_tsvector('pg_catalog.simple', fold_words(left(words, 100000)));

-- A query in the syntax of FTS5 (https://www.sqlite.org/fts5.html#full_text_query_syntax): words, "phrases", both with *
-- for their beginning, AND, OR, NOT and parentheses.
CREATE FUNCTION match_query(query text) RETURNS tsquery LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    token text;
    phrase text;
    made text := '';
    is_operand boolean := false;  -- what stands last in `made`
    is_skipped boolean := false;  -- there was a phrase without words
    nothing CONSTANT text := '''no such word''';  -- a word with spaces: no text has it
BEGIN
    FOR token IN
        SELECT part.one[1] FROM regexp_matches(query, '("(?:[^"]|"")*"[*]?|[()]|[^[:space:]()"]+|")', 'g') AS part (one)
    LOOP
        IF token IN ('AND', 'OR', 'NOT') THEN
            made := made || CASE WHEN is_skipped AND NOT is_operand THEN nothing ELSE '' END
                || CASE token WHEN 'AND' THEN ' & ' WHEN 'OR' THEN ' | ' ELSE ' & !' END;
            is_operand := false;
        ELSIF token = ')' THEN
            made := made || ')';
            is_operand := true;
        ELSE
            IF token = '(' THEN
                phrase := '(';
            ELSIF token ~ '^"' AND token !~ '^".*"[*]?$' OR token = '"' OR token ~ '^[^"].*[^[:alnum:]_*]' THEN
                RAISE EXCEPTION 'syntax error near %', token USING ERRCODE = 'syntax_error';
            ELSE
                phrase := phraseto_tsquery('pg_catalog.simple', fold_words(token))::text;
                IF phrase = '' THEN
                    is_skipped := true;
                    CONTINUE WHEN is_operand OR made ~ '^(.*[(])?$';
                    phrase := nothing;
                END IF;
                IF token ~ '[*]$' THEN
                    phrase := phrase || ':*';
                END IF;
                phrase := '(' || phrase || ')';
            END IF;
            made := made || CASE WHEN is_operand THEN ' & ' ELSE '' END || phrase;
            is_operand := token <> '(';
        END IF;
    END LOOP;
    IF made = '' AND query !~ '"' THEN
        RAISE EXCEPTION 'there is no word in it' USING ERRCODE = 'syntax_error';
    END IF;
    RETURN made::tsquery;
END $$;

CREATE VIEW said (seq, text) AS
SELECT seq, text_words(CASE kind
    WHEN 'noted' THEN json_extract(body, '$.title') || chr(10) || json_extract(body, '$.text')
    ELSE json_extract(body, '$.text')
END) FROM log
WHERE kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');
CREATE TABLE search (rowid bigint PRIMARY KEY, text tsvector);
CREATE INDEX search_text ON search USING gin (text);

-- The processes that share the store (gateway/cluster/database.py). These tables are no contents of the store: they are
-- not copied, and not backed up. Ages are told by the clock of the server alone.
CREATE TABLE process (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    version text NOT NULL,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    ready boolean NOT NULL DEFAULT false, -- it takes leases
    draining boolean NOT NULL DEFAULT false,
    ops text NOT NULL DEFAULT '', -- address of its HTTP server; '': it has none
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
    free_since timestamptz DEFAULT clock_timestamp() -- null: it has a holder
);
