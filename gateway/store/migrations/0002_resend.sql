-- Since when a part may have been seen: for so long may it be sent again, where the platform drops repeats.
ALTER TABLE outbox_part ADD COLUMN first_at TEXT;

-- Before this version nothing that may have been seen was sent again: the last hand-over is the first that counts.
UPDATE outbox_part SET first_at = (
    SELECT log.at FROM log
    WHERE log.kind = 'sending' AND json_extract(log.body, '$.post') = outbox_part.post
        AND json_extract(log.body, '$.part') = outbox_part.part
    ORDER BY log.seq DESC LIMIT 1
) WHERE state NOT IN ('pending');

-- What was said last in a conversation: the next page of it may be asked for.
CREATE INDEX log_post ON log (conversation) WHERE kind = 'post';
