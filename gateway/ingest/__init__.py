"""Intake: the `emit` of every channel.

- `intake`: judges each event, and appends it with everything that follows from it.
- `factory`: makes the adapters.

An event passes through `Intake._handle` (command, access, attention, loop guard, limits), then
`Intake` appends a batch in one transaction. Whoever acts on an event subscribes to the log, which
finds a repeated event by its dedup key.
"""
