"""Intake: the `emit` of every channel.

- `intake`: judges each event, and appends it with everything that follows from it.
- `factory`: makes the adapters.

Each event is judged by `Intake.judges`, one after the other, then
`Intake` appends a batch in one transaction. Whoever acts on an event subscribes to the log, which
finds a repeated event by its dedup key.
"""
