ALTER TABLE process ADD COLUMN ops text NOT NULL DEFAULT ''; -- address of its HTTP server; '': it has none
ALTER TABLE call DROP COLUMN timeout_s; -- nothing has used it: the time is in the body of a request
