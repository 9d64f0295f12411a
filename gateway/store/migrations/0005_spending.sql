-- What was spent: a day's sums for each place, agent, model and person (gateway/store/spending.py says who bears what).
CREATE TABLE spending (
    day TEXT NOT NULL,              -- UTC, YYYY-MM-DD
    conversation TEXT NOT NULL,
    agent TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    sender TEXT NOT NULL,           -- empty: nobody's
    requests INTEGER NOT NULL,
    unpriced INTEGER NOT NULL,      -- of these, without a known price
    input INTEGER NOT NULL,         -- tokens neither read from a cache nor written to one
    read INTEGER NOT NULL,
    written INTEGER NOT NULL,
    written_1h INTEGER NOT NULL,    -- of these, for an hour
    output INTEGER NOT NULL,
    cost_nano_usd INTEGER NOT NULL,
    PRIMARY KEY (day, conversation, agent, provider, model, sender)
) STRICT, WITHOUT ROWID;

-- Before this version a turn told only the sum of its requests, and neither their price nor who took it for whom.
INSERT INTO spending
SELECT
    substr(at, 1, 10), conversation, '', '', json_extract(body, '$.model'), '',
    min(json_extract(body, '$.requests'), 1125899906842624),
    min(json_extract(body, '$.requests'), 1125899906842624),
    min(max(json_extract(body, '$.usage.input_tokens'), 0), 1125899906842624),
    min(max(json_extract(body, '$.usage.cache_read_tokens'), 0), 1125899906842624),
    min(max(json_extract(body, '$.usage.cache_write_tokens'), 0), 1125899906842624),
    min(max(coalesce(json_extract(body, '$.usage.cache_write_1h_tokens'), 0), 0), 1125899906842624),
    min(max(json_extract(body, '$.usage.output_tokens'), 0), 1125899906842624),
    0
FROM log
WHERE kind = 'turn_ended' AND conversation IS NOT NULL AND json_extract(body, '$.requests') > 0
ORDER BY seq
ON CONFLICT DO UPDATE SET
    requests = min(requests + excluded.requests, 1125899906842624),
    unpriced = min(unpriced + excluded.unpriced, 1125899906842624),
    input = min(input + excluded.input, 1125899906842624),
    read = min(read + excluded.read, 1125899906842624),
    written = min(written + excluded.written, 1125899906842624),
    written_1h = min(written_1h + excluded.written_1h, 1125899906842624),
    output = min(output + excluded.output, 1125899906842624);
