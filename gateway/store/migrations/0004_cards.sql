-- The card that is pinned to a conversation, and what it would say of the topic today.
CREATE INDEX log_carded ON log (conversation) WHERE kind = 'carded';
CREATE INDEX log_topic ON log (conversation) WHERE kind = 'membership' AND json_extract(body, '$.change') = 'topic';
