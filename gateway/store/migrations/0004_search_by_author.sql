-- Messages are found by the name of their author, too.
DROP VIEW said;
CREATE VIEW said (seq, text) AS
SELECT seq, CASE kind
    WHEN 'noted' THEN json_extract(body, '$.title') || char(10) || json_extract(body, '$.text')
    WHEN 'turn_ended' THEN json_extract(body, '$.text') || coalesce(char(10) || nullif(json_extract(body, '$.note'), ''), '')
    ELSE coalesce(json_extract(body, '$.sender.name') || char(10), '') || json_extract(body, '$.text')
END FROM log
WHERE +kind IN ('direct', 'mention', 'reply', 'room', 'edited', 'turn_ended', 'noted');
INSERT INTO search (search) VALUES ('rebuild');
