-- As `../0002_intentions_and_notes.sql`.
ALTER TABLE reminder ADD COLUMN intended bigint NOT NULL DEFAULT 0;
ALTER TABLE reminder ADD COLUMN awaited text NOT NULL DEFAULT '';
ALTER TABLE reminder ADD COLUMN word text NOT NULL DEFAULT '';
CREATE OR REPLACE VIEW said (seq, text) AS
SELECT seq, text_words(CASE kind
    WHEN 'noted' THEN json_extract(body, '$.title') || chr(10) || json_extract(body, '$.text')
    WHEN 'turn_ended' THEN json_extract(body, '$.text') || coalesce(chr(10) || nullif(json_extract(body, '$.note'), ''), '')
    ELSE json_extract(body, '$.text')
END) FROM log
WHERE kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');
