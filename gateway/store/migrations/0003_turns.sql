-- Messages that show an answer while it grows, and must be taken away.
CREATE TABLE preview (
    conversation TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (conversation, message)
) STRICT, WITHOUT ROWID;

-- What became of messages before they were heard.
CREATE INDEX log_changed ON log (conversation) WHERE kind IN ('edited', 'deleted');

-- Which of our posts somebody replies to.
CREATE INDEX log_ours ON log (conversation, json_extract(body, '$.ids[0]')) WHERE kind = 'part';
