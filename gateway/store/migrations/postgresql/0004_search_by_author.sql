-- As `../0004_search_by_author.sql`.
CREATE OR REPLACE VIEW said (seq, text) AS
SELECT seq, text_words(CASE kind
    WHEN 'noted' THEN json_extract(body, '$.title') || chr(10) || json_extract(body, '$.text')
    WHEN 'turn_ended' THEN json_extract(body, '$.text') || coalesce(chr(10) || nullif(json_extract(body, '$.note'), ''), '')
    ELSE coalesce(json_extract(body, '$.sender.name') || chr(10), '') || json_extract(body, '$.text')
END) FROM log
WHERE kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');
DELETE FROM search;
INSERT INTO search (rowid, text) SELECT seq, text FROM said;
