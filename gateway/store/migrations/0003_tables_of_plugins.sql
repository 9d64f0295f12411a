-- The tables that plugins derive from the log, as they were made (gateway/store/rebuild.py). One that is not in here is
-- made anew before it is used.
CREATE TABLE plugin_table (
    name TEXT PRIMARY KEY,
    definition TEXT NOT NULL        -- empty: as it was made by these files
) STRICT, WITHOUT ROWID;

-- The table of reminders is that of a plugin now: their texts are in the log alone.
ALTER TABLE reminder RENAME TO old_reminder;
CREATE TABLE reminder (
    id TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    due TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO reminder (id, seq, due)
SELECT old_reminder.id, log.seq, old_reminder.due FROM old_reminder JOIN log ON log.key = 'reminded:' || old_reminder.id;
DROP TABLE old_reminder;
INSERT INTO plugin_table (name, definition) VALUES ('reminder', '');
