-- What holds by the newest word on it: by kind of fact and by what it is about, the entry of the log that says so.
CREATE TABLE holds (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
