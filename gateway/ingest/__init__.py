"""Intake: the `emit` of every channel.

`intake` has each event judged by a list of judges, one after the other, then appends a batch with
everything that follows from it in one transaction. Whoever acts on an event subscribes to the log,
which finds a repeated event by its dedup key.
"""
