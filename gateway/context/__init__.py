"""What an agent knows and is told: conversation, history, compaction, evidence, journal, memory, recall, reminders."""
