-- The table of reminders holds intentions as well.
ALTER TABLE reminder ADD COLUMN intended INTEGER NOT NULL DEFAULT 0;  -- 1: the agent means to do it
ALTER TABLE reminder ADD COLUMN awaited TEXT NOT NULL DEFAULT '';     -- room whose talk it waits for; empty: it waits for none
ALTER TABLE reminder ADD COLUMN word TEXT NOT NULL DEFAULT '';        -- what a line of it must contain
-- `schedule` is empty where it has no time: it ends when it is due.

-- What a turn that nobody asked for says of itself is searchable, too. Older turns say nothing: their texts stay the same.
DROP VIEW said;
CREATE VIEW said (seq, text) AS
SELECT seq, CASE kind
    WHEN 'noted' THEN json_extract(body, '$.title') || char(10) || json_extract(body, '$.text')
    WHEN 'turn_ended' THEN json_extract(body, '$.text') || coalesce(char(10) || nullif(json_extract(body, '$.note'), ''), '')
    ELSE json_extract(body, '$.text')
END FROM log
WHERE +kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');
