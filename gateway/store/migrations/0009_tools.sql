-- What an admin has approved for good: one tool, of one agent, in one conversation.
CREATE TABLE approval (
    agent TEXT NOT NULL,
    tool TEXT NOT NULL,
    conversation TEXT NOT NULL,
    seq INTEGER NOT NULL,           -- of the approval in the log
    by TEXT NOT NULL,
    PRIMARY KEY (agent, tool, conversation)
) STRICT, WITHOUT ROWID;

-- Notes that are to be forgotten: they are in the log, and told to nobody.
CREATE TABLE forgotten (seq INTEGER PRIMARY KEY) STRICT;
