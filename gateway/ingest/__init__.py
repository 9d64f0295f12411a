"""Intake: the `emit` of every channel.

- `intake`: judges each event, appends it with everything that follows from it, and announces it.
- `factory`: makes the adapters.

An event passes through `IntakePolicy.handle` (command, access, attention, loop guard, limits), then `Intake` appends a
batch in one transaction, and only then calls back (`IntakeCallbacks`). A repeated event is found by its dedup key and
is not announced again.
"""
