-- As `../0003_tables_of_plugins.sql`.
CREATE TABLE plugin_table (
    name text COLLATE "C" PRIMARY KEY,
    definition text NOT NULL
);

-- The table of reminders is that of a plugin now: their texts are in the log alone.
ALTER TABLE reminder RENAME TO old_reminder;
CREATE TABLE reminder (
    id text PRIMARY KEY,
    seq bigint NOT NULL,
    due text NOT NULL
);
INSERT INTO reminder (id, seq, due)
SELECT old_reminder.id, log.seq, old_reminder.due FROM old_reminder JOIN log ON log.key = 'reminded:' || old_reminder.id;
DROP TABLE old_reminder;
INSERT INTO plugin_table (name, definition) VALUES ('reminder', '');
