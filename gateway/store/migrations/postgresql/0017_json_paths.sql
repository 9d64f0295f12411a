-- Paths in JSON as SQLite has them: '$', '$.usage.input_tokens', '$.ids[0]'. These functions are not STRICT, so that a
-- query gets their bodies in their place: a path that is a constant is read once, and an index on what it leads to is used.
CREATE FUNCTION json_path(path text) RETURNS text[]
IMMUTABLE STRICT PARALLEL SAFE
RETURN string_to_array(ltrim(translate(path, '.[$]', ',,'), ','), ',');

CREATE FUNCTION json_extract(body text, path text) RETURNS text
IMMUTABLE PARALLEL SAFE
RETURN json_extract(body, json_path(path));

CREATE FUNCTION json_array_length(body text, path text) RETURNS bigint
IMMUTABLE PARALLEL SAFE
RETURN json_array_length(body, json_path(path));

CREATE FUNCTION json_each(body text, path text) RETURNS TABLE (key bigint, value text)
IMMUTABLE PARALLEL SAFE ROWS 10
BEGIN ATOMIC
    SELECT one.key, one.value FROM json_each(body, json_path(path)) AS one (key, value);
END;
